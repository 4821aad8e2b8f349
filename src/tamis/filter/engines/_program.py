"""An expression as a flat program for the columnar kernel: rows of numbers, no objects.

The kernel has one accumulator, an outcome. A step computes a small number r from a property (or
from the accumulator), looks its outcome up in `ANSWERS`, joins that with the accumulator by `TABLE`
and jumps to `TARGET` if the result is among `STOP`. AND, OR, `=` between conditions and their short
circuits are all just tables, so what is true of `logic` is true here.

Every comparison of a property with a number is "does it lie in [LOW, HIGH]", of keys that sort as
the numbers do. Whatever has no property in it is worked out now, by the closures engine.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final, assert_never

import numpy as np
import numpy.typing as npt

from ...errors import FilterValueError
from .. import logic
from ..coercion import TESTS, Value, compare
from ..logic import Outcome, outcome_of
from ..nodes import (
    LONG_MAX,
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
    is_fixed,
    properties_of,
    value_kind,
)
from . import closures
from ._numbers import double_key

__all__ = ["ERROR_ANSWER", "HASH_FACTORS", "Field", "Op", "Program", "compile_program"]


class Op(IntEnum):
    """What r is. `Field` says where the operands are."""

    CONSTANT = 0  # 0
    INT = 1  # 0 missing, 1 outside [LOW, HIGH], 2 inside, error if it is no int
    LONG = 2
    DOUBLE = 3
    CLASS = 4  # 0 missing, 1 reads as boolean true, 2 other text
    WORDS = 5  # among HIGH choices from LOW on, of up to 8 bytes: 0 missing, 1 no, 2 yes
    DOUBLES = 6  # SLOT against OTHER as doubles: 0 either missing, 1 less, 2 equal, 3 greater
    SAME = 7  # SLOT against OTHER as text: 0 both missing, 1 left, 2 right, 3 differ, 4 equal
    TEXT = 8  # against the text at LOW, HIGH long: 0 missing, 1 differs, 2 equals
    IN = 9  # in the hash table of choices at LOW, of HIGH + 1 places: 0 missing, 1 no, 2 yes
    CONTAINS = 10  # 0 missing, 1 no, 2 yes
    STARTSWITH = 11
    ENDSWITH = 12
    MAP = 13  # the accumulator itself
    PUSH = 14  # puts the accumulator aside; the rest of the row is not used
    JOIN = 15  # joins what was put aside (left) with the accumulator (right)


class Field(IntEnum):
    OP = 0
    SLOT = 1
    OTHER = 2
    LOW = 3
    HIGH = 4
    ANSWERS = 5  # two bits for each r; the last two for an error
    TABLE = 6  # two bits for each of 4 * accumulator + outcome
    STOP = 7  # bit i: leave for TARGET on outcome i
    TARGET = 8


@dataclass(frozen=True, slots=True)
class Program:
    code: npt.NDArray[np.int64]  # a row a step, a column a Field
    names: tuple[str, ...]  # slot -> property
    texts: npt.NDArray[np.uint8]  # text constants, one after the other
    choices: npt.NDArray[
        np.int64
    ]  # WORDS: (bytes, length); IN: (start in texts, length), -1 if free
    depth: int  # how much is ever put aside
    compares_text: bool  # whether undecodable bytes could make a difference


F, T, N, E = Outcome
Map = Sequence[Outcome]  # of an outcome
Table = Sequence[Sequence[Outcome]]  # of the accumulator and an outcome

IDENTITY: Final[Map] = (F, T, N, E)
REPLACE: Final[Table] = (IDENTITY,) * 4

MAX_WORDS: Final = 8  # up to so many short texts are tried one by one rather than looked up

ERROR_ANSWER: Final = 7  # the r of a value that does not parse

HASH_FACTORS: Final = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F)


def compile_program(expr: Expr) -> Program:
    compiler = _Compiler(properties_of(expr))
    compiler.condition(expr)
    return compiler.program()


def text_hash(text: bytes) -> int:
    """Over words of eight bytes; `_kernel._hash` computes the same."""
    mixed = len(text) * HASH_FACTORS[0] % 2**64
    for at in range(0, len(text), 8):
        mixed = (mixed ^ int.from_bytes(text[at : at + 8], "little")) * HASH_FACTORS[1] % 2**64
        mixed ^= mixed >> 29
    return mixed >> 32


# What unreadable bytes are read as, or what no readable bytes give.
_DAMAGED = re.compile("[\ufffd\ud800-\udfff]")


class _Compiler:
    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._slots = {name: slot for slot, name in enumerate(names)}
        self._rows: list[list[int]] = []
        self._texts = bytearray()
        self._choices: list[tuple[int, int]] = []
        self._depth = self._deepest = 0
        self._compares_text = False

    def program(self) -> Program:
        return Program(
            _int64(self._rows).reshape(-1, len(Field)),
            self._names,
            np.frombuffer(bytes(self._texts) + b"\0", dtype=np.uint8),
            _int64(self._choices).reshape(-1, 2),
            self._deepest,
            self._compares_text,
        )

    def condition(self, expr: Expr, then: Map = IDENTITY, table: Table = REPLACE) -> None:
        """Steps that leave `table[accumulator][then[outcome of expr]]` in the accumulator."""
        if is_fixed(expr):
            self._constant(_fold(expr), then, table)
            return
        match expr:
            case Property():
                self._per_value(_side(expr), lambda v: None if v is None else False, then, table)
            case Not(operand):
                self.condition(operand, [then[o] for o in logic.NOT], table)
            case And(terms):
                self._chain(terms, logic.AND, (F, E), then, table)
            case Or(terms):
                self._chain(terms, logic.OR, (T, E), then, table)
            case Between():
                self._between(expr, then, table)
            case Compare():
                self._compare(expr, then, table)
            case In(operand, choices, negated):
                answers = (N, T, F) if negated else (N, F, T)
                self._one_of(operand, choices, answers, then, table)
            case IsNull(operand, negated):
                side = _side(operand)
                self._per_value(side, lambda v: (v is None) is not negated, then, table)
            case TextMatch():
                self._text_match(expr, then, table)
            case Constant() | Negate():
                raise TypeError("no condition: the parser refuses it")
            case _:
                assert_never(expr)

    # Steps

    def _step(
        self,
        op: Op,
        answers: Sequence[Outcome] = IDENTITY,
        then: Map = IDENTITY,
        table: Table = REPLACE,
        *,
        slot: int = 0,
        other: int = 0,
        low: int = 0,
        high: int = 0,
    ) -> None:
        outcomes = [then[answer] for answer in answers]
        outcomes += [E] * (ERROR_ANSWER - len(outcomes)) + [then[E]]
        cells = [cell for row in table for cell in row]
        self._rows.append([op, slot, other, low, high, _pack(outcomes), _pack(cells), 0, 0])

    def _constant(self, outcome: Outcome, then: Map, table: Table) -> None:
        self._step(Op.CONSTANT, (outcome,), then, table)

    def _chain(
        self, terms: Sequence[Expr], join: Table, stop: Sequence[Outcome], then: Map, table: Table
    ) -> None:
        self._begin(table)
        exits = []
        for i, term in enumerate(terms):
            self.condition(term, table=join if i else REPLACE)
            exits.append(len(self._rows) - 1)
        for row in exits[:-1]:
            self._rows[row][Field.STOP] = sum(1 << outcome for outcome in stop)
            self._rows[row][Field.TARGET] = len(self._rows)
        self._end(then, table)

    def _begin(self, table: Table) -> None:
        """What follows, up to `_end`, computes an outcome in an accumulator of its own."""
        if table is not REPLACE:
            self._step(Op.PUSH)
            self._depth += 1
            self._deepest = max(self._deepest, self._depth)

    def _end(self, then: Map, table: Table) -> None:
        """That outcome, mapped, is joined with the accumulator as it was."""
        if table is not REPLACE:
            self._depth -= 1
            self._step(Op.JOIN, then=then, table=table)
        elif tuple(then) != IDENTITY:
            self._step(Op.MAP, then=then)

    # Comparisons

    def _between(self, expr: Between, then: Map, table: Table) -> None:
        low, high = _number(expr.low), _number(expr.high)
        if isinstance(expr.operand, Property) and low and high and low[0] == high[0]:
            # read once, both bounds tested at once
            answers = (N, T, F) if expr.negated else (N, F, T)
            self._range(expr.operand, low[0], (low[1], high[1]), answers, then, table)
            return
        below, above = Operator.GE, Operator.LE
        if expr.negated:
            below, above = Operator.LT, Operator.GT
        halves = (Compare(below, expr.operand, expr.low), Compare(above, expr.operand, expr.high))
        self.condition(Or(halves) if expr.negated else And(halves), then, table)

    def _compare(self, expr: Compare, then: Map, table: Table) -> None:
        op = expr.operator
        if op is Operator.NE:
            self._compare(replace(expr, operator=Operator.EQ), [then[o] for o in logic.NOT], table)
            return
        match expr.left, expr.right:
            case Property() as left, Property() as right:
                self._compare_properties(op, left, right, then, table)
            case Property() as left, right if number := _number(right):
                kind, key = number
                self._range(left, kind, _bounds(op, key), (N, F, T), then, table)
            case left, Property() as right if number := _number(left):
                kind, key = number
                # asymmetric: a value equals a missing one never, not unknown
                missing = F if op is Operator.EQ else N
                bounds = _bounds(op.mirrored, key)
                self._range(right, kind, bounds, (missing, F, T), then, table)
            case Property() as left, Constant(value=str() as text):
                self._one_of(left, (text,), (N, F, T), then, table)
            case Constant(value=str() as text), Property() as right:
                self._one_of(right, (text,), (F, F, T), then, table)
            case left, right:
                self._compare_sides(op, _side(left), _side(right), then, table)

    def _range(
        self,
        operand: Property,
        kind: Kind,
        bounds: tuple[int, int],
        answers: Map,
        then: Map,
        table: Table,
    ) -> None:
        slot = self._slots[operand.name]
        low, high = bounds
        self._step(_READERS[kind], answers, then, table, slot=slot, low=low, high=high)

    def _compare_properties(
        self, op: Operator, left: Property, right: Property, then: Map, table: Table
    ) -> None:
        answers: Map
        if op is Operator.EQ:
            kind, answers = Op.SAME, (T, N, F, F, T)
            self._compares_text = True
        else:
            kind, answers = Op.DOUBLES, (N, *(outcome_of(TESTS[op](c, 0)) for c in (-1, 0, 1)))
        slot, other = self._slots[left.name], self._slots[right.name]
        self._step(kind, answers, then, table, slot=slot, other=other)

    def _compare_sides(
        self, op: Operator, left: "_Side", right: "_Side", then: Map, table: Table
    ) -> None:
        """A condition, TRUE, FALSE or a null on at least one side: a table of all cases."""
        cells = [[_cell(op, left, i, right, j) for j in range(4)] for i in range(4)]
        if left.source is None and right.source is None:
            self._constant(cells[0][0], then, table)
        elif left.source is None:
            self._emit(right, [then[o] for o in cells[0]], table)
        elif right.source is None:
            self._emit(left, [then[row[0]] for row in cells], table)
        else:
            self._begin(table)
            self._emit(left, IDENTITY, REPLACE)
            self._emit(right, IDENTITY, cells)
            self._end(then, table)

    def _per_value(
        self,
        side: "_Side",
        answer: Callable[[Value], bool | None],
        then: Map,
        table: Table,
    ) -> None:
        """A test of one operand that depends on nothing but which of its values it has."""
        answers = [E if isinstance(v, _Error) else outcome_of(answer(v)) for v in side.values]
        if side.source is None:
            self._constant(answers[0], then, table)
        else:
            self._emit(side, [then[o] for o in answers], table)

    def _emit(self, side: "_Side", then: Map, table: Table) -> None:
        """Steps for which value the side has: `then[its number]`, joined."""
        assert side.source is not None
        if isinstance(side.source, Property):
            self._step(Op.CLASS, (F, T, N), then, table, slot=self._slots[side.source.name])
        else:
            self.condition(side.source, then, table)

    # Text

    def _text(
        self, op: Op, name: Property, text: str, answers: Map, then: Map, table: Table
    ) -> None:
        start, length = self._keep(text)
        slot = self._slots[name.name]
        self._step(op, answers, then, table, slot=slot, low=start, high=length)

    def _one_of(
        self, name: Property, choices: Sequence[str], answers: Map, then: Map, table: Table
    ) -> None:
        slot = self._slots[name.name]
        texts = list(dict.fromkeys(map(_encode, choices)))
        self._compares_text |= any(map(_DAMAGED.search, choices))
        low, high = len(self._choices), len(texts)
        if len(texts) <= MAX_WORDS and all(len(text) <= 8 for text in texts):
            op = Op.WORDS
            self._choices += [(int.from_bytes(text, "little"), len(text)) for text in texts]
        elif len(texts) == 1:
            op = Op.TEXT
            low, high = self._keep(choices[0])
        else:
            op = Op.IN
            high = self._hash_table(texts) - 1
        self._step(op, answers, then, table, slot=slot, low=low, high=high)

    def _hash_table(self, texts: Sequence[bytes]) -> int:
        places = 1 << (2 * len(texts) - 1).bit_length()  # at most half full
        rows = [(0, -1)] * places
        for text in texts:
            place = text_hash(text) & (places - 1)
            while rows[place][1] >= 0:
                place = (place + 1) & (places - 1)
            rows[place] = (len(self._texts), len(text))
            self._texts += text
        self._choices += rows
        return places

    def _text_match(self, expr: TextMatch, then: Map, table: Table) -> None:
        if not expr.text:
            self._constant(F, then, table)  # without looking at the operand, errors and all
        elif isinstance(expr.operand, Property):
            op = _SEARCHES[expr.operator]
            answers = (F, T, F) if expr.negated else (F, F, T)
            self._text(op, expr.operand, expr.text, answers, then, table)
        else:  # no text, whatever it is
            self._per_value(_side(expr.operand), lambda value: False, then, table)

    def _keep(self, text: str) -> tuple[int, int]:
        data = _encode(text)
        start = len(self._texts)
        self._texts += data
        self._compares_text |= bool(_DAMAGED.search(text))
        return start, len(data)


_READERS = {Kind.INT: Op.INT, Kind.LONG: Op.LONG, Kind.DOUBLE: Op.DOUBLE}

_SEARCHES = {
    TextOperator.CONTAINS: Op.CONTAINS,
    TextOperator.STARTSWITH: Op.STARTSWITH,
    TextOperator.ENDSWITH: Op.ENDSWITH,
}


def _bounds(op: Operator, key: int) -> tuple[int, int]:
    """The closed range of keys for which `property op key` holds. Keys are inside the int64s."""
    match op:
        case Operator.EQ:
            return key, key
        case Operator.GT:
            return (key + 1, LONG_MAX) if key < LONG_MAX else (0, -1)  # nothing is above
        case Operator.GE:
            return key, LONG_MAX
        case Operator.LT:
            return -LONG_MAX - 1, key - 1
        case Operator.LE:
            return -LONG_MAX - 1, key
        case Operator.NE:
            raise AssertionError("rewritten as NOT =")


def _number(expr: Expr) -> tuple[Kind, int] | None:
    """A numeric constant, signs worked in, as its kind and key."""
    kind = value_kind(expr)
    if kind not in _READERS:
        return None
    value = closures.compile_value(expr)({})
    assert isinstance(value, int | float)
    return kind, double_key(value) if isinstance(value, float) else value


class _Error:
    """Stands for the value of an operand that can't be evaluated."""


