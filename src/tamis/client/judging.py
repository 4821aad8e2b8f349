"""Filtering in the client: a filter in code is loaded into this process and judges what was pulled.

For when there is no filter server. The code runs as this program does: nothing limits it. It has a
thread of its own, so that heartbeats go on while it works.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from ..code import CodeFilter, Context, Verdicts, judge_batch, load
from ..errors import CorruptRecord
from ..filter.logic import Outcome
from ..wire.bodies import MessageQueue
from .columns import Chunk, decode_parts
from .handling import DaemonThread
from .received import decode_all

if TYPE_CHECKING:
    from ..code import Loaded

__all__ = ["Failure", "Judged", "LocalFilter"]

T = TypeVar("T")

_ERROR: Final = int(Outcome.ERROR)
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


def _sound_size(queue: MessageQueue, body: bytes) -> int:
    """How many bytes there are before a damaged record."""
    size = 0
    try:
        for message in decode_all(body, queue):
            size += message.size
    except CorruptRecord:
        pass
    return size
