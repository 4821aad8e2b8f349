"""The demo: what it says each group got, with our client and with Apache's; how it fails."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from click.testing import CliRunner
from interop.cppclient import _python, available
from interop.oracle import _classpath

from tamis.cli import demo
from tamis.cli.main import tamis

ROOT = Path(__file__).parents[2]
PATIENCE = 180.0  # seconds; the first run on a machine compiles
# Of 200 orders: got, not wanted, failed.
GOT = {
    "payments": (137, 63, 0),
    "refunds": (22, 178, 0),
    "eu-big": (56, 135, 9),
    "vip-or-far": (121, 79, 0),
    "big": (105, 73, 22),
    "big-naive": (78, 54, 68),
}


def counts(output: str) -> dict[str, tuple[int, ...]]:
    """By group."""
    rows = re.findall(r"^  (\S+) +(?:tags|sql ) .* (\d+) +(\d+) +(\d+|-)$", output, re.MULTILINE)
    return {name: tuple(int(n.replace("-", "0")) for n in numbers) for name, *numbers in rows}


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """As `make demo` does."""
    return subprocess.run(
        [sys.executable, "examples/orders/run.py", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, **environment},
    )


def test_the_demo_says_what_each_group_got_and_why_a_filter_failed() -> None:
    done = CliRunner().invoke(tamis, ["demo", "--no-spark"])
    assert done.exit_code == 0, done.output
    assert counts(done.output) == GOT
    assert "Tamis's own client" in done.output
    assert 'tamis_filter_failed_total{group="big-naive",topic="Orders"} 68' in done.output
    assert "can't be read as an int" in done.output
    assert max(map(len, done.output.splitlines())) <= 100


def test_the_demo_fails_in_one_line_if_a_group_did_not_get_what_it_should(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(demo, "_SILENCE", PATIENCE)  # a busy machine may be slow to start
    monkeypatch.setattr(demo.TamisClient, "received", lambda self, group, count: ["order-1"])
    done = CliRunner().invoke(tamis, ["demo"])
    assert done.exit_code == 1
    assert done.stderr == (
        "Error: group payments got 1 orders and not the 137 it should, "
        "or its filter did not fail 0 times\n"
    )


def test_the_demo_fails_in_one_line_if_a_step_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: object, orders: object) -> None:
        raise ConnectionError("127.0.0.1:9 is not there\nmore")

    monkeypatch.setattr(demo, "_SILENCE", PATIENCE)
    monkeypatch.setattr(demo.TamisClient, "send", refuse)
    done = CliRunner().invoke(tamis, ["demo"])
    assert done.exit_code == 1
    assert done.stderr == "Error: starting the servers failed: 127.0.0.1:9 is not there\n"


def test_apaches_java_client_gets_the_same() -> None:
    _classpath("broker-4.9")
    done = run("--client", "java", "--no-spark")
    assert done.returncode == 0, done.stderr
    assert "Apache's Java client 4.9.4" in done.stdout
    assert counts(done.stdout) == GOT


def test_rocketmqs_cpp_client_gets_the_same() -> None:
    available(_python)
    done = run("--client", "cpp", "--no-spark")
    assert done.returncode == 0, done.stderr
    assert "RocketMQ's C++ client" in done.stdout
    assert "It has no SQL" in done.stdout
    assert counts(done.stdout) == GOT


def test_without_java_it_says_so_and_goes_on(tmp_path: Path) -> None:
    """And without it being possible to fetch the C++ client."""
    environment = {"PATH": str(tmp_path), "PIP_NO_INDEX": "1"}
    done = run("--client", "java", **environment)
    assert done.returncode == 1
    assert done.stderr == "Error: client java: java and mvn not found on the PATH\n"
    done = run("--no-spark", **environment)
    assert done.returncode == 0, done.stderr
    assert "client java: java and mvn not found on the PATH; trying the next" in done.stderr
    assert counts(done.stdout) == GOT


def test_the_demo_ends_with_the_pipeline() -> None:
    """In a process of its own, as it starts a session and stops it; with fewer orders."""
    script = (
        "from tamis.cli import _demo_spark, demo\n"
        "_demo_spark._COUNT, _demo_spark._WARMING, _demo_spark._BATCH = 20_000, 1_500, 10_000\n"
        "demo.play(demo.TamisClient)"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3 * PATIENCE)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    said = done.stdout[done.stdout.index("The pipeline, on Spark") :]
    said = " ".join(said.split())  # lines are wrapped
    [home] = map(Path, re.findall(r"left in (\S+)", said))
    try:
        assert "a day 20,000 orders of topic OrderHistory in a broker's store, " in said
        assert re.search(r"up in [\d.]+ s, warmed up by routing 1,500 orders in [\d.]+ s", said)
        [counts] = re.findall(r"payments ([\d,]+), eu-big ([\d,]+), suspicious ([\d,]+)", said)
        for group, told in zip(("payments", "eu-big", "suspicious"), counts, strict=True):
            files = (home / "out" / group).rglob("*.parquet")
            rows = sum(pq.read_metadata(file).num_rows for file in files)
            assert rows == int(told.replace(",", "")) > 0
        assert len(re.findall(r"20,000 in [\d.]+ s, [\d,]+ a second", said)) == 3
        assert "could not convert string to float: 'free'" in said
        assert (home / "backtest.png").read_bytes().startswith(b"\x89PNG")
        assert not (home / "warm-up").exists()
    finally:
        shutil.rmtree(home)
