"""RocketMQ's own engine and our Java beside it, built by Maven from the pom beside this file."""

import os
import shutil
import subprocess
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
    built = target / "built"
    sources = [HERE / "pom.xml", *HERE.glob("src/**/*.java")]
    if not built.exists() or built.stat().st_mtime < max(s.stat().st_mtime for s in sources):
        command = [
            "mvn",
            "-q",
            "-B",
            "-P",
            f"rocketmq-{line}",
            "-f",
            str(HERE / "pom.xml"),
            "package",
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            said = (done.stdout + done.stderr)[-3000:]
            raise RuntimeError(f"{' '.join(command)} failed:\n{said}")
        built.touch()
    return f"{target / 'classes'}{os.pathsep}{target / 'lib'}/*"
