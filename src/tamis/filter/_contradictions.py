"""Whether tests of one property can hold together, or leave nothing out.

Only tests of a property against constants are looked at: an answer is certain, silence is not.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from .engines.closures import compile_closure, compile_value, evaluate
from .logic import Outcome
from .nodes import (
    And,
    Between,
    Compare,
    Constant,
    Expr,
    In,
    IsNull,
    Kind,
    Not,
    Operator,
    Property,
    value_kind,
)

__all__ = ["conflict", "coverage", "number", "subject"]


def conflict(terms: Sequence[Expr]) -> tuple[Expr, ...] | None:
    """Two tests among the terms of an AND that no value passes together."""
    for tests in _by_subject(_flattened(terms)):
        for second, first in combinations(tests, 2):
            if _exclude(_plain(second), _plain(first)):
                return second, first
    return None


def coverage(terms: Sequence[Expr]) -> tuple[Expr, ...] | None:
    """Two tests among the terms of an OR of which every value passes at least one."""
    for tests in _by_subject(terms):
        both = [(test, opposite) for test in tests if (opposite := _opposite(test)) is not None]
        for (second, not_second), (first, not_first) in combinations(both, 2):
            if _exclude(not_second, not_first):
                return second, first
    return None


_COMPARED = 50  # tests of one property; each is compared with each


def _by_subject(terms: Iterable[Expr]) -> Iterable[list[Expr]]:
    tests: dict[str, list[Expr]] = {}
    for term in terms:
        name = subject(term)
        if name is not None and len(tests.setdefault(name, [])) < _COMPARED:
            tests[name].append(term)
    return tests.values()


def number(expr: Expr) -> int | float | None:
    """The value of a number written in the filter, sign and all."""
    if value_kind(expr) not in (Kind.INT, Kind.LONG, Kind.DOUBLE):
        return None
    value = compile_value(expr)({})
    assert isinstance(value, int | float)
    return value


def _flattened(terms: Sequence[Expr]) -> Iterator[Expr]:
    for term in terms:
        if isinstance(term, And):
            yield from _flattened(term.terms)
        else:
            yield term


def subject(test: Expr) -> str | None:
    """The property a test is about, if it is one we can reason about."""
    match test:
        case IsNull(Property(name)) | In(Property(name)):
            return name
        case Not(operand) if not isinstance(operand, Not) and _opposite(operand) is not None:
            return subject(operand)
        case Between(Property(name)) if _range(test) is not None:
            return name
        case Compare(_, Property(name), right) if _is_number_or_text(right):
            return name
        case Compare(_, left, Property(name)) if _is_number_or_text(left):
            return name
        case _:
            return None


def _is_number_or_text(expr: Expr) -> bool:
    return isinstance(expr, Constant) or number(expr) is not None


def _plain(test: Expr) -> Expr:
    """`NOT (a > 5)` as `a <= 5`: the one is true exactly when the other is."""
    opposite = _opposite(test.operand) if isinstance(test, Not) else None
    return test if opposite is None else opposite


def _exclude(first: Expr, second: Expr) -> bool:
    """Whether no value of their one property makes both true."""
    if _opposite(first) == second:
        return True
    if _needs_absence(first) or _needs_absence(second):
        return not (_allows_absence(first) and _allows_absence(second))
    for test, other in ((first, second), (second, first)):
        texts = _texts(test)
        if texts is not None:  # few enough to try them all
            closure = compile_closure(other)
            name = subject(other)
            assert name is not None
            return not any(evaluate(closure, {name: t}) is Outcome.TRUE for t in texts)
    if _is_boolean(first) and _is_boolean(second):  # all a boolean can be told of a text
        name = subject(first)
        assert name is not None
        closures = compile_closure(first), compile_closure(second)
        return not any(
            all(evaluate(closure, {name: text}) is Outcome.TRUE for closure in closures)
            for text in ("true", "x")
        )
    ranges = _range(first), _range(second)
    if ranges[0] is None or ranges[1] is None:
        return False
    return ranges[0].misses(ranges[1])


def _is_boolean(test: Expr) -> bool:
    return isinstance(test, Compare) and Kind.BOOLEAN in (
        value_kind(test.left),
        value_kind(test.right),
    )


def _needs_absence(test: Expr) -> bool:
    return isinstance(test, IsNull) and not test.negated


def _allows_absence(test: Expr) -> bool:
    return evaluate(compile_closure(test), {}) is Outcome.TRUE


def _texts(test: Expr) -> tuple[str, ...] | None:
    """All texts that pass, if the test names them."""
    match test:
        case In(choices=choices, negated=False):
            return choices
        case Compare(Operator.EQ, Property(), Constant(value=str() as text)):
            return (text,)
        case Compare(Operator.EQ, Constant(value=str() as text), Property()):
            return (text,)
        case _:
            return None


@dataclass(frozen=True, slots=True)
class _Range:
    low: int | float = -math.inf
    high: int | float = math.inf
    open_low: bool = False
    open_high: bool = False
    whole: bool = False  # integers only

    def misses(self, other: "_Range") -> bool:
        low, open_low = max((self.low, self.open_low), (other.low, other.open_low))
        high, closed_high = min((self.high, not self.open_high), (other.high, not other.open_high))
        if self.whole and other.whole and math.isfinite(low) and math.isfinite(high):
            low, open_low = low + open_low, False  # a > 5 is a >= 6
            high, closed_high = high - (not closed_high), True
        return low > high or (low == high and (open_low or not closed_high))


def _range(test: Expr) -> _Range | None:
    match test:
        case Between(Property(), low, high, False):
            low_value, high_value = number(low), number(high)
            if low_value is None or high_value is None or low_value > high_value:
                return None  # reversed bounds are another finding
            whole = isinstance(low_value, int) and isinstance(high_value, int)
            return _Range(low_value, high_value, whole=whole)
        case Compare(operator, Property(), right):
            value = number(right)
        case Compare(operator, left, Property()):
            value = number(left)
            operator = operator.mirrored
        case _:
            return None
    if value is None:
        return None
    whole = isinstance(value, int)
    match operator:
        case Operator.EQ:
            return _Range(value, value, whole=whole)
        case Operator.GT | Operator.GE:
            return _Range(low=value, open_low=operator is Operator.GT, whole=whole)
        case Operator.LT | Operator.LE:
            return _Range(high=value, open_high=operator is Operator.LT, whole=whole)
        case Operator.NE:
            return None


_OPPOSITES = {
    Operator.EQ: Operator.NE,
    Operator.NE: Operator.EQ,
    Operator.GT: Operator.LE,
    Operator.GE: Operator.LT,
    Operator.LT: Operator.GE,
    Operator.LE: Operator.GT,
}


def _opposite(test: Expr) -> Expr | None:
    """The test that a present value passes exactly when it fails this one."""
    if isinstance(test, Not) or subject(test) is None:
        return None
    match test:
        case Compare(operator, left, right):
            return Compare(_OPPOSITES[operator], left, right)
        case In(operand, choices, negated):
            return In(operand, choices, not negated)
        case IsNull(operand, negated):
            return IsNull(operand, not negated)
        case Between(operand, low, high, negated):
            return Between(operand, low, high, not negated)
        case _:
            return None
