"""For tools: topics, groups, offsets, messages and brokers of a cluster, Tamis's or RocketMQ's.

What a cluster has is asked of all its masters and put together; a master that does not answer is an
error, for half the truth looks like the whole of it.
"""

import asyncio
import time
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, ClassVar, Final, Literal, Self

from ..errors import ConfigError, Error, GroupNotFound, TopicNotFound
from ..fate import Judgement
from ..wire import beans, bodies, headers
from ..wire.bodies import MessageQueue, Perm, Subscription
from ..wire.codes import RequestCode, ResponseCode, version_name
from . import explaining, grouprules, lag, lookups, resets
from .cluster import BrokerInfo, brokers, each, masters, places
from .config import ClientConfig, Moment, check_group, check_topic, millis
from .groupmembers import connections, running_info
from .received import RETRY_PREFIX, ReceivedMessage, retry_topic
from .reports import (
    GroupInfo,
    GroupMember,
    MatchingLag,
    QueueInfo,
    QueueProgress,
    TopicInfo,
    TopicPlace,
    is_system_group,
    mismatches,
)
from .session import Session

__all__ = ["Admin"]

_DEFAULTS: Final = ClientConfig()
_SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
_ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
_PERMISSIONS: Final = {"rw": Perm.READ | Perm.WRITE, "r": Perm.READ, "w": Perm.WRITE}


@dataclass(frozen=True, slots=True, kw_only=True)
class _DeleteKvConfig(headers.OfKvConfig):
    CODE: ClassVar = RequestCode.DELETE_KV_CONFIG


