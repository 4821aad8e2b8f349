"""The commit log: every message of every topic, one after the other. The truth of a store.

A record never spans files; what is left of a file after its last record is a blank record.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..errors import CorruptRecord, StoreError
from ..message import Host, LogOffset, QueueOffset, SysFlag
from ..wire import record
from ..wire.record import Draft
from ._walk import REASONS, Column, End, Rows, is_sound, walk
from .files import Bytes, Files
from .format import BLANK_SIZE
from .mapped import FileSequence

__all__ = ["Appended", "Chunk", "CommitLog", "IllegalMessage", "Queue"]

Queue = tuple[str, int]  # topic and queue id

_CHUNK = 8192  # records looked at together


class IllegalMessage(StoreError):
    """A message no record can hold, or larger than is allowed."""


class Appended(NamedTuple):
    log_offset: LogOffset
    size: int
    queue_offset: QueueOffset


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some records of one file, in order: a row each, and the mapping they lie in."""

    rows: Rows
    data: Bytes
    file_start: int
    end: LogOffset  # of the last record, or of its file if a blank follows

    @property
    def offsets(self) -> Rows:
        """Where each record begins in the log."""
        offsets: Rows = self.rows[:, Column.AT] + self.file_start
        return offsets


class CommitLog:
    """Appended by one writer; any number may read, never blocked, up to `end`.

    An append is with the operating system when it returns: it survives a kill of the process. It
    survives a power cut once `flush` has returned. A record cut short by either is dropped by
    recovery, and everything after it.
    """

    def __init__(
        self,
        directory: Path,
        file_size: int,
        files: Files,
        *,
        store_host: Host,
        max_body: int = 4 * 2**20,
        writable: bool = True,
    ) -> None:
        self._sequence = FileSequence(directory, file_size, files, writable)
        self._host = store_host
        self._max_body = max_body

    @property
    def files(self) -> FileSequence:
        return self._sequence

    @property
    def start(self) -> LogOffset:
        return LogOffset(self._sequence.start)

    @property
    def end(self) -> LogOffset:
        return LogOffset(self._sequence.end)

    def append(
        self, drafts: Sequence[Draft], next_offsets: dict[Queue, int], now: int
    ) -> list[Appended]:
        """Writes records in order, giving each the next offset of its queue (`now`: milliseconds).

        All are checked first: one that can't be stored refuses all of them. If the disk fills up,
        `end` stays where it was and nothing of this call counts.
        """
        for draft in drafts:
            self._check(draft)
        try:
            return self._append(drafts, next_offsets, now)
        except StoreError:
            self._sequence.truncate(self._sequence.end)  # half of it may be there
            raise

    def _append(
        self, drafts: Sequence[Draft], next_offsets: dict[Queue, int], now: int
    ) -> list[Appended]:
        sequence, host = self._sequence, self._host
        at, room = sequence.end, sequence.room()
        begin, buffer = at, bytearray()
        placed = []
        taken: dict[Queue, int] = {}
        for draft in drafts:
            queue = (draft.topic, draft.queue_id)
            # half-way messages of transactions have no place in a queue
            counts = draft.sys_flag & SysFlag.ROLLBACK in (0, SysFlag.COMMIT)
            offset = 0
            if counts:
                offset = taken.get(queue) or next_offsets.get(queue, 0)
            data = draft.encode(offset, at, now, host)
            if len(data) + BLANK_SIZE > room:
                if room:
                    buffer += room.to_bytes(4) + record.BLANK_MAGIC.to_bytes(4)
                    sequence.write(begin, buffer)
                    at += room
                begin, buffer, room = at, bytearray(), sequence.file_size
                if len(data) + BLANK_SIZE > room:
                    raise IllegalMessage(
                        f"a record of {len(data)} bytes for files of {sequence.file_size}"
                    )
                data = draft.encode(offset, at, now, host)
            buffer += data
            placed.append(Appended(LogOffset(at), len(data), QueueOffset(offset)))
            at += len(data)
            room -= len(data)
            if counts:
                taken[queue] = offset + 1
        sequence.write(begin, buffer)
        sequence.end = at
        next_offsets.update(taken)
        return placed

    def _check(self, draft: Draft) -> None:
        if not 0 < len(draft.topic) <= record.MAX_TOPIC or len(draft.topic.encode()) > 127:
            raise IllegalMessage(f"a topic of {len(draft.topic)} characters: it takes 1 to 127")
        if len(draft.properties) > record.MAX_PROPERTIES:
            raise IllegalMessage(
                f"properties of {len(draft.properties)} bytes: at most {record.MAX_PROPERTIES}"
            )
        if len(draft.body) > self._max_body:
            raise IllegalMessage(f"a body of {len(draft.body)} bytes: at most {self._max_body}")

    def flush(self) -> None:
        self._sequence.flush()

    def record(self, offset: int, size: int) -> Bytes:
        """The bytes of one record as they lie; empty if they are not there (any more)."""
        data = self._sequence.view(offset, offset + size)
        return data if len(data) == size else data[:0]

    def sound_record(self, offset: int, size: int) -> Bytes:
        """As `record`, and empty too if it is damaged: that is never served."""
        data = self.record(offset, size)
        if len(data) and is_sound(data.ctypes.data, 0, size, offset):
            return data
        return data[:0]

    def walk(
        self, start: int, stop: int | None = None, *, check_crc: bool = False
    ) -> Iterator[Chunk]:
        """Chunks of sound records from `start`, where one must begin, up to `stop` or `end`.

        Raises CorruptRecord, after giving what came before it, where there is none.
        """
        at = start
        stop = self.end if stop is None else stop
        while at < stop:
            found = self._sequence.file_data(at)
            if found is None:
                return
            data, file_start = found
            limit = min(stop - file_start, self._sequence.file_size)
            rows = np.empty((_CHUNK, len(Column)), dtype=np.int64)
            count, ended, why = walk(
                data.ctypes.data, at - file_start, limit, file_start, check_crc, rows
            )
            at = file_start + ended
            if why == End.BLANK:
                at = file_start + self._sequence.file_size
            if count or why == End.BLANK:
                yield Chunk(rows[:count], data, file_start, LogOffset(at))
            if why in REASONS:
                path = str(self._sequence.file_path(at))
                raise CorruptRecord(path, at, REASONS[End(why)])

    def close(self) -> None:
        self._sequence.close()
