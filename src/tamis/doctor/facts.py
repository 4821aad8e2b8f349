"""What is known of a cluster at one moment. Times are milliseconds since 1970.

What could not be learnt is part of it (`unchecked`), so that no check takes silence for health.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ..errors import InvalidFilter
from ..fate import Filter, GroupHistory
from ..filter.tags import parse_tags
from ..wire.bodies import ConsumerConnection, MessageQueue, Subscription
from .policies import BrokerRules

__all__ = [
    "Broker",
    "ClusterFacts",
    "Group",
    "HistoryOfBroker",
    "Member",
    "QueueEnds",
    "SampledMessage",
    "Topic",
    "Unchecked",
    "VerdictRow",
    "canonical",
    "filter_of",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """A broker name of the cluster; `error` says why its master could not be asked."""

    name: str
    address: str | None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEnds:
    """`end` is the offset of the message to come."""

    first: int
    end: int
    last_stored: int | None = None


@dataclass(slots=True, kw_only=True)
class Topic:
    """`readable`: the queues that its route tells consumers of."""

    name: str
    queues: dict[MessageQueue, QueueEnds] = field(default_factory=dict)
    readable: list[MessageQueue] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Member:
    """`subscriptions` and `queues` are what it says itself; None, and `error`, if it did not."""

    client_id: str
    language: str = ""
    version: str = ""
    addresses: dict[str, list[str]] = field(default_factory=dict)  # by broker
    subscriptions: dict[str, Subscription] | None = None
    queues: frozenset[MessageQueue] | None = None
    error: str | None = None


@dataclass(slots=True, kw_only=True)
class Group:
    name: str
    brokers: list[str] = field(default_factory=list)  # that know it
    connected: dict[str, ConsumerConnection] = field(default_factory=dict)  # by broker
    members: list[Member] = field(default_factory=list)
    committed: dict[MessageQueue, int] = field(default_factory=dict)

    @property
    def is_online(self) -> bool:
        return bool(self.members)

    @property
    def is_broadcasting(self) -> bool:
        return any(one.message_model == "BROADCASTING" for one in self.connected.values())

    @property
    def is_pull(self) -> bool:
        return any(one.consume_type == "CONSUME_ACTIVELY" for one in self.connected.values())

    def subscriptions(self) -> Iterator[Subscription]:
        """Yield what brokers filter by and what members say, as often as it is said."""
        for connection in self.connected.values():
            yield from connection.subscriptions.values()
        for member in self.members:
            yield from (member.subscriptions or {}).values()

    def filters(self, topic: str) -> set[Filter]:
        """Return the distinct filters that are live on a topic."""
        return {filter_of(one) for one in self.subscriptions() if one.topic == topic}

    def topics(self) -> set[str]:
        return {one.topic for one in self.subscriptions()}


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledMessage:
    queue: MessageQueue
    offset: int
    stored: int
    properties: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictRow:
    """What a broker's filter said for a group on a topic, in the last day and since `since`."""

    broker: str
    group: str
    topic: str
    since: int | None = None
    evaluated: int = 0
    matched: int = 0
    failed: int = 0
    samples: tuple[tuple[int, int], ...] = ()  # queue and offset of some that it failed on
    recent_since: int = 0
    recent_evaluated: int = 0
    recent_matched: int = 0
    recent_failed: int = 0
    expression: str | None = None  # of SQL
    born: int | None = None
    dead_since: int | None = None
    fault: str | None = None

    @classmethod
    def from_json(cls, broker: str, row: dict[str, Any]) -> "VerdictRow":
        """Raises KeyError, TypeError or ValueError for what is not such a row."""
        recent = row["recent"]
        return cls(
            broker=broker,
            group=str(row["group"]),
            topic=str(row["topic"]),
            since=_number(row["since"]),
            evaluated=int(row["evaluated"]),
            matched=int(row["matched"]),
            failed=int(row["failed"]),
            samples=tuple((int(queue), int(offset)) for queue, offset in row["samples"]),
            recent_since=int(recent["since"]),
            recent_evaluated=int(recent["evaluated"]),
            recent_matched=int(recent["matched"]),
            recent_failed=int(recent["failed"]),
            expression=_text(row["expression"]),
            born=_number(row["born"]),
            dead_since=_number(row["dead_since"]),
            fault=_text(row["fault"]),
        )


def _number(value: Any) -> int | None:
    return None if value is None else int(value)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryOfBroker:
    broker: str
    history: GroupHistory


@dataclass(frozen=True, slots=True, kw_only=True)
class Unchecked:
    """Something that was not looked at, or not all of it, and why."""

    what: str
    reason: str
    where: tuple[str, ...] = ()  # brokers, groups, members or topics


@dataclass(slots=True, kw_only=True)
class ClusterFacts:
    nameserver: str
    now: int
    brokers: dict[str, Broker] = field(default_factory=dict)
    topics: dict[str, Topic] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    all_topics: set[str] | None = None  # names; None if nobody said
    verdicts: list[VerdictRow] = field(default_factory=list)
    histories: list[HistoryOfBroker] = field(default_factory=list)
    matching_lag: dict[tuple[str, MessageQueue], int] = field(default_factory=dict)
    rules: dict[str, BrokerRules] = field(default_factory=dict)  # by broker
    samples: dict[str, list[SampledMessage]] = field(default_factory=dict)  # by topic
    # of sampled messages that a group lost by its history: what their broker says of them
    fates: dict[tuple[str, MessageQueue, int], str] = field(default_factory=dict)
    unchecked: list[Unchecked] = field(default_factory=list)

    def live_filters(self) -> Iterator[tuple[Group, str, Filter]]:
        """Yield groups, topics and the filters that are in use there, other than `*`."""
        for group in self.groups.values():
            for topic in sorted(group.topics()):
                for by in sorted(group.filters(topic), key=str):
                    if not by.matches_all:
                        yield group, topic, by

    def ends(self, queue: MessageQueue) -> QueueEnds | None:
        topic = self.topics.get(queue.topic)
        return None if topic is None else topic.queues.get(queue)


def filter_of(one: Subscription) -> Filter:
    if one.class_filter_mode:
        return Filter("CODE", one.expression)
    return Filter("TAG" if one.is_tags else "SQL92", one.expression)


def canonical(by: Filter) -> Filter:
    """Return a filter that is equal for all texts that mean the same: the order of tags, and
    blanks, are no difference."""
    if by.kind == "SQL92":
        return Filter("SQL92", by.text.strip())
    if by.kind == "TAG":
        try:
            tags = parse_tags(by.text)
        except InvalidFilter:
            return by
        return Filter("TAG", "*" if tags.matches_all else " || ".join(sorted(tags.tags)))
    return by
