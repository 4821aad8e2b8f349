"""How many messages a second do our client, the C++-based Python client and Apache's Java client
send and consume?

    .venv/bin/python benchmarks/bench_client.py [--json] [--only ours,cpp,java] [--case TEXT]
        [--messages N] [--seconds S] [--warm S] [--rounds N] [--directory DIR]

All against one broker, Apache RocketMQ 4.9.4 with its defaults, that runs throughout and may use
every core. Bodies are of 1 KiB. A client is a process of its own; they take turns, and the best of
the rounds counts.

Send: one at a time, 128 in flight, batches of 32. The rate is that of acknowledgements in a window
of time after a warm-up. The broker must have as many messages more as were acknowledged, or there
is no figure. The C++ client's batches are one message each to the broker, which does not know their
flag; their rate is nevertheless that of the messages put into them.

Consume: a topic of 4 queues from the first message to the last, twice by each process: to warm up,
then measured, from the first handover (its messages not counted) to the last. The number of
messages must be right. Ours for record batches is bound to one core; its last batch, which waits in
vain to be full, is not timed. The C++ client's push consumer has 8 threads, and its pull consumer
counts if that is quicker, but not beside our push consumer; Java's has 20 threads, given 32
messages at a time.

Beside them is what the broker itself can do, by loadgen.py. It takes six minutes, and needs Java,
Maven and, for the C++ client, Linux on x86-64.
"""

import argparse
import contextlib
import json
import os
import platform
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import bench_broker  # and with it cluster.JVM is for servers to be measured, not tested
import loadgen
from loadgen import QUEUES, Connection, Failed, Pull

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from interop import cluster, cppclient
from interop.build import Unavailable, classpath

BODY = 1024
SENT, STORED = "Sent", "Stored"
CLIENTS = {"ours": "Tamis", "cpp": f"C++ ({cppclient.PACKAGE})", "java": "Apache's Java 4.9.4"}
PATIENCE = 300.0  # seconds for a client to start, do its work and end
SENDS = ("sync", "in-flight", "batch")


@dataclass(frozen=True)
class Case:
    """What is beside what: cases of clients.py and ClientBench.java."""

    name: str
    ours: str
    cpp: tuple[str, ...]  # the best of them
    java: str
    target: float | None  # the ratio to C++
    least: float | None = None  # messages a second

    def jobs(self) -> list[tuple[str, str]]:
        return [("ours", self.ours), *(("cpp", each) for each in self.cpp), ("java", self.java)]


CASES = (
    Case("consume: record batches, one core", "batches", ("push", "pull"), "push", 2.0, 250_000),
    Case("consume: push", "push", ("push",), "push", None),
    Case("consume: async for", "iterate", ("push", "pull"), "push", None),
    Case("send: one at a time", "sync", ("sync",), "sync", 2.0),
    Case("send: 128 in flight", "in-flight", ("in-flight",), "in-flight", 2.0),
    Case("send: batches of 32", "batch", ("batch",), "batch", 2.0),
)

Rates = dict[tuple[str, str], float]  # by client and its case


