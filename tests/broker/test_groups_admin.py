"""Groups as tools see them: settings, connections, progress, resets of those that are connected."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tamis.broker.config import BrokerConfig, Settings
from tamis.broker.groups import Groups
from tamis.broker.handlers import groups as handlers
from tamis.broker.history import Recorder
from tamis.broker.members import Consumers, Member, Producers
from tamis.broker.offsets import Offsets
from tamis.broker.stats import Stats
from tamis.broker.topics import Topics
from tamis.errors import ResponseError
from tamis.net.aio import Peer, connect
from tamis.net.server import Answer, Request, Route, Server
from tamis.store.config import StoreConfig
from tamis.store.store import Store
from tamis.wire import beans, fastjson
from tamis.wire import command as commands
from tamis.wire.bodies import (
    BrokerConsumeStats,
    ConsumerConnection,
    ConsumerData,
    ConsumerStatus,
    ConsumeStats,
    CorrectionOffsets,
    GroupConfig,
    GroupTable,
    MessageQueue,
    OffsetTable,
    OffsetWrapper,
    ProducerConnection,
    ProducerTable,
    ResetOffsets,
    Subscription,
    TopicConfig,
)
from tamis.wire.codes import CommandFlag, Language, RequestCode
from tamis.wire.command import Command
from tamis.wire.headers import (
    CloneGroupOffset,
    CorrectOffset,
    DeleteGroup,
    GetBrokerConsumeStats,
    GetConsumerStatus,
    GetConsumeStats,
    OfConsumerGroup,
    OfGroup,
    OfProducerGroup,
    ResetOffset,
)
from tamis.wire.record import Draft

SMALL = StoreConfig(flush="async", log_file_size=65_536, index_slots=64, index_entries=256)
BROKER = "broker-a"


class Clock:
    def __init__(self) -> None:
        self.seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds


class Parts:
    """What handlers are given."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.store = Store(folder / "store", SMALL, now=self.clock)
        self.topics = Topics(folder, BrokerConfig(name=BROKER), self.clock, {})
        self.groups = Groups(folder, self.clock)
        self.offsets = Offsets(folder, self.store)
        self.consumers = Consumers()
        self.producers = Producers()
        settings = Settings(BrokerConfig(name=BROKER))
        self.recorder = Recorder(folder, settings, self.consumers, lambda *_: 0, self.clock)
        self.stats = Stats(now=self.clock)
        self.progress = handlers.Progress(
            BROKER, self.store, self.topics, self.consumers, self.offsets, self.stats
        )
        self.reset = partial(
            handlers.reset_offset,
            BROKER,
            self.store,
            self.topics,
            self.consumers,
            self.offsets,
            self.recorder,
        )
        self.topics.put(TopicConfig(name="T", read_queues=2, write_queues=2))

    def fill(self, times: list[int], queues: int = 2) -> None:
        for millis in times:
            self.clock.seconds = (millis + 0.5) / 1000
            self.store.append([Draft(topic="T", queue_id=i) for i in range(queues)])
        self.store.dispatch()

    def join(
        self, peer: Peer, client_id: str = "c", language: Language = Language.JAVA,
        version: int = 401, topic: str = "T",
    ) -> None:  # fmt: skip
        member = Member(peer, client_id, language, version, self.clock())
        one = Subscription(topic=topic, expression="*")
        self.consumers.heartbeat(ConsumerData(group="g", subscriptions=[one]), member)


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    made = Parts(tmp_path)
    yield made
    made.store.close()


def peer_of_nobody() -> Peer:
    return Peer(lambda peer, requests: None)


def asked(body: bytes = b"", fields: dict[str, str] | None = None) -> Request:
    return Request(peer_of_nobody(), Command(code=0, body=body, fields=fields))


def queue(queue_id: int, topic: str = "T") -> MessageQueue:
    return MessageQueue(topic, BROKER, queue_id)


# Settings.


