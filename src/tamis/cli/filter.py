"""`tamis filter`: try a filter, look for its traps, evaluate many."""

import itertools
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO

import click

from ..errors import place
from ..filter.tokens import Dialect
from .backtest import backtest
from .codetest import check_options, code_options, test_code

if TYPE_CHECKING:
    from ..filter.explain import Explanation, Part, TagExplanation
    from ..filter.lint import Finding

__all__ = ["filter_group", "print_explanation", "print_findings", "print_parts"]

_COLOURS = {"true": "green", "false": "red", "null": "yellow", "error": "magenta", "skipped": None}
_SEVERITIES = {"error": "red", "warning": "yellow", "note": "cyan"}

_dialect = click.option(
    "--dialect",
    type=click.Choice([d.value for d in Dialect]),
    default=Dialect.V4_9.value,
    show_default=True,
    help="RocketMQ's language before or since 5.1.3 (CONTAINS, STARTSWITH, ENDSWITH).",
)
_tags = click.option("--tags", is_flag=True, help="Tag expressions (a || b), not SQL92.")
_json = click.option("--json", "as_json", is_flag=True, help="JSON for programs.")


@click.group("filter")
def filter_group() -> None:
    """Try, check and evaluate filters."""


class _TakesExpressions(click.Command):
    """An expression may begin with a minus, as `-a > 5` does, but not as a long option does."""

    ignore_unknown_options = True

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        known = {name for option in self.get_params(context) for name in option.opts}
        for arg in itertools.takewhile(lambda arg: arg != "--", args):
            name = arg.split("=")[0]
            if name.startswith("--") and name[2:3].isalpha() and name not in known:
                raise click.NoSuchOption(name, ctx=context)
        return super().parse_args(context, args)


@filter_group.command(cls=_TakesExpressions)
@click.argument("expression", metavar="[EXPR]", required=False)
@click.option(
    "-p", "--property", "pairs", multiple=True, metavar="NAME=VALUE", help="May be repeated."
)
@_tags
@_dialect
@click.option("--strict", is_flag=True, help="Refuse what lint calls an error.")
@code_options
@_json
@click.pass_context
def test(
    context: click.Context,
    /,
    expression: str | None,
    pairs: tuple[str, ...],
    tags: bool,
    dialect: str,
    strict: bool,
    as_json: bool,
    **of_code: Any,
) -> None:
    """Whether a message with these properties matches, and why.

    With --code, a filter in Python is run in a sandbox, on the message given by -p, --tag, --keys
    and --body, or on the newest messages of --topic; nothing is changed at the broker. Shows
    verdicts, failures, time and memory; see docs/code-filters.md.

    Exit code 0: matched, 1: not matched, 2: EXPR does not compile, or the code can't be loaded.
    With --topic 0: done, 1: the filter failed on a message, or one could not be read.
    """
    from ..errors import InvalidFilter

    check_options(context)
    properties = _properties(pairs)
    if expression is None:
        context.exit(test_code(properties, of_code, as_json))
    try:
        if tags:
            matched = _test_tags(expression, properties, strict, as_json)
        else:
            matched = _test_sql(expression, dialect, properties, strict, as_json)
    except InvalidFilter as error:
        if not as_json:
            raise
        _echo_json(
            {"expr": expression, "compile": "error", "matched": False, "error": _where(error)}
        )
        context.exit(2)
    context.exit(0 if matched else 1)


def _properties(pairs: tuple[str, ...]) -> dict[str, str]:
    properties = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"'{pair}' is not NAME=VALUE", param_hint="-p")
        if value:
            properties[name] = value
        else:
            properties.pop(name, None)
            click.echo(f"note: RocketMQ stores no empty value: {name} counts as missing", err=True)
    return properties


