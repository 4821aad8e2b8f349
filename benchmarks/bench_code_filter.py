"""How many messages a second does a filter in code look at, on one core?

    .venv/bin/python benchmarks/bench_code_filter.py [--json] [--only TEXT] [--messages N]
                                                     [--seconds S] [--warm S] [--directory DIR]

Messages have 8 properties and bodies of 1 KiB; 1 % match, by a property (`score < 10`) or by a word
in the body. What is measured is bound to one core, with all its processes and threads; everything
else (the broker, the consumer) has the others. The number of messages that match must be right, or
there is no figure.

Judging: from records, as pull answers have them, to verdicts, in batches of 4,096: columns are made
of the records, cross into the sandbox, and verdicts come back. Beside them is SQL92 of the same
condition on the same records (columnar engine). "Columns made before": without the first step. The
crossing is what a filter that does nothing costs in the sandbox, less what it costs in this
process.

End to end: a topic of 4 queues, from the first message to the last, by a consumer that asks a
filter server for 32 messages at a time, one request in flight in each queue (loadgen.py; the same
for all). Our filter server against Apache's 4.2.0 with the same filter in Java, beside the same
broker, which is ours; then against a consumer of ours that gets every message and filters itself.
Messages that were looked at count, not those that matched. Apache's has 2 GiB of heap, the whole
JIT compiler, as long a warm-up, and sockets that receive into 64 KiB instead of its 1 KiB, with
which it is a hundred times slower. It takes three minutes, and needs Java and Maven.
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import bench_broker  # and with it cluster.JVM is for servers to be measured, not tested
import loadgen
from loadgen import CYCLE, NEEDLE, QUEUES, STRIDE, Connection, Failed, Pull

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from interop.build import Unavailable, classpath
from interop.filterserver import ApacheFilterServer, FilterServer, OurFilterServer

from tamis.client import Consumer, ConsumerConfig, columns
from tamis.code import CodeFilter, Context, Judge, load
from tamis.filter import parse
from tamis.filter.engines.columnar import compile_batch
from tamis.filterserver.config import FilterServerConfig
from tamis.message import Host
from tamis.sandbox import Sandbox
from tamis.wire import record

BODY = 1024
BATCH = FilterServerConfig(broker="127.0.0.1:1").batch  # what a filter server judges at once
ANSWER = 32  # messages of a pull answer
MATCHING = range(10)  # scores
TOPIC = "Bench"
APACHE = "Apache's filter server 4.2.0"
SQL = "SQL92, columnar"
IN_CLIENT = "filtering in the consumer"
UPLOAD = 302
PATIENCE = 120.0  # seconds for a consumer to read the topic

CORES = sorted(os.sched_getaffinity(0))
MEASURED = {CORES[-1]}
OTHERS = set(CORES) - MEASURED or MEASURED


def python(what: str, does: str, imports: str = "") -> CodeFilter:
    return CodeFilter("bench.py:Low", f"{imports}\nclass Low:\n    {what}\n    {does}\n")


ARROW = "import pyarrow.compute as pc"
NUMPY = "import numpy as np"
SCORE = 'properties = ("score:long",)'
WITH_BODY = 'columns = ("body",)'
MATCH, MATCH_BATCH = "def match(self, message):", "def match_batch(self, batch):"
PROPERTY = python(SCORE, f'{MATCH} return message.properties["score"] < 10')
PROPERTY_BATCH = python(SCORE, f'{MATCH_BATCH} return pc.less(batch.column("score"), 10)', ARROW)
PROPERTY_UNDECLARED = python("", f'{MATCH} return int(message.properties["score"]) < 10')
IN_BODY = python(WITH_BODY, f'{MATCH} return b"needle" in message.body')
IN_BODY_BATCH = python(
    WITH_BODY, f'{MATCH_BATCH} return pc.match_substring(batch.column("body"), "needle")', ARROW
)
NOTHING = {
    "a property": python(SCORE, f"{MATCH_BATCH} return np.zeros(batch.num_rows, bool)", NUMPY),
    "a body": python(WITH_BODY, f"{MATCH_BATCH} return np.zeros(batch.num_rows, bool)", NUMPY),
    "what undeclared match gets": python("", f"{MATCH} return False"),
}

JAVA = """package tamis.bench;

