"""The name server through a socket."""

import asyncio
import base64
import json
import struct
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tamis.errors import ConfigError
from tamis.nameserver.config import NameServerConfig
from tamis.nameserver.server import NameServer
from tamis.net.aio import Peer, connect, parse_address
from tamis.wire import command as commands
from tamis.wire.codes import CommandFlag, RequestCode, ResponseCode
from tamis.wire.command import Command
from tamis.wire.frame import Encoding, FrameReader

FRAMES = Path(__file__).parents[1] / "golden" / "frames"
PATIENCE = 10.0  # seconds


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[NameServer]:
    now = settings.pop("now", time.monotonic)
    server = NameServer(NameServerConfig(port=0, **settings), now=now)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


@asynccontextmanager
async def asking(server: NameServer) -> AsyncIterator["Asker"]:
    asker = Asker(await connect(server.address))
    try:
        yield asker
    finally:
        asker.peer.close()


class Asker:
    def __init__(self, peer: Peer) -> None:
        self.peer = peer

    async def __call__(self, code: int, body: bytes = b"", **more: Any) -> Command:
        """`more` are header fields, save for the version and the encoding."""
        version = more.pop("version", 401)
        encoding = more.pop("encoding", Encoding.JSON)
        fields = {name: str(value) for name, value in more.items()}
        request = Command(code=code, fields=fields, body=body, version=version, encoding=encoding)
        return await self.peer.ask(request, PATIENCE)

    async def register(self, body: bytes | None = None, **more: Any) -> Command:
        return await self(
            RequestCode.REGISTER_BROKER,
            registration() if body is None else body,
            **{**BROKER, **more},
        )

    async def route(self, topic: str, **more: Any) -> Any:
        answer = await self(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic=topic, **more)
        return json.loads(answer.body) if answer.code == 0 else None


BROKER = {
    "brokerName": "broker-a",
    "brokerAddr": "127.0.0.1:10911",
    "clusterName": "DefaultCluster",
    "brokerId": "0",
    "haServerAddr": "127.0.0.1:10912",
}


def topic(name: str, queues: int = 4, perm: int = 6) -> dict[str, Any]:
    """As 5.3.3 has it, which is 4.9.4's and more."""
    counts = {"readQueueNums": queues, "writeQueueNums": queues}
    return {
        "topicName": name,
        "perm": perm,
        **counts,
        "topicFilterType": "SINGLE_TAG",
        "order": False,
        "topicSysFlag": 0,
        "attributes": {"+message.type": "NORMAL"},
    }


def registration(*topics: dict[str, Any], counter: int = 1, **more: Any) -> bytes:
    version = {"counter": counter, "timestamp": 1700000000000, "stateVersion": 0}
    table = {one["topicName"]: one for one in topics or (topic("T"),)}
    wrapper = {"dataVersion": version, "topicConfigTable": table, "mappingDataVersion": version}
    body = {"filterServerList": [], "topicConfigSerializeWrapper": wrapper, **more}
    return json.dumps(body, separators=(",", ":")).encode()


def packed(*topics: str) -> bytes:
    """As 5.3.3 packs it, with what it adds to 4.9.4's."""

    def part(text: str) -> bytes:
        return struct.pack(">i", len(text.encode())) + text.encode()

    parts = [part('{"counter":3,"stateVersion":0,"timestamp":5}'), struct.pack(">i", len(topics))]
    parts += [part(text) for text in topics]
    return zlib.compress(b"".join([*parts, part('["f:1"]'), struct.pack(">i", 0)]), 9)


