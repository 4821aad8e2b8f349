"""Lint: each trap is found, where it is, with a way out; clean filters are left alone."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import expressions, messages

from tamis.errors import FilterTypeError
from tamis.filter import Dialect, Outcome, parse, render
from tamis.filter.engines.closures import compile_closure, evaluate
from tamis.filter.lint import Finding, Severity, lint, lint_tags, parse_strict, parse_tags_strict
from tamis.filter.nodes import And, Compare, Constant, Expr, In, IsNull, Operator, Or, Property

# text, rule, severity, the part it points at, the text rewritten
TRAPS = [
    ("a LIKE 'x%'", "ignored-text", "error", "LIKE 'x%'", None),
    ("a LIKE 'x'", "ignored-text", "error", "LIKE 'x'", "a = 'x'"),
    ("b = 1 AND a LIKE 'x%' AND c = 2", "ignored-text", "error", "LIKE 'x%'", None),
    ("a = 1 b = 2", "ignored-text", "error", "", "a = 1 AND b = 2"),
    ("a = 1 ) )", "ignored-text", "error", ") )", "a = 1  "),
    ("a = 1) AND b = 2", "ignored-text", "error", ") ", "a = 1 AND b = 2"),
    ("a = 1 ORDER BY b", "ignored-text", "error", "", None),
    ("a ILIKE 'x'", "ignored-text", "error", "", None),
    ("NOT a LIKE 'x'", "ignored-text", "error", None, None),
    ("a-b = 1", "ignored-text", "error", "-b = 1", None),
    ("a = 1_000", "split-number", "error", "1_000", "a = 1000"),
    ("a > 1 + 1", "ignored-text", "error", "+ 1", None),
    ("a CONTAINS 'x'", "ignored-text", "error", "CONTAINS 'x'", None),
    ("a = 007", "split-number", "error", "007", "a = 7"),
    ("a = 0L", "split-number", "error", "0L", "a = 0"),
    ("a = 0x1F AND b = 2", "split-number", "error", "0x1F", "a = 31 AND b = 2"),
    ("a > 5f", "split-number", "error", "5f", "a > 5.0"),
    ("NOT a = 1", "not-binds-tightly", "error", "NOT a = 1", "NOT (a = 1)"),
    (
        "b = 2 AND NOT a <> 'x'",
        "not-binds-tightly",
        "error",
        "NOT a <> 'x'",
        "b = 2 AND NOT (a <> 'x')",
    ),
    ("NOT a IS NULL", "not-binds-tightly", "error", "NOT a IS NULL", "a IS NOT NULL"),
    ("NOT NOT a = 1", "not-binds-tightly", "error", "NOT NOT a = 1", "NOT (a = 1)"),
    ("a", "never-boolean", "error", "a", "a = TRUE"),
    ("b = 'x' AND vip", "never-boolean", "error", "vip", "b = 'x' AND (vip = TRUE)"),
    ("NOT vip", "never-boolean", "error", "vip", "NOT (vip = TRUE)"),
    ("TRUE = p", "boolean-left", "error", "TRUE = p", "p = TRUE"),
    ("(a = 'x') <> b", "boolean-left", "error", "(a = 'x') <> b", "b <> (a = 'x')"),
    ("-a > 5", "always-null", "error", "-a > 5", "a < -5"),
    ("5.5 >= -a", "always-null", "error", "5.5 >= -a", "a >= -5.5"),
    ("a <> 'x'", "missing-property", "warning", "a <> 'x'", "a IS NULL OR a <> 'x'"),
    (
        "a NOT IN ('x')",
        "missing-property",
        "warning",
        "a NOT IN ('x')",
        "a IS NULL OR a NOT IN ('x')",
    ),
    ("NOT (a = 'x')", "missing-property", "warning", "NOT (a = 'x')", "a IS NULL OR NOT (a = 'x')"),
    ("'x' <> a", "missing-property", "warning", "'x' <> a", "a IS NULL OR a <> 'x'"),
    ("'x' = a", "missing-property", "note", "'x' = a", "a = 'x'"),
    ("a = b", "missing-property", "warning", "a = b", "a IS NOT NULL AND a = b"),
    ("price > 100", "integer-constant", "note", "price > 100", "price > 100.0"),
    ("price > 0", "integer-constant", "note", "price > 0", "price >= 4.9E-324"),
    ("id = 9007199254740993", "integer-constant", "note", "id = 9007199254740993", None),
    ("a BETWEEN b AND 10", "integer-constant", "note", None, None),
    ("d = 2024-01-01", "integer-constant", "note", "d = 2024", None),
    ("100 < price", "integer-constant", "note", "100 < price", "price > 100.0"),
    (
        "p BETWEEN 1 AND 2.5",
        "integer-constant",
        "warning",
        "p BETWEEN 1 AND 2.5",
        "p BETWEEN 1.0 AND 2.5",
    ),
    ("a > 5.0 AND a < 3.0", "contradiction", "error", "a > 5.0 AND a < 3.0", "a > 5.0 OR a < 3.0"),
    ("a = 'x' AND a = 'y'", "contradiction", "error", "a = 'x' AND a = 'y'", "a = 'x' OR a = 'y'"),
    (
        "a IS NULL AND a = 'y'",
        "contradiction",
        "error",
        "a IS NULL AND a = 'y'",
        "a IS NULL OR a = 'y'",
    ),
    ("a IN ('1', '2') AND a > 2.0", "contradiction", "error", None, None),
    ("a = 'x' AND (b = 'y' AND a = 'z')", "contradiction", "error", None, None),
    ("a = TRUE AND a = FALSE", "contradiction", "error", None, "a = TRUE OR a = FALSE"),
    ("a = 5 AND a <> 5", "contradiction", "error", None, "a = 5 OR a <> 5"),
    ("NOT (a > 5.5) AND a > 6.5", "contradiction", "error", None, "NOT (a > 5.5) OR a > 6.5"),
    ("a <> a", "contradiction", "error", "a <> a", None),
    ("b = 'x' AND 1 = 2", "contradiction", "error", "1 = 2", None),
    ("FALSE", "contradiction", "error", "FALSE", None),
    ("a > 3.0 OR a < 5.0", "tautology", "warning", "a > 3.0 OR a < 5.0", "a > 3.0 AND a < 5.0"),
    (
        "a <> 'x' OR a <> 'y'",
        "tautology",
        "warning",
        "a <> 'x' OR a <> 'y'",
        "a <> 'x' AND a <> 'y'",
    ),
    ("a IS NULL OR a IS NOT NULL", "tautology", "warning", None, None),
    ("a = a", "tautology", "warning", "a = a", None),
    ("1 = 1", "tautology", "warning", "1 = 1", None),
    ("a NOT BETWEEN 9.5 AND 3.5", "reversed-bounds", "error", None, "a NOT BETWEEN 3.5 AND 9.5"),
    ("a BETWEEN 5.5 AND -5.5", "reversed-bounds", "error", None, "a BETWEEN -5.5 AND 5.5"),
]


def only(findings: list[Finding], rule: str) -> Finding:
    [finding] = [finding for finding in findings if finding.rule == rule][:1] or [None]
    assert finding is not None, findings
    return finding


@pytest.mark.parametrize(("text", "rule", "severity", "part", "better"), TRAPS)
def test_a_trap_is_found_with_its_place_and_a_way_out(
    text: str, rule: str, severity: str, part: str | None, better: str | None
) -> None:
    finding = only(lint(text), rule)
    assert finding.severity is Severity(severity)
    if part is not None:
        assert text[finding.start : finding.end] == part
    if better is not None:
        assert finding.rewritten(text) == better


@pytest.mark.parametrize("text", sorted({trap[0] for trap in TRAPS}))
def test_what_lint_proposes_compiles_and_is_free_of_that_trap(text: str) -> None:
    for finding in lint(text):
        better = finding.rewritten(text)
        if better is not None:
            rules = [other.rule for other in lint(better)]
            assert finding.rule not in rules, (better, rules)


@pytest.mark.parametrize(
    "text",
    [
        "a = 'x'",
        "a = TRUE",
        "price > 100.0 AND price < 200.0",
        "a IN ('x', 'y') AND b IS NOT NULL",
        "a IS NULL OR a <> 'x'",
        "NOT (a > 5.5)",
        "a BETWEEN 1.5 AND 2.5 OR b = 'x'",
        "a > 5.0 AND a < 6.0",
        "a = 'x' OR a = 'y'",
        "a <> 'x' AND a <> 'y' AND a IS NOT NULL",
        "TRUE",
        "a > 3.5 AND a <> 5.5",
        "a IN ('x', 'y') AND a <> 'x'",
    ],
)
def test_a_clean_filter_has_no_findings(text: str) -> None:
    assert lint(text) == []


def test_like_is_rewritten_where_the_dialect_has_the_means() -> None:
    for pattern, better in (
        ("x%", "a STARTSWITH 'x'"),
        ("%x", "a ENDSWITH 'x'"),
        ("%x%", "a CONTAINS 'x'"),
        ("x", "a = 'x'"),
        ("x_y%", None),
    ):
        text = f"a LIKE '{pattern}'"
        finding = only(lint(text, Dialect.V5_1_3), "ignored-text")
        assert finding.rewritten(text) == better


def test_text_search_in_its_dialect() -> None:
    text = "NOT a CONTAINS 'x'"
    finding = only(lint(text, Dialect.V5_1_3), "not-binds-tightly")
    assert finding.rewritten(text) == "NOT (a CONTAINS 'x')"
    assert only(lint("a CONTAINS ''", Dialect.V5_1_3), "contradiction").severity is Severity.ERROR


def test_a_long_filter_is_linted_in_good_time() -> None:
    text = " AND ".join(f"(NOT (p{i}) OR p{i} = 'x')" for i in range(2000))
    assert len(lint(text)) == 2000


def test_strict_refuses_errors_and_nothing_less() -> None:
    with pytest.raises(FilterTypeError, match=r"column 3: .*ignored"):
        parse_strict("a LIKE 'x%'")
    with pytest.raises(FilterTypeError, match=r"write NOT \(a = 1\)"):
        parse_strict("NOT a = 1")
    assert parse_strict("a <> 5") == parse("a <> 5")
    with pytest.raises(FilterTypeError, match=r"write a \|\| b"):
        parse_tags_strict("a,b")
    assert parse_tags_strict("a || b").tags == {"a", "b"}
    assert parse_tags_strict(None).matches_all


TAG_TRAPS = [
    (" *", "tag-star", "error", "*"),
    ("* ", "tag-star", "error", "*"),
    ("*||a", "tag-star", "error", "*"),
    (" ", "tag-blank", "error", "*"),
    ("|| ||", "tag-blank", "error", "*"),
    ("a,b", "tag-separator", "error", "a || b"),
    ("a, b || c", "tag-separator", "error", "a || b || c"),
    ("a;b", "tag-separator", "error", "a || b"),
    ("a|b", "tag-separator", "error", "a || b"),
    ("a OR b", "tag-separator", "error", "a || b"),
    ("a AND b", "tag-and", "error", None),
    ("a && b", "tag-and", "error", None),
    ("a = 'x'", "tag-sql", "error", None),
    ("Tag*", "tag-wildcard", "warning", None),
    ("Aa || BB", "tag-collision", "warning", None),
    ("f5a5a608", "tag-collision", "warning", None),
    ("a || a", "tag-duplicate", "note", "a"),
    ("a || || b", "tag-empty", "note", "a || b"),
    ("big order", "tag-space", "note", None),
    ("a ||\u3000b", "tag-space", "warning", "a ||b"),
    ("*,a", "tag-separator", "error", None),
]


@pytest.mark.parametrize(("text", "rule", "severity", "better"), TAG_TRAPS)
def test_a_trap_in_a_tag_expression_is_found(
    text: str, rule: str, severity: str, better: str | None
) -> None:
    finding = only(lint_tags(text), rule)
    assert finding.severity is Severity(severity)
    assert finding.rewritten(text) == better


@pytest.mark.parametrize("text", ["*", "", "a", "a || b", "订单||退款", "TAG-1", "v=1"])
def test_a_clean_tag_expression_has_no_findings(text: str) -> None:
    assert lint_tags(text) == []


@settings(max_examples=500, deadline=None)
@given(expr=expressions())
def test_lint_takes_any_expression(expr: Expr) -> None:
    text = render(expr)
    for finding in lint(text, Dialect.V5_1_3):
        assert 0 <= finding.start <= finding.end <= len(text)
        better = finding.rewritten(text)
        if better is not None:
            parse(better, Dialect.V5_1_3)


# Tests of one property against constants, such as contradictions are made of.
_values = st.sampled_from([1, 5, 6, 5.0, 5.5, "5", "x", "6"]).map(Constant)
_numbers = st.sampled_from([1, 5, 6, 5.0, 5.5, 7.25]).map(Constant)
_a = st.just(Property("a"))
_simple = st.one_of(
    st.builds(Compare, st.sampled_from([Operator.EQ, Operator.NE]), _a, _values),
    st.builds(Compare, st.sampled_from([Operator.EQ, Operator.NE]), _values, _a),
    st.builds(Compare, st.sampled_from([o for o in Operator if o.is_ordering]), _a, _numbers),
    st.builds(Compare, st.sampled_from([o for o in Operator if o.is_ordering]), _numbers, _a),
    st.builds(
        In, _a, st.lists(st.sampled_from("x56"), min_size=1, max_size=2).map(tuple), st.booleans()
    ),
    st.builds(IsNull, _a, st.booleans()),
)
_texts = [None, "x", "1", "5", "6", "5.0", "5.25", "5.5", "7", "-3", "1e9", "NaN", "05", ""]


@settings(max_examples=1000, deadline=None)
@given(terms=st.lists(_simple, min_size=2, max_size=3).map(tuple))
def test_contradictions_never_hold_and_tautologies_always_do(terms: tuple[Expr, ...]) -> None:
    messages_of_a = [{} if text is None else {"a": text} for text in _texts]
    for expr, rule, impossible in (
        (And(terms), "contradiction", Outcome.TRUE),
        (Or(terms), "tautology", Outcome.FALSE),
    ):
        found = [f for f in lint(render(expr)) if f.rule == rule and f.start == 0]
        if found:
            closure = compile_closure(expr)
            for message in messages_of_a:
                assert evaluate(closure, message) is not impossible, (render(expr), message)


@settings(max_examples=300, deadline=None)
@given(expr=expressions(), message=messages)
def test_what_strict_accepts_means_the_same(expr: Expr, message: dict[str, str] | None) -> None:
    text = render(expr)
    try:
        strict = parse_strict(text, Dialect.V5_1_3)
    except FilterTypeError:
        return
    assert strict == expr
