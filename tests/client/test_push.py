"""The push consumer: who is given which message, how often, and what the group remembers."""

import asyncio
import logging
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from broker.asking import until
from client.targets import Cluster, Seen, fill_apart, in_loop, texts

from tamis.client import (
    ConsumeStatus,
    Message,
    MessageQueue,
    ReceivedMessage,
    RetryLater,
)
from tamis.client.received import dead_letter_topic, retry_topic
from tamis.errors import ClientClosed, ConfigError

CHILD = Path(__file__).with_name("child.py")


# Handlers


@in_loop
async def test_a_coroutine_is_given_every_message(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders")
    await cluster.fill(topic, *map(str, range(40)), tags="t", keys="k")
    seen = Seen()
    consumer = cluster.push(cluster.name("Group"), seen)
    consumer.subscribe(topic)
    async with consumer:
        await seen.until(*map(str, range(40)))
        [one] = {(m.topic, m.tags, m.keys, m.reconsume_times) for m in seen.messages}
        assert one == (topic, "t", ("k",), 0)
        queues = [MessageQueue(topic, "broker-a", n) for n in range(4)]
        assert [one for one in consumer.assignment if one.topic == topic] == queues
        assert {message.queue for message in seen.messages} == set(queues)


@in_loop
async def test_a_function_is_called_in_threads_as_many_as_allowed_at_a_time(
    cluster: Cluster,
) -> None:
    topic = await cluster.create_topic("Orders")
    await cluster.fill(topic, *map(str, range(12)))
    seen: list[str] = []
    threads: set[threading.Thread] = set()
    together = threading.Barrier(4, timeout=10)

    def handle(message: ReceivedMessage) -> ConsumeStatus:
        together.wait()  # passed only by four at a time
        seen.append(message.text)
        threads.add(threading.current_thread())
        return ConsumeStatus.SUCCESS

    consumer = cluster.push(cluster.name("Group"), handle, concurrency=4)
    consumer.subscribe(topic)
    async with consumer:
        await until(lambda: len(seen) >= 12, lambda: seen)
    assert sorted(map(int, seen)) == list(range(12))
    assert len(threads) == 4
    assert threading.main_thread() not in threads


@in_loop
async def test_a_batch_handler_is_given_lists_no_longer_than_it_asks_for(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders", queues=1)
    await cluster.fill(topic, *map(str, range(25)))
    lists: list[list[str]] = []

    async def handle(messages: list[ReceivedMessage]) -> bool:
        lists.append(texts(messages))
        return True

    consumer = cluster.push(cluster.name("Group"), handle, handler_batch=10, concurrency=1)
    consumer.subscribe(topic)
    async with consumer:
        await until(lambda: sum(map(len, lists)) >= 25, lambda: lists)
    assert [text for some in lists for text in some] == [*map(str, range(25))]
    assert max(map(len, lists)) == 10


@in_loop
async def test_each_topic_may_have_a_handler_of_its_own(cluster: Cluster) -> None:
    orders, events = await cluster.create_topic("Orders"), await cluster.create_topic("Events")
    await cluster.fill(orders, "order")
    await cluster.fill(events, "event")
    everything, of_events = Seen(), Seen()
    consumer = cluster.push(cluster.name("Group"), everything)
    consumer.subscribe(orders)
    consumer.subscribe(events, of_events)
    async with consumer:
        await everything.until("order")
        await of_events.until("event")


@in_loop
async def test_a_consumer_without_a_handler_or_a_subscription_does_not_start(
    cluster: Cluster,
) -> None:
    consumer = cluster.push(cluster.name("Group"))
    with pytest.raises(ConfigError, match="no handler"):
        consumer.subscribe("T")
    with pytest.raises(ConfigError, match="subscribes to nothing; call subscribe first"):
        await consumer.start()
    await consumer.close()
    with pytest.raises(ConfigError, match="one of them"):
        consumer.subscribe("T", Seen(), tags="a", sql="a = 1")


# Filters


@in_loop
async def test_a_group_gets_the_messages_its_filters_let_through(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders")
    async with cluster.producer() as producer:
        for n in range(12):
            message = Message(topic, str(n), tags="abc"[n % 3], properties={"n": str(n)})
            await producer.send(message)
    by_tags, by_sql = Seen(), Seen()
    tags = cluster.push(cluster.name("Tags"), by_tags)
    tags.subscribe(topic, tags="a || b")
    sql = cluster.push(cluster.name("Sql"), by_sql)
    sql.subscribe(topic, sql="n BETWEEN 3 AND 5 OR TAGS = 'c' AND n > 9")
    async with tags, sql:
        await by_tags.until(*(str(n) for n in range(12) if n % 3 != 2))
        await by_sql.until("3", "4", "5", "11")


@in_loop
async def test_a_tag_with_the_same_hash_as_the_one_wanted_is_not_given(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders", queues=1)
    await cluster.fill(topic, "1", "3", tags="BB")
    await cluster.fill(topic, "2", "4", tags="Aa")
    seen = Seen()
    group = cluster.name("Group")
    consumer = cluster.push(group, seen)
    consumer.subscribe(topic, tags="Aa")
    async with consumer:
        await seen.until("2", "4")
        await cluster.fill(topic, "5", tags="BB")
        await cluster.fill(topic, "6", tags="Aa")
        await seen.until("2", "4", "6")
    assert await cluster.offset_of(group, topic) == 6


# Failures


@in_loop
async def test_a_message_that_failed_comes_again_until_it_succeeds(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders", queues=1)
    group = cluster.name("Group")

    def fail(message: ReceivedMessage) -> Any:
        if message.text == "returns" and message.reconsume_times < 1:
            return ConsumeStatus.RETRY
        if message.text == "raises" and message.reconsume_times < 2:
            raise LookupError("the database is away")
        return None

    seen = Seen(fail)
    consumer = cluster.push(group, seen)
    consumer.subscribe(topic, sql="TAGS = 't'")
    async with consumer:
        [sent, _, _] = await cluster.fill(topic, "returns", "raises", "fine", tags="t", keys="k")
        await seen.until("fine", "returns", "returns", "raises", "raises", "raises")
    again = [one for one in seen.messages if one.text == "raises"]
    assert [one.reconsume_times for one in again] == [0, 1, 2]
    assert {one.topic for one in again} == {topic}
    assert [one.queue.topic for one in again] == [topic, *2 * [retry_topic(group)]]
    assert {(one.tags, one.keys) for one in again} == {("t", ("k",))}
    first, second = (one for one in seen.messages if one.text == "returns")
    assert first.message_id == second.message_id == sent.message_id
    assert await cluster.offset_of(group, topic) == 3


@in_loop
async def test_a_message_that_failed_too_often_is_a_dead_letter(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders", queues=1)
    group = cluster.name("Group")
    seen = Seen(lambda message: RetryLater(-1) if message.text == "hopeless" else False)
    consumer = cluster.push(group, seen, max_reconsume_times=1)
    consumer.subscribe(topic, tags="t")
    async with consumer:
        await cluster.fill(topic, "bad", "hopeless", tags="t")
        await seen.until("bad", "bad", "hopeless")
        dead = await _read_when_there(cluster, dead_letter_topic(group), 2)
    assert sorted(texts(dead)) == ["bad", "hopeless"]
    assert {one.message_id for one in dead} == {one.message_id for one in seen.messages}


async def _read_when_there(cluster: Cluster, topic: str, count: int) -> list[ReceivedMessage]:
    """Of a topic only brokers make. A dead letter topic can be written to only, by default."""
    await cluster.change_topic(topic, 1)
    return await cluster.read(topic, count)


@in_loop
async def test_a_handler_may_say_after_which_delay_a_message_comes_again(
    cluster: Cluster,
) -> None:
    topic = await cluster.create_topic("Orders", queues=1)

    def fail(message: ReceivedMessage) -> Any:
        if message.reconsume_times:
            return None
        if message.text == "raised":
            raise RetryLater(2)
        return RetryLater(int(message.text))

    seen = Seen(fail)
    consumer = cluster.push(cluster.name("Group"), seen)
    consumer.subscribe(topic)
    async with consumer:
        await cluster.fill(topic, "1", "2", "raised")
        await seen.until("1", "2", "raised", "1", "2", "raised")
    # the times of the levels, as the broker was told them; stored when it is due
    for text, least in ("1", 1000), ("2", 2000), ("raised", 2000):
        first, second = (one for one in seen.messages if one.text == text)
        assert second.store_timestamp - first.store_timestamp >= least


@in_loop
async def test_a_handler_that_does_not_end_in_time_is_given_up_and_called_again(
    cluster: Cluster,
) -> None:
    topic = await cluster.create_topic("Orders", queues=1)
    times: list[tuple[str, int]] = []
    forever = threading.Event()

    async def hang(message: ReceivedMessage) -> None:
        times.append((message.text, message.reconsume_times))
        if not message.reconsume_times:
            await asyncio.Event().wait()

    def hang_in_thread(message: ReceivedMessage) -> None:
        times.append((message.text, message.reconsume_times))
        if not message.reconsume_times:
            forever.wait()

    one, two = cluster.push(cluster.name("Group"), hang, handler_timeout=0.2), None
    one.subscribe(topic)
    two = cluster.push(cluster.name("Group"), hang_in_thread, handler_timeout=0.2)
    two.subscribe(topic)
    try:
        async with one, two:
            await cluster.fill(topic, "x")
            await until(lambda: len(times) >= 4, lambda: times)
    finally:
        forever.set()
    assert sorted(times) == [("x", 0), ("x", 0), ("x", 1), ("x", 1)]


# In order


@in_loop
async def test_an_ordered_consumer_keeps_the_order_of_a_queue_also_when_one_fails(
    cluster: Cluster,
) -> None:
    topic = await cluster.create_topic("Orders", queues=2)
    failures = {"3": 2, "7": 1}
    begun: list[str] = []
    done: dict[int, list[str]] = {0: [], 1: []}
    busy: set[int] = set()
    overlaps: list[str] = []

    async def handle(message: ReceivedMessage) -> bool:
        if message.queue.queue_id in busy:
            overlaps.append(message.text)
        busy.add(message.queue.queue_id)
        begun.append(message.text)
        await asyncio.sleep(0)
        busy.discard(message.queue.queue_id)
        if failures.get(message.text, 0) > message.reconsume_times:
            return False
        done[message.queue.queue_id].append(message.text)
        return True

    async with cluster.producer() as producer:
        for n in range(20):
            await producer.send(Message(topic, str(n)), key=n % 2)
    group = cluster.name("Group")
    consumer = cluster.push(group, handle, ordered=True)
    consumer.subscribe(topic)
    async with consumer:
        await until(lambda: sum(map(len, done.values())) >= 20, lambda: done)
    assert done == {k: [str(n) for n in range(20) if n % 2 == k] for k in (0, 1)}
    assert not overlaps
    assert (begun.count("3"), begun.count("7"), len(begun)) == (3, 2, 23)
    assert [await cluster.offset_of(group, topic, n) for n in (0, 1)] == [10, 10]


@in_loop
async def test_an_ordered_message_that_failed_too_often_is_a_dead_letter_and_the_next_is_handled(
    cluster: Cluster,
) -> None:
    topic = await cluster.create_topic("Orders", queues=1)
    group = cluster.name("Group")
    seen = Seen(lambda message: message.text != "bad")
    consumer = cluster.push(group, seen, ordered=True, max_reconsume_times=2)
    consumer.subscribe(topic)
    async with consumer:
        await cluster.fill(topic, "bad", "good")
        await seen.until("bad", "bad", "bad", "good")
        assert seen.texts == ["bad", "bad", "bad", "good"]
        assert texts(await _read_when_there(cluster, dead_letter_topic(group), 1)) == ["bad"]


@in_loop
async def test_ordered_members_hand_a_queue_over_without_handling_it_both_or_out_of_order(
    cluster: Cluster,
) -> None:
    topic = await cluster.create_topic("Orders")
    group = cluster.name("Group")
    busy: set[int] = set()
    overlaps: list[str] = []
    handled: dict[int, list[int]] = {n: [] for n in range(4)}

    async def handle(message: ReceivedMessage) -> None:
        queue = message.queue.queue_id
        if queue in busy:
            overlaps.append(message.text)
        busy.add(queue)
        await asyncio.sleep(0.002)
        busy.discard(queue)
        handled[queue].append(int(message.text))

    one, two = (cluster.push(group, handle, ordered=True) for _ in range(2))
    one.subscribe(topic)
    two.subscribe(topic)

    def shares() -> list[int]:
        return [len([q for q in c.assignment if q.topic == topic]) for c in (one, two)]

    async with cluster.producer() as producer:
        queues = await producer.queues(topic)
        sent = 0

        async def send(rounds: int) -> None:
            nonlocal sent
            for _ in range(rounds):
                await asyncio.gather(
                    *(producer.send(Message(topic, str(sent)), queue=queue) for queue in queues)
                )
                sent += 1

        await one.start()
        await send(50)
        await two.start()
        await send(50)
        await until(lambda: shares() == [2, 2], shares)
        await send(20)
        await one.close()
        await send(20)
        await until(
            lambda: all(len(set(some)) == sent for some in handled.values()),
            lambda: {queue: len(set(some)) for queue, some in handled.items()},
        )
        await two.close()
    assert not overlaps
    for some in handled.values():  # what is handled again goes on from there in order
        assert list(dict.fromkeys(some)) == list(range(sent))
        assert all(b <= a + 1 for a, b in pairwise(some))


# Each gets everything


@in_loop
async def test_broadcasting_gives_every_member_everything_and_each_goes_on_where_it_was(
    cluster: Cluster, tmp_path: Path
) -> None:
    topic = await cluster.create_topic("Orders")
    group = cluster.name("Group")
    first = [*map(str, range(10))]
    await cluster.fill(topic, *first)

    async def both(*expected: str) -> None:
        seen = {name: Seen() for name in ("one", "two")}
        consumers = [
            cluster.push(
                group,
                seen[name],
                model="broadcasting",
                instance_name=name,
                offsets_directory=str(tmp_path),
            )
            for name in seen
        ]
        for consumer in consumers:
            consumer.subscribe(topic)
        async with consumers[0], consumers[1]:
            for one in seen.values():
                await one.until(*expected)

    await both(*first)
    files = sorted(tmp_path.glob(f"*/{group}/offsets.json"))
    assert len(files) == 2
    for file in files:
        assert b"offsetTable" in file.read_bytes()
    await cluster.fill(topic, "later")
    await both("later")


@in_loop
async def test_a_broadcast_message_that_fails_is_dropped_with_a_word_about_it(
    cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await cluster.create_topic("Orders", queues=1)
    seen = Seen(lambda message: False)
    settings = {"model": "broadcasting", "offsets_directory": str(tmp_path)}
    consumer = cluster.push(cluster.name("Group"), seen, **settings)
    consumer.subscribe(topic)
    async with consumer:
        await cluster.fill(topic, "a", "b")
        await seen.until("a", "b")
        await until(lambda: caplog.text.count("is dropped") == 2, lambda: caplog.text)


@in_loop
async def test_broadcasting_in_order_is_refused(cluster: Cluster) -> None:
    consumer = cluster.push(cluster.name("Group"), Seen(), ordered=True, model="broadcasting")
    consumer.subscribe("T")
    with pytest.raises(ConfigError, match="can't be broadcasting"):
        await consumer.start()
    await consumer.close()


# Where a group begins


@in_loop
async def test_a_group_begins_with_the_first_message_the_next_or_one_by_its_time(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Broadcasting, for brokers let other groups begin with the first message of a young topic."""
    topic = await cluster.create_topic("Orders", queues=1)
    await fill_apart(cluster, topic, "1", "2", "3", "4")
    third = (await cluster.read(topic, 4))[2].store_timestamp / 1000
    seen = {start: Seen() for start in ("first", "last", third)}
    consumers = []
    for start, one in seen.items():
        settings = {"model": "broadcasting", "offsets_directory": str(tmp_path), "start": start}
        consumers.append(cluster.push(cluster.name("Group"), one, **settings))
        consumers[-1].subscribe(topic)
    async with consumers[0], consumers[1], consumers[2]:
        await cluster.fill(topic, "5")
        await seen["first"].until("1", "2", "3", "4", "5")
        await seen[third].until("3", "4", "5")
        await seen["last"].until("5")


@in_loop
async def test_a_group_goes_on_where_it_was(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders")
    group = cluster.name("Group")
    for part in (["a", "b", "c"], ["d"], ["e", "f"]):
        seen = Seen()
        consumer = cluster.push(group, seen)
        consumer.subscribe(topic)
        async with consumer:
            await cluster.fill(topic, *part)
            await seen.until(*part)


# Members


@in_loop
async def test_members_share_the_queues_as_they_come_and_go(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders", queues=6)
    group = cluster.name("Group")
    seen: list[Seen] = []
    consumers = []
    for _ in range(3):
        seen.append(Seen())
        consumers.append(cluster.push(group, seen[-1]))
        consumers[-1].subscribe(topic)

    def shares() -> list[list[int]]:
        return [[q.queue_id for q in c.assignment if q.topic == topic] for c in consumers]

    async def settled(*sizes: int) -> None:
        def is_settled() -> bool:
            every = sorted(n for share in shares() for n in share)
            return sorted(map(len, shares())) == sorted(sizes) and every == list(range(6))

        await until(is_settled, shares)

    async with cluster.producer() as producer:
        sent: list[str] = []
        queues = await producer.queues(topic)

        async def send(count: int) -> None:
            for n in range(count):
                sent.append(str(len(sent)))
                await producer.send(Message(topic, sent[-1]), queue=queues[n % 6])

        def missing() -> list[str]:
            return sorted(set(sent) - {text for one in seen for text in one.texts})

        await consumers[0].start()
        await settled(6, 0, 0)
        await send(12)
        await until(lambda: not missing(), missing)
        await cluster.wait_for_offsets(group, topic, *6 * [2])  # or some would come twice
        await consumers[1].start()
        await consumers[2].start()
        await settled(2, 2, 2)
        before = [len(one.messages) for one in seen]
        await send(12)
        await until(lambda: not missing(), missing)
        counts = [len(o.messages) - b for o, b in zip(seen, before, strict=True)]
        assert counts == [4, 4, 4]
        await cluster.wait_for_offsets(group, topic, *6 * [4])
        await consumers.pop(0).close()
        await settled(3, 3)
        await send(12)
        await until(lambda: not missing(), missing)
        for consumer in consumers:
            await consumer.close()
    every = [text for one in seen for text in one.texts]
    assert sorted(every) == sorted(sent)


@in_loop
async def test_a_strategy_of_ones_own_decides_who_gets_which_queue(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders")
    await cluster.fill(topic, *map(str, range(8)))
    seen = Seen()
    consumer = cluster.push(
        cluster.name("Group"), seen, strategy=lambda queues, members, me: queues[:1]
    )
    consumer.subscribe(topic)
    async with consumer:
        await until(lambda: len(seen.messages) >= 2, lambda: seen.texts)
        assert {message.queue.queue_id for message in seen.messages} == {0}
    with pytest.raises(ConfigError, match="AVG"):
        cluster.push(cluster.name("Group"), seen, strategy="NONE")


# What a group remembers


@in_loop
async def test_offsets_never_pass_a_message_that_was_not_handled(cluster: Cluster) -> None:
    """Of a consumer that is killed while it handles the first of ten; the others it has done."""
    topic = await cluster.create_topic("Orders", queues=2)
    group = cluster.name("Group")
    async with cluster.producer() as producer:
        slow, other = await producer.queues(topic)
        for n in range(10):
            await producer.send(Message(topic, str(n)), queue=slow)
        await producer.send(Message(topic, "other"), queue=other)
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, str(CHILD), cluster.nameserver, group, topic),
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout is not None
        handled = [(await child.stdout.readline()).decode().strip() for _ in range(11)]
        assert sorted(handled) == [*map(str, range(10)), "other"]
        await cluster.wait_for_offsets(group, topic, 0, 1)  # both are saved at a time
    finally:
        child.kill()
        await child.wait()
    assert await cluster.offset_of(group, topic) == 0
    seen = Seen()
    consumer = cluster.push(group, seen)
    consumer.subscribe(topic)
    async with consumer:
        await seen.until(*map(str, range(10)))
    assert [await cluster.offset_of(group, topic, n) for n in (0, 1)] == [10, 1]


@in_loop
async def test_a_consumer_that_is_closed_ends_its_handlers_and_saves_what_they_did(
    cluster: Cluster,
) -> None:
    topic = await cluster.create_topic("Orders", queues=1)
    group = cluster.name("Group")
    await cluster.fill(topic, *map(str, range(4)))
    begun, go_on = asyncio.Event(), asyncio.Event()
    ended: list[str] = []

    async def handle(message: ReceivedMessage) -> None:
        begun.set()
        await go_on.wait()
        ended.append(message.text)

    consumer = cluster.push(group, handle, concurrency=1, commit_interval=3600.0)
    consumer.subscribe(topic)
    await consumer.start()
    await begun.wait()
    closing = asyncio.create_task(consumer.close())
    await asyncio.sleep(0)
    go_on.set()
    await closing
    assert ended[0] == "0"
    assert await cluster.offset_of(group, topic) == len(ended)
    seen = Seen()
    consumer = cluster.push(group, seen)
    consumer.subscribe(topic)
    async with consumer:
        await cluster.fill(topic, "4")
        await seen.until(*[str(n) for n in range(5)][len(ended) :])


@in_loop
async def test_a_handler_that_does_not_end_holds_a_close_no_longer_than_drain(
    cluster: Cluster,
) -> None:
    topic = await cluster.create_topic("Orders", queues=1)
    group = cluster.name("Group")
    await cluster.fill(topic, "0", "1")
    begun = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        if message.text == "1":
            begun.set()
            await asyncio.Event().wait()

    consumer = cluster.push(group, handle, drain=0.1)
    consumer.subscribe(topic)
    async with consumer:
        await begun.wait()
    assert await cluster.offset_of(group, topic) == 1


@in_loop
async def test_messages_that_no_filter_lets_through_are_passed_by_the_offset(
    cluster: Cluster,
) -> None:
    topic = await cluster.create_topic("Orders", queues=1)
    group = cluster.name("Group")
    seen = Seen()
    consumer = cluster.push(group, seen)
    consumer.subscribe(topic, tags="wanted")
    async with consumer:
        await cluster.fill(topic, "1", tags="wanted")
        await seen.until("1")
        await cluster.fill(topic, *map(str, range(40)), tags="other")
        await cluster.fill(topic, "2", tags="wanted")
        await seen.until("1", "2")
    assert await cluster.offset_of(group, topic) == 42


# While it runs


@in_loop
async def test_a_paused_consumer_asks_for_no_more_until_it_is_resumed(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders", queues=1)
    seen = Seen()
    consumer = cluster.push(cluster.name("Group"), seen)
    consumer.subscribe(topic)
    async with consumer:
        await cluster.fill(topic, "1")
        await seen.until("1")
        consumer.pause()
        await cluster.fill(topic, "2")  # the answer to a pull that was made before
        await seen.until("1", "2")
        await cluster.fill(topic, "3")
        assert texts(await cluster.read(topic, 3)) == ["1", "2", "3"]
        assert seen.texts == ["1", "2"]
        consumer.resume()
        await seen.until("1", "2", "3")


@in_loop
async def test_topics_are_subscribed_to_and_left_while_it_runs(cluster: Cluster) -> None:
    orders, events = await cluster.create_topic("Orders"), await cluster.create_topic("Events")
    group = cluster.name("Group")
    await cluster.fill(events, "event")
    seen = Seen()
    consumer = cluster.push(group, seen)
    consumer.subscribe(orders)
    async with consumer:
        await cluster.fill(orders, "order")
        await seen.until("order")
        consumer.subscribe(events)
        await seen.until("order", "event")
        consumer.unsubscribe(orders)
        await until(
            lambda: {q.topic for q in consumer.assignment} == {events, retry_topic(group)},
            lambda: consumer.assignment,
        )
        await cluster.fill(orders, "nobody's")
        await cluster.fill(events, "last")
        await seen.until("order", "event", "last")


@in_loop
async def test_a_filter_that_is_changed_while_it_runs_holds_for_what_comes(
    cluster: Cluster,
) -> None:
    topic = await cluster.create_topic("Orders", queues=1)
    seen = Seen()
    consumer = cluster.push(cluster.name("Group"), seen)
    consumer.subscribe(topic, tags="a")
    async with consumer:
        await cluster.fill(topic, "1", tags="a")
        await seen.until("1")
        consumer.subscribe(topic, tags="b")

        async def send_until_seen() -> None:
            for n in range(100):
                await cluster.fill(topic, f"b{n}", tags="b")
                if len(seen.messages) > 1:
                    return
                await asyncio.sleep(0.1)

        await send_until_seen()
        await until(lambda: len(seen.messages) > 1, lambda: seen.texts)
        assert all(text.startswith("b") for text in seen.texts[1:])


@in_loop
async def test_a_slow_handler_bounds_what_is_held_for_it(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders", queues=1)
    async with cluster.producer() as producer:
        await producer.send_batch([Message(topic, str(n)) for n in range(300)])
    go_on = asyncio.Event()
    seen: list[str] = []

    async def handle(message: ReceivedMessage) -> None:
        await go_on.wait()
        seen.append(message.text)

    settings = {"max_queue_messages": 50, "pull_size": 10, "concurrency": 2}
    consumer = cluster.push(cluster.name("Group"), handle, **settings)
    consumer.subscribe(topic)
    held = 0

    def cached() -> int:
        return sum(report.cached for report in consumer.reports().values())

    async with consumer:
        await until(lambda: cached() >= 50, cached)
        assert cached() < 60
        go_on.set()
        while len(seen) < 300:
            held = max(held, cached())
            await asyncio.sleep(0.001)
    assert held < 60
    assert sorted(map(int, seen)) == list(range(300))


@in_loop
async def test_run_ends_when_the_consumer_is_closed(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders")
    seen = Seen()
    consumer = cluster.push(cluster.name("Group"), seen)
    consumer.subscribe(topic)
    running = asyncio.create_task(consumer.run())
    await cluster.fill(topic, "1")
    await seen.until("1")
    await consumer.close()
    await running
    with pytest.raises(ClientClosed, match="make a new one"):
        await consumer.start()


@in_loop
async def test_what_a_handler_raises_is_logged_with_the_message(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await cluster.create_topic("Orders", queues=1)

    def handle(message: ReceivedMessage) -> None:
        raise LookupError("the database is away")

    consumer = cluster.push(cluster.name("Group"), handle, max_reconsume_times=0)
    consumer.subscribe(topic)
    with caplog.at_level(logging.ERROR):
        async with consumer:
            [sent] = await cluster.fill(topic, "1")
            await until(lambda: sent.message_id in caplog.text, lambda: caplog.text)
    assert "the database is away" in caplog.text
