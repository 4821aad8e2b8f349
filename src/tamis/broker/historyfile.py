"""The file that history is kept in: `tamis-history.log` beside RocketMQ's tables, a JSON line each.

Lines are appended; when the file has grown to several times what it holds, or is too large, all
that is still needed is written to a new file, which takes its place. After a crash the file is the
old one or the new one, and a last line that was cut short is passed over. The first line says since
when history is kept; `clean` as the last line, after all else, that the broker stopped in good
order.

Lines, by their field `t`:

    since  {time, version, forgot}    of the whole file, the first line
    start  {}                         the broker runs again
    group  {h}                        all of a group on a topic (fate/history.py)
    span   {g, o, n, s}               a new span, number n
    end    {n, e, a}                  how far span n got: its end, what is acknowledged
    view   {g, o, n, v}               the members' filters from now on, view number n
    change {g, o, c}   move {g, o, m, n?}  kind {g, o, b, p}  gone {g?, o?, forgot?}  clean {}

Events that are in a `group` line already may follow it again: reading them twice changes nothing.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from ..store.historylines import NAME, read_lines

__all__ = ["NAME", "HistoryFile", "read_lines"]


__all__ = ["NAME", "HistoryFile", "read_lines"]

_PART: Final = 2**20  # bytes written at once


class HistoryFile:
    """Called by one thread at a time. What was appended survives a power cut when `append`
    returns."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self.size = self.path.stat().st_size if self.path.exists() else 0
        self._is_torn = self._ends_in_the_middle()
        self._is_in_folder = bool(self.size)  # whether its name survives a power cut

    def _ends_in_the_middle(self) -> bool:
        if not self.size:
            return False
        with self.path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"

    def append(self, lines: Iterable[bytes]) -> None:
        """Raises OSError; then lines may be there in part, and are passed over or come twice, which
        does no harm."""
        data = b"".join(line + b"\n" for line in lines)
        if not data:
            return
        if self._is_torn:
            data = b"\n" + data
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            before = os.fstat(file).st_size
            try:
                _write_all(file, data)
                os.fsync(file)
            except OSError:
                self._take_back(file, before)
                raise
            self.size, self._is_torn = before + len(data), False
        finally:
            os.close(file)
        if not self._is_in_folder:
            _sync_folder(self.path.parent)
            self._is_in_folder = True

    def _take_back(self, file: int, size: int) -> None:
        """Or else each attempt would make the file longer, on a disk that is full perhaps."""
        self._is_torn = True
        with contextlib.suppress(OSError):
            os.ftruncate(file, size)
        with contextlib.suppress(OSError):
            self.size = os.fstat(file).st_size

    def replace(self, lines: Iterable[bytes]) -> None:
        """Write a new file in the place of this one. Raises OSError, and then this one stays, or
        the new one if only its folder could not be synced."""
        new = self.path.with_name(NAME + ".new")
        try:
            file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            try:
                size = 0
                for part in _in_parts(lines):
                    _write_all(file, part)
                    size += len(part)
                os.fsync(file)
            finally:
                os.close(file)
            os.replace(new, self.path)
        except BaseException:
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)
            raise
        self.size, self._is_torn, self._is_in_folder = size, False, False
        _sync_folder(self.path.parent)
        self._is_in_folder = True

    def set_aside(self) -> Path:
        """Begin with an empty file; what was there is kept beside it. Raises OSError."""
        aside = self.path.with_name(NAME + ".unread")
        os.replace(self.path, aside)
        self.size, self._is_torn, self._is_in_folder = 0, False, False
        return aside


def _in_parts(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Many lines at once: a system call for each would take long."""
    part: list[bytes] = []
    size = 0
    for line in lines:
        part += (line, b"\n")
        size += len(line)
        if size >= _PART:
            yield b"".join(part)
            part, size = [], 0
    yield b"".join(part)


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
