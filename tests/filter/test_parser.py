"""Text to AST: what an error says and where it points, and the traps of the grammar."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.errors import FilterSyntaxError, FilterTypeError, InvalidFilter
from tamis.filter import Dialect, parse, parse_selector, render
from tamis.filter.nodes import And, Compare, Constant, Kind, Negate, Not, Operator, Property
from tamis.filter.parser import MAX_DEPTH

# text, column, part of the message
ERRORS = [
    ("", 1, "expected a value or a property, found the end of the text"),
    ("a =", 4, "expected a value or a property, found the end"),
    ("a = AND", 5, "expected a value or a property, found 'AND'"),
    ("a == 1", 4, "write = for 'equal'"),
    ("a != 1", 3, "write <> for 'not equal'"),
    ("a = 1 && b = 2", 7, "write AND"),
    ("a = 1 || b = 2", 7, "write OR"),
    ('a = "x"', 5, "single quotes"),
    ("a = 'x", 5, "never closed"),
    ("a = 1 /* b", 7, "never closed"),
    ("a.b = 1", 2, "letters, digits, _ and $"),
    ("中 = 1", 1, "letters, digits, _ and $"),
    ("a\u00a0= 1", 2, "no-break space"),
    ("a = 1;", 6, "leave it out"),
    ("a * 2 = 4", 3, "no arithmetic"),
    ("(a = 1", 7, "expected ')', found the end"),
    ("(a LIKE 'x%')", 4, "RocketMQ has no LIKE"),
    ("a NOT LIKE 'x%'", 7, "RocketMQ has no LIKE"),
    ("(a CONTAINS 'x')", 4, "5.1.3"),
    ("a IN (1, 2)", 7, "put it in quotes: '1'"),
    ("a IN ()", 7, "expected a string"),
    ("a IN 'x'", 6, "expected '('"),
    ("1 IN ('1')", 1, "only a property"),
    ("NOT a IN ('x')", 1, "NOT binds tighter"),
    ("NOT a > 1", 1, "NOT binds tighter"),
    ("a IS TRUE", 6, "write = TRUE"),
    ("a IS", 5, "expected NULL"),
    ("a = NULL", 5, "write IS NULL"),
    ("NULL <> a", 1, "write IS NOT NULL"),
    ("a > 'x'", 5, "only numbers are ordered"),
    ("a > TRUE", 5, "only numbers are ordered"),
    ("a > (b = 1)", 6, "a condition has no order"),
    ("a BETWEEN 3 AND 1", 11, "write BETWEEN 1 AND 3"),
    ("TRUE = 1", 1, "TRUE can't be compared with the number 1"),
    ("a > 0.0", 5, "write 0"),
    ("a < 1e400", 5, "above the largest double"),
    ("a = 9223372036854775808", 5, "above the largest long"),
    ("1", 1, "neither true nor false"),
    ("a = 1 AND 'x'", 11, "neither true nor false"),
    ("-a", 1, "a negated value"),
    ("(a = 007)", 7, "no leading zeros"),
    ("a BETWEEN 01 AND 05", 12, "no leading zeros"),
    ("a = 1\n AND b != 2", 8, "line 2, column 8"),
]


@pytest.mark.parametrize(("text", "column", "message"), ERRORS)
def test_an_error_says_what_is_wrong_and_points_at_the_column(
    text: str, column: int, message: str
) -> None:
    with pytest.raises(InvalidFilter) as caught:
        parse(text)
    assert caught.value.column == column, str(caught.value)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    line, mark = caught.value.picture().split("\n")
    assert line in text
    assert mark.index("^") == column - 1


def test_an_error_is_of_syntax_or_of_type() -> None:
    with pytest.raises(FilterSyntaxError):
        parse("a = ")
    with pytest.raises(FilterTypeError):
        parse("a > 'x'")


def test_the_mark_stands_under_its_column_after_a_tab() -> None:
    with pytest.raises(InvalidFilter) as caught:
        parse("\ta != 1")
    assert caught.value.picture() == "\ta != 1\n\t  ^"


def test_what_follows_a_complete_expression_is_ignored_and_remembered() -> None:
    selector = parse_selector("a = 1 b = 2")
    assert selector.expression == Compare(Operator.EQ, Property("a"), Constant(1))
    assert selector.ignored is not None
    assert selector.ignored.start == 6
    assert parse_selector("a = 1").ignored is None


def test_constants_of_different_kinds_are_different() -> None:
    assert Constant(1) != Constant(1.0)
    assert Constant(1) != Constant(True)
    assert Constant(2**31).kind is Kind.LONG
    assert parse("a = 5L") == parse("a = 5")


def test_a_long_chain_stays_flat() -> None:
    expr = parse(" AND ".join(["a = 1"] * 20_000))
    assert isinstance(expr, And)
    assert len(expr.terms) == 20_000
    assert parse(render(expr)) == expr


NESTED = {
    "not": ("NOT ", "(a = 1)", ""),
    "minus": ("- ", "5", ""),
    "conditions": ("(b = 2 AND ", "a = 1", ")"),
    "equalities": ("(", "a = 1", ") = TRUE"),
    "to the right": ("a = (", "b = 1", ")"),
}


@pytest.mark.parametrize("form", NESTED)
def test_nesting_works_up_to_the_limit_in_every_part_and_is_refused_beyond(form: str) -> None:
    from tamis.filter.engines.closures import compile_closure, evaluate
    from tamis.filter.engines.columnar import compile_batch
    from tamis.filter.explain import explain
    from tamis.filter.lint import lint

    opening, inside, closing = NESTED[form]
    deepest = MAX_DEPTH - 3
    start = "a = " if form == "minus" else ""
    text = start + opening * deepest + inside + closing * deepest
    beyond = start + opening * (MAX_DEPTH + 1) + inside + closing * (MAX_DEPTH + 1)
    expr = parse(text)
    assert parse(render(expr)) == expr
    message = {"a": "1", "b": "2"}
    expected = evaluate(compile_closure(expr), message)
    assert compile_batch(expr).match_properties([message]).tolist() == [expected]
    assert explain(expr, message).outcome is expected
    lint(text)
    with pytest.raises(FilterSyntaxError, match="nested more than"):
        parse(beyond)


def test_parentheses_that_change_nothing_cost_nothing() -> None:
    assert parse("(" * 5000 + "a = 1" + ")" * 5000) == parse("a = 1")
    assert parse("((a = 1) AND b = 2) OR c = 3") == parse("a = 1 AND b = 2 OR c = 3")


def test_a_chain_of_equalities_counts_as_nesting() -> None:
    parse("a" + " IS NULL" * (MAX_DEPTH - 1))
    with pytest.raises(FilterSyntaxError, match="nested more than"):
        parse("a" + " IS NULL" * (MAX_DEPTH + 1))


def test_minus_keeps_a_blank_between_two_of_itself() -> None:
    # `--` would begin a comment if a line end came later
    expr = Compare(Operator.EQ, Property("a"), Negate(Negate(Constant(5))))
    assert render(expr) == "a = - -5"


def test_render_refuses_numbers_that_cannot_be_written() -> None:
    for number in (0.0, -1, float("inf"), 2**63):
        with pytest.raises(FilterTypeError, match="can't be written"):
            render(Compare(Operator.EQ, Property("a"), Constant(number)))


def test_not_binds_tighter_than_a_comparison() -> None:
    assert parse("NOT a = 1") == Compare(Operator.EQ, Not(Property("a")), Constant(1))


def test_the_three_words_are_names_in_one_dialect_and_operators_in_the_other() -> None:
    assert parse("contains = 1", Dialect.V4_9)
    with pytest.raises(FilterSyntaxError):
        parse("contains = 1", Dialect.V5_1_3)


@given(st.text())
def test_any_text_parses_or_is_refused(text: str) -> None:
    for dialect in Dialect:
        refusal = None
        try:
            parse(text, dialect)
        except InvalidFilter as error:
            refusal = error
        if refusal is not None:
            assert str(refusal).startswith(("column", "line"))
            assert refusal.picture().endswith("^")
