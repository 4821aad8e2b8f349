"""`tamis send`: a body, or messages as JSON lines, into a topic.

What `tamis consume` prints as JSON, `tamis send` takes (see `lines`). Where a message was stored is
printed in the order of the input; one that could not be sent is named on standard error.
"""

import contextlib
import json
import queue
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click

from ..errors import Error, InvalidMessage, SendFailed
from .connecting import Cluster, cluster_options
from .lines import Line, LineParser

if TYPE_CHECKING:
    from concurrent.futures import Future

    from ..client import SendResult
    from ..client.blocking import Producer

__all__ = ["send"]

_MOST_PENDING: Final = 1024  # messages on their way, before more of the input is read


@click.command(short_help="Send a body, or messages as JSON lines.")
@click.argument("topic")
@click.argument("body", required=False)
@cluster_options
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
def send(
    context: click.Context, /, topic: str, body: str | None, target: Cluster, **options: Any
) -> None:
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

    parse = LineParser(topic, options)
    with _misuse():
        if topic != "-":
            check_topic(topic, to_send=True)
        if options["tags"]:
            check_tag(options["tags"])
        said = None if body is None else parse.line(0, body.encode())
        if body == "":
            raise InvalidMessage("BODY is empty: RocketMQ wants at least one byte")
        producer = blocking.Producer(
            target.nameserver, options["group"], config=target.config(ProducerConfig)
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


def _read(file: BinaryIO, parse: LineParser, sender: "_Sender", report: "_Report") -> None:
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


class _Sender:
    """Hands messages to the producer, and their futures to the report."""

    def __init__(
        self, producer: "Producer", report: "_Report", batch: int, *, is_oneway: bool
    ) -> None:
        self._producer = producer
        self._report = report
        self._size = batch
        self._is_oneway = is_oneway
        self._batch: list[Line] = []

    def send(self, line: Line) -> None:
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
    """Prints what became of each message, in their order. It waits for answers in a thread of its
    own, so that one is printed even if the next line takes its time."""

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
        """Waits until everything is printed. Raises what is wrong with the output."""
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
    """Turns an impossible name or address into a usage error."""
    from ..errors import ConfigError

    try:
        yield
    except (ConfigError, InvalidMessage) as error:
        raise click.UsageError(str(error)) from None
