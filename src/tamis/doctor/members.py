"""Checks of brokers and of who is in a group: servers that don't answer, queues without an owner,
members that can't be told apart."""

from collections.abc import Iterator
from typing import Any, Final

from ..client.received import RETRY_PREFIX
from ..wire.bodies import MessageQueue
from .facts import ClusterFacts, Group
from .findings import Finding, Severity, command_line
from .rules import are_served_apart

__all__ = ["duplicate_client_ids", "queue_owners", "silent_brokers"]

_SHOWN: Final = 20  # queues or members in the evidence


def silent_brokers(facts: ClusterFacts) -> Iterator[Finding]:
    """Brokers that the name server names and that can't be asked."""
    for broker in facts.brokers.values():
        if broker.error is not None:
            yield Finding(
                check="silent-brokers",
                severity=Severity.SERIOUS,
                broker=broker.name,
                message=f"broker {broker.name} is registered, but can't be asked: {broker.error}",
                evidence={"address": broker.address, "error": broker.error},
                command=f"mqadmin clusterList -n '{facts.nameserver}'",
                advice="start it, or check that its address can be reached from where clients are",
            )


def queue_owners(facts: ClusterFacts) -> Iterator[Finding]:
    """Queues of a topic that a group subscribes to and no member reads, or several do."""
    for group in facts.groups.values():
        if group.is_broadcasting or not _tell_their_queues(group):
            continue
        topics = {topic for one in group.members for topic in one.subscriptions or ()}
        for name in sorted(topics):
            topic = facts.topics.get(name)
            if topic is not None and not name.startswith(RETRY_PREFIX):
                yield from _owners(facts, group, name, topic.readable)


def _tell_their_queues(group: Group) -> bool:
    """Consumers that are asked for messages, as Java's, may not say which queues they have."""
    everyone = all(one.queues is not None for one in group.members)
    return everyone and (not group.is_pull or any(one.queues for one in group.members))


def _owners(
    facts: ClusterFacts, group: Group, topic: str, readable: list[MessageQueue]
) -> Iterator[Finding]:
    owners: dict[MessageQueue, list[str]] = {queue: [] for queue in readable}
    for member in group.members:
        for queue in member.queues or ():
            if queue in owners:
                owners[queue].append(member.client_id)
    without = [queue for queue in readable if not owners[queue]]
    command = command_line(facts.nameserver, "groups", "show", group.name)
    counts = {
        one.client_id: len([queue for queue in one.queues or () if queue.topic == topic])
        for one in group.members[:_SHOWN]
    }
    if without:
        waiting = sum(_lag(facts, group, queue) for queue in without)
        many = len(without) != 1
        yield Finding(
            check="queues-without-owner",
            severity=Severity.SERIOUS if waiting else Severity.WARNING,
            group=group.name,
            topic=topic,
            broker=without[0].broker_name if not many else None,
            queue=without[0].queue_id if not many else None,
            message=f"group {group.name}: {len(without)} of {len(readable)} queues of {topic} "
            f"{'have' if many else 'has'} no owner among its members; {waiting:,} messages wait "
            f"there",
            evidence={"queues": _named(without), "waiting": waiting, "queues_of_members": counts},
            command=command,
            advice="members share out queues anew within 20 s; if this stays, look for members "
            "that don't subscribe to the topic, have one client id, or don't reach a broker",
        )
    shared = [queue for queue in readable if len(owners[queue]) > 1]
    if shared and are_served_apart(facts, group.name, topic) is None:
        yield Finding(
            check="queues-with-several-owners",
            severity=Severity.WARNING,
            group=group.name,
            topic=topic,
            message=f"group {group.name}: {len(shared)} of {len(readable)} queues of {topic} are "
            "read by several members; messages are processed twice",
            evidence={
                "owners": [
                    {"broker": q.broker_name, "queue": q.queue_id, "members": owners[q]}
                    for q in shared[:_SHOWN]
                ]
            },
            command=command,
            advice="members share out queues anew within 20 s; if this stays, restart those that "
            "have the queue and are not connected to all brokers",
        )


def _lag(facts: ClusterFacts, group: Group, queue: MessageQueue) -> int:
    ends = facts.ends(queue)
    if ends is None:
        return 0
    return max(ends.end - max(group.committed.get(queue, 0), ends.first), 0)


def _named(queues: list[MessageQueue]) -> list[dict[str, Any]]:
    return [{"broker": one.broker_name, "queue": one.queue_id} for one in queues[:_SHOWN]]


def duplicate_client_ids(facts: ClusterFacts) -> Iterator[Finding]:
    """Members of a group that call themselves the same: each takes the same share of the queues,
    and the rest has no owner."""
    for group in facts.groups.values():
        for member in group.members:
            addresses = {
                broker: sorted(set(some))
                for broker, some in member.addresses.items()
                if len(set(some)) > 1
            }
            if not addresses:
                continue
            some = next(iter(addresses.values()))
            yield Finding(
                check="duplicate-client-ids",
                severity=Severity.SERIOUS,
                group=group.name,
                message=f"{len(some)} members of group {group.name} have the client id "
                f"{member.client_id} ({', '.join(some[:4])}): some queues are read by all of them, "
                "others by none",
                evidence={"client_id": member.client_id, "addresses": addresses},
                command=command_line(facts.nameserver, "groups", "show", group.name),
                advice="give each an instance name of its own (instance_name, or setInstanceName "
                "in Java)",
            )