class Bench:
    """A broker with its topics, and the clients to be run against it."""

    def __init__(
        self, servers: cluster.ApacheCluster, home: Path, arguments: argparse.Namespace
    ) -> None:
        self._servers = servers
        self._home = home
        self._arguments = arguments
        self._messages = arguments.messages // QUEUES * QUEUES
        (home / "logback.xml").write_text(cluster.LOGBACK.replace("{level}", "ERROR"))

    def store(self) -> dict[str, float]:
        """Sends what is to be consumed, and warms the broker up with it; how fast it gives it away
        at most."""
        each, rates = self._messages // QUEUES, []
        with Connection(self._servers.broker) as connection:
            connection.create_topic(STORED)
            connection.send_all(loadgen.sends(STORED, BODY), self._messages, 128)
            connection.wait_for_offsets(STORED, each)
            for _ in range(5):
                start = time.perf_counter()
                got = connection.consume(Pull(topic=STORED, group="all"), each)
                if got != self._messages:
                    raise Failed(f"{got} messages instead of {self._messages}")
                rates.append(got / (time.perf_counter() - start))
        return {"consume": max(rates[1:])}

    def flood(self) -> dict[str, float]:
        """Warms the broker up for sends; how many it takes at most."""
        warm, seconds = self._arguments.warm, self._arguments.seconds
        frames, most = loadgen.sends(SENT, BODY), {}
        with Connection(self._servers.broker) as connection:
            connection.create_topic(SENT)
            for in_flight in (128, 1):
                rates = connection.send_rates(frames, in_flight, warm, seconds, 2)
                most[f"send, {in_flight} in flight"] = max(rates)
        return most

    def run(self, client: str, case: str) -> float:
        """The rate of one process."""
        is_send = case in SENDS
        os.sync()  # what the one before has left to write is not this one's
        before = self._sent() if is_send else 0
        result = self._child(client, case, SENT if is_send else STORED)
        if not is_send and result["messages"] != self._messages:
            raise Failed(f"{result['messages']} messages received of {self._messages}")
        deadline = time.monotonic() + 10
        while is_send and (more := self._sent() - before) != result["messages"]:
            if time.monotonic() > deadline:
                raise Failed(f"{result['messages']} messages acknowledged, {more} stored")
            time.sleep(0.02)
        return result["rate"]

    def _sent(self) -> int:
        with Connection(self._servers.broker) as connection:
            asked = ({"topic": SENT, "queueId": queue} for queue in range(QUEUES))
            answers = (connection.ask(loadgen.MAX_OFFSET, fields) for fields in asked)
            return sum(int(answer["extFields"]["offset"]) for answer in answers)

    def _child(self, client: str, case: str, topic: str) -> dict[str, float]:
        group = f"{client}-{case}-{secrets.token_hex(3)}"  # a new one starts at the first message
        times = (self._arguments.warm, self._arguments.seconds, self._messages)
        job = [case, self._servers.nameserver, topic, group, *map(str, times)]
        ours = str(Path(__file__).with_name("clients.py"))
        if client == "ours":
            command = [sys.executable, ours, client, *job]
        elif client == "cpp":
            command = [str(cppclient._python()), ours, client, *job]
        else:
            logs = f"-Dlogback.configurationFile={self._home}/logback.xml"
            java = [*cluster.JVM, f"-Duser.home={self._home}", logs]
            command = [*java, "-cp", classpath("broker-4.9"), "tamis.interop.ClientBench", *job]
        environment = {**os.environ, "HOME": str(self._home)}  # where the C++ client logs
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
                cwd=self._home,
                env=environment,
                timeout=PATIENCE,
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"no end within {PATIENCE} s") from None
        if done.returncode or not done.stdout:
            raise Failed(f"exit {done.returncode}\n{done.stderr[-3000:]}")
        return dict(json.loads(done.stdout))


@contextlib.contextmanager
def broker(directory: str | None) -> Iterator[tuple[cluster.ApacheCluster, Path]]:
    """The servers, while they run, and a directory for the clients."""
    assert set(bench_broker.SERVER_FLAGS) <= set(cluster.JVM), cluster.JVM
    place = Path(tempfile.mkdtemp(dir=directory, prefix="tamis-bench-"))
    try:
        (place / "clients").mkdir()
        with cluster.apache_cluster(place / "store") as servers:
            yield servers, place / "clients"
    finally:
        shutil.rmtree(place)


def measure(
    bench: Bench, wanted: list[Case], clients: list[str], rounds: int
) -> tuple[Rates, bool]:
    """The best of each, and whether any failed: such has no figure, and its complaint is
    printed."""
    jobs = dict.fromkeys(job for case in wanted for job in case.jobs() if job[0] in clients)
    best: Rates = {}
    failed = set()
    for _ in range(rounds):
        for client, case in jobs:
            try:
                rate = bench.run(client, case)
            except Failed as reason:
                print(f"bench_client: {client} {case}: {reason}", file=sys.stderr, flush=True)
                failed.add((client, case))
            else:
                best[client, case] = max(rate, best.get((client, case), 0.0))
    return {job: rate for job, rate in best.items() if job not in failed}, bool(failed)


