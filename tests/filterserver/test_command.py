"""`tamis filterserver` as a process, and brokers that start filter servers beside themselves."""

import asyncio
import importlib
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from filterserver.consuming import EVEN, PATIENCE, Client, numbers, run, standing, until

from tamis.client import Admin
from tamis.testing import LocalBroker, LocalCluster, LocalNameServer

command: Any = importlib.import_module("tamis.cli.filterserver")

TAMIS = [sys.executable, "-m", "tamis"]
READY = re.compile(
    r"tamis: ready: filter server (?P<address>\S+) for broker (?P<broker>\S+)"
    r" \((?P<promise>.*); on error (?P<on_error>\S+)\)(?:, metrics (?P<metrics>\S+))?\n"
)


def tamis(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TAMIS, *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE
    )


class Process:
    def __init__(self, process: "subprocess.Popen[str]", said: dict[str, str], log: Path) -> None:
        self.process = process
        self.said = said
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text()


@contextmanager
def running(home: Path, *arguments: object, ready: re.Pattern[str] = READY) -> Iterator[Process]:
    log = home / "stderr"
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [*TAMIS, *map(str, arguments)],
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    try:
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            assert selector.select(2 * PATIENCE), f"it says nothing: {log.read_text()}"
        line = process.stdout.readline()
        match = ready.fullmatch(line)
        assert match, f"{line!r}: {log.read_text()}"
        yield Process(process, match.groupdict(), log)
    finally:
        process.kill()
        process.communicate()


async def filter_servers(nameserver: str, count: int) -> list[str]:
    """Once the routes name as many."""
    async with Admin(nameserver) as admin:
        deadline = asyncio.get_running_loop().time() + 2 * PATIENCE
        while len(found := await admin.filter_servers()) != count:
            assert asyncio.get_running_loop().time() < deadline, found
            await asyncio.sleep(0.05)
    return found


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state != "Z"


def test_it_serves_uploads_shows_them_and_stops_on_a_signal(tmp_path: Path) -> None:
    async def work(nameserver: str, broker: str, process: Process) -> None:
        async with Client.connected(broker, process.said["address"]) as client:
            await client.create_topic("T", 1)
            await client.send(*numbers(10))
            answer = await client.upload(EVEN, "Even")
            assert answer.code == 0, answer.remark
            bodies, _ = await client.consume()
            assert bodies == numbers(10)[::2]
            await filter_servers(nameserver, 1)

    with LocalCluster() as cluster:
        given = ["filterserver", "--broker", cluster.broker, "--nameserver", cluster.nameserver]
        options = ["--uploads", "--on-error", "hold", "--metrics-port", 0]
        with running(tmp_path, *given, *options) as process:
            assert "uploads from anywhere, isolation level" in process.said["promise"]
            assert process.said["on_error"] == "hold"
            run(work(cluster.nameserver, cluster.broker, process))
            shown = tamis("filterserver", "--status", "--nameserver", cluster.nameserver)
            assert shown.returncode == 0, shown.stderr
            lines = shown.stdout.splitlines()
            assert lines[0].startswith(f"filter server {process.said['address']} for broker-a")
            assert lines[1].split() == [
                *("group", "topic", "class", "crc", "uploader", "messages", "matched", "failed"),
                *("restarts", "conflicts"),
            ]
            row = lines[2].split()
            assert row[:3] + row[5:] == ["G", "T", "Even", "10", "5", "0", "0", "0"]
            one = tamis("filterserver", "--status", process.said["address"], "--json")
            status: dict[str, Any] = json.loads(one.stdout)
            assert status["broker"]["registered"] is True
            assert [found["group"] for found in status["classes"]] == ["G"]
            page = urllib.request.urlopen(process.said["metrics"], timeout=PATIENCE).read()
            labels = b'class="Even",group="G",topic="T"'
            assert b"tamis_code_filter_matched_total{%s} 5.0" % labels in page
            assert b"tamis_uploads_accepted_total 1.0" in page
            process.process.send_signal(signal.SIGTERM)
            assert process.process.wait(PATIENCE) == 0, process.log
            assert "Traceback" not in process.log


def test_uploads_are_off_unless_they_are_switched_on(tmp_path: Path) -> None:
    async def work(process: Process, broker: str) -> None:
        async with Client.connected(broker, process.said["address"]) as client:
            assert (await client.upload(EVEN, "Even")).code == 16

    with LocalBroker() as broker:
        given = ["filterserver", "--broker", broker.broker]
        with running(tmp_path, *given) as process:
            assert process.said["promise"] == "uploads off: see --uploads"
            run(work(process, broker.broker))
            maps = Path(f"/proc/{process.process.pid}/maps").read_text()
            assert "numpy" not in maps, "it needs no columns before there is a class"


