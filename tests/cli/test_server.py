"""`tamis up`, `nameserver` and `broker`, run as processes; settings, signals, errors, logs."""

import json
import logging
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from tamis.broker.config import BrokerConfig
from tamis.cli import logs
from tamis.client import Message
from tamis.client.blocking import Producer
from tamis.nameserver.config import NameServerConfig
from tamis.testing import LocalBroker

TAMIS = [sys.executable, "-c", "from tamis.cli.main import main; main()"]
PATIENCE = 60.0  # seconds
READY = re.compile(
    r"tamis: ready: (?:name server (?P<nameserver>\S+?))?(?:, )?"
    r"(?:broker (?P<broker>\S+) \((?P<name>\S+), data (?P<data>.*), (?P<flush>flush .*)\))?"
    r"(?:, metrics (?P<metrics>\S+))?\n"
)
FREE = ["--port", "0"]


def tamis(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """For what ends by itself."""
    return subprocess.run(
        [*TAMIS, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, **environment},
    )


class Server:
    """A server that is ready; `said` has the parts of its line."""

    def __init__(self, process: "subprocess.Popen[str]", errors: Path, line: str) -> None:
        self.process = process
        self.pid = process.pid
        self._errors = errors
        match = READY.fullmatch(line)
        assert match, f"{line!r}; logs: {errors.read_text()}"
        self.said = match.groupdict()

    @property
    def logs(self) -> list[str]:
        return self._errors.read_text().splitlines()

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


@contextmanager
def running(home: Path, *arguments: object, **environment: str) -> Iterator[Server]:
    home.mkdir(exist_ok=True)
    errors = home / "stderr"
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            [*TAMIS, *map(str, arguments)],
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**os.environ, **environment},
        )
    try:
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            assert selector.select(PATIENCE), f"it says nothing: {errors.read_text()}"
        yield Server(process, errors, process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def is_open(address: str) -> bool:
    host, _, port = address.partition(":")
    try:
        socket.create_connection((host, int(port)), PATIENCE).close()
    except ConnectionRefusedError:
        return False
    return True


def settings(command: str, *arguments: object, **environment: str) -> dict[str, dict[str, Any]]:
    done = tamis(command, *arguments, "--show-config", **environment)
    assert done.returncode == 0, done.stderr
    return tomllib.loads(done.stdout)


# Running.


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_up_serves_until_a_signal_and_leaves_nothing_to_recover(
    number: int, tmp_path: Path
) -> None:
    with running(tmp_path, "up", *FREE, "--nameserver-port", 0) as server:
        assert is_open(server.said["nameserver"])
        assert is_open(server.said["broker"])
        assert (server.said["name"], server.said["data"]) == ("broker-a", "tamis-data")
        assert (tmp_path / "tamis-data" / "abort").exists()
        page = urllib.request.urlopen(server.said["metrics"], timeout=PATIENCE).read()
        assert b"tamis_held_pulls 0.0" in page
        assert server.stop(number) == 0, server.logs
        assert not is_open(server.said["broker"])
        assert not (tmp_path / "tamis-data" / "abort").exists()
        assert server.process.stdout is not None
        assert server.process.stdout.read() == ""


@pytest.mark.parametrize(
    ("options", "promise", "is_sync"),
    [
        ([], "flush sync: what is acknowledged survives a power cut", True),
        (["--flush", "async"], "flush async: a power cut may lose the last 3600 s", False),
    ],
    ids=["default", "async"],
)
def test_a_send_waits_for_the_disk_unless_told_otherwise(
    options: list[str], promise: str, is_sync: bool, tmp_path: Path
) -> None:
    """No flush is due for an hour: one that is counted was made for the send."""
    seldom = ["--set", "flush_interval=3600"]
    with running(tmp_path, "up", *FREE, "--nameserver-port", 0, *seldom, *options) as server:
        assert server.said["flush"] == promise
        with Producer(server.said["nameserver"]) as producer:
            producer.send(Message("T", b"kept"))
        page = urllib.request.urlopen(server.said["metrics"], timeout=PATIENCE).read().decode()
        [count] = re.findall(r"^tamis_flush_seconds_count (\S+)$", page, re.MULTILINE)
        assert (float(count) > 0) is is_sync
        assert server.stop() == 0, server.logs


def test_the_parts_run_apart(tmp_path: Path) -> None:
    with running(tmp_path / "n", "nameserver", *FREE) as names:
        address = names.said["nameserver"]
        maps = Path(f"/proc/{names.pid}/maps").read_text()
        assert "numpy" not in maps, "a name server needs no columns"
        for how in ({}, {"NAMESRV_ADDR": address}):
            said = [] if how else ["--nameserver", address]
            with running(tmp_path / "b", "broker", *FREE, *said, **how) as broker:
                assert not broker.said["metrics"]
                joined = [line for line in names.logs if broker.said["broker"] in line]
                assert joined, names.logs
                assert broker.stop() == 0
        assert names.stop() == 0


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    """A name server that does not answer makes a broker's stop take two seconds."""
    with running(tmp_path / "n", "nameserver", *FREE) as names:
        said = ["--nameserver", names.said["nameserver"]]
        with running(tmp_path / "b", "broker", *FREE, *said) as broker:
            os.kill(names.pid, signal.SIGSTOP)
            try:
                broker.process.send_signal(signal.SIGTERM)
                deadline = time.monotonic() + PATIENCE
                while not any("stopping" in line for line in broker.logs):
                    assert time.monotonic() < deadline, broker.logs
                    time.sleep(0.005)
                assert broker.stop() == -signal.SIGTERM
            finally:
                os.kill(names.pid, signal.SIGCONT)


def test_the_limit_of_open_files_is_raised(tmp_path: Path) -> None:
    with running(tmp_path, "nameserver", *FREE) as server:
        limits = Path(f"/proc/{server.pid}/limits").read_text()
        line = next(line for line in limits.splitlines() if line.startswith("Max open files"))
        soft, hard = line.split()[3:5]
        assert soft == hard


def test_bound_to_all_addresses_it_advertises_one(tmp_path: Path) -> None:
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))
            outward = probe.getsockname()[0]
    except OSError:
        outward = None
    if outward is not None:
        assert settings("up", "--bind", "0.0.0.0")["broker"]["advertise"] == outward
    shown = settings("up", "--bind", "0.0.0.0", "--advertise", "10.1.2.3")
    assert shown["broker"]["advertise"] == "10.1.2.3"
    assert shown["nameserver"]["bind"] == "0.0.0.0"


