"""Warnings for filters that compile and do not do what their author meant.

Each rule is a function from a parsed selector to findings, listed in `_RULES`. What a rule calls an
error never does what was meant; strict mode refuses it. Tag expressions have rules of their own.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from ..errors import FilterTypeError, InvalidFilter
from . import _contradictions, _lint_tags
from .checks import unknown_word_hint
from .engines.closures import compile_closure, evaluate, value_kind
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
    Negate,
    Not,
    Operator,
    Or,
    Property,
    children,
    is_fixed,
    walk,
)
from .parser import Selector, parse, parse_selector
from .render import quote, render
from .tags import TagFilter, parse_tags
from .tokens import Dialect, TokenKind

__all__ = ["Finding", "Severity", "lint", "lint_tags", "parse_strict", "parse_tags_strict"]


class Severity(StrEnum):
    ERROR = "error"  # never what was meant: strict mode refuses it
    WARNING = "warning"  # often not what was meant
    NOTE = "note"  # depends on the messages


@dataclass(frozen=True, slots=True)
class Finding:
    """`replacement`, if there is one, goes in place of `text[start:end]`."""

    rule: str
    severity: Severity
    message: str
    start: int
    end: int
    replacement: str | None = None

    def rewritten(self, text: str) -> str | None:
        if self.replacement is None:
            return None
        return text[: self.start] + self.replacement + text[self.end :]


def lint(text: str, dialect: Dialect | str = Dialect.V4_9) -> list[Finding]:
    """Findings for a SQL92 filter, in the order of the text; raises InvalidFilter if it is none."""
    return _lint(parse_selector(text, dialect))


def lint_tags(expression: str) -> list[Finding]:
    """Findings for a tag expression."""
    parse_tags(expression)
    return [
        Finding(rule, Severity(severity), message, 0, len(expression), replacement)
        for rule, severity, message, replacement in _lint_tags.findings(expression)
    ]


def parse_strict(text: str, dialect: Dialect | str = Dialect.V4_9) -> Expr:
    """As `parse`, refusing also what lint calls an error."""
    selector = parse_selector(text, dialect)
    _refuse(text, _lint(selector))
    return selector.expression


def parse_tags_strict(expression: str | None) -> TagFilter:
    """As `parse_tags`, refusing also what lint calls an error."""
    if expression:
        _refuse(expression, lint_tags(expression))
    return parse_tags(expression)


def _refuse(text: str, findings: list[Finding]) -> None:
    for finding in findings:
        if finding.severity is Severity.ERROR:
            better = finding.rewritten(text)
            hint = f"write {better}" if better is not None else None
            raise FilterTypeError(text, finding.start, finding.message, hint)


def _lint(selector: Selector) -> list[Finding]:
    findings = [finding for rule in _RULES for finding in rule(selector)]
    return sorted(findings, key=lambda finding: (finding.start, finding.end))


def _at(expr: Expr, rule: str, severity: Severity, message: str, better: Expr | None) -> Finding:
    text = None if better is None else render(better)
    return Finding(rule, severity, message, expr.span.start, expr.span.end, text)


def _ignored_text(selector: Selector) -> Iterator[Finding]:
    """RocketMQ stops reading after a complete expression, whatever follows."""
    text, token = selector.text, selector.ignored
    if token is None:
        return
    number = _NUMBER_BEFORE.search(text[: token.start])
    if number and token.kind in (TokenKind.NAME, TokenKind.INTEGER, TokenKind.DECIMAL):
        # `007`: a number and more, written together
        rest = _WORD.match(text, token.start)
        written = number.group() + (rest.group() if rest else "")
        end = number.start() + len(written)
        message = f"{written} is read as {number.group()}, and all after it is ignored"
        yield Finding(
            "split-number", Severity.ERROR, message, number.start(), end, _plain_number(written)
        )
        return
    word = token.text.upper()
    ignored = text[token.start :].strip()
    shown = ignored if len(ignored) <= 40 else ignored[:39] + "…"
    message = f"«{shown}» is ignored: the expression is complete before it"
    hint = unknown_word_hint(word, selector.dialect) if token.kind is TokenKind.NAME else None
    if word == "LIKE":
        yield _like(selector, f"{message}; {hint}")
        return
    if hint is not None:
        message = f"{message}; {hint}"
    elif token.kind in (TokenKind.PLUS, TokenKind.MINUS):
        message = f"{message}; there is no arithmetic"
    elif token.kind is TokenKind.RIGHT:
        message = f"{message}; this parenthesis was never opened"
        yield Finding("ignored-text", Severity.ERROR, message, token.start, len(text), "")
        return
    elif token.kind is not TokenKind.COMMA:
        joined = f"{text[: token.start]}AND {text[token.start :]}"
        if _compiles(joined, selector.dialect):
            yield Finding("ignored-text", Severity.ERROR, message, token.start, token.start, "AND ")
            return
    yield Finding("ignored-text", Severity.ERROR, message, token.start, len(text), None)


_NUMBER_BEFORE = re.compile(r"(?<![\w.$])(?:[0-9]+\.?[0-9]*|\.[0-9]+)\Z")
_WORD = re.compile(r"[\w.$]+")


def _plain_number(written: str) -> str | None:
    """How a number written the Java or C way is spelled in a filter."""
    lower = written.lower()
    if re.fullmatch(r"[0-9]+l?", lower):
        return str(int(lower.rstrip("l")))
    if re.fullmatch(r"0x[0-9a-f]+", lower):
        return str(int(lower, 16))
    if re.fullmatch(r"[0-9]*\.?[0-9]+[fd]", lower) and float(lower[:-1]) > 0:
        return repr(float(lower[:-1]))
    return None


def _like(selector: Selector, message: str) -> Finding:
    text, token = selector.text, selector.ignored
    assert token is not None
    better = None
    found = re.match(r"\s*'((?:''|[^'])*)'", text[token.end :])
    end = len(text)
    if found:
        end = token.end + found.end()
        pattern = found.group(1).replace("''", "'")
        body = pattern.strip("%")
        if "%" not in body and "_" not in body and body:
            if pattern == body:
                better = f"= {quote(body)}"
            elif selector.dialect is Dialect.V5_1_3:
                ends = (pattern.startswith("%"), pattern.endswith("%"))
                word = {(True, True): "CONTAINS", (True, False): "ENDSWITH"}.get(ends, "STARTSWITH")
                better = f"{word} {quote(body)}"
    return Finding("ignored-text", Severity.ERROR, message, token.start, end, better)


def _compiles(text: str, dialect: Dialect) -> bool:
    try:
        parse(text, dialect)
    except InvalidFilter:
        return False
    return True


def _not_binds_tightly(selector: Selector) -> Iterator[Finding]:
    for expr in walk(selector.expression):
        better: Expr
        match expr:
            case Compare(left=Not(Property(name) as operand)):
                better = Not(replace(expr, left=operand))
                meaning = f"(NOT {name}) {expr.operator.value} {render(expr.right)}"
            case IsNull(Not(Property(name) as operand)):
                better = IsNull(operand, not expr.negated)
                meaning = render(IsNull(operand, expr.negated))
            case _:
                continue
        message = f"NOT binds tighter than the comparison: this means {meaning}"
        yield _at(expr, "not-binds-tightly", Severity.ERROR, message, better)


def _never_boolean(selector: Selector) -> Iterator[Finding]:
    """A bare property where a condition is wanted: false when it is there, even if it is 'true'."""
    after = selector.ignored.start if selector.ignored else None
    for parent, expr in _with_parents(selector.expression):
        if not isinstance(expr, Property):
            continue
        if not isinstance(parent, And | Or | Not | None) or _is_not_operand(selector, parent):
            continue
        if after is not None and not selector.text[expr.span.end : after].strip():
            continue  # the ignored text is the finding
        message = f"{expr.name} alone is never true, not even when its value is 'true'"
        better: Expr = Compare(Operator.EQ, expr, Constant(True))
        yield _parenthesised(_at(expr, "never-boolean", Severity.ERROR, message, better), parent)


def _is_not_operand(selector: Selector, parent: Expr | None) -> bool:
    """Whether `parent` is the NOT of `NOT a = 1`, which has a finding of its own."""
    return isinstance(parent, Not) and any(
        isinstance(e, Compare | IsNull) and children(e)[0] is parent
        for e in walk(selector.expression)
    )


def _boolean_left(selector: Selector) -> Iterator[Finding]:
    for expr in walk(selector.expression):
        if not isinstance(expr, Compare) or expr.operator.is_ordering:
            continue
        if value_kind(expr.left) is Kind.BOOLEAN and isinstance(expr.right, Property):
            name = expr.right.name
            message = f"fails for every message that has {name}: a boolean must stand on the right"
            better = Compare(expr.operator, expr.right, expr.left)
            yield _at(expr, "boolean-left", Severity.ERROR, message, better)


def _always_null(selector: Selector) -> Iterator[Finding]:
    """Minus before anything but a number."""
    for parent, expr in _with_parents(selector.expression):
        if not isinstance(expr, Negate) or value_kind(expr) is not Kind.NULL:
            continue
        if isinstance(parent, Negate):
            continue
        message = (
            f"{render(expr)} is always null: minus works on numbers written in the filter only"
        )
        better = None
        if isinstance(parent, Compare) and isinstance(expr.operand, Property):
            mirrored = _mirror(parent) if parent.right is expr else parent
            if value_kind(mirrored.right) in _NUMBERS:
                number = mirrored.right
                number = number.operand if isinstance(number, Negate) else Negate(number)
                better = _mirror(Compare(mirrored.operator, number, expr.operand))
                yield _at(parent, "always-null", Severity.ERROR, message, better)
                continue
        yield _at(expr, "always-null", Severity.ERROR, message, better)


_NUMBERS = (Kind.INT, Kind.LONG, Kind.DOUBLE)


def _mirror(compare: Compare) -> Compare:
    return Compare(compare.operator.mirrored, compare.right, compare.left)


def _missing_property(selector: Selector) -> Iterator[Finding]:
    """Equality and absence: unknown, false or true by which side is missing."""
    tested = {
        e.operand.name
        for e in walk(selector.expression)
        if isinstance(e, IsNull) and isinstance(e.operand, Property)
    }
    rule = "missing-property"
    for parent, expr in _with_parents(selector.expression):
        match expr:
            case Compare(Operator.NE, Property(name) as operand, right) | Not(
                Compare(Operator.EQ, Property(name) as operand, right)
            ) if is_fixed(right) and value_kind(right) is not Kind.NULL:
                pass
            case In(Property(name) as operand, _, True) | Not(
                In(Property(name) as operand, _, False)
            ):
                pass
            case Compare(Operator.EQ | Operator.NE, left, Property(name) as operand) if (
                isinstance(left, Constant) and left.kind is not Kind.BOOLEAN and name not in tested
            ):
                is_ne = expr.operator is Operator.NE
                answer = "true, so it matches" if is_ne else "false, so its NOT matches"
                message = f"for a message without {name} this is {answer}"
                severity = Severity.WARNING if is_ne else Severity.NOTE
                better: Expr = _mirror(expr)
                if is_ne:  # the same, said openly
                    better = Or((IsNull(operand), better))
                finding = _at(expr, rule, severity, message, better)
                yield _parenthesised(finding, parent) if is_ne else finding
                continue
            case Compare(Operator.EQ, Property(name) as operand, Property(other)) if name != other:
                if name not in tested and other not in tested:
                    message = f"this is true when {name} and {other} are both missing"
                    guard = IsNull(operand, negated=True)
                    finding = _at(expr, rule, Severity.WARNING, message, And((guard, expr)))
                    yield _parenthesised(finding, parent)
                continue
            case _:
                continue
        if name not in tested:
            message = f"a message without {name} does not match this: the outcome is unknown"
            either = Or((IsNull(operand), expr))
            finding = _at(expr, rule, Severity.WARNING, message, either)
            yield _parenthesised(finding, parent)


def _parenthesised(finding: Finding, parent: Expr | None) -> Finding:
    if parent is None or finding.replacement is None:
        return finding
    return replace(finding, replacement=f"({finding.replacement})")


def _integer_constant(selector: Selector) -> Iterator[Finding]:
    """An integer constant makes every message with a decimal value fail. Once a property."""
    tests: dict[str, list[tuple[Compare | Between, set[Kind]]]] = {}
    for expr in walk(selector.expression):
        match expr:
            case Compare(_, Property(name), constant) | Compare(_, constant, Property(name)):
                kinds = {value_kind(constant)}
            case Between(Property(name), low, high):
                kinds = {value_kind(low), value_kind(high)}
            case _:
                continue
        if kinds & set(_NUMBERS):
            tests.setdefault(name, []).append((expr, kinds))
    for name, found in tests.items():
        kinds = {kind for _, some in found for kind in some}
        whole = [expr for expr, some in found if some & {Kind.INT, Kind.LONG}]
        if not whole:
            continue
        severity = Severity.WARNING if Kind.DOUBLE in kinds else Severity.NOTE
        message = (
            f"{name} is read as an integer: a message whose {name} is 1.5, 1e3 or blank fails and "
            "does not match; against decimal constants (5.0) it would be read as a decimal"
        )
        better = _with_decimals(whole[0]) if len(whole) == 1 else None
        yield _at(whole[0], "integer-constant", severity, message, better)


def _with_decimals(expr: Compare | Between) -> Expr | None:
    """The same test against doubles. 0.0 can't be written: the least double above it can."""
    match expr:
        case Between(operand, low, high):
            low_decimal, high_decimal = _as_decimal(low), _as_decimal(high)
            if low_decimal is None or high_decimal is None:
                return None
            return Between(operand, low_decimal, high_decimal, expr.negated)
        case Compare(_, left, Property()) if value_kind(left) in _NUMBERS:
            return _with_decimals(_mirror(expr))
        case Compare(operator, left, right):
            decimal = _as_decimal(right)
            if decimal is not None:
                return Compare(operator, left, decimal)
            least = Constant(5e-324)
            around: dict[Operator, tuple[Operator, Expr]] = {
                Operator.GT: (Operator.GE, least),
                Operator.GE: (Operator.GT, Negate(least)),
                Operator.LT: (Operator.LE, Negate(least)),
                Operator.LE: (Operator.LT, least),
            }
            if operator not in around:
                return None
            operator, bound = around[operator]
            return Compare(operator, left, bound)