import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.common.filter.FilterContext;
import org.apache.rocketmq.common.filter.MessageFilter;
import org.apache.rocketmq.common.message.MessageExt;

public class BenchedFilter implements MessageFilter {
    @Override
    public boolean match(MessageExt message, FilterContext context) {
        return CONDITION;
    }
}
"""
JAVA_PROPERTY = JAVA.replace("CONDITION", 'Integer.parseInt(message.getProperty("score")) < 10')
JAVA_BODY = JAVA.replace(
    "CONDITION", 'new String(message.getBody(), StandardCharsets.ISO_8859_1).contains("needle")'
)


@dataclass(frozen=True)
class Figure:
    case: str
    ours: float
    unit: str = "messages/s"
    peer: float | None = None
    peer_name: str | None = None
    target: float | None = None  # the ratio to the peer, or with none a figure


# Judging, in this process.


def answers(count: int) -> list[bytes]:
    """Bodies of pull answers, with messages as those that loadgen sends."""
    host = Host(bytes([127, 0, 0, 1]), 10911)
    packed, made, now = record.pack_host(host), [], int(time.time() * 1000)
    for first in range(0, count, ANSWER):
        records = []
        for n in range(first, first + ANSWER):
            score = n * STRIDE % CYCLE
            properties = {
                "KEYS": f"order-{n:08}",
                "region": "eu",
                "score": f"{score}",
                "price": "12.50",
                "vip": "true",
                "UNIQ_KEY": f"7F0000011A2B18B4AAC20000{n:08}",
                "WAIT": "true",
                "TAGS": "common",
            }
            draft = record.Draft(
                topic=TOPIC,
                body=(NEEDLE if score in MATCHING else b"x").center(BODY, b"x"),
                properties="".join(f"{k}\x01{v}\x02" for k, v in properties.items()).encode(),
                queue_id=0,
                born_timestamp=now,
                born_host=host,
            )
            records.append(draft.encode(n, n * 2000, now, packed))
        made.append(b"".join(records))
    return made


def judging(arguments: argparse.Namespace) -> Iterator[Figure]:
    """Batches of one core."""
    total = 16 * BATCH
    bodies = answers(total)
    chunks = [columns.Chunk("broker-a", TOPIC, body) for body in bodies]
    batches = [chunks[at : at + BATCH // ANSWER] for at in range(0, len(chunks), BATCH // ANSWER)]
    right = sum(n * STRIDE % CYCLE in MATCHING for n in range(total))
    context = Context("bench", TOPIC)

    def rate(look_at: Callable[[Any], int], given: list[Any], wanted: int = right) -> float:
        """The median of messages a second over whole passes."""
        rates = list[float]()
        deadline = 0.0
        while len(rates) < 4 or time.perf_counter() < deadline:
            start = time.perf_counter()
            got = sum(map(look_at, given))
            rates.append(total / (time.perf_counter() - start))
            if got != wanted:
                raise Failed(f"{got} messages match instead of {wanted}")
            deadline = deadline or time.perf_counter() + arguments.seconds  # the first warms up
        return median(rates[1:])

    def decoded(judge: Judge, chunks: list[columns.Chunk]) -> Any:
        needs = judge.needs
        return columns.decode(chunks, columns=needs.columns, properties=needs.properties)

    def matches(judge: Judge, batch: Any) -> int:
        return int(judge.judge(batch).matched.sum())

    condition = compile_batch(parse("score < 10"))
    sql = rate(
        lambda chunks: columns.decode(chunks, columns=("offset",), sql=condition).num_rows, batches
    )
    cases = (
        ("match_batch, a declared property", PROPERTY_BATCH, sql, 1e6),
        ("match_batch, the body", IN_BODY_BATCH, None, None),
        ("match, a declared property", PROPERTY, sql, 3e5),
        ("match, a property, nothing declared", PROPERTY_UNDECLARED, sql, None),
        ("match, the body", IN_BODY, None, None),
    )
    with contextlib.closing(Sandbox()) as sandbox:
        for name, code, peer, target in cases:
            with contextlib.closing(sandbox.cell(code, context)) as cell:
                ours = rate(lambda chunks, cell=cell: matches(cell, decoded(cell, chunks)), batches)
                ready = [decoded(cell, each) for each in batches]
                alone = rate(lambda batch, cell=cell: matches(cell, batch), ready)
            peer_name = None if peer is None else SQL
            yield Figure(f"judging: {name}", ours, peer=peer, peer_name=peer_name)
            if target is not None:
                yield Figure(f"judging: {name}, absolute", ours, target=target)
            yield Figure(f"judging: {name}, columns made before", alone)
        for name, code in NOTHING.items():
            with (
                contextlib.closing(load(code, context)) as here,
                contextlib.closing(sandbox.cell(code, context)) as there,
            ):
                ready = [decoded(here, each) for each in batches]
                apart, inside = (
                    rate(lambda batch, judge=judge: matches(judge, batch), ready, 0)
                    for judge in (there, here)
                )
            yield Figure(f"crossing: {name}", 1e6 / apart - 1e6 / inside, "µs/message")


# End to end.


@dataclass(frozen=True)
class Cluster:
    broker: str
    nameserver: str
    directory: Path
    each: int  # messages of a queue


@contextlib.contextmanager
def bound(cores: set[int]) -> Iterator[None]:
    """This thread, and what it starts meanwhile."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def cluster(arguments: argparse.Namespace) -> Iterator[Cluster]:
    """Our broker with a topic full of messages."""
    directory = Path(tempfile.mkdtemp(dir=arguments.directory, prefix="tamis-bench-"))
    port, nameserver = bench_broker._free_ports(2)
    command = [sys.executable, "-m", "tamis", "up", "--data", str(directory / "store")]
    command += ["--port", str(port), "--nameserver-port", str(nameserver), "--filter-servers", "0"]
    said, complained = directory / "tamis.out", directory / "tamis.err"
    with bound(OTHERS), said.open("wb") as out, complained.open("wb") as err:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
    try:
        deadline = time.monotonic() + bench_broker.PATIENCE
        while b"\n" not in said.read_bytes():
            if process.poll() is not None or time.monotonic() > deadline:
                raise Failed(f"not ready: {' '.join(command)}\n{complained.read_text()[-3000:]}")
            time.sleep(0.05)
        each = -(-arguments.messages // (QUEUES * CYCLE)) * CYCLE
        made = Cluster(f"127.0.0.1:{port}", f"127.0.0.1:{nameserver}", directory, each)
        with bound(OTHERS), Connection(made.broker) as connection:
            connection.create_topic(TOPIC)
            connection.send_all(loadgen.batches(TOPIC, BODY), each // CYCLE * QUEUES, QUEUES)
            connection.wait_for_offsets(TOPIC, each)
        yield made
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(bench_broker.PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(directory)


def served(
    made: Cluster, server: type[FilterServer], name: str, sources: dict[str, str], arguments: Any
) -> dict[str, float]:
    """The rate of a consumer through a filter server, by the name of each source."""
    rates = {}
    home = made.directory / server.__name__
    with bound(MEASURED):
        started = server(home, made.broker, made.nameserver)
        started.start()
    try:
        for case, source in sources.items():
            group = case.replace(" ", "-").replace(",", "")
            pull = Pull(
                topic=TOPIC,
                group=group,
                subscription=None,
                scores=MATCHING,
                is_by_class=True,
            )
            upload = {"consumerGroup": group, "topic": TOPIC, "className": name}
            crc = zlib.crc32(source.encode()) & 0x7FFFFFFF
            with bound(OTHERS), Connection(started.address) as connection:
                connection.ask(UPLOAD, {**upload, "classCRC": crc}, source.encode())
                bench_broker._passes(connection, pull, made.each, arguments.warm)
                rates[case] = max(
                    bench_broker._passes(connection, pull, made.each, arguments.seconds)
                    for _ in range(bench_broker.REPEATS)
                )
    except Failed as reason:
        raise Failed(f"{server.__name__}: {reason}\n{started.log()[-3000:]}") from None
    finally:
        started.stop()
    return rates


def filtered_here(made: Cluster) -> float:
    """The rate of a consumer of ours that gets every message and filters."""
    command = [sys.executable, __file__, "--consume", made.nameserver, str(made.each * QUEUES)]
    with bound(MEASURED):
        done = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE)
    if done.returncode:
        raise Failed(f"{IN_CLIENT}: {done.stderr[-3000:]}")
    return float(done.stdout)


async def consume(nameserver: str, count: int) -> None:
    """Print the better rate of two passes: what `filtered_here` starts."""
    judge = load(PROPERTY_BATCH, Context("bench", TOPIC))
    rates = list[float]()
    for number in range(3):
        consumer = Consumer(
            nameserver, f"here-{number}-{os.getpid()}", config=ConsumerConfig(start="first")
        )
        consumer.subscribe(TOPIC)
        got = looked_at = timed = first = 0
        start = end = 0.0
        async with consumer, asyncio.timeout(PATIENCE):
            wanted = {"columns": (), "properties": ("score",)}
            async for batch in consumer.batches(**wanted):
                scores = batch.column(0).cast("int64")
                got += int(judge.judge(batch.set_column(0, "score", scores)).matched.sum())
                looked_at += batch.num_rows
                if looked_at == count:  # a batch that is not full waits for more
                    break
                end, timed = time.perf_counter(), looked_at
                if not start:
                    start, first = end, looked_at
        if got != count * len(MATCHING) // CYCLE:
            raise Failed(f"{got} messages match")
        rates.append((timed - first) / (end - start))
    print(max(rates[1:]))


def end_to_end(arguments: argparse.Namespace) -> Iterator[Figure]:
    ours = {
        "match_batch, a declared property": PROPERTY_BATCH.text,
        "match, a declared property": PROPERTY.text,
        "match_batch, the body": IN_BODY_BATCH.text,
        "match, the body": IN_BODY.text,
    }
    theirs = {"a declared property": JAVA_PROPERTY, "the body": JAVA_BODY}
    with cluster(arguments) as made:
        peers = served(made, ApacheFilterServer, "tamis.bench.BenchedFilter", theirs, arguments)
        rates = served(made, OurFilterServer, "Low", ours, arguments)
        for case, rate in rates.items():
            peer = next(peers[each] for each in peers if case.endswith(each))
            yield Figure(f"end to end: {case}", rate, "messages/s", peer, APACHE, 1.0)
        best = rates["match_batch, a declared property"]
        here = filtered_here(made)
        yield Figure(
            "over the wire: 1 % through the filter server", best, "messages/s", here, IN_CLIENT
        )


# The report.


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


def report(as_json: bool, figure: Figure) -> None:
    ratio = None if figure.peer is None else figure.ours / figure.peer
    digits = 3 if figure.unit == "µs/message" else None
    if as_json:
        row = {
            "bench": "code_filter",
            "case": figure.case,
            "unit": figure.unit,
            "ours": round(figure.ours, digits),
            "peer": None if figure.peer is None else round(figure.peer, digits),
            "peer_name": figure.peer_name,
            "ratio": None if ratio is None else round(ratio, 2),
            "target": figure.target,
        }
        print(json.dumps(row, ensure_ascii=False), flush=True)
        return
    ours = f"{figure.ours:,.{digits or 0}f}"
    against = "" if ratio is None else f"{ratio:6.2f} × {figure.peer:,.0f} ({figure.peer_name})"
    wanted = "" if figure.target is None else f"(target {figure.target:,g})"
    print(f"{figure.case:<62} {ours:>11} {figure.unit}  {against} {wanted}".rstrip(), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--only", choices=("judging", "end-to-end"), help="one part of it")
    parser.add_argument("--messages", type=int, default=400_000, metavar="N", help="of the topic")
    parser.add_argument("--seconds", type=float, default=3.0, metavar="S", help="each window")
    parser.add_argument("--warm", type=float, default=10.0, metavar="S", help="of a filter server")
    parser.add_argument("--directory", help="where to put the store; a temporary one if not given")
    parser.add_argument("--consume", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    try:
        if arguments.consume:
            asyncio.run(consume(arguments.consume[0], int(arguments.consume[1])))
            return
        heading(arguments.json)
        classpath("filtersrv-4.2")  # here, because the fixture takes its absence for a skipped test
        if arguments.only != "end-to-end":
            with bound(MEASURED):
                for figure in judging(arguments):
                    report(arguments.json, figure)
        if arguments.only != "judging":
            for figure in end_to_end(arguments):
                report(arguments.json, figure)
    except (Failed, OSError, RuntimeError, Unavailable) as reason:
        sys.exit(f"bench_code_filter: {reason}")


if __name__ == "__main__":
    main()
