"""The clusters a client is tested with, ours and RocketMQ's own, and clients in a hurry."""

import asyncio
import functools
import os
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from broker.asking import ask, close, command, until

from tamis.client import (
    Consumer,
    ConsumerConfig,
    Message,
    Producer,
    ProducerConfig,
    PushConsumer,
    ReceivedMessage,
    SendResult,
)
from tamis.net.aio import connect
from tamis.testing import LocalCluster
from tamis.wire import beans
from tamis.wire.bodies import Perm, TopicRoute
from tamis.wire.codes import RequestCode, ResponseCode
from tamis.wire.command import Command
from tamis.wire.headers import CreateTopic, GetRoute, Header, OffsetResponse, OfQueue

IS_REQUIRED = os.environ.get("TAMIS_INTEROP") == "required"
TARGETS = ("tamis", "4.9", "5.3") if IS_REQUIRED else ("tamis",)

READ, WRITE = int(Perm.READ), int(Perm.WRITE)
SETTINGS: dict[str, object] = {  # of brokers, by RocketMQ's names
    "messageDelayLevel": "1s 2s" + 16 * " 1s",
    "transactionTimeOut": 1000,  # milliseconds, as is the next
    "transactionCheckInterval": 1000,
    "enablePropertyFilter": True,
}
STRICT = SETTINGS | {
    "autoCreateTopicEnable": False,
    "autoCreateSubscriptionGroup": False,
    "enablePropertyFilter": False,
}
QUICK: dict[str, Any] = {  # of consumers
    "start": "first",
    "rebalance_interval": 1.0,
    "commit_interval": 0.2,
    "suspend": 0.05,
}
_LIMIT = 50.0  # seconds for a test
_ENDING = 5.0


class Cluster:
    """A name server and a broker that run; `target` says whose."""

    def __init__(self, target: str, nameserver: str, broker: str) -> None:
        self.target = target
        self.nameserver = nameserver
        self.broker = broker

    @staticmethod
    def name(what: str) -> str:
        """Of a topic or a group nobody else has."""
        return f"{what}-{uuid.uuid4().hex[:8]}"

    async def ask(self, request: Header | Command) -> Command:
        """The broker, without the client that is tested. Raises Refused."""
        peer = await connect(self.broker)
        try:
            return await ask(peer, request if isinstance(request, Command) else command(request))
        finally:
            await close(peer)

    async def create_topic(self, what: str, queues: int = 4, perm: int = READ | WRITE) -> str:
        """Its name, once clients can find it."""
        topic = self.name(what)
        await self.change_topic(topic, queues, perm)
        return topic

    async def change_topic(self, topic: str, queues: int, perm: int = READ | WRITE) -> None:
        header = CreateTopic(
            topic=topic,
            default_topic="TBW102",
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=perm,
            topic_filter_type="SINGLE_TAG",
        )
        await self.ask(header)
        nameserver = await connect(self.nameserver)
        request = command(GetRoute(topic=topic, accept_standard_json_only=True))
        seen: object = None
        async with asyncio.timeout(20):
            while seen != [(queues, perm)]:
                answer = await nameserver.ask(request, 20)
                if answer.code == ResponseCode.SUCCESS:
                    route = beans.decode(TopicRoute, answer.body)
                    seen = [(one.read_queues, one.perm) for one in route.queues]
                await asyncio.sleep(0.01)
        await close(nameserver)

    async def wait_for_offsets(self, group: str, topic: str, *expected: int) -> None:
        """Of all queues of a topic, until the broker has them so."""
        seen: list[int] = []
        deadline = asyncio.get_running_loop().time() + 20
        while seen != list(expected):
            assert asyncio.get_running_loop().time() < deadline, f"{seen}, not {expected}"
            seen = [await self.offset_of(group, topic, n) for n in range(len(expected))]

    async def offset_of(self, group: str, topic: str, queue_id: int = 0) -> int:
        """As the broker has it."""
        fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id)}
        request = Command(code=RequestCode.QUERY_CONSUMER_OFFSET, fields=fields)
        answer = await self.ask(request)
        assert answer.fields is not None
        return int(answer.fields["offset"])

    # Clients

    def producer(self, group: str = "P", *, check: Any = None, **settings: Any) -> Producer:
        return Producer(self.nameserver, group, check=check, config=ProducerConfig(**settings))

    def push(
        self, group: str, handler: Any = None, *, ordered: bool = False, **settings: Any
    ) -> PushConsumer:
        config = ConsumerConfig(**(QUICK | settings))
        return PushConsumer(self.nameserver, group, handler, ordered=ordered, config=config)

    def consumer(self, group: str, **settings: Any) -> Consumer:
        return Consumer(self.nameserver, group, config=ConsumerConfig(**(QUICK | settings)))

    async def fill(self, topic: str, *bodies: str, **others: Any) -> list[SendResult]:
        """One after the other; when it is done they can be pulled."""
        async with self.producer() as producer:
            sent = [await producer.send(Message(topic, body, **others)) for body in bodies]
        await self.wait_for_queues(sent)
        return sent

    async def wait_for_queues(self, sent: Iterable[SendResult]) -> None:
        """A message is in its queue a little after its producer is told that it is stored."""
        ends = {one.queue: one.offset + 1 for one in sent}  # the last of each queue
        peer = await connect(self.broker)
        for queue, end in ends.items():
            header = OfQueue(topic=queue.topic, queue_id=queue.queue_id)
            request, seen = command(header, RequestCode.GET_MAX_OFFSET), 0
            async with asyncio.timeout(20):
                while seen < end:
                    answer = await ask(peer, request)
                    seen = OffsetResponse.from_fields(answer.fields).offset
        await close(peer)

    async def read(self, topic: str, count: int, **filters: Any) -> list[ReceivedMessage]:
        """So many messages of a topic, from its beginning."""
        consumer = self.consumer(self.name("Reader"))
        try:
            consumer.assign(await consumer.queues(topic), **filters)
            await consumer.start()
            return await take(consumer, count)
        finally:
            await consumer.close()


