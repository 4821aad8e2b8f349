"""What reviews of the consumers found: messages passed over, handlers that stopped a consumer, and
what was left behind by one that was closed.
"""

import asyncio
import contextlib
import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from broker.asking import command, until
from client.targets import READ, Cluster, Seen, in_loop, take, texts
from client.test_reviewed_producers import Between, naming

from tamis.client import (
    Admin,
    Consumer,
    ConsumerConfig,
    Message,
    MessageQueue,
    ReceivedMessage,
    RetryLater,
    blocking,
)
from tamis.client.offsets import LocalOffsets
from tamis.client.ordered import Locks
from tamis.errors import ClientClosed, ConfigError, Error
from tamis.wire import beans
from tamis.wire.bodies import LockRequest, LockResponse
from tamis.wire.codes import RequestCode
from tamis.wire.headers import OffsetResponse, OfQueue


class WorkFailed(Exception):
    pass


async def end_of(cluster: Cluster, topic: str) -> int:
    """Of the first queue."""
    request = command(OfQueue(topic=topic, queue_id=0), RequestCode.GET_MAX_OFFSET)
    return OffsetResponse.from_fields((await cluster.ask(request)).fields).offset


# No message is passed over


@in_loop
async def test_a_batch_that_fails_comes_again_though_pulls_ended_while_it_was_collected(
    cluster: Cluster,
) -> None:
    topic, group = await cluster.create_topic("Orders", queues=1), cluster.name("Group")
    await cluster.fill(topic, "1")
    consumer = cluster.consumer(group, hold=0.0)  # the next pulls find nothing, at once
    consumer.subscribe(topic)

    async def fail() -> None:
        async with consumer:
            async for _ in consumer.batches(linger=0.3):
                raise WorkFailed

    with pytest.raises(WorkFailed):
        await fail()
    consumer = cluster.consumer(group)
    consumer.subscribe(topic)
    async with consumer:
        assert texts(await take(consumer, 1)) == ["1"]


async def two_filters(cluster: Cluster) -> tuple[str, list[str]]:
    """A group, and two topics with a message each. They are given in batches of their own."""
    topics = [await cluster.create_topic(name, queues=1) for name in ("First", "Second")]
    for topic in topics:
        await cluster.fill(topic, topic, tags=topic)
    return cluster.name("Group"), topics


def reader_of(cluster: Cluster, group: str, topics: list[str]) -> Consumer:
    consumer = cluster.consumer(group)
    for topic in topics:
        consumer.subscribe(topic, tags=topic)
    return consumer


@in_loop
async def test_a_batch_nobody_saw_is_not_worked_off(cluster: Cluster) -> None:
    group, topics = await two_filters(cluster)
    async with reader_of(cluster, group, topics) as consumer:
        batches = consumer.batches(linger=0.5)
        seen = (await anext(aiter(batches))).column("body").to_pylist()
    assert len(seen) == 1
    async with reader_of(cluster, group, topics) as consumer:
        assert [one.body for one in await take(consumer, 1)] != seen


@in_loop
async def test_what_could_not_be_given_in_columns_is_there_still(cluster: Cluster) -> None:
    group, topics = await two_filters(cluster)
    async with reader_of(cluster, group, topics) as consumer:
        with pytest.raises(Exception, match="nope"):
            await anext(aiter(consumer.batches(linger=0.5, columns=["nope"])))
        assert sorted(texts(await take(consumer, 2))) == sorted(topics)


