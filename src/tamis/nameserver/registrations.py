"""Registrations as they come from brokers: checked, read, and filed in the order they were sent.

A broker repeats itself every 30 seconds with all its topics, of which there may be a million: what
it says again word for word is not read again, and long ones are read away from the event loop.
"""

import asyncio
import hashlib
import logging
import re
import reprlib
import time
import zlib
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import orjson

from ..errors import ResponseError
from ..net.aio import Peer
from ..net.longwork import LongWork
from ..net.server import Answer, Request
from ..wire import beans, fastjson
from ..wire.bodies import DataVersion, KvTable, QueueData, Registration, TopicConfig
from ..wire.codes import ResponseCode
from ..wire.headers import OfBroker, RegisterBroker, RegisterBrokerResponse
from .config import NameServerConfig
from .kvconfig import ORDER_TOPICS, KvConfig
from .table import Announcement, RouteTable

__all__ = ["Registrations"]

log = logging.getLogger(__name__)

_LONG: Final = 64 * 1024  # bytes of a body, from which on it is read in a thread; some 500 topics
_ZLIB: Final = b"\x78"  # how it begins, and JSON never: 5.3.3 compresses but says that it didn't
_BARE_TABLE_VERSION: Final = 37  # V3_0_11: brokers before it sent their topics alone


