"""What reviews of the producer and of `tamis send` found: brokers that hang or are gone, sends that
never ended, order, and lines that ended the command.
"""

import asyncio
import contextlib
import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Self

import pytest
from broker.asking import ask, close, command
from client.targets import Cluster, in_loop, texts

from tamis.client import Message, MessageQueue, Producer, ProducerConfig, ReceivedMessage
from tamis.errors import ClientClosed, Error, InvalidMessage, SendFailed
from tamis.net.aio import connect
from tamis.testing import LocalNameServer
from tamis.wire import beans
from tamis.wire.bodies import Registration, TopicConfig, TopicTable
from tamis.wire.headers import RegisterBroker

PATIENCE = 20.0  # seconds


# Brokers that are not well


class Between:
    """A way to a server that can be cut, or swallow or hold what it is given."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self._swallowed: set[int] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.address = ""
        self.connections = 0
        self.pieces = 0  # what clients wrote at once
        self.bytes = 0  # of clients, that got through

    async def __aenter__(self) -> Self:
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        listening.bind(("127.0.0.1", 0))
        self._server = await asyncio.start_server(self._serve, sock=listening)
        self.address = f"127.0.0.1:{listening.getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """For good."""
        assert self._server is not None
        self._server.close()
        self._flows.set()
        for writer in self._writers:
            writer.transport.abort()

    def swallow(self) -> None:
        """What goes through the connections there are now. New ones are well."""
        self._swallowed.update(range(self.connections))

    def hold(self) -> None:
        """Nothing of clients is read, until `release`."""
        self._flows.clear()

    def release(self) -> None:
        self._flows.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number, self.connections = self.connections, self.connections + 1
        self._tasks.add(asyncio.current_task())  # type: ignore[arg-type]
        host, _, port = self._target.partition(":")
        back, forth = await asyncio.open_connection(host, int(port))
        self._writers += writer, forth
        async with asyncio.TaskGroup() as group:
            group.create_task(self._forth(number, reader, forth))
            group.create_task(self._back(number, back, writer))

    async def _forth(
        self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                await self._flows.wait()
                data = await reader.read(65536)
                await self._flows.wait()
                self.pieces += 1
                self.bytes += len(data)
                if not data:
                    break
                if number not in self._swallowed:
                    writer.write(data)
                    await writer.drain()
        writer.close()

    async def _back(
        self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                if number not in self._swallowed:
                    writer.write(data)
                    await writer.drain()
        writer.close()


@asynccontextmanager
async def naming(topic: str, **brokers: str) -> AsyncIterator[str]:
    """A name server that knows these brokers, each with a queue of the topic."""
    async with LocalNameServer() as server, contextlib.AsyncExitStack() as stack:
        for name, address in brokers.items():
            await stack.enter_async_context(known(server.nameserver, name, address, topic))
        yield server.nameserver


@asynccontextmanager
async def known(nameserver: str, broker: str, address: str, topic: str) -> AsyncIterator[None]:
    header = RegisterBroker(
        broker_name=broker,
        broker_addr=address,
        cluster_name="DefaultCluster",
        broker_id=0,
        ha_server_addr=address,
    )
    table = TopicTable(topics={topic: TopicConfig(name=topic, read_queues=1, write_queues=1)})
    body = beans.encode(Registration(table=table, filter_servers=[]))
    peer = await connect(nameserver)
    await ask(peer, command(header, body=body))
    yield
    await close(peer)


@contextmanager
def gone() -> Iterator[str]:
    """Who connects hears nothing, not even that nobody is there."""
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(listening.getsockname())
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@contextmanager
def dumb() -> Iterator[str]:
    """Accepts connections and never says a word."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@in_loop
