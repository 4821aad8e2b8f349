"""Rows of messages judged on Spark's workers: counts, messages that were lost, and fates if asked.

Four kinds of rows come of a batch of messages, told apart by `kind`:

    COUNT    how many messages of a stretch of time had a fate for a group
    LOST     a message that was lost to a group, with the reason
    MESSAGE  a message and its fates, one for each group, in their order
    CODE     a class of a group that filter servers were asked about: `reason` is its name, and
             `count` is null; or why it was not judged, and how many messages are UNKNOWN for that
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]

from ..fate import Fate, MessageFacts, judge
from ..security import INSECURE, Security
from ..spark.codejudges import CodeJudges, FilterServers
from .judging import FATES, Batches, GroupFates, GroupRecord, Judge, Messages, alike, queue_parts

__all__ = ["CODE", "COUNT", "LOST", "MESSAGE", "READ", "SCHEMA", "judged_by", "width_of"]

COUNT, LOST, MESSAGE, CODE = range(4)
READ: Final = (
    *("topic", "broker", "queue_id", "offset", "store_timestamp", "tags", "message_id"),
    *("property_string", "tags_code", "log_offset"),
)
SCHEMA: Final = (
    "kind TINYINT, topic STRING, broker STRING, queue_id INT, offset BIGINT,"
    " store_timestamp TIMESTAMP, tags STRING, message_id STRING, fates ARRAY<TINYINT>,"
    " group INT, fate TINYINT, reason STRING, at BIGINT, width BIGINT, count BIGINT"
)

# Milliseconds of a stretch of time; each divides the next, so that counts can be added up.
_WIDTHS: Final = (
    *(10, 100, 1000, 10_000, 60_000, 600_000, 3_600_000, 21_600_000, 86_400_000),
    *(604_800_000, 31_449_600_000),
)
_STRETCHES: Final = 120  # of a batch, and of a plot
_LOST_NUMBER: Final = FATES.index(Fate.LOST_TO_INCONSISTENCY)
_NAMED: Final = ("topic", "broker", "queue_id", "offset", "store_timestamp", "tags", "message_id")


def width_of(first: int, last: int) -> int:
    """Return how long the stretches are that the time between two moments is cut into: all widths
    of batches divide that of the whole."""
    for width in _WIDTHS:
        if (last - first) // width < _STRETCHES:
            return width
    return _WIDTHS[-1]


@dataclass(frozen=True, slots=True)
class _Worker:
    """What is done to the batches of a partition. Travels to the workers."""

    groups: tuple[GroupRecord, ...]
    is_table: bool
    after: int | None
    before: int | None
    servers: FilterServers
    security: Security

    def __call__(self, batches: Batches) -> Batches:
        judges, code_judges = Judge(self.groups), CodeJudges(self.servers, self.security)
        told = _ToldOfCode()
        try:
            for whole in batches:
                batch = _in_time(whole, self.after, self.before)
                if not len(batch):
                    continue
                fates = np.empty((len(batch), len(self.groups)), np.uint8)
                for rows, messages in queue_parts(batch):
                    judged = judges.judge(messages, code_judges.outcomes)
                    for number, own in enumerate(judged):
                        fates[rows, number] = own.fates
                        told.add(number, own)
                        lost = np.flatnonzero(own.fates == _LOST_NUMBER)
                        if len(lost):
                            yield _lost_rows(messages, own, lost, number, self.groups[number])
                yield _counts(batch, fates)
                if self.is_table:
                    yield _messages(batch, fates)
        finally:
            code_judges.close()
        if told:
            yield told.rows()


class _ToldOfCode:
    """What was heard of classes in a partition."""

    def __init__(self) -> None:
        self._asked: set[tuple[int, str]] = set()  # by group
        self._unknown: dict[tuple[int, str], int] = {}

    def add(self, number: int, judged: GroupFates) -> None:
        self._asked |= {(number, name) for name in judged.asked}
        for why, count in judged.unknown.items():
            key = (number, why)
            self._unknown[key] = self._unknown.get(key, 0) + count

    def __bool__(self) -> bool:
        return bool(self._asked or self._unknown)

    def rows(self) -> pa.RecordBatch:
        keys = [*self._asked, *self._unknown]
        counts = [None] * len(self._asked) + [*self._unknown.values()]
        columns = {
            "group": pa.array([number for number, _ in keys], pa.int32()),
            "reason": pa.array([text for _, text in keys], pa.string()),
            "count": pa.array(counts, pa.int64()),
        }
        return _rows(len(keys), CODE, columns)


def judged_by(
    groups: Sequence[GroupRecord],
    *,
    is_table: bool,
    after: int | None = None,
    before: int | None = None,
    servers: FilterServers | None = None,
    security: Security = INSECURE,
) -> Callable[[Batches], Batches]:
    """Return a function for workers, from rows of `READ` to rows of `SCHEMA`. The fates of every
    message are among them if `is_table`. Messages stored from `after` on and before `before`, which
    are milliseconds, are judged. `servers` are asked where code decides, with these keys."""
    work = _Worker(tuple(groups), is_table, after, before, servers or {}, security)

    def judge_batches(batches: Batches) -> Batches:
        return work(batches)

    return judge_batches


def _in_time(batch: pa.RecordBatch, after: int | None, before: int | None) -> pa.RecordBatch:
    if after is None and before is None:
        return batch
    stored = _millis(batch)
    wanted = np.ones(len(batch), np.bool_)
    if after is not None:
        wanted &= stored >= after
    if before is not None:
        wanted &= stored < before
    return batch if wanted.all() else batch.filter(pa.array(wanted))


def _millis(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    stored = batch.column("store_timestamp").cast(pa.timestamp("ms"), safe=False)
    millis: npt.NDArray[np.int64] = stored.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return millis


def _reason(messages: Messages, judged: GroupFates, row: int, group: GroupRecord) -> str | None:
    topic, broker, queue_id = messages.queue
    text = messages.property_strings[row].as_py() or ""
    parts = [part.partition("\x01") for part in text.split("\x02")]
    message_id = messages.message_ids[row].as_py()
    message = MessageFacts(
        topic=topic,
        broker=broker,
        queue_id=queue_id,
        offset=int(messages.offsets[row]),
        properties={name: value for name, _, value in parts if name and value},
        stored=int(messages.stored[row]),
        message_id=message_id,
        code_outcomes=judged.outcomes.of_code(row),
    )
    place = None if messages.log_offsets is None else int(messages.log_offsets[row])
    retry = group.retries.of(message_id, place)
    return judge(message, group.of_queue(messages.queue).facts_of(message, retry)).reason


# Rows. What a kind has not is null.


def _rows(size: int, kind: int, columns: dict[str, Any]) -> pa.RecordBatch:
    made = [
        pa.array(np.full(size, kind, np.int8))
        if field.name == "kind"
        else columns[field.name].cast(field.type)
        if field.name in columns
        else pa.nulls(size, field.type)
        for field in _ARROW
    ]
    return pa.RecordBatch.from_arrays(made, schema=_ARROW)


_ARROW: Final = pa.schema(
    [
        ("kind", pa.int8()),
        ("topic", pa.string()),
        ("broker", pa.string()),
        ("queue_id", pa.int32()),
        ("offset", pa.int64()),
        ("store_timestamp", pa.timestamp("us", "UTC")),
        ("tags", pa.string()),
        ("message_id", pa.string()),
        ("fates", pa.list_(pa.int8())),
        ("group", pa.int32()),
        ("fate", pa.int8()),
        ("reason", pa.string()),
        ("at", pa.int64()),
        ("width", pa.int64()),
        ("count", pa.int64()),
    ]
)


def _counts(batch: pa.RecordBatch, fates: npt.NDArray[np.uint8]) -> pa.RecordBatch:
    stored = _millis(batch)
    first = int(stored.min())
    width = width_of(first, int(stored.max()))
    start = first - first % width
    stretch = (stored - start) // width
    size = int(stretch.max()) + 1
    counts = np.stack(
        [
            np.bincount(stretch * len(FATES) + column, minlength=size * len(FATES))
            for column in fates.T
        ]
    )
    group, place = np.nonzero(counts)
    columns = {
        "group": group,
        "fate": place % len(FATES),
        "at": start + place // len(FATES) * width,
        "width": np.full(len(group), width),
        "count": counts[group, place],
    }
    return _rows(len(group), COUNT, {name: pa.array(values) for name, values in columns.items()})


def _messages(batch: pa.RecordBatch, fates: npt.NDArray[np.uint8]) -> pa.RecordBatch:
    rows, groups = fates.shape
    ends = pa.array(np.arange(0, rows * groups + 1, groups, dtype=np.int32))
    values = pa.array(np.ascontiguousarray(fates).reshape(-1).view(np.int8))
    columns = {name: batch.column(name) for name in _NAMED}
    return _rows(rows, MESSAGE, {**columns, "fates": pa.ListArray.from_arrays(ends, values)})


def _lost_rows(
    messages: Messages,
    judged: GroupFates,
    rows: npt.NDArray[np.int64],
    number: int,
    group: GroupRecord,
) -> pa.RecordBatch:
    topic, broker, queue_id = messages.queue
    size, chosen = len(rows), pa.array(rows)
    stored = pa.array(messages.stored[rows]).cast(pa.timestamp("ms", "UTC"))
    some, kinds = alike(messages, judged.outcomes, group.of_queue(messages.queue), rows)
    reasons = pa.array([_reason(messages, judged, int(row), group) for row in some], pa.string())
    columns = {
        "topic": pa.repeat(topic, size),
        "broker": pa.repeat(pa.scalar(broker or None, pa.string()), size),
        "queue_id": pa.repeat(pa.scalar(queue_id, pa.int32()), size),
        "offset": pa.array(messages.offsets[rows]),
        "store_timestamp": stored,
        "tags": messages.tags.take(chosen),
        "message_id": messages.message_ids.take(chosen),
        "group": pa.repeat(pa.scalar(number, pa.int32()), size),
        "reason": reasons.take(pa.array(kinds)),
    }
    return _rows(size, LOST, columns)
