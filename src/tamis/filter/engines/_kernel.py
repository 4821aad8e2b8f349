"""The compiled loops: raw property strings, or spans of ready columns, to an outcome a message.

One pass a message: find the separators 64 bytes at a time, note where the wanted properties' values
lie, run the program on them. Nothing is copied and no string is made. `_program` says what the
numbers in `code` mean.
"""

import numpy as np
import numpy.typing as npt

from ..logic import Outcome
from ._numbers import read_double, read_integer
from ._program import ERROR_ANSWER, HASH_FACTORS, Field, Op
from .memory import Address, Int, Word, compiled, find64, inlined, load1, load8, lowest_bit, store8

__all__ = ["count_strings", "find_damaged", "find_properties", "run_columns", "run_strings"]

Ints = npt.NDArray[np.int64]

# numba takes module-level integers for constants, enum members it does not.
_OP, _SLOT, _OTHER, _LOW, _HIGH, _ANSWERS, _TABLE, _STOP, _TARGET = map(int, Field)
_CONSTANT, _INT, _LONG, _DOUBLE, _CLASS, _WORDS, _DOUBLES, _SAME, _TEXT, _IN = map(
    int, list(Op)[:10]
)
_CONTAINS, _STARTSWITH, _ENDSWITH, _MAP, _PUSH, _JOIN = map(int, list(Op)[10:])
_ROW = len(Field)
_PLACE = 3  # where a slot's value lies: address, length (-1 missing), end of what may be read
_START, _LENGTH, _LIMIT = range(_PLACE)
_ERROR = ERROR_ANSWER
_TRUE = int(Outcome.TRUE)
_INT_MAX, _LONG_MAX = 2**31 - 1, 2**63 - 1
_FACTOR_LENGTH, _FACTOR_WORD = (np.uint64(factor) for factor in HASH_FACTORS)
_EQUALS, _SEPARATOR = 1, 2  # between name and value, after a value
_NO_BITS, _ONE_BIT = np.uint64(0), np.uint64(1)
_TOP_BITS = np.uint64(0x8080808080808080)


@inlined
def _cell(table: Address, row: Int, width: Int, column: Int) -> Int:
    """`table[row, column]` of int64s, `width` a row. Plain indexing allows for negative numbers and
    strides, which cost a third of the speed (`benchmarks/bench_filter.py`)."""
    return np.int64(load8(table + 8 * (row * width + column)))


@inlined
def _set_cell(table: Address, row: Int, width: Int, column: Int, value: Int) -> None:
    store8(table + 8 * (row * width + column), value)


@compiled
def run_strings(
    base: Address,
    limit: Address,
    starts: Ints,
    ends: Ints,
    heads: Ints,
    chains: Ints,
    names: Ints,
    code: Ints,
    texts: Address,
    choices: Ints,
    depth: Int,
    out: npt.NDArray[np.uint8],
) -> None:
    """Rows are property strings: bytes `starts[i]` to `ends[i]` after address `base`.

    `limit` is the first address not to be read. `names` has a row a slot: first word, its mask,
    length, address of the bytes; `heads` and `chains` find a slot by the name's first two bytes.
    """
    slots = len(names)
    memory = np.empty((slots + 1) * _PLACE + depth + 1, dtype=np.int64)
    places = memory.ctypes.data
    stack = places + 8 * (slots + 1) * _PLACE
    name_rows, head_rows, chain_rows = names.ctypes.data, heads.ctypes.data, chains.ctypes.data
    code_rows, steps, choice_rows = code.ctypes.data, len(code), choices.ctypes.data
    for slot in range(slots):
        _set_cell(places, slot, _PLACE, _LIMIT, limit)
    for row in range(len(starts)):
        _locate(
            base + starts[row],
            base + ends[row],
            limit,
            head_rows,
            chain_rows,
            name_rows,
            slots,
            places,
        )
        out[row] = _outcome(code_rows, steps, texts, choice_rows, places, stack)


