"""The admin client: what it says of a cluster, and what it changes in it."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from client.targets import Cluster, Seen, in_loop, take, texts

from tamis.client import Admin, ClientConfig, MessageQueue
from tamis.errors import (
    ClientClosed,
    ConfigError,
    Error,
    GroupNotFound,
    InvalidName,
    NotFound,
    TopicNotFound,
    Unreachable,
)
from tamis.wire.codes import RequestCode
from tamis.wire.headers import OfKvConfig

PATIENCE = 30.0  # seconds


def admin_of(cluster: Cluster, **settings: Any) -> Admin:
    return Admin(cluster.nameserver, config=ClientConfig(**settings))


async def soon(look: Callable[[], Any], wanted: Callable[[Any], bool]) -> Any:
    """What is seen when it is as wanted; the last that was seen, if it never is."""
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while True:
        seen = await look()
        if wanted(seen):
            return seen
        late = asyncio.get_running_loop().time() > deadline
        assert not late, f"after {PATIENCE:g} s: {seen}"
        await asyncio.sleep(0.05)


async def consume(cluster: Cluster, group: str, topic: str, count: int) -> None:
    """So many, and the offsets are there when it ends."""
    consumer = cluster.consumer(group)
    consumer.subscribe(topic)
    async with consumer:
        await take(consumer, count)
    async with admin_of(cluster) as admin:
        await soon(
            lambda: admin.offsets(group, topic),
            lambda seen: sum(one.committed for one in seen) == count,
        )
        await soon(lambda: admin.group(group), lambda seen: not seen.is_online)


# Topics


@in_loop
async def test_a_topic_is_there_when_create_topic_returns(cluster: Cluster) -> None:
    topic = cluster.name("Made")
    async with admin_of(cluster) as admin:
        assert await admin.create_topic(topic, queues=3) == ["broker-a"]
        assert topic in await admin.topics()
        info = await admin.topic(topic)
    assert [(one.broker, one.read_queues, one.write_queues) for one in info.places] == [
        ("broker-a", 3, 3)
    ]
    assert info.places[0].permission == "rw"
    assert [one.queue for one in info.queues] == [
        MessageQueue(topic, "broker-a", n) for n in range(3)
    ]
    assert {(one.first, one.end, one.last_stored) for one in info.queues} == {(0, 0, None)}
    assert info.groups == []


@in_loop
async def test_a_topic_can_be_changed_and_its_route_is_too(cluster: Cluster) -> None:
    async with admin_of(cluster) as admin:
        topic = cluster.name("Changed")
        await admin.create_topic(topic, queues=2)
        await admin.create_topic(topic, queues=5, permission="r", cluster="DefaultCluster")
        [place] = (await admin.topic(topic)).places
        assert (place.read_queues, place.permission) == (5, "r")
        await admin.create_topic(topic, queues=5, permission="rw", broker="broker-a")
        [place] = (await admin.topic(topic)).places
        assert (place.read_queues, place.permission) == (5, "rw")


@in_loop
async def test_a_topic_says_what_is_in_it_and_who_consumes_it(cluster: Cluster) -> None:
    topic, group = await cluster.create_topic("Told", queues=1), cluster.name("G")
    await cluster.fill(topic, "a", "b", "c")
    await consume(cluster, group, topic, 3)
    async with admin_of(cluster) as admin:
        info = await admin.topic(topic)
    [queue] = info.queues
    assert (queue.first, queue.end) == (0, 3)
    assert queue.last_stored is not None
    assert info.groups == [group]


@in_loop
async def test_a_deleted_topic_is_gone_from_brokers_and_name_servers(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Gone")
    async with admin_of(cluster) as admin:
        await admin.delete_topic(topic)
        assert topic not in await admin.topics(all=True)
        with pytest.raises(TopicNotFound, match=topic):
            await admin.topic(topic)
        with pytest.raises(TopicNotFound):
            await admin.delete_topic(topic)


@in_loop
async def test_topics_of_the_system_and_of_retries_are_listed_only_if_asked_for(
    cluster: Cluster,
) -> None:
    topic, group = await cluster.create_topic("Own", queues=1), cluster.name("G")
    await cluster.fill(topic, "a")
    push = cluster.push(group, Seen())
    push.subscribe(topic)
    async with push, admin_of(cluster) as admin:
        everything = await soon(
            lambda: admin.topics(all=True), lambda seen: f"%RETRY%{group}" in seen
        )
        own = await admin.topics()
    assert {"TBW102", "broker-a", "DefaultCluster", "SCHEDULE_TOPIC_XXXX"} <= set(everything)
    assert topic in own
    assert not [one for one in own if one.startswith("%RETRY%") or one in ("TBW102", "broker-a")]
    assert not [one for one in own if one.lower().startswith("rmq_sys")]


@in_loop
async def test_an_ordered_topic_has_its_queues_written_down_at_the_name_server(
    cluster: Cluster,
) -> None:
    topic = cluster.name("Ordered")
    async with admin_of(cluster) as admin:
        await admin.create_topic(topic, queues=2, order=True)
        header = OfKvConfig(namespace="ORDER_TOPIC_CONFIG", key=topic)
        session = admin._session
        answer = await session.ask_nameserver(header, code=RequestCode.GET_KV_CONFIG)
        assert (answer.fields or {})["value"] == "broker-a:2"
        await admin.create_topic(topic, queues=3, order=True, broker="broker-a")
        answer = await session.ask_nameserver(header, code=RequestCode.GET_KV_CONFIG)
        assert (answer.fields or {})["value"] == "broker-a:3"
        await admin.delete_topic(topic)
        with pytest.raises(NotFound):
            await session.ask_nameserver(header, code=RequestCode.GET_KV_CONFIG)


@in_loop
async def test_what_can_not_be_created_is_refused_before_anyone_is_asked(cluster: Cluster) -> None:
    async with admin_of(cluster) as admin:
        with pytest.raises(InvalidName, match="' '"):
            await admin.create_topic("a b")
        with pytest.raises(InvalidName):
            await admin.create_group("a/b")
        with pytest.raises(ConfigError, match="permission"):
            await admin.create_topic("T", permission="x")
        with pytest.raises(ConfigError, match="queues"):
            await admin.create_topic("T", queues=0)
        with pytest.raises(ConfigError, match="not both"):
            await admin.create_topic("T", cluster="DefaultCluster", broker="broker-a")
        with pytest.raises(Error, match=r"no cluster Nowhere: .*DefaultCluster"):
            await admin.create_topic("T", cluster="Nowhere")
        with pytest.raises(Error, match="broker-z"):
            await admin.create_topic("T", broker="broker-z")


@in_loop
async def test_a_topic_of_the_system_can_not_be_made_or_deleted(cluster: Cluster) -> None:
    async with admin_of(cluster) as admin:
        with pytest.raises(Error, match="system topic"):
            await admin.create_topic("TBW102")
        with pytest.raises(Error, match="system topic"):
            await admin.delete_topic("TBW102")


# Groups


@in_loop
async def test_a_group_is_made_listed_changed_and_deleted(cluster: Cluster) -> None:
    group = cluster.name("Group")
    async with admin_of(cluster) as admin:
        assert await admin.create_group(group, retries=3) == ["broker-a"]
        assert group in await admin.groups()
        info = await admin.group(group)
        assert (info.retries, info.is_enabled, info.brokers) == (3, True, ["broker-a"])
        assert (info.is_online, info.members, info.subscriptions) == (False, [], {})
        await admin.create_group(group, retries=5, enabled=False)
        info = await admin.group(group)
        assert (info.retries, info.is_enabled) == (5, False)
        await admin.delete_group(group)
        assert group not in await admin.groups()
        for ask in (admin.group, admin.delete_group, admin.offsets):
            with pytest.raises(GroupNotFound, match=f"tamis groups create {group}"):
                await ask(group)


@in_loop
async def test_groups_of_the_system_are_listed_only_if_asked_for(cluster: Cluster) -> None:
    async with admin_of(cluster) as admin:
        assert "TOOLS_CONSUMER" in await admin.groups(all=True)
        own = await admin.groups()
    assert "TOOLS_CONSUMER" not in own
    assert not [one for one in own if one.startswith("CID_")]


@in_loop
async def test_a_group_with_members_says_who_they_are_and_what_they_read(cluster: Cluster) -> None:
    topic, group = await cluster.create_topic("Read", queues=1), cluster.name("G")
    push = cluster.push(group, Seen())
    push.subscribe(topic, tags="a || b")
    async with push, admin_of(cluster) as admin:
        info = await soon(lambda: admin.group(group), lambda seen: seen.is_online)
        [member] = info.members
        assert (member.client_id, member.language) == (push.client_id, "PYTHON")
        assert (member.version, member.error) == ("V4_9_4", None)
        assert member.address.startswith("127.0.0.1:")
        assert member.subscriptions is not None
        assert member.subscriptions[topic].expression == "a || b"
        assert info.subscriptions[topic].expression == "a || b"
        assert info.mismatches == []
        assert (info.consume_type, info.message_model) == ("CONSUME_PASSIVELY", "CLUSTERING")
        assert info.consume_from_where == "CONSUME_FROM_FIRST_OFFSET"
        with pytest.raises(Error, match=f"has members .*{push.client_id}.*stop them"):
            await admin.delete_group(group)


@in_loop
async def test_members_that_subscribe_differently_are_told_apart(cluster: Cluster) -> None:
    topic, group = await cluster.create_topic("Differ", queues=2), cluster.name("G")
    one, other = cluster.push(group, Seen()), cluster.push(group, Seen())
    one.subscribe(topic, tags="a")
    other.subscribe(topic, tags="b")
    async with one, other, admin_of(cluster) as admin:
        info = await soon(lambda: admin.group(group), lambda seen: len(seen.members) == 2)
        effective = info.subscriptions[topic].expression
        loser = {"a": other, "b": one}[effective]
        [found] = info.mismatches
        assert (found.client_id, found.topic) == (loser.client_id, topic)
        assert str(found) == (
            f"member {loser.client_id} has tags '{'b' if effective == 'a' else 'a'}' for {topic},"
            f" the broker broker-a tags '{effective}'"
        )


@in_loop
async def test_a_member_that_does_not_answer_is_listed_without_its_subscriptions(
    cluster: Cluster,
) -> None:
    topic, group = await cluster.create_topic("Silent", queues=1), cluster.name("G")
    push = cluster.push(group, Seen())
    push.subscribe(topic)
    async with push, admin_of(cluster) as admin:
        del push.session.listeners[RequestCode.GET_CONSUMER_RUNNING_INFO]
        info = await soon(lambda: admin.group(group), lambda seen: seen.is_online)
    [member] = info.members
    assert member.subscriptions is None
    assert "does not answer request 307" in (member.error or "")
    assert info.mismatches == []
    assert info.subscriptions[topic].expression == "*"


# Offsets


@in_loop
async def test_offsets_say_how_far_a_group_is(cluster: Cluster) -> None:
    topic, group = await cluster.create_topic("Far", queues=1), cluster.name("G")
    await cluster.fill(topic, "a", "b")
    await consume(cluster, group, topic, 2)
    await cluster.fill(topic, "c", "d", "e")
    async with admin_of(cluster) as admin:
        [found] = await admin.offsets(group, topic)
        assert found.queue == MessageQueue(topic, "broker-a", 0)
        assert (found.committed, found.end, found.lag) == (2, 5, 3)
        assert found.last_consumed is not None
        assert found in await admin.offsets(group)
        with pytest.raises(TopicNotFound):
            await admin.offsets(group, cluster.name("Nothing"))


@in_loop
async def test_a_group_without_members_is_reset_at_once(cluster: Cluster) -> None:
    topic, group = await cluster.create_topic("Back", queues=1), cluster.name("G")
    queue = MessageQueue(topic, "broker-a", 0)
    await cluster.fill(topic, "a", "b", "c", "d")
    await consume(cluster, group, topic, 4)
    async with admin_of(cluster) as admin:

        async def committed() -> int:
            [found] = await admin.offsets(group, topic)
            return found.committed

        assert await admin.reset_offsets(group, topic, "first") == {queue: 0}
        assert await committed() == 0
        assert await admin.reset_offsets(group, topic, "last") == {queue: 4}
        assert await committed() == 4
        assert await admin.reset_offsets(group, topic, offset=2) == {queue: 2}
        assert await committed() == 2
        assert await admin.reset_offsets(group, topic, offset=99) == {queue: 4}
        assert await admin.reset_offsets(group, topic, offset=1, queue=queue) == {queue: 1}
        assert await admin.reset_offsets(group, topic, "last", force=False) == {queue: 1}
        assert await committed() == 1
        assert await admin.reset_offsets(group, topic, "first", force=False) == {queue: 0}
        assert await admin.planned_offsets(group, topic, "last") == {queue: 4}
        assert await committed() == 0
    consumer = cluster.consumer(group)
    consumer.subscribe(topic)
    async with consumer:
        assert texts(await take(consumer, 4)) == ["a", "b", "c", "d"]


@in_loop
async def test_a_reset_to_a_time_goes_to_what_was_stored_then(cluster: Cluster) -> None:
    topic, group = await cluster.create_topic("Then", queues=1), cluster.name("G")
    queue = MessageQueue(topic, "broker-a", 0)
    await cluster.fill(topic, "a", "b")
    await consume(cluster, group, topic, 2)
    await cluster.fill(topic, "c")
    [*_, last] = await cluster.read(topic, 3)
    async with admin_of(cluster) as admin:
        made = await admin.reset_offsets(group, topic, time=last.store_timestamp / 1000)
        assert made == {queue: 2}
        assert await admin.reset_offsets(group, topic, time=0) == {queue: 0}


@in_loop
async def test_members_of_a_group_that_is_reset_begin_again(cluster: Cluster) -> None:
    topic, group = await cluster.create_topic("Again", queues=2), cluster.name("G")
    await cluster.fill(topic, "a", "b", "c")
    seen = Seen()
    push = cluster.push(group, seen)
    push.subscribe(topic)
    async with push, admin_of(cluster) as admin:
        await seen.until("a", "b", "c")
        await soon(
            lambda: admin.offsets(group, topic),
            lambda seen: sum(one.committed for one in seen) == 3,
        )
        made = await admin.reset_offsets(group, topic, "first")
        assert made == {MessageQueue(topic, "broker-a", n): 0 for n in range(2)}
        await seen.until("a", "a", "b", "b", "c", "c")


@in_loop
async def test_an_offset_can_be_given_to_members_where_the_broker_can_tell_them(
    cluster: Cluster,
) -> None:
    topic, group = await cluster.create_topic("Exact", queues=1), cluster.name("G")
    await cluster.fill(topic, "a", "b", "c")
    seen = Seen()
    push = cluster.push(group, seen)
    push.subscribe(topic)
    async with push, admin_of(cluster) as admin:
        await seen.until("a", "b", "c")
        await soon(
            lambda: admin.offsets(group, topic),
            lambda seen: sum(one.committed for one in seen) == 3,
        )
        if cluster.target == "4.9":
            with pytest.raises(Error, match=r"a time only.*stop the members"):
                await admin.reset_offsets(group, topic, offset=1)
            assert sorted(seen.texts) == ["a", "b", "c"]  # handlers run at once
            return
        made = await admin.reset_offsets(group, topic, offset=1)
        assert made == {MessageQueue(topic, "broker-a", 0): 1}
        await seen.until("a", "b", "b", "c", "c")


@in_loop
async def test_a_reset_is_to_one_thing_and_of_what_there_is(cluster: Cluster) -> None:
    topic, group = await cluster.create_topic("Once", queues=1), cluster.name("G")
    async with admin_of(cluster) as admin:
        await admin.create_group(group)
        for wrong in ({}, {"to": "first", "offset": 1}, {"to": "middle"}, {"offset": -1}):
            with pytest.raises(ConfigError, match="a reset"):
                await admin.reset_offsets(group, topic, **wrong)  # type: ignore[arg-type]
        with pytest.raises(GroupNotFound):
            await admin.reset_offsets(cluster.name("Nobody"), topic, "first")
        with pytest.raises(TopicNotFound):
            await admin.reset_offsets(group, cluster.name("Nothing"), "first")
        queue = MessageQueue(topic, "broker-a", 7)
        with pytest.raises(Error, match="no queue broker-a:7; it has broker-a:0"):
            await admin.reset_offsets(group, topic, "first", queue=queue)


# Messages


@in_loop
async def test_a_message_is_found_by_either_of_its_ids(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Found", queues=4)
    results = await cluster.fill(topic, "a", "b", "c")
    async with admin_of(cluster) as admin:
        found = await admin.message(results[1].offset_message_id)
        assert (found.topic, found.text, found.offset) == (topic, "b", results[1].offset)
        assert (found.queue, found.message_id) == (results[1].queue, results[1].message_id)

        async def by_key() -> str:  # the index is behind the log
            try:
                return (await admin.message(results[2].message_id, topic)).text
            except NotFound as error:
                return str(error)

        assert await soon(by_key, lambda text: text == "c")


@in_loop
async def test_an_id_that_leads_nowhere_is_said_to(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Lost", queues=1)
    [result] = await cluster.fill(topic, "a")
    async with admin_of(cluster) as admin:
        with pytest.raises(Error, match=r"no offset message id.*the topic is needed"):
            await admin.message(result.message_id)
        with pytest.raises(Error, match="no offset message id"):
            await admin.message("not an id")
        elsewhere = "0A000001" + result.offset_message_id[8:]
        with pytest.raises(Error, match="no offset message id"):
            await admin.message(elsewhere)
        with pytest.raises(NotFound, match=elsewhere):
            await admin.message(elsewhere, topic)
        beyond = result.offset_message_id[:16] + f"{2**40:016X}"
        with pytest.raises(NotFound, match="no message"):
            await admin.message(beyond)


@in_loop
async def test_messages_are_found_by_key_the_newest_so_many(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Keyed", queues=2)
    await cluster.fill(topic, "a", "b", "c", keys=["k1", "k2"])
    await cluster.fill(topic, "d", keys=["k2"])
    async with admin_of(cluster) as admin:
        found = await soon(lambda: admin.messages_by_key(topic, "k2"), lambda seen: len(seen) == 4)
        assert sorted(texts(found)) == ["a", "b", "c", "d"]
        assert {one.queue.broker_name for one in found} == {"broker-a"}
        assert sorted(texts(await admin.messages_by_key(topic, "k1"))) == ["a", "b", "c"]
        assert len(await admin.messages_by_key(topic, "k2", limit=2)) == 2
        assert await admin.messages_by_key(topic, "k3") == []
        assert await admin.messages_by_key(topic, "k2", begin=1, end=2) == []


# Brokers


@in_loop
async def test_brokers_are_those_of_the_cluster(cluster: Cluster) -> None:
    async with admin_of(cluster) as admin:
        [broker] = await admin.brokers()
        assert (broker.name, broker.cluster) == ("broker-a", "DefaultCluster")
        assert (broker.address, broker.broker_id, broker.is_master) == (cluster.broker, 0, True)
        assert await admin.cluster() == {"DefaultCluster": [broker]}


@in_loop
async def test_a_broker_tells_its_numbers_by_name_and_by_address(cluster: Cluster) -> None:
    async with admin_of(cluster) as admin:

        async def numbers() -> dict[str, str]:
            try:
                return await admin.broker_stats("broker-a")
            except Error:  # RocketMQ 4.9's has none in its first seconds
                return {}

        stats = await soon(numbers, bool)
        assert stats["brokerVersionDesc"] == {"5.3": "V5_3_3"}.get(cluster.target, "V4_9_4")
        assert "putTps" in await admin.broker_stats(cluster.broker)
        with pytest.raises(Error, match="broker-z"):
            await admin.broker_stats("broker-z")


@in_loop
async def test_nobody_there_is_one_clear_line(cluster: Cluster) -> None:
    async with Admin("127.0.0.1:1") as admin:
        with pytest.raises(Unreachable, match=r"name server at 127.0.0.1:1 can't be reached"):
            await admin.topics()
    with pytest.raises(ClientClosed):
        await admin.topics()
    with pytest.raises(ConfigError, match="nowhere"):
        Admin("nowhere")
