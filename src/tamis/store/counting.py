"""How many messages of a stretch of a queue each of several filters matches, in one pass.

All tag filters are answered by one look at the tags codes, all SQL filters by one look at the
properties. What is counted is what `QueueReader.matches` gives for each filter alone.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from ..filter.engines.shared import SharedFilters
from ..filter.tags import TagFilter
from ._sieve import property_spans
from ._tally import CODE_FACTOR, tally_codes
from .commitlog import CommitLog
from .consumequeue import ConsumeQueue, Stretch
from .format import UNIT_BLANK_SIZE
from .mapped import NO_MAPPINGS
from .select import SqlFilter, Wanted, code_halves

__all__ = ["FilterSet"]

Ints = npt.NDArray[np.int64]


class FilterSet:
    """Filters that are counted by together. Immutable; for several threads."""

    def __init__(self, filters: Sequence[Wanted]) -> None:
        self._size = len(filters)
        tags = [
            (number, one)
            for number, one in enumerate(filters)
            if isinstance(one, TagFilter) and not one.matches_all
        ]
        sql = [(number, one) for number, one in enumerate(filters) if isinstance(one, SqlFilter)]
        listed = {number for number, _ in [*tags, *sql]}
        self._all = _numbers(number for number in range(self._size) if number not in listed)
        self._tags = _numbers(number for number, _ in tags)
        self._sql = _numbers(number for number, _ in sql)
        self._codes = _CodeTable([one for _, one in tags])
        self._shared = SharedFilters([one.batch_filter for _, one in sql])

    def count(self, log: CommitLog, queue: ConsumeQueue, start: int, end: int) -> list[int]:
        """Return how many messages from `start` up to `end`, which is at most the queue's end, each
        filter matches; those whose files are removed meanwhile match nothing."""
        counts = np.zeros(self._size, dtype=np.int64)
        at = max(start, int(queue.min_offset))
        while at < end and (place := queue.stretch(at, end)) is not None:
            if len(self._tags) or len(self._all):
                messages, by_tags = self._codes.count(queue, place)
                counts[self._all] += messages
                counts[self._tags] += by_tags
            if len(self._sql):
                counts[self._sql] += self._count_sql(log, place)
            at += place.size
        return [int(count) for count in counts]

    def _count_sql(self, log: CommitLog, place: Stretch) -> Ints:
        counts = np.zeros(len(self._sql), dtype=np.int64)
        numbers = np.flatnonzero(place.units["size"] != UNIT_BLANK_SIZE)
        starts, ends = np.empty_like(numbers), np.empty_like(numbers)
        at = 0
        while at < len(numbers):
            found = log.files.find(place.log_offset(int(numbers[at])))
            if found is None:
                at += 1
                continue
            file, start = found
            to = property_spans(
                place.address, numbers, at, file.address, start, file.size, starts, ends
            )
            counts += self._shared.count_spans(file.data, starts[at:to], ends[at:to])
            at = to
        return counts


class _CodeTable:
    """The tags codes that some filters want, and which filter wants which."""

    def __init__(self, filters: Sequence[TagFilter]) -> None:
        wanted = [code_halves(one.codes) for one in filters]
        codes = np.unique(np.concatenate([np.empty(0, np.int64), *wanted]))
        self._members = [np.searchsorted(codes, some) for some in wanted]
        self._size = len(codes)
        self._bits = max((2 * len(codes)).bit_length(), 1)
        self._table = np.full((1 << self._bits, 2), -1, dtype=np.int64)
        for number, code in enumerate(codes.tolist()):
            row = (code * CODE_FACTOR & 0xFFFFFFFF) >> (32 - self._bits)
            while self._table[row, 1] >= 0:
                row = (row + 1) % len(self._table)
            self._table[row] = code, number

    def count(self, queue: ConsumeQueue, place: Stretch) -> tuple[int, Ints]:
        """Return how many messages there are, and how many each filter matches: those whose
        extension is not there are matched by all."""
        extension = queue.extension
        files, size = NO_MAPPINGS, 1
        if extension is not None:  # held while their addresses are used
            files, size = extension.sequence.mappings(), extension.sequence.file_size
        tallies = np.zeros(self._size, dtype=np.int64)
        messages, unknown = tally_codes(
            place.address,
            place.size,
            self._table,
            self._bits,
            files.addresses,
            files.start,
            size,
            tallies,
        )
        counts = [int(tallies[members].sum()) + unknown for members in self._members]
        return messages, np.array(counts, dtype=np.int64)


def _numbers(values: Iterable[int]) -> Ints:
    return np.array(list(values), dtype=np.int64)
