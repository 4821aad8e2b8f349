"""Facts of clusters, made up for tests of checks."""

from collections.abc import Mapping
from typing import Any

from tamis.client.subscriptions import subscription
from tamis.doctor.facts import (
    Broker,
    ClusterFacts,
    Group,
    Member,
    QueueEnds,
    SampledMessage,
    Topic,
)
from tamis.wire.bodies import Connection, ConsumerConnection, MessageQueue, Subscription

NAMESERVER = "127.0.0.1:9876"
NOW = 1_700_000_000_000
BROKER = "broker-a"


def queue(queue_id: int, topic: str = "orders") -> MessageQueue:
    return MessageQueue(topic, BROKER, queue_id)


def subscriptions(*given: Subscription) -> dict[str, Subscription]:
    return {one.topic: one for one in given}


def tags(text: str, topic: str = "orders") -> Subscription:
    """As a peer may say it, whatever our own client would think of it."""
    try:
        return subscription(topic, tags=text)
    except ValueError:
        return Subscription(topic=topic, expression=text, expression_type="TAG")


def sql(text: str, topic: str = "orders") -> Subscription:
    return Subscription(topic=topic, expression=text, expression_type="SQL92")


def topic(*ends: tuple[int, int], name: str = "orders", last_stored: int | None = None) -> Topic:
    """With a queue for each pair of first and end offset."""
    queues = {
        queue(i, name): QueueEnds(first=first, end=end, last_stored=last_stored)
        for i, (first, end) in enumerate(ends)
    }
    return Topic(name=name, queues=queues, readable=sorted(queues))


def group(
    members: Mapping[str, Subscription | None],
    *,
    in_force: Subscription | None = None,
    queues: Mapping[str, list[int]] | None = None,
    committed: Mapping[int, int] | None = None,
    name: str = "g",
    **connection: Any,
) -> Group:
    """Members by client id, each with its subscription and queues. The broker has that of the
    first, unless another is in force."""
    given = [one for one in members.values() if one is not None]
    said = in_force if in_force is not None else next(iter(given), None)
    connections = [
        Connection(client_id=one, client_addr=f"10.0.0.{i}:1", language="JAVA", version=401)
        for i, one in enumerate(members)
    ]
    fields = {
        "consume_type": "CONSUME_PASSIVELY",
        "message_model": "CLUSTERING",
        "consume_from_where": "CONSUME_FROM_LAST_OFFSET",
        **connection,
    }
    connected = ConsumerConnection(
        connections=connections, subscriptions=subscriptions(said) if said else {}, **fields
    )
    return Group(
        name=name,
        brokers=[BROKER],
        connected={BROKER: connected} if members else {},
        members=[
            Member(
                client_id=client_id,
                addresses={BROKER: [f"10.0.0.{i}:1"]},
                subscriptions=subscriptions(one) if one is not None else {},
                queues=frozenset(queue(n) for n in (queues or {}).get(client_id, [])),
            )
            for i, (client_id, one) in enumerate(members.items())
        ],
        committed={queue(i): offset for i, offset in (committed or {}).items()},
    )


def facts(*groups: Group, topics: tuple[Topic, ...] = (), **given: Any) -> ClusterFacts:
    return ClusterFacts(
        nameserver=NAMESERVER,
        now=NOW,
        brokers={BROKER: Broker(name=BROKER, address="10.0.0.1:10911")},
        groups={one.name: one for one in groups},
        topics={one.name: one for one in topics},
        **given,
    )


def messages(*properties: dict[str, str]) -> list[SampledMessage]:
    return [
        SampledMessage(queue=queue(0), offset=i, stored=NOW - 1000 + i, properties=one)
        for i, one in enumerate(properties)
    ]
