"""A checksum of every whole record, beside the log. Ours: RocketMQ's own covers the body only, so a
flipped bit in a topic or a property would go unnoticed. Apache's brokers leave these files alone.

One file for each file of the log, entries in the order of appends, which is that of their places:
where the record begins in that file, its CRC-32, the low half of its store time, and a check of the
entry itself. An entry that is not whole is none, and so is one of another store time: that is of a
record that was lost, and another took its place. A record without one is judged by its body alone,
so the store can do without: an entry that can't be written fails no append.

A seal file is read in pieces, of which a bounded number is kept: a log file of small messages has
tens of megabytes of seals.
"""

import logging
import os
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import StoreError
from ._walk import find_altered, make_seals, pick_seals, seal_check
from .files import Bytes, Files, file_name, file_start

__all__ = ["NO_SEALS", "Sealed", "Seals"]

log = logging.getLogger(__name__)

ENTRY = np.dtype([("at", "<u4"), ("crc", "<u4"), ("stored", "<u4"), ("check", "<u4")])
_PIECE = 16_384  # entries read together
_MOST_PIECES = 64  # kept; some 400 kB each

Entries = npt.NDArray[np.void]
Ints = npt.NDArray[np.int64]


class Sealed(NamedTuple):
    """Seals of one log file, in the order of their places."""

    places: Ints
    crcs: Ints
    times: Ints


_NONE: Ints = np.empty(0, dtype=np.int64)
NO_SEALS = Sealed(_NONE, _NONE, _NONE)


class _Known(NamedTuple):
    """What a seal file held when it was first asked for. What this process has written since is
    still as it wrote it."""

    entries: int
    firsts: list[int]  # the first place of each piece


