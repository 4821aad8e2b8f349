"""Nothing waits for ever, and no pause grows without end."""

import asyncio
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from client.relaying import relaying
from client.targets import Cluster, in_loop, texts
from client.test_reviewed_producers import Between, naming

from tamis.client import Message, Producer, ProducerConfig, blocking, compat
from tamis.client.backoff import pause_before
from tamis.errors import SendFailed
from tamis.testing import LocalCluster


def test_pauses_grow_up_to_a_limit() -> None:
    pauses = [pause_before(attempt, 0.1, 10.0) for attempt in range(2000)]
    assert pauses[:4] == [0.1, 0.2, 0.4, 0.8]
    assert max(pauses) == 10.0


@in_loop
async def test_a_one_way_message_is_sent_though_keyed_ones_never_cease(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders", queues=1)
    async with cluster.producer() as producer:
        await producer.send(Message(topic, b"first"))
        under_way: set[asyncio.Future[Any]] = set()
        sent_by_key = 0
        is_over = False

        def send_next(done: asyncio.Future[Any] | None = None) -> None:
            nonlocal sent_by_key
            if done is not None:
                under_way.discard(done)
                sent_by_key += done.exception() is None  # a broker may be too busy for one
            if not is_over:  # another in its place, before anyone else has a turn
                sent = producer.submit(Message(topic, b"keyed"), key="k")
                under_way.add(sent)
                sent.add_done_callback(send_next)

        for _ in range(3):
            send_next()
        async with asyncio.timeout(20):
            await producer.send_oneway(Message(topic, b"one way"), key="k")
        is_over = True
        if under_way:
            await asyncio.wait(under_way)
        # RocketMQ stores what one connection sends in any order: all of it is read.
        assert "one way" in texts(await cluster.read(topic, 1 + sent_by_key + 1))


@in_loop
async def test_a_one_way_message_to_a_broker_that_does_not_read_fails_in_time(
    cluster: Cluster,
) -> None:
    topic = await cluster.create_topic("Orders")
    body = os.urandom(4 * 2**20 - 4096)
    config = ProducerConfig(timeout=0.2, retries=0, compress_over=2**31)
    async with (
        Between(cluster.broker) as between,
        naming(topic, a=between.address) as names,
        Producer(names, config=config) as producer,
    ):
        await producer.send(Message(topic, b"x"), timeout=20.0)
        between.hold()

        async def send_many() -> None:
            for _ in range(10):
                await producer.send_oneway(Message(topic, body))

        async with asyncio.timeout(20):
            with pytest.raises(SendFailed, match=f"topic {topic}: not sent"):
                await send_many()
        between.release()


@pytest.mark.parametrize("code", [1, 2])  # of an error at the broker, and of one that is busy
def test_an_ordered_message_of_the_other_packages_is_sent_again_to_a_busy_broker(
    tmp_path: Path, code: int
) -> None:
    answers = 0

    def refuse(frame: bytearray) -> None:
        nonlocal answers
        if b'"msgId"' in frame:
            answers += 1
            if answers != 3:
                at = frame.index(b'"code":0')
                frame[at + 7 : at + 8] = str(code).encode()

    with ExitStack() as stack:
        cluster = stack.enter_context(LocalCluster(tmp_path / "store"))
        with blocking.Admin(cluster.nameserver) as admin:
            admin.create_topic("Orders", queues=1)
        producer = compat.Producer("P")
        address = stack.enter_context(relaying(cluster, refuse, "Orders"))
        producer.set_name_server_address(address)
        stack.enter_context(producer)
        message = compat.Message("Orders")
        message.set_body("x")
        assert producer.send_orderly(message, 0, retry_times=2).offset == 2
        with pytest.raises(compat.ProducerSendOrderlyFailed):
            producer.send_orderly(message, 0, retry_times=1)
        assert answers == 5