async def fill_apart(cluster: Cluster, topic: str, *bodies: str) -> None:
    """Each is stored in a millisecond of its own."""
    for body in bodies:
        await cluster.fill(topic, body)
        millis = time.time() * 1000 + 2
        await until(lambda: time.time() * 1000 > millis, time.time)  # noqa: B023


async def take(consumer: Consumer, count: int, patience: float = 20.0) -> list[ReceivedMessage]:
    """So many messages; says what came if not all do."""
    found: list[ReceivedMessage] = []
    deadline = asyncio.get_running_loop().time() + patience
    while len(found) < count:
        found += await consumer.getmany(count - len(found), timeout=1.0)
        late = asyncio.get_running_loop().time() > deadline
        assert not late, f"{len(found)} of {count} after {patience:g} s: {texts(found)}"
    return found


def texts(messages: list[ReceivedMessage]) -> list[str]:
    return [message.text for message in messages]


class Seen:
    """A handler that remembers what it was given. `fail` says which are to come again."""

    def __init__(self, fail: Callable[[ReceivedMessage], Any] = lambda message: None) -> None:
        self.messages: list[ReceivedMessage] = []
        self._fail = fail

    async def __call__(self, message: ReceivedMessage) -> Any:
        self.messages.append(message)
        return self._fail(message)

    @property
    def texts(self) -> list[str]:
        return texts(self.messages)

    async def until(self, *expected: str, patience: float = 20.0) -> None:
        """Just these came, in any order."""
        wanted = sorted(expected)
        await until(lambda: len(self.messages) >= len(wanted), lambda: self.texts, patience)
        assert sorted(self.texts) == wanted, self.texts


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Runs a test that is a coroutine. Clients that are closed leave no task behind."""

    async def in_time(*arguments: Any, **named: Any) -> None:
        async with asyncio.timeout(_LIMIT):
            await test(*arguments, **named)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left:
            await asyncio.wait(left, timeout=_ENDING)
        assert not [task for task in left if not task.done()]

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(in_time(*arguments, **named))

    return run


@contextmanager
def running(target: str, home: Path, **settings: object) -> Iterator[Cluster]:
    if target == "tamis":
        with LocalCluster(home / "store", **settings) as ours:
            yield Cluster(target, ours.nameserver, ours.broker)
    else:
        from interop.cluster import apache_cluster

        if target == "5.3":  # it remembers how transactions ended only so often: 3 s by default,
            settings["transactionOpBatchInterval"] = 50  # and asks again about those in between
        with apache_cluster(home / "store", line=target, **settings) as theirs:
            yield Cluster(target, theirs.nameserver, theirs.broker)
