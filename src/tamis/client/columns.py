"""Bodies of pull answers, which are records one behind the other, to Arrow record batches.

A pure function of bytes, for the consumer's batches and for whoever reads a log file: loops are
compiled (`_walk`), a body is copied once, and Python sees a message only if its body is compressed
or its text is damaged. The first call on a machine compiles, for seconds: `decode([])` does
just that.
"""

import ctypes
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from ..errors import CorruptRecord, UnreadableMessage
from ..filter.engines.columnar import BatchFilter
from ..filter.logic import Outcome
from ..java import decode_utf8
from ..message import Host, PropertyName, SysFlag
from ..wire import record
from ..wire.properties import decode as decode_properties
from ._walk import (
    Ints,
    Part,
    find_values,
    gather,
    hash_spans,
    mark_damaged,
    mark_true,
    number_spans,
    parse_doubles,
    parse_integers,
    split_blocks,
    walk,
    write_ids,
)
from .compression import MAX_BODY_SIZE, decompress

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
    "schema_of",
]

log = logging.getLogger(__name__)

N = TypeVar("N", np.int64, np.int32, np.uint8)

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

_RETRY_TOPIC: Final = "RETRY_TOPIC"
_GUESSED_SIZE: Final = 512  # of a record; of smaller ones the walk goes on with more room
_SMALLEST_ENTRY: Final = 4  # of properties: name, \x01, value, \x02
_LONGEST_ID: Final = 56
_MOST_BYTES: Final = 2**31 - 1  # of a column: its offsets are of 32 bits
_MOST_DECOMPRESSED: Final = 64 * 2**20  # bytes of decompressed bodies in one batch, or one body
_NEVER: Final = 2**63 - 1
_TRUE: Final = np.uint8(Outcome.TRUE)
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


class Located(NamedTuple):
    """Where records lie, a number each: in which chunk, from where, how many bytes; their offsets
    in the queue and in the log."""

    chunks: Ints
    starts: Ints
    sizes: Ints
    offsets: Ints
    log_offsets: Ints


class Spans(NamedTuple):
    """Texts or bytes where they lie: addresses, and sizes, which are -1 for what is missing."""

    ats: Ints
    sizes: Ints


