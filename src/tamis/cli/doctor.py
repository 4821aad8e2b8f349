"""`tamis doctor`: what is wrong in a cluster, how bad it is, and what mends it."""

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from .connecting import Cluster, cluster_options
from .options import echo_json, json_option, run

if TYPE_CHECKING:
    from ..doctor import ClusterFacts, Finding, Unchecked

__all__ = ["doctor"]

_COLOURS: Final = {"serious": "red", "warning": "yellow", "info": "cyan"}
_MOST_LINES: Final = 4  # of one kind of evidence; --json has more
_TIMES: Final = frozenset(["since", "until", "time", "newest", "recent_since", "dead_since"])


@click.command()
@click.option("--group", metavar="NAME", help="Examine this consumer group only.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Stop asking servers after so long; what was not asked is listed.",
)
@cluster_options
@json_option
def doctor(group: str | None, timeout: float, target: Cluster, as_json: bool) -> None:
    """Examine a cluster, Tamis's or Apache RocketMQ's, and print what is wrong in it.

    Each finding has its evidence, how bad it is (serious, warning or info), and the command that
    mends it. Nothing is changed. Exit code 0: nothing serious, 1: something is, or the name server
    can't be reached.
    """
    from ..client import ClientConfig
    from ..doctor import Severity, examine, gather

    config = target.config(ClientConfig, timeout=5.0)
    facts = run(gather(target.nameserver, group=group, timeout=timeout, config=config))
    findings = examine(facts)
    if as_json:
        _print_json(findings, facts.unchecked)
    else:
        _print(facts, findings)
    if any(one.severity is Severity.SERIOUS for one in findings):
        raise click.exceptions.Exit(1)


def _print_json(findings: "list[Finding]", unchecked: "list[Unchecked]") -> None:
    """What was not checked has the same fields, with the severity `unchecked`."""
    for one in findings:
        echo_json(one.to_json())
    nothing = dict.fromkeys(("group", "topic", "broker", "queue", "command", "mends", "advice"))
    for left in unchecked:
        echo_json(
            {
                "check": "not-checked",
                "severity": "unchecked",
                "message": f"{left.what}: {left.reason}",
                "evidence": {"what": left.what, "reason": left.reason, "where": list(left.where)},
                **nothing,
            }
        )


def _print(facts: "ClusterFacts", findings: "list[Finding]") -> None:
    severity = None
    for one in findings:
        if one.severity is not severity:
            severity = one.severity
            click.secho(severity.value.upper(), fg=_COLOURS[severity], bold=True)
        click.echo(f"  {click.style(one.check, fg=_COLOURS[one.severity])}: {one.message}")
        for name, value in one.evidence.items():
            for line in _lines(name, value):
                click.echo(f"      {line}")
        if one.advice is not None:
            click.echo(f"      to do: {one.advice}")
        if one.command is not None:
            label = "fix" if one.mends else "see"
            click.echo(f"      {label}: {click.style(one.command, bold=True)}")
        click.echo()
    for left in facts.unchecked:
        where = ", ".join(left.where[:5]) + (", ..." if len(left.where) > 5 else "")
        click.echo(f"not checked: {left.what} ({where}): {left.reason}")
    click.echo(_summary(facts, findings))


def _summary(facts: "ClusterFacts", findings: "list[Finding]") -> str:
    looked_at = (
        f"{_count(len(facts.groups), 'group')}, {_count(len(facts.topics), 'topic')}, "
        f"{_count(len(facts.brokers), 'broker')}"
    )
    if not findings:
        return f"nothing found ({looked_at})"
    counts = {
        name: sum(1 for one in findings if one.severity == name)
        for name in ("serious", "warning", "info")
    }
    found = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    return f"{_count(len(findings), 'finding')}: {found} ({looked_at})"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _lines(name: str, value: Any) -> list[str]:
    """A piece of evidence, for people."""
    label = name.replace("_", " ")
    if value is None or value == [] or value == {}:
        return []
    if isinstance(value, list) and isinstance(value[0], dict):
        lines = [f"{label}: {_text(name, one)}" for one in value[:_MOST_LINES]]
        more = len(value) - _MOST_LINES
        return [*lines, f"{label}: and {more} more"] if more > 0 else lines
    return [f"{label}: {_text(name, value)}"]


def _text(name: str, value: Any) -> str:
    if isinstance(value, dict):
        known = {key: one for key, one in value.items() if one is not None}
        return ", ".join(f"{key} {_text(key, one)}" for key, one in known.items())
    if isinstance(value, list | tuple):
        return ", ".join(_text(name, one) for one in value)
    if name in _TIMES and isinstance(value, int):
        return datetime.fromtimestamp(value / 1000).isoformat(" ", "seconds")
    return f"{value:,}" if isinstance(value, int) and name != "hash" else str(value)
