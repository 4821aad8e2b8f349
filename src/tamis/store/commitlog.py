"""The commit log: every message of every topic, one after the other. The truth of a store.

A record never spans files; what is left of a file after its last record is a blank record.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..errors import CorruptRecord, StoreError
from ..message import Host, LogOffset, QueueOffset, SysFlag
from ..wire import record
from ..wire.record import Draft
from ._batch import Share, encode_batch, encode_block, measure_batch
from ._walk import REASONS, Column, End, Rows, are_sound, walk
from .files import Bytes, Files
from .format import BLANK_SIZE
from .mapped import FileSequence
from .seals import NO_SEALS, Sealed, Seals

__all__ = [
    "Appended",
    "Block",
    "Chunk",
    "CommitLog",
    "IllegalMessage",
    "Queue",
    "batch_size",
    "is_storable",
    "is_topic",
]

Queue = tuple[str, int]  # topic and queue id

_CHUNK = 8192  # records looked at together
_NEXT_OFFSET = int(Share.NEXT_OFFSET)
_HALF_WAY = int(SysFlag.ROLLBACK)
_COUNTED = (0, int(SysFlag.COMMIT))


_NOTHING: Bytes = np.empty(0, dtype=np.uint8)


class IllegalMessage(StoreError):
    """A message no record can hold, or larger than is allowed."""


def is_topic(name: str) -> bool:
    """Whether a directory can have the name. RocketMQ's own rule for topics is narrower, but the
    retry topic of a group has the group's name in it, for which it has no rule."""
    return _TOPIC.fullmatch(name) is not None and name not in (".", "..")


def is_storable(topic: str) -> bool:
    """Whether a record can have the topic."""
    return is_topic(topic) and len(topic.encode()) <= record.MAX_TOPIC


def batch_size(batch: bytes) -> int:
    """How many messages are in a batch as it travels; -1 if it is not one."""
    source = np.frombuffer(batch, dtype=np.uint8)
    return int(measure_batch(source.ctypes.data, len(source), 0, 0)[0])


_TOPIC = re.compile(r"[^/\x00-\x1f\x7f\ud800-\udfff]+")


class Appended(NamedTuple):
    log_offset: LogOffset
    size: int
    queue_offset: QueueOffset