@compiled
def count_strings(
    base: Address,
    limit: Address,
    starts: Ints,
    ends: Ints,
    heads: Ints,
    chains: Ints,
    names: Ints,
    programs: Ints,
    depth: Int,
    counts: Ints,
) -> None:
    """As `run_strings`, of several programs: adds to each one's count how many rows it is true of.

    `programs` has a row each: address of its code, steps, address of its texts, of its choices.
    """
    slots = len(names)
    memory = np.empty((slots + 1) * _PLACE + depth + 1, dtype=np.int64)
    places = memory.ctypes.data
    stack = places + 8 * (slots + 1) * _PLACE
    name_rows, head_rows, chain_rows = names.ctypes.data, heads.ctypes.data, chains.ctypes.data
    program_rows, count_rows = programs.ctypes.data, counts.ctypes.data
    for slot in range(slots):
        _set_cell(places, slot, _PLACE, _LIMIT, limit)
    for row in range(len(starts)):
        _locate(
            base + starts[row],
            base + ends[row],
            limit,
            head_rows,
            chain_rows,
            name_rows,
            slots,
            places,
        )
        for number in range(len(programs)):
            outcome = _outcome(
                _cell(program_rows, number, 4, 0),
                _cell(program_rows, number, 4, 1),
                _cell(program_rows, number, 4, 2),
                _cell(program_rows, number, 4, 3),
                places,
                stack,
            )
            known = _cell(count_rows, number, 1, 0)
            _set_cell(count_rows, number, 1, 0, known + (outcome == _TRUE))


@compiled
def find_properties(
    base: Address,
    limit: Address,
    starts: Ints,
    ends: Ints,
    heads: Ints,
    chains: Ints,
    names: Ints,
    value_starts: Ints,
    value_lengths: Ints,
) -> None:
    """Where the named values lie, a row a name: after `base`, and how long (-1: missing)."""
    slots = len(names)
    memory = np.empty((slots + 1) * _PLACE, dtype=np.int64)
    places = memory.ctypes.data
    name_rows, head_rows, chain_rows = names.ctypes.data, heads.ctypes.data, chains.ctypes.data
    for row in range(len(starts)):
        _locate(
            base + starts[row],
            base + ends[row],
            limit,
            head_rows,
            chain_rows,
            name_rows,
            slots,
            places,
        )
        for slot in range(slots):
            value_starts[slot, row] = _cell(places, slot, _PLACE, _START) - base
            value_lengths[slot, row] = _cell(places, slot, _PLACE, _LENGTH)


@inlined
def _locate(
    segment: Address,
    end: Address,
    limit: Address,
    heads: Address,
    chains: Address,
    names: Address,
    slots: Int,
    places: Address,
) -> None:
    """Notes in `places` where each wanted value of one property string lies."""
    for slot in range(slots):
        _set_cell(places, slot, _PLACE, _LENGTH, -1)
    block = segment
    while segment < end:
        found = _separators(block, limit)
        if end - block < 64:
            found |= _ONE_BIT << np.uint64(end - block)  # the end closes the last segment
        while found != _NO_BITS:
            close = block + lowest_bit(found)
            found &= found - _ONE_BIT
            # RocketMQ skips a segment of less than three characters: no name, = and value
            if close - segment >= 3:
                slot = _cell(heads, (load1(segment) * 31 + load1(segment + 1)) & 255, 1, 0)
                while slot >= 0:
                    size = _cell(names, slot, 4, 2)
                    if close - segment > size and _is_name(segment, limit, names, slot):
                        _set_cell(places, slot, _PLACE, _START, segment + size)
                        # each time it is met: the last one wins
                        _set_cell(places, slot, _PLACE, _LENGTH, close - segment - size)
                        break
                    slot = _cell(chains, slot, 1, 0)
            segment = close + 1
            if segment >= end:
                break
        block += 64


@compiled
def run_columns(
    bases: Ints,
    limits: Ints,
    starts: Ints,
    lengths: Ints,
    code: Ints,
    texts: Address,
    choices: Ints,
    depth: Int,
    out: npt.NDArray[np.uint8],
) -> None:
    """Ready columns: slot k's value in row i is `lengths[k, i]` bytes (-1: missing) from
    `bases[k] + starts[k, i]`."""
    slots = len(bases)
    memory = np.empty((slots + 1) * _PLACE + depth + 1, dtype=np.int64)
    places = memory.ctypes.data
    stack = places + 8 * (slots + 1) * _PLACE
    for slot in range(slots):
        _set_cell(places, slot, _PLACE, _LIMIT, limits[slot])
    for row in range(len(out)):
        for slot in range(slots):
            _set_cell(places, slot, _PLACE, _START, bases[slot] + starts[slot, row])
            _set_cell(places, slot, _PLACE, _LENGTH, lengths[slot, row])
        out[row] = _outcome(code.ctypes.data, len(code), texts, choices.ctypes.data, places, stack)


