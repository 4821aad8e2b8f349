"""What strangers create is limited, in all and for each of them; what is refused says why."""

import asyncio
import logging
from pathlib import Path

import pytest
from broker.running import Client, run, running, until

from tamis.broker.config import BrokerConfig, Settings
from tamis.broker.filters import Filters
from tamis.broker.quotas import Quotas
from tamis.errors import ConfigError, ResponseError
from tamis.filter.bloom import BloomFilter
from tamis.net.aio import Peer
from tamis.wire import beans
from tamis.wire.bodies import GroupConfig, Subscription
from tamis.wire.codes import CommandFlag, RequestCode, ResponseCode
from tamis.wire.command import Command
from tamis.wire.headers import CreateTopic, RegisterFilterServer, SendMessage, UpdateConsumerOffset


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def create(topic: str) -> dict[str, str]:
    header = CreateTopic(
        topic=topic, default_topic="TBW102", read_queue_nums=1, write_queue_nums=1, perm=6,
        topic_filter_type="SINGLE_TAG",
    )  # fmt: skip
    return header.to_fields()


def test_beyond_a_number_topics_are_not_created_by_sending_but_by_tools(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path, most_auto_topics=12, most_topics=14) as (broker, client):
            there = len(broker.topics)
            for number in range(there, 12):
                assert (await client.send(f"T{number}")).code == ResponseCode.SUCCESS
            refused = await client.send("One-more")
            assert refused.code == ResponseCode.TOPIC_NOT_EXIST
            assert "topic[One-more] is not created" in (refused.remark or "")
            assert "most_auto_topics" in (refused.remark or "")
            assert "create it by a tool" in (refused.remark or "")
            assert (await client.send("%RETRY%one-more")).code == ResponseCode.TOPIC_NOT_EXIST
            for name in ("By-tool-1", "By-tool-2"):
                made = await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, create(name))
                assert made.code == ResponseCode.SUCCESS
                assert (await client.send(name)).code == ResponseCode.SUCCESS
            full = await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, create("By-tool-3"))
            assert full.code == ResponseCode.SYSTEM_ERROR
            assert "the broker takes 14 (most_topics)" in (full.remark or "")
            changed = await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, create("By-tool-1"))
            assert changed.code == ResponseCode.SUCCESS  # it is there

    run(scene())


def test_a_flood_of_one_way_sends_creates_no_more_topics_than_a_client_may(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        async with running(tmp_path, auto_create_per_minute=20) as (broker, client):
            there = len(broker.topics)
            for number in range(300):
                header = SendMessage(
                    producer_group="p", topic=f"Flood-{number}", default_topic="TBW102",
                    default_topic_queue_nums=4, queue_id=0, sys_flag=0, born_timestamp=1, flag=0,
                    properties="",
                )  # fmt: skip
                client.peer.tell(
                    Command(
                        code=RequestCode.SEND_MESSAGE_V2,
                        flag=CommandFlag.ONEWAY,
                        fields=header.to_fields(letters=True),
                        body=b"x",
                    )
                )
            await until(lambda: broker.quotas.refused >= 270)
            assert 20 <= len(broker.topics) - there <= 30

    run(scene())


def test_groups_are_limited_as_topics_are(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path, most_auto_groups=9, most_groups=10) as (broker, client):
            await client.send("T")
            one = Subscription(topic="T", expression="*")
            for number in range(len(broker.groups), 9):
                assert (await client.heartbeat(f"g{number}", one)).code == ResponseCode.SUCCESS
            refused = await client.heartbeat("one-more", one)
            assert refused.code == ResponseCode.SYSTEM_ERROR
            assert "subscription group [one-more] is not created" in (refused.remark or "")
            assert "one-more" not in broker.consumers.groups
            refused = await client.pull("T", group="one-more")
            assert refused.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            assert "most_auto_groups" in (refused.remark or "")
            codes = []
            for name in ("by-tool-1", "by-tool-2"):
                body = beans.encode(GroupConfig(name=name))
                code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
                codes.append((await client.ask(code, body=body)).code)
            assert codes == [ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR]
            assert (await client.heartbeat("by-tool-1", one)).code == ResponseCode.SUCCESS
            assert "%RETRY%by-tool-1" in broker.topics
            long = await client.heartbeat("x" * 256, one)
            assert "a group's name of 256 characters" in (long.remark or "")

    run(scene())


def test_what_an_address_may_create_fills_up_again_and_is_its_own() -> None:
    clock = Clock()
    quotas = Quotas(Settings(BrokerConfig(auto_create_per_minute=60)), clock)
    for _ in range(60):
        quotas.check_topic("T", 1, "10.0.0.1")
    with pytest.raises(ResponseError, match=r"10\.0\.0\.1 has created 60 topics and groups"):
        quotas.check_topic("T", 1, "10.0.0.1")
    quotas.check_topic("T", 1, "10.0.0.2")
    clock.now = 1.0
    quotas.check_group("g", 1, "10.0.0.1")
    with pytest.raises(ResponseError):
        quotas.check_group("g", 1, "10.0.0.1")
    quotas.check_topic("T", 1, None)  # a tool
    for number in range(20_000):
        quotas.check_topic("T", 1, f"client-{number}")
    assert len(quotas._left) == 10_000


def test_offsets_are_limited_and_those_there_are_go_on(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path, most_offsets=50) as (broker, client):
            await client.send("T")

            async def commit(group: str, offset: int) -> Command:
                header = UpdateConsumerOffset(
                    consumer_group=group, topic="T", queue_id=0, commit_offset=offset
                )
                return await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header.to_fields())

            for number in range(10):
                assert (await commit(f"g{number}", 1)).code == ResponseCode.SUCCESS
            refused = await commit("g10", 1)
            assert refused.code == ResponseCode.SYSTEM_ERROR
            assert "the broker keeps 50 offsets" in (refused.remark or "")
            assert (await commit("g3", 2)).code == ResponseCode.SUCCESS
            assert broker.offsets.get("g3", "T", 0) == 2
            broker.offsets.forget_group("g4")
            assert (await commit("g10", 1)).code == ResponseCode.SUCCESS
            assert "characters" in ((await commit("x" * 256, 1)).remark or "")

    run(scene())


