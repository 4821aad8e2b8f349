"""The demo's last part: a day of orders through Spark: routed, archived, a filter tried on them.

Each step says in a line what it did and how fast. What it wrote is left to be looked at. Spark is
started and warmed up beside the writing of the day, so that rates are those of a session that runs.
"""

import math
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .demo import Order

__all__ = ["show"]

TOPIC: Final = "OrderHistory"
_COUNT: Final = 1_000_000
_WARMING: Final = 30_000  # orders that Spark is warmed up with
_POOL: Final = 20_000  # different orders
_QUEUES: Final = 4
_MINUTES: Final = 24 * 60
_RELEASE: Final = 14 * 60  # the minute from which on prices may have decimals
_BATCH: Final = 500_000  # messages of a micro-batch
_PULL: Final = 1000  # messages that a pull may ask the broker for
_SETTINGS: Final = {
    "spark.driver.memory": "1g",
    # Nobody waits for heartbeats here, and one that meets a task's start makes Spark 4.2 print an
    # error: it reads counters that are not there yet.
    "spark.executor.heartbeatInterval": "100s",
}

_FILTER: Final = '''"""An order of a VIP that is paid back, or of too round a price."""


class Suspicious:
    columns = ("tags",)  # nothing else is brought here
    properties = ("price", "vip")

    def match(self, message):
        if message.tags == "REFUND":
            return message.properties.get("vip") == "true"
        price = float(message.properties["price"])  # "free" fails, and is counted as that
        return price >= 100 and price % 50 == 0
'''
_ROUTE: Final = """
[source]
{place}
topic = "{topic}"
start = "earliest"

[run]
max_offsets_per_batch = {batch}

[[subscription]]
group = "payments"
tags = "PAID || REFUND"
sink = {{ format = "parquet", path = "out/payments", columns = {columns} }}

[[subscription]]
group = "eu-big"
sql = "region = 'eu' AND price > 100.0"
sink = {{ format = "parquet", path = "out/eu-big", columns = {columns} }}

[[subscription]]
group = "suspicious"
code = "suspicious.py:Suspicious"
sink = {{ format = "parquet", path = "out/suspicious", columns = {columns} }}
"""
_ARCHIVE: Final = """
[source]
{place}
topic = "{topic}"
start = "earliest"

[run]
job = "archive"
max_offsets_per_batch = {batch}

[archive]
path = "archive"
properties = ["region", "price", "vip"]
"""
_NEW, _OLD = "price > 100.0", "price > 100"


def show(
    make_orders: "Callable[[random.Random, int], list[Order]]", line: Callable[[str, str], None]
) -> None:
    """`line`: prints a name and a text."""
    if find_spec("pyspark") is None:
        line("left out", "pip install 'tamis[spark]' brings what is needed")
        return
    from ..testing import LocalCluster

    home = Path(tempfile.mkdtemp(prefix="tamis-demo-"))
    orders = make_orders(random.Random(7), _POOL)
    with _warm_session(home / "warm-up", orders) as warming:
        with _timed() as took:
            _write_day(home / "store", orders, _COUNT)
        line("a day", f"{_COUNT:,} orders of topic {TOPIC} in a broker's store, {took[0]:.1f} s")
        with LocalCluster(home / "store", pull_messages=_PULL) as cluster:
            _write_jobs(home, f'nameserver = "{cluster.nameserver}"')
            spark, up, warm = warming.result()
            line(
                "Spark",
                f"{spark.version}, {spark.sparkContext.master}, meanwhile: up in {up:.1f} s, warmed"
                f" up by routing {_WARMING:,} orders in {warm:.1f} s",
            )
            _route(spark, home, line)
            _archive(spark, home, line)
            _backtest(spark, home, line)
    line("left in", str(home))


@contextmanager
def _warm_session(
    home: Path, orders: "Sequence[Order]"
) -> Iterator[Future[tuple[Any, float, float]]]:
    """A session that another thread starts, and has a small route run; and the seconds of both. It
    ends with the block."""
    from ..pipeline import load, route
    from ..spark import session

    def start() -> tuple[Any, float, float]:
        with _timed() as up:
            spark = session("tamis demo", config=_SETTINGS)
        sessions.append(spark)
        with _timed() as warm:
            _write_day(home / "store", orders, _WARMING)
            _write_jobs(home, f'store = "{home / "store"}"')
            route.run(spark, load(str(home / "route.toml")))
            shutil.rmtree(home)
        return spark, up[0], warm[0]

    sessions = list[Any]()
    with ThreadPoolExecutor(1) as pool:
        try:
            yield pool.submit(start)
        finally:
            pool.shutdown()
            for spark in sessions:
                spark.stop()


