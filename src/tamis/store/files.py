"""The only place that makes and parses file names, and the only one that writes files of a store.

Data goes to files by `write`, never through a mapping: on a full disk that is an error to handle,
not a signal that ends the process. Reading is by mapping. `testing.LossyFiles` takes the place of
`Files` to forget what was not synced.
"""

import errno
import fcntl
import mmap
import os
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from ..errors import StoreError

__all__ = ["Bytes", "DiskFull", "File", "Files", "StorePaths", "file_name", "file_start"]

Bytes = npt.NDArray[np.uint8]

NAME_DIGITS: Final = 20


def file_name(start: int) -> str:
    """Of a file that begins at byte `start` of its sequence."""
    return f"{start:0{NAME_DIGITS}d}"


def file_start(name: str) -> int | None:
    """None for a name that is not one of ours."""
    return int(name) if len(name) == NAME_DIGITS and name.isascii() and name.isdigit() else None


class StorePaths:
    """Where what lies under a store's root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.commit_log = root / "commitlog"
        self.queues = root / "consumequeue"
        self.extensions = root / "consumequeue_ext"
        self.index = root / "index"
        self.seals = root / "tamis-seals"
        self.config = root / "config"
        self.checkpoint = root / "checkpoint"
        self.abort = root / "abort"
        self.lock = root / "lock"

    def queue(self, topic: str, queue_id: int) -> Path:
        return self.queues / topic / str(queue_id)

    def extension(self, topic: str, queue_id: int) -> Path:
        return self.extensions / topic / str(queue_id)

    def existing_queues(self) -> list[tuple[str, int]]:
        return sorted(
            (topic.name, int(queue.name))
            for topic in (self.queues.iterdir() if self.queues.is_dir() else ())
            if topic.is_dir()
            for queue in topic.iterdir()
            if queue.name.isascii() and queue.name.isdigit() and queue.is_dir()
        )


class DiskFull(StoreError):
    """There is no room left; what was written before is whole."""


class File:
    """One file of fixed size. One writer; any number of readers of its mapping, at any time."""

    def __init__(self, path: Path, size: int, writable: bool) -> None:
        self.path = path
        self.size = size
        flags = os.O_RDWR | os.O_CREAT if writable else os.O_RDONLY
        self._descriptor = os.open(path, flags, 0o644)
        try:
            if writable and os.fstat(self._descriptor).st_size == 0:
                os.ftruncate(self._descriptor, size)
            protection = mmap.PROT_READ
            self._map = mmap.mmap(self._descriptor, size, mmap.MAP_SHARED, protection)
        except (OSError, ValueError):
            os.close(self._descriptor)
            raise
        self.data: Bytes = np.frombuffer(self._map, dtype=np.uint8)
        self.address: int = self.data.ctypes.data  # good while `data` is held

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """All of `data`, or DiskFull. It survives the process at once, a power cut after `sync`."""
        view = memoryview(data)
        try:
            while view:
                written = os.pwrite(self._descriptor, view, offset)
                offset += written
                view = view[written:]
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(f"{self.path}: no space left on the disk") from None
            raise

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def clear_from(self, offset: int) -> None:
        """Zeros from `offset` on. Nobody may be reading there."""
        os.ftruncate(self._descriptor, offset)
        os.ftruncate(self._descriptor, self.size)

    def close(self) -> None:
        """The mapping goes when the last view of it does."""
        os.close(self._descriptor)

    @property
    def modified(self) -> float:
        return os.fstat(self._descriptor).st_mtime


class Files:
    """Opening, removing, and making names durable."""

    def open(self, path: Path, size: int, writable: bool = True) -> File:
        created = writable and not path.exists()
        if created:
            path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file = File(path, size, writable)
        except ValueError:
            raise StoreError(f"{path}: shorter than the {size} bytes it should have") from None
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(f"{path}: no space left on the disk") from None
            raise StoreError(f"{path}: {error.strerror}") from None
        if created:
            self.sync_directory(path.parent)
        return file

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def touch(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        self.sync_directory(path.parent)

    def sync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def lock(self, path: Path) -> int:
        """Takes the store for this process as a broker does; the descriptor holds it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        except OSError:
            os.close(descriptor)
            raise StoreError(
                f"{path.parent}: another process uses this store; stop it first"
            ) from None
        os.pwrite(descriptor, b"lock", 0)
        return descriptor
