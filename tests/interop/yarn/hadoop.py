"""Hadoop itself, on loopback: HDFS, a resource manager and a node manager in one process."""

import os
import subprocess
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from interop.build import alone

HERE = Path(__file__).parent
PATIENCE = 300.0  # seconds for all servers to start, on a machine that is busy

JVM = ("java", "-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


@dataclass(frozen=True)
class Hadoop:
    directory: Path

    @property
    def conf(self) -> Path:
        """For HADOOP_CONF_DIR."""
        return self.directory / "conf"

    @property
    def files(self) -> str:
        """`hdfs://host:port`."""
        for one in ElementTree.parse(self.conf / "core-site.xml").getroot():
            if one.findtext("name") == "fs.defaultFS":
                return str(one.findtext("value"))
        raise LookupError(self.conf)

    def logs(self) -> str:
        """What containers said; of each the end."""
        logs = sorted(self.directory.glob("containers/*/*/std*"))
        return "\n".join(f"{log}:\n{log.read_text(errors='replace')[-3000:]}" for log in logs)


@contextmanager
def hadoop(directory: Path) -> Iterator[Hadoop]:
    """Files of the servers and of containers are in `directory`."""
    classes = _classes()
    with (directory / "hadoop.log").open("wb") as log:
        process = subprocess.Popen(
            (*JVM, "-cp", classes, "tamis.yarn.LoopbackHadoop", directory),
            stdin=subprocess.PIPE,  # its end, with us, ends the servers
            stdout=log,
            stderr=log,
            cwd=directory,
        )
    try:
        _wait(process, directory / "hadoop.log")
        yield Hadoop(directory)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while "\nready\n" not in log.read_text(errors="replace"):
        if time.monotonic() > deadline or process.poll() is not None:
            said = log.read_text(errors="replace")[-3000:]
            raise TimeoutError(f"Hadoop did not start, see {log}:\n{said}")
        time.sleep(0.2)


def _classes() -> str:
    """A class path; builds what is missing or older than its sources."""
    built = HERE / "target" / "built"
    sources = [HERE / "pom.xml", *HERE.glob("src/**/*.java")]
    with alone():
        if not built.exists() or built.stat().st_mtime < max(s.stat().st_mtime for s in sources):
            command = ["mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), "package"]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                said = (done.stdout + done.stderr)[-3000:]
                raise RuntimeError(f"{' '.join(command)} failed:\n{said}")
            built.touch()
    return f"{HERE / 'target' / 'classes'}{os.pathsep}{HERE / 'target' / 'lib'}/*"
