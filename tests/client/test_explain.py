"""Why a message was, or was not, consumed: what `Admin.explain` says of our broker and of Apache's,
and how a message is named."""

from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from client.targets import Cluster, Seen, in_loop
from client.test_admin import admin_of, consume, soon

from tamis.client import (
    Admin,
    ConsumerConfig,
    Message,
    Producer,
    PushConsumer,
    SendResult,
    explaining,
)
from tamis.code import CodeFilter
from tamis.errors import ConfigError, Error, GroupNotFound, NotFound, TopicNotFound
from tamis.fate import Fate, Judgement
from tamis.testing import LocalBroker, LocalCluster


async def consumed(cluster: Cluster, *bodies: str, **fields: Any) -> tuple[str, str, Any]:
    """A topic of one queue, a group that has read it and left, and what was sent."""
    topic, group = await cluster.create_topic("Topic", queues=1), cluster.name("Group")
    sent = await cluster.fill(topic, *bodies, **fields)
    await consume(cluster, group, topic, len(bodies))
    return topic, group, sent


def fates(judgements: list[Judgement]) -> dict[str, Fate]:
    return {one.group: one.fate for one in judgements}


# Which message is meant


@in_loop
async def test_a_message_is_named_by_ids_key_or_place(cluster: Cluster) -> None:
    topic, group, [sent] = await consumed(cluster, "x", keys="order-7")
    async with admin_of(cluster) as admin:
        for way in (
            {"message_id": sent.offset_message_id},
            {"message_id": sent.message_id},
            {"message_id": sent.message_id, "topic": topic},
            {"topic": topic, "key": "order-7"},
            {"topic": topic, "queue_id": 0, "offset": 0},
            {"topic": topic, "queue_id": 0, "offset": 0, "broker": "broker-a"},
        ):
            [judgement] = await admin.explain(**way)
            assert judgement.group == group
            evidence = judgement.evidence
            place = [evidence[name] for name in ("topic", "broker", "queue", "offset")]
            assert place == [topic, "broker-a", 0, 0]
            assert evidence["message_id"] == sent.offset_message_id


@in_loop
async def test_all_messages_with_a_key_are_explained_the_newest_last(cluster: Cluster) -> None:
    topic, group, _ = await consumed(cluster, "x", "y", keys="twice")
    async with admin_of(cluster) as admin:
        judgements = await admin.explain(topic=topic, key="twice", group=group)
        assert [one.evidence["offset"] for one in judgements] == [0, 1]
        with pytest.raises(NotFound, match="has no message with key never"):
            await admin.explain(topic=topic, key="never")


@in_loop
async def test_a_message_that_is_nowhere_is_not_found(cluster: Cluster) -> None:
    topic, _, [sent] = await consumed(cluster, "x")
    unknown = "0" * 32
    beyond = f"{sent.offset_message_id[:16]}{2**40:016X}"
    async with admin_of(cluster) as admin:
        for id in unknown, "not-an-id", beyond:
            with pytest.raises(NotFound, match=f"there is no message {id}"):
                await admin.explain(id)
        with pytest.raises(NotFound, match=f"no message {unknown} in topic {topic}"):
            await admin.explain(unknown, topic=topic)
        with pytest.raises(NotFound):
            await admin.explain(topic=topic, queue_id=0, offset=1)
        with pytest.raises(Error, match=f"topic {topic} has no queue 9; it has broker-a:0"):
            await admin.explain(topic=topic, queue_id=9, offset=0)
        with pytest.raises(TopicNotFound):
            await admin.explain(topic="Nowhere", queue_id=0, offset=0)


@in_loop
async def test_groups_that_do_not_concern_the_message_are_not_found(cluster: Cluster) -> None:
    topic, _, [sent] = await consumed(cluster, "x")
    _, other, _ = await consumed(cluster, "x")
    async with admin_of(cluster) as admin:
        with pytest.raises(GroupNotFound, match="group nobody is not known to any broker"):
            await admin.explain(sent.offset_message_id, group="nobody")
        with pytest.raises(GroupNotFound, match=f"{other} has nothing to do with topic {topic}"):
            await admin.explain(sent.offset_message_id, group=other)


