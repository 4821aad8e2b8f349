"""Which broker holds which topics, and where it is: the state of a name server.

No sockets and no clock: times come from the caller, and of a connection it is only asked whether it
is the same. The rules are those of RocketMQ 4.9.4 (`RouteInfoManager`), unless a comment differs.
"""

import logging
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, replace
from enum import IntFlag
from typing import Final

from ..wire.bodies import (
    BrokerData,
    ClusterInfo,
    DataVersion,
    Perm,
    QueueData,
    TopicRoute,
)
from ..wire.headers import OfBroker, RegisterBroker, RegisterBrokerResponse

__all__ = ["MASTER", "Announcement", "RouteTable", "TopicFlag"]

log = logging.getLogger(__name__)

MASTER: Final = 0  # its broker id; slaves have others


class TopicFlag(IntFlag):
    """Bits of a topic's `sys_flag` (RocketMQ's `TopicSysFlag`)."""

    UNIT = 1 << 0
    UNIT_SUB = 1 << 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """What a broker says of itself in a registration, ready to be filed."""

    digest: bytes  # of the body it came in
    version: DataVersion
    queues: dict[str, QueueData]  # by topic; topics that are alike may share one
    filter_servers: list[str] | None  # None: it does not speak of them


@dataclass(slots=True)
class _Group:
    """A broker name: a master and its slaves, which hold the same topics."""

    cluster: str  # that of the first to register
    name: str
    addresses: dict[int, str] = field(default_factory=dict)  # by broker id
    queues: dict[str, QueueData] = field(default_factory=dict)  # by topic

    def show(self) -> BrokerData:
        addresses = dict(sorted(self.addresses.items()))
        return BrokerData(cluster=self.cluster, broker_name=self.name, addresses=addresses)


@dataclass(slots=True)
class _Live:
    """A broker that is heard of."""

    broker: RegisterBroker
    digest: bytes
    version: DataVersion
    filter_servers: list[str]
    connection: Hashable
    seen: float


