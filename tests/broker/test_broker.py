"""A broker as a whole: starting, stopping, what outlives that, and what it says when it can't."""

import asyncio
import socket
from pathlib import Path

import pytest
from broker.running import Client, run, running, until

from tamis.broker import warmup
from tamis.broker.broker import Broker
from tamis.broker.config import BrokerConfig
from tamis.errors import ConfigError, StoreError
from tamis.nameserver.config import NameServerConfig
from tamis.nameserver.server import NameServer
from tamis.net.server import Server
from tamis.wire import beans
from tamis.wire.bodies import ConsumerIds, Subscription, TopicConfig
from tamis.wire.codes import RequestCode, ResponseCode


def route_fields(topic: str) -> dict[str, str]:
    return {"topic": topic}


def test_offsets_groups_topics_and_filters_outlive_a_restart(tmp_path: Path) -> None:
    sql = Subscription(topic="T", expression="a > 1", expression_type="SQL92", version=7)

    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            for value in range(4):
                await client.send("T", b"%d" % value, properties={"a": str(value)})
            await until(lambda: (q := broker.store.find_queue("T", 0)) and q.max_offset == 4)
            await client.heartbeat("g", sql)
            commit = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "3"}
            await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commit)
        async with running(tmp_path) as (broker, client):
            assert broker.offsets.get("g", "T", 0) == 3
            assert "g" in broker.groups
            assert "%RETRY%g" in broker.topics
            assert broker.filters.sql("T", "g") is not None  # compiled before anyone said it
            await client.heartbeat("g", sql)
            found = await client.all_of("T", subscription=None, kind="SQL92", version=7)
            assert [m.body for m in found] == [b"2", b"3"]

    run(scene())


def test_a_topic_whose_making_was_not_saved_is_not_lost_with_a_crash(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            await client.send("T", queue_id=2)
            await until(lambda: broker.store.find_queue("T", 2))
        (tmp_path / "config" / "topics.json").unlink()
        (tmp_path / "config" / "topics.json.bak").unlink(missing_ok=True)
        async with running(tmp_path) as (broker, _):
            assert broker.topics["T"].read_queues == 3

    run(scene())


def test_a_deleted_topic_stays_deleted(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            await client.send("T")
            await until(lambda: broker.store.find_queue("T", 0))
            await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        async with running(tmp_path) as (broker, client):
            assert "T" not in broker.topics
            assert (await client.pull("T")).code == ResponseCode.TOPIC_NOT_EXIST
            await client.send("T")  # made anew
        async with running(tmp_path) as (broker, _):
            assert "T" in broker.topics

    run(scene())


def test_a_port_that_is_taken_is_said_and_nothing_is_left_behind(tmp_path: Path) -> None:
    async def scene() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            with pytest.raises(OSError):
                await Broker(BrokerConfig(port=port), tmp_path).start()
        async with running(tmp_path):
            pass

    run(scene())


def test_a_store_in_use_is_refused(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path):
            with pytest.raises(StoreError, match="open already"):
                await Broker(BrokerConfig(port=0), tmp_path).start()

    run(scene())


def test_a_name_server_address_that_is_none_is_refused(tmp_path: Path) -> None:
    async def scene() -> None:
        config = BrokerConfig(port=0, nameservers="127.0.0.1")
        with pytest.raises(ConfigError, match=r"'127\.0\.0\.1' is not an address"):
            await Broker(config, tmp_path).start()
        async with running(tmp_path):  # let go of
            pass

    run(scene())


def test_members_are_listed_told_of_each_other_and_gone_with_their_connection(
    tmp_path: Path,
) -> None:
    everything = Subscription(topic="T", expression="*", version=1)

    async def scene() -> None:
        async with running(tmp_path) as (broker, one):
            await one.heartbeat("g", everything, client_id="c1")
            two = await Client.connect(broker.address)
            await two.heartbeat("g", everything, client_id="c2")
            notice = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
            await until(lambda: [c.code for c in one.told] == [notice, notice])
            listed = await one.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g"})
            assert beans.decode(ConsumerIds, listed.body).ids == ["c1", "c2"]
            two.peer.close()
            await until(lambda: len(one.told) == 3)
            assert broker.consumers.groups["g"].client_ids == ["c1"]
            left = {"clientID": "c1", "consumerGroup": "g"}
            await one.ask(RequestCode.UNREGISTER_CLIENT, left)
            answer = await one.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g"})
            assert answer.code == ResponseCode.SYSTEM_ERROR

    run(scene())


def test_a_group_with_an_at_sign_in_its_name_is_refused(tmp_path: Path) -> None:
    """It would not be found again in the table of offsets, which files them as topic@group."""

    async def scene() -> None:
        async with running(tmp_path) as (_, client):
            await client.send("T")
            answer = await client.heartbeat("a@b")
            assert (answer.code, "@" in (answer.remark or "")) == (1, True)
            pulled = await client.pull("T", group="a@b")
            assert pulled.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST

    run(scene())


def test_every_name_server_knows_the_broker_and_one_that_comes_late_too(tmp_path: Path) -> None:
    async def scene() -> None:
        first = NameServer(NameServerConfig(port=0))
        await first.start()
        late = NameServer(NameServerConfig(port=0))
        await late.start()  # to have a port
        port = late.port
        await late.close()
        addresses = f"{first.address};127.0.0.1:{port}"
        async with running(tmp_path, nameservers=addresses) as (broker, client):
            assert first.table.route("TBW102") is not None
            late = NameServer(NameServerConfig(port=port))
            await late.start()
            await until(lambda: late.table.route("TBW102"), seconds=15)
            broker.topics.put(TopicConfig(name="New"))
            for server in (first, late):
                await until(lambda server=server: server.table.route("New"))
            assert (await client.send("Sent")).code == 0
            await until(lambda: first.table.route("Sent"))
        assert first.table.route("TBW102") is None  # it took its leave
        await first.close()
        await late.close()

    run(scene())


def test_nothing_is_left_running_after_a_stop(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path) as (_, client):
            await client.send("T")
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert not others

    run(scene())


def test_what_warms_up_can_not_be_reached_by_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took the port of a broker that was being started again, and lost what it was sent."""
    bound: list[int] = []
    bind = Server.bind

    async def noted(self: Server, host: str, port: int) -> int:
        bound.append(await bind(self, host, port))
        return bound[-1]

    monkeypatch.setattr(Server, "bind", noted)
    monkeypatch.setattr(warmup, "_begun", False)

    async def scenario() -> None:
        async with running(tmp_path) as (broker, _):
            assert bound == [broker.port, broker.port - 2]

    run(scenario())
