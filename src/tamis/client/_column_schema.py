"""The columns that messages can have in Arrow: their names, types and order.

The names are those of Spark's sources too. `schema_of` and what is decoded always agree: the arrays
are made by this schema (`_column_arrays`).
"""

from collections.abc import Sequence
from typing import Final, Literal

import pyarrow as pa  # type: ignore[import-untyped]

__all__ = ["EXTRA", "KINDS", "SCHEMA", "schema_of"]

_TIME: Final = pa.timestamp("ms", "UTC")
# Topics, brokers and hosts are few, but plain strings: Spark reads no dictionaries from Arrow.
SCHEMA: Final = pa.schema(
    {
        "topic": pa.string(),  # the original one of a retried message
        "broker": pa.string(),
        "queue_id": pa.int32(),
        "offset": pa.int64(),  # in its queue
        "store_timestamp": _TIME,
        "born_timestamp": _TIME,
        "tags": pa.string(),  # null if there are none, and so are keys
        "keys": pa.string(),  # as they travel: blanks between them
        "properties": pa.map_(pa.string(), pa.string()),
        "body": pa.binary(),  # decompressed
        "message_id": pa.string(),  # the producer's; without one where the message lies
        "reconsume_times": pa.int32(),
        "flag": pa.int32(),
        "sys_flag": pa.int32(),  # as stored: also of a body decompressed here
        "log_offset": pa.int64(),
        "born_host": pa.string(),
        "store_host": pa.string(),
    }
)
# Made if asked for by name.
EXTRA: Final = pa.schema(
    {
        "property_string": pa.string(),  # as it travels: name \\x01 value \\x02 ...
        "tags_code": pa.int64(),  # as consume queues have it: the hash of the tag, 0 if none
    }
)
# What a property can be read as. Text that Java's `valueOf` refuses gives a null.
KINDS: Final = {
    "string": pa.string(),
    "int": pa.int32(),
    "long": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
}


def schema_of(
    columns: Sequence[str] | None = None,
    properties: Sequence[str | tuple[str, str]] | None = None,
    time_unit: Literal["ms", "us"] = "ms",
) -> pa.Schema:
    """Returns the schema of what `decode` returns. Raises ValueError for columns that can't be."""
    wanted = list(SCHEMA.names if columns is None else columns)
    named = [(one, "string") if isinstance(one, str) else one for one in properties or ()]
    _check_names(wanted, named)
    time = pa.timestamp(time_unit, "UTC")
    fields = [_field(name) for name in wanted]
    fields = [field.with_type(time) if field.type == _TIME else field for field in fields]
    return pa.schema([*fields, *(pa.field(name, KINDS[kind]) for name, kind in named)])


def _field(name: str) -> pa.Field:
    return SCHEMA.field(name) if name in SCHEMA.names else EXTRA.field(name)


def _check_names(wanted: list[str], named: list[tuple[str, str]]) -> None:
    for name in wanted:
        if name not in SCHEMA.names and name not in EXTRA.names:
            there = ", ".join((*SCHEMA.names, *EXTRA.names))
            raise ValueError(f"no column {name!r}: there are {there}")
    for name, kind in named:
        if name in SCHEMA.names:
            raise ValueError(f"property {name!r} would have the name of a column")
        if not name or "\x01" in name or "\x02" in name:
            raise ValueError(f"no property can have the name {name!r}")
        if kind not in KINDS:
            raise ValueError(f"property {name!r} as {kind!r}: it can be {', '.join(KINDS)}")
    every = [*wanted, *(name for name, _ in named)]
    twice = [name for name in every if every.count(name) > 1]
    if twice:
        raise ValueError(f"{twice[0]!r} is asked for twice")
