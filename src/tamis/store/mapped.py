"""A sequence of bytes cut into files of one size, each named by where it begins.

RocketMQ's `MappedFileQueue`. The commit log, each consume queue and each extension is one.
"""

import threading
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import StoreError
from .files import Bytes, Data, File, Files, Mapped, file_name, file_start

__all__ = ["NO_MAPPINGS", "FileSequence", "Mappings", "Unsynced"]

Ints = npt.NDArray[np.int64]

_NOTHING: Bytes = np.empty(0, dtype=np.uint8)


class _Table(NamedTuple):
    """The files there are, in order. Never changed, only replaced: a reader keeps what it has."""

    starts: tuple[int, ...] = ()
    files: tuple[File, ...] = ()


class Unsynced(NamedTuple):
    """What was written since the last flush."""

    files: dict[int, File]  # by where they begin
    directories: list[Path]  # whose entries have changed


class Mappings(NamedTuple):
    """All files of a sequence, mapped. Their addresses are good as long as this is held."""

    start: int  # of the first
    files: tuple[Mapped, ...]
    addresses: Ints


NO_MAPPINGS = Mappings(0, (), np.empty(0, dtype=np.int64))


class FileSequence:
    """`start` to `end` is what there is. One writer, who writes before `end` moves; readers are
    never blocked and see nothing beyond `end`. Files are opened when they are used. There may be
    files beyond `end` that hold nothing yet. After a crash `end` is whatever recovery says.
    """

    __slots__ = (
        "_changing",
        "_files",
        "_new",
        "_table",
        "_unsynced",
        "_writable",
        "directory",
        "end",
        "file_size",
    )

    def __init__(
        self, directory: Path, file_size: int, files: Files, writable: bool = True
    ) -> None:
        self.directory = directory
        self.file_size = file_size
        self.end = 0
        self._files = files
        self._writable = writable
        self._table = _Table()
        self._unsynced: dict[int, File] = {}
        self._new: list[Path] = []  # directories whose entries are to be synced
        # of the table and `_unsynced`: whoever writes, reserves and flushes may differ
        self._changing = threading.Lock()
        self._load()

    def _load(self) -> None:
        found = []
        for name in self._files.names(self.directory):
            start = file_start(name)
            if start is not None:
                found.append((start, self.directory / name))
        starts, files = list[int](), list[File]()
        for start, path in found:
            try:
                size = path.stat().st_size
            except FileNotFoundError:  # another process has removed it since
                continue
            if size == 0 and start == found[-1][0]:
                # made, and not given its size before the process was killed: nothing is in it
                if self._writable:
                    self._files.remove(path)
                continue
            if size != self.file_size:
                raise StoreError(
                    f"{path}: {size} bytes, where files of {self.file_size} are configured; "
                    "file sizes stay as they were for the life of a directory"
                )
            if starts and start != starts[-1] + self.file_size:
                missing = file_name(starts[-1] + self.file_size)
                raise StoreError(f"{self.directory}: the file {missing} is missing")
            starts.append(start)
            files.append(self._files.file(path, self.file_size, self._writable))
        self._table = _Table(tuple(starts), tuple(files))
        self.end = starts[-1] + self.file_size if starts else 0

    @property
    def start(self) -> int:
        return self._table.starts[0] if self._table.starts else 0

    @property
    def starts(self) -> tuple[int, ...]:
        return self._table.starts

    def __bool__(self) -> bool:
        return bool(self._table.starts)

    def room(self) -> int:
        """Bytes left in the file that `end` lies in; 0 if that file does not exist yet."""
        starts, end = self._table.starts, self.end
        if not starts or end >= starts[-1] + self.file_size:
            return 0
        return self.file_size - end % self.file_size

    def append(self, data: Data) -> int:
        """At `end`, over as many files as it takes; gives where it begins."""
        at = self.end
        self.write(at, data)
        self.end = at + len(data)
        return at

    def write(self, offset: int, data: Data) -> None:
        """Makes the files it needs. `end` stays: if this fails, nothing was written that counts."""
        view = memoryview(data)
        while view:
            file, start = self._file_for(offset)
            part = view[: start + self.file_size - offset]
            with self._changing:
                self._unsynced[start] = file
            file.write(offset - start, part)
            offset += len(part)
            view = view[len(part) :]

    def reserve(self, offset: int, end: int) -> None:
        """Make sure that bytes from `offset` up to `end` can be written: files and room are there.

        Raises StoreError."""
        while offset < end:
            file, start = self._file_for(offset)
            to = min(end, start + self.file_size)
            file.allocate(offset - start, to - offset)
            offset = to

    def _file_for(self, offset: int) -> tuple[File, int]:
        start = offset - offset % self.file_size
        table = self._table
        if not table.starts or table.starts[-1] < start:
            table = self._extend(start)
        return table.files[bisect_right(table.starts, offset) - 1], start

    def _extend(self, start: int) -> _Table:
        """With files up to the one that begins at `start`.

        A file that is not the last is durable, if empty: after a power cut none is missing between
        others."""
        while not self._table.starts or self._table.starts[-1] < start:
            if self._new:
                self.flush()
            with self._changing:
                starts, files = self._table
                new = starts[-1] + self.file_size if starts else start
                if new > start:
                    break  # someone else was faster
                self._new += self._files.make_directory(self.directory)
                file = self._files.create(self.directory / file_name(new), self.file_size)
                self._new.append(self.directory)
                self._unsynced[new] = file
                self._table = _Table((*starts, new), (*files, file))
        return self._table

    def view(self, offset: int, end: int | None = None) -> Bytes:
        """From `offset` to the end of its file, or of what there is; empty if it is not there."""
        end = self.end if end is None else min(end, self.end)
        if offset >= end:
            return _NOTHING
        found = self.find(offset)
        if found is None:
            return _NOTHING
        mapped, start = found
        return mapped.data[offset - start : min(end - start, self.file_size)]

    def file_data(self, offset: int) -> tuple[Bytes, int] | None:
        """The whole mapping of the file that `offset` lies in, and where it begins."""
        found = self.find(offset)
        return None if found is None else (found[0].data, found[1])

    def find(self, offset: int) -> tuple[Mapped, int] | None:
        """The file that `offset` lies in, mapped, and where it begins."""
        starts, files = self._table
        index = bisect_right(starts, offset) - 1
        if index < 0 or offset >= starts[index] + self.file_size:
            return None
        file = files[index]
        if file.is_closed:  # removed since
            return None
        return file.mapped(), starts[index]

    def mappings(self) -> Mappings:
        starts, files = self._table
        if not starts:
            return NO_MAPPINGS
        mapped = tuple(file.mapped() for file in files)
        addresses = np.array([file.address for file in mapped], dtype=np.int64)
        return Mappings(starts[0], mapped, addresses)

    def file_path(self, offset: int) -> Path:
        return self.directory / file_name(offset - offset % self.file_size)

    def data_end(self, start: int) -> int:
        """Where data ends in the file that begins at `start`, or a little beyond."""
        starts, files = self._table
        return start + files[bisect_right(starts, start) - 1].data_end()

    def written(self) -> Iterator[tuple[int, Bytes]]:
        """Where each file begins and a copy of what was ever written to it."""
        for start, file in self.files():
            yield start, file.written()

    def take_unsynced(self) -> Unsynced:
        """What is to be synced; whoever takes it sees to that, or gives it back."""
        with self._changing:
            taken = Unsynced(self._unsynced, self._new)
            self._unsynced, self._new = {}, []
        return taken

    def give_back(self, unsynced: Unsynced) -> None:
        with self._changing:
            self._unsynced = {**unsynced.files, **self._unsynced}
            self._new = unsynced.directories + self._new

    def flush(self) -> None:
        """Makes what was written durable, and the names of files that were made. What a writer
        adds meanwhile comes with the next."""
        unsynced, new = taken = self.take_unsynced()
        try:
            for start in list(unsynced):
                file = unsynced[start]
                if not file.is_closed:  # else it was removed
                    file.sync()
                del unsynced[start]
            while new:
                self._files.sync_directory(new[-1])
                new.pop()
        finally:
            if unsynced or new:  # after a failure the rest is still to be done
                self.give_back(taken)

    def mark_unsynced(self, start: int) -> None:
        """What is there from `start` on, and all names, are to be synced by the next flush."""
        with self._changing:
            for at, file in zip(*self._table, strict=True):
                if at + self.file_size > start:
                    self._unsynced[at] = file
            if self._unsynced:
                self._new.append(self.directory)

    def truncate(self, end: int) -> None:
        """Nothing is left from `end` on: files beyond go, the rest of its own is zeros.

        If it fails half-way it can be done again: `end` is as wanted, and only what is beyond it
        is in doubt."""
        self.end = end
        while self._table.starts and self._table.starts[-1] > end:
            self._drop(len(self._table.starts) - 1)
        starts, files = self._table
        if starts and end < starts[-1] + self.file_size:
            with self._changing:
                self._unsynced[starts[-1]] = files[-1]
            files[-1].clear_from(end - starts[-1])

    def drop_first(self) -> None:
        """The oldest file goes. Who is reading it goes on reading what it was."""
        self._drop(0)

    def _drop(self, index: int) -> None:
        """1. Remove the file. 2. Forget it: if the first fails, nothing has changed."""
        starts, files = self._table
        start, file = starts[index], files[index]
        self._files.remove(file.path)  # 1
        with self._changing:  # 2
            self._table = _Table(
                starts[:index] + starts[index + 1 :], files[:index] + files[index + 1 :]
            )
            self._unsynced.pop(start, None)
        file.close()

    def files(self) -> Iterator[tuple[int, File]]:
        yield from zip(*self._table, strict=True)

    def destroy(self) -> None:
        while self._table.starts:
            self._drop(len(self._table.starts) - 1)
        self.end = 0

    def close(self) -> None:
        for file in self._table.files:
            file.close()
        self._table = _Table()
