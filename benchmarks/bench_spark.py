"""How fast do our Spark sources, filters and jobs go, beside Spark's Kafka source?

    .venv/bin/python benchmarks/bench_spark.py [--json] [--only NAMES] [--messages N] [--quick]
                                               [--rounds N] [--directory DIR] [--ours-only]

One core of Spark (`local[1]`), 5 million messages of 170 bytes in 4 queues, written once into a
store of ours and into a Kafka broker of 4 partitions. A frame is read into the sink `noop`.

scan         all messages over the wire from `tamis up` and from the store's files: default columns,
             a map of the properties among them, beside Kafka's with headers; and what Kafka's has
             without headers, where properties are a string
percent      1 % of them by tag and by SQL92, filtered at the source, or by `where` after reading
columns      one SQL92 filter as `sql92`, as Spark SQL by hand and as a Python UDF, on properties as
             a map, as the raw string and as typed columns, from Parquet; without one to compare
route        one pass over the store for 1, 10 and 100 subscriptions
fan-out      messages a second of route for 3 and for 50 subscriptions, by tags and by SQL92, of
             which each gets 1 % of the messages
micro-batch  the median time of a micro-batch of 1,000 messages

Those of a kind take turns. Each has two warm-ups, of which one counts the rows, which must be right
or there is no figure; the best of the rounds counts. `cores` are the processor time of Spark's JVM
and of its Python workers, which run beside it, over the time that passed. Servers are not in it,
and nothing is bound to a core. Kafka's client fetches more at once than by default; a pull from our
broker is of 1,000 messages, which that is told to allow. In Kafka a message has its properties as
headers, its body as value; in a second topic the value is both, as one text, and there are no
headers. It takes half an hour, and needs Java and Maven.
"""

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kafka
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tamis.store import tables
from tamis.store.config import StoreConfig
from tamis.store.store import Store
from tamis.wire.bodies import DataVersion, TopicConfig
from tamis.wire.record import Draft

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

TOPIC = "orders"
WITH_HEADERS = "orders-headers"  # Kafka's topic of the same messages
LIKE_KAFKA = "topic,queue_id,offset,store_timestamp,keys,property_string,body"
QUEUES = 4
STEP = 1000  # messages in a row for one queue
CHUNK = 250_000  # made at a time
WARM = 500_000  # messages of a job's warm-up
PATIENCE = 60.0  # seconds for a server to start or stop
FILTER_ROWS = 2_000_000  # of the columns' cases
MICRO_ROWS, MICRO_BATCHES, MICRO_SKIPPED = 1000, 60, 20
STREAM_PATIENCE = 600.0  # seconds for all of them

TAG = "rare"
SQL = "region = 'eu' AND price >= 96.0"  # 96 would be no match: RocketMQ takes it for a long
# The same in Spark SQL: on a property string, a map and typed columns.
_ONE = "regexp_extract({0}, '%s\\u0001([^\\u0002]*)', 1)"
TAG_BY_HAND = f"{_ONE % 'TAGS'} = 'rare'"
SQL_BY_HAND = f"{_ONE % 'region'} = 'eu' AND try_cast({_ONE % 'price'} AS DOUBLE) >= 96"
MAP_BY_HAND = "properties['region'] = 'eu' AND try_cast(properties['price'] AS DOUBLE) >= 96"

# Messages a pull may ask for, as Kafka's client may for more bytes. RocketMQ's default is 32.
PULL = 1000

KAFKA = f"Kafka source, broker {kafka.VERSION}"
KAFKA_TUNED = {
    "kafka.max.partition.fetch.bytes": str(16 * 2**20),
    "kafka.fetch.max.bytes": str(64 * 2**20),
    "kafka.receive.buffer.bytes": str(4 * 2**20),
    "kafka.max.poll.records": "50000",
}


class Failed(Exception):
    """What is measured did not do what it must."""


# The messages


@dataclass(frozen=True)
class Orders:
    """Some messages, a row each of bytes; all have the same size."""

    numbers: npt.NDArray[np.int64]
    properties: npt.NDArray[np.uint8]
    bodies: npt.NDArray[np.uint8]


_PROPERTIES = {
    "TAGS": b"paid",
    "KEYS": b"o0000000",
    "UNIQ_KEY": b"7F00000100012A139A55000000000000",
    "region": b"eu",
    "price": b"00.00",
}
_BLOCK = b"".join(name.encode() + b"\1" + value + b"\2" for name, value in _PROPERTIES.items())
_REGIONS = np.frombuffer(b"euusapme", np.uint8).reshape(4, 2)
_TAGS = np.frombuffer(b"paidsentopendone", np.uint8).reshape(4, 4)


