"""The engine for Spark: an expression becomes a Catalyst expression, made of Spark's own functions.

Nothing in it throws, in ANSI mode or not, so that Catalyst may evaluate in any order and what
RocketMQ would not have evaluated does no harm. Two encodings:

- An outcome is an int made from those of the operands by a look into a truth table. Each operand
  appears once, so that the size is linear.
- A match is the condition in two-valued logic: where an expression holds, AND and OR need not tell
  false, null and error apart. Only where an error could hide behind an OR or a NOT is it asked for.

Spark's casts are laxer than Java's parsers: they trim, and know `inf`. Text that passes a cast is
looked at again by a regular expression, in a match only if the comparison holds.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final, assert_never

from pyspark.sql import Column
from pyspark.sql import functions as F

from ...errors import FilterValueError
from ..coercion import BMP_ZEROS, TESTS, Value, compare
from ..logic import AND, NOT, OR, Outcome, outcome_of
from ..nodes import (
    INT_MAX,
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
from .closures import compile_closure, compile_value, evaluate

__all__ = ["Compiler", "PropertyOf", "Typed", "compile_matched", "compile_outcome"]


@dataclass(frozen=True, slots=True)
class Typed:
    """A column that is not text: of kind int, long, double or boolean."""

    column: Column
    kind: Kind


# A property as the text it is, null if it is missing, or as what it was parsed to.
PropertyOf = Callable[[str], Column | Typed]

F_, T_, N_, E_ = Outcome
_NUMBERS: Final = (Kind.INT, Kind.LONG, Kind.DOUBLE)
_NEGATED: Final = {
    Operator.EQ: Operator.NE,
    Operator.NE: Operator.EQ,
    Operator.GT: Operator.LE,
    Operator.GE: Operator.LT,
    Operator.LT: Operator.GE,
    Operator.LE: Operator.GT,
}
_DEEPEST: Final = 6  # levels of AND and OR a match is written out for


def compile_outcome(expr: Expr, property_of: PropertyOf) -> Column:
    """TINYINT, never null: the number of `logic.Outcome`."""
    return Compiler(property_of).compile_outcome(expr)


def compile_matched(expr: Expr, property_of: PropertyOf) -> Column:
    """BOOLEAN, never null: whether the outcome is TRUE."""
    return Compiler(property_of).compile_matched(expr)


class Compiler:
    """For many expressions on the same properties: what is made of a property is made once."""

    def __init__(self, property_of: PropertyOf) -> None:
        self._property_of = property_of
        self._operands: dict[str, _Operand] = {}

    def compile_outcome(self, expr: Expr) -> Column:
        return self._outcome(expr).cast("tinyint")

    def compile_matched(self, expr: Expr) -> Column:
        return self._matched(expr)

    def _operand(self, name: str) -> "_Operand":
        operand = self._operands.get(name)
        if operand is None:
            column = self._property_of(name)
            operand = _TypedOperand(column) if isinstance(column, Typed) else _TextOperand(column)
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
                return _balanced([self._outcome(term) for term in terms], _tabled(AND))
            case Or(terms):
                return _balanced(list(self._alternative_outcomes(terms)), _tabled(OR))
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
            return _all([self._matched(term) for term in expr.terms])  # Spark may push each down
        if not self._may_fail(expr):
            return _never_null(self._holds(expr, True))
        if _depth(expr) > _DEEPEST:
            return self._outcome(expr) == int(T_)
        fails = self._fails(expr, is_last=True)
        holds = _never_null(self._holds(expr, True))
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
                    return _all([self._holds(term, wanted) for term in terms])
                return _any(self._alternatives(terms, wanted))
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
        branches: list[tuple[_Thunk, bool]] = []
        for position, term in enumerate(terms):
            reads = _reads(term)
            is_sure = is_last and (not ends or position == len(terms) - 1)
            if (reads is None or reads not in seen) and self._may_fail(term):
                fails = self._fails(term, is_sure)
                if fails is not None:
                    branches.append((partial(_same, fails), True))
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

    def _leaf(self, expr: Expr) -> "_Leaf | None":
        match expr:
            case Property(name):
                is_null = self._operand(name).is_null
                return _Leaf(lambda: F.lit(False), lambda: ~is_null, unknown=is_null)
            case In(Property(name), choices, negated):
                operand = self._operand(name)
                within = operand.is_in(list(dict.fromkeys(choices)), Kind.STRING)
                return _boolean(within, operand.is_null, negated)
            case IsNull(Property(name), negated):
                is_null = self._operand(name).is_null
                if negated:
                    return _Leaf(lambda: ~is_null, lambda: is_null)
                return _Leaf(lambda: is_null, lambda: ~is_null)
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

    def _text_match(self, operator: TextOperator, name: str, text: str, negated: bool) -> "_Leaf":
        if not text:
            return _Leaf(lambda: F.lit(False), lambda: F.lit(True))
        column = self._operand(name).text
        match operator:
            case TextOperator.CONTAINS:
                found = column.contains(text)
            case TextOperator.STARTSWITH:
                found = column.startswith(text)
            case TextOperator.ENDSWITH:
                found = column.endswith(text)
        holds = ~found if negated else found
        return _Leaf(lambda: holds, lambda: ~F.coalesce(holds, F.lit(False)))

    def _constant_first(self, operator: Operator, left: Expr, name: str) -> "_Leaf":
        operand, kind = self._operand(name), value_kind(left)
        is_null = operand.is_null
        is_unequal = operator is Operator.NE
        if kind is Kind.BOOLEAN:  # RocketMQ casts the wrong side
            if is_unequal:
                return _Leaf(lambda: is_null, lambda: F.lit(False), fails=~is_null)
            return _Leaf(lambda: F.lit(False), lambda: is_null, fails=~is_null)
        leaf = operand.compared(operator.mirrored, compile_value(left)({}), kind)
        if operator.is_ordering:
            return leaf
        # a value is unequal to nothing, not unknown
        if is_unequal:
            return _Leaf(lambda: is_null | leaf.holds(True), leaf.is_false, fails=leaf.fails)
        is_true, answer = leaf.is_true, leaf.answer
        return _Leaf(answer, lambda: is_null | leaf.holds(False), is_true, leaf.fails)

    def _two_properties(self, operator: Operator, left: str, right: str) -> "_Leaf":
        a, b = self._operand(left), self._operand(right)
        if operator.is_ordering:
            x, y = a.double, b.double
            return _Leaf(
                lambda: _ordered(operator, x, y),
                lambda: _ordered(_NEGATED[operator], x, y),
                fails=~a.is_null & ~b.is_null & (x.isNull() | y.isNull()),
                unknown=a.is_null | b.is_null,
            )
        equal = a.text.eqNullSafe(b.text)
        unequal = ~a.is_null & ~equal
        if operator is Operator.NE:
            return _Leaf(lambda: unequal, lambda: equal, unknown=a.is_null & ~b.is_null)
        return _Leaf(lambda: equal, lambda: unequal, unknown=a.is_null)


_Thunk = Callable[[], Column]


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A comparison, its parts made when asked for: each node is a call into the JVM.

    Where `answer` is null it stands for no, as in `is_true` and `is_false`, which may be quicker
    to evaluate; `fails` and `unknown` are never null and looked at where `answer` is not true. If
    there are both, `answer` is null where one of them holds and nowhere else.
    """

    answer: _Thunk
    is_false: _Thunk
    is_true: _Thunk | None = None  # else `answer`
    fails: Column | None = None
    unknown: Column | None = None

    def holds(self, wanted: bool) -> Column:
        return (self.is_true or self.answer)() if wanted else self.is_false()

    @property
    def outcome(self) -> Column:
        if self.fails is not None and self.unknown is not None:
            # what is neither is null for one of two reasons; the answer, which is long, stands once
            why = F.when(self.unknown, int(N_)).otherwise(int(E_))
            return F.coalesce(self.answer().cast("int"), why)
        cases = F.when(self.answer(), int(T_))
        if self.fails is not None:
            cases = cases.when(self.fails, int(E_))
        if self.unknown is not None:
            cases = cases.when(self.unknown, int(N_))
        return cases.otherwise(int(F_))


