"""The only module that makes and parses file names, and the only one that changes files of a store.

Data reaches files by `write`, never through a mapping (the key index reserves its room first): on a
full disk that is an error to handle, not a signal that ends the process. Reading is by mapping.

`Files` has a method for each system call that can fail, so that a test can make any of them fail
or forget (`testing.LossyFiles`). Whatever the operating system says becomes a StoreError that names
the file. A `File` is opened when it is used, and `Files` closes those that have not been used
for a while: a store has many more files than a process may have descriptors.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import re
import resource
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from ..errors import StoreError

__all__ = [
    "Bytes",
    "Data",
    "DiskFull",
    "File",
    "Files",
    "Mapped",
    "StorePaths",
    "failure",
    "file_name",
    "file_start",
]

Bytes = npt.NDArray[np.uint8]
Data = bytes | bytearray | memoryview

NAME_DIGITS: Final = 20


def file_name(start: int) -> str:
    """Return the name of the file that begins at byte `start` of its sequence."""
    return f"{start:0{NAME_DIGITS}d}"


def file_start(name: str) -> int | None:
    """Return where the file of that name begins; None for a name that is not one of ours."""
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
        self.note = root / "tamis.json"

    def queue(self, topic: str, queue_id: int) -> Path:
        return self.queues / topic / str(queue_id)

    def extension(self, topic: str, queue_id: int) -> Path:
        return self.extensions / topic / str(queue_id)

    def existing_queues(self) -> list[tuple[str, int]]:
        found = []
        for topic in _directories(self.queues):
            for queue in _directories(self.queues / topic):
                if queue.isascii() and queue.isdigit():
                    found.append((topic, int(queue)))
        return sorted(found)


def _directories(path: Path) -> list[str]:
    try:
        with os.scandir(path) as entries:  # without a stat for each
            return [entry.name for entry in entries if entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []


class DiskFull(StoreError):
    """There is no room left; what was written before is whole."""


def failure(path: Path, error: OSError) -> StoreError:
    """What is raised for an error of the operating system's."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"{path}: no space left on the disk")
    if error.errno == errno.EFBIG:
        return StoreError(f"{path}: larger than files may be here; raise the limit (ulimit -f)")
    return StoreError(f"{path}: {error.strerror}")


class Mapped:
    """The bytes of a file. They are there, and `address` is good, as long as this is held."""

    __slots__ = ("address", "data", "size")

    def __init__(self, data: Bytes) -> None:
        self.data = data
        self.address: int = data.ctypes.data
        self.size = len(data)