def schema_of(
    columns: Sequence[str] | None = None,
    properties: Sequence[str | tuple[str, str]] | None = None,
    time_unit: Literal["ms", "us"] = "ms",
) -> pa.Schema:
    """Of what `decode` gives. Raises ValueError for columns that can't be."""
    wanted = list(SCHEMA.names if columns is None else columns)
    named = [(one, "string") if isinstance(one, str) else one for one in properties or ()]
    _check_names(wanted, named)
    time = pa.timestamp(time_unit, "UTC")
    fields = [_field(name) for name in wanted]
    fields = [field.with_type(time) if field.type == _TIME else field for field in fields]
    return pa.schema([*fields, *(pa.field(name, KINDS[kind]) for name, kind in named)])


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
    """The messages of all chunks, or of a log's files, in their order.

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
    """As `decode`, in as few batches as memory allows: bodies may have a thousand times the bytes
    when they are decompressed. With each batch comes whether it is the last.

    A body that can't be read raises UnreadableMessage after the rows before it were given; with
    `null_unreadable` it is null, and the log names the message.
    """
    schema = schema_of(columns, properties, time_unit)
    made = len(schema) - len(properties or ())
    wanted, named = schema.names[:made], schema.names[made:]
    records = _Records(chunks)
    if sql is not None:
        records.keep(sql.match_strings(records.block_column()) == _TRUE)
    looked_up = [_LOOKED_UP[name] for name in wanted if name in _LOOKED_UP]
    if tags:
        looked_up.append(PropertyName.TAGS)
    if "topic" in wanted and records.parts[Part.IS_RETRY].any():
        looked_up.append(_RETRY_TOPIC)
    whole = "properties" in wanted or "property_string" in wanted
    records.look_up({*named, *looked_up}, whole=whole)
    if tags:
        kept = pc.is_in(_text_column(records.values[PropertyName.TAGS]), pa.array(sorted(tags)))
        records.keep(kept.to_numpy(zero_copy_only=False))
    if time_unit == "us":
        records.parts[Part.BORN] *= 1000
        records.parts[Part.STORED] *= 1000
    arrays: list[Any] = [
        None if name == "body" else _COLUMNS[name](records) for name in wanted
    ]  # bodies are made part by part
    arrays += [_typed(records, name, schema.field(name).type) for name in named]
    for i, field in enumerate(schema):
        if arrays[i] is not None and field.type != arrays[i].type:
            arrays[i] = arrays[i].view(field.type)
    if "body" not in wanted:
        yield pa.RecordBatch.from_arrays(arrays, schema=schema), True
        return
    for start, stop, bodies in _bodies(records, max_body_size, null_unreadable):
        part = [bodies if one is None else one.slice(start, stop - start) for one in arrays]
        yield pa.RecordBatch.from_arrays(part, schema=schema), stop == len(records)


def locate(chunks: Sequence[Chunk]) -> Located:
    """Find the records of all chunks, in the order in which `decode` gives their messages, for
    those who pass some of them on as they are. Raises CorruptRecord."""
    records = _Records(chunks)
    parts = records.parts
    numbers = parts[Part.CHUNK].copy()
    starts, ends = records.bounds()
    return Located(
        numbers, starts, ends - starts, parts[Part.OFFSET].copy(), parts[Part.LOG_OFFSET].copy()
    )


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


class _Records:
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
        data = _bytes_at(self._addresses[number], self._sizes[number])
        record.decode(data, at, file=_place(source))
        raise CorruptRecord(_place(source), at, "properties of a negative size")

    def bounds(self) -> tuple[Ints, Ints]:
        """From where and up to where in their chunks records lie. None may have been left out."""
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
        named = decode_properties(decode_utf8(_bytes_at(at, size)))
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

    def block_column(self) -> pa.Array:
        """Properties as they travel, sound UTF-8 or not."""
        return _copied(self.spans(Part.BLOCK_AT, Part.BLOCK_SIZE), pa.binary())

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
        """Fills `values` for these names. Before that, or to read blocks `whole`, mends them."""
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
        """Properties as they travel: addresses, sizes, and up to where may be read."""
        return self.parts[Part.BLOCK_AT], self.parts[Part.BLOCK_SIZE], self._limits

    def _mend_blocks(self) -> None:
        """Lets the spans of blocks that are no UTF-8 point to what Java would read there."""
        ats, sizes, limits = self.blocks
        damaged = np.empty(len(self), dtype=np.bool_)
        mark_damaged(ats, sizes, damaged)
        for row in np.flatnonzero(damaged):
            text = decode_utf8(_bytes_at(ats[row], sizes[row])).encode()
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
        """The address of some bytes, which are kept as long as these records are."""
        buffer = pa.py_buffer(data)
        self._memory.append(buffer)
        address: int = buffer.address
        return address


def _room(count: int) -> Ints:
    """The odd width keeps parts of a record off each other's lines of the cache."""
    width = count // 512 * 512 + 512 + 24
    return _pooled(len(Part) * width, np.int64).reshape(len(Part), width)


def _pooled(count: int, kind: type[N]) -> npt.NDArray[N]:
    """An array of Arrow's pool, whose pages are there from the last batch: new ones would cost as
    much as what is written to them."""
    data = pa.allocate_buffer(count * np.dtype(kind).itemsize)
    return np.frombuffer(data, dtype=kind)


def _place(chunk: Chunk | Placed) -> str:
    if isinstance(chunk, Placed):
        return f"the log, topic {chunk.topic}"
    return f"an answer of {chunk.broker_name} for {chunk.topic}"


def _bytes_at(at: Any, size: Any) -> bytes:
    return ctypes.string_at(int(at), int(size))


def _distinct(spans: Spans) -> tuple[npt.NDArray[np.int32], list[bytes]]:
    """For few different texts: a number for each span, and the bytes by number."""
    numbers = np.empty(len(spans.ats), dtype=np.int32)
    firsts = np.empty(len(spans.ats), dtype=np.int64)
    count = number_spans(*spans, numbers, firsts)
    return numbers, [_bytes_at(spans.ats[row], spans.sizes[row]) for row in firsts[:count]]


def _text_column(spans: Spans) -> pa.Array:
    """Spans of sound UTF-8."""
    return _copied(spans, pa.string())


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


def _number(part: Part, name: str) -> Callable[[_Records], pa.Array]:
    kind = SCHEMA.field(name).type  # of times, which may be in another unit, only the width counts

    def column(records: _Records) -> pa.Array:
        # a copy in any case: the parts are more than the column
        numbers = records.parts[part].astype(np.int32 if kind == pa.int32() else np.int64)
        return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)], 0)

    return column


def _topic(records: _Records) -> pa.Array:
    spans = records.spans(Part.TOPIC_AT, Part.TOPIC_SIZE)
    if _RETRY_TOPIC in records.values:
        original = records.values[_RETRY_TOPIC]
        has_one = (original.sizes >= 0) & (records.parts[Part.IS_RETRY] != 0)
        ats, sizes = (np.where(has_one, *pair) for pair in zip(original, spans, strict=True))
        spans = Spans(ats, sizes)
    numbers, topics = _distinct(spans)
    return _spread([decode_utf8(topic) for topic in topics], numbers)


