"""Checks of how far groups are: backlogs that nobody reads, offsets that can't be right, retries
and dead letters."""

from collections.abc import Iterator
from typing import Any, Final

from ..client.received import RETRY_PREFIX, dead_letter_topic, retry_topic
from ..wire.bodies import MessageQueue
from .facts import ClusterFacts, Group, QueueEnds
from .findings import Finding, Severity, command_line

__all__ = [
    "dead_letters",
    "expired_messages",
    "lag_without_members",
    "offsets_beyond_the_log",
    "retries",
    "stale_offsets",
]

_MANY_RETRIES: Final = 100  # messages that wait to be given again, from which on it is a warning
_SHOWN: Final = 10  # queues in the evidence

_Queue = tuple[MessageQueue, int, QueueEnds]  # with the offset that is committed


def _by_topic(facts: ClusterFacts, group: Group) -> dict[str, list[_Queue]]:
    """The group's queues whose ends are known, but for its retries."""
    made: dict[str, list[_Queue]] = {}
    for queue, committed in sorted(group.committed.items()):
        ends = facts.ends(queue)
        if ends is not None and not queue.topic.startswith(RETRY_PREFIX):
            made.setdefault(queue.topic, []).append((queue, committed, ends))
    return made


def _shown(queues: list[_Queue]) -> list[dict[str, Any]]:
    return [
        {
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "committed": committed,
            "first": ends.first,
            "end": ends.end,
        }
        for queue, committed, ends in queues[:_SHOWN]
    ]


def lag_without_members(facts: ClusterFacts) -> Iterator[Finding]:
    """Messages that wait for a group that has no member."""
    for group in facts.groups.values():
        if group.is_online:
            continue
        for topic, queues in _by_topic(facts, group).items():
            waiting = [one for one in queues if one[1] < one[2].end]
            lag = sum(ends.end - max(committed, ends.first) for _, committed, ends in waiting)
            expired = sum(max(ends.first - committed, 0) for _, committed, ends in waiting)
            if lag or expired:
                yield _unread(facts, group, topic, waiting, lag, expired)


def _unread(
    facts: ClusterFacts, group: Group, topic: str, queues: list[_Queue], lag: int, expired: int
) -> Finding:
    matching = [facts.matching_lag.get((group.name, queue)) for queue, _, _ in queues]
    known = [one for one in matching if one is not None]
    evidence: dict[str, Any] = {"lag": lag, "expired": expired, "queues": _shown(queues)}
    matches = ""
    if len(known) == len(queues):
        evidence["matching_lag"] = sum(known)
        matches = f", {sum(known):,} of which its filter matches"
    gone = f"; {expired:,} more were deleted unread, for they were too old" if expired else ""
    return Finding(
        check="lag-without-members",
        severity=Severity.WARNING,
        group=group.name,
        topic=topic,
        message=f"group {group.name} has no member, and {lag:,} messages of {topic} wait for it"
        f"{matches}{gone}",
        evidence=evidence,
        command=command_line(facts.nameserver, "offsets", "show", group.name, "--topic", topic),
        advice=f"start its consumers; tamis groups delete {group.name}, if nobody needs it any "
        "more",
    )


def expired_messages(facts: ClusterFacts) -> Iterator[Finding]:
    """Messages that were deleted before a group with members got there."""
    for group in facts.groups.values():
        for topic, queues in _by_topic(facts, group).items() if group.is_online else ():
            late = [one for one in queues if one[1] < one[2].first]
            if not late or topic not in group.topics():
                continue
            count = sum(ends.first - committed for _, committed, ends in late)
            yield Finding(
                check="expired-messages",
                severity=Severity.SERIOUS,
                group=group.name,
                topic=topic,
                message=f"group {group.name} on {topic}: {count:,} messages were deleted before it "
                "read them, for they were too old",
                evidence={"expired": count, "queues": _shown(late)},
                command=command_line(
                    facts.nameserver, "offsets", "show", group.name, "--topic", topic
                ),
                advice="add members, or let the brokers keep messages longer (fileReservedTime)",
            )


