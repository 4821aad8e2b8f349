"""`tamis filter test --code`: a filter in code on a given message, or on the newest of a topic.

It runs in the sandbox, under the limits of a filter server. The messages are judged together, as a
filter server does; that gives the verdicts. Then each one is judged alone, by another object of the
class in another process, which shows what time and memory it takes and whether its verdict depends
on the others.
"""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

from ..errors import CodeError, ConfigError, Error, SandboxError
from ..filter.logic import Outcome
from .connecting import NAMES, bare_cluster_options, find_cluster
from .newest import StoredRecord, read_newest
from .options import echo_json, parse_limits, parse_modules, run

if TYPE_CHECKING:
    from ..code import CodeFilter, Context
    from ..sandbox import Cell, Report, Sandbox, Usage

__all__ = ["check_options", "code_options", "test_code"]

F = TypeVar("F", bound=Callable[..., Any])

_DEFAULT_LAST: Final = 100
_MOST: Final = 10_000  # messages
_LONGEST_ALONE: Final = 5.0  # seconds, to judge messages alone; the others are not measured
_MOST_RESTS: Final = 4  # before a batch
_LONGEST_PROPERTIES: Final = 32_767  # bytes: a record has no room for more
_MAX_BODY_SIZE: Final = 16 * 2**20  # bytes of a body when it is decompressed; a filter server's
_VERDICTS: Final = {
    Outcome.TRUE: ("matched", "green"),
    Outcome.FALSE: ("not matched", "red"),
    Outcome.NULL: ("not matched", "red"),
    Outcome.ERROR: ("failed", "magenta"),
}
_OPTIONS: Final = (
    click.option("--code", metavar="FILE:CLASS", help="A filter in Python, instead of EXPR."),
    click.option("--topic", metavar="T", help="With --code: on the newest messages of a topic."),
    click.option(
        "--last",
        type=click.IntRange(1, _MOST),
        default=_DEFAULT_LAST,
        show_default=True,
        metavar="N",
        help="With --topic: how many.",
    ),
    bare_cluster_options,
    click.option("--tag", metavar="TAG", help="With --code: the message's tag."),
    click.option("--keys", multiple=True, metavar="KEY", help="With --code. May be repeated."),
    click.option("--body", metavar="TEXT", help="With --code: the message's body."),
    click.option("--group", metavar="G", default="", help="With --code: context.group."),
    click.option(
        "--isolation",
        type=click.Choice(["required", "best-effort", "off"]),
        default="required",
        show_default=True,
        help="With --code: required refuses to run it if it can't be isolated here.",
    ),
    click.option(
        "--limit",
        "limits",
        multiple=True,
        metavar="NAME=VALUE",
        help="With --code: wall, load_wall and cpu in seconds, memory in bytes, ... Repeatable.",
    ),
    click.option(
        "--modules",
        default="numpy,pyarrow",
        show_default=True,
        metavar="NAME,NAME",
        help="With --code: what it may import besides the standard library.",
    ),
)
_OF_CODE: Final = (
    *NAMES,
    *("topic", "last", "tag", "keys", "body", "group", "isolation", "limits"),
    "modules",
)
_OF_EXPRESSIONS: Final = ("tags", "dialect", "strict")
_OF_TOPICS: Final = ("last", *NAMES)
_OF_MESSAGES: Final = ("pairs", "tag", "keys", "body")


def code_options(command: F) -> F:
    """Give `tamis filter test` the options that go with --code, and --code."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def check_options(context: click.Context) -> None:
    """Raises click.UsageError for options that don't go together."""

    def given(names: Sequence[str]) -> str | None:
        for parameter in context.command.params:
            name = parameter.name or ""
            is_given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
            if name in names and is_given:
                return parameter.opts[-1 if len(parameter.opts[0]) == 2 else 0]
        return None

    if context.params["code"] is None:
        if option := given(_OF_CODE):
            raise click.UsageError(f"{option}: it goes with --code")
        if context.params["expression"] is None:
            raise click.UsageError("Missing argument 'EXPR', or --code FILE:CLASS")
        return
    if context.params["expression"] is not None:
        raise click.UsageError("EXPR and --code exclude each other")
    if option := given(_OF_EXPRESSIONS):
        hint = "; a message's tag is --tag" if option == "--tags" else ""
        raise click.UsageError(f"{option}: it goes with EXPR, not with --code{hint}")
    if context.params["topic"] is None:
        if option := given(_OF_TOPICS):
            raise click.UsageError(f"{option}: it goes with --topic")
    elif option := given(_OF_MESSAGES):
        raise click.UsageError(
            f"--topic and {option} exclude each other: a message is given or read"
        )


