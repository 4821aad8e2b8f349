"""Checks of the expressions that are in use: what lint says of them, and tags that a broker can't
tell apart."""

from collections.abc import Iterator
from typing import Final

from ..client.received import RETRY_PREFIX
from ..errors import InvalidFilter
from ..fate import Filter
from ..filter import Dialect
from ..filter import lint as linting
from ..filter.tags import parse_tags, tags_code
from .facts import ClusterFacts
from .findings import Finding, Severity, command_line

__all__ = ["collisions", "lint"]

_SHOWN: Final = 10  # entries of a list in the evidence
_SEVERITIES: Final = {
    linting.Severity.ERROR: Severity.SERIOUS,
    linting.Severity.WARNING: Severity.WARNING,
    linting.Severity.NOTE: Severity.INFO,
}


def lint(facts: ClusterFacts) -> Iterator[Finding]:
    """What `tamis filter lint` says of all expressions in use."""
    for group, topic, by in facts.live_filters():
        if by.kind == "CODE" or topic.startswith(RETRY_PREFIX):
            continue
        arguments = ["--tags", by.text] if by.kind == "TAG" else [by.text]
        command = command_line(None, "filter", "lint", *arguments)
        try:
            found = _lint(by)
        except InvalidFilter as error:
            yield Finding(
                check="lint",
                severity=Severity.SERIOUS,
                group=group.name,
                topic=topic,
                message=f"group {group.name} on {topic}: {by} does not compile: {error.reason}",
                evidence={"filter": by.text, "position": error.position},
                command=command,
            )
            continue
        if not found:
            continue
        worst = min(found, key=lambda one: list(_SEVERITIES).index(one.severity))
        rewritten = next((text for one in found if (text := one.rewritten(by.text))), None)
        yield Finding(
            check="lint",
            severity=_SEVERITIES[worst.severity],
            group=group.name,
            topic=topic,
            message=f"group {group.name} on {topic}: {by}: {worst.message}",
            evidence={
                "filter": by.text,
                "rules": [f"{one.rule} ({one.severity})" for one in found[:_SHOWN]],
                "also": [one.message for one in found[:_SHOWN] if one is not worst],
            },
            command=command,
            advice=f"subscribe by {rewritten!r}" if rewritten is not None else None,
        )


def _lint(by: Filter) -> list[linting.Finding]:
    """Raises InvalidFilter."""
    if by.kind == "TAG":
        found = linting.lint_tags(by.text)
        return [one for one in found if one.rule != "tag-collision"]  # a check of its own
    try:
        return linting.lint(by.text)
    except InvalidFilter:
        return linting.lint(by.text, Dialect.V5_1_3)


# Tags that look the same to a broker.


def collisions(facts: ClusterFacts) -> Iterator[Finding]:
    """Different tags with one hash, of which a group subscribes to some: brokers look at hashes
    only, and give it the others too."""
    by_topic: dict[str, dict[str, set[str]]] = {}  # groups by tag
    for group, topic, by in facts.live_filters():
        if by.kind == "TAG":
            for tag in _tags(by):
                by_topic.setdefault(topic, {}).setdefault(tag, set()).add(group.name)
    for topic, wanted in sorted(by_topic.items()):
        sent: dict[str, int] = {}
        for one in facts.samples.get(topic, ()):
            tag = one.properties.get("TAGS", "")
            sent[tag] = sent.get(tag, 0) + 1
        by_code: dict[int, set[str]] = {}
        for tag in {*wanted, *sent}:
            by_code.setdefault(tags_code(tag), set()).add(tag)
        for code, tags in sorted(by_code.items()):
            for group_name in sorted({name for tag in tags for name in wanted.get(tag, ())}):
                own = {tag for tag in tags if group_name in wanted.get(tag, ())}
                if tags - own:
                    yield _collision(facts, group_name, topic, code, own, tags - own, sent)


def _tags(by: Filter) -> frozenset[str]:
    try:
        return parse_tags(by.text).tags
    except InvalidFilter:
        return frozenset()


def _collision(
    facts: ClusterFacts,
    group: str,
    topic: str,
    code: int,
    own: set[str],
    others: set[str],
    sent: dict[str, int],
) -> Finding:
    def shown(tags: set[str]) -> str:
        return " and ".join(repr(tag) if tag else "no tag" for tag in sorted(tags))

    is_sent = any(tag in sent for tag in others)
    what = f"{shown(others)}, which is sent there" if is_sent else f"{shown(others)}"
    return Finding(
        check="tag-collisions",
        severity=Severity.WARNING if is_sent else Severity.INFO,
        group=group,
        topic=topic,
        message=f"group {group} on {topic}: its tag {shown(own)} has the same hash as {what}; "
        "brokers send it both, and clients must drop what they did not ask for",
        evidence={
            "hash": code,
            "subscribed": sorted(own),
            "others": sorted(others),
            "messages_sampled": {tag: sent.get(tag, 0) for tag in sorted(own | others)},
        },
        command=command_line(facts.nameserver, "groups", "show", group),
        advice="rename a tag; a client without a second look at tags would take them for its own",
    )
