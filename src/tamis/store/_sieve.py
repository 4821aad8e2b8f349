"""Compiled loops over the units of a consume queue: which are wanted, and their records.

A unit has its record's place in the log (8 bytes), the record's size (4) and a code (8), all
big-endian, as they lie in the mapped file. Loops are given addresses: who calls them holds the
files. `select` says what for.
"""

from typing import Any

import numpy as np
from numba import types

from ..filter.engines.memory import Address, Int, compiled, inlined, load1, load8
from ._walk import Rows, first_not_before, int2, int4, int8, is_sound
from .format import EXT_ADDRESS_MAX, EXT_BASE, UNIT_BLANK_SIZE

__all__ = [
    "DAMAGED",
    "DONE",
    "FULL",
    "NO_ROOM",
    "OTHER_FILE",
    "extension_file",
    "find_flagged",
    "find_tagged",
    "property_spans",
    "size_of",
    "take_records",
    "unit_places",
]

_EXT_BASE, _EXT_ADDRESS_MAX, _UNIT_BLANK = EXT_BASE, EXT_ADDRESS_MAX, UNIT_BLANK_SIZE


@inlined
def size_of(unit: Address) -> Int:
    """Of its record: the low half of the eight bytes before the code."""
    low = int8(unit + 4) & 0xFFFFFFFF
    return low - 0x100000000 if low >= 0x80000000 else low


@compiled
def property_spans(
    units: Address,
    numbers: Rows,
    first: Int,
    base: Address,
    file_start: Int,
    file_size: Int,
    starts: Rows,
    ends: Rows,
) -> Int:
    """Where the properties of the numbered units' records lie, an empty span where that can't be.

    From the `first` number on up to one whose record lies in another file; gives which.
    """
    for row in range(first, len(numbers)):
        unit = units + 20 * numbers[row]
        at = int8(unit) - file_start
        if at < 0 or at >= file_size:
            return row
        end = at + size_of(unit)
        starts[row] = ends[row] = at
        if at + 91 > end or end > file_size:
            continue
        sys_flag = int4(base + at + 36)
        body_at = at + 88 + (12 if sys_flag & 0x10 else 0) + (12 if sys_flag & 0x20 else 0)
        if body_at + 3 > end:
            continue
        topic_at = body_at + int4(base + body_at - 4) + 1
        if topic_at <= body_at or topic_at + 2 > end:
            continue
        properties_at = topic_at + load1(base + topic_at - 1) + 2
        if properties_at > end or properties_at + int2(base + properties_at - 2) != end:
            continue
        starts[row], ends[row] = properties_at, end
    return len(numbers)


@compiled
def find_tagged(
    units: Address, count: Int, codes: Rows, bases: Rows, first: Int, size: Int, out: Rows
) -> tuple[Int, Int]:
    """Numbers of units with one of the codes, until `out` is full: (how many, units looked at).

    Of a code its low four bytes count, as they lie there; `codes` are in order. `bases` are the
    addresses of the extension's files, each of `size`, of which the first begins at `first`; a unit
    whose extension is not there may match.
    """
    mask, found = 0, 0  # a bit for some of each code's own: most of the others lack it
    for code in codes:
        mask |= 1 << (code >> 24 & 63)
    start = end = base = 0  # of the extension's file last looked at
    for number in range(count):
        unit = units + 20 * number
        code = np.int64(load8(unit + 12))
        if len(bases) and code & 0xFF == 0x80:
            at = int8(unit + 12) - _EXT_BASE
            if at < start or at >= end:
                start, end, base = extension_file(at, bases, first, size)
            known = at + 20 <= end and int2(base + at) >= 1
            code = np.int64(load8(base + at + 2)) if known else 0
        else:
            known = True
        half = code >> 32 & 0xFFFFFFFF
        if known and not (mask >> (half >> 24 & 63) & 1 and _has(codes, half)):
            continue
        if size_of(unit) == _UNIT_BLANK:
            continue
        out[found] = number
        found += 1
        if found == len(out):
            return found, number + 1
    return found, count


@inlined
def extension_file(at: Int, bases: Rows, first: Int, size: Int) -> tuple[Int, Int, Address]:
    """Start and end of the file that has it, and the address of the sequence's start if it lay
    before the file; nothing if there is none."""
    number = (at - first) // size
    if at < first or number >= len(bases):
        return 0, 0, 0
    start = first + number * size
    return start, start + size, bases[number] - start


@inlined
def _has(codes: Rows, code: Int) -> bool:
    low, high = 0, len(codes)
    while low < high:
        middle = (low + high) >> 1
        if codes[middle] < code:
            low = middle + 1
        else:
            high = middle
    return low < len(codes) and codes[low] == code


