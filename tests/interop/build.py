"""RocketMQ's own engine and our Java beside it, built by Maven from the pom beside this file."""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
LINES = ("4.9", "5.3")  # profiles of the pom


class Unavailable(Exception):
    """A tool is missing on this machine."""


def classpath(line: str) -> str:
    """For `java -cp`; builds what is missing or older than its sources."""
    missing = [tool for tool in ("java", "mvn") if shutil.which(tool) is None]
    if missing:
        raise Unavailable(f"RocketMQ's own engine needs {' and '.join(missing)} on the PATH")
    target = HERE / "target" / line
    with alone():
        if not _is_built(target):
            _build(line)
            (target / "built").touch()
    return f"{target / 'classes'}{os.pathsep}{target / 'lib'}/*"


@contextmanager
def alone() -> Iterator[None]:
    """One process at a time: what another has built need not be built again, and Maven's downloads
    don't stand two."""
    (HERE / "target").mkdir(exist_ok=True)
    with (HERE / "target" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _is_built(target: Path) -> bool:
    built = target / "built"
    sources = [HERE / "pom.xml", *HERE.glob("src/**/*.java")]
    return built.exists() and built.stat().st_mtime >= max(s.stat().st_mtime for s in sources)


def _build(line: str) -> None:
    pom = str(HERE / "pom.xml")
    command = ["mvn", "-q", "-B", "-P", f"rocketmq-{line}", "-f", pom, "package"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = (done.stdout + done.stderr)[-3000:]
        raise RuntimeError(f"{' '.join(command)} failed:\n{said}")