def test_members_of_all_groups_are_limited(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path, most_members=3) as (_, client):
            one = Subscription(topic="T", expression="*")
            assert (await client.heartbeat("a", one, producer="p")).code == ResponseCode.SUCCESS
            assert (await client.heartbeat("b", one)).code == ResponseCode.SUCCESS
            refused = await client.heartbeat("c", one)
            assert "the broker's groups have 3 members" in (refused.remark or "")
            assert (await client.heartbeat("a", one)).code == ResponseCode.SUCCESS  # as before

    run(scene())


def test_filter_servers_are_limited(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            for _ in range(100):
                broker.filter_servers.register(Peer(lambda peer, requests: None), "10.0.0.1:1")
            header = RegisterFilterServer(filter_server_addr="10.0.0.2:1")
            answer = await client.ask(RequestCode.REGISTER_FILTER_SERVER, header.to_fields())
            assert "there are 100 filter servers" in (answer.remark or "")

    run(scene())


def test_sql_of_all_groups_is_limited_and_groups_that_are_gone_make_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tamis.broker.filters.MOST_CHARACTERS", 1000)
    clock = Clock()
    clock.now = 100.0
    filters = Filters(tmp_path, BloomFilter(20, 32), clock)

    def sql(size: int) -> Subscription:
        text = "a > 1".ljust(size)
        return Subscription(topic="T", expression=text, expression_type="SQL92", version=1)

    filters.register("first", [sql(600)])
    filters.register("second", [sql(600)])
    assert filters.sql("T", "second") is None
    assert "SQL filters of 1000 characters already" in (filters.fault("T", "second") or "")
    filters.leave("first")
    filters.register("second", [sql(600)])
    assert filters.sql("T", "second") is not None
    assert filters.sql("T", "first") is None


def test_what_a_long_heartbeat_says_counts_as_memory_of_its_connection(tmp_path: Path) -> None:
    one = Subscription(topic="T", expression="A", tags=["x" * 100] * 1000)

    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            await client.heartbeat("g", one)
            [peer] = broker.server.peers
            assert peer.kept > 100_000
            other = await Client.connect(broker.address)
            await client.heartbeat("g", Subscription(topic="T", expression="*"))
            assert peer.kept == 0
            other.peer.close()

    run(scene())


def test_long_filters_of_held_pulls_count_as_memory_of_their_connection(tmp_path: Path) -> None:
    tags = "||".join(f"tag{n}" for n in range(5000))

    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            await client.send("T", b"first", tags="other")
            pulls = [
                asyncio.create_task(client.pull("T", 1, subscription=tags + f"||{n}", suspend=60))
                for n in range(3)
            ]
            await until(lambda: broker.holds.count == 3)
            [peer] = broker.server.peers
            assert peer.kept > 3 * len(tags)
            short = asyncio.create_task(client.pull("T", 1, subscription="short", suspend=60))
            await until(lambda: broker.holds.count == 4)
            await client.send("T", b"second", tags="tag7")
            assert {(await pull).code for pull in pulls} == {ResponseCode.SUCCESS}
            assert peer.kept == 0
            await client.send("T", b"third", tags="short")
            await short

    run(scene())


def test_more_tags_than_a_filter_may_have_are_refused(tmp_path: Path) -> None:
    tags = [f"tag{n}" for n in range(20_000)]

    async def scene() -> None:
        async with running(tmp_path) as (_, client):
            await client.send("T")
            refused = await client.pull("T", subscription="||".join(tags))
            assert refused.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
            assert "characters: it takes 65536" in (refused.remark or "")
            one = Subscription(topic="T", expression="||".join(tags), tags=tags)
            refused = await client.heartbeat("g", one)
            assert refused.code == ResponseCode.SYSTEM_ERROR
            assert refused.remark == "topic T: 20000 tags, the broker takes 16384"

    run(scene())


@pytest.mark.parametrize(
    "settings",
    [{"most_topics": 0}, {"heartbeat_groups": 0}, {"connection_memory": 2**20}],
)
def test_a_limit_that_stops_everything_is_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        BrokerConfig(**settings)  # type: ignore[arg-type]


def test_a_limit_is_changed_while_the_broker_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with running(tmp_path, auto_create_per_minute=1) as (_, client):
            assert (await client.send("A")).code == ResponseCode.SUCCESS
            assert (await client.send("B")).code == ResponseCode.TOPIC_NOT_EXIST
            body = b"autoCreatePerMinute=6000"
            await client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=body)
            while (await client.send("B")).code != ResponseCode.SUCCESS:
                await asyncio.sleep(0.01)

    with caplog.at_level(logging.INFO):
        run(scene())