def _as_decimal(expr: Expr) -> Expr | None:
    if isinstance(expr, Negate):
        inner = _as_decimal(expr.operand)
        return None if inner is None else Negate(inner)
    assert isinstance(expr, Constant)
    assert isinstance(expr.value, int | float)
    return Constant(float(expr.value)) if expr.value else None


def _reversed_bounds(selector: Selector) -> Iterator[Finding]:
    for expr in walk(selector.expression):
        if not isinstance(expr, Between):
            continue
        low, high = _contradictions.number(expr.low), _contradictions.number(expr.high)
        if low is None or high is None or low <= high:
            continue
        always = "always true" if expr.negated else "never true"
        message = f"the lower bound {low} is above {high}: this is {always}"
        better = replace(expr, low=expr.high, high=expr.low)
        yield _at(expr, "reversed-bounds", Severity.ERROR, message, better)


def _contradiction(selector: Selector) -> Iterator[Finding]:
    better: Expr | None
    for parent, expr in _with_parents(selector.expression):
        if isinstance(expr, And) and not isinstance(parent, And):
            if culprits := _contradictions.conflict(expr.terms):
                shown = " and ".join(render(term) for term in culprits)
                message = f"{shown} can't both hold: this is never true"
                better = Or(expr.terms) if len(expr.terms) == 2 else None
                yield _parenthesised(
                    _at(expr, "contradiction", Severity.ERROR, message, better), parent
                )
        elif isinstance(expr, Or):
            if culprits := _contradictions.coverage(expr.terms):
                shown = " or ".join(render(term) for term in culprits)
                message = f"{shown} holds for every value: this is always true"
                better = And(expr.terms) if len(expr.terms) == 2 else None
                yield _parenthesised(
                    _at(expr, "tautology", Severity.WARNING, message, better), parent
                )
        elif isinstance(expr, Compare):
            yield from _with_itself(expr)
        yield from _constant_condition(parent, expr)


