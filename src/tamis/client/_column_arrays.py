"""Arrow arrays of records' parts: a function for each column, and bodies part by part.

Every array has a row for each record, in the order of the records.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]

from ..errors import CorruptRecord
from ..java import decode_utf8
from ..message import Host, PropertyName, SysFlag
from ._column_records import Records, Spans, bytes_at, pooled
from ._column_schema import KINDS, SCHEMA
from ._walk import (
    Ints,
    Part,
    gather,
    hash_spans,
    mark_true,
    number_spans,
    parse_doubles,
    parse_integers,
    split_blocks,
    write_ids,
)
from .compression import decompress

__all__ = [
    "COLUMNS",
    "LOOKED_UP",
    "block_column",
    "body_parts",
    "read_as",
    "text_column",
    "typed_column",
]

log = logging.getLogger(__name__)

_SMALLEST_ENTRY: Final = 4  # of properties: name, \x01, value, \x02
_LONGEST_ID: Final = 56
_MOST_BYTES: Final = 2**31 - 1  # of a column: its offsets are of 32 bits
_MOST_DECOMPRESSED: Final = 64 * 2**20  # bytes of decompressed bodies in one batch, or one body


def _distinct(spans: Spans) -> tuple[npt.NDArray[np.int32], list[bytes]]:
    """Returns a number for each span, and the bytes by number. Made for few different texts."""
    numbers = np.empty(len(spans.ats), dtype=np.int32)
    firsts = np.empty(len(spans.ats), dtype=np.int64)
    count = number_spans(*spans, numbers, firsts)
    return numbers, [bytes_at(spans.ats[row], spans.sizes[row]) for row in firsts[:count]]


def text_column(spans: Spans) -> pa.Array:
    """Copies spans of sound UTF-8."""
    return _copied(spans, pa.string())


def block_column(records: Records) -> pa.Array:
    """Copies the properties as they travel, sound UTF-8 or not."""
    return _copied(records.spans(Part.BLOCK_AT, Part.BLOCK_SIZE), pa.binary())


def _copied(spans: Spans, kind: pa.DataType) -> pa.Array:
    is_there = spans.sizes >= 0
    missing = len(is_there) - int(np.count_nonzero(is_there))
    size = int(spans.sizes.sum()) + missing
    if size > _MOST_BYTES:
        raise ValueError(f"a column would have {size} bytes: decode fewer chunks at once")
    offsets = np.empty(len(is_there) + 1, dtype=np.int32)
    data = pa.allocate_buffer(size)
    gather(spans.ats, spans.sizes, offsets, data.address)
    bitmap = pa.py_buffer(np.packbits(is_there, bitorder="little")) if missing else None
    buffers = [bitmap, pa.py_buffer(offsets), data]
    return pa.Array.from_buffers(kind, len(is_there), buffers, missing)


def _spread(texts: Sequence[str | None], numbers: npt.NDArray[Any]) -> pa.Array:
    if len(set(texts)) == 1:
        return pa.repeat(pa.scalar(texts[0], pa.string()), len(numbers))
    return pa.array(texts, pa.string()).take(pa.array(numbers))


def _number(part: Part, name: str) -> Callable[[Records], pa.Array]:
    kind = SCHEMA.field(name).type  # of times, which may be in another unit, only the width counts

    def column(records: Records) -> pa.Array:
        # a copy in any case: the parts are more than the column
        numbers = records.parts[part].astype(np.int32 if kind == pa.int32() else np.int64)
        return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)], 0)

    return column


def _topic(records: Records) -> pa.Array:
    spans = records.spans(Part.TOPIC_AT, Part.TOPIC_SIZE)
    if PropertyName.RETRY_TOPIC in records.values:
        original = records.values[PropertyName.RETRY_TOPIC]
        has_one = (original.sizes >= 0) & (records.parts[Part.IS_RETRY] != 0)
        ats, sizes = (np.where(has_one, *pair) for pair in zip(original, spans, strict=True))
        spans = Spans(ats, sizes)
    numbers, topics = _distinct(spans)
    return _spread([decode_utf8(topic) for topic in topics], numbers)


def _broker(records: Records) -> pa.Array:
    names = [chunk.broker_name for chunk in records.chunks]
    return _spread(names, records.parts[Part.CHUNK])


def _property(name: str) -> Callable[[Records], pa.Array]:
    return lambda records: text_column(records.values[name])


def typed_column(records: Records, name: str, kind: pa.DataType) -> pa.Array:
    """Reads a property as one of `KINDS`; what can't be read as that is null."""
    spans, (_, _, limits) = records.values[name], records.blocks
    return text_column(spans) if kind == pa.string() else _parsed(spans, limits, kind)


def read_as(texts: pa.Array, kind: str) -> pa.Array:
    """Reads texts as one of `KINDS`, as `typed_column` does those of records."""
    if kind == "string" or not len(texts):
        return texts.cast(KINDS[kind])
    texts = texts.cast(pa.string())  # it may be one of Arrow's large strings
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    start, size = (data.address, data.size) if data else (0, 0)
    ats = start + ends.astype(np.int64)
    sizes = ats[1:] - ats[:-1]
    sizes[texts.is_null().to_numpy(zero_copy_only=False)] = -1
    spans = Spans(ats[:-1], sizes)
    return _parsed(spans, np.full(len(texts), start + size, np.int64), KINDS[kind])


