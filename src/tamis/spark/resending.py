"""Messages sent to one group again: copies in its retry topic, which only its members read.

A copy is as the broker makes one of a message that a member sent back: it has the properties of the
message, its producer's id among them, the topic it came from and the place of the first in the log.
That it was not tried before is said too: it counts as sent back 0 times.
"""

import asyncio
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from ..client.config import ClientConfig
from ..client.received import retry_topic
from ..client.session import Session
from ..errors import Error, InvalidMessage, TopicNotFound
from ..message import PropertyName
from ..security import INSECURE, Security
from ..security.settings import fields_of
from ..wire import headers, properties
from ..wire.bodies import MessageQueue
from ..wire.codes import Language, RequestCode, ResponseCode
from ..wire.command import Command
from ..wire.record import MAX_PROPERTIES

__all__ = ["REPLAYED_FROM", "Copy", "Resender", "offset_message_id"]

REPLAYED_FROM: Final = "TAMIS_REPLAYED_FROM"  # property of a copy: topic/broker/queue/offset
_GROUP: Final = "TAMIS_REPLAY"  # of producers
_IN_FLIGHT: Final = 64
# All of these say that it is stored.
_STORED: Final = frozenset(
    (
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    )
)
# A copy is not delayed or part of a transaction, whatever the message was.
_DROPPED: Final = (
    *("MIN_OFFSET", "MAX_OFFSET"),
    *(PropertyName.TRANSACTION_PREPARED, PropertyName.DELAY),
    *(PropertyName.REAL_TOPIC, PropertyName.REAL_QUEUE),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A message as it was read, and the group it is for."""

    group: str
    topic: str
    broker: str
    queue_id: int
    offset: int
    offset_message_id: str
    property_string: str
    body: bytes
    flag: int
    born_timestamp: int

    @property
    def origin(self) -> str:
        return f"{self.topic}/{self.broker}/{self.queue_id}/{self.offset}"

    def properties(self) -> str:
        """Return those of the copy, as they travel. Raises InvalidMessage if they are too long."""
        named = properties.decode(self.property_string)
        for name in _DROPPED:
            named.pop(name, None)
        named[PropertyName.RETRY_TOPIC] = self.topic
        named.setdefault(PropertyName.ORIGIN_MESSAGE_ID, self.offset_message_id)
        named[REPLAYED_FROM] = self.origin
        block = properties.encode(named)
        if len(block.encode()) > MAX_PROPERTIES:
            raise InvalidMessage(f"{self.origin}: its properties have no room for what a copy adds")
        return block


class Resender:
    """Sends copies, each once: what is not answered is not sent again. It has a loop of its own."""

    def __init__(self, nameserver: str, timeout: float, security: Security = INSECURE) -> None:
        config = ClientConfig(
            **fields_of(security),
            timeout=timeout,
            connect_timeout=timeout,
            heartbeat_interval=3600.0,
        )
        self._runner = asyncio.Runner()
        self._session = Session("replay", nameserver, config)
        self._queues: dict[str, list[MessageQueue]] = {}  # of retry topics, by group

    def __enter__(self) -> Self:
        self._runner.run(self._session.start())
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._session.close())
        self._runner.close()

    def send(self, copies: Sequence[Copy]) -> None:
        """Raises Error, TimeoutError; then some were sent, and some may have been."""
        self._runner.run(self._send_all(copies))

    async def _send_all(self, copies: Sequence[Copy]) -> None:
        gate = asyncio.Semaphore(_IN_FLIGHT)

        async def send(copy: Copy) -> None:
            async with gate:
                await self._send(copy)

        async with asyncio.TaskGroup() as tasks:
            for copy in copies:
                tasks.create_task(send(copy))

    async def _send(self, copy: Copy) -> None:
        queue = await self._queue(copy)
        header = headers.SendMessage(
            producer_group=_GROUP,
            topic=queue.topic,
            default_topic="TBW102",
            default_topic_queue_nums=1,
            queue_id=queue.queue_id,
            sys_flag=0,
            born_timestamp=copy.born_timestamp,
            flag=copy.flag,
            properties=copy.properties(),
            reconsume_times=0,
        )
        command = Command(
            code=RequestCode.SEND_MESSAGE_V2,
            fields=header.to_fields(letters=True),
            body=copy.body,
            language=Language.PYTHON,
        )
        address = await self._session.routes.master(queue.broker_name)
        await self._session.ask_command(address, command, accept=_STORED)

    async def _queue(self, copy: Copy) -> MessageQueue:
        """Return the retry queue of the message's own broker, if there is one."""
        queues = self._queues.get(copy.group)
        if queues is None:
            topic = retry_topic(copy.group)
            try:
                queues = await self._session.routes.publish_queues(topic)
            except TopicNotFound:
                queues = []
            if not queues:
                raise Error(
                    f"group {copy.group} has no retry topic that can be written to: brokers make it"
                    " when a member connects"
                )
            self._queues[copy.group] = queues
        own = [queue for queue in queues if queue.broker_name == copy.broker] or queues
        return own[copy.offset % len(own)]


def offset_message_id(store_host: str, log_offset: int) -> str:
    """Return the id of a message by where it lies: RocketMQ's offset message id."""
    host, _, port = store_host.rpartition(":")
    address = ipaddress.ip_address(host.strip("[]")).packed
    return (address + int(port).to_bytes(4) + log_offset.to_bytes(8)).hex().upper()
