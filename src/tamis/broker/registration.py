"""How a broker makes itself known to every name server: at the start, every half minute, and when
a topic changes.

A registration of all topics may be longer than a frame. It then goes in parts, each a registration
of its own: a name server keeps the topics that one does not name. It files those that are named if
the data version is another than the last one it was told, so all parts but the last have versions
of their own. What a name server knows already is not told again on the same connection.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Final

from ..errors import ConfigError, LocalProtocolError, RemoteProtocolError
from ..net.aio import Peer, connect, parse_address
from ..net.tasks import Tasks
from ..security import Security
from ..wire import beans
from ..wire.bodies import DataVersion, KvTable, Perm, Registration, TopicConfig, TopicTable
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
PART: Final = 10_000  # topics in one registration: at most 4 MB of JSON
_FEW: Final = 100  # topics that are encoded in a moment


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
        tasks: Tasks | None = None,
    ) -> None:
        self._tasks = tasks if tasks is not None else Tasks()
        self._settings = settings
        self._topics = topics
        self._address = address
        self._filter_servers = filter_servers
        self._ordered: dict[str, frozenset[str]] = {}  # topics, by name server
        self._last: tuple[object, bytes] | None = None  # part of all topics; what it was made of
        self._servers = [
            _NameServer(at, self) for at in parse_nameservers(settings.config.nameservers)
        ]

    async def start(self) -> None:
        """Returns when each name server has been tried once."""
        await asyncio.gather(*(server.register() for server in self._servers))
        for server in self._servers:
            server.task = self._tasks.keep(f"registration with {server.address}", server.run)

    def changed(self, topic: TopicConfig | None = None) -> None:
        """Makes known a topic, or all there is, soon."""
        for server in self._servers:
            server.wake(topic)

    async def close(self) -> None:
        await asyncio.gather(*(server.leave() for server in self._servers))

    @property
    def security(self) -> Security:
        return self._settings.config.security

    @property
    def state(self) -> object:
        """Another one when there is something else to tell."""
        permission = self._settings.config.permission
        return (self._topics.version, permission, tuple(self._filter_servers()))

    async def requests(
        self, topics: list[TopicConfig] | None, *, is_known: bool = False
    ) -> AsyncIterator[Command]:
        """What tells of these topics, or of all of them. `is_known`: the name server has been told
        of all, and is only to hear that the broker is alive."""
        state, version = self.state, self._topics.version
        told = topics if topics is not None else list(self._topics.copy().values())
        starts = range(0, max(len(told), 1), PART)
        for number, start in enumerate(starts):
            part, is_last = told[start : start + PART], number == len(starts) - 1
            if is_known and not is_last:
                continue
            body = None
            if is_last and topics is None and self._last is not None and self._last[0] == state:
                body = self._last[1]  # mostly nothing changed
            if body is None:
                its_version = version
                if not is_last:
                    counter = -(version.counter * 4096 + number + 1)
                    its_version = DataVersion(timestamp=version.timestamp, counter=counter)
                body = await self._encoded(part, its_version)
            if is_last and topics is None:
                self._last = (state, body)
            yield self._request(body)

    def _request(self, body: bytes) -> Command:
        config = self._settings.config
        header = RegisterBroker(
            broker_name=config.name,
            broker_addr=self._address,
            cluster_name=config.cluster,
            broker_id=0,
            ha_server_addr=self._address,
        )
        return Command(code=RegisterBroker.CODE, fields=header.to_fields(), body=body)

    async def _encoded(self, topics: list[TopicConfig], version: DataVersion) -> bytes:
        permission = self._settings.config.permission
        servers = self._filter_servers()

        def encode() -> bytes:
            told = topics
            if permission & _READ_WRITE != _READ_WRITE:
                told = [replace(one, perm=Perm(permission)) for one in topics]
            table = TopicTable(topics={one.name: one for one in told}, version=version)
            steps = beans.encode_steps(Registration(table=table, filter_servers=servers))
            while True:
                try:
                    next(steps)
                except StopIteration as over:
                    made: bytes = over.value
                    return made

        return encode() if len(topics) <= _FEW else await asyncio.to_thread(encode)

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
        self.address = address
        self._registrar = registrar
        self._peer: Peer | None = None
        self._known: object = None  # the state that was told by this connection
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
            await self._register(topics)
        except LocalProtocolError as error:
            self._failed(f"it can't be told of the topics: {error}")
        except (ConfigError, OSError, TimeoutError, RemoteProtocolError, ValueError) as error:
            self._failed(str(error) or "no answer in time")
        except Exception as error:  # the edge: the start of a broker does not depend on it
            log.exception("name server %s: not registered", self.address)
            self._failed(repr(error))
        else:
            if self._failures:
                log.info("name server %s: registered again", self.address)
            self._failures = 0

    async def _register(self, topics: list[TopicConfig] | None) -> None:
        if self._peer is None or self._peer.is_closed:
            self._peer = await connect(self.address, security=self._registrar.security)
            topics, self._known = None, None
        state = self._registrar.state
        is_known = topics is None and state == self._known
        if topics is None:
            self._known = None  # until it has been told of all of them
        async for request in self._registrar.requests(topics, is_known=is_known):
            answer = await self._peer.ask(request, _TIMEOUT)
            if answer.code != ResponseCode.SUCCESS:
                raise RemoteProtocolError(f"it answers {answer.code}: {answer.remark}")
            self._registrar.registered(self.address, answer.body)
        if topics is None:
            self._known = state

    def _failed(self, why: str) -> None:
        if not self._failures:
            log.warning("name server %s: not registered: %s", self.address, why)
        self._failures += 1

    async def leave(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
        if self._peer is not None and not self._peer.is_closed:
            try:
                await self._peer.ask(self._registrar.farewell(), 2.0)
            except (OSError, TimeoutError) as error:
                log.warning("name server %s: not told that we stop: %s", self.address, error)
            self._peer.close()
