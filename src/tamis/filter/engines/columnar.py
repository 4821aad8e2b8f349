"""The engine for a batch: compiled loops over the bytes as they lie, an outcome byte a message.

    matched = compile_batch(parse("a > 5")).match_strings(column) == Outcome.TRUE

A column of property strings is an Arrow array (string, binary, their large and view forms, whole,
sliced or chunked), a NumPy array, or spans of any buffer, such as a mapped commit log. Ready
columns are Arrow arrays by property name. Outcomes are those of `logic.Outcome`.
"""

from collections.abc import Iterable, Mapping, Sequence
from mmap import mmap
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]

from ...java import decode_utf8
from ..nodes import Expr
from ._kernel import find_damaged, find_properties, run_columns, run_strings
from ._program import Program, compile_program

__all__ = ["BatchFilter", "NameTable", "Outcomes", "PropertyFinder", "column", "compile_batch"]

Outcomes = npt.NDArray[np.uint8]
Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]
Buffer = bytes | bytearray | memoryview | mmap | Bytes


def compile_batch(expr: Expr) -> "BatchFilter":
    return BatchFilter(expr)


class BatchFilter:
    """A compiled expression. Immutable; may be used from several threads at once (no GIL held)."""

    def __init__(self, expr: Expr) -> None:
        self.expression = expr
        program = compile_program(expr)
        self.names = program.names
        self._program = program
        self._names = NameTable(program.names)
        self._texts = program.texts.ctypes.data  # alive as long as the program is

    @property
    def program(self) -> Program:
        return self._program

    def __reduce__(self) -> tuple[type["BatchFilter"], tuple[Expr]]:
        """Travels as its expression: what is compiled holds addresses of this process."""
        return BatchFilter, (self.expression,)

    def match_spans(
        self, buffer: Buffer, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
    ) -> Outcomes:
        """Property strings that lie in `buffer` at `starts[i]` up to `ends[i]`; nothing is copied.

        The buffer may be bytes, a mapped file, a NumPy array. Spans must lie within it; an empty
        one is a message without properties.
        """
        if isinstance(buffer, np.ndarray) and buffer.dtype != np.uint8:
            raise TypeError(f"an array of {buffer.dtype}, not of bytes (uint8)")
        data = np.frombuffer(buffer, dtype=np.uint8)
        starts = np.ascontiguousarray(starts, dtype=np.int64)
        ends = np.ascontiguousarray(ends, dtype=np.int64)
        if starts.ndim != 1 or starts.shape != ends.shape:
            raise ValueError(f"starts of shape {starts.shape} and ends of shape {ends.shape}")
        if len(starts) and (starts.min() < 0 or ends.max() > len(data)):
            raise IndexError("a span lies outside the buffer")
        return self._run(data, starts, ends, is_text=False)

    def match_strings(self, values: Any) -> Outcomes:
        """A column of property strings: Arrow or NumPy. A null is a message without properties."""
        return _concatenate([self._match_array(array) for array in _arrays(values)])

    def _match_array(self, array: pa.Array) -> Outcomes:
        data, starts, ends = _spans(array)
        if array.null_count:
            ends = np.where(array.is_valid().to_numpy(zero_copy_only=False), ends, starts)
        return self._run(data, starts, ends, is_text=pa.types.is_large_string(array.type))

    def _run(self, data: Bytes, starts: Offsets, ends: Offsets, is_text: bool) -> Outcomes:
        out = np.empty(len(starts), dtype=np.uint8)
        base = data.ctypes.data
        names, program = self._names, self._program
        run_strings(
            base,
            base + len(data),
            starts,
            ends,
            names.heads,
            names.chains,
            names.rows,
            program.code,
            self._texts,
            program.choices,
            program.depth,
            out,
        )
        if program.compares_text and not is_text:
            damaged = np.empty(len(starts), dtype=np.bool_)
            find_damaged(base, starts, ends, damaged)
            rows = np.flatnonzero(damaged)
            if len(rows):
                # Java reads what is no UTF-8 as U+FFFD, so that two different wrecks are equal
                spans = zip(starts[rows], ends[rows], strict=True)
                texts = [decode_utf8(data[start:end].tobytes()) for start, end in spans]
                out[rows] = self.match_strings(texts)
        return out

    def match_columns(self, columns: Mapping[str, Any], rows: int | None = None) -> Outcomes:
        """Ready columns by property name; a null is a missing property, and so is a missing column.

        Bytes are compared as they are: damaged UTF-8 is for whoever made the columns to deal with.
        `rows` is needed only when no column of `columns` is named by the expression.
        """
        wanted = {name: columns[name] for name in self.names if name in columns}
        arrays = {name: column(values) for name, values in wanted.items()}
        lengths = {len(array) for array in arrays.values()} | (
            {rows} if rows is not None else set()
        )
        if len(lengths) != 1:
            raise ValueError(f"columns of different lengths, or none and no `rows`: {lengths}")
        size = lengths.pop()
        assert size is not None
        starts = np.zeros((len(self.names), size), dtype=np.int64)
        sizes = np.full((len(self.names), size), -1, dtype=np.int64)
        bases = np.zeros(len(self.names), dtype=np.int64)
        limits = np.zeros(len(self.names), dtype=np.int64)
        buffers = []  # held until the kernel is done
        for slot, name in enumerate(self.names):
            if name in arrays:
                array = arrays[name]
                buffer, starts[slot], ends = _spans(array)
                sizes[slot] = ends - starts[slot]
                if array.null_count:
                    sizes[slot, array.is_null().to_numpy(zero_copy_only=False)] = -1
                bases[slot] = buffer.ctypes.data
                limits[slot] = bases[slot] + len(buffer)
                buffers.append(buffer)
        return self._run_columns(bases, limits, starts, sizes)

    def match_properties(self, messages: Iterable[Mapping[str, str] | None]) -> Outcomes:
        """Messages as dicts, for tests and tools: they are made into columns first."""
        rows = [{} if message is None else message for message in messages]
        texts = bytearray()
        starts = np.zeros((len(self.names), len(rows)), dtype=np.int64)
        sizes = np.full((len(self.names), len(rows)), -1, dtype=np.int64)
        for slot, name in enumerate(self.names):
            for row, message in enumerate(rows):
                value = message.get(name)
                if value is not None:
                    encoded = value.encode("utf-8", "surrogatepass")
                    starts[slot, row], sizes[slot, row] = len(texts), len(encoded)
                    texts += encoded
        data = np.frombuffer(bytes(texts) + b"\0", dtype=np.uint8)
        bases = np.full(len(self.names), data.ctypes.data, dtype=np.int64)
        return self._run_columns(bases, bases + len(data), starts, sizes)

    def _run_columns(
        self, bases: Offsets, limits: Offsets, starts: Offsets, sizes: Offsets
    ) -> Outcomes:
        program = self._program
        out = np.empty(starts.shape[1], dtype=np.uint8)
        run_columns(
            bases,
            limits,
            starts,
            sizes,
            program.code,
            self._texts,
            program.choices,
            program.depth,
            out,
        )
        return out


