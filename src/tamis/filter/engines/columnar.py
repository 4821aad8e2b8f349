"""The engine for a batch: compiled loops over the bytes as they lie, an outcome byte a message.

    matched = compile_batch(parse("a > 5")).match_strings(column) == Outcome.TRUE

A column of property strings is an Arrow array (string, binary, their large and view forms, whole,
sliced or chunked), a NumPy array, or spans of any buffer, such as a mapped commit log. Ready
columns are Arrow arrays by property name. Outcomes are those of `logic.Outcome`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]

from ...errors import FilterTypeError
from ...java import decode_utf8
from ..nodes import Expr
from ._kernel import run_columns, run_strings
from ._program import compile_program

__all__ = ["BatchFilter", "Outcomes", "column", "compile_batch"]

Outcomes = npt.NDArray[np.uint8]


def compile_batch(expr: Expr) -> "BatchFilter":
    return BatchFilter(expr)


class BatchFilter:
    """A compiled expression. Immutable; may be used from several threads at once (no GIL held)."""

    def __init__(self, expr: Expr) -> None:
        self.expression = expr
        program = compile_program(expr)
        self.names = program.names
        self._program = program
        self._names = _NameTable(program.names)
        self._texts = program.texts.ctypes.data  # alive as long as the program is

    def match_spans(
        self,
        buffer: npt.NDArray[np.uint8],
        starts: npt.NDArray[np.int64],
        ends: npt.NDArray[np.int64],
    ) -> Outcomes:
        """Property strings that lie in `buffer` at `starts[i]` up to `ends[i]`; nothing is copied.

        Spans must lie within the buffer; an empty one is a message without properties.
        """
        starts = np.ascontiguousarray(starts, dtype=np.int64)
        ends = np.ascontiguousarray(ends, dtype=np.int64)
        if len(starts) and (starts.min() < 0 or ends.max() > len(buffer)):
            raise IndexError("a span lies outside the buffer")
        if self._program.compares_text:
            buffer, starts, ends = _decodable(buffer, starts, ends)
        return self._run_strings(buffer, starts, ends)

    def _run_strings(
        self,
        buffer: npt.NDArray[np.uint8],
        starts: npt.NDArray[np.int64],
        ends: npt.NDArray[np.int64],
    ) -> Outcomes:
        out = np.empty(len(starts), dtype=np.uint8)
        base = buffer.ctypes.data
        names, program = self._names, self._program
        run_strings(
            base,
            base + len(buffer),
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
        return out

    def match_strings(self, values: Any) -> Outcomes:
        """A column of property strings: Arrow or NumPy. A null is a message without properties."""
        return _concatenate([self._match_array(array) for array in _arrays(values)])

    def _match_array(self, array: pa.Array) -> Outcomes:
        buffer, starts, ends = _spans(array)
        if array.null_count:
            ends = np.where(array.is_valid().to_numpy(zero_copy_only=False), ends, starts)
        if self._program.compares_text and pa.types.is_large_binary(array.type):
            buffer, starts, ends = _decodable(buffer, starts, ends)
        return self._run_strings(buffer, starts, ends)

    def match_columns(self, columns: Mapping[str, Any], rows: int | None = None) -> Outcomes:
        """Ready columns by property name; a null is a missing property, and so is a missing column.

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
        out = np.empty(size, dtype=np.uint8)
        program = self._program
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

    def match_properties(self, messages: Iterable[Mapping[str, str] | None]) -> Outcomes:
        """Messages as dicts, for tests and tools: they are made into columns first."""
        rows = list(messages)
        columns = {}
        for name in self.names:
            values = [None if p is None else p.get(name) for p in rows]
            encoded = [None if v is None else v.encode("utf-8", "surrogatepass") for v in values]
            columns[name] = pa.array(encoded, type=pa.large_binary())
        return self.match_columns(columns, len(rows))


class _NameTable:
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
        reason = f"a column of {kind} is not text: give strings or bytes"
        raise FilterTypeError("", 0, reason) from None


def column(values: Any) -> pa.Array:
    """One Arrow array of anything `match_strings` takes: converted once, matched often."""
    arrays = _arrays(values)
    return (
        arrays[0]
        if len(arrays) == 1
        else pa.concat_arrays(arrays or [pa.array([], pa.large_string())])
    )


def _spans(
    array: pa.Array,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Views of a large array: its bytes, and where each value starts and ends in them."""
    _, offsets, data = array.buffers()
    if offsets is None or len(array) == 0:
        nothing = np.zeros(len(array), dtype=np.int64)
        return np.zeros(1, dtype=np.uint8), nothing, nothing
    edges = np.frombuffer(offsets, dtype=np.int64)[array.offset : array.offset + len(array) + 1]
    buffer = np.frombuffer(data, dtype=np.uint8) if data else np.zeros(1, dtype=np.uint8)
    return buffer, edges[:-1], edges[1:]


def _decodable(
    buffer: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The same strings with undecodable bytes replaced, as Java does on reading them.

    Only for expressions that could tell: two different wrecks become equal texts.
    """
    strings = [buffer[start:end].tobytes() for start, end in zip(starts, ends, strict=True)]
    fixed = [decode_utf8(string).encode() for string in strings]
    edges = np.cumsum([0, *map(len, fixed)], dtype=np.int64)
    return np.frombuffer(b"".join(fixed) + b"\0", dtype=np.uint8), edges[:-1], edges[1:]


def _concatenate(parts: list[Outcomes]) -> Outcomes:
    return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.uint8), *parts])
