"""The filtered read of a queue: what a pull is answered with, what matches, how much is left.

Three sieves, each over a stretch of units at once: the tags codes and the bitmaps, in the mapped
queue and its extension; the SQL, on properties as they lie in the log. Then messages are taken by
the limits RocketMQ has for one answer (`DefaultMessageStore.getMessage`, 4.9.4): status and next
offset are the same, but for how far it looks for a rare match: RocketMQ gives up after 800 units.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt

from ..errors import ConfigError
from ..filter.engines.columnar import BatchFilter
from ..filter.logic import Outcome
from ..filter.tags import TagFilter
from ..message import QueueOffset
from ._sieve import (
    DAMAGED,
    DONE,
    FULL,
    NO_ROOM,
    OTHER_FILE,
    find_flagged,
    find_tagged,
    property_spans,
    take_records,
    unit_places,
)
from .commitlog import CommitLog
from .consumequeue import ConsumeQueue, Stretch
from .files import Bytes
from .format import UNIT_BLANK_SIZE
from .mapped import NO_MAPPINGS, Mappings
from .seals import NO_SEALS, Sealed

__all__ = ["Limits", "QueueReader", "Selection", "SqlFilter", "Status", "Wanted", "code_halves"]

Ints = npt.NDArray[np.int64]

log = logging.getLogger(__name__)


class Status(Enum):
    """RocketMQ's `GetMessageStatus`."""

    FOUND = "found"
    NO_MATCHED_MESSAGE = "no message matched in the stretch looked at"
    MESSAGE_WAS_REMOVING = "the messages are gone from the log"
    NO_MATCHED_QUEUE = "there is no such queue"
    NO_MESSAGE_IN_QUEUE = "the queue is empty"
    OFFSET_TOO_SMALL = "the offset is before the first message"
    OFFSET_OVERFLOW_ONE = "the offset is that of the next message to come"
    OFFSET_OVERFLOW_BADLY = "the offset is beyond the next message to come"
    OFFSET_FOUND_NULL = "there is no unit at the offset"


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """SQL92, with what a broker noted of it beforehand: bits, valid for messages after `born`."""

    batch_filter: BatchFilter
    positions: tuple[int, ...] = ()
    bits: int = 0
    born: int = 0  # milliseconds


