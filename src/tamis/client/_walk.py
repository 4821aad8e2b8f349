"""Compiled loops over the bodies of pull answers: records to columns of numbers and of spans.

A span is an address and a size; a size of -1 says that there is nothing. Nothing is copied but by
`gather` and `split_blocks`. The caller keeps alive what the addresses point to.
"""

from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from ..filter.engines._kernel import find_damaged
from ..filter.engines._numbers import read_double, read_integer
from ..filter.engines.memory import (
    Address,
    Int,
    Word,
    compiled,
    find64,
    inlined,
    load1,
    load8,
    lowest_bit,
)
from ..wire.record import FIXED_SIZE, MAGIC

__all__ = [
    "Ints",
    "Part",
    "find_values",
    "gather",
    "hash_spans",
    "mark_damaged",
    "mark_true",
    "number_spans",
    "parse_doubles",
    "parse_integers",
    "split_blocks",
    "walk",
    "write_ids",
]

Ints = npt.NDArray[np.int64]
Offsets = npt.NDArray[np.int32]


class Part(IntEnum):
    """What a walk notes of each record: a row a part, a column a record."""

    CHUNK = 0  # which of the chunks it lies in
    AT = 1  # addresses, this and the others
    QUEUE = 2
    FLAG = 3
    OFFSET = 4
    LOG_OFFSET = 5
    SYS_FLAG = 6
    BORN = 7
    STORED = 8
    RECONSUMES = 9
    BODY_AT = 10
    BODY_SIZE = 11
    TOPIC_AT = 12
    TOPIC_SIZE = 13
    BLOCK_AT = 14  # the properties
    BLOCK_SIZE = 15
    IS_RETRY = 16  # 1 if its topic is a group's retry topic


# numba takes module-level integers for constants, enum members it does not.
_CHUNK, _AT, _QUEUE, _FLAG, _OFFSET, _LOG_OFFSET, _SYS_FLAG, _BORN = range(8)
_STORED, _RECONSUMES, _BODY_AT, _BODY_SIZE, _TOPIC_AT, _TOPIC_SIZE = range(8, 14)
_BLOCK_AT, _BLOCK_SIZE, _IS_RETRY = range(14, 17)
_MAGIC, _FIXED_SIZE = MAGIC, FIXED_SIZE
_NAME_END, _VALUE_END = 1, 2
_BUCKETS = 256  # as many as the highest byte of a word can tell apart
_NO_BITS, _ONE_BIT = np.uint64(0), np.uint64(1)
_8, _16, _32, _56 = np.uint64(8), np.uint64(16), np.uint64(32), np.uint64(56)
_ODD, _ODD_PAIRS = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF)
_RETRY_SIZE, _RETRY_WORD = 7, np.uint64(int.from_bytes(b"%RETRY%", "little"))
_FACTOR, _FACTOR_64 = 0x9E3779B1, np.uint64(0x9E3779B97F4A7C15)

# C's own: (to, from, size) and (left, right, size), all but the result addresses or sizes.
_memcpy: Any = types.ExternalFunction("memcpy", types.int64(types.int64, types.int64, types.int64))
_memcmp: Any = types.ExternalFunction("memcmp", types.int32(types.int64, types.int64, types.int64))

# Rows to prefetch ahead. A batch is larger than any cache, and each loop meets it anew: without
# this they wait for memory, and splitting properties takes three times as long.
_AHEAD = 8
_LINE = 64