async def eventually(what: str, look: Callable[[], Awaitable[Any]], wanted: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while (seen := await look()) != wanted:
        assert time.monotonic() < deadline, f"{what}: {seen!r}, not {wanted!r}"
        await asyncio.sleep(0.005)


def test_a_registered_topic_is_routed_to_its_broker() -> None:
    async def run() -> None:
        async with serving() as server, asking(server) as ask:
            answer = await ask.register(registration(topic("T"), topic("TBW102", 8, 7)))
            assert (answer.code, answer.fields, answer.body) == (0, {}, b"")
            assert await ask.route("TBW102") == {
                "brokerDatas": [
                    {
                        "brokerAddrs": {"0": "127.0.0.1:10911"},
                        "brokerName": "broker-a",
                        "cluster": "DefaultCluster",
                    }
                ],
                "filterServerTable": {},
                "queueDatas": [
                    {
                        "brokerName": "broker-a",
                        "perm": 7,
                        "topicSysFlag": 0,
                        "readQueueNums": 8,
                        "writeQueueNums": 8,
                    }
                ],
            }

    asyncio.run(run())


@pytest.mark.parametrize("name", ["json", "binary", "errors"])
def test_recorded_requests_are_answered_as_the_real_one_did(name: str) -> None:
    rows = [json.loads(line) for line in (FRAMES / f"{name}.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["peer"] == "nameserver"]
    answers = {row["request_seq"]: row for row in rows if row["to"] == "client"}
    pairs = [(row, answers[row["seq"]]) for row in rows if row["seq"] in answers]
    assert pairs

    async def run() -> None:
        async with serving() as server, asking(server) as ask:
            await ask.register(registration(topic("TBW102", 8, 7), topic("Orders")))
            host, port = parse_address(server.address)
            reader, writer = await asyncio.open_connection(host, port)
            for request, answer in pairs:
                wanted = base64.b64decode(answer["frame"])
                writer.write(base64.b64decode(request["frame"]))
                async with asyncio.timeout(PATIENCE):
                    assert await reader.readexactly(len(wanted)) == wanted
            writer.close()
            await writer.wait_closed()

    asyncio.run(run())


def test_an_unknown_request_is_answered_with_3() -> None:
    async def run() -> None:
        async with serving() as server, asking(server) as ask:
            for code in 9999, RequestCode.PULL_MESSAGE:
                answer = await ask(code)
                assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED

    asyncio.run(run())


@pytest.mark.parametrize(
    ("version", "more", "is_standard"),
    [
        (400, {}, False),
        (401, {}, True),
        (479, {}, True),
        (0, {"acceptStandardJsonOnly": "true"}, True),
        (0, {"acceptStandardJsonOnly": "false"}, False),
    ],
)
def test_route_keys_are_in_quotes_for_those_who_want_it(
    version: int, more: dict[str, str], is_standard: bool
) -> None:
    async def run() -> None:
        async with serving() as server, asking(server) as ask:
            await ask.register()
            route = await ask(
                RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T", version=version, **more
            )
            wanted = b'{"0":"127' if is_standard else b'{0:"127'
            assert wanted in route.body, route.body

    asyncio.run(run())


def test_cluster_info_has_bare_keys_for_everyone() -> None:
    async def run() -> None:
        async with serving() as server, asking(server) as ask:
            await ask.register()
            answer = await ask(RequestCode.GET_BROKER_CLUSTER_INFO, version=479)
            assert answer.body == (
                b'{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"127.0.0.1:10911"},'
                b'"brokerName":"broker-a","cluster":"DefaultCluster"}},'
                b'"clusterAddrTable":{"DefaultCluster":["broker-a"]}}'
            )

    asyncio.run(run())


def test_a_registration_with_the_wrong_checksum_is_refused() -> None:
    async def run() -> None:
        async with serving() as server, asking(server) as ask:
            body = registration()
            crc = zlib.crc32(body) & 0x7FFFFFFF
            answer = await ask.register(body, bodyCrc32=crc ^ 1)
            assert (answer.code, answer.remark) == (1, "crc32 not match")
            assert await ask.route("T") is None
            assert (await ask.register(body, bodyCrc32=crc)).code == 0
            assert await ask.route("T")

    asyncio.run(run())


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"\xff",
        b'{"topicConfigSerializeWrapper":[]}',
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":5}}}',
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"perm":"x"}}}}',
        b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"perm":[]}}}}',
        b'{"filterServerList":{}}',
    ],
)
@pytest.mark.parametrize("is_compressed", [False, True])
def test_a_registration_that_cant_be_read_is_refused(body: bytes, is_compressed: bool) -> None:
    async def run() -> None:
        async with serving() as server, asking(server) as ask:
            for data in body, body + b" " * 100_000:  # in the loop, and in a thread
                answer = await ask.register(data, compressed=str(is_compressed).lower())
                assert answer.code == ResponseCode.SYSTEM_ERROR
                assert "Failed to decode RegisterBrokerBody" in (answer.remark or "")
            assert server.table.cluster_info().brokers == {}

    asyncio.run(run())


