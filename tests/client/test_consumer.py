"""The pull consumer: messages taken one by one, many at a time or as record batches; where it is,
and what it says to have worked off."""

import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from broker.asking import until
from client.targets import Cluster, fill_apart, in_loop, take, texts

from tamis.client import Consumer, Message, MessageQueue
from tamis.client.columns import SCHEMA
from tamis.errors import ClientClosed, ConfigError

NUMBERS = [*map(str, range(10))]
NEVER = 3600.0  # seconds


class Failed(Exception):
    """What a user's own code may raise."""


async def of_one_queue(cluster: Cluster, *bodies: str) -> tuple[str, MessageQueue]:
    topic = await cluster.create_topic("Orders", queues=1)
    await cluster.fill(topic, *bodies)
    return topic, MessageQueue(topic, "broker-a", 0)


def reading(cluster: Cluster, topic: str, group: str = "", **settings: Any) -> Consumer:
    consumer = cluster.consumer(group or cluster.name("Group"), **settings)
    consumer.subscribe(topic)
    return consumer


async def take_to(consumer: Consumer, last: str) -> list[str]:
    """One by one, up to this one."""
    found: list[str] = []
    async for message in consumer:
        found.append(message.text)
        if message.text == last:
            break
    return found


# Taking


@in_loop
async def test_messages_come_one_by_one_in_the_order_of_their_queue(cluster: Cluster) -> None:
    topic, queue = await of_one_queue(cluster, *NUMBERS)
    async with reading(cluster, topic) as consumer:
        assert await take_to(consumer, "9") == NUMBERS
        assert consumer.assignment == [queue]
        assert consumer.position(queue) == 10
        assert consumer.position(MessageQueue("Another", "broker-a", 0)) is None


@in_loop
async def test_iteration_ends_when_the_consumer_is_closed(cluster: Cluster) -> None:
    topic, _ = await of_one_queue(cluster, "1")
    consumer = reading(cluster, topic)
    await consumer.start()
    found = []

    async def take_all() -> None:
        async for message in consumer:
            found.append(message.text)

    taking = asyncio.create_task(take_all())
    await until(lambda: found, lambda: found)
    await consumer.close()
    await taking
    assert found == ["1"]
    with pytest.raises(ClientClosed):
        await consumer.getmany(timeout=0)


@in_loop
async def test_getmany_gives_as_many_as_there_are_no_more_than_asked_and_none_in_time(
    cluster: Cluster,
) -> None:
    topic, _ = await of_one_queue(cluster, *NUMBERS)
    async with reading(cluster, topic) as consumer:
        found = await consumer.getmany(4, timeout=20.0)
        assert texts(found) == NUMBERS[: len(found)]
        assert 1 <= len(found) <= 4
        found += await take(consumer, 10 - len(found))
        assert texts(found) == NUMBERS
        assert await consumer.getmany(timeout=0.05) == []


