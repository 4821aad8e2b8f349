"""What each member of a divided group is given: lanes, cut-overs, and who has which message.

A group is divided while its members disagree under the policy `isolate`, or while a cut-over of its
filter is in force. Members with equal subscriptions form a lane, which is to them what a group is:
it has all queues, offsets and locks of its own. A message that several lanes want is given to the
oldest of them, so that which lane has it never depends on who reads first.

Everything here is a decision about given facts. Reading the store, committing offsets and talking
to members are left to `conflicts` and `lanereads`; files to `rules`.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal

from ..errors import InvalidFilter
from ..fate.facts import FilterChange
from ..fate.filters import Filter
from ..filter.engines.closures import Closure, compile_closure, evaluate
from ..filter.logic import Outcome
from ..filter.tags import TagFilter, parse_tags, tags_code
from ..java import string_hash
from ..net.aio import Peer
from ..store.commitlog import Queue
from ..store.select import SqlFilter
from ..wire.bodies import Subscription
from .filters import compile_sql
from .topics import RETRY_PREFIX

__all__ = [
    "LANE_PROPERTY",
    "MOST_AWAITED",
    "MOST_LANES",
    "Band",
    "CutOver",
    "Division",
    "Lane",
    "LaneFilter",
    "Newcomer",
    "filter_of_pull",
    "lane_filters",
    "lane_id",
]

LANE_PROPERTY: Final = "TAMIS_LANE"  # of a message sent back: the lane it comes back to
MOST_LANES: Final = 64  # of a group; a member with one more subscription is refused
MOST_AWAITED: Final = 1000  # members of a lane that may come back and have to be told to go back
MOST_BANDS: Final = 8  # of a queue; beyond it the oldest is dropped, and messages are had twice
_SHOWN: Final = 200  # characters of an expression in messages

Properties = Mapping[str, str]


@dataclass(frozen=True)
class LaneFilter:
    """A member's filter on a topic. Two are equal if they are the same kind and text; tags are
    compared as a set."""

    kind: Literal["TAG", "SQL92", "CODE"]
    text: str
    tags: frozenset[str] = frozenset()
    codes: frozenset[int] = frozenset()  # of tags that a client did not name

    @classmethod
    def of(cls, one: Subscription) -> "LaneFilter":
        if one.class_filter_mode:
            return cls("CODE", f"{one.expression}#{one.code_crc or 0}")
        if not one.is_tags:
            return cls("SQL92", one.expression)  # the only other kind; others do not compile
        if one.expression == "*":
            return cls("TAG", "*")
        if one.tags:
            return cls("TAG", " || ".join(sorted(set(one.tags))), frozenset(one.tags))
        return cls("TAG", one.expression, codes=frozenset(one.codes))

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> "LaneFilter":
        """Raises KeyError, TypeError or ValueError."""
        kind, text = said["kind"], str(said["text"])
        if kind not in ("TAG", "SQL92", "CODE"):
            raise ValueError(f"a filter of kind {kind!r}")
        tags = frozenset(map(str, said.get("tags") or ()))
        return cls(kind, text, tags, frozenset(map(int, said.get("codes") or ())))

    def to_json(self) -> dict[str, Any]:
        made: dict[str, Any] = {"kind": self.kind, "text": self.text}
        if self.tags:
            made["tags"] = sorted(self.tags)
        if self.codes:
            made["codes"] = sorted(self.codes)
        return made

    def __str__(self) -> str:
        text = self.text if len(self.text) <= _SHOWN else self.text[:_SHOWN] + "..."
        return f"{self.kind} '{text}'"

    @property
    def is_all(self) -> bool:
        return self.kind == "TAG" and self.text == "*"

    @cached_property
    def wanted(self) -> TagFilter | SqlFilter | None:
        """What the store reads by. Raises InvalidFilter."""
        if self.is_all or self.kind == "CODE":
            return None
        if self.kind == "TAG":
            codes = frozenset(map(string_hash, self.tags)) if self.tags else self.codes
            return TagFilter(self.text, self.tags, codes)
        return SqlFilter(compile_sql(self.text, self.kind))

    @cached_property
    def _closure(self) -> Closure | None:
        """None if the SQL does not compile: then nothing is wanted."""
        try:
            wanted = self.wanted
        except InvalidFilter:
            return None
        assert isinstance(wanted, SqlFilter)
        return compile_closure(wanted.batch_filter.expression)

    def wants(self, properties: Properties) -> bool:
        """Whether a message reaches the listener of a member with this filter. Code is not asked:
        it wants everything."""
        if self.kind == "TAG":
            tag = properties.get("TAGS")
            if self.is_all:
                return True
            return tag in self.tags if self.tags else tags_code(tag) in self.codes
        if self.kind == "CODE":
            return True
        closure = self._closure
        return closure is not None and evaluate(closure, properties) is Outcome.TRUE

    def accepts(self, properties: Properties) -> bool:
        """Whether a client with this filter passes a message on that the broker gives it."""
        if self.kind == "TAG":
            return not self.tags or properties.get("TAGS") in self.tags
        return self.kind != "CODE"

    def overlaps(self, other: "LaneFilter") -> bool:
        """Whether there may be a message that both want."""
        if self.kind == other.kind == "TAG" and self.tags and other.tags:
            return not self.tags.isdisjoint(other.tags)
        return True


def filter_of_pull(expression: str | None, expression_type: str | None) -> LaneFilter:
    """What a pull brings with it, as the member's heartbeat would have said it."""
    if expression_type not in (None, "", "TAG"):
        return LaneFilter("SQL92", expression or "")
    made = parse_tags(expression)
    if made.matches_all:
        return LaneFilter("TAG", "*")
    return LaneFilter("TAG", " || ".join(sorted(made.tags)) or made.expression, made.tags)


