"""Who is connected: consumers by group with what the group subscribes to, producers by group.

RocketMQ's `ConsumerManager` and `ProducerManager`. A group has one subscription a topic, whoever of
its members said it last with a higher version: members that differ overwrite each other, and
messages are lost to both. RocketMQ keeps quiet about it; here each member's own is kept beside, and
a difference is logged when it appears.
"""

import logging
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from ..net.aio import Peer
from ..wire.bodies import ConsumerData, Subscription
from ..wire.codes import Language
from .lanes import lane_filters
from .topics import RETRY_PREFIX

__all__ = ["ConsumerGroup", "Consumers", "Member", "Producers"]

log = logging.getLogger(__name__)

_LOGGED: Final = 16  # lines for one heartbeat
_SILENT_STEP: Final = 200  # groups looked through at once
_MOST_WARNINGS: Final = 1000  # remembered of a group, so that each is given once


@dataclass(slots=True)
class Member:
    peer: Peer
    client_id: str
    language: Language
    version: int
    seen: float  # seconds, of the last heartbeat
    subscriptions: dict[str, Subscription] = field(default_factory=dict)  # its own, by topic
    weight: int = 0  # bytes that keeping these takes, if they are many


@dataclass(slots=True)
class ConsumerGroup:
    name: str
    consume_type: str = ""
    message_model: str = ""
    consume_from_where: str = ""
    members: dict[Peer, Member] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)  # the group's, by topic
    # by topic, what members subscribe to, and how many to each
    _said: dict[str, Counter[str]] = field(default_factory=dict)
    _warned: set[tuple[str, frozenset[str]]] = field(default_factory=set)

    @property
    def client_ids(self) -> list[str]:
        return [member.client_id for member in self.members.values()]

    def find(self, client_id: str) -> Member | None:
        return next((m for m in self.members.values() if m.client_id == client_id), None)

    def differences(self) -> dict[str, dict[str, list[str]]]:
        """Topics whose expression is not the same for all members: expression to client ids."""
        found: dict[str, dict[str, list[str]]] = {}
        for member in self.members.values():
            for topic, one in member.subscriptions.items():
                found.setdefault(topic, {}).setdefault(_text(one), []).append(member.client_id)
        return {topic: said for topic, said in found.items() if len(said) > 1}

    def agrees(self) -> bool:
        """Whether all members want the same, however they write it."""
        count = len(self.members)
        for topic, said in self._said.items():
            if not topic.startswith(RETRY_PREFIX) and (len(said) > 1 or said.total() != count):
                break
        else:
            return True
        several = (lane_filters(one.subscriptions.values()) for one in self.members.values())
        first = next(several)
        return all(one == first for one in several)

    def resubscribe(self) -> None:
        """The group's subscriptions are what its members subscribe to, whatever was before."""
        self.subscriptions = {}
        for member in self.members.values():
            self.subscriptions |= member.subscriptions

    def _join(self, member: Member) -> bool:
        """In the place of what it was, if it was there. Returns whether it subscribes to something
        else."""
        before = self.members.get(member.peer)
        self.members[member.peer] = member
        member.peer.kept += member.weight - (before.weight if before is not None else 0)
        if before is not None:
            if before.subscriptions == member.subscriptions:
                return False
            self._forget(before)
        for topic, one in member.subscriptions.items():
            self._said.setdefault(topic, Counter())[_text(one)] += 1
        self._warn_of_differences(member.subscriptions)
        return True

    def _forget(self, member: Member) -> None:
        for topic, one in member.subscriptions.items():
            said, text = self._said[topic], _text(one)
            said[text] -= 1
            if not said[text]:
                del said[text]
            if not said:
                del self._said[topic]

    def _warn_of_differences(self, topics: Iterable[str]) -> None:
        count = 0
        for topic in topics:
            said = self._said[topic]
            key = (topic, frozenset(said))
            if len(said) < 2 or key in self._warned or count == _LOGGED:
                continue
            if len(self._warned) >= _MOST_WARNINGS:
                self._warned.clear()
            self._warned.add(key)
            count += 1
            who: dict[str, list[str]] = {}
            for member in self.members.values():
                if topic in member.subscriptions:
                    who.setdefault(_text(member.subscriptions[topic]), []).append(member.client_id)
            log.warning(
                "group %s: its members subscribe differently to %s: %.2000s",
                *(self.name, topic, who),
            )

    def _with_topics_of_others(self, said: list[Subscription]) -> list[Subscription]:
        named = {one.topic for one in said}
        known = self.subscriptions
        return said + [known[one] for one in self._said if one not in named and one in known]

    def _make_way_for(self, said: Iterable[Subscription]) -> None:
        for one in said:
            known = self.subscriptions.get(one.topic)
            if known is not None and _text(known) != _text(one):
                del self.subscriptions[one.topic]

    def _subscribe(self, subscriptions: Iterable[Subscription]) -> bool:
        """Whether there are topics more or less; a higher version alone is no change."""
        count, changed = 0, False
        wanted = {one.topic: one for one in subscriptions}
        for topic, one in wanted.items():
            known = self.subscriptions.get(topic)
            if known is None:
                changed = True
                count += 1
                if count <= _LOGGED:
                    log.info("group %s subscribes to %s: %.200r", self.name, topic, one.expression)
            elif one.version <= known.version:
                continue
            elif one.expression != known.expression:
                count += 1
                if count <= _LOGGED:
                    log.info(
                        "group %s on %s: %.200r, it was %.200r",
                        *(self.name, topic, one.expression, known.expression),
                    )
            self.subscriptions[topic] = one
        if count > _LOGGED:
            log.info("group %s: and %d subscriptions more", self.name, count - _LOGGED)
        gone = [topic for topic in self.subscriptions if topic not in wanted]
        for topic in gone:
            del self.subscriptions[topic]
        if gone:
            shown = ", ".join(gone[:_LOGGED]) + (", ..." if len(gone) > _LOGGED else "")
            log.info("group %s subscribes to %s no more", self.name, shown)
        return changed or bool(gone)