def _with_itself(expr: Compare) -> Iterator[Finding]:
    if not isinstance(expr.left, Property) or expr.left != expr.right:
        return
    name = render(expr.left)
    if expr.operator in (Operator.EQ, Operator.GE, Operator.LE):
        message = f"{name} is compared with itself: this is always true"
        yield _at(expr, "tautology", Severity.WARNING, message, None)
    else:
        message = f"{name} is compared with itself: this is never true"
        yield _at(expr, "contradiction", Severity.ERROR, message, None)


def _constant_condition(parent: Expr | None, expr: Expr) -> Iterator[Finding]:
    """A part without a property has one outcome for all messages."""
    if isinstance(expr, Property | Negate) or (parent is not None and is_fixed(parent)):
        return
    if not is_fixed(expr) or not isinstance(parent, And | Or | Not | None):
        return
    outcome = evaluate(compile_closure(expr), None)
    if outcome is Outcome.TRUE:
        if parent is None and isinstance(expr, Constant):
            return  # the filter TRUE: everything, and it says so
        message = f"{render(expr)} is always true"
        yield _at(expr, "tautology", Severity.WARNING, message, None)
    else:
        word = {Outcome.FALSE: "false", Outcome.NULL: "null", Outcome.ERROR: "an error"}[outcome]
        message = f"{render(expr)} is always {word}"
        yield _at(expr, "contradiction", Severity.ERROR, message, None)


def _with_parents(expr: Expr, parent: Expr | None = None) -> Iterator[tuple[Expr | None, Expr]]:
    yield parent, expr
    for child in children(expr):
        yield from _with_parents(child, expr)


_RULES: tuple[Callable[[Selector], Iterator[Finding]], ...] = (
    _ignored_text,
    _not_binds_tightly,
    _never_boolean,
    _boolean_left,
    _always_null,
    _missing_property,
    _integer_constant,
    _reversed_bounds,
    _contradiction,
)