def _write_jobs(home: Path, place: str) -> None:
    """`place`: of the source, as a pipeline's file has it."""
    columns = '["keys", "tags", "store_timestamp", "body"]'
    fields = {"place": place, "topic": TOPIC, "batch": _BATCH, "columns": columns}
    (home / "suspicious.py").write_text(_FILTER)
    (home / "route.toml").write_text(_ROUTE.format(**fields))
    (home / "archive.toml").write_text(_ARCHIVE.format(**fields))


def _write_day(directory: Path, orders: "Sequence[Order]", total: int) -> None:
    """Write yesterday's orders as a broker would have stored them: more by day than by night, and
    from two in the afternoon on some with decimals in their price."""
    from ..store import tables
    from ..store.config import StoreConfig
    from ..store.store import Store
    from ..wire import properties, record
    from ..wire.bodies import DataVersion, TopicConfig

    def items(some: "Sequence[Order]") -> list[bytes]:
        texts = [properties.encode(one.all_properties).encode() for one in some]
        return [
            record.batch_item(one.body.encode(), text)
            for one, text in zip(some, texts, strict=True)
        ]

    later = items(orders)
    earlier = items([one for one in orders if "." not in one.properties["price"]])
    rng = random.Random(8)
    midnight = time.time() // 86_400 * 86_400 - 86_400
    clock = [midnight]
    with Store(directory, StoreConfig(flush="async"), now=lambda: clock[0]) as store:
        topic = TopicConfig(name=TOPIC, read_queues=_QUEUES, write_queues=_QUEUES)
        tables.save_topics(directory / "config", {TOPIC: topic}, DataVersion(counter=1))
        for minute, count in enumerate(_orders_by_minute(rng, total)):
            clock[0] = midnight + 60 * minute
            pool = earlier if minute < _RELEASE else later
            at = rng.randrange(len(pool))
            some = (pool[at:] + pool[:at])[:count]
            envelope = record.Draft(
                topic=TOPIC, queue_id=minute % _QUEUES, born_timestamp=int(clock[0] * 1000)
            )
            store.append_batch(envelope, b"".join(some))
        store.dispatch()


def _orders_by_minute(rng: random.Random, total: int) -> list[int]:
    """As many as there are in all, along a curve with its top in the evening."""
    weights = [
        (1.15 + math.sin((minute / _MINUTES - 0.55) * 2 * math.pi)) * rng.uniform(0.85, 1.15)
        for minute in range(_MINUTES)
    ]
    counts = [int(total * weight / sum(weights)) for weight in weights]
    counts[-1] += total - sum(counts)
    return counts


def _route(spark: Any, home: Path, line: Callable[[str, str], None]) -> None:
    from ..pipeline import load, route

    told = route.run(spark, load(str(home / "route.toml")))
    got = ", ".join(f"{one.group} {one.matched:,}" for one in told.groups)
    line("routed", f"in one pass, by tags, SQL and code: {got}")
    line("", _rate(told.messages, told.seconds))
    for one in told.groups:
        if one.failed:
            sample = one.samples[0].reason if one.samples else ""
            line("", f"{one.group} failed on {one.failed:,}, which are counted: {sample}")


def _archive(spark: Any, home: Path, line: Callable[[str, str], None]) -> None:
    from ..pipeline import archive, load

    told = archive.run(spark, load(str(home / "archive.toml")))
    size = sum(one.stat().st_size for one in (home / "archive").rglob("*.parquet"))
    rate = _rate(told.messages, told.seconds)
    line("archived", f"as Parquet by topic and day, {size / 2**20:.1f} MiB: {rate}")


def _backtest(spark: Any, home: Path, line: Callable[[str, str], None]) -> None:
    from ..pipeline import archive, backtest, plot

    with _timed() as took:
        rows = archive.read(spark, str(home / "archive"), topics=(TOPIC,))
        told = backtest.run(rows, _NEW, _OLD, source=f"archive {home / 'archive'}")
        plot.write(told, home / "backtest.png")
    totals = told.totals
    line(
        "backtested",
        f"{_NEW} on the archive: {totals.matched:,} of {totals.messages:,} match, {totals.gained:,}"
        f" of them not by {_OLD}: {_rate(totals.messages, took[0])}",
    )
    line("", f"plot: {home / 'backtest.png'}")


@contextmanager
def _timed() -> Iterator[list[float]]:
    start = time.perf_counter()
    took: list[float] = []
    yield took
    took.append(time.perf_counter() - start)


def _rate(count: int, seconds: float) -> str:
    return f"{count:,} in {seconds:.1f} s, {count / seconds:,.0f} a second"
