"""`tamis demo`: a broker, orders, and groups that have them filtered; what each got, and why.

`play` is the demo with any client. The command gives it ours, `examples/orders/run.py` Apache's.
"""

import contextlib
import logging
import os
import random
import re
import shutil
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self, TypeVar

import click

from .. import __version__
from . import _demo_spark
from .options import check_spark

if TYPE_CHECKING:
    from ..client import ReceivedMessage
    from ..testing import LocalCluster

__all__ = ["TOPIC", "Client", "Connect", "Group", "Order", "TamisClient", "demo", "play"]

T = TypeVar("T")

TOPIC: Final = "Orders"
QUEUES: Final = 4

_ORDERS: Final = 200
_STORED: Final = 200_000
_PATIENCE: Final = 120.0  # seconds, for an answer and for a condition to come about
_SILENCE: Final = 3.0  # seconds of starting, after which something is said
_WIDTH: Final = 96  # columns, where the terminal has them
_SHOWN: Final = ("order", "tag", "region", "price", "vip")


@dataclass(frozen=True, slots=True)
class Order:
    """A message: its key, its tag and the properties that SQL can ask for."""

    key: str
    tag: str
    properties: dict[str, str]

    @property
    def body(self) -> str:
        return f"this is {self.key}"

    @property
    def all_properties(self) -> dict[str, str]:
        """As they are stored."""
        return {"KEYS": self.key, "TAGS": self.tag, **self.properties}


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group and its filter, one of the two."""

    name: str
    tags: str = ""
    sql: str = ""

    @property
    def filter(self) -> str:
        return f"tags {self.tags}" if self.tags else f"sql  {self.sql}"


GROUPS: Final = (
    Group("payments", tags="PAID || REFUND"),
    Group("refunds", tags="REFUND"),
    Group("eu-big", sql="region = 'eu' AND price > 100.0"),
    Group("vip-or-far", sql="vip = TRUE OR region IN ('cn', 'us')"),
    Group("big", sql="price > 100.0"),
    Group("big-naive", sql="price > 100"),
)
_BETTER, _FAILING = GROUPS[-2:]
_TRAPS: Final = ("region LIKE 'e%'", "NOT vip = TRUE", "price > 5 AND price < 3")


class Client(Protocol):
    """What sends orders and consumes them: in this order, a call each."""

    title: str  # who made it, and its version
    note: str  # what it can't do, if anything

    def send(self, orders: Sequence[Order]) -> None: ...

    def subscribe(self, groups: Sequence[Group]) -> None: ...

    def received(self, group: Group, count: int) -> list[str]:
        """The keys of what the group got, once they are `count`."""


Connect = Callable[["LocalCluster"], AbstractContextManager[Client]]


@click.command()
@click.option("--spark/--no-spark", default=True, help="With the pipeline, which takes longest.")
def demo(spark: bool) -> None:
    """Show what it does: a broker, orders, groups that filter them, a pipeline."""
    if spark:
        check_spark("the demo's last part", "; or leave that part out: tamis demo --no-spark")
    play(TamisClient, spark=spark)


def play(connect: Connect, *, spark: bool = True) -> None:
    """Raises ClickException, with one line of text, if anything is not as it should be."""
    start = time.perf_counter()
    with _step("the demo", BrokenPipeError), _warnings() as warnings:
        orders = _make_orders(random.Random(5))
        with ExitStack() as stack:
            cluster, ours, client = _start(stack, connect)
            warnings[:] = [one for one in warnings if one.name != _VERDICTS]  # of the first
            seconds = time.perf_counter() - start
            _title(f"Tamis {__version__}: RocketMQ's broker, in Python")
            _line("name server", f"{cluster.nameserver}, broker {cluster.broker}, in this process")
            _line("client", client.title)
            if client.note:
                _line("", client.note)
            _line("started in", f"{seconds:.1f} s")

            begin = time.perf_counter()
            tallies, got = _exchange(cluster, ours, client, orders)
            seconds = time.perf_counter() - begin
            _title(f"{len(orders)} orders were sent, such as")
            _show_orders(orders)
            _title("Each group had the broker filter them, and got")
            _show_groups(tallies, got)
            took = f"{sum(map(len, got.values()))} messages delivered"
            click.echo(f"\n  sent, filtered and consumed in {seconds:.1f} s: {took}")
            _check(orders, tallies, got)

            _title("A filter that fails is not one that says no")
            with _step("asking for the reason"):
                sample = _sample(ours, warnings)
            _show_failures(tallies[_FAILING.name], *sample)

            _title("RocketMQ accepts filters that mean something else: tamis filter lint")
            _show_traps()
            with _step("the store", BrokenPipeError):
                _title(f"{_STORED:,} orders in RocketMQ's own files: how many match, on one core")
                _show_store()
            if spark:
                with _step("the pipeline", BrokenPipeError):
                    _title("The pipeline, on Spark: the same filters in bulk and over history")
                    _demo_spark.show(_make_orders, _line)
    for warning in warnings:
        if warning.name != _VERDICTS:
            click.echo(f"warning: {warning.getMessage()}", err=True)
    _show_more(time.perf_counter() - start)


@contextlib.contextmanager
def _step(what: str, *passing: type[Exception]) -> Iterator[None]:
    """An error in one line. Within, nothing is printed unless a broken pipe passes."""
    try:
        yield
    except Exception as error:
        if isinstance(error, (click.ClickException, *passing)):
            raise
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise click.ClickException(f"{what} failed: {first}") from error


# What happens.


def _make_orders(rng: random.Random, count: int = _ORDERS) -> list[Order]:
    orders = []
    for number in range(1, count + 1):
        properties = {"region": rng.choice(("eu", "eu", "us", "cn"))}
        properties["price"] = rng.choices(
            (f"{rng.randrange(250)}", f"{rng.random() * 250:.2f}", "free"), (6, 3, 1)
        )[0]
        if rng.random() < 0.5:
            properties["vip"] = rng.choice(("true", "false"))
        tag = rng.choices(("PAID", "NEW", "REFUND"), (5, 3, 1))[0]
        orders.append(Order(f"order-{number}", tag, properties))
    return orders


def _start(stack: ExitStack, connect: Connect) -> tuple["LocalCluster", "TamisClient", Client]:
    """The servers; ours for the demo's own questions; the client."""
    from ..testing import LocalCluster

    excuse = threading.Timer(_SILENCE, lambda: click.echo(
        "starting; the first time on a machine some code is compiled, for up to half a minute",
        err=True))  # fmt: skip
    excuse.daemon = True
    excuse.start()
    try:
        with _step("starting the servers"):
            with LocalCluster() as first, TamisClient(first) as loop:  # waits for the compiler
                loop.create_topic()
                loop.send(_make_orders(random.Random(5), 8))
                loop.subscribe(GROUPS)
            cluster = stack.enter_context(LocalCluster(metrics_port=0))
    finally:
        excuse.cancel()
    with _step("creating the topic"):
        ours = stack.enter_context(TamisClient(cluster))
        ours.create_topic()
    with _step("starting the client"):
        client = stack.enter_context(connect(cluster))
    return cluster, ours, client