def _text(one: Subscription) -> str:
    kind = "CODE" if one.class_filter_mode else one.expression_type or "TAG"
    return f"{kind} {one.expression}"


class Consumers:
    """`on_change`: a group has other members or topics. `on_empty`: its last member left.
    `on_member`: a member subscribes to something else than before, which is given; to nothing at
    all if it left. `on_leave`: a member left. `on_reset`: members are told to go elsewhere in a
    topic."""

    def __init__(self) -> None:
        self.groups: dict[str, ConsumerGroup] = {}
        self.on_change: Callable[[ConsumerGroup], None] = lambda group: None
        self.on_empty: Callable[[str], None] = lambda group: None
        self.on_member: Callable[[ConsumerGroup, Member, Mapping[str, Subscription]], None] = (
            lambda group, member, before: None
        )
        self.on_leave: Callable[[ConsumerGroup, Member], None] = lambda group, member: None
        self.on_reset: Callable[[str, str, Mapping[int, int]], None] = lambda *_: None
        self._groups_of: dict[Peer, dict[str, None]] = {}
        self.count = 0  # memberships

    def groups_of(self, peer: Peer) -> Mapping[str, None]:
        """Names of the groups that a connection is in."""
        return self._groups_of.get(peer, {})

    def heartbeat(
        self,
        data: ConsumerData,
        member: Member,
        *,
        is_divided: bool = False,
        is_agreed: bool = False,
    ) -> bool:
        """`is_divided`: members may differ, and each is served by its own. `is_agreed`: they do not
        differ, so what this one says holds, whatever its version. Returns whether the member is
        new or says something else than before."""
        group = self.groups.get(data.group)
        if group is None:
            group = self.groups[data.group] = ConsumerGroup(data.group)
        # the last one to speak decides for all
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        known = group.members.get(member.peer)
        is_new = known is None
        if known is not None:
            if known.client_id != member.client_id:
                log.warning(
                    "group %s: %s was %s and is now %s",
                    *(data.group, member.peer, known.client_id, member.client_id),
                )
        else:
            if group.find(member.client_id) is not None:
                log.warning(
                    "group %s: two members call themselves %s: some queues will be consumed by "
                    "both, some by nobody; give each an instance name of its own",
                    *(data.group, member.client_id),
                )
            log.info("group %s: %s at %s joined", data.group, member.client_id, member.peer)
            self._groups_of.setdefault(member.peer, {})[data.group] = None
            self.count += 1
        member.subscriptions = {one.topic: one for one in data.subscriptions}
        said = data.subscriptions
        if is_divided:
            said = group._with_topics_of_others(said)
        elif is_agreed:
            group._make_way_for(said)
        changed = group._subscribe(said)
        is_other = group._join(member)
        if is_other:
            self.on_member(group, member, known.subscriptions if known is not None else {})
        if is_new or changed:
            self.on_change(group)
        return is_new or is_other

    def leave(self, peer: Peer, group: str) -> None:
        self._leave(peer, self.groups.get(group), "left")

    def drop(self, peer: Peer) -> None:
        """Its connection is gone."""
        for _ in self.drop_steps(peer):
            pass

    def drop_steps(self, peer: Peer) -> Generator[None, None, None]:
        """As `drop`, one group a step."""
        for name in list(self.groups_of(peer)):
            self._leave(peer, self.groups.get(name), "is gone")
            yield

    def _leave(self, peer: Peer, group: ConsumerGroup | None, how: str) -> None:
        member = group.members.pop(peer, None) if group is not None else None
        if group is None or member is None:
            return
        log.info("group %s: %s at %s %s", group.name, member.client_id, peer, how)
        self.count -= 1
        peer.kept -= member.weight
        names = self._groups_of[peer]
        del names[group.name]
        if not names:
            del self._groups_of[peer]
        if group.members:
            group._forget(member)
        else:
            del self.groups[group.name]
        before, member.subscriptions = member.subscriptions, {}
        self.on_leave(group, member)
        self.on_member(group, member, before)
        if group.members:
            self.on_change(group)
        else:
            self.on_empty(group.name)

    def drop_silent(self, before: float) -> Iterator[None]:
        """Step by step: there may be a hundred thousand of them."""
        for number, group in enumerate(list(self.groups.values())):
            for member in list(group.members.values()):
                if member.seen < before and member.peer in group.members:
                    log.warning("group %s: %s fell silent", group.name, member.client_id)
                    self._leave(member.peer, group, "is dropped")
                    member.peer.close()
            if number % _SILENT_STEP == 0:
                yield

    def subscribers(self, topic: str) -> list[str]:
        """Groups that subscribe to it now."""
        return [name for name, group in self.groups.items() if topic in group.subscriptions]