@in_loop
async def test_another_filter_counts_for_what_comes_while_a_pull_waits(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders", queues=1)
    consumer = cluster.consumer(cluster.name("Group"), hold=1.0)
    consumer.subscribe(topic, tags="A")
    async with consumer:
        await cluster.fill(topic, "1", tags="A")
        assert texts(await take(consumer, 1)) == ["1"]
        await cluster.fill(topic, "2", tags="none")  # by now the next pull waits at the broker
        consumer.subscribe(topic, tags="B")
        await cluster.fill(topic, "3", tags="B")
        assert texts(await take(consumer, 1)) == ["3"]


@in_loop
async def test_a_broker_that_does_not_wait_is_not_asked_without_pause(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders", queues=1)
    async with Between(cluster.broker) as between, naming(topic, a=between.address) as names:
        config = ConsumerConfig(start="first", hold=0.0)
        consumer = Consumer(names, cluster.name("Group"), config=config)
        consumer.assign([MessageQueue(topic, "a", 0)])
        async with consumer:
            before, began = between.pieces, time.monotonic()
            await until(lambda: between.pieces >= before + 10, lambda: between.pieces)
            assert time.monotonic() - began > 0.4  # nine pauses of a tenth of a second


# Handlers


@in_loop
async def test_a_handler_may_close_its_consumer(cluster: Cluster) -> None:
    topic, group = await cluster.create_topic("Orders", queues=1), cluster.name("Group")
    await cluster.fill(topic, "1")

    async def close(message: ReceivedMessage) -> None:
        await consumer.close()

    consumer = cluster.push(group, close, drain=0.5)
    consumer.subscribe(topic)
    async with asyncio.timeout(20):
        await consumer.run()
    await cluster.wait_for_offsets(group, topic, 1)


@in_loop
async def test_a_handler_that_raises_stop_iteration_keeps_no_worker(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders", queues=1)
    handled = []

    def handle(message: ReceivedMessage) -> None:
        handled.append(message.text)
        if message.text == "1":
            next(iter([]))

    consumer = cluster.push(cluster.name("Group"), handle, concurrency=1, drain=0.1)
    consumer.subscribe(topic)
    async with consumer:
        await cluster.fill(topic, "1", "2")
        await until(lambda: "2" in handled, lambda: handled)


@in_loop
async def test_messages_that_come_again_together_go_to_the_handlers_of_their_topics(
    cluster: Cluster,
) -> None:
    topics = [await cluster.create_topic(name, queues=1) for name in ("First", "Second")]
    group = cluster.name("Group")
    got: list[tuple[str, ReceivedMessage]] = []

    async def consume(count: int, verdict: RetryLater | None) -> None:
        def handler(topic: str) -> Any:
            async def handle(messages: list[ReceivedMessage]) -> RetryLater | None:
                got.extend((topic, message) for message in messages)
                return verdict

            return handle

        consumer = cluster.push(group, handler_batch=16)
        for topic in topics:
            consumer.subscribe(topic, handler(topic))
        async with consumer:
            await until(lambda: len(got) >= count, lambda: got)

    for topic in topics * 2:
        await cluster.fill(topic, topic)
    await consume(4, RetryLater(1))
    async with asyncio.timeout(20):
        while await end_of(cluster, f"%RETRY%{group}") < 4:
            await asyncio.sleep(0.02)
    got.clear()
    await consume(4, None)
    assert [topic for topic, _ in got] == [message.topic for _, message in got]


@in_loop
async def test_what_is_here_of_a_topic_that_is_unsubscribed_has_not_failed(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    topics = [await cluster.create_topic(name, queues=1) for name in ("Left", "Kept")]
    left, kept = topics
    begun, may_end, seen = asyncio.Event(), asyncio.Event(), Seen()

    async def handle(message: ReceivedMessage) -> None:
        begun.set()
        await may_end.wait()

    await cluster.fill(left, "1", "2", "3")
    group = cluster.name("Group")
    consumer = cluster.push(group, concurrency=1)
    consumer.subscribe(left, handle)
    consumer.subscribe(kept, seen)
    async with consumer:
        await begun.wait()
        consumer.unsubscribe(left)
        may_end.set()
        await cluster.fill(kept, "4")  # behind the others, for the one worker there is
        await seen.until("4")
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    reader = cluster.consumer(group)
    reader.subscribe(left)
    async with reader:
        found = {one.text: one.reconsume_times for one in await take(reader, 2)}
    assert found.items() >= {"2": 0}.items()


@pytest.mark.parametrize("level", ["3", 1.5, None, -2])
def test_what_is_no_delay_level_is_refused_at_once(level: Any) -> None:
    with pytest.raises(ConfigError, match="RetryLater"):
        RetryLater(level)


@in_loop
async def test_a_message_nobody_takes_back_is_handled_again_here(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tamis.client.unordered._AGAIN", 0.1)
    topic, group = await cluster.create_topic("Orders", queues=1), cluster.name("Group")
    await cluster.change_topic(f"%RETRY%{group}", 1, READ)
    seen = Seen(lambda message: len(seen.messages) > 1)
    consumer = cluster.push(group, seen)
    consumer.subscribe(topic)
    async with consumer:
        await cluster.fill(topic, "1")
        await seen.until("1", "1")
        await cluster.wait_for_offsets(group, topic, 1)


@in_loop
async def test_an_ordered_message_can_be_put_aside_at_once(cluster: Cluster) -> None:
    topic, group = await cluster.create_topic("Orders", queues=1), cluster.name("Group")
    seen = Seen(lambda message: RetryLater(-1) if message.text == "1" else None)
    consumer = cluster.push(group, seen, ordered=True)
    consumer.subscribe(topic)
    async with consumer:
        await cluster.fill(topic, "1", "2")
        await seen.until("1", "2")
    [dead] = await cluster.read(f"%DLQ%{group}", 1)  # a broker queues it a moment later
    assert dead.text == "1"


@in_loop
async def test_a_queue_whose_lock_is_lost_while_others_are_handled_is_not_handled(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Locks, "RENEWAL", 0.05)
    topic, group = await cluster.create_topic("Orders", queues=2), cluster.name("Group")
    may_end, begun = asyncio.Event(), []

    async def handle(message: ReceivedMessage) -> None:
        begun.append(message.queue)
        await may_end.wait()

    consumer = cluster.push(group, handle, ordered=True, concurrency=1)
    consumer.subscribe(topic)

    async def lock(code: RequestCode, owner: str, queue: MessageQueue) -> list[MessageQueue]:
        body = beans.encode(LockRequest(client_id=owner, group=group, queues=[queue]))
        answer = await cluster.ask(command(None, code, body))
        is_locked = code == RequestCode.LOCK_BATCH_MQ
        return beans.decode(LockResponse, answer.body).queues if is_locked else []

    async with consumer:
        queues = [queue for queue in consumer.assignment if queue.topic == topic]
        async with cluster.producer() as producer:
            for queue in queues:
                await producer.send(Message(topic, b"x"), queue=queue)
        await until(
            lambda: bool(begun) and all(consumer.reports()[queue].cached for queue in queues),
            consumer.reports,
        )
        (other,) = set(queues) - set(begun)
        async with asyncio.timeout(20):
            while True:  # a renewal may come between
                await lock(RequestCode.UNLOCK_BATCH_MQ, consumer.client_id, other)
                if await lock(RequestCode.LOCK_BATCH_MQ, "somebody", other):
                    break
        await until(lambda: not consumer.reports()[other].locked, consumer.reports)
        may_end.set()
        await until(lambda: consumer.reports()[begun[0]].commit_offset == 1, consumer.reports)
        await cluster.wait_for_offsets(group, topic, *(int(q in begun) for q in queues))
        assert other not in begun
        await lock(RequestCode.UNLOCK_BATCH_MQ, "somebody", other)
        await until(lambda: other in begun, lambda: begun)


# Starting and closing


@pytest.mark.parametrize("ordered", [False, True])
@in_loop
async def test_a_consumer_closed_while_it_starts_leaves_nothing_behind(
    cluster: Cluster, ordered: bool
) -> None:
    topic = await cluster.create_topic("Orders", queues=2)
    for turns in range(0, 60, 5):
        consumer = cluster.push(cluster.name("Group"), Seen(), ordered=ordered, concurrency=2)
        consumer.subscribe(topic)
        starting = asyncio.create_task(consumer.start())
        for _ in range(turns):
            await asyncio.sleep(0.0005)
        await consumer.close()
        done, _ = await asyncio.wait([starting], timeout=20)
        assert done, f"after {turns}"
        assert not starting.cancelled(), f"after {turns}"  # nobody did
        assert isinstance(starting.exception(), ClientClosed | None), f"after {turns}"


@pytest.mark.parametrize("ordered", [False, True])
@in_loop
async def test_a_start_that_is_cancelled_leaves_nothing_behind(
    cluster: Cluster, ordered: bool
) -> None:
    topics = [await cluster.create_topic("Orders", queues=2) for _ in range(3)]
    consumer = cluster.push(cluster.name("Group"), Seen(), ordered=ordered, concurrency=2)
    for topic in topics:
        consumer.subscribe(topic)
    starting = asyncio.create_task(consumer.start())
    while not consumer.assignment:
        await asyncio.sleep(0)
    assert starting.cancel(), consumer.assignment  # it has some queues, and looks for others
    await asyncio.wait([starting])
    assert starting.cancelled()


@in_loop
async def test_a_consumer_is_started_once(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders", queues=1)
    for consumer in cluster.push("Group", Seen()), cluster.consumer("Group"):
        consumer.subscribe(topic)
        async with consumer:
            with pytest.raises(Error, match="started already"):
                await consumer.start()


@in_loop
async def test_a_consumer_that_was_not_started_says_so() -> None:
    consumer = Consumer("127.0.0.1:9876", "Group")
    consumer.subscribe("Orders")
    with pytest.raises(ClientClosed, match="not started"):
        await anext(consumer)
    with pytest.raises(ClientClosed, match="not started"):
        async for _ in consumer:
            pass
    await consumer.close()


def test_a_blocking_consumer_that_was_not_started_says_so() -> None:
    consumer = blocking.Consumer("127.0.0.1:9876", "Group")
    consumer.subscribe("Orders")
    with pytest.raises(ClientClosed, match="not started"):
        next(iter(consumer))
    consumer.close()


@in_loop
async def test_threads_of_handlers_that_end_after_the_close_end_too(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders", queues=1)
    begun, may_end = threading.Event(), threading.Event()

    def handle(message: ReceivedMessage) -> None:
        begun.set()
        may_end.wait(20)

    def running() -> set[threading.Thread]:
        return {one for one in threading.enumerate() if one.name == "tamis-handler"}

    before = running()
    consumer = cluster.push(cluster.name("Group"), handle, concurrency=1, drain=0.1)
    consumer.subscribe(topic)
    async with consumer:
        await cluster.fill(topic, "1")
        await asyncio.to_thread(begun.wait, 20)
    may_end.set()
    await until(lambda: running() <= before, running)


# Queues that change


@in_loop
async def test_a_topic_that_is_deleted_ends_no_consumer_of_others(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tamis.client.fetching._PAUSE", 0.1)
    gone, kept = [await cluster.create_topic(name, queues=1) for name in ("Gone", "Kept")]
    seen = Seen()
    consumer = cluster.push(cluster.name("Group"), seen, hold=0.2)
    for topic in gone, kept:
        consumer.subscribe(topic)
    async with consumer:
        ending = asyncio.create_task(consumer.run())
        (queue,) = [queue for queue in consumer.assignment if queue.topic == gone]
        async with Admin(cluster.nameserver) as admin:
            await admin.delete_topic(gone)
        for _ in range(2):  # the first pull of these is refused by the time of the second
            last = consumer.reports()[queue].last_pull_timestamp
            await until(
                lambda: consumer.reports()[queue].last_pull_timestamp != last,  # noqa: B023
                consumer.reports,
            )
        await cluster.fill(kept, "1")
        await seen.until("1")
        assert not ending.done()
    await ending


@in_loop
async def test_a_reset_while_queues_are_shared_out_leaves_no_queue_read_twice(
    cluster: Cluster,
) -> None:
    topic = await cluster.create_topic("Orders", queues=4)
    consumer = cluster.push(cluster.name("Group"), Seen(), ordered=True, hold=1.0)
    consumer.subscribe(topic)
    async with consumer:
        for _ in range(8):
            queues = [queue for queue in consumer.assignment if queue.topic == topic]
            await asyncio.gather(
                consumer.restart(dict.fromkeys(queues, 0)),
                consumer._member.rebalance(),
                consumer._member.rebalance(),
            )
        assert len([queue for queue in consumer.assignment if queue.topic == topic]) == 4
    # `in_loop` looks for workers of queues that were taken up twice


@in_loop
async def test_a_reset_that_can_not_be_saved_leaves_no_queue_unread(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, seen = await cluster.create_topic("Orders", queues=2), Seen()
    consumer = cluster.push(cluster.name("Group"), seen, commit_interval=60.0)
    consumer.subscribe(topic)

    async def fail(offsets: object) -> None:
        raise Error("the broker is away")

    async with consumer:
        held = consumer.assignment
        with monkeypatch.context() as patch:
            patch.setattr(consumer._offsets, "save", fail)
            with contextlib.suppress(Error):
                await consumer.restart({queue: 0 for queue in held if queue.topic == topic})
            assert consumer.assignment == held


@in_loop
async def test_offsets_saved_in_a_file_at_the_same_time_are_all_in_it(tmp_path: Path) -> None:
    offsets = LocalOffsets(str(tmp_path), "client", "Group")
    queues = [MessageQueue("Orders", "broker-a", number) for number in range(4)]
    for turn in range(10):
        await asyncio.gather(*(offsets.save({queue: turn}) for queue in queues))
        read = LocalOffsets(str(tmp_path), "client", "Group")
        assert [await read.load(queue) for queue in queues] == [turn] * 4
