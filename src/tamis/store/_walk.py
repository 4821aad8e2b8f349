"""Compiled loops over the commit log: records to rows of numbers, and what dispatch needs of them.

A row has where a record and its parts lie, relative to the mapping of its file, and the fields that
queues and index are made from. Nothing is copied out of the log.
"""

from ctypes import string_at
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from ..filter.engines.memory import (
    Address,
    Int,
    compiled,
    in_python,
    inlined,
    load1,
    load8,
)
from ..wire.record import BLANK_MAGIC, MAGIC
from ._crc import crc_of

__all__ = [
    "REASONS",
    "Column",
    "End",
    "Rows",
    "are_sound",
    "extension_end",
    "find_altered",
    "find_record",
    "first_not_before",
    "group_rows",
    "int2",
    "int4",
    "int8",
    "is_retimed",
    "is_sound",
    "java_hashes",
    "make_seals",
    "pick_seals",
    "seal_check",
    "split_keys",
    "walk",
]

Rows = npt.NDArray[np.int64]


class Column(IntEnum):
    AT = 0  # in the mapping of its file
    SIZE = 1
    QUEUE = 2
    QUEUE_OFFSET = 3
    SYS_FLAG = 4
    STORED = 5
    TOPIC_AT = 6
    TOPIC_SIZE = 7
    PROPERTIES_AT = 8
    PROPERTIES_SIZE = 9


class End(IntEnum):
    """Why a walk ended; the value's text is in `REASONS`."""

    STOP = 0  # at the place asked for
    ROWS = 1  # no more rows to fill
    BLANK = 2  # the filler: the next record is in the next file
    NOTHING = 3  # zeros: nothing was written here
    MAGIC = 4
    SIZE = 5
    OFFSET = 6
    CRC = 7
    VERSION = 8
    SEAL = 9  # told by `seals`, not here


REASONS: Final = {
    End.NOTHING: "there is no record",
    End.MAGIC: "this is no record: wrong magic number",
    End.SIZE: "the record's parts do not add up to its size",
    End.OFFSET: "the record says it lies elsewhere",
    End.CRC: "the body's CRC is not the recorded one",
    End.VERSION: "a record of RocketMQ 5 with a long topic name: not a format of 4.9",
    End.SEAL: "the record is not as it was written",
}

_AT, _SIZE, _QUEUE, _QUEUE_OFFSET, _SYS_FLAG, _STORED = range(6)
_TOPIC_AT, _TOPIC_SIZE, _PROPERTIES_AT, _PROPERTIES_SIZE = range(6, 10)
_MAGIC, _BLANK_MAGIC, _MAGIC_OF_5 = MAGIC, BLANK_MAGIC, 0xDAA320AB
_STOP, _ROWS, _BLANK, _NOTHING, _BAD_MAGIC, _BAD_SIZE, _BAD_OFFSET = map(int, list(End)[:7])
_BAD_CRC, _VERSION = map(int, list(End)[7:9])