def test_code(properties: dict[str, str], options: Mapping[str, Any], as_json: bool) -> int:
    """Load the filter, judge, and print. Returns the exit code."""
    from ..client.codesource import code_source
    from ..code import Context
    from ..sandbox import Limits, Sandbox

    topic: str | None = options["topic"]
    limits = parse_limits(options["limits"]) or Limits()
    given = [] if topic is not None else [_given_record(properties, options)]
    sandbox = Sandbox(limits, options["isolation"], modules=parse_modules(options["modules"]))
    try:
        try:
            code = code_source(options["code"]).code
            trial = _Trial(sandbox, code, Context(options["group"], topic or ""))
        except (ConfigError, CodeError, SandboxError) as error:
            return _refuse(options["code"], error, as_json)
        if topic is None:
            trial.judge("", given)
            return _show_given(trial, as_json)
        unread = list[Error]()
        target = find_cluster(options)
        newest = run(read_newest(target, topic, options["last"], unread.append))
        for one in unread:
            click.echo(f"tamis: {one}", err=True)
        if newest.is_cut:
            count = len(newest.records)
            click.echo(f"tamis: only the newest {count}: together they are too large", err=True)
        trial.judge(topic, newest.records)
        return _show_recent(trial, topic, len(unread), as_json)
    finally:
        sandbox.close()


def _given_record(properties: dict[str, str], options: Mapping[str, Any]) -> StoredRecord:
    """The record that a broker would have of the message."""
    from ..message import LOOPBACK, PropertyName
    from ..wire import properties as texts
    from ..wire import record

    named = dict(properties)
    if options["tag"]:
        named[PropertyName.TAGS] = options["tag"]
    if options["keys"]:
        named[PropertyName.KEYS] = " ".join(options["keys"])
    for name, value in named.items():
        if any(end in name + value for end in (texts.NAME_END, texts.VALUE_END)):
            raise click.UsageError(f"{name!r}: no property may have \\x01 or \\x02 in it")
    block = os.fsencode(texts.encode(named))
    if len(block) > _LONGEST_PROPERTIES:
        raise click.UsageError(f"properties of {len(block):,} bytes: {_LONGEST_PROPERTIES:,} fit")
    now = int(time.time() * 1000)
    draft = record.Draft(
        topic="", body=os.fsencode(options["body"] or ""), properties=block, born_timestamp=now
    )
    return StoredRecord(now, "", 0, 0, 0, draft.encode(0, 0, now, record.pack_host(LOOPBACK)))


def _refuse(name: str, error: Error, as_json: bool) -> int:
    if as_json:
        reason = getattr(error, "reason", str(error))
        refused = {"code": name, "compile": "error", "matched": False}
        echo_json({**refused, "error": {"message": reason}})
    else:
        click.echo(f"tamis: {error}", err=True)
    return 2


@dataclass(slots=True)
class _Row:
    """A message and what the filter said of it."""

    stored: StoredRecord
    outcome: Outcome
    reason: str | None  # why it failed
    seconds: float | None = None  # that it takes when it is judged alone
    memory: int | None = None  # bytes by which it raised the peak
    alone: Outcome | None = None  # what is said of it when it is judged alone

    @property
    def is_contradicted(self) -> bool:
        return self.alone is not None and self._matches(self.alone) != self._matches(self.outcome)

    @staticmethod
    def _matches(outcome: Outcome) -> bool | None:
        return None if outcome is Outcome.ERROR else outcome is Outcome.TRUE