class RouteTable:
    """Not for several threads. Topics are filed under their broker names: a registration and a loss
    touch one entry, however many topics there are; a route asks each broker name in turn."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}  # by broker name
        self._clusters: dict[str, dict[str, None]] = {}  # broker names, in the order they came
        self._live: dict[str, _Live] = {}  # by address
        self._addresses: dict[Hashable, set[str]] = {}  # by connection

    # Brokers come and go.

    def register(
        self, broker: RegisterBroker, said: Announcement, *, connection: Hashable, now: float
    ) -> RegisterBrokerResponse:
        """In RocketMQ's order:

        1. The broker name joins its cluster.
        2. The address leaves any other id of that name, then takes the id given.
        3. Of a master that is new or has another data version, the topics are filed. Those it does
           not name stay: it may speak of a single one that changed.
        4. It is alive from now on, by this connection.
        5. Its filter servers are replaced, if it speaks of them.
        """
        name, address = broker.broker_name, broker.broker_addr
        before = self._live.get(address)
        if before is not None and before.broker.broker_name != name:
            # RocketMQ keeps both names at one address
            self._drop(address, f"{name} is there now")
            before = None
        self._clusters.setdefault(broker.cluster_name, {})[name] = None  # 1
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = _Group(broker.cluster_name, name)
        for other in [i for i, at in group.addresses.items() if at == address]:  # 2
            if other != broker.broker_id:
                del group.addresses[other]
        previous = group.addresses.get(broker.broker_id)
        group.addresses[broker.broker_id] = address
        if previous != address:
            was = f", which was at {previous}" if previous else ""
            level = logging.WARNING if previous else logging.INFO
            log.log(
                level, "%s: registered: broker %d of %s%s", address, broker.broker_id, name, was
            )
        is_known = before is not None and before.version == said.version and previous is not None
        if broker.broker_id == MASTER and not is_known:  # 3
            count = len(group.queues)
            group.queues.update(said.queues)
            added = len(group.queues) - count
            log.info("%s: topics of %s: %d told, %d new", address, name, len(said.queues), added)
        servers = before.filter_servers if before is not None else []
        if said.filter_servers is not None:  # 5
            servers = said.filter_servers
        self._live[address] = _Live(
            broker, said.digest, said.version, servers, connection, now
        )  # 4
        if before is not None:
            self._unbind(address, before.connection)
        self._addresses.setdefault(connection, set()).add(address)
        return self._master_of(broker)

    def refresh(
        self, broker: RegisterBroker, digest: bytes, *, connection: Hashable, now: float
    ) -> RegisterBrokerResponse | None:
        """A registration that says, word for word, what this broker said last: it is alive. None if
        it doesn't: then it must be read and filed. That is why the digest is kept: brokers repeat
        themselves every 30 seconds, topics and all."""
        live = self._live.get(broker.broker_addr)
        group = self._groups.get(broker.broker_name)
        if live is None or live.digest != digest or live.broker != broker:
            return None
        if group is None or group.addresses.get(broker.broker_id) != broker.broker_addr:
            return None
        live.seen = now
        if live.connection != connection:
            self._unbind(broker.broker_addr, live.connection)
            self._addresses.setdefault(connection, set()).add(broker.broker_addr)
            live.connection = connection
        return self._master_of(broker)

    def _master_of(self, broker: OfBroker) -> RegisterBrokerResponse:
        """For a slave, where its master is."""
        if broker.broker_id != MASTER:
            address = self._groups[broker.broker_name].addresses.get(MASTER)
            live = self._live.get(address) if address is not None else None
            if live is not None:
                return RegisterBrokerResponse(
                    master_addr=address, ha_server_addr=live.broker.ha_server_addr
                )
        return RegisterBrokerResponse()

    def _unbind(self, address: str, connection: Hashable) -> None:
        addresses = self._addresses[connection]
        addresses.discard(address)
        if not addresses:
            del self._addresses[connection]

    def has_broker(self, name: str) -> bool:
        return name in self._groups

    @property
    def brokers(self) -> int:
        """How many names of brokers there are."""
        return len(self._groups)

    @property
    def topic_count(self) -> int:
        """How many topics all brokers have together."""
        return sum(len(group.queues) for group in self._groups.values())

    def unknown(self, name: str, said: Announcement) -> int:
        """How many of the topics the broker has not been told to have."""
        group = self._groups.get(name)
        if group is None:
            return len(said.queues)
        return len(said.queues.keys() - group.queues.keys())

    def version(self, address: str) -> DataVersion | None:
        """The data version a broker registered with."""
        live = self._live.get(address)
        return live.version if live is not None else None

    def touch(self, address: str, now: float) -> None:
        """The broker is alive."""
        live = self._live.get(address)
        if live is not None:
            live.seen = now

    def unregister(self, broker: OfBroker) -> None:
        """By address, as RocketMQ 5 does: 4.9.4 goes by id, and so would drop a successor."""
        self._drop(broker.broker_addr, "it unregistered")

    def drop_connection(self, connection: Hashable) -> None:
        """It was closed: so are the brokers that registered by it, and by no other since."""
        for address in list(self._addresses.get(connection, ())):
            self._drop(address, "its connection was closed")

    def drop_silent(self, *, now: float, seconds: float) -> list[Hashable]:
        """Brokers not heard of for longer than that are gone; gives their connections."""
        silent = [address for address, live in self._live.items() if now - live.seen > seconds]
        connections = [self._live[address].connection for address in silent]
        for address in silent:
            self._drop(address, f"it was silent for {seconds:g} s")
        return connections

    def _drop(self, address: str, why: str) -> None:
        live = self._live.pop(address, None)
        if live is None:
            return
        self._unbind(address, live.connection)
        name = live.broker.broker_name
        log.info("%s: gone: broker %d of %s: %s", address, live.broker.broker_id, name, why)
        group = self._groups.get(name)
        if group is None:
            return
        for broker_id in [i for i, at in group.addresses.items() if at == address]:
            del group.addresses[broker_id]
        if not group.addresses:
            log.info("%s: gone, and %d topics with it", name, len(group.queues))
            del self._groups[name]
            for cluster in [one for one, names in self._clusters.items() if name in names]:
                del self._clusters[cluster][name]
                if not self._clusters[cluster]:
                    del self._clusters[cluster]

    # Changes by tools.

    def wipe_write_perm(self, broker_name: str) -> int:
        """Until the broker registers another data version; gives the number of topics."""
        count = self._change_perm(broker_name, lambda perm: perm & ~Perm.WRITE)
        log.info("%s: %d topics taken out of use for writing", broker_name, count)
        return count

    def add_write_perm(self, broker_name: str) -> int:
        """To read and write, whatever it was; gives the number of topics."""
        count = self._change_perm(broker_name, lambda perm: Perm.READ | Perm.WRITE)
        log.info("%s: %d topics put back into use for writing", broker_name, count)
        return count

    def _change_perm(self, broker_name: str, change: Callable[[Perm], Perm]) -> int:
        group = self._groups.get(broker_name)
        if group is None:
            return 0
        unlike = {id(queue): queue for queue in group.queues.values()}  # many topics share one
        made = {key: replace(queue, perm=change(queue.perm)) for key, queue in unlike.items()}
        group.queues = {topic: made[id(queue)] for topic, queue in group.queues.items()}
        return len(group.queues)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Of all brokers, or those of a cluster. A broker that still has it files it again with its
        next change."""
        names = self._clusters.get(cluster, ()) if cluster else self._groups
        gone = [name for name in names if self._groups[name].queues.pop(topic, None) is not None]
        if gone:
            log.info("topic %s: deleted from %s", topic, ", ".join(gone))

    # Questions.

    def route(self, topic: str) -> TopicRoute | None:
        groups = [group for group in self._groups.values() if topic in group.queues]
        if not groups:
            return None
        filter_servers = {}
        for group in groups:
            for address in group.addresses.values():
                live = self._live.get(address)
                if live is not None and live.filter_servers:
                    filter_servers[address] = live.filter_servers
        return TopicRoute(
            queues=[group.queues[topic] for group in groups],
            brokers=[group.show() for group in groups],
            filter_servers=filter_servers,
        )

    def cluster_info(self) -> ClusterInfo:
        return ClusterInfo(
            brokers={name: group.show() for name, group in self._groups.items()},
            clusters={cluster: list(names) for cluster, names in self._clusters.items()},
        )

    def topics(self, cluster: str | None = None) -> list[str]:
        """Of all brokers, or those of a cluster."""
        names = self._clusters.get(cluster, ()) if cluster is not None else self._groups
        return self._topics_of(names)

    def _topics_of(self, broker_names: Iterable[str]) -> list[str]:
        found: dict[str, None] = {}
        for name in broker_names:
            found |= dict.fromkeys(self._groups[name].queues)
        return list(found)

    def unit_topics(self, has: TopicFlag, lacks: int = 0) -> list[str]:
        """Those with flags and without others. The first broker that has the topic decides."""
        firsts: dict[str, QueueData] = {}
        for group in self._groups.values():
            firsts = group.queues | firsts
        return [
            topic
            for topic, queue in firsts.items()
            if queue.sys_flag & has and not queue.sys_flag & lacks
        ]

    def system_topics(self) -> tuple[list[str], str | None]:
        """Every cluster and broker has a topic of its name; and a broker to ask for the others."""
        names = dict.fromkeys(self._clusters)
        for broker_names in self._clusters.values():
            names |= broker_names
        groups = self._groups.values()
        return list(names), next((at for one in groups for at in one.addresses.values()), None)
