"""A sequence of bytes cut into files of one size, each named by where it begins.

RocketMQ's `MappedFileQueue`. The commit log, each consume queue and each extension is one.
"""

from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..errors import StoreError
from .files import Bytes, File, Files, file_name, file_start

__all__ = ["FileSequence"]

_NOTHING: Bytes = np.empty(0, dtype=np.uint8)


class FileSequence:
    """`start` to `end` is what there is. One writer, who writes before `end` moves; readers are
    never blocked and see nothing beyond `end`. After a crash `end` is whatever recovery says.
    """

    def __init__(
        self, directory: Path, file_size: int, files: Files, writable: bool = True
    ) -> None:
        self.directory = directory
        self.file_size = file_size
        self._files = files
        self._writable = writable
        self._starts: list[int] = []
        self._open: list[File] = []
        self._unsynced: dict[int, File] = {}
        self.end = 0
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
            if size == 0 and start == max(found)[0]:
                # made, and not given its size before the process was killed: nothing is in it
                if self._writable:
                    self._files.remove(path)
                continue
            if size != self.file_size:
                raise StoreError(
                    f"{path}: {size} bytes, where files of {self.file_size} are configured"
                )
            if self._starts and start != self._starts[-1] + self.file_size:
                missing = file_name(self._starts[-1] + self.file_size)
                raise StoreError(f"{self.directory}: the file {missing} is missing")
            self._starts.append(start)
            self._open.append(self._files.open(path, self.file_size, self._writable))
        if self._starts:
            self.end = self._starts[-1] + self.file_size

    @property
    def start(self) -> int:
        return self._starts[0] if self._starts else 0

    @property
    def starts(self) -> list[int]:
        return list(self._starts)

    def __bool__(self) -> bool:
        return bool(self._starts)

    def room(self) -> int:
        """Bytes left in the file that `end` lies in; 0 if that file does not exist yet."""
        if not self._starts or self.end == self._starts[-1] + self.file_size:
            return 0
        return self._starts[-1] + self.file_size - self.end

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
            self._unsynced[start] = file
            offset += len(part)
            view = view[len(part) :]

    def _file_for(self, offset: int) -> tuple[File, int]:
        start = offset - offset % self.file_size
        if not self._starts:
            self.end = max(self.end, start)
        while not self._starts or self._starts[-1] < start:
            new = self._starts[-1] + self.file_size if self._starts else start
            path = self.directory / file_name(new)
            self._open.append(self._files.open(path, self.file_size))
            self._starts.append(new)
        return self._open[self._index(offset)], start

    def _index(self, offset: int) -> int:
        return bisect_right(self._starts, offset) - 1

    def view(self, offset: int, end: int | None = None) -> Bytes:
        """From `offset` to the end of its file, or of what there is; empty if it is not there."""
        end = self.end if end is None else min(end, self.end)
        index = self._index(offset)
        if index < 0 or offset >= end or index >= len(self._open):
            return _NOTHING
        start = self._starts[index]
        return self._open[index].data[offset - start : min(end - start, self.file_size)]

    def file_data(self, offset: int) -> tuple[Bytes, int] | None:
        """The whole mapping of the file that `offset` lies in, and where it begins."""
        index = self._index(offset)
        if index < 0 or offset >= self._starts[index] + self.file_size:
            return None
        return self._open[index].data, self._starts[index]

    def file_path(self, offset: int) -> Path:
        return self.directory / file_name(offset - offset % self.file_size)

    def flush(self) -> None:
        """Makes what was written durable. What a writer adds meanwhile comes with the next."""
        unsynced, self._unsynced = self._unsynced, {}
        for file in unsynced.values():
            file.sync()

    def truncate(self, end: int) -> None:
        """Nothing is left from `end` on: files beyond go, the rest of its own is zeros."""
        while self._starts and self._starts[-1] > end:
            self._drop(len(self._starts) - 1)
        if self._starts and end < self._starts[-1] + self.file_size:
            self._open[-1].clear_from(end - self._starts[-1])
        self.end = end

    def drop_first(self) -> None:
        self._drop(0)

    def _drop(self, index: int) -> None:
        start = self._starts.pop(index)
        file = self._open.pop(index)
        self._unsynced.pop(start, None)
        file.close()
        self._files.remove(file.path)

    def files(self) -> Iterator[tuple[int, File]]:
        yield from zip(list(self._starts), list(self._open), strict=True)

    def destroy(self) -> None:
        while self._starts:
            self._drop(len(self._starts) - 1)
        self.end = 0

    def close(self) -> None:
        for file in self._open:
            file.close()
        self._open, self._starts = [], []
