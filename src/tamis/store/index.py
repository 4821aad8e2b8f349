"""RocketMQ's key index (`IndexFile`, `IndexService`, 4.9): from a message's keys to its offsets.

A file is a hash table: a header of 40 bytes, `slots` numbers of entries, `entries` of 20 bytes. A
slot holds its newest entry's number, an entry that of the one before it in the slot. Keys are not
stored, so a query may find messages of another key with the same hash. Which keys a message has,
and reading what a query finds, are left to the caller.
"""

import os
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import accumulate, compress
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import StoreError
from ..filter.engines.memory import Int, compiled, inlined
from ..java import string_hash
from .files import Files

__all__ = ["MAX_FOUND", "KeyIndex", "key_hash"]

Words = NDArray[np.uint32]  # a whole file; each is big-endian, every field begins on one
Ints = NDArray[np.int32]
Longs = NDArray[np.int64]

MAX_FOUND: Final = 64  # offsets a query gives at most: `maxMsgsNumBatch`

HEADER: Final = struct.Struct(">4q2i")  # as `Header` names them; the words they begin at:
BEGIN_TIME, END_TIME, BEGIN_OFFSET, END_OFFSET = 0, 2, 4, 6
USED_SLOTS, NEXT_ENTRY, FIRST_SLOT = 8, 9, 10
ENTRY: Final = np.dtype(
    [
        ("hash", ">i4"),
        ("offset", ">i8"),
        ("delta", ">i4"),  # whole seconds since the header's begin time, as it was at insertion
        ("previous", ">i4"),  # in the same slot; 0 ends the chain
    ]
)
ENTRY_WORDS: Final = ENTRY.itemsize // 4
RESERVED_AT_ONCE: Final = 4 << 20  # bytes of disk


def key_hash(topic: str, key: str) -> int:
    """`IndexFile.indexKeyHashMethod`: what `put` takes for this key of this topic."""
    value = abs(string_hash(f"{topic}#{key}"))
    return 0 if value == 2**31 else value


class Header(NamedTuple):
    begin_time: int  # store times are in ms
    end_time: int
    begin_offset: int
    end_offset: int
    used_slots: int
    next_entry: int  # its number, RocketMQ's index count; entry 0 is never used