class Registrations:
    """Files what brokers say in the table."""

    def __init__(
        self,
        table: RouteTable,
        kv: KvConfig,
        config: NameServerConfig | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config or NameServerConfig()
        self.work = LongWork()
        self._table = table
        self._kv = kv
        self._now = now
        self._last: dict[Peer, _Turn] = {}  # of connections with some under way

    def register(
        self, header: RegisterBroker, request: Request
    ) -> Answer | Coroutine[Any, Any, Answer]:
        if len(request.body) >= _LONG or request.peer in self._last:
            return self._register_in_turn(_Turn(self._last, request.peer), header, request)
        digest = _digest(header, request.body)
        filed = self._refresh(header, request, digest)
        if filed is None:
            filed = self._file(header, request, _read(header, request, digest))
        return self._answer(filed)

    async def _register_in_turn(
        self, turn: "_Turn", header: RegisterBroker, request: Request
    ) -> Answer:
        async with turn:
            peer = request.peer
            digest = await self.work.call(peer, lambda: _digest(header, request.body))
            filed = self._refresh(header, request, digest)
            if filed is None:
                said = await self.work.call(peer, lambda: _read(header, request, digest))
                filed = self._file(header, request, said)
            if request.peer.is_closed:  # meanwhile: nobody would tell us that this broker is gone
                self._table.drop_connection(request.peer)
        return self._answer(filed)

    def unregister(
        self, header: OfBroker, request: Request
    ) -> Answer | Coroutine[Any, Any, Answer]:
        if request.peer in self._last:
            return self._unregister_in_turn(_Turn(self._last, request.peer), header)
        self._table.unregister(header)
        return Answer()

    async def _unregister_in_turn(self, turn: "_Turn", header: OfBroker) -> Answer:
        async with turn:
            self._table.unregister(header)
        return Answer()

    def drop_connection(self, peer: Peer) -> None:
        self._table.drop_connection(peer)

    def drop_silent(self, seconds: float) -> None:
        """Closes their connections too: a broker that is alive comes back by another."""
        for peer in self._table.drop_silent(now=self._now(), seconds=seconds):
            assert isinstance(peer, Peer)
            peer.close()

    def _refresh(
        self, header: RegisterBroker, request: Request, digest: bytes
    ) -> RegisterBrokerResponse | None:
        return self._table.refresh(header, digest, connection=request.peer, now=self._now())

    def _file(
        self, header: RegisterBroker, request: Request, said: Announcement
    ) -> RegisterBrokerResponse:
        """Raises ResponseError if the table has no room for it."""
        config, why = self._config, ""
        name = header.broker_name
        if not self._table.has_broker(name) and self._table.brokers >= config.most_brokers:
            why = f"{config.most_brokers} brokers are registered, which is all (most_brokers)"
        elif self._table.topic_count + self._table.unknown(name, said) > config.most_topics:
            why = f"there would be more than {config.most_topics} topics (most_topics)"
        if why:
            log.warning("%s: registration of %.100s refused: %s", request.peer, name, why)
            raise ResponseError(ResponseCode.SYSTEM_ERROR, f"not registered: {why}")
        return self._table.register(header, said, connection=request.peer, now=self._now())

    def _answer(self, filed: RegisterBrokerResponse) -> Answer:
        orders = self._kv.namespace(ORDER_TOPICS)
        return Answer(filed, beans.encode(KvTable(table=orders)) if orders is not None else b"")


class _Turn:
    """A connection's requests that take time follow each other in the order they were sent. `last`
    has an entry for a connection as long as there are any."""

    def __init__(self, last: dict[Peer, "_Turn"], peer: Peer) -> None:
        self._last = last
        self._peer = peer
        self._before = last.get(peer)
        self._over = asyncio.Event()
        last[peer] = self

    async def __aenter__(self) -> None:
        if self._before is not None:
            await self._before._over.wait()
            self._before = None

    async def __aexit__(self, *_: object) -> None:
        self._over.set()
        if self._last.get(self._peer) is self:
            del self._last[self._peer]


def _digest(header: RegisterBroker, body: bytes) -> bytes:
    """Raises ResponseError if the body is not as it was sent."""
    if header.body_crc32 not in (0, zlib.crc32(body) & 0x7FFFFFFF):
        raise ResponseError(ResponseCode.SYSTEM_ERROR, "crc32 not match")
    return hashlib.blake2b(body, digest_size=16).digest()


def _read(header: RegisterBroker, request: Request, digest: bytes) -> Announcement:
    """Raises ResponseError."""
    name, body = header.broker_name, request.body
    filter_servers: list[str] | None
    try:
        if not body:
            version, queues, filter_servers = DataVersion(), {}, []
        elif request.command.version < _BARE_TABLE_VERSION:
            bare = beans.decode(_Topics, body)
            version, queues, filter_servers = bare.version, _queues(name, bare.topics), None
        elif header.compressed or body.startswith(_ZLIB):
            packed = Registration.decode(body, compressed=True)
            version, filter_servers = packed.table.version, packed.filter_servers or []
            queues = _unpacked_queues(name, packed.table.topics.values())
        else:
            said = beans.from_json(_Registration, _loads(body))
            version, filter_servers = said.table.version, said.filter_servers
            queues = _queues(name, said.table.topics)
    except ValueError as error:
        log.warning("%s: registration refused: %s", request.peer, error)
        remark = f"Failed to decode RegisterBrokerBody: {error}"
        raise ResponseError(ResponseCode.SYSTEM_ERROR, remark) from None
    return Announcement(
        digest=digest, version=version, queues=queues, filter_servers=filter_servers
    )


_HEAVY: Final = 2**20  # bytes of JSON that are not read as a whole
_TOPICS_AT_ONCE: Final = 1000
_MOST_ENTRY: Final = 65_536  # bytes of one topic
_STRING: Final = rb'"(?:[^"\\]|\\.)*+"'
_PLAIN: Final = rb"(?:[^{}\[\]\"]|" + _STRING + rb")*+"
# an entry of an object, itself an object with no more than one level of objects in it
_ENTRY = re.compile(
    _STRING + rb":\{" + _PLAIN + rb"(?:\{" + _PLAIN + rb"\}" + _PLAIN + rb")*+\}", re.DOTALL
)
_TABLE: Final = b'"topicConfigTable":{'


def _loads(body: bytes) -> Any:
    """The JSON of a registration. A long one is read topic by topic, for a JSON parser that reads
    megabytes at once holds up all threads. Raises ValueError."""
    start = body.find(_TABLE)
    if len(body) < _HEAVY or start < 0:
        if len(body) > _HEAVY:
            raise ValueError(f"{len(body)} bytes without a table of topics")
        return fastjson.loads(body)
    start += len(_TABLE)
    topics: dict[str, Any] = {}
    at = first = start
    count = 0
    while (entry := _ENTRY.match(body, at, at + _MOST_ENTRY)) is not None:
        count += 1
        at = entry.end()
        is_more = body[at : at + 1] == b","
        if count % _TOPICS_AT_ONCE == 0 or not is_more:
            topics |= orjson.loads(b"{" + body[first:at] + b"}")
            first = at + 1
        if not is_more:
            break
        at += 1
    if body[at : at + 1] != b"}" or len(body) - (at - start) > _HEAVY:
        raise ValueError(f"a table of topics that ends at byte {at} in an unknown way")
    found = fastjson.loads(body[:start] + body[at:])
    try:
        found["topicConfigSerializeWrapper"]["topicConfigTable"] |= topics
    except (KeyError, TypeError):
        raise ValueError("no table of topics where it should be") from None
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Topics:
    """A `TopicTable` with the topics as they are in JSON."""

    topics: Annotated[dict[str, Any], "topicConfigTable"] = field(default_factory=dict)
    version: Annotated[DataVersion, "dataVersion"] = field(default_factory=DataVersion)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Registration:
    table: Annotated[_Topics, "topicConfigSerializeWrapper"] = field(default_factory=_Topics)
    filter_servers: Annotated[list[str], "filterServerList"] = field(default_factory=list)


def _queues(broker_name: str, topics: dict[str, Any]) -> dict[str, QueueData]:
    """By topic. Of topics that are alike one is read in full: 100,000 in 0.4 s instead of 2.7."""
    made: dict[tuple[Any, ...], QueueData] = {}
    queues = {}
    for key, topic in topics.items():
        try:
            get = topic.get
            name = get("topicName")
            shape = (
                *(get("readQueueNums"), get("writeQueueNums"), get("perm")),
                *(get("topicSysFlag"), get("topicFilterType"), get("order")),
            )
            queue = made.get(shape)
        except (AttributeError, TypeError):
            raise ValueError(f"{key}: {reprlib.repr(topic)} is no topic") from None
        if queue is None:
            queue = made[shape] = _queue(broker_name, beans.from_json(TopicConfig, topic))
        queues[name if isinstance(name, str) else key] = queue
    return queues


def _unpacked_queues(broker_name: str, topics: Iterable[TopicConfig]) -> dict[str, QueueData]:
    made: dict[tuple[int, ...], QueueData] = {}
    queues = {}
    for topic in topics:
        shape = (topic.read_queues, topic.write_queues, topic.perm, topic.sys_flag)
        queue = made.get(shape)
        if queue is None:
            queue = made[shape] = _queue(broker_name, topic)
        queues[topic.name] = queue
    return queues


def _queue(broker_name: str, topic: TopicConfig) -> QueueData:
    return QueueData(
        broker_name=broker_name,
        read_queues=topic.read_queues,
        write_queues=topic.write_queues,
        perm=topic.perm,
        sys_flag=topic.sys_flag,
    )