def _parsed(spans: Spans, limits: Ints, kind: pa.DataType) -> pa.Array:
    if kind == pa.bool_():
        is_true = np.empty(len(limits), dtype=np.bool_)
        mark_true(*spans, is_true)
        return pa.array(is_true, mask=spans.sizes < 0)
    numbers = np.empty(len(limits), dtype=np.int64)
    is_there = np.empty(len(limits), dtype=np.bool_)
    if kind == pa.float64():
        parse_doubles(*spans, limits, numbers, is_there)
        return pa.array(numbers.view(np.float64), mask=~is_there)
    largest = 2**31 - 1 if kind == pa.int32() else 2**63 - 1
    parse_integers(*spans, limits, largest, numbers, is_there)
    return pa.array(numbers.astype(kind.to_pandas_dtype()), mask=~is_there)


def _tags_code(records: Records) -> pa.Array:
    codes = np.empty(len(records), dtype=np.int64)
    hash_spans(*records.values[PropertyName.TAGS], codes)
    return pa.array(codes)


def _property_string(records: Records) -> pa.Array:
    ats, sizes, _ = records.blocks
    return text_column(Spans(ats, sizes))


def _properties(records: Records) -> pa.Array:
    ats, sizes, limits = records.blocks
    size = int(sizes.sum())
    if size > _MOST_BYTES:
        raise ValueError(f"properties of {size} bytes: decode fewer chunks at once")
    room = (size + len(records)) // _SMALLEST_ENTRY + 1
    largest = (int(sizes.max(initial=0)) + 1) // _SMALLEST_ENTRY
    offsets = np.empty(len(records) + 1, dtype=np.int32)
    text_offsets = pooled(2 * room, np.int32).reshape(2, room)
    texts = pooled(2 * size, np.uint8).reshape(2, size)
    count = split_blocks(
        ats,
        sizes,
        limits,
        largest,
        offsets,
        text_offsets[0],
        text_offsets[1],
        texts[0].ctypes.data,
        texts[1].ctypes.data,
    )
    names, values = (
        pa.StringArray.from_buffers(
            count,
            pa.py_buffer(ends[: count + 1].copy()),
            pa.py_buffer(data[: ends[count]].copy()),
        )
        for ends, data in zip(text_offsets, texts, strict=True)
    )
    return pa.MapArray.from_arrays(pa.array(offsets), names, values)


def body_parts(
    records: Records, limit: int, null_unreadable: bool
) -> Iterator[tuple[int, int, pa.Array]]:
    """Yields the bodies of consecutive rows, in order: the first row, the row after the last, and
    their array."""
    ats, sizes = (part.copy() for part in records.spans(Part.BODY_AT, Part.BODY_SIZE))
    flags = records.parts[Part.SYS_FLAG]
    start = held = 0
    buffers: list[pa.Buffer] = []

    def column(stop: int) -> tuple[int, int, pa.Array]:
        return start, stop, _copied(Spans(ats[start:stop], sizes[start:stop]), pa.binary())

    for row in np.flatnonzero(flags & SysFlag.COMPRESSED):
        try:
            body = decompress(bytes_at(ats[row], sizes[row]), int(flags[row]), limit)
        except CorruptRecord as error:
            unreadable = records.unreadable(int(row), error.reason)
            if null_unreadable:
                log.warning("its body is given as null: %s", unreadable)
                sizes[row] = -1
                continue
            if row > start:
                yield column(int(row))
            raise unreadable from None
        if held and held + len(body) > _MOST_DECOMPRESSED:
            yield column(int(row))
            start, held = int(row), 0
            buffers.clear()
        buffer = pa.py_buffer(body)
        buffers.append(buffer)
        ats[row], sizes[row] = buffer.address, len(body)
        held += len(body)
    yield column(len(records))


def _message_id(records: Records) -> pa.Array:
    ats, sizes = (part.copy() for part in records.values[PropertyName.UNIQUE_KEY])
    without = np.flatnonzero(sizes < 0)
    hosts = records.store_hosts
    host_sizes = hosts.sizes[without]
    ids = np.empty((len(without), _LONGEST_ID), dtype=np.uint8)
    write_ids(records.parts[Part.AT][without], hosts.ats[without], host_sizes, ids)
    ats[without] = records.hold(ids) + _LONGEST_ID * np.arange(len(without))
    sizes[without] = 2 * (host_sizes + 8)
    return text_column(Spans(ats, sizes))


def _hosts(spans: Spans) -> pa.Array:
    numbers, hosts = _distinct(spans)
    shown = [str(Host(host[:-4], int.from_bytes(host[-4:], signed=True))) for host in hosts]
    return _spread(shown, numbers)


# The property that a column is made of, to be looked up (`Records.look_up`) before it is made.
LOOKED_UP: Final = {
    "tags": PropertyName.TAGS,
    "tags_code": PropertyName.TAGS,
    "keys": PropertyName.KEYS,
    "message_id": PropertyName.UNIQUE_KEY,
}
# How each column is made, but for bodies.
COLUMNS: Final[dict[str, Callable[[Records], pa.Array]]] = {
    "topic": _topic,
    "broker": _broker,
    "queue_id": _number(Part.QUEUE, "queue_id"),
    "offset": _number(Part.OFFSET, "offset"),
    "store_timestamp": _number(Part.STORED, "store_timestamp"),
    "born_timestamp": _number(Part.BORN, "born_timestamp"),
    "tags": _property(PropertyName.TAGS),
    "keys": _property(PropertyName.KEYS),
    "properties": _properties,
    "message_id": _message_id,
    "property_string": _property_string,
    "tags_code": _tags_code,
    "reconsume_times": _number(Part.RECONSUMES, "reconsume_times"),
    "flag": _number(Part.FLAG, "flag"),
    "sys_flag": _number(Part.SYS_FLAG, "sys_flag"),
    "log_offset": _number(Part.LOG_OFFSET, "log_offset"),
    "born_host": lambda records: _hosts(records.born_hosts),
    "store_host": lambda records: _hosts(records.store_hosts),
}
