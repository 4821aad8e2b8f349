"""Memory that a server writes batches to, and that a filter's process can only read."""

import mmap
import os
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]

__all__ = ["Arena"]

_KEPT: Final = 4 * 2**20  # bytes of a batch; memory of larger ones is given back
_END: Final = 64  # bytes, generously: how a stream ends


class Arena:
    """Room for one batch at a time, as a stream of Arrow's: its schema, then itself."""

    def __init__(self, size: int) -> None:
        self._size = size
        file = os.memfd_create("tamis-batch")
        try:
            os.ftruncate(file, size)
            self._memory = mmap.mmap(file, size)
            # Opened anew: what is mapped of it can't be made writable.
            self.descriptor = os.open(f"/proc/self/fd/{file}", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(file)
        self._buffer: pa.Buffer | None = pa.py_buffer(self._memory)
        self._used = 0
        self._schema: pa.Schema | None = None
        self._schema_size = 0

    def write(self, batch: pa.RecordBatch) -> tuple[int, int] | None:
        """Return the bytes of its schema, and those behind them; None if it does not fit."""
        if self._schema is None or not self._schema.equals(batch.schema):
            self._schema = batch.schema
            self._schema_size = batch.schema.serialize().size
        needed = self._schema_size + pa.ipc.get_record_batch_size(batch) + _END
        if needed > self._size:
            return None
        if self._used > _KEPT:
            self._memory.madvise(mmap.MADV_REMOVE)
        with pa.FixedSizeBufferWriter(self._buffer) as sink:
            with pa.ipc.new_stream(sink, self._schema) as writer:
                writer.write_batch(batch)
            self._used = sink.tell()
        return self._schema_size, self._used - self._schema_size

    def close(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
        self._buffer = None
        self._memory.close()
