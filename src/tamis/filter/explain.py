"""Why a message does or does not match: the outcome of every part, what each side was worth, and
one sentence on the part that decided.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..errors import FilterValueError
from ..java import string_hash
from .coercion import Value, common_kind, convert
from .engines.closures import Properties, compile_closure, compile_value, evaluate
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
    Or,
    Property,
    TextMatch,
    children,
    is_condition,
    value_kind,
)
from .render import quote, render
from .tags import TagFilter, tags_code

__all__ = [
    "Explanation",
    "Operand",
    "Part",
    "TagExplanation",
    "explain",
    "explain_tags",
    "printable",
]


@dataclass(frozen=True, slots=True)
class Operand:
    """One side of a test: what it is, what it was worth, and as what it was read to compare."""

    text: str
    kind: Kind
    value: Value
    read_as: Value = None

    @property
    def is_literal(self) -> bool:
        """Whether its text says all."""
        return self.text == _shown(self.value)

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.text} is missing" if self.kind is Kind.STRING else f"{self.text} is null"
        shown = f"{self.text} is {_shown(self.value)}"
        if self.read_as is not None and self.read_as is not self.value:
            shown += f", read as {_shown(self.read_as)}"
        return shown


@dataclass(frozen=True, slots=True)
class Part:
    """A condition within the expression. `outcome` is None where a short circuit passed it over."""

    expression: Expr
    outcome: Outcome | None
    error: str | None
    operands: tuple[Operand, ...]
    parts: tuple["Part", ...]

    @property
    def text(self) -> str:
        return printable(render(self.expression))

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "text": self.text,
            "start": self.expression.span.start,
            "end": self.expression.span.end,
            "outcome": None if self.outcome is None else self.outcome.name.lower(),
            "error": self.error,
            "operands": [
                {"text": o.text, "kind": o.kind, "value": o.value, "read_as": _plain(o.read_as)}
                for o in self.operands
            ],
            "parts": [part.to_dict() for part in self.parts],
        }


def _plain(value: Value) -> Value:
    """JSON has no NaN and no infinity: those go as text."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True, slots=True)
class Explanation:
    outcome: Outcome
    reason: str
    part: Part


def explain(expr: Expr, properties: Properties | None) -> Explanation:
    part = _part(expr, properties if properties is not None else {}, looked_at=True)
    assert part.outcome is not None
    return Explanation(part.outcome, _reason(part), part)


def _part(expr: Expr, properties: Properties, looked_at: bool) -> Part:
    closure = compile_closure(expr)
    outcome = evaluate(closure, properties) if looked_at else None
    error = None
    if outcome is Outcome.ERROR:
        try:
            closure(properties)
        except FilterValueError as failure:
            error = _why_failed(failure)
    return Part(
        expr,
        outcome,
        error,
        tuple(_operands(expr, properties)) if looked_at else (),
        tuple(_parts(expr, properties, looked_at)),
    )


def _why_failed(failure: FilterValueError) -> str:
    if failure.java_class == "ClassCastException":
        return "a boolean on the left can't be compared with text on the right"
    return str(failure)


def _parts(expr: Expr, properties: Properties, looked_at: bool) -> Iterator[Part]:
    is_logic = isinstance(expr, And | Or | Not)
    end = {And: Outcome.FALSE, Or: Outcome.TRUE}.get(type(expr))
    for child in children(expr):
        if is_logic or (is_condition(child) and not isinstance(child, Constant)):
            part = _part(child, properties, looked_at)
            yield part
            if part.outcome is Outcome.ERROR or (end is not None and part.outcome is end):
                looked_at = False


def _operands(expr: Expr, properties: Properties) -> Iterator[Operand]:
    match expr:
        case Property() as only:
            yield _operand(only, properties, None)
        case Compare(operator, left, right):
            kind = _compared_as(left, right, operator.is_ordering)
            yield _operand(left, properties, kind)
            yield _operand(right, properties, kind)
        case Between(operand, low, high):
            yield _operand(operand, properties, _compared_as(operand, low, True))
            yield _operand(low, properties, _compared_as(operand, low, True))
            yield _operand(high, properties, _compared_as(operand, high, True))
        case In(operand=operand):
            yield _operand(operand, properties, None)
        case IsNull(operand) | TextMatch(operand=operand):
            yield _operand(operand, properties, None)
        case _:
            return


