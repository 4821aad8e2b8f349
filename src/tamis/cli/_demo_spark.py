"""The demo's last part: orders in bulk through Spark, routed, archived, and a filter tried on them.

Each step says in a line what it did and how fast. What it wrote is left to be looked at.
"""

import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .demo import Order

__all__ = ["show"]

TOPIC: Final = "OrderHistory"
_COUNT: Final = 30_000
_BATCH: Final = 500

_FILTER: Final = '''"""An order of a VIP that is paid back, or of too round a price."""


class Suspicious:
    def match(self, message):
        if message.tags == "REFUND":
            return message.properties.get("vip") == "true"
        price = float(message.properties["price"])  # "free" fails, and is counted as that
        return price >= 100 and price % 50 == 0
'''
_ROUTE: Final = """
[source]
nameserver = "{nameserver}"
topic = "{topic}"
start = "earliest"

[[subscription]]
group = "payments"
tags = "PAID || REFUND"
sink = {{ format = "parquet", path = "out/payments" }}

[[subscription]]
group = "eu-big"
sql = "region = 'eu' AND price > 100.0"
sink = {{ format = "parquet", path = "out/eu-big" }}

[[subscription]]
group = "suspicious"
code = "suspicious.py:Suspicious"
sink = {{ format = "json", path = "out/suspicious", columns = ["tags", "keys", "properties"] }}
"""
_ARCHIVE: Final = """
[source]
nameserver = "{nameserver}"
topic = "{topic}"
start = "earliest"

[run]
job = "archive"

[archive]
path = "archive"
properties = ["region", "price", "vip"]
"""
_NEW, _OLD = "price > 100.0", "price > 100"


def show(
    nameserver: str,
    make_orders: "Callable[[random.Random, int], list[Order]]",
    line: Callable[[str, str], None],
) -> None:
    """`line`: prints a name and a text."""
    try:
        from ..pipeline.runner import spark_session
    except ModuleNotFoundError as error:
        if error.name != "pyspark":
            raise
        line("left out", "pip install 'tamis[spark]' brings what is needed")
        return
    home = Path(tempfile.mkdtemp(prefix="tamis-demo-"))
    (home / "suspicious.py").write_text(_FILTER)
    places = {"nameserver": nameserver, "topic": TOPIC}
    (home / "route.toml").write_text(_ROUTE.format(**places))
    (home / "archive.toml").write_text(_ARCHIVE.format(**places))

    with _timed() as took:
        _send(nameserver, make_orders(random.Random(7), _COUNT))
    line("sent", f"{_COUNT:,} orders to topic {TOPIC}, {_rate(took)}")
    start = time.perf_counter()
    with spark_session("tamis demo", None, {"spark.driver.memory": "1g"}) as spark:
        seconds = time.perf_counter() - start
        line("Spark", f"{spark.version}, {spark.sparkContext.master}, up in {seconds:.1f} s")
        _route(spark, home, line)
        _archive(spark, home, line)
        _backtest(home, line)
    line("left in", str(home))


def _send(nameserver: str, orders: "Sequence[Order]") -> None:
    from ..client import Message, blocking

    with blocking.Admin(nameserver) as admin:
        admin.create_topic(TOPIC, queues=4)
    with blocking.Producer(nameserver, "demo") as producer:
        messages = [
            Message(TOPIC, one.body, tags=one.tag, keys=one.key, properties=one.properties)
            for one in orders
        ]
        for at in range(0, len(messages), _BATCH):
            producer.send_batch(messages[at : at + _BATCH])


def _route(spark: Any, home: Path, line: Callable[[str, str], None]) -> None:
    from ..pipeline import load, route

    with _timed() as took:
        told = route.run(spark, load(str(home / "route.toml")))
    got = ", ".join(f"{one.group} {one.matched:,}" for one in told.groups)
    line("routed", f"in one pass, by tags, SQL and code: {got}; {_rate(took, told.messages)}")
    for one in told.groups:
        if one.failed:
            sample = one.samples[0].reason if one.samples else ""
            line("", f"{one.group} failed on {one.failed:,}, which are counted: {sample}")


def _archive(spark: Any, home: Path, line: Callable[[str, str], None]) -> None:
    from ..pipeline import archive, load

    with _timed() as took:
        told = archive.run(spark, load(str(home / "archive.toml")))
    size = sum(one.stat().st_size for one in (home / "archive").rglob("*.parquet"))
    rate = _rate(took, told.messages)
    line("archived", f"as Parquet by topic and day, {size / 2**20:.1f} MiB, {rate}")


def _backtest(home: Path, line: Callable[[str, str], None]) -> None:
    from ..pipeline import backtest, plot
    from ..pipeline.config import Source

    with _timed() as took:
        source = Source(archive=str(home / "archive"), topics=(TOPIC,))
        told = backtest.run_on(source, _NEW, _OLD, bucket=1)
        plot.write(told, home / "backtest.png")
    totals = told.totals
    line(
        "backtested",
        f"{_NEW} on the archive: {totals.matched:,} of {totals.messages:,} match, {totals.gained:,}"
        f" of them not by {_OLD}, {_rate(took, totals.messages)}",
    )
    line("", f"plot: {home / 'backtest.png'}")


@contextmanager
def _timed() -> Iterator[list[float]]:
    start = time.perf_counter()
    took: list[float] = []
    yield took
    took.append(time.perf_counter() - start)


def _rate(took: list[float], count: int = _COUNT) -> str:
    return f"{took[0]:.1f} s, {count / took[0]:,.0f} a second"