class _Trial:
    """A filter in its sandbox, and what it said of the messages it was given."""

    def __init__(self, sandbox: "Sandbox", code: "CodeFilter", context: "Context") -> None:
        """Raises CodeError and SandboxError."""
        self.name = code.name
        self.limits = sandbox.limits
        self.report: Report = sandbox.report
        self.rows: list[_Row] = []
        self.seconds = 0.0
        self._new_cell: Callable[[], Cell] = lambda: sandbox.cell(code, context)
        self._cell = self._new_cell()
        self._cpu_before = self._cell.usage.cpu_seconds

    @property
    def usage(self) -> "Usage":
        return self._cell.usage

    @property
    def cpu_seconds(self) -> float:
        """What judging took, not loading."""
        return self.usage.cpu_seconds - self._cpu_before

    def count(self, *outcomes: Outcome) -> int:
        return sum(row.outcome in outcomes for row in self.rows)

    def judge(self, topic: str, records: Sequence[StoredRecord]) -> None:
        """Raises SandboxError."""
        from ..client.columns import Chunk, decode_parts

        needs = self._cell.needs
        chunks = [Chunk(one.broker_name, topic, one.record) for one in records]
        parts = decode_parts(
            chunks,
            columns=needs.columns,
            properties=needs.properties,
            max_body_size=_MAX_BODY_SIZE,
            null_unreadable=True,
        )
        with _quiet():
            measuring = _Measuring(self._new_cell) if len(records) > 1 else None
            for batch, _ in parts:
                first = len(self.rows)
                self._judge_part(batch, records[first : first + batch.num_rows])
                if measuring is not None:
                    measuring.judge(batch, self.rows[first:])

    def _judge_part(self, batch: Any, records: Sequence[StoredRecord]) -> None:
        memory = self.usage.peak_memory
        began = time.monotonic()
        verdicts = _patiently(self._cell, batch)
        seconds = time.monotonic() - began
        self.seconds += seconds
        outcomes = [Outcome(one) for one in verdicts.outcomes.tolist()]
        rows = [
            _Row(stored, outcome, verdicts.reason(row) if outcome is Outcome.ERROR else None)
            for row, (stored, outcome) in enumerate(zip(records, outcomes, strict=True))
        ]
        if len(rows) == 1:
            rows[0].seconds, rows[0].memory = seconds, self.usage.peak_memory - memory
        self.rows += rows


class _Measuring:
    """Judges messages one at a time. What breaks a limit, or takes too long, ends it."""

    def __init__(self, new_cell: "Callable[[], Cell]") -> None:
        self._new_cell = new_cell
        self._cell: Cell | None = None
        self._left = _LONGEST_ALONE
        self._is_over = False

    def judge(self, batch: Any, rows: list[_Row]) -> None:
        with contextlib.suppress(CodeError, SandboxError):
            if self._cell is None:
                self._cell = self._new_cell()
            cell = self._cell
            if tuple(batch.schema.names) != cell.needs.names:
                return
            for number, row in enumerate(rows):
                if self._is_over or self._left <= 0:
                    return
                if row.outcome is Outcome.ERROR:
                    continue
                memory = cell.usage.peak_memory
                began = time.monotonic()
                row.alone = Outcome(int(cell.judge(batch.slice(number, 1)).outcomes[0]))
                row.seconds = time.monotonic() - began
                row.memory = cell.usage.peak_memory - memory
                self._left -= row.seconds
                self._is_over = cell.usage.restarts > 0


