"""The filter classes of a filter server: one for each topic and group, and who may replace it.

Two members of a group that upload different sources would replace each other's at every heartbeat.
A source that is not known yet replaces the active one; one that was replaced comes back only when
nobody holds the active one any more. Whoever uploads or pulls holds what it uploaded last.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from ..code import Judge
    from ..net.aio import Peer

__all__ = ["Classes", "FilterClass", "Held", "Identity", "Key", "Tally"]

Key = tuple[str, str]  # topic, group

_MOST_HOLDERS: Final = 1000  # of a class; members of a group
_MOST_REPLACED: Final = 32  # sources of a topic and group that are remembered
_MOST_HELD: Final = 10_000  # queues of a class in which a message is held back
_MOST_DEAD: Final = 10_000  # positions of dead letters, so as not to send one twice


class Identity(NamedTuple):
    """Which source: by it uploads are told apart."""

    class_name: str
    crc: int


@dataclass(slots=True)
class Tally:
    """Counts of a class, since it was uploaded first; they outlive its replacements."""

    messages: int = 0
    matched: int = 0
    failed: int = 0
    seconds: float = 0.0  # of judging, waiting for the filter included
    conflicts: int = 0
    replacements: int = 0
    dead_letters: int = 0
    restarts: int = 0  # of classes that were replaced
    last_failure: str = ""


@dataclass(slots=True)
class Held:
    """A message that the filter fails on and that is held back: the queue stands before it."""

    offset: int
    reason: str
    tries: int
    retry_at: float


@dataclass(slots=True, eq=False)
class FilterClass:
    """A source that is ready to judge, until it is replaced or dropped."""

    key: Key
    identity: Identity
    judge: "Judge"
    source: str
    uploader: str  # who brought it first
    size: int
    since: float  # seconds since 1970
    tally: Tally
    used: float  # when it was last uploaded or pulled with, by the clock
    holders: "dict[Peer, float]" = field(default_factory=dict)
    held: OrderedDict[int, Held] = field(default_factory=OrderedDict)  # by queue
    dead: OrderedDict[tuple[int, int], None] = field(default_factory=OrderedDict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # one caller of `judge` at a time
    is_active: bool = True

    @property
    def topic(self) -> str:
        return self.key[0]

    @property
    def group(self) -> str:
        return self.key[1]

    @property
    def restarts(self) -> int:
        usage = getattr(self.judge, "usage", None)  # of a sandbox's cell
        return self.tally.restarts + (usage.restarts if usage is not None else 0)

    def hold_by(self, peer: "Peer", now: float) -> None:
        """That member wants this source."""
        self.used = now
        if peer not in self.holders and len(self.holders) >= _MOST_HOLDERS:
            del self.holders[min(self.holders, key=self.holders.__getitem__)]
        self.holders[peer] = now

    def pulled_by(self, peer: "Peer", now: float) -> None:
        self.used = now
        if peer in self.holders:
            self.holders[peer] = now

    def holder(self, since: float) -> str | None:
        """Someone who was heard of since then."""
        for peer in [peer for peer, seen in self.holders.items() if seen < since]:
            del self.holders[peer]
        return next((str(peer) for peer in self.holders), None)

    def hold_back(self, queue_id: int, held: Held) -> None:
        self.held[queue_id] = held
        self.held.move_to_end(queue_id)
        if len(self.held) > _MOST_HELD:
            self.held.popitem(last=False)

    def forget_held(self, before: float) -> None:
        """Forget messages that nobody asked for since they might have been tried again: the
        consumers went on elsewhere."""
        for queue_id in [queue for queue, held in self.held.items() if held.retry_at < before]:
            del self.held[queue_id]

    def is_dead(self, queue_id: int, offset: int) -> bool:
        """Whether it was sent to the dead letters already."""
        return (queue_id, offset) in self.dead

    def note_dead(self, queue_id: int, offset: int) -> None:
        self.tally.dead_letters += 1
        self.dead[queue_id, offset] = None
        if len(self.dead) > _MOST_DEAD:
            self.dead.popitem(last=False)


class Classes:
    """The table. Belongs to the event loop; closing a judge is left to `dispose`, which may
    take its time."""

    def __init__(
        self,
        most: int,
        conflict_seconds: float,
        dispose: Callable[[FilterClass], None],
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._most = most
        self._conflict_seconds = conflict_seconds
        self._dispose = dispose
        self._clock = clock
        self._now = now
        self._table: dict[Key, FilterClass] = {}
        self._replaced: dict[Key, OrderedDict[Identity, str]] = {}  # and why it is no more
        self.conflicts = 0  # since the start, also of classes that are gone

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[FilterClass]:
        return iter(list(self._table.values()))

    def get(self, key: Key) -> FilterClass | None:
        return self._table.get(key)

    def conflict(self, key: Key, identity: Identity) -> str | None:
        """Who holds the active source, if this one was replaced by it and may not come back."""
        active = self._table.get(key)
        if active is None or identity not in self._replaced.get(key, ()):
            return None
        holder = active.holder(self._clock() - self._conflict_seconds)
        if holder is None:
            return None
        active.tally.conflicts += 1
        self.conflicts += 1
        return holder

    def has_room(self, key: Key, coming: int = 0) -> bool:
        """`coming`: how many others may be added soon."""
        return key in self._table or len(self._table) + coming < self._most

    def put(
        self, key: Key, identity: Identity, judge: "Judge", source: str, uploader: "Peer"
    ) -> FilterClass:
        """Make it the active one."""
        old = self._table.get(key)
        tally = Tally()
        if old is not None:
            tally = old.tally
            tally.replacements += 1
            tally.restarts = old.restarts
            replaced = self._replaced.setdefault(key, OrderedDict())
            replaced[old.identity] = old.uploader
            replaced.pop(identity, None)
            if len(replaced) > _MOST_REPLACED:
                replaced.popitem(last=False)
            self._retire(old)
        made = FilterClass(
            key=key,
            identity=identity,
            judge=judge,
            source=source,
            uploader=str(uploader),
            size=len(source.encode()),
            since=self._now(),
            tally=tally,
            used=self._clock(),
        )
        made.hold_by(uploader, self._clock())
        self._table[key] = made
        return made

    def release(self, key: Key, peer: "Peer") -> None:
        """That member wants another source now."""
        active = self._table.get(key)
        if active is not None:
            active.holders.pop(peer, None)

    def drop_unused(self, seconds: float) -> list[FilterClass]:
        """Those that nobody uploaded or asked for."""
        before = self._clock() - seconds
        unused = [one for one in self._table.values() if one.used < before]
        for one in unused:
            del self._table[one.key]
            self._replaced.pop(one.key, None)
            self._retire(one)
        return unused

    def _retire(self, one: FilterClass) -> None:
        one.is_active = False
        self._dispose(one)
