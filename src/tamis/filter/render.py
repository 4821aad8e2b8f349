"""AST to text, with as few parentheses as the grammar allows: `parse(render(e)) == e`."""

from typing import assert_never

from ..errors import FilterTypeError
from .nodes import (
    LONG_MAX,
    And,
    Between,
    Compare,
    Constant,
    Expr,
    In,
    IsNull,
    Negate,
    Not,
    Or,
    Property,
    TextMatch,
)

__all__ = ["quote", "render"]

_OR, _AND, _EQUALITY, _COMPARISON, _UNARY = range(5)


def render(expr: Expr) -> str:
    """Canonical text. Refuses constants that can't be written: 0.0, negative, beyond long."""
    match expr:
        case Constant(value):
            return _constant(value)
        case Property(name):
            return name
        case Negate(operand):
            # With a blank: two minus signs together may begin a comment.
            inner = _within(operand, _UNARY)
            return f"- {inner}" if inner.startswith("-") else f"-{inner}"
        case Not(operand):
            return f"NOT {_within(operand, _UNARY)}"
        case And(terms):
            return " AND ".join(_within(term, _EQUALITY) for term in terms)
        case Or(terms):
            return " OR ".join(_within(term, _AND) for term in terms)
        case Compare(operator, left, right) if operator.is_ordering:
            return f"{_within(left, _COMPARISON)} {operator.value} {_within(right, _UNARY)}"
        case Compare(operator, left, right):
            return f"{_within(left, _EQUALITY)} {operator.value} {_within(right, _COMPARISON)}"
        case Between(operand, low, high, negated):
            bounds = f"{_within(low, _UNARY)} AND {_within(high, _UNARY)}"
            return f"{_within(operand, _COMPARISON)} {_not(negated)}BETWEEN {bounds}"
        case In(Property(name), choices, negated):
            return f"{name} {_not(negated)}IN ({', '.join(map(quote, choices))})"
        case IsNull(operand, negated):
            return f"{_within(operand, _EQUALITY)} IS {_not(negated)}NULL"
        case TextMatch(operator, operand, text, negated):
            return f"{_within(operand, _COMPARISON)} {_not(negated)}{operator.value} {quote(text)}"
        case _:
            assert_never(expr)


def quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _within(expr: Expr, level: int) -> str:
    text = render(expr)
    return text if _level(expr) >= level else f"({text})"


def _level(expr: Expr) -> int:
    match expr:
        case Or():
            return _OR
        case And():
            return _AND
        case Compare(operator) if not operator.is_ordering:
            return _EQUALITY
        case IsNull():
            return _EQUALITY
        case Compare() | Between() | In() | TextMatch():
            return _COMPARISON
        case _:
            return _UNARY


def _not(negated: bool) -> str:
    return "NOT " if negated else ""


def _constant(value: int | float | str | bool | None) -> str:
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value).upper()
        case str():
            return quote(value)
        case int() if 0 <= value <= LONG_MAX:
            return str(value)
        case float() if 0.0 < value < float("inf"):
            if value == 5e-324:
                return "4.9E-324"  # as Java spells it, and RocketMQ its limit
            return repr(value)  # always with a point or an exponent: never taken for an integer
        case _:
            raise FilterTypeError(repr(value), 0, "this number can't be written in the language")
