"""What goes wrong is one exception, in time, that says what to do."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from broker.asking import ask, close, command
from client.targets import READ, WRITE, Cluster, Seen, in_loop

from tamis.client import (
    Consumer,
    ConsumerConfig,
    Message,
    Producer,
    ProducerConfig,
    PushConsumer,
)
from tamis.errors import (
    ConfigError,
    InvalidName,
    NoPermission,
    ResponseError,
    SendFailed,
    TopicNotFound,
    Unreachable,
)
from tamis.net.aio import connect
from tamis.testing import LocalNameServer
from tamis.wire import beans
from tamis.wire.bodies import Registration, TopicConfig, TopicTable
from tamis.wire.headers import RegisterBroker

TIMEOUT = 0.5  # seconds, of each client here
PATIENCE = 10 * TIMEOUT + 5  # the machine may be busy
QUICK = {"timeout": TIMEOUT, "connect_timeout": TIMEOUT}


@contextmanager
def nobody() -> Iterator[str]:
    """An address where nobody listens, and nobody will."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


@contextmanager
def dumb() -> Iterator[str]:
    """Accepts connections and never says a word."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield f"127.0.0.1:{listening.getsockname()[1]}"


async def send(nameserver: str, topic: str = "Orders") -> None:
    async with Producer(nameserver, config=ProducerConfig(**QUICK)) as producer:
        await producer.send(Message(topic, b"x"))


async def push(nameserver: str, topic: str = "Orders") -> None:
    consumer = PushConsumer(nameserver, "Group", Seen(), config=ConsumerConfig(**QUICK))
    consumer.subscribe(topic)
    await consumer.run()


async def pull(nameserver: str, topic: str = "Orders") -> None:
    consumer = Consumer(nameserver, "Group", config=ConsumerConfig(**QUICK))
    consumer.subscribe(topic)
    async with consumer:
        await anext(consumer)


async def look(nameserver: str, topic: str = "Orders") -> None:
    consumer = Consumer(nameserver, "Group", config=ConsumerConfig(**QUICK))
    try:
        await consumer.queues(topic)
    finally:
        await consumer.close()


Use = Callable[..., Coroutine[Any, Any, None]]
EVERYONE = [send, push, pull, look]


@asynccontextmanager
async def raising(kind: type[BaseException], *parts: str) -> AsyncIterator[None]:
    """In time, and with all of these in what it says."""
    with pytest.raises(kind) as caught:
        async with asyncio.timeout(PATIENCE) as limit:
            yield
    assert not limit.expired(), caught.value
    for part in parts:
        assert part in str(caught.value), str(caught.value)


# Addresses


@pytest.mark.parametrize("use", EVERYONE)
@in_loop
async def test_a_name_server_nobody_listens_at_is_named(use: Use) -> None:
    with nobody() as address:
        async with raising(Unreachable, "name server", address, "is it running"):
            await use(address)


@pytest.mark.parametrize("use", EVERYONE)
@in_loop
async def test_a_name_server_that_never_answers_is_named(use: Use) -> None:
    with dumb() as address:
        async with raising(Unreachable, "name server", address, f"{TIMEOUT:g} s"):
            await use(address)


@pytest.mark.parametrize("use", EVERYONE)
@in_loop
async def test_of_several_name_servers_all_are_named_if_none_answers(use: Use) -> None:
    with nobody() as one, nobody() as two:
        async with raising(Unreachable, f"{one};{two}"):
            await use(f"{one};{two}")


@in_loop
async def test_one_name_server_that_answers_is_enough(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders")
    with nobody() as one, dumb() as two:
        for _ in range(3):  # their order is of no account
            async with asyncio.timeout(PATIENCE):
                await send(f"{one};{two};{cluster.nameserver}", topic)


@pytest.mark.parametrize("address", ["", ";", "localhost", "127.0.0.1:", "127.0.0.1:x", "a:99999"])
def test_what_is_no_address_is_refused_at_once(address: str) -> None:
    for make in (
        lambda: Producer(address),
        lambda: PushConsumer(address, "Group"),
        lambda: Consumer(address, "Group"),
    ):
        with pytest.raises(ConfigError, match="name server"):
            make()


@asynccontextmanager
async def telling_of(broker: str) -> AsyncIterator[str]:
    """A name server that knows a broker at this address, with the topic `Orders`."""
    async with LocalNameServer() as server:
        peer = await connect(server.nameserver)
        header = RegisterBroker(
            broker_name="broker-a",
            broker_addr=broker,
            cluster_name="DefaultCluster",
            broker_id=0,
            ha_server_addr=broker,
        )
        table = TopicTable(topics={"Orders": TopicConfig(name="Orders")})
        body = beans.encode(Registration(table=table, filter_servers=[]))
        await ask(peer, command(header, body=body))
        yield server.nameserver
        await close(peer)


@in_loop
async def test_a_broker_nobody_listens_at_is_named() -> None:
    with nobody() as address:
        async with (
            telling_of(address) as nameserver,
            Producer(nameserver, config=ProducerConfig(**QUICK)) as producer,
        ):
            message = Message("Orders", b"x")
            async with raising(SendFailed, "topic Orders", "broker-a", address, "is it running"):
                await producer.send(message)
            async with raising(SendFailed, "topic Orders", address, "tried once"):
                await producer.send(message, key="k")
            async with raising(SendFailed, "topic Orders", address):
                await producer.send_batch([message, message])
            async with raising(Unreachable, "broker", address, "is it running"):
                await producer.send_oneway(message)


@in_loop
async def test_a_broker_that_never_answers_is_named() -> None:
    with dumb() as address:
        async with (
            telling_of(address) as nameserver,
            Producer(nameserver, config=ProducerConfig(**QUICK)) as producer,
        ):
            message = Message("Orders", b"x")
            async with raising(SendFailed, "topic Orders", "broker-a", "not"):
                await producer.send(message)
            async with raising(SendFailed, "topic Orders", "broker-a", address, "0.1 s"):
                await producer.send(message, timeout=0.1)
            async with raising(TimeoutError, "no reply"):
                await producer.request(message, timeout=0.1)


@in_loop
async def test_a_consumer_that_reaches_no_broker_says_which_and_whose_the_address_is() -> None:
    with nobody() as address:
        async with telling_of(address) as nameserver:
            for one in (
                Consumer(nameserver, "Group", config=ConsumerConfig(**QUICK)),
                PushConsumer(nameserver, "Group", print, config=ConsumerConfig(**QUICK)),
            ):
                one.subscribe("Orders")
                async with raising(Unreachable, address, "the name server gave this address"):
                    await one.start()


# Topics


@in_loop
async def test_a_topic_there_is_not_is_named_by_consumers(cluster: Cluster) -> None:
    topic = cluster.name("Missing")
    for use in push, pull, look:
        async with raising(TopicNotFound, topic, cluster.nameserver, "create it"):
            await use(cluster.nameserver, topic)


@in_loop
async def test_a_topic_a_strict_broker_does_not_make_is_named_by_producers(
    strict_cluster: Cluster,
) -> None:
    topic = strict_cluster.name("Missing")
    async with strict_cluster.producer(**QUICK) as producer:
        message = Message(topic, b"x")
        async with raising(TopicNotFound, topic, "create it"):
            await producer.send(message)
        async with raising(TopicNotFound, topic, "create it"):
            await producer.send_oneway(message)
        async with raising(SendFailed, topic, "create it"):
            await producer.send_batch([message, message])
        async with raising(TopicNotFound, topic, "create it"):
            await producer.send(message, key="k")


@in_loop
async def test_a_topic_is_waited_for_if_the_consumer_says_so(cluster: Cluster) -> None:
    topic = cluster.name("Later")
    seen = Seen()
    consumer = cluster.push(cluster.name("Group"), seen, wait_for_topics=True)
    consumer.subscribe(topic)
    async with consumer:
        await cluster.change_topic(topic, 2)
        await cluster.fill(topic, "1")
        await seen.until("1")


# Names


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "empty"),
        (" ", "empty"),
        ("g" * 256, "256 characters, at most 255"),
        ("a b", "none of letters, digits"),
        ("gr\N{LATIN SMALL LETTER U WITH DIAERESIS}n", "none of letters, digits"),
        ("DEFAULT_CONSUMER", "choose one of your own"),
        ("DEFAULT_PRODUCER", "choose one of your own"),
    ],
)
def test_a_group_rocketmq_would_not_take_is_refused_at_once(name: str, why: str) -> None:
    for make in (
        lambda: Producer("127.0.0.1:9876", name),
        lambda: PushConsumer("127.0.0.1:9876", name),
        lambda: Consumer("127.0.0.1:9876", name),
    ):
        with pytest.raises(InvalidName, match=why):
            make()


@pytest.mark.parametrize("topic", ["", "a b", "t" * 128, "a/b"])
def test_a_topic_rocketmq_would_not_take_is_refused_at_once(topic: str) -> None:
    async def subscribe() -> None:
        Consumer("127.0.0.1:9876", "Group").subscribe(topic)

    with pytest.raises(InvalidName, match="topic"):
        asyncio.run(subscribe())


@in_loop
async def test_a_group_a_strict_broker_does_not_know_is_refused(strict_cluster: Cluster) -> None:
    topic = await strict_cluster.create_topic("Orders")
    for use in push, pull:
        async with raising(ResponseError, "subscription group"):
            await use(strict_cluster.nameserver, topic)


# Filters


@in_loop
async def test_a_broker_that_knows_no_sql_refuses_it_at_the_start(strict_cluster: Cluster) -> None:
    topic = await strict_cluster.create_topic("Orders")
    pushing = strict_cluster.push("Group", Seen(), **QUICK)
    pulling = strict_cluster.consumer("Group", **QUICK)
    for consumer in pushing, pulling:
        consumer.subscribe(topic, sql="n > 1")
        async with raising(ResponseError, "enablePropertyFilter"):
            await consumer.start()


@in_loop
async def test_sql_of_newer_brokers_is_refused_by_older_ones_at_the_start(
    cluster: Cluster,
) -> None:
    topic = await cluster.create_topic("Orders")
    seen = Seen()
    consumer = cluster.push(cluster.name("Group"), seen)
    consumer.subscribe(topic, sql="(name CONTAINS 'x')")
    if cluster.target == "5.3":
        async with consumer:
            await cluster.fill(topic, "1", properties={"name": "axe"})
            await cluster.fill(topic, "2", properties={"name": "saw"})
            await seen.until("1")
    else:
        async with raising(ResponseError, "CONTAINS"):  # where it stopped to understand
            await consumer.start()


# Permission


@in_loop
async def test_a_topic_that_can_only_be_read_takes_no_message(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Readable", perm=READ)
    async with cluster.producer(**QUICK) as producer:
        message = Message(topic, b"x")
        async with raising(NoPermission, topic, "permission"):
            await producer.send(message)
        async with raising(NoPermission, topic, "permission"):
            await producer.send(message, key="k")
        async with raising(SendFailed, topic, "permission"):
            await producer.send_batch([message, message])
        async with raising(NoPermission, topic, "permission"):
            await producer.send_oneway(message)


@in_loop
async def test_a_topic_that_becomes_unwritable_while_it_is_sent_to_refuses(
    cluster: Cluster,
) -> None:
    topic = await cluster.create_topic("Orders")
    async with cluster.producer(**QUICK, route_interval=0.1) as producer:
        await producer.send(Message(topic, b"x"))
        await cluster.change_topic(topic, 4, READ)
        async with asyncio.timeout(PATIENCE):
            while await producer.queues(topic):
                await asyncio.sleep(0.01)
        async with raising(NoPermission, topic, "permission"):
            await producer.send(Message(topic, b"x"))


@pytest.mark.parametrize("use", [push, pull])
@in_loop
async def test_a_topic_that_can_only_be_written_gives_no_message(
    cluster: Cluster, use: Use
) -> None:
    topic = await cluster.create_topic("Writable", perm=WRITE)
    async with raising(NoPermission, topic, "permission"):
        await use(cluster.nameserver, topic)


@in_loop
async def test_a_topic_that_becomes_unreadable_ends_no_consumer_and_is_read_again_later(
    cluster: Cluster,
) -> None:
    topic = await cluster.create_topic("Orders", queues=1)
    seen = Seen()
    consumer = cluster.push(cluster.name("Group"), seen)
    consumer.subscribe(topic)
    async with consumer:
        await cluster.fill(topic, "1")
        await seen.until("1")
        await cluster.change_topic(topic, 1, WRITE)
        await cluster.fill(topic, "2")
        await cluster.change_topic(topic, 1, READ | WRITE)
        await seen.until("1", "2")
