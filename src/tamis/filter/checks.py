"""What RocketMQ refuses at compile time though the grammar allows it, and how to say so.

Each function gives None for "fine". From `ComparisonExpression`, `ConstantExpression` and
`SelectorParser.asBooleanExpression` of 4.9.4.
"""

from typing import NamedTuple

from .coercion import compare
from .nodes import (
    LONG_MAX,
    Between,
    Compare,
    Constant,
    Expr,
    Kind,
    Negate,
    Not,
    Operator,
    Property,
    is_condition,
)
from .tokens import Dialect, Token, TokenKind

__all__ = [
    "Problem",
    "in_needs_a_property",
    "unknown_word_hint",
    "why_no_condition",
    "why_no_number",
    "why_not_between",
    "why_not_comparable",
]


class Problem(NamedTuple):
    at: Expr
    reason: str
    hint: str | None = None


def why_no_condition(expr: Expr) -> tuple[str, str | None] | None:
    if is_condition(expr) or isinstance(expr, Property):
        return None
    what = "a negated value" if isinstance(expr, Negate) else _name(expr)
    return f"{what} is neither true nor false", "compare it with something"


def why_not_comparable(comparison: Compare) -> Problem | None:
    left, right = comparison.left, comparison.right
    if comparison.operator.is_ordering:
        return _why_no_order(left) or _why_no_order(right)
    for side in (left, right):
        if isinstance(side, Constant) and side.value is None:
            hint = "write IS NOT NULL" if comparison.operator is Operator.NE else "write IS NULL"
            return Problem(side, "nothing is compared with NULL by = or <>", hint)
    match left, right:
        # not the other way round: 1 = TRUE compiles
        case Constant(kind=Kind.BOOLEAN), Constant(kind=kind) if kind is not Kind.BOOLEAN:
            return Problem(left, f"{_name(left)} can't be compared with {_name(right)}")
    return None


def why_not_between(between: Between) -> Problem | None:
    low, high = between.low, between.high
    problem = _why_no_order(between.operand) or _why_no_order(low) or _why_no_order(high)
    if problem or between.negated:
        return problem
    if not isinstance(low, Constant) or not isinstance(high, Constant):
        return None  # -5 is no constant here: a reversed range with it compiles
    if not compare(Operator.LT, high.value, high.kind, low.value, low.kind):
        return None
    hint = f"write BETWEEN {high.value} AND {low.value}"
    return Problem(low, f"the lower bound {low.value} is above {high.value}", hint)


def _why_no_order(side: Expr) -> Problem | None:
    if isinstance(side, Constant):
        if side.kind in (Kind.INT, Kind.LONG, Kind.DOUBLE):
            return None
        hint = "only numbers are ordered"
        if side.kind is Kind.STRING:
            hint = "only numbers are ordered; for text there are =, <> and IN"
        return Problem(side, f"{_name(side)} has no order", hint)
    if isinstance(side, Not):
        return Problem(
            side, "NOT binds tighter than a comparison", "write NOT (…) round the comparison"
        )
    if is_condition(side):
        return Problem(side, "a condition has no order", "only numbers are ordered")
    return None


def in_needs_a_property(left: Expr) -> tuple[str, str | None]:
    if isinstance(left, Not):
        return "NOT binds tighter than IN", "write x NOT IN (…) or NOT (x IN (…))"
    return "only a property can be IN a list", None


def why_no_number(token: Token) -> tuple[str, str | None] | None:
    if token.kind is TokenKind.DECIMAL:
        value = float(token.text)
        if value == 0.0:
            return (
                f"{token.text} is refused: RocketMQ takes no decimal below 4.9E-324",
                "write 0, or 4.9E-324 where decimals are compared",
            )
        if value == float("inf"):
            return f"{token.text} is above the largest double", None
        return None
    digits = token.text.rstrip("lL")
    if len(digits) > 19 or int(digits) > LONG_MAX:
        return f"{token.text} is above the largest long, {LONG_MAX}", "write it as a decimal"
    return None


_TEXT_SEARCH = ("CONTAINS", "STARTSWITH", "ENDSWITH")


def unknown_word_hint(word: str, dialect: Dialect) -> str | None:
    """For a word where an operator was expected."""
    word = word.upper()
    if word in ("LIKE", "RLIKE", "REGEXP"):
        advice = "use = or IN"
        if dialect is Dialect.V5_1_3:
            advice = "use CONTAINS, STARTSWITH or ENDSWITH"
        return f"RocketMQ has no {word}; {advice}"
    if word in _TEXT_SEARCH and dialect is not Dialect.V5_1_3:
        return f"{word} came with RocketMQ 5.1.3: dialect {Dialect.V5_1_3}"
    return None


def _name(expr: Expr) -> str:
    match expr:
        case Constant(value=None):
            return "NULL"
        case Constant(value=bool() as value):
            return str(value).upper()
        case Constant(value=str() as value):
            return f"the string '{value}'"
        case Constant(value=value):
            return f"the number {value}"
        case Property(name):
            return name
        case _:
            return "this"
