"""What a fate is judged by, and what a judgement is."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from ..filter.logic import Outcome
from .filters import Filter

__all__ = [
    "EXPIRED",
    "Fate",
    "FilterChange",
    "GroupFacts",
    "Judgement",
    "LaneFacts",
    "MessageFacts",
    "Move",
    "Reading",
    "RetryFacts",
    "View",
]


RESET: Final = "a reset"
UNSAVED: Final = "the broker was killed before it could save who had read up to there"
EXPIRED: Final = "the messages before it had left the log"  # why a move was made


class Fate(StrEnum):
    """What became of a message for a group."""

    NOT_ONLINE = "NOT_ONLINE"  # it waits, and the group has no member
    NOT_CONSUMED_YET = "NOT_CONSUMED_YET"  # it waits
    CONSUMED = "CONSUMED"  # a member was given it and acknowledged it
    FILTERED = "FILTERED"  # no member wanted it
    LOST_TO_INCONSISTENCY = "LOST_TO_INCONSISTENCY"  # a member wanted it, none got it
    HASH_COLLISION = "HASH_COLLISION"  # the broker sent it, the client dropped it
    FILTER_FAILED = "FILTER_FAILED"  # the filter could not tell, so it was not delivered
    RETRYING = "RETRYING"  # a member sent it back, and it will come again
    DEAD_LETTERED = "DEAD_LETTERED"  # it was sent back too often
    SKIPPED_BY_RESET = "SKIPPED_BY_RESET"  # the group's progress was moved past it
    EXPIRED = "EXPIRED"  # it left the log before the group got there
    PULL = "PULL"  # the group keeps its progress itself
    BROADCASTING = "BROADCASTING"  # each member keeps its own progress
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFacts:
    """A stored message. One that has left the log has an offset, and `properties` is None."""

    topic: str
    queue_id: int
    offset: int
    properties: Mapping[str, str] | None
    stored: int | None = None  # milliseconds since 1970, as all times here
    message_id: str | None = None
    broker: str | None = None
    tags_code: int | None = None  # as the consume queue has it
    bitmap: str | None = None  # hexadecimal, as the queue's extension has it
    code_outcomes: Mapping[str, Outcome] = field(default_factory=dict)  # by class name

    @property
    def tag(self) -> str | None:
        return None if self.properties is None else self.properties.get("TAGS")


@dataclass(frozen=True, slots=True)
class View:
    """The distinct filters that a group's members had on a topic, each with a few of the members'
    client ids; `since` is when that began."""

    since: int
    filters: Mapping[Filter, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class FilterChange:
    """A change of a group's filter that was announced, in one queue: from `cut` on, `new` holds in
    place of `old`. `is_handed`: no member has the old one any more, so that what is left before the
    cut is for members with the new one."""

    cut: int
    old: Filter
    new: Filter
    is_handed: bool = False

    def counts(self, by: Filter, offset: int) -> bool:
        """Return whether it matters there what members with this filter want."""
        return not by.is_same(self.new if offset < self.cut else self.old)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A stretch of a queue that includes the message, read by one member."""

    member: str
    filter: Filter  # what the broker filtered by
    own: Filter | None  # what the member subscribed to, by which its client looks again
    view: View
    began: int
    start: int
    end: int
    acknowledged: bool  # whether progress passed the message while this member had the queue
    lane: str = ""
    unless: tuple[Filter, ...] = ()  # what these want was left to other lanes
    change: FilterChange | None = None  # under way then


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Progress that changed otherwise than by reading: a reset, a tool, a lane that was given up.
    `before` is None if there was none. `filter`: what the lane that was given up wanted."""

    time: int
    queue_id: int
    before: int | None
    after: int
    by: str
    why: str
    lane: str = ""
    filter: Filter | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryFacts:
    """The newest copy of the message that a member sent back, in the retry or dead-letter topic, or
    waiting among the delayed messages to go there."""

    topic: str  # where it is, or will be
    times: int  # how often it was given out and sent back
    is_dead: bool
    is_consumed: bool = False  # whether the group's progress on its retries passed the copy
    due: int | None = None  # when it will come again, while it is delayed
    message_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneFacts:
    """Members of a group that are served by a subscription of their own (policy `isolate`, or a
    change of filter). It has no members while it is held for one to come back."""

    key: str
    filter: Filter | None  # on the message's topic; None if the lane does not subscribe to it
    committed: int | None
    members: tuple[str, ...] = ()
    change: FilterChange | None = None  # under way now

    def demand(self, offset: int) -> "Demand | None":
        """Return what it waits for at that offset; None for nothing."""
        own, change = self.filter, self.change
        if own is None or change is None:
            return None if own is None else Demand(own)
        is_before = offset < change.cut
        if own.is_same(change.old):
            return Demand(own, drop=change.new if change.is_handed else None) if is_before else None
        if own.is_same(change.new) and is_before:
            return Demand(change.old, keep=own) if change.is_handed else None
        return Demand(own)


class Demand(NamedTuple):
    """Messages that `by` wants, and that a client with `keep` takes, one with `drop` does not."""

    by: Filter
    keep: Filter | None = None
    drop: Filter | None = None

    def includes(self, properties: Mapping[str, str], codes: Mapping[str, Outcome]) -> bool:
        return (
            self.by.wants(properties, codes) is Outcome.TRUE
            and (self.keep is None or self.keep.at_client(properties))
            and not (self.drop is not None and self.drop.at_client(properties))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFacts:
    """A group, as far as the message's queue is concerned.

    `readings` are in the order they began. `complete_since`: from when on all readings and moves
    are known; None if nothing is recorded at all, as with Apache's brokers. `unknown` are sentences
    on what could not be found out.
    """

    group: str
    online: bool
    committed: int | None  # the offset of the next message to consume; None if there is none
    first_offset: int = 0  # of what the queue still has
    end_offset: int | None = None
    consume_type: str = ""
    message_model: str = ""
    effective: Filter | None = None  # what the broker filters the group's pulls by now
    members: Mapping[str, Filter | None] = field(default_factory=dict)  # own filters, now
    readings: tuple[Reading, ...] = ()
    moves: tuple[Move, ...] = ()  # of the queue, in their order
    first_read: int | None = None  # the lowest offset any reading of the queue began at
    complete_since: int | None = None
    unsaved_from: int | None = None  # offset from which readings were lost by a crash
    retry: RetryFacts | None = None
    lanes: tuple[LaneFacts, ...] = ()
    policy: str = ""
    bitmap_bit: bool | None = None  # what the message's bitmap says of the group
    has_offsets: bool | None = None  # of any topic; None if `committed` is all that is known
    has_retry_topic: bool = True
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """`reason` is one sentence; `evidence` is made for JSON."""

    group: str
    fate: Fate
    reason: str
    evidence: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {
            "group": self.group,
            "fate": str(self.fate),
            "reason": self.reason,
            "evidence": self.evidence,
        }