Wanted = TagFilter | SqlFilter | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much one answer holds, and how far it looks. Raising any costs memory or time a pull."""

    messages: int = 32
    bytes: int = 262_144
    count: int = 32
    cold_bytes: int = 65_536  # for messages further back than `memory`
    cold_count: int = 8
    memory: int = int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 0.4)
    units: int = 5_000_000  # looked at before it answers that nothing matched
    seconds: float = 0.5  # likewise
    strict: bool = False  # RocketMQ's own: 800 units, of one file

    def __post_init__(self) -> None:
        if min(self.messages, self.bytes, self.count, self.units) < 1:
            raise ConfigError("limits of messages, bytes, count and units: they take 1 or more")


class Records(Sequence[Bytes]):
    """Records one after the other, as an answer has them: cut apart only if asked for."""

    __slots__ = ("_count", "body")

    def __init__(self, body: bytes, count: int) -> None:
        self.body = body
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[Bytes]: ...
    def __getitem__(self, index: int | slice) -> Bytes | list[Bytes]:
        return list(self)[index]

    def __iter__(self) -> Iterator[Bytes]:
        data, at = np.frombuffer(self.body, dtype=np.uint8), 0
        for _ in range(self._count):
            size = int.from_bytes(self.body[at : at + 4])  # a record begins with it
            yield data[at : at + size]
            at += size


class Selection(NamedTuple):
    """`records` are the bytes in the log, to be sent as they are.

    Of the messages up to `next_offset`, SQL was asked about `evaluated` and could not tell of
    `failed`: those are not delivered. `failures` are the offsets of some of them.
    """

    status: Status
    records: Sequence[Bytes]
    next_offset: QueueOffset
    min_offset: QueueOffset
    max_offset: QueueOffset
    evaluated: int = 0
    failed: int = 0
    failures: tuple[int, ...] = ()

    @property
    def body(self) -> bytes:
        """The records joined."""
        records = self.records
        return records.body if isinstance(records, Records) else b"".join(map(bytes, records))


_FIRST = 32  # messages SQL is asked about at first, at least: often enough
_MOST = 16_384  # and at the most before it looks at the clock: a millisecond or two
_ALL: Ints = np.arange(_MOST)


class QueueReader:
    """Reads one queue. Never blocks the writer; sees the queue as it was when a call began."""

    def __init__(
        self,
        log: CommitLog,
        queue: ConsumeQueue,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._queue = queue
        self._clock = clock

    def select(self, offset: int, limits: Limits, wanted: Wanted = None) -> Selection:
        queue = self._queue
        low, high = queue.min_offset, queue.max_offset
        status, next_offset = _outside(offset, low, high)
        if status is not None:
            return Selection(status, (), QueueOffset(next_offset), low, high)
        if limits.strict:
            stop = min(high, offset + max(800, limits.messages), queue.next_file(offset))
        else:
            stop = min(high, offset + limits.units)
        status = Status.NO_MATCHED_MESSAGE
        basket = _Basket(limits, self._log, queue.largest)
        tally = _Tally() if isinstance(wanted, SqlFilter) else None
        deadline = None if limits.strict else self._clock() + limits.seconds
        log_start = self._log.start
        at, asked, size = offset, 0, max(basket.room, _FIRST)
        while at < stop:
            place = queue.stretch(at, stop)
            if place is None:
                if at == offset:
                    after = queue.next_file(offset)
                    return Selection(Status.OFFSET_FOUND_NULL, (), after, low, high)
                break
            if log_start and (gone := self._gone(at, place, log_start)):
                status = self._why_gone(at, gone, wanted)
                at += gone
                continue
            status = Status.NO_MATCHED_MESSAGE
            if tally is None:
                numbers, looked = self._candidates(place, wanted, basket.room)
                basket.take(place, looked, numbers)
            else:
                assert isinstance(wanted, SqlFilter)
                numbers, looked = self._candidates(place, wanted, size)
                passed = self._passes(place, numbers, wanted, tally)
                basket.take(place, looked, numbers[passed])
                tally.count(at, basket.walked)
                asked += len(numbers)
                size = _next_size(size, asked, basket.taken, basket.room)
            at += basket.walked
            if basket.full or (deadline is not None and self._clock() > deadline):
                break
        records = Records(basket.body, basket.taken) if basket.taken else ()
        if records:
            status = Status.FOUND
        if tally is None:
            return Selection(status, records, QueueOffset(at), low, high)
        told = (tally.evaluated, tally.failed, tuple(tally.failures))
        return Selection(status, records, QueueOffset(at), low, high, *told)

    def count(self, offset: int, wanted: Wanted = None, end: int | None = None) -> int:
        """How many messages from `offset` up to `end`, or to the last, match: the lag, exactly."""
        return sum(len(found) for _, found in self.matches(offset, wanted, end))

    def next_match(self, offset: int, wanted: Wanted = None) -> QueueOffset | None:
        for at, found in self.matches(offset, wanted):
            if len(found):
                return QueueOffset(at + int(found[0]))
        return None

    def matches(
        self, offset: int, wanted: Wanted, end: int | None = None
    ) -> Iterator[tuple[int, Ints]]:
        """(offset of the first, numbers of those that match), a stretch of units at a time."""
        at = max(offset, self._queue.min_offset)
        high = int(self._queue.max_offset)
        if end is not None:
            high = min(high, end)
        while at < high and (place := self._queue.stretch(at, high)) is not None:
            found, looked = self._candidates(place, wanted, _MOST)
            if isinstance(wanted, SqlFilter):
                found = found[self._passes(place, found, wanted)]
            elif wanted is None or wanted.matches_all:
                sizes = self._queue.units(at, looked)["size"]
                found = np.flatnonzero(sizes != UNIT_BLANK_SIZE)
            yield at, found
            at += looked

    def _gone(self, at: int, place: Stretch, log_start: int) -> int:
        """How many of the units from `at` on are of messages that are gone from the log."""
        if place.log_offset(0) >= log_start:
            return 0
        units = self._queue.units(at, place.size)
        found = np.flatnonzero(units["offset"] >= log_start)
        return int(found[0]) if len(found) else len(units)

    def _why_gone(self, at: int, gone: int, wanted: Wanted) -> Status:
        """Whether the last log file concerned had a message that was wanted."""
        units = self._queue.units(at, gone)
        messages = np.flatnonzero(units["size"] != UNIT_BLANK_SIZE)
        if not len(messages):
            return Status.NO_MATCHED_MESSAGE
        file_size = self._log.files.file_size
        offsets = units["offset"][messages]
        last_file = int(offsets[-1]) // file_size
        first = int(messages[np.searchsorted(offsets, last_file * file_size)])
        place = self._queue.stretch(at + first, at + gone)
        if place is None:
            return Status.NO_MATCHED_MESSAGE
        found, _ = self._candidates(place, wanted, 1)
        return Status.MESSAGE_WAS_REMOVING if len(found) else Status.NO_MATCHED_MESSAGE

    def _candidates(self, place: Stretch, wanted: Wanted, most: int) -> tuple[Ints, int]:
        """Numbers of units that their code or bitmap does not rule out, up to `most`, and how many
        units were looked at for it. Where all are wanted, blank ones are among them."""
        units, count = place.address, place.size
        if wanted is None or (isinstance(wanted, TagFilter) and wanted.matches_all):
            count = min(count, most, _MOST)
            return _ALL[:count], count
        out = np.empty(most, dtype=np.int64)
        files, size = self._extension_files()  # held while their addresses are used
        at = (files.addresses, files.start, size)
        if isinstance(wanted, TagFilter):
            found, looked = find_tagged(units, count, code_halves(wanted.codes), *at, out)
        else:
            bits, born, flags = wanted.bits, wanted.born, _numbers(wanted.positions)
            found, looked = find_flagged(units, count, flags, bits, born, *at, out)
        return out[:found], looked

    def _extension_files(self) -> tuple[Mappings, int]:
        """The extension's files and their size."""
        extension = self._queue.extension
        if extension is None:
            return NO_MAPPINGS, 1
        return extension.sequence.mappings(), extension.sequence.file_size

    def _passes(
        self, place: Stretch, numbers: Ints, wanted: SqlFilter, tally: "_Tally | None" = None
    ) -> npt.NDArray[np.bool_]:
        """Which of the numbered units' messages the SQL says true of."""
        passed = np.zeros(len(numbers), dtype=np.bool_)
        starts, ends = np.empty_like(numbers), np.empty_like(numbers)
        files, at = self._log.files, 0
        while at < len(numbers):
            found = files.find(place.log_offset(int(numbers[at])))
            if found is None:
                at += 1
                continue
            file, start = found
            to = property_spans(
                place.address, numbers, at, file.address, start, file.size, starts, ends
            )
            outcomes = wanted.batch_filter.match_spans(file.data, starts[at:to], ends[at:to])
            np.equal(outcomes, _TRUE, out=passed[at:to])
            if tally is not None:
                tally.asked.append(numbers[at:to])
                tally.failing.append(numbers[at:to][outcomes == _ERROR])
            at = to
        return passed


