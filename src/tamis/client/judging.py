"""Filtering in the client: a filter in code is loaded into this process and judges what was pulled.

For when there is no filter server. The code runs as this program does: nothing limits it. It has a
thread of its own, so that heartbeats go on while it works.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]

from ..code import CodeFilter, Context, Judge, Verdicts, load
from ..errors import CorruptRecord, SandboxError
from ..filter.logic import Outcome
from ..wire.bodies import MessageQueue
from .columns import Chunk, decode_parts
from .handling import DaemonThread
from .received import decode_all

if TYPE_CHECKING:
    from ..code import Loaded

__all__ = ["Failure", "Judged", "LocalFilter", "judge_batch"]

T = TypeVar("T")

_ERROR: Final = int(Outcome.ERROR)
_MOST_SPLITS: Final = 128  # parts of a batch judged again, to find the messages it failed on
_SIZE: Final = struct.Struct(">I")
_OFFSET: Final = struct.Struct(">20xq")  # of a record: its offset in the queue


@dataclass(frozen=True, slots=True)
class Failure:
    """A message that the filter failed at."""

    offset: int  # in its queue
    record: bytes
    reason: str


@dataclass(slots=True)
class Judged:
    """What is left of an answer to a pull: records of messages that matched, and those that failed.

    `rest` is what can't be taken apart: it begins with a damaged record, and was not judged.
    """

    records: list[tuple[int, bytes]] = field(default_factory=list)  # offset and record
    failures: list[Failure] = field(default_factory=list)
    seen: int = 0
    rest: bytes = b""


class LocalFilter:
    """A filter in code, loaded when it is first needed. Belongs to one event loop."""

    def __init__(self, code: CodeFilter, context: Context, max_body_size: int) -> None:
        self._code = code
        self._context = context
        self._max_body_size = max_body_size
        self._thread = DaemonThread()
        self._loaded: Loaded | None = None

    async def load(self) -> None:
        """Execute its source. Raises CodeError."""
        await self._run(self._load, None)

    async def judge(self, queue: MessageQueue, body: bytes) -> Judged:
        """Judge the records of a pull's answer. Raises CodeError if it can't be loaded."""
        return await self._run(lambda body: self._judge(queue, body), body)

    def close(self) -> None:
        self._thread.abandon()
        if self._loaded is not None:
            self._loaded.close()

    async def _run(self, function: Callable[[Any], T], argument: object) -> T:
        return cast(T, await self._thread.run(function, argument))

    # In the thread

    def _load(self, _: object = None) -> "Loaded":
        if self._loaded is None:
            self._loaded = load(self._code, self._context)
        return self._loaded

    def _judge(self, queue: MessageQueue, body: bytes) -> Judged:
        loaded = self._load()
        judged = Judged()
        try:
            verdicts = self._verdicts(loaded, queue, body)
        except CorruptRecord:
            good = _sound_size(queue, body)
            body, judged.rest = body[:good], body[good:]
            verdicts = self._verdicts(loaded, queue, body)
        at = row = 0
        for part in verdicts:
            for outcome in part.outcomes.tolist():
                (size,) = _SIZE.unpack_from(body, at)
                if outcome == Outcome.TRUE:
                    judged.records.append((_OFFSET.unpack_from(body, at)[0], body[at : at + size]))
                elif outcome == _ERROR:
                    offset = _OFFSET.unpack_from(body, at)[0]
                    reason = part.reason(row)
                    judged.failures.append(Failure(offset, body[at : at + size], reason))
                at += size
                row += 1
            judged.seen += row
            row = 0
        return judged

    def _verdicts(self, loaded: "Loaded", queue: MessageQueue, body: bytes) -> list[Verdicts]:
        needs = loaded.needs
        chunks = [Chunk(queue.broker_name, queue.topic, body)] if body else []
        return [
            judge_batch(loaded, batch)
            for batch, _ in decode_parts(
                chunks,
                columns=needs.columns,
                properties=needs.properties,
                max_body_size=self._max_body_size,
                null_unreadable=True,
            )
        ]


def judge_batch(judge: Judge, batch: pa.RecordBatch) -> Verdicts:
    """Judge a batch. One that `match_batch` fails on as a whole is judged in parts, so that a
    message that it can't deal with does not fail the others. Raises what the judge does.

    A batch that broke a limit is not judged again: a sandbox has looked for the message already.
    """
    restarts = _restarts(judge)
    said = judge.judge(batch)
    outcomes = np.array(said.outcomes, np.uint8)
    errors = {row: said.reason(row) for row in np.flatnonzero(said.failed).tolist()}
    waiting = _halves(judge, 0, said)
    splits = 0
    while waiting and splits < _MOST_SPLITS and _restarts(judge) == restarts:
        splits += 1
        start, stop = waiting.pop()
        try:
            said = judge.judge(batch.slice(start, stop - start))
        except SandboxError:  # it failed on them before, that stands
            break
        outcomes[start:stop] = said.outcomes
        for row in range(start, stop):
            errors.pop(row, None)
        for row in np.flatnonzero(said.failed).tolist():
            errors[start + row] = said.reason(row)
        waiting += _halves(judge, start, said)
    _mark_unreadable(batch, outcomes, errors)
    return Verdicts(outcomes, errors)


def _halves(judge: Judge, start: int, said: Verdicts) -> list[tuple[int, int]]:
    """The parts of a batch to judge again, the first one last; none unless it failed as a whole."""
    count = len(said.outcomes)
    if not judge.needs.is_batch or count < 2 or not said.failed.all():
        return []
    middle = start + count // 2
    return [(middle, start + count), (start, middle)]


def _restarts(judge: Judge) -> int:
    """How often a sandbox has replaced its process."""
    usage = getattr(judge, "usage", None)
    return usage.restarts if usage is not None else 0


def _mark_unreadable(
    batch: pa.RecordBatch, outcomes: npt.NDArray[np.uint8], errors: dict[int, str]
) -> None:
    """A body that can't be read is null: nobody can say whether its message matches."""
    if "body" in batch.schema.names and batch.column("body").null_count:
        nulls = batch.column("body").is_null().to_numpy(zero_copy_only=False)
        for row in np.flatnonzero(nulls).tolist():
            outcomes[row] = _ERROR
            errors[row] = "its body can't be read"


def _sound_size(queue: MessageQueue, body: bytes) -> int:
    """How many bytes there are before a damaged record."""
    size = 0
    try:
        for message in decode_all(body, queue):
            size += message.size
    except CorruptRecord:
        pass
    return size
