"""What brokers, or a store's files, know of consumer groups: progress, members, history.

Asked on the driver, for the job audit. A broker of Apache's keeps no history, and a store's files
do not tell who is connected: then that part is None.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ..client.admin import Admin
from ..client.cluster import masters
from ..client.config import ClientConfig
from ..client.session import Session
from ..client.wirefacts import filter_of
from ..errors import ConsumerOffline, Error, RemoteProtocolError, ResponseError
from ..fate import Filter, FilterChange, History, LaneFacts, Span, View, history_of
from ..security import INSECURE, Security
from ..security.settings import fields_of
from ..store import tables
from ..store.historylines import NAME, read_lines
from ..wire import beans, bodies, headers
from ..wire.codes import RequestCode, ResponseCode
from .concluding import CONCLUDED, concluded_spans

__all__ = ["BrokerGroups", "Members", "ask_brokers", "disagreements", "read_store"]

Offsets = Mapping[tuple[str, str], Mapping[int, int]]  # by topic and group, by queue

_AT_ONCE: Final = 16  # questions to a broker


@dataclass(frozen=True, slots=True)
class Members:
    """A group's members that are connected now, and what it subscribes to by topic."""

    client_ids: tuple[str, ...]
    consume_type: str
    message_model: str
    subscriptions: Mapping[str, Filter]


@dataclass(frozen=True, slots=True)
class GroupRules:
    """What was decided about groups whose members disagree."""

    isolated: frozenset[str] = frozenset()  # groups whose members are each served as they want
    divided: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)  # lanes
    changes: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)  # of filters

    def lanes(self, group: str, topic: str, queue_id: int) -> tuple[LaneFacts, ...]:
        """Return what a fate on the queue is judged by; nothing if the group is not divided."""
        made = []
        for lane in self.divided.get(group, ()):
            by = lane["filters"].get(topic)
            progress = [one["offset"] for one in lane["progress"]
                        if (one["topic"], one["queue"]) == (topic, queue_id)]  # fmt: skip
            made.append(
                LaneFacts(
                    key=lane["id"],
                    filter=None if by is None else Filter(by["kind"], by["text"]),
                    committed=progress[0] if progress else None,
                    members=tuple(lane["members"]),
                    change=self._change(group, topic, queue_id),
                )
            )
        return tuple(made)

    def _change(self, group: str, topic: str, queue_id: int) -> FilterChange | None:
        for one in self.changes.get(group, ()):
            if one["topic"] == topic:
                old, new = (Filter(by["kind"], by["text"]) for by in (one["old"], one["new"]))
                cut = one["cuts"].get(str(queue_id), 0)
                return FilterChange(cut, old, new, one["isHanded"])
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerGroups:
    """All groups of some topics, as one broker knows them."""

    broker: str
    history: History | None
    offsets: Offsets
    members: Mapping[str, Members | None] | None  # None of a group: nobody is connected
    unknown: tuple[str, ...] = ()  # sentences on what could not be found out
    rules: GroupRules = field(default_factory=GroupRules)
    # By group, topic and queue, where there is no history: a span that was concluded.
    standing: Mapping[tuple[str, str, int], tuple[Span, View]] = field(default_factory=dict)
    filter_servers: tuple[str, ...] | None = None  # beside it; None of a store's files


def ask_brokers(
    nameserver: str, topics: Iterable[str], timeout: float, security: Security = INSECURE
) -> list[BrokerGroups]:
    """Return what each broker that has one of the topics knows. Raises Error, TimeoutError."""

    async def ask() -> list[BrokerGroups]:
        config = ClientConfig(
            **fields_of(security),
            timeout=timeout,
            connect_timeout=timeout,
            heartbeat_interval=3600.0,
        )
        session = Session("audit", nameserver, config)
        await session.start()
        try:
            known = await masters(session)
            having = {
                queue.broker_name
                for topic in topics
                for queue in await session.routes.read_queues(topic)
            }
            asked = [_ask_broker(session, name, known[name], topics)
                     for name in sorted(having) if name in known]  # fmt: skip
            return list(await asyncio.gather(*asked))
        finally:
            await session.close()

    topics = tuple(topics)
    return asyncio.run(ask())


async def _ask_broker(
    session: Session, broker: str, address: str, topics: Iterable[str]
) -> BrokerGroups:
    answer = await session.ask(address, RequestCode.GET_ALL_CONSUMER_OFFSET)
    table = beans.decode(bodies.OffsetWrapper, answer.body).offsets
    offsets: dict[tuple[str, str], Mapping[int, int]] = {}
    for name, queues in table.items():
        topic, _, group = name.partition("@")
        offsets[topic, group] = queues
    history = await _history(session, broker, address, topics)
    rules = GroupRules() if history is None else await _rules(session, address)
    groups = {group for topic, group in offsets if topic in topics}
    if history is not None:
        groups |= {group for group, topic in history.groups if topic in topics}
    groups |= await _subscribers(session, address, topics)
    members = await _all(sorted(groups), lambda group: _members(session, address, group))
    standing: dict[tuple[str, str, int], tuple[Span, View]] = {}
    unknown: tuple[str, ...] = ()
    if history is None:
        unknown = (f"{broker} keeps no history of who read what",)
        standing = await concluded_spans(session, broker, topics, sorted(groups), offsets)
        if standing:
            unknown = (CONCLUDED.format(broker=broker),)
    return BrokerGroups(
        broker=broker,
        history=history,
        offsets=offsets,
        members=members,
        unknown=unknown,
        rules=rules,
        standing=standing,
        filter_servers=await _filter_servers(session, address, topics),
    )


