"""Checks of filters themselves: what they say of messages, what lint says of them, filters that
nobody uses, and tags that a broker can't tell apart."""

from collections.abc import Iterator
from typing import Any, Final

from ..client.received import RETRY_PREFIX
from ..errors import InvalidFilter
from ..fate import Filter
from ..filter import Dialect
from ..filter import lint as linting
from ..filter.logic import Outcome
from ..filter.tags import parse_tags, tags_code
from .facts import ClusterFacts, Group, SampledMessage, VerdictRow
from .findings import Finding, Severity, command_line

__all__ = ["collisions", "dead_filters", "failing_filters", "idle_filters", "lint"]

_ENOUGH: Final = 100  # messages a filter was asked about, before it is blamed for matching none
_ENOUGH_SAMPLED: Final = 20
_SHOWN: Final = 10  # entries of a list in the evidence
_SEVERITIES: Final = {
    linting.Severity.ERROR: Severity.SERIOUS,
    linting.Severity.WARNING: Severity.WARNING,
    linting.Severity.NOTE: Severity.INFO,
}


def _live(facts: ClusterFacts) -> Iterator[tuple[Group, str, Filter]]:
    """Groups, topics and the filters that are in use there, other than `*`."""
    for group in facts.groups.values():
        for topic in sorted(group.topics()):
            for by in sorted(group.filters(topic), key=str):
                if not by.matches_all:
                    yield group, topic, by


# What they say of messages.


def idle_filters(facts: ClusterFacts) -> Iterator[Finding]:
    """Filters that matched nothing lately: a tag or a property that nobody sends."""
    for group, topic, by in _live(facts):
        rows = _rows(facts, group.name, topic)
        counts = _recent(facts, group, topic, rows)
        if counts is not None:
            evaluated, matched, since = counts
            if matched or evaluated < _ENOUGH:
                continue
            severity, of = Severity.WARNING, f"{evaluated:,} messages"
            evidence: dict[str, Any] = {"evaluated": evaluated, "since": since}
        else:
            outcomes = _outcomes(facts, topic, by)
            if len(outcomes) < _ENOUGH_SAMPLED or Outcome.TRUE in outcomes:
                continue
            severity, of = Severity.INFO, f"the newest {len(outcomes)} messages"
            evidence = {"sampled": len(outcomes)}
        evidence |= {"filter": str(by), "tags_sampled": _tags_of(facts.samples.get(topic, []))}
        yield Finding(
            check="idle-filters",
            severity=severity,
            group=group.name,
            topic=topic,
            message=f"group {group.name} on {topic}: {by} matched none of {of}",
            evidence=evidence,
            command=_backtest(facts, topic, by),
            advice="compare its tags or properties with those that are sent",
        )


def _rows(facts: ClusterFacts, group: str, topic: str) -> list[VerdictRow]:
    return [one for one in facts.verdicts if (one.group, one.topic) == (group, topic)]


def _recent(
    facts: ClusterFacts, group: Group, topic: str, rows: list[VerdictRow]
) -> tuple[int, int, int] | None:
    """Evaluated, matched, since when; None if the counts are not those of the filter as it is, or
    of too few messages to tell."""
    evaluated = sum(one.recent_evaluated for one in rows)
    since = min((one.recent_since for one in rows if one.recent_evaluated), default=facts.now)
    is_changed = any(one.born is not None and one.born > since for one in rows)
    if is_changed or evaluated < _ENOUGH or len(group.filters(topic)) > 1:
        return None
    return evaluated, sum(one.recent_matched for one in rows), since


def _outcomes(facts: ClusterFacts, topic: str, by: Filter) -> list[Outcome]:
    """What a filter says of the newest messages; nothing for code, which is not run here."""
    outcomes = (by.wants(one.properties, {}) for one in facts.samples.get(topic, ()))
    return [one for one in outcomes if one is not None]


def _tags_of(messages: list[SampledMessage]) -> list[str]:
    return sorted({one.properties.get("TAGS", "") for one in messages} - {""})[:_SHOWN]


def _backtest(facts: ClusterFacts, topic: str, by: Filter) -> str:
    if by.kind == "CODE":
        return command_line(facts.nameserver, "consume", topic, "--from", "first", "--count", 10)
    option = "--sql" if by.kind == "SQL92" else "--tags"
    words = ["consume", topic, option, by.text, "--from", "first", "--count", 10]
    return command_line(facts.nameserver, *words)


