"""Looks after divided groups, about once a second.

Lanes without members are held: they pass over what they would not be given, so that they hold up
the group no more than needed. After a while what other lanes want too is handed to those; when the
time to hold them is over they are given up, which is logged and told. Cut-overs are handed on and
retired. A group whose members agree again is united.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from ..errors import InvalidFilter
from ..store.commitlog import Queue
from ..store.select import Limits, Status
from ..store.store import Store
from ..wire import record
from . import lanereads
from .config import Settings
from .conflicts import Conflicts
from .lanes import CutOver, Division, Lane, LaneFilter
from .members import Consumers

__all__ = ["GivenUp", "Tending"]

log = logging.getLogger(__name__)

STAND_BACK: Final = 60.0  # seconds without members, after which others get what they want too
FORGOTTEN: Final = 86_400.0  # seconds without any member, after which lanes are not kept
_SLICE: Final = 0.004  # seconds of looking through a queue at once
_LOGGED: Final = 16  # queues named in the log

_PASSED: Final = (
    Status.NO_MATCHED_MESSAGE,
    Status.MESSAGE_WAS_REMOVING,
    Status.OFFSET_TOO_SMALL,
)

Call = Callable[[Callable[[], Any]], Awaitable[Any]]
Turn = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A lane that was given up. `left` has, for each queue with something left for it, from where
    to where it was not read, and how many messages there its filter matched."""

    group: str
    lane: str
    filters: dict[str, LaneFilter]
    left: dict[Queue, tuple[int, int, int]]


