"""Checks of what the members of a group subscribe to: do they agree now, did they before, and do
brokers filter by what members say."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from ..client.received import RETRY_PREFIX, retry_topic
from ..fate import (
    Fate,
    Filter,
    GroupFacts,
    GroupHistory,
    MessageFacts,
    Span,
    View,
    judge,
)
from ..wire.bodies import Subscription
from .facts import ClusterFacts, Group, HistoryOfBroker, canonical, filter_of
from .findings import Finding, Severity, command_line
from .rules import are_served_apart, policy_of

__all__ = ["broker_filters", "inconsistent_subscriptions", "past_inconsistencies"]

_RECENT: Final = 86_400_000  # milliseconds: what happened since is serious, if messages were passed
_SHOWN: Final = 10  # entries of a list in the evidence

_Said = dict[str, list[str]]  # client ids by what they subscribe to, in words


def inconsistent_subscriptions(facts: ClusterFacts) -> Iterator[Finding]:
    """Members of one group whose subscriptions differ: RocketMQ's brokers keep one for all of
    them, the last they heard of, and messages that only another member wants are passed over."""
    for group in facts.groups.values():
        for topic in sorted(group.topics() - {retry_topic(group.name)}):
            said = _said(group, topic)
            if len(said) > 1:
                yield _inconsistency(facts, group, topic, said)


def _said(group: Group, topic: str) -> _Said:
    """What members that answered say. Where only some of them know the checksum of their code,
    only those are compared by it."""
    subscriptions = {
        member.client_id: member.subscriptions.get(topic)
        for member in group.members
        if member.subscriptions is not None
    }
    sums = {one.code_crc for one in subscriptions.values() if one is not None} - {None}
    made: _Said = {}
    for client_id, one in subscriptions.items():
        made.setdefault(_words(one, with_sum=len(sums) > 1), []).append(client_id)
    return made


def _words(one: Subscription | None, *, with_sum: bool = False) -> str:
    if one is None:
        return "no subscription"
    text = str(canonical(filter_of(one)))
    if one.class_filter_mode and with_sum and one.code_crc is not None:
        text += f" (CRC {one.code_crc:08x})"
    return text


def _inconsistency(facts: ClusterFacts, group: Group, topic: str, said: _Said) -> Finding:
    in_force = _in_force(group, topic)
    policy = policy_of(facts, group.name)
    count = sum(map(len, said.values()))
    who = "; ".join(f"{_some(ids)} {_has(ids)} {text}" for text, ids in sorted(said.items()))
    message = f"{count} members of group {group.name} subscribe differently to {topic}: {who}"
    evidence: dict[str, Any] = {
        "members": {text: ids[:_SHOWN] for text, ids in sorted(said.items())},
        "brokers_filter_by": in_force,
    }
    if policy is not None:
        evidence["policy"] = policy
    advice = "give all members the same subscription, or those that differ a group of their own"
    reason = are_served_apart(facts, group.name, topic)
    if reason is not None:
        return Finding(
            check="inconsistent-subscriptions",
            severity=Severity.INFO,
            group=group.name,
            topic=topic,
            message=f"{message}; {reason}",
            evidence=evidence,
            command=command_line(facts.nameserver, "groups", "show", group.name),
            advice=advice,
        )
    words = ["groups", "show", group.name]
    if policy is not None:  # brokers of ours, which can do better
        words = ["groups", "policy", group.name, "isolate"]
    return Finding(
        check="inconsistent-subscriptions",
        severity=Severity.SERIOUS,
        group=group.name,
        topic=topic,
        message=f"{message}; messages that only some of them want are lost",
        evidence=evidence,
        command=command_line(facts.nameserver, *words),
        mends=policy is not None,
        advice=advice,
    )


def _some(client_ids: list[str]) -> str:
    shown = ", ".join(client_ids[:3])
    return shown if len(client_ids) <= 3 else f"{shown} and {len(client_ids) - 3} more"


def _has(client_ids: list[str]) -> str:
    return "has" if len(client_ids) == 1 else "have"


def _in_force(group: Group, topic: str) -> dict[str, str]:
    return {
        broker: _words(one.subscriptions.get(topic))
        for broker, one in sorted(group.connected.items())
    }


def broker_filters(facts: ClusterFacts) -> Iterator[Finding]:
    """Members that agree, and a broker that filters by something else: it has not heard of the
    change, or members are told of only at other brokers."""
    for group in facts.groups.values():
        for topic in sorted(group.topics() - {retry_topic(group.name)}):
            said = _said(group, topic)
            in_force = _in_force(group, topic)
            if len(said) > 1 or are_served_apart(facts, group.name, topic) is not None:
                continue  # told of already, or the broker does not filter by what it tells
            texts = {*said, *in_force.values()}
            if len(texts) < 2:
                continue
            members = next(iter(said), None)
            where = {name: text for name, text in in_force.items() if text != members}
            shown = "; ".join(f"{name} by {text}" for name, text in where.items())
            told = f"its members have {members}" if members is not None else "brokers differ"
            yield Finding(
                check="broker-filters",
                severity=Severity.SERIOUS,
                group=group.name,
                topic=topic,
                broker=next(iter(where)) if len(where) == 1 else None,
                message=f"group {group.name} on {topic}: {told}, but messages are filtered {shown}",
                evidence={"members": members, "brokers_filter_by": in_force},
                command=command_line(facts.nameserver, "groups", "show", group.name),
                advice="members say it again within 30 s; if this stays, restart them",
            )


def past_inconsistencies(facts: ClusterFacts) -> Iterator[Finding]:
    """Times in which a group's members had different filters, and what was passed meanwhile."""
    for one in facts.histories:
        if not one.history.topic.startswith(RETRY_PREFIX):
            finding = _past(facts, one)
            if finding is not None:
                yield finding