def test_a_group_is_made_changed_told_and_deleted(parts: Parts) -> None:
    config = GroupConfig(name="g", retry_max_times=3)
    handlers.create_group(parts.groups, None, asked(beans.encode(config)))
    assert parts.groups["g"] == config
    body = handlers.one_group(parts.groups, OfGroup(group="g"), asked()).body
    assert beans.decode(GroupConfig, body) == config
    table = beans.decode(GroupTable, handlers.all_groups(parts.groups, None, asked()).body)
    assert (table.groups, table.version) == (dict(parts.groups), parts.groups.version)
    gone = DeleteGroup(group_name="g")
    handlers.delete_group(parts.groups, parts.offsets, parts.recorder, gone, asked())
    assert "g" not in parts.groups


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"groupName":" "}', b"\xff"])
def test_settings_that_can_not_be_read_are_refused_with_1(parts: Parts, body: bytes) -> None:
    before = dict(parts.groups)
    with pytest.raises(ResponseError) as refused:
        handlers.create_group(parts.groups, None, asked(body))
    assert refused.value.code == 1
    assert dict(parts.groups) == before


def test_an_unknown_group_is_26(parts: Parts) -> None:
    with pytest.raises(ResponseError) as refused:
        handlers.one_group(parts.groups, OfGroup(group="none"), asked())
    assert refused.value.code == 26


@pytest.mark.parametrize("name", ["remove_offset", "clean_offset", None])
def test_offsets_go_with_a_group_if_asked_for(parts: Parts, name: str | None) -> None:
    parts.offsets.commit("g", "T", 0, 5)
    parts.offsets.commit("gg", "T", 0, 5)
    header = DeleteGroup(group_name="g", **({name: True} if name else {}))
    handlers.delete_group(parts.groups, parts.offsets, parts.recorder, header, asked())
    assert parts.offsets.groups("T") == (["gg"] if name else ["g", "gg"])


# Who is connected.


def test_connections_of_a_group_are_told_as_apache_tells_them(parts: Parts) -> None:
    parts.join(peer_of_nobody(), "127.0.0.1@c")
    header = OfConsumerGroup(consumer_group="g")
    body = handlers.consumer_connections(parts.consumers, header, asked()).body
    found = beans.decode(ConsumerConnection, body)
    assert [(one.client_id, one.language, one.version) for one in found.connections] == [
        ("127.0.0.1@c", "JAVA", 401)
    ]
    assert list(found.subscriptions) == ["T"]
    # the fields of a recorded answer (errors.jsonl, 104)
    assert list(fastjson.loads(body)) == [
        *("connectionSet", "consumeFromWhere", "consumeType", "messageModel", "subscriptionTable")
    ]


def test_a_group_nobody_is_in_is_206(parts: Parts) -> None:
    with pytest.raises(ResponseError) as refused:
        handlers.consumer_connections(
            parts.consumers, OfConsumerGroup(consumer_group="nobody"), asked()
        )
    assert refused.value.code == 206
    assert refused.value.remark == "the consumer group[nobody] not online"


def test_producers_are_told_and_an_unknown_group_is_1(parts: Parts) -> None:
    parts.producers.heartbeat("p", Member(peer_of_nobody(), "c", Language.GO, 401, 5.25))
    header = OfProducerGroup(producer_group="p")
    body = handlers.producer_connections(parts.producers, header, asked()).body
    assert [one.client_id for one in beans.decode(ProducerConnection, body).connections] == ["c"]
    body = handlers.all_producers(
        parts.producers, None, asked(), now=lambda: 100.0, clock=lambda: 10.0
    ).body
    [one] = beans.decode(ProducerTable, body).producers["p"]
    assert (one.client_id, one.language, one.last_update_timestamp) == ("c", "GO", 95_250)
    with pytest.raises(ResponseError) as refused:
        handlers.producer_connections(parts.producers, OfProducerGroup(producer_group="x"), asked())
    assert (refused.value.code, refused.value.remark) == (1, "the producer group[x] not exist")


# Progress.


def stats_of(parts: Parts, topic: str | None = None, listed: str | None = None) -> ConsumeStats:
    header = GetConsumeStats(consumer_group="g", topic=topic)
    fields = {"topicList": listed} if listed is not None else None
    answer = handlers.consume_stats(parts.progress, header, asked(fields=fields))
    return beans.decode(ConsumeStats, answer.body)


