"""JSON lines of expressions and properties to JSON lines of verdicts, for `tamis filter eval`."""

import json
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

from ..errors import FilterValueError, InvalidFilter
from ..filter import Dialect, Expr, Outcome, parse
from ..filter.engines.closures import Closure, compile_closure

__all__ = ["Case", "cases", "with_catalyst", "with_closures", "with_columns"]

_BATCH = 10_000  # lines; bounds the memory of an endless input
_CACHE = 10_000  # compiled expressions
_SELECTED = 100  # columns of a query: more take longer each


class Case(NamedTuple):
    line: dict[str, Any]  # what the answer begins with: the id, if there was one
    expr: str
    props: dict[str, str] | None


def cases(lines: Iterable[bytes], report: Callable[[int, str], None]) -> Iterator[Case]:
    """The well-formed lines; others go to `report` with their number, blank ones are skipped."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            yield _case(json.loads(text, parse_constant=_refuse))
        except UnicodeDecodeError as error:
            report(number, f"not UTF-8 at byte {error.start + 1}")
        except json.JSONDecodeError as error:
            report(number, f"not JSON: {error.msg} at column {error.colno}")
        except (ValueError, RecursionError) as error:
            report(number, str(error))


def _refuse(constant: str) -> None:
    raise ValueError(f"not JSON: {constant} is no value of JSON")


def _case(value: Any) -> Case:
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    expr, props = value.get("expr"), value.get("props")
    if not isinstance(expr, str):
        raise ValueError('"expr" is missing' if expr is None else '"expr" is not a string')
    if props is not None:
        if not isinstance(props, dict):
            raise ValueError('"props" is not an object')
        for name, text in props.items():
            if not isinstance(text, str):
                raise ValueError(f'"props": the value of "{name}" is not a string')
    return Case({"id": value["id"]} if "id" in value else {}, expr, props)


def with_closures(cases: Iterable[Case], dialect: Dialect) -> Iterator[str]:
    @lru_cache(_CACHE)
    def compiled(expr: str) -> Closure | None:
        parsed = _parse(expr, dialect)
        return None if parsed is None else compile_closure(parsed)

    for case in cases:
        closure = compiled(case.expr)
        if closure is None:
            yield _answer(case, "error", None)
            continue
        result: bool | str | None
        try:
            result = closure(case.props if case.props is not None else {})
        except FilterValueError as error:
            result = f"error:{error.java_class}"
        yield _answer(case, "ok", result)


_RESULTS: dict[int, bool | str | None] = {
    Outcome.TRUE: True,
    Outcome.FALSE: False,
    Outcome.NULL: None,
    Outcome.ERROR: f"error:{FilterValueError.__name__}",
}


def with_columns(cases: Iterable[Case], dialect: Dialect) -> Iterator[str]:
    """A batch of lines at a time, those of one expression together."""
    from ..filter.engines.columnar import BatchFilter

    @lru_cache(_CACHE)
    def compiled(expr: str) -> BatchFilter | None:
        parsed = _parse(expr, dialect)
        return None if parsed is None else BatchFilter(parsed)

    cases = iter(cases)
    while batch := list(islice(cases, _BATCH)):
        rows_of: dict[str, list[int]] = {}
        for row, case in enumerate(batch):
            rows_of.setdefault(case.expr, []).append(row)
        answers = [""] * len(batch)
        for expr, rows in rows_of.items():
            batch_filter = compiled(expr)
            if batch_filter is None:
                for row in rows:
                    answers[row] = _answer(batch[row], "error", None)
                continue
            outcomes = batch_filter.match_properties(batch[row].props for row in rows)
            for row, outcome in zip(rows, outcomes.tolist(), strict=True):
                answers[row] = _answer(batch[row], "ok", _RESULTS[outcome])
        yield from answers


def with_catalyst(cases: Iterable[Case], dialect: Dialect) -> Iterator[str]:
    """A batch of lines at a time; a query has a column an expression, a row a line."""
    from ..spark.columns import Evaluator

    evaluator = Evaluator()
    cases = iter(cases)
    while batch := list(islice(cases, _BATCH)):
        answers = [""] * len(batch)
        rows_of: dict[Expr, list[int]] = {}
        for row, case in enumerate(batch):
            expr = _parse(_stored(case.expr), dialect)
            if expr is None:
                answers[row] = _answer(case, "error", None)
            else:
                rows_of.setdefault(expr, []).append(row)
        parsed = list(rows_of.items())
        for start in range(0, len(parsed), _SELECTED):
            some = parsed[start : start + _SELECTED]
            messages = [_stored_properties(batch[row].props) for _, rows in some for row in rows]
            outcomes = iter(evaluator.outcomes([expr for expr, _ in some], messages))
            for column, (_, rows) in enumerate(some):
                for row in rows:
                    answers[row] = _answer(batch[row], "ok", _RESULTS[next(outcomes)[column]])
        yield from answers


def _stored_properties(properties: dict[str, str] | None) -> dict[str, str] | None:
    if properties is None:
        return None
    return {_stored(name): _stored(text) for name, text in properties.items()}


def _stored(text: str) -> str:
    """As Java encodes it: half a surrogate pair becomes a question mark."""
    return text.encode("utf-8", "replace").decode()


def _parse(expr: str, dialect: Dialect) -> Expr | None:
    try:
        return parse(expr, dialect)
    except InvalidFilter:
        return None


def _answer(case: Case, compile: str, result: bool | str | None) -> str:
    verdict = {"compile": compile, "result": result, "matched": result is True}
    return json.dumps({**case.line, **verdict}) + "\n"