@in_loop
async def test_queues_take_turns(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders", queues=2)
    async with cluster.producer() as producer:
        sent = [await producer.send(Message(topic, str(n)), key=n // 20) for n in range(40)]
    await cluster.wait_for_queues(sent)
    async with reading(cluster, topic, pull_size=5, max_queue_messages=1000) as consumer:
        async with asyncio.timeout(20):
            while any(inbox.cached < 20 for inbox in consumer.reports().values()):
                await asyncio.sleep(0.01)
        found = await take(consumer, 40)
    queues = [one.queue.queue_id for one in found]
    assert queues == [*5 * [queues[0]], *5 * [1 - queues[0]]] * 4


@in_loop
async def test_filters_hold_for_taken_messages_too(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders", queues=1)
    for n, tags in enumerate(["Aa", "BB", "b", "Aa"]):
        await cluster.fill(topic, str(n), tags=tags, properties={"n": str(n)})
    by_tags = cluster.consumer(cluster.name("Group"))
    by_tags.subscribe(topic, tags="Aa")
    by_sql = cluster.consumer(cluster.name("Group"))
    by_sql.subscribe(topic, sql="n >= 2")
    async with by_tags, by_sql:
        assert texts(await take(by_tags, 2)) == ["0", "3"]
        assert texts(await take(by_sql, 2)) == ["2", "3"]
    assert texts(await cluster.read(topic, 2, tags="Aa")) == ["0", "3"]
    assert texts(await cluster.read(topic, 2, sql="n < 2")) == ["0", "1"]


# Record batches


async def all_batches(consumer: Consumer, rows: int, **options: Any) -> list[pa.RecordBatch]:
    found: list[pa.RecordBatch] = []
    async for batch in consumer.batches(**options):
        found.append(batch)
        if sum(one.num_rows for one in found) >= rows:
            break
    return found


@in_loop
async def test_batches_hold_what_single_messages_do(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders")
    async with cluster.producer() as producer:
        for n in range(30):
            body = f"{n} ".encode() * (3000 if n == 7 else 1)
            named = {"n": str(n)} | ({"größe": "x"} if n % 2 else {})
            await producer.send(Message(topic, body, tags="ab"[n % 2], keys="k", properties=named))
    async with reading(cluster, topic) as consumer:
        found = await all_batches(consumer, 30, properties=["n", "größe"])
    table = pa.Table.from_batches(found)
    expected = [*SCHEMA, pa.field("n", pa.string()), pa.field("größe", pa.string())]
    assert table.schema == pa.schema(expected)
    messages = {one.message_id: one for one in await cluster.read(topic, 30)}
    for row in table.to_pylist():
        one = messages.pop(row["message_id"])
        assert (row["topic"], row["broker"]) == (topic, one.queue.broker_name)
        assert (row["queue_id"], row["offset"]) == (one.queue.queue_id, one.offset)
        assert (row["body"], row["tags"], row["keys"]) == (one.body, one.tags, "k")
        assert dict(row["properties"]) == one.properties
        assert row["n"] == one.properties["n"]
        assert row["größe"] == one.properties.get("größe")
        assert row["store_timestamp"].timestamp() * 1000 == pytest.approx(
            one.store_timestamp, abs=0.5
        )
        assert (row["log_offset"], row["sys_flag"]) == (one.log_offset, one.sys_flag)
        assert row["store_host"] == str(one.store_host) == cluster.broker
    assert not messages


@in_loop
async def test_batches_have_only_the_columns_asked_for_and_the_filters_rows(
    cluster: Cluster,
) -> None:
    topic = await cluster.create_topic("Orders")
    async with cluster.producer() as producer:
        for n in range(12):
            tag = ["Aa", "BB", "c"][n % 3]
            await producer.send(Message(topic, str(n), tags=tag, properties={"n": str(n)}))
    for filters, expected in (
        ({"tags": "Aa"}, {0, 3, 6, 9}),
        ({"tags": "Aa || c"}, {0, 2, 3, 5, 6, 8, 9, 11}),
        ({"sql": "n > 5 AND TAGS = 'BB'"}, {7, 10}),
    ):
        consumer = cluster.consumer(cluster.name("Group"))
        consumer.subscribe(topic, **filters)
        async with consumer:
            found = await all_batches(consumer, len(expected), columns=["body"], properties=["n"])
        table = pa.Table.from_batches(found)
        assert table.column_names == ["body", "n"]
        assert {int(n) for n in table["n"].to_pylist()} == expected
        assert {int(body) for body in table["body"].to_pylist()} == expected


@in_loop
async def test_batches_end_when_nothing_came_for_a_while(cluster: Cluster) -> None:
    topic, queue = await of_one_queue(cluster, *NUMBERS)
    group = cluster.name("Group")
    async with reading(cluster, topic, group, commit_interval=NEVER) as consumer:
        rows = 0
        async for batch in consumer.batches(idle=0.5, rows=4):
            rows += batch.num_rows
        assert rows == 10
        assert consumer.position(queue) == 10
    assert await cluster.offset_of(group, topic) == 10


@in_loop
async def test_a_batch_counts_as_worked_off_when_the_next_is_asked_for(cluster: Cluster) -> None:
    topic, queue = await of_one_queue(cluster, *NUMBERS)
    group = cluster.name("Group")

    offsets: list[int] = []

    async def fail_with_the_second() -> None:
        async with reading(cluster, topic, group, pull_size=4) as consumer:
            async for batch in consumer.batches(rows=4, columns=["offset"]):
                if offsets:
                    raise Failed
                offsets.extend(batch["offset"].to_pylist())
                assert await consumer.committed(queue) in (None, 0)

    with pytest.raises(Failed):
        await fail_with_the_second()
    assert await cluster.offset_of(group, topic) == offsets[-1] + 1 < 10


@in_loop
async def test_a_column_there_is_not_is_refused(cluster: Cluster) -> None:
    topic, _ = await of_one_queue(cluster, "1")
    async with reading(cluster, topic) as consumer:
        with pytest.raises(ValueError, match="colour"):
            await all_batches(consumer, 1, columns=["colour"])


@in_loop
async def test_batches_after_single_messages_give_the_rest(cluster: Cluster) -> None:
    topic, _ = await of_one_queue(cluster, *NUMBERS)
    group = cluster.name("Group")
    async with reading(cluster, topic, group) as consumer:
        found = texts(await consumer.getmany(3, timeout=20.0))
        assert found == NUMBERS[:3]
        rest = await all_batches(consumer, 7, columns=["body"])
        assert [body.as_py().decode() for one in rest for body in one["body"]] == NUMBERS[3:]
    assert await cluster.offset_of(group, topic) == 10


# Where it is


@in_loop
async def test_seek_goes_anywhere(cluster: Cluster) -> None:
    topic, queue = await of_one_queue(cluster)
    await fill_apart(cluster, topic, *NUMBERS)
    async with reading(cluster, topic) as consumer:
        found = await take(consumer, 10)
        assert texts(found) == NUMBERS
        await consumer.seek(queue, 7)
        assert consumer.position(queue) == 7
        assert texts(await take(consumer, 3)) == NUMBERS[7:]
        await consumer.seek_to_first()
        assert texts(await take(consumer, 10)) == NUMBERS
        await consumer.seek_to_last()
        await cluster.fill(topic, "10")
        assert texts(await take(consumer, 1)) == ["10"]
        await consumer.seek_to_time(found[5].store_timestamp / 1000, queue)
        assert texts(await take(consumer, 6)) == [*NUMBERS[5:], "10"]
        assert await consumer.first_offset(queue) == 0
        assert await consumer.last_offset(queue) == 11
        assert await consumer.offset_at(queue, found[5].store_timestamp / 1000) == 5
        with pytest.raises(ConfigError, match="offsets 0 to 11: 12 is none"):
            await consumer.seek(queue, 12)
        with pytest.raises(ConfigError, match="not read by this consumer"):
            await consumer.seek(MessageQueue("Another", "broker-a", 0), 0)


@in_loop
async def test_what_was_handed_out_before_a_seek_is_not_committed_by_it(cluster: Cluster) -> None:
    topic, queue = await of_one_queue(cluster, *NUMBERS)
    group = cluster.name("Group")
    async with reading(cluster, topic, group) as consumer:
        await take(consumer, 8)
        await consumer.seek(queue, 2)
        assert texts(await take(consumer, 2)) == ["2", "3"]
        await consumer.commit()
        assert await consumer.committed(queue) in range(4, 11)
    async with reading(cluster, topic, group) as consumer:
        assert consumer.position(queue) == await cluster.offset_of(group, topic)


@in_loop
async def test_a_paused_queue_is_not_asked_and_the_others_are(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders", queues=2)
    async with cluster.producer() as producer, reading(cluster, topic) as consumer:
        first, second = consumer.assignment
        await producer.send(Message(topic, "begun"), queue=first)
        assert texts(await take(consumer, 1)) == ["begun"]  # and more is asked for
        consumer.pause(first)
        await producer.send(Message(topic, "under way"), queue=first)
        assert texts(await take(consumer, 1)) == ["under way"]
        await producer.send(Message(topic, "paused"), queue=first)
        await producer.send(Message(topic, "runs"), queue=second)
        assert texts(await take(consumer, 1)) == ["runs"]
        found = sorted(texts(await cluster.read(topic, 4)))
        assert found == ["begun", "paused", "runs", "under way"]
        assert await consumer.getmany(timeout=0) == []
        consumer.resume(first)
        assert texts(await take(consumer, 1)) == ["paused"]
        with pytest.raises(ConfigError, match="not read by this consumer"):
            consumer.pause(MessageQueue("Another", "broker-a", 0))


@in_loop
async def test_queues_that_are_assigned_are_read_and_no_others(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders")
    async with cluster.producer() as producer:
        queues = await producer.queues(topic)
        for queue in queues:
            await producer.send(Message(topic, f"of {queue.queue_id}"), queue=queue)
    group = cluster.name("Group")
    one, two = cluster.consumer(group), cluster.consumer(group)
    one.assign(queues[:2])
    two.assign(queues[1:3])  # not shared: both read the second
    async with one, two:
        assert one.assignment == queues[:2]
        assert sorted(texts(await take(one, 2))) == ["of 0", "of 1"]
        assert sorted(texts(await take(two, 2))) == ["of 1", "of 2"]
        one.assign(queues[2:])
        await until(lambda: one.assignment == queues[2:], lambda: one.assignment)
        assert sorted(texts(await take(one, 2))) == ["of 2", "of 3"]
        assert await one.getmany(timeout=0.2) == []
        assert await two.getmany(timeout=0.2) == []
    with pytest.raises(ConfigError, match="not both"):
        one.subscribe(topic)
    subscribed = reading(cluster, topic)
    with pytest.raises(ConfigError, match="not both"):
        subscribed.assign(queues)
    with pytest.raises(ConfigError, match="call subscribe or assign first"):
        await cluster.consumer(group).start()


@in_loop
async def test_queues_assigned_several_times_are_read_once(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders")
    await cluster.fill(topic, *NUMBERS)
    consumer = cluster.consumer(cluster.name("Group"))
    for _ in range(3):
        consumer.assign(await consumer.queues(topic))  # its session runs now, it does not
    async with consumer:
        consumer.assign(consumer.assignment)
        consumer.assign(consumer.assignment)
        assert sorted(texts(await take(consumer, 10))) == NUMBERS
        assert await consumer.getmany(timeout=0.2) == []


# What it says to have worked off


@in_loop
async def test_commit_saves_what_was_handed_out_and_the_group_goes_on_after_it(
    cluster: Cluster,
) -> None:
    topic, queue = await of_one_queue(cluster, *NUMBERS)
    group = cluster.name("Group")
    async with reading(cluster, topic, group, auto_commit=False) as consumer:
        assert len(await take(consumer, 4)) == 4
        await consumer.commit()
        assert await consumer.committed(queue) == 4
        assert len(await take(consumer, 3)) == 3
    assert await cluster.offset_of(group, topic) == 4  # what was not committed comes again
    async with reading(cluster, topic, group) as consumer:
        assert texts(await take(consumer, 6)) == NUMBERS[4:]


@in_loop
async def test_by_itself_it_commits_what_came_before_the_last_one_taken(cluster: Cluster) -> None:
    topic, queue = await of_one_queue(cluster, *NUMBERS)
    async with reading(cluster, topic, commit_interval=0.05) as consumer:
        await take_to(consumer, "6")  # being worked on
        seen: int | None = None
        async with asyncio.timeout(20):
            while seen != 6:
                seen = await consumer.committed(queue)
        assert consumer.position(queue) == 7
        await anext(consumer)
        async with asyncio.timeout(20):
            while seen != 7:
                seen = await consumer.committed(queue)


@in_loop
async def test_a_clean_end_commits_all_and_an_exception_all_but_the_last(cluster: Cluster) -> None:
    topic, _ = await of_one_queue(cluster, *NUMBERS)
    group = cluster.name("Group")

    def member() -> Consumer:
        return reading(cluster, topic, group, commit_interval=NEVER)

    async def fail_at(text: str) -> None:
        async with member() as consumer:
            await take_to(consumer, text)
            raise Failed

    async def fail_with_two() -> None:
        async with member() as consumer:
            assert len(await take(consumer, 1)) == 1
            assert await consumer.getmany(2, timeout=20.0)
            raise Failed

    with pytest.raises(Failed):
        await fail_at("3")
    assert await cluster.offset_of(group, topic) == 3
    async with member() as consumer:
        assert await take_to(consumer, "5") == ["3", "4", "5"]
    assert await cluster.offset_of(group, topic) == 6
    with pytest.raises(Failed):
        await fail_with_two()
    assert await cluster.offset_of(group, topic) == 7


@in_loop
async def test_members_share_what_they_take(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders")
    group = cluster.name("Group")
    one, two = reading(cluster, topic, group), reading(cluster, topic, group)
    async with one, two:

        def shares() -> list[int]:
            return sorted(q.queue_id for c in (one, two) for q in c.assignment)

        await until(
            lambda: shares() == [0, 1, 2, 3] and len(one.assignment) == 2,
            lambda: (one.assignment, two.assignment),
        )
        await cluster.fill(topic, *map(str, range(8)))
        found = [*texts(await take(one, 4)), *texts(await take(two, 4))]
    assert sorted(found) == [*map(str, range(8))]


@in_loop
async def test_broadcasting_consumers_take_everything_and_keep_their_offsets(
    cluster: Cluster, tmp_path: Path
) -> None:
    topic, queue = await of_one_queue(cluster, "1", "2")
    group = cluster.name("Group")

    def settings(name: str) -> dict[str, Any]:
        return {
            "model": "broadcasting",
            "instance_name": name,
            "offsets_directory": str(tmp_path),
        }

    one, two = (reading(cluster, topic, group, **settings(name)) for name in ("one", "two"))
    async with one, two:
        assert texts(await take(one, 2)) == texts(await take(two, 2)) == ["1", "2"]
        await one.commit()
        assert await one.committed(queue) == 2
    await cluster.fill(topic, "3")
    async with reading(cluster, topic, group, **settings("one")) as one:
        assert texts(await take(one, 1)) == ["3"]


@in_loop
async def test_it_asks_for_no_more_than_it_may_hold(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders", queues=1)
    async with cluster.producer() as producer:
        await producer.send_batch([Message(topic, str(n)) for n in range(200)])
    async with reading(cluster, topic, max_queue_messages=50, pull_size=10) as consumer:

        def cached() -> int:
            return sum(report.cached for report in consumer.reports().values())

        await until(lambda: cached() >= 50, cached)
        assert cached() < 60
        assert texts(await take(consumer, 200)) == [*map(str, range(200))]