def test_progress_is_told_of_every_queue_that_can_be_read(parts: Parts) -> None:
    parts.fill([1000, 2000, 3000])
    parts.offsets.commit("g", "T", 0, 2)
    found = stats_of(parts).queues
    assert (found[queue(0)].broker_offset, found[queue(0)].consumer_offset) == (3, 2)
    assert found[queue(0)].last_timestamp == 2000
    assert (found[queue(1)].broker_offset, found[queue(1)].consumer_offset) == (3, 0)
    assert found[queue(1)].last_timestamp == 0


def test_progress_is_of_topics_with_offsets_unless_one_is_named(parts: Parts) -> None:
    assert stats_of(parts).queues == {}
    assert set(stats_of(parts, "T").queues) == {queue(0), queue(1)}
    parts.topics.put(TopicConfig(name="U", read_queues=1, write_queues=1))
    assert set(stats_of(parts, listed="T;U;None;").queues) == {queue(0), queue(1), queue(0, "U")}
    parts.offsets.commit("g", "gone", 0, 2)
    assert stats_of(parts).queues == {}


def test_topics_a_group_online_has_left_are_not_told(parts: Parts) -> None:
    parts.offsets.commit("g", "T", 0, 2)
    parts.join(peer_of_nobody(), topic="U")
    assert stats_of(parts).queues == {}
    parts.join(peer_of_nobody(), topic="T")
    assert len(stats_of(parts).queues) == 2


def test_progress_comes_with_the_rate_of_the_last_minute(parts: Parts) -> None:
    parts.offsets.commit("g", "T", 0, 2)
    parts.stats.got("T", "g", 50, 0)
    parts.stats.tick(parts.clock())
    assert stats_of(parts).consume_tps == pytest.approx(5)


def test_progress_of_all_groups_sums_up_what_is_left(parts: Parts) -> None:
    parts.fill([1000, 2000, 3000])
    parts.groups.put(GroupConfig(name="g"))
    parts.groups.put(GroupConfig(name="h"))
    parts.offsets.commit("g", "T", 0, 2)
    parts.offsets.commit("h", "T", 1, 3)
    told = partial(handlers.all_consume_stats, parts.progress, parts.groups, lambda: "h:1")
    found = beans.decode(BrokerConsumeStats, told(GetBrokerConsumeStats(), asked()).body)
    assert (found.broker_addr, found.total_diff) == ("h:1", 4 + 3)
    by_group = {group: stats for one in found.stats for group, stats in one.items()}
    assert set(by_group) == set(parts.groups)
    assert len(by_group["g"]) == 1
    assert by_group["TOOLS_CONSUMER"] == []
    body = told(GetBrokerConsumeStats(is_order=True), asked()).body
    assert beans.decode(BrokerConsumeStats, body).total_diff == 0


def test_all_offsets_and_those_of_delay_levels_are_told(parts: Parts) -> None:
    parts.offsets.commit("g", "T", 1, 7)
    body = handlers.all_offsets(parts.offsets, None, asked()).body
    assert body == b'{"offsetTable":{"T@g":{1:7}}}'
    assert beans.decode(OffsetWrapper, body).offsets == {"T@g": {1: 7}}
    body = handlers.delay_offsets(lambda: {1: 5}, None, asked()).body
    assert beans.decode(OffsetTable, body).offsets == {1: 5}


def corrected(parts: Parts, compare: str, left_out: str | None = None) -> dict[int, int]:
    header = CorrectOffset(topic="T", compare_group=compare, filter_groups=left_out)
    body = handlers.correct_offsets(parts.store, parts.offsets, header, asked()).body
    return beans.decode(CorrectionOffsets, body).offsets


def test_the_least_offset_of_all_groups_is_told(parts: Parts) -> None:
    for group, offset in (("a", 5), ("b", 3), ("c", 1)):
        parts.offsets.commit(group, "T", 0, offset)
    assert corrected(parts, "a") == {0: 1}
    assert corrected(parts, "a", "c") == {0: 3}
    assert corrected(parts, "b", "c,b") == {0: 2**63 - 1}
    assert parts.offsets.get("c", "T", 0) == 1  # leaving it out does not forget it


