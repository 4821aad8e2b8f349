"""`tamis store`: look into a store directory, ours or Apache's; nothing is changed."""

import base64
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ..message import StoredMessage
    from ..store.inspect import Directory

__all__ = ["store_group"]


@click.group("store")
def store_group() -> None:
    """Look into a store directory (ours or Apache's); nothing is changed."""


_directory = click.argument("directory", metavar="DIR")
_json = click.option("--json", "as_json", is_flag=True, help="JSON for programs.")


@store_group.command()
@_directory
@_json
@click.pass_context
def verify(context: click.Context, directory: str, as_json: bool) -> None:
    """Walk every record, queue and index; say what is wrong and where.

    Exit code 0: all is well, 1: something is wrong.
    """
    store = _open(directory)
    problems = 0
    with _progress(store, "verifying") as progress:
        for problem in store.verify(progress):
            problems += 1
            if as_json:
                click.echo(json.dumps({"where": problem.where, "what": problem.what}))
            else:
                click.echo(str(problem))
    if not problems and not as_json:
        closed = "" if store.was_closed else " (its broker did not close it)"
        click.echo(f"{directory}: all is well{closed}")
    context.exit(1 if problems else 0)


@store_group.command()
@_directory
@click.option("--topic")
@click.option("--queue", type=click.IntRange(0))
@click.option("--tags", metavar="EXPR", help="Tags, as in a subscription; compared exactly.")
@click.option("--sql", metavar="EXPR", help="A SQL92 filter.")
@click.option(
    "--from",
    "start",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="From this queue offset on.",
)
@click.option("--limit", type=click.IntRange(0), metavar="N", help="At most so many.")
@_json
def cat(
    directory: str,
    topic: str | None,
    queue: int | None,
    tags: str | None,
    sql: str | None,
    start: int,
    limit: int | None,
    as_json: bool,
) -> None:
    """Print messages, in the order of the log."""
    from ..filter import parse
    from ..filter.engines.columnar import BatchFilter
    from ..filter.tags import TagFilter, parse_tags

    if tags is not None and sql is not None:
        raise click.UsageError("--tags and --sql exclude each other")
    wanted: TagFilter | BatchFilter | None = None
    if tags is not None:
        wanted = parse_tags(tags)
    elif sql is not None:
        wanted = BatchFilter(parse(sql))
    store = _open(directory)
    found = (m for m in store.messages(topic, queue, wanted) if m.queue_offset >= start)
    show = _json_line if as_json else _line
    for message in itertools.islice(found, limit):
        sys.stdout.write(show(message) + "\n")


@store_group.command()
@_directory
@_json
def stat(directory: str, as_json: bool) -> None:
    """Sizes, and the first and last offset of every queue."""
    store = _open(directory)
    messages = size = 0
    first = last = None
    with _progress(store, "counting") as progress:
        for chunk in store.chunks(progress):
            if len(chunk.rows):
                messages += len(chunk.rows)
                size += int(chunk.rows[:, 1].sum())
                first = int(chunk.rows[0, 5]) if first is None else first
                last = int(chunk.rows[-1, 5])
    queues = store.stat()
    if as_json:
        click.echo(
            json.dumps(
                {
                    "messages": messages,
                    "bytes": size,
                    "log_start": store.log.start,
                    "first_stored": first,
                    "last_stored": last,
                    "closed": store.was_closed,
                    "queues": [
                        {
                            "topic": q.topic,
                            "queue": q.queue_id,
                            "min": q.min_offset,
                            "max": q.max_offset,
                        }
                        for q in queues
                    ],
                }
            )
        )
        return
    click.echo(f"{messages:,} messages, {size:,} bytes, from log offset {store.log.start}")
    if first is not None and last is not None:
        click.echo(f"stored from {_time(first)} to {_time(last)}")
    if not store.was_closed:
        click.echo("its broker did not close it, or is running")
    for q in queues:
        click.echo(f"  {q.topic} {q.queue_id}: {q.min_offset} to {q.max_offset}")


def _open(directory: str) -> "Directory":
    from ..store.inspect import Directory

    return Directory(directory)


@contextmanager
def _progress(store: "Directory", label: str) -> Iterator[Callable[[int], None] | None]:
    """A bar on standard error when a person is watching."""
    if not sys.stderr.isatty():
        yield None
        return
    length = max(store.log.end - store.log.start, 1)
    with click.progressbar(length=length, label=label, file=sys.stderr) as bar:
        yield lambda done: bar.update(done - bar.pos)
        bar.update(length - bar.pos)  # the last file need not be full


def _json_line(message: "StoredMessage") -> str:
    """The field names of the recorded stores."""
    fields: dict[str, Any] = {
        "kind": "message",
        "physical_offset": message.log_offset,
        "size": message.size,
        "topic": message.topic,
        "queue": message.queue_id,
        "queue_offset": message.queue_offset,
        "flag": message.flag,
        "sys_flag": int(message.sys_flag),
        "born": message.born_timestamp,
        "born_host": str(message.born_host),
        "stored": message.store_timestamp,
        "store_host": str(message.store_host),
        "reconsume_times": message.reconsume_times,
        "prepared_transaction_offset": message.prepared_transaction_offset,
        "body_crc": message.body_crc,
        "msg_id": message.message_id,
        "offset_msg_id": message.message_id,
        "properties": dict(sorted(message.properties.items())),
        "body": base64.b64encode(message.body).decode(),
    }
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)


def _line(message: "StoredMessage") -> str:
    where = f"{message.topic}/{message.queue_id}/{message.queue_offset}"
    facts = " ".join(f"{name}={value}" for name, value in sorted(message.properties.items()))
    return f"{_time(message.store_timestamp)}  {where}  {len(message.body)} bytes  {facts}"


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000).isoformat(" ", "milliseconds")
