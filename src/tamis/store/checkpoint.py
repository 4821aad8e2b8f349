"""The checkpoint: up to which store time log, queues and index are on the disk for certain."""

import os
import struct
from dataclasses import dataclass, replace
from pathlib import Path

from .files import Files
from .format import CHECKPOINT_SIZE

__all__ = ["Checkpoint", "load_checkpoint", "save_checkpoint"]

_TIMES = struct.Struct(">qqq")
_MARGIN = 3000  # milliseconds; RocketMQ trusts nothing younger


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Store timestamps, milliseconds; 0 where nothing is certain."""

    log: int = 0
    queues: int = 0
    index: int = 0

    @property
    def safe(self) -> int:
        """Everything stored up to then is in log and queues."""
        return max(min(self.log, self.queues) - _MARGIN, 0)

    def advanced(self, *, log: int = 0, queues: int = 0, index: int = 0) -> "Checkpoint":
        return replace(
            self,
            log=max(self.log, log),
            queues=max(self.queues, queues),
            index=max(self.index, index),
        )


def load_checkpoint(path: Path) -> Checkpoint:
    """All zero if there is none, or not a whole one: recovery then starts from the first record."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return Checkpoint()
    return Checkpoint(*_TIMES.unpack_from(data)) if len(data) >= _TIMES.size else Checkpoint()


def save_checkpoint(path: Path, checkpoint: Checkpoint, files: Files) -> None:
    """Durable on return. 24 bytes of one sector: old or new after a crash, not half of each."""
    is_new = not path.exists()
    descriptor = files.open(path, os.O_RDWR | os.O_CREAT)
    try:
        if os.fstat(descriptor).st_size != CHECKPOINT_SIZE:
            files.resize(path, descriptor, CHECKPOINT_SIZE)
        times = _TIMES.pack(checkpoint.log, checkpoint.queues, checkpoint.index)
        files.write(path, descriptor, 0, times)
        files.sync(path, descriptor)
    finally:
        os.close(descriptor)
    if is_new:
        files.sync_directory(path.parent)