@compiled
def walk(
    base: Address,
    at: Int,
    stop: Int,
    file_start: Int,
    check_crc: bool,
    rows: Rows,
) -> tuple[Int, Int, Int]:
    """Records of one file from `at` up to `stop`, into `rows`: (how many, where it ended, why)."""
    count = 0
    while at < stop:
        if count == len(rows):
            return count, at, _ROWS
        left = stop - at
        if left < 8:
            return count, at, _BAD_SIZE
        size, magic = int4(base + at), int4(base + at + 4) & 0xFFFFFFFF
        if magic == _BLANK_MAGIC:
            return count, at, _BLANK
        if magic != _MAGIC:
            if magic == _MAGIC_OF_5:
                return count, at, _VERSION
            return count, at, _NOTHING if magic == 0 and size == 0 else _BAD_MAGIC
        if size < 91 or size > left:
            return count, at, _BAD_SIZE
        sys_flag = int4(base + at + 36)
        stored_at = 68 if sys_flag & 0x10 else 56
        body_at = stored_at + 8 + (20 if sys_flag & 0x20 else 8) + 16
        if body_at + 3 > size:  # the lengths of topic and properties follow even an empty body
            return count, at, _BAD_SIZE
        body = int4(base + at + body_at - 4)
        topic_at = body_at + body + 1
        if body < 0 or topic_at + 2 > size:
            return count, at, _BAD_SIZE
        topic = load1(base + at + topic_at - 1)
        properties_at = topic_at + topic + 2
        if properties_at > size:
            return count, at, _BAD_SIZE
        properties = int2(base + at + properties_at - 2)
        if properties < 0 or properties_at + properties != size:
            return count, at, _BAD_SIZE
        if int8(base + at + 28) != file_start + at:
            return count, at, _BAD_OFFSET
        if check_crc and body > 0:
            recorded = int4(base + at + 8) & 0xFFFFFFFF
            if crc_of(base + at + body_at, body) & 0x7FFFFFFF != recorded:
                return count, at, _BAD_CRC
        rows[count, _AT] = at
        rows[count, _SIZE] = size
        rows[count, _QUEUE] = int4(base + at + 12)
        rows[count, _QUEUE_OFFSET] = int8(base + at + 20)
        rows[count, _SYS_FLAG] = sys_flag
        rows[count, _STORED] = int8(base + at + stored_at)
        rows[count, _TOPIC_AT] = at + topic_at
        rows[count, _TOPIC_SIZE] = topic
        rows[count, _PROPERTIES_AT] = at + properties_at
        rows[count, _PROPERTIES_SIZE] = properties
        count += 1
        at += size
    return count, at, _STOP


@inlined
def int2(at: Address) -> Int:
    value = load1(at) << 8 | load1(at + 1)
    return value - 0x10000 if value >= 0x8000 else value


@inlined
def int4(at: Address) -> Int:
    value = load1(at) << 24 | load1(at + 1) << 16 | load1(at + 2) << 8 | load1(at + 3)
    return value - 0x100000000 if value >= 0x80000000 else value


@inlined
def int8(at: Address) -> Int:
    """One load and a swap, where eight single bytes would be eight loads."""
    word = load8(at)
    word = (word & _ODD) << _8 | word >> _8 & _ODD
    word = (word & _ODD_PAIRS) << _16 | word >> _16 & _ODD_PAIRS
    return np.int64(word << _32 | word >> _32)


_8, _16, _32 = np.uint64(8), np.uint64(16), np.uint64(32)
_ODD, _ODD_PAIRS = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF)


@in_python(int2)
def _int2_in_python(at: Address) -> Int:
    return int.from_bytes(string_at(at, 2), "big", signed=True)


@in_python(int4)
def _int4_in_python(at: Address) -> Int:
    return int.from_bytes(string_at(at, 4), "big", signed=True)


@in_python(int8)
def _int8_in_python(at: Address) -> Int:
    return int.from_bytes(string_at(at, 8), "big", signed=True)


@compiled
def java_hashes(base: Address, starts: Rows, lengths: Rows, seed: Rows, out: Rows) -> None:
    """`String.hashCode` of UTF-8 text at each place, going on from `seed`; 32 bits, signed."""
    for row in range(len(starts)):
        value = seed[row] & 0xFFFFFFFF
        at, end = base + starts[row], base + starts[row] + max(lengths[row], 0)
        while at < end:
            first = load1(at)
            if first < 0x80:
                code, size = first, 1
            elif first < 0xE0:
                code, size = (first & 0x1F) << 6 | (load1(at + 1) & 0x3F), 2
            elif first < 0xF0:
                code = (first & 0x0F) << 12 | (load1(at + 1) & 0x3F) << 6 | (load1(at + 2) & 0x3F)
                size = 3
            else:
                code = (first & 0x07) << 18 | (load1(at + 1) & 0x3F) << 12
                code |= (load1(at + 2) & 0x3F) << 6 | (load1(at + 3) & 0x3F)
                size = 4
                high = 0xD800 + ((code - 0x10000) >> 10)
                value = (31 * value + high) & 0xFFFFFFFF
                code = 0xDC00 + ((code - 0x10000) & 0x3FF)
            value = (31 * value + code) & 0xFFFFFFFF
            at += size
        out[row] = value - 0x100000000 if value >= 0x80000000 else value


