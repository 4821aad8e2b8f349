"""Engines never disagree: any expression, any messages, one outcome."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import expressions, messages

from tamis.filter import Dialect, Outcome, parse, render
from tamis.filter.engines.closures import compile_closure, evaluate
from tamis.filter.engines.columnar import compile_batch
from tamis.filter.nodes import Expr
from tamis.wire import properties


def assert_agreement(expr: Expr, rows: list, outcomes: np.ndarray) -> None:
    closure = compile_closure(expr)
    for row, outcome in zip(rows, outcomes.tolist(), strict=True):
        expected = evaluate(closure, row)
        assert Outcome(outcome) is expected, (
            f"\n  {render(expr)}\n  {row!r}\n  closures: {expected.name}, "
            f"columnar: {Outcome(outcome).name}"
        )


@settings(max_examples=1500, deadline=None)
@given(expr=expressions(), rows=st.lists(messages, min_size=1, max_size=6))
def test_columnar_on_ready_columns_agrees_with_closures(expr: Expr, rows: list) -> None:
    assert_agreement(expr, rows, compile_batch(expr).match_properties(rows))


@settings(max_examples=1500, deadline=None)
@given(expr=expressions(), rows=st.lists(messages, min_size=1, max_size=6))
def test_columnar_on_property_strings_agrees_with_closures(expr: Expr, rows: list) -> None:
    strings = [None if row is None else properties.encode(row) for row in rows]
    stored = [None if string is None else properties.decode(string) for string in strings]
    assert_agreement(expr, stored, compile_batch(expr).match_strings(strings))


@settings(max_examples=500, deadline=None)
@given(expr=expressions(), raw=st.lists(st.binary(max_size=80), min_size=1, max_size=6))
def test_columnar_on_arbitrary_bytes_agrees_with_closures(expr: Expr, raw: list[bytes]) -> None:
    rows = [properties.decode_bytes(data) for data in raw]
    assert_agreement(expr, rows, compile_batch(expr).match_strings(raw))


@settings(max_examples=500, deadline=None)
@given(
    expr=expressions(),
    raw=st.lists(st.text("ab=5x\x01\x01\x02\x02\ufffd").map(str.encode), min_size=1, max_size=6),
)
def test_columnar_on_damaged_property_strings_agrees_with_closures(
    expr: Expr, raw: list[bytes]
) -> None:
    rows = [properties.decode_bytes(data) for data in raw]
    assert_agreement(expr, rows, compile_batch(expr).match_strings(raw))


@settings(max_examples=1000, deadline=None)
@given(expr=expressions())
def test_rendered_text_parses_to_the_same_expression(expr: Expr) -> None:
    assert parse(render(expr), Dialect.V5_1_3) == expr


@settings(max_examples=500, deadline=None)
@given(expr=expressions(text_search=False))
def test_rendered_text_without_text_search_is_of_dialect_4_9(expr: Expr) -> None:
    assert parse(render(expr), Dialect.V4_9) == expr
