"""What one property, compared, is worth as a Catalyst expression: the leaves of `catalyst`.

Text is read as Java would: Spark's casts are laxer, they trim, and know `inf`. A typed column was
read before, and is compared by value.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from ..coercion import BMP_ZEROS, TESTS
from ..logic import Outcome
from ..nodes import INT_MAX, Kind, Operator

__all__ = [
    "NEGATED",
    "NUMBERS",
    "Leaf",
    "Operand",
    "TextOperand",
    "Typed",
    "TypedOperand",
    "all_of",
    "any_of",
    "balanced",
    "boolean_leaf",
    "never_null",
    "ordered",
    "same",
]

F_, T_, N_, E_ = Outcome
NUMBERS: Final = (Kind.INT, Kind.LONG, Kind.DOUBLE)
NEGATED: Final = {
    Operator.EQ: Operator.NE,
    Operator.NE: Operator.EQ,
    Operator.GT: Operator.LE,
    Operator.GE: Operator.LT,
    Operator.LT: Operator.GE,
    Operator.LE: Operator.GT,
}


@dataclass(frozen=True, slots=True)
class Typed:
    """A column that is not text: of kind int, long, double or boolean."""

    column: Column
    kind: Kind


_Thunk = Callable[[], Column]


@dataclass(frozen=True, slots=True)
class Leaf:
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
    why: _Thunk | None = None  # the outcome where `answer` is null, if there are both

    def holds(self, wanted: bool) -> Column:
        return (self.is_true or self.answer)() if wanted else self.is_false()

    @property
    def outcome(self) -> Column:
        if self.fails is not None and self.unknown is not None:
            # what is neither is null for one of two reasons; the answer, which is long, stands once
            why = self.why() if self.why else F.when(self.unknown, int(N_)).otherwise(int(E_))
            return F.coalesce(self.answer().cast("int"), why)
        cases = F.when(self.answer(), int(T_))
        if self.fails is not None:
            cases = cases.when(self.fails, int(E_))
        if self.unknown is not None:
            cases = cases.when(self.unknown, int(N_))
        return cases.otherwise(int(F_))


def boolean_leaf(answer: Column, is_null: Column, negated: bool) -> Leaf:
    """Of an answer that is null exactly where the property is."""
    if negated:
        return Leaf(lambda: ~answer, lambda: answer, unknown=is_null)
    return Leaf(lambda: answer, lambda: ~answer, unknown=is_null)


_ASCII: Final = r"^[+-]?[0-9]+\z"
_DIGITS: Final = r"^[+-]?\p{Nd}+\z"
_FOREIGN: Final = "".join(chr(zero + n) for zero in BMP_ZEROS if zero != 0x30 for n in range(10))
# Spark reads `inf` and `nan` in any case: what it reads has a digit in it, or is spelled so.
_DOUBLE: Final = "[0-9]|NaN|Infinity"
_TRUES: Final = ["".join(t) for t in itertools.product(*((c, c.upper()) for c in "true"))]
# Digits that fit whatever they are. 100 ns, but only where the comparison holds: to compare the
# first and the last character costs the same and is four times the code.
_SHORT: Final = {Kind.INT: r"^[+-]?[0-9]{1,9}\z", Kind.LONG: r"^[+-]?[0-9]{1,18}\z"}


class TextOperand:
    """A property as text. `keep` is given what is made of it, and gives what stands for that."""

    def __init__(self, text: Column, keep: Callable[[Column], Column]) -> None:
        self.text = text
        self._keep = keep

    def may_fail(self, kind: Kind) -> bool:
        return kind in NUMBERS

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
        return self._keep(F.when(self._is_double, self._lax_double))

    @cached_property
    def _lax_long(self) -> Column:
        return self.text.try_cast("bigint")

    @cached_property
    def _int(self) -> Column:
        """`Integer.valueOf`."""
        return self._keep(self._integer("int"))

    @cached_property
    def _long(self) -> Column:
        """`Long.valueOf`."""
        return self._keep(self._integer("bigint"))

    def _integer(self, name: str) -> Column:
        is_ascii, is_any = self.text.rlike(_ASCII), self.text.rlike(_DIGITS)
        plain = F.translate(self.text, _FOREIGN, "0123456789" * (len(_FOREIGN) // 10))
        return F.when(is_ascii, self.text.try_cast(name)).when(is_any, plain.try_cast(name))

    def _exact(self, kind: Kind) -> Column:
        if kind is Kind.DOUBLE:
            return self.double
        return self._int if kind is Kind.INT else self._long

    @cached_property
    def _is_short(self) -> dict[Kind, Column]:
        return {kind: self.text.rlike(pattern) for kind, pattern in _SHORT.items()}

    def _fails(self, kind: Kind) -> Column:
        return self.text.isNotNull() & self._exact(kind).isNull()

    @cached_property
    def _why(self) -> Column:
        """The outcome where there is no number."""
        return self._keep(F.when(self.is_null, int(N_)).otherwise(int(E_)))

    def is_in(self, values: list[Any], kind: Kind) -> Column:
        return self.one_of(values, kind).holds(True)

    def one_of(self, values: list[Any], kind: Kind) -> Leaf:
        if kind is Kind.STRING:
            return boolean_leaf(_one_of(self.text, values), self.is_null, negated=False)
        if kind is Kind.BOOLEAN:
            answer = any_of([self._is_true if value else ~self._is_true for value in values])
            return boolean_leaf(answer, self.is_null, negated=False)
        literals = [_literal(value, kind) for value in values]
        test = partial(_one_of, values=literals)
        return self._number(kind, test, lambda number: ~test(number), (True, False))

    def compared(self, operator: Operator, value: Any, kind: Kind) -> Leaf:
        is_unequal = operator is Operator.NE
        if kind is Kind.STRING:
            return boolean_leaf(self.text == value, self.is_null, is_unequal)
        if kind is Kind.BOOLEAN:
            return boolean_leaf(self._is_true, self.is_null, is_unequal is bool(value))
        constant = _literal(value, kind)
        test, negated = (partial(_test, op, constant) for op in (operator, NEGATED[operator]))
        return self._number(kind, test, negated, (operator is Operator.EQ, operator is Operator.NE))

    def _number(
        self,
        kind: Kind,
        test: Callable[[Column], Column],
        negated: Callable[[Column], Column],
        is_finite: tuple[bool, bool],  # whether only a finite number passes, of each
    ) -> Leaf:
        return Leaf(
            lambda: test(self._exact(kind)),
            lambda: self._passes(kind, negated, is_finite[1]),
            lambda: self._passes(kind, test, is_finite[0]),
            self._fails(kind),
            self.is_null,
            lambda: self._why,
        )

    def _passes(self, kind: Kind, test: Callable[[Column], Column], is_finite: bool) -> Column:
        """Whether the text is a number and passes: cast first, and looked at if it passes.

        `is_finite`: only a finite number does.
        """
        if kind is Kind.DOUBLE:
            passes = test(self._lax_double)
            return passes if is_finite else passes & self._is_double
        passes = F.coalesce(test(self._lax_long), self.text.isNotNull())
        return passes & (self._is_short[kind] | test(self._exact(kind)))


class TypedOperand:
    """A property that was parsed before: compared by value, its text is what Spark makes of it."""

    def __init__(self, typed: Typed) -> None:
        self._column = typed.column
        self._kind = typed.kind

    def may_fail(self, kind: Kind) -> bool:
        return kind in NUMBERS and self._kind is Kind.BOOLEAN

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

    def one_of(self, values: list[Any], kind: Kind) -> Leaf:
        if kind is Kind.STRING:
            return boolean_leaf(_one_of(self.text, values), self.is_null, negated=False)
        leaves = [self.compared(Operator.EQ, value, kind) for value in values]
        return Leaf(
            lambda: any_of([leaf.answer() for leaf in leaves]),
            lambda: all_of([leaf.is_false() for leaf in leaves]),
            fails=leaves[0].fails,
            unknown=self.is_null,
        )

    def compared(self, operator: Operator, value: Any, kind: Kind) -> Leaf:
        is_unequal = operator is Operator.NE
        if kind is Kind.STRING:
            return boolean_leaf(self.text == value, self.is_null, is_unequal)
        if kind is Kind.BOOLEAN:
            reads = self._column if self._kind is Kind.BOOLEAN else self.text == "true"
            return boolean_leaf(reads, self.is_null, is_unequal is bool(value))
        if self._kind is Kind.BOOLEAN:
            nothing = F.lit(None).cast("boolean")
            return Leaf(lambda: nothing, lambda: nothing, None, ~self.is_null, self.is_null)
        constant = _literal(value, kind)
        return Leaf(
            lambda: _test(operator, constant, self._column),
            lambda: _test(NEGATED[operator], constant, self._column),
            unknown=self.is_null,
        )


Operand = TextOperand | TypedOperand


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


def ordered(operator: Operator, x: Column, y: Column) -> Column:
    """As `Double.compareTo`: Spark has NaN above all too, but takes -0.0 for 0.0."""
    is_strict = operator in (Operator.LT, Operator.GT)
    low, high = (x, y) if operator in (Operator.LT, Operator.LE) else (y, x)
    # no equality with 0: Catalyst would put the 0 in the place of the column
    zeros = (low >= 0) & (low <= 0) & (high >= 0) & (high <= 0)
    low_sign, high_sign = (side.cast("string").startswith("-") for side in (low, high))
    if is_strict:
        return (low < high) | (zeros & low_sign & ~high_sign)
    return (low <= high) & ~(zeros & ~low_sign & high_sign)


def balanced(terms: Sequence[Column], combine: Callable[[Column, Column], Column]) -> Column:
    """A tree of log2 levels: Catalyst goes down it by recursion."""
    if len(terms) == 1:
        return terms[0]
    middle = len(terms) // 2
    return combine(balanced(terms[:middle], combine), balanced(terms[middle:], combine))


def same(column: Column) -> Column:
    return column


def never_null(column: Column) -> Column:
    return F.coalesce(column, F.lit(False))


def all_of(terms: Iterable[Column]) -> Column:
    return balanced(list(terms), Column.__and__)


def any_of(terms: Iterable[Column]) -> Column:
    return balanced(list(terms), Column.__or__)