class KeyIndex:
    """The files of a directory, Apache's or ours; made on the first `put`.

    What was put survives the process at once and a power cut after `flush`; a power cut before may
    leave a file half written, which `drop_after` removes. Any thread may call anything: a query
    waits for a put, and neither waits for the disk in `flush`. One process may write; another that
    reads sees the files there were when it opened.
    """

    def __init__(
        self,
        directory: Path,
        slots: int = 5_000_000,
        entries: int = 20_000_000,
        *,
        now: Callable[[], float] = time.time,
        writable: bool = True,
        system: Files | None = None,
    ) -> None:
        if slots < 1 or entries < 2:
            raise ValueError(f"{slots} slots and {entries} entries: at least 1 and 2 are needed")
        self.directory = directory
        self.slots = slots
        self.entries = entries
        self.last_timestamp = 0  # up to this store time all is synced: the checkpoint's third field
        self._now = now
        self._writable = writable
        self._system = system or Files()
        self._size = (FIRST_SLOT + slots + entries * ENTRY_WORDS) * 4
        self._files: list[_File] = []
        self._lock = threading.Lock()  # guards the list and what the files hold
        self._syncing = threading.Lock()  # keeps files open; taken before the other
        # Apache ignores names that are not numbers, too.
        names = [name for name in self._system.names(directory) if name.isdigit()]
        try:
            for name in names:
                self._files.append(_File(self._system, directory / name, self._size, writable))
        except BaseException:
            self._close_files()
            raise

    @property
    def files(self) -> list[Path]:
        """Oldest first."""
        with self._lock:
            return [file.path for file in self._files]

    @property
    def end_offset(self) -> int:
        """`put` skips messages that lie before; 0 if there are no files."""
        with self._lock:
            return self._files[-1].header().end_offset if self._files else 0

    def put(self, hashes: Ints, offsets: Longs, timestamps: Longs) -> None:
        """Entries in log order: a key's hash, its message's log offset and store time.

        A message before `end_offset` is in already and is skipped. One at `end_offset` is not, as
        in `IndexService.buildIndex`: it may be the next key of the last message, so dispatching
        again from there doubles that message's entries. Raises DiskFull before an entry that there
        is no room for; those before it are in.
        """
        hashes = np.ascontiguousarray(hashes, dtype=np.int32)
        offsets = np.ascontiguousarray(offsets, dtype=np.int64)
        timestamps = np.ascontiguousarray(timestamps, dtype=np.int64)
        if not len(hashes) == len(offsets) == len(timestamps):
            raise ValueError("hashes, offsets and timestamps differ in length")
        if len(hashes) and hashes.min() < 0:
            raise ValueError("a key's hash is never negative: see key_hash")
        done = 0
        with self._lock:
            self._check_writable()
            while done < len(hashes):
                file = self._file_with_room()
                last = min(file.header().next_entry + len(hashes) - done, self.entries)
                file.reserve((FIRST_SLOT + self.slots + last * ENTRY_WORDS) * 4)
                file.dirty = True
                done = _put(file.words, self.slots, self.entries, hashes, offsets, timestamps, done)

    def _file_with_room(self) -> "_File":
        """The last, or a new one that begins where it ends (`getAndCreateLastIndexFile`)."""
        header = self._files[-1].header() if self._files else Header(0, 0, 0, 0, 0, 1)
        if not self._files or header.next_entry >= self.entries:
            last, offset = max(header.end_time, 0), max(header.end_offset, 0)
            header = Header(last, last, offset, offset, 0, 0)
            self._files.append(_create(self._system, self._new_path(), self._size, header))
        return self._files[-1]

    def _new_path(self) -> Path:
        """Named by local time, yyyyMMddHHmmssSSS; later than the last one's, also by a clock that
        was set back, for names are the files' order.
        """
        moment, tick = datetime.fromtimestamp(self._now()), timedelta(milliseconds=1)
        if self._files:
            with suppress(ValueError):
                last = datetime.strptime(self._files[-1].path.name, "%Y%m%d%H%M%S%f")
                moment = max(moment, last + tick)
        while True:
            path = self.directory / f"{moment:%Y%m%d%H%M%S}{moment.microsecond // 1000:03d}"
            if not path.exists():
                return path
            moment += tick

    def query(self, topic: str, key: str, limit: int, begin: int, end: int) -> list[int]:
        """Log offsets of messages stored from `begin` to `end` (ms), newest first.

        Times are whole seconds after the file's first message, so both borders are blurred, and a
        key put twice is found twice. `IndexService.queryOffset`, but a chain that leads forwards,
        on which Apache may walk in circles, ends there.
        """
        hash_ = key_hash(topic, key)
        found = np.empty(max(min(limit, MAX_FOUND), 0), dtype=np.int64)
        count = 0
        with self._lock:
            for file in reversed(self._files):
                header = file.header()
                first, last = header.begin_time, header.end_time
                if (begin < first and last < end) or first <= begin <= last or first <= end <= last:
                    count = _find(
                        file.words, self.slots, self.entries, hash_, begin, end, found, count
                    )
                if first < begin or count >= len(found):
                    break
        return [int(offset) for offset in found[:count]]

    def flush(self) -> None:
        """Syncs what was put, and moves `last_timestamp` to the end of the newest full file.

        Not to that of the file in use: as in `IndexService.flush`, that one goes after a crash.
        """
        with self._syncing:
            with self._lock:
                dirty = [file for file in self._files if file.dirty]
                headers = [file.header() for file in self._files]
                for file in dirty:
                    file.dirty = False
            try:
                for file in dirty:
                    self._system.sync(file.path, file.descriptor)
            except StoreError:
                for file in dirty:
                    file.dirty = True
                raise
            full = [header.end_time for header in headers if header.next_entry >= self.entries]
            if self._writable and full:
                self.last_timestamp = full[-1]

    def drop_after(self, timestamp: int) -> None:
        """After a crash: removes files that end after the checkpoint's index time.

        Empty ones as well, where Apache keeps them: a power cut may have left slots without a
        header, and nothing is lost. What was in the removed files must be put again.
        """
        self._drop(lambda headers: [h.end_time > timestamp or h.next_entry <= 1 for h in headers])

    def drop_before(self, log_offset: int) -> None:
        """Removes the oldest files as long as they end before the log begins; never the last."""
        self._drop(
            lambda headers: accumulate((h.end_offset < log_offset for h in headers[:-1]), min)
        )

    def _drop(self, choose: Callable[[list[Header]], Iterable[bool]]) -> None:
        with self._syncing, self._lock:
            self._check_writable()
            chosen = choose([file.header() for file in self._files])
            for file in list(compress(self._files, chosen)):
                self._system.remove(file.path)
                self._files.remove(file)
                file.close()

    def _check_writable(self) -> None:
        if not self._writable:
            raise StoreError(
                f"{self.directory}: the index is closed or was opened for reading only"
            )

    def close(self) -> None:
        """Flushes. Nothing is found afterwards."""
        self.flush()
        self._writable = False
        with self._syncing, self._lock:
            self._close_files()

    def _close_files(self) -> None:
        for file in self._files:
            file.close()
        self._files = []

    def verify(self) -> Iterator[tuple[Path, str]]:
        """What no writer leaves behind; a power cut may. Not to be run beside `put`."""
        with self._lock:
            files = list(self._files)
        for file in files:
            for problem in _problems(file, self.slots, self.entries):
                yield file.path, problem