# What goes wrong.


def failed(done: subprocess.CompletedProcess[str]) -> str:
    """The one line said."""
    lines = [line for line in done.stderr.splitlines() if not line.startswith("time=")]
    assert (done.returncode, done.stdout, len(lines)) == (1, "", 1), done
    return lines[0]


@pytest.mark.parametrize("port", ["--port", "--nameserver-port", "--metrics-port"])
def test_a_port_that_is_taken_is_named(port: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        ports = {"--port": 0, "--nameserver-port": 0, "--metrics-port": -1, port: number}
        options = [part for pair in ports.items() for part in pair]
        line = failed(tamis("up", "--data", tmp_path / "d", *options))
    assert f"127.0.0.1:{number}: Address already in use" in line
    assert port in line
    assert not (tmp_path / "d" / "abort").exists() or port == "--port"


def test_an_address_that_is_not_ours_is_named(tmp_path: Path) -> None:
    line = failed(tamis("nameserver", "--bind", "192.0.2.1"))
    assert "192.0.2.1:9876: Cannot assign requested address" in line
    assert "name.invalid" in failed(tamis("nameserver", "--bind", "name.invalid"))


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    with LocalBroker(store=tmp_path / "d"):
        line = failed(tamis("broker", *FREE, "--data", tmp_path / "d"))
    assert line == f"tamis: {tmp_path / 'd'}: another process uses this store; stop it first"


def test_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    line = failed(tamis("broker", *FREE, "--data", tmp_path / "file"))
    assert line == f"tamis: {tmp_path / 'file'}: not a directory"


def test_a_table_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    config = tmp_path / "d" / "config"
    config.mkdir(parents=True)
    (config / "topics.json").write_text("{nonsense")
    line = failed(tamis("broker", *FREE, "--data", tmp_path / "d"))
    assert str(config / "topics.json") in line
    (tmp_path / "kvConfig.json").write_text("{nonsense")
    line = failed(tamis("nameserver", *FREE, "--data", tmp_path))
    assert str(tmp_path / "kvConfig.json") in line


# Settings.


def test_the_settings_shown_are_those_used(tmp_path: Path) -> None:
    file = tmp_path / "shown.toml"
    given = ["--set", "regionId=bé", "--data", 'd"\\é', "--flush", "async", "--port", 0]
    first = tamis("up", *given, "--show-config").stdout
    file.write_text(first)
    again = tamis("up", "--config", file, "--show-config").stdout
    assert again == first
    tables = tomllib.loads(first)
    assert tables["broker"]["region"] == "bé"
    untold = {"security", "tls_key_password", "nameserver_tls_key_password"}
    assert list(tables["broker"])[1:] == [
        field.name for field in fields(BrokerConfig) if field.name not in untold
    ]
    assert tables["broker"]["data"] == 'd"\\é'
    assert tables["nameserver"]["data"] == 'd"\\é/nameserver'
    told = first.partition("[broker]")[2]
    names = dict(re.findall(r"^(\w+) = .* # ([\w.]+)$", told, re.MULTILINE))
    assert names["flush"] == "flushDiskType"
    assert list(names.values()) == list(BrokerConfig().shown())


def test_options_win_over_set_and_that_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(
        "[broker]\nport = 1\nname = 'file'\nflush_interval = 2\nkeep_hours = 1.5\ndata = 'f'\n"
        "[nameserver]\nport = 2\norder_messages = true\n"
    )
    pairs = ["--set", "name=set", "--set", "flushIntervalCommitLog=250", "--set", "port=3"]
    shown = settings("up", "--config", file, *pairs, "--port", 4, "--nameserver-port", 5)
    broker = shown["broker"]
    assert (broker["port"], broker["name"], broker["data"]) == (4, "set", "f")
    assert (broker["flush_interval"], broker["keep_hours"]) == (0.25, 1.5)
    assert (shown["nameserver"]["port"], shown["nameserver"]["order_messages"]) == (5, True)
    assert settings("broker", "--config", file)["broker"]["name"] == "file"
    assert settings("nameserver", "--config", file)["nameserver"]["port"] == 2


def test_a_name_server_takes_settings_too() -> None:
    pair = "nameserver.scanNotActiveBrokerInterval=2500"
    assert settings("up", "--set", pair)["nameserver"]["scan_seconds"] == 2.5
    shown = settings("nameserver", "--set", "orderMessageEnable=true", "--set", "silent_seconds=9")
    assert shown["nameserver"]["order_messages"] is True
    assert shown["nameserver"]["silent_seconds"] == 9.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[broker]\nprot = 1", "[broker] prot: there is no such setting; did you mean port?"),
        ("[broker]\nlistenPort = 1", "listenPort: there is no such setting; did you mean port?"),
        ("[broker]\nqwertyuiop = 1", "qwertyuiop: there is no such setting"),
        ("[broker]\nport = '1'", "port = '1': it takes a whole number"),
        ("[broker]\ndata = 1", "data = 1: it takes text"),
        ("[broker]\nflush = 'often'", "flush = 'often': it takes async or sync"),
        ("[broker]\nclean_ratio = 7", "clean_ratio"),
        ("[nameserver]\nport = '1'", "port = '1': it takes a whole number"),
        (
            "[nameserver]\nscan_s = 1",
            "scan_s: there is no such setting; did you mean scan_seconds?",
        ),
        ("[broken]\nport = 1", "broken: there is no such table; did you mean broker?"),
        ("broker = 1", "broker is not a table: write [broker]"),
        ("[broker\n", "line 1"),
    ],
)
def test_a_file_with_a_mistake_is_refused(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text(text)
    done = tamis("up", "--config", file)
    assert done.returncode == 2
    assert str(file) in done.stderr
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["up", "--set", "port"], "'port' is not NAME=VALUE"),
        (["up", "--set", "port=x"], "port = 'x': it takes a whole number"),
        (["up", "--set", "brokerNme=x"], "there is no such setting; did you mean brokerName?"),
        (["up", "--set", "nameserver.prt=1"], "prt: there is no such setting; did you mean port?"),
        (["nameserver", "--set", "port=x"], "port = 'x': it takes a whole number"),
        (["nameserver", "--set", "silent_seconds=0"], "silent_seconds"),
        (["broker", "--nameserver", "here"], "'here' is not an address"),
        (["up", "--port", "70000"], "--port"),
        (["up", "--config", "nowhere.toml"], "nowhere.toml"),
        (["up", "--flush", "often"], "--flush"),
        (["up", "further"], "further"),
    ],
)
def test_misuse_is_answered_in_one_line(arguments: list[str], said: str) -> None:
    done = tamis(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


ROOT = Path(__file__).parents[2]


def test_the_document_has_every_setting_as_it_is() -> None:
    document = (ROOT / "docs" / "broker.md").read_text()
    row = re.compile(r"^\| `(\w+)`( \*)? \| `(.*?)` \| (?:`([\w.]+)` )?\| .*\|$", re.MULTILINE)
    rows = [match.groups() for match in row.finditer(document)]
    hints = get_type_hints(BrokerConfig, include_extras=True)
    expected = []
    for field in fields(BrokerConfig):
        if field.name == "security":
            continue  # no setting
        switch = get_args(hints[field.name])[1]
        expected.append((field.name, " *" if switch.live else None, field.default, switch.name))
    told = [
        (name, live, tomllib.loads(f"x = {text}")["x"], theirs) for name, live, text, theirs in rows
    ]
    assert told[: len(expected)] == expected
    assert [name for name, *_ in told[len(expected) :]] == [
        f.name for f in fields(NameServerConfig)
    ]


def test_the_example_is_a_file_that_can_be_used() -> None:
    shown = settings("up", "--config", ROOT / "examples" / "broker.toml")
    assert shown["broker"]["flush"] == "sync"


# Logs.


def test_logs_are_one_line_an_event(tmp_path: Path) -> None:
    given = ["up", *FREE, "--nameserver-port", 0, "--metrics-port", -1]
    with running(tmp_path, *given, "--log-format", "json") as server:
        assert server.stop() == 0
        rows = [json.loads(line) for line in server.logs]
    started = next(row for row in rows if "tamis-data" in row["message"])
    assert started["level"] == "info"
    assert started["logger"] == "tamis.broker.broker"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", started["time"])
    with running(tmp_path, *given, "--log-level", "warning") as server:
        assert server.stop() == 0
        (line,) = server.logs  # messages can be lost, which is said at every start
        assert "subscription_conflicts rocketmq" in line


@pytest.fixture
def formatted(request: pytest.FixtureRequest) -> str:
    """The line of an error, its traceback and all."""
    formatter = {"text": logs._Text, "json": logs._Json}[request.param]()
    try:
        raise ValueError('two\n"lines"')
    except ValueError:
        record = logging.LogRecord(
            "tamis.x", logging.ERROR, __file__, 1, "a=%s", ("b c",), sys.exc_info()
        )
    return formatter.format(record)


@pytest.mark.parametrize("formatted", ["json"], indirect=True)
def test_an_error_is_one_line_of_json(formatted: str) -> None:
    row = json.loads(formatted)
    assert row["message"] == "a=b c"
    assert row["error"] == 'ValueError: two\n"lines"'
    assert row["traceback"].startswith("Traceback")


@pytest.mark.parametrize("formatted", ["text"], indirect=True)
def test_an_error_is_one_line_of_text(formatted: str) -> None:
    assert len(formatted.splitlines()) == 1
    assert ' level=error logger=tamis.x message="a=b c" ' in formatted
    assert r'error="ValueError: two\n\"lines\""' in formatted