@compiled
def find_flagged(
    units: Address,
    count: Int,
    positions: Rows,
    bits: Int,
    born: Int,
    bases: Rows,
    first: Int,
    size: Int,
    out: Rows,
) -> tuple[Int, Int]:
    """As `find_tagged`: units whose extension has all of a group's bits, or can't tell."""
    found = 0
    start = end = base = 0
    for number in range(count):
        unit = units + 20 * number
        at = int8(unit + 12)
        if at <= _EXT_ADDRESS_MAX:
            at -= _EXT_BASE
            if at < start or at >= end:
                start, end, base = extension_file(at, bases, first, size)
            if at + 20 + (bits >> 3) <= end:
                extension = base + at
                is_told = int2(extension) >= 1 and int2(extension + 18) << 3 == bits
                if is_told and int8(extension + 10) > born:
                    flags = True
                    for p in positions:
                        if not load1(extension + 20 + (p >> 3)) >> (p & 7) & 1:
                            flags = False
                            break
                    if not flags:
                        continue
        if size_of(unit) == _UNIT_BLANK:
            continue
        out[found] = number
        found += 1
        if found == len(out):
            return found, number + 1
    return found, count


# Why `take_records` came back. Plain numbers, for both sides are hot.
DONE = 0  # with all the numbers
FULL = 1
OTHER_FILE = 2  # of the log is where the next record lies
NO_ROOM = 3  # for the next record in the buffer
DAMAGED = 4  # the last one was, and left out

_memcpy: Any = types.ExternalFunction("memcpy", types.int64(types.int64, types.int64, types.int64))


@compiled
def take_records(
    units: Address,
    count: Int,
    numbers: Rows,
    next_: Int,
    walked: Int,
    taken: Int,
    total: Int,
    messages: Int,
    bytes_: Int,
    most: Int,
    cold_bytes: Int,
    cold_most: Int,
    memory: Int,
    largest: Int,
    log_end: Int,
    base: Address,
    file_start: Int,
    file_size: Int,
    places: Rows,
    crcs: Rows,
    times: Rows,
    out: Address,
    room: Int,
) -> tuple[Int, Int, Int, Int, Int]:
    """Copies the records of the numbered units, from number `next_` on, until an answer is full:
    (numbers done with, units done with, records, bytes, why).

    RocketMQ asks at every unit, wanted or not, whether it would still fit, so a large unit nobody
    wants may end an answer too. No record is larger than `largest`.
    """
    rows = np.empty((1, 10), dtype=np.int64)
    stop = min(log_end - file_start, file_size)
    hot = log_end - int8(units) <= memory  # what comes after is, too
    first = min(messages, most)
    rows[0, 0] = _touch(units, numbers, next_, first - taken, base, file_start, stop)
    seal = 0
    for index in range(next_, len(numbers) + 1):
        # 1. what lies before, and itself, must fit
        number = numbers[index] if index < len(numbers) else count
        is_sure = hot and taken < first and total + largest <= bytes_
        if taken and not is_sure:
            for between in range(walked, min(number + 1, count)):
                unit = units + 20 * between
                is_cold = log_end - int8(unit) > memory
                left = (cold_bytes if is_cold else bytes_) - total
                if (
                    taken >= messages
                    or size_of(unit) > left
                    or taken >= (cold_most if is_cold else most)
                ):
                    return index, between, taken, total, FULL
        if index == len(numbers):
            break
        # 2. its record must be sound
        unit = units + 20 * number
        size = size_of(unit)
        if size == _UNIT_BLANK:
            walked = number + 1
            continue
        at = int8(unit) - file_start
        if at < 0 or at >= file_size:
            return index, walked, taken, total, OTHER_FILE
        if at + size > stop:
            return index + 1, number + 1, taken, total, DAMAGED
        if total + size > room:
            return index, walked, taken, total, NO_ROOM
        walked = number + 1
        seal = first_not_before(places, at, seal)
        if not is_sound(base, at, size, file_start, seal, places, crcs, times, rows):
            return index + 1, walked, taken, total, DAMAGED
        # 3. then it is taken
        _memcpy(out + total, base + at, size)
        total += size
        taken += 1
        if hot and taken >= first:  # RocketMQ finds out at the next unit
            return index + 1, walked, taken, total, FULL
    return len(numbers), count, taken, total, DONE


@compiled
def unit_places(
    units: Address, numbers: Rows, next_: Int, file_start: Int, file_size: Int, out: Rows
) -> Int:
    """Writes where the records of the numbered units, from number `next_` on, lie in a log file;
    returns how many of them do, and are not blank."""
    count = 0
    for index in range(next_, len(numbers)):
        unit = units + 20 * numbers[index]
        at = int8(unit) - file_start
        if 0 <= at < file_size and size_of(unit) != _UNIT_BLANK:
            out[count] = at
            count += 1
    return count


@inlined
def _touch(
    units: Address, numbers: Rows, next_: Int, most: Int, base: Address, file_start: Int, stop: Int
) -> Int:
    """Reads a byte of every cache line of the records to come: all at once they are fetched in a
    third of the time that they take one after the other."""
    seen = 0
    for index in range(next_, min(next_ + most, len(numbers))):
        unit = units + 20 * numbers[index]
        at, size = int8(unit) - file_start, size_of(unit)
        if at >= 0 and size <= 4096 and at + size <= stop:
            for line in range(0, size, 64):
                seen ^= load1(base + at + line)
    return seen
