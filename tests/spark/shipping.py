"""What is shipped to a cluster, made by the commands of docs/clusters.md: the files of an image and
a Python environment as an archive, both with this tree's wheel and the versions of the lock, but
for PySpark, which is the one that the tests run with."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from sparkling import ROOT

DEPLOY = ROOT / "deploy" / "spark"
LOCKED = "4.2"  # PySpark in requirements.lock


def run(*command: str | Path, **variables: str) -> str:
    """Its output. Of our variables it has none that says where modules are."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, capture_output=True, text=True, env={**environment, **variables}, timeout=900
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done.stdout


def context(directory: Path) -> Path:
    """What `docker build` takes."""
    to = directory / "context"
    spark = ".".join(version("pyspark").split(".")[:2])
    run(
        *(DEPLOY / "context.sh", to),
        PYTHON=sys.executable,
        SPARK="" if spark == LOCKED else spark,
    )
    return to


def new_environment(directory: Path) -> str:
    """A new, empty Python environment. Gives a PATH on which it comes first."""
    run(sys.executable, "-m", "venv", directory)
    return f"{directory / 'bin'}{os.pathsep}{os.environ['PATH']}"


def archive(directory: Path) -> Path:
    """An environment for executors, which get PySpark from Spark."""
    made, kept = directory / "environment", context(directory)
    new_environment(made)
    [wheel] = kept.glob("*.whl")
    pip = (made / "bin" / "pip", "install", "--quiet", "--constraint", kept / "constraints.txt")
    run(*pip, wheel, "pandas")
    run("tar", "czf", directory / "environment.tar.gz", "-C", made, ".")
    return directory / "environment.tar.gz"