class Seals:
    """Written by the log's writer; read by anyone."""

    def __init__(self, directory: Path, files: Files | None = None) -> None:
        self._directory = directory
        self._files = files or Files()
        self._written: tuple[int, int, int] | None = None  # log file, descriptor, bytes in it
        self._failed: int | None = None  # the log file for which no entries can be written
        self._known: dict[int, _Known] = {}
        self._pieces: dict[tuple[int, int], Sealed] = {}  # the least recently used first
        self._lock = threading.Lock()  # of the pieces

    # Writing.

    def add(self, file: int, places: Sequence[int], data: bytes, begin: int) -> None:
        """Seal records of a log file that were written at `begin`, each at one of `places`.

        After the records: a seal without its record could condemn another in its place.
        """
        edges = np.array([*places, begin + len(data)], dtype=np.int64)
        self.seal(file, edges, np.frombuffer(data, dtype=np.uint8), begin)

    def seal(self, file: int, edges: Ints, buffer: Bytes, begin: int) -> None:
        """As `add`, of records that lie in `buffer` from one edge to the next."""
        if file == self._failed:
            return
        entries = np.empty((len(edges) - 1, 4), dtype=np.uint32)
        make_seals(buffer.ctypes.data, edges, begin, file, entries)
        path = self._directory / file_name(file)
        try:
            descriptor, size = self._open(file, path)
            self._files.write(path, descriptor, size, entries.tobytes())
            self._written = (file, descriptor, size + entries.nbytes)
        except StoreError as error:
            # What is left of it is cut off, or passed over, when the file is next opened.
            log.warning("records of log file %s are not sealed: %s", path.name, error)
            self._failed = file
            self._close_written()

    def _open(self, file: int, path: Path) -> tuple[int, int]:
        if self._written is not None and self._written[0] == file:
            return self._written[1:]
        self._close_written()
        self._files.make_directory(self._directory)
        descriptor = self._files.open(path, os.O_WRONLY | os.O_CREAT)
        size = os.fstat(descriptor).st_size
        size -= size % ENTRY.itemsize  # a write cut short has left the rest
        self._written = (file, descriptor, size)
        return descriptor, size

    def _close_written(self) -> None:
        if self._written is not None:
            os.close(self._written[1])
            self._written = None

    def truncate(self, file: int, at: int) -> None:
        """No seals from `at` of that file on, nor of later ones; durable: none may come back.

        Raises StoreError; then it must be done again before anything else is sealed."""
        self._close_written()
        self._failed = None
        self._known.clear()
        self._pieces.clear()
        if not self._directory.is_dir():
            return
        for name in self._files.names(self._directory):
            start = file_start(name)
            if start is not None and start > file:
                self._files.remove(self._directory / name)
        path = self._directory / file_name(file)
        if path.exists():
            kept = self._entries_before(path, at)
            if path.stat().st_size > kept * ENTRY.itemsize:
                descriptor = self._files.open(path, os.O_WRONLY)
                try:
                    self._files.resize(path, descriptor, kept * ENTRY.itemsize)
                    self._files.sync(path, descriptor)
                finally:
                    os.close(descriptor)
        self._files.sync_directory(self._directory)

    def _entries_before(self, path: Path, at: int) -> int:
        """How many entries the file has up to the last that is of a place before `at`. It is looked
        for from the end, where it mostly is."""
        count = path.stat().st_size // ENTRY.itemsize
        for start in reversed(range(0, count, _PIECE)):
            entries = _read(path, start, min(count - start, _PIECE))
            whole = entries["check"] == _checks(entries)
            before = np.flatnonzero(whole & (entries["at"] < at))
            if len(before):
                return start + int(before[-1]) + 1
        return 0

    def drop_before(self, file: int) -> None:
        """Remove those of log files before `file`. What can't be removed now goes the next time."""
        try:
            for name in self._files.names(self._directory):
                start = file_start(name)
                if start is not None and start < file:
                    self._files.remove(self._directory / name)
        except StoreError as error:
            log.warning("old seals are kept for now: %s", error)
        for start in [start for start in self._known if start < file]:
            del self._known[start]
        with self._lock:
            for key in [key for key in self._pieces if key[0] < file]:
                del self._pieces[key]

    def close(self) -> None:
        self._close_written()

    # Reading.

    def broken(self, file: int, data: Bytes, ats: Ints, sizes: Ints) -> npt.NDArray[np.bool_]:
        """Which of the records at `ats` of a log file, in order, are not as they were written."""
        result = np.zeros(len(ats), dtype=np.bool_)
        places, crcs, times = self.of(file, ats)
        if not len(places):
            return result
        found = np.minimum(np.searchsorted(places, ats), len(places) - 1)
        sealed = np.flatnonzero(places[found] == ats)
        seals = found[sealed]
        altered = np.empty(len(sealed), dtype=np.bool_)
        find_altered(
            data.ctypes.data, ats[sealed], sizes[sealed], crcs[seals], times[seals], altered
        )
        result[sealed] = altered
        return result

    def has(self, file: int) -> bool:
        """Whether a log file has seals that a reader must look at."""
        return self._of_file(file).entries > 0

    def of(self, file: int, ats: Ints) -> Sealed:
        """The seals of records at these places of a log file, which are in order, if not others."""
        known = self._of_file(file)
        if not known.entries or not len(ats):
            return NO_SEALS
        first = max(bisect_right(known.firsts, int(ats[0])) - 1, 0)
        last = max(bisect_right(known.firsts, int(ats[-1])) - 1, 0)
        if first == last:
            return self._piece(file, first)
        picked = np.empty((3, len(ats)), dtype=np.int64)
        done = count = 0
        while done < len(ats):
            number = max(bisect_right(known.firsts, int(ats[done])) - 1, 0)
            piece = self._piece(file, number)
            done, count = pick_seals(ats, done, _end(known, number), *piece, picked, count)
        return Sealed(*picked[:, :count])

    def places(self, file: int, at: int) -> Iterator[int]:
        """Where records of a log file were written, from `at` on, in order."""
        known = self._of_file(file)
        first = max(bisect_right(known.firsts, at) - 1, 0)
        for number in range(first, len(known.firsts)):
            places = self._piece(file, number).places
            yield from places[np.searchsorted(places, at) :].tolist()

    def _of_file(self, file: int) -> _Known:
        known = self._known.get(file)
        if known is None:
            known = self._known[file] = self._look_at(file)
        return known

    def _look_at(self, file: int) -> _Known:
        path = self._directory / file_name(file)
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return _Known(0, [])
        except OSError as error:
            log.warning("%s: not read, bodies are checked instead: %s", path, error.strerror)
            return _Known(0, [])
        try:
            count = os.fstat(descriptor).st_size // ENTRY.itemsize
            firsts = list[int]()
            for start in range(0, count, _PIECE):
                data = os.pread(descriptor, _HEAD * ENTRY.itemsize, start * ENTRY.itemsize)
                entries = np.frombuffer(data[: len(data) - len(data) % ENTRY.itemsize], dtype=ENTRY)
                whole = entries[entries["check"] == _checks(entries)]
                before = firsts[-1] if firsts else 0
                firsts.append(int(whole["at"][0]) if len(whole) else before)
        finally:
            os.close(descriptor)
        if any(one > other for one, other in pairwise(firsts)):
            log.warning("%s: not in order, bodies are checked instead", path)
            return _Known(0, [])
        return _Known(count, firsts)

    def _piece(self, file: int, number: int) -> Sealed:
        key = (file, number)
        with self._lock:
            found = self._pieces.pop(key, None)
            if found is None:
                found = self._read_piece(file, number)
                while len(self._pieces) >= _MOST_PIECES:
                    del self._pieces[next(iter(self._pieces))]
            self._pieces[key] = found
            return found

    def _read_piece(self, file: int, number: int) -> Sealed:
        known, path = self._of_file(file), self._directory / file_name(file)
        count = min(known.entries - number * _PIECE, _PIECE)
        try:
            entries = _read(path, number * _PIECE, max(count, 0))
        except StoreError as error:
            log.warning("bodies are checked instead of seals: %s", error)
            return NO_SEALS
        entries = entries[entries["check"] == _checks(entries)][::-1]
        places, first = np.unique(entries["at"], return_index=True)  # the last one counts
        crcs, times = entries["crc"][first], entries["stored"][first]
        return Sealed(*(column.astype(np.int64) for column in (places, crcs, times)))


_HEAD = 64  # entries looked at for a whole one


def _read(path: Path, start: int, count: int) -> Entries:
    try:
        found: Entries = np.fromfile(path, dtype=ENTRY, count=count, offset=start * ENTRY.itemsize)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from None
    return found


def _end(known: _Known, number: int) -> int:
    return known.firsts[number + 1] if number + 1 < len(known.firsts) else 2**32


def _checks(entries: Entries) -> npt.NDArray[np.uint32]:
    checks = np.empty(len(entries), dtype=np.uint32)
    at, crc, stored = (entries[name].astype(np.int64) for name in ("at", "crc", "stored"))
    seal_check(at, crc, stored, checks)
    return checks