def _emit_prefetch(typing: Any, address: Any) -> Any:
    """Asks for the line of the cache at an address, which need not be one that can be read."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), (pointer, flag, flag, flag))
        function = builder.module.declare_intrinsic("llvm.prefetch", (pointer,), kind)
        # to read, to be kept, data
        builder.call(function, [builder.inttoptr(args[0], pointer), flag(0), flag(3), flag(1)])
        return context.get_dummy_value()

    return types.void(types.int64), emit


_prefetch: Any = intrinsic(_emit_prefetch)


@inlined
def _prefetch_span(ats: Ints, sizes: Ints, row: Int) -> None:
    if row < len(ats):
        for at in range(ats[row], ats[row] + sizes[row], _LINE):
            _prefetch(at)


@compiled
def walk(
    addresses: Ints, sizes: Ints, chunk: Int, start: Int, count: Int, parts: Ints
) -> tuple[Int, Int, Int]:
    """Goes on with a walk that is at `start` of `chunk` and has met `count` records, into `parts`.

    Gives the same three: the place of what is no whole record, of what `parts` has no room for, or
    (number of chunks, 0).
    """
    while chunk < len(addresses):
        base, size = addresses[chunk], sizes[chunk]
        while start < size:
            if count == parts.shape[1]:
                return chunk, start, count
            record, left = base + start, size - start
            if left < _FIXED_SIZE:
                return chunk, start, count
            total = int4(record)
            # where the head of a later record lies, and the tail before it, if sizes are alike:
            # right often enough to halve the time of a walk
            for line in range(-2 * _LINE, 2 * _LINE, _LINE):
                _prefetch(record + 4 * total + line)
            if total < _FIXED_SIZE or total > left or int4(record + 4) & 0xFFFFFFFF != _MAGIC:
                return chunk, start, count
            sys_flag = int4(record + 36)
            stored = 68 if sys_flag & 0x10 else 56
            reconsumes = stored + (28 if sys_flag & 0x20 else 16)
            body = reconsumes + 16
            if body + 3 > total:
                return chunk, start, count
            body_size = int4(record + body - 4)
            topic = body + body_size + 1
            if body_size < 0 or topic + 2 > total:
                return chunk, start, count
            topic_size = load1(record + topic - 1)
            block = topic + topic_size + 2
            if block > total:
                return chunk, start, count
            block_size = load1(record + block - 2) << 8 | load1(record + block - 1)
            if block_size > 0x7FFF or block + block_size != total:
                return chunk, start, count
            parts[_CHUNK, count] = chunk
            parts[_AT, count] = record
            parts[_QUEUE, count] = int4(record + 12)
            parts[_FLAG, count] = int4(record + 16)
            parts[_OFFSET, count] = int8(record + 20)
            parts[_LOG_OFFSET, count] = int8(record + 28)
            parts[_SYS_FLAG, count] = sys_flag
            parts[_BORN, count] = int8(record + 40)
            parts[_STORED, count] = int8(record + stored)
            parts[_RECONSUMES, count] = int4(record + reconsumes)
            parts[_BODY_AT, count] = record + body
            parts[_BODY_SIZE, count] = body_size
            parts[_TOPIC_AT, count] = record + topic
            parts[_TOPIC_SIZE, count] = topic_size
            parts[_BLOCK_AT, count] = record + block
            parts[_BLOCK_SIZE, count] = block_size
            # the byte before the topic is loaded with it
            parts[_IS_RETRY, count] = (
                topic_size >= _RETRY_SIZE and load8(record + topic - 1) >> _8 == _RETRY_WORD
            )
            count += 1
            start += total
        chunk += 1
        start = 0
    return chunk, 0, count


@compiled
def mark_damaged(ats: Ints, sizes: Ints, out: npt.NDArray[np.bool_]) -> None:
    """Which spans are not UTF-8."""
    ends = ats + sizes
    for start in range(0, len(ats), _AHEAD):
        stop = min(start + _AHEAD, len(ats))
        for row in range(start, stop):
            _prefetch_span(ats, sizes, row + _AHEAD)
        find_damaged(0, ats[start:stop], ends[start:stop], out[start:stop])


@inlined
def int4(at: Address) -> Int:
    value = load1(at) << 24 | load1(at + 1) << 16 | load1(at + 2) << 8 | load1(at + 3)
    return value - 0x100000000 if value >= 0x80000000 else value


@inlined
def int8(at: Address) -> Int:
    word = load8(at)
    word = (word & _ODD) << _8 | word >> _8 & _ODD
    word = (word & _ODD_PAIRS) << _16 | word >> _16 & _ODD_PAIRS
    return np.int64(word << _32 | word >> _32)


@compiled
def find_values(
    ats: Ints, sizes: Ints, limits: Ints, names: Ints, value_ats: Ints, value_sizes: Ints
) -> None:
    """Spans of named values in blocks of properties: a row a name, a column a block.

    `limits` has the first address that may not be read, block by block. `names` has a row a name,
    with the byte that ends it: first word, its mask, size, address.
    """
    for row in range(len(ats)):
        _prefetch_span(ats, sizes, row + _AHEAD)
        for slot in range(len(names)):
            value_ats[slot, row] = 0
            value_sizes[slot, row] = -1
        segment, end, limit = ats[row], ats[row] + sizes[row], limits[row]
        block = segment
        while segment < end:
            found = _marks(block, limit, _VALUE_END)
            if end - block < 64:
                found |= _ONE_BIT << np.uint64(end - block)  # the end closes the last one
            while found != _NO_BITS:
                close = block + lowest_bit(found)
                found &= found - _ONE_BIT
                for slot in range(len(names)):
                    size = names[slot, 2]
                    # each time it is met: the last one wins
                    if close - segment > size and _is_name(segment, limit, names, slot):
                        value_ats[slot, row] = segment + size
                        value_sizes[slot, row] = close - segment - size
                        break
                segment = close + 1
                if segment >= end:
                    break
            block += 64


@inlined
def _marks(block: Address, limit: Address, byte: Int) -> Word:
    """Bit i is set where byte i from `block` on is `byte`, as far as may be read."""
    if block + 64 <= limit:
        return find64(block, byte)
    found = _NO_BITS
    for i in range(limit - block):
        if load1(block + i) == byte:
            found |= _ONE_BIT << np.uint64(i)
    return found


@inlined
def _is_name(segment: Address, limit: Address, names: Ints, slot: Int) -> bool:
    size, address = names[slot, 2], names[slot, 3]
    if segment + 8 > limit:
        return bool(_memcmp(segment, address, size) == 0)
    if load8(segment) & np.uint64(names[slot, 1]) != np.uint64(names[slot, 0]):
        return False
    return size <= 8 or bool(_memcmp(segment + 8, address + 8, size - 8) == 0)


@compiled
def split_blocks(
    ats: Ints,
    sizes: Ints,
    limits: Ints,
    room: Int,
    offsets: Offsets,
    name_offsets: Offsets,
    value_offsets: Offsets,
    names: Address,
    values: Address,
) -> Int:
    """Blocks of properties to maps, as Arrow lays them out; gives how many entries there are.

    As `wire.properties.decode`: of a repeated name the last value, at the place of the first.
    `room` is how many entries the largest block can have.
    """
    entries = np.empty((room, 6), dtype=np.int64)  # name, its size, value, its size, bucket, next
    heads = np.full(_BUCKETS, -1, dtype=np.int64)  # of chains of entries whose names are alike
    count = name_at = value_at = 0
    for row in range(len(ats)):
        _prefetch_span(ats, sizes, row + _AHEAD)
        offsets[row] = count
        used = 0
        segment, end, limit = ats[row], ats[row] + sizes[row], limits[row]
        name_end = end
        block = segment
        while segment < end:
            found = _marks(block, limit, _NAME_END) | _marks(block, limit, _VALUE_END)
            if end - block < 64:
                found |= _ONE_BIT << np.uint64(end - block)
            while found != _NO_BITS:
                close = block + lowest_bit(found)
                found &= found - _ONE_BIT
                if close < end and load1(close) == _NAME_END:
                    name_end = min(name_end, close)  # the first one splits
                    continue
                size, value_size = name_end - segment, close - name_end - 1
                if size > 0 and value_size > 0:
                    bucket = _bucket(segment, size, limit)
                    entry = heads[bucket]
                    while entry >= 0 and not (
                        entries[entry, 1] == size and _memcmp(entries[entry, 0], segment, size) == 0
                    ):
                        entry = entries[entry, 5]
                    if entry < 0:
                        entry = used
                        used += 1
                        entries[entry, 0], entries[entry, 1] = segment, size
                        entries[entry, 4], entries[entry, 5] = bucket, heads[bucket]
                        heads[bucket] = entry
                    entries[entry, 2], entries[entry, 3] = name_end + 1, value_size
                segment = close + 1
                name_end = end
                if segment >= end:
                    break
            block += 64
        for entry in range(used):
            name_offsets[count], value_offsets[count] = name_at, value_at
            _memcpy(names + name_at, entries[entry, 0], entries[entry, 1])
            _memcpy(values + value_at, entries[entry, 2], entries[entry, 3])
            name_at += entries[entry, 1]
            value_at += entries[entry, 3]
            heads[entries[entry, 4]] = -1
            count += 1
    offsets[len(ats)] = count
    name_offsets[count], value_offsets[count] = name_at, value_at
    return count


@inlined
def _bucket(name: Address, size: Int, limit: Address) -> Int:
    """By the first and the last eight bytes."""
    if size >= 8:
        word = load8(name) * _FACTOR_64 ^ load8(name + size - 8)
    elif name + 8 <= limit:
        word = load8(name) & ((_ONE_BIT << np.uint64(8 * size)) - _ONE_BIT)
    else:
        word = _NO_BITS
        for i in range(size):
            word |= np.uint64(load1(name + i)) << np.uint64(8 * i)
    return np.int64(word * _FACTOR_64 >> _56)


@compiled
def gather(ats: Ints, sizes: Ints, offsets: Offsets, out: Address) -> None:
    """Copies spans one behind the other: the data and offsets of an Arrow array."""
    at = 0
    for row in range(len(ats)):
        if row + _AHEAD < len(ats):
            _prefetch(ats[row + _AHEAD])
        offsets[row] = at
        size = sizes[row]
        if size > 0:
            _memcpy(out + at, ats[row], size)
            at += size
    offsets[len(ats)] = at


@compiled
def number_spans(ats: Ints, sizes: Ints, numbers: Offsets, firsts: Ints) -> Int:
    """Numbers spans by what they hold, in the order first met, the first row of each in `firsts`;
    gives how many differ."""
    places = np.full(2 * len(ats) + 1, -1, dtype=np.int64)
    count = 0
    for row in range(len(ats)):
        if row + _AHEAD < len(ats):
            _prefetch(ats[row + _AHEAD])
        at, size = ats[row], sizes[row]
        if row > 0 and size == sizes[row - 1] and _memcmp(at, ats[row - 1], size) == 0:
            numbers[row] = numbers[row - 1]
            continue
        mixed = size
        for i in range(size):
            mixed = (mixed * 31 + load1(at + i)) & 0xFFFFFFFF
        place = (mixed * _FACTOR >> 16) % len(places)
        while places[place] >= 0:
            first = firsts[places[place]]
            if sizes[first] == size and _memcmp(at, ats[first], size) == 0:
                break
            place = (place + 1) % len(places)
        if places[place] < 0:
            places[place] = count
            firsts[count] = row
            count += 1
        numbers[row] = places[place]
    return count


@compiled
def write_ids(records: Ints, hosts: Ints, host_sizes: Ints, out: npt.NDArray[np.uint8]) -> None:
    """Offset message ids, a row each: the store host and the log offset in hexadecimal."""
    for row in range(len(records)):
        for i in range(host_sizes[row]):
            _write_hex(out, row, 2 * i, load1(hosts[row] + i))
        for i in range(8):
            _write_hex(out, row, 2 * (host_sizes[row] + i), load1(records[row] + 28 + i))


@inlined
def _write_hex(out: npt.NDArray[np.uint8], row: Int, at: Int, byte: Int) -> None:
    high, low = byte >> 4, byte & 15
    out[row, at] = high + (48 if high < 10 else 55)
    out[row, at + 1] = low + (48 if low < 10 else 55)


@compiled
def parse_integers(
    ats: Ints, sizes: Ints, limits: Ints, largest: Int, out: Ints, is_there: npt.NDArray[np.bool_]
) -> None:
    """What Java's `Integer.valueOf` or `Long.valueOf` makes of the spans; 0 where it would throw,
    and where there is none."""
    for row in range(len(ats)):
        is_there[row], out[row] = False, 0
        if sizes[row] >= 0:
            is_there[row], out[row] = read_integer(ats[row], sizes[row], limits[row], largest)


@compiled
def parse_doubles(
    ats: Ints, sizes: Ints, limits: Ints, out: Ints, is_there: npt.NDArray[np.bool_]
) -> None:
    """As `parse_integers`, for `Double.valueOf`: the bits of the numbers."""
    for row in range(len(ats)):
        is_there[row], out[row] = False, 0
        if sizes[row] >= 0:
            is_there[row], key = read_double(ats[row], sizes[row], limits[row])
            out[row] = key if key >= 0 else key ^ 0x7FFFFFFFFFFFFFFF


@compiled
def mark_true(ats: Ints, sizes: Ints, out: npt.NDArray[np.bool_]) -> None:
    """Which spans are `true` in any case, as for `Boolean.valueOf`."""
    for row in range(len(ats)):
        at = ats[row]
        out[row] = (
            sizes[row] == 4
            and load1(at) | 0x20 == 0x74
            and load1(at + 1) | 0x20 == 0x72
            and load1(at + 2) | 0x20 == 0x75
            and load1(at + 3) | 0x20 == 0x65
        )


@compiled
def hash_spans(ats: Ints, sizes: Ints, out: Ints) -> None:
    """Java's `String.hashCode` of spans of UTF-8; 0 where there is none."""
    for row in range(len(ats)):
        value, at, end = 0, ats[row], ats[row] + sizes[row]
        while at < end:
            first = load1(at)
            size = 1 if first < 0x80 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4
            code = first if size == 1 else first & 0x7F >> size
            for i in range(1, size):
                code = code << 6 | load1(at + i) & 0x3F
            if size == 4:  # two UTF-16 units
                value = (31 * value + 0xD7C0 + (code >> 10)) & 0xFFFFFFFF
                code = 0xDC00 + (code & 0x3FF)
            value = (31 * value + code) & 0xFFFFFFFF
            at += size
        out[row] = value - 0x100000000 if value >= 0x80000000 else value
