"""The filtered read of a queue: what a pull is answered with, what matches, how much is left.

Three sieves, each over a whole stretch of units at once: the tags codes, on a view of the mapped
queue; the bitmaps; the SQL, on properties as they lie in the log. Then messages are taken by the
limits RocketMQ has for one answer (`DefaultMessageStore.getMessage`, 4.9.4): status and next offset
are the same, but for how far it looks for a rare match: RocketMQ gives up after 800 units.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import ConfigError
from ..filter.engines.columnar import BatchFilter
from ..filter.logic import Outcome
from ..filter.tags import TagFilter
from ..message import QueueOffset
from ._walk import extension_codes, may_match, property_spans
from .commitlog import CommitLog
from .consumequeue import ConsumeQueue, Extension, Units
from .files import Bytes
from .format import UNIT_BLANK_SIZE, UNIT_SIZE

__all__ = ["Limits", "QueueReader", "Selection", "SqlFilter", "Status"]

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


class Selection(NamedTuple):
    """`records` are the bytes in the log, to be sent as they are.

    Of the messages up to `next_offset`, SQL was asked about `evaluated` and could not tell of
    `failed`: those are not delivered. `failures` are the offsets of some of them.
    """

    status: Status
    records: list[Bytes]
    next_offset: QueueOffset
    min_offset: QueueOffset
    max_offset: QueueOffset
    evaluated: int = 0
    failed: int = 0
    failures: tuple[int, ...] = ()


_STRETCH = 65_536  # units whose records are looked at together, at the most
_FIRST = 64  # and at first: often enough


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

    def select(
        self, offset: int, limits: Limits, wanted: TagFilter | SqlFilter | None = None
    ) -> Selection:
        low, high = self._queue.min_offset, self._queue.max_offset
        status, next_offset = _outside(offset, low, high)
        if status is not None:
            return Selection(status, [], QueueOffset(next_offset), low, high)
        basket = _Basket(limits, self._log, self._queue)
        deadline = self._clock() + limits.seconds
        status = Status.NO_MATCHED_MESSAGE
        tally = _Tally()
        at = offset
        while at < high:
            count = min(high - at, limits.units - (at - offset))
            if limits.strict:
                count = min(high - at, max(800, limits.messages))
            elif wanted is None:
                count = min(count, 2 * basket.most)  # more than that it does not take
            units = self._queue.units(at, count)
            if not len(units):
                if at == offset:
                    after = self._queue.next_file(offset)
                    return Selection(Status.OFFSET_FOUND_NULL, [], after, low, high)
                break
            last = self._take(units, wanted, basket, tally)
            if last is not None:
                status = last
            tally.count(at, basket.walked)
            at += basket.walked
            if limits.strict or basket.full or at - offset >= limits.units:
                break
            if self._clock() > deadline:
                break
        if basket.records:
            status = Status.FOUND
        told = (tally.evaluated, tally.failed, tuple(tally.failures))
        return Selection(status, basket.records, QueueOffset(at), low, high, *told)

    def count(self, offset: int, wanted: TagFilter | SqlFilter | None = None) -> int:
        """How many messages from `offset` to the end match: the lag, exactly."""
        return sum(len(found) for _, found in self._matches(offset, wanted))

    def next_match(
        self, offset: int, wanted: TagFilter | SqlFilter | None = None
    ) -> QueueOffset | None:
        for at, found in self._matches(offset, wanted):
            if len(found):
                return QueueOffset(at + int(found[0]))
        return None

    def _matches(
        self, offset: int, wanted: TagFilter | SqlFilter | None
    ) -> Iterator[tuple[int, Ints]]:
        """(offset of the first, numbers of those that match), a queue file at a time."""
        at = max(offset, self._queue.min_offset)
        high = self._queue.max_offset
        while at < high:
            units = self._queue.units(at, high - at)
            if not len(units):
                return
            found = self._candidates(units, wanted)
            if isinstance(wanted, SqlFilter):
                parts = [found[i : i + _STRETCH] for i in range(0, len(found), _STRETCH)]
                found = np.concatenate(
                    [found[:0], *(part[self._passes(units, part, wanted)] for part in parts)]
                )
            yield at, found
            at += len(units)

    def _take(
        self,
        units: Units,
        wanted: TagFilter | SqlFilter | None,
        basket: "_Basket",
        tally: "_Tally",
    ) -> Status | None:
        """Fills the basket from the units; gives what decided last if nothing was taken."""
        found = self._candidates(units, wanted)
        start = self._log.start
        present = found[units["offset"][found] >= start] if start else found
        basket.begin(units)
        size = _FIRST
        done = 0
        while done < len(present) and not basket.full:
            part = present[done : done + size]
            if isinstance(wanted, SqlFilter):
                part = part[self._passes(units, part, wanted, tally)]
            basket.take(part)
            done += size
            size = min(2 * size, _STRETCH)
        basket.finish()
        if not start or int(units["offset"][-1]) >= start:
            return Status.NO_MATCHED_MESSAGE
        messages = np.flatnonzero(units["size"] != UNIT_BLANK_SIZE)
        if not len(messages) or int(units["offset"][messages[-1]]) >= start:
            return Status.NO_MATCHED_MESSAGE
        return self._why_gone(units[messages], np.searchsorted(messages, found))

    def _why_gone(self, units: Units, found: Ints) -> Status:
        """All messages are gone: whether the last log file concerned had one that was wanted."""
        file_size = self._log.files.file_size
        last_file = int(units["offset"][-1]) // file_size
        first = int(np.searchsorted(units["offset"], last_file * file_size))
        wanted = len(found) and found[-1] >= first
        return Status.MESSAGE_WAS_REMOVING if wanted else Status.NO_MATCHED_MESSAGE

    def _candidates(self, units: Units, wanted: TagFilter | SqlFilter | None) -> Ints:
        """Numbers of the units that their code or bitmap does not rule out."""
        if isinstance(wanted, TagFilter) and not wanted.matches_all:
            found = np.flatnonzero(self._by_tags(units, wanted))
        elif isinstance(wanted, SqlFilter) and wanted.positions and self._queue.extension:
            found = np.flatnonzero(self._by_bitmap(units, wanted, self._queue.extension))
        else:
            found = np.arange(len(units))
        is_message = np.asarray(units["size"][found] != UNIT_BLANK_SIZE, dtype=np.bool_)
        return found[is_message]

    def _by_tags(self, units: Units, wanted: TagFilter) -> npt.NDArray[np.bool_]:
        # the low half of a code, as the four bytes it is: no conversion, one comparison a code
        halves = units.view(np.uint8).view("<i4").reshape(-1, UNIT_SIZE // 4)[:, 4]
        codes = np.array(sorted(wanted.codes), dtype=">i4").view("<i4")
        matched = _any_equal(halves, codes)
        if self._queue.extension is not None:
            first = units.view(np.uint8).reshape(-1, UNIT_SIZE)[:, 12]
            addresses = np.flatnonzero(first == 0x80)
            if len(addresses):
                real, known = self._real_codes(units["code"][addresses].astype(np.int64))
                low = real.astype(np.int32).astype(np.int64)
                hits = np.isin(low, list(wanted.codes)) | (known == 0)
                matched[addresses] = hits
        return matched

    def _real_codes(self, addresses: Ints) -> tuple[Ints, Ints]:
        real, known = np.zeros_like(addresses), np.zeros_like(addresses)
        assert self._queue.extension is not None
        for start, file in self._queue.extension.sequence.files():
            extension_codes(addresses, file.data.ctypes.data, start, len(file.data), real, known)
        return real, known

    def _by_bitmap(
        self, units: Units, wanted: SqlFilter, extension: Extension
    ) -> npt.NDArray[np.bool_]:
        codes = units["code"].astype(np.int64)
        positions = np.array(wanted.positions, dtype=np.int64)
        verdicts = np.full(len(codes), 2, dtype=np.uint8)
        for start, file in extension.sequence.files():
            open_ = np.flatnonzero(verdicts == 2)
            if not len(open_):
                break
            part = np.empty(len(open_), dtype=np.uint8)
            may_match(
                codes[open_],
                file.data.ctypes.data,
                start,
                len(file.data),
                positions,
                wanted.bits,
                wanted.born,
                part,
            )
            verdicts[open_] = part
        matched: npt.NDArray[np.bool_] = verdicts != 0
        return matched

    def _passes(
        self, units: Units, numbers: Ints, wanted: SqlFilter, tally: "_Tally | None" = None
    ) -> npt.NDArray[np.bool_]:
        """Which of the numbered units' messages the SQL says true of."""
        offsets = units["offset"][numbers].astype(np.int64)
        sizes = units["size"][numbers].astype(np.int64)
        passed = np.zeros(len(numbers), dtype=np.bool_)
        at = 0
        while at < len(numbers):
            found = self._log.files.file_data(int(offsets[at]))
            if found is None:
                at += 1
                continue
            data, file_start = found
            to = int(np.searchsorted(offsets, file_start + len(data)))
            ats = offsets[at:to] - file_start
            starts, ends = np.empty_like(ats), np.empty_like(ats)
            property_spans(data.ctypes.data, ats, sizes[at:to], starts, ends)
            outcomes = wanted.batch_filter.match_spans(data, starts, ends)
            passed[at:to] = outcomes == Outcome.TRUE
            if tally is not None:
                tally.asked.append(numbers[at:to])
                tally.failing.append(numbers[at:to][outcomes == Outcome.ERROR])
            at = to
        return passed


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


