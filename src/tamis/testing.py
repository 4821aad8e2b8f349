"""What tests need that is hard to come by: files that fail and forget."""

import os
import random
from pathlib import Path

import numpy as np

from .store.files import Bytes, DiskFull, File, Files

__all__ = ["Crash", "LossyFiles"]

_SECTOR = 512  # what a disk writes whole or not at all


class Crash(BaseException):
    """The process or the machine ends here. Not an Exception: nobody may handle it."""


class LossyFiles(Files):
    """Real files that die at the `die_at`-th write or sync, fill up at the `full_at`-th write, and
    lose, at `power_cut`, any part of what was written since it was last synced.
    """

    def __init__(
        self, rng: random.Random, *, die_at: int | None = None, full_at: int | None = None
    ) -> None:
        self._rng = rng
        self._die_at = die_at
        self._full_at = full_at
        self._operations = self._writes = 0
        self._durable: dict[Path, Bytes] = {}

    def open(self, path: Path, size: int, writable: bool = True) -> File:
        file = super().open(path, size, writable)
        file.close()
        lossy = _LossyFile(path, size, writable)
        lossy.owner = self
        self._durable.setdefault(path, lossy.data.copy())
        return lossy

    def remove(self, path: Path) -> None:
        super().remove(path)
        self._durable.pop(path, None)

    def before_write(self, file: "_LossyFile", offset: int, data: memoryview) -> None:
        self._operations += 1
        self._writes += 1
        part = data[: self._rng.randrange(len(data) + 1)]
        if self._operations == self._die_at:
            file.write_through(offset, part)
            raise Crash
        if self._full_at is not None and self._writes >= self._full_at:
            file.write_through(offset, part)
            raise DiskFull(f"{file.path}: no space left on the disk")

    def before_sync(self, file: "_LossyFile") -> None:
        self._operations += 1
        if self._operations == self._die_at:
            raise Crash
        self._durable[file.path] = file.data.copy()

    def make_room(self) -> None:
        self._full_at = None

    def power_cut(self) -> None:
        """What was not synced may be there or not, sector by sector."""
        for path, durable in self._durable.items():
            if not path.exists():
                continue
            now = np.fromfile(path, dtype=np.uint8)
            if len(now) != len(durable):
                continue
            for at in range(0, len(now), _SECTOR):
                part = slice(at, at + _SECTOR)
                if (now[part] != durable[part]).any() and self._rng.random() < 0.5:
                    now[part] = durable[part]
            path.write_bytes(now.tobytes())


class _LossyFile(File):
    owner: LossyFiles

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        self.owner.before_write(self, offset, memoryview(data))
        self.write_through(offset, data)

    def write_through(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        super().write(offset, data)

    def sync(self) -> None:
        self.owner.before_sync(self)


def flip_bit(path: Path, rng: random.Random, end: int) -> int:
    """One bit somewhere before `end`; gives the byte's offset."""
    at = rng.randrange(end)
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes((byte ^ 1 << rng.randrange(8),)))
        os.fsync(file.fileno())
    return at