def test_killed_and_started_again_it_goes_on_where_the_consumer_is(tmp_path: Path) -> None:
    async def consume(broker: str, address: str, offset: int, most: int) -> tuple[list[bytes], int]:
        bodies = list[bytes]()
        async with Client.connected(broker, address) as client:
            assert (await client.pull(offset)).code == 1  # it knows no class yet
            assert (await client.upload(EVEN, "Even")).code == 0
            while len(bodies) < most:
                answer = await client.pull(offset, hold=5)
                assert answer.code in (0, 20), answer.remark
                bodies += answer.bodies
                offset = answer.following
        return bodies, offset

    async def fill(broker: str) -> None:
        async with Client.connected(broker, broker) as client:
            await client.create_topic("T", 1)
            await client.send(*numbers(4000))

    with LocalBroker() as broker:
        asyncio.run(fill(broker.broker))
        given = ["filterserver", "--broker", broker.broker, "--uploads"]
        with running(tmp_path, *given) as process:
            first, offset = asyncio.run(consume(broker.broker, process.said["address"], 0, 500))
            port = process.said["address"].rpartition(":")[2]
            children = _children(process.process.pid)
            assert children, "its sandbox"
            process.process.kill()
            process.process.wait()
            for child in children:
                asyncio.run(_until_gone(child))
        with running(tmp_path, *given, "--port", port) as again:
            rest, offset = asyncio.run(
                consume(broker.broker, again.said["address"], offset, 2000 - len(first))
            )
        assert first + rest == numbers(4000)[::2]
        assert offset <= 4000


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--broker", "here"], "'here' is not an address"),
        (["--nameserver", "a;b:1"], "'a' is not an address"),
        (["--port", "70000"], "--port"),
        (["--uploads=sometimes"], "sometimes"),
        (["--secret-file", "/nowhere"], "/nowhere"),
        (["--secret-file", __file__], "it goes with --uploads"),
        (["--uploads", "--secret-file", os.devnull], "--secret-file"),
        (["--on-error", "ignore"], "ignore"),
        (["--limit", "patience=1"], "it takes wall, load_wall, cpu"),
        (["--limit", "wall=long"], "'long' is not a number"),
        (["--limit", "wall=nan"], "'nan' is not a number"),
        (["--limit", "memory=inf"], "'inf' is not a number"),
        (["127.0.0.1:1"], "127.0.0.1:1: it goes with --status"),
        (["--json"], "--json: it goes with --status"),
        (["--status", "nowhere"], "'nowhere' is not an address"),
    ],
)
def test_misuse_is_answered_in_one_line(arguments: list[str], said: str) -> None:
    done = tamis("filterserver", *arguments)
    assert (done.returncode, done.stdout) == (2, ""), done
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_port_that_is_taken_is_named() -> None:
    with LocalBroker() as broker:
        port = broker.broker.rpartition(":")[2]
        done = tamis("filterserver", "--port", port, "--log-level", "error")
    assert done.returncode == 1
    assert done.stderr == (
        f"tamis: filter server: can't listen on 127.0.0.1:{port}: Address already in use"
        " (see --port, --host)\n"
    )


def test_status_says_who_does_not_answer() -> None:
    with LocalCluster() as cluster:
        done = tamis("filterserver", "--status", cluster.broker)
        assert done.returncode == 1
        assert done.stderr == (
            f"tamis: filter server {cluster.broker}: not a filter server of Tamis\n"
        )
        done = tamis("filterserver", "--status", "--nameserver", cluster.nameserver)
        assert done.returncode == 1
        assert done.stderr == "tamis: the name server knows no filter server\n"
    done = tamis("filterserver", "--status", cluster.broker)
    assert done.returncode == 1
    assert "Connect call failed" in done.stderr or "refused" in done.stderr


def test_a_status_cannot_upset_a_terminal_and_a_strange_one_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def work() -> None:
        async with standing() as (_, server, client):
            await client.upload(EVEN, "Even")
            one = next(iter(server.classes))
            one.tally.last_failure = "offset 3: \x1b[2Jall is well\r"
            [shown] = await command._ask_one(server.address)
            command._print(shown)
            out = capsys.readouterr().out
            assert "last failure: offset 3: \\x1b[2Jall is well\\r\n" in out
            # anybody can make a broker name any address: the others are shown all the same
            assert "is not an address" in (await command._ask("nonsense"))["error"]

    run(work())
    with pytest.raises(SystemExit):
        command._show([{"address": "127.0.0.1:1", "broker": {}}], as_json=False)
    assert capsys.readouterr().err == (
        "tamis: filter server 127.0.0.1:1: its status is not as expected; is it of another"
        " version?\n"
    )