def _test_sql(
    expression: str, dialect: str, properties: dict[str, str], strict: bool, as_json: bool
) -> bool:
    from ..filter import lint, parse
    from ..filter.explain import explain
    from ..filter.lint import Severity, parse_strict

    expr = parse_strict(expression, dialect) if strict else parse(expression, dialect)
    explanation = explain(expr, properties)
    findings = lint.lint(expression, dialect)
    if as_json:
        result: bool | str | None = {"true": True, "false": False, "null": None}.get(
            explanation.outcome.name.lower(), f"error:{explanation.part.error}"
        )
        _echo_json(
            {
                "expr": expression,
                "dialect": dialect,
                "compile": "ok",
                "result": result,
                "matched": explanation.outcome.matched,
                "reason": explanation.reason,
                "explanation": explanation.part.to_dict(),
                "findings": [_finding(expression, finding) for finding in findings],
            }
        )
    else:
        print_explanation(explanation)
        louder = [f for f in findings if f.severity is not Severity.NOTE]
        print_findings(expression, louder, blank=True)
    return explanation.outcome.matched


def _test_tags(expression: str, properties: dict[str, str], strict: bool, as_json: bool) -> bool:
    from ..filter.explain import explain_tags
    from ..filter.lint import lint_tags, parse_tags_strict
    from ..filter.tags import parse_tags

    parsed = parse_tags_strict(expression) if strict else parse_tags(expression)
    explanation = explain_tags(parsed, properties.get("TAGS"))
    findings = lint_tags(expression)
    if as_json:
        _echo_json(
            {
                "expr": expression,
                "compile": "ok",
                "result": explanation.matched,
                "matched": explanation.matched,
                "reason": explanation.reason,
                "tags": sorted(parsed.tags),
                "codes": sorted(parsed.codes),
                "tag": explanation.tag,
                "code": explanation.code,
                "broker": explanation.matched_code,
                "client": explanation.matched_tag,
                "findings": [_finding(expression, finding) for finding in findings],
            }
        )
    else:
        _print_tag_explanation(explanation)
        print_findings(expression, findings, blank=True)
    return explanation.matched


def print_explanation(explanation: "Explanation") -> None:
    _print_verdict(explanation.outcome.matched, explanation.reason)
    click.echo()
    print_parts(list(_rows(explanation.part, 0)))


def print_parts(rows: "list[tuple[str, str, str]]", indent: str = "  ") -> None:
    """Print the parts of an expression: the outcome of each, its text, what its operands were."""
    width = min(max(len(text) for _, text, _ in rows), 60)
    for outcome, text, facts in rows:
        line = f"{indent}{click.style(f'{outcome:<7}', fg=_COLOURS[outcome])}  {text}"
        if facts:
            margin = len(indent) + width + 11
            gap = "\n" + " " * margin if len(text) > width else " " * (width - len(text) + 2)
            line += gap + click.style(facts, dim=True)
        click.echo(line)


def _print_verdict(matched: bool, reason: str) -> None:
    verdict = click.style("matched", fg="green", bold=True)
    if not matched:
        verdict = click.style("not matched", fg="red", bold=True)
    click.echo(f"{verdict}\n{reason}")


def _rows(part: "Part", depth: int) -> Iterator[tuple[str, str, str]]:
    outcome = "skipped" if part.outcome is None else part.outcome.name.lower()
    facts = [str(o) for o in part.operands if not o.is_literal]
    if part.error and not part.parts:
        facts.append(part.error)
    yield outcome, "  " * depth + part.text, "; ".join(facts)
    for inner in part.parts:
        yield from _rows(inner, depth + 1)


def _print_tag_explanation(explanation: "TagExplanation") -> None:
    _print_verdict(explanation.matched, explanation.reason)
    click.echo()
    for matched, who, what in (
        (explanation.matched_code, "broker", f"compares the hash {explanation.code}"),
        (explanation.matched_tag, "client", "compares the text"),
    ):
        word = "true" if matched else "false"
        click.echo(f"  {click.style(f'{word:<7}', fg=_COLOURS[word])}  {who} {what}")