async def _filter_servers(session: Session, address: str, topics: Iterable[str]) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for topic in topics:
        route = await session.routes.get(topic)
        found |= dict.fromkeys(route.filter_servers.get(address) or ())
    return tuple(found)


async def _rules(session: Session, address: str) -> GroupRules:
    try:
        answer = await session.ask(address, headers.GetGroupRules())
    except ResponseError:  # a broker that keeps history, but has no policies
        return GroupRules()
    groups = json.loads(answer.body)["groups"]
    return GroupRules(
        frozenset(one["group"] for one in groups if one["policy"] == "isolate"),
        {one["group"]: one["lanes"] for one in groups if one["lanes"]},
        {one["group"]: one["cutovers"] for one in groups if one["cutovers"]},
    )


async def _history(
    session: Session, broker: str, address: str, topics: Iterable[str]
) -> History | None:
    """Return the broker's of these topics, None if it keeps none."""
    known: History | None = None
    for topic in topics:
        try:
            answer = await session.ask(address, headers.GetHistory(topic=topic))
        except ResponseError as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return None
            raise
        try:
            history = History.from_json(json.loads(answer.body))
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise RemoteProtocolError(f"the history of {broker} can't be read: {error!r}") from None
        if known is None:
            known = history
        known.groups |= history.groups
    return known


async def _subscribers(session: Session, address: str, topics: Iterable[str]) -> set[str]:
    """Return groups that subscribe to a topic now, also those without progress."""
    found: set[str] = set()
    for topic in topics:
        header = headers.OfTopic(topic=topic)
        try:
            code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
            answer = await session.ask(address, header, code=code)
        except ResponseError:
            continue  # a broker that does not say: groups with progress are known all the same
        found |= set(json.loads(answer.body or b"{}").get("groupList") or ())
    return found


async def _members(session: Session, address: str, group: str) -> Members | None:
    header = headers.OfConsumerGroup(consumer_group=group)
    try:
        code = RequestCode.GET_CONSUMER_CONNECTION_LIST
        answer = await session.ask(address, header, code=code)
    except ConsumerOffline:
        return None
    except ResponseError as error:
        if error.code == ResponseCode.SYSTEM_ERROR:  # as some versions say that nobody is there
            return None
        raise
    found = beans.decode(bodies.ConsumerConnection, answer.body)
    return Members(
        tuple(sorted(one.client_id for one in found.connections)),
        found.consume_type,
        found.message_model,
        {topic: filter_of(one) for topic, one in found.subscriptions.items()},
    )


async def _all(
    groups: Iterable[str], ask: Callable[[str], Awaitable[Members | None]]
) -> dict[str, Members | None]:
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(group: str) -> tuple[str, Members | None]:
        async with gate:
            return group, await ask(group)

    return dict(await asyncio.gather(*map(one, groups)))


def read_store(root: str, broker: str = "") -> BrokerGroups:
    """Return what the files of a store's directory tell. Raises Error."""
    folder = Path(root) / "config"
    try:
        offsets = tables.load_consumer_offsets(folder)
        history = history_of(read_lines(folder / NAME))
    except (OSError, ValueError) as error:
        raise Error(f"{folder}: {error}") from None
    unknown = ["who is connected now is not in the files: who was when they were written counts"]
    if history is None:
        unknown.append(f"{folder} has no history of who read what")
    else:
        history.broker = broker
    return BrokerGroups(
        broker=broker, history=history, offsets=offsets, members=None, unknown=tuple(unknown)
    )


def disagreements(
    nameserver: str,
    wanted: Iterable[tuple[str, str]],
    timeout: float,
    security: Security = INSECURE,
) -> dict[tuple[str, str], str]:
    """Return what members of groups subscribe to that differs now, by group and topic, for a person
    to read. A broker's history tells, or else the members themselves. Raises Error,
    TimeoutError."""
    pairs = list(wanted)
    found: dict[tuple[str, str], str] = {}
    topics = sorted({topic for _, topic in pairs})
    for broker in ask_brokers(nameserver, topics, timeout, security):
        for group, topic in pairs:
            if group in broker.rules.isolated:
                continue  # a copy goes to members that want it
            if broker.history is None:
                said = _asked_of_members(nameserver, group, topic, timeout, security)
            else:
                said = _in_history(broker.history, group, topic)
            if said:
                found[group, topic] = said
    return found


def _in_history(history: History, group: str, topic: str) -> str:
    known = history.groups.get((group, topic))
    if known is None or not known.views:
        return ""
    filters = known.views[max(known.views)].filters
    if len(filters) < 2:
        return ""
    return "; ".join(f"{members[0]} to {by}" for by, members in filters.items() if members)


def _asked_of_members(
    nameserver: str, group: str, topic: str, timeout: float, security: Security
) -> str:
    config = ClientConfig(**fields_of(security), timeout=timeout)

    async def ask() -> list[str]:
        async with Admin(nameserver, config=config) as admin:
            try:
                known = (await admin.group(group)).mismatches
            except Error:  # nobody is there, or a member does not answer
                return []
            return [f"{one.client_id} not as the broker has it" for one in known
                    if one.topic == topic]  # fmt: skip

    return "; ".join(asyncio.run(ask()))
