"""The batch engine: every way in, every place a value can lie, and never a byte too far."""

import copy
import mmap
import pickle
import threading

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.filter import Outcome, parse
from tamis.filter.engines._kernel import find_damaged
from tamis.filter.engines.columnar import compile_batch

F, T, N, E = (int(outcome) for outcome in Outcome)


def outcomes(expression: str, strings: object) -> list[int]:
    return compile_batch(parse(expression)).match_strings(strings).tolist()


def packed(*pairs: tuple[str, str]) -> str:
    return "\x02".join(f"{name}\x01{value}" for name, value in pairs)


@pytest.mark.parametrize(
    ("string", "outcome"),
    [
        (packed(("a", "1")), T),
        (packed(("a", "1")) + "\x02", T),
        (packed(("b", "1"), ("a", "1")), T),
        (packed(("a", "2"), ("a", "1")), T),  # the last one wins
        (packed(("a", "1"), ("a", "2")), F),
        (packed(("a", "1")) + "\x02a\x01", T),  # an empty value is not there, even as the last
        ("a\x01", N),
        ("a", N),
        ("\x011", N),
        ("\x02\x02a\x011", T),
        ("a\x02b\x011", N),
        ("aa\x011", N),
        ("xa\x011", N),
        ("a\x011\x01", E),  # the first \x01 ends the name, a later one is text
        ("", N),
        (None, N),
        (packed(("x" * 200, "y" * 200), ("a", "1"), ("z", "q" * 100)), T),
        (packed(("名", "值" * 30), ("a", "1")), T),
    ],
)
def test_a_property_is_found_as_rocketmq_finds_it(string: str | None, outcome: int) -> None:
    assert outcomes("a = 1", [string]) == [outcome]


@pytest.mark.parametrize("size", range(1, 20))
def test_names_of_any_length_are_told_apart(size: int) -> None:
    name = "n" * size
    others = packed((name[:-1] or "m", "2"), (name + "n", "3"), (name[:-1] + "x", "4"))
    assert outcomes(f"{name} = 1", [others]) == [N]
    assert outcomes(f"{name} = 1", [others + "\x02" + packed((name, "1"))]) == [T]


@pytest.mark.parametrize("padding", range(130))
def test_a_value_is_found_wherever_it_lies_in_a_block(padding: int) -> None:
    string = packed(("p", "x" * padding or "y"), ("a", "12345678"), ("q", "z"))
    assert outcomes("a = 12345678 AND p IS NOT NULL AND q = 'z'", [string] * 3) == [T] * 3


def test_many_properties_with_names_that_share_a_bucket() -> None:
    names = [f"p{i}" for i in range(300)]
    expression = " AND ".join(f"{name} = {i}" for i, name in enumerate(names))
    string = packed(*((name, str(i)) for i, name in reversed(list(enumerate(names)))))
    assert outcomes(expression, [string, string.replace("p77\x0177", "p77\x0178")]) == [T, F]


def test_long_lists_and_long_texts() -> None:
    choices = [f"choice number {i}" for i in range(500)] + ["a", "", "exactly8", "exactly 9"]
    expression = f"a IN ({', '.join(repr(c) for c in choices)})"
    strings = [packed(("a", choice)) for choice in [*choices, "choice number 500", "b"]]
    expected = [T if choice else N for choice in choices] + [F, F]
    assert outcomes(expression, strings) == expected


STRINGS = [packed(("a", "1")), packed(("a", "x")), None, packed(("a", "2"), ("b", "é"))]
EXPECTED = [T, E, N, F]


@pytest.mark.parametrize(
    "column",
    [
        STRINGS,
        pa.array(STRINGS),
        pa.array(STRINGS, pa.large_string()),
        pa.array(STRINGS, pa.string_view()),
        pa.array([s and s.encode() for s in STRINGS], pa.binary()),
        pa.array([s and s.encode() for s in STRINGS], pa.large_binary()),
        pa.array(STRINGS).dictionary_encode(),
        pa.array(["zz", *STRINGS, "zz"]).slice(1, 4),
        pa.chunked_array([STRINGS[:1], [], STRINGS[1:]]),
        np.array(STRINGS, dtype=object),
    ],
    ids=lambda column: f"{type(column).__name__}-{getattr(column, 'type', '')}",
)
def test_every_kind_of_column_is_taken(column: object) -> None:
    assert outcomes("a = 1", column) == EXPECTED


@pytest.mark.parametrize("dtype", ["S", "U"])
def test_numpy_arrays_of_text_are_taken(dtype: str) -> None:
    column = np.array([packed(("a", "1")), packed(("a", "2"), ("b", "x"))], dtype=dtype)
    assert outcomes("a = 1", column) == [T, F]


@pytest.mark.parametrize(
    "column", [[], pa.array([], pa.string()), pa.chunked_array([], pa.string())]
)
def test_an_empty_column_has_no_outcomes(column: object) -> None:
    assert outcomes("a = 1", column) == []


def test_a_column_of_nulls_is_messages_without_properties() -> None:
    assert outcomes("a IS NULL", pa.nulls(3)) == [T, T, T]


def test_a_column_of_something_else_is_refused() -> None:
    with pytest.raises(TypeError, match="is not text"):
        outcomes("a = 1", pa.array([1.5, 2.5]))
    with pytest.raises(TypeError, match="no column"):
        outcomes("a = 1", "a\x011")


def test_ready_columns_by_name() -> None:
    batch_filter = compile_batch(parse("a > 1 AND b = 'x'"))
    columns = {
        "a": pa.array(["2", "2", None, "y", "1"]),
        "b": pa.chunked_array([["x"], ["y", "x", "x", None]]),
        "not in the filter": pa.array([1, 2, 3, 4, 5]),
    }
    assert batch_filter.match_columns(columns).tolist() == [T, F, N, E, F]


