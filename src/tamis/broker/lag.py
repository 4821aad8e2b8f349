"""Exact lag: how many messages that match its filter a group has before it, and the first one.

Matches are counted in blocks of a queue, for all filters that need a block in one pass, and the
counts are remembered: the next question looks only at what came since. Where a group stands within
a block, the offsets that match in that block are remembered instead, so that consuming costs
nothing. What the groups are and by what they filter is `readers`'s part.
"""

import threading
import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from ..store.commitlog import Queue
from ..store.consumequeue import ConsumeQueue
from ..store.counting import FilterSet
from ..store.format import UNIT_SIZE
from ..store.select import QueueReader, Wanted
from ..store.store import Store
from .blockcounts import UNKNOWN, BlockCounts, Matches
from .handlers.queries import store_time
from .readers import Reader, ReaderFilter

__all__ = ["BLOCK", "Lags", "QueueLag", "TotalLag", "range_counts", "range_readers", "totals"]

BLOCK: Final = 16_384  # messages whose count is remembered as one number
_MOST_MEMORY: Final = 64 * 2**20  # bytes of what is remembered
_MOST_HEADS: Final = 8  # blocks of a filter and queue whose matches are remembered
_MOST_TOGETHER: Final = 128  # filters of one pass: a block takes a few hundredths of a second
_UNCHECKED: Final = 256  # filters and queues more, before memory is looked at again
_SETS: Final = 16  # of filters that are kept compiled for passes
_TURN: Final = 0.05  # seconds that one question keeps others waiting
_EDGES: Final = ("begin", "end")  # of a range: names of readers
_FIRST_PIECE: Final = 256  # messages looked at for the next match; then more and more

