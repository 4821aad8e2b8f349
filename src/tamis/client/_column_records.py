"""Where records and their parts lie in memory: in answers to pulls, or in a log's files.

A part is a span, an address and a size: nothing is copied but text that has to be mended. The
memory that spans point into lives as long as their `Records`, so whatever is made of a span is made
before that goes.
"""

import ctypes
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]

from ..errors import CorruptRecord, UnreadableMessage
from ..java import decode_utf8
from ..message import PropertyName, SysFlag
from ..wire import record
from ..wire.properties import decode as decode_properties
from ._walk import Ints, Part, find_values, mark_damaged, walk

__all__ = ["Chunk", "Placed", "Records", "Spans", "bytes_at", "pooled"]

N = TypeVar("N", np.int64, np.int32, np.uint8)

_GUESSED_SIZE: Final = 512  # of a record; of smaller ones the walk goes on with more room
_NEVER: Final = 2**63 - 1
_BORN_HOST_AT: Final = 48  # in a record; the time stored is between this and the store host


class Chunk(NamedTuple):
    """The body of one pull answer. `topic` is the one pulled; records have their own. Those of
    offset `before` and later are left out."""

    broker_name: str | None
    topic: str
    body: bytes | memoryview
    before: int = 2**63 - 1


class Placed(NamedTuple):
    """Records that lie wherever `memory` is, which is held: their addresses and sizes, and for each
    the first address that may not be read."""

    broker_name: str | None
    topic: str
    ats: Ints
    sizes: Ints
    limits: Ints
    memory: object


class Spans(NamedTuple):
    """Texts or bytes where they lie: addresses, and sizes, which are -1 for what is missing."""

    ats: Ints
    sizes: Ints