def test_a_missing_column_is_a_missing_property() -> None:
    batch_filter = compile_batch(parse("a IS NULL"))
    assert batch_filter.match_columns({}, rows=2).tolist() == [T, T]
    with pytest.raises(ValueError, match="no `rows`"):
        batch_filter.match_columns({})


def test_ready_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="different lengths"):
        compile_batch(parse("a = b")).match_columns({"a": ["1"], "b": ["1", "2"]})


def test_spans_of_a_buffer_are_read_in_place() -> None:
    first, second = packed(("a", "1")).encode(), packed(("b", "1"), ("a", "2")).encode()
    buffer = np.frombuffer(b"##" + first + b"###" + second + b"#", dtype=np.uint8)
    starts = np.array([2, 5 + len(first), 0])
    ends = starts + np.array([len(first), len(second), 0])
    batch_filter = compile_batch(parse("a = 1"))
    assert batch_filter.match_spans(buffer, starts, ends).tolist() == [T, F, N]
    assert batch_filter.match_spans(buffer.tobytes(), starts, ends).tolist() == [T, F, N]
    with pytest.raises(IndexError):
        batch_filter.match_spans(buffer, starts, ends + len(buffer))
    with pytest.raises(TypeError, match="int64"):
        batch_filter.match_spans(buffer.astype(np.int64), starts, ends)
    with pytest.raises(ValueError, match="contiguous"):
        batch_filter.match_spans(buffer[::2], starts // 2, starts // 2)
    with pytest.raises(ValueError, match="starts of shape"):
        batch_filter.match_spans(buffer, starts, ends[:2])


@pytest.mark.parametrize(
    "string", ["a\x011", "a\x011.5", "b\x01" + "x" * 61 + "\x02a\x017", "a\x01xyz"]
)
@pytest.mark.parametrize(
    "expression", ["a = 1", "a > 1.5", "a IN ('xyz', 'x')", "a = TRUE", "a = b", "a > b", "q = 1"]
)
def test_nothing_beyond_the_buffer_is_read(string: str, expression: str) -> None:
    """The string ends where readable memory ends: one byte more and the process would die."""
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 2 * page)
    data = string.encode()
    memory[page - len(data) : page] = data
    buffer = np.frombuffer(memory, dtype=np.uint8)
    _protect(buffer.ctypes.data + page, page)
    try:
        spans = np.array([page - len(data)]), np.array([page])
        outcome = compile_batch(parse(expression)).match_spans(buffer[:page], *spans)
        assert outcome.tolist() == outcomes(expression, [string])
    finally:
        _protect(buffer.ctypes.data + page, page, readable=True)


def _protect(address: int, size: int, readable: bool = False) -> None:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    protection = mmap.PROT_READ | mmap.PROT_WRITE if readable else 0
    assert libc.mprotect(ctypes.c_void_p(address), size, protection) == 0


def test_bytes_that_are_no_text_compare_as_java_would_read_them() -> None:
    # both unreadable bytes become U+FFFD, so the two are equal
    assert outcomes("a = b", [b"a\x01\xff\x02b\x01\xfe"]) == [T]
    assert outcomes("a = '\ufffd'", [b"a\x01\xff"]) == [T]
    assert outcomes("a = 'x'", [b"a\x01\xff"]) == [F]
    assert outcomes("a = '\ud800'", [b"a\x01\xed\xa0\x80"]) == [F]


edges_of_utf8 = st.lists(
    st.sampled_from(
        b"a\x7f\x80\x8f\x90\x9f\xa0\xbf\xc0\xc1\xc2\xdf\xe0\xe1\xed\xef\xf0\xf1\xf4\xf5\xff"
    )
).map(bytes)


@settings(max_examples=2000, deadline=None)
@given(edges_of_utf8 | st.binary() | st.text().map(str.encode))
def test_damaged_text_is_known(data: bytes) -> None:
    try:
        data.decode()
        damaged = False
    except UnicodeDecodeError:
        damaged = True
    found = np.empty(1, dtype=np.bool_)
    buffer = np.frombuffer(data or b"\0", dtype=np.uint8)
    find_damaged(buffer.ctypes.data, np.array([0]), np.array([len(data)]), found)
    assert found.tolist() == [damaged]


@pytest.mark.parametrize("travel", [pickle.loads, copy.deepcopy])
def test_a_filter_travels_as_its_expression(travel) -> None:
    batch_filter = compile_batch(parse("a IN ('x', 'a text of some length') AND b > 5"))
    sent = pickle.dumps(batch_filter) if travel is pickle.loads else batch_filter
    arrived = travel(sent)
    del batch_filter
    assert arrived.match_strings([packed(("a", "a text of some length"), ("b", "6"))]).tolist() == [
        T
    ]


def test_a_property_named_often_gets_one_slot() -> None:
    batch_filter = compile_batch(parse("a > 1 AND a < 5 AND (a = 2 OR b = 1 OR a = 3)"))
    assert batch_filter.names == ("a", "b")


def test_one_filter_may_be_used_by_several_threads() -> None:
    batch_filter = compile_batch(parse("(a > 5 OR b = 'x') AND NOT (c = 1 AND a < 100)"))
    strings = pa.array(
        [packed(("a", str(i % 13)), ("b", "xy"[i % 2]), ("c", str(i % 3))) for i in range(20_000)]
    )
    expected = batch_filter.match_strings(strings).tolist()
    results: list[list[int]] = []
    threads = [
        threading.Thread(
            target=lambda: results.append(batch_filter.match_strings(strings).tolist())
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 4