def heading(as_json: bool) -> None:
    cpus = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((n for n in cpus if n.startswith("model name")), platform.machine())
    java = subprocess.run(["java", "-version"], capture_output=True, text=True).stderr
    load = " ".join(f"{each:.2f}" for each in os.getloadavg())
    for line in (
        f"{os.cpu_count()} cores of {model.rpartition(':')[2].strip()}, load {load}",
        f"Linux {platform.release()}, Python {platform.python_version()}, {java.splitlines()[0]}",
    ):
        print(line, file=sys.stderr if as_json else sys.stdout, flush=True)


def report_broker(as_json: bool, name: str, rate: float) -> None:
    if as_json:
        write(f"the broker itself: {name}", None, rate, "loadgen.py", None)
    else:
        print(f"the broker itself: {name:<17} {_figure(rate)} messages/s", flush=True)


def report(as_json: bool, case: Case, rates: Rates) -> None:
    ours = rates.get(("ours", case.ours))
    cpp = max((rates[job] for job in case.jobs()[1:-1] if job in rates), default=None)
    java = rates.get(("java", case.java))
    if as_json:
        write(case.name, ours, cpp, CLIENTS["cpp"], case.target)
        write(case.name, ours, java, CLIENTS["java"], None)
        if case.least is not None:
            write(f"{case.name}, absolute", ours, None, None, case.least)
        return
    against = (
        f"{_figure(ours)}  {_figure(cpp)} C++ {_ratio(ours, cpp):>6}",
        "" if case.target is None else f"(target {case.target:g})",
        f"{_figure(java)} Java {_ratio(ours, java):>6}",
        "" if case.least is None else f"(target {case.least:,.0f} messages/s)",
    )
    print(f"{case.name:<36} {against[0]} {against[1]:<11} {against[2]} {against[3]}", flush=True)


def write(
    case: str, ours: float | None, peer: float | None, name: str | None, target: float | None
) -> None:
    row = {
        "bench": "client",
        "case": case,
        "unit": "messages/s",
        "ours": None if ours is None else round(ours),
        "peer": None if peer is None else round(peer),
        "peer_name": name,
        "ratio": None if ours is None or peer is None else round(ours / peer, 2),
        "target": target,
    }
    print(json.dumps(row), flush=True)


def _figure(rate: float | None) -> str:
    return "-".rjust(9) if rate is None else f"{rate:>9,.0f}"


def _ratio(ours: float | None, peer: float | None) -> str:
    return "" if ours is None or peer is None else f"× {ours / peer:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--only", default=",".join(CLIENTS), metavar="NAMES", help="clients")
    parser.add_argument("--case", default="", metavar="TEXT", help="cases with this in their name")
    parser.add_argument("--messages", type=int, default=200_000, metavar="N", help="to consume")
    parser.add_argument("--seconds", type=float, default=4.0, metavar="S", help="each send window")
    parser.add_argument("--warm", type=float, default=4.0, metavar="S", help="before each of them")
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="the best counts")
    parser.add_argument("--directory", help="where to put the store; a temporary one if not given")
    arguments = parser.parse_args()
    clients = arguments.only.split(",")
    if not set(clients) <= set(CLIENTS):
        parser.error(f"--only takes some of {', '.join(CLIENTS)}, with commas between")
    wanted = [case for case in CASES if arguments.case in case.name]
    if not wanted:
        parser.error(f"no case has {arguments.case!r} in its name")
    heading(arguments.json)
    try:
        classpath("broker-4.9")  # here, because the fixture takes its absence for a skipped test
        if "cpp" in clients:
            cppclient._python()
        with broker(arguments.directory) as (servers, home):
            bench = Bench(servers, home, arguments)
            has_failed = False
            # Consumers first: of messages far from the log's end the broker gives fewer at a time.
            for are_sends, prepare in ((False, bench.store), (True, bench.flood)):
                cases = [case for case in wanted if (case.ours in SENDS) is are_sends]
                if not cases:
                    continue
                for name, rate in prepare().items():
                    report_broker(arguments.json, name, rate)
                rates, failed = measure(bench, cases, clients, arguments.rounds)
                has_failed |= failed
                for case in cases:
                    report(arguments.json, case, rates)
            if has_failed:
                sys.exit(1)
    except (Failed, OSError, RuntimeError, Unavailable) as reason:
        sys.exit(f"bench_client: {reason}")


if __name__ == "__main__":
    main()
