"""A member of a consumer group that does by hand what clients do: heartbeat, find its queues, pull,
acknowledge. Each test decides what it does when, so nothing here waits on a timer."""

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any

from broker.running import Client, messages

from tamis.broker.broker import Broker
from tamis.message import StoredMessage
from tamis.wire import beans
from tamis.wire.bodies import ConsumerIds, LockRequest, LockResponse, MessageQueue, Subscription
from tamis.wire.codes import RequestCode, ResponseCode
from tamis.wire.command import Command
from tamis.wire.headers import (
    OfConsumerGroup,
    OffsetResponse,
    PullMessageResponse,
    QueryConsumerOffset,
    UnregisterClient,
    UpdateConsumerOffset,
)


def tags(topic: str, expression: str, version: int = 1) -> Subscription:
    names = [] if expression == "*" else [one.strip() for one in expression.split("||")]
    return Subscription(topic=topic, expression=expression, tags=names, version=version)


def sql(topic: str, expression: str, version: int = 1) -> Subscription:
    return Subscription(
        topic=topic, expression=expression, expression_type="SQL92", version=version
    )


class GroupMember:
    """`had` are the bodies it was given, in order; tag filters are applied as clients do."""

    def __init__(self, client: Client, group: str, name: str, said: Iterable[Subscription]) -> None:
        self.client, self.group, self.name = client, group, name
        self.said = list(said)
        self.had: list[str] = []
        self.at: dict[tuple[str, int], int] = {}

    @classmethod
    async def join(
        cls, broker: Broker, group: str, name: str, *said: Subscription, retries: bool = False
    ) -> "GroupMember":
        client = await Client.connect(broker.address)
        client.store = broker.store
        more = [tags(f"%RETRY%{group}", "*")] if retries else []
        made = cls(client, group, name, [*said, *more])
        await made.beat()
        return made

    async def beat(self, *said: Subscription, **others: Any) -> Command:
        if said:
            self.said = list(said)
        return await self.client.heartbeat(self.group, *self.said, client_id=self.name, **others)

    async def leave(self) -> None:
        header = UnregisterClient(client_id=self.name, consumer_group=self.group)
        await self.client.ask(RequestCode.UNREGISTER_CLIENT, header.to_fields())
        self.client.peer.close()

    async def peers(self) -> list[str]:
        header = OfConsumerGroup(consumer_group=self.group)
        answer = await self.client.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header.to_fields())
        return sorted(beans.decode(ConsumerIds, answer.body).ids)

    async def queues(self, count: int) -> list[int]:
        """Those that are its own: in turn, which is as good as any rule all members share."""
        ids = await self.peers()
        return [one for one in range(count) if ids[one % len(ids)] == self.name]

    async def offset(self, topic: str, queue_id: int) -> int | None:
        header = QueryConsumerOffset(
            consumer_group=self.group, topic=topic, queue_id=queue_id, set_zero_if_not_found=True
        )
        answer = await self.client.ask(RequestCode.QUERY_CONSUMER_OFFSET, header.to_fields())
        if answer.code != ResponseCode.SUCCESS:
            return None
        return OffsetResponse.from_fields(answer.fields or {}).offset

    async def commit(self, topic: str, queue_id: int, offset: int) -> Command:
        header = UpdateConsumerOffset(
            consumer_group=self.group, topic=topic, queue_id=queue_id, commit_offset=offset
        )
        return await self.client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header.to_fields())

    async def pull(self, topic: str, queue_id: int, offset: int, **others: Any) -> Command:
        others = {"subscription": None, "version": 1} | others
        return await self.client.pull(topic, offset, group=self.group, queue_id=queue_id, **others)

    async def step(self, topic: str, queue_id: int, **others: Any) -> list[StoredMessage]:
        """One pull, from where it is in the queue; it knows then where to go on."""
        place = (topic, queue_id)
        if place not in self.at:
            self.at[place] = await self.offset(topic, queue_id) or 0
        answer = await self.pull(topic, queue_id, self.at[place], **others)
        header = PullMessageResponse.from_fields(answer.fields or {})
        if answer.code == ResponseCode.PULL_OFFSET_MOVED:
            self.at[place] = header.next_begin_offset
            return await self.step(topic, queue_id, **others)
        self.last = answer
        self.at[place] = header.next_begin_offset
        one = next((s for s in self.said if s.topic == topic), None)
        found = messages(answer.body) if answer.code == ResponseCode.SUCCESS else []
        if one is not None and one.tags:
            found = [m for m in found if m.properties.get("TAGS") in one.tags]
        return found

    async def consume(
        self, topic: str, queues: Iterable[int], *, commits: bool = True, **others: Any
    ) -> list[str]:
        """All that is there for it; returns the bodies."""
        bodies = []
        for queue_id in queues:
            while True:
                before = self.at.get((topic, queue_id))
                found = await self.step(topic, queue_id, **others)
                bodies += [one.body.decode() for one in found]
                if not found and self.at[topic, queue_id] == before:
                    break
            if commits:
                await self.commit(topic, queue_id, self.at[topic, queue_id])
        self.had += bodies
        return bodies

    async def lock(self, topic: str, queue_id: int, broker: str = "broker-a") -> bool:
        queue = MessageQueue(topic, broker, queue_id)
        body = LockRequest(group=self.group, client_id=self.name, queues=[queue])
        answer = await self.client.ask(RequestCode.LOCK_BATCH_MQ, body=beans.encode(body))
        return queue in beans.decode(LockResponse, answer.body).queues


class Clock:
    """The broker's, which a test puts forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


async def tend(broker: Broker) -> None:
    """What the broker does about once a second."""

    async def turn() -> None:
        await asyncio.sleep(0)

    async def call(job: Callable[[], Any]) -> Any:
        return job()

    await broker.tending.tend(turn, call)
