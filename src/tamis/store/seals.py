"""A checksum of every whole record, beside the log. Ours: RocketMQ's own covers the body only, so a
flipped bit in a topic or a property would go unnoticed. Apache's brokers leave these files alone.

One file for each file of the log, entries in the order of appends: where the record begins in that
file, its CRC-32, the low half of its store time, and a check of the entry itself. An entry that is
not whole is none, and so is one of another store time: that is of a record that was lost, and
another took its place. A record without one is judged by its body alone.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ._walk import crcs_and_times, make_seals, seal_check
from .files import Bytes, file_name, file_start

__all__ = ["Seals"]

ENTRY = np.dtype([("at", "<u4"), ("crc", "<u4"), ("stored", "<u4"), ("check", "<u4")])

Entries = npt.NDArray[np.void]
Ints = npt.NDArray[np.int64]


class Seals:
    """Written by the log's writer; read by anyone."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._descriptors: dict[int, int] = {}
        # By log file: places and CRCs, as they were when first asked for. What this process wrote
        # since is still as it wrote it.
        self._known: dict[int, tuple[Ints, Ints, Ints]] = {}

    def add(self, file: int, places: Sequence[int], data: bytes, begin: int) -> None:
        """For records of a log file, about to be written at `begin`, each at one of `places`.

        After the records: a seal without its record could condemn another in its place.
        """
        edges = np.array([*places, begin + len(data)], dtype=np.int64)
        self.seal(file, edges, np.frombuffer(data, dtype=np.uint8), begin)

    def seal(self, file: int, edges: Ints, buffer: Bytes, begin: int) -> None:
        """As `add`, of records that lie in `buffer` from one edge to the next."""
        entries = np.empty((len(edges) - 1, 4), dtype=np.uint32)
        make_seals(buffer.ctypes.data, edges, begin, file, entries)
        if file not in self._descriptors:
            for old in list(self._descriptors):
                os.close(self._descriptors.pop(old))
            self._directory.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            descriptor = os.open(self._directory / file_name(file), flags, 0o644)
            self._descriptors[file] = descriptor
            _whole_entries(descriptor)
        descriptor, made = self._descriptors[file], entries.tobytes()
        with suppress(OSError):  # a full disk: the log will say so, and these can be done without
            if os.write(descriptor, made) != len(made):
                _whole_entries(descriptor)

    def broken(self, file: int, data: Bytes, ats: Ints, sizes: Ints) -> npt.NDArray[np.bool_]:
        """Which of the records at `ats` of a log file are not as they were written."""
        places, crcs, times = self._load(file)
        result = np.zeros(len(ats), dtype=np.bool_)
        if not len(places):
            return result
        found = np.minimum(np.searchsorted(places, ats), len(places) - 1)
        sealed = np.flatnonzero(places[found] == ats)
        now = np.empty((len(sealed), 2), dtype=np.int64)
        crcs_and_times(data.ctypes.data, ats[sealed], sizes[sealed], now)
        same = now[:, 1] == times[found[sealed]]
        result[sealed] = same & (now[:, 0] != crcs[found[sealed]])
        return result

    def of(self, file: int) -> tuple[Ints, Ints, Ints]:
        """The seals of a log file: places, in order, with their CRCs and times."""
        return self._load(file)

    def places(self, file: int) -> Ints:
        """Where records of a log file were written, in order."""
        return self._load(file)[0]

    def _load(self, file: int) -> tuple[Ints, Ints, Ints]:
        if file not in self._known:
            try:
                data = (self._directory / file_name(file)).read_bytes()
            except FileNotFoundError:
                data = b""
            entries = np.frombuffer(data[: len(data) - len(data) % ENTRY.itemsize], dtype=ENTRY)
            entries = entries[entries["check"] == _checks(entries)][::-1]
            places, first = np.unique(entries["at"], return_index=True)  # the last one counts
            crcs, times = entries["crc"][first], entries["stored"][first]
            self._known[file] = (
                places.astype(np.int64),
                crcs.astype(np.int64),
                times.astype(np.int64),
            )
        return self._known[file]

    def truncate(self, file: int, at: int) -> None:
        """No seals from `at` of that file on, nor of later ones; durable: none may come back."""
        if not self._directory.is_dir():
            return
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors = {}
        for path in self._directory.iterdir():
            start = file_start(path.name)
            if start is not None and start > file:
                path.unlink()
        self._known = {}
        places, crcs, times = self._load(file)
        path = self._directory / file_name(file)
        if len(places) and places[-1] >= at:
            kept = np.empty(int(np.searchsorted(places, at)), dtype=ENTRY)
            kept["at"], kept["crc"] = places[: len(kept)], crcs[: len(kept)]
            kept["stored"] = times[: len(kept)]
            kept["check"] = _checks(kept)
            with path.open("wb") as rewritten:
                rewritten.write(kept.tobytes())
                rewritten.flush()
                os.fsync(rewritten.fileno())
        descriptor = os.open(self._directory, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        self._known = {}

    def drop_before(self, file: int) -> None:
        if self._directory.is_dir():
            for path in self._directory.iterdir():
                start = file_start(path.name)
                if start is not None and start < file:
                    path.unlink()

    def close(self) -> None:
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors = {}


def _checks(entries: Entries) -> npt.NDArray[np.uint32]:
    checks = np.empty(len(entries), dtype=np.uint32)
    at, crc, stored = (entries[name].astype(np.int64) for name in ("at", "crc", "stored"))
    seal_check(at, crc, stored, checks)
    return checks


def _whole_entries(descriptor: int) -> None:
    """Cuts off what a write cut short has left."""
    size = os.fstat(descriptor).st_size
    if size % ENTRY.itemsize:
        os.ftruncate(descriptor, size - size % ENTRY.itemsize)