def _patiently(cell: "Cell", batch: Any) -> Any:
    """The verdicts on a batch, after a rest if the filter rests for what it did before."""
    from ..code import judge_batch

    for _ in range(_MOST_RESTS):
        try:
            return judge_batch(cell, batch)
        except SandboxError as error:
            if not error.retry_after:
                raise
            time.sleep(error.retry_after)
    return judge_batch(cell, batch)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What would be logged meanwhile is shown with the messages it is about."""
    loggers = [logging.getLogger(name) for name in ("tamis.sandbox", "tamis.client")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


# Showing.


def _show_given(trial: _Trial, as_json: bool) -> int:
    (row,) = trial.rows
    if as_json:
        echo_json({"code": trial.name, "compile": "ok", **_verdict(row), **_measured(trial)})
    else:
        word, colour = _VERDICTS[row.outcome]
        click.echo(click.style(word, fg=colour, bold=True))
        if row.reason is not None:
            click.echo(row.reason)
        click.echo()
        click.echo(f"  {_used(trial)}")
        click.echo(f"  {trial.report}")
    return 0 if row.outcome is Outcome.TRUE else 1


def _show_recent(trial: _Trial, topic: str, unread: int, as_json: bool) -> int:
    counts = {
        "messages": len(trial.rows),
        "matched": trial.count(Outcome.TRUE),
        "not_matched": trial.count(Outcome.FALSE, Outcome.NULL),
        "failed": trial.count(Outcome.ERROR),
        "unread": unread,
    }
    contradicted = [row for row in trial.rows if row.is_contradicted]
    if as_json:
        for row in trial.rows:
            echo_json({"topic": topic, **_place(row.stored), **_verdict(row), **_alone(row)})
        summary = {"code": trial.name, "compile": "ok", **counts, "contradicted": len(contradicted)}
        echo_json({**summary, **_measured(trial)})
    else:
        for row in trial.rows:
            _print_row(row, topic)
        _print_summary(trial, topic, counts)
    if contradicted:
        first = contradicted[0]
        click.echo(
            f"tamis: {len(contradicted)} of the messages get another verdict when they are judged"
            f" alone, the first at {_position(first.stored, topic)}: a verdict may not depend on"
            " which messages are judged together",
            err=True,
        )
    return 1 if counts["failed"] or unread else 0


def _print_row(row: _Row, topic: str) -> None:
    word, colour = _VERDICTS[row.outcome]
    seconds = "" if row.seconds is None else _time(row.seconds)
    memory = "" if not row.memory else f"+{_size(row.memory)}"
    reason = "" if row.reason is None else f": {row.reason}"
    click.echo(
        f"{click.style(f'{word:<11}', fg=colour)}  {seconds:>9}  {memory:>10}"
        f"  {_position(row.stored, topic)}{reason}"
    )


def _print_summary(trial: _Trial, topic: str, counts: dict[str, int]) -> None:
    if not trial.rows:
        click.echo(f"no messages in {topic}")
    else:
        said = f"{counts['messages']} messages" if counts["messages"] > 1 else "1 message"
        said += f": {counts['matched']} matched, {counts['not_matched']} not matched"
        click.echo()
        click.echo(f"{said}, {counts['failed']} failed")
        click.echo(f"  {_used(trial)}")
    click.echo(f"  {trial.report}")


def _used(trial: _Trial) -> str:
    """What the filter used: the average of a message, and the peak."""
    usage, count = trial.usage, len(trial.rows)
    where = " a message, judged together" if count > 1 else ""
    said = (
        f"{_time(trial.seconds / count)}{where} ({_time(trial.cpu_seconds / count)} of CPU);"
        f" at most {_size(usage.peak_memory)} of {_size(trial.limits.memory)} of memory;"
        f" {usage.restarts} restart{'' if usage.restarts == 1 else 's'}"
    )
    return said + (f" (the last: {usage.last_breach})" if usage.last_breach else "")


def _measured(trial: _Trial) -> dict[str, Any]:
    usage = trial.usage
    return {
        "seconds": trial.seconds,
        "cpu_seconds": trial.cpu_seconds,
        "peak_memory": usage.peak_memory,
        "restarts": usage.restarts,
        "last_breach": usage.last_breach,
        "isolation": trial.report.level,
    }


def _place(stored: StoredRecord) -> dict[str, Any]:
    return {
        "broker": stored.broker_name,
        "queue": stored.queue_id,
        "offset": stored.offset,
        "stored": stored.store_timestamp,
    }


def _verdict(row: _Row) -> dict[str, Any]:
    """As `tamis filter test` says it of an expression."""
    result: bool | str | None = {"TRUE": True, "FALSE": False, "NULL": None}.get(
        row.outcome.name, f"error:{row.reason}"
    )
    return {"result": result, "matched": row.outcome is Outcome.TRUE, "error": row.reason}


def _alone(row: _Row) -> dict[str, Any]:
    return {"seconds": row.seconds, "memory": row.memory}


def _position(stored: StoredRecord, topic: str) -> str:
    return f"queue {stored.queue_id} of {topic} at {stored.broker_name}, offset {stored.offset}"


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _size(count: int) -> str:
    return f"{count / 2**20:.3g} MiB" if count >= 2**20 else f"{count / 2**10:.3g} KiB"
