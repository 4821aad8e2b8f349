"""What a store is after a stop, clean or not: where the log ends, what in it is damaged, and from
where queues and index have to be made again. It decides; `store` acts.
"""

from dataclasses import dataclass

import numpy as np

from ..errors import CorruptRecord
from ..message import LogOffset
from ._walk import Column, find_record, walk
from .commitlog import CommitLog
from .consumequeue import ConsumeQueue
from .files import Bytes
from .format import EXT_ADDRESS_MAX, UNIT_BLANK_SIZE, UNIT_SIZE

__all__ = [
    "Damage",
    "LogState",
    "first_file_after",
    "has_extension",
    "next_record",
    "scan_log",
    "trim_queue",
]


@dataclass(frozen=True, slots=True)
class Damage:
    """A stretch of the log, with sound records after it, in which there is none."""

    file: str
    start: LogOffset
    end: LogOffset
    reason: str

    def __str__(self) -> str:
        return f"{self.file}, offset {self.start} to {self.end}: {self.reason}"


@dataclass(frozen=True, slots=True)
class LogState:
    end: LogOffset  # of the last sound record: what follows was never whole, and goes
    damages: tuple[Damage, ...]
    torn: str | None  # why the end is where it is, if something was begun there
    last_time: int  # the latest store time met, milliseconds; 0 without a record


def scan_log(log: CommitLog, start: int) -> LogState:
    """Every record from `start`, where one begins, with its CRC.

    A place without a sound record is the end if none follows: a write cut short, or nothing written
    yet. If one does follow, the place is damage: it is passed over and reported.
    """
    damages: list[Damage] = []
    at, latest = start, 0
    while True:
        try:
            for chunk in log.walk(at, check_crc=True):
                latest = int(np.max(chunk.rows[:, Column.STORED], initial=latest))
            return LogState(LogOffset(log.end), tuple(damages), None, latest)
        except CorruptRecord as bad:
            found = next_record(log, bad.offset + 1)
            if found is None:
                return LogState(LogOffset(bad.offset), tuple(damages), _torn(log, bad), latest)
            where = LogOffset(bad.offset), LogOffset(found)
            damages.append(Damage(bad.file, *where, bad.reason))
            at = found


def next_record(log: CommitLog, offset: int) -> int | None:
    """Where the first sound record at or after `offset` begins."""
    at = offset
    while at < log.end:
        found = log.files.file_data(at)
        if found is None:
            return None
        data, file_start = found
        # what was never written is not looked at: of a file of 1 GiB it may be nearly all
        stop = min(log.end, log.files.data_end(file_start)) - file_start
        # Where the seals know the records, no other place will do: a body may hold a whole record.
        for place in log.seals.places(file_start, at - file_start) if log.seals is not None else ():
            if _begins_record(data, place, stop, file_start):
                return file_start + place
            at = file_start + place + 1
        place = find_record(data.ctypes.data, at - file_start, stop, file_start)
        if place >= 0:
            return file_start + int(place)
        at = file_start + len(data)
    return None


def _begins_record(data: Bytes, at: int, stop: int, file_start: int) -> bool:
    rows = np.empty((1, len(Column)), dtype=np.int64)
    count, _, _ = walk(data.ctypes.data, at, stop, file_start, True, rows)
    return bool(count)


def _torn(log: CommitLog, bad: CorruptRecord) -> str | None:
    """None if there is nothing but zeros: no write was cut short."""
    file_start = bad.offset - bad.offset % log.files.file_size
    view = log.files.view(bad.offset, log.files.data_end(file_start))
    return str(bad) if view.any() else None


def first_file_after(log: CommitLog, safe: int) -> LogOffset:
    """The start of the last file that begins with a message stored up to `safe`; else the first.

    Everything before it is in the queues for certain.
    """
    rows = np.empty((1, len(Column)), dtype=np.int64)
    for start in reversed(log.files.starts):
        found = log.files.file_data(start)
        assert found is not None
        data, _ = found
        count, _, _ = walk(data.ctypes.data, 0, len(data), start, False, rows)
        if count and 0 < rows[0, Column.STORED] <= safe:
            return LogOffset(start)
    return log.start


def has_extension(queue: ConsumeQueue) -> bool:
    """Whether the extension units that the queue leads to are there, by the first and the last."""
    ends = []
    for _, units in queue.written():
        codes = units["code"][units["size"] > 0]
        addresses = codes[codes <= EXT_ADDRESS_MAX]
        ends += [int(addresses[0]), int(addresses[-1])] if len(addresses) else []
    if not ends:
        return True
    extension = queue.extension
    return extension is not None and None not in (extension.unit(ends[0]), extension.unit(ends[-1]))


def trim_queue(queue: ConsumeQueue, log_start: int, log_end: int) -> None:
    """Cuts a queue where its units stop making sense or point beyond the log's end, measures its
    messages and finds the first that is still in the log."""
    if queue.extension is not None:
        queue.extension.recover()
    end, largest = queue.sequence.start // UNIT_SIZE, 0
    last_address = None
    is_clean = True  # nothing but zeros after the end
    oldest = None  # units of the first file
    for first, units in queue.written():
        if not is_clean or end < first:  # after a gap there is nothing to keep
            is_clean = False
            break
        offsets, sizes = units["offset"].astype(np.int64), units["size"].astype(np.int64)
        blank = sizes == UNIT_BLANK_SIZE
        bad = (offsets < 0) | (sizes <= 0) | (~blank & (offsets + sizes > log_end))
        cut = np.flatnonzero(bad)
        good = int(cut[0]) if len(cut) else len(units)
        end = first + good
        if oldest is None:
            oldest = units[:good]
        if good:
            largest = max(largest, int(np.max(sizes[:good], where=~blank[:good], initial=0)))
            codes = units["code"][:good].astype(np.int64)
            addresses = codes[codes <= EXT_ADDRESS_MAX]
            if len(addresses):
                last_address = int(addresses.max())
        is_clean = not units[good:].view(np.uint8).any()
    queue.largest = largest
    if not queue.sequence or not is_clean:
        queue.truncate(end, begins_at_0=log_start == 0)
    else:
        queue.end_at(end, begins_at_0=log_start == 0)
    if queue.extension is not None and last_address is not None:
        queue.extension.truncate_after(last_address)
    elif queue.extension is not None:
        queue.extension.sequence.destroy()
    if queue.sequence and oldest is not None:
        queue.find_min_offset(oldest, log_start)
