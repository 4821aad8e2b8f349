"""The engine for Spark: an expression becomes a Catalyst expression, made of Spark's own functions.

Nothing in it throws, in ANSI mode or not, so that Catalyst may evaluate in any order and what
RocketMQ would not have evaluated does no harm. Two encodings:

- An outcome is an int made from those of the operands by a look into a truth table. Each operand
  appears once, so that the size is linear.
- A match is the condition in two-valued logic: where an expression holds, AND and OR need not tell
  false, null and error apart. Only where an error could hide behind an OR or a NOT is it asked for.

Spark's casts are laxer than Java's parsers: text that passes a cast is looked at again, in a match
only if the comparison holds (`catalyst_operands`).
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, assert_never

from pyspark.sql import Column
from pyspark.sql import functions as F

from ...errors import FilterValueError
from ..coercion import Value, compare
from ..logic import AND, NOT, OR, Outcome, outcome_of
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
    is_condition,
    is_fixed,
    value_kind,
)
from .catalyst_operands import (
    NEGATED,
    NUMBERS,
    Leaf,
    Operand,
    TextOperand,
    Typed,
    TypedOperand,
    all_of,
    any_of,
    balanced,
    boolean_leaf,
    never_null,
    ordered,
    same,
)
from .closures import compile_closure, compile_value, evaluate

__all__ = ["Compiler", "PropertyOf", "Typed", "compile_matched", "compile_outcome"]


# A property as the text it is, null if it is missing, or as what it was parsed to.
PropertyOf = Callable[[str], Column | Typed]

F_, T_, N_, E_ = Outcome
_DEEPEST: Final = 6  # levels of AND and OR a match is written out for


def compile_outcome(expr: Expr, property_of: PropertyOf) -> Column:
    """TINYINT, never null: the number of `logic.Outcome`."""
    return Compiler(property_of).compile_outcome(expr)


def compile_matched(expr: Expr, property_of: PropertyOf) -> Column:
    """BOOLEAN, never null: whether the outcome is TRUE."""
    return Compiler(property_of).compile_matched(expr)


class Compiler:
    """For many expressions on the same properties: what is made of a property is made once.

    With `keep` it may also be evaluated once: that is given what is made of one, and gives the
    column it becomes before the expressions are evaluated.
    """

    def __init__(self, property_of: PropertyOf, keep: Callable[[Column], Column] = same) -> None:
        self._property_of = property_of
        self._keep = keep
        self._operands: dict[str, Operand] = {}

    def compile_outcome(self, expr: Expr) -> Column:
        return self._outcome(expr).cast("tinyint")

    def compile_matched(self, expr: Expr) -> Column:
        return self._matched(expr)

    def _operand(self, name: str) -> Operand:
        operand = self._operands.get(name)
        if operand is None:
            column = self._property_of(name)
            if isinstance(column, Typed):
                operand = TypedOperand(column)
            else:
                operand = TextOperand(column, self._keep)
            self._operands[name] = operand
        return operand

    # Outcomes

    def _outcome(self, expr: Expr) -> Column:
        """INT, never null; every operand of the expression is evaluated, and appears once."""
        if is_fixed(expr):
            return F.lit(int(evaluate(compile_closure(expr), None)))
        leaf = self._leaf(expr)
        if leaf is not None:
            return leaf.outcome
        match expr:
            case Not(operand):
                return _look_up(NOT, self._outcome(operand))
            case And(terms):
                return balanced([self._outcome(term) for term in terms], _tabled(AND))
            case Or(terms):
                return balanced(list(self._alternative_outcomes(terms)), _tabled(OR))
            case Between():
                return self._outcome(_spelled_out(expr))
            case Compare(operator, left, right):
                table = _comparison_table(operator, left, right)
                return _look_up(table, self._code(left), self._code(right))
            case IsNull(operand, negated):
                missing, there = (F_, T_) if negated else (T_, F_)
                return _look_up((there, there, missing, E_), self._code(operand))
            case TextMatch(_, operand, text):
                code = self._code(operand) if text else F.lit(int(F_))
                return _look_up((F_, F_, F_, E_), code)
            case Constant() | Property() | In() | Negate():
                raise TypeError(
                    f"{type(expr).__name__} is no condition here: the parser refuses it"
                )
            case _:
                assert_never(expr)

    def _code(self, expr: Expr) -> Column:
        """An operand as an outcome: what it reads as boolean, whether it is null or an error."""
        if is_fixed(expr):
            try:
                return F.lit(int(outcome_of(_as_boolean(compile_value(expr)({})))))
            except FilterValueError:
                return F.lit(int(E_))
        match expr:
            case Property(name):
                return self._operand(name).boolean_code
            case Negate(operand):  # null, but what is negated may fail
                return _look_up((N_, N_, N_, E_), self._code(operand))
            case _:
                return self._outcome(expr)

    # Matches

    def _matched(self, expr: Expr) -> Column:
        if isinstance(expr, And) and not is_fixed(expr):
            return all_of([self._matched(term) for term in expr.terms])  # Spark may push each down
        if not self._may_fail(expr):
            return never_null(self._holds(expr, True))
        if _depth(expr) > _DEEPEST:
            return self._outcome(expr) == int(T_)
        fails = self._fails(expr, is_last=True)
        holds = never_null(self._holds(expr, True))
        return holds if fails is None else holds & ~fails

    def _holds(self, expr: Expr, wanted: bool) -> Column:
        """Whether the expression is `wanted`, an error among its terms counted as null.

        Null stands for no, and only AND and OR are applied to it.
        """
        if is_fixed(expr):
            return F.lit(evaluate(compile_closure(expr), None) == int(wanted))
        match expr:
            case Not(operand):
                return self._holds(operand, not wanted)
            case And(terms) | Or(terms):
                if isinstance(expr, And) is wanted:
                    return all_of([self._holds(term, wanted) for term in terms])
                return any_of(self._alternatives(terms, wanted))
            case Between():
                return self._holds(_spelled_out(expr), wanted)
            case _:
                leaf = self._leaf(expr)
                if leaf is None:
                    return self._outcome(expr) == int(wanted)
                return leaf.holds(wanted)

    def _alternatives(self, terms: Sequence[Expr], wanted: bool) -> Iterable[Column]:
        """Each term, but equalities of one property with constants of one kind together."""
        choices: dict[tuple[str, Kind], list[Any]] = {}
        for term in terms:
            choice = _choice(term) if wanted else None
            if choice is None:
                yield self._holds(term, wanted)
            else:
                name, kind, values = choice
                choices.setdefault((name, kind), []).extend(values)
        for (name, kind), found in choices.items():
            yield self._operand(name).is_in(list(dict.fromkeys(found)), kind)

    def _alternative_outcomes(self, terms: Sequence[Expr]) -> Iterable[Column]:
        """As `_alternatives`, of neighbours only: between them nothing may fail."""
        for key, group in itertools.groupby(terms, lambda term: (_choice(term) or (None,))[:2]):
            some = list(group)
            if len(some) == 1 or key[0] is None:
                yield from map(self._outcome, some)
                continue
            name, kind = key
            values = [value for term in some for value in (_choice(term) or ("", kind, []))[2]]
            yield self._operand(name).one_of(list(dict.fromkeys(values)), kind).outcome

    def _fails(self, expr: Expr, is_last: bool = False) -> Column | None:
        """Whether the evaluation of a condition meets an error, never null; None if it can't.

        `is_last`: asked only where `expr` holds, so not for what would then have kept it from it.
        """
        if is_fixed(expr):
            failed = evaluate(compile_closure(expr), None) is E_
            return F.lit(True) if failed and not is_last else None
        match expr:
            case Not(operand):
                return self._fails(operand)
            case And(terms) | Or(terms):
                return self._fails_in_turn(terms, isinstance(expr, Or), is_last)
            case Between():
                return self._fails(_spelled_out(expr), is_last)
            case _ if is_last or not self._may_fail(expr):
                return None
            case _:
                leaf = self._leaf(expr)
                return self._outcome(expr) == int(E_) if leaf is None else leaf.fails

    def _fails_in_turn(self, terms: Sequence[Expr], ends: bool, is_last: bool) -> Column | None:
        """The terms from the left, until one is `ends` and the rest is not evaluated."""
        seen: set[tuple[str, Kind]] = set()
        branches: list[tuple[Callable[[], Column], bool]] = []
        for position, term in enumerate(terms):
            reads = _reads(term)
            is_sure = is_last and (not ends or position == len(terms) - 1)
            if (reads is None or reads not in seen) and self._may_fail(term):
                fails = self._fails(term, is_sure)
                if fails is not None:
                    branches.append((partial(same, fails), True))
            if reads is not None:
                seen.add(reads)
            branches.append((partial(self._holds, term, ends), False))
        while branches and not branches[-1][1]:
            branches.pop()
        if not branches:
            return None
        (first, failed), *rest = branches
        cases = F.when(first(), failed)
        for condition, failed in rest:
            cases = cases.when(condition(), failed)
        return cases.otherwise(False)

    def _may_fail(self, expr: Expr) -> bool:
        if is_fixed(expr):
            return evaluate(compile_closure(expr), None) is E_
        match expr:
            case Property() | In():
                return False
            case Not(operand) | IsNull(operand) | TextMatch(operand=operand) | Negate(operand):
                return self._may_fail(operand)
            case And(terms) | Or(terms):
                return any(map(self._may_fail, terms))
            case Between():
                return self._may_fail(_spelled_out(expr))
            case Compare(_, Property(name), right) if _is_constant(right):
                return self._operand(name).may_fail(value_kind(right))
            case Compare(_, Property(), right):
                return expr.operator.is_ordering or not isinstance(right, Property)
            case Compare():
                return True
            case _:
                return False

    # Comparisons of properties, what filters are made of

    def _leaf(self, expr: Expr) -> Leaf | None:
        match expr:
            case Property(name):
                is_null = self._operand(name).is_null
                return Leaf(lambda: F.lit(False), lambda: ~is_null, unknown=is_null)
            case In(Property(name), choices, negated):
                operand = self._operand(name)
                within = operand.is_in(list(dict.fromkeys(choices)), Kind.STRING)
                return boolean_leaf(within, operand.is_null, negated)
            case IsNull(Property(name), negated):
                is_null = self._operand(name).is_null
                if negated:
                    return Leaf(lambda: ~is_null, lambda: is_null)
                return Leaf(lambda: is_null, lambda: ~is_null)
            case TextMatch(operator, Property(name), text, negated):
                return self._text_match(operator, name, text, negated)
            case Compare(operator, Property(name), right) if _is_constant(right):
                value = compile_value(right)({})
                return self._operand(name).compared(operator, value, value_kind(right))
            case Compare(operator, left, Property(name)) if _is_constant(left):
                return self._constant_first(operator, left, name)
            case Compare(operator, Property(left_name), Property(right_name)):
                return self._two_properties(operator, left_name, right_name)
            case _:
                return None

    def _text_match(self, operator: TextOperator, name: str, text: str, negated: bool) -> Leaf:
        if not text:
            return Leaf(lambda: F.lit(False), lambda: F.lit(True))
        column = self._operand(name).text
        match operator:
            case TextOperator.CONTAINS:
                found = column.contains(text)
            case TextOperator.STARTSWITH:
                found = column.startswith(text)
            case TextOperator.ENDSWITH:
                found = column.endswith(text)
        holds = ~found if negated else found
        return Leaf(lambda: holds, lambda: ~F.coalesce(holds, F.lit(False)))

    def _constant_first(self, operator: Operator, left: Expr, name: str) -> Leaf:
        operand, kind = self._operand(name), value_kind(left)
        is_null = operand.is_null
        is_unequal = operator is Operator.NE
        if kind is Kind.BOOLEAN:  # RocketMQ casts the wrong side
            if is_unequal:
                return Leaf(lambda: is_null, lambda: F.lit(False), fails=~is_null)
            return Leaf(lambda: F.lit(False), lambda: is_null, fails=~is_null)
        leaf = operand.compared(operator.mirrored, compile_value(left)({}), kind)
        if operator.is_ordering:
            return leaf
        # a value is unequal to nothing, not unknown
        if is_unequal:
            return Leaf(lambda: is_null | leaf.holds(True), leaf.is_false, fails=leaf.fails)
        is_true, answer = leaf.is_true, leaf.answer
        return Leaf(answer, lambda: is_null | leaf.holds(False), is_true, leaf.fails)

    def _two_properties(self, operator: Operator, left: str, right: str) -> Leaf:
        a, b = self._operand(left), self._operand(right)
        if operator.is_ordering:
            x, y = a.double, b.double
            return Leaf(
                lambda: ordered(operator, x, y),
                lambda: ordered(NEGATED[operator], x, y),
                fails=~a.is_null & ~b.is_null & (x.isNull() | y.isNull()),
                unknown=a.is_null | b.is_null,
            )
        equal = a.text.eqNullSafe(b.text)
        unequal = ~a.is_null & ~equal
        if operator is Operator.NE:
            return Leaf(lambda: unequal, lambda: equal, unknown=a.is_null & ~b.is_null)
        return Leaf(lambda: equal, lambda: unequal, unknown=a.is_null)


def _choice(expr: Expr) -> tuple[str, Kind, list[Any]] | None:
    """The property, kind and values of `p = x` and `p IN (…)`."""
    match expr:
        case Compare(Operator.EQ, Property(name), right) if _is_constant(right):
            return name, value_kind(right), [compile_value(right)({})]
        case In(Property(name), texts, False):
            return name, Kind.STRING, list(texts)
        case _:
            return None


def _reads(expr: Expr) -> tuple[str, Kind] | None:
    """What a comparison fails by: the property, and what it is parsed to."""
    match expr:
        case Compare(_, Property(name), other) | Compare(_, other, Property(name)):
            if _is_constant(other) and value_kind(other) in NUMBERS:
                return name, value_kind(other)
    return None


def _is_constant(expr: Expr) -> bool:
    return (not is_condition(expr) and is_fixed(expr) and value_kind(expr) is not Kind.NULL) or (
        isinstance(expr, Constant) and expr.value is not None
    )


def _spelled_out(between: Between) -> Expr:
    if between.negated:
        return Or(
            (
                Compare(Operator.LT, between.operand, between.low),
                Compare(Operator.GT, between.operand, between.high),
            )
        )
    return And(
        (
            Compare(Operator.GE, between.operand, between.low),
            Compare(Operator.LE, between.operand, between.high),
        )
    )


def _depth(expr: Expr) -> int:
    match expr:
        case And(terms) | Or(terms):
            return 1 + max(map(_depth, terms))
        case Not(operand):
            return _depth(operand)
        case _:
            return 0


# Truth tables as numbers: two bits an outcome


def _look_up(table: Sequence[Any], *codes: Column) -> Column:
    """The entry of a table of one or two dimensions, which is the bits of an int."""
    flat = [entry for row in table for entry in row] if len(codes) == 2 else list(table)
    bits = sum(int(entry) << 2 * index for index, entry in enumerate(flat))
    index = codes[0] * 2 if len(codes) == 1 else codes[0] * 8 + codes[1] * 2
    signed = bits - 2**32 if bits >= 2**31 else bits
    return F.call_function("shiftright", F.lit(signed), index).bitwiseAND(3)


def _tabled(table: Sequence[Any]) -> Callable[[Column, Column], Column]:
    return lambda left, right: _look_up(table, left, right)


def _comparison_table(operator: Operator, left: Expr, right: Expr) -> list[list[Outcome]]:
    """Of operands that are worth true, false, nothing or an error, by the rule for values."""
    left_kind, right_kind = value_kind(left), value_kind(right)
    return [
        [
            _compared(operator, _sample(left, a), left_kind, _sample(right, b), right_kind)
            if E_ not in (a, b)
            else N_
            if a is N_ and operator.is_ordering  # and the right is not looked at
            else E_
            for b in Outcome
        ]
        for a in Outcome
    ]


def _compared(
    operator: Operator, left: Value, left_kind: Kind, right: Value, right_kind: Kind
) -> Outcome:
    try:
        return outcome_of(compare(operator, left, left_kind, right, right_kind))
    except FilterValueError:
        return E_


def _sample(expr: Expr, code: Outcome) -> Value:
    """A value of the operand's kind that reads as the code says."""
    if code is N_ or value_kind(expr) is Kind.NULL:
        return None
    if is_fixed(expr) and not is_condition(expr):
        return compile_value(expr)({})
    if value_kind(expr) is Kind.STRING:
        return "true" if code is T_ else "false"
    return code is T_


def _as_boolean(value: Value) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    return isinstance(value, str) and value.lower() == "true"