class PropertyFinder:
    """Where the values of some properties lie in property strings; nothing is copied."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = NameTable(tuple(names))

    def find(self, buffer: Buffer, starts: Offsets, ends: Offsets) -> tuple[Offsets, Offsets]:
        """(start in the buffer, length or -1 if missing), a row a name, a column a string."""
        data = np.frombuffer(buffer, dtype=np.uint8)
        base, names = data.ctypes.data, self._names
        found = np.empty((2, len(names.rows), len(starts)), dtype=np.int64)
        find_properties(
            base,
            base + len(data),
            starts,
            ends,
            names.heads,
            names.chains,
            names.rows,
            found[0],
            found[1],
        )
        return found[0], found[1]


class NameTable:
    """How the kernel knows a wanted name: by two bytes to a chain of slots, then eight at once."""

    def __init__(self, names: tuple[str, ...]) -> None:
        # An identifier is ASCII. The byte that ends a name in a property string ends it here too.
        spelled = [name.encode() + b"\x01" for name in names]
        self._bytes = np.frombuffer(b"".join(spelled) + b"\0" * 8, dtype=np.uint8)
        self.heads = np.full(256, -1, dtype=np.int64)
        self.chains = np.full(len(names), -1, dtype=np.int64)
        self.rows = np.zeros((len(names), 4), dtype=np.int64)
        address = self._bytes.ctypes.data
        for slot, name in enumerate(spelled):
            bucket = (name[0] * 31 + name[1]) & 255
            self.chains[slot], self.heads[bucket] = self.heads[bucket], slot
            mask = b"\xff" * min(8, len(name))
            first = int.from_bytes(name[:8], "little", signed=len(name) >= 8)
            self.rows[slot] = (
                first,
                int.from_bytes(mask, "little", signed=len(mask) == 8),
                len(name),
                address,
            )
            address += len(name)


def _arrays(values: Any) -> list[pa.Array]:
    """The column as Arrow arrays of large_string or large_binary."""
    if isinstance(values, pa.ChunkedArray):
        return [array for chunk in values.chunks for array in _arrays(chunk)]
    if isinstance(values, str | bytes):
        raise TypeError("a single text is no column: give a list of them")
    array = values if isinstance(values, pa.Array) else pa.array(values)
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return [array.cast(pa.large_string())]
    if pa.types.is_null(kind):
        return [array.cast(pa.large_string())]
    if pa.types.is_dictionary(kind):
        return _arrays(array.dictionary_decode())
    try:
        return [array.cast(pa.large_binary())]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise TypeError(f"a column of {kind} is not text: give strings or bytes") from None


def column(values: Any) -> pa.Array:
    """One Arrow array of anything `match_strings` takes: converted once, matched often."""
    arrays = _arrays(values)
    return (
        arrays[0]
        if len(arrays) == 1
        else pa.concat_arrays(arrays or [pa.array([], pa.large_string())])
    )


def _spans(array: pa.Array) -> tuple[Bytes, Offsets, Offsets]:
    """Views of a large array: its bytes, and where each value starts and ends in them."""
    _, offsets, data = array.buffers()
    if offsets is None or len(array) == 0:
        nothing = np.zeros(len(array), dtype=np.int64)
        return np.zeros(1, dtype=np.uint8), nothing, nothing
    edges = np.frombuffer(offsets, dtype=np.int64)[array.offset : array.offset + len(array) + 1]
    buffer = np.frombuffer(data, dtype=np.uint8) if data else np.zeros(1, dtype=np.uint8)
    return buffer, edges[:-1], edges[1:]


def _concatenate(parts: list[Outcomes]) -> Outcomes:
    return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.uint8), *parts])
