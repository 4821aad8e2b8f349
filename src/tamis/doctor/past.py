"""The check of history: times in which members of a group subscribed differently, what was passed
meanwhile, and what of the newest messages was lost."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from ..client.received import RETRY_PREFIX
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
from .facts import ClusterFacts, HistoryOfBroker, canonical
from .findings import Finding, Severity, command_line

__all__ = ["past_inconsistencies"]

_RECENT: Final = 86_400_000  # milliseconds: what happened since is serious, if messages were passed
_SHOWN: Final = 10  # entries of a list in the evidence


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
            **({"judged": judged, "lost_of_judged": len(lost)} if judged else {}),
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
    """Return the changes of subscriptions since members began to differ."""
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