@compiled
def find_damaged(base: Address, starts: Ints, ends: Ints, out: npt.NDArray[np.bool_]) -> None:
    """Which rows are not UTF-8."""
    for row in range(len(starts)):
        out[row] = not _is_utf8(base + starts[row], base + ends[row])


@inlined
def _is_utf8(at: Address, end: Address) -> bool:
    while at < end:
        if at + 8 <= end and load8(at) & _TOP_BITS == _NO_BITS:
            at += 8
            continue
        lead = load1(at)
        at += 1
        if lead < 0x80:
            continue
        low, high, more = 0x80, 0xBF, 0  # bounds of the second byte; bytes after that
        if lead >= 0xF0:
            more = 2
            if lead == 0xF0:
                low = 0x90
            elif lead == 0xF4:
                high = 0x8F
        elif lead >= 0xE0:
            more = 1
            if lead == 0xE0:
                low = 0xA0
            elif lead == 0xED:
                high = 0x9F  # above are surrogates
        if lead < 0xC2 or lead > 0xF4 or end - at < more + 1 or not low <= load1(at) <= high:
            return False
        for i in range(1, more + 1):
            if load1(at + i) & 0xC0 != 0x80:
                return False
        at += more + 1
    return True


@inlined
def _separators(block: Address, limit: Address) -> Word:
    if block + 64 <= limit:
        return find64(block, _SEPARATOR)
    found = _NO_BITS
    for i in range(limit - block):
        if load1(block + i) == _SEPARATOR:
            found |= _ONE_BIT << np.uint64(i)
    return found


@inlined
def _is_name(segment: Address, limit: Address, names: Address, slot: Int) -> bool:
    done = 0
    if segment + 8 <= limit:
        if load8(segment) & np.uint64(_cell(names, slot, 4, 1)) != np.uint64(
            _cell(names, slot, 4, 0)
        ):
            return False
        done = 8
    address, size = _cell(names, slot, 4, 3), _cell(names, slot, 4, 2)
    return _equal_bytes(segment + done, address + done, size - done)


@inlined
def _equal_bytes(left: Address, right: Address, length: Int) -> bool:
    for i in range(length):  # noqa: SIM110
        if load1(left + i) != load1(right + i):
            return False
    return True


@inlined
def _outcome(
    code: Address, steps: Int, texts: Address, choices: Address, places: Address, stack: Address
) -> Int:
    result = 0
    used = 0
    at = 0
    while at < steps:
        op = _cell(code, at, _ROW, _OP)
        slot = _cell(code, at, _ROW, _SLOT)
        start = _cell(places, slot, _PLACE, _START)
        length = _cell(places, slot, _PLACE, _LENGTH)
        limit = _cell(places, slot, _PLACE, _LIMIT)
        low, high = _cell(code, at, _ROW, _LOW), _cell(code, at, _ROW, _HIGH)
        accumulator = result
        if op <= _WORDS:  # a look at one value
            if length < 0 or op == _CONSTANT:
                r = 0
            elif op <= _DOUBLE:
                if op == _INT:
                    parses, key = read_integer(start, length, limit, _INT_MAX)
                elif op == _LONG:
                    parses, key = read_integer(start, length, limit, _LONG_MAX)
                else:
                    parses, key = read_double(start, length, limit)
                r = 1 + ((low <= key) & (key <= high)) if parses else _ERROR
            elif op == _CLASS:
                r = 1 if length == 4 and _reads_true(start) else 2
            else:
                r = 1 + _is_word(start, length, limit, choices + 16 * low, high)
        elif op <= _ENDSWITH:
            other = _cell(code, at, _ROW, _OTHER)
            r = _compare_text(op, start, length, limit, low, high, other, texts, choices, places)
        elif op == _MAP:
            r = result
        elif op == _PUSH:
            _set_cell(stack, used, 1, 0, result)
            used += 1
            at += 1
            continue
        else:
            r = result
            used -= 1
            accumulator = _cell(stack, used, 1, 0)
        answer = (_cell(code, at, _ROW, _ANSWERS) >> (2 * r)) & 3
        result = (_cell(code, at, _ROW, _TABLE) >> (2 * (4 * accumulator + answer))) & 3
        if (_cell(code, at, _ROW, _STOP) >> result) & 1:
            at = _cell(code, at, _ROW, _TARGET)
        else:
            at += 1
    return result


