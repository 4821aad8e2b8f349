"""Java's number parsing on raw bytes, compiled: `coercion.to_int`, `to_long` and `to_double` again.

Short plain numbers, which is to say nearly all, are read eight bytes at a time without a loop; the
rest take the long way round. A number comes back as an int64 whose order is the number's own: for a
double, its bits arranged so that they sort as `Double.compareTo` does.
"""

import struct

import numpy as np

from ..coercion import BMP_ZEROS
from .memory import Address, Int, Word, compiled, inlined, load1, load8, lowest_bit, strtod

__all__ = ["double_key", "read_double", "read_integer"]

_ZEROS = np.array(BMP_ZEROS, dtype=np.int64)
_POW10 = np.array([10.0**i for i in range(23)])  # all exact in a double
_NAN_KEY = 0x7FF8000000000000

# Constants of the eight-digits-at-once trick, a lane a byte.
_ASCII_ZEROS = np.uint64(0x3030303030303030)
_HIGH_NIBBLES = np.uint64(0xF0F0F0F0F0F0F0F0)
_SIXES = np.uint64(0x0606060606060606)
_THREES = np.uint64(0x3333333333333333)
_DOTS = np.uint64(0x2E2E2E2E2E2E2E2E)
_ONES = np.uint64(0x0101010101010101)
_TOPS = np.uint64(0x8080808080808080)
_PAIRS = np.uint64(0x000000FF000000FF)
_MUL1 = np.uint64(0x000F424000000064)  # 100 + (1000000 << 32)
_MUL2 = np.uint64(0x0000271000000001)  # 1 + (10000 << 32)


def double_key(value: float) -> int:
    """The number that stands for a double in comparisons."""
    if value != value:
        return _NAN_KEY
    bits: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return bits if bits >= 0 else bits ^ 0x7FFFFFFFFFFFFFFF


@inlined
def _key(value: float) -> Int:
    if value != value:
        return _NAN_KEY
    bits = np.int64(np.float64(value).view(np.int64))
    return bits if bits >= 0 else bits ^ 0x7FFFFFFFFFFFFFFF


@inlined
def _right_aligned(address: Address, length: Int) -> Word:
    """Up to eight characters as a word, first lowest, filled up with zeros in front."""
    word = load8(address) << np.uint64(64 - 8 * length)
    half = np.uint64(4 * length)  # in two steps: a shift by 64 is undefined
    return word | ((_ASCII_ZEROS >> half) >> half)


@inlined
def _are_digits(word: Word) -> Int:
    low = ((word + _SIXES) & _HIGH_NIBBLES) >> np.uint64(4)
    return ((word & _HIGH_NIBBLES) | low) == _THREES


@inlined
def _eight_digits(word: Word) -> Int:
    word -= _ASCII_ZEROS
    word = word * np.uint64(10) + (word >> np.uint64(8))
    high = (word & _PAIRS) * _MUL1
    low = ((word >> np.uint64(16)) & _PAIRS) * _MUL2
    return np.int64((high + low) >> np.uint64(32))


@inlined
def read_integer(address: Address, length: Int, limit: Address, largest: Int) -> tuple[bool, Int]:
    """(whether it parses, the value): one sign, decimal digits, from -largest-1 to largest."""
    if 1 <= length <= 8 and address + 8 <= limit:
        word = _right_aligned(address, length)
        if _are_digits(word):
            return True, _eight_digits(word)
    return _read_integer_slowly(address, length, np.uint64(largest))


@compiled
def _read_integer_slowly(address: Address, length: Int, largest: Word) -> tuple[bool, Int]:
    at, end = address, address + length
    negative = False
    if length > 0:
        first = load1(at)
        if first == 0x2B or first == 0x2D:
            negative = first == 0x2D
            at += 1
    if at == end:
        return False, np.int64(0)
    if negative:
        largest += np.uint64(1)
    value = np.uint64(0)
    while at < end:
        digit, size = _digit(at, end)
        if digit < 0:
            return False, np.int64(0)
        # 19 digits fit a uint64 with room to spare, and `largest` has at most 19
        if value > np.uint64(999999999999999999):
            return False, np.int64(0)
        value = value * np.uint64(10) + np.uint64(digit)
        if value > largest:
            return False, np.int64(0)
        at += size
    return True, np.int64(np.uint64(0) - value) if negative else np.int64(value)


@compiled
def _digit(at: Address, end: Address) -> tuple[Int, Int]:
    """(the digit's value or -1, its bytes): ASCII, or UTF-8 of any decimal digit of the BMP."""
    first = load1(at)
    if first < 0x80:
        return (first - 0x30 if 0x30 <= first <= 0x39 else -1), 1
    if 0xC2 <= first < 0xE0 and at + 2 <= end:
        code = ((first & 0x1F) << 6) | (load1(at + 1) & 0x3F)
        size = 2
    elif 0xE0 <= first < 0xF0 and at + 3 <= end:
        code = ((first & 0x0F) << 12) | ((load1(at + 1) & 0x3F) << 6) | (load1(at + 2) & 0x3F)
        size = 3
    else:
        return -1, 1
    zero = np.searchsorted(_ZEROS, code, side="right") - 1
    if zero >= 0 and code - _ZEROS[zero] <= 9:
        return code - _ZEROS[zero], size
    return -1, 1