# Brokers that start them.


def test_a_broker_starts_them_starts_them_again_and_stops_them_with_itself() -> None:
    async def work() -> None:
        async with LocalCluster(filter_servers=2) as cluster:
            assert cluster._running is not None
            processes = cluster._running[0].filter_processes
            first = await filter_servers(cluster.nameserver, 2)
            pids = {one.pid for one in processes.running.values()}
            assert len(pids) == 2
            async with Client.connected(cluster.broker, first[0]) as client:
                await client.create_topic("T", 1)
                await client.send(*numbers(6))
                answer = await client.upload(EVEN, "Even")
                assert answer.code == 0, answer.remark
                assert (await client.pull(0)).offsets == [0, 2, 4]
            killed = pids.pop()
            os.kill(killed, signal.SIGKILL)
            await until(
                lambda: len({one.pid for one in processes.running.values()} - {killed}) == 2
            )
            assert processes.restarts == 1
            again = await filter_servers(cluster.nameserver, 2)
            assert len({*first} & {*again}) == 1
            pids = {one.pid for one in processes.running.values()}
            assert all(map(is_alive, pids))
        assert not any(map(is_alive, pids))

    run(work())


def test_they_do_not_outlive_a_broker_that_is_killed(tmp_path: Path) -> None:
    with LocalNameServer() as names:
        given = ["broker", "--port", 0, "--nameserver", names.nameserver]
        given += ["--set", "filterServerNums=1"]
        ready = re.compile(r"tamis: ready: broker (?P<broker>\S+) .*\n")
        with running(tmp_path, *given, ready=ready) as process:
            asyncio.run(filter_servers(names.nameserver, 1))
            [pid] = map(int, re.findall(r"started as process (\d+)", process.log))
            assert is_alive(pid)
            process.process.kill()
            process.process.wait()
            asyncio.run(_until_gone(pid))


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


async def _until_gone(pid: int) -> None:
    await until(lambda: not is_alive(pid))


def test_up_brings_one_and_is_ready_before_it(tmp_path: Path) -> None:
    ready = re.compile(r"tamis: ready: name server (?P<nameserver>\S+), broker .*\n")
    given = ["up", "--port", 0, "--nameserver-port", 0, "--metrics-port", -1]
    with running(tmp_path, *given, ready=ready) as process:
        assert "filter server 1: started" not in process.log
        [address] = asyncio.run(filter_servers(process.said["nameserver"], 1))
        [pid] = map(int, re.findall(r"started as process (\d+)", process.log))
        status = tamis("filterserver", "--status", address, "--json")
        assert json.loads(status.stdout)["uploads"]["allowed"] == "loopback"
        assert _children(pid) == [], "the sandbox starts with the first upload"
        process.process.send_signal(signal.SIGTERM)
        assert process.process.wait(PATIENCE) == 0
        assert not is_alive(pid)
    (tmp_path / "none").mkdir()
    with running(tmp_path / "none", *given, "--filter-servers", 0, ready=ready) as process:
        process.process.send_signal(signal.SIGTERM)
        assert process.process.wait(PATIENCE) == 0
        assert "filter server" not in process.log


def test_they_are_not_looked_for_where_the_broker_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may write there could have it run anything."""
    (tmp_path / "tamis.py").write_text("raise SystemExit('this is not it')\n")
    monkeypatch.chdir(tmp_path)
    assert str(tmp_path) not in sys.path

    async def work() -> None:
        async with LocalCluster(filter_servers=1) as cluster:
            await filter_servers(cluster.nameserver, 1)

    run(work())


def test_one_that_does_not_stop_with_its_broker_is_ended() -> None:
    text = (
        "import signal, importlib\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "command = importlib.import_module('tamis.cli.filterserver')\n"
        "command._LAST_SECONDS = 0.1\n"
        "command._stop_with_stdin()\n"
    )
    done = subprocess.run([sys.executable, "-c", text], stdin=subprocess.DEVNULL, timeout=PATIENCE)
    assert done.returncode == 1


def test_a_filter_server_that_cannot_start_is_tried_again_with_pauses() -> None:
    async def work() -> None:
        async with LocalCluster(filter_servers=1, filter_server_options="--nonsense") as cluster:
            assert cluster._running is not None
            processes = cluster._running[0].filter_processes
            await until(lambda: processes.restarts >= 2)

    run(work())
