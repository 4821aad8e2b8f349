"""The AST of a SQL92 filter: plain frozen values, compared by what they mean.

`span` is where a node stood in the text it was parsed from. It takes no part in comparison, so that
`parse(render(e)) == e`. Unary plus leaves no node, as in RocketMQ.
"""

from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import NamedTuple

__all__ = [
    "And",
    "Between",
    "Compare",
    "Constant",
    "Expr",
    "In",
    "IsNull",
    "Kind",
    "Negate",
    "Not",
    "Operator",
    "Or",
    "Property",
    "Span",
    "TextMatch",
    "TextOperator",
    "children",
    "constant_kind",
    "is_condition",
    "is_fixed",
    "properties_of",
    "value_kind",
    "walk",
]


class Span(NamedTuple):
    start: int
    end: int


NOWHERE = Span(0, 0)


class Kind(StrEnum):
    """A value's type while comparing; the names are Java's. In a message all is a string."""

    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    STRING = "string"
    BOOLEAN = "boolean"
    NULL = "null"


class Operator(Enum):
    EQ = "="
    NE = "<>"
    GT = ">"
    GE = ">="
    LT = "<"
    LE = "<="

    @property
    def is_ordering(self) -> bool:
        return self not in (Operator.EQ, Operator.NE)

    @property
    def mirrored(self) -> "Operator":
        """The one that says the same with the sides exchanged."""
        return _MIRRORED.get(self, self)


_MIRRORED = {
    Operator.GT: Operator.LT,
    Operator.GE: Operator.LE,
    Operator.LT: Operator.GT,
    Operator.LE: Operator.GE,
}


class TextOperator(Enum):
    """Dialect 5.1.3 only."""

    CONTAINS = "CONTAINS"
    STARTSWITH = "STARTSWITH"
    ENDSWITH = "ENDSWITH"


INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


def constant_kind(value: int | float | str | bool | None) -> Kind:
    """RocketMQ takes an integer that fits for an int whatever its suffix."""
    match value:
        case None:
            return Kind.NULL
        case bool():
            return Kind.BOOLEAN
        case int():
            return Kind.INT if value <= INT_MAX else Kind.LONG
        case float():
            return Kind.DOUBLE
        case str():
            return Kind.STRING


@dataclass(frozen=True, slots=True)
class Constant:
    value: int | float | str | bool | None
    kind: Kind = field(init=False, repr=False)  # compared too: 1, 1.0 and TRUE are not equal
    span: Span = field(default=NOWHERE, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", constant_kind(self.value))


@dataclass(frozen=True, slots=True)
class Property:
    name: str
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Negate:
    operand: "Expr"
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Not:
    operand: "Expr"
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class And:
    """Two terms or more, evaluated from the left. Not a pair: a long chain stays flat."""

    terms: tuple["Expr", ...]
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Or:
    terms: tuple["Expr", ...]
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Compare:
    operator: Operator
    left: "Expr"
    right: "Expr"
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Between:
    """`operand >= low AND operand <= high`; negated, `operand < low OR operand > high`."""

    operand: "Expr"
    low: "Expr"
    high: "Expr"
    negated: bool = False
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class In:
    operand: Property
    choices: tuple[str, ...]
    negated: bool = False
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class IsNull:
    operand: "Expr"
    negated: bool = False
    span: Span = field(default=NOWHERE, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class TextMatch:
    operator: TextOperator
    operand: "Expr"
    text: str
    negated: bool = False
    span: Span = field(default=NOWHERE, compare=False, repr=False)


Expr = (
    Constant
    | Property
    | Negate
    | Not
    | And
    | Or
    | Compare
    | Between
    | In
    | IsNull
    | TextMatch
)  # fmt: skip


def is_condition(expr: Expr) -> bool:
    """Whether RocketMQ counts the node as boolean (a bare property does not: it is cast)."""
    match expr:
        case Constant(kind=kind):
            return kind in (Kind.BOOLEAN, Kind.NULL)
        case Property() | Negate():
            return False
        case _:
            return True


def value_kind(expr: Expr) -> Kind:
    """The kind of the operand's value when it has one. Properties are text, always."""
    match expr:
        case Constant(kind=kind):
            return kind
        case Property():
            return Kind.STRING
        case Negate(operand):
            # Minus keeps a number's kind (-2147483648 is a long) and makes null of anything else.
            kind = value_kind(operand)
            return kind if kind in (Kind.INT, Kind.LONG, Kind.DOUBLE) else Kind.NULL
        case _:
            return Kind.BOOLEAN


def children(expr: Expr) -> tuple[Expr, ...]:
    match expr:
        case Constant() | Property():
            return ()
        case Negate(operand) | Not(operand) | IsNull(operand):
            return (operand,)
        case In(operand=operand):
            return (operand,)
        case TextMatch(operand=operand):
            return (operand,)
        case And(terms) | Or(terms):
            return terms
        case Compare(_, left, right):
            return (left, right)
        case Between(operand, low, high):
            return (operand, low, high)


def walk(expr: Expr) -> list[Expr]:
    """The node and all below it, each parent before its children, from the left."""
    found = [expr]
    for child in children(expr):
        found += walk(child)
    return found


def is_fixed(expr: Expr) -> bool:
    """Whether the expression reads no property, so is worth the same for every message."""
    return not isinstance(expr, Property) and all(map(is_fixed, children(expr)))


def properties_of(expr: Expr) -> tuple[str, ...]:
    """The names the expression reads, each once, in the order first met."""
    return tuple(dict.fromkeys(e.name for e in walk(expr) if isinstance(e, Property)))
