"""Checks of what filters say of messages: those that match nothing, fail, or that nobody uses."""

from collections.abc import Iterator
from typing import Any, Final

from ..fate import Filter
from ..filter.logic import Outcome
from .facts import ClusterFacts, Group, SampledMessage, VerdictRow
from .findings import Finding, Severity, command_line

__all__ = ["dead_filters", "failing_filters", "idle_filters"]

_ENOUGH: Final = 100  # messages a filter was asked about, before it is blamed for matching none
_ENOUGH_SAMPLED: Final = 20
_SHOWN: Final = 10  # entries of a list in the evidence


def idle_filters(facts: ClusterFacts) -> Iterator[Finding]:
    """Filters that matched nothing lately: a tag or a property that nobody sends."""
    for group, topic, by in facts.live_filters():
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
    for group, topic, by in facts.live_filters():
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
