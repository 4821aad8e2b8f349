"""The engine for one message: an expression becomes nested Python functions over a dict.

It depends on nothing and is the one explain and the other engines' constants rest on. A compiled
closure returns True, False or None (unknown) and raises FilterValueError where RocketMQ's engine
throws.
"""

import operator
from collections.abc import Callable, Mapping
from typing import assert_never

from ...errors import FilterValueError
from ..coercion import TESTS, Value, compare, to_boolean, to_double, to_int, to_long
from ..logic import Outcome, outcome_of
from ..nodes import (
    And,
    Between,
    Compare,
    Constant,
    Expr,
    In,
    IsNull,
    Kind,
    Negate,
    Not,
    Operator,
    Or,
    Property,
    TextMatch,
    TextOperator,
    value_kind,
)

__all__ = ["Closure", "Properties", "compile_closure", "compile_value", "evaluate"]

Properties = Mapping[str, str]
Closure = Callable[[Properties], bool | None]


def evaluate(closure: Closure, properties: Properties | None) -> Outcome:
    """The outcome of a compiled expression; `None` is a message with no property map at all."""
    try:
        return outcome_of(closure(properties if properties is not None else {}))
    except FilterValueError:
        return Outcome.ERROR


def compile_closure(expr: Expr) -> Closure:
    """The expression as a condition; a bare property is cast, which is never true."""
    match expr:
        case Constant(value):
            answer = value if isinstance(value, bool) else None
            return lambda properties: answer
        case Property(name):
            return lambda properties: None if properties.get(name) is None else False
        case Not(operand):
            return _not(compile_closure(operand))
        case And(terms):
            return _all([compile_closure(term) for term in terms])
        case Or(terms):
            return _any([compile_closure(term) for term in terms])
        case Compare(op, left, right):
            return _compare(op, left, right)
        case Between(operand, low, high, negated):
            if negated:
                return _any(
                    [_compare(Operator.LT, operand, low), _compare(Operator.GT, operand, high)]
                )
            return _all([_compare(Operator.GE, operand, low), _compare(Operator.LE, operand, high)])
        case In(Property(name), choices, negated):
            return _in(name, frozenset(choices), negated)
        case IsNull(operand, negated):
            value_of = compile_value(operand)
            return lambda properties: (value_of(properties) is None) is not negated
        case TextMatch():
            return _text_match(expr)
        case Negate():
            raise TypeError("a negated value is no condition: the parser refuses it")
        case _:
            assert_never(expr)


def compile_value(expr: Expr) -> Callable[[Properties], Value]:
    """The expression as an operand: what it is worth, of the kind `value_kind` says, or None."""
    match expr:
        case Constant(value):
            return lambda properties: value
        case Property(name):
            return lambda properties: properties.get(name)
        case Negate(operand):
            value_of = compile_value(operand)
            if value_kind(expr) == Kind.NULL:
                return lambda properties: _nothing(value_of(properties))
            negated = -value_of({})  # type: ignore[operator]  # numbers are constants
            return lambda properties: negated
        case _:
            return compile_closure(expr)


def _nothing(_: Value) -> None:
    return None


def _not(operand: Closure) -> Closure:
    def negated(properties: Properties) -> bool | None:
        answer = operand(properties)
        return None if answer is None else not answer

    return negated


def _all(terms: list[Closure]) -> Closure:
    def every(properties: Properties) -> bool | None:
        result: bool | None = True
        for term in terms:
            answer = term(properties)
            if answer is False:
                return False
            if answer is None:
                result = None  # and go on: a later false or error still decides
        return result

    return every


def _any(terms: list[Closure]) -> Closure:
    def some(properties: Properties) -> bool | None:
        result: bool | None = False
        for term in terms:
            answer = term(properties)
            if answer is True:
                return True
            if answer is None:
                result = None
        return result

    return some


def _compare(op: Operator, left: Expr, right: Expr) -> Closure:
    left_of, right_of = compile_value(left), compile_value(right)
    left_kind, right_kind = value_kind(left), value_kind(right)
    if isinstance(left, Property) and right_kind in (Kind.INT, Kind.LONG, Kind.DOUBLE):
        return _compare_with_number(op, left.name, right_of({}), right_kind)
    if isinstance(left, Property) and isinstance(right, Constant):
        return _equals_constant(op, left.name, right)
    is_ordering = op.is_ordering

    def compared(properties: Properties) -> bool | None:
        left_value = left_of(properties)
        if is_ordering and left_value is None:
            return None  # and the right is not looked at, errors and all
        return compare(op, left_value, left_kind, right_of(properties), right_kind)

    return compared


def _compare_with_number(op: Operator, name: str, constant: Value, kind: Kind) -> Closure:
    """`property op number`, what filters are made of: no dispatch left at run time."""
    test = TESTS[op]
    if kind == Kind.DOUBLE:
        nan_answer = test(1, 0)  # NaN is above every number

        def with_double(properties: Properties) -> bool | None:
            text = properties.get(name)
            if text is None:
                return None
            value = to_double(text)
            return test(value, constant) if value == value else nan_answer

        return with_double

    parse = to_int if kind == Kind.INT else to_long

    def with_integer(properties: Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else test(parse(text), constant)

    return with_integer


def _equals_constant(op: Operator, name: str, constant: Constant) -> Closure:
    """`property = 'text'`, `property <> TRUE`: the other half of what filters are made of."""
    wanted, is_text, negated = constant.value, constant.kind is Kind.STRING, op is Operator.NE

    def equals(properties: Properties) -> bool | None:
        text = properties.get(name)
        if text is None:
            return None
        return ((text if is_text else to_boolean(text)) == wanted) is not negated

    return equals


def _in(name: str, choices: frozenset[str], negated: bool) -> Closure:
    def member(properties: Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else (text in choices) is not negated

    return member


_SEARCHES: dict[TextOperator, Callable[[str, str], bool]] = {
    TextOperator.CONTAINS: operator.contains,
    TextOperator.STARTSWITH: str.startswith,
    TextOperator.ENDSWITH: str.endswith,
}


def _text_match(expr: TextMatch) -> Closure:
    value_of, wanted, negated = compile_value(expr.operand), expr.text, expr.negated
    search = _SEARCHES[expr.operator]
    if not wanted:
        return lambda properties: False  # and the operand is not looked at

    def match_text(properties: Properties) -> bool:
        value = value_of(properties)
        if not isinstance(value, str):
            return False  # missing or not text: false in the NOT form too
        return search(value, wanted) is not negated

    return match_text
