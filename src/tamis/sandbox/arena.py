"""Memory that a server writes batches to, and that a filter's process can only read."""

import mmap
import os
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]

__all__ = ["Arena"]

_KEPT: Final = 4 * 2**20  # bytes; memory beyond is given back after a batch that needs much less
_SMALL: Final = 2**16  # bytes; up to here a copy more is cheaper than a stream's writer
_END: Final = 64  # bytes, generously: how a stream ends


class Arena:
    """Room for one batch at a time, as a stream of Arrow's: its schema, then itself."""

    def __init__(self, size: int) -> None:
        self._size = size
        file = os.memfd_create("tamis-batch")
        try:
            os.ftruncate(file, size)
            self._memory = mmap.mmap(file, size)
            try:
                # Opened anew: what is mapped of it can't be made writable.
                self.descriptor = os.open(f"/proc/self/fd/{file}", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                self._memory.close()
                raise
        finally:
            os.close(file)
        self._buffer: pa.Buffer | None = pa.py_buffer(self._memory)
        self._held = 0  # bytes at the beginning that were written to
        self._schema: pa.Schema | None = None
        self._schema_bytes = b""

    def write(self, batch: pa.RecordBatch) -> tuple[int, int] | None:
        """Return the bytes of its schema, and those behind them; None if it does not fit."""
        size = pa.ipc.get_record_batch_size(batch)
        if self._held > _KEPT and size < self._held // 4:
            self.clear()
        if self._schema is None or not self._schema.equals(batch.schema):
            self._schema = batch.schema
            self._schema_bytes = batch.schema.serialize().to_pybytes()
            if len(self._schema_bytes) <= self._size:
                self._memory[: len(self._schema_bytes)] = self._schema_bytes
        start = len(self._schema_bytes)
        if start + size + _END > self._size:
            return None
        self._held = max(self._held, start + size)
        if size < _SMALL:
            message = batch.serialize()
            size = message.size
            self._memory[start : start + size] = memoryview(message)
            return start, size
        with pa.FixedSizeBufferWriter(self._buffer) as sink:
            with pa.ipc.new_stream(sink, self._schema) as writer:
                writer.write_batch(batch)
            return start, sink.tell() - start

    @property
    def held(self) -> int:
        """The bytes of memory that it takes."""
        return self._held

    def clear(self) -> None:
        """Give its memory back."""
        self._memory.madvise(mmap.MADV_REMOVE)
        self._held = 0
        self._schema = None  # it is gone, too

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
        self._buffer = None
        self._memory.close()