@compiled
def split_keys(base: Address, unique: Rows, keys: Rows, out: Rows) -> Int:
    """The keys to index, in order: a message's unique key, then the words of its KEYS.

    `unique` and `keys` are (start, length or -1) by message; `out` gets (message, start, length).
    Without room for all, counts on: the caller comes back with more.
    """
    count = 0
    for message in range(len(unique)):
        if unique[message, 1] >= 0:
            if count < len(out):
                out[count, 0] = message
                out[count, 1] = unique[message, 0]
                out[count, 2] = unique[message, 1]
            count += 1
        start, end = keys[message, 0], keys[message, 0] + keys[message, 1]
        at = start
        while at < end:
            if load1(base + at) == 0x20:
                start = at + 1
            elif at + 1 == end or load1(base + at + 1) == 0x20:
                if count < len(out):
                    out[count, 0] = message
                    out[count, 1] = start
                    out[count, 2] = at + 1 - start
                count += 1
            at += 1
    return count


@compiled
def group_rows(base: Address, rows: Rows, groups: Rows, firsts: Rows) -> Int:
    """Numbers rows by (topic, queue) in the order first met: `groups[row]`, and the first row of
    each in `firsts`; gives how many there are."""
    places = np.full(2 * len(rows) + 1, -1, dtype=np.int64)
    count = 0
    for row in range(len(rows)):
        at, size, queue = rows[row, _TOPIC_AT], rows[row, _TOPIC_SIZE], rows[row, _QUEUE]
        mixed = queue
        for i in range(size):
            mixed = (mixed * 31 + load1(base + at + i)) & 0x7FFFFFFF
        place = mixed % len(places)
        while places[place] >= 0:
            first = firsts[places[place]]
            if rows[first, _QUEUE] == queue and rows[first, _TOPIC_SIZE] == size:
                same = True
                for i in range(size):
                    if load1(base + at + i) != load1(base + rows[first, _TOPIC_AT] + i):
                        same = False
                        break
                if same:
                    break
            place = (place + 1) % len(places)
        if places[place] < 0:
            places[place] = count
            firsts[count] = row
            count += 1
        groups[row] = places[place]
    return count


@compiled
def extension_end(base: Address, file_size: Int) -> Int:
    """Where the units of an extension file end, by their sizes."""
    at = 0
    while at + 20 <= file_size:
        size = int2(base + at)
        if size <= 0:
            break
        at += size
    return at


@inlined
def _stored(record: Address) -> Int:
    """The low half of a record's store time."""
    return int4(record + (72 if int4(record + 36) & 0x10 else 60)) & 0xFFFFFFFF


@compiled
def is_retimed(record: Address, size: Int, stored: Int, crc: Int) -> bool:
    """Whether a record is the one that was sealed with that CRC, but for its store time.

    A seal of another time is mostly that of a record which was lost before this one took its place.
    """
    at = 72 if int4(record + 36) & 0x10 else 60
    copy = np.empty(size, dtype=np.uint8)
    for i in range(size):
        copy[i] = load1(record + i)
    for i in range(4):
        copy[at + i] = (stored >> (24 - 8 * i)) & 0xFF
    same: bool = crc_of(copy.ctypes.data, size) == crc
    return same and bool(copy[0] <= 0xFF)  # so that the copy is there until then


@compiled
def are_sound(
    base: Address,
    ats: Rows,
    sizes: Rows,
    file_start: Int,
    stop: Int,
    places: Rows,
    crcs: Rows,
    times: Rows,
    out: npt.NDArray[np.bool_],
) -> None:
    """Whether a whole record of its size lies at each place, as its seal says, or its body's CRC.

    The last three are the seals of this file, in the order of their places.
    """
    rows = np.empty((1, 10), dtype=np.int64)
    seal = 0
    for i in range(len(ats)):
        out[i] = False
        if ats[i] < 0 or ats[i] + sizes[i] > stop:
            continue
        seal = first_not_before(places, ats[i], seal)
        out[i] = is_sound(base, ats[i], sizes[i], file_start, seal, places, crcs, times, rows)