class Records:
    """Where the records of some chunks and their parts lie, and what memory that takes."""

    def __init__(self, chunks: Sequence[Chunk] | Placed) -> None:
        self._memory: list[object] = []  # what the spans point to
        self.values: dict[str, Spans] = {}  # of properties looked up
        if isinstance(chunks, Placed):
            self.chunks: Sequence[Chunk | Placed] = (chunks,)
            self._memory.append(chunks.memory)
            self._addresses, self._sizes, self._limits = chunks.ats, chunks.sizes, chunks.limits
            self.parts = self._walk(len(chunks.ats))
            self.parts[Part.CHUNK] = 0
            return
        self.chunks = chunks
        self._limits = np.empty(0, dtype=np.int64)
        buffers = [pa.py_buffer(chunk.body) for chunk in chunks]
        self._memory.append(buffers)
        self._addresses = np.array([buffer.address for buffer in buffers], dtype=np.int64)
        self._sizes = np.array([buffer.size for buffer in buffers], dtype=np.int64)
        self.parts = self._walk(int(self._sizes.sum()) // _GUESSED_SIZE)
        befores = np.array([chunk.before for chunk in chunks], dtype=np.int64)
        if (befores != _NEVER).any():
            self.keep(self.parts[Part.OFFSET] < befores[self.parts[Part.CHUNK]])

    def _walk(self, guessed: int) -> Ints:
        chunk = at = count = 0
        parts = _room(guessed)
        while True:
            chunk, at, count = walk(self._addresses, self._sizes, chunk, at, count, parts)
            if chunk == len(self._addresses):
                return parts[:, :count]
            if count < parts.shape[1]:
                self._refuse(chunk, at)
            before, parts = parts, _room(2 * count)
            parts[:, :count] = before

    def _refuse(self, number: int, at: int) -> NoReturn:
        source = self.chunks[0 if isinstance(self.chunks[0], Placed) else number]
        data = bytes_at(self._addresses[number], self._sizes[number])
        record.decode(data, at, file=_place(source))
        raise CorruptRecord(_place(source), at, "properties of a negative size")

    def bounds(self) -> tuple[Ints, Ints]:
        """Returns from where and up to where in their chunks records lie. None may have been left
        out."""
        numbers = self.parts[Part.CHUNK]
        starts = self.parts[Part.AT] - self._addresses[numbers]
        ends = np.empty_like(starts)
        ends[:-1] = starts[1:]
        is_last = np.append(numbers[1:] != numbers[:-1], True)[: len(numbers)]
        ends[is_last] = self._sizes[numbers[is_last]]
        return starts, ends

    def unreadable(self, row: int, reason: str) -> UnreadableMessage:
        source = self.chunks[self.parts[Part.CHUNK, row]]
        at, size = self.parts[Part.BLOCK_AT, row], self.parts[Part.BLOCK_SIZE, row]
        named = decode_properties(decode_utf8(bytes_at(at, size)))
        return UnreadableMessage(
            source.topic,
            source.broker_name,
            int(self.parts[Part.QUEUE, row]),
            int(self.parts[Part.OFFSET, row]),
            reason,
            named.get(PropertyName.UNIQUE_KEY),
        )

    def __len__(self) -> int:
        return len(self.parts[Part.CHUNK])

    def spans(self, at: Part, size: Part) -> Spans:
        return Spans(self.parts[at], self.parts[size])

    @property
    def born_hosts(self) -> Spans:
        flags = self.parts[Part.SYS_FLAG]
        sizes = np.where(flags & SysFlag.BORN_HOST_V6, 20, 8)
        return Spans(self.parts[Part.AT] + _BORN_HOST_AT, sizes)

    @property
    def store_hosts(self) -> Spans:
        born = self.born_hosts
        flags = self.parts[Part.SYS_FLAG]
        sizes = np.where(flags & SysFlag.STORE_HOST_V6, 20, 8)
        return Spans(born.ats + born.sizes + 8, sizes)

    def look_up(self, names: set[str], *, whole: bool) -> None:
        """Fills `values` for these names. Before that, or if blocks are read `whole`, it mends
        them."""
        if not names and not whole:
            return
        if not len(self._limits):
            self._limits = (self._addresses + self._sizes)[self.parts[Part.CHUNK]]
        self._mend_blocks()
        if not names:
            return
        ordered = sorted(names)
        rows = self._name_rows(ordered)
        found = np.empty((2, len(ordered), len(self)), dtype=np.int64)
        ats, sizes, limits = self.blocks
        find_values(ats, sizes, limits, rows, found[0], found[1])
        self.values = {name: Spans(found[0, i], found[1, i]) for i, name in enumerate(ordered)}

    @property
    def blocks(self) -> tuple[Ints, Ints, Ints]:
        """The properties as they travel: addresses, sizes, and up to where may be read."""
        return self.parts[Part.BLOCK_AT], self.parts[Part.BLOCK_SIZE], self._limits

    def _mend_blocks(self) -> None:
        """Lets the spans of blocks that are no UTF-8 point to what Java would read there."""
        ats, sizes, limits = self.blocks
        damaged = np.empty(len(self), dtype=np.bool_)
        mark_damaged(ats, sizes, damaged)
        for row in np.flatnonzero(damaged):
            text = decode_utf8(bytes_at(ats[row], sizes[row])).encode()
            ats[row], sizes[row] = self.hold(text), len(text)
            limits[row] = ats[row] + len(text)

    def _name_rows(self, names: list[str]) -> Ints:
        rows = np.zeros((len(names), 4), dtype=np.int64)
        for row, name in zip(rows, names, strict=True):
            spelled = name.encode() + b"\x01"
            first = int.from_bytes(spelled[:8], "little", signed=len(spelled) >= 8)
            mask = -1 if len(spelled) >= 8 else (1 << 8 * len(spelled)) - 1
            row[:] = first, mask, len(spelled), self.hold(spelled)
        return rows

    def keep(self, kept: npt.NDArray[np.bool_]) -> None:
        """Forgets the other records."""
        if kept.all():
            return
        self.parts = np.compress(kept, self.parts, axis=1)
        self.values = {n: Spans(s.ats[kept], s.sizes[kept]) for n, s in self.values.items()}
        if len(self._limits):
            self._limits = self._limits[kept]

    def hold(self, data: Any) -> int:
        """Returns the address of some bytes, which are kept as long as these records are."""
        buffer = pa.py_buffer(data)
        self._memory.append(buffer)
        address: int = buffer.address
        return address


def _room(count: int) -> Ints:
    """Returns room for the parts of so many records. Its odd width keeps the parts of one record
    off each other's lines of the cache."""
    width = count // 512 * 512 + 512 + 24
    return pooled(len(Part) * width, np.int64).reshape(len(Part), width)


def pooled(count: int, kind: type[N]) -> npt.NDArray[N]:
    """Returns an array of Arrow's pool, whose pages are there from the last batch: new ones would
    cost as much as what is written to them."""
    data = pa.allocate_buffer(count * np.dtype(kind).itemsize)
    return np.frombuffer(data, dtype=kind)


def _place(chunk: Chunk | Placed) -> str:
    if isinstance(chunk, Placed):
        return f"the log, topic {chunk.topic}"
    return f"an answer of {chunk.broker_name} for {chunk.topic}"


def bytes_at(at: Any, size: Any) -> bytes:
    """Copies what lies at an address."""
    return ctypes.string_at(int(at), int(size))