@dataclass(frozen=True, slots=True)
class Block:
    """Messages that came together, as rows of where their parts lie (`_batch.Part`, `Share`).

    Whoever made it has seen to it that no properties are longer than `record.MAX_PROPERTIES`, that
    no queue id is negative, and that none is half-way through a transaction or delayed.
    """

    source: Bytes  # topics and bodies
    properties: Bytes
    rows: Rows
    shares: Rows
    queues: list[Queue]  # of each share
    born_host: Host
    size: int  # of all records
    largest: int  # body

    @property
    def counts(self) -> list[int]:
        """How many messages each queue gets."""
        counts: list[int] = self.shares[:, Share.COUNT].tolist()
        return counts


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
    recovery, and everything after it. An append that fails, at whatever step, leaves the log as it
    was; while even that can't be done, further ones are refused.
    """

    def __init__(
        self,
        directory: Path,
        file_size: int,
        files: Files,
        *,
        store_host: Host,
        seals: Seals | None = None,
        max_body: int = 4 * 2**20,
        writable: bool = True,
    ) -> None:
        self._sequence = FileSequence(directory, file_size, files, writable)
        self._seals = seals
        self._host = record.pack_host(store_host)
        self._topics: set[str] = set()  # that were found to be storable
        self._max_body = max_body
        self._is_torn = False  # an append failed, and what it left is still there

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

        All are checked first: one that can't be stored refuses all of them. If anything fails,
        `end` stays where it was and nothing of this call counts.
        """
        topics, most = self._topics, self._max_body
        for draft in drafts:
            if not 0 <= draft.queue_id < 2**31:
                raise IllegalMessage(f"queue {draft.queue_id}: it takes 0 to {2**31 - 1}")
            if (
                draft.topic not in topics
                or len(draft.body) > most
                or len(draft.properties) > record.MAX_PROPERTIES
            ):
                self._check(draft)
        with self._undone_if_it_fails():
            return self._append(drafts, next_offsets, now)

    @contextmanager
    def _undone_if_it_fails(self) -> Iterator[None]:
        """For an append, which moves `end` when all is written. Half of it may be there if it
        fails: a new file, a blank record, records that nobody was promised."""
        if self._is_torn:
            self.truncate(self._sequence.end)
            self._is_torn = False
        try:
            yield
        except BaseException:
            self._is_torn = True
            with suppress(StoreError):  # then it is tried again before the next append
                self.truncate(self._sequence.end)
                self._is_torn = False
            raise

    def _append(
        self, drafts: Sequence[Draft], next_offsets: dict[Queue, int], now: int
    ) -> list[Appended]:
        sequence, host = self._sequence, self._host
        at, room, file_size = sequence.end, sequence.room(), sequence.file_size
        begin, parts, places = at, list[bytes](), list[int]()
        placed = list[Appended]()
        taken: dict[Queue, int] = {}
        queue, next_offset = ("", -1), 0  # of the last message: the next is often of the same
        for draft in drafts:
            if draft.queue_id != queue[1] or draft.topic != queue[0]:
                taken[queue] = next_offset
                queue = (draft.topic, draft.queue_id)
                next_offset = taken.get(queue) or next_offsets.get(queue, 0)
            # half-way messages of transactions have no place in a queue
            counts = draft.sys_flag & _HALF_WAY in _COUNTED
            offset = next_offset if counts else 0
            data = draft.encode(offset, at, now, host)
            size = len(data)
            if size + BLANK_SIZE > room:
                if size + BLANK_SIZE > file_size:
                    raise IllegalMessage(f"a record of {size} bytes for files of {file_size}")
                if room:
                    blank = room.to_bytes(4) + record.BLANK_MAGIC.to_bytes(4)
                    self._write(begin, places, parts, blank)
                    at += room
                begin, parts, places, room = at, [], [], file_size
                data = draft.encode(offset, at, now, host)
            parts.append(data)
            places.append(at)
            placed.append(Appended(at, size, offset))  # type: ignore[arg-type]  # plain: it is hot
            at += size
            room -= size
            next_offset += counts
        self._write(begin, places, parts, b"")
        sequence.end = at
        taken[queue] = next_offset
        del taken["", -1]
        next_offsets.update(taken)
        return placed

    def append_batch(
        self, envelope: Draft, batch: bytes, next_offsets: dict[Queue, int], now: int
    ) -> list[Appended]:
        """Messages of a batch as it travels (`record.batch_item`), for the envelope's queue.

        What they have in common is the envelope's, its properties among it. All go to one file.
        """
        self._check(envelope)
        if not 0 <= envelope.queue_id < 2**31:
            raise IllegalMessage(f"queue {envelope.queue_id}: it takes 0 to {2**31 - 1}")
        if envelope.sys_flag & _HALF_WAY:
            raise IllegalMessage("a batch in a transaction")
        sequence, queue = self._sequence, (envelope.topic, envelope.queue_id)
        first = next_offsets.get(queue, 0)
        template = replace(envelope, body=b"", properties=b"").encode(0, 0, now, self._host)
        tail = np.frombuffer(record.prefixed(envelope.topic), dtype=np.uint8)
        head = np.frombuffer(template, dtype=np.uint8)[: -len(tail) - 2]
        extra = np.frombuffer(envelope.properties, dtype=np.uint8)
        source = np.frombuffer(batch, dtype=np.uint8)
        base = source.ctypes.data
        count, size = measure_batch(base, len(source), len(template), len(extra))
        if count < 0:
            raise IllegalMessage(f"a batch that is cut short or wrong at byte {size}")
        if size + BLANK_SIZE > sequence.file_size:
            raise IllegalMessage(f"a batch of {size} bytes for files of {sequence.file_size}")
        begin, room = sequence.end, sequence.room()
        rolls = size + BLANK_SIZE > room
        if rolls:
            begin += room
        out, edges = np.empty(size, dtype=np.uint8), np.empty(count + 1, dtype=np.int64)
        encode_batch(base, head, tail, extra, begin, first, out, edges)
        with self._undone_if_it_fails():
            if rolls and room:
                blank = room.to_bytes(4) + record.BLANK_MAGIC.to_bytes(4)
                sequence.write(begin - room, blank)
            sequence.write(begin, out.data)
            if self._seals is not None and count:
                self._seals.seal(begin - begin % sequence.file_size, edges, out, begin)
        sequence.end = begin + size
        next_offsets[queue] = first + count
        places = edges[:-1].tolist()
        sizes = np.diff(edges).tolist()
        rows = zip(places, sizes, range(first, first + count), strict=True)
        return [Appended(*row) for row in rows]  # type: ignore[arg-type]  # plain: it is hot

    def append_block(self, block: Block, next_offsets: dict[Queue, int], now: int) -> Rows | None:
        """As `append`, of a block: where each record begins, and where the last one ends.

        None if it does not fit into this file; then nothing happened.
        """
        sequence, size = self._sequence, block.size
        if size + BLANK_SIZE > sequence.room():
            return None
        if block.largest > self._max_body:
            raise IllegalMessage(f"a body of {block.largest} bytes: at most {self._max_body}")
        for topic, _ in block.queues:
            if topic not in self._topics:
                self._check(Draft(topic=topic))
        shares, begin = block.shares, sequence.end
        shares[:, _NEXT_OFFSET] = [next_offsets.get(queue, 0) for queue in block.queues]
        out = np.empty(size, dtype=np.uint8)
        edges = np.empty(len(block.rows) + 1, dtype=np.int64)
        head = _head(block.born_host, self._host)
        source, properties = block.source, block.properties
        encode_block(source, properties, block.rows, shares, head, now, begin, out, edges)
        with self._undone_if_it_fails():
            sequence.write(begin, out.data)
            if self._seals is not None:
                self._seals.seal(begin - begin % sequence.file_size, edges, out, begin)
        sequence.end = begin + size
        next_offsets.update(zip(block.queues, shares[:, _NEXT_OFFSET].tolist(), strict=True))
        return edges

    def _write(self, begin: int, places: list[int], records: list[bytes], after: bytes) -> None:
        data = b"".join(records)
        self._sequence.write(begin, data + after if after else data)
        if self._seals is not None and records:
            self._seals.add(begin - begin % self._sequence.file_size, places, data, begin)

    def _check(self, draft: Draft) -> None:
        if draft.topic and not is_topic(draft.topic):
            raise IllegalMessage(
                f"the topic {draft.topic!r}: it takes no / and no control characters"
            )
        length = len(draft.topic.encode())
        if not 0 < length <= record.MAX_TOPIC:
            raise IllegalMessage(f"a topic of {length} bytes: it takes 1 to {record.MAX_TOPIC}")
        self._topics.add(draft.topic)
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

    def sound_records(self, offsets: Rows, sizes: Rows) -> list[Bytes]:
        """The bytes of each record as they lie; empty if it is not there or damaged."""
        found = list[Bytes]()
        file_size, end = self._sequence.file_size, self._sequence.end
        at = 0
        while at < len(offsets):
            file_start = int(offsets[at]) - int(offsets[at]) % file_size
            to = len(offsets)  # mostly: they are in order, and few
            if offsets[-1] >= file_start + file_size:
                to = at + int(np.searchsorted(offsets[at:], file_start + file_size))
            whole = self._sequence.file_data(int(offsets[at]))
            if whole is None:
                found += [_NOTHING] * (to - at)
            else:
                data = whole[0]
                ats, lengths = offsets[at:to] - file_start, sizes[at:to]
                sound = np.empty(len(ats), dtype=np.bool_)
                stop = min(end - file_start, file_size)
                seals = self.seals_of(file_start, ats)
                are_sound(data.ctypes.data, ats, lengths, file_start, stop, *seals, sound)
                spans = zip(ats.tolist(), lengths.tolist(), sound.tolist(), strict=True)
                found += [data[a : a + n] if good else _NOTHING for a, n, good in spans]
            at = to
        return found

    @property
    def seals(self) -> Seals | None:
        return self._seals

    def seals_of(self, file_start: int, ats: Rows) -> Sealed:
        """Return the seals of records of one log file; see `Seals.of`."""
        return NO_SEALS if self._seals is None else self._seals.of(file_start, ats)

    def is_sealed(self, file_start: int) -> bool:
        return self._seals is not None and self._seals.has(file_start)

    def sound_record(self, offset: int, size: int) -> Bytes:
        return self.sound_records(np.array([offset]), np.array([size]))[0]

    def walk(
        self,
        start: int,
        stop: int | None = None,
        *,
        check_crc: bool = False,
        most: int | None = None,
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
            room = min(most or _CHUNK, (limit - at + file_start) // record.FIXED_SIZE + 1)
            rows = np.empty((room, len(Column)), dtype=np.int64)
            count, ended, why = walk(
                data.ctypes.data, at - file_start, limit, file_start, check_crc, rows
            )
            broken = self._first_broken(rows[:count], data, file_start) if check_crc else None
            if broken is not None:
                count, ended, why = broken, int(rows[broken, Column.AT]), End.SEAL
            at = file_start + ended
            if why == End.BLANK:
                at = file_start + self._sequence.file_size
            if count or why == End.BLANK:
                yield Chunk(rows[:count], data, file_start, LogOffset(at))
            if why in REASONS:
                path = str(self._sequence.file_path(at))
                raise CorruptRecord(path, at, REASONS[End(why)])

    def _first_broken(self, rows: Rows, data: Bytes, file_start: int) -> int | None:
        if self._seals is None:
            return None
        ats, sizes = rows[:, Column.AT], rows[:, Column.SIZE]
        broken = np.flatnonzero(self._seals.broken(file_start, data, ats, sizes))
        return int(broken[0]) if len(broken) else None

    def truncate(self, end: int) -> None:
        """Nothing is left from `end` on. Raises StoreError; then it can be done again."""
        self._sequence.truncate(end)
        if self._seals is not None:
            size = self._sequence.file_size
            self._seals.truncate(end - end % size, end % size)

    def drop_first(self) -> None:
        """The oldest file goes."""
        self._sequence.drop_first()
        if self._seals is not None:
            self._seals.drop_before(self._sequence.start)

    def close(self) -> None:
        self._sequence.close()
        if self._seals is not None:
            self._seals.close()


@lru_cache(1024)
def _head(born_host: Host, store_host: bytes) -> Bytes:
    """A record up to its body length, for `encode_block` to fill in."""
    template = Draft(topic="", born_host=born_host).encode(0, 0, 0, store_host)
    return np.frombuffer(template, dtype=np.uint8)[:-3]
