"""Bodies of pull answers, which are records one behind the other, to Arrow record batches.

`decode` is a pure function of bytes, for the consumer's batches and for whoever reads a log file.
Its loops are compiled (`_walk`), a body is copied once, and Python sees a message only if its body
is compressed or its text is damaged. The first call on a machine compiles, for seconds:
`decode([])` does just that.

`_column_schema` has the columns there are, `_column_records` finds where the parts of each record
lie, and `_column_arrays` makes the columns of them.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from ..filter.engines.columnar import BatchFilter
from ..filter.logic import Outcome
from ..message import PropertyName
from ._column_arrays import (
    COLUMNS,
    LOOKED_UP,
    block_column,
    body_parts,
    read_as,
    text_column,
    typed_column,
)
from ._column_records import Chunk, Placed, Records
from ._column_schema import EXTRA, KINDS, SCHEMA, schema_of
from ._walk import Ints, Part
from .compression import MAX_BODY_SIZE

__all__ = [
    "EXTRA",
    "KINDS",
    "SCHEMA",
    "Chunk",
    "Located",
    "Placed",
    "decode",
    "decode_parts",
    "locate",
    "read_as",
    "schema_of",
]

_TRUE: Final = np.uint8(Outcome.TRUE)


class Located(NamedTuple):
    """Where records lie, a number each: in which chunk, from where, how many bytes; their offsets
    in the queue and in the log."""

    chunks: Ints
    starts: Ints
    sizes: Ints
    offsets: Ints
    log_offsets: Ints


def decode(
    chunks: Sequence[Chunk] | Placed,
    *,
    columns: Sequence[str] | None = None,
    properties: Sequence[str | tuple[str, str]] | None = None,
    tags: frozenset[str] = frozenset(),
    sql: BatchFilter | None = None,
    time_unit: Literal["ms", "us"] = "ms",
    max_body_size: int = MAX_BODY_SIZE,
) -> pa.RecordBatch:
    """Returns the messages of all chunks, or of a log's files, in their order.

    Only `columns` of `SCHEMA` and `EXTRA` are made, all of `SCHEMA` if it is None, and a column for
    each of `properties`: of strings, or of one of `KINDS` if that is given with the name. With
    `tags` only messages of exactly one of these are kept: a broker compares hashes. With `sql`
    those of which it says true. Raises CorruptRecord for what is no whole record,
    UnreadableMessage for a body that does not decompress or would have more than `max_body_size`
    bytes, ValueError for columns that can't be, and if one would have 2 GiB.
    """
    parts = decode_parts(
        chunks,
        columns=columns,
        properties=properties,
        tags=tags,
        sql=sql,
        time_unit=time_unit,
        max_body_size=max_body_size,
    )
    batches = [batch for batch, _ in parts]
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def decode_parts(
    chunks: Sequence[Chunk] | Placed,
    *,
    columns: Sequence[str] | None = None,
    properties: Sequence[str | tuple[str, str]] | None = None,
    tags: frozenset[str] = frozenset(),
    sql: BatchFilter | None = None,
    time_unit: Literal["ms", "us"] = "ms",
    max_body_size: int = MAX_BODY_SIZE,
    null_unreadable: bool = False,
) -> Iterator[tuple[pa.RecordBatch, bool]]:
    """Does what `decode` does, in as few batches as memory allows: bodies may have a thousand times
    the bytes when they are decompressed. With each batch comes whether it is the last.

    A body that can't be read raises UnreadableMessage after the rows before it were given; with
    `null_unreadable` it is null, and the log names the message.
    """
    schema = schema_of(columns, properties, time_unit)
    made = len(schema) - len(properties or ())
    wanted, named = schema.names[:made], schema.names[made:]
    records = Records(chunks)
    if sql is not None:
        records.keep(sql.match_strings(block_column(records)) == _TRUE)
    looked_up = [LOOKED_UP[name] for name in wanted if name in LOOKED_UP]
    if tags:
        looked_up.append(PropertyName.TAGS)
    if "topic" in wanted and records.parts[Part.IS_RETRY].any():
        looked_up.append(PropertyName.RETRY_TOPIC)
    whole = "properties" in wanted or "property_string" in wanted
    records.look_up({*named, *looked_up}, whole=whole)
    if tags:
        kept = pc.is_in(text_column(records.values[PropertyName.TAGS]), pa.array(sorted(tags)))
        records.keep(kept.to_numpy(zero_copy_only=False))
    if time_unit == "us":
        records.parts[Part.BORN] *= 1000
        records.parts[Part.STORED] *= 1000
    arrays: list[Any] = [
        None if name == "body" else COLUMNS[name](records) for name in wanted
    ]  # bodies are made part by part
    arrays += [typed_column(records, name, schema.field(name).type) for name in named]
    for i, field in enumerate(schema):
        if arrays[i] is not None and field.type != arrays[i].type:
            arrays[i] = arrays[i].view(field.type)
    if "body" not in wanted:
        yield pa.RecordBatch.from_arrays(arrays, schema=schema), True
        return
    for start, stop, bodies in body_parts(records, max_body_size, null_unreadable):
        part = [bodies if one is None else one.slice(start, stop - start) for one in arrays]
        yield pa.RecordBatch.from_arrays(part, schema=schema), stop == len(records)


def locate(chunks: Sequence[Chunk]) -> Located:
    """Finds the records of all chunks, in the order in which `decode` gives their messages, for
    those who pass some of them on as they are. Raises CorruptRecord."""
    records = Records(chunks)
    parts = records.parts
    numbers = parts[Part.CHUNK].copy()
    starts, ends = records.bounds()
    return Located(
        numbers, starts, ends - starts, parts[Part.OFFSET].copy(), parts[Part.LOG_OFFSET].copy()
    )
