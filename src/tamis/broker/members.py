"""Who is connected: consumers by group with what the group subscribes to, producers by group.

RocketMQ's `ConsumerManager` and `ProducerManager`. A group has one subscription a topic, whoever of
its members said it last with a higher version: members that differ overwrite each other, and
messages are lost to both. RocketMQ keeps quiet about it; here each member's own is kept beside, and
a difference is logged when it appears.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ..net.aio import Peer
from ..wire.bodies import ConsumerData, Subscription
from ..wire.codes import Language

__all__ = ["ConsumerGroup", "Consumers", "Member", "Producers"]

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Member:
    peer: Peer
    client_id: str
    language: Language
    version: int
    seen: float  # seconds, of the last heartbeat
    subscriptions: dict[str, Subscription] = field(default_factory=dict)  # its own, by topic


@dataclass(slots=True)
class ConsumerGroup:
    name: str
    consume_type: str = ""
    message_model: str = ""
    consume_from_where: str = ""
    members: dict[Peer, Member] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)  # the group's, by topic

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
                said = f"{one.expression_type or 'TAG'} {one.expression}"
                found.setdefault(topic, {}).setdefault(said, []).append(member.client_id)
        return {topic: said for topic, said in found.items() if len(said) > 1}

    def _subscribe(self, subscriptions: Iterable[Subscription]) -> bool:
        """Whether there are topics more or less; a higher version alone is no change."""
        changed = False
        wanted = {one.topic: one for one in subscriptions}
        for topic, one in wanted.items():
            known = self.subscriptions.get(topic)
            if known is None:
                changed = True
                log.info("group %s subscribes to %s: %r", self.name, topic, one.expression)
            elif one.version <= known.version:
                continue
            elif one.expression != known.expression:
                log.info(
                    "group %s on %s: %r, it was %r",
                    *(self.name, topic, one.expression, known.expression),
                )
            self.subscriptions[topic] = one
        for topic in [topic for topic in self.subscriptions if topic not in wanted]:
            del self.subscriptions[topic]
            changed = True
            log.info("group %s subscribes to %s no more", self.name, topic)
        return changed


class Consumers:
    """`on_change`: a group has other members or topics. `on_empty`: its last member left."""

    def __init__(self) -> None:
        self.groups: dict[str, ConsumerGroup] = {}
        self.on_change: Callable[[ConsumerGroup], None] = lambda group: None
        self.on_empty: Callable[[str], None] = lambda group: None
        self._warned: set[tuple[str, str, frozenset[str]]] = set()

    def heartbeat(self, data: ConsumerData, member: Member) -> None:
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
        member.subscriptions = {one.topic: one for one in data.subscriptions}
        group.members[member.peer] = member
        changed = group._subscribe(data.subscriptions)
        if known is None or known.subscriptions != member.subscriptions:
            self._warn_of_differences(group)
        if is_new or changed:
            self.on_change(group)

    def _warn_of_differences(self, group: ConsumerGroup) -> None:
        if len(group.members) < 2:
            return
        for topic, said in group.differences().items():
            key = (group.name, topic, frozenset(said))
            if key not in self._warned:
                self._warned.add(key)
                log.warning(
                    "group %s: its members subscribe differently to %s, messages will be lost: %s",
                    *(group.name, topic, said),
                )

    def leave(self, peer: Peer, group: str) -> None:
        self._leave(peer, self.groups.get(group), "left")

    def drop(self, peer: Peer) -> None:
        """Its connection is gone."""
        for group in list(self.groups.values()):
            self._leave(peer, group, "is gone")

    def _leave(self, peer: Peer, group: ConsumerGroup | None, how: str) -> None:
        member = group.members.pop(peer, None) if group is not None else None
        if group is None or member is None:
            return
        log.info("group %s: %s at %s %s", group.name, member.client_id, peer, how)
        if group.members:
            self.on_change(group)
        else:
            del self.groups[group.name]
            self._warned = {key for key in self._warned if key[0] != group.name}
            self.on_empty(group.name)

    def drop_silent(self, before: float) -> None:
        for group in list(self.groups.values()):
            for member in list(group.members.values()):
                if member.seen < before:
                    log.warning("group %s: %s fell silent", group.name, member.client_id)
                    self._leave(member.peer, group, "is dropped")
                    member.peer.close()

    def subscribers(self, topic: str) -> list[str]:
        """Groups that subscribe to it now."""
        return [name for name, group in self.groups.items() if topic in group.subscriptions]


class Producers:
    def __init__(self) -> None:
        self.groups: dict[str, dict[Peer, Member]] = {}
        self._turn = 0

    def heartbeat(self, group: str, member: Member) -> None:
        members = self.groups.setdefault(group, {})
        if member.peer not in members:
            log.info("producer group %s: %s at %s joined", group, member.client_id, member.peer)
        members[member.peer] = member

    def leave(self, peer: Peer, group: str) -> None:
        members = self.groups.get(group, {})
        if members.pop(peer, None) is not None:
            log.info("producer group %s: %s left", group, peer)
        if not members:
            self.groups.pop(group, None)

    def drop(self, peer: Peer) -> None:
        for group in list(self.groups):
            self.leave(peer, group)

    def drop_silent(self, before: float) -> None:
        for group, members in list(self.groups.items()):
            for member in list(members.values()):
                if member.seen < before:
                    self.leave(member.peer, group)
                    member.peer.close()

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
