"""Warnings for filters that compile and do not do what their author meant.

Each rule is a function from a parsed selector to findings, listed in `_RULES`. What a rule calls an
error never does what was meant; strict mode refuses it. Tag expressions have rules of their own.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from ..errors import FilterTypeError, InvalidFilter
from . import _contradictions, _lint_tags
from ._findings import Finding, Severity, finding_at
from ._ignored_text import ignored_text
from .engines.closures import compile_closure, evaluate
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
    TextMatch,
    children,
    is_fixed,
    value_kind,
    walk,
)
from .parser import Selector, parse_selector
from .render import render
from .tags import TagFilter, parse_tags
from .tokens import Dialect

__all__ = ["Finding", "Severity", "lint", "lint_tags", "parse_strict", "parse_tags_strict"]

_LONG = 5000  # characters; no rewrites are proposed for longer texts


def lint(text: str, dialect: Dialect | str = Dialect.V4_9) -> list[Finding]:
    """Findings for a SQL92 filter, in the order of the text; raises InvalidFilter if it is none."""
    selector = parse_selector(text, dialect)
    findings = _findings(selector)
    return [_with_good_rewrite(selector, finding, findings) for finding in findings]


def lint_tags(expression: str) -> list[Finding]:
    """Findings for a tag expression."""
    parse_tags(expression)
    return [
        Finding(rule, Severity(severity), message, 0, len(expression), replacement)
        for rule, severity, message, replacement in _lint_tags.findings(expression)
    ]


def parse_strict(text: str, dialect: Dialect | str = Dialect.V4_9) -> Expr:
    """As `parse`, refusing also what lint calls an error."""
    _refuse(text, lint(text, dialect))
    return parse_selector(text, dialect).expression


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


def _findings(selector: Selector) -> list[Finding]:
    findings = [finding for rule in _RULES for finding in rule(selector)]
    return sorted(findings, key=lambda finding: (finding.start, finding.end))


def _with_good_rewrite(selector: Selector, finding: Finding, all: list[Finding]) -> Finding:
    """Keeps a rewrite only if it mends: it compiles, the trap is gone, no worse one came."""
    better = finding.rewritten(selector.text)
    if better is None:
        return finding
    try:
        after = _findings(parse_selector(better, selector.dialect)) if len(better) < _LONG else None
    except InvalidFilter:
        after = None
    mends = after is not None and (
        _count(after, finding.rule) < _count(all, finding.rule)
        and _errors(after) <= _errors(all) - (finding.severity is Severity.ERROR)
    )
    return finding if mends else replace(finding, replacement=None)


def _count(findings: list[Finding], rule: str) -> int:
    return sum(finding.rule == rule for finding in findings)


def _errors(findings: list[Finding]) -> int:
    return sum(finding.severity is Severity.ERROR for finding in findings)


def _not_binds_tightly(selector: Selector) -> Iterator[Finding]:
    for expr in walk(selector.expression):
        if not isinstance(expr, Compare | IsNull | TextMatch):
            continue
        left = operand = children(expr)[0]
        while isinstance(operand, Not):
            operand = operand.operand
        if operand is left or not isinstance(operand, Property):
            continue
        better: Expr
        if isinstance(expr, IsNull):
            better = IsNull(operand, not expr.negated)
        elif isinstance(expr, TextMatch):
            better = Not(replace(expr, operand=operand))
        else:
            better = Not(replace(expr, left=operand))
        meaning = render(expr).replace(render(left), f"({render(left)})", 1)
        message = f"NOT binds tighter than the comparison: this means {meaning}"
        yield finding_at(expr, "not-binds-tightly", Severity.ERROR, message, better)


def _never_boolean(selector: Selector) -> Iterator[Finding]:
    """A bare property where a condition is wanted: false when it is there, even if it is 'true'."""
    after = selector.ignored.start if selector.ignored else None
    compared: set[int] = set()  # what stands under the NOT of `NOT a = 1`, which has its own rule
    for parent, expr in _with_parents(selector.expression):
        if isinstance(expr, Not) and (
            isinstance(parent, Compare | IsNull | TextMatch) or id(parent) in compared
        ):
            compared.add(id(expr))
        if not isinstance(expr, Property) or id(parent) in compared:
            continue
        if not isinstance(parent, And | Or | Not | None):
            continue
        if after is not None and not selector.text[expr.span.end : after].strip():
            continue  # the ignored text is the finding
        message = f"{expr.name} alone is never true, not even when its value is 'true'"
        better: Expr = Compare(Operator.EQ, expr, Constant(True))
        finding = finding_at(expr, "never-boolean", Severity.ERROR, message, better)
        yield _parenthesised(finding, parent)


def _boolean_left(selector: Selector) -> Iterator[Finding]:
    for expr in walk(selector.expression):
        if not isinstance(expr, Compare) or expr.operator.is_ordering:
            continue
        if value_kind(expr.left) is Kind.BOOLEAN and isinstance(expr.right, Property):
            name = expr.right.name
            message = f"fails for every message that has {name}: a boolean must stand on the right"
            better = Compare(expr.operator, expr.right, expr.left)
            yield finding_at(expr, "boolean-left", Severity.ERROR, message, better)


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
        if isinstance(parent, Compare) and isinstance(expr.operand, Property):
            mirrored = _mirror(parent) if parent.right is expr else parent
            if value_kind(mirrored.right) in _NUMBERS:
                number = mirrored.right
                number = number.operand if isinstance(number, Negate) else Negate(number)
                better = _mirror(Compare(mirrored.operator, number, expr.operand))
                yield finding_at(parent, "always-null", Severity.ERROR, message, better)
                continue
        yield finding_at(expr, "always-null", Severity.ERROR, message, None)


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
        better: Expr
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
                better = _mirror(expr)
                if is_ne:  # the same, said openly
                    better = Or((IsNull(operand), better))
                finding = finding_at(expr, rule, severity, message, better)
                yield _parenthesised(finding, parent) if is_ne else finding
                continue
            case Compare(Operator.EQ, Property(name) as operand, Property(other)) if name != other:
                if name not in tested and other not in tested:
                    message = f"this is true when {name} and {other} are both missing"
                    better = And((IsNull(operand, negated=True), expr))
                    finding = finding_at(expr, rule, Severity.WARNING, message, better)
                    yield _parenthesised(finding, parent)
                continue
            case _:
                continue
        if name not in tested and not _is_needed(name, expr, parent):
            message = f"a message without {name} does not match this: the outcome is unknown"
            better = Or((IsNull(operand), expr))
            finding = finding_at(expr, rule, Severity.WARNING, message, better)
            yield _parenthesised(finding, parent)


def _is_needed(name: str, expr: Expr, parent: Expr | None) -> bool:
    """Whether another term beside this one is not true without the property anyway."""
    if not isinstance(parent, And):
        return False
    return any(
        term is not expr
        and _contradictions.subject(term) == name
        and evaluate(compile_closure(term), {}) is not Outcome.TRUE
        for term in parent.terms
    )


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
        is_cut = selector.ignored is not None and selector.ignored.start == whole[0].span.end
        better = _with_decimals(whole[0]) if len(whole) == 1 and not is_cut else None
        yield finding_at(whole[0], "integer-constant", severity, message, better)


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
            if operator not in around or right != Constant(0):
                return None
            operator, bound = around[operator]
            return Compare(operator, left, bound)


def _as_decimal(expr: Expr) -> Expr | None:
    """A number as a decimal constant; None if it is none, is 0, or has too many digits."""
    if isinstance(expr, Negate):
        inner = _as_decimal(expr.operand)
        return None if inner is None else Negate(inner)
    if value_kind(expr) not in _NUMBERS:
        return None
    assert isinstance(expr, Constant)
    assert isinstance(expr.value, int | float)
    exact = expr.value and float(expr.value) == expr.value
    return Constant(float(expr.value)) if exact else None


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
        yield finding_at(expr, "reversed-bounds", Severity.ERROR, message, better)


def _contradiction(selector: Selector) -> Iterator[Finding]:
    better: Expr | None
    for parent, expr in _with_parents(selector.expression):
        if isinstance(expr, And) and not isinstance(parent, And):
            if culprits := _contradictions.conflict(expr.terms):
                shown = " and ".join(render(term) for term in culprits)
                message = f"{shown} can't both hold: this is never true"
                better = Or(expr.terms) if len(expr.terms) == 2 else None
                finding = finding_at(expr, "contradiction", Severity.ERROR, message, better)
                yield _parenthesised(finding, parent)
        elif isinstance(expr, Or):
            if culprits := _contradictions.coverage(expr.terms):
                shown = " or ".join(render(term) for term in culprits)
                name = _contradictions.subject(culprits[0])
                message = f"{shown} holds for every value: this is true whenever {name} is there"
                better = And(expr.terms) if len(expr.terms) == 2 else None
                finding = finding_at(expr, "tautology", Severity.WARNING, message, better)
                yield _parenthesised(finding, parent)
        elif isinstance(expr, Compare):
            yield from _with_itself(expr)
        elif isinstance(expr, TextMatch) and not expr.text:
            message = "an empty text is found nowhere: this is always false"
            yield finding_at(expr, "contradiction", Severity.ERROR, message, None)
        yield from _constant_condition(parent, expr)


def _with_itself(expr: Compare) -> Iterator[Finding]:
    if not isinstance(expr.left, Property) or expr.left != expr.right:
        return
    name = render(expr.left)
    if expr.operator in (Operator.EQ, Operator.GE, Operator.LE):
        message = f"{name} is compared with itself: this is always true"
        yield finding_at(expr, "tautology", Severity.WARNING, message, None)
    else:
        message = f"{name} is compared with itself: this is never true"
        yield finding_at(expr, "contradiction", Severity.ERROR, message, None)


def _constant_condition(parent: Expr | None, expr: Expr) -> Iterator[Finding]:
    """A part without a property has one outcome for all messages."""
    if not isinstance(parent, And | Or | Not | None) or not is_fixed(expr):
        return
    if parent is not None and is_fixed(parent):
        return  # said of the whole
    outcome = evaluate(compile_closure(expr), None)
    if outcome is Outcome.TRUE:
        if parent is None and isinstance(expr, Constant):
            return  # the filter TRUE: everything, and it says so
        message = f"{render(expr)} is always true"
        yield finding_at(expr, "tautology", Severity.WARNING, message, None)
    elif not isinstance(expr, TextMatch) or expr.text:
        word = {Outcome.FALSE: "false", Outcome.NULL: "null", Outcome.ERROR: "an error"}[outcome]
        message = f"{render(expr)} is always {word}"
        yield finding_at(expr, "contradiction", Severity.ERROR, message, None)


def _with_parents(expr: Expr, parent: Expr | None = None) -> Iterator[tuple[Expr | None, Expr]]:
    yield parent, expr
    for child in children(expr):
        yield from _with_parents(child, expr)


_RULES: tuple[Callable[[Selector], Iterator[Finding]], ...] = (
    ignored_text,
    _not_binds_tightly,
    _never_boolean,
    _boolean_left,
    _always_null,
    _missing_property,
    _integer_constant,
    _reversed_bounds,
    _contradiction,
)
