"""Where topics are: what the name server says of them, kept and asked for again.

A lookup that fails changes nothing: what was known stays known, as in RocketMQ's clients.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from ..errors import Error, InvalidName, ResponseError, TopicNotFound
from ..wire import beans, headers
from ..wire.bodies import ClusterInfo, MessageQueue, Perm, QueueData, TopicRoute
from ..wire.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from .session import Session

__all__ = ["MASTER", "Routes", "publish_queues", "read_queues"]

log = logging.getLogger(__name__)

MASTER: Final = 0  # the broker id of one that can be written to


class Routes:
    """Of one client. `on_change` is told of a topic whose route is not what it was."""

    def __init__(self, session: "Session") -> None:
        self._session = session
        self._routes: dict[str, TopicRoute] = {}
        self._asking: dict[str, asyncio.Task[TopicRoute]] = {}
        self._masters: dict[str, dict[int, str]] = {}  # broker name to its addresses by id
        self._published: dict[str, list[MessageQueue]] = {}
        self.on_change: Callable[[str], None] = lambda topic: None

    async def get(self, topic: str, *, fresh: bool = False) -> TopicRoute:
        """Raises TopicNotFound, Unreachable."""
        if not fresh and (known := self._routes.get(topic)) is not None:
            return known
        asking = self._asking.get(topic)
        if asking is None:
            asking = self._asking[topic] = self._session.spawn(self._ask(topic))
            asking.add_done_callback(lambda task: self._asked(topic, task))
        return await self._session.shared(asking)

    def known(self, topic: str) -> TopicRoute | None:
        return self._routes.get(topic)

    @property
    def topics(self) -> list[str]:
        return list(self._routes)

    def _asked(self, topic: str, task: "asyncio.Task[TopicRoute]") -> None:
        self._asking.pop(topic, None)
        if not task.cancelled():
            task.exception()  # whoever waits has it

    async def _ask(self, topic: str) -> TopicRoute:
        try:
            answer = await self._session.ask_nameserver(headers.GetRoute(topic=topic))
        except TopicNotFound as error:
            why = await self._why_unknown(topic)
            raise TopicNotFound(ResponseCode.TOPIC_NOT_EXIST, why) from error
        self._take(topic, beans.decode(TopicRoute, answer.body))
        return self._routes[topic]

    async def _why_unknown(self, topic: str) -> str:
        """A broker that stops takes its topics with it: they are spelled well all the same."""
        nameserver = self._session.nameserver
        try:
            is_alone = not (await self.cluster()).brokers
        except (Error, TimeoutError, ValueError):
            is_alone = False
        if is_alone:
            return (
                f"no broker is registered with the name server {nameserver}, so it knows no topics,"
                f" nor {topic}: start a broker (tamis broker --nameserver {nameserver}), or wait"
                " for it to come back"
            )
        return (
            f"topic {topic} is not known to the name server {nameserver}: create it (tamis topics"
            f" create {topic}), check the spelling, or start the broker that has it"
        )

    def _take(self, topic: str, route: TopicRoute) -> None:
        for broker in route.brokers:
            self._masters[broker.broker_name] = broker.addresses
        known = self._routes.get(topic)
        if known is None or _sorted(known) != _sorted(route):
            self._routes[topic] = route
            self._published.pop(topic, None)
            self.on_change(topic)

    async def for_sending(self, topic: str, default_topic: str, queues: int) -> list[MessageQueue]:
        """The queues to send to; of a topic that is not there yet, those it will get where
        `default_topic` allows it to be made (`MQClientInstance.updateTopicRouteInfo`)."""
        made = self._published.get(topic)
        if made:
            return made
        try:
            route = await self.get(topic, fresh=topic in self._routes)
        except TopicNotFound as unknown:
            try:
                default = await self.get(default_topic)
            except TopicNotFound:
                raise unknown from None
            route = TopicRoute(
                queues=[_at_most(one, queues) for one in default.queues], brokers=default.brokers
            )
            return publish_queues(topic, route)
        made = publish_queues(topic, route)
        if made:
            self._published[topic] = made
        return made

    def known_for_sending(self, topic: str) -> list[MessageQueue] | None:
        return self._published.get(topic)

    async def publish_queues(self, topic: str) -> list[MessageQueue]:
        return publish_queues(topic, await self.get(topic))

    async def read_queues(self, topic: str) -> list[MessageQueue]:
        return read_queues(topic, await self.get(topic))

    async def cluster(self) -> ClusterInfo:
        answer = await self._session.ask_nameserver(RequestCode.GET_BROKER_CLUSTER_INFO)
        return beans.decode(ClusterInfo, answer.body)

    async def master(self, broker_name: str) -> str:
        """Its address. Raises Error."""
        address = self.known_address(broker_name, MASTER)
        if address is None:
            cluster = await self.cluster()
            for broker in cluster.brokers.values():
                self._masters[broker.broker_name] = broker.addresses
            address = self.known_address(broker_name, MASTER)
        if address is None:
            raise Error(
                f"broker {broker_name} has no master that the name server"
                f" {self._session.nameserver} knows of: is it running?"
            )
        return address

    def known_address(self, broker_name: str, broker_id: int = MASTER) -> str | None:
        return self._masters.get(broker_name, {}).get(broker_id)

    def any_address(self, broker_name: str, broker_id: int = MASTER) -> str | None:
        """That broker's, else another's of the same name: any can be read from."""
        known = self._masters.get(broker_name, {})
        return known.get(broker_id) or next(iter(known.values()), None)

    def addresses(self, *, masters_only: bool) -> list[tuple[str, str]]:
        """Broker name and address of all that a topic in use is at."""
        used = {one.broker_name for route in self._routes.values() for one in route.brokers}
        return [
            (name, address)
            for name in sorted(used)
            for broker_id, address in sorted(self._masters.get(name, {}).items())
            if not masters_only or broker_id == MASTER
        ]

    def filter_servers(self, topic: str) -> dict[str, list[str]]:
        """The filter servers of a topic, by the address of the broker they read from."""
        route = self._routes.get(topic)
        return route.filter_servers if route is not None else {}

    async def refresh(self, topics: Iterable[str]) -> None:
        """What can't be asked for stays as it was."""
        for topic in topics:
            try:
                await self.get(topic, fresh=True)
            except (ResponseError, ConnectionError, TimeoutError, InvalidName) as error:
                log.debug("route of %s: %s", topic, error)