@inlined
def read_double(address: Address, length: Int, limit: Address) -> tuple[bool, Int]:
    """(whether it parses, the value's key)."""
    at, rest = address, length
    negative = False
    if rest > 1 and load1(at) == 0x2D:
        negative = True
        at += 1
        rest -= 1
    if 1 <= rest <= 8 and at + 8 <= limit:
        word = _right_aligned(at, rest)
        decimals = 0
        distance = word ^ _DOTS
        dots = (distance - _ONES) & ~distance & _TOPS
        if dots != np.uint64(0) and rest > 1:
            # take the dot out: what was before it moves up one place
            place = np.uint64(lowest_bit(dots) & 0x38)
            decimals = 7 - (lowest_bit(dots) >> 3)
            before = word & ((np.uint64(1) << place) - np.uint64(1))
            after = (((word >> place) >> np.uint64(8)) << np.uint64(8)) << place
            word = (before << np.uint64(8)) | after | np.uint64(0x30)
        if _are_digits(word):
            value = np.float64(_eight_digits(word)) / _POW10[decimals]
            return True, _key(-value if negative else value)
    return _read_double_slowly(address, length)


@compiled
def _read_double_slowly(address: Address, length: Int) -> tuple[bool, Int]:
    at, end = address, address + length
    while at < end and load1(at) <= 0x20:
        at += 1
    while at < end and load1(end - 1) <= 0x20:
        end -= 1
    negative = False
    if at < end and (load1(at) == 0x2B or load1(at) == 0x2D):
        negative = load1(at) == 0x2D
        at += 1
    if at == end:
        return False, np.int64(0)
    if load1(at) == 0x4E:  # N
        if _spells(at, end, b"NaN"):
            return True, np.int64(_NAN_KEY)
        return False, np.int64(0)
    if load1(at) == 0x49:  # I
        if _spells(at, end, b"Infinity"):
            return True, _key(-np.inf if negative else np.inf)
        return False, np.int64(0)
    if end - at > 2 and load1(at) == 0x30 and load1(at + 1) | 0x20 == 0x78:
        return _read_digits(at + 2, end, negative, True)
    return _read_digits(at, end, negative, False)


@compiled
def _spells(at: Address, end: Address, word: bytes) -> bool:
    if end - at != len(word):
        return False
    for i in range(len(word)):  # noqa: SIM110
        if load1(at + i) != word[i]:
            return False
    return True


# Significant digits kept. The 768th can still decide how a decimal rounds; what is cut off after
# these counts only as "a bit more", and a 1 stands for it.
_KEPT = 800


@compiled
def _read_digits(at: Address, end: Address, negative: bool, is_hex: bool) -> tuple[bool, Int]:
    """Digits with at most one point, exponent (a must in hex), suffix; rounded correctly."""
    text = np.empty(_KEPT + 40, dtype=np.uint8)
    used = 0
    if is_hex:
        text[0], text[1] = 0x30, 0x78  # 0x
        used = 2
    first_kept = used
    mantissa = np.uint64(0)
    seen = 0  # digits, leading zeros too
    dropped = False  # a digit other than 0 among those not kept
    scale = 0  # places the point has to move
    point = False
    while at < end:
        c = load1(at)
        if c == 0x2E and not point:
            point = True
        elif 0x30 <= c <= 0x39 or (is_hex and 0x61 <= c | 0x20 <= 0x66):
            seen += 1
            if used > first_kept or c != 0x30:
                if used - first_kept < _KEPT:
                    text[used] = c
                    used += 1
                    if used - first_kept <= 19:
                        mantissa = mantissa * np.uint64(10) + np.uint64(c & 0x0F)
                else:
                    dropped |= c != 0x30
                    scale += 1
            if point:
                scale -= 1
        else:
            break
        at += 1
    if seen == 0:
        return False, np.int64(0)

    exponent = 0
    mark = 0x70 if is_hex else 0x65  # p, e
    if at < end and load1(at) | 0x20 == mark:
        at += 1
        down = False
        if at < end and (load1(at) == 0x2B or load1(at) == 0x2D):
            down = load1(at) == 0x2D
            at += 1
        digits = 0
        while at < end and 0x30 <= load1(at) <= 0x39:
            if exponent < 1 << 40:  # beyond any length of text: stays infinity or 0
                exponent = exponent * 10 + load1(at) - 0x30
            digits += 1
            at += 1
        if digits == 0:
            return False, np.int64(0)
        if down:
            exponent = -exponent
    elif is_hex:
        return False, np.int64(0)
    if at < end and (load1(at) | 0x20 == 0x66 or load1(at) | 0x20 == 0x64):  # f, d
        at += 1
    if at != end:
        return False, np.int64(0)

    kept = used - first_kept
    value = 0.0
    exponent += 4 * scale if is_hex else scale
    if kept == 0:
        value = 0.0
    elif not is_hex and kept <= 15 and -22 <= exponent <= 22:
        # both numbers exact, so one operation rounds once (Clinger)
        value = np.float64(mantissa)
        value = value / _POW10[-exponent] if exponent < 0 else value * _POW10[exponent]
    else:
        if dropped:
            text[used] = 0x31
            used += 1
            exponent -= 4 if is_hex else 1
        # No point in the text: its spelling is the locale's business.
        text[used] = mark
        used += 1
        exponent = min(max(exponent, -99999), 99999)
        text[used] = 0x2D if exponent < 0 else 0x2B
        used += 1
        exponent = abs(exponent)
        for place in (10000, 1000, 100, 10, 1):
            text[used] = 0x30 + exponent // place % 10
            used += 1
        text[used] = 0
        value = strtod(text.ctypes.data, 0)
    return True, _key(-value if negative else value)