def lane_filters(subscriptions: Iterable[Subscription]) -> dict[str, LaneFilter]:
    """By topic. The group's retry topic is left out: all members have it."""
    return {
        one.topic: LaneFilter.of(one)
        for one in subscriptions
        if not one.topic.startswith(RETRY_PREFIX)
    }


def lane_id(filters: Mapping[str, LaneFilter]) -> str:
    """The same for equal subscriptions, after a restart too."""
    digest = hashlib.sha256()
    for topic in sorted(filters):
        one = filters[topic]
        codes = ",".join(map(str, sorted(one.codes)))
        digest.update(f"{topic}\0{one.kind}\0{one.text}\0{codes}\0".encode())
    return digest.hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Band:
    """Messages that a lane has already had, but for those that `leftover` wants."""

    start: int
    end: int
    leftover: LaneFilter | None = None


@dataclass(slots=True)
class Newcomer:
    client_id: str
    queues: set[Queue] = field(default_factory=set)


@dataclass(eq=False, slots=True)
class Lane:
    """Members with equal subscriptions, and how far they have come.

    A queue missing in `progress` was not read by the lane yet. In `rewinds` is where members have
    to go back to in a queue before anything else counts that they say of it.
    """

    id: str
    born: int  # lanes of a group are numbered; the lower is the older
    filters: dict[str, LaneFilter]
    members: dict[Peer, None] = field(default_factory=dict)
    left: float | None = None  # when its last member left, by the broker's clock
    is_placeholder: bool = False  # it stands for members with an old filter, yet to be seen
    stands_back: bool = False  # it comes last, for it has no members
    progress: dict[Queue, int] = field(default_factory=dict)
    served: dict[Queue, int] = field(default_factory=dict)  # how far members have read
    bands: dict[Queue, list[Band]] = field(default_factory=dict)
    rewinds: dict[Queue, int] = field(default_factory=dict)
    # members that came from another lane, and in which queues they go on from where this one is
    newcomers: dict[Peer, "Newcomer"] = field(default_factory=dict)
    awaited: dict[str, "Newcomer"] = field(default_factory=dict)  # likewise, before a restart

    @property
    def is_code(self) -> bool:
        return any(one.kind == "CODE" for one in self.filters.values())

    def commit(self, queue: Queue, offset: int) -> bool:
        """Returns whether the progress is another now."""
        target = self.rewinds.get(queue)
        if target is not None and offset > target:
            return False  # said by a member that does not know yet that it has to go back
        if self.progress.get(queue) == offset:
            return False
        self.progress[queue] = offset
        bands = self.bands.get(queue)
        if bands:
            self.bands[queue] = [one for one in bands if one.end > offset]
            if not self.bands[queue]:
                del self.bands[queue]
        return True

    def is_stale(self, peer: Peer, queue: Queue) -> bool:
        """Whether what a member says of a queue may be about what it read in another lane."""
        known = self.newcomers.get(peer)
        return known is not None and queue not in known.queues

    def touch(self, queue: Queue, offset: int, peer: Peer) -> int | None:
        """A member reads the queue from `offset` on. Returns where it has to go back to first."""
        target = self.rewinds.get(queue)
        if target is not None:
            if offset > target:
                return target
            del self.rewinds[queue]
        if self.is_stale(peer, queue):
            target = self.progress.get(queue)
            if target is not None and offset > target:
                return target
            self.newcomers[peer].queues.add(queue)
        if queue not in self.progress:
            self.progress[queue] = offset
        return None

    def rewind(self, queue: Queue, offset: int, leftover: LaneFilter | None = None) -> None:
        """Has the lane read again from `offset` on; what it has acknowledged it is not given again,
        but for what `leftover` wants."""
        had = self.progress.get(queue)
        target = offset if had is None else min(offset, had)
        if had is not None and target < had and leftover is not None:
            bands = self.bands.setdefault(queue, [])
            bands.append(Band(target, had, leftover))
            del bands[:-MOST_BANDS]
        self.progress[queue] = self.rewinds[queue] = target

    def skip(self, queue: Queue, start: int, end: int) -> None:
        """Has the lane pass over a stretch that it has had."""
        if start < end:
            bands = self.bands.setdefault(queue, [])
            bands.append(Band(start, end))
            del bands[:-MOST_BANDS]


