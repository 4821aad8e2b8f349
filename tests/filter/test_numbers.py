"""Java's number parsing, in Python and compiled: the same answers, bit for bit."""

import struct

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from strategies import TELLING_TEXTS, texts

from tamis.errors import FilterValueError
from tamis.filter.coercion import BMP_ZEROS, to_boolean, to_double, to_int, to_long, total_order
from tamis.filter.engines._numbers import double_key, read_double, read_integer

ERROR = "error"

# text: as int, as long, as double
TABLE = [
    ("5", 5, 5, 5.0),
    ("+5", 5, 5, 5.0),
    ("-5", -5, -5, -5.0),
    ("007", 7, 7, 7.0),
    ("", ERROR, ERROR, ERROR),
    ("-", ERROR, ERROR, ERROR),
    ("+-5", ERROR, ERROR, ERROR),
    (" 5", ERROR, ERROR, 5.0),
    ("5\n", ERROR, ERROR, 5.0),
    ("\x005\x1f", ERROR, ERROR, 5.0),
    ("\u00a05", ERROR, ERROR, ERROR),
    ("5.0", ERROR, ERROR, 5.0),
    ("5.", ERROR, ERROR, 5.0),
    (".5", ERROR, ERROR, 0.5),
    (".", ERROR, ERROR, ERROR),
    ("1e3", ERROR, ERROR, 1000.0),
    ("1e", ERROR, ERROR, ERROR),
    ("1f", ERROR, ERROR, 1.0),
    ("1.5D", ERROR, ERROR, 1.5),
    ("1L", ERROR, ERROR, ERROR),
    ("1_0", ERROR, ERROR, ERROR),
    ("0x10", ERROR, ERROR, ERROR),
    ("0x1p3", ERROR, ERROR, 8.0),
    ("-0X1.8P1", ERROR, ERROR, -3.0),
    ("0x1p99999", ERROR, ERROR, float("inf")),
    ("NaN", ERROR, ERROR, float("nan")),
    ("nan", ERROR, ERROR, ERROR),
    ("Infinity", ERROR, ERROR, float("inf")),
    ("-Infinity", ERROR, ERROR, float("-inf")),
    ("inf", ERROR, ERROR, ERROR),
    ("2147483647", 2147483647, 2147483647, 2147483647.0),
    ("2147483648", ERROR, 2147483648, 2147483648.0),
    ("-2147483648", -2147483648, -2147483648, -2147483648.0),
    ("9223372036854775807", ERROR, 2**63 - 1, 2.0**63),
    ("-9223372036854775808", ERROR, -(2**63), -(2.0**63)),
    ("9223372036854775808", ERROR, ERROR, 2.0**63),
    ("0" * 5000 + "5", 5, 5, 5.0),
    ("9" * 5000, ERROR, ERROR, float("inf")),
    ("1e400", ERROR, ERROR, float("inf")),
    ("1e-400", ERROR, ERROR, 0.0),
    ("-1e-400", ERROR, ERROR, -0.0),
    ("2.4703282292062327e-324", ERROR, ERROR, 0.0),
    ("2.4703282292062328e-324", ERROR, ERROR, 5e-324),
    ("9007199254740993", ERROR, 9007199254740993, 9007199254740992.0),
    ("9007199254740993.0000000000000000000001", ERROR, ERROR, 9007199254740994.0),
    ("１２", 12, 12, ERROR),
    ("-١", -1, -1, ERROR),
    ("𝟏", ERROR, ERROR, ERROR),
    ("²", ERROR, ERROR, ERROR),
]


def in_python(convert, text: str) -> object:
    try:
        return convert(text)
    except FilterValueError:
        return ERROR


def compiled(text: str, kind: str, room: int) -> object:
    """The compiled reader on the text with `room` readable bytes after it; doubles as their key."""
    data = np.frombuffer(b"x" + text.encode("utf-8", "surrogatepass") + b"7" * room, dtype=np.uint8)
    start, limit = data.ctypes.data + 1, data.ctypes.data + len(data)
    length = len(data) - 1 - room
    if kind == "double":
        parses, value = read_double(start, length, limit)
    else:
        largest = 2**31 - 1 if kind == "int" else 2**63 - 1
        parses, value = read_integer(start, length, limit, largest)
    return value if parses else ERROR


def key(value: object) -> object:
    return double_key(value) if isinstance(value, float) else value


@pytest.mark.parametrize(("text", "as_int", "as_long", "as_double"), TABLE)
def test_text_is_read_as_java_does(text: str, as_int, as_long, as_double) -> None:
    assert in_python(to_int, text) == as_int
    assert in_python(to_long, text) == as_long
    assert key(in_python(to_double, text)) == key(as_double)


@settings(max_examples=3000, deadline=None)
@given(
    text=texts
    | st.from_regex(r"[+-]?[0-9]{0,25}(\.[0-9]{0,25})?([eE][+-]?[0-9]{0,3})?[fd ]?", fullmatch=True)
    | st.from_regex(r"0x[0-9a-f]{0,20}(\.[0-9a-f]{0,20})?p[+-]?[0-9]{0,4}", fullmatch=True)
    | st.floats().map(repr)
    | st.integers(-(2**65), 2**65).map(str),
    room=st.sampled_from([0, 3, 8, 64]),
)
@example("1" * 900 + ".5", 0)
@example("0." + "0" * 400 + "1" * 900, 0)
@example("0x1." + "0" * 900 + "1p0", 0)
def test_compiled_readers_agree_with_python(text: str, room: int) -> None:
    assert compiled(text, "int", room) == in_python(to_int, text)
    assert compiled(text, "long", room) == in_python(to_long, text)
    assert compiled(text, "double", room) == key(in_python(to_double, text))


@given(left=st.floats(), right=st.floats())
def test_keys_of_doubles_sort_as_double_compare_to(left: float, right: float) -> None:
    keys = double_key(left), double_key(right)
    assert (keys[0] > keys[1]) - (keys[0] < keys[1]) == total_order(left, right)


def test_total_order_puts_nan_above_all_and_minus_zero_below_zero() -> None:
    ordered = [float("-inf"), -1.0, -0.0, 0.0, 5e-324, 1.0, float("inf"), float("nan")]
    for i, left in enumerate(ordered):
        for j, right in enumerate(ordered):
            assert total_order(left, right) == (i > j) - (i < j)


def test_the_digits_of_the_bmp_are_those_java_17_knows() -> None:
    java = """0030 0660 06F0 07C0 0966 09E6 0A66 0AE6 0B66 0BE6 0C66 0CE6 0D66 0DE6 0E50 0ED0 0F20
        1040 1090 17E0 1810 1946 19D0 1A80 1A90 1B50 1BB0 1C40 1C50 A620 A8D0 A900 A9D0 A9F0 AA50
        ABF0 FF10"""
    assert [f"{zero:04X}" for zero in BMP_ZEROS] == java.split()


@pytest.mark.parametrize("text", TELLING_TEXTS)
def test_only_true_in_any_case_reads_as_true(text: str) -> None:
    assert to_boolean(text) == (text in ("true", "TRUE", "True", "tRuE"))


def test_double_key_is_the_bits_of_a_positive_double() -> None:
    assert double_key(1.5) == struct.unpack("<q", struct.pack("<d", 1.5))[0]
