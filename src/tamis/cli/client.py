"""`tamis send` and `tamis consume`: messages into a topic and out of it, a line each.

What `consume` prints as JSON, `send` takes.
"""

import asyncio
import base64
import binascii
import contextlib
import json
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click

from ..errors import CodeError, Error, InvalidMessage, SendFailed, UnreadableMessage
from .options import nameserver_option, parse_time, run
from .printing import shower

if TYPE_CHECKING:
    from concurrent.futures import Future

    from ..client import Consumer, ReceivedMessage, SendResult
    from ..client.blocking import Producer
    from ..message import Message
    from ..wire.bodies import MessageQueue

__all__ = ["consume", "send"]

_MOST_PENDING: Final = 1024  # messages on their way, before more of the input is read
_PULL: Final = 500
_PATIENCE: Final = 5.0  # seconds, for a share of a group's queues
_POLL: Final = 0.05  # seconds between looks whether the end is reached
_READER: Final = "TOOLS_CONSUMER"  # every broker has this group: nothing is left behind
# What else a line may say; of no effect: where a message was is not where it goes.
_PLACE: Final = frozenset(
    [
        *("topic", "broker", "queue", "offset", "message_id", "offset_message_id", "status"),
        *("born", "stored", "reconsume_times", "system"),
    ]
)


# Sending


@dataclass(slots=True)
class _Line:
    """`number` is of the input, 0 for one of the command line; `key` chooses the queue."""

    number: int
    message: "Message"
    key: str | None


@click.command(short_help="Send a body, or messages as JSON lines.")
@click.argument("topic")
@click.argument("body", required=False)
@nameserver_option
@click.option("--text", is_flag=True, help="A line of the input is a body, not JSON.")
@click.option("--tags", metavar="TAG", help="The tag; RocketMQ's messages have one.")
@click.option("--keys", multiple=True, metavar="KEY", help="To find it by. May be repeated.")
@click.option(
    "--property", "pairs", multiple=True, metavar="NAME=VALUE", help="A property. May be repeated."
)
@click.option("--sharding-key", metavar="TEXT", help="Those of one key go to one queue, in order.")
@click.option(
    "--delay-level",
    type=click.IntRange(0, 18),
    default=0,
    metavar="N",
    help="1: 1s, 2: 5s, ... 18: 2h",
)
@click.option(
    "--batch", type=click.IntRange(1), default=1, metavar="N", help="So many in one request."
)
@click.option("--oneway", is_flag=True, help="Don't wait for answers; nothing is printed.")
@click.option("--stop-on-error", is_flag=True, help="One at a time, and none after a failure.")
@click.option("--group", default="tamis-send", show_default=True, help="The producer's.")
@click.pass_context
def send(context: click.Context, /, topic: str, body: str | None, **options: Any) -> None:
    """Send BODY, or the messages of standard input: JSON, an object a line.

    \b
      {"body": "...", "tags": "A", "keys": ["k"], "properties": {"n": "1"},
       "delay_level": 3, "flag": 0, "key": "sharding key"}

    Only the body is needed, or body_base64 if it is no text; the options are for lines that don't
    say. What `tamis consume` prints is taken too. They go to TOPIC, or, if that is "-", each to the
    "topic" of its line.

    Prints an object a message: message_id, offset_message_id, topic, broker, queue, offset, status.
    A line that can't be sent is named on standard error, and the others are sent: exit code 1.
    """
    if body is not None and (options["text"] or topic == "-"):
        raise click.UsageError("BODY excludes --text and the topic -")
    if topic == "-" and options["text"]:
        raise click.UsageError("lines of --text don't say their topic: give it")
    if options["oneway"] and (options["batch"] > 1 or options["stop_on_error"]):
        raise click.UsageError("--oneway excludes --batch and --stop-on-error")
    if options["delay_level"] and options["batch"] > 1:
        raise click.UsageError("--batch excludes --delay-level: RocketMQ's batches take no delays")

    from ..client import ProducerConfig, blocking
    from ..client.config import check_topic
    from ..message import check_tag

    parse = _Parser(topic, options)
    with _misuse():
        if topic != "-":
            check_topic(topic, to_send=True)
        if options["tags"]:
            check_tag(options["tags"])
        said = None if body is None else parse.line(0, body.encode())
        if body == "":
            raise InvalidMessage("BODY is empty: RocketMQ wants at least one byte")
        producer = blocking.Producer(
            options["nameserver"], options["group"], config=ProducerConfig()
        )
    with producer:
        report = _Report(is_strict=options["stop_on_error"])
        sender = _Sender(producer, report, options["batch"], is_oneway=options["oneway"])
        try:
            if said is not None:
                sender.send(said)
            else:
                _read(sys.stdin.buffer, parse, sender, report)
        finally:
            sender.flush()
            report.close()
    context.exit(1 if report.failed else 0)