def _boolean(answer: Column, is_null: Column, negated: bool) -> _Leaf:
    """Of an answer that is null exactly where the property is."""
    if negated:
        return _Leaf(lambda: ~answer, lambda: answer, unknown=is_null)
    return _Leaf(lambda: answer, lambda: ~answer, unknown=is_null)


_ASCII: Final = r"^[+-]?[0-9]+\z"
_DIGITS: Final = r"^[+-]?\p{Nd}+\z"
_FOREIGN: Final = "".join(chr(zero + n) for zero in BMP_ZEROS if zero != 0x30 for n in range(10))
# Spark reads `inf` and `nan` in any case: what it reads has a digit in it, or is spelled so.
_DOUBLE: Final = "[0-9]|NaN|Infinity"
_TRUES: Final = ["".join(t) for t in itertools.product(*((c, c.upper()) for c in "true"))]
# Digits that fit whatever they are. 100 ns, but only where the comparison holds: to compare the
# first and the last character costs the same and is four times the code.
_SHORT: Final = {Kind.INT: r"^[+-]?[0-9]{1,9}\z", Kind.LONG: r"^[+-]?[0-9]{1,18}\z"}


class _TextOperand:
    """A property as text."""

    def __init__(self, text: Column) -> None:
        self.text = text

    def may_fail(self, kind: Kind) -> bool:
        return kind in _NUMBERS

    @cached_property
    def is_null(self) -> Column:
        return self.text.isNull()

    @cached_property
    def _is_true(self) -> Column:
        """`Boolean.valueOf`."""
        return self.text.isin(_TRUES)

    @cached_property
    def boolean_code(self) -> Column:
        return F.when(self.is_null, int(N_)).otherwise(self._is_true.cast("int"))

    @cached_property
    def _lax_double(self) -> Column:
        return self.text.try_cast("double")

    @cached_property
    def _is_double(self) -> Column:
        return self.text.rlike(_DOUBLE)

    @cached_property
    def double(self) -> Column:
        """`Double.valueOf`; null for text that it refuses."""
        return F.when(self._is_double, self._lax_double)

    @cached_property
    def _lax_long(self) -> Column:
        return self.text.try_cast("bigint")

    @cached_property
    def _integers(self) -> dict[Kind, Column]:
        """`Integer.valueOf`, `Long.valueOf`."""
        is_ascii, is_any = self.text.rlike(_ASCII), self.text.rlike(_DIGITS)
        plain = F.translate(self.text, _FOREIGN, "0123456789" * (len(_FOREIGN) // 10))
        return {
            kind: F.when(is_ascii, self.text.try_cast(name)).when(is_any, plain.try_cast(name))
            for kind, name in ((Kind.INT, "int"), (Kind.LONG, "bigint"))
        }

    @cached_property
    def _is_short(self) -> dict[Kind, Column]:
        return {kind: self.text.rlike(pattern) for kind, pattern in _SHORT.items()}

    @cached_property
    def _fails(self) -> dict[Kind, Column]:
        values = {**self._integers, Kind.DOUBLE: self.double}
        present = self.text.isNotNull()
        return {kind: present & value.isNull() for kind, value in values.items()}

    def is_in(self, values: list[Any], kind: Kind) -> Column:
        return self.one_of(values, kind).holds(True)

    def one_of(self, values: list[Any], kind: Kind) -> _Leaf:
        if kind is Kind.STRING:
            return _boolean(_one_of(self.text, values), self.is_null, negated=False)
        if kind is Kind.BOOLEAN:
            answer = _any([self._is_true if value else ~self._is_true for value in values])
            return _boolean(answer, self.is_null, negated=False)
        literals = [_literal(value, kind) for value in values]
        test = partial(_one_of, values=literals)
        return self._number(kind, test, lambda number: ~test(number), (True, False))

    def compared(self, operator: Operator, value: Any, kind: Kind) -> _Leaf:
        is_unequal = operator is Operator.NE
        if kind is Kind.STRING:
            return _boolean(self.text == value, self.is_null, is_unequal)
        if kind is Kind.BOOLEAN:
            return _boolean(self._is_true, self.is_null, is_unequal is bool(value))
        constant = _literal(value, kind)
        test, negated = (partial(_test, op, constant) for op in (operator, _NEGATED[operator]))
        return self._number(kind, test, negated, (operator is Operator.EQ, operator is Operator.NE))

    def _number(
        self,
        kind: Kind,
        test: Callable[[Column], Column],
        negated: Callable[[Column], Column],
        is_finite: tuple[bool, bool],  # whether only a finite number passes, of each
    ) -> _Leaf:
        exact = self.double if kind is Kind.DOUBLE else self._integers[kind]
        return _Leaf(
            lambda: test(exact),
            lambda: self._passes(kind, negated, is_finite[1]),
            lambda: self._passes(kind, test, is_finite[0]),
            self._fails[kind],
            self.is_null,
        )

    def _passes(self, kind: Kind, test: Callable[[Column], Column], is_finite: bool) -> Column:
        """Whether the text is a number and passes: cast first, and looked at if it passes.

        `is_finite`: only a finite number does.
        """
        if kind is Kind.DOUBLE:
            passes = test(self._lax_double)
            return passes if is_finite else passes & self._is_double
        passes = F.coalesce(test(self._lax_long), self.text.isNotNull())
        return passes & (self._is_short[kind] | test(self._integers[kind]))


class _TypedOperand:
    """A property that was parsed before: compared by value, its text is what Spark makes of it."""

    def __init__(self, typed: Typed) -> None:
        self._column = typed.column
        self._kind = typed.kind

    def may_fail(self, kind: Kind) -> bool:
        return kind in _NUMBERS and self._kind is Kind.BOOLEAN

    @property
    def is_null(self) -> Column:
        return self._column.isNull()

    @property
    def text(self) -> Column:
        return self._column.cast("string")

    @property
    def boolean_code(self) -> Column:
        reads = self._column if self._kind is Kind.BOOLEAN else F.lit(False)
        return F.when(self._column.isNull(), int(N_)).otherwise(reads.cast("int"))

    @property
    def double(self) -> Column:
        if self._kind is Kind.BOOLEAN:
            return F.lit(None).cast("double")
        return self._column.cast("double")

    def is_in(self, values: list[Any], kind: Kind) -> Column:
        return self.one_of(values, kind).holds(True)

    def one_of(self, values: list[Any], kind: Kind) -> _Leaf:
        if kind is Kind.STRING:
            return _boolean(_one_of(self.text, values), self.is_null, negated=False)
        leaves = [self.compared(Operator.EQ, value, kind) for value in values]
        return _Leaf(
            lambda: _any([leaf.answer() for leaf in leaves]),
            lambda: _all([leaf.is_false() for leaf in leaves]),
            fails=leaves[0].fails,
            unknown=self.is_null,
        )

    def compared(self, operator: Operator, value: Any, kind: Kind) -> _Leaf:
        is_unequal = operator is Operator.NE
        if kind is Kind.STRING:
            return _boolean(self.text == value, self.is_null, is_unequal)
        if kind is Kind.BOOLEAN:
            reads = self._column if self._kind is Kind.BOOLEAN else self.text == "true"
            return _boolean(reads, self.is_null, is_unequal is bool(value))
        if self._kind is Kind.BOOLEAN:
            nothing = F.lit(None).cast("boolean")
            return _Leaf(lambda: nothing, lambda: nothing, None, ~self.is_null, self.is_null)
        constant = _literal(value, kind)
        return _Leaf(
            lambda: _test(operator, constant, self._column),
            lambda: _test(_NEGATED[operator], constant, self._column),
            unknown=self.is_null,
        )


_Operand = _TextOperand | _TypedOperand


def _test(operator: Operator, constant: Column, number: Column) -> Column:
    test: Callable[[Any, Any], Any] = TESTS[operator]
    passes: Column = test(number, constant)
    return passes


def _one_of(column: Column, values: list[Any]) -> Column:
    return column.isin(values) if len(values) > 1 else column == values[0]


def _literal(value: Any, kind: Kind) -> Column:
    if kind is Kind.DOUBLE:
        return F.lit(float(value))
    return F.lit(value).cast("bigint") if abs(value) <= INT_MAX else F.lit(value)


def _ordered(operator: Operator, x: Column, y: Column) -> Column:
    """As `Double.compareTo`: Spark has NaN above all too, but takes -0.0 for 0.0."""
    is_strict = operator in (Operator.LT, Operator.GT)
    low, high = (x, y) if operator in (Operator.LT, Operator.LE) else (y, x)
    # no equality with 0: Catalyst would put the 0 in the place of the column
    zeros = (low >= 0) & (low <= 0) & (high >= 0) & (high <= 0)
    low_sign, high_sign = (side.cast("string").startswith("-") for side in (low, high))
    if is_strict:
        return (low < high) | (zeros & low_sign & ~high_sign)
    return (low <= high) & ~(zeros & ~low_sign & high_sign)


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
            if _is_constant(other) and value_kind(other) in _NUMBERS:
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


def _balanced(terms: Sequence[Column], combine: Callable[[Column, Column], Column]) -> Column:
    """A tree of log2 levels: Catalyst goes down it by recursion."""
    if len(terms) == 1:
        return terms[0]
    middle = len(terms) // 2
    return combine(_balanced(terms[:middle], combine), _balanced(terms[middle:], combine))


def _same(column: Column) -> Column:
    return column


def _never_null(column: Column) -> Column:
    return F.coalesce(column, F.lit(False))


def _all(terms: Iterable[Column]) -> Column:
    return _balanced(list(terms), Column.__and__)


def _any(terms: Iterable[Column]) -> Column:
    return _balanced(list(terms), Column.__or__)