async def test_a_broker_whose_machine_is_gone_costs_no_message(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders")
    with gone() as address:
        async with naming(topic, a=cluster.broker, b=address) as names:
            config = ProducerConfig(timeout=1.0)  # less than for a connection
            async with Producer(names, config=config) as producer:
                for _ in range(6):
                    result = await producer.send(Message(topic, b"x"))
                    assert result.queue.broker_name == "a"


@in_loop
async def test_a_message_to_a_broker_that_is_well_waits_for_no_other(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders")
    with gone() as address:
        async with naming(topic, a=cluster.broker, b=address) as names:
            config = ProducerConfig(timeout=0.5, connect_timeout=0.5)
            async with Producer(names, config=config) as producer:
                await producer.queues(topic)
                message = Message(topic, b"x")
                lost = producer.submit(message, queue=MessageQueue(topic, "b", 0))
                await producer.send(message, queue=MessageQueue(topic, "a", 0))
                with pytest.raises(SendFailed):
                    await lost


@in_loop
async def test_an_address_that_is_wrong_is_said_to_be_the_brokers_own() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        async with (
            naming("Orders", a=address) as names,
            Producer(names, config=ProducerConfig(retries=0)) as producer,
        ):
            with pytest.raises(SendFailed, match=f"{address}.* the name server gave this address"):
                await producer.send(Message("Orders", b"x"))


@in_loop
async def test_a_reply_comes_though_another_broker_hangs(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders", queues=1)

    async def answer(message: ReceivedMessage) -> None:
        await producer.reply(message, b"yes")

    consumer = cluster.push(cluster.name("Group"), answer)
    consumer.subscribe(topic)
    with dumb() as address:
        async with (
            cluster.producer() as producer,
            consumer,
            naming(topic, a=cluster.broker) as names,
            known(names, "b", address, "Other"),
            Producer(names) as asker,
        ):
            await asker.queues("Other")
            reply = await asker.request(Message(topic, b"x"), timeout=3.0)
            assert reply.body == b"yes"


@in_loop
async def test_a_connection_that_is_dead_but_not_closed_is_given_up(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tamis.net.aio._SILENCE", 0.2, raising=False)
    topic = await cluster.create_topic("Orders")
    async with (
        Between(cluster.broker) as between,
        naming(topic, a=between.address) as names,
        Producer(names, config=ProducerConfig(timeout=0.3)) as producer,
    ):
        await producer.send(Message(topic, b"x"))
        between.swallow()
        for _ in range(10):
            with contextlib.suppress(SendFailed):
                await producer.send(Message(topic, b"x"))
                break
        assert between.connections == 2


@in_loop
async def test_what_a_broker_that_hangs_is_given_has_a_limit(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders")
    body = os.urandom(4 * 2**20 - 4096)
    config = ProducerConfig(timeout=0.1, retries=0, compress_over=2**31)
    async with (
        Between(cluster.broker) as between,
        naming(topic, a=between.address) as names,
        Producer(names, config=config) as producer,
    ):
        await producer.send(Message(topic, b"x"), timeout=PATIENCE)
        between.hold()
        for _ in range(10):
            with pytest.raises(SendFailed):
                await producer.send(Message(topic, body))
        between.release()
        await producer.send(Message(topic, b"x"), timeout=PATIENCE)  # behind all the others
        assert between.bytes < 5 * len(body)


@in_loop
async def test_lookups_at_the_same_time_find_the_name_server_that_is_left(
    cluster: Cluster,
) -> None:
    topics = [await cluster.create_topic("Orders", queues=1) for _ in range(4)]
    async with (
        Between(cluster.nameserver) as one,
        Between(cluster.nameserver) as two,
        Producer(f"{one.address};{two.address}") as producer,
    ):
        (one if one.connections else two).cut()
        found = await asyncio.gather(*map(producer.queues, topics))
        assert [len(queues) for queues in found] == [1, 1, 1, 1]


# Sends that end


@in_loop
async def test_many_sends_that_fail_at_once_are_all_told_of(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders")

    def select(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        raise KeyError(message.topic)

    async with cluster.producer(max_in_flight=1) as producer:
        await producer.send(Message(topic, b"x"))
        message = Message(topic, b"x")
        first = producer.submit(message)
        others = [producer.submit(message, selector=select) for _ in range(1000)]
        async with asyncio.timeout(PATIENCE):
            await first
            told = await asyncio.gather(*others, return_exceptions=True)
        assert {type(one) for one in told} == {KeyError}


@pytest.mark.parametrize("chosen", [None, 1, "queue"])
@in_loop
async def test_a_selector_that_gives_no_queue_is_refused_and_the_producer_can_be_closed(
    cluster: Cluster, chosen: Any
) -> None:
    topic = await cluster.create_topic("Orders")
    producer = cluster.producer()
    await producer.start()
    for _ in range(2):  # the route is looked up; it is known
        with pytest.raises(InvalidMessage, match="the selector gave"):
            await producer.send(Message(topic, b"x"), selector=lambda queues, message: chosen)
    async with asyncio.timeout(PATIENCE):
        await producer.close()


@in_loop
async def test_a_producer_that_is_being_closed_takes_no_more(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders")
    message = Message(topic, b"x")
    async with Between(cluster.broker) as between, naming(topic, a=between.address) as names:
        producer = Producer(names, config=ProducerConfig(timeout=PATIENCE))
        await producer.start()
        await producer.send(message)
        between.hold()
        last = producer.submit(message)
        closing = asyncio.create_task(producer.close())
        await asyncio.sleep(0)  # it begins, and waits for the last
        with pytest.raises(ClientClosed):
            producer.submit(message)
        with pytest.raises(ClientClosed):
            await producer.send_oneway(message)
        assert not last.done()
        between.release()
        await closing
        await last


@in_loop
async def test_a_producer_is_started_once(cluster: Cluster) -> None:
    async with cluster.producer() as producer:
        with pytest.raises(Error, match="started already"):
            await producer.start()


@in_loop
async def test_a_send_that_is_given_up_before_its_turn_is_not_sent(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders", queues=1)
    config = ProducerConfig(timeout=PATIENCE, max_in_flight=1)
    async with (
        Between(cluster.broker) as between,
        naming(topic, a=between.address) as names,
        Producer(names, config=config) as producer,
    ):
        await producer.send(Message(topic, b"1"))
        between.hold()
        first = producer.submit(Message(topic, b"2"))
        producer.submit(Message(topic, b"given up")).cancel()
        last = producer.submit(Message(topic, b"3"))
        between.release()
        await asyncio.gather(first, last)
    assert texts(await cluster.read(topic, 3)) == ["1", "2", "3"]


@in_loop
async def test_messages_of_a_key_sent_at_once_are_stored_in_their_order(cluster: Cluster) -> None:
    """Apache's brokers take what comes together up in several threads."""
    topic = await cluster.create_topic("Orders", queues=4)
    bodies = [str(n) for n in range(60)]
    async with cluster.producer() as producer:
        sent = [producer.submit(Message(topic, one), key="k") for one in bodies]
        assert len({(await one).queue for one in sent}) == 1
    assert texts(await cluster.read(topic, len(bodies))) == bodies


@in_loop
async def test_one_way_messages_of_a_key_do_not_overtake_others(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders", queues=1)
    async with cluster.producer() as producer:
        await producer.send(Message(topic, b"0"))
        sent = [producer.submit(Message(topic, str(n)), key="k") for n in (1, 2, 3)]
        await producer.send_oneway(Message(topic, b"4"), key="k")
        await asyncio.gather(*sent)
        found = await cluster.read(topic, 5)
    assert texts(found) == ["0", "1", "2", "3", "4"]


# Messages


@pytest.mark.parametrize(
    "make",
    [
        lambda: Message("Orders", "\ud800"),
        lambda: Message("Orders", b"x", tags="\ud800"),
        lambda: Message("Orders", b"x", keys="\ud800"),
        lambda: Message("Orders", b"x", keys=["a", "\ud800"]),
        lambda: Message("Orders", b"x", properties={"a": "\ud800"}),
        lambda: Message("Orders", b"x", properties={"\ud800": "a"}),
        lambda: Message("Orders", b"x", flag=99_999_999_999),
        lambda: Message("Orders", b"x", tags=b"a"),  # type: ignore[arg-type]
        lambda: Message("Orders", b"x", keys=[5]),  # type: ignore[list-item]
        lambda: Message("Orders", b"x", delay_level="3"),  # type: ignore[arg-type]
    ],
    ids=["body", "tags", "keys", "key", "value", "name", "flag", "tags-bytes", "key-int", "delay"],
)
@in_loop
async def test_what_can_not_be_written_is_refused_before_it_is_sent(
    cluster: Cluster, make: Callable[[], Message]
) -> None:
    async with cluster.producer() as producer:
        with pytest.raises(InvalidMessage):
            await producer.send(make())


# `tamis send`

TAMIS = [sys.executable, "-W", "error", "-c", "from tamis.cli.main import main; main()"]


def tamis(
    cluster: Cluster, *arguments: str, given: str = "", redirect: str = ""
) -> subprocess.CompletedProcess[str]:
    line = [*TAMIS, arguments[0], "--nameserver", cluster.nameserver, *arguments[1:]]
    return subprocess.run(
        ["/bin/sh", "-c", f"exec {shlex.join(line)} {redirect}"],
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_lines_that_are_no_message_are_named_and_the_others_sent(cluster: Cluster) -> None:
    topic = asyncio.run(cluster.create_topic("Orders", queues=1))
    lines = [
        json.dumps({"body": "1"}),
        '{"body": "\\ud800"}',
        '{"body": "x", "tags": "\\ud800"}',
        "[" * 100_000,
        json.dumps({"body": "2"}),
    ]
    done = tamis(cluster, "send", topic, given="\n".join(lines) + "\n")
    assert done.returncode == 1, done
    assert "Traceback" not in done.stderr
    for number in (2, 3, 4):
        assert f"line {number}" in done.stderr, done.stderr
    assert sorted(texts(asyncio.run(cluster.read(topic, 2)))) == ["1", "2"]


@pytest.mark.parametrize(
    "arguments", [("x y", "body"), ("Orders", ""), ("Orders", "body", "--property", "KEYS=x")]
)
def test_what_is_written_wrong_is_misuse(cluster: Cluster, arguments: tuple[str, ...]) -> None:
    done = tamis(cluster, "send", *arguments)
    assert done.returncode == 2, done


@pytest.mark.parametrize("redirect", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_standard_streams_may_be_closed(cluster: Cluster, redirect: str) -> None:
    topic = asyncio.run(cluster.create_topic("Orders", queues=1))
    done = tamis(cluster, "send", topic, "x", redirect=redirect)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert texts(asyncio.run(cluster.read(topic, 1))) == ["x"]


def test_nothing_is_sent_if_there_is_no_input(cluster: Cluster) -> None:
    done = tamis(cluster, "send", "Orders", redirect="<&-")
    assert done.returncode in (0, 1), done
    assert "Traceback" not in done.stderr