def failing_filters(facts: ClusterFacts) -> Iterator[Finding]:
    """Filters that fail on some messages, which are then not delivered, and filters that don't
    compile at all."""
    for row in facts.verdicts:
        if row.fault is not None:
            yield Finding(
                check="failing-filters",
                severity=Severity.SERIOUS,
                group=row.group,
                topic=row.topic,
                broker=row.broker,
                message=f"group {row.group} on {row.topic}: its filter is not used: {row.fault}",
                evidence={"fault": row.fault},
                command=command_line(facts.nameserver, "groups", "show", row.group),
                advice="members are given nothing until they subscribe by a filter that compiles",
            )
        if row.failed:
            yield _failing(facts, row)
    counted = {(one.group, one.topic) for one in facts.verdicts if one.failed}
    for group, topic, by in _live(facts):
        if by.kind == "SQL92" and (group.name, topic) not in counted:
            finding = _failing_on_sample(facts, group.name, topic, by)
            if finding is not None:
                yield finding


def _failing(facts: ClusterFacts, row: VerdictRow) -> Finding:
    is_recent = bool(row.recent_failed)
    failed = row.recent_failed if is_recent else row.failed
    when = "lately" if is_recent else "since the broker started, none of them lately"
    by = f" ({row.expression})" if row.expression else ""
    queue_id, offset = row.samples[-1] if row.samples else (None, None)
    words: list[object] = ["groups", "show", row.group]
    if offset is not None:
        place = ["--topic", row.topic, "--queue", queue_id, "--offset", offset]
        words = ["explain", *place, "--group", row.group]
    return Finding(
        check="failing-filters",
        severity=Severity.SERIOUS if is_recent else Severity.WARNING,
        group=row.group,
        topic=row.topic,
        broker=row.broker,
        queue=queue_id,
        message=f"group {row.group} on {row.topic}: its filter{by} failed on {failed:,} messages "
        f"{when}, which were not delivered",
        evidence={
            "failed_recently": row.recent_failed,
            "recent_since": row.recent_since,
            "failed": row.failed,
            "evaluated": row.evaluated,
            "since": row.since,
            "latest": [{"queue": queue, "offset": at} for queue, at in row.samples],
        },
        command=command_line(facts.nameserver, *words),
        advice="exclude first what can't be compared, as in: a <> 'none' AND a > 5",
    )


def _failing_on_sample(facts: ClusterFacts, group: str, topic: str, by: Filter) -> Finding | None:
    messages = facts.samples.get(topic, [])
    failed = [one for one in messages if by.wants(one.properties, {}) is Outcome.ERROR]
    if not failed:
        return None
    newest = max(failed, key=lambda one: one.stored)
    queue = newest.queue
    place = ["--topic", topic, "--queue", queue.queue_id, "--offset", newest.offset]
    return Finding(
        check="failing-filters",
        severity=Severity.SERIOUS,
        group=group,
        topic=topic,
        broker=queue.broker_name,
        queue=queue.queue_id,
        message=f"group {group} on {topic}: {by} fails on {len(failed)} of the newest "
        f"{len(messages)} messages, which are not delivered",
        evidence={
            "failed": len(failed),
            "sampled": len(messages),
            "latest": [
                {"broker": q.broker_name, "queue": q.queue_id, "offset": one.offset}
                for one in failed[-_SHOWN:]
                for q in [one.queue]
            ],
        },
        command=command_line(facts.nameserver, "explain", *place, "--group", group),
        advice="exclude first what can't be compared, as in: a <> 'none' AND a > 5",
    )


def dead_filters(facts: ClusterFacts) -> Iterator[Finding]:
    """Filters that a broker keeps, and tries on every message, for groups that are gone or no
    longer subscribe."""
    for row in facts.verdicts:
        group = facts.groups.get(row.group)
        is_live = group is not None and row.topic in group.topics()
        if row.dead_since is None or is_live:
            continue
        is_gone = group is None or not group.is_online
        yield Finding(
            check="dead-filters",
            severity=Severity.INFO,
            group=row.group,
            topic=row.topic,
            broker=row.broker,
            message=f"broker {row.broker} keeps the filter of group {row.group} on {row.topic}, "
            + ("which has no member" if is_gone else "which it no longer subscribes to"),
            evidence={"expression": row.expression, "dead_since": row.dead_since},
            command=command_line(facts.nameserver, "groups", "delete", row.group)
            if is_gone
            else None,
            mends=is_gone,
            advice="the broker drops it by itself after filter_keep_seconds, a day by default",
        )


def lint(facts: ClusterFacts) -> Iterator[Finding]:
    """What `tamis filter lint` says of all expressions in use."""
    for group, topic, by in _live(facts):
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
    for group, topic, by in _live(facts):
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
