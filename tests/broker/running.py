"""A broker in the test's own loop, and a client that says what it is told to."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tamis.broker.broker import Broker
from tamis.broker.config import BrokerConfig
from tamis.message import StoredMessage
from tamis.net.aio import Peer, connect
from tamis.store.store import Store
from tamis.wire import beans, properties, record
from tamis.wire.bodies import ConsumerData, Heartbeat, ProducerData, Subscription
from tamis.wire.codes import PullFlag, RequestCode
from tamis.wire.command import Command
from tamis.wire.headers import PullMessage, SendMessage, SendMessageBack

SMALL: dict[str, Any] = {
    "flush": "async",  # what needs sync says so
    "log_file_size": 2**20,
    "index_slots": 1000,
    "index_entries": 4000,
}


@asynccontextmanager
async def running(
    store: Path, *, clock: Callable[[], float] = time.monotonic, **settings: Any
) -> AsyncIterator[tuple[Broker, "Client"]]:
    broker = Broker(BrokerConfig(port=0, **(SMALL | settings)), store, clock=clock)
    await broker.start()
    client = await Client.connect(broker.address)
    client.store = broker.store
    try:
        yield broker, client
    finally:
        client.peer.close()
        await broker.close()


class Client:
    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.told: list[Command] = []  # what the broker said unasked
        self.store: Store | None = None  # of the broker, where it is this process's own

    @classmethod
    async def connect(cls, address: str) -> "Client":
        told: list[Command] = []
        made = cls(await connect(address, on_requests=lambda peer, requests: told.extend(requests)))
        made.told = told
        return made

    async def ask(self, code: int, fields: dict[str, str] | None = None, body: bytes = b"",
                  version: int = 401) -> Command:  # fmt: skip
        return await self.peer.ask(
            Command(code=code, fields=fields, body=body, version=version), timeout=20
        )

    async def send(self, topic: str, body: bytes = b"x", *, tags: str = "", queue_id: int = 0,
                   version: int = 401, **others: Any) -> Command:  # fmt: skip
        named = dict(others.pop("properties", {})) | ({"TAGS": tags} if tags else {})
        header = SendMessage(
            **{
                "producer_group": "p",
                "topic": topic,
                "default_topic": "TBW102",
                "default_topic_queue_nums": 4,
                "queue_id": queue_id,
                "sys_flag": 0,
                "born_timestamp": 1,
                "flag": 0,
                "properties": properties.encode(named),
                **others,
            }
        )
        fields = header.to_fields(letters=True)
        return await self.ask(RequestCode.SEND_MESSAGE_V2, fields, body, version)

    async def heartbeat(self, group: str, *subscriptions: Subscription, client_id: str = "c",
                        producer: str | None = None, **others: Any) -> Command:  # fmt: skip
        consumer = ConsumerData(group=group, subscriptions=list(subscriptions), **others)
        body = Heartbeat(
            client_id=client_id,
            producers=[ProducerData(group=producer)] if producer else [],
            consumers=[consumer] if group else [],
        )
        return await self.ask(RequestCode.HEART_BEAT, body=beans.encode(body))

    async def pull(self, topic: str, offset: int = 0, *, group: str = "g", queue_id: int = 0,
                   subscription: str | None = "*", kind: str = "TAG", version: int = 0,
                   suspend: float = 0, flag: int = 0, most: int = 32) -> Command:  # fmt: skip
        flag |= PullFlag.SUBSCRIPTION if subscription is not None else 0
        flag |= PullFlag.SUSPEND if suspend else 0
        header = PullMessage(
            consumer_group=group,
            topic=topic,
            queue_id=queue_id,
            queue_offset=offset,
            max_msg_nums=most,
            sys_flag=flag,
            suspend_timeout_millis=int(suspend * 1000),
            subscription=subscription,
            sub_version=version,
            expression_type=kind,
        )
        return await self.ask(RequestCode.PULL_MESSAGE, header.to_fields())

    async def all_of(self, topic: str, queue_id: int = 0, **others: Any) -> list[StoredMessage]:
        answer = await self.pull(topic, queue_id=queue_id, **others)
        return messages(answer.body)

    async def send_back(self, message: StoredMessage, group: str, level: int = 0,
                        most: int | None = None) -> Command:  # fmt: skip
        header = SendMessageBack(
            offset=message.log_offset, group=group, delay_level=level, max_reconsume_times=most
        )
        return await self.ask(RequestCode.CONSUMER_SEND_MSG_BACK, header.to_fields())


def messages(body: bytes) -> list[StoredMessage]:
    found, view = [], memoryview(body)
    while view:
        size = record.record_size(view)
        found.append(record.decode(view[:size]))
        view = view[size:]
    return found


async def until(condition: Callable[[], Any], seconds: float = 10.0) -> Any:
    """What the condition gives once it is true; it says what it was otherwise."""
    async with asyncio.timeout(seconds):
        while not (seen := condition()):
            await asyncio.sleep(0.005)
    return seen


def run(work: Any) -> Any:
    return asyncio.run(work)
