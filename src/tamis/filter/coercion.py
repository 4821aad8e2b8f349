"""What happens when two values of different kinds meet in a comparison, and Java's parsing rules.

RocketMQ's `ComparisonExpression.__compare` (4.9.4): the constant decides how the message's text is
read, and text that can't be read so is an error, not "unequal". Python's own `int` and `float` are
laxer than Java's, hence the parsers here.
"""

import operator as operators
import re
import unicodedata
from collections.abc import Callable
from typing import Any, Final

from ..errors import FilterValueError
from ..java import trim
from .nodes import INT_MAX, LONG_MAX, Kind, Operator

__all__ = [
    "BMP_ZEROS",
    "TESTS",
    "Value",
    "common_kind",
    "compare",
    "convert",
    "to_boolean",
    "to_double",
    "to_int",
    "to_long",
    "total_order",
]

Value = int | float | str | bool | None

TESTS: Final[dict[Operator, Callable[[Any, Any], bool]]] = {
    Operator.EQ: operators.eq,
    Operator.NE: operators.ne,
    Operator.GT: operators.gt,
    Operator.GE: operators.ge,
    Operator.LT: operators.lt,
    Operator.LE: operators.le,
}


def to_int(text: str) -> int:
    """Java's `Integer.valueOf`: one sign, then decimal digits of any script, in range."""
    if len(text) < 10 and text.isdigit() and text.isascii():
        return int(text)
    value = _integer(text)
    if value is None or not -INT_MAX - 1 <= value <= INT_MAX:
        raise FilterValueError(text, "an int")
    return value


def to_long(text: str) -> int:
    """Java's `Long.valueOf`."""
    value = _integer(text)
    if value is None or not -LONG_MAX - 1 <= value <= LONG_MAX:
        raise FilterValueError(text, "a long")
    return value


def _integer(text: str) -> int | None:
    digits = text[1:] if text.startswith(("+", "-")) else text
    if not (digits.isascii() and digits.isdigit()):
        # `Character.digit` knows the digits of all scripts, but sees one UTF-16 unit at a time:
        # those outside the BMP are none.
        if not digits or any(c > "\uffff" or unicodedata.decimal(c, -1) < 0 for c in digits):
            return None
        digits = "".join(str(unicodedata.decimal(c)) for c in digits)
    if len(digits) > 19:  # leading zeros may go on for ever, and int() refuses very long text
        digits = digits.lstrip("0") or "0"
        if len(digits) > 19:
            return None
    return -int(digits) if text[0] == "-" else int(digits)


# The zeros of the BMP's decimal digits; nine more follow each. For engines that read bytes.
BMP_ZEROS: Final = tuple(c for c in range(0x10000) if unicodedata.decimal(chr(c), -1) == 0)

_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?=[fFdD]?\Z)")
_HEX = re.compile(
    r"[+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+(?=[fFdD]?\Z)"
)
_NAMED = {
    sign + name: float(sign + name) for sign in ("", "+", "-") for name in ("NaN", "Infinity")
}


def to_double(text: str) -> float:
    """Java's `Double.valueOf`: trims, takes `1f`, `0x1p3`, `NaN`, `Infinity`; not `nan`, `1_0`."""
    trimmed = trim(text)
    if found := _DECIMAL.match(trimmed):
        return float(found.group())
    if found := _HEX.match(trimmed):
        try:
            return float.fromhex(found.group())
        except OverflowError:
            return float("-inf" if trimmed[0] == "-" else "inf")
    if trimmed in _NAMED:
        return _NAMED[trimmed]
    raise FilterValueError(text, "a double")


def to_boolean(text: str) -> bool:
    """Java's `Boolean.valueOf`: `true` in any case; everything else is false, never an error."""
    return len(text) == 4 and text.isascii() and text.lower() == "true"


_PARSERS: Final[dict[Kind, Callable[[str], int | float | bool]]] = {
    Kind.INT: to_int,
    Kind.LONG: to_long,
    Kind.DOUBLE: to_double,
    Kind.BOOLEAN: to_boolean,
}

_NUMBERS = (Kind.INT, Kind.LONG, Kind.DOUBLE)  # from narrow to wide


def common_kind(left: Kind, right: Kind) -> Kind | None:
    """The kind both sides are converted to; None where RocketMQ answers "less" without looking.

    Raises what RocketMQ throws for a boolean left of a string: it casts the wrong side.
    """
    if left == right:
        return left
    if left == Kind.BOOLEAN and right == Kind.STRING:
        raise FilterValueError(True, "a string", "ClassCastException")
    if left == Kind.STRING:
        return right
    if left in _NUMBERS:
        if right == Kind.STRING:
            return left
        if right in _NUMBERS:
            return max(left, right, key=_NUMBERS.index)
    return None


def convert(value: int | float | str | bool, kind: Kind) -> int | float | str | bool:
    """A non-null value as one of `kind`; raises FilterValueError for text that does not parse."""
    if isinstance(value, str) and kind != Kind.STRING:
        return _PARSERS[kind](value)
    return float(value) if kind == Kind.DOUBLE else value


def compare(
    operator: Operator, left: Value, left_kind: Kind, right: Value, right_kind: Kind
) -> bool | None:
    """The whole rule for two values, null (None) among them, of operands of these kinds."""
    if operator.is_ordering:
        if left is None or right is None:
            return None
        if left_kind == right_kind == Kind.STRING:
            left_kind = right_kind = Kind.DOUBLE  # text is never ordered as text
    elif left is None:
        unequal = operator is Operator.NE
        return not unequal if right is None else None
    elif right is None:
        return operator is Operator.NE  # asymmetric: a value is unequal to nothing, not unknown
    kind = common_kind(left_kind, right_kind)
    order = -1 if kind is None else total_order(convert(left, kind), convert(right, kind))
    return TESTS[operator](order, 0)


def total_order(left: int | float | str | bool, right: int | float | str | bool) -> int:
    """Of two values of one kind. As `Double.compareTo`: NaN above all, -0.0 below 0.0."""
    if isinstance(left, float) and isinstance(right, float):
        if left != left or right != right:
            return (left != left) - (right != right)
        if left == right == 0.0:
            return (str(right) == "-0.0") - (str(left) == "-0.0")
    if left == right:
        return 0
    return -1 if left < right else 1  # type: ignore[operator]  # one kind, see above