@pytest.mark.parametrize("claim", ["true", "false"])  # 5.3.3 says false of all it sends
def test_a_compressed_registration_is_read_with_what_5_3_adds_to_it(claim: str) -> None:
    async def run() -> None:
        async with serving() as server, asking(server) as ask:
            body = packed("A 4 8 6 SINGLE_TAG", 'B 1 1 2 MULTI_TAG {"+message.type":"FIFO"}')
            assert (await ask.register(body, compressed=claim)).code == 0
            route = await ask.route("A")
            assert route["queueDatas"][0]["writeQueueNums"] == 8
            assert route["filterServerTable"] == {"127.0.0.1:10911": ["f:1"]}
            assert (await ask.route("B"))["queueDatas"][0]["perm"] == 2

    asyncio.run(run())


@pytest.mark.parametrize("body", [b"", b"{}"])
def test_a_registration_may_name_no_topics(body: bytes) -> None:
    async def run() -> None:
        async with serving() as server, asking(server) as ask:
            assert (await ask.register(body)).code == 0
            assert list(server.table.cluster_info().brokers) == ["broker-a"]
            assert server.table.topics() == []

    asyncio.run(run())


def test_a_broker_before_3_0_11_sends_its_topics_alone() -> None:
    async def run() -> None:
        async with serving() as server, asking(server) as ask:
            body = json.loads(registration())["topicConfigSerializeWrapper"]
            assert (await ask.register(json.dumps(body).encode(), version=36)).code == 0
            assert await ask.route("T")

    asyncio.run(run())


def test_a_field_that_is_missing_is_named() -> None:
    async def run() -> None:
        async with serving() as server, asking(server) as ask:
            answer = await ask(RequestCode.REGISTER_BROKER, brokerName="a")
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "brokerAddr" in (answer.remark or "")

    asyncio.run(run())


def test_fields_of_5_3_and_of_nobody_are_passed_over() -> None:
    async def run() -> None:
        async with serving() as server, asking(server) as ask:
            more = {"heartbeatTimeoutMillis": 10000, "enableActingMaster": "false", "nsd": "x"}
            assert (await ask.register(version=479, **more)).code == 0
            assert await ask.route("T", version=479)

    asyncio.run(run())


def test_a_one_way_registration_is_filed_and_not_answered() -> None:
    async def run() -> None:
        async with serving() as server, asking(server) as ask:
            ask.peer.tell(Command(code=103, fields=dict(BROKER), body=registration()))
            assert (await ask.route("T")) is not None, "answers come in order: it was filed first"

    asyncio.run(run())


def test_a_slave_is_told_of_its_master_and_a_broker_of_ordered_topics() -> None:
    async def run() -> None:
        async with serving() as server, asking(server) as ask:
            await ask.register()
            await ask(
                RequestCode.PUT_KV_CONFIG, namespace="ORDER_TOPIC_CONFIG", key="T", value="a:4"
            )
            answer = await ask.register(brokerId=1, brokerAddr="127.0.0.1:10921")
            assert answer.fields == {
                "masterAddr": "127.0.0.1:10911",
                "haServerAddr": "127.0.0.1:10912",
            }
            assert answer.body == b'{"table":{"T":"a:4"}}'

    asyncio.run(run())


def test_a_broker_that_unregisters_is_gone() -> None:
    async def run() -> None:
        async with serving() as server, asking(server) as ask:
            await ask.register()
            assert (await ask(RequestCode.UNREGISTER_BROKER, **BROKER)).code == 0
            answer = await ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T")
            assert answer.code == ResponseCode.TOPIC_NOT_EXIST
            assert answer.remark == (
                "No topic route info in name server for the topic: T\n"
                "See http://rocketmq.apache.org/docs/faq/ for further details."
            )

    asyncio.run(run())


def test_a_broker_is_gone_as_soon_as_its_connection_is() -> None:
    async def run() -> None:
        async with serving() as server, asking(server) as ask:
            async with asking(server) as broker:
                await broker.register()
                assert await ask.route("T")
            await eventually("the route", lambda: ask.route("T"), None)

    asyncio.run(run())


