"""`tamis demo`: what the filter language does, on sample orders."""

import random
import time

import click

from .filter import print_explanation, print_findings

__all__ = ["demo"]

_ORDERS: tuple[dict[str, str], ...] = (
    {"TAGS": "PAID", "region": "eu", "price": "250", "vip": "true"},
    {"TAGS": "PAID", "region": "us", "price": "99.90", "vip": "false"},
    {"TAGS": "REFUND", "region": "eu", "price": "12"},
    {"TAGS": "NEW", "region": "cn", "price": "free", "vip": "TRUE"},
    {"TAGS": "NEW", "price": "1e3"},
)
_FILTERS = (
    "price > 100",
    "price > 100.0",
    "region = 'eu' AND price > 100.0",
    "vip = TRUE OR region IN ('cn', 'us')",
    "region <> 'eu'",
)
_TRAPS = ("region LIKE 'e%'", "NOT vip = TRUE", "price > 5 AND price < 3", "price = 007")
_MESSAGES = 1_000_000
_STORED = 200_000

_MARKS = {
    "TRUE": ("yes", "green"),
    "FALSE": ("no", "red"),
    "NULL": ("unknown", "yellow"),
    "ERROR": ("fails", "magenta"),
}


@click.command()
def demo() -> None:
    """Show what it does, on sample orders."""
    _title("Five orders, five filters: RocketMQ's own verdicts")
    _show_verdicts()
    _title("Why did the order from China not match the first?")
    _show_reason()
    _title("Filters that compile and do something else")
    _show_traps()
    _title("A million orders, one core")
    _show_speed()
    _title("RocketMQ's own files, read a batch at a time")
    _show_store()
    click.echo('\nTry your own:  tamis filter test "price > 100.0" -p price=99.90')


def _title(text: str) -> None:
    click.echo(f"\n{click.style(text, bold=True)}\n")


def _show_verdicts() -> None:
    from ..filter import parse
    from ..filter.engines.closures import compile_closure, evaluate

    columns = list(_ORDERS[0])
    for number, order in enumerate(_ORDERS, 1):
        shown = "  ".join(f"{name} {order.get(name, '-'):<7}" for name in columns)
        click.echo(f"  order {number}   {shown}".rstrip())
    heads = "".join(f"order {number}  " for number in range(1, len(_ORDERS) + 1))
    click.echo(f"\n  {'':<38}{heads.rstrip()}")
    for text in _FILTERS:
        closure = compile_closure(parse(text))
        marks = [_MARKS[evaluate(closure, order).name] for order in _ORDERS]
        row = "".join(click.style(f"{word:<9}", fg=colour) for word, colour in marks)
        click.echo(f"  {text:<38}{row}")


def _show_reason() -> None:
    from ..filter import parse
    from ..filter.explain import explain

    print_explanation(explain(parse(_FILTERS[0]), _ORDERS[3]))


def _show_traps() -> None:
    from ..filter.lint import Severity, lint

    for text in _TRAPS:
        click.echo(text)
        print_findings(text, [f for f in lint(text) if f.severity is Severity.ERROR])


def _show_speed() -> None:
    click.echo("  (the first run compiles the engine, some seconds; later ones find it compiled)\n")
    from ..filter import Outcome, parse
    from ..filter.engines.columnar import column, compile_batch
    from ..wire import properties

    rng = random.Random(5)
    strings = column([properties.encode(_random_order(rng)) for _ in range(_MESSAGES)])
    for text in _FILTERS:
        batch_filter = compile_batch(parse(text))
        batch_filter.match_strings(strings[:10])
        start = time.perf_counter()
        outcomes = batch_filter.match_strings(strings)
        seconds = time.perf_counter() - start
        matched = int((outcomes == Outcome.TRUE).sum())
        rate = f"{len(strings) / seconds / 1e6:4.0f} M messages/s"
        click.echo(f"  {text:<38}{matched:>9,} match  {rate}")


def _show_store() -> None:
    import tempfile
    from pathlib import Path

    from ..filter import parse
    from ..filter.engines.columnar import BatchFilter
    from ..filter.tags import parse_tags
    from ..store.config import StoreConfig
    from ..store.select import SqlFilter
    from ..store.store import Store
    from ..wire import properties, record

    rng = random.Random(6)
    config = StoreConfig(
        flush="async", log_file_size=2**27, index_slots=10**5, index_entries=4 * 10**5
    )
    with (
        tempfile.TemporaryDirectory() as directory,
        Store(Path(directory) / "store", config) as store,
    ):
        for _ in range(0, _STORED, 1000):
            orders = (properties.encode(_random_order(rng)).encode() for _ in range(1000))
            batch = b"".join(record.batch_item(b"an order", order) for order in orders)
            store.append_batch(record.Draft(topic="Orders"), batch)
        store.dispatch()
        sql = SqlFilter(BatchFilter(parse(_FILTERS[2])))
        tags = parse_tags("PAID || REFUND")
        for shown, wanted in (("tags PAID || REFUND", tags), (f"sql  {_FILTERS[2]}", sql)):
            store.count("Orders", 0, _STORED - 1, wanted)  # warms up
            start = time.perf_counter()
            lag = store.count("Orders", 0, 0, wanted)
            rate = f"{_STORED / (time.perf_counter() - start) / 1e6:4.0f} M messages/s"
            click.echo(f"  {shown:<38}{lag:>9,} match  {rate}")
        first = store.select("Orders", 0, _STORED // 2, wanted=sql).records[0]
        message = record.decode(bytes(first))
        shown = ", ".join(f"{name} {value}" for name, value in message.properties.items())
        click.echo(f"\n  the first of these in the second half, message {message.queue_offset}:")
        click.echo(f"  {shown}")


def _random_order(rng: random.Random) -> dict[str, str]:
    order = dict(rng.choice(_ORDERS))
    order["price"] = rng.choice((f"{rng.randrange(200)}", f"{rng.random() * 200:.2f}"))
    return {**order, "buyer": f"user{rng.randrange(100_000)}", "lines": str(rng.randrange(1, 30))}