def _broker(records: _Records) -> pa.Array:
    names = [chunk.broker_name for chunk in records.chunks]
    return _spread(names, records.parts[Part.CHUNK])


def _property(name: str) -> Callable[[_Records], pa.Array]:
    return lambda records: _text_column(records.values[name])


def _typed(records: _Records, name: str, kind: pa.DataType) -> pa.Array:
    """A property read as what it is to be."""
    spans, (_, _, limits) = records.values[name], records.blocks
    if kind == pa.string():
        return _text_column(spans)
    if kind == pa.bool_():
        is_true = np.empty(len(records), dtype=np.bool_)
        mark_true(*spans, is_true)
        return pa.array(is_true, mask=spans.sizes < 0)
    numbers = np.empty(len(records), dtype=np.int64)
    is_there = np.empty(len(records), dtype=np.bool_)
    if kind == pa.float64():
        parse_doubles(*spans, limits, numbers, is_there)
        return pa.array(numbers.view(np.float64), mask=~is_there)
    largest = 2**31 - 1 if kind == pa.int32() else 2**63 - 1
    parse_integers(*spans, limits, largest, numbers, is_there)
    return pa.array(numbers.astype(kind.to_pandas_dtype()), mask=~is_there)


def _tags_code(records: _Records) -> pa.Array:
    codes = np.empty(len(records), dtype=np.int64)
    hash_spans(*records.values[PropertyName.TAGS], codes)
    return pa.array(codes)


def _property_string(records: _Records) -> pa.Array:
    ats, sizes, _ = records.blocks
    return _text_column(Spans(ats, sizes))


def _properties(records: _Records) -> pa.Array:
    ats, sizes, limits = records.blocks
    size = int(sizes.sum())
    if size > _MOST_BYTES:
        raise ValueError(f"properties of {size} bytes: decode fewer chunks at once")
    room = (size + len(records)) // _SMALLEST_ENTRY + 1
    largest = (int(sizes.max(initial=0)) + 1) // _SMALLEST_ENTRY
    offsets = np.empty(len(records) + 1, dtype=np.int32)
    text_offsets = _pooled(2 * room, np.int32).reshape(2, room)
    texts = _pooled(2 * size, np.uint8).reshape(2, size)
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


def _bodies(
    records: _Records, limit: int, null_unreadable: bool
) -> Iterator[tuple[int, int, pa.Array]]:
    """The bodies of some rows, from which row and up to which; all rows in the end."""
    ats, sizes = (part.copy() for part in records.spans(Part.BODY_AT, Part.BODY_SIZE))
    flags = records.parts[Part.SYS_FLAG]
    start = held = 0
    buffers: list[pa.Buffer] = []

    def column(stop: int) -> tuple[int, int, pa.Array]:
        return start, stop, _copied(Spans(ats[start:stop], sizes[start:stop]), pa.binary())

    for row in np.flatnonzero(flags & SysFlag.COMPRESSED):
        try:
            body = decompress(_bytes_at(ats[row], sizes[row]), int(flags[row]), limit)
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


def _message_id(records: _Records) -> pa.Array:
    ats, sizes = (part.copy() for part in records.values[PropertyName.UNIQUE_KEY])
    without = np.flatnonzero(sizes < 0)
    hosts = records.store_hosts
    host_sizes = hosts.sizes[without]
    ids = np.empty((len(without), _LONGEST_ID), dtype=np.uint8)
    write_ids(records.parts[Part.AT][without], hosts.ats[without], host_sizes, ids)
    ats[without] = records.hold(ids) + _LONGEST_ID * np.arange(len(without))
    sizes[without] = 2 * (host_sizes + 8)
    return _text_column(Spans(ats, sizes))


def _hosts(spans: Spans) -> pa.Array:
    numbers, hosts = _distinct(spans)
    shown = [str(Host(host[:-4], int.from_bytes(host[-4:], signed=True))) for host in hosts]
    return _spread(shown, numbers)


# What each column is made of; what looks at properties needs them looked up first.
_LOOKED_UP: Final = {
    "tags": PropertyName.TAGS,
    "tags_code": PropertyName.TAGS,
    "keys": PropertyName.KEYS,
    "message_id": PropertyName.UNIQUE_KEY,
}
_COLUMNS: Final[dict[str, Callable[[_Records], pa.Array]]] = {
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