ERROR: Final = _Error()


@dataclass(frozen=True, slots=True)
class _Side:
    """An operand that is no number and no constant text: the few values it can have.

    The number of a value is what the steps from `source` leave: for a condition its outcome; for a
    property 0 missing, 1 reads as true, 2 other text, for a boolean sees no more of a text. Without
    a source the value is known: the first.
    """

    source: Expr | None
    kind: Kind
    values: tuple[Value | _Error, ...]


def _side(expr: Expr) -> _Side:
    kind = value_kind(expr)
    if is_fixed(expr):
        try:
            return _Side(None, kind, (closures.compile_value(expr)({}),) * 4)
        except FilterValueError:
            return _Side(None, kind, (ERROR,) * 4)
    if not isinstance(expr, Negate):
        text = (None, "true", "x", ERROR)
        return _Side(expr, kind, text if isinstance(expr, Property) else (False, True, None, ERROR))
    while isinstance(expr, Negate):
        expr = expr.operand
    if isinstance(expr, Property):
        return _Side(None, kind, (None,) * 4)
    return _Side(expr, kind, (None, None, None, ERROR))  # null, unless evaluating it fails


def _cell(op: Operator, left: _Side, i: int, right: _Side, j: int) -> Outcome:
    left_value, right_value = left.values[i], right.values[j]
    if isinstance(left_value, _Error):
        return E
    if op.is_ordering and left_value is None:
        return N  # the right is not looked at
    if isinstance(right_value, _Error):
        return E
    try:
        return outcome_of(compare(op, left_value, left.kind, right_value, right.kind))
    except FilterValueError:
        return E


def _fold(expr: Expr) -> Outcome:
    return closures.evaluate(closures.compile_closure(expr), None)


def _pack(outcomes: Sequence[Outcome]) -> int:
    """Two bits each, the first lowest; as the signed 64-bit number the kernel reads."""
    return sum(outcome << 2 * i for i, outcome in enumerate(outcomes))


def _int64(rows: Sequence[Sequence[int]]) -> npt.NDArray[np.int64]:
    """Rows of numbers, of which some are words of text and have their highest bit set."""
    return np.array([[n % 2**64 for n in row] for row in rows], dtype=np.uint64).view(np.int64)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
