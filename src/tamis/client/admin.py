"""For tools: topics, groups, offsets, messages and brokers of a cluster, Tamis's or RocketMQ's.

What a cluster has is asked of all its masters and put together; a master that does not answer is an
error, for half the truth looks like the whole of it.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import ClassVar, Final, Literal, Self, TypeVar

from ..errors import (
    ConfigError,
    ConsumerOffline,
    Error,
    GroupNotFound,
    NotFound,
    ServerFault,
    TopicNotFound,
)
from ..message import Host, PropertyName
from ..wire import beans, bodies, headers, record
from ..wire.bodies import MessageQueue, Perm, Subscription
from ..wire.codes import RequestCode, ResponseCode, version_name
from . import offsets as queue_offsets
from .config import ClientConfig, check_group, check_topic
from .received import RETRY_PREFIX, ReceivedMessage, decode_one, retry_topic
from .routes import MASTER, read_queues
from .session import Session
from .subscriptions import difference, shown

__all__ = [
    "Admin",
    "BrokerInfo",
    "GroupInfo",
    "GroupMember",
    "Mismatch",
    "QueueInfo",
    "QueueProgress",
    "TopicInfo",
    "TopicPlace",
]

T = TypeVar("T")

_DEFAULTS: Final = ClientConfig()
_ALWAYS: Final = 2**63 - 1
_ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
_PERMISSIONS: Final = {"rw": Perm.READ | Perm.WRITE, "r": Perm.READ, "w": Perm.WRITE}
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
class BrokerInfo:
    name: str
    cluster: str
    address: str
    broker_id: int

    @property
    def is_master(self) -> bool:
        return self.broker_id == MASTER


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
        cluster = await self._session.routes.cluster()
        return sorted(
            (
                BrokerInfo(name=name, cluster=one.cluster, address=address, broker_id=broker_id)
                for name, one in cluster.brokers.items()
                for broker_id, address in one.addresses.items()
            ),
            key=lambda one: (one.cluster, one.name, one.broker_id),
        )

    async def cluster(self) -> dict[str, list[BrokerInfo]]:
        """The same, by the name of their cluster."""
        made: dict[str, list[BrokerInfo]] = {}
        for broker in await self.brokers():
            made.setdefault(broker.cluster, []).append(broker)
        return made

    async def broker_stats(self, broker: str) -> dict[str, str]:
        """By its name, then the master's, or by an address. RocketMQ's names and units; its 4.9
        fails in the first ten seconds of its life."""
        address = broker if ":" in broker else await self._session.routes.master(broker)
        answer = await self._session.ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
        return dict(sorted(beans.decode(bodies.KvTable, answer.body).table.items()))

    async def _masters(
        self, cluster: str | None = None, broker: str | None = None
    ) -> dict[str, str]:
        """Their addresses by name: all, or those of one cluster, or one."""
        if cluster is not None and broker is not None:
            raise ConfigError("a cluster or a broker, not both")
        known = await self.brokers()
        if cluster is not None and cluster not in {one.cluster for one in known}:
            names = ", ".join(sorted({one.cluster for one in known})) or "none"
            raise Error(f"there is no cluster {cluster}: the name server knows {names}")
        if broker is not None:
            return {broker: await self._session.routes.master(broker)}
        found = {
            one.name: one.address
            for one in known
            if one.is_master and cluster in (None, one.cluster)
        }
        if not found:
            raise Error(
                f"the name server {self._session.nameserver} knows no broker: is one running?"
            )
        return found

    async def _places(self, topic: str) -> dict[str, str]:
        """The masters that have the topic. Raises TopicNotFound."""
        route = await self._session.routes.get(topic, fresh=True)
        names = sorted({one.broker_name for one in route.queues})
        return {name: await self._session.routes.master(name) for name in names}

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

        masters = {one.name: one.address for one in await self.brokers() if one.is_master}
        return found.union(*(await _each(masters, ask)).values())

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
        masters = await self._masters(cluster, broker)
        header = headers.CreateTopic(
            topic=name,
            default_topic="TBW102",  # not used, but asked for
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=int(_PERMISSIONS[permission]),
            topic_filter_type=bodies.TopicFilterType.SINGLE_TAG,
            order=order,
        )
        await _each(masters, lambda _, address: self._session.ask(address, header))
        if order:
            await self._set_order(name, dict.fromkeys(masters, queues), merge=broker is not None)
        await self._appearance(name, set(masters), queues, _PERMISSIONS[permission])
        return sorted(masters)

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

    async def _appearance(self, topic: str, masters: set[str], queues: int, perm: Perm) -> None:
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
            if masters <= known:
                return
            if time.monotonic() > deadline:
                missing = ", ".join(sorted(masters - known))
                raise Error(
                    f"topic {topic} is made, but the name server {self._session.nameserver} does"
                    f" not have it at {missing} yet: is that broker registered with it?"
                )
            await asyncio.sleep(0.02)

    async def delete_topic(self, name: str) -> None:
        """At all brokers, then at the name servers. Raises TopicNotFound."""
        masters = await self._places(name)
        header = headers.OfTopic(topic=name)
        code = RequestCode.DELETE_TOPIC_IN_BROKER
        await _each(masters, lambda _, address: self._session.ask(address, header, code=code))
        await self._session.ask_nameservers(headers.DeleteTopicInNameServer(topic=name))
        await self._session.ask_nameservers(_DeleteKvConfig(namespace=_ORDER_NAMESPACE, key=name))

    async def topic(self, name: str) -> TopicInfo:
        """Raises TopicNotFound."""
        masters = await self._places(name)
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

        found = (await _each(masters, ask)).values()
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
            groups=sorted({group for _, groups in found for group in groups}),
        )

    # Groups

    async def groups(self, *, all: bool = False) -> list[str]:
        """Those any broker knows; with `all` the system's too."""
        found: set[str] = set().union(*(await self._group_tables()).values())
        if not all:
            found = {name for name in found if not _is_system_group(name)}
        return sorted(found)

    async def _group_tables(self) -> dict[str, dict[str, bodies.GroupConfig]]:
        """By broker."""

        async def ask(_: str, address: str) -> dict[str, bodies.GroupConfig]:
            code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
            answer = await self._session.ask(address, code)
            return beans.decode(bodies.GroupTable, answer.body).groups

        return await _each(await self._masters(), ask)

    async def _group_settings(self, group: str) -> dict[str, bodies.GroupConfig]:
        """By the brokers that know it. Raises GroupNotFound."""
        tables = await self._group_tables()
        found = {name: table[group] for name, table in tables.items() if group in table}
        if not found:
            raise GroupNotFound(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"group {group} is not known to any broker: start a consumer of it, create it"
                f" (tamis groups create {group}), or look for a typing mistake",
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
        masters = await self._masters(cluster, broker)
        settings = bodies.GroupConfig(
            name=name,
            retry_max_times=retries,
            consume_enabled=enabled,
            consume_broadcast_enabled=broadcast,
        )
        code, body = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, beans.encode(settings)
        await _each(masters, lambda _, address: self._session.ask(address, code, body))
        return sorted(masters)

    async def delete_group(self, name: str) -> None:
        """With its offsets and the messages it was to be given again; its dead letters stay.
        Raises GroupNotFound, and Error if it has members: they would bring it back."""
        known = await self._group_settings(name)
        if members := await self._connections(name):
            clients = {one.client_id for found in members.values() for one in found.connections}
            raise Error(f"group {name} has members ({', '.join(sorted(clients))}): stop them first")
        masters = {one: address for one, address in (await self._masters()).items() if one in known}
        header = headers.DeleteGroup(group_name=name, remove_offset=True, clean_offset=True)
        await _each(masters, lambda _, address: self._session.ask(address, header))
        try:
            await self.delete_topic(retry_topic(name))
        except TopicNotFound:
            pass  # it never had a member

    async def group(self, name: str) -> GroupInfo:
        """Raises GroupNotFound."""
        known = await self._group_settings(name)
        connected = await self._connections(name)
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
            mismatches=_mismatches(name, members, connected),
            consume_type=some.consume_type if some is not None else "",
            message_model=some.message_model if some is not None else "",
            consume_from_where=some.consume_from_where if some is not None else "",
        )

    async def _connections(self, group: str) -> dict[str, bodies.ConsumerConnection]:
        """By the brokers it has members at."""

        async def ask(_: str, address: str) -> bodies.ConsumerConnection | None:
            header = headers.OfConsumerGroup(consumer_group=group)
            code = RequestCode.GET_CONSUMER_CONNECTION_LIST
            try:
                answer = await self._session.ask(address, header, code=code)
            except ConsumerOffline:
                return None
            found = beans.decode(bodies.ConsumerConnection, answer.body)
            return found if found.connections else None

        made = await _each(await self._masters(), ask)
        return {broker: found for broker, found in made.items() if found is not None}

    async def _member(self, group: str, broker: str, one: bodies.Connection) -> GroupMember:
        """What it says itself; the broker asks it for us."""
        member = GroupMember(
            client_id=one.client_id,
            address=one.client_addr,
            language=one.language,
            version=version_name(one.version),
        )
        header = headers.GetRunningInfo(consumer_group=group, client_id=one.client_id)
        try:
            address = await self._session.routes.master(broker)
            answer = await self._session.ask(address, header)
            found = beans.decode(bodies.RunningInfo, answer.body).subscriptions
        except (Error, TimeoutError, ValueError) as error:
            return replace(member, error=str(error))
        return replace(member, subscriptions={one.topic: one for one in found})

    # Offsets

    async def offsets(self, group: str, topic: str | None = None) -> list[QueueProgress]:
        """Of one topic, or of all the group has offsets of, its retries among them. Raises
        GroupNotFound, TopicNotFound."""
        await self._group_settings(group)
        masters = await (self._masters() if topic is None else self._places(topic))
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

        found = (await _each(masters, ask)).values()
        return sorted((one for some in found for one in some), key=lambda one: one.queue)

    async def planned_offsets(
        self,
        group: str,
        topic: str,
        to: Literal["first", "last"] | None = None,
        *,
        time_ms: int | None = None,
        offset: int | None = None,
        queue: MessageQueue | None = None,
        force: bool = True,
    ) -> dict[MessageQueue, int]:
        """What `reset_offsets` would reset to."""
        if [to, time_ms, offset].count(None) != 2:
            raise ConfigError("a reset is to first or last, to a time or to an offset: one of them")
        if (time_ms is not None and time_ms < 0) or (offset is not None and offset < 0):
            raise ConfigError("a time or an offset can't be less than 0")
        queues = await self._queues(topic, queue)
        current = {one.queue: one.committed for one in await self.offsets(group, topic)}

        async def plan(one: MessageQueue) -> int:
            if time_ms is not None:
                made = await queue_offsets.offset_at(self._session, one, time_ms)
            elif to == "last":
                made = await queue_offsets.last_offset(self._session, one)
            else:
                made = await queue_offsets.first_offset(self._session, one)
                if offset is not None:
                    end = await queue_offsets.last_offset(self._session, one)
                    made = min(max(offset, made), end)
            return made if force else min(made, current.get(one, made))

        return dict(zip(queues, await asyncio.gather(*map(plan, queues)), strict=True))

    async def reset_offsets(
        self,
        group: str,
        topic: str,
        to: Literal["first", "last"] | None = None,
        *,
        time_ms: int | None = None,
        offset: int | None = None,
        queue: MessageQueue | None = None,
        force: bool = True,
    ) -> dict[MessageQueue, int]:
        """Where the group goes on: at the first or the last message of each queue, at what was
        stored at a time, or at an offset (at a queue's end if it is beyond that). Only `queue` if
        given; only backwards without `force`. Gives the offsets.

        A group nobody is connected for has them at once. Members are told, and move; Java's take
        10 s. RocketMQ 4 can tell them a time only: an offset, or one queue, is then an Error.
        """
        planned = await self.planned_offsets(
            group, topic, to, time_ms=time_ms, offset=offset, queue=queue, force=force
        )
        online = await self._connections(group)
        made: dict[MessageQueue, int] = {}
        for broker in sorted({one.broker_name for one in planned}):
            mine = {one: at for one, at in planned.items() if one.broker_name == broker}
            if broker not in online:
                made |= await self._commit(broker, group, mine)
                continue
            is_server_side, takes_queues = await self._ways_to_reset(broker)
            if offset is None and queue is None and (force or not is_server_side):
                timestamp = {"first": 0, "last": -1}[to] if to is not None else time_ms or 0
                made |= await self._tell(broker, group, topic, timestamp, force)
            elif takes_queues:
                for one, at in mine.items():
                    made |= await self._tell(broker, group, topic, 0, force, one.queue_id, at)
            else:
                raise Error(
                    f"group {group} has members at {broker}, and it can tell them to go to a time"
                    " only: give one for all queues, or stop the members and reset again"
                )
        return dict(sorted(made.items()))

    async def _queues(self, topic: str, only: MessageQueue | None) -> list[MessageQueue]:
        queues = read_queues(topic, await self._session.routes.get(topic, fresh=True))
        if only is None:
            return queues
        if only not in queues:
            names = ", ".join(f"{one.broker_name}:{one.queue_id}" for one in queues)
            raise Error(f"topic {topic} has no queue {only.broker_name}:{only.queue_id}: {names}")
        return [only]

    async def _commit(
        self, broker: str, group: str, offsets: dict[MessageQueue, int]
    ) -> dict[MessageQueue, int]:
        """For nobody. RocketMQ 5 takes no commit after a reset members have not heard of: then it
        is reset once more."""
        store = queue_offsets.BrokerOffsets(self._session, group)
        await store.save(offsets)
        for queue, offset in offsets.items():
            if await store.load(queue) != offset:
                await self._tell(broker, group, queue.topic, 0, True, queue.queue_id, offset)
        return offsets

    async def _ways_to_reset(self, broker: str) -> tuple[bool, bool]:
        """Whether the broker itself resets (RocketMQ 5), then whatever `force` says, and whether it
        takes queues and their offsets: RocketMQ 5 then does, and Tamis."""
        address = await self._session.routes.master(broker)
        answer = await self._session.ask(address, RequestCode.GET_BROKER_CONFIG)
        settings = bodies.decode_properties(answer.body)
        is_server_side = settings.get("useServerSideResetOffset") == "true"
        return is_server_side, is_server_side or "pullScanSeconds" in settings  # Tamis's own

    async def _tell(
        self,
        broker: str,
        group: str,
        topic: str,
        timestamp: int,
        force: bool,
        queue_id: int | None = None,
        offset: int | None = None,
    ) -> dict[MessageQueue, int]:
        header = headers.ResetOffset(
            topic=topic,
            group=group,
            timestamp=timestamp,
            is_force=force,
            queue_id=queue_id,
            offset=offset,
        )
        address = await self._session.routes.master(broker)
        try:
            answer = await self._session.ask(address, header)
        except ServerFault as error:
            raise Error(
                f"group {group} can't be reset at {broker} ({error.remark}): before its members"
                " have committed an offset of each queue, they have to be stopped for it"
            ) from error
        return beans.decode(bodies.ResetOffsets, answer.body).offsets

    # Messages

    async def message(self, message_id: str, topic: str | None = None) -> ReceivedMessage:
        """By its offset message id, or by its unique key, which takes its topic. Raises NotFound.

        An id holds an address: only a broker of the cluster is asked.
        """
        brokers = {one.address: one.name for one in await self.brokers()}
        address, offset = _place_of(message_id)
        if address in brokers:
            try:
                answer = await self._session.ask(address, headers.ViewMessage(offset=offset))
                return _received(answer.body, brokers[address])[0]
            except ServerFault:
                pass  # nothing lies there
        elif topic is None:
            raise Error(
                f"{message_id} is no offset message id of this cluster's brokers: if it is a"
                " unique key, the topic is needed too"
            )
        found: list[ReceivedMessage] = []
        if topic is not None:
            found = await self._query(topic, message_id, 32, 0, _ALWAYS, is_unique_key="true")
        for one in found:
            if one.properties.get(PropertyName.UNIQUE_KEY) == message_id:
                return one
        where = f" in topic {topic}" if topic is not None else ""
        raise NotFound(ResponseCode.QUERY_NOT_FOUND, f"there is no message {message_id}{where}")

    async def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        limit: int = 64,
        begin: int | None = None,
        end: int | None = None,
    ) -> list[ReceivedMessage]:
        """The newest, the oldest of them first; stored from `begin` to `end` (milliseconds)."""
        until = _ALWAYS if end is None else end
        found = await self._query(topic, key, limit, begin or 0, until)
        return [one for one in found if key in one.keys][-limit:]  # RocketMQ compares hashes

    async def _query(
        self,
        topic: str,
        key: str,
        limit: int,
        begin: int,
        end: int,
        is_unique_key: str | None = None,
    ) -> list[ReceivedMessage]:
        """Those the indexes have under a hash of the key, in the order they were stored in."""
        header = headers.QueryMessage(
            topic=topic,
            key=key,
            max_num=limit,
            begin_timestamp=begin,
            end_timestamp=end,
            is_unique_key=is_unique_key,
        )

        async def ask(name: str, address: str) -> list[ReceivedMessage]:
            try:
                answer = await self._session.ask(address, header)
            except NotFound:
                return []
            return _received(answer.body, name)

        found = (await _each(await self._places(topic), ask)).values()
        return sorted((one for some in found for one in some), key=lambda one: one.store_timestamp)