def _past(facts: ClusterFacts, known: HistoryOfBroker) -> Finding | None:
    history = known.history
    numbers = sorted(history.views)
    differing = {n for n in numbers if _differs(history.views[n])}
    if not differing:
        return None
    passed = _passed(facts, known, differing)
    count = sum(end - start for _, start, end in passed)
    began = history.views[min(differing)].since
    later = [history.views[n].since for n in numbers if n > max(differing)]
    until = min(later, default=None)
    is_recent = until is None or until >= facts.now - _RECENT
    severity = Severity.INFO
    if count:
        severity = Severity.SERIOUS if is_recent else Severity.WARNING
    times = f"from {_time(began)} " + (f"to {_time(until)}" if until is not None else "until now")
    group, topic = history.group, history.topic
    what = f"{count:,} messages were passed meanwhile" if count else "nothing was read meanwhile"
    lost, judged = _lost(facts, known)
    if lost:
        what += f", and of the newest {judged:,} of {topic} {len(lost):,} are lost"
    words: list[object] = ["groups", "show", group]
    if passed:
        queue_id, offset = lost[-1] if lost else passed[0][:2]
        place = ["--topic", topic, "--queue", queue_id, "--offset", offset]
        words = ["explain", *place, "--group", group]
    advice = None
    if count:
        advice = (
            'a pipeline with job = "audit" lists the messages that were lost, and job = "replay" '
            "sends them again"
        )
    return Finding(
        check="past-inconsistencies",
        severity=severity,
        group=group,
        topic=topic,
        broker=known.broker,
        message=f"members of group {group} subscribed differently to {topic} {times}; {what}",
        evidence={
            "since": began,
            "until": until,
            "views": _views(history, differing),
            "passed": [
                {"queue": queue_id, "from": start, "to": end}
                for queue_id, start, end in passed[:_SHOWN]
            ],
            "messages_passed": count,
            "judged": judged,
            "lost_of_judged": len(lost),
            "lost": [{"queue": queue_id, "offset": at} for queue_id, at in lost[:_SHOWN]],
            "changes": _changes(history, began),
        },
        command=command_line(facts.nameserver, *words),
        advice=advice,
    )


def _differs(view: View) -> bool:
    return len({canonical(by) for by in view.filters}) > 1


def _passed(
    facts: ClusterFacts, known: HistoryOfBroker, views: set[int]
) -> list[tuple[int, int, int]]:
    """Queue, first offset and the one after the last: acknowledged while members differed, by
    members that were not served by their own, and still in the log."""
    ranges: list[tuple[int, int, int]] = []
    firsts = {
        queue.queue_id: ends.first
        for queue, ends in _queues(facts, known.history.topic)
        if queue.broker_name == known.broker
    }
    for queue_id, spans in sorted(known.history.queues.items()):
        for span in spans:
            if span.view in views and not span.lane:
                start = max(span.start, firsts.get(queue_id, 0))
                end = _passed_to(span)
                if start < end:
                    ranges.append((queue_id, start, end))
    return _merged(ranges)


def _lost(facts: ClusterFacts, known: HistoryOfBroker) -> tuple[list[tuple[int, int]], int]:
    """Queues and offsets of sampled messages that were lost, and how many were judged."""
    history, lost, judged = known.history, [], 0
    group = facts.groups.get(history.group)
    if group is None:
        return [], 0
    for one in facts.samples.get(history.topic, ()):
        queue_id, ends = one.queue.queue_id, facts.ends(one.queue)
        if one.queue.broker_name != known.broker or ends is None:
            continue
        message = MessageFacts(
            topic=history.topic,
            queue_id=queue_id,
            offset=one.offset,
            properties=one.properties,
            stored=one.stored,
        )
        about = GroupFacts(
            group=history.group,
            online=group.is_online,
            committed=group.committed.get(one.queue),
            first_offset=ends.first,
            end_offset=ends.end,
            readings=history.readings(queue_id, one.offset),
            moves=history.moves_of(queue_id),
            first_read=history.first_read(queue_id),
            complete_since=history.since,
            unsaved_from=history.unsaved_from(queue_id, one.offset),
        )
        judged += 1
        if judge(message, about).fate is Fate.LOST_TO_INCONSISTENCY:
            lost.append((queue_id, one.offset))
    return lost, judged


def _queues(facts: ClusterFacts, topic: str) -> list[Any]:
    known = facts.topics.get(topic)
    return [] if known is None else list(known.queues.items())


def _passed_to(span: Span) -> int:
    return min(span.end, max(span.acked, span.start))


def _merged(ranges: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """A message that was read twice counts once."""
    made: list[tuple[int, int, int]] = []
    for queue_id, start, end in sorted(ranges):
        if made and made[-1][0] == queue_id and start <= made[-1][2]:
            made[-1] = (queue_id, made[-1][1], max(end, made[-1][2]))
        else:
            made.append((queue_id, start, end))
    return made


def _views(history: GroupHistory, numbers: set[int]) -> list[dict[str, Any]]:
    return [
        {
            "since": history.views[number].since,
            "filters": {str(by): list(ids) for by, ids in history.views[number].filters.items()},
        }
        for number in sorted(numbers)[:_SHOWN]
    ]


def _changes(history: GroupHistory, since: int) -> list[dict[str, Any]]:
    """Of subscriptions, from the moment on that members began to differ."""
    made = [
        {
            "time": one.time,
            "member": one.member,
            "before": _text(one.before),
            "after": _text(one.after),
        }
        for one in history.changes
        if one.time >= since
    ]
    return made[:_SHOWN]


def _text(by: Filter | None) -> str | None:
    return None if by is None else str(by)


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000).isoformat(" ", "seconds")