@pytest.mark.parametrize(
    "named",
    [
        {},
        {"message_id": "1", "key": "k", "topic": "T"},
        {"message_id": "1", "queue_id": 0, "offset": 0},
        {"key": "k"},
        {"topic": "T"},
        {"topic": "T", "queue_id": 0},
        {"topic": "T", "offset": 0},
        {"topic": "T", "queue_id": 0, "offset": -1},
        {"message_id": ""},
        {"message_id": "a\nb"},
    ],
)
@in_loop
async def test_a_message_that_is_not_named_in_one_way_is_refused(
    cluster: Cluster, named: dict[str, Any]
) -> None:
    async with admin_of(cluster) as admin:
        with pytest.raises(ConfigError):
            await admin.explain(**named)


@in_loop
async def test_a_delayed_message_is_explained_where_it_comes_to_lie(cluster: Cluster) -> None:
    topic, group = await cluster.create_topic("Delayed", queues=1), cluster.name("Group")
    async with cluster.producer() as producer, admin_of(cluster) as admin:
        sent = await producer.send(Message(topic, "later", delay_level=2))
        with pytest.raises(NotFound, match="it is delayed, and not due yet"):
            await admin.explain(sent.offset_message_id)
        await consume(cluster, group, topic, 1)
        [judgement] = await admin.explain(sent.offset_message_id)
    assert (judgement.group, judgement.evidence["topic"]) == (group, topic)


@in_loop
async def test_a_queue_that_several_brokers_have_needs_the_brokers_name(
    target: str, tmp_path: Path
) -> None:
    if target != "tamis":
        pytest.skip("two brokers are started of ours only")
    async with LocalCluster(tmp_path / "a") as one:
        other = LocalBroker(tmp_path / "b", nameserver=one.nameserver, name="broker-b")
        async with other, Admin(one.nameserver) as admin:
            await soon(admin.brokers, lambda seen: len(seen) == 2)
            await admin.create_topic("Both", queues=1)
            with pytest.raises(ConfigError, match="say broker-a:0 or broker-b:0"):
                await admin.explain(topic="Both", queue_id=0, offset=0)
            with pytest.raises(NotFound):
                await admin.explain(topic="Both", queue_id=0, offset=0, broker="broker-b")


# What became of it


@in_loop
async def test_what_is_known_without_history_is_known_of_any_broker(
    cluster: Cluster, tmp_path: Path
) -> None:
    topic, away, _ = await consumed(cluster, "old")
    failing, dead, broadcasting = (cluster.name(what) for what in ("fails", "dead", "all"))
    directory = {"offsets_directory": str(tmp_path)}
    consumers = [
        cluster.push(failing, Seen(refuse)),
        cluster.push(dead, Seen(refuse), max_reconsume_times=0),
        cluster.push(broadcasting, Seen(), model="broadcasting", **directory),
    ]
    expected = {
        away: Fate.NOT_ONLINE,
        failing: Fate.RETRYING,
        dead: Fate.DEAD_LETTERED,
        broadcasting: Fate.BROADCASTING,
    }
    async with AsyncExitStack() as stack:
        for consumer in consumers:
            consumer.subscribe(topic)
            await stack.enter_async_context(consumer)
        admin = await stack.enter_async_context(admin_of(cluster))
        [sent] = await cluster.fill(topic, "new")
        judgements = await soon(
            lambda: admin.explain(sent.offset_message_id),
            lambda seen: expected.items() <= fates(seen).items(),
        )
        [by_key] = await admin.explain(sent.message_id, group=failing)
    assert by_key.evidence["topic"] == topic  # not the copy that was sent back
    by_group = {one.group: one for one in judgements}
    assert by_group[failing].evidence["retry"]["topic"] == f"%RETRY%{failing}"
    assert by_group[dead].evidence["retry"]["topic"] == f"%DLQ%{dead}"
    assert by_group[away].evidence["track"] == "NOT_ONLINE"


