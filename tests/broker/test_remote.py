"""Questions that reach a consumer through the broker: over connections, all on loopback."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tamis.broker.handlers import remote
from tamis.broker.members import Consumers, Member
from tamis.net.aio import Peer, connect
from tamis.net.server import Answer, Request, Route, Server
from tamis.store.config import StoreConfig
from tamis.store.store import Store
from tamis.wire import command as commands
from tamis.wire.bodies import ConsumerData
from tamis.wire.codes import CommandFlag, Language, RequestCode
from tamis.wire.command import Command
from tamis.wire.headers import ConsumeDirectly, GetRunningInfo
from tamis.wire.record import Draft

SMALL = StoreConfig(flush="async", log_file_size=65_536, index_slots=64, index_entries=256)


class Consumer:
    """At the other end: answers what it is asked, if it is set to."""

    def __init__(self) -> None:
        self.asked: list[Command] = []
        self.answer: Command | None = Command(code=0, body=b"told")
        self.hangs_up = False

    def take(self, peer: Peer, requests: list[Command]) -> None:
        for request in requests:
            self.asked.append(request)
            if self.hangs_up:
                peer.close()
            elif self.answer is not None:
                self.answer.opaque, self.answer.flag = request.opaque, CommandFlag.RESPONSE
                peer.write(commands.encode(self.answer))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "store", SMALL) as opened:
        opened.append([Draft(topic="T", body=b"zero"), Draft(topic="T", body=b"one")])
        opened.dispatch()
        yield opened


Use = Callable[[Peer, Consumer, Consumers], Awaitable[None]]


def run(store: Store, use: Use, version: int = 401) -> None:
    """Runs `use` with a tool's connection to a broker, and the consumer `c` of `g` at it."""

    async def all_of_it() -> None:
        consumers = Consumers()

        def join(header: None, request: Request) -> Answer:
            member = Member(request.peer, "c", Language.JAVA, version, 0.0)
            consumers.heartbeat(ConsumerData(group="g", subscriptions=[]), member)
            return Answer()

        directly = partial(remote.consume_directly, "broker-a", consumers, store)
        server = Server(
            {
                1: Route(None, join),
                307: Route(GetRunningInfo, partial(remote.running_info, consumers)),
                309: Route(ConsumeDirectly, directly),
            },
            on_close=consumers.drop,
        )
        port = await server.start("127.0.0.1", 0)
        consumer = Consumer()
        one = await connect(f"127.0.0.1:{port}", on_requests=consumer.take)
        await one.ask(Command(code=1), 5)
        tool = await connect(f"127.0.0.1:{port}")
        try:
            await use(tool, consumer, consumers)
        finally:
            one.close()
            tool.close()
            await server.close()

    asyncio.run(all_of_it())


def running_info(client: str = "c", group: str = "g") -> Command:
    fields = {"consumerGroup": group, "clientId": client, "jstackEnable": "true"}
    return Command(code=RequestCode.GET_CONSUMER_RUNNING_INFO, fields=fields)


def directly(message_id: str) -> Command:
    fields = {"consumerGroup": "g", "clientId": "c", "msgId": message_id}
    return Command(code=RequestCode.CONSUME_MESSAGE_DIRECTLY, fields=fields)


def test_running_info_comes_from_the_consumer(store: Store) -> None:
    async def use(tool: Peer, consumer: Consumer, consumers: Consumers) -> None:
        answer = await tool.ask(running_info(), 5)
        assert (answer.code, answer.body) == (0, b"told")
        [asked] = consumer.asked
        assert asked.code == RequestCode.GET_CONSUMER_RUNNING_INFO
        assert asked.fields == running_info().fields
        assert not asked.is_oneway

    run(store, use)


def test_what_the_consumer_refuses_is_refused(store: Store) -> None:
    async def use(tool: Peer, consumer: Consumer, consumers: Consumers) -> None:
        consumer.answer = Command(
            code=1, remark="The Consumer Group <g> not exist in this consumer"
        )
        answer = await tool.ask(running_info(), 5)
        assert (answer.code, answer.remark) == (1, consumer.answer.remark)

    run(store, use)


@pytest.mark.parametrize(("client", "group"), [("d", "g"), ("c", "h")])
def test_a_consumer_that_is_not_there_is_1(store: Store, client: str, group: str) -> None:
    async def use(tool: Peer, consumer: Consumer, consumers: Consumers) -> None:
        answer = await tool.ask(running_info(client, group), 5)
        assert answer.code == 1
        assert answer.remark == f"The Consumer <{group}> <{client}> not online"

    run(store, use)


def test_a_consumer_that_is_too_old_is_1(store: Store) -> None:
    async def use(tool: Peer, consumer: Consumer, consumers: Consumers) -> None:
        answer = await tool.ask(running_info(), 5)
        assert answer.code == 1
        assert "too low to finish, please upgrade it to V3_1_8_SNAPSHOT" in (answer.remark or "")
        assert consumer.asked == []

    run(store, use, version=61)


def test_a_consumer_that_does_not_answer_is_207(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "_SECONDS", 0.05)

    async def use(tool: Peer, consumer: Consumer, consumers: Consumers) -> None:
        consumer.answer = None
        answer = await tool.ask(running_info(), 5)
        assert answer.code == 207
        assert (answer.remark or "").startswith("consumer <g> <c> Timeout")

    run(store, use)


def test_a_consumer_that_hangs_up_is_1(store: Store) -> None:
    async def use(tool: Peer, consumer: Consumer, consumers: Consumers) -> None:
        consumer.hangs_up = True
        answer = await tool.ask(running_info(), 5)
        assert answer.code == 1
        assert (answer.remark or "").startswith("invoke consumer <g> <c> Exception")
        assert consumers.groups == {}

    run(store, use)


def test_a_message_is_consumed_directly_by_its_id(store: Store) -> None:
    place = int(store.queues["T", 0].units(1, 1)["offset"][0])
    message = store.message(place)

    async def use(tool: Peer, consumer: Consumer, consumers: Consumers) -> None:
        answer = await tool.ask(directly(message.message_id), 5)
        assert (answer.code, answer.body) == (0, b"told")
        [asked] = consumer.asked
        assert asked.body == store.log.record(place, message.size).tobytes()
        assert asked.fields == {
            "consumerGroup": "g",
            "clientId": "c",
            "msgId": message.message_id,
            "brokerName": "broker-a",
        }

    run(store, use)


@pytest.mark.parametrize(
    ("message_id", "why"),
    [
        ("7F00000100002A9F00000000000BC614", "can not find message by the offset, 771604"),
        ("7F00000100002A9FFFFFFFFFFFFFFFFF", "can not find message by the offset, -1"),
        ("7F0000010000", "is not an offset message id"),
        ("x" * 32, "is not an offset message id"),
        ("", "is not an offset message id"),
    ],
)
def test_an_id_of_no_message_is_1(store: Store, message_id: str, why: str) -> None:
    async def use(tool: Peer, consumer: Consumer, consumers: Consumers) -> None:
        answer = await tool.ask(directly(message_id), 5)
        assert answer.code == 1
        assert why in (answer.remark or "")
        assert consumer.asked == []

    run(store, use)
