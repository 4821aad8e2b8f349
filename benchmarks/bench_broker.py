"""How fast is the broker beside Apache RocketMQ 4.9.4 on the same machine?

    .venv/bin/python benchmarks/bench_broker.py [--json] [--only TEXT] [--seconds S] [--messages N]
                                                [--directory DIR] [--peer-only | --ours-only]
                                                [--acl] [--tls]

Send: 1, 16 and 128 requests in flight on one connection, 100-byte and 1 KiB bodies, both flush
modes. Consume: a topic of 4 queues and a million messages, from the first to the last, one pull of
32 in flight in each queue: all of them, and 1 % and 0.1 % by tag, by SQL92 and by SQL92 with
bitmaps. The number of messages got must be right, or there is no figure.

The load is made by loadgen.py in this process, the same for both. The servers are its children and
run one after the other, never at once, so they cannot take turns: a disturbance may hit one and not
the other. Each gets the same warm-up, and the best of two windows counts. Nothing is bound to a
core. Apache has 2 GiB of heap, G1 and the whole JIT compiler. It takes eight minutes, and needs
Java and Maven. With --acl both have access control and all requests are signed (the load signs
its sends beforehand); benchmarks/bench_acl.py has what that costs in CPU time. With --tls the load
is encrypted: TLS 1.3, AES-256-GCM, a certificate with an RSA key of 2048 bits for both; the ports
take plain connections, too (RocketMQ's mode `permissive`).
"""

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import loadgen
from loadgen import CYCLE, QUEUES, Connection, Failed, Pull

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from certificates import Authority
from interop import cluster
from interop.aclservers import ACCOUNTS, GuardedApache
from interop.build import Unavailable, classpath

PEER = "Apache RocketMQ 4.9.4"
PATIENCE = 60.0  # seconds for a start and a stop
REPEATS = 2
TOPIC = "Bench"
SIZES = {100: "100 B", 1024: "1 KiB"}
IN_FLIGHT = (1, 16, 128)
# Each server first gets so many of each size, or as many as it takes in a time: the JIT compiler's
# last stage comes late. Then each case has a warm-up of its own.
WARM_SENDS = 200_000
WARM_SECONDS = 15.0
WARM_CASE = 2.0
BITMAPS = {"enableConsumeQueueExt": "true", "enableCalcFilterBitMap": "true"}

# What a test's short-lived server has and a measured one must not; then what it has instead.
TEST_FLAGS = ("-Xms", "-Xmx", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel")
SERVER_FLAGS = ("-server", "-Xms2g", "-Xmx2g", "-XX:+UseG1GC")
cluster.JVM[1:] = [*SERVER_FLAGS, *(f for f in cluster.JVM[1:] if not f.startswith(TEST_FLAGS))]


@dataclass(frozen=True)
class Case:
    name: str
    unit: str
    target: float | None


Results = dict[Case, float]
Server = Callable[[Path, str, dict[str, str]], AbstractContextManager[str]]


@contextlib.contextmanager
def apache(directory: Path, flush: str, settings: dict[str, str]) -> Iterator[str]:
    """The broker's address, while it runs."""
    flush_type = {"flushDiskType": f"{flush.upper()}_FLUSH"}
    if loadgen.KEY is not None:
        servers: cluster.ApacheCluster = GuardedApache(
            directory / "store", ACCOUNTS, **flush_type, **settings
        )
    else:
        servers = cluster.ApacheCluster(directory / "store", **flush_type, **settings)
    servers.start()
    try:
        _check_flags()
        yield servers.broker
    finally:
        servers.kill()  # nothing to keep, and a stop takes seconds


def _check_flags() -> None:
    """No figure of a peer that was started as a test's."""
    us = os.getpid()
    for child in Path(f"/proc/{us}/task/{us}/children").read_text().split():
        command = Path(f"/proc/{child}/cmdline").read_text().split("\0")
        if command[0] == "java" and not set(SERVER_FLAGS) <= set(command):
            raise Failed(f"not the flags to measure with: {' '.join(command)}")


@contextlib.contextmanager
def tamis(directory: Path, flush: str, settings: dict[str, str]) -> Iterator[str]:
    """The same, by `tamis up`; all that is known of it here is its options and that it prints a
    line when it is ready."""
    port, nameserver = _free_ports(2)
    command = [str(Path(sys.executable).with_name("tamis")), "up"]
    command += ["--data", str(directory / "store"), "--flush", flush]
    command += ["--port", str(port), "--nameserver-port", str(nameserver)]
    command += ["--filter-servers", "0"]
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    if loadgen.KEY is not None:
        (directory / "plain_acl.yml").write_text(ACCOUNTS)
        command += ["--acl", str(directory / "plain_acl.yml")]
    if Connection.tls:
        issued = Authority(directory / "tls").issue(rsa=True)
        command += ["--tls", "permissive", "--tls-cert", issued.cert, "--tls-key", issued.key]
    said, complained = directory / "tamis.out", directory / "tamis.err"
    with said.open("wb") as out, complained.open("wb") as err:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
    try:
        deadline = time.monotonic() + PATIENCE
        while b"\n" not in said.read_bytes():
            if process.poll() is not None or time.monotonic() > deadline:
                raise Failed(f"not ready: {' '.join(command)} (exit {process.poll()})")
            time.sleep(0.05)
        yield f"127.0.0.1:{port}"
    except (Failed, OSError) as reason:
        tail = (said.read_text() + complained.read_text())[-3000:]
        raise Failed(f"{reason}\n{tail}") from None
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in held]