async def _each(masters: dict[str, str], ask: Callable[[str, str], Awaitable[T]]) -> dict[str, T]:
    """The answers of all, each asked by its name and address."""
    found = await asyncio.gather(*(ask(name, address) for name, address in masters.items()))
    return dict(zip(masters, found, strict=True))


def _permission(perm: Perm) -> str:
    return "r" * bool(perm & Perm.READ) + "w" * bool(perm & Perm.WRITE)


def _is_system_group(name: str) -> bool:
    return name in _SYSTEM_GROUPS or name.startswith(_SYSTEM_GROUP_PREFIX)


def _mismatches(
    group: str, members: Iterable[GroupMember], connected: dict[str, bodies.ConsumerConnection]
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


def _place_of(message_id: str) -> tuple[str, int]:
    """The broker's address and the place in its log; nothing if it is no such id."""
    try:
        data = bytes.fromhex(message_id)
    except ValueError:
        return "", 0
    if len(data) not in (16, 28):
        return "", 0
    host = Host(data[:-12], int.from_bytes(data[-12:-8]))
    return str(host), int.from_bytes(data[-8:], signed=True)


def _received(body: bytes, broker: str) -> list[ReceivedMessage]:
    """Of an answer with records of any queues."""
    found, at = [], 0
    while at < len(body):
        stored = record.decode(body, at)
        queue = MessageQueue(stored.topic, broker, stored.queue_id)
        found.append(decode_one(body, queue, at))
        at += stored.size
    return found