class Tending:
    """`call` runs a function in another thread; `turn` lets others be served."""

    def __init__(
        self,
        settings: Settings,
        conflicts: Conflicts,
        consumers: Consumers,
        store: Store,
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._conflicts = conflicts
        self._consumers = consumers
        self._store = store
        self._clock = clock
        self._online: dict[str, float] = {}  # by group: since when it has members
        self.given_up = 0  # lanes
        self.messages_given_up = 0
        self.on_lane_given_up: Callable[[GivenUp], None] = lambda lane: None

    async def tend(self, turn: Turn, call: Call) -> None:
        for name in [one for one in self._online if one not in self._conflicts.divisions]:
            del self._online[name]
        for division in list(self._conflicts.divisions.values()):
            if self._conflicts.divisions.get(division.group) is division:
                await self._tend(division, turn, call)
                await turn()

    async def _tend(self, division: Division, turn: Turn, call: Call) -> None:
        now = self._clock()
        if not division.by_peer:
            self._online.pop(division.group, None)
            await self._advance(division, turn)
            gone = [lane.left for lane in division.lanes if lane.left is not None]
            if not division.cutovers and now - max(gone, default=now) >= FORGOTTEN:
                self._conflicts.unite(division)  # from the least offset on: nothing is lost
            return
        online = self._online.setdefault(division.group, now)
        await self._advance(division, turn)
        for change in list(division.cutovers.values()):
            self._hand_on(division, change)
        hold = self._settings.config.isolate_hold_seconds
        for lane in list(division.lanes):
            if lane.left is None or lane not in division.lanes:
                continue
            gone_for = now - max(lane.left, online)
            if gone_for >= hold or self._is_through(division, lane):
                await self._give_up(division, lane, turn, call)
            elif gone_for >= STAND_BACK and not lane.stands_back:
                await self._stand_back(division, lane, turn)
        for change in list(division.cutovers.values()):
            self._retire(division, change)
        if not division.cutovers and self._conflicts.policy(division.group) != "isolate":
            self._conflicts.unite(division)
            return
        is_one = len(division.lanes) <= 1 and not any(lane.rewinds for lane in division.lanes)
        if is_one and not division.cutovers and not any(lane.bands for lane in division.lanes):
            self._conflicts.unite(division)

    # Lanes without members.

    async def _advance(self, division: Division, turn: Turn) -> None:
        """Past messages that they would not be given."""
        for lane in division.lanes:
            for queue in list(lane.progress) if not lane.members else ():
                if not lane.members and queue in lane.progress:
                    self._advance_in(division, lane, queue)
                await turn()

    def _advance_in(self, division: Division, lane: Lane, queue: Queue) -> None:
        limits = Limits(messages=1, count=1, seconds=_SLICE)
        try:
            at = lane.progress[queue]
            found = lanereads.read(self._store, division, lane, queue, at, limits)
        except InvalidFilter:
            return
        following = int(found.next_offset)
        if found.records:
            following = record.decode(memoryview(found.records[0].data)).queue_offset
        elif found.status not in _PASSED:
            return
        if following > at:
            lane.rewinds.pop(queue, None)
            lane.commit(queue, following)
            self._conflicts.rules.changes += 1
            self._conflicts.write(division, queue)

    def _is_through(self, division: Division, lane: Lane) -> bool:
        """Whether a lane has the old filter of a cut-over and has had all it was to have."""
        changes = [
            one for one in division.cutovers.values() if lane.filters.get(one.topic) == one.old
        ]
        if not changes:
            return False
        for queue, offset in lane.progress.items():
            change = division.cutovers.get(queue[0])
            if change is not None and lane.filters.get(queue[0]) == change.old:
                end = change.cut(queue[1])
            else:
                found = self._store.find_queue(*queue)
                end = int(found.max_offset) if found is not None else 0
            if offset < end:
                return False
        return True

    async def _stand_back(self, division: Division, lane: Lane, turn: Turn) -> None:
        """Lets others have what they want too, from where the lane is."""
        order = [one for one in division.lanes if one is not lane] + [lane]
        if not await self._transfer(division, lane, order, turn):
            return
        lane.born = division.next_born()
        lane.stands_back = True
        division.lanes.sort(key=lambda one: one.born)
        self._conflicts.changed(division)

    async def _give_up(self, division: Division, lane: Lane, turn: Turn, call: Call) -> None:
        order = [one for one in division.lanes if one is not lane]
        left: dict[Queue, tuple[int, int, int]] = {}
        for queue, offset in list(lane.progress.items()):
            count, end = await self._count(division, lane, queue, offset, call)
            if count:
                left[queue] = (offset, end, count)
        if not await self._transfer(division, lane, order, turn):
            return
        division.lanes.remove(lane)
        self.given_up += 1
        self.messages_given_up += sum(count for *_, count in left.values())
        for queue in lane.progress:
            self._conflicts.write(division, queue)
        self._conflicts.changed(division)
        told = GivenUp(division.group, lane.id, lane.filters, left)
        shown = ", ".join(f"{topic} {one}" for topic, one in lane.filters.items())
        if not left:
            log.info("group %s: the lane of %.500s has no member, and nothing was left for it",
                     *(division.group, shown))  # fmt: skip
        else:
            queues = [f"{q[0]}/{q[1]} {a}-{b}: {n}" for q, (a, b, n) in list(left.items())]
            log.warning(
                "group %s: no member has %.500s any more, what it matched is given up, but for "
                "what other members want: %s%s",
                *(division.group, shown, "; ".join(queues[:_LOGGED])),
                "; ..." if len(queues) > _LOGGED else "",
            )
        self.on_lane_given_up(told)

    async def _count(
        self, division: Division, lane: Lane, queue: Queue, offset: int, call: Call
    ) -> tuple[int, int]:
        """How many messages its filter matches from there on, and up to where."""
        one = lane.filters.get(queue[0])
        found = self._store.find_queue(*queue)
        if one is None or found is None:
            return 0, offset
        end = int(found.max_offset)
        change = division.cutovers.get(queue[0])
        if change is not None and one == change.old:
            end = min(end, change.cut(queue[1]))
        try:
            wanted = one.wanted
        except InvalidFilter:
            return 0, offset
        if offset >= end:
            return 0, end
        return await call(lambda: self._store.count(*queue, offset, wanted, end)), end

    async def _transfer(
        self, division: Division, lane: Lane, order: list[Lane], turn: Turn
    ) -> bool:
        """Has other lanes read again from the first message that was the lane's, and is theirs when
        lanes come in this order. Returns whether it was done: not if a member came back."""
        after = replace(division, lanes=order)
        firsts: dict[tuple[int, Queue], int] = {}
        scans = [
            _Scan(self._store, division, after, lane, queue, firsts) for queue in lane.progress
        ]
        for scan in scans:
            while not scan.is_over and scan.step():
                await turn()
                if lane.members or self._conflicts.divisions.get(division.group) is not division:
                    return False
        for scan in scans:  # what came meanwhile; in one go, so that nothing comes between
            while not scan.is_over and scan.step():
                pass
        if [one for one in division.lanes if one is not lane] != [
            x for x in order if x is not lane
        ]:
            return False  # there is a new lane; at the next turn
        for other in order:
            for queue in lane.progress:
                first = firsts.get((id(other), queue))
                if first is not None and first < _has_read_to(other, queue):
                    other.rewind(queue, first, lane.filters.get(queue[0]))
                    self._conflicts.write(division, queue)
        return True

    # Cut-overs.

    def _hand_on(self, division: Division, change: CutOver) -> None:
        """When no member has the old filter any more, what is left before the cut is for members
        with the new one, as far as their clients take it."""
        if change.is_handed:
            return
        old = [lane for lane in division.lanes if lane.filters.get(change.topic) == change.old]
        new = [lane for lane in division.lanes if lane.filters.get(change.topic) == change.new]
        if any(lane.members for lane in old) or not any(lane.members for lane in new):
            return
        change.is_handed = True
        for queue_id, cut in change.cuts.items():
            queue = (change.topic, queue_id)
            starts = [lane.progress[queue] for lane in old if queue in lane.progress]
            start = min(starts, default=cut)
            if start >= cut:
                continue
            for lane in new:
                had = lane.progress.get(queue, cut)
                lane.skip(queue, cut, had)
                lane.rewind(queue, start)
        log.info(
            "group %s on %s: no member has %s any more; what is left before the cut-over goes to "
            "members with %s",
            *(division.group, change.topic, change.old, change.new),
        )
        self._conflicts.changed(division)

    def _retire(self, division: Division, change: CutOver) -> None:
        topic = change.topic
        new = [lane for lane in division.lanes if lane.filters.get(topic) == change.new]
        if any(lane.filters.get(topic) == change.old for lane in division.lanes) or not new:
            return
        for queue_id, cut in change.cuts.items():
            if any(lane.progress.get((topic, queue_id), cut) < cut for lane in new):
                return
        del division.cutovers[topic]
        log.info("group %s on %s: the cut-over to %s is done", division.group, topic, change.new)
        self._conflicts.changed(division)


def _has_read_to(lane: Lane, queue: Queue) -> float:
    """Not known of members that have not read it since the broker started."""
    if lane.members and queue not in lane.served:
        return float("inf")
    return max(lane.served.get(queue, 0), lane.progress.get(queue, 0))


class _Scan:
    """Looks through what a lane is still to be given in a queue, for the first message that each
    other lane has if this one is gone or comes last."""

    def __init__(
        self,
        store: Store,
        before: Division,
        after: Division,
        lane: Lane,
        queue: Queue,
        firsts: dict[tuple[int, Queue], int],
    ) -> None:
        self._store, self._before, self._after = store, before, after
        self._lane, self._queue, self._firsts = lane, queue, firsts
        self._at = lane.progress[queue]
        self._others = list(self._candidates())
        self.is_over = not self._others

    def _candidates(self) -> Iterator[Lane]:
        topic = self._queue[0]
        mine = self._lane.filters.get(topic)
        for other in self._after.lanes:
            theirs = other.filters.get(topic)
            if other is self._lane or self._before.is_broadcast:
                continue
            if topic == self._before.retry_topic:
                if self._lane not in self._after.lanes:
                    yield other
            elif mine is not None and theirs is not None and mine.overlaps(theirs):
                yield other

    def step(self) -> bool:
        """Returns whether there is more to look through."""
        limits = Limits(messages=256, count=256, seconds=_SLICE)
        try:
            found = lanereads.read(
                self._store, self._before, self._lane, self._queue, self._at, limits
            )
        except InvalidFilter:
            return False
        for one in found.records:
            message = record.decode(memoryview(one.data))
            self._look(message.queue_offset, message.properties)
        if found.status not in (Status.FOUND, Status.NO_MATCHED_MESSAGE):
            return False
        is_further = found.next_offset > self._at
        self._at = found.next_offset
        self.is_over = not self._others
        return is_further

    def _look(self, offset: int, properties: dict[str, str]) -> None:
        for other in list(self._others):
            if self._after.gives(other, self._queue, offset, properties):
                self._firsts[id(other), self._queue] = offset
                self._others.remove(other)
