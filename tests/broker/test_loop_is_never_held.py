"""The largest legal requests: others are answered while they are served, or they are refused in
one clear line. Nothing here looks at a clock: what is asked later is answered earlier."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
from broker.running import Client, run, running, until

from tamis.broker.broker import Broker
from tamis.broker.filters import try_compile
from tamis.errors import InvalidFilter
from tamis.fate.filters import Filter
from tamis.net import blocking
from tamis.net.aio import Peer
from tamis.wire import beans
from tamis.wire.bodies import ConsumerData, Heartbeat, Subscription, TopicConfig
from tamis.wire.codes import RequestCode, ResponseCode
from tamis.wire.command import Command
from tamis.wire.headers import (
    GetConsumeStats,
    Header,
    OfQueue,
    OfTopic,
    OfTopicAndGroup,
    QueryConsumeQueue,
    ResetOffset,
)


async def answered_before(
    broker: Broker, work: Awaitable[Command], address: str | None = None
) -> Command:
    """What a long request is answered; another connection is answered while it is under way."""
    other = await Client.connect(broker.address)
    long = asyncio.ensure_future(work)
    try:
        await asyncio.sleep(0)  # it is on its way
        fields = OfQueue(topic="T", queue_id=0).to_fields()
        for _ in range(3):
            probe = await other.ask(RequestCode.GET_MAX_OFFSET, fields)
            assert probe.code == ResponseCode.SUCCESS
        assert not long.done(), "it was served first"
        return await long
    finally:
        other.peer.close()
        if not long.done():
            long.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await long


def long_sql(size: int, salt: int, end: str = "") -> str:
    parts: list[str] = []
    while sum(map(len, parts)) + 4 * len(parts) < size - 40:
        parts += [f"a{salt}_{len(parts) + i} = '{i}'" for i in range(100)]
    return " OR ".join(parts)[: size - 40].rpartition(" OR ")[0] + end


def heartbeat(groups: list[str], *subscriptions: Subscription) -> bytes:
    consumers = [ConsumerData(group=name, subscriptions=list(subscriptions)) for name in groups]
    return beans.encode(Heartbeat(client_id="c", producers=[], consumers=consumers))


def test_a_heartbeat_with_100_000_groups_is_refused_in_one_line(tmp_path: Path) -> None:
    groups = [f"g{i}" for i in range(100_000)]
    body = json.dumps(
        {"clientID": "c", "consumerDataSet": [{"groupName": name} for name in groups]},
        separators=(",", ":"),
    ).encode()

    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            answer = await client.ask(RequestCode.HEART_BEAT, body=body)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert (answer.remark or "").startswith("no heartbeat: too many entries in one body")
            answer = await client.ask(RequestCode.HEART_BEAT, body=heartbeat(groups[:1001]))
            assert "a heartbeat with 1001 groups: the broker takes 1000" in (answer.remark or "")
            assert not broker.consumers.groups

    run(scene())


def test_a_heartbeat_with_many_groups_is_served_between_others(tmp_path: Path) -> None:
    body = heartbeat([f"g{i}" for i in range(1000)], Subscription(topic="T", expression="*"))

    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            work = client.ask(RequestCode.HEART_BEAT, body=body)
            assert (await answered_before(broker, work)).code == ResponseCode.SUCCESS
            assert len(broker.consumers.groups) == 1000
            # it may be in no more
            more = await client.ask(RequestCode.HEART_BEAT, body=heartbeat(["one-more"]))
            assert "this connection is in 1000 groups" in (more.remark or "")
            client.peer.close()  # and all are gone with it
            await until(lambda: not broker.consumers.groups)
            assert broker.consumers.count == 0

    run(scene())


def test_long_filters_of_a_heartbeat_are_compiled_apart_and_seen_by_the_next_pull(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            await client.send("T")
            wanted = [
                Subscription(topic=topic, expression=long_sql(60_000, i), expression_type="SQL92",
                             version=1)
                for i, topic in enumerate(("T", "U", "V", "W"))
            ]  # fmt: skip
            body = heartbeat(["g"], *wanted)
            # what follows on the connection does not overtake it
            gone = {"clientID": "c", "consumerGroup": "g"}
            work = client.ask(RequestCode.HEART_BEAT, body=body)
            assert (await answered_before(broker, work)).code == ResponseCode.SUCCESS
            pulled = await client.pull("T", subscription=None, version=1)
            assert pulled.code == ResponseCode.PULL_RETRY_IMMEDIATELY, pulled
            again, left = await asyncio.gather(
                client.ask(RequestCode.HEART_BEAT, body=body),
                client.ask(RequestCode.UNREGISTER_CLIENT, gone),
            )
            assert (again.code, left.code) == (0, 0)
            assert not broker.consumers.groups

    run(scene())


def test_a_long_filter_of_a_pull_or_a_check_is_compiled_apart(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            await client.send("T")
            pull = client.pull("T", subscription=long_sql(60_000, 20), kind="SQL92")
            found = await answered_before(broker, pull)
            assert found.code == ResponseCode.PULL_RETRY_IMMEDIATELY, found
            one = Subscription(topic="T", expression=long_sql(60_000, 21, " AND"),
                               expression_type="SQL92")  # fmt: skip
            body = json.dumps(
                {"clientId": "c", "group": "g", "subscriptionData": beans.to_json(one)}
            ).encode()
            check = client.ask(RequestCode.CHECK_CLIENT_CONFIG, body=body)
            refused = await answered_before(broker, check)
            assert refused.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED

    run(scene())


def test_an_expression_that_does_not_compile_is_remembered() -> None:
    first = try_compile(long_sql(3000, 30, " AND"), "SQL92")
    assert isinstance(first, InvalidFilter)
    assert try_compile(long_sql(3000, 30, " AND"), "SQL92") is first


def test_what_is_remembered_of_expressions_is_bounded() -> None:
    first = try_compile("a > 1 AND b > 1234", "SQL92")
    for i in range(30):
        try_compile(f"a > {i} -- {'x' * 60_000}\n", "SQL92")
    assert try_compile("a > 1 AND b > 1234", "SQL92") is not first


async def wide_topic(broker: Broker, client: Client) -> None:
    broker.topics.put(TopicConfig(name="Wide", read_queues=10_000, write_queues=10_000))
    for queue_id in range(10_000):
        broker.offsets.commit("g", "Wide", queue_id, 0)


@pytest.mark.parametrize(
    ("code", "header"),
    [
        (RequestCode.GET_TOPIC_STATS_INFO, OfTopic(topic="Wide")),
        (RequestCode.GET_CONSUME_STATS, GetConsumeStats(consumer_group="g", topic="Wide")),
        (RequestCode.QUERY_CONSUME_TIME_SPAN, OfTopicAndGroup(topic="Wide", group="g")),
        (
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
            ResetOffset(topic="Wide", group="g", timestamp=-1, is_force=True),
        ),
    ],
    ids=lambda value: value.name if isinstance(value, RequestCode) else "",
)
def test_10_000_queues_are_looked_at_between_others(
    tmp_path: Path, code: RequestCode, header: Header
) -> None:
    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            await wide_topic(broker, client)
            await client.heartbeat("g", Subscription(topic="Wide", expression="*"))
            work = client.ask(code, header.to_fields())
            answer = await answered_before(broker, work)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            assert answer.body.count(b'"queueId"') == 10_000

    run(scene())


def test_units_of_a_queue_are_shown_between_others(tmp_path: Path) -> None:
    count = 20_000

    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            await asyncio.gather(*(client.send("T") for _ in range(count)))
            store = broker.store
            await until(lambda: store.dispatched >= store.log.end)
            header = QueryConsumeQueue(topic="T", queue_id=0, index=0, count=200_000)
            work = client.ask(RequestCode.QUERY_CONSUME_QUEUE, header.to_fields())
            answer = await answered_before(broker, work)
            assert answer.body.count(b'"physicOffset"') == count

    run(scene())


def many_topics(broker: Broker) -> None:
    for i in range(20_000):
        name = f"Topic-{i}"
        broker.topics._topics[name] = TopicConfig(name=name)


def many_groups(broker: Broker) -> None:
    for i in range(20_000):
        broker.groups.find(f"group-{i}", create=True)


def many_offsets(broker: Broker) -> None:
    for i in range(20_000):
        broker.offsets.commit(f"group-{i}", "T", 0, 7)


@pytest.mark.parametrize(
    ("code", "fill"),
    [
        (RequestCode.GET_ALL_TOPIC_CONFIG, many_topics),
        (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, many_groups),
        (RequestCode.GET_ALL_CONSUMER_OFFSET, many_offsets),
    ],
)
def test_whole_tables_are_told_between_others(
    tmp_path: Path, code: RequestCode, fill: Callable[[Broker], None]
) -> None:
    async def scene() -> None:
        settings = {"auto_create_per_minute": 10**6, "most_auto_groups": 10**6}
        async with running(tmp_path, **settings) as (broker, client):
            fill(broker)
            answer = await answered_before(broker, client.ask(code))
            assert answer.code == ResponseCode.SUCCESS
            assert len(answer.body) > 20_000 * 15

    run(scene())


def many_histories(broker: Broker) -> None:
    for i in range(10_000):
        broker.recorder.moved(f"group-{i}", "T", 0, None, 1, "a tool", "an offset was set")


def long_history(broker: Broker) -> None:
    """Of few groups, as long as it may be."""
    peers = [cast("Peer", f"c{number}") for number in range(2)]
    for group in ("g", "h", "i"):
        for number in range(19_000):
            queue, peer = (group, "T", number % 2), peers[number // 2 % 2]
            broker.recorder.read(*queue, peer, "*", Everything(), 0, number + 1)


class Everything:
    def filter(self) -> Filter:
        return Filter("TAG", "*")

    def unless(self) -> tuple[Filter, ...]:
        return ()

    def change(self) -> None:
        return None


def some_offsets(broker: Broker) -> None:
    for i in range(5000):
        broker.offsets.commit(f"group-{i}", "T", 0, 1)


def many_rules(broker: Broker) -> None:
    for i in range(10_000):
        broker.rules.set_policy(f"group-{i}", "isolate")


@pytest.mark.parametrize(
    ("code", "fill"),
    [
        (RequestCode.GET_HISTORY, many_histories),
        (RequestCode.GET_HISTORY, long_history),
        (RequestCode.GET_GROUP_RULES, many_rules),
        (RequestCode.EXPLAIN_MESSAGE, many_histories),
        (RequestCode.GET_MATCHING_LAG, some_offsets),
    ],
)
def test_fates_rules_and_lags_are_told_between_others(
    tmp_path: Path, code: RequestCode, fill: Callable[[Broker], None]
) -> None:
    fields = {"topic": "T", "queueId": "0", "offset": "0"}

    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            await client.send("T")
            await until(lambda: broker.store.find_queue("T", 0))
            fill(broker)
            await broker.saver.durable("history")
            answer = await answered_before(broker, client.ask(code, fields))
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            assert len(answer.body) > 1000

    run(scene())


def test_a_history_that_no_answer_holds_is_refused_in_one_line(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path, history_bytes=2**30) as (broker, client):
            for i in range(40):
                for number in range(40):
                    why = f"{number}{'x' * 20_000}"
                    broker.recorder.moved(f"g{i}", "T", 0, None, 1, "a tool", why)
            answer = await client.ask(RequestCode.GET_HISTORY, {"topic": "T"})
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert answer.remark == (
                "the history of 40 groups on topics takes more than an answer holds: name a group "
                "or a topic, or both (16711680 bytes)"
            )
            answer = await client.ask(RequestCode.GET_HISTORY, {"group": "g7"})
            assert answer.code == ResponseCode.SUCCESS
            assert len(answer.body) > 800_000

    run(scene())


def test_many_queues_are_locked_between_others_and_too_many_are_refused(tmp_path: Path) -> None:
    def body(count: int) -> bytes:
        queues = [{"topic": "T", "brokerName": "b", "queueId": i} for i in range(count)]
        made = {"clientId": "c", "consumerGroup": "g", "mqSet": queues}
        return json.dumps(made, separators=(",", ":")).encode()

    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            work = client.ask(RequestCode.LOCK_BATCH_MQ, body=body(20_000))
            answer = await answered_before(broker, work)
            assert answer.code == ResponseCode.SUCCESS
            assert len(broker.locks) == 20_000
            answer = await client.ask(RequestCode.LOCK_BATCH_MQ, body=body(60_000))
            assert (answer.remark or "").endswith("name fewer in each request")

    run(scene())


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.HEART_BEAT,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
        RequestCode.CHECK_CLIENT_CONFIG,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_BROKER_CONFIG,
    ],
)
def test_a_body_of_nonsense_is_refused_by_its_size(tmp_path: Path, code: RequestCode) -> None:
    bodies = (b"[" + b"[]," * 300_000 + b"[]]", bytes(15 * 2**20))

    async def scene() -> None:
        async with running(tmp_path) as (_, client):
            for body in bodies:
                answer = await client.ask(code, body=body)
                assert answer.code == ResponseCode.SYSTEM_ERROR
                assert any(
                    word in (answer.remark or "") for word in ("takes", "too many entries")
                ), answer.remark

    run(scene())


def test_a_header_of_megabytes_closes_its_connection(tmp_path: Path) -> None:
    fields = {f"f{i}": "" for i in range(100_000)}

    async def scene() -> None:
        async with running(tmp_path) as (broker, client):

            def ask() -> Any:
                with blocking.connect(broker.address) as peer, pytest.raises(ConnectionError):
                    peer.ask(Command(code=RequestCode.GET_MAX_OFFSET, fields=fields), 20)

            await asyncio.to_thread(ask)
            assert (await client.send("T")).code == ResponseCode.SUCCESS

    run(scene())


def test_members_of_a_large_group_are_told_of_each_other(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            others = [await Client.connect(broker.address) for _ in range(150)]
            one = Subscription(topic="T", expression="*")
            for number, other in enumerate(others):
                await other.heartbeat("g", one, client_id=f"c{number}")
            for other in others:
                other.told.clear()
            await client.heartbeat("g", one, client_id="last")
            await until(lambda: all(other.told for other in others))
            for other in others:
                other.peer.close()
            await until(lambda: broker.consumers.count == 1)

    run(scene())