def test_offsets_are_cloned_of_one_topic_or_of_all(parts: Parts) -> None:
    parts.topics.put(TopicConfig(name="U"))
    for topic in ("T", "U", "gone"):
        parts.offsets.commit("a", topic, 0, 5)
    clone = partial(
        handlers.clone_offsets, parts.topics, parts.consumers, parts.offsets, parts.recorder
    )
    clone(CloneGroupOffset(src_group="a", dest_group="b", topic="T"), asked())
    assert parts.offsets.topics("b") == ["T"]
    clone(CloneGroupOffset(src_group="a", dest_group="c"), asked())
    assert parts.offsets.topics("c") == ["T", "U"]
    clone(CloneGroupOffset(src_group="nobody", dest_group="c", topic="T"), asked())
    assert parts.offsets.get("c", "T", 0) == 5


def test_topics_the_source_has_left_are_cloned_only_offline(parts: Parts) -> None:
    parts.join(peer_of_nobody(), topic="U")
    parts.offsets.commit("g", "T", 0, 5)
    clone = partial(
        handlers.clone_offsets, parts.topics, parts.consumers, parts.offsets, parts.recorder
    )
    clone(CloneGroupOffset(src_group="g", dest_group="b", topic="T"), asked())
    assert parts.offsets.topics("b") == []
    clone(CloneGroupOffset(src_group="g", dest_group="b", topic="T", offline=True), asked())
    assert parts.offsets.topics("b") == ["T"]


# Resets: of groups that are connected.


def reset(timestamp: int, **more: object) -> ResetOffset:
    return ResetOffset(topic="T", group="g", timestamp=timestamp, **more)  # type: ignore[arg-type]


def refused(parts: Parts, header: ResetOffset) -> ResponseError:
    with pytest.raises(ResponseError) as found:
        parts.reset(header, asked())
    return found.value


def test_a_reset_of_what_is_not_there_is_refused(parts: Parts) -> None:
    error = refused(parts, ResetOffset(topic="None", group="g", timestamp=0))
    assert (error.code, "no topic in this broker" in error.remark) == (1, True)
    error = refused(parts, reset(0))
    assert (error.code, error.remark) == (1, "THe consumer group <g> not exist")
    parts.offsets.commit("g", "T", 0, 2)
    parts.offsets.commit("g", "T", 1, 2)
    error = refused(parts, reset(5))
    assert error.code == 206
    assert error.remark == (
        "Consumer not online, so can not reset offset, Group: g Topic: T Timestamp: 5"
    )


def test_a_reset_to_a_named_offset_needs_nobody_online(parts: Parts) -> None:
    parts.reset(reset(0, queue_id=1, offset=4), asked())
    assert parts.offsets.of("g", "T") == {1: 4}
    assert refused(parts, reset(0, queue_id=2, offset=4)).code == 1
    assert refused(parts, reset(0, queue_id=1, offset=-4)).code == 1


class Client:
    """A consumer at the other end: keeps what it is told, answers as it is set to."""

    def __init__(self) -> None:
        self.told: list[Command] = []
        self.answer: Command | None = None
        self.arrived = asyncio.Event()

    def take(self, peer: Peer, requests: list[Command]) -> None:
        self.told += requests
        self.arrived.set()
        for request in requests:
            if self.answer is not None:
                self.answer.opaque = request.opaque
                self.answer.flag = CommandFlag.RESPONSE
                peer.write(commands.encode(self.answer))

    async def next(self) -> Command:
        async with asyncio.timeout(5):
            await self.arrived.wait()
        return self.told[-1]