def orders(start: int, stop: int) -> Orders:
    """The messages of these numbers. One in a hundred has the tag `rare`, and by chance another one
    in a hundred matches SQL."""
    numbers = np.arange(start, stop)
    properties = np.tile(_text(_BLOCK), (len(numbers), 1))
    cents, regions = _prices_and_regions(numbers)

    def put(name: str, values: npt.NDArray[np.uint8], skip: int = 0) -> None:
        at = _place(name) + skip
        properties[:, at : at + values.shape[1]] = values

    put("TAGS", np.where((numbers % 100 == 37)[:, None], _text(b"rare"), _TAGS[numbers % 4]))
    put("KEYS", _digits(numbers, 7), skip=1)
    put("UNIQ_KEY", _digits(numbers, 12), skip=20)
    put("region", _REGIONS[regions])
    put("price", _digits(cents // 100, 2))
    put("price", _digits(cents % 100, 2), skip=3)
    bodies = np.tile(_text(b"order 0000000 " + b"x" * 68), (len(numbers), 1))
    bodies[:, 6:13] = _digits(numbers, 7)
    return Orders(numbers, properties, bodies)


def _prices_and_regions(numbers: npt.NDArray[np.int64]) -> tuple[Any, Any]:
    mixed = numbers * 0x9E3779B1 % 2**32  # Knuth's: neighbours have nothing in common
    return mixed // 2**8 % 10_000, mixed // 2**30


def _place(name: str) -> int:
    """Where a property's value begins."""
    return _BLOCK.index(name.encode() + b"\1") + len(name) + 1


def _digits(numbers: npt.NDArray[np.int64], width: int) -> npt.NDArray[np.uint8]:
    powers = 10 ** np.arange(width - 1, -1, -1)
    return (numbers[:, None] // powers % 10 + ord("0")).astype(np.uint8)


def _text(text: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(text, np.uint8)


def matching(count: int) -> dict[str, int]:
    """How many of the messages each filter must find."""
    numbers = np.arange(count)
    cents, regions = _prices_and_regions(numbers)
    return {
        "all": count,
        "tag": int(np.count_nonzero(numbers % 100 == 37)),
        "sql": int(np.count_nonzero((regions == 0) & (cents >= 9600))),
    }


def fill_store(directory: Path, count: int) -> None:
    """As a broker would have it."""
    with Store(directory, StoreConfig(flush="async")) as store:
        topic = TopicConfig(name=TOPIC, read_queues=QUEUES, write_queues=QUEUES)
        tables.save_topics(directory / "config", {TOPIC: topic}, DataVersion(counter=1))
        now = int(time.time() * 1000)
        for start in range(0, count, CHUNK):
            items = _batch_items(orders(start, min(start + CHUNK, count)))
            for at in range(0, len(items), STEP):
                queue = (start + at) // STEP % QUEUES
                envelope = Draft(topic=TOPIC, queue_id=queue, born_timestamp=now)
                store.append_batch(envelope, items[at : at + STEP].tobytes())
            store.dispatch()


def _batch_items(made: Orders) -> npt.NDArray[np.uint8]:
    """As messages travel in a batch (`record.batch_item`)."""
    rows, body = made.bodies.shape
    block = made.properties.shape[1]
    size = 22 + body + block
    head = np.array([size, 0, 0, 0, body], ">i4").view(np.uint8)
    items = np.empty((rows, size), np.uint8)
    items[:, :20] = head
    items[:, 20 : 20 + body] = made.bodies
    items[:, 20 + body : 22 + body] = np.array([block], ">i2").view(np.uint8)
    items[:, 22 + body :] = made.properties
    return items


def write_rows(directory: Path, count: int) -> None:
    """Parquet with what Spark is to write into Kafka."""
    directory.mkdir()
    for start in range(0, count, CHUNK):
        made = orders(start, min(start + CHUNK, count))
        values = np.concatenate((made.properties, made.bodies), axis=1)
        names = [name for name in _PROPERTIES if name != "KEYS"]
        columns = {
            "key": _column(_value(made, "KEYS"), pa.binary()),
            "value": _column(values, pa.binary()),
            "body": _column(made.bodies, pa.binary()),
            "headers": pa.ListArray.from_arrays(
                _offsets(len(made.numbers), len(names)),
                pa.StructArray.from_arrays(
                    [pa.array(names * len(made.numbers)), _by_row(made, names, pa.binary())],
                    ["key", "value"],
                ),
            ),
            "partition": pa.array((made.numbers // STEP % QUEUES).astype(np.int32)),
        }
        pq.write_table(pa.table(columns), directory / f"{start:09}.parquet", compression="none")


def write_properties(directory: Path, count: int) -> None:
    """Parquet with the properties in each of the ways a filter may find them."""
    directory.mkdir()
    for start in range(0, count, CHUNK):
        made = orders(start, min(start + CHUNK, count))
        rows, names = len(made.numbers), list(_PROPERTIES)
        cents, regions = _prices_and_regions(made.numbers)
        columns = {
            "properties": pa.MapArray.from_arrays(
                _offsets(rows, len(names)),
                pa.array(names * rows),
                _by_row(made, names, pa.string()),
            ),
            "property_string": _column(made.properties, pa.string()),
            "region": _column(_REGIONS[regions], pa.string()),
            "price": pa.array(cents / 100),
        }
        pq.write_table(pa.table(columns), directory / f"{start:09}.parquet", compression="none")


def _offsets(rows: int, each: int) -> npt.NDArray[np.int32]:
    return np.arange(0, rows * each + 1, each, dtype=np.int32)


def _by_row(made: Orders, names: Sequence[str], kind: pa.DataType) -> pa.Array:
    """The values of a row, then those of the next."""
    values = pa.concat_arrays([_column(_value(made, name), kind) for name in names])
    places = np.arange(len(values)).reshape(len(names), len(made.numbers)).T.ravel()
    return values.take(pa.array(places))


def _value(made: Orders, name: str) -> npt.NDArray[np.uint8]:
    at = _place(name)
    return made.properties[:, at : at + len(_PROPERTIES[name])]


def _column(texts: npt.NDArray[np.uint8], kind: pa.DataType) -> pa.Array:
    rows, size = texts.shape
    offsets = pa.py_buffer(np.arange(0, rows * size + 1, size, dtype=np.int32))
    return pa.Array.from_buffers(
        kind, rows, [None, offsets, pa.py_buffer(np.ascontiguousarray(texts))]
    )


# Timing


@dataclass(frozen=True)
class Timed:
    rate: float  # rows looked at a second
    cores: tuple[float, float]  # of the JVM and of its Python workers


@dataclass(frozen=True)
class Job:
    """A frame to be read to its end."""

    name: str
    frame: Callable[[], "DataFrame"]
    looks_at: int  # rows
    gives: int
    settings: Sequence[tuple[str, str]] = ()


class Stopwatch:
    """Of Spark: its JVM is a child of ours and has the Python workers as descendants."""

    def __init__(self, root: int) -> None:
        self._root = root

    def time(self, work: Callable[[], object]) -> tuple[float, tuple[float, float]]:
        """Seconds that passed, and the processors that the JVM and its children had meanwhile."""
        before, start = self._processor_times(), time.perf_counter()
        work()
        passed, after = time.perf_counter() - start, self._processor_times()
        return passed, ((after[0] - before[0]) / passed, (after[1] - before[1]) / passed)

    def _processor_times(self) -> tuple[float, float]:
        """Seconds; of a process that has ended its parent has them."""
        total, pending = [0, 0], [self._root]
        while pending:
            process = pending.pop()
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
                own, reaped = sum(map(int, fields[11:13])), sum(map(int, fields[13:15]))
                total[process != self._root] += own
                total[1] += reaped
                for task in Path(f"/proc/{process}/task").iterdir():
                    pending += map(int, (task / "children").read_text().split())
        tick = os.sysconf("SC_CLK_TCK")
        return total[0] / tick, total[1] / tick


class Bench:
    def __init__(self, spark: "SparkSession", rounds: int) -> None:
        self.spark = spark
        self.rounds = rounds
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        self._watch = Stopwatch(gateway.proc.pid)

    def measure(self, jobs: Sequence[Job]) -> dict[str, Timed]:
        """They take turns; the best of the rounds counts."""
        for job in jobs:
            with self._settings(job):
                drain(job.frame())
                found = count_rows(job.frame())
            if found != job.gives:
                raise Failed(f"{job.name}: {found:,} rows, not {job.gives:,}")
        best: dict[str, Timed] = {}
        for _ in range(self.rounds):
            for job in jobs:
                with self._settings(job):
                    frame = job.frame()
                    passed, cores = self._watch.time(lambda frame=frame: drain(frame))
                timed = Timed(job.looks_at / passed, cores)
                if job.name not in best or timed.rate > best[job.name].rate:
                    best[job.name] = timed
        return best

    @contextlib.contextmanager
    def _settings(self, job: Job) -> Iterator[None]:
        before = [(name, self.spark.conf.get(name, None)) for name, _ in job.settings]
        for name, value in job.settings:
            self.spark.conf.set(name, value)
        try:
            yield
        finally:
            for name, old in before:
                self.spark.conf.unset(name) if old is None else self.spark.conf.set(name, old)


def drain(frame: "DataFrame") -> None:
    frame.write.format("noop").mode("overwrite").save()


def count_rows(frame: "DataFrame") -> int:
    from pyspark.sql import Observation, functions

    seen = Observation()
    drain(frame.observe(seen, functions.count(functions.lit(1)).alias("rows")))
    return int(seen.get["rows"])


# The cases


@dataclass(frozen=True)
class Figure:
    """A line of the report. Without `ours` it is the peer's."""

    case: str
    unit: str
    ours: float | None
    cores: tuple[float, float] | None = None  # of the JVM and of its Python workers
    peer: float | None = None
    peer_name: str | None = None
    target: float | None = None  # least of ours over the peer's; most, where less is better
    less_is_better: bool = False


@dataclass(frozen=True)
class Sources:
    """The same messages in three places."""

    spark: "SparkSession"
    store: Path
    nameserver: str
    kafka: str | None

    def log(self, **options: str) -> "DataFrame":
        return self.spark.read.format("rocketmq-log").options(**options).load(str(self.store))

    def wire(self, **options: str) -> "DataFrame":
        reader = self.spark.read.format("rocketmq").option("nameserver", self.nameserver)
        return reader.options(**options).load(TOPIC)

    def from_kafka(self, *, is_tuned: bool = True, headers: bool = False) -> "DataFrame":
        assert self.kafka is not None
        reader = self.spark.read.format("kafka").option("kafka.bootstrap.servers", self.kafka)
        if headers:
            reader = reader.option("includeHeaders", "true")
        reader = reader.option("subscribe", WITH_HEADERS if headers else TOPIC)
        return reader.options(**(KAFKA_TUNED if is_tuned else {})).load()


def scans(bench: Bench, sources: Sources, count: int) -> Iterator[Figure]:
    frames: dict[str, Callable[[], DataFrame]] = {
        "log source": sources.log,
        "wire source": sources.wire,
        "wire source, pulls of 32": lambda: sources.wire(pullSize="32"),
    }
    peers: dict[str, Callable[[], DataFrame]] = {
        "Kafka source, headers": lambda: sources.from_kafka(headers=True),
        "Kafka source, headers, defaults": lambda: sources.from_kafka(headers=True, is_tuned=False),
    }
    targets = {"log source": 2.0, "wire source": 1.0}
    yield from _scan("all columns", bench, sources, count, frames, peers, targets)
    frames = {
        "log source": lambda: sources.log(columns=LIKE_KAFKA),
        "wire source": lambda: sources.wire(columns=LIKE_KAFKA),
    }
    peers = {"Kafka source, no headers": sources.from_kafka}
    yield from _scan("no map", bench, sources, count, frames, peers, {})


def _scan(
    case: str,
    bench: Bench,
    sources: Sources,
    count: int,
    frames: dict[str, Callable[[], "DataFrame"]],
    peers: dict[str, Callable[[], "DataFrame"]],
    targets: dict[str, float],
) -> Iterator[Figure]:
    """Beside the first of the peers."""
    every = {**frames, **(peers if sources.kafka else {})}
    timed = bench.measure([Job(name, frame, count, count) for name, frame in every.items()])
    peer = timed.get(next(iter(peers)))
    for name in frames:
        yield _beside(f"scan, {case}, {name}", timed[name], peer, targets.get(name))
    for name in peers.keys() & timed.keys():
        yield _of_kafka(f"scan, {name}", timed[name])


def one_percent(bench: Bench, sources: Sources, count: int) -> Iterator[Figure]:
    from tamis.spark import sql92, tags

    unpushed = (("spark.sql.python.filterPushdown.enabled", "false"),)
    for by, option, afterwards, by_hand, target in (
        ("tag", {"tags": TAG}, lambda: tags(TAG), TAG_BY_HAND, 10.0),
        ("sql", {"sql": SQL}, lambda: sql92(SQL), SQL_BY_HAND, 5.0),
    ):
        gives, jobs = matching(count)[by], []
        for name, source in (("log", sources.log), ("wire", sources.wire)):
            frame = lambda source=source, option=option: source(**option)  # noqa: E731
            jobs.append(Job(f"{name} source filters", frame, count, gives))
            frame = lambda s=source, column=afterwards: s().where(column())  # noqa: E731
            jobs.append(Job(f"{name} source, then where", frame, count, gives, unpushed))
        if sources.kafka:
            condition = by_hand.format("CAST(value AS STRING)")
            frame = lambda text=condition: sources.from_kafka().where(text)  # noqa: E731
            jobs.append(Job("Kafka source, then where", frame, count, gives))
        timed = bench.measure(jobs)
        peer = timed.pop("Kafka source, then where", None)
        for name, one in timed.items():
            wanted = target if name.endswith("filters") else None
            yield _beside(f"1 % by {by}, {name}", one, peer, wanted)
        if peer is not None:
            yield _of_kafka(f"1 % by {by}, Kafka source, then where", peer)


def columns(bench: Bench, directory: Path, count: int) -> Iterator[Figure]:
    from pyspark.sql.functions import udf

    from tamis.spark import raw, sql92, typed

    count = min(count, FILTER_ROWS)
    write_properties(directory, count)
    frame = bench.spark.read.parquet(str(directory))

    def is_match(properties):  # type: ignore[no-untyped-def]
        return properties["region"] == "eu" and float(properties["price"]) >= 96

    def is_text_match(block):  # type: ignore[no-untyped-def]
        return is_match(dict(pair.split("\1") for pair in block.split("\2") if pair))

    match_map = udf(is_match, "boolean")  # without annotations, or Spark warns of them
    match_text = udf(is_text_match, "boolean")
    match_values = udf(lambda region, price: region == "eu" and price >= 96, "boolean")
    gives = matching(count)["sql"]
    values = {"region": "region", "price": typed("price", "double")}
    for on, ours, by_hand, python in (
        ("map", sql92(SQL), MAP_BY_HAND, match_map("properties")),
        (
            "property string",
            sql92(SQL, properties=raw("property_string")),
            SQL_BY_HAND.format("property_string"),
            match_text("property_string"),
        ),
        ("typed columns", sql92(SQL, properties=values), SQL, match_values("region", "price")),
    ):
        read = {"map": ["properties"], "property string": ["property_string"]}.get(on, list(values))
        conditions: dict[str, Column | str] = {"sql92": ours, "by hand": by_hand, "UDF": python}
        jobs = [Job("no filter", lambda read=read: frame.select(*read), count, count)]
        for name, condition in conditions.items():
            filtered = lambda read=read, c=condition: frame.select(*read).where(c)  # noqa: E731
            jobs.append(Job(name, filtered, count, gives))
        timed = bench.measure(jobs)
        case = f"SQL92 as a column, on {on}"
        yield _beside(case, timed["sql92"], timed["by hand"], 1 / 1.5, "Spark SQL by hand")
        yield _beside(case, timed["sql92"], timed["UDF"], None, "Python UDF")
        plain = timed["no filter"]
        yield Figure(f"{case}: no filter", "rows/s", plain.rate, plain.cores)


def routes(bench: Bench, sources: Sources, directory: Path, count: int) -> Iterator[Figure]:
    """Into Parquet. Subscriptions get 1 % of the messages each, or 1 % all of them together; none
    gets what another does."""
    jobs: dict[str, Sequence[Wanted]] = {"1 subscription, 1 %": BANDS[:1]}
    for number in (10, 100):
        jobs[f"{number} subscriptions, 1 % each"] = BANDS[:number]
    for number in (10, 100):
        steps = range(9600, 10_000, 400 // number)
        bands = [Band(0, price, price + 400 // number) for price in steps]
        jobs[f"{number} subscriptions, 1 % in all"] = bands
    best = _best_routes(bench, sources, directory, count, jobs)
    one = next(iter(best.values()))
    for name, taken in best.items():
        target = 3.0 if name.startswith("100 ") else None
        peer = None if taken is one else one
        yield Figure(f"route, {name}", "s", taken, None, peer, "one", target, less_is_better=True)


def fan_outs(bench: Bench, sources: Sources, directory: Path, count: int) -> Iterator[Figure]:
    """Into Parquet, 1 % of the messages each. One in ten of the subscriptions filters by a tag,
    which takes messages that others get too."""

    def subscriptions(number: int) -> list[Wanted]:
        return [Tagged() if at % 10 == 1 else BANDS[at] for at in range(number)]

    jobs = {f"{number} subscriptions": subscriptions(number) for number in (3, 50)}
    best = _best_routes(bench, sources, directory, count, jobs)
    few: float | None = None
    for name, taken in best.items():
        rate = count / taken
        yield Figure(f"fan-out, {name}", "messages/s", rate, None, few, "3" if few else None)
        few = few or rate


def _best_routes(
    bench: Bench,
    sources: Sources,
    directory: Path,
    count: int,
    jobs: "Mapping[str, Sequence[Wanted]]",
) -> dict[str, float]:
    """Return the seconds of each job, which take turns; the best of the rounds counts."""
    from tamis.pipeline import config, route

    def seconds(store: Path, messages: int, wanted: Sequence[Wanted], name: str) -> float:
        file = directory / name / "job.toml"
        file.parent.mkdir(parents=True)
        file.write_text(_job(store, wanted))
        done = route.run(bench.spark, config.load(file))
        shutil.rmtree(file.parent)
        found = [one.matched for one in done.groups]
        expected = [one.count(messages) for one in wanted]
        if done.messages != messages or found != expected:
            raise Failed(f"route: {done.messages:,} messages, groups {found}, not {expected}")
        return done.seconds

    small, few = directory / "small", min(count, WARM)
    fill_store(small, few)
    for name, wanted in jobs.items():
        for again in range(2):
            seconds(small, few, wanted, f"{name}, warm {again}")
    best: dict[str, float] = {}
    for again in range(bench.rounds):
        for name, wanted in jobs.items():
            taken = seconds(sources.store, count, wanted, f"{name}, {again}")
            best[name] = min(taken, best.get(name, taken))
    return best


@dataclass(frozen=True)
class Band:
    """What a subscription wants: prices in cents, the last not included."""

    region: int
    start: int
    stop: int

    def filter(self) -> str:
        """As a pipeline's file has it."""
        where = f"region = '{_REGIONS[self.region].tobytes().decode()}'"
        if self.start:  # RocketMQ's language has no 0.0
            where += f" AND price >= {self.start / 100}"
        return f'sql = "{where} AND price < {self.stop / 100}"'

    def count(self, messages: int) -> int:
        cents, regions = _prices_and_regions(np.arange(messages))
        is_match = (regions == self.region) & (self.start <= cents) & (cents < self.stop)
        return int(np.count_nonzero(is_match))


@dataclass(frozen=True)
class Tagged:
    """What a subscription to the rare tag wants."""

    def filter(self) -> str:
        return f'tags = "{TAG}"'

    def count(self, messages: int) -> int:
        return matching(messages)["tag"]


Wanted = Band | Tagged
# A hundred subscriptions that get 1 % of the messages each, and none what another does.
BANDS = [Band(region, price, price + 400) for price in range(9600, -1, -400) for region in range(4)]


def _job(store: Path, wanted: Sequence[Wanted]) -> str:
    lines = [f'[source]\nstore = "{store}"\ntopic = "{TOPIC}"']
    for number, one in enumerate(wanted):
        sink = f'{{ format = "parquet", path = "out/{number}" }}'
        lines += ["[[subscription]]", f'group = "group-{number}"', one.filter()]
        lines.append(f"sink = {sink}")
    return "\n".join(lines) + "\n"


def micro_batches(sources: Sources, directory: Path) -> Iterator[Figure]:
    """Enough messages are there for every micro-batch to be full; the first ones are not timed."""
    spark = sources.spark
    limit = {"maxOffsetsPerTrigger": str(MICRO_ROWS), "startingOffsets": "earliest"}
    read = {
        "log": lambda: (
            spark.readStream.format("rocketmq-log").options(**limit).load(str(sources.store))
        ),
        "wire": lambda: (
            spark.readStream.format("rocketmq")
            .options(nameserver=sources.nameserver, **limit)
            .load(TOPIC)
        ),
    }
    if sources.kafka:
        options = {"kafka.bootstrap.servers": sources.kafka, "subscribe": TOPIC, **limit}
        read["Kafka"] = lambda: spark.readStream.format("kafka").options(**options).load()
    times: dict[str, float] = {}
    for again in range(2):  # the first warms up
        for name, frame in read.items():
            times[name] = _micro_batch(frame(), directory / f"{name}{again}")
    for name in ("log", "wire"):
        case = f"micro-batch of {MICRO_ROWS:,} rows, {name} source"
        peer = times.get("Kafka")
        name_of_peer = None if peer is None else KAFKA
        yield Figure(case, "ms", times[name], None, peer, name_of_peer, 1.0, less_is_better=True)


def _micro_batch(frame: "DataFrame", checkpoint: Path) -> float:
    """Milliseconds, the median."""
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(processingTime="0 seconds").start()
    deadline = time.monotonic() + STREAM_PATIENCE
    try:
        while True:
            seen = [one for one in query.recentProgress if one["numInputRows"]]
            if len(seen) >= MICRO_BATCHES:
                break
            if query.exception() is not None:
                raise Failed(str(query.exception()))
            if time.monotonic() > deadline:
                raise Failed(f"{len(seen)} of {MICRO_BATCHES} micro-batches: {query.lastProgress}")
            time.sleep(0.05)
    finally:
        query.stop()
    timed = seen[MICRO_SKIPPED:MICRO_BATCHES]
    if any(one["numInputRows"] != MICRO_ROWS for one in timed):
        raise Failed(f"micro-batches of {[one['numInputRows'] for one in timed]} rows")
    return float(statistics.median(one["durationMs"]["triggerExecution"] for one in timed))


def _beside(
    case: str, ours: Timed, peer: Timed | None, target: float | None, name: str = KAFKA
) -> Figure:
    rate = None if peer is None else peer.rate
    return Figure(case, "rows/s", ours.rate, ours.cores, rate, name if peer else None, target)


def _of_kafka(case: str, timed: Timed) -> Figure:
    return Figure(case, "rows/s", None, timed.cores, timed.rate, KAFKA)


# Servers and session


@contextlib.contextmanager
def served(store: Path, log: Path) -> Iterator[str]:
    """The name server's address, while `tamis up` runs on the store."""
    port, nameserver = kafka.free_ports(2)
    command = [str(Path(sys.executable).with_name("tamis")), "up", "--data", str(store)]
    command += ["--port", str(port), "--nameserver-port", str(nameserver), "--metrics-port", "-1"]
    command += ["--set", f"maxTransferCountOnMessageInMemory={PULL}", "--filter-servers", "0"]
    with log.open("wb") as said:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=said
        )
    assert process.stdout is not None
    try:
        if not process.stdout.readline():
            raise Failed(f"{' '.join(command)} did not start:\n{log.read_text()[-3000:]}")
        yield f"127.0.0.1:{nameserver}"
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


@contextlib.contextmanager
def session(jars: Sequence[Path]) -> Iterator["SparkSession"]:
    from tamis.spark import session as open_session

    settings = {
        "spark.driver.memory": "2g",
        "spark.sql.shuffle.partitions": "2",
        "spark.jars": ",".join(map(str, jars)),
    }
    spark = open_session("bench_spark", master="local[1]", config=settings)
    spark.sparkContext.setLogLevel("ERROR")  # Kafka's producer misses its broker at the end
    try:
        yield spark
    finally:
        spark.stop()


def fill_kafka(spark: "SparkSession", address: str, rows: Path) -> None:
    frame = spark.read.parquet(str(rows))
    for topic, columns in (
        (TOPIC, ["key", "value", "partition"]),
        (WITH_HEADERS, ["key", "body AS value", "headers", "partition"]),
    ):
        writer = frame.selectExpr(*columns).write.format("kafka").option("topic", topic)
        writer = writer.option("kafka.bootstrap.servers", address)
        writer.option("kafka.batch.size", str(2**18)).option("kafka.linger.ms", "5").save()


# The report


def heading(as_json: bool, spark: "SparkSession", count: int) -> None:
    models = [
        line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    load = " ".join(f"{one:.1f}" for one in os.getloadavg())
    java = spark.sparkContext._jvm.System.getProperty("java.version")  # type: ignore[union-attr]
    for line in (
        f"{count:,} messages; {len(models)} × {models[0].partition(':')[2].strip()}, load {load}",
        f"Linux {platform.release()}, Python {platform.python_version()}, Java {java}, "
        f"Spark {spark.version}, {spark.sparkContext.master}",
    ):
        print(line, file=sys.stderr if as_json else sys.stdout, flush=True)


def report(as_json: bool, figure: Figure) -> None:
    ours, peer = figure.ours, figure.peer
    ratio = None if ours is None or peer is None else ours / peer
    if as_json:
        row = {
            "bench": "spark",
            "case": figure.case,
            "unit": figure.unit,
            "ours": None if ours is None else round(ours, 1),
            "cores": None if figure.cores is None else [round(one, 2) for one in figure.cores],
            "peer": None if peer is None else round(peer, 1),
            "peer_name": figure.peer_name,
            "ratio": None if ratio is None else round(ratio, 2),
            "target": figure.target,
        }
        print(json.dumps(row), flush=True)
        return
    cores = "" if figure.cores is None else "{:.2f} + {:.2f} cores".format(*figure.cores)
    against = "" if ratio is None else f"× {ratio:5.2f} {figure.peer_name}"
    bound = "at most" if figure.less_is_better else "at least"
    wanted = "" if figure.target is None else f"  ({bound} {figure.target:.2g})"
    value = f"{peer if ours is None else ours:,.{1 if figure.unit == 's' else 0}f}"
    line = f"{figure.case:<46} {value:>12} {figure.unit:<6} {cores:>17}  {against}{wanted}"
    print(line.rstrip(), flush=True)


CASES = ("scan", "percent", "columns", "route", "fan-out", "micro-batch")


def run(root: Path, wanted: Sequence[str], arguments: argparse.Namespace) -> None:
    count = arguments.messages
    has_messages = {*wanted} != {"columns"}
    has_servers = bool({*wanted} - {"columns", "route", "fan-out"})
    has_kafka = has_servers and not arguments.ours_only
    store, address, nameserver = root / "store", None, ""
    with contextlib.ExitStack() as stack:
        if has_messages:
            fill_store(store, count)
        if has_servers:
            nameserver = stack.enter_context(served(store, root / "tamis.err"))
        if has_kafka:
            address = stack.enter_context(kafka.broker(root / "kafka", QUEUES))
        spark = stack.enter_context(session(kafka.source_jars() if has_kafka else []))
        heading(arguments.json, spark, count)
        if address is not None:
            write_rows(root / "rows", count)
            fill_kafka(spark, address, root / "rows")
            shutil.rmtree(root / "rows")
        bench = Bench(spark, arguments.rounds)
        sources = Sources(spark, store, nameserver, address)
        cases: dict[str, Callable[[], Iterator[Figure]]] = {
            "scan": lambda: scans(bench, sources, count),
            "percent": lambda: one_percent(bench, sources, count),
            "columns": lambda: columns(bench, root / "columns", count),
            "route": lambda: routes(bench, sources, root / "route", count),
            "fan-out": lambda: fan_outs(bench, sources, root / "fan-out", count),
            "micro-batch": lambda: micro_batches(sources, root / "checkpoints"),
        }
        for name in wanted:
            for figure in cases[name]():
                report(arguments.json, figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument(
        "--only", default=",".join(CASES), metavar="NAMES", help=f"some of {', '.join(CASES)}"
    )
    parser.add_argument("--messages", type=int, metavar="N", help="5,000,000 if not given")
    parser.add_argument("--rounds", type=int, metavar="N", help="2, of which the best counts")
    parser.add_argument("--quick", action="store_true", help="200,000 messages, one round")
    parser.add_argument("--ours-only", action="store_true", help="without Kafka")
    parser.add_argument("--directory", help="where to put the data; a temporary one if not given")
    arguments = parser.parse_args()
    wanted = arguments.only.split(",")
    if not set(wanted) <= set(CASES):
        parser.error(f"--only takes some of {', '.join(CASES)}, with commas between")
    arguments.messages = arguments.messages or (200_000 if arguments.quick else 5_000_000)
    if arguments.messages < MICRO_ROWS * MICRO_BATCHES:
        parser.error(f"--messages takes {MICRO_ROWS * MICRO_BATCHES} or more")
    arguments.rounds = arguments.rounds or (1 if arguments.quick else 2)
    root = Path(tempfile.mkdtemp(dir=arguments.directory))
    try:
        run(root, wanted, arguments)
    except (Failed, OSError, RuntimeError, kafka.Unavailable) as reason:
        sys.exit(f"bench_spark: {reason}")
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