def offsets_beyond_the_log(facts: ClusterFacts) -> Iterator[Finding]:
    """Offsets after the last message: what is stored until the queue gets there is not read."""
    for group in facts.groups.values():
        for topic, queues in _by_topic(facts, group).items():
            beyond = [one for one in queues if one[1] > one[2].end]
            if not beyond:
                continue
            count = sum(committed - ends.end for _, committed, ends in beyond)
            yield Finding(
                check="offsets-beyond-the-log",
                severity=Severity.SERIOUS,
                group=group.name,
                topic=topic,
                message=f"group {group.name} on {topic}: its offsets are beyond the end of "
                f"{len(beyond)} queue{'s' * (len(beyond) != 1)}; the next {count:,} messages there "
                "may be skipped",
                evidence={"queues": _shown(beyond)},
                command=command_line(
                    facts.nameserver,
                    "offsets",
                    "reset",
                    group.name,
                    "--topic",
                    topic,
                    "--to",
                    "last",
                ),
                mends=True,
                advice="this happens when a topic is deleted and made again, or a store is lost; "
                "reset to first instead if what is there now was not read",
            )


def stale_offsets(facts: ClusterFacts) -> Iterator[Finding]:
    """Offsets that nobody uses: of topics that are gone, or that a group with members no longer
    subscribes to."""
    for group in facts.groups.values():
        topics = {queue.topic for queue in group.committed} - {retry_topic(group.name)}
        for topic in sorted(topics):
            is_gone = facts.all_topics is not None and topic not in facts.all_topics
            is_left = group.is_online and topic not in group.topics() and not is_gone
            if not is_gone and not is_left:
                continue
            why = f"{topic} is no more" if is_gone else f"it does not subscribe to {topic} any more"
            yield Finding(
                check="stale-offsets",
                severity=Severity.INFO,
                group=group.name,
                topic=topic,
                message=f"group {group.name} has offsets of {topic}, though {why}",
                evidence={
                    "offsets": [
                        {"broker": q.broker_name, "queue": q.queue_id, "committed": committed}
                        for q, committed in sorted(group.committed.items())
                        if q.topic == topic
                    ][:_SHOWN]
                },
                command=command_line(facts.nameserver, "offsets", "show", group.name),
                advice="should the topic be made again, reset the group to first: it would begin "
                "where it was"
                if is_gone
                else "harmless; should it subscribe again, it goes on from there",
            )


def retries(facts: ClusterFacts) -> Iterator[Finding]:
    """Messages that members could not process, and that wait to be given to them again."""
    for group in facts.groups.values():
        topic = facts.topics.get(retry_topic(group.name))
        waiting = [
            (queue, group.committed.get(queue, ends.first), ends)
            for queue, ends in sorted(topic.queues.items() if topic is not None else ())
        ]
        waiting = [one for one in waiting if one[1] < one[2].end]
        count = sum(ends.end - max(committed, ends.first) for _, committed, ends in waiting)
        if not count:
            continue
        is_bad = count >= _MANY_RETRIES or not group.is_online
        yield Finding(
            check="retries",
            severity=Severity.WARNING if is_bad else Severity.INFO,
            group=group.name,
            topic=retry_topic(group.name),
            message=f"{count:,} message{'s' * (count != 1)} that group {group.name} could not "
            f"process {'wait' if count != 1 else 'waits'} to be given to it again",
            evidence={"waiting": count, "queues": _shown(waiting)},
            command=command_line(
                facts.nameserver,
                "consume",
                retry_topic(group.name),
                "--from",
                "first",
                "--count",
                10,
            ),
            advice="look at what its handler fails on: after the last attempt they become dead "
            "letters",
        )


def dead_letters(facts: ClusterFacts) -> Iterator[Finding]:
    """Messages that were given up, after as many attempts as the group allows."""
    for group in facts.groups.values():
        name = dead_letter_topic(group.name)
        topic = facts.topics.get(name)
        queues = sorted(topic.queues.items()) if topic is not None else []
        count = sum(ends.end - ends.first for _, ends in queues)
        if not count:
            continue
        newest = max((ends.last_stored or 0 for _, ends in queues), default=0)
        yield Finding(
            check="dead-letters",
            severity=Severity.WARNING,
            group=group.name,
            topic=name,
            message=f"group {group.name} has {count:,} dead letter{'s' * (count != 1)}: messages "
            "it failed to process as often as it may",
            evidence={
                "messages": count,
                "newest": newest or None,
                "queues": [
                    {
                        "broker": queue.broker_name,
                        "queue": queue.queue_id,
                        "first": ends.first,
                        "end": ends.end,
                    }
                    for queue, ends in queues
                ][:_SHOWN],
            },
            command=command_line(facts.nameserver, "consume", name, "--from", "first"),
            advice="mend what they failed on, then send them again to their own topic",
        )