def with_clients(count: int, use: Callable[[list[Client], list[Peer]], Awaitable[None]]) -> None:
    """Runs `use` with that many clients, and the peers that they are to the server."""

    async def run() -> None:
        joined: list[Peer] = []

        def join(header: None, request: Request) -> Answer:
            joined.append(request.peer)
            return Answer()

        server = Server({1: Route(None, join)})
        port = await server.start("127.0.0.1", 0)
        clients = [Client() for _ in range(count)]
        peers = []
        for client in clients:
            peer = await connect(f"127.0.0.1:{port}", on_requests=client.take)
            peers.append(peer)
            await peer.ask(Command(code=1), 5)
        try:
            await use(clients, joined)
        finally:
            for peer in peers:
                peer.close()
            await server.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("timestamp", "force", "expected"),
    [
        (2000, False, {0: 1, 1: 0}),  # back to it; never forth
        (2000, True, {0: 1, 1: 1}),
        (-1, False, {0: 2, 1: 0}),
        (-1, True, {0: 3, 1: 3}),
        (0, False, {0: 0, 1: 0}),
    ],
)
def test_members_are_told_where_a_reset_leads(
    parts: Parts, timestamp: int, force: bool, expected: dict[int, int]
) -> None:
    parts.fill([1000, 2000, 3000])
    parts.offsets.commit("g", "T", 0, 2)
    parts.offsets.commit("g", "T", 1, 0)

    async def use(clients: list[Client], peers: list[Peer]) -> None:
        for number, peer in enumerate(peers):
            parts.join(peer, f"c{number}")
        answer = parts.reset(reset(timestamp, is_force=force), asked())
        wanted = {queue(i): offset for i, offset in expected.items()}
        assert beans.decode(ResetOffsets, answer.body).offsets == wanted
        for client in clients:
            told = await client.next()
            assert told.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET
            assert told.is_oneway
            assert told.fields == {
                "topic": "T", "group": "g", "timestamp": str(timestamp), "isForce": "false",
            }  # fmt: skip
            assert beans.decode(ResetOffsets, told.body).offsets == wanted

    with_clients(2, use)
    assert parts.offsets.of("g", "T") == {0: 2, 1: 0}  # the members move, not the broker


def test_a_cpp_member_is_told_in_a_list(parts: Parts) -> None:
    parts.offsets.commit("g", "T", 0, 2)
    parts.offsets.commit("g", "T", 1, 2)

    async def use(clients: list[Client], peers: list[Peer]) -> None:
        parts.join(peers[0], "java")
        parts.join(peers[1], "cpp", Language.CPP)
        parts.reset(reset(-1), asked())
        java, cpp = [await client.next() for client in clients]
        assert len(beans.decode(ResetOffsets, java.body).offsets) == 2
        assert fastjson.loads(cpp.body) == {
            "offsetTable": [
                {"brokerName": BROKER, "offset": 0, "queueId": 0, "topic": "T"},
                {"brokerName": BROKER, "offset": 0, "queueId": 1, "topic": "T"},
            ]
        }

    with_clients(2, use)


def test_members_too_old_for_a_reset_are_a_reason_to_refuse_it(parts: Parts) -> None:
    parts.offsets.commit("g", "T", 0, 2)
    parts.offsets.commit("g", "T", 1, 2)
    parts.join(peer_of_nobody(), version=27)
    error = refused(parts, reset(-1))
    assert (error.code, error.remark[:43]) == (1, "the client does not support this feature. v")


def status(parts: Parts, client: str | None = None) -> Awaitable[ConsumerStatus]:
    async def ask() -> ConsumerStatus:
        header = GetConsumerStatus(topic="T", group="g", client_addr=client)
        answer = await handlers.consumer_status(parts.consumers, header, asked())
        return beans.decode(ConsumerStatus, answer.body)

    return ask()


def test_members_are_asked_how_far_they_are(parts: Parts) -> None:
    async def use(clients: list[Client], peers: list[Peer]) -> None:
        for number, (client, peer) in enumerate(zip(clients, peers, strict=True)):
            parts.join(peer, f"c{number}")
            body = ConsumerStatus(by_client={}, queues={queue(0): number})
            client.answer = Command(code=0, body=beans.encode(body))
        found = await status(parts)
        assert found.by_client == {"c0": {queue(0): 0}, "c1": {queue(0): 1}}
        asked_for = await clients[0].next()
        assert asked_for.code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
        assert asked_for.fields == {"topic": "T", "group": "g"}
        assert set((await status(parts, "c1")).by_client) == {"c1"}
        clients[0].answer = Command(code=1, remark="no")
        assert set((await status(parts)).by_client) == {"c1"}

    with_clients(2, use)


def test_the_status_of_a_group_nobody_is_in_is_1(parts: Parts) -> None:
    with pytest.raises(ResponseError) as found:
        asyncio.run(status(parts))  # type: ignore[arg-type]
    assert found.value.code == 1
    assert found.value.remark == "No Any Consumer online in the consumer group: [g]"
