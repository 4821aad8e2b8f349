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
from .facts import ClusterFacts, HistoryOfBroker, SampledMessage, canonical
from .findings import Finding, Severity, command_line

__all__ = ["differing_views", "lost_by_history", "past_inconsistencies"]

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
    differing = differing_views(history)
    if not differing:
        return None
    passed = _passed(facts, known, differing)
    count = sum(end - start for _, start, end in passed)
    began = history.views[min(differing)].since
    later = [history.views[n].since for n in numbers if n > max(differing)]
    until = min(later, default=None)
    is_recent = until is None or until >= facts.now - _RECENT
    lost, again, judged = _lost(facts, known, passed)
    severity = Severity.INFO
    if lost or judged < count:  # of what was not judged it is not known
        severity = Severity.SERIOUS if is_recent and (lost or not judged) else Severity.WARNING
    times = f"from {_time(began)} " + (f"to {_time(until)}" if until is not None else "until now")
    group, topic = history.group, history.topic
    what = f"{count:,} messages were passed meanwhile"
    if not count:
        what = _what_was_read(history, differing)
    if lost:
        what += f", and of the newest {judged:,} of them {len(lost):,} are lost"
    elif judged:
        what += f", and of the newest {judged:,} of them none is lost"
    if again:
        what += f" ({again:,} that were lost were sent to the group again)"
    words: list[object] = ["groups", "show", group]
    if passed or lost:
        queue_id, offset = lost[-1] if lost else passed[0][:2]
        place = ["--topic", topic, "--queue", queue_id, "--offset", offset]
        words = ["explain", *place, "--group", group]
    advice = None
    if lost or judged < count:
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
            **({"sent_again": again} if again else {}),
            "lost": [{"queue": queue_id, "offset": at} for queue_id, at in lost[:_SHOWN]],
            "changes": _changes(history, began),
        },
        command=command_line(facts.nameserver, *words),
        advice=advice,
    )


def differing_views(history: GroupHistory) -> set[int]:
    """Return the numbers of the views in which members had different filters."""
    return {number for number, view in history.views.items() if _differs(view)}


def _what_was_read(history: GroupHistory, views: set[int]) -> str:
    """What to say if nothing was passed by members that were not served by their own."""
    spans = [span for spans in history.queues.values() for span in spans if span.view in views]
    if history.is_broadcasting and spans:
        return "it broadcasts, so only members know what they have read"
    if any(span.lane and span.start < span.end for span in spans):
        return "each was served by its own subscription"
    return "nothing was read meanwhile"


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


def _lost(
    facts: ClusterFacts, known: HistoryOfBroker, passed: list[tuple[int, int, int]]
) -> tuple[list[tuple[int, int]], int, int]:
    """Queues and offsets of sampled messages that were lost; how many were lost and then sent
    again; how many of those that were passed were judged."""
    lost, again, judged = [], 0, 0
    for one, is_lost in _judged(facts, known):
        queue_id = one.queue.queue_id
        is_passed = any(q == queue_id and start <= one.offset < end for q, start, end in passed)
        if not is_passed and not is_lost:  # a lane that was given up loses what it did not pass
            continue
        judged += 1
        said = facts.fates.get((known.history.group, one.queue, one.offset), "")
        if is_lost and said in ("", Fate.LOST_TO_INCONSISTENCY):
            lost.append((queue_id, one.offset))
        elif is_lost:
            again += 1
    return lost, again, judged


def lost_by_history(facts: ClusterFacts, known: HistoryOfBroker) -> list[SampledMessage]:
    """Return the sampled messages that a group lost, if none was sent to it again since."""
    if not differing_views(known.history):
        return []
    return [one for one, is_lost in _judged(facts, known) if is_lost]


def _judged(facts: ClusterFacts, known: HistoryOfBroker) -> Iterator[tuple[SampledMessage, bool]]:
    """Yield sampled messages of the group's topic at this broker, and whether they were lost."""
    history = known.history
    group = facts.groups.get(history.group)
    if group is None:
        return
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
        yield one, judge(message, about).fate is Fate.LOST_TO_INCONSISTENCY


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
