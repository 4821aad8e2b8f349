"""Before anything is compiled: loops run as plain Python, and are as right as compiled ones."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tamis
from tamis.filter.engines import warming

ROOT = Path(__file__).parents[1]
SRC = Path(tamis.__file__).parent

# What has most of the loops in it, and is quick.
SAME_TESTS = (
    "tests/filter/test_columnar.py",
    "tests/store/test_crc.py",
    "tests/store/test_golden.py",
    "tests/store/test_index.py",
    "tests/broker/test_queries.py",
    "tests/client/test_damaged_records.py",
)


@pytest.fixture
def new_machine(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine where nothing is compiled."""
    settings = {name: value for name, value in os.environ.items() if name != "TAMIS_LOOPS"}
    paths = [str(SRC.parent), os.environ.get("PYTHONPATH", "")]
    settings["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return settings | {"NUMBA_CACHE_DIR": str(tmp_path / "numba")}


def run(program: str, settings: dict[str, str], *args: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *args],
        env=settings,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_tests_of_loops_pass_without_compiled_ones(new_machine: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *SAME_TESTS],
        cwd=ROOT,
        env=new_machine | {"TAMIS_LOOPS": "plain"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert not list(Path(new_machine["NUMBA_CACHE_DIR"]).rglob("*.nbc")), "something was compiled"


CLUSTER = """
from tamis.client import ConsumerConfig, Message
from tamis.client.blocking import Consumer, Producer
from tamis.testing import LocalCluster

with LocalCluster(bitmaps=True) as cluster:
    with Producer(cluster.nameserver) as producer:
        messages = [
            Message("T", b"%d" % i, tags="even" if i % 2 == 0 else "odd", properties={"n": str(i)})
            for i in range(20)
        ]
        for message in messages[:10]:
            producer.send(message)
        producer.send_batch(messages[10:])
    for settings in ({"tags": "even"}, {"sql": "n BETWEEN 5 AND 14"}):
        name = next(iter(settings))
        consumer = Consumer(cluster.nameserver, name, config=ConsumerConfig(start="first"))
        consumer.subscribe("T", **settings)
        with consumer:
            bodies = []
            while len(bodies) < 10:
                bodies += [int(message.body) for message in consumer.getmany(timeout=30)]
        print(sorted(bodies))
"""


def test_a_broker_without_a_compiled_loop_serves_sends_and_filtered_pulls(
    new_machine: dict[str, str],
) -> None:
    told = run(CLUSTER, new_machine | {"TAMIS_LOOPS": "plain"})
    assert told.splitlines() == [str(list(range(0, 20, 2))), str(list(range(5, 15)))]
    assert not list(Path(new_machine["NUMBA_CACHE_DIR"]).rglob("*.nbc")), "something was compiled"


SWAP = """
import subprocess, sys, time
import numpy as np
from tamis.filter.engines import tiers
from tamis.store._walk import extension_end

buffer = np.zeros(100, dtype=np.uint8)
buffer[1], buffer[31] = 30, 25
end = lambda: extension_end(buffer.ctypes.data, len(buffer))
if sys.argv[1:]:
    end()  # compiled, and kept
    sys.exit()
tiers.run_plain()
print(end(), len(extension_end.overloads))
subprocess.run([sys.executable, "-c", open("/proc/self/cmdline").read().split("\\0")[2], "compile"])
until = time.monotonic() + 30
while not extension_end.overloads and time.monotonic() < until:
    end()
print(end(), len(extension_end.overloads), tiers.is_plain())
"""


def test_a_loop_that_another_process_has_compiled_takes_the_place_of_its_twin(
    new_machine: dict[str, str],
) -> None:
    assert run(SWAP, new_machine).splitlines() == ["55 0", "55 1 True"]


def test_a_first_start_is_ready_before_anything_is_compiled_and_says_why_it_is_slow(
    new_machine: dict[str, str], tmp_path: Path
) -> None:
    ports = ("--port", "0", "--nameserver-port", "0", "--filter-servers", "0")
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "tamis", "up", "--data", str(tmp_path / "data"), *ports],
            env=new_machine,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    compiling: list[int] = []
    try:
        assert server.stdout is not None
        assert server.stdout.readline().startswith("tamis: ready")
        assert "first start on this machine" in (tmp_path / "log").read_text()
        compiling = children(server.pid)
        assert compiling, "nothing compiles"
    finally:
        for pid in compiling:
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: "each is at its first use" in (tmp_path / "log").read_text())
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=60)
    assert server.returncode == 0


def children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():  # a thread began it
        found += map(int, (task / "children").read_text().split())
    return found


def wait_for(condition: object, seconds: float = 30) -> None:
    until = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_machine_is_warm_only_for_the_sources_it_was_warmed_with(
    new_machine: dict[str, str], tmp_path: Path
) -> None:
    program = """
from tamis.filter.engines import warming
print(warming.is_warm())
warming.mark_warm()
print(warming.is_warm())
warming.LOOP_FILES = warming.LOOP_FILES[1:]
print(warming.is_warm())
"""
    assert run(program, new_machine).split() == ["False", "True", "False"]


def test_every_file_with_loops_is_known_to_be_one() -> None:
    found = {
        str(path.relative_to(SRC))
        for path in SRC.rglob("*.py")
        if re.search(r"^@(compiled|inlined)$", path.read_text("utf-8"), re.MULTILINE)
    }
    assert found == set(warming.LOOP_FILES)
