"""Members of a group that disagree: who is refused, who is in which lane, and what lanes commit.

The policy is the broker's `subscription_conflicts` or the group's own. Under `rocketmq` nothing is
done but counting; under `reject` a member that disagrees is refused; under `isolate`, and while a
cut-over is in force, the group is divided (see `lanes`). What a lane leaves behind when its members
are gone is looked after by `tending`.

It is one module though long: refusing, placing and committing all read and change the same state,
a group's division.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, Final

from ..errors import InvalidFilter, ResponseError
from ..fate.facts import LaneFacts
from ..fate.filters import Filter
from ..net.aio import Peer
from ..net.longwork import Steps
from ..store.commitlog import Queue
from ..wire.bodies import MessageModel, Subscription
from ..wire.codes import ResponseCode
from .config import Settings
from .filters import is_quick, try_compile
from .history import Recorder
from .lanes import (
    MOST_AWAITED,
    MOST_LANES,
    CutOver,
    Division,
    Lane,
    LaneFilter,
    Newcomer,
    lane_filters,
    lane_id,
)
from .members import ConsumerGroup, Consumers, Member
from .offsets import Offsets
from .readers import Reader, ReaderFilter
from .rules import Rules
from .topics import RETRY_PREFIX

__all__ = ["Conflicts"]

log = logging.getLogger(__name__)

_MOST_REFUSED: Final = 10_000  # connections and groups; beyond it they are refused all the same


class Conflicts:
    """Belongs to the broker's loop. `is_needed` tells pulls that some group is not as others are;
    while it is false nothing else here concerns them."""

    def __init__(
        self,
        settings: Settings,
        rules: Rules,
        consumers: Consumers,
        offsets: Offsets,
        recorder: Recorder,
        clock: Callable[[], float],
    ) -> None:
        self._settings = settings
        self.rules = rules
        self._consumers = consumers
        self._offsets = offsets
        self._recorder = recorder
        self._clock = clock
        self.divisions = rules.divisions
        self.refused: dict[str, dict[Peer, str]] = {}  # by group: why
        self.disagreeing: set[str] = set()  # groups, now
        self.conflicts = 0  # times that a group began to disagree
        self.refusals = 0
        self.on_divided: Callable[[ConsumerGroup], None] = lambda group: None
        self.on_united: Callable[[ConsumerGroup], None] = lambda group: None
        # by client id, under which name its locks are kept from now on
        self.rename_locks: Callable[[str, Mapping[str, str]], None] = lambda group, names: None
        self.wake: Callable[[Iterable[Queue]], None] = lambda queues: None
        now = clock()
        for division in self.divisions.values():  # members come back; they may take a while
            for lane in division.lanes:
                lane.left = now
            for queue in division.queues():
                offset = offsets.get(division.group, *queue)
                if offset is not None:
                    division.committed[queue] = offset
        self.is_needed = bool(self.divisions)

    def policy(self, group: str) -> str:
        return self.rules.policies.get(group) or self._settings.config.subscription_conflicts

    @property
    def default_policy(self) -> str:
        return self._settings.config.subscription_conflicts

    @property
    def hold(self) -> float:
        """Seconds that a lane is held for."""
        return self._settings.config.isolate_hold_seconds

    def held_seconds(self, lane: Lane) -> float | None:
        """For how long it has had no member."""
        return round(self._clock() - lane.left, 3) if lane.left is not None else None

    # Heartbeats.

    def refusal(self, group: str, member: Member, said: Iterable[Subscription]) -> str | None:
        """Why the member can't be in the group with these subscriptions; None if it can."""
        known = self._consumers.groups.get(group)
        division = self.divisions.get(group)
        policy = self.policy(group)
        if policy == "rocketmq" and division is None:
            return None
        filters = lane_filters(said)
        if policy == "reject":
            why = self._why_rejected(group, known, division, member, filters)
            if why is not None:
                return why
        if division is None or len(division.lanes) < MOST_LANES:
            return None
        if division.find_by_filters(filters) is not None:
            return None
        return (
            f"group {group} has {MOST_LANES} different subscriptions, the broker serves no more "
            f"side by side; {member.client_id} brings another: {_shown(filters)}"
        )

    def _why_rejected(
        self,
        group: str,
        known: ConsumerGroup | None,
        division: Division | None,
        member: Member,
        filters: dict[str, LaneFilter],
    ) -> str | None:
        changes = division.cutovers if division is not None else {}
        for topic, change in changes.items():
            one = filters.get(topic)
            if one not in (change.old, change.new):
                return (
                    f"group {group} changes its filter on {topic} from {change.old} to "
                    f"{change.new}; {member.client_id} has {one or 'none'}, which is neither"
                )
        if known is None:
            return None
        before = known.members.get(member.peer)
        is_same = before is not None and lane_filters(before.subscriptions.values()) == filters
        agree = known.agrees()
        if agree and is_same:
            return None
        for other in known.members.values():
            if other.peer is member.peer:
                if is_same:
                    return None  # those after it are the later ones
                continue
            if other.client_id == member.client_id:
                continue  # its own connection of before
            theirs = lane_filters(other.subscriptions.values())
            for topic in sorted(filters.keys() | theirs.keys()):
                mine, yours = filters.get(topic), theirs.get(topic)
                if mine != yours and topic not in changes:
                    return (
                        f"group {group} on {topic}: member {member.client_id} subscribes to "
                        f"{mine or 'nothing'}, member {other.client_id} to {yours or 'nothing'}; "
                        "this broker refuses members that disagree (subscriptionConflicts=reject)"
                    )
            if agree:
                return None  # the others are as this one is
        return None

    def refuse(self, group: str, member: Member, why: str) -> None:
        """Remembers it, so that its pulls are refused too."""
        refused = self.refused.setdefault(group, {})
        if refused.get(member.peer) != why:
            log.error("a heartbeat is refused: %.2000s", why)
            self.refusals += 1
            self.conflicts += 1
        if len(refused) < _MOST_REFUSED:
            refused[member.peer] = why
        self.is_needed = True
        known = self._consumers.groups.get(group)
        if known is not None and member.peer in known.members:
            self._consumers.leave(member.peer, group)
            if known.members:  # which are not to be filtered by what the refused one wanted
                known.resubscribe()
                self.on_united(known)

    def is_agreed(self, group: str, peer: Peer, said: Iterable[Subscription]) -> bool:
        """Whether what this member says is what all others say, by policy: then it holds, whatever
        was said before it."""
        if group in self.divisions or self.policy(group) == "rocketmq":
            return False
        known = self._consumers.groups.get(group)
        others = [one for one in known.members.values() if one.peer is not peer] if known else []
        return all(
            lane_filters(one.subscriptions.values()) == lane_filters(said) for one in others[:1]
        )

    def compile_steps(self, group: str, said: Iterable[Subscription]) -> Steps[None]:
        """What a member that may get a lane of its own filters by: compiled before it is asked
        for, and long expressions not in the loop."""
        if self.policy(group) != "isolate" and group not in self.divisions:
            return
        for one in said:
            if not one.is_tags and not is_quick(one.expression, one.expression_type):
                yield partial(try_compile, one.expression, one.expression_type)

    def joined(self, name: str, peer: Peer, is_other: bool) -> None:
        """A heartbeat was taken. `is_other`: of a new member, or it says something else."""
        self._admit(name, peer)
        group = self._consumers.groups.get(name)
        division = self.divisions.get(name)
        is_placed = division is None or peer in division.by_peer
        if group is None or peer not in group.members or (is_placed and not is_other):
            return
        agrees = group.agrees()
        if not agrees and division is None and self.policy(name) == "reject":
            self._drop_former_selves(group, group.members[peer])
            agrees = group.agrees()
        self._count(group, agrees)
        if division is None:
            if agrees or self.policy(name) != "isolate":
                return
            division = self._divide(group, peer)
        elif self._place(division, group.members[peer]):
            self._changed(division, group)

    def _drop_former_selves(self, group: ConsumerGroup, member: Member) -> None:
        """Connections of the same client that are not yet known to be gone."""
        for other in list(group.members.values()):
            if other.client_id == member.client_id and other.peer is not member.peer:
                self._consumers.leave(other.peer, group.name)

    def _admit(self, name: str, peer: Peer) -> None:
        refused = self.refused.get(name)
        if refused is not None and refused.pop(peer, None) is not None and not refused:
            del self.refused[name]
            self.is_needed = bool(self.divisions or self.refused)

    def _count(self, group: ConsumerGroup, agrees: bool) -> None:
        if agrees:
            self.disagreeing.discard(group.name)
        elif group.name not in self.disagreeing:
            self.disagreeing.add(group.name)
            self.conflicts += 1
            if self.policy(group.name) == "rocketmq" and group.name not in self.divisions:
                log.error(
                    "group %s: its members disagree about what they want; the last heartbeat "
                    "decides for all, and messages are LOST (subscriptionConflicts=rocketmq). "
                    "Give the members equal subscriptions, or have the broker reject or isolate "
                    "them: tamis groups policy %s reject|isolate",
                    *(group.name, group.name),
                )

    def left(self, group: ConsumerGroup, member: Member) -> None:
        if group.name in self.disagreeing and (not group.members or group.agrees()):
            self.disagreeing.discard(group.name)
        division = self.divisions.get(group.name)
        lane = division.by_peer.pop(member.peer, None) if division is not None else None
        if division is not None and lane is not None:
            self._take_out(lane, member.peer)
            self._changed(division, None)

    def drop(self, peer: Peer) -> None:
        """Its connection is gone."""
        if self.refused:
            for name in [name for name, refused in self.refused.items() if peer in refused]:
                self._admit(name, peer)

    def policy_changed(self) -> None:
        """The broker's, or a group's."""
        for group in list(self._consumers.groups.values()):
            division = self.divisions.get(group.name)
            if division is None and self.policy(group.name) == "isolate" and not group.agrees():
                self._divide(group, None)
        for name, division in list(self.divisions.items()):
            if self.policy(name) != "isolate" and not division.cutovers:
                self.unite(division)
        for group in list(self._consumers.groups.values()):
            if self.policy(group.name) == "reject" and group.name not in self.divisions:
                self._refuse_later_members(group)
        for name in list(self.refused):
            if self.policy(name) != "reject":  # it is a member again with its next heartbeat
                del self.refused[name]
        self.is_needed = bool(self.divisions or self.refused)

    def _refuse_later_members(self, group: ConsumerGroup) -> None:
        """Refuse those that disagree with one that joined before them. Until their next heartbeats
        messages would be lost."""
        for member in list(group.members.values()) if not group.agrees() else ():
            filters = lane_filters(member.subscriptions.values())
            why = self._why_rejected(group.name, group, None, member, filters)
            if why is not None:
                self.refuse(group.name, member, why)

    # Lanes.

    def _divide(self, group: ConsumerGroup, latest: Peer | None) -> Division:
        """`latest` is the member that made the difference: if it was one before, it may have read
        beyond where its lane begins."""
        division = Division(group.name)
        division.is_broadcast = group.message_model == MessageModel.BROADCASTING
        self.divisions[group.name] = division
        for member in group.members.values():
            if member.peer is not latest:
                self._place(division, member, is_reading=True)
        if latest is not None:
            self._place(division, group.members[latest])
        if len(division.lanes) > 1:
            log.warning(
                "group %s: its members disagree; each is served by its own subscription (%d lanes)",
                *(group.name, len(division.lanes)),
            )
        self._changed(division, group)
        self._rename_locks(group)
        return division

    def _rename_locks(self, group: ConsumerGroup) -> None:
        members = group.members.values()
        names = {one.client_id: self.lock_name(group.name, one.peer) for one in members}
        self.rename_locks(group.name, names)

    def cut_over(self, name: str, change: CutOver) -> None:
        """Puts a cut-over in force. There is a lane for what is left before the cut, with members
        or not."""
        division, group = self.divisions.get(name), self._consumers.groups.get(name)
        if division is None and group is not None:
            division = self._divide(group, None)
        elif division is None:
            division = self.divisions[name] = Division(name)
        topic = change.topic
        if not any(lane.filters.get(topic) == change.old for lane in division.lanes):
            lane = self.add_lane(division, {topic: change.old})
            lane.is_placeholder = True
            lane.rewinds.clear()
            for queue_id, cut in change.cuts.items():  # where nothing was read, nothing is left
                lane.progress.setdefault((topic, queue_id), cut)
        division.cutovers[topic] = change
        for lane in division.lanes:
            if lane.filters.get(topic) == change.new:
                for queue_id, cut in change.cuts.items():
                    lane.progress[topic, queue_id] = max(
                        cut, lane.progress.get((topic, queue_id), cut)
                    )
        for queue_id in change.cuts:
            self.write(division, (topic, queue_id))
        self._changed(division, group)

    def _place(self, division: Division, member: Member, *, is_reading: bool = False) -> bool:
        """Puts a member into its lane, and returns whether it was not there. `is_reading`: it goes
        on from where it is."""
        filters = lane_filters(member.subscriptions.values())
        lane, before = division.find(lane_id(filters)), division.by_peer.get(member.peer)
        if lane is not None and lane is before:
            return False
        if before is not None:
            self._take_out(before, member.peer)
        if lane is None:
            self._drop_placeholders(division, filters)
            self._hand_on_at_once(division, filters)
            lane = self.add_lane(division, filters)
            if is_reading:
                lane.rewinds.clear()
        lane.is_placeholder = False
        lane.members[member.peer] = None
        if before is not None:
            lane.newcomers[member.peer] = Newcomer(member.client_id)
        elif member.client_id in lane.awaited:
            lane.newcomers[member.peer] = lane.awaited.pop(member.client_id)
        lane.left, lane.stands_back = None, False
        division.by_peer[member.peer] = lane
        return True

    def _hand_on_at_once(self, division: Division, filters: dict[str, LaneFilter]) -> None:
        """If no member has the old filter of a cut-over when the first with the new one comes, it
        begins with what is left before the cut, and need not be sent back to it."""
        for topic, change in division.cutovers.items():
            if filters.get(topic) == change.new and not any(
                lane.members for lane in division.lanes if lane.filters.get(topic) == change.old
            ):
                change.is_handed = True

    def _drop_placeholders(self, division: Division, filters: dict[str, LaneFilter]) -> None:
        """Drop lanes that stood for members with an old filter, when one is there: the group's
        offset is theirs, so its lane begins at the same place."""
        division.lanes = [
            lane
            for lane in division.lanes
            if not (lane.is_placeholder and lane.filters.items() <= filters.items())
        ]

    def _take_out(self, lane: Lane, peer: Peer) -> None:
        lane.members.pop(peer, None)
        newcomer = lane.newcomers.pop(peer, None)
        if newcomer is not None and len(lane.awaited) < MOST_AWAITED:  # it may connect anew
            lane.awaited[newcomer.client_id] = newcomer
        if not lane.members:
            lane.left = self._clock()

    def add_lane(self, division: Division, filters: dict[str, LaneFilter]) -> Lane:
        """It begins where the group is; with the new filter of a cut-over, at the cut."""
        lane = Lane(lane_id(filters), division.next_born(), filters, left=self._clock())
        for topic in (*filters, division.retry_topic):
            change = division.cutovers.get(topic)
            is_new = change is not None and filters[topic] == change.new and not change.is_handed
            for queue_id, offset in self._offsets.of(division.group, topic).items():
                lane.progress[topic, queue_id] = offset
                division.committed.setdefault((topic, queue_id), offset)
            if change is not None and is_new:
                for queue_id, cut in change.cuts.items():
                    lane.progress[topic, queue_id] = cut
        lane.rewinds = dict(lane.progress)
        division.lanes.append(lane)
        return lane

    def _changed(self, division: Division, group: ConsumerGroup | None) -> None:
        """Who is given what is another now. Members are told if their lane may be another one."""
        division.stamp = object()
        self.rules.changes += 1
        self.rules.on_change()
        self.is_needed = True
        self.wake(division.queues() | division.began.keys())
        if group is not None:
            self.on_divided(group)

    def changed(self, division: Division) -> None:
        self._changed(division, self._consumers.groups.get(division.group))

    def unite(self, division: Division) -> None:
        """The group is as others are again, from its committed offsets on."""
        for queue in division.queues():
            self.write(division, queue)
        self.divisions.pop(division.group, None)
        log.info("group %s: its members are served as one again", division.group)
        group = self._consumers.groups.get(division.group)
        if group is not None:
            group.resubscribe()
            self._rename_locks(group)
            self.on_united(group)
        self._changed(division, group)
        self.is_needed = bool(self.divisions or self.refused)

    def forget(self, group: str) -> None:
        """It is deleted."""
        self.rules.forget(group)
        self.refused.pop(group, None)
        self.is_needed = bool(self.divisions or self.refused)

    # What members ask for.

    def check(self, group: str, peer: Peer) -> Division | None:
        """The group's division, if it is divided. Raises ResponseError for a member that is
        refused."""
        refused = self.refused.get(group)
        if refused is not None and peer in refused:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, refused[peer])
        return self.divisions.get(group)

    def lane(self, group: str, peer: Peer) -> Lane | None:
        """The lane of a member, if its group is divided."""
        division = self.divisions.get(group) if self.is_needed else None
        return division.by_peer.get(peer) if division is not None else None

    def pull_lane(
        self, division: Division, peer: Peer, topic: str, own: LaneFilter | None, version: int
    ) -> Lane | None:
        """The lane that a pull is for; None for a stranger that brings a filter of its own (`own`).
        Raises ResponseError."""
        lane = division.by_peer.get(peer)
        if lane is None and own is not None:  # a member that is connected anew, perhaps
            return next((one for one in division.lanes if one.filters.get(topic) == own), None)
        if lane is None:
            why = (
                f"group {division.group} is served member by member, and this connection is not "
                "known as a member of it yet: send a heartbeat first"
            )
            raise ResponseError(ResponseCode.SUBSCRIPTION_NOT_EXIST, why)
        if not division.reads(lane, topic):
            if own is not None:
                return None
            why = f"the consumer's subscription not exist: group {division.group}, topic {topic}"
            raise ResponseError(ResponseCode.SUBSCRIPTION_NOT_EXIST, why)
        if own is None:
            group = self._consumers.groups.get(division.group)
            member = group.members.get(peer) if group is not None else None
            said = member.subscriptions.get(topic) if member is not None else None
            if said is not None and said.version < version:
                why = "the consumer's subscription not latest"
                raise ResponseError(ResponseCode.SUBSCRIPTION_NOT_LATEST, why)
        if not topic.startswith(RETRY_PREFIX):
            try:
                _ = lane.filters[topic].wanted
            except InvalidFilter as error:
                why = "The broker's consumer filter data is not exist!Your expression may be wrong!"
                why = f"{why} {lane.filters[topic]}: {error}"
                raise ResponseError(ResponseCode.FILTER_DATA_NOT_EXIST, why) from None
        return lane

    def client_ids(self, group: ConsumerGroup, peer: Peer) -> list[str]:
        """Return the client ids that share the queues with a member."""
        lane = self.lane(group.name, peer)
        if lane is None:
            return group.client_ids
        found = (group.members.get(one) for one in lane.members)
        return [member.client_id for member in found if member is not None]

    def lock_name(self, group: str, peer: Peer) -> str:
        """Under which a member's locks are kept."""
        lane = self.lane(group, peer)
        return group if lane is None else f"{group}\0{lane.id}"

    def lane_facts(self, group: str, topic: str, queue_id: int) -> tuple[LaneFacts, ...]:
        """What to judge a message's fate by; nothing if the group is not divided."""
        division, known = self.divisions.get(group), self._consumers.groups.get(group)
        made = []
        for lane in division.lanes if division is not None else ():
            one = lane.filters.get(topic)
            found = [known.members.get(peer) for peer in lane.members] if known is not None else []
            made.append(
                LaneFacts(
                    key=lane.id,
                    filter=Filter(one.kind, one.text) if one is not None else None,
                    committed=lane.progress.get((topic, queue_id)),
                    members=tuple(member.client_id for member in found if member is not None),
                    change=division.change_in((topic, queue_id)) if division is not None else None,
                )
            )
        return tuple(made)

    def readers(self, group: str, topic: str, queues: Collection[int]) -> list[Reader]:
        """The lanes of a group that read a topic, as those that have a lag; none if the group is
        not divided. From any thread."""
        division = self.divisions.get(group)
        made = []
        for lane in list(division.lanes) if division is not None else ():
            one = lane.filters.get(topic)
            if one is None or (division is not None and division.is_broadcast):
                continue
            wanted, why = None, ""
            try:
                wanted = one.wanted
            except InvalidFilter as error:
                why = f"its filter is not used: {error}"
            if one.kind == "CODE":
                why = "its filter is code, which a filter server runs and the broker can't"
            by = ReaderFilter(one.kind, one.text, wanted, why)
            progress = {q: at for q in queues if (at := lane.progress.get((topic, q))) is not None}
            made.append(Reader(group, topic, queues, progress, by, lane=lane.id))
        return made

    # Offsets.

    def commit(self, group: str, topic: str, queue_id: int, offset: int, peer: Peer) -> bool:
        """Returns whether it was taken care of: the group is divided."""
        queue = (topic, queue_id)
        division = self.divisions.get(group)
        if division is None:
            return False
        lane = division.by_peer.get(peer)
        if lane is not None:
            self.commit_lane(division, lane, queue, offset, peer)
            return True
        if division.by_peer:  # a member that is not known yet: it says so again
            why = (
                f"group {group} is served member by member, and only members commit offsets "
                "while there are some"
            )
            raise ResponseError(ResponseCode.SYSTEM_ERROR, why)
        self._offsets.commit(group, *queue, offset)
        self._follow(division, queue)
        return True

    def commit_lane(
        self, division: Division, lane: Lane, queue: Queue, offset: int, peer: Peer
    ) -> None:
        if not division.reads(lane, queue[0]):
            self._offsets.commit(division.group, *queue, offset)
            return
        self._follow(division, queue)
        if lane.is_stale(peer, queue):
            return
        before = lane.progress.get(queue)
        if lane.commit(queue, offset):
            self.rules.changes += 1
            self._recorder.committed(division.group, *queue, before, offset, peer, lane.id)
            self.write(division, queue)
        elif queue not in division.committed:  # the group has no offset yet: tools look for one
            self.write(division, queue)

    def offset(self, group: str, peer: Peer, queue: Queue) -> int | None:
        """Where a member goes on; None if that is not decided by its lane."""
        division = self.divisions.get(group)
        lane = division.by_peer.get(peer) if division is not None else None
        if division is None or lane is None or not division.reads(lane, queue[0]):
            return None
        self._follow(division, queue)
        known = lane.progress.get(queue)
        if known is None and queue in division.began:  # the group has committed nothing yet
            known = lane.progress[queue] = division.began[queue]
            self.rules.changes += 1
        return known

    def write(self, division: Division, queue: Queue) -> None:
        """Commits the least of the lanes' offsets for the group."""
        self._follow(division, queue)
        least = division.least(queue)
        if least is not None:
            division.committed[queue] = least
            self._offsets.commit(division.group, *queue, least)

    def _follow(self, division: Division, queue: Queue) -> None:
        """If someone else moved the group's offset (a reset, a clone), all lanes are moved."""
        offset, known = self._offsets.get(division.group, *queue), division.committed.get(queue)
        if known is None or offset == known:
            return
        log.info("group %s on %s: moved to %s, all lanes follow", division.group, queue, offset)
        self.move(division, queue, offset)

    def reset(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        """Members are told of it themselves; lanes that have none are moved here."""
        division = self.divisions.get(group)
        if division is None:
            return
        for lane in division.lanes:
            if not lane.members and division.reads(lane, topic):
                for queue_id, offset in offsets.items():
                    lane.bands.pop((topic, queue_id), None)
                    lane.progress[topic, queue_id] = offset
        self.rules.changes += 1

    def offsets_set(self, group: str, topic: str) -> None:
        """A tool set the group's offsets: lanes follow at once, so that it is saved."""
        division = self.divisions.get(group)
        if division is None:
            return
        known = {queue for queue in division.queues() if queue[0] == topic}
        for queue in known | {(topic, one) for one in self._offsets.of(group, topic)}:
            self._follow(division, queue)

    def topic_deleted(self, topic: str) -> None:
        """One of the same name counts anew."""
        for division in list(self.divisions.values()):
            tables: list[dict[Queue, Any]] = [division.began, division.committed]
            for lane in division.lanes:
                tables += [lane.progress, lane.rewinds, lane.bands, lane.served]
            is_known = division.cutovers.pop(topic, None) is not None
            for table in tables:
                for queue in [one for one in table if one[0] == topic]:
                    del table[queue]
                    is_known = True
            if is_known:
                self.changed(division)

    def move(self, division: Division, queue: Queue, offset: int | None) -> None:
        """All lanes, to where the group is now."""
        for lane in division.lanes:
            lane.rewinds.pop(queue, None)
            lane.bands.pop(queue, None)
            lane.progress.pop(queue, None)
            if offset is not None and division.reads(lane, queue[0]):
                lane.progress[queue] = offset
        division.committed.pop(queue, None)
        if offset is not None:
            division.committed[queue] = offset
        self.rules.changes += 1


def _shown(filters: dict[str, LaneFilter]) -> str:
    return ", ".join(f"{topic} {one}" for topic, one in sorted(filters.items()))[:1000]
