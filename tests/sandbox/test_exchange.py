"""What a filter's process says is hostile until it has been read."""

import json
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.code import COLUMNS, TYPES, Needs, Verdicts
from tamis.filter import Outcome
from tamis.sandbox import exchange
from tamis.sandbox.exchange import Malformed

OUTCOMES = st.lists(st.sampled_from([int(one) for one in Outcome]), max_size=50)
NEEDS = {"is_batch": True, "columns": ["body"], "properties": [["a", "int"]], "is_declared": True}


@given(OUTCOMES, st.text(max_size=400))
def test_verdicts_come_back_as_they_were(outcomes: list[int], reason: str) -> None:
    failed = [row for row, one in enumerate(outcomes) if one == Outcome.ERROR]
    given = Verdicts(np.array(outcomes, np.uint8), dict.fromkeys(failed[:3], reason))
    data = exchange.encode_verdicts(given, 4096)
    read = exchange.parse_verdicts(data, len(outcomes))
    assert read.outcomes.tolist() == outcomes
    assert list(read.errors) == failed[:3]
    for said in read.errors.values():
        assert said.isprintable()
        assert 0 < len(said) <= 300


@given(st.binary(max_size=300), st.integers(0, 60))
def test_arbitrary_bytes_are_verdicts_or_malformed(data: bytes, rows: int) -> None:
    try:
        verdicts = exchange.parse_verdicts(data, rows)
    except Malformed:
        return
    assert len(verdicts.outcomes) == rows
    assert all(verdicts.outcomes[row] == Outcome.ERROR for row in verdicts.errors)


@given(OUTCOMES, st.data())
def test_verdicts_cut_or_lengthened_are_malformed(outcomes: list[int], data: st.DataObject) -> None:
    failed = [row for row, one in enumerate(outcomes) if one == Outcome.ERROR]
    whole = exchange.encode_verdicts(
        Verdicts(np.array(outcomes, np.uint8), dict.fromkeys(failed, "why")), 4096
    )
    cut = data.draw(st.integers(0, len(whole) - 1))
    for damaged in (whole[:cut], whole + b"\0"):
        with pytest.raises(Malformed):
            exchange.parse_verdicts(damaged, len(outcomes))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\1\1\0", "3 bytes for 2 messages"),
        (b"\1\4\0\0", "an outcome that does not exist"),
        (b"\1\3\1\0", "fewer reasons than it announced"),
        (b"\1\3\1\0" + struct.pack("<IH", 1, 9) + b"x", "fewer reasons than it announced"),
        (b"\1\3\1\0" + struct.pack("<IH", 0, 1) + b"x", "a message that did not fail"),
        (b"\1\3\1\0" + struct.pack("<IH", 2, 1) + b"x", "a message that did not fail"),
        (b"\3\3\2\0" + 2 * (struct.pack("<IH", 1, 1) + b"x"), "a message that did not fail"),
        (b"\1\3\1\0" + struct.pack("<IH", 1, 1) + b"\xff", "not UTF-8"),
        (b"\1\3\0\0x", "1 bytes too many"),
    ],
)
def test_what_is_wrong_with_an_answer_is_said(data: bytes, reason: str) -> None:
    with pytest.raises(Malformed, match=reason):
        exchange.parse_verdicts(data, 2)


def test_reasons_beyond_the_limit_are_left_out() -> None:
    failed = Verdicts(np.full(9000, 3, np.uint8), dict.fromkeys(range(9000), "x" * 300))
    data = exchange.encode_verdicts(failed, 4096)
    assert len(data) <= 9000 + 4096
    assert 0 < len(exchange.parse_verdicts(data, 9000).errors) < 64


@given(
    st.booleans(),
    st.lists(st.sampled_from(COLUMNS), min_size=1, unique=True),
    st.lists(
        st.tuples(st.text("abc", min_size=1), st.sampled_from(TYPES)),
        unique_by=lambda one: one[0],
    ),
)
def test_needs_come_back_as_they_were(
    is_batch: bool, columns: list[str], properties: list[tuple[str, str]]
) -> None:
    needs = Needs(is_batch, tuple(columns), tuple(properties), is_declared=True)
    assert exchange.parse_needs(exchange.encode_needs(needs)) == needs


@pytest.mark.parametrize(
    "changed",
    [
        {"columns": ["no such column"]},
        {"columns": "body"},
        {"columns": [["body"]]},
        {"columns": ["body", "body"]},
        {"columns": [], "properties": []},
        {"columns": ["body"] * 2000},
        {"properties": [["a", "decimal"]]},
        {"properties": [["a"]]},
        {"properties": ["a"]},
        {"properties": [["", "int"]]},
        {"properties": [["a" * 2000, "int"]]},
        {"properties": [["a\1", "int"]]},
        {"properties": [["body", "string"]]},
        {"properties": [["\ud800", "string"]]},
        {"properties": [["a", "int"], ["a", "string"]]},
        {"is_batch": 1},
        {"is_declared": None},
        {"more": 1},
    ],
    ids=str,
)
def test_needs_that_can_not_be_are_malformed(changed: dict[str, object]) -> None:
    exchange.parse_needs(json.dumps(NEEDS).encode())
    with pytest.raises(Malformed):
        exchange.parse_needs(json.dumps({**NEEDS, **changed}).encode())


@pytest.mark.parametrize("data", [b"", b"[", b"[" * 60000, b"\xff", b"1" * 60000, b"[]", b"null"])
def test_needs_in_another_form_are_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        exchange.parse_needs(data)
