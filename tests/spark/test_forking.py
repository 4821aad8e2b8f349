"""Python processes that are forked, not started: they are as Spark's own would be, end when those
would, and where a fork would be something else a new Python is started."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from tamis.spark import starting

ENDED = 1  # what a daemon of Spark's says whose input has ended
DAEMON = ["-m", "pyspark.daemon", "pyspark.worker"]


@pytest.fixture(autouse=True)
def not_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TAMIS_SPARK_START", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(name, raising=False)


@contextmanager
def started(
    arguments: list[str], **variables: str
) -> Iterator[tuple[subprocess.Popen[bytes], bool]]:
    """As Spark starts its daemon; and whether it was forked, known when it has said its place."""
    with tempfile.TemporaryDirectory(prefix="tamis-") as sockets:  # paths of sockets are short
        process = subprocess.Popen(
            [starting.worker_python(), *arguments],
            env={
                **os.environ,
                **forks(),
                "PYTHONHASHSEED": "0",
                "PYTHONUNBUFFERED": "YES",
                "PYTHON_UNIX_DOMAIN_ENABLED": "true",
                "PYTHON_WORKER_FACTORY_SOCK_DIR": sockets,
                **variables,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            size = int.from_bytes(process.stdout.read(4), "big")
            assert process.stdout.read(size).decode().startswith(sockets)
            yield process, "_fork_client" in command(process.pid)
        finally:
            process.kill()
            process.communicate()


def forks() -> dict[str, str]:
    return starting.fork_variables([starting.worker_python()])


def command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def children(pid: int) -> set[int]:
    """Those that run."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.add(int(path.parent.name))
    return found


def server() -> int:
    path = forks()["TAMIS_SPARK_FORKS"]
    [pid] = [pid for pid in children(os.getpid()) if path in command(pid)]
    return pid


def until(is_so: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def test_a_daemon_is_forked_and_ends_with_its_input() -> None:
    with started(DAEMON) as (process, is_forked):
        assert is_forked
        process.communicate(timeout=60)
        assert process.returncode == ENDED


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_process_that_spark_ends_takes_its_fork_along(end: signal.Signals) -> None:
    before = children(server())
    with started(DAEMON) as (process, is_forked):
        assert is_forked
        assert len(children(server()) - before) == 1
        process.send_signal(end)
        until(lambda: children(server()) <= before, "the fork has not ended")
        assert process.wait(60) != 0


@pytest.mark.parametrize(
    "variables",
    [
        {"PYTHONPATH": os.pathsep.join(["/theirs", os.environ.get("PYTHONPATH", "")])},
        {"PYTHONHASHSEED": "7"},
        {"OMP_NUM_THREADS": "2"},
        {"NUMBA_DISABLE_JIT": "1"},
        {"TAMIS_SPARK_FORKS": "/nowhere/socket"},
    ],
)
def test_what_a_fork_could_not_be_is_started(variables: dict[str, str]) -> None:
    with started(DAEMON, **variables) as (process, is_forked):
        assert not is_forked
        process.communicate(timeout=60)
        assert process.returncode == ENDED


def test_a_server_that_is_gone_is_done_without(tmp_path: Path) -> None:
    program = """
from tamis.spark import starting
print(starting.fork_variables([starting.worker_python()]), flush=True)
input()
"""
    driver = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert driver.stdout is not None
    path = eval(driver.stdout.readline())["TAMIS_SPARK_FORKS"]
    until(lambda: os.path.exists(path), "the server has not begun")
    with started(DAEMON, TAMIS_SPARK_FORKS=path) as (process, is_forked):
        assert is_forked
        driver.kill()  # it can't say good-bye
        driver.communicate()
        until(lambda: not os.path.exists(os.path.dirname(path)), "the server has not ended")
        assert process.wait(60) != 0
    with started(DAEMON, TAMIS_SPARK_FORKS=path) as (process, is_forked):
        assert not is_forked


def test_where_no_socket_can_be_processes_are_started(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 120)  # for the name of a socket
    long.mkdir()
    program = """
from tamis.spark import starting
print(starting.fork_variables([starting.worker_python()]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TMPDIR": str(long)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("{}\n", "")
    assert not [*long.iterdir()]


def facts(_: Any) -> Iterator[tuple[Any, ...]]:
    import numpy.random

    time.sleep(0.5)  # so that two workers are needed
    above = command(parent(os.getpid()))
    yield os.getpid(), above, hash("tamis"), sys.path[0], os.getcwd(), numpy.random.random()


def test_workers_of_a_session_are_forked_and_as_spark_has_them(spark: SparkSession) -> None:
    pids, above, hashes, first, directories, chances = zip(
        *spark.sparkContext.parallelize(range(2), 2).mapPartitions(facts).collect(), strict=True
    )
    assert all("_fork_server" in line for line in above)
    assert len({*hashes}) == 1  # else rows of a key would come to different places
    assert {*first} == {*directories} == {os.getcwd()}
    assert len({*chances}) == len({*pids})


def test_pyspark_has_the_processes_that_are_forked() -> None:
    """Where a version of PySpark names them otherwise they would be started anew each time."""
    from tamis.spark import _fork_server

    root = Path(pyspark.__file__).parents[1]
    for name in (*_fork_server._RUNNERS, *_fork_server._PLANNERS, "pyspark.daemon"):
        assert root.joinpath(*name.split(".")).with_suffix(".py").is_file(), name
