"""The exact lag as tools ask for it: of our brokers, of Apache's, and through filter servers."""

import asyncio
from typing import Any

import pytest
from broker.asking import until
from client.targets import Cluster, in_loop
from filterserver.consuming import serving

from tamis.client import Admin, MatchingLag, Message
from tamis.code import CodeFilter
from tamis.errors import GroupNotFound, TopicNotFound
from tamis.testing import LocalCluster
from tamis.wire.codes import RequestCode
from tamis.wire.headers import UpdateConsumerOffset

EVEN = CodeFilter(
    "even.py:Even",
    """
class Even:
    columns = ("body",)

    def match(self, message):
        return int(message.text) % 2 == 0
""",
)


async def filled(cluster: Cluster, count: int = 20) -> str:
    """A topic of one queue; tags are a, b, a, b, ..., n counts."""
    topic = await cluster.create_topic("Topic", queues=1)
    async with cluster.producer() as producer:
        sent = [
            await producer.send(Message(topic, str(n), tags="ab"[n % 2], properties={"n": str(n)}))
            for n in range(count)
        ]
    await cluster.wait_for_queues(sent)
    return topic


async def commit(cluster: Cluster, group: str, topic: str, offset: int) -> None:
    async with Admin(cluster.nameserver) as admin:
        await admin.create_group(group)  # 5.3 takes no offsets of others
    await cluster.ask(
        UpdateConsumerOffset(consumer_group=group, topic=topic, queue_id=0, commit_offset=offset)
    )


async def lag_of(cluster: Cluster, group: str, topic: str) -> MatchingLag:
    async with Admin(cluster.nameserver) as admin:
        [row] = await admin.matching_lag(group, topic)
    assert (row.group, row.queue.topic, row.queue.queue_id) == (group, topic, 0)
    return row


async def member_lag(cluster: Cluster, offset: int, **filters: Any) -> MatchingLag:
    """Of a group with one member, which consumes nothing, and twenty messages."""
    topic, group = await filled(cluster), cluster.name("Group")
    await commit(cluster, group, topic, offset)
    consumer = cluster.consumer(group, commit_interval=600.0)
    consumer.subscribe(topic, **filters)
    async with consumer, Admin(cluster.nameserver) as admin:
        async with asyncio.timeout(20):
            while not (await admin.group(group)).is_online:
                await asyncio.sleep(0.05)
        return await lag_of(cluster, group, topic)


@in_loop
async def test_matches_of_tags_are_counted(cluster: Cluster) -> None:
    row = await member_lag(cluster, 5, tags="b")
    assert (row.committed, row.end, row.lag) == (5, 20, 15)
    assert (row.matching_lag, row.is_complete, row.reason) == (8, True, "")
    assert row.next_match_offset == 5
    assert row.next_match_stored
    assert (row.filter_type, row.expression) == ("TAG", "b")
    row = await member_lag(cluster, 20, tags="b")
    assert (row.lag, row.matching_lag, row.next_match_offset) == (0, 0, None)
    assert row.is_complete


@in_loop
async def test_matches_of_sql_are_counted_by_our_brokers_only(cluster: Cluster) -> None:
    row = await member_lag(cluster, 5, sql="n > 10 AND TAGS = 'a'")
    assert (row.committed, row.lag, row.filter_type) == (5, 15, "SQL92")
    if cluster.target == "tamis":
        assert (row.matching_lag, row.is_complete, row.next_match_offset) == (4, True, 12)
    else:
        assert (row.matching_lag, row.is_complete) == (None, False)
        assert row.reason == "this broker can't count by SQL92"


@in_loop
async def test_the_filter_of_a_group_that_is_gone_is_not_guessed(cluster: Cluster) -> None:
    topic, group = await filled(cluster), cluster.name("Group")
    await commit(cluster, group, topic, 3)
    row = await lag_of(cluster, group, topic)
    assert (row.lag, row.matching_lag, row.is_complete, row.filter_type) == (17, None, False, None)
    assert row.reason.startswith("the group has no members, and ")


@in_loop
async def test_what_is_not_there_is_not_found(cluster: Cluster) -> None:
    async with Admin(cluster.nameserver) as admin:
        with pytest.raises(GroupNotFound):
            await admin.matching_lag(cluster.name("Nobody"))
        group = cluster.name("Group")
        await admin.create_group(group)
        with pytest.raises(TopicNotFound):
            await admin.matching_lag(group, cluster.name("Nowhere"))
        assert await admin.matching_lag(group) == []


@in_loop
async def test_a_broker_that_does_not_know_the_request_is_asked_for_tags_codes() -> None:
    """As Apache's, with the whole of its answer to QUERY_CONSUME_QUEUE."""
    async with LocalCluster(log_file_size=2**22) as local:
        assert local._running is not None
        del local._running[0].server._routes[RequestCode.GET_MATCHING_LAG]  # type: ignore[attr-defined]
        cluster = Cluster("like Apache's", local.nameserver, local.broker)
        row = await member_lag(cluster, 5, tags="b")
        assert (row.lag, row.matching_lag, row.next_match_offset) == (15, 8, 5)
        assert row.next_match_stored
        row = await member_lag(cluster, 5)
        assert (row.lag, row.matching_lag, row.next_match_offset) == (15, 15, 5)
        row = await member_lag(cluster, 5, sql="n > 10")
        assert (row.lag, row.matching_lag) == (15, None)


@in_loop
async def test_code_is_judged_by_a_filter_server_and_else_not_known() -> None:
    async with LocalCluster(log_file_size=2**22) as local:
        cluster = Cluster("tamis", local.nameserver, local.broker)
        row = await member_lag(cluster, 5, code=EVEN)
        assert (row.lag, row.matching_lag, row.filter_type) == (15, None, "CODE")
        assert row.reason == "its filter is code, and there is no filter server to ask"
        async with serving(local.broker) as server:
            await until(lambda: server.registration.is_registered, lambda: server.registration)
            topic, group = await filled(cluster), cluster.name("Group")
            await commit(cluster, group, topic, 5)
            consumer = cluster.consumer(group, commit_interval=600.0)
            consumer.subscribe(topic, code=EVEN)
            async with consumer:
                async with asyncio.timeout(20):
                    while (row := await lag_of(cluster, group, topic)).matching_lag is None:
                        assert "filter" in row.reason
                        await asyncio.sleep(0.05)
            assert (row.lag, row.matching_lag, row.is_complete) == (15, 7, True)
            assert (row.next_match_offset, row.reason) == (6, "")
            assert row.next_match_stored


@in_loop
async def test_a_broadcasting_group_has_no_lag(cluster: Cluster) -> None:
    row = None
    topic, group = await filled(cluster), cluster.name("Group")
    async with Admin(cluster.nameserver) as admin:
        consumer = cluster.consumer(group, model="broadcasting")
        consumer.subscribe(topic, tags="a")
        async with consumer:
            async with asyncio.timeout(20):
                while not (rows := await admin.matching_lag(group, topic)):
                    await asyncio.sleep(0.05)
            [row] = rows
    assert (row.committed, row.lag, row.matching_lag) == (None, None, None)
    assert row.reason == "it is broadcasting: each member keeps its own offsets"