def _read(file: BinaryIO, parse: "_Parser", sender: "_Sender", report: "_Report") -> None:
    if sys.stdin.isatty():
        kind = "a body" if parse.is_text else 'an object like {"body": "..."}'
        click.echo(f"tamis: each line is {kind}; Ctrl-D ends", err=True)
    for number, line in enumerate(file, 1):
        line = line.removesuffix(b"\n").removesuffix(b"\r")
        if not line.strip() and not parse.is_text:
            continue
        try:
            made = parse.line(number, line)
        except InvalidMessage as error:
            report.fail(number, error)
        else:
            sender.send(made)
        if report.is_over:
            return


class _Parser:
    """Lines to messages; the options are what a line does not say."""

    def __init__(self, topic: str, options: dict[str, Any]) -> None:
        self._topic = topic
        self.is_text: bool = options["text"]
        self._key: str | None = options["sharding_key"]
        self._tags: str | None = options["tags"]
        self._keys: tuple[str, ...] = options["keys"]
        self._delay_level: int = options["delay_level"]
        self._properties = dict(_pair(text) for text in options["pairs"])

    def line(self, number: int, line: bytes) -> _Line:
        """Raises InvalidMessage."""
        from ..message import Message

        body = line if number == 0 or self.is_text else b""
        made = Message(
            self._topic,
            body,
            tags=self._tags,
            keys=self._keys,
            properties=self._properties,
            delay_level=self._delay_level,
        )
        if number == 0 or self.is_text:
            return _Line(number, made, self._key)
        said = _object(line)
        topic = _taken(said, "topic", str, None)
        if self._topic == "-" and topic is None:
            raise InvalidMessage('it has no "topic"')
        keys = _taken(said, "keys", (str, list), list(self._keys))
        if isinstance(keys, list) and not all(isinstance(one, str) for one in keys):
            raise InvalidMessage(f'"keys" is {json.dumps(keys)}: each is text')
        properties = _taken(said, "properties", dict, {})
        key = _taken(said, "key", (str, int), self._key)
        made = replace(
            made,
            topic=topic if self._topic == "-" else self._topic,
            body=_body(said),
            tags=_taken(said, "tags", str, self._tags),
            keys=keys,
            properties={
                **self._properties,
                **{name: _value(name, value) for name, value in properties.items()},
            },
            delay_level=_taken(said, "delay_level", int, self._delay_level),
            flag=_taken(said, "flag", int, 0),
        )
        if unknown := sorted(set(said) - _PLACE):
            raise InvalidMessage(f"{', '.join(map(json.dumps, unknown))}: there is no such field")
        return _Line(number, made, None if key is None else str(key))


def _checked(text: str) -> str:
    """JSON can write what UTF-8 can't. Raises InvalidMessage."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidMessage(f"{json.dumps(text)} has half a surrogate pair in it") from None
    return text


def _object(line: bytes) -> dict[str, Any]:
    try:
        said = json.loads(line)
        _checked(json.dumps(said, ensure_ascii=False))
    except ValueError as error:  # no JSON, or no UTF-8
        raise InvalidMessage(f"it is no JSON: {error}") from None
    except RecursionError:
        raise InvalidMessage("it is nested too deeply") from None
    if not isinstance(said, dict):
        raise InvalidMessage('it is no object: write {"body": ...}')
    return said


def _body(said: dict[str, Any]) -> bytes:
    text = _taken(said, "body", str, None)
    coded = _taken(said, "body_base64", str, None)
    if (text is None) == (coded is None):
        raise InvalidMessage('it needs "body", which is text, or "body_base64"')
    if coded is None:
        return _checked(str(text)).encode()
    try:
        return base64.b64decode(coded, validate=True)
    except binascii.Error as error:
        raise InvalidMessage(f'"body_base64": {error}') from None


def _taken(said: dict[str, Any], name: str, kind: Any, default: Any) -> Any:
    """Out of it; null is as good as nothing."""
    value = said.pop(name, None)
    if value is None:
        return default
    if not isinstance(value, kind) or isinstance(value, bool):
        wanted = {str: "text", int: "a whole number", dict: "an object"}.get(kind, "text, or else")
        raise InvalidMessage(f'"{name}" is {json.dumps(value)}: it is {wanted}')
    return value


def _value(name: str, value: object) -> str:
    """A number or a boolean is taken as it is written."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise InvalidMessage(f"property {name} is {json.dumps(value)}: it is text")


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"'{text}' is not NAME=VALUE", param_hint="--property")
    return name, value