Steps = Generator[None, None, "list[QueueLag]"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLag:
    """How far a reader is in one queue. What is not known is None, and `reason` says why not.

    Without `is_complete` the count is of a part: at least so many messages match.
    """

    group: str
    topic: str
    queue: int
    committed: int | None
    end: int
    filter: ReaderFilter | None
    matching_lag: int | None = None
    next_match_offset: int | None = None
    next_match_stored: int | None = None  # milliseconds
    is_complete: bool = False
    reason: str = ""
    lane: str = ""

    @property
    def lag(self) -> int | None:
        """The lag as RocketMQ tells it."""
        return None if self.committed is None else max(self.end - self.committed, 0)

    def to_json(self) -> dict[str, Any]:
        by = self.filter
        return {
            "group": self.group,
            "topic": self.topic,
            "queue": self.queue,
            "lane": self.lane or None,
            "committed": self.committed,
            "end": self.end,
            "lag": self.lag,
            "matching_lag": self.matching_lag,
            "is_complete": self.is_complete,
            "next_match_offset": self.next_match_offset,
            "next_match_stored": self.next_match_stored,
            "filter": None if by is None else {"type": by.kind, "expression": by.text},
            "reason": self.reason or None,
        }


@dataclass(slots=True)
class TotalLag:
    """The lag of a group in all queues of a topic."""

    lag: int = 0
    matching: int | None = 0  # None if it is not known of some queue
    oldest: int | None = None  # when the first match of any queue was stored, in milliseconds


def totals(rows: Iterable[QueueLag]) -> dict[tuple[str, str], TotalLag]:
    """By group and topic. A group that commits no offsets has none. Of a group in lanes the lag is
    that of the last of them, and how many messages match is not known: several may want one."""
    made: dict[tuple[str, str], TotalLag] = {}
    farthest: dict[tuple[str, str, int], int] = {}  # lag by queue
    for row in rows:
        if row.lag is None:
            continue
        total = made.setdefault((row.group, row.topic), TotalLag())
        queue = (row.group, row.topic, row.queue)
        more = max(row.lag - farthest.get(queue, 0), 0)
        farthest[queue] = farthest.get(queue, 0) + more
        total.lag += more
        is_known = row.matching_lag is not None and row.is_complete and not row.lane
        if total.matching is not None and is_known:
            total.matching += row.matching_lag or 0
        else:
            total.matching = None
        if row.next_match_stored is not None:
            total.oldest = min(row.next_match_stored, total.oldest or row.next_match_stored)
    return made


def range_readers(
    topic: str, by: ReaderFilter, ranges: Mapping[int, tuple[int, int]]
) -> list[Reader]:
    """Readers that stand at both edges of ranges of offsets, by queue. See `range_counts`."""
    return [
        Reader(name, topic, ranges, {queue: edges[at] for queue, edges in ranges.items()}, by)
        for at, name in enumerate(_EDGES)
    ]


def range_counts(rows: Iterable[QueueLag]) -> dict[int, int | None]:
    """Return how many messages match between two `range_readers`, by queue: what the first has
    before it and the second has not. None if there was no time to count to the end."""
    counted: dict[int, dict[str, int | None]] = {}
    for row in rows:
        edges = counted.setdefault(row.queue, {})
        edges[row.group] = row.matching_lag if row.is_complete else None
    made: dict[int, int | None] = {}
    for queue, edges in counted.items():
        begin, end = (edges[name] for name in _EDGES)
        made[queue] = None if begin is None or end is None else max(begin - end, 0)
    return made


@dataclass(slots=True)
class _Place:
    """Where a reader stands in a queue."""

    reader: Reader
    by: ReaderFilter
    committed: int
    start: int
    first: int  # the first block that it has before it whole, or the last block of the queue


class Lags:
    """What was counted. For several threads, which take turns: `steps` are run by `run`."""

    def __init__(
        self, store: Store, clock: Callable[[], float] = time.monotonic, block: int = BLOCK
    ) -> None:
        """`block`: how many messages are counted together, up to 65,536."""
        self._store = store
        self._block = block
        self._clock = clock
        self._counted: OrderedDict[tuple[Hashable, Queue], BlockCounts] = OrderedDict()
        self._sets: OrderedDict[tuple[Hashable, ...], FilterSet] = OrderedDict()
        self._checked = 0  # how many there were when memory was looked at
        self.lock = threading.Lock()
        self.looked_at = 0  # messages, by each filter, since the start

    def steps(self, readers: Iterable[Reader], deadline: float = float("inf")) -> Steps:
        """Count for the readers, a block or so a step; by the deadline return what is known then.
        The ends of queues are those at the time a queue's turn comes."""
        by_queue: dict[Queue, list[Reader]] = {}
        for reader in readers:
            for queue_id in reader.queues:
                by_queue.setdefault((reader.topic, queue_id), []).append(reader)
        made = list[QueueLag]()
        for queue, some in by_queue.items():
            made += yield from self._of_queue(queue, some, deadline)
            if len(self._counted) > self._checked + _UNCHECKED:
                self._forget()
        self._forget()
        return made

    def run(self, steps: Steps, seconds: float) -> list[QueueLag] | None:
        """Go on counting for a while; return the result when it is there."""
        until = self._clock() + seconds
        with self.lock:
            try:
                while True:
                    next(steps)
                    if self._clock() > until:
                        return None
            except StopIteration as over:
                result: list[QueueLag] = over.value
                return result

    def count(self, readers: Iterable[Reader], seconds: float) -> list[QueueLag]:
        """Count for up to so many seconds, in this thread; others get their turn between."""
        steps = self.steps(readers, self._clock() + seconds)
        while True:
            result = self.run(steps, _TURN)
            if result is not None:
                return result

    @property
    def size(self) -> int:
        """Bytes of what is remembered, about."""
        return sum(one.size for one in self._counted.values())

    def _of_queue(self, key: Queue, readers: list[Reader], deadline: float) -> Steps:
        queue = self._store.find_queue(*key)
        end = int(queue.max_offset) if queue is not None else 0
        kept = self._first_kept(queue, end) if queue is not None else 0
        places, rows = list[_Place](), list[QueueLag]()
        for reader in readers:
            row = QueueLag(
                group=reader.group,
                topic=reader.topic,
                queue=key[1],
                committed=None if reader.committed is None else reader.committed.get(key[1], 0),
                end=end,
                filter=reader.filter,
                reason=reader.why_unknown,
                lane=reader.lane,
            )
            if row.committed is None or reader.filter is None or row.reason:
                rows.append(row)
            elif queue is None:
                rows.append(replace(row, matching_lag=0, is_complete=True))
            else:
                start = min(max(row.committed, kept), end)
                first = min(-(-start // self._block), end // self._block)
                places.append(_Place(reader, reader.filter, row.committed, start, first))
        if queue is not None and places:
            yield from self._count_blocks(key, queue, places, end, deadline)
            for place in places:
                rows.append((yield from self._result(key, queue, place, end, deadline)))
        return rows

    def _first_kept(self, queue: ConsumeQueue, end: int) -> int:
        """Return the offset of the first message that is still in the log. The queue's own first
        offset follows the log a moment later, and not beyond the last message that is gone."""
        first = max(int(queue.min_offset), queue.sequence.start // UNIT_SIZE)
        log_start = self._store.log.start

        def is_kept(offset: int) -> bool:
            unit = queue.units(offset, 1)
            return bool(len(unit)) and int(unit["offset"][0]) >= log_start

        if first >= end or is_kept(first):
            return min(first, end)
        return first + bisect_left(range(first, end), True, key=is_kept)

    # Whole blocks, and the part of the last.

    def _count_blocks(
        self, key: Queue, queue: ConsumeQueue, places: list[_Place], end: int, deadline: float
    ) -> Generator[None, None, None]:
        last = end // self._block
        needed: dict[Hashable, int] = {}  # from which block on, by filter
        filters: dict[Hashable, Wanted] = {}
        for place in places:
            if place.start >= last * self._block and place.start % self._block:
                continue  # it has no more than a part of the last block before it
            by = place.by
            filters[by.key] = by.wanted
            needed[by.key] = min(needed.get(by.key, last), place.first)
        missing: dict[tuple[int, int], list[Hashable]] = {}  # by stretch of offsets
        oldest = int(queue.min_offset) // self._block
        for name, first in needed.items():
            counted = self._entry(name, key, queue)
            counted.make_room(oldest, first, last)
            counts = counted.slice(first, last)
            if UNKNOWN in counts:
                for at, count in enumerate(counts, first):
                    if count == UNKNOWN:
                        missing.setdefault((at * self._block, (at + 1) * self._block), []).append(
                            name
                        )
            if counted.tail_end < last * self._block:
                counted.tail_end, counted.tail = last * self._block, 0
            if counted.tail_end < end:
                missing.setdefault((counted.tail_end, end), []).append(name)
        for (start, stop), names in sorted(missing.items()):
            for at in range(0, len(names), _MOST_TOGETHER):
                if self._clock() > deadline:
                    return
                some = names[at : at + _MOST_TOGETHER]
                self._count(key, queue, start, stop, {name: filters[name] for name in some})
                yield

    def _count(
        self,
        key: Queue,
        queue: ConsumeQueue,
        start: int,
        stop: int,
        filters: Mapping[Hashable, Wanted],
    ) -> None:
        """Count the matches of a whole block, or of what is new in the last one."""
        self.looked_at += len(filters) * (stop - start)
        together = self._together(filters)
        for name, count in zip(
            filters, together.count(self._store.log, queue, start, stop), strict=True
        ):
            counted = self._entry(name, key, queue)
            at = start // self._block - counted.first
            if start % self._block == 0 and stop - start == self._block:
                if 0 <= at < len(counted.counts):
                    counted.counts[at] = count
            elif counted.tail_end == start:
                counted.tail += count
                counted.tail_end = stop

    def _together(self, filters: Mapping[Hashable, Wanted]) -> FilterSet:
        names = tuple(filters)
        found = self._sets.get(names)
        if found is None:
            found = self._sets[names] = FilterSet(list(filters.values()))
            if len(self._sets) > _SETS:
                self._sets.popitem(last=False)
        self._sets.move_to_end(names)
        return found

    # One reader.

    def _result(
        self, key: Queue, queue: ConsumeQueue, place: _Place, end: int, deadline: float
    ) -> Generator[None, None, QueueLag]:
        start, last = place.start, end // self._block
        counted = self._entry(place.by.key, key, queue)
        row = QueueLag(
            group=place.reader.group,
            topic=place.reader.topic,
            queue=key[1],
            committed=place.committed,
            end=end,
            filter=place.by,
            lane=place.reader.lane,
        )
        total, is_complete, next_match = 0, True, None
        # 1. the rest of the block it stands in
        if start % self._block:
            stop = min((start // self._block + 1) * self._block, end)
            matches = yield from self._matches(
                counted, queue, place.by, start, stop, deadline, is_whole=True
            )
            is_complete = matches is not None
            if matches is not None:
                total = len(matches)
                next_match = matches[0] if matches else None
        # 2. the blocks after that, and what there is of the last
        if start % self._block == 0 or start // self._block < last:
            counts = list(counted.slice(place.first, last))
            counts.append((yield from self._tail(counted, queue, place.by, end, deadline)))
            total += sum(count for count in counts if count > 0)
            if next_match is None and is_complete:
                next_match = yield from self._first_match(
                    counted, queue, place, counts, end, deadline
                )
                is_complete = next_match is not None or not total
            is_complete = is_complete and UNKNOWN not in counts
        stored = -1 if next_match is None else store_time(self._store, queue, next_match)
        return replace(
            row,
            matching_lag=total,
            next_match_offset=next_match,
            next_match_stored=stored if stored >= 0 else None,
            is_complete=is_complete,
            reason="" if is_complete else "not counted to the end yet",
        )

    def _tail(
        self, counted: BlockCounts, queue: ConsumeQueue, by: ReaderFilter, end: int, deadline: float
    ) -> Generator[None, None, int]:
        """Return how many match in the last block, up to `end`."""
        if counted.tail_end <= end:
            return counted.tail if counted.tail_end == end else UNKNOWN
        # somebody else asked later, and has been faster
        start = end - end % self._block
        matches = yield from self._matches(counted, queue, by, start, end, deadline, is_whole=True)
        return len(matches) if matches is not None else UNKNOWN

    def _first_match(
        self,
        counted: BlockCounts,
        queue: ConsumeQueue,
        place: _Place,
        counts: list[int],
        end: int,
        deadline: float,
    ) -> Generator[None, None, int | None]:
        """Return the offset of the first match in these blocks; None if there is none, or if it is
        not known."""
        at = next((at for at, count in enumerate(counts) if count), None)
        if at is None or counts[at] == UNKNOWN:
            return None
        start = (place.first + at) * self._block
        stop = min(start + self._block, end)
        matches = yield from self._matches(
            counted, queue, place.by, start, stop, deadline, is_whole=False
        )
        return matches[0] if matches else None

    def _matches(
        self,
        counted: BlockCounts,
        queue: ConsumeQueue,
        by: ReaderFilter,
        start: int,
        stop: int,
        deadline: float,
        *,
        is_whole: bool,
    ) -> "Generator[None, None, list[int] | None]":
        """Return the offsets that match from `start` up to `stop`, which are in one block, or only
        the first of them unless `is_whole`; None if there was no time to look."""
        block = start // self._block
        known = counted.heads.get(block)
        if known is None or not known.low <= start <= known.high:
            known = counted.heads[block] = Matches(start, start)
        counted.heads.move_to_end(block)
        if len(counted.heads) > _MOST_HEADS:
            counted.heads.popitem(last=False)
        reader, base, piece = QueueReader(self._store.log, queue), block * self._block, _FIRST_PIECE
        while True:
            at = bisect_left(known.offsets, start - base)
            to = bisect_left(known.offsets, stop - base)
            if known.high >= stop or (at < to and not is_whole):
                return [base + offset for offset in known.offsets[at:to]]
            if self._clock() > deadline:
                return None
            upto = stop if is_whole else min(known.high + piece, stop)
            piece *= 4
            self.looked_at += upto - known.high
            for first, numbers in reader.matches(known.high, by.wanted, upto):
                known.offsets.extend((numbers + (first - base)).tolist())
            known.high = upto
            yield

    # What is remembered.

    def _entry(self, name: Hashable, key: Queue, queue: ConsumeQueue) -> BlockCounts:
        counted = self._counted.get((name, key))
        if counted is None or counted.queue is not queue:
            counted = self._counted[name, key] = BlockCounts(queue)
        self._counted.move_to_end((name, key))
        return counted

    def _forget(self) -> None:
        """What was not asked for for longest, if all of it takes too much memory."""
        size = self.size
        while size > _MOST_MEMORY and len(self._counted) > 1:
            _, counted = self._counted.popitem(last=False)
            size -= counted.size
        self._checked = len(self._counted)