class _File:
    """One file, mapped. `reserve` room before writing: a mapping's answer to a full disk is SIGBUS.

    Closing leaves the mapping to whoever still looks at it.
    """

    def __init__(self, system: Files, path: Path, size: int, writable: bool) -> None:
        self.path = path
        self.dirty = writable  # not known to be synced
        self._system = system
        self._size = size
        self._reserved = 0
        self.descriptor = system.open(path, os.O_RDWR if writable else os.O_RDONLY)
        try:
            found = os.fstat(self.descriptor).st_size
            if found != size:
                raise StoreError(f"{path}: {found} bytes, where files of {size} are configured")
            data = system.map(path, self.descriptor, size, writable=writable)
        except BaseException:
            os.close(self.descriptor)
            raise
        self.words: Words = data.view(np.uint32)

    def header(self) -> Header:
        """Apache reads a next entry below 1 as 1, too: it writes none before the first entry."""
        header = Header(*HEADER.unpack_from(self.words.data.cast("B")))
        return header._replace(next_entry=max(header.next_entry, 1))

    def reserve(self, end: int) -> None:
        if end > self._reserved:
            end = min(-(-end // RESERVED_AT_ONCE) * RESERVED_AT_ONCE, self._size)
            size = end - self._reserved
            self._system.allocate(self.path, self.descriptor, self._reserved, size)
            self._reserved = end

    def close(self) -> None:
        os.close(self.descriptor)


def _create(system: Files, path: Path, size: int, header: Header) -> _File:
    """Whole under its name, or not there: a leftover `new` is overwritten by the next."""
    above = system.make_directory(path.parent)
    new = path.with_name("new")
    descriptor = system.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        system.write(new, descriptor, 0, HEADER.pack(*header))
        system.resize(new, descriptor, size)
        system.sync(new, descriptor)
    finally:
        os.close(descriptor)
    system.replace(new, path)
    try:
        for directory in (path.parent, *above):
            system.sync_directory(directory)
        return _File(system, path, size, writable=True)
    except StoreError:
        with suppress(StoreError):  # else it is found, empty, at the next start
            system.remove(path)
        raise


@inlined
def _swapped(word: Int) -> Int:
    return (word >> 24) | ((word >> 8) & 0xFF00) | ((word & 0xFF00) << 8) | ((word & 0xFF) << 24)


@inlined
def _get(words: Words, at: Int) -> Int:
    return np.int64(np.int32(_swapped(words[at])))


@inlined
def _get_long(words: Words, at: Int) -> Int:
    return _get(words, at) << 32 | (_get(words, at + 1) & 0xFFFFFFFF)


@inlined
def _set(words: Words, at: Int, value: Int) -> None:
    words[at] = _swapped(np.uint32(value))


@inlined
def _set_long(words: Words, at: Int, value: Int) -> None:
    _set(words, at, value >> 32)
    _set(words, at + 1, value)


@compiled
def _put(
    words: Words, slots: Int, entries: Int, hashes: Ints, offsets: Longs, times: Longs, done: Int
) -> Int:
    """`IndexFile.putKey` for each from `done` on; gives how many are done once the file is full.

    The order of writing is Apache's, entry by entry: 1. the entry, 2. its slot, 3. the header. A
    process killed between leaves a slot that points at the next entry, which ends its chain there.
    """
    number = max(_get(words, NEXT_ENTRY), 1)
    used = _get(words, USED_SLOTS)
    begin = _get_long(words, BEGIN_TIME)
    end = _get_long(words, END_OFFSET)
    while done < len(hashes) and number < entries:
        hash_, offset, time_ = np.int64(hashes[done]), offsets[done], times[done]
        done += 1
        if offset < end:
            continue
        slot = FIRST_SLOT + hash_ % slots
        previous = _get(words, slot)
        if previous < 0 or previous > number:
            previous = 0
        # A later file's first delta counts from the time it inherited; then comes the file's own.
        delta = 0 if begin <= 0 else min(max((time_ - begin) // 1000, 0), 0x7FFFFFFF)
        at = FIRST_SLOT + slots + number * ENTRY_WORDS
        _set(words, at, hash_)  # 1.
        _set_long(words, at + 1, offset)
        _set(words, at + 3, delta)
        _set(words, at + 4, previous)
        _set(words, slot, number)  # 2.
        if number == 1:  # 3.
            begin = time_
            _set_long(words, BEGIN_OFFSET, offset)
            _set_long(words, BEGIN_TIME, time_)
        if previous == 0:
            used += 1
            _set(words, USED_SLOTS, used)
        number += 1
        _set(words, NEXT_ENTRY, number)
        end = offset
        _set_long(words, END_OFFSET, offset)
        _set_long(words, END_TIME, time_)
    return done


@compiled
def _find(
    words: Words, slots: Int, entries: Int, hash_: Int, begin: Int, end: Int, found: Longs, n: Int
) -> Int:
    """`IndexFile.selectPhyOffset`: `found` has `n` offsets; adds to them, gives how many it has."""
    first = _get_long(words, BEGIN_TIME)
    next_entry = max(_get(words, NEXT_ENTRY), 1)
    above = min(next_entry + 1, entries)  # Apache lets the next entry itself pass
    number = _get(words, FIRST_SLOT + hash_ % slots)
    while next_entry > 1 and 0 < number < above and n < len(found):
        at = FIRST_SLOT + slots + number * ENTRY_WORDS
        delta = _get(words, at + 3)
        stored = first + delta * 1000
        if delta < 0:
            break
        if _get(words, at) == hash_ and begin <= stored <= end:
            found[n] = _get_long(words, at + 1)
            n += 1
        if stored < begin:
            break
        above, number = number, _get(words, at + 4)
    return n


def _problems(file: _File, slots: int, entries: int) -> Iterator[str]:
    header = file.header()
    count = header.next_entry
    if count > entries:
        yield f"the next entry is {count}, beyond the {entries} there is room for"
        count = entries
    numbers = np.arange(count)
    heads = file.words[FIRST_SLOT : FIRST_SLOT + slots].view(">i4").astype(np.int64)
    table = file.words[FIRST_SLOT + slots :].view(ENTRY)[:count]
    home = table["hash"] % slots
    previous = table["previous"].astype(np.int64)

    def some(bad: NDArray[np.bool_], what: str) -> Iterator[str]:
        if bad.any():
            yield f"{what}: {np.count_nonzero(bad)}, first {np.flatnonzero(bad)[0]}"

    beyond = (heads < 0) | (heads >= count)
    yield from some(beyond, f"slots that point at no entry below {count}")
    strange = ~beyond & (heads > 0) & (home[np.where(beyond, 0, heads)] != np.arange(slots))
    yield from some(strange, "slots that point at an entry whose hash is another slot's")
    forward = (numbers > 0) & ((previous < 0) | (previous >= numbers))
    yield from some(forward, "entries with a link that does not lead backwards")
    linked = (numbers > 0) & (previous > 0) & ~forward
    strange = linked & (home[np.where(linked, previous, 0)] != home)
    yield from some(strange, "entries linked to one whose hash is another slot's")
    yield from some(table["delta"] < 0, "entries with a negative time")
    if (used := np.count_nonzero(heads)) != header.used_slots:
        yield f"{used} slots are used, the header says {header.used_slots}"
    if count > 1:
        first, last = int(table["offset"][1]), int(table["offset"][-1])
        if (first, last) != (header.begin_offset, header.end_offset):
            said = f"{header.begin_offset} to {header.end_offset}"
            yield f"the entries' offsets are {first} to {last}, the header says {said}"