def test_a_broker_that_came_back_stays_when_its_old_connection_goes() -> None:
    async def run() -> None:
        async with serving() as server, asking(server) as broker, asking(server) as other:
            async with asking(server) as old:
                await old.register()
                await other.register(brokerName="broker-b", brokerAddr="127.0.0.1:1")
                await broker.register()
            async with asking(server) as old:  # a second one, closed after the first
                await old.register(brokerName="broker-c", brokerAddr="127.0.0.1:2")
            await eventually(
                "the brokers",
                lambda: _brokers(other),
                ["broker-a", "broker-b"],
            )

    asyncio.run(run())


async def _brokers(ask: Asker) -> list[str]:
    answer = await ask(RequestCode.GET_BROKER_CLUSTER_INFO)
    return sorted(json.loads(answer.body.replace(b"{0:", b'{"0":'))["brokerAddrTable"])


def test_a_silent_broker_is_dropped_and_its_connection_closed() -> None:
    async def run() -> None:
        clock = 1000.0
        async with (
            serving(now=lambda: clock, scan_seconds=0.005) as server,
            asking(server) as ask,
            asking(server) as silent,
            asking(server) as alive,
        ):
            await silent.register()
            await alive.register(brokerName="broker-b", brokerAddr="127.0.0.1:1")
            clock += 119
            await alive.register(brokerName="broker-b", brokerAddr="127.0.0.1:1")
            clock += 2
            await eventually("the brokers", lambda: _brokers(ask), ["broker-b"])

            async def is_closed() -> bool:
                return silent.peer.is_closed

            await eventually("the silent one's connection", is_closed, True)
            assert not alive.peer.is_closed

    asyncio.run(run())


def test_asking_for_the_data_version_keeps_a_broker_alive_if_it_is_the_same() -> None:
    async def run() -> None:
        clock = 0.0
        async with serving(now=lambda: clock) as server, asking(server) as ask:
            code = RequestCode.QUERY_DATA_VERSION
            same = b'{"counter":1,"timestamp":1700000000000}'
            answer = await ask(code, same, **BROKER)
            assert (answer.fields, answer.body) == ({"changed": "true"}, b"")
            await ask.register()
            clock = 100.0
            answer = await ask(code, same.replace(b":1,", b":2,"), **BROKER)
            assert (answer.fields, answer.body) == ({"changed": "true"}, same)
            assert server.table.drop_silent(now=121, seconds=121) == []
            answer = await ask(code, b'{"stateVersion":0,' + same[1:], **BROKER)
            assert (answer.fields, answer.body) == ({"changed": "false"}, same)
            assert server.table.drop_silent(now=220, seconds=120) == []
            assert len(server.table.drop_silent(now=221, seconds=120)) == 1
            for wrong in b"", b"x", b"[]":
                assert (await ask(code, wrong, **BROKER)).code == ResponseCode.SYSTEM_ERROR

    asyncio.run(run())


def test_a_long_registration_is_filed_before_what_follows_it() -> None:
    async def run() -> None:
        async with serving() as server, asking(server) as ask:
            many = [topic(f"T{number}") for number in range(3000)]
            long = registration(*many, counter=1)
            short = registration(topic("T5", queues=16), counter=2)
            leave = Command(code=RequestCode.UNREGISTER_BROKER, fields=dict(BROKER))
            told = [
                Command(code=RequestCode.REGISTER_BROKER, fields=dict(BROKER), body=body)
                for body in (long, short)
            ]
            host, port = parse_address(server.address)
            reader, writer = await asyncio.open_connection(host, port)
            asked = (*told, leave, *told)
            data = [commands.encode(replace(one, opaque=i)) for i, one in enumerate(asked)]
            writer.write(b"".join(data))
            frames, found = FrameReader(), list[Command]()
            async with asyncio.timeout(PATIENCE):
                while len(found) < len(asked):
                    found += map(commands.decode, frames.feed(await reader.read(65_536)))
            assert [(one.opaque, one.code) for one in found] == [(i, 0) for i in range(5)]
            assert (await ask.route("T5"))["queueDatas"][0]["readQueueNums"] == 16
            assert len(server.table.topics()) == 3000
            writer.close()
            await writer.wait_closed()

    asyncio.run(run())


