"""Checks of what the members of a group subscribe to: do they agree, and do brokers filter by what
members say."""

from collections.abc import Iterator
from typing import Any, Final

from ..client.received import retry_topic
from ..fate import (
    Filter,
)
from ..wire.bodies import Subscription
from .facts import ClusterFacts, Group, canonical, filter_of
from .findings import Finding, Severity, command_line
from .rules import are_served_apart, policy_of

__all__ = ["broker_filters", "inconsistent_subscriptions"]

_SHOWN: Final = 10  # entries of a list in the evidence

_Said = dict[str, list[str]]  # client ids by what they subscribe to, in words


def inconsistent_subscriptions(facts: ClusterFacts) -> Iterator[Finding]:
    """Members of one group whose subscriptions differ: RocketMQ's brokers keep one for all of
    them, the last they heard of, and messages that only another member wants are passed over."""
    for group in facts.groups.values():
        for topic in sorted(group.topics() - {retry_topic(group.name)}):
            said = _said(facts, group, topic)
            if len(said) > 1:
                yield _inconsistency(facts, group, topic, said)


def _said(facts: ClusterFacts, group: Group, topic: str) -> _Said:
    """What members say; of those that don't answer, what a broker of ours knows of their
    heartbeats. Where only some members know the checksum of their code, only those are compared by
    it."""
    subscriptions = {
        member.client_id: member.subscriptions.get(topic)
        for member in group.members
        if member.subscriptions is not None
    }
    sums = {one.code_crc for one in subscriptions.values() if one is not None} - {None}
    made: _Said = {}
    for client_id, one in subscriptions.items():
        made.setdefault(_words(one, with_sum=len(sums) > 1), []).append(client_id)
    mute = {member.client_id for member in group.members} - subscriptions.keys()
    for client_id, by in _heard(facts, group, topic).items():
        if client_id in mute:
            made.setdefault(str(canonical(by)), []).append(client_id)
    return made


def _heard(facts: ClusterFacts, group: Group, topic: str) -> dict[str, Filter]:
    """By client id, what brokers that keep history were told last; a few members for each filter,
    which is enough to see that there are several."""
    made: dict[str, Filter] = {}
    for known in facts.histories:
        history = known.history
        if (history.group, history.topic) == (group.name, topic) and history.views:
            view = history.views[max(history.views)]
            made.update((client_id, by) for by, ids in view.filters.items() for client_id in ids)
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
            said = _said(facts, group, topic)
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