def publish_queues(topic: str, route: TopicRoute) -> list[MessageQueue]:
    """In order. A topic with an order configuration (`a:8;b:8`) has those queues and no others."""
    if route.order_topic_conf:
        pairs = [part.split(":") for part in route.order_topic_conf.split(";") if ":" in part]
        return [MessageQueue(topic, name, i) for name, count in pairs for i in range(int(count))]
    masters = {one.broker_name for one in route.brokers if MASTER in one.addresses}
    return [
        MessageQueue(topic, one.broker_name, i)
        for one in sorted(route.queues, key=lambda one: one.broker_name)
        if one.perm & Perm.WRITE and one.broker_name in masters
        for i in range(one.write_queues)
    ]


def read_queues(topic: str, route: TopicRoute) -> list[MessageQueue]:
    return [
        MessageQueue(topic, one.broker_name, i)
        for one in sorted(route.queues, key=lambda one: one.broker_name)
        if one.perm & Perm.READ
        for i in range(one.read_queues)
    ]


def _sorted(route: TopicRoute) -> object:
    return (
        sorted(route.queues, key=lambda one: one.broker_name),
        sorted(route.brokers, key=lambda one: one.broker_name),
        route.order_topic_conf,
        {address: sorted(servers or ()) for address, servers in route.filter_servers.items()},
    )


def _at_most(queues: QueueData, count: int) -> QueueData:
    count = min(count, queues.read_queues)
    return QueueData(
        broker_name=queues.broker_name, read_queues=count, write_queues=count, perm=queues.perm
    )