@inlined
def _reads_true(start: Address) -> Int:
    """Four bytes that spell `true` in any case."""
    word = load1(start) | load1(start + 1) << 8 | load1(start + 2) << 16 | load1(start + 3) << 24
    return word | 0x20202020 == 0x65757274


@inlined
def _is_word(start: Address, length: Int, limit: Address, choices: Address, count: Int) -> Int:
    """Whether the value is one of a few texts of up to 8 bytes: no branch on what it is."""
    word = _first_word(start, length, limit)
    found = 0
    for i in range(count):
        text = np.uint64(_cell(choices, i, 2, 0))
        found |= (text == word) & (_cell(choices, i, 2, 1) == length)
    return found


@inlined
def _first_word(start: Address, length: Int, limit: Address) -> Word:
    """Up to eight bytes of a value, filled up with zeros behind."""
    if length >= 8:
        return load8(start)
    if start + 8 <= limit:
        return load8(start) & ((_ONE_BIT << np.uint64(8 * length)) - _ONE_BIT)
    word = _NO_BITS
    for i in range(length):
        word |= np.uint64(load1(start + i)) << np.uint64(8 * i)
    return word


@compiled
def _compare_text(
    op: Int,
    start: Address,
    length: Int,
    limit: Address,
    low: Int,
    high: Int,
    other: Int,
    texts: Address,
    choices: Address,
    places: Address,
) -> Int:
    if op in (_SAME, _DOUBLES):
        other_start = _cell(places, other, _PLACE, _START)
        other_length = _cell(places, other, _PLACE, _LENGTH)
        if op == _SAME:
            if length < 0:
                return 1 if other_length >= 0 else 0
            if other_length < 0:
                return 2
            same = length == other_length and _equal_bytes(start, other_start, length)
            return 4 if same else 3
        if length < 0 or other_length < 0:
            return 0
        parses, left = read_double(start, length, limit)
        if not parses:
            return _ERROR
        other_limit = _cell(places, other, _PLACE, _LIMIT)
        parses, right = read_double(other_start, other_length, other_limit)
        if not parses:
            return _ERROR
        return 2 if left == right else (1 if left < right else 3)
    if length < 0:
        return 0
    if op == _IN:
        return 2 if _is_choice(start, length, limit, texts, choices + 16 * low, high) else 1
    wanted = texts + low
    if op == _TEXT:
        found = length == high and _equal_bytes(start, wanted, high)
    elif high > length:
        found = False
    elif op == _STARTSWITH:
        found = _equal_bytes(start, wanted, high)
    elif op == _ENDSWITH:
        found = _equal_bytes(start + length - high, wanted, high)
    else:
        found = False
        for offset in range(length - high + 1):
            if _equal_bytes(start + offset, wanted, high):
                found = True
                break
    return 2 if found else 1


@inlined
def _is_choice(
    start: Address, length: Int, limit: Address, texts: Address, choices: Address, last_place: Int
) -> bool:
    place = np.int64(_hash(start, length, limit)) & last_place
    while _cell(choices, place, 2, 1) >= 0:
        text = texts + _cell(choices, place, 2, 0)
        if _cell(choices, place, 2, 1) == length and _equal_bytes(start, text, length):
            return True
        place = (place + 1) & last_place
    return False


@inlined
def _hash(start: Address, length: Int, limit: Address) -> Word:
    mixed = np.uint64(length) * _FACTOR_LENGTH
    done = 0
    while done < length:
        mixed = (mixed ^ _first_word(start + done, length - done, limit)) * _FACTOR_WORD
        mixed ^= mixed >> np.uint64(29)
        done += 8
    return mixed >> np.uint64(32)