class Files:
    """The system calls of a store, and the files it has open at this moment.

    At most `most_open` mappings and descriptors are held for files that are open for writing; the
    default is a fourth of what the process may have. Any thread may call anything.
    """

    def __init__(self, most_open: int | None = None) -> None:
        if most_open is None:
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            soft = _MOST_OPEN * 4 if soft == resource.RLIM_INFINITY else soft
            most_open = max(min(soft // 4, _MOST_OPEN), _LEAST_OPEN)
        self._most_open = most_open
        self._lock = threading.Lock()  # of what follows, and of the files' own state
        self._open: dict[File, None] = {}  # those with a mapping or a descriptor, as a ring
        self.held = 0  # mappings and descriptors of theirs

    # Files of fixed size.

    def file(self, path: Path, size: int, writable: bool = True) -> "File":
        """A file that is there. One that is read only is opened at once: another process may
        remove it."""
        file = File(self, path, size, writable)
        if not writable:
            file.mapped()
        return file

    def create(self, path: Path, size: int) -> "File":
        """A new file of zeros in a directory that is there; if it fails, there is no such file.

        It survives a power cut once it and its directory are synced."""
        descriptor = self.open(path, os.O_RDWR | os.O_CREAT)
        try:
            self.resize(path, descriptor, size)
        except BaseException:
            with suppress(StoreError):
                self.remove(path)
            raise
        finally:
            os.close(descriptor)
        return File(self, path, size, writable=True)

    # System calls. Each raises StoreError.

    def open(self, path: Path, flags: int) -> int:
        """A descriptor, which the caller closes."""
        try:
            return os.open(path, flags, 0o644)
        except OSError as error:
            raise failure(path, error) from None

    def write(self, path: Path, descriptor: int, offset: int, data: Data) -> None:
        """Write all of `data`. It survives the process at once, a power cut after `sync`."""
        view = memoryview(data)
        try:
            while view:
                written = os.pwrite(descriptor, view, offset)
                offset += written
                view = view[written:]
        except OSError as error:
            raise failure(path, error) from None

    def resize(self, path: Path, descriptor: int, size: int) -> None:
        try:
            os.ftruncate(descriptor, size)
        except OSError as error:
            raise failure(path, error) from None

    def allocate(self, path: Path, descriptor: int, offset: int, size: int) -> None:
        """Reserve room on the disk, so that writing there can't fail for want of it."""
        try:
            os.posix_fallocate(descriptor, offset, size)
        except OSError as error:
            raise failure(path, error) from None

    def sync(self, path: Path, descriptor: int) -> None:
        try:
            os.fdatasync(descriptor)
        except OSError as error:
            raise failure(path, error) from None

    def sync_all(self, path: Path) -> None:
        """Sync everything on the file system that `path` is on: one commit of its journal, where
        syncing a thousand new files and their directories takes thousands."""
        if _syncfs is None:
            raise StoreError(f"{path}: can't sync a whole file system here")
        descriptor = self.open(path, os.O_RDONLY)
        try:
            if _syncfs(descriptor) != 0:
                number = ctypes.get_errno()
                raise failure(path, OSError(number, os.strerror(number)))
        finally:
            os.close(descriptor)

    @property
    def can_sync_all(self) -> bool:
        return _syncfs is not None

    def map(self, path: Path, descriptor: int, size: int, *, writable: bool = False) -> Bytes:
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        try:
            mapping = mmap.mmap(descriptor, size, mmap.MAP_SHARED, access)
        except ValueError:
            raise StoreError(f"{path}: shorter than the {size} bytes it should have") from None
        except OSError as error:
            raise failure(path, error) from None
        return np.frombuffer(mapping, dtype=np.uint8)

    def read(self, path: Path) -> bytes:
        """All of a file. Raises FileNotFoundError."""
        try:
            return path.read_bytes()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise failure(path, error) from None

    def read_part(self, path: Path, descriptor: int, offset: int, size: int) -> bytes:
        parts, end = list[bytes](), offset + size
        try:
            while offset < end and (part := os.pread(descriptor, end - offset, offset)):
                parts.append(part)
                offset += len(part)
        except OSError as error:
            raise failure(path, error) from None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def names(self, directory: Path) -> list[str]:
        """The names in a directory, in order; none if it is not there."""
        try:
            return sorted(os.listdir(directory))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise failure(directory, error) from None

    def remove(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise failure(path, error) from None

    def replace(self, source: Path, target: Path) -> None:
        try:
            os.replace(source, target)
        except OSError as error:
            raise failure(target, error) from None

    def make_directory(self, path: Path) -> list[Path]:
        """With those above it. Returns the directories that are to be synced to make it durable."""
        missing = []
        while not path.is_dir():
            missing.append(path)
            path = path.parent
        for directory in reversed(missing):
            self.make_one_directory(directory)
        return [directory.parent for directory in missing]

    def make_one_directory(self, path: Path) -> None:
        try:
            path.mkdir(exist_ok=True)
        except OSError as error:
            raise failure(path, error) from None

    def sync_directory(self, path: Path) -> None:
        descriptor = self.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            raise failure(path, error) from None
        finally:
            os.close(descriptor)

    # Files that are written whole.

    def write_whole(self, path: Path, data: bytes) -> None:
        """Synced; its name is not. Over what was there: a crash may leave half of it."""
        descriptor = self.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            self.write(path, descriptor, 0, data)
            self.sync(path, descriptor)
        finally:
            os.close(descriptor)

    def touch(self, path: Path) -> None:
        """Durable."""
        unsynced = self.make_directory(path.parent)
        os.close(self.open(path, os.O_WRONLY | os.O_CREAT))
        for directory in (path.parent, *unsynced):
            self.sync_directory(directory)

    def lock(self, path: Path) -> int:
        """Takes the store for this process as a broker does; the descriptor holds it."""
        for directory in self.make_directory(path.parent):
            self.sync_directory(directory)
        descriptor = self.open(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
            self.write(path, descriptor, 0, b"lock")
        except OSError:
            os.close(descriptor)
            raise StoreError(
                f"{path.parent}: another process uses this store; stop it first"
            ) from None
        except StoreError:
            os.close(descriptor)
            raise
        return descriptor

    def check_size_limit(self, size: int, what: str) -> None:
        """Raises StoreError if a file of that size can't be made in this process."""
        soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        if soft != resource.RLIM_INFINITY and size > soft:
            raise StoreError(
                f"{what} have {size} bytes each, and this process may only write files of up to "
                f"{soft}; raise the limit (ulimit -f), or configure smaller files"
            )

    # What is open: a ring of files, of which each that was used since its last turn gets another.

    def _admit(self, file: "File") -> None:
        """With the lock: the file holds one thing more."""
        self.held += 1
        self._open[file] = None
        for _ in range(2 * len(self._open)):
            if self.held <= self._most_open:
                return
            oldest = next(iter(self._open))
            del self._open[oldest]
            if oldest.is_recent or oldest.pins or oldest is file:
                oldest.is_recent = False
                self._open[oldest] = None
            else:
                self.held -= oldest.let_go()

    def _dismiss(self, file: "File") -> None:
        with self._lock:
            if file in self._open:
                del self._open[file]
                self.held -= file.let_go()
            else:
                file.let_go()


def _find_syncfs() -> Callable[[int], int] | None:
    """Where it tells of errors: on Linux since 5.8."""
    system = os.uname()
    version = tuple(int(number) for number in re.findall(r"\d+", system.release)[:2])
    if system.sysname != "Linux" or version < (5, 8):
        return None
    found: Callable[[int], int] | None = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    return found


_syncfs: Callable[[int], int] | None = _find_syncfs()
_MOST_OPEN: Final = 4096
_LEAST_OPEN: Final = 32
_PIECE: Final = 2**20  # bytes cleared at once


class File:
    """One file of fixed size. One writer; any number of readers of what `mapped` returns."""

    __slots__ = (
        "_descriptor",
        "_files",
        "_mapped",
        "_writable",
        "is_closed",
        "is_recent",
        "path",
        "pins",
        "size",
    )

    def __init__(self, files: Files, path: Path, size: int, writable: bool) -> None:
        self.path = path
        self.size = size
        self._files = files
        self._writable = writable
        self._mapped: Mapped | None = None
        self._descriptor: int | None = None
        self.is_recent = False
        self.is_closed = False
        self.pins = 0  # those who use the descriptor at this moment

    def mapped(self) -> Mapped:
        """Its bytes. Raises StoreError."""
        mapped = self._mapped
        if mapped is None:
            mapped = self._map()
        self.is_recent = True
        return mapped

    def _map(self) -> Mapped:
        with self._files._lock:
            if self._mapped is not None:
                return self._mapped
            if self.is_closed:
                raise StoreError(f"{self.path}: removed or closed")
            descriptor = self._files.open(self.path, os.O_RDONLY)
            try:
                data = self._files.map(self.path, descriptor, self.size)
            finally:
                os.close(descriptor)
            mapped = self._mapped = Mapped(data)
            self.is_recent = True
            if self._writable:
                self._files._admit(self)
            return mapped

    def _acquire(self) -> int:
        """The descriptor, which stays open until `_release`."""
        with self._files._lock:
            if self._descriptor is None:
                if self.is_closed:
                    raise StoreError(f"{self.path}: removed or closed")
                self._descriptor = self._files.open(self.path, os.O_RDWR)
                self._files._admit(self)
            self.is_recent = True
            self.pins += 1
            return self._descriptor

    def _release(self) -> None:
        with self._files._lock:
            self.pins -= 1
            if self.is_closed and not self.pins and self._descriptor is not None:
                os.close(self._descriptor)  # it was closed meanwhile
                self._descriptor = None

    def write(self, offset: int, data: Data) -> None:
        descriptor = self._acquire()
        try:
            self._files.write(self.path, descriptor, offset, data)
        finally:
            self._release()

    def allocate(self, offset: int, size: int) -> None:
        descriptor = self._acquire()
        try:
            self._files.allocate(self.path, descriptor, offset, size)
        finally:
            self._release()

    def sync(self) -> None:
        descriptor = self._acquire()
        try:
            self._files.sync(self.path, descriptor)
        finally:
            self._release()

    def clear_from(self, offset: int) -> None:
        """Write zeros over whatever lies from `offset` on. The file keeps its size at every step:
        a mapping of a file cut short would end the process of whoever reads it."""
        descriptor = self._acquire()
        try:
            end = min(_data_end(descriptor, self.size), self.size)
            for at in range(offset, end, _PIECE):
                size = min(_PIECE, end - at)
                part = self._files.read_part(self.path, descriptor, at, size)
                if part.count(0) != len(part):
                    self._files.write(self.path, descriptor, at, bytes(size))
        finally:
            self._release()

    def data_end(self) -> int:
        """Where the last data that was ever written ends, or a little beyond; then come zeros."""
        descriptor = self._files.open(self.path, os.O_RDONLY)
        try:
            return min(_data_end(descriptor, self.size), self.size)
        finally:
            os.close(descriptor)

    def written(self) -> Bytes:
        """A copy of its bytes up to `data_end`. Where a mapping is touched the kernel reads on, for
        megabytes and through holes: for a look at thousands of files that takes too long (3 ms
        each, where a read takes 25 µs)."""
        descriptor = self._files.open(self.path, os.O_RDONLY)
        try:
            size = min(_data_end(descriptor, self.size), self.size)
            data = self._files.read_part(self.path, descriptor, 0, size)
        finally:
            os.close(descriptor)
        return np.frombuffer(data, dtype=np.uint8)

    def let_go(self) -> int:
        """With the lock: closes what it holds; gives how many that was. Views stay good."""
        count = 0
        if self._mapped is not None:
            self._mapped = None
            count += 1
        if self._descriptor is not None:
            count += 1
            if not self.pins:  # else whoever uses it closes it
                os.close(self._descriptor)
                self._descriptor = None
        return count

    def close(self) -> None:
        """The mapping goes when the last view of it does."""
        self.is_closed = True
        self._files._dismiss(self)


def _data_end(descriptor: int, size: int) -> int:
    end = 0
    try:
        while end < size:
            end = os.lseek(descriptor, os.lseek(descriptor, end, os.SEEK_DATA), os.SEEK_HOLE)
    except OSError as error:
        if error.errno != errno.ENXIO:  # which says that there is no more data
            return size  # a file system that does not know of holes
    return end