def test_a_broker_that_hangs_up_while_it_is_read_is_not_kept(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")

    async def run() -> None:
        async with serving() as server, asking(server) as ask:
            long = registration(*(topic(f"T{number}") for number in range(20_000)))
            for number in range(3):
                who = {**BROKER, "brokerName": f"b{number}", "brokerAddr": f"127.0.0.1:{number}"}
                async with asking(server) as broker:
                    broker.peer.tell(Command(code=103, fields=who, body=long))

            async def gone() -> int:
                return caplog.text.count("gone: broker 0 of b")

            await eventually("the registrations that ended", gone, 3)
            assert await ask.route("T5") is None

    asyncio.run(run())


def test_others_are_answered_while_a_long_registration_is_read() -> None:
    async def run() -> None:
        async with serving() as server, asking(server) as ask, asking(server) as broker:
            await ask.register()
            long = registration(*(topic(f"T{number}") for number in range(20_000)))
            more = {"brokerName": "broker-b", "brokerAddr": "127.0.0.1:1"}
            reading = asyncio.create_task(broker.register(long, **more))
            answered = 0
            while not reading.done():
                assert await ask.route("T")
                answered += 1
            assert (await reading).code == 0
            assert answered > 1
            assert await ask.route("T19999")

    asyncio.run(run())


def test_topic_lists_are_answered() -> None:
    async def run() -> None:
        async with serving() as server, asking(server) as ask:
            unit = {**topic("Unit"), "topicSysFlag": 1}
            sub = {**topic("Sub"), "topicSysFlag": 2}
            both = {**topic("Both"), "topicSysFlag": 3}
            await ask.register(registration(topic("T/é"), unit, sub, both))

            async def topics(code: int, **more: Any) -> Any:
                return json.loads((await ask(code, **more)).body)

            every = {"topicList": ["T/é", "Unit", "Sub", "Both"]}
            assert await topics(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) == every
            by_cluster = RequestCode.GET_TOPICS_BY_CLUSTER
            assert await topics(by_cluster, cluster="DefaultCluster") == every
            assert await topics(by_cluster, cluster="x") == {"topicList": []}
            assert await topics(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS) == {
                "brokerAddr": "127.0.0.1:10911",
                "topicList": ["DefaultCluster", "broker-a"],
            }
            units = await topics(RequestCode.GET_UNIT_TOPIC_LIST)
            assert units == {"topicList": ["Unit", "Both"]}
            subs = await topics(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST)
            assert subs == {"topicList": ["Sub", "Both"]}
            only = await topics(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST)
            assert only == {"topicList": ["Sub"]}

    asyncio.run(run())


def test_tools_wipe_and_add_write_permission_and_delete_topics() -> None:
    async def run() -> None:
        async with serving() as server, asking(server) as ask:
            await ask.register(registration(topic("T"), topic("U")))
            answer = await ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName="broker-a")
            assert answer.fields == {"wipeTopicCount": "2"}
            assert (await ask.route("T"))["queueDatas"][0]["perm"] == 4
            answer = await ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, brokerName="broker-a")
            assert answer.fields == {"addTopicCount": "2"}
            assert (await ask.route("T"))["queueDatas"][0]["perm"] == 6
            await ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="T", clusterName="other")
            assert await ask.route("T")
            await ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="T", clusterName="")
            assert await ask.route("T") is None
            assert await ask.route("U")

    asyncio.run(run())


def test_keys_and_values_are_put_found_and_deleted() -> None:
    async def run() -> None:
        async with serving() as server, asking(server) as ask:
            where = {"namespace": "n", "key": "k"}
            missing = await ask(RequestCode.GET_KV_CONFIG, **where)
            assert missing.code == ResponseCode.QUERY_NOT_FOUND
            assert missing.remark == "No config item, Namespace: n Key: k"
            none = await ask(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="n")
            assert none.code == ResponseCode.QUERY_NOT_FOUND
            assert none.remark == "No config item, Namespace: n"
            assert (await ask(RequestCode.DELETE_KV_CONFIG, **where)).code == 0
            assert (await ask(RequestCode.PUT_KV_CONFIG, **where, value="v=1")).code == 0
            assert (await ask(RequestCode.GET_KV_CONFIG, **where)).fields == {"value": "v=1"}
            listed = await ask(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="n")
            assert listed.body == b'{"table":{"k":"v=1"}}'
            assert (await ask(RequestCode.DELETE_KV_CONFIG, **where)).code == 0
            listed = await ask(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="n")
            assert (listed.code, listed.body) == (0, b'{"table":{}}')
            incomplete = await ask(RequestCode.PUT_KV_CONFIG, namespace="n", value="v")
            assert incomplete.code == ResponseCode.SYSTEM_ERROR

    asyncio.run(run())


