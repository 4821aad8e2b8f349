"""Explain: the outcome of every part, what each side was worth, and one sentence why."""

import json

import pytest
from hypothesis import given, settings
from strategies import expressions, messages

from tamis.filter import Outcome, parse
from tamis.filter.engines.closures import compile_closure, evaluate
from tamis.filter.explain import Part, explain, explain_tags
from tamis.filter.nodes import Expr
from tamis.filter.tags import parse_tags

# expression, properties, what the sentence says
REASONS = [
    ("a > 5", {"a": "7"}, "It matches."),
    ("a > 5", {"a": "3"}, "a > 5 is false, because a is '3', read as 3."),
    ("a > 5", {}, "a > 5 is unknown (null), because a is missing."),
    ("a > 5", {"a": "x"}, "a > 5 fails, because 'x' can't be read as an int"),
    ("a > 5", {"a": "5.5"}, "'5.5' can't be read as an int"),
    ("a > 5000000000", {"a": "x"}, "'x' can't be read as a long"),
    ("a > 5.0", {"a": "x"}, "'x' can't be read as a double"),
    ("a > b", {"a": "x", "b": "1"}, "'x' can't be read as a double"),
    ("TRUE = a", {"a": "true"}, "a boolean on the left can't be compared with text"),
    ("a", {"a": "true"}, "a alone is never true; write a = TRUE"),
    ("a = 1 AND b = 'y'", {"a": "1", "b": "x"}, "b = 'y' is false, because b is 'x'."),
    ("a = 1 AND b = 'y'", {"a": "1"}, "b = 'y' is unknown (null), because b is missing"),
    ("a = 1 OR b = 'y'", {"a": "2", "b": "x"}, "none of the 2 alternatives"),
    ("a = 1 OR b = 'y'", {"a": "2"}, "b = 'y' is unknown"),
    ("NOT (a = 1)", {"a": "1"}, "because a = 1 is true"),
    ("NOT (a = 1)", {}, "a = 1 is unknown (null), because a is missing"),
    ("a IN ('x', 'y')", {"a": "z"}, "a is 'z', none of these"),
    ("a NOT IN ('x', 'y')", {"a": "x"}, "a is 'x', one of these"),
    ("a IS NOT NULL", {}, "a IS NOT NULL is false, because a is missing"),
    ("5 = a", {}, "5 = a is false, because a is missing"),
    ("-a > 5", {"a": "7"}, "because -a is null"),
    ("a BETWEEN 1 AND 3", {"a": "9"}, "a is '9', read as 9"),
    ("a = (b > 1)", {"a": "true", "b": "x"}, "b > 1 fails"),
    ("NULL", {}, "NULL is unknown"),
    ("1 = 2", {}, "1 = 2 is false"),
    ("(a = 1) IS NULL", {"a": "2"}, "a = 1 IS NULL is false"),
    ("a = 1 OR b = 'y'", {"a": "2", "b": "x"}, "(a is '2', read as 2; b is 'x')"),
]


@pytest.mark.parametrize(("text", "properties", "reason"), REASONS)
def test_one_sentence_says_why(text: str, properties: dict[str, str], reason: str) -> None:
    explanation = explain(parse(text), properties)
    assert reason in explanation.reason
    assert explanation.reason.endswith(".")
    assert explanation.reason.startswith(
        "It matches" if explanation.outcome.matched else "It does not"
    )


def test_every_part_has_its_outcome_and_what_was_skipped_has_none() -> None:
    part = explain(parse("a = 1 AND (b = 2 OR c = 3) AND d = 4"), {"a": "1", "b": "1"}).part
    assert part.outcome is Outcome.NULL
    assert [inner.outcome for inner in part.parts] == [Outcome.TRUE, Outcome.NULL, Outcome.NULL]
    assert [inner.outcome for inner in part.parts[1].parts] == [Outcome.FALSE, Outcome.NULL]
    part = explain(parse("a = 1 AND b = 2"), {"a": "2"}).part
    assert [inner.outcome for inner in part.parts] == [Outcome.FALSE, None]


def test_operands_tell_value_kind_and_how_they_were_read() -> None:
    [left, right] = explain(parse("a > 5"), {"a": "07"}).part.operands
    assert (left.text, left.value, left.kind, left.read_as) == ("a", "07", "string", 7)
    assert (right.text, right.value, right.kind) == ("5", 5, "int")
    assert str(left) == "a is '07', read as 7"


@settings(max_examples=500, deadline=None)
@given(expr=expressions(), message=messages)
def test_an_explanation_has_the_outcome_of_the_engine(
    expr: Expr, message: dict[str, str] | None
) -> None:
    explanation = explain(expr, message)
    assert explanation.outcome is evaluate(compile_closure(expr), message)
    json.dumps(explanation.part.to_dict(), allow_nan=False)

    def check(part: Part) -> None:
        assert (part.error is not None) == (part.outcome is Outcome.ERROR)
        for inner in part.parts:
            check(inner)

    check(explanation.part)


@pytest.mark.parametrize(
    ("expression", "tag", "broker", "client", "reason"),
    [
        ("*", None, True, True, "* takes everything"),
        ("a || b", "b", True, True, "It matches."),
        ("a || b", "c", False, False, "the tag is 'c', not 'a' or 'b'"),
        ("a", None, False, False, "has no tag"),
        ("Aa", "BB", True, False, "a broker delivers it and the client drops it"),
        ("f5a5a608", None, True, False, "has the hash 0"),
        (" ", "a", False, True, "matches nothing"),
    ],
)
def test_tags_are_explained_by_both_looks(
    expression: str, tag: str | None, broker: bool, client: bool, reason: str
) -> None:
    explanation = explain_tags(parse_tags(expression), tag)
    assert (explanation.matched_code, explanation.matched_tag) == (broker, client)
    assert explanation.matched == parse_tags(expression).matches(tag)
    assert reason in explanation.reason
