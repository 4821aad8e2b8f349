"""Sending: what arrives, where, when, and what is refused before it leaves."""

import asyncio

import pytest
from broker.asking import Refused, until
from client.targets import READ, Cluster, in_loop, texts

from tamis.client import (
    Message,
    MessageQueue,
    ReceivedMessage,
    SendResult,
    SendStatus,
    TransactionState,
)
from tamis.client.sending import hash_of
from tamis.errors import (
    ClientClosed,
    ConfigError,
    InvalidMessage,
    InvalidName,
    NoPermission,
    SendFailed,
)
from tamis.message import SysFlag
from tamis.wire import beans
from tamis.wire.bodies import ProducerConnection
from tamis.wire.codes import RequestCode
from tamis.wire.command import Command
from tamis.wire.headers import ViewMessage


@in_loop
async def test_a_message_arrives_as_it_was_sent(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders")
    async with cluster.producer() as producer:
        message = Message(
            topic,
            "ärger".encode(),
            tags="new",
            keys=["k1", "k2"],
            properties={"region": "eu", "größe": "12 €"},
            flag=7,
        )
        result = await producer.send(message)
    [found] = await cluster.read(topic, 1)
    assert (found.topic, found.body, found.text) == (topic, message.body, "ärger")
    assert (found.tags, found.keys, found.flag) == ("new", ("k1", "k2"), 7)
    assert found.properties["region"] == "eu"
    assert found.properties["größe"] == "12 €"
    assert (found.message_id, found.offset_message_id) == (
        result.message_id,
        result.offset_message_id,
    )
    assert (found.queue, found.offset) == (result.queue, result.offset)


@in_loop
async def test_a_result_says_where_the_message_is(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders", queues=1)
    async with cluster.producer() as producer:
        first = await producer.send(Message(topic, b"1"))
        second = await producer.send(Message(topic, b"2"))
        assert first.status is SendStatus.OK
        assert (first.queue, first.offset) == (MessageQueue(topic, "broker-a", 0), 0)
        assert first.region == "DefaultRegion"
        assert (second.queue, second.offset) == (first.queue, 1)
        found = await cluster.ask(ViewMessage(offset=int(second.offset_message_id[-16:], 16)))
        assert b"2" in found.body
        assert await producer.queues(topic) == [MessageQueue(topic, "broker-a", 0)]


@in_loop
async def test_messages_in_flight_together_all_arrive_each_under_its_own_key(
    cluster: Cluster,
) -> None:
    topic = await cluster.create_topic("Orders")
    async with cluster.producer(max_in_flight=50) as producer:
        sent = [producer.submit(Message(topic, str(n))) for n in range(500)]
        results = await asyncio.gather(*sent)
    found = await cluster.read(topic, 500)
    assert sorted(map(int, texts(found))) == list(range(500))
    assert {result.message_id for result in results} == {one.message_id for one in found}
    assert len({result.message_id for result in results}) == 500
    assert all(len(one.message_id) == 32 and bytes.fromhex(one.message_id) for one in results)
    assert {one.message_id: one.text for one in found} == {
        result.message_id: str(n) for n, result in enumerate(results)
    }
    assert {result.queue.queue_id for result in results} == {0, 1, 2, 3}


@in_loop
async def test_a_producer_that_is_closed_has_sent_what_was_submitted(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders")
    async with cluster.producer(max_in_flight=5) as producer:
        sent = [producer.submit(Message(topic, str(n))) for n in range(50)]
    assert all(one.done() and one.result().status is SendStatus.OK for one in sent)
    with pytest.raises(ClientClosed, match="closed: make a new one"):
        await producer.send(Message(topic, b"late"))


@in_loop
async def test_a_producer_that_was_not_started_says_so(cluster: Cluster) -> None:
    producer = cluster.producer()
    with pytest.raises(ClientClosed, match=r"not started: use .*`async with`"):
        await producer.send(Message("T", b"x"))
    await producer.close()


@in_loop
async def test_one_way_messages_arrive(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders")
    async with cluster.producer() as producer:
        for n in range(20):
            await producer.send_oneway(Message(topic, str(n)))
        found = await cluster.read(topic, 20)
    assert sorted(map(int, texts(found))) == list(range(20))


# Batches


@in_loop
async def test_a_batch_of_several_topics_gives_a_result_a_message_in_their_order(
    cluster: Cluster,
) -> None:
    topics = [await cluster.create_topic("Orders"), await cluster.create_topic("Events")]
    messages = [
        Message(topics[n % 2], f"{n}:".encode() + bytes(1000), tags=f"t{n % 3}", keys=[f"k{n}"])
        for n in range(40)
    ]
    async with cluster.producer(max_message_size=8192) as producer:
        results = await producer.send_batch(messages)
    assert [result.queue.topic for result in results] == [one.topic for one in messages]
    found = {one.message_id: one for topic in topics for one in await cluster.read(topic, 20)}
    for message, result in zip(messages, results, strict=True):
        one = found[result.message_id]
        assert (one.topic, one.body, one.tags) == (message.topic, message.body, message.tags)
        assert (one.keys, one.queue, one.offset) == (message.keys, result.queue, result.offset)
        if result.offset_message_id:
            assert result.offset_message_id == one.offset_message_id
    # eight pieces at least: no more than seven such messages fit into one
    assert len({(result.queue, result.offset) for result in results}) == 40


@in_loop
async def test_a_batch_by_key_lies_in_one_queue_in_order(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders")
    async with cluster.producer(max_message_size=4096) as producer:
        messages = [Message(topic, str(n).encode().ljust(900)) for n in range(20)]
        results = await producer.send_batch(messages, key="customer-7")
    assert len({result.queue for result in results}) == 1
    assert [result.offset for result in results] == list(range(20))
    assert [one.text.strip() for one in await cluster.read(topic, 20)] == [*map(str, range(20))]


@in_loop
async def test_an_empty_batch_gives_nothing(cluster: Cluster) -> None:
    async with cluster.producer() as producer:
        assert await producer.send_batch([]) == []


@in_loop
async def test_a_batch_with_a_message_that_cannot_be_in_one_is_refused_whole(
    cluster: Cluster,
) -> None:
    topic = await cluster.create_topic("Orders", queues=1)
    async with cluster.producer() as producer:
        with pytest.raises(InvalidMessage, match="batches take none"):
            await producer.send_batch([Message(topic, b"a"), Message(topic, b"b", delay_level=1)])
        assert (await producer.send(Message(topic, b"c"))).offset == 0


@in_loop
async def test_a_batch_that_fails_in_part_tells_what_was_sent(cluster: Cluster) -> None:
    good = await cluster.create_topic("Orders")
    bad = await cluster.create_topic("Readable", perm=READ)
    async with cluster.producer() as producer:
        batch = [Message(topic, b"x") for topic in (good, bad, good, bad)]
        with pytest.raises(SendFailed) as caught:
            await producer.send_batch(batch)
    error = caught.value
    assert isinstance(error.cause, NoPermission)
    assert error.topic == bad
    assert [isinstance(one, SendResult) for one in error.results] == [True, False, True, False]
    found = await cluster.read(good, 2)
    sent = {one.message_id for one in error.results if isinstance(one, SendResult)}
    assert {one.message_id for one in found} == sent


# Where to


@in_loop
async def test_messages_of_a_key_lie_in_the_queue_that_javas_hash_chooses(
    cluster: Cluster,
) -> None:
    topic = await cluster.create_topic("Orders", queues=7)
    keys = ["customer-1", "", "Aa", "BB", "straße", "polygenelubricants", 0, -5, 2**31, -(2**40)]
    async with cluster.producer() as producer:
        queues = await producer.queues(topic)
        for key in keys:
            sent = [await producer.send(Message(topic, b"x"), key=key) for _ in range(3)]
            assert {one.queue for one in sent} == {queues[hash_of(key) % 7]}
            assert [one.offset for one in sent] == sorted(one.offset for one in sent)


def test_keys_are_hashed_as_java_does_it() -> None:
    assert hash_of("polygenelubricants") == 2**31  # its hash is the smallest int there is
    assert hash_of("Aa") == hash_of("BB") == 2112
    assert hash_of(-5) == 5
    assert hash_of(2**31) == 2**31
    assert hash_of(2**40 + 3) == 256 ^ 3


@in_loop
async def test_a_selector_and_a_queue_say_where_a_message_goes(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders")
    async with cluster.producer() as producer:
        queues = await producer.queues(topic)
        for n in range(8):
            message = Message(topic, str(n))
            result = await producer.send(
                message, selector=lambda queues, message: queues[int(message.body) % len(queues)]
            )
            assert result.queue == queues[n % 4]
        for queue in queues:
            assert (await producer.send(Message(topic, b"x"), queue=queue)).queue == queue
            await producer.send_oneway(Message(topic, b"x"), queue=queue)


@in_loop
async def test_a_selector_that_fails_fails_the_send(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders")
    async with cluster.producer() as producer:
        with pytest.raises(ZeroDivisionError):
            await producer.send(Message(topic, b"x"), selector=lambda queues, message: 1 // 0)
        with pytest.raises(InvalidMessage, match="one of them"):
            await producer.send(Message(topic, b"x"), key="k", selector=lambda queues, _: queues[0])
        other = MessageQueue("Another", "broker-a", 0)
        with pytest.raises(InvalidMessage, match="queue of Another"):
            await producer.send(Message(topic, b"x"), queue=other)


# When


@in_loop
async def test_a_delayed_message_comes_after_its_time_and_not_before(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders", queues=1)
    async with cluster.producer() as producer:
        late = await producer.send(Message(topic, "late", delay_level=1, tags="t", keys="k"))
        await producer.send(Message(topic, b"at once"))
        found = await cluster.read(topic, 2)
    assert texts(found) == ["at once", "late"]
    assert found[1].store_timestamp - found[1].born_timestamp >= 1000
    assert (found[1].message_id, found[1].topic) == (late.message_id, topic)
    assert (found[1].tags, found[1].keys) == ("t", ("k",))


# Transactions


@in_loop
async def test_a_transaction_is_seen_once_it_is_committed_and_never_if_rolled_back(
    cluster: Cluster,
) -> None:
    topic = await cluster.create_topic("Orders", queues=1)
    group = cluster.name("Producers")

    class OutOfStock(Exception): ...

    async with cluster.producer(group, check=lambda message: None) as producer:
        async with producer.transaction(Message(topic, b"committed")) as transaction:
            assert transaction.result.status is SendStatus.OK
            assert transaction.message.body == b"committed"
        async with producer.transaction(Message(topic, b"rolled back")) as transaction:
            transaction.rollback()
        with pytest.raises(OutOfStock):
            async with producer.transaction(Message(topic, b"failed")):
                raise OutOfStock
        result, state = await producer.send_in_transaction(
            Message(topic, b"executed"), lambda message, result: True
        )
        assert (result.status, state) == (SendStatus.OK, TransactionState.COMMIT)

        async def refuse(message: Message, result: SendResult) -> TransactionState:
            return TransactionState.ROLLBACK

        _, state = await producer.send_in_transaction(Message(topic, b"refused"), refuse)
        assert state is TransactionState.ROLLBACK
        await producer.send(Message(topic, b"last"))
    assert texts(await cluster.read(topic, 3)) == ["committed", "executed", "last"]


@in_loop
async def test_a_transaction_left_open_is_asked_about_and_then_as_the_answer_says(
    cluster: Cluster,
) -> None:
    topic = await cluster.create_topic("Orders", queues=1)
    group = cluster.name("Producers")
    asked: list[ReceivedMessage] = []

    def check(message: ReceivedMessage) -> bool | None:
        asked.append(message)
        if (
            message.text == "first unknown"
            and len([m for m in asked if m.body == message.body]) < 2
        ):
            return None
        return message.text != "no"

    def fail(message: Message, result: SendResult) -> None:
        raise LookupError("the database is away")

    async with cluster.producer(group, check=check) as producer:
        sent = {}
        for text in ("yes", "no", "first unknown"):
            async with producer.transaction(Message(topic, text, tags="t")) as transaction:
                transaction.leave_open()
            sent[text] = transaction.result.message_id
        result, state = await producer.send_in_transaction(Message(topic, b"failed"), fail)
        assert state is TransactionState.UNKNOWN
        sent["failed"] = result.message_id
        found = await _read_until(cluster, topic, {"failed", "first unknown", "yes"})
        await until(lambda: "no" in texts(asked), lambda: texts(asked))
    assert {one.text: one.message_id for one in asked} == sent
    assert {one.topic for one in asked} == {topic}
    assert {one.text: one.message_id for one in found} == {
        text: key for text, key in sent.items() if text != "no"
    }


async def _read_until(cluster: Cluster, topic: str, wanted: set[str]) -> list[ReceivedMessage]:
    """Some may come twice: a broker that asks again before it noted the answer commits again."""
    found: list[ReceivedMessage] = []
    consumer = cluster.consumer(cluster.name("Group"))
    consumer.subscribe(topic)
    async with consumer, asyncio.timeout(30):
        while not wanted <= set(texts(found)):
            found += await consumer.getmany(timeout=1.0)
    return found


@in_loop
async def test_a_transaction_needs_a_check(cluster: Cluster) -> None:
    async with cluster.producer() as producer:
        with pytest.raises(ConfigError, match="check="):
            producer.transaction(Message("T", b"x"))
        with pytest.raises(ConfigError, match="check="):
            await producer.send_in_transaction(Message("T", b"x"), lambda message, result: True)


# Requests and replies


@in_loop
async def test_a_request_is_answered_by_whoever_consumes_it(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Questions")
    async with cluster.producer(cluster.name("Askers")) as asker, cluster.producer() as replier:

        async def handle(message: ReceivedMessage) -> None:
            await replier.reply(message, message.body.upper() * 2000, tags="answer")

        consumer = cluster.push(cluster.name("Repliers"), handle)
        consumer.subscribe(topic)
        async with consumer:
            answers = await asyncio.gather(
                *(asker.request(Message(topic, text), timeout=20.0) for text in ("a", "b", "c"))
            )
    assert [one.text for one in answers] == ["A" * 2000, "B" * 2000, "C" * 2000]
    assert {one.tags for one in answers} == {"answer"}


@in_loop
async def test_a_request_nobody_answers_ends_in_time(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Questions")
    async with cluster.producer() as asker:
        with pytest.raises(TimeoutError, match="does anyone consume it and reply"):
            await asker.request(Message(topic, b"anyone?"), timeout=0.3)
        [message] = await cluster.read(topic, 1)
        assert message.body == b"anyone?"
        await cluster.fill(topic, "plain")
        plain = next(one for one in await cluster.read(topic, 2) if one.text == "plain")
        with pytest.raises(InvalidMessage, match="does not ask for a reply"):
            await asker.reply(plain, b"never asked")


# Bodies


@in_loop
async def test_a_big_body_is_stored_compressed_and_arrives_whole(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders", queues=1)
    body = b"the same again " * 10_000
    async with cluster.producer() as producer:
        await producer.send(Message(topic, body))
        await producer.send(Message(topic, body[:100]))
    big, small = await cluster.read(topic, 2)
    assert (big.body, small.body) == (body, body[:100])
    assert big.sys_flag & SysFlag.COMPRESSED
    assert not small.sys_flag & SysFlag.COMPRESSED
    assert big.size < 5000


@in_loop
async def test_a_new_topic_is_made_by_sending_to_it(cluster: Cluster) -> None:
    topic = cluster.name("New")
    async with cluster.producer(default_queues=3) as producer:
        results = [await producer.send(Message(topic, str(n))) for n in range(6)]
        assert {one.queue.queue_id for one in results} <= {0, 1, 2}
        await cluster.change_topic(topic, 3)  # its route is known now
        assert len(await producer.queues(topic)) == 3
    assert sorted(texts(await cluster.read(topic, 6))) == [str(n) for n in range(6)]


# What is refused


@pytest.mark.parametrize(
    ("properties", "hint"),
    [
        ({"TAGS": "x"}, "give tags="),
        ({"KEYS": "x"}, "give keys="),
        ({"DELAY": "1"}, "give delay_level="),
        ({"UNIQ_KEY": "x"}, "keeps this name"),
        ({"PGROUP": "x"}, "keeps this name"),
        ({"n": ""}, "blank"),
        ({"n": 1}, "text"),
    ],
)
def test_a_property_that_is_rocketmqs_own_or_would_be_lost_is_refused(
    properties: dict[str, str], hint: str
) -> None:
    with pytest.raises(InvalidMessage, match=hint):
        Message("T", b"x", properties=properties)


@in_loop
async def test_what_a_broker_would_not_take_is_not_sent(cluster: Cluster) -> None:
    topic = await cluster.create_topic("Orders", queues=1)
    async with cluster.producer(max_message_size=1000) as producer:
        with pytest.raises(InvalidMessage, match="1001 bytes, at most 1000"):
            await producer.send(Message(topic, bytes(1001)))
        with pytest.raises(InvalidMessage, match="1001 bytes, at most 1000"):
            await producer.send_oneway(Message(topic, bytes(1001)))
        with pytest.raises(InvalidMessage, match="at least one byte"):
            await producer.send(Message(topic, b""))
        with pytest.raises(InvalidMessage, match="put it into the body"):
            await producer.send(Message(topic, b"x", properties={"n": "x" * 40_000}))
        with pytest.raises(InvalidMessage, match="separate properties"):
            await producer.send(Message(topic, b"x", properties={"n": "a\x01b"}))
        with pytest.raises(InvalidName, match="letters, digits"):
            await producer.send(Message("no topic", b"x"))
        with pytest.raises(InvalidName, match="keeps it for itself"):
            await producer.send(Message("SCHEDULE_TOPIC_XXXX", b"x"))
        assert (await producer.send(Message(topic, b"x"))).offset == 0


@in_loop
async def test_a_producers_life_is_known_to_the_broker(cluster: Cluster) -> None:
    """So that it can be asked about transactions."""
    topic = await cluster.create_topic("Orders")
    group = cluster.name("Producers")
    async with cluster.producer(group, check=lambda message: None) as producer:
        await producer.send(Message(topic, b"x"))
        fields = {"producerGroup": group}
        request = Command(code=RequestCode.GET_PRODUCER_CONNECTION_LIST, fields=fields)
        found = beans.decode(ProducerConnection, (await cluster.ask(request)).body)
        assert [one.client_id for one in found.connections] == [producer.client_id]
    with pytest.raises(Refused):
        await cluster.ask(request)
