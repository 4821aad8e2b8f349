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
from .files import Bytes, File, Files, file_name, file_start

__all__ = ["FileSequence", "Table"]

Ints = npt.NDArray[np.int64]

_NOTHING: Bytes = np.empty(0, dtype=np.uint8)
_NOWHERE: Ints = np.empty(0, dtype=np.int64)


class Table(NamedTuple):
    """The files there are, in order. Never changed, only replaced: a reader keeps what it has,
    and while it does the addresses are good."""

    starts: tuple[int, ...] = ()
    files: tuple[File, ...] = ()
    addresses: Ints = _NOWHERE

    def find(self, offset: int) -> int:
        return bisect_right(self.starts, offset) - 1


def _table_of(starts: tuple[int, ...], files: tuple[File, ...]) -> Table:
    return Table(starts, files, np.array([file.address for file in files], dtype=np.int64))


class FileSequence:
    """`start` to `end` is what there is. One writer, who writes before `end` moves; readers are
    never blocked and see nothing beyond `end`. After a crash `end` is whatever recovery says.
    """

    def __init__(
        self, directory: Path, file_size: int, files: Files, writable: bool = True
    ) -> None:
        self.directory = directory
        self.file_size = file_size
        self.end = 0
        self._files = files
        self._writable = writable
        self._table = Table()
        self._unsynced: dict[int, File] = {}
        self._marking = threading.Lock()  # of `_unsynced`: who writes and who flushes may differ
        self._load()

    def _load(self) -> None:
        found = []
        if self.directory.is_dir():
            for path in self.directory.iterdir():
                start = file_start(path.name)
                if start is not None:
                    found.append((start, path))
        for start, path in sorted(found):
            size = path.stat().st_size
            starts = self._table.starts
            if size == 0 and start == max(found)[0]:
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
            self._add(start, self._files.open(path, self.file_size, self._writable))
            self.end = start + self.file_size

    def _add(self, start: int, file: File) -> None:
        self._table = _table_of((*self._table.starts, start), (*self._table.files, file))

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
        starts = self._table.starts
        return max(starts[-1] + self.file_size - self.end, 0) if starts else 0

    def append(self, data: bytes | bytearray | memoryview) -> int:
        """At `end`, over as many files as it takes; gives where it begins."""
        at = self.end
        self.write(at, data)
        self.end = at + len(data)
        return at

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Makes the files it needs. `end` stays."""
        view = memoryview(data)
        while view:
            file, start = self._file_for(offset)
            part = view[: start + self.file_size - offset]
            file.write(offset - start, part)
            with self._marking:
                self._unsynced[start] = file
            offset += len(part)
            view = view[len(part) :]

    def _file_for(self, offset: int) -> tuple[File, int]:
        start = offset - offset % self.file_size
        while not self._table.starts or self._table.starts[-1] < start:
            starts = self._table.starts
            new = starts[-1] + self.file_size if starts else start
            self._add(new, self._files.open(self.directory / file_name(new), self.file_size))
        return self._table.files[self._table.find(offset)], start

    def view(self, offset: int, end: int | None = None) -> Bytes:
        """From `offset` to the end of its file, or of what there is; empty if it is not there."""
        end = self.end if end is None else min(end, self.end)
        table = self._table
        index = table.find(offset)
        if index < 0 or offset >= end:
            return _NOTHING
        start = table.starts[index]
        return table.files[index].data[offset - start : min(end - start, self.file_size)]

    def file_data(self, offset: int) -> tuple[Bytes, int] | None:
        """The whole mapping of the file that `offset` lies in, and where it begins."""
        found = self.find(offset)
        return None if found is None else (found[0].data, found[1])

    def find(self, offset: int) -> tuple[File, int] | None:
        """The file that `offset` lies in, and where it begins."""
        starts, files, _ = self._table
        index = bisect_right(starts, offset) - 1
        if index < 0 or offset >= starts[index] + self.file_size:
            return None
        return files[index], starts[index]

    @property
    def table(self) -> Table:
        """The files as they are now."""
        return self._table

    def file_path(self, offset: int) -> Path:
        return self.directory / file_name(offset - offset % self.file_size)

    def flush(self) -> None:
        """Makes what was written durable. What a writer adds meanwhile comes with the next."""
        with self._marking:
            unsynced, self._unsynced = self._unsynced, {}
        try:
            for start in list(unsynced):
                unsynced[start].sync()
                del unsynced[start]
        finally:
            with self._marking:  # after a failure the rest is still to be done
                self._unsynced = {**unsynced, **self._unsynced}

    def truncate(self, end: int) -> None:
        """Nothing is left from `end` on: files beyond go, the rest of its own is zeros."""
        while self._table.starts and self._table.starts[-1] > end:
            self._drop(len(self._table.starts) - 1)
        if self._table.starts and end < self._table.starts[-1] + self.file_size:
            self._table.files[-1].clear_from(end - self._table.starts[-1])
        self.end = end

    def drop_first(self) -> None:
        """The oldest file goes. Who is reading it goes on reading what it was."""
        self._drop(0)

    def _drop(self, index: int) -> None:
        starts, files, _ = self._table
        start, file = starts[index], files[index]
        self._table = _table_of(
            starts[:index] + starts[index + 1 :], files[:index] + files[index + 1 :]
        )
        with self._marking:
            self._unsynced.pop(start, None)
        file.close()
        self._files.remove(file.path)

    def files(self) -> Iterator[tuple[int, File]]:
        table = self._table
        yield from zip(table.starts, table.files, strict=True)

    def destroy(self) -> None:
        while self._table.starts:
            self._drop(len(self._table.starts) - 1)
        self.end = 0

    def close(self) -> None:
        for file in self._table.files:
            file.close()
        self._table = Table()
