"""Reading ranges of queues out of a store directory, ours or Apache's: records stay where they lie.

For bulk: nothing is copied, and nothing is done message by message but in compiled loops. A broker
may be writing meanwhile: of a queue there is what was there when its `Scan` was made.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ._walk import are_sound
from .files import Mapped
from .format import UNIT_BLANK_SIZE, UNIT_SIZE
from .inspect import Directory
from .seals import NO_SEALS
from .select import QueueReader, Wanted

__all__ = ["Found", "Scan", "bounds"]

Ints = npt.NDArray[np.int64]


class Found(NamedTuple):
    """Sound records in the order of their queue, where they are mapped while `files` are held."""

    ats: Ints  # addresses
    sizes: Ints
    limits: Ints  # the first address after the file that each lies in
    files: tuple[Mapped, ...]
    missing: list[int]  # offsets of those between them that are gone or damaged


class Scan:
    """One queue. Its offsets are those from `first` up to `end`.

    `units_end` is beyond `end` if there are units whose records are not in the log (yet).
    """

    def __init__(self, directory: Directory | Path | str, topic: str, queue_id: int) -> None:
        if not isinstance(directory, Directory):
            directory = Directory(directory)
        self._log = directory.log
        self._queue = directory.open_queue(topic, queue_id)
        sequence = self._queue.sequence
        self.units_a_file = sequence.file_size // UNIT_SIZE
        low = sequence.start // UNIT_SIZE
        self.end = self.units_end = self._find_units_end(low)
        if self.end > low and self._is_absent(self.end - 1):
            self.end = _first(low, self.end, self._is_absent)
        self.first = _first(low, self.end, self._is_kept)
        sequence.end = self.end * UNIT_SIZE
        self._queue.min_offset = self.first  # type: ignore[assignment]

    def close(self) -> None:
        """What was found is good as long as it is held."""
        self._queue.close()

    def _unit(self, offset: int) -> tuple[int, int, int]:
        place, size, code = self._queue.units(offset, 1)[0].tolist()
        return place, size, code

    def _find_units_end(self, low: int) -> int:
        """The first unit that was never written. Hardly a page is looked at beyond it: files are
        mostly holes at first, and each page of those that is read takes memory."""
        sequence = self._queue.sequence
        for start in reversed(sequence.starts):
            first, high = start // UNIT_SIZE, (start + sequence.file_size) // UNIT_SIZE
            if self._is_empty(first):
                continue
            step = 1
            while first + step < high and not self._is_empty(first + step):
                step *= 2
            return _first(first + step // 2, min(first + step, high), self._is_empty)
        return low

    def _is_empty(self, offset: int) -> bool:
        place, size, _ = self._unit(offset)
        return size <= 0 or place < 0

    def _is_kept(self, offset: int) -> bool:
        """Blank units come before the first message, and so do those gone from the log."""
        place, size, _ = self._unit(offset)
        return size != UNIT_BLANK_SIZE and place >= self._log.start

    def _is_absent(self, offset: int) -> bool:
        """Whether nothing was written where the unit's record should be."""
        place, size, _ = self._unit(offset)
        if size == UNIT_BLANK_SIZE or place < self._log.start:
            return False
        head = self._log.files.view(place, place + 8)
        return len(head) < 8 or not head.any()

    def offset_at(self, millis: int) -> int:
        """The first offset stored at that time or later; the end if there is none."""
        return _first(self.first, self.end, lambda offset: self._stored(offset) >= millis)

    def _stored(self, offset: int) -> int:
        place, _, _ = self._unit(offset)
        head = self._log.files.view(place, place + 76).tobytes()
        at = 68 if head[39] & 0x10 else 56
        return int.from_bytes(head[at : at + 8], signed=True)

    def read(self, start: int, end: int, wanted: Wanted, rows: int, room: int) -> Iterator[Found]:
        """What is wanted of a range, at most so many records and about so many bytes at a time."""
        places, sizes, offsets = _NONE, _NONE, _NONE
        for at, numbers in QueueReader(self._log, self._queue).matches(start, wanted, end):
            if not len(numbers):
                continue
            units = self._queue.units(at, int(numbers[-1]) + 1)
            if len(units) > len(numbers):
                units = units[numbers]
            places = np.concatenate((places, units["offset"].astype(np.int64)))
            sizes = np.concatenate((sizes, units["size"].astype(np.int64)))
            offsets = np.concatenate((offsets, numbers + at))
            while len(places) >= rows or sizes.sum() >= room:
                fitting = int(np.searchsorted(np.cumsum(sizes), room, side="right"))
                count = max(min(rows, fitting), 1)
                yield self._locate(places[:count], sizes[:count], offsets[:count])
                places, sizes, offsets = places[count:], sizes[count:], offsets[count:]
        if len(places):
            yield self._locate(places, sizes, offsets)

    def _locate(self, places: Ints, sizes: Ints, offsets: Ints) -> Found:
        """Records at these places of the log."""
        ats, limits = np.empty_like(places), np.empty_like(places)
        sound = np.zeros(len(places), dtype=np.bool_)
        held, files, at = list[Mapped](), self._log.files, 0
        while at < len(places):
            found = files.find(int(places[at]))
            if found is None:
                at += 1
                continue
            file, start = found
            to = at + max(int(np.searchsorted(places[at:], start + file.size)), 1)
            part = slice(at, to)
            within = places[part] - start
            are_sound(file.address, within, sizes[part], start, file.size, *NO_SEALS, sound[part])
            ats[part], limits[part] = within + file.address, file.address + file.size
            held.append(file)
            at = to
        if sound.all():
            return Found(ats, sizes, limits, tuple(held), [])
        missing = offsets[~sound].tolist()
        return Found(ats[sound], sizes[sound], limits[sound], tuple(held), missing)


_NONE: Ints = np.empty(0, dtype=np.int64)


def _first(low: int, high: int, is_so: Callable[[int], bool]) -> int:
    """The first offset of which it is true, as it is of all that follow; `high` if of none."""
    return low + bisect_left(range(low, high), True, key=is_so)


def bounds(
    root: Path | str, is_wanted: Callable[[str], bool]
) -> dict[tuple[str, int], tuple[int, int]]:
    """(first, end) of every queue of such topics, by topic and queue id."""
    directory = Directory(root)
    found = {}
    for topic, queue_id in directory.paths.existing_queues():
        if not is_wanted(topic):
            continue
        scan = Scan(directory, topic, queue_id)
        found[topic, queue_id] = (scan.first, scan.end)
        scan.close()
    return found