def _compared_as(left: Expr, right: Expr, is_ordering: bool) -> Kind | None:
    kinds = value_kind(left), value_kind(right)
    if is_ordering and kinds == (Kind.STRING, Kind.STRING):
        return Kind.DOUBLE
    try:
        return common_kind(*kinds)
    except FilterValueError:
        return None


def _operand(expr: Expr, properties: Properties, kind: Kind | None) -> Operand:
    value = read_as = None
    try:
        value = compile_value(expr)(properties)
        if value is not None and kind not in (None, Kind.NULL):
            read_as = convert(value, kind)
    except FilterValueError:
        pass  # the part's own error tells
    return Operand(render(expr), value_kind(expr), value, read_as)


def _reason(part: Part) -> str:
    """One sentence, from the innermost part that made the whole what it is."""
    if part.outcome is Outcome.TRUE:
        return "It matches."
    cause = _decisive(part)
    return f"It does not match: {_sentence(cause)}."


def _decisive(part: Part) -> Part:
    if isinstance(part.expression, Or) and part.outcome is Outcome.FALSE:
        return part  # all of them
    if isinstance(part.expression, Not) and part.outcome is Outcome.FALSE:
        return part
    if isinstance(part.expression, And | Or | Not) or part.outcome is Outcome.ERROR:
        for inner in part.parts:
            if inner.outcome is part.outcome:
                return _decisive(inner)
    return part


def _sentence(part: Part) -> str:
    text, expr = part.text, part.expression
    if part.outcome is Outcome.ERROR:
        return f"{text} fails, because {part.error}; one failure decides the whole"
    if part.outcome is Outcome.NULL:
        missing = [o for o in part.operands if o.value is None]
        why = f", because {missing[0]}" if missing and not isinstance(expr, Constant) else ""
        return f"{text} is unknown (null){why}"
    match expr:
        case Or():
            met = [str(o) for p in part.parts for o in p.operands if not o.is_literal]
            shown = f" ({'; '.join(dict.fromkeys(met))})" if 0 < len(met) <= 4 else ""
            return f"none of the {len(part.parts)} alternatives in {text} is true{shown}"
        case Not():
            return f"{text} is false, because {part.parts[0].text} is true"
        case Property(name):
            return f"{name} alone is never true; write {name} = TRUE"
        case In(negated=negated) if part.operands[0].value is not None:
            among = "one of" if negated else "none of"
            return f"{text} is false, because {part.operands[0]}, {among} these"
        case _:
            facts = [str(o) for o in part.operands if not o.is_literal]
            return f"{text} is false" + (f", because {' and '.join(facts)}" if facts else "")


def _shown(value: Value) -> str:
    match value:
        case str():
            return quote(printable(value))
        case bool() | None:
            return str(value).upper() if value is not None else "NULL"
        case float() if value != value:
            return "NaN"
        case _:
            return str(value)


def printable(text: str) -> str:
    """With everything that could upset a terminal or a table spelled out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@dataclass(frozen=True, slots=True)
class TagExplanation:
    """A tag filter's two looks at one message."""

    tag: str | None
    code: int
    matched_code: bool  # at the broker
    matched_tag: bool  # at the client
    reason: str

    @property
    def matched(self) -> bool:
        return self.matched_code and self.matched_tag


def explain_tags(filter: TagFilter, tag: str | None) -> TagExplanation:
    code = tags_code(tag)
    matched_code, matched_tag = filter.matches_code(code), filter.matches_tag(tag)
    shown = (
        "The message has no tag"
        if tag is None
        else f"The tag {quote(printable(tag))} (hash {code})"
    )
    if matched_code and matched_tag:
        reason = "It matches: * takes everything." if filter.matches_all else "It matches."
    elif matched_code:
        others = [quote(t) for t in sorted(filter.tags) if string_hash(t) == code]
        reason = (
            f"It does not match: {shown[0].lower()}{shown[1:]} has the same hash as "
            f"{' and '.join(others)}, so a broker delivers it and the client drops it."
        )
        if tag is None:
            reason = (
                f"It does not match: a message without a tag has the hash 0, as has "
                f"{' and '.join(others)}; a broker delivers it and the client drops it."
            )
    elif not filter.tags:
        reason = "It does not match: the list is blank and matches nothing."
    elif tag is None:
        reason = "It does not match: the message has no tag."
    else:
        wanted = " or ".join(quote(t) for t in sorted(filter.tags))
        reason = f"It does not match: the tag is {quote(printable(tag))}, not {wanted}."
    return TagExplanation(tag, code, matched_code, matched_tag, reason)