class _Sender:
    """Messages to the producer, and their futures to the report."""

    def __init__(
        self, producer: "Producer", report: "_Report", batch: int, *, is_oneway: bool
    ) -> None:
        self._producer = producer
        self._report = report
        self._size = batch
        self._is_oneway = is_oneway
        self._batch: list[_Line] = []

    def send(self, line: _Line) -> None:
        if self._is_oneway:
            try:
                self._producer.send_oneway(line.message, key=line.key)
            except (Error, TimeoutError) as error:
                self._report.fail(line.number, error)
        elif self._size == 1:
            sent = self._producer.submit(line.message, key=line.key)
            self._report.add(line.number, sent)
        else:
            first = self._batch[0] if self._batch else line
            if (first.message.topic, first.key) != (line.message.topic, line.key):
                self.flush()
            self._batch.append(line)
            if len(self._batch) == self._size:
                self.flush()

    def flush(self) -> None:
        batch, self._batch = self._batch, []
        if not batch:
            return
        results: list[Any] = [None] * len(batch)
        why: Exception | None = None
        try:
            messages = [line.message for line in batch]
            results = list(self._producer.send_batch(messages, key=batch[0].key))
        except InvalidMessage:  # nothing was sent: all but the one that is wrong can be
            for line in batch:
                self._report.add(line.number, self._producer.submit(line.message, key=line.key))
            return
        except SendFailed as error:
            results, why = list(error.results) or results, error
        except (Error, TimeoutError) as error:
            why = error
        for line, result in zip(batch, results, strict=True):
            if result is None:
                self._report.fail(line.number, why or Error("it was not sent"))
            else:
                self._report.tell(result)


class _Report:
    """What became of messages, in their order. It waits for answers in a thread of its own, so
    that one is told of even if the next line takes its time."""

    def __init__(self, *, is_strict: bool) -> None:
        self.failed = 0
        self.is_over = False  # nothing more is to be sent
        self._is_strict = is_strict
        self._output: OSError | None = None  # what is wrong with it
        self._pending: queue.Queue[tuple[int, Future[SendResult]] | None]
        self._pending = queue.Queue(_MOST_PENDING)
        self._thread = threading.Thread(target=self._tell_all, name="tamis-report", daemon=True)
        self._thread.start()

    def add(self, number: int, sent: "Future[SendResult]") -> None:
        self._pending.put((number, sent))
        if self._is_strict:
            self._pending.join()

    def close(self) -> None:
        """When all is told. Raises what is wrong with the output."""
        self._pending.put(None)
        self._thread.join()
        if self._output is not None:
            raise self._output

    def _tell_all(self) -> None:
        while (found := self._pending.get()) is not None:
            number, sent = found
            try:
                self.tell(sent.result())
            except (Error, TimeoutError) as error:
                self.fail(number, error)
            except Exception as error:  # the edge: the others are to be told of
                self.fail(number, Error(repr(error)))
            finally:
                self._pending.task_done()

    def tell(self, sent: "SendResult") -> None:
        fields = {
            "message_id": sent.message_id,
            "offset_message_id": sent.offset_message_id,
            "topic": sent.queue.topic,
            "broker": sent.queue.broker_name,
            "queue": sent.queue.queue_id,
            "offset": sent.offset,
            "status": str(sent.status),
        }
        if self._output is not None:
            return
        try:
            sys.stdout.write(json.dumps(fields, ensure_ascii=False) + "\n")
            if self._pending.empty():
                sys.stdout.flush()
        except OSError as error:  # whoever read it has gone
            self._output = error
            self.is_over = True

    def fail(self, number: int, error: Exception) -> None:
        self.failed += 1
        self.is_over = self.is_over or self._is_strict
        where = f"line {number}: " if number else ""
        click.echo(f"tamis: {where}{str(error) or type(error).__name__}", err=True)


@contextlib.contextmanager
def _misuse() -> Iterator[None]:
    """A name or an address that can't be."""
    from ..errors import ConfigError

    try:
        yield
    except (ConfigError, InvalidMessage) as error:
        raise click.UsageError(str(error)) from None


# Consuming


@click.command(short_help="Print the messages of a topic.")
@click.argument("topic")
@nameserver_option
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
    nameserver: str,
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
        if not run(_consume(nameserver, wanted, shower(form))):
            raise click.exceptions.Exit(1)
    except KeyboardInterrupt:
        if not is_following or count is not None:
            raise  # it is not complete
    except asyncio.CancelledError:  # SIGTERM
        if not is_following or count is not None:
            raise click.Abort from None


@dataclass(frozen=True, slots=True)
class _Wanted:
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
    nameserver: str, wanted: _Wanted, show: "Callable[[ReceivedMessage], bytes]"
) -> bool:
    """Whether all messages could be read."""
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
    config = ConsumerConfig(start="first", auto_commit=wanted.group is not None)
    if wanted.max_body_size is not None:
        config = replace(config, max_body_size=wanted.max_body_size)
    consumer = Consumer(nameserver, wanted.group or _READER, config=config)
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
    """Whether all could be read. Nothing is awaited between the taking of messages and the end of
    their printing: so none is taken for consumed that was not printed."""
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
    """Its queues, once it has some. Raises Error."""
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
    """Those of queues that other members have by now are not ours to wait for."""
    positions = ((consumer.position(one), end) for one, end in ends.items())
    return all(position is None or position >= end for position, end in positions)