@dataclass(slots=True)
class CutOver:
    """A change of a group's filter on a topic: from `cuts` on the new one is in force. Queues
    that came later have the new one from their start."""

    topic: str
    old: LaneFilter
    new: LaneFilter
    cuts: dict[int, int]
    made: int  # milliseconds
    is_handed: bool = False  # what was left before the cut is for members with the new filter

    def cut(self, queue_id: int) -> int:
        return self.cuts.get(queue_id, 0)


@dataclass(slots=True)
class Division:
    """A group in lanes, the oldest first. `stamp` is another object whenever it is decided anew who
    is given what."""

    group: str
    lanes: list[Lane] = field(default_factory=list)
    cutovers: dict[str, CutOver] = field(default_factory=dict)
    is_broadcast: bool = False  # every member has all messages it wants
    by_peer: dict[Peer, Lane] = field(default_factory=dict)
    committed: dict[Queue, int] = field(default_factory=dict)  # as we last wrote it
    began: dict[Queue, int] = field(default_factory=dict)  # where queues were first read from
    stamp: object = field(default_factory=object)

    @property
    def retry_topic(self) -> str:
        return RETRY_PREFIX + self.group

    def find(self, id: str) -> Lane | None:
        return next((lane for lane in self.lanes if lane.id == id), None)

    def find_by_filters(self, filters: Mapping[str, LaneFilter]) -> Lane | None:
        return self.find(lane_id(filters))

    def next_born(self) -> int:
        return max((lane.born for lane in self.lanes), default=0) + 1

    def note_beginning(self, lane: Lane, queue: Queue, offset: int) -> None:
        """Where a queue is first read from: lanes to come begin there if nothing is committed yet.
        Members with the new filter of a cut-over begin at the cut, which says nothing."""
        if queue not in self.began:
            change = self.cutovers.get(queue[0])
            if change is None or lane.filters.get(queue[0]) != change.new:
                self.began[queue] = offset

    # Who is given which message.

    def wants(self, lane: Lane, queue: Queue, offset: int, properties: Properties) -> bool:
        """By its filter, and on which side of a cut-over the message is."""
        topic, queue_id = queue
        one = lane.filters.get(topic)
        if one is None:
            return False
        change = self.cutovers.get(topic)
        if change is not None:
            is_before = offset < change.cut(queue_id)
            if one == change.new and is_before:
                return change.is_handed and one.accepts(properties) and change.old.wants(properties)
            if one == change.old:
                is_handed = change.is_handed and change.new.accepts(properties)
                return is_before and not is_handed and one.wants(properties)
        return one.wants(properties)

    def gives(self, lane: Lane, queue: Queue, offset: int, properties: Properties) -> bool:
        """Whether the lane is to have this message."""
        if queue[0] == self.retry_topic:
            return self.is_broadcast or self.lane_of_retry(properties) is lane
        if not self.wants(lane, queue, offset, properties):
            return False
        for band in lane.bands.get(queue, ()):
            if band.start <= offset < band.end and not (
                band.leftover is not None and band.leftover.wants(properties)
            ):
                return False
        if self.is_broadcast:
            return True
        return not any(
            self.wants(other, queue, offset, properties) for other in self._older(lane, queue[0])
        )

    def filter_at(self, lane: Lane, queue: Queue, offset: int) -> LaneFilter | None:
        """What the lane is served by there; None for everything, in the group's retry topic."""
        own, change = lane.filters.get(queue[0]), self.cutovers.get(queue[0])
        if change is not None and own == change.new and offset < change.cut(queue[1]):
            return change.old if change.is_handed else own
        return own

    def change_in(self, queue: Queue) -> FilterChange | None:
        """The cut-over in a queue, as history remembers it."""
        change = self.cutovers.get(queue[0])
        if change is None:
            return None
        old, new = (Filter(one.kind, one.text) for one in (change.old, change.new))
        return FilterChange(change.cut(queue[1]), old, new, change.is_handed)

    def filters_before(self, lane: Lane, queue: Queue, offset: int) -> tuple[LaneFilter, ...]:
        """Filters whose messages there are not this lane's, but those of lanes that come first."""
        if self.is_broadcast or queue[0] == self.retry_topic:
            return ()
        change = self.cutovers.get(queue[0])
        made = []
        is_before = change is not None and offset < change.cut(queue[1])
        own = lane.filters.get(queue[0])
        if change is not None and is_before and not change.is_handed and own == change.new:
            made.append(LaneFilter("TAG", "*"))  # nothing is given to it before the cut
        for other in self._older(lane, queue[0]):
            one = other.filters[queue[0]]
            if change is not None and change.is_handed and (one, own) == (change.old, change.new):
                continue  # it is left with what this lane's clients would drop
            is_apart = change is None or one not in (change.old, change.new)
            if is_apart or (change is not None and (one == change.old) == is_before):
                made.append(one)
        return tuple(made)

    def lane_of_retry(self, properties: Properties) -> Lane | None:
        """The lane that sent it back; if it is gone, the oldest that wants such a message, or else
        the oldest of all."""
        marked = self.find(properties.get(LANE_PROPERTY, ""))
        if marked is not None:
            return marked
        topic = properties.get("RETRY_TOPIC", "")
        for lane in self.lanes:
            one = lane.filters.get(topic)
            if one is not None and one.kind != "CODE" and one.wants(properties):
                return lane
        return self.lanes[0] if self.lanes else None

    def _older(self, lane: Lane, topic: str) -> Iterable[Lane]:
        """Return the lanes that come first. What code wants is not known, so nobody stands back for
        it."""
        for other in self.lanes:
            if other is lane:
                return
            one = other.filters.get(topic)
            if one is not None and one.kind != "CODE":
                yield other

    def is_checked(self, lane: Lane, queue: Queue) -> bool:
        """Whether messages that pass the lane's filter have to be looked at one by one."""
        topic = queue[0]
        if topic == self.retry_topic:
            return not self.is_broadcast
        if lane.bands.get(queue):
            return True
        change = self.cutovers.get(topic)
        if change is not None and change.is_handed:
            return True
        if self.is_broadcast:
            return False
        one = lane.filters[topic]
        return any(one.overlaps(other.filters[topic]) for other in self._older(lane, topic))

    # How far the group has come.

    def least(self, queue: Queue) -> int | None:
        """The offset to commit for the group: that of the lane that is furthest behind. None if
        some lane has not begun yet."""
        least = None
        for lane in self.lanes:
            if not self.reads(lane, queue[0]):
                continue
            offset = lane.progress.get(queue)
            if offset is None:
                return None
            if self._is_done(lane, queue, offset):
                continue
            least = offset if least is None else min(least, offset)
        return least

    def reads(self, lane: Lane, topic: str) -> bool:
        return topic in lane.filters or topic == self.retry_topic

    def _is_done(self, lane: Lane, queue: Queue, offset: int) -> bool:
        """Whether the lane has the old filter of a cut-over and is through with the queue."""
        change = self.cutovers.get(queue[0])
        return (
            change is not None
            and lane.filters.get(queue[0]) == change.old
            and offset >= change.cut(queue[1])
            and any(other.filters.get(queue[0]) == change.new for other in self.lanes)
        )

    def queues(self) -> set[Queue]:
        """All that some lane has begun with."""
        return {queue for lane in self.lanes for queue in lane.progress}