_TRUE, _ERROR = np.uint8(Outcome.TRUE), np.uint8(Outcome.ERROR)


@lru_cache(1024)
def code_halves(codes: frozenset[int]) -> Ints:
    """The low four bytes of each, as the number they are when read the wrong way round."""
    swapped = np.array(list(codes), dtype=np.int64).astype(">i4").view("<u4")
    return np.sort(swapped.astype(np.int64))


@lru_cache(1024)
def _numbers(positions: tuple[int, ...]) -> Ints:
    return np.array(positions, dtype=np.int64)


def _next_size(size: int, asked: int, taken: int, room: int) -> int:
    """How many messages to ask SQL about next: more and more, while few match."""
    wider = min(8 * size, _MOST)
    return min(wider, max(asked * room // taken, _FIRST)) if taken else wider


def _outside(offset: int, low: int, high: int) -> tuple[Status | None, int]:
    """RocketMQ's answers for an offset where there is nothing to scan, in its order."""
    if high == 0:
        return Status.NO_MESSAGE_IN_QUEUE, 0
    if offset < low:
        return Status.OFFSET_TOO_SMALL, low
    if offset == high:
        return Status.OFFSET_OVERFLOW_ONE, offset
    if offset > high:
        return Status.OFFSET_OVERFLOW_BADLY, high
    return None, offset


class _Tally:
    """What SQL was asked, of the units that were done with: the others come again."""

    def __init__(self) -> None:
        self.evaluated = self.failed = 0
        self.failures: list[int] = []
        self.asked: list[Ints] = []  # numbers of units of this stretch
        self.failing: list[Ints] = []

    def count(self, first: int, walked: int) -> None:
        """The stretch from offset `first` is over, `walked` of its units are done with."""
        for numbers in self.asked:
            self.evaluated += int(np.searchsorted(numbers, walked))
        for numbers in self.failing:
            done = numbers[: int(np.searchsorted(numbers, walked))]
            self.failed += len(done)
            room = _SAMPLES - len(self.failures)
            self.failures += (done[: max(room, 0)] + first).tolist()
        self.asked.clear()
        self.failing.clear()


_SAMPLES = 8  # of failures, in one answer


class _Basket:
    """Takes messages until an answer is full."""

    def __init__(self, limits: Limits, log: CommitLog, largest: int) -> None:
        self._log = log
        self._limits = (
            limits.messages,
            limits.bytes,
            limits.count,
            limits.cold_bytes,
            limits.cold_count,
            limits.memory,
            largest,
        )
        self._most = min(limits.messages, limits.count)
        self._buffer = _buffers.own
        self._bytes = 0
        self.taken = 0
        self.full = False
        self.walked = 0  # units of the last stretch that are done with

    @property
    def room(self) -> int:
        """How many more it takes, at the most, while it is not full."""
        return max(self._most - self.taken, 1)

    @property
    def body(self) -> bytes:
        return self._buffer.data[: self._bytes].tobytes()

    def take(self, place: Stretch, count: int, numbers: Ints) -> None:
        """From the first `count` units those of these numbers, in order."""
        files, end = self._log.files, self._log.end
        file, base, start, seals = None, 0, -files.file_size, NO_SEALS
        done, walked = 0, 0
        why = OTHER_FILE if len(numbers) else DONE
        while True:
            if why == OTHER_FILE:
                offset = place.log_offset(int(numbers[done]))
                file, start = files.find(offset) or (None, -files.file_size)
                if file is None:
                    log.error("not served: offset %d of the log is gone", offset)
                    walked = int(numbers[done]) + 1
                    done += 1
                    why = OTHER_FILE if done < len(numbers) else DONE
                    continue
                base, seals = file.address, self._seals(place, numbers, done, start)
            done, walked, self.taken, self._bytes, why = take_records(
                place.address,
                count,
                numbers,
                done,
                walked,
                self.taken,
                self._bytes,
                *self._limits,
                end,
                base,
                start,
                files.file_size,
                *seals,
                self._buffer.address,
                self._buffer.size,
            )
            if why == NO_ROOM:
                self._buffer = _Buffer(2 * self._buffer.size, self._buffer.data[: self._bytes])
            elif why == DAMAGED:
                offset = place.log_offset(int(numbers[done - 1]))
                log.error("not served: there is no sound record at offset %d of the log", offset)
            elif why != OTHER_FILE:
                break
        self.walked, self.full = walked, why == FULL

    def _seals(self, place: Stretch, numbers: Ints, done: int, start: int) -> Sealed:
        """Return the seals of the units' records in the log file that begins at `start`; the first
        `done` units are done with."""
        if not self._log.is_sealed(start):
            return NO_SEALS
        ats = np.empty(len(numbers) - done, dtype=np.int64)
        file_size = self._log.files.file_size
        count = unit_places(place.address, numbers, done, start, file_size, ats)
        return self._log.seals_of(start, ats[:count])


class _Buffer:
    """Where an answer is put together."""

    __slots__ = ("address", "data", "size")

    def __init__(self, size: int, filled: Bytes | None = None) -> None:
        self.data: Bytes = np.empty(size, dtype=np.uint8)
        if filled is not None:
            self.data[: len(filled)] = filled
        self.address, self.size = self.data.ctypes.data, size


class _Buffers(threading.local):
    """One for each thread: an answer is copied out of it before the next."""

    def __init__(self) -> None:
        self.own = _Buffer(_BUFFER)


_BUFFER = 262_144  # bytes; a larger answer gets one of its own
_buffers = _Buffers()
