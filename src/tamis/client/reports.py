"""What tools are told of topics, groups and offsets. Times are milliseconds since 1970."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ..wire.bodies import ConsumerConnection, MessageQueue, Subscription
from .received import retry_topic
from .subscriptions import difference, shown

__all__ = [
    "GroupInfo",
    "GroupMember",
    "MatchingLag",
    "Mismatch",
    "QueueInfo",
    "QueueProgress",
    "TopicInfo",
    "TopicPlace",
    "is_system_group",
    "mismatches",
]

_SYSTEM_GROUPS: Final = frozenset(  # of `MixAll`
    [
        "TOOLS_CONSUMER",
        "SCHEDULE_CONSUMER",
        "FILTERSRV_CONSUMER",
        "__MONITOR_CONSUMER",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
        "CID_ONSAPI_PULL",
    ]
)
_SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPlace:
    """A topic at one broker. `permission` is rw, r, w or nothing."""

    broker: str
    read_queues: int
    write_queues: int
    permission: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueInfo:
    """`end` is the offset of the message to come; times are milliseconds."""

    queue: MessageQueue
    first: int
    end: int
    last_stored: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    name: str
    places: list[TopicPlace]
    queues: list[QueueInfo]
    groups: list[str]  # that are connected for it, or have consumed of it


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """`subscriptions` are its own, as it says; None, and `error`, if it did not answer."""

    client_id: str
    address: str
    language: str
    version: str
    subscriptions: dict[str, Subscription] | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """A member subscribes to other messages than the broker gives the group: it loses some."""

    client_id: str
    broker: str
    topic: str
    member: Subscription | None
    effective: Subscription | None

    def __str__(self) -> str:
        return (
            f"member {self.client_id} has {shown(self.member)} for {self.topic},"
            f" the broker {self.broker} {shown(self.effective)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInfo:
    """What connected members bring is empty if none are. `subscriptions` are the effective ones:
    a broker keeps one for all members, the last it was told of."""

    name: str
    brokers: list[str]  # that know it
    retries: int
    is_enabled: bool
    members: list[GroupMember]
    subscriptions: dict[str, Subscription]
    mismatches: list[Mismatch]
    consume_type: str
    message_model: str
    consume_from_where: str

    @property
    def is_online(self) -> bool:
        return bool(self.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueProgress:
    """`committed` is 0 where nothing was. `last_consumed`: when the last message consumed was
    stored, in milliseconds."""

    queue: MessageQueue
    committed: int
    end: int
    last_consumed: int | None

    @property
    def lag(self) -> int:
        return max(self.end - self.committed, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchingLag:
    """How many messages that its filter matches a group has before it in a queue, and the first.

    What is not known is None, and `reason` says why. Without `is_complete` there was no time to
    count all: at least `matching_lag` messages match. `committed` is None if the group commits no
    offsets. Times are milliseconds.
    """

    group: str
    queue: MessageQueue
    committed: int | None
    end: int
    matching_lag: int | None = None
    is_complete: bool = False
    next_match_offset: int | None = None
    next_match_stored: int | None = None
    filter_type: str | None = None  # TAG, SQL92 or CODE
    expression: str | None = None
    reason: str = ""
    lane: str | None = None  # of a group whose members are kept apart: its part

    @property
    def lag(self) -> int | None:
        """RocketMQ's own: the difference of the offsets."""
        return None if self.committed is None else max(self.end - self.committed, 0)


def mismatches(
    group: str, members: Iterable[GroupMember], connected: Mapping[str, ConsumerConnection]
) -> list[Mismatch]:
    made = []
    for member in members:
        if member.subscriptions is None:
            continue
        for broker, found in connected.items():
            if member.client_id not in {one.client_id for one in found.connections}:
                continue
            for topic in sorted({*member.subscriptions, *found.subscriptions}):
                ours, theirs = member.subscriptions.get(topic), found.subscriptions.get(topic)
                if difference(_only(ours), _only(theirs), retry_topic(group)) is not None:
                    made.append(
                        Mismatch(
                            client_id=member.client_id,
                            broker=broker,
                            topic=topic,
                            member=ours,
                            effective=theirs,
                        )
                    )
    return made


def _only(one: Subscription | None) -> dict[str, Subscription]:
    return {one.topic: one} if one is not None else {}


def is_system_group(name: str) -> bool:
    return name in _SYSTEM_GROUPS or name.startswith(_SYSTEM_GROUP_PREFIX)
