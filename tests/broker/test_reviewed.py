"""What reviews of the broker found, each as the test that failed."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from broker.running import Client, messages, run, running, until

from tamis.broker.broker import Broker
from tamis.broker.config import BrokerConfig
from tamis.errors import ConfigError
from tamis.nameserver.config import NameServerConfig
from tamis.nameserver.server import NameServer
from tamis.wire import command
from tamis.wire.bodies import Subscription
from tamis.wire.codes import RequestCode, ResponseCode
from tamis.wire.command import Command
from tamis.wire.frame import Encoding
from tamis.wire.record import batch_item

EVERYTHING = Subscription(topic="T", expression="*", version=1)
RETRY = "%RETRY%g"


def test_a_group_with_a_dot_in_its_name_gets_its_retries(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path, delay_levels="1s 1s") as (broker, client):
            await client.send("T", b"m")
            await client.heartbeat("my.group", EVERYTHING)
            await until(lambda: broker.store.find_queue("T", 0))
            (message,) = await client.all_of("T")
            assert (await client.send_back(message, "my.group", level=1)).code == 0
            await until(lambda: broker.store.find_queue("%RETRY%my.group", 0))
            assert [m.body for m in await client.all_of("%RETRY%my.group")] == [b"m"]

    run(scene())


@pytest.mark.parametrize("group", ["g" * 125, "a/b"])
def test_what_could_never_come_again_is_not_taken_back(tmp_path: Path, group: str) -> None:
    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            await client.send("T", b"m")
            await until(lambda: broker.store.find_queue("T", 0))
            (message,) = await client.all_of("T")
            answer = await client.send_back(message, group, level=1)
            assert (answer.code, "retry topic" in (answer.remark or "")) == (1, True)

    run(scene())


def test_a_batch_does_not_overtake_what_was_sent_before_it(tmp_path: Path) -> None:
    fields = {"a": "p", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"}

    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            await client.send("T", b"0")
            single = Command(code=310, opaque=101, fields=fields, body=b"1",
                             encoding=Encoding.ROCKETMQ)  # fmt: skip
            batch = Command(code=320, opaque=102, fields={**fields, "m": "true"},
                            body=batch_item(b"2"))  # fmt: skip
            client.peer.write(command.encode(single) + command.encode(batch))
            await until(lambda: (q := broker.store.find_queue("T", 0)) and q.max_offset == 3)
            assert [m.body for m in await client.all_of("T")] == [b"0", b"1", b"2"]

    run(scene())


def test_name_servers_that_differ_on_order_do_not_set_a_broker_spinning(tmp_path: Path) -> None:
    async def scene() -> None:
        servers = [NameServer(NameServerConfig(port=0)) for _ in range(2)]
        for number, server in enumerate(servers):
            await server.start()
            peer = (await Client.connect(server.address)).peer
            fields = {"namespace": "ORDER_TOPIC_CONFIG", "key": f"T{number}", "value": "b:1"}
            put = Command(code=RequestCode.PUT_KV_CONFIG, fields=fields)
            assert (await peer.ask(put, 5)).code == 0
            peer.close()
        addresses = ";".join(server.address for server in servers)
        async with running(tmp_path, nameservers=addresses) as (broker, client):
            await client.send("T0")
            await client.send("T1")
            await until(lambda: broker.topics["T0"].order and broker.topics["T1"].order)
            await asyncio.sleep(0.2)  # what has come to rest stays so
            counter = broker.topics.version.counter
            await asyncio.sleep(0.3)
            assert broker.topics.version.counter == counter
        for server in servers:
            await server.close()

    run(scene())


def test_retries_a_filter_drops_are_counted(tmp_path: Path) -> None:
    sql = Subscription(topic="T", expression="a > 5", expression_type="SQL92", version=1)
    retried = Subscription(topic=RETRY, expression="*", version=1)

    async def scene() -> None:
        settings: dict[str, Any] = {"filter_retries": True, "delay_levels": "1s 1s"}
        async with running(tmp_path, **settings) as (broker, client):
            await client.send("T", properties={"a": "1"})
            await client.send("T", properties={"a": "x"})
            await client.heartbeat("g", sql, retried)
            await until(lambda: (q := broker.store.find_queue("T", 0)) and q.max_offset == 2)
            for message in await client.all_of("T", group="other"):
                await client.send_back(message, "g", level=1)
            await until(lambda: (q := broker.store.find_queue(RETRY, 0)) and q.max_offset == 2)
            answer = await client.pull(RETRY, subscription=None, version=1)
            assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
            tally = broker.verdicts.tallies["g", RETRY]
            assert (tally.evaluated, tally.matched, tally.filtered, tally.failed) == (2, 0, 1, 1)

    run(scene())


def test_a_stop_answers_the_sends_it_has_stored(tmp_path: Path) -> None:
    async def scene() -> None:
        broker = Broker(BrokerConfig(port=0, flush="sync", log_file_size=2**20), tmp_path)
        await broker.start()
        client = await Client.connect(broker.address)
        await client.send("T")
        sends = [asyncio.ensure_future(client.send("T", b"%d" % n)) for n in range(50)]
        await asyncio.sleep(0)
        await until(lambda: broker.store.log.end > 3000)
        await broker.close()
        done = await asyncio.gather(*sends, return_exceptions=True)
        client.peer.close()
        acknowledged = sum(isinstance(one, Command) and one.code == 0 for one in done)
        async with running(tmp_path) as (again, _):
            queue = again.store.find_queue("T", 0)
            assert queue is not None
            assert (acknowledged, queue.max_offset) == (50, 51)

    run(scene())


@pytest.mark.parametrize("name", ["consumeType", "messageModel", "consumeFromWhere"])
def test_a_heartbeat_with_a_name_of_rocketmq_5_is_taken(tmp_path: Path, name: str) -> None:
    body = (
        b'{"clientID":"c","producerDataSet":[],"consumerDataSet":[{"groupName":"g",'
        b'"subscriptionDataSet":[],"%b":"SOMETHING_NEW"}]}' % name.encode()
    )

    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            assert (await client.ask(RequestCode.HEART_BEAT, body=body)).code == 0
            assert broker.consumers.groups["g"].client_ids == ["c"]

    run(scene())


def test_nothing_is_kept_of_groups_that_are_gone(tmp_path: Path) -> None:
    tags = Subscription(topic="T", expression="A", tags=["A"], version=1)
    bad = Subscription(topic="U", expression="a >", expression_type="SQL92", version=1)

    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            await client.send("T")
            for number in range(20):
                group = f"g{number}"
                await client.heartbeat(group, tags, bad)
                await client.pull("T", group=group, subscription=None, version=1)
            assert (len(broker.puller._tags), len(broker.filters._faults)) == (20, 20)
            client.peer.close()
            await until(lambda: not broker.consumers.groups)
            assert not broker.puller._tags
            assert not broker.filters._faults

    run(scene())


def test_pulls_of_a_connection_that_is_gone_are_let_go(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            await client.send("T")
            await until(lambda: broker.store.find_queue("T", 0))
            other = await Client.connect(broker.address)
            waiting = asyncio.ensure_future(other.pull("T", 1, suspend=30))
            await until(lambda: broker.holds.count == 1)
            other.peer.close()
            await until(lambda: broker.holds.count == 0)
            await asyncio.gather(waiting, return_exceptions=True)

    run(scene())


def test_a_long_dispatch_is_done_in_slices(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path, log_file_size=2**26) as (broker, client):
            fields = {"a": "p", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1",
                      "h": "0", "m": "true"}  # fmt: skip
            body = b"".join(batch_item(b"x", b"TAGS\x01a") for _ in range(40_000))
            broker.queueing._is_scheduled = True  # not yet
            await client.ask(RequestCode.SEND_BATCH_MESSAGE, fields, body)
            broker.store.dispatch(0.0)
            queue = broker.store.find_queue("T", 0)
            assert queue is not None
            assert 0 < queue.max_offset < 40_000
            broker.queueing._follow()
            await until(lambda: queue.max_offset == 40_000)
            pulled = await client.pull("T", 39_999)
            assert len(messages(pulled.body)) == 1

    run(scene())


@pytest.mark.parametrize(
    "settings",
    [
        {"keep_hours": -1.0},
        {"keep_hours": float("nan")},
        {"flush_interval": 0.0},
        {"send_backlog": 0},
        {"name": ""},
        {"name": "a b"},
        {"bind": ""},
        {"advertise": "not a host"},
        {"advertise": "example.org:10911"},
        {"advertise": "0.0.0.0"},
    ],
)
def test_settings_that_would_do_harm_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        BrokerConfig(**settings)


@pytest.mark.parametrize("host", ["", "example.org", "10.0.0.1", "::1", "fe80::1"])
def test_hosts_clients_may_know_are_taken(host: str) -> None:
    assert BrokerConfig(advertise=host).advertise == host


def test_a_refused_message_is_counted_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            await client.send("T")
            broker.store._is_full = True
            for _ in range(3):
                answer = await client.send("T")
                assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert broker.stats.failed == 3
            broker.store._is_full = False
            assert (await client.send("T", properties={"DELAY": "1"})).code == 0

    run(scene())
    said = [text for text in caplog.messages if "messages are refused" in text]
    assert len(said) == 1
