"""`tamis consume`: the messages of a topic, a line each (see `printing`).

Without a group it changes nothing at the broker. With one, a message counts as consumed only after
it was printed.
"""

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import click

from ..errors import CodeError, Error, UnreadableMessage
from .connecting import Cluster, cluster_options
from .options import parse_time, run
from .printing import shower

if TYPE_CHECKING:
    from ..client import Consumer, ReceivedMessage
    from ..wire.bodies import MessageQueue

__all__ = ["consume"]

_PULL: Final = 500
_PATIENCE: Final = 5.0  # seconds, for a share of a group's queues
_POLL: Final = 0.05  # seconds between looks whether the end is reached
_READER: Final = "TOOLS_CONSUMER"  # every broker has this group: nothing is left behind


@click.command(short_help="Print the messages of a topic.")
@click.argument("topic")
@cluster_options
@click.option("--group", help="Take part in it, and save how far it came. Without, all is read.")
@click.option("--tags", metavar="EXPR", help="As in a subscription: A || B.")
@click.option("--sql", metavar="EXPR", help="A SQL92 filter.")
@click.option(
    "--code",
    metavar="FILE:CLASS",
    help="A filter in Python: run by filter servers with --group, else here.",
)
@click.option(
    "--from",
    "start",
    metavar="WHERE",
    help="first, last, a time (2024-05-01T12:00, 30m ago), or committed, where the group is."
    "  [default: committed with --group, else first]",
)
@click.option("--count", type=click.IntRange(1), metavar="N", help="End after so many.")
@click.option(
    "--idle",
    "--timeout",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="End when nothing came for so long.",
)
@click.option("-f", "--follow", is_flag=True, help="Wait for more. --from last does by itself.")
@click.option(
    "--format",
    "form",
    default="json",
    show_default=True,
    metavar="FORM",
    help="json, text (bodies, a line each) or a template.",
)
@click.option(
    "--max-body-size",
    type=click.IntRange(1, 2**30),
    metavar="BYTES",
    help="Of a body that was sent compressed.  [default: 16 MiB]",
)
def consume(
    topic: str,
    target: Cluster,
    group: str | None,
    tags: str | None,
    sql: str | None,
    code: str | None,
    start: str | None,
    count: int | None,
    idle: float | None,
    follow: bool,
    form: str,
    max_body_size: int | None,
) -> None:
    """Print the messages of TOPIC, up to those that are there now, or as they come.

    Without a group nothing is changed, and no consumer misses what is printed here. With one, what
    was printed counts as consumed. Ctrl-C ends it.

    A body that is no UTF-8 is "body_base64" in JSON. Properties that RocketMQ keeps for itself are
    in "system". A message that can't be read, because its record is damaged or its body does not
    decompress or is too large, is named on standard error, and the others are printed: exit code 1.

    \b
    In a template:
      %t topic    %i message id       %b body          %s time it was stored
      %B broker   %T tag              %p properties    %{name} one property
      %q queue    %k keys             %r times it was consumed before
      %o offset   %% a percent sign   \\n \\t \\\\ newline, tab, backslash
    """
    if [tags, sql, code].count(None) < 2:
        raise click.UsageError("--tags, --sql and --code exclude each other")
    if start is None:
        start = "first" if group is None else "committed"
    if start == "committed" and group is None:
        raise click.UsageError("--from committed: whose? give --group")
    timestamp = None
    if start not in ("first", "last", "committed"):
        try:
            timestamp = parse_time(start)
        except click.BadParameter as error:
            hint = f"{error.message}; or first, last, committed"
            raise click.BadParameter(hint, param_hint="--from") from None
    is_following = follow or (start == "last" and idle is None)
    wanted = _Wanted(
        topic, group, tags, sql, code, start, timestamp, count, idle, is_following, max_body_size
    )
    try:
        if not run(_consume(target, wanted, shower(form))):
            raise click.exceptions.Exit(1)
    except KeyboardInterrupt:
        if not is_following or count is not None:
            raise  # it is not complete
    except asyncio.CancelledError:  # SIGTERM
        if not is_following or count is not None:
            raise click.Abort from None


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The options of `tamis consume`, checked."""

    topic: str
    group: str | None
    tags: str | None
    sql: str | None
    code: str | None
    start: str
    timestamp: int | None
    count: int | None
    idle: float | None
    is_following: bool
    max_body_size: int | None


async def _consume(
    target: Cluster, wanted: _Wanted, show: "Callable[[ReceivedMessage], bytes]"
) -> bool:
    """Returns whether all messages could be read."""
    from ..client import Consumer, ConsumerConfig
    from ..client.codesource import code_source
    from ..client.subscriptions import subscription

    try:  # what is wrong with it is said at once
        code = code_source(wanted.code) if wanted.code is not None else None
    except CodeError as error:
        raise click.UsageError(str(error)) from None
    subscription(wanted.topic, wanted.tags, wanted.sql, code)
    task = asyncio.current_task()
    assert task is not None
    with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # not everywhere
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    config = target.config(ConsumerConfig, start="first", auto_commit=wanted.group is not None)
    if wanted.max_body_size is not None:
        config = replace(config, max_body_size=wanted.max_body_size)
    consumer = Consumer(target.nameserver, wanted.group or _READER, config=config)
    try:
        if wanted.group is None:
            queues = await consumer.queues(wanted.topic)
            consumer.assign(queues, tags=wanted.tags, sql=wanted.sql, code=wanted.code)
        else:
            consumer.subscribe(wanted.topic, tags=wanted.tags, sql=wanted.sql, code=wanted.code)
        async with consumer:
            if wanted.start == "first":
                await consumer.seek_to_first()
            elif wanted.start == "last":
                await consumer.seek_to_last()
            elif wanted.timestamp is not None:
                await consumer.seek_to_time(wanted.timestamp / 1000)
            if wanted.is_following:
                count = len(consumer.assignment)
                click.echo(f"tamis: {wanted.topic}: reading {count} queues", err=True)
            return await _print(consumer, wanted, show)
    finally:
        await consumer.close()


async def _print(
    consumer: "Consumer", wanted: _Wanted, show: "Callable[[ReceivedMessage], bytes]"
) -> bool:
    """Returns whether all messages could be read. Nothing is awaited between taking messages and
    the end of their printing: so none counts as consumed that was not printed."""
    all_readable = True

    def report(error: UnreadableMessage) -> None:
        nonlocal all_readable
        all_readable = False
        click.echo(f"tamis: {error}", err=True)

    ends: dict[MessageQueue, int] | None = None
    if not wanted.is_following and wanted.idle is None:
        ends = {one: await consumer.last_offset(one) for one in await _share(consumer)}
    left = wanted.count
    last = time.monotonic()
    while left is None or left > 0:
        if ends is not None and _are_reached(consumer, ends):
            return all_readable
        limit = _PULL if left is None else min(left, _PULL)
        try:
            found = await consumer.getmany(limit, timeout=_POLL)
        except UnreadableMessage as error:  # a damaged record: the next call goes on behind it
            report(error)
            continue
        if found:
            for message in found:
                try:
                    sys.stdout.buffer.write(show(message))
                except UnreadableMessage as error:  # its body
                    report(error)
            sys.stdout.buffer.flush()
            left = None if left is None else left - len(found)
            last = time.monotonic()
        elif wanted.idle is not None and time.monotonic() - last >= wanted.idle:
            return all_readable
    return all_readable


async def _share(consumer: "Consumer") -> "list[MessageQueue]":
    """Waits until the consumer has queues, and returns them. Raises Error."""
    deadline = time.monotonic() + _PATIENCE
    while not (found := consumer.assignment):
        if time.monotonic() > deadline:
            raise Error(
                f"group {consumer.group}: no queue fell to this member within {_PATIENCE:g} s: the"
                " others have them all, or the broker does not know the group"
            )
        await asyncio.sleep(_POLL)
    return found


def _are_reached(consumer: "Consumer", ends: "dict[MessageQueue, int]") -> bool:
    """Returns whether each queue was read to its end; one that another member has by now is not
    ours to wait for."""
    positions = ((consumer.position(one), end) for one, end in ends.items())
    return all(position is None or position >= end for position, end in positions)