class Group:
    """Cases that one server, started once, is measured in."""

    flush = "async"
    settings: dict[str, str] = {}

    def cases(self) -> list[Case]:
        raise NotImplementedError

    def measure(self, broker: str, wanted: list[Case], arguments: argparse.Namespace) -> Results:
        raise NotImplementedError


class Sends(Group):
    def __init__(self, flush: str) -> None:
        self.flush = flush
        self._loads = {
            Case(f"send {name}, {n} in flight, {flush} flush", "messages/s", 1.0): (size, n)
            for size, name in SIZES.items()
            for n in IN_FLIGHT
        }

    def cases(self) -> list[Case]:
        return list(self._loads)

    def measure(self, broker: str, wanted: list[Case], arguments: argparse.Namespace) -> Results:
        results = {}
        frames = {size: loadgen.sends(TOPIC, size) for size in SIZES}
        with Connection(broker) as connection:
            connection.create_topic(TOPIC)
            for each in frames.values():
                start = time.perf_counter()
                for _ in range(WARM_SENDS // 5000):
                    connection.send_all(each, 5000, max(IN_FLIGHT))
                    if time.perf_counter() - start > WARM_SECONDS:
                        break
            for case in wanted:
                size, in_flight = self._loads[case]
                rates = connection.send_rates(
                    frames[size], in_flight, WARM_CASE, arguments.seconds, REPEATS
                )
                results[case] = max(rates)
        return results


class Consumes(Group):
    """A filtered case has two figures: what the broker looked at and what it found."""

    def __init__(self, settings: dict[str, str], pulls: dict[str, tuple[Pull, float | None]]):
        self.settings = settings
        self._pulls = pulls

    def cases(self) -> list[Case]:
        return [self._case(name) for name in self._pulls]

    def _case(self, name: str) -> Case:
        is_filtered = len(self._pulls[name][0].scores) < CYCLE
        return Case(name, "units/s" if is_filtered else "messages/s", self._pulls[name][1])

    def measure(self, broker: str, wanted: list[Case], arguments: argparse.Namespace) -> Results:
        results = {}
        each = -(-arguments.messages // (QUEUES * CYCLE)) * CYCLE  # whole batches in every queue
        batches = loadgen.batches(TOPIC, 100)
        with Connection(broker) as connection:
            connection.create_topic(TOPIC)
            self._register(connection)  # before the messages, or their bitmaps lack the group
            connection.send_all(batches, each // CYCLE * QUEUES, QUEUES)
            connection.wait_for_offsets(TOPIC, each)
            for case in wanted:
                self._register(connection)  # again, as a client does, lest it be forgotten
                pull = self._pulls[case.name][0]
                _passes(connection, pull, each, arguments.seconds)  # warms up
                rates = [_passes(connection, pull, each, arguments.seconds) for _ in range(REPEATS)]
                results[case] = max(rates)
                if case.unit == "units/s":
                    found = Case(f"  messages got, {case.name}", "messages/s", None)
                    results[found] = max(rates) * len(pull.scores) / CYCLE
        return results

    def _register(self, connection: Connection) -> None:
        pulls = [pull for pull, _ in self._pulls.values() if pull.subscription is None]
        if pulls:
            connection.register(pulls, [_sql(pull.scores) for pull in pulls])


def _passes(connection: Connection, pull: Pull, each: int, seconds: float) -> float:
    """Units a second over whole passes, as many as fill the time."""
    passes, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds or not passes:
        got, right = connection.consume(pull, each), QUEUES * each * len(pull.scores) // CYCLE
        if got != right:
            raise Failed(f"{got} messages instead of {right}: {pull}")
        passes += 1
    return passes * QUEUES * each / spent


def _sql(scores: range) -> str:
    assert scores.start == 0
    return f"score < {scores.stop}"


def groups() -> list[Group]:
    plain: dict[str, tuple[Pull, float | None]] = {}
    bitmaps: dict[str, tuple[Pull, float | None]] = {}
    plain["consume unfiltered"] = Pull(topic=TOPIC, group="all"), 1.0
    for percent, tag, tagged, scored in (
        ("1 %", "few", range(10, 20), range(10)),
        ("0.1 %", "rare", range(1), range(1)),
    ):
        has_target = percent == "0.1 %"
        by_tag = Pull(topic=TOPIC, group=f"tag-{tag}", subscription=tag, scores=tagged)
        plain[f"consume {percent} by tag"] = by_tag, 10.0 if has_target else None
        by_sql = Pull(
            topic=TOPIC,
            group=f"sql-{tag}",
            subscription=_sql(scored),
            expression_type="SQL92",
            version=1,
            scores=scored,
        )
        plain[f"consume {percent} by SQL92"] = by_sql, 3.0 if has_target else None
        registered = replace(by_sql, group=f"bitmap-{tag}", subscription=None)
        bitmaps[f"consume {percent} by SQL92 and bitmap"] = registered, 10.0 if has_target else None
    return [Sends("async"), Sends("sync"), Consumes({}, plain), Consumes(BITMAPS, bitmaps)]


def measure(
    group: Group, server: Server, wanted: list[Case], arguments: argparse.Namespace
) -> Results:
    directory = Path(tempfile.mkdtemp(dir=arguments.directory))
    os.sync()  # what the one before has left to write is not this one's
    try:
        with server(directory, group.flush, group.settings) as broker:
            return group.measure(broker, wanted, arguments)
    finally:
        shutil.rmtree(directory)


def heading(arguments: argparse.Namespace) -> None:
    cpus = Path("/proc/cpuinfo")
    models = [line for line in cpus.read_text().splitlines() if line.startswith("model name")]
    model = models[0].partition(":")[2].strip() if models else platform.machine()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    java = subprocess.run(["java", "-version"], capture_output=True, text=True).stderr
    load = " ".join(f"{each:.2f}" for each in os.getloadavg())
    lines = (
        f"{os.cpu_count()} cores of {model}, {memory:.0f} GiB, load {load}",
        f"Linux {platform.release()}, Python {platform.python_version()}, {java.splitlines()[0]}",
        f"stores in {arguments.directory or tempfile.gettempdir()}; servers one after the other",
    )
    for line in lines:
        print(line, file=sys.stderr if arguments.json else sys.stdout, flush=True)


def report(as_json: bool, case: Case, ours: float | None, peer: float | None) -> None:
    if Connection.tls:
        case = replace(case, name=f"{case.name}, TLS")
    ratio = None if ours is None or peer is None else ours / peer
    if as_json:
        row = {
            "bench": "broker",
            "case": case.name,
            "unit": case.unit,
            "ours": None if ours is None else round(ours),
            "peer": None if peer is None else round(peer),
            "peer_name": PEER,
            "ratio": None if ratio is None else round(ratio, 2),
            "target": case.target,
        }
        print(json.dumps(row), flush=True)
        return
    figures = "  ".join(
        "-".rjust(12) if each is None else f"{each:>12,.0f}" for each in (ours, peer)
    )
    against = "" if ratio is None else f"  {ratio:6.2f} × Apache"
    wanted = "" if case.target is None else f"  (target {case.target:g})"
    print(f"{case.name:<52} {figures} {case.unit}{against}{wanted}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases with this in their name")
    parser.add_argument("--seconds", type=float, default=3.0, metavar="S", help="each window")
    parser.add_argument("--messages", type=int, default=1_000_000, metavar="N", help="to consume")
    parser.add_argument("--directory", help="where to put the stores; a temporary one if not given")
    parser.add_argument("--acl", action="store_true", help="with access control, signed")
    parser.add_argument("--tls", action="store_true", help="over TLS")
    side = parser.add_mutually_exclusive_group()
    side.add_argument("--peer-only", action="store_true", help="Apache alone")
    side.add_argument("--ours-only", action="store_true", help="Tamis alone")
    arguments = parser.parse_args()
    if not any(arguments.only in case.name for group in groups() for case in group.cases()):
        parser.error(f"no case has {arguments.only!r} in its name")
    if arguments.tls:
        cluster.JVM[:] = [one.replace("mode=disabled", "mode=permissive") for one in cluster.JVM]
    heading(arguments)
    try:
        if not arguments.ours_only:
            classpath(
                "broker-4.9"
            )  # here, because the fixture takes its absence for a skipped test
        most = Case(f"the generator itself, {max(IN_FLIGHT)} in flight", "requests/s", None)
        report(arguments.json, most, loadgen.ceiling(max(IN_FLIGHT), 100, 1.0), None)
        loadgen.KEY = ("admin-key", "admin-secret") if arguments.acl else None
        Connection.tls = arguments.tls
        for group in groups():
            wanted = [case for case in group.cases() if arguments.only in case.name]
            if not wanted:
                continue
            peer = {} if arguments.ours_only else measure(group, apache, wanted, arguments)
            ours = {} if arguments.peer_only else measure(group, tamis, wanted, arguments)
            for case in peer or ours:
                report(arguments.json, case, ours.get(case), peer.get(case))
    except (Failed, OSError, Unavailable) as reason:
        sys.exit(f"bench_broker: {reason}")


if __name__ == "__main__":
    main()