def _exchange(
    cluster: "LocalCluster", ours: "TamisClient", client: Client, orders: Sequence[Order]
) -> tuple[dict[str, "Tally"], dict[str, list[str]]]:
    """What the broker counted and what the client got, by group."""
    with _step("sending the orders"):
        client.send(orders)
        _await("the queues have", ours.stored, lambda stored: stored >= len(orders))
    with _step("consuming"):
        client.subscribe(GROUPS)
        tallies = _await(
            "the broker has filtered",
            lambda: _scrape(cluster.metrics),
            lambda seen: all(
                group.name in seen and seen[group.name].evaluated >= len(orders) for group in GROUPS
            ),
        )
        got = {group.name: client.received(group, tallies[group.name].matched) for group in GROUPS}
    return tallies, got


def _await(what: str, see: Callable[[], T], enough: Callable[[T], bool]) -> T:
    deadline = time.monotonic() + _PATIENCE
    while not enough(seen := see()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {_PATIENCE:g} s, {what} {seen}")
        time.sleep(0.02)
    return seen


def _check(
    orders: Sequence[Order], tallies: Mapping[str, "Tally"], got: Mapping[str, list[str]]
) -> None:
    """Each group has what the filter says of each order when it is asked on its own."""
    from ..filter import Outcome, parse
    from ..filter.engines.closures import compile_closure, evaluate
    from ..filter.tags import parse_tags

    for group in GROUPS:
        if group.tags:
            wanted = parse_tags(group.tags).tags
            expected = [order.key for order in orders if order.tag in wanted]
            failed = 0
        else:
            closure = compile_closure(parse(group.sql))
            outcomes = [(order.key, evaluate(closure, order.all_properties)) for order in orders]
            expected = [key for key, outcome in outcomes if outcome is Outcome.TRUE]
            failed = sum(outcome is Outcome.ERROR for _, outcome in outcomes)
        seen = got[group.name]
        if sorted(seen) != sorted(expected) or tallies[group.name].failed != failed:
            raise click.ClickException(
                f"group {group.name} got {len(seen)} orders and not the {len(expected)} it should, "
                f"or its filter did not fail {failed} times"
            )


class Tally(NamedTuple):
    """What the broker counted of a group's filter."""

    evaluated: int
    matched: int
    filtered: int
    failed: int


def _scrape(url: str) -> dict[str, Tally]:
    """By group, from the broker's metrics, as Prometheus would."""
    import urllib.request

    from prometheus_client.parser import text_string_to_metric_families

    # a proxy of the environment has no business here
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=_PATIENCE) as answer:
        text = answer.read().decode()
    found: dict[str, dict[str, int]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = re.fullmatch(r"tamis_filter_(\w+)_total", sample.name)
            if name and sample.labels["topic"] == TOPIC:
                found.setdefault(sample.labels["group"], {})[name[1]] = int(sample.value)
    return {group: Tally(**counts) for group, counts in found.items()}


_VERDICTS: Final = "tamis.broker.verdicts"


@contextlib.contextmanager
def _warnings() -> Iterator[list[logging.LogRecord]]:
    """What the servers log meanwhile, instead of on standard error."""
    kept: list[logging.LogRecord] = []
    handler, logger = logging.Handler(logging.WARNING), logging.getLogger("tamis")
    handler.emit = kept.append  # type: ignore[method-assign,assignment]
    before, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield kept
    finally:
        logger.removeHandler(handler)
        logger.propagate = before


def _sample(
    ours: "TamisClient", warnings: Sequence[logging.LogRecord]
) -> tuple[str, "ReceivedMessage"]:
    """What the broker logged of the failing filter, and a message that it names."""
    found = re.compile(rf"the filter of group {_FAILING.name} on .*: queue (\d+), offsets \[(\d+)")
    for warning in warnings:
        said = warning.getMessage()
        if match := found.match(said):
            queue, offset = map(int, match.groups())
            return said, ours.message(queue, offset)
    raise RuntimeError(f"the broker logged no failure of group {_FAILING.name}")


# What is shown.


def _title(text: str) -> None:
    click.echo(f"\n{click.style(text, bold=True)}\n")


def _line(name: str, text: str) -> None:
    click.echo(_wrapped(f"  {name:<12}", text))


def _wrapped(start: str, text: str) -> str:
    width = min(shutil.get_terminal_size((_WIDTH, 24)).columns, _WIDTH)
    return textwrap.fill(
        text,
        max(width, 60),
        initial_indent=start,
        subsequent_indent=" " * len(start),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _show_orders(orders: Sequence[Order]) -> None:
    click.echo("  " + "".join(f"{name:<10}" for name in _SHOWN).rstrip())
    for kind in ("PAID", "REFUND", "NEW"):
        order = next(one for one in orders if one.tag == kind)
        shown = {"order": order.key, "tag": order.tag, **order.properties}
        click.echo("  " + "".join(f"{shown.get(name, '-'):<10}" for name in _SHOWN).rstrip())


def _show_groups(tallies: Mapping[str, Tally], got: Mapping[str, list[str]]) -> None:
    click.echo(f"  {'group':<12}{'filter':<42}{'got':>4}{'not wanted':>12}{'failed':>8}")
    for group in GROUPS:
        tally = tallies[group.name]
        count = click.style(f"{len(got[group.name]):>4}", fg="green")
        failed = f"{tally.failed or '-':>8}"
        failed = click.style(failed, fg="red") if tally.failed else failed
        click.echo(f"  {group.name:<12}{group.filter:<42}{count}{tally.filtered:>12}{failed}")


def _show_failures(tally: Tally, said: str, message: "ReceivedMessage") -> None:
    from ..filter import parse
    from ..filter.explain import explain

    told = (
        f"Group {_FAILING.name} did not get {tally.failed} orders because its filter could not "
        "tell. The broker counts them and logs samples; the reason can be asked for."
    )
    click.echo(_wrapped("  ", told) + "\n")
    labels = f'group="{_FAILING.name}",topic="{TOPIC}"'
    _line("metrics", f"tamis_filter_failed_total{{{labels}}} {tally.failed}")
    _line("log", said)
    where = f"{message.properties['KEYS']}, queue {message.queue.queue_id}, offset {message.offset}"
    reason = explain(parse(_FAILING.sql), message.properties).reason
    _line("explained", f"{where}: {reason}")
    _line("", f"A price is compared as a double by: {_BETTER.sql} (group {_BETTER.name}).")


def _show_traps() -> None:
    from ..filter.lint import Severity, lint

    for text in _TRAPS:
        for finding in lint(text):
            if finding.severity is Severity.ERROR:
                better = finding.rewritten(text)
                hint = f"; write: {better.strip()}" if better is not None else ""
                click.echo(_wrapped(f"  {text:<25}", finding.message + hint))


def _show_store() -> None:
    from ..filter import parse
    from ..filter.engines.columnar import BatchFilter
    from ..filter.tags import parse_tags
    from ..store.config import StoreConfig
    from ..store.select import SqlFilter
    from ..store.store import Store
    from ..wire import properties, record

    config = StoreConfig(
        flush="async", log_file_size=2**27, index_slots=10**5, index_entries=4 * 10**5
    )
    blocks = [properties.encode(one.properties | {"TAGS": one.tag}).encode()
              for one in _make_orders(random.Random(6), 1000)]  # fmt: skip
    batch = b"".join(record.batch_item(b"an order", block) for block in blocks)
    with (
        tempfile.TemporaryDirectory(prefix="tamis-") as directory,
        Store(Path(directory) / "store", config) as store,
    ):
        for _ in range(0, _STORED, len(blocks)):
            store.append_batch(record.Draft(topic=TOPIC), batch)
        store.dispatch()
        for group in (GROUPS[0], GROUPS[2]):
            wanted = (parse_tags(group.tags) if group.tags
                      else SqlFilter(BatchFilter(parse(group.sql))))  # fmt: skip
            store.count(TOPIC, 0, _STORED - 1, wanted)  # warms up
            start = time.perf_counter()
            found = store.count(TOPIC, 0, 0, wanted)
            rate = _STORED / (time.perf_counter() - start) / 1e6
            click.echo(f"  {group.filter:<43}{found:>9,}  {rate:6.0f} M messages/s")


def _show_more(seconds: float) -> None:
    command = "tamis"
    if shutil.which(command) is None:  # in a virtual environment that is not active
        command = os.path.relpath(Path(sys.executable).parent / command)
    click.echo(f"\n{click.style(f'Done in {seconds:.1f} s.', bold=True)}\n")
    _line("next", f"{command} up")
    _line("", f'{command} filter test "{_FAILING.sql}" -p price=99.90')
    _line("", f"{command} --help")


# Our client.


class TamisClient:
    """Our own, by its blocking facade: a push consumer for each group."""

    title = f"Tamis's own client {__version__}, a push consumer for each group"
    note = ""

    def __init__(self, cluster: "LocalCluster") -> None:
        self._nameserver = cluster.nameserver
        self._stack = ExitStack()
        self._got: dict[str, list[str]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def send(self, orders: Sequence[Order]) -> None:
        from ..client import Message, blocking

        with blocking.Producer(self._nameserver, "demo") as producer:
            for order in orders:
                message = Message(
                    TOPIC, order.body, tags=order.tag, keys=order.key, properties=order.properties
                )
                producer.send(message)

    def subscribe(self, groups: Sequence[Group]) -> None:
        from ..client import ConsumerConfig, blocking

        for group in groups:
            got = self._got[group.name] = list[str]()
            config = ConsumerConfig(start="first")
            handler = partial(_note, got)
            consumer = blocking.PushConsumer(self._nameserver, group.name, handler, config=config)
            consumer.subscribe(TOPIC, tags=group.tags or None, sql=group.sql or None)
            self._stack.enter_context(consumer)

    def received(self, group: Group, count: int) -> list[str]:
        got = self._got[group.name]
        return _await(f"{group.name} got", lambda: list(got), lambda keys: len(keys) >= count)

    # For the demo's own questions.

    def create_topic(self) -> None:
        from ..client import blocking

        with blocking.Admin(self._nameserver) as admin:
            admin.create_topic(TOPIC, queues=QUEUES)

    def stored(self) -> int:
        """How many orders can be read."""
        from ..client import blocking

        reader = blocking.Consumer(self._nameserver, "demo-reader")
        try:
            return sum(reader.last_offset(queue) for queue in reader.queues(TOPIC))
        finally:
            reader.close()

    def message(self, queue: int, offset: int) -> "ReceivedMessage":
        from ..client import blocking

        reader = blocking.Consumer(self._nameserver, "demo-reader")
        [wanted] = [one for one in reader.queues(TOPIC) if one.queue_id == queue]
        reader.assign([wanted])
        with reader:
            reader.seek(wanted, offset)
            return next(reader)


def _note(got: list[str], message: "ReceivedMessage") -> None:
    got.append(message.keys[0])