def refuse(message: Any) -> None:
    raise ValueError("not today")


@in_loop
async def test_the_wire_tells_less_than_history_and_never_something_else(cluster: Cluster) -> None:
    _, _, [sent, *_] = await consumed(cluster, "x", "y", tags="a")
    async with admin_of(cluster) as admin:
        [judgement] = await admin.explain(sent.offset_message_id)
        [on_the_wire] = await explaining._judged_here(admin._session, sent.queue, 0, None, {})
    if cluster.target == "tamis":
        assert judgement.fate is Fate.CONSUMED
        assert judgement.evidence["history_since"] is not None
    assert on_the_wire.fate is Fate.UNKNOWN
    assert "this broker keeps no history" in on_the_wire.reason
    same = ("topic", "broker", "queue", "offset", "message_id", "stored", "tag", "tags_code")
    for name in (*same, "committed", "queue_begins_at", "queue_ends_at", "online", "track"):
        assert on_the_wire.evidence[name] == judgement.evidence[name], name
    assert on_the_wire.evidence["unknown"]


@in_loop
async def test_a_groups_sql_is_explained_part_by_part(cluster: Cluster) -> None:
    topic, group = await cluster.create_topic("Sql", queues=1), cluster.name("Sql")
    sent: list[SendResult] = await cluster.fill(topic, "x", properties={"price": "3"})
    consumer = cluster.push(group, Seen())
    consumer.subscribe(topic, sql="price > 5 OR region = 'north'")
    async with consumer, admin_of(cluster) as admin:
        await cluster.wait_for_offsets(group, topic, 1)
        [judgement] = await admin.explain(sent[0].offset_message_id)
    assert judgement.evidence["sql"]["expression"] == "price > 5 OR region = 'north'"
    outcomes = [part["outcome"] for part in judgement.evidence["sql"]["part"]["parts"]]
    assert outcomes == ["false", "null"]
    if cluster.target == "tamis":
        assert judgement.fate is Fate.FILTERED
    else:
        assert "it would not match" in judgement.reason


EVEN = """
class Even:
    def match(self, message):
        return int(message.text) % 2 == 0
"""


@in_loop
async def test_what_code_says_is_asked_of_a_filter_server(target: str, tmp_path: Path) -> None:
    if target != "tamis":
        pytest.skip("brokers of ours start their filter servers themselves")
    soon_seen = {"route_interval": 0.3, "heartbeat_interval": 0.3, "rebalance_interval": 1.0}
    config = ConsumerConfig(start="first", commit_interval=0.2, hold=1.0, **soon_seen)
    odd = EVEN.replace("== 0", "== 1")  # a class of the same name
    async with LocalCluster(tmp_path, filter_servers=1) as one, Admin(one.nameserver) as admin:
        await soon(admin.filter_servers, bool)
        await admin.create_topic("Numbers", queues=1)
        consumers = {
            group: PushConsumer(one.nameserver, group, lambda message: None, config=config)
            for group in ("even", "odd")
        }
        async with AsyncExitStack() as stack:
            for (group, consumer), text in zip(consumers.items(), (EVEN, odd), strict=True):
                consumer.subscribe("Numbers", code=CodeFilter(f"{group}.py:Even", text))
                await stack.enter_async_context(consumer)
            producer = await stack.enter_async_context(Producer(one.nameserver))
            await producer.send(Message("Numbers", "6"))
            for group in consumers:
                await soon(
                    partial(admin.offsets, group, "Numbers"),
                    lambda seen: [one.committed for one in seen] == [1],
                )
            judgements = await admin.explain(topic="Numbers", queue_id=0, offset=0)
    assert fates(judgements) == {"even": Fate.CONSUMED, "odd": Fate.FILTERED}