@inlined
def first_not_before(places: Rows, at: Int, near: Int) -> Int:
    """Number of the first place that is not before `at`; `near` is where to look first."""
    low = high = near if near and places[near - 1] < at else 0
    step = 1
    while high < len(places) and places[high] < at:
        low = high + 1
        high += step
        step *= 2
    high = min(high, len(places))
    while low < high:
        middle = (low + high) >> 1
        if places[middle] < at:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def pick_seals(
    ats: Rows,
    first: Int,
    before: Int,
    places: Rows,
    crcs: Rows,
    times: Rows,
    picked: Rows,
    count: Int,
) -> tuple[Int, Int]:
    """Appends to the `count` columns of `picked` the seals of the places `ats`, from number `first`
    on, that lie before `before`: (number of the first that does not, columns)."""
    near = 0
    while first < len(ats) and ats[first] < before:
        near = first_not_before(places, ats[first], near)
        if near < len(places) and places[near] == ats[first]:
            picked[0, count] = places[near]
            picked[1, count] = crcs[near]
            picked[2, count] = times[near]
            count += 1
        first += 1
    return first, count


@inlined
def is_sound(
    base: Address,
    at: Int,
    size: Int,
    file_start: Int,
    seal: Int,
    places: Rows,
    crcs: Rows,
    times: Rows,
    rows: Rows,
) -> bool:
    """Whether a whole record of that size is there; `seal` is from `first_not_before`."""
    if size < 91:  # no record is smaller
        return False
    record = base + at
    sealed = seal < len(places) and places[seal] == at
    if sealed and times[seal] != _stored(record):
        if is_retimed(record, size, times[seal], crcs[seal]):
            return False
        sealed = False
    count, _, _ = walk(base, at, at + size, file_start, not sealed, rows)
    return (
        count == 1 and rows[0, _SIZE] == size and (not sealed or crcs[seal] == crc_of(record, size))
    )


@compiled
def find_altered(
    base: Address, ats: Rows, sizes: Rows, crcs: Rows, times: Rows, out: npt.NDArray[np.bool_]
) -> None:
    """Which records are not as they were sealed; each has a seal."""
    for i in range(len(ats)):
        record = base + ats[i]
        if times[i] == _stored(record):
            out[i] = crc_of(record, sizes[i]) != crcs[i]
        else:
            out[i] = is_retimed(record, sizes[i], times[i], crcs[i])


_SALT = 0x7A315EA1  # so that zeros are no entry


@inlined
def _seal_check(at: Int, crc: Int, stored: Int) -> Int:
    mixed = ((at * 0x9E3779B1 ^ crc) * 0x5BD1E995 ^ stored) & 0xFFFFFFFF
    return (mixed * 0x5EBCA77 ^ _SALT) & 0xFFFFFFFF


@compiled
def seal_check(ats: Rows, crcs: Rows, times: Rows, out: npt.NDArray[np.uint32]) -> None:
    """What makes an entry of `seals` one: nothing else has it by chance."""
    for i in range(len(ats)):
        out[i] = _seal_check(ats[i], crcs[i], times[i])


@compiled
def make_seals(
    base: Address, edges: Rows, begin: Int, file_start: Int, out: npt.NDArray[np.uint32]
) -> None:
    """Entries for the records that lie from one edge to the next, `begin` being at `base`."""
    for i in range(len(out)):
        at = edges[i] - file_start
        record = base + edges[i] - begin
        crc, stored = crc_of(record, edges[i + 1] - edges[i]), _stored(record)
        out[i, 0], out[i, 1], out[i, 2] = at, crc, stored
        out[i, 3] = _seal_check(at, crc, stored)


@compiled
def find_record(base: Address, at: Int, stop: Int, file_start: Int) -> Int:
    """The first place from `at` on where a sound record lies; -1 if there is none."""
    rows = np.empty((1, 10), dtype=np.int64)
    while at + 91 <= stop:
        if load1(base + at + 4) == 0xDA and int4(base + at + 4) & 0xFFFFFFFF == _MAGIC:
            size = int4(base + at)
            if 91 <= size <= stop - at:
                count, _, _ = walk(base, at, at + size, file_start, True, rows)
                if count == 1:
                    return at
        at += 1
    return -1
