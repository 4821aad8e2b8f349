"""The file that history is kept in: `tamis-history.log` beside RocketMQ's tables, a JSON line each.

Lines are appended; when the file has grown to several times what it holds, or is too large, all
that is still needed is written to a new file, which takes its place. After a crash the file is the
old one or the new one, and a last line that was cut short is passed over. The first line says since
when history is kept; `clean` as the last line, that the broker stopped in good order.

Lines, by their field `t`:

    since  {time}                     of the whole file, the first line
    group  {h}                        all of a group on a topic (fate/history.py)
    span   {g, o, n, s}               a new span, number n
    end    {n, e, a}                  how far span n got: its end, what is acknowledged
    view   {g, o, n, v}               the members' filters from now on, view number n
    change {g, o, c}   move {g, o, m}  kind {g, o, b, p}  gone {g?, o?}  clean {}

Events that are in a `group` line already may follow it again: reading them twice changes nothing.
"""

import contextlib
import logging
import os
from collections.abc import Iterable
from pathlib import Path

from ..store.historylines import NAME, read_lines

__all__ = ["NAME", "HistoryFile", "read_lines"]

log = logging.getLogger(__name__)


class HistoryFile:
    """Called by one thread at a time. What was appended survives a power cut when `append`
    returns."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self.size = self.path.stat().st_size if self.path.exists() else 0
        self._is_torn = self._ends_in_the_middle()

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
        is_new = not self.size
        self._is_torn = True  # unless all goes well
        with self.path.open("ab", buffering=0) as file:
            written = 0
            while written < len(data):
                written += file.write(data[written:]) or 0
            os.fsync(file.fileno())
            self.size = file.tell()
        self._is_torn = False
        if is_new:
            _sync_folder(self.path.parent)

    def replace(self, lines: Iterable[bytes]) -> None:
        """Write a new file in the place of this one. Raises OSError, and then this one stays."""
        new = self.path.with_name(NAME + ".new")
        try:
            with new.open("wb") as file:
                for line in lines:
                    file.write(line + b"\n")
                file.flush()
                os.fsync(file.fileno())
                size = file.tell()
            os.replace(new, self.path)
        except BaseException:
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)
            raise
        self.size, self._is_torn = size, False
        _sync_folder(self.path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