class Producers:
    def __init__(self) -> None:
        self.groups: dict[str, dict[Peer, Member]] = {}
        self._groups_of: dict[Peer, dict[str, None]] = {}
        self._turn = 0
        self.count = 0  # memberships

    def groups_of(self, peer: Peer) -> Mapping[str, None]:
        """Names of the groups that a connection is in."""
        return self._groups_of.get(peer, {})

    def heartbeat(self, group: str, member: Member) -> None:
        members = self.groups.setdefault(group, {})
        if member.peer not in members:
            log.info("producer group %s: %s at %s joined", group, member.client_id, member.peer)
            self._groups_of.setdefault(member.peer, {})[group] = None
            self.count += 1
        members[member.peer] = member

    def leave(self, peer: Peer, group: str) -> None:
        members = self.groups.get(group, {})
        if members.pop(peer, None) is not None:
            log.info("producer group %s: %s left", group, peer)
            self.count -= 1
            names = self._groups_of[peer]
            del names[group]
            if not names:
                del self._groups_of[peer]
        if not members:
            self.groups.pop(group, None)

    def drop(self, peer: Peer) -> None:
        """Its connection is gone."""
        for _ in self.drop_steps(peer):
            pass

    def drop_steps(self, peer: Peer) -> Generator[None, None, None]:
        """As `drop`, one group a step."""
        for group in list(self.groups_of(peer)):
            self.leave(peer, group)
            yield

    def drop_silent(self, before: float) -> Iterator[None]:
        """Step by step, as of consumers."""
        for number, (group, members) in enumerate(list(self.groups.items())):
            for member in list(members.values()):
                if member.seen < before:
                    self.leave(member.peer, group)
                    member.peer.close()
            if number % _SILENT_STEP == 0:
                yield

    def any_of(self, group: str) -> Member | None:
        """One of the group, in turn."""
        members = list(self.groups.get(group, {}).values())
        self._turn += 1
        return members[self._turn % len(members)] if members else None

    def find(self, client_id: str) -> Member | None:
        for members in self.groups.values():
            for member in members.values():
                if member.client_id == client_id:
                    return member
        return None