class Admin:
    """Made and used in one event loop; `async with` starts and closes it."""

    def __init__(self, nameserver: str, *, config: ClientConfig = _DEFAULTS) -> None:
        self._session = Session("admin", nameserver, config)

    async def start(self) -> None:
        """Does not talk to anyone yet."""
        await self._session.start()

    async def close(self) -> None:
        await self._session.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    # Brokers

    async def brokers(self) -> list[BrokerInfo]:
        """Masters and slaves that are registered."""
        return await brokers(self._session)

    async def cluster(self) -> dict[str, list[BrokerInfo]]:
        """The same, by the name of their cluster."""
        made: dict[str, list[BrokerInfo]] = {}
        for broker in await self.brokers():
            made.setdefault(broker.cluster, []).append(broker)
        return made

    async def filter_servers(self) -> list[str]:
        """Addresses of the filter servers that brokers speak of. Routes name them; there is one
        for each broker's and each cluster's own name, and for the topic of self tests."""
        found = await self.brokers()
        topics = {_SELF_TEST_TOPIC}.union(*({one.name, one.cluster} for one in found))
        addresses = dict[str, None]()
        for topic in sorted(topics):
            with suppress(TopicNotFound):
                answer = await self._session.ask_nameserver(headers.GetRoute(topic=topic))
                route = beans.decode(bodies.TopicRoute, answer.body)
                for several in route.filter_servers.values():
                    addresses |= dict.fromkeys(several)
        return sorted(addresses)

    async def broker_stats(self, broker: str) -> dict[str, str]:
        """By its name, then the master's, or by an address. RocketMQ's names and units; its 4.9
        refuses in the first ten seconds of its life."""
        address = broker if ":" in broker else await self._session.routes.master(broker)
        answer = await self._session.ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return dict(sorted(beans.decode(bodies.KvTable, answer.body).table.items()))

    # Topics

    async def topics(self, *, all: bool = False) -> list[str]:
        """Those of users, dead letters among them; with `all` retries and the system's too."""
        answer = await self._session.ask_nameserver(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        names = set(beans.decode(bodies.TopicList, answer.body).topics)
        if not all:
            names -= await self._system_topics()
            names = {name for name in names if not name.startswith(RETRY_PREFIX)}
        return sorted(names)

    async def _system_topics(self) -> set[str]:
        """A broker that does not answer does not hide the topics there are."""
        answer = await self._session.ask_nameserver(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)
        found = set(beans.decode(bodies.TopicList, answer.body).topics)

        async def ask(name: str, address: str) -> set[str]:
            try:
                answer = await self._session.ask(
                    address, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER
                )
            except (ConnectionError, TimeoutError):
                return set()
            return set(beans.decode(bodies.TopicList, answer.body).topics)

        asked = {one.name: one.address for one in await self.brokers() if one.is_master}
        return found.union(*(await each(asked, ask)).values())

    async def create_topic(
        self,
        name: str,
        *,
        queues: int = 4,
        permission: str = "rw",
        cluster: str | None = None,
        broker: str | None = None,
        order: bool = False,
    ) -> list[str]:
        """Or change it: on all masters, on those of a cluster or on one. Gives their names, once
        the name server has the topic at all of them.

        With `order` its queues are the same for all clients even when a broker is away.
        """
        check_topic(name)
        if permission not in _PERMISSIONS:
            raise ConfigError(f"permission = {permission!r}: it is rw, r or w")
        if not 1 <= queues <= 10_000:
            raise ConfigError(f"queues = {queues}: it takes 1 to 10,000")
        asked = await masters(self._session, cluster, broker)
        header = headers.CreateTopic(
            topic=name,
            default_topic="TBW102",  # not used, but asked for
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=int(_PERMISSIONS[permission]),
            topic_filter_type=bodies.TopicFilterType.SINGLE_TAG,
            order=order,
        )
        await each(asked, lambda _, address: self._session.ask(address, header))
        if order:
            await self._set_order(name, dict.fromkeys(asked, queues), merge=broker is not None)
        await self._appearance(name, set(asked), queues, _PERMISSIONS[permission])
        return sorted(asked)

    async def _set_order(self, topic: str, queues: dict[str, int], *, merge: bool) -> None:
        if merge:
            header = headers.OfKvConfig(namespace=_ORDER_NAMESPACE, key=topic)
            answer = await self._session.ask_nameserver(
                header,
                code=RequestCode.GET_KV_CONFIG,
                accept=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
            )
            if answer.code == ResponseCode.SUCCESS:
                known = headers.ValueResponse.from_fields(answer.fields).value or ""
                pairs = [part.split(":") for part in known.split(";") if ":" in part]
                queues = {name: int(count) for name, count in pairs} | queues
        value = ";".join(f"{name}:{count}" for name, count in sorted(queues.items()))
        await self._session.ask_nameservers(
            headers.PutKvConfig(namespace=_ORDER_NAMESPACE, key=topic, value=value)
        )

    async def _appearance(self, topic: str, brokers: set[str], queues: int, perm: Perm) -> None:
        """Of a topic at the name server: brokers tell it when they have answered."""
        deadline = time.monotonic() + self._session.config.timeout
        while True:
            try:
                route = await self._session.routes.get(topic, fresh=True)
                known = {
                    one.broker_name
                    for one in route.queues
                    if one.read_queues == one.write_queues == queues and one.perm == perm
                }
            except TopicNotFound:
                known = set()
            if brokers <= known:
                return
            if time.monotonic() > deadline:
                missing = ", ".join(sorted(brokers - known))
                raise Error(
                    f"topic {topic} is made, but the name server {self._session.nameserver} does"
                    f" not have it at {missing} yet: is that broker registered with it?"
                )
            await asyncio.sleep(0.02)

    async def delete_topic(self, name: str) -> None:
        """At all brokers, then at the name servers. Raises TopicNotFound."""
        asked = await places(self._session, name)
        header = headers.OfTopic(topic=name)
        code = RequestCode.DELETE_TOPIC_IN_BROKER
        await each(asked, lambda _, address: self._session.ask(address, header, code=code))
        await self._session.ask_nameservers(headers.DeleteTopicInNameServer(topic=name))
        await self._session.ask_nameservers(_DeleteKvConfig(namespace=_ORDER_NAMESPACE, key=name))

    async def topic(self, name: str) -> TopicInfo:
        """Raises TopicNotFound."""
        asked = await places(self._session, name)
        route = await self._session.routes.get(name)
        header = headers.OfTopic(topic=name)

        async def ask(_: str, address: str) -> tuple[list[QueueInfo], list[str]]:
            code = RequestCode.GET_TOPIC_STATS_INFO
            stats = await self._session.ask(address, header, code=code)
            code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
            groups = await self._session.ask(address, header, code=code)
            queues = beans.decode(bodies.TopicStats, stats.body).queues
            return [
                QueueInfo(
                    queue=queue,
                    first=max(one.min_offset, 0),
                    end=max(one.max_offset, 0),
                    last_stored=one.last_update_timestamp or None,
                )
                for queue, one in queues.items()
            ], beans.decode(bodies.GroupList, groups.body).groups

        found = (await each(asked, ask)).values()
        groups = {group for _, some in found for group in some}
        if name in groups and name not in await self.groups(all=True):
            groups.remove(name)  # 5.3.3's `ConsumerManager` puts the topic where the group belongs
        return TopicInfo(
            name=name,
            places=[
                TopicPlace(
                    broker=one.broker_name,
                    read_queues=one.read_queues,
                    write_queues=one.write_queues,
                    permission=_permission(one.perm),
                )
                for one in sorted(route.queues, key=lambda one: one.broker_name)
            ],
            queues=sorted((one for some, _ in found for one in some), key=lambda one: one.queue),
            groups=sorted(groups),
        )

    # Groups

    async def groups(self, *, all: bool = False) -> list[str]:
        """Those any broker knows; with `all` the system's too."""
        found: set[str] = set().union(*(await self._group_tables()).values())
        if not all:
            found = {name for name in found if not is_system_group(name)}
        return sorted(found)

    async def _group_tables(self) -> dict[str, dict[str, bodies.GroupConfig]]:
        """By broker."""

        async def ask(_: str, address: str) -> dict[str, bodies.GroupConfig]:
            code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
            answer = await self._session.ask(address, code)
            return beans.decode(bodies.GroupTable, answer.body).groups

        return await each(await masters(self._session), ask)

    async def _group_settings(self, group: str) -> dict[str, bodies.GroupConfig]:
        """By the brokers that know it. Raises GroupNotFound."""
        tables = await self._group_tables()
        found = {name: table[group] for name, table in tables.items() if group in table}
        if not found:
            raise GroupNotFound(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"group {group} is not known to any broker: start a consumer of it, create it"
                f" (tamis groups create {group}), or check the spelling",
            )
        return found

    async def create_group(
        self,
        name: str,
        *,
        retries: int = 16,
        enabled: bool = True,
        broadcast: bool = True,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Or change it: what is not given is as here. Gives the brokers' names."""
        check_group(name)
        if not 0 <= retries < 2**31:
            raise ConfigError(f"retries = {retries}: it takes 0 or more")
        asked = await masters(self._session, cluster, broker)
        settings = bodies.GroupConfig(
            name=name,
            retry_max_times=retries,
            consume_enabled=enabled,
            consume_broadcast_enabled=broadcast,
        )
        code, body = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, beans.encode(settings)
        await each(asked, lambda _, address: self._session.ask(address, code, body))
        return sorted(asked)

    async def delete_group(self, name: str) -> None:
        """With its offsets and the messages it was to be given again; its dead letters stay.
        Raises GroupNotFound, and Error if it has members: they would bring it back."""
        known = await self._group_settings(name)
        if members := await connections(self._session, name):
            clients = {one.client_id for found in members.values() for one in found.connections}
            raise Error(f"group {name} has members ({', '.join(sorted(clients))}): stop them first")
        everyone = await masters(self._session)
        asked = {one: everyone[one] for one in known}
        header = headers.DeleteGroup(group_name=name, remove_offset=True, clean_offset=True)
        await each(asked, lambda _, address: self._session.ask(address, header))
        with suppress(TopicNotFound):  # it never had a member
            await self.delete_topic(retry_topic(name))

    async def set_group_policy(self, group: str, policy: str) -> list[dict[str, Any]]:
        """What becomes of members that disagree: `rocketmq`, `reject`, `isolate`, or `default` for
        each broker's own setting. At all masters; returns the rules each of them has then. Raises
        Error if one is not Tamis's."""
        check_group(group)
        return await grouprules.set_policy(self._session, group, policy)

    async def set_group_filter(
        self,
        group: str,
        topic: str,
        *,
        tags: str | None = None,
        sql: str | None = None,
        start: Literal["now"] | int | Mapping[int, int] | None = None,
        time: Moment | None = None,
        old_tags: str | None = None,
        old_sql: str | None = None,
    ) -> list[dict[str, Any]]:
        """Has another filter in force from an offset, from a time, or from each queue's end on
        (`now`, if nothing is given); before it the old filter holds. At all masters that have the
        topic; returns what each of them decided."""
        check_group(group)
        check_topic(topic)
        new, old = grouprules.expression(tags, sql), None
        if old_tags is not None or old_sql is not None:
            old = grouprules.expression(old_tags, old_sql)
        begin = grouprules.start(start, millis(time) if time is not None else None)
        return await grouprules.set_filter(self._session, group, topic, new, old, begin)

    async def cancel_group_filter(self, group: str, topic: str) -> list[dict[str, Any]]:
        """Ends a cut-over before it is done."""
        return await grouprules.cancel_filter(self._session, group, topic)

    async def group_rules(self, group: str | None = None) -> list[dict[str, Any]]:
        """Policies, cut-overs and lanes, of one group or of all that have some, by broker. A broker
        that is not Tamis's has none and is left out."""
        return await grouprules.get(self._session, group)

    async def group(self, name: str) -> GroupInfo:
        """Raises GroupNotFound."""
        known = await self._group_settings(name)
        connected = await connections(self._session, name)
        subscriptions: dict[str, Subscription] = {}
        asking: dict[str, Awaitable[GroupMember]] = {}
        for broker, found in connected.items():
            subscriptions |= found.subscriptions
            for one in found.connections:
                if one.client_id not in asking:
                    asking[one.client_id] = self._member(name, broker, one)
        members = await asyncio.gather(*asking.values())
        some = next(iter(connected.values()), None)
        settings = next(iter(known.values()))
        return GroupInfo(
            name=name,
            brokers=sorted(known),
            retries=settings.retry_max_times,
            is_enabled=settings.consume_enabled,
            members=sorted(members, key=lambda one: one.client_id),
            subscriptions=dict(sorted(subscriptions.items())),
            mismatches=mismatches(name, members, connected),
            consume_type=some.consume_type if some is not None else "",
            message_model=some.message_model if some is not None else "",
            consume_from_where=some.consume_from_where if some is not None else "",
        )

    async def _member(self, group: str, broker: str, one: bodies.Connection) -> GroupMember:
        """What it says itself; the broker asks it for us."""
        member = GroupMember(
            client_id=one.client_id,
            address=one.client_addr,
            language=one.language,
            version=version_name(one.version),
        )
        try:
            said = await running_info(self._session, group, broker, one.client_id)
        except (Error, TimeoutError, ValueError) as error:
            return replace(member, error=str(error))
        return replace(member, subscriptions={one.topic: one for one in said.subscriptions})

    # Offsets

    async def offsets(self, group: str, topic: str | None = None) -> list[QueueProgress]:
        """Of one topic, or of all the group has offsets of, its retries among them. Raises
        GroupNotFound, TopicNotFound."""
        await self._group_settings(group)
        asked = await (masters(self._session) if topic is None else places(self._session, topic))
        header = headers.GetConsumeStats(consumer_group=group, topic=topic)

        async def ask(_: str, address: str) -> list[QueueProgress]:
            answer = await self._session.ask(address, header)
            return [
                QueueProgress(
                    queue=queue,
                    committed=one.consumer_offset,
                    end=one.broker_offset,
                    last_consumed=one.last_timestamp or None,
                )
                for queue, one in beans.decode(bodies.ConsumeStats, answer.body).queues.items()
            ]

        found = (await each(asked, ask)).values()
        return sorted((one for some in found for one in some), key=lambda one: one.queue)

    async def matching_lag(
        self, group: str | None = None, topic: str | None = None, *, seconds: float = 10.0
    ) -> list[MatchingLag]:
        """How many messages that its filter matches a group has before it, by queue; of all groups
        of users if none is given. What is not counted after so many seconds is said to be
        incomplete. Raises GroupNotFound, TopicNotFound."""
        if group is not None:
            await self._group_settings(group)
        names = [group] if group is not None else await self.groups()
        asked = await (masters(self._session) if topic is None else places(self._session, topic))
        question = lag.Question(self._session, group, names, topic, time.monotonic() + seconds)
        rows = [one for some in (await each(asked, question.ask)).values() for one in some]
        return sorted(rows, key=lambda one: (one.group, one.queue, one.lane or ""))

    async def planned_offsets(
        self,
        group: str,
        topic: str,
        to: Literal["first", "last"] | None = None,
        *,
        time: Moment | None = None,
        offset: int | None = None,
        queue: MessageQueue | None = None,
        force: bool = True,
    ) -> dict[MessageQueue, int]:
        """What `reset_offsets` would reset to."""
        goal = resets.Goal(to=to, time_ms=_millis(time), offset=offset, queue=queue, force=force)
        return await self._planned(group, topic, goal)

    async def _planned(self, group: str, topic: str, goal: resets.Goal) -> dict[MessageQueue, int]:
        committed = {one.queue: one.committed for one in await self.offsets(group, topic)}
        return await resets.plan(self._session, topic, goal, committed)

    async def reset_offsets(
        self,
        group: str,
        topic: str,
        to: Literal["first", "last"] | None = None,
        *,
        time: Moment | None = None,
        offset: int | None = None,
        queue: MessageQueue | None = None,
        force: bool = True,
    ) -> dict[MessageQueue, int]:
        """Where the group goes on: at the first or the last message of each queue, at what was
        stored at a time, or at an offset (at a queue's end if it is beyond that). Only `queue` if
        given; only backwards without `force`. Gives the offsets. Raises GroupNotFound,
        TopicNotFound.

        A group without members has them at once. Members are told, and move; Java's take 10 s, and
        10 s for each queue if it is to an offset. RocketMQ 4 can tell them a time only: an offset,
        or one queue, is an Error then.
        """
        goal = resets.Goal(to=to, time_ms=_millis(time), offset=offset, queue=queue, force=force)
        planned = await self._planned(group, topic, goal)
        online = set(await connections(self._session, group))
        return await resets.reset(self._session, group, topic, goal, planned, online=online)

    # Messages

    async def message(self, message_id: str, topic: str | None = None) -> ReceivedMessage:
        """By its offset message id, or by its unique key, which takes its topic. Raises NotFound,
        and Error for an id that names no broker of the cluster."""
        return await lookups.by_id(self._session, message_id, topic)

    async def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        limit: int = 64,
        begin: Moment | None = None,
        end: Moment | None = None,
    ) -> list[ReceivedMessage]:
        """The newest, the oldest of them first; stored from `begin` to `end`."""
        times = _millis(begin), _millis(end)
        return await lookups.by_key(self._session, topic, key, limit, *times)

    async def explain(
        self,
        message_id: str | None = None,
        *,
        topic: str | None = None,
        key: str | None = None,
        queue_id: int | None = None,
        offset: int | None = None,
        broker: str | None = None,
        group: str | None = None,
    ) -> list[Judgement]:
        """Return why a message was, or was not, consumed, by each group of its topic or by one.

        The message is named by its id (of a unique key the topic is asked for, if there are many),
        by a key of its topic, which several messages may have, or by its place in a queue. Raises
        NotFound, GroupNotFound, TopicNotFound, and ConfigError if it is not named in one way.
        """
        ways = [message_id is not None, key is not None, (queue_id, offset) != (None, None)]
        if ways.count(True) != 1:
            raise ConfigError("name the message in one way: an id, a key, or a queue and an offset")
        if message_id is None and topic is None:
            raise ConfigError("a key, or a queue and an offset, needs the topic")
        if ways[2] and (queue_id is None or offset is None or min(queue_id, offset) < 0):
            raise ConfigError("a queue and an offset are both needed, and not less than 0")
        if group is not None:
            await self._group_settings(group)
        if queue_id is not None and offset is not None and topic is not None:
            queue = await explaining.find_queue(self._session, topic, queue_id, broker)
            messages = [(queue, offset)]
        else:
            messages = await explaining.find_messages(
                self._session, message_id, topic=topic, key=key
            )
        judgements = []
        for queue, at in messages:
            judgements += await explaining.explain(self._session, queue, at, group)
        return judgements


def _millis(moment: Moment | None) -> int | None:
    return None if moment is None else millis(moment)


def _permission(perm: Perm) -> str:
    return "r" * bool(perm & Perm.READ) + "w" * bool(perm & Perm.WRITE)