@filter_group.command(cls=_TakesExpressions)
@click.argument("expressions", metavar="EXPR...", nargs=-1, required=True)
@_tags
@_dialect
@_json
@click.pass_context
def lint(
    context: click.Context, expressions: tuple[str, ...], tags: bool, dialect: str, as_json: bool
) -> None:
    """Look for traps: filters that compile and do not do what they seem to.

    EXPR may be - for standard input, one expression a line. Exit code 0: no errors (there may be
    warnings and notes), 1: errors, 2: an expression does not compile.
    """
    from ..errors import InvalidFilter
    from ..filter.lint import Severity, lint_tags
    from ..filter.lint import lint as lint_sql

    worst = 0
    for label, text in _texts(expressions, blanks_count=tags):
        try:
            findings = lint_tags(text) if tags else lint_sql(text, dialect)
        except InvalidFilter as error:
            worst = 2
            if as_json:
                _echo_json({"expr": text, "compile": "error", "error": _where(error)})
            else:
                click.echo(f"{label}{click.style('does not compile', fg='red')}: {error}")
                click.echo("\n".join("    " + line for line in error.picture().split("\n")))
            continue
        if any(finding.severity is Severity.ERROR for finding in findings):
            worst = max(worst, 1)
        if as_json:
            shown = [_finding(text, finding) for finding in findings]
            _echo_json({"expr": text, "compile": "ok", "findings": shown})
        else:
            click.echo(f"{label}{text}" + ("" if findings else click.style("  ok", fg="green")))
            print_findings(text, findings)
    context.exit(worst)


def _texts(expressions: tuple[str, ...], blanks_count: bool) -> Iterator[tuple[str, str]]:
    """(label, expression): those of a file are labelled with their line."""
    for expression in expressions:
        if expression != "-":
            yield "", expression
            continue
        for number, line in enumerate(sys.stdin.buffer, 1):
            text = line.decode("utf-8", "replace").rstrip("\r\n")
            if text if blanks_count else text.strip():
                yield f"{number}: ", text


def print_findings(text: str, findings: "list[Finding]", blank: bool = False) -> None:
    for finding in findings:
        if blank:
            click.echo()
            blank = False
        word = click.style(finding.severity.value, fg=_SEVERITIES[finding.severity.value])
        where = place(text, finding.start)
        click.echo(f"  {word} at {where}: {finding.message} [{finding.rule}]")
        better = finding.rewritten(text)
        if better is not None:
            click.echo(f"    write: {click.style(better.strip(), bold=True)}")


def _finding(text: str, finding: "Finding") -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "severity": finding.severity.value,
        "message": finding.message,
        "start": finding.start,
        "end": finding.end,
        "suggestion": finding.rewritten(text),
    }


def _where(error: Any) -> dict[str, Any]:
    return {
        "position": error.position,
        "line": error.line,
        "column": error.column,
        "message": error.reason,
        "hint": error.hint,
    }


def _echo_json(value: dict[str, Any]) -> None:
    click.echo(json.dumps(value, allow_nan=False))


filter_group.command("backtest", cls=_TakesExpressions)(backtest)


@filter_group.command("eval")
@click.option(
    "--engine",
    type=click.Choice(["closures", "columnar", "catalyst"]),
    default="closures",
    show_default=True,
    help="Message by message, compiled and a batch at a time, or in Spark.",
)
@_dialect
@click.pass_context
def evaluate(context: click.Context, engine: str, dialect: str) -> None:
    """Evaluate JSON lines {"id","expr","props"} from standard input.

    Gives, in the same order, {"id","compile","result","matched"}. A malformed line is reported on
    standard error and has no answer; the exit code is then 1.
    """
    from . import evaluation

    if engine == "catalyst":
        _need_pyspark()
    run = {
        "closures": evaluation.with_closures,
        "columnar": evaluation.with_columns,
        "catalyst": evaluation.with_catalyst,
    }[engine]
    malformed = 0

    def report(number: int, reason: str) -> None:
        nonlocal malformed
        malformed += 1
        click.echo(f"tamis filter eval: line {number}: {reason}", err=True)

    out: TextIO = sys.stdout
    for line in run(evaluation.cases(sys.stdin.buffer, report), Dialect(dialect)):
        out.write(line)
    out.flush()
    context.exit(1 if malformed else 0)


def _need_pyspark() -> None:
    from importlib.util import find_spec

    if find_spec("pyspark") is None:
        raise click.UsageError("the catalyst engine needs PySpark: pip install 'tamis[spark]'")