def _any_equal(
    values: npt.NDArray[np.int32], codes: npt.NDArray[np.int32]
) -> npt.NDArray[np.bool_]:
    if len(codes) > 16:
        return np.isin(values, codes)
    matched = np.zeros(len(values), dtype=np.bool_)
    for code in codes:
        matched |= values == code
    return matched


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
    """Takes messages until an answer is full. RocketMQ asks at every unit, wanted or not, whether
    it would still fit, so a large unit nobody wants may end an answer too."""

    def __init__(self, limits: Limits, log: CommitLog, queue: ConsumeQueue) -> None:
        self._limits = limits
        self._log = log
        self._largest = queue.largest
        self._bytes = 0
        self.most = min(limits.messages, limits.count)
        self.records: list[Bytes] = []
        self.full = False
        self.walked = 0  # units of this stretch that are done with

    def begin(self, units: Units) -> None:
        self._units = units
        self.walked = 0
        # nothing in this stretch lies so far back that the limits for it are others
        self._hot = int(self._log.end) - int(units["offset"][0]) <= self._limits.memory

    def take(self, numbers: Ints) -> None:
        """Matching units, in order; what lies between them is passed over."""
        while len(numbers) and not self.full:
            some = self._sure(numbers) or 1
            self._take(numbers[:some], sure=some > 1)
            numbers = numbers[some:]

    def _sure(self, numbers: Ints) -> int:
        """How many fit whatever lies between them."""
        if not self._hot:
            return 0
        most = self.most - len(self.records)
        room = self._limits.bytes - self._bytes
        return max(min(most, room // max(self._largest, 1), len(numbers)), 0)

    def _take(self, numbers: Ints, sure: bool) -> None:
        if not sure and self._stops_before(int(numbers[0]) + 1):
            return
        offsets = self._units["offset"][numbers].astype(np.int64)
        sizes = self._units["size"][numbers].astype(np.int64)
        found = self._log.sound_records(offsets, sizes)
        self.walked = int(numbers[-1]) + 1
        good = [record for record in found if len(record)]
        self.records += good
        self._bytes += int(sizes.sum()) if len(good) == len(found) else sum(map(len, good))
        for offset, record in zip(offsets, found, strict=True) if len(good) < len(found) else ():
            if not len(record):
                log.error("not served: there is no sound record at offset %d of the log", offset)
        if self._hot and len(self.records) >= self.most:
            self.full = True  # RocketMQ finds out at the next unit

    def finish(self) -> None:
        """No match is left: on to the end of the stretch, unless something there is too large."""
        if not self.full and not self._stops_before(len(self._units)):
            self.walked = len(self._units)

    def _stops_before(self, end: int) -> bool:
        """Whether one of the units from `walked` up to `end` does not fit; then it stops there."""
        limits, taken = self._limits, len(self.records)
        if not taken or self.walked >= end:
            return False
        if self._hot and taken < self.most and self._bytes + self._largest <= limits.bytes:
            return False
        between = self._units[self.walked : end]
        cold = int(self._log.end) - between["offset"] > limits.memory
        bytes_left = np.where(cold, limits.cold_bytes, limits.bytes) - self._bytes
        count = np.where(cold, limits.cold_count, limits.count)
        too_much = (taken >= limits.messages) | (between["size"] > bytes_left) | (taken >= count)
        found = np.flatnonzero(too_much)
        if len(found):
            self.walked += int(found[0])
            self.full = True
        return self.full