def test_the_order_of_a_topic_is_in_its_route_when_switched_on() -> None:
    async def run() -> None:
        async with serving() as server, asking(server) as ask:
            await ask.register()
            where = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T"}
            await ask(RequestCode.PUT_KV_CONFIG, **where, value="broker-a:4")
            assert "orderTopicConf" not in await ask.route("T")
            await ask(RequestCode.UPDATE_NAMESRV_CONFIG, b"orderMessageEnable=true\n")
            assert (await ask.route("T"))["orderTopicConf"] == "broker-a:4"
            await ask(RequestCode.DELETE_KV_CONFIG, **where)
            assert "orderTopicConf" not in await ask.route("T")

    asyncio.run(run())


def test_settings_are_shown_and_changed_by_rocketmqs_names() -> None:
    async def run() -> None:
        async with serving() as server, asking(server) as ask:
            shown = (await ask(RequestCode.GET_NAMESRV_CONFIG)).body.decode()
            assert "orderMessageEnable=false\n" in shown
            assert f"listenPort={server.port}\n" in shown
            update = RequestCode.UPDATE_NAMESRV_CONFIG
            assert (await ask(update, shown.encode())).code == 0, "no change"
            assert (await ask(update, b"noSuchName=1\norderMessageEnable=true\n")).code == 0
            assert (await ask(update)).code == 0
            shown = (await ask(RequestCode.GET_NAMESRV_CONFIG)).body.decode()
            assert "orderMessageEnable=true\n" in shown
            fixed = await ask(update, b"listenPort=1\nbindAddress=x\norderMessageEnable=false")
            assert fixed.code == ResponseCode.NO_PERMISSION
            assert (fixed.remark or "").startswith("bindAddress, listenPort: ")
            assert (await ask(update, b"\xff=1")).code == ResponseCode.SYSTEM_ERROR
            shown = (await ask(RequestCode.GET_NAMESRV_CONFIG)).body.decode()
            assert "orderMessageEnable=true\n" in shown

    asyncio.run(run())


def test_a_binary_request_is_answered_in_kind() -> None:
    async def run() -> None:
        async with serving() as server, asking(server) as ask:
            assert (await ask.register(encoding=Encoding.ROCKETMQ)).encoding is Encoding.ROCKETMQ
            assert await ask.route("T", encoding=Encoding.ROCKETMQ)

    asyncio.run(run())


def test_requests_in_one_piece_are_answered_in_order() -> None:
    async def run() -> None:
        async with serving() as server:
            host, port = parse_address(server.address)
            reader, writer = await asyncio.open_connection(host, port)
            route = Command(code=105, opaque=1, fields={"topic": "T"})
            register = Command(code=103, opaque=2, fields=dict(BROKER), body=registration())
            quiet = Command(code=105, opaque=9, flag=CommandFlag.ONEWAY, fields={"topic": "T"})
            again = Command(code=105, opaque=3, fields={"topic": "T"})
            asked = route, register, quiet, again
            writer.write(b"".join(commands.encode(one) for one in asked))
            frames, found = FrameReader(), list[Command]()
            async with asyncio.timeout(PATIENCE):
                while len(found) < 3:
                    found += map(commands.decode, frames.feed(await reader.read(65_536)))
            assert [(one.opaque, one.code) for one in found] == [(1, 17), (2, 0), (3, 0)]
            writer.close()
            await writer.wait_closed()

    asyncio.run(run())


def test_a_name_server_closes_with_brokers_and_clients_connected() -> None:
    async def run() -> None:
        async with serving() as server, asking(server) as ask:
            await ask.register()
            await server.close()

            async def is_closed() -> bool:
                return ask.peer.is_closed

            await eventually("the connection", is_closed, True)
            with pytest.raises(OSError):
                await connect(server.address)

    asyncio.run(run())


@pytest.mark.parametrize(
    "settings",
    [
        {"bind": ""},
        {"port": -1},
        {"port": 65_536},
        {"data": "here"},
        {"silent_seconds": 0},
        {"silent_seconds": float("nan")},
        {"scan_seconds": -1},
        {"scan_seconds": float("inf")},
        {"most_connections": 0},
    ],
)
def test_a_setting_out_of_its_range_is_refused_by_name(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        NameServerConfig(**settings)
