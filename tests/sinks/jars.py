"""The jars of the sinks, fetched by Maven by `interop/sinks/pom.xml`, for the Spark there is."""

import os
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest
from interop.build import alone

__all__ = ["BY_VERSION", "SPARK", "jars", "java_tools", "missing"]

SPARK = ".".join(version("pyspark").split(".")[:2])
HERE = Path(__file__).parents[1] / "interop" / "sinks"
TARGET = HERE / "target"
# Of each version of Spark, the version that its jar was published for: there may be none for it,
# and that of another works. Where nothing works the sink is not promised.
BY_VERSION = {
    "avro": {"4.1": "4.1", "4.2": "4.1", "4.3": "4.1"},
    "delta": {"4.1": "4.1", "4.2": "4.2"},
    "iceberg": {"4.1": "4.1"},
    "kafka": {"4.1": "4.1", "4.2": "4.2", "4.3": "4.2"},
}


def missing(reason: str) -> None:
    """Skips the test for want of a tool, unless CI says that it must run."""
    if os.environ.get("TAMIS_INTEROP") == "required":
        pytest.fail(f"{reason}, and TAMIS_INTEROP=required")
    pytest.skip(reason)


def java_tools() -> None:
    absent = [tool for tool in ("java", "mvn") if shutil.which(tool) is None]
    if absent:
        missing(f"the sinks' jars need {' and '.join(absent)} on the PATH")


def jars(sink: str) -> list[Path]:
    """What Spark needs for it; nothing if there is no such thing for this Spark."""
    built = _built()
    if sink in BY_VERSION:
        published = BY_VERSION[sink].get(SPARK)
        return sorted((built / f"{sink}-{published}").glob("*.jar")) if published else []
    if sink == "s3a":
        hadoop = built / ("s3a-4.1" if SPARK == "4.1" else "s3a-4.2")
        return [*sorted(hadoop.glob("*.jar")), *sorted((built / "awssdk").glob("*.jar"))]
    return sorted((built / sink).glob("*.jar"))


def _built() -> Path:
    java_tools()
    pom, done = HERE / "pom.xml", TARGET / "built"
    with alone():
        if not done.exists() or done.stat().st_mtime < pom.stat().st_mtime:
            shutil.rmtree(TARGET, ignore_errors=True)  # an older pom's
            command = ["mvn", "-q", "-B", "-f", str(pom), "package"]
            ran = subprocess.run(command, capture_output=True, text=True)
            if ran.returncode:
                raise RuntimeError(
                    f"{' '.join(command)} failed:\n{(ran.stdout + ran.stderr)[-3000:]}"
                )
            done.touch()
    return TARGET
