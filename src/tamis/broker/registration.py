"""How a broker makes itself known to every name server: at the start, every half minute, and when
a topic changes.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from ..errors import ConfigError, RemoteProtocolError
from ..net.aio import Peer, connect, parse_address
from ..wire import beans
from ..wire.bodies import KvTable, Perm, Registration, TopicConfig, TopicTable
from ..wire.codes import RequestCode, ResponseCode
from ..wire.command import Command
from ..wire.headers import OfBroker, RegisterBroker
from .config import Settings
from .topics import Topics

__all__ = ["Registrar", "parse_nameservers"]

log = logging.getLogger(__name__)

_EVERY: Final = 30.0  # seconds
_TIMEOUT: Final = 6.0
_RETRY: Final = (1.0, 2.0, 5.0, 10.0)  # seconds, after the first, second, ... failure


def parse_nameservers(text: str) -> list[str]:
    """`host:port;host:port`. Raises ConfigError."""
    addresses = [part.strip() for part in text.replace(",", ";").split(";") if part.strip()]
    for address in addresses:
        try:
            parse_address(address)
        except ValueError as error:
            raise ConfigError(f"name server {error}") from None
    return addresses


class Registrar:
    """`filter_servers` gives those known now. `on_order_topics` gets what the name servers say of
    topics that are ordered."""

    def __init__(
        self,
        settings: Settings,
        topics: Topics,
        address: str,
        filter_servers: Callable[[], list[str]] = list,
    ) -> None:
        self._settings = settings
        self._topics = topics
        self._address = address
        self._filter_servers = filter_servers
        self._ordered: dict[str, frozenset[str]] = {}  # topics, by name server
        self._body: tuple[object, bytes] | None = None  # of all topics, and what it was made of
        self._servers = [
            _NameServer(at, self) for at in parse_nameservers(settings.config.nameservers)
        ]

    async def start(self) -> None:
        """Returns when each name server has been tried once."""
        await asyncio.gather(*(server.register() for server in self._servers))
        for server in self._servers:
            server.task = asyncio.get_running_loop().create_task(server.run())

    def changed(self, topic: TopicConfig | None = None) -> None:
        """Makes known a topic, or all there is, soon."""
        for server in self._servers:
            server.wake(topic)

    async def close(self) -> None:
        await asyncio.gather(*(server.leave() for server in self._servers))

    def request(self, topics: list[TopicConfig] | None) -> Command:
        """With these topics, or all of them."""
        config = self._settings.config
        header = RegisterBroker(
            broker_name=config.name,
            broker_addr=self._address,
            cluster_name=config.cluster,
            broker_id=0,
            ha_server_addr=self._address,
        )
        body = self._encoded(topics) if topics is not None else self._encoded_all()
        return Command(code=RegisterBroker.CODE, fields=header.to_fields(), body=body)

    def _encoded_all(self) -> bytes:
        """Kept: with thousands of topics it takes the loop a while, and mostly nothing changed."""
        config = self._settings.config
        made_of = (self._topics.version, config.permission, tuple(self._filter_servers()))
        if self._body is None or self._body[0] != made_of:
            self._body = (made_of, self._encoded(list(self._topics.values())))
        return self._body[1]

    def _encoded(self, topics: list[TopicConfig]) -> bytes:
        permission = self._settings.config.permission
        if permission & _READ_WRITE != _READ_WRITE:
            topics = [replace(one, perm=Perm(permission)) for one in topics]
        table = TopicTable(topics={one.name: one for one in topics}, version=self._topics.version)
        return beans.encode(Registration(table=table, filter_servers=self._filter_servers()))

    def farewell(self) -> Command:
        config = self._settings.config
        header = OfBroker(
            broker_name=config.name,
            broker_addr=self._address,
            cluster_name=config.cluster,
            broker_id=0,
        )
        return Command(code=RequestCode.UNREGISTER_BROKER, fields=header.to_fields())

    def registered(self, address: str, body: bytes) -> None:
        """What the answer of a name server tells: which topics are ordered. One is if any says so:
        they may differ."""
        if body:
            self._ordered[address] = frozenset(beans.decode(KvTable, body).table)
        if not self._ordered:
            return
        ordered = frozenset().union(*self._ordered.values())
        for topic in list(self._topics.values()):
            if topic.order != (topic.name in ordered):
                self._topics.put(replace(topic, order=topic.name in ordered))


_READ_WRITE: Final = Perm.READ | Perm.WRITE


class _NameServer:
    def __init__(self, address: str, registrar: Registrar) -> None:
        self._address = address
        self._registrar = registrar
        self._peer: Peer | None = None
        self._wake = asyncio.Event()
        self._changed: dict[str, TopicConfig] = {}
        self._all = False
        self._failures = 0
        self.task: asyncio.Task[None] | None = None

    def wake(self, topic: TopicConfig | None) -> None:
        if topic is None:
            self._all = True
        else:
            self._changed[topic.name] = topic
        self._wake.set()

    async def run(self) -> None:
        while True:
            pause = _EVERY
            if self._failures:
                pause = _RETRY[min(self._failures, len(_RETRY)) - 1]
            try:
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                self._all = True
            self._wake.clear()
            await self.register()

    async def register(self) -> None:
        """All topics, or those that changed if nothing else is due."""
        topics = None
        if self._changed and not self._all and not self._failures:
            topics = list(self._changed.values())
        self._changed, self._all = {}, False
        try:
            if self._peer is None or self._peer.is_closed:
                self._peer = await connect(self._address)
                topics = None
            answer = await self._peer.ask(self._registrar.request(topics), _TIMEOUT)
            if answer.code != ResponseCode.SUCCESS:
                raise RemoteProtocolError(f"it answers {answer.code}: {answer.remark}")
            self._registrar.registered(self._address, answer.body)
        except (OSError, TimeoutError, RemoteProtocolError, ValueError) as error:
            if not self._failures:
                why = str(error) or "no answer in time"
                log.warning("name server %s: not registered: %s", self._address, why)
            self._failures += 1
        else:
            if self._failures:
                log.info("name server %s: registered again", self._address)
            self._failures = 0

    async def leave(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
        if self._peer is not None and not self._peer.is_closed:
            try:
                await self._peer.ask(self._registrar.farewell(), 2.0)
            except (OSError, TimeoutError) as error:
                log.warning("name server %s: not told that we stop: %s", self._address, error)
            self._peer.close()
