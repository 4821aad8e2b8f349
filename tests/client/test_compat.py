"""Programs written for the `rocketmq` packages, messense's and Apache's, on our client."""

import threading
import time
import uuid
from collections.abc import Callable, Iterator

import pytest
from client.targets import Cluster

from tamis.client import blocking
from tamis.client.compat import (
    ConsumerException,
    ConsumeStatus,
    Message,
    MessageModel,
    MessageProperty,
    Producer,
    ProducerException,
    ProducerSendAsyncFailed,
    ProducerSendOrderlyFailed,
    ProducerSendSyncFailed,
    ProducerStartFailed,
    PullConsumer,
    PullConsumerFetchMQFailed,
    PullConsumerStartFailed,
    PushConsumer,
    PushConsumerStartFailed,
    ReceivedMessage,
    RecvMessage,
    RocketMQException,
    SendResult,
    SendStatus,
    TransactionMQProducer,
    TransactionStatus,
)
from tamis.errors import Error, Unreachable

PATIENCE = 30.0  # seconds


@pytest.fixture(scope="module")
def nameserver(cluster: Cluster) -> str:
    return cluster.nameserver


@pytest.fixture
def topic(nameserver: str) -> str:
    return create_topic(nameserver)


def create_topic(nameserver: str, queues: int = 4) -> str:
    name = f"T-{uuid.uuid4().hex[:8]}"
    with blocking.Admin(nameserver) as admin:
        admin.create_topic(name, queues=queues)
    return name


@pytest.fixture
def producer(nameserver: str) -> Iterator[Producer]:
    made = Producer("P")
    made.set_name_server_address(nameserver)
    with made as one:
        assert one is made
        yield one


def message(topic: str, body: str | bytes, tags: str | bytes = "") -> Message:
    made = Message(topic)
    made.set_body(body)
    made.set_tags(tags)
    return made


class Seen:
    """A callback that remembers. `say` gives what it returns."""

    def __init__(self, say: Callable[[ReceivedMessage], object] = lambda message: None) -> None:
        self.messages: list[ReceivedMessage] = []
        self._say = say

    def __call__(self, message: ReceivedMessage) -> object:
        self.messages.append(message)
        return self._say(message)

    def until(self, *bodies: str) -> None:
        """Just these, in any order."""
        deadline = time.monotonic() + PATIENCE
        while len(self.messages) < len(bodies):
            assert time.monotonic() < deadline, self.messages
            time.sleep(0.005)
        found = [one.message.text for one in self.messages]
        assert sorted(found) == sorted(bodies)


def consumer(nameserver: str, group: str, **callbacks: Seen) -> PushConsumer:
    """`callbacks` by topic."""
    made = PushConsumer(group)
    made.set_name_server_address(nameserver)
    for topic, callback in callbacks.items():
        made.subscribe(topic, callback)
    return made


def until_read(consumer: PushConsumer, topic: str, queues: int = 4) -> None:
    """It begins at the end of a queue: what is sent before it looked may be passed."""
    assert consumer._client is not None
    deadline = time.monotonic() + PATIENCE
    while (read := [one.topic for one in consumer._client.assignment]).count(topic) < queues:
        assert time.monotonic() < deadline, read
        time.sleep(0.005)


# Messages


def test_a_message_arrives_with_the_attributes_programs_know(
    nameserver: str, topic: str, producer: Producer
) -> None:
    sent = message(topic.encode(), "ärger", b"a")  # type: ignore[arg-type]
    sent.set_keys("k1 k2")
    sent.set_property("n", "1")
    sent.set_property(b"region", b"eu")
    sent.set_property("blank", "")
    result = producer.send_sync(sent)
    assert isinstance(result, SendResult)
    status, msg_id, offset = result
    assert (status, offset) == (SendStatus.OK, 0)
    seen = Seen()
    with consumer(nameserver, f"G-{topic}", **{topic: seen}):
        seen.until("ärger")
    [found] = seen.messages
    assert isinstance(found, RecvMessage)
    assert (found.topic, found.id) == (topic, msg_id)
    assert (found.tags, found.keys, found.body) == (b"a", b"k1 k2", "ärger".encode())
    assert (bytes(found), str(found)) == ("ärger".encode(), "ärger")
    assert (found["n"], found.get_property("region"), found[b"blank"]) == (b"1", b"eu", b"")
    assert found.get_property(MessageProperty.KEYS) == b"k1 k2"
    assert (found.queue_offset, found.reconsume_times, found.delay_time_level) == (0, 0, 0)
    assert found.store_size > len(found.body)
    assert found.commit_log_offset >= found.prepared_transaction_offset == 0
    assert 0 < found.born_timestamp <= found.store_timestamp + 1000
    assert found.queue_id in range(4)
    assert "ärger" in repr(found) or "body=b'" in repr(found)


def test_properties_that_stand_for_more_are_taken_as_such(
    nameserver: str, topic: str, producer: Producer
) -> None:
    sent = Message(topic)
    sent.set_body(b"\0\xff")
    sent.set_property("TAGS", "a")
    sent.set_delay_time_level(1)
    producer.send_sync(sent)
    sent_at, seen = int(time.time() * 1000), Seen()
    with consumer(nameserver, f"G-{topic}", **{topic: seen}):
        seen.until("\0�")
    [found] = seen.messages
    assert (found.body, found.tags) == (b"\0\xff", b"a")
    assert found.store_timestamp > sent_at


# Producers


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ((), {}),
        ((4000, 3, 9000), {}),  # messense's order
        ((4000,), {"compress_level": 3, "max_message_size": 9000}),
        ((4000, 3), {"max_message_size": 9000}),
        ((False, 4000, 3, 9000), {}),  # Apache's
        ((True,), {"timeout": 4000, "compress_level": 3, "max_message_size": 9000}),
        ((None, 3, 9000), {}),
    ],
)
def test_a_producer_is_made_as_in_either_package(
    given: tuple[int, ...], named: dict[str, int]
) -> None:
    expected = {"timeout": 4.0, "compress_level": 3, "max_message_size": 9000}
    if not given:
        expected = {}
    elif given[0] is None:
        del expected["timeout"]
    assert Producer("P", *given, **named)._settings == expected


def test_all_ways_to_send(nameserver: str, producer: Producer) -> None:
    topic = create_topic(nameserver)
    producer.send_oneway(message(topic, "1"))
    batch = producer.send_batch([message(topic, "2"), message(topic, "3")])
    assert batch.status is SendStatus.OK
    assert len(batch.msg_id.split(",")) == 2
    offsets = [producer.send_orderly(message(topic, "o"), 5).offset for _ in range(3)]
    assert offsets == list(range(offsets[0], offsets[0] + 3))
    keyed = [
        producer.send_orderly_with_sharding_key(message(topic, "k"), "key").offset for _ in range(3)
    ]
    assert keyed == list(range(keyed[0], keyed[0] + 3))
    producer.send_oneway_orderly(message(topic, "4"), 5)
    asked = []

    def select(count: int, found: ReceivedMessage, arg: int) -> int:
        asked.append((count, found.body, found.tags, arg))
        return 3

    producer.send_orderly(message(topic, "5", "t"), 7, queue_selector=select)
    assert asked == [(4, b"5", b"t", 7)]
    seen = Seen()
    with consumer(nameserver, f"G-{topic}", **{topic: seen}):
        seen.until("1", "2", "3", "o", "o", "o", "k", "k", "k", "4", "5")
    queues = {text: {one.queue_id for one in seen.messages if str(one) == text} for text in "ok45"}
    assert queues["o"] == queues["4"] == {5 % 4}
    assert len(queues["k"]) == 1
    assert queues["5"] == {3}


def test_callbacks_tell_what_became_of_an_async_send(topic: str, producer: Producer) -> None:
    results: list[SendResult] = []
    failures: list[ProducerSendAsyncFailed] = []
    called = threading.Event()

    def again(result: SendResult) -> None:
        results.append(producer.send_sync(message(topic, "2")))  # it may wait
        called.set()

    producer.send_async(message(topic, "1"), again, failures.append)
    assert called.wait(PATIENCE), failures
    producer.send_async(message(topic, "3"), results.append, failures.append)
    producer.send_async(message(topic, ""), results.append, failures.append)
    producer.shutdown()  # waits for callbacks
    assert [one.status for one in results] == [SendStatus.OK] * 2
    [failed] = failures
    assert "has no body" in str(failed)
    assert (failed.error, failed.type) == (-1, "InvalidMessage")
    assert isinstance(failed, ProducerException)


def test_a_callback_that_fails_is_logged(
    topic: str, producer: Producer, caplog: pytest.LogCaptureFixture
) -> None:
    producer.send_async(message(topic, "1"), lambda result: 1 / 0)
    producer.send_async(message(topic, ""))
    producer.shutdown()
    assert "a callback of send_async failed" in caplog.text
    assert "a message was not sent: " in caplog.text


def test_a_producer_can_be_started_again(topic: str, producer: Producer) -> None:
    producer.shutdown()
    producer.shutdown()
    with pytest.raises(ProducerSendSyncFailed, match="is not started: call start"):
        producer.send_sync(message(topic, "1"))
    producer.set_timeout(5000)
    producer.start()
    producer.start()
    assert producer.send_sync(message(topic, "1")).status is SendStatus.OK
    with pytest.raises(RocketMQException, match="set it up before"):
        producer.set_timeout(1000)


def test_a_transaction_ends_as_its_function_says(nameserver: str) -> None:
    topic = create_topic(nameserver, queues=1)
    checked: list[str] = []

    def check(found: ReceivedMessage) -> TransactionStatus:
        checked.append(str(found))
        return TransactionStatus.COMMIT

    def execute(found: ReceivedMessage, said: object) -> TransactionStatus:
        assert (found.topic, len(found.id)) == (topic, 32)
        if said == "fail":
            raise ZeroDivisionError
        return said  # type: ignore[return-value]

    producer = TransactionMQProducer("P-transactions", check, timeout=5000)
    producer.set_name_server_address(nameserver)
    seen = Seen()
    with producer, consumer(nameserver, f"G-{topic}", **{topic: seen}):
        assert producer._settings == {"timeout": 5.0}
        for name, say in [
            ("committed", TransactionStatus.COMMIT),
            ("rolled back", TransactionStatus.ROLLBACK),
            ("unknown", TransactionStatus.UNKNOWN),
            ("by number", 0),
            ("nonsense", "nonsense"),
            ("failed", "fail"),
        ]:
            result = producer.send_message_in_transaction(message(topic, name), execute, say)
            assert result.status is SendStatus.OK
        seen.until("committed", "by number", "unknown", "nonsense", "failed")
    assert {"unknown", "nonsense", "failed"} <= set(checked)
    assert "rolled back" not in checked


# Consumers


def test_each_topic_keeps_its_callback(nameserver: str, producer: Producer) -> None:
    first, second = create_topic(nameserver), create_topic(nameserver)
    one, other = Seen(), Seen()
    made = PushConsumer("G-two")
    made.set_namesrv_addr(nameserver)
    made.set_thread_count(3)
    made.set_message_batch_max_size(5)
    made.set_instance_name("mine")
    made.subscribe(first, one, "a || b")
    made.start()
    made.subscribe(second, other)
    until_read(made, second)
    for topic in (first, second):
        for tag in "abc":
            producer.send_sync(message(topic, tag, tag))
    one.until("a", "b")
    other.until("a", "b", "c")
    made.shutdown()
    made.shutdown()


def test_a_message_is_retried_if_the_callback_says_so_or_fails(
    nameserver: str, topic: str, producer: Producer, caplog: pytest.LogCaptureFixture
) -> None:
    answers: dict[str, object] = {
        "nothing": None,
        "true": True,
        "success": ConsumeStatus.CONSUME_SUCCESS,
        "zero": 0,
        "else": "whatever",
        "false": False,
        "later": ConsumeStatus.RECONSUME_LATER,
        "one": 1,
    }

    def say(found: ReceivedMessage) -> object:
        if found.reconsume_times:
            return None
        if str(found) == "fail":
            raise ZeroDivisionError
        return answers[str(found)]

    seen = Seen(say)
    with consumer(nameserver, f"G-{topic}", **{topic: seen}):
        for name in (*answers, "fail"):
            producer.send_sync(message(topic, name))
        seen.until(*answers, "fail", "later", "one", "fail")
    assert {str(m) for m in seen.messages if m.reconsume_times} == {"later", "one", "fail"}
    assert "returned False, which counts as consumed" in caplog.text


def test_an_orderly_consumer_keeps_the_order(nameserver: str, producer: Producer) -> None:
    topic = create_topic(nameserver, queues=1)
    for n in range(20):
        producer.send_orderly_with_sharding_key(message(topic, str(n)), b"key")
    seen = Seen(lambda found: ConsumeStatus.CONSUME_SUCCESS)
    made = PushConsumer(f"G-{topic}", orderly=True)
    made.set_name_server_address(nameserver)
    made.subscribe(topic, seen)
    with made:
        seen.until(*map(str, range(20)))
    assert [str(found) for found in seen.messages] == list(map(str, range(20)))


def test_a_broadcasting_consumer_gets_all(
    nameserver: str,
    topic: str,
    producer: Producer,
    tmp_path: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    seen = [Seen(), Seen()]
    made = [PushConsumer(f"G-{topic}", message_model=MessageModel.BROADCASTING) for _ in range(2)]
    for number, one in enumerate(made):
        one.set_name_server_address(nameserver)
        one.set_instance_name(f"i{number}")
        one.subscribe(topic, seen[number])
    with made[0], made[1]:
        producer.send_sync(message(topic, "1"))
        for one in seen:
            one.until("1")


def test_a_topic_that_is_not_there_is_waited_for(nameserver: str, producer: Producer) -> None:
    topic, seen = f"Later-{uuid.uuid4().hex[:8]}", Seen()
    with consumer(nameserver, f"G-{topic}", **{topic: seen}):
        producer.send_sync(message(topic, "1"))
        seen.until("1")


def test_pull_goes_on_where_the_group_has_come_to(
    nameserver: str, topic: str, producer: Producer
) -> None:
    def pulled(
        *expected: str, expression: str = "*", group: str = "", breaks: bool = False
    ) -> None:
        """Just these. A message is in its queue a little after its producer is told."""
        made = PullConsumer(group or f"G-{topic}")
        made.set_namesrv_addr(nameserver)
        found: list[str] = []
        deadline = time.monotonic() + PATIENCE
        with made:
            while True:
                for one in made.pull(topic, expression, 2):
                    found.append(str(one))
                    if breaks:
                        break
                if len(found) >= len(expected):
                    break
                assert time.monotonic() < deadline, found
        assert sorted(found) == sorted(expected)

    pulled()
    for n in range(9):
        producer.send_sync(message(topic, str(n), "ab"[n % 2]))
    pulled(*map(str, range(9)))
    pulled()
    producer.send_sync(message(topic, "9", "b"))
    pulled("9")
    pulled("1", "3", "5", "7", "9", expression="b", group=f"G-b-{topic}")
    pulled(*map(str, range(10)), group=f"G-breaks-{topic}", breaks=True)


# What goes wrong


def test_errors_have_the_names_programs_catch_and_tell_the_reason(
    nameserver: str, topic: str, producer: Producer
) -> None:
    nowhere = "127.0.0.1:1"
    made = Producer("P")
    made.set_namesrv_addr(nowhere)
    with pytest.raises(ProducerStartFailed, match=nowhere) as caught:
        made.start()
    assert isinstance(caught.value.__cause__, Unreachable)
    with pytest.raises(ProducerStartFailed, match="no name server is given"):
        Producer("P").start()
    with pytest.raises(ProducerStartFailed, match="'a b' can't be the name of a group"):
        Producer("a b").start()
    push = consumer(nowhere, "G")
    push.subscribe(topic, print)
    with pytest.raises(PushConsumerStartFailed, match=nowhere):
        push.start()
    with pytest.raises(PushConsumerStartFailed, match="subscribes to nothing"):
        consumer(nameserver, "G").start()
    with pytest.raises(PullConsumerStartFailed, match="no name server is given"):
        PullConsumer("G").start()
    pull = PullConsumer("G")
    pull.set_name_server_address(nameserver)
    with pytest.raises(ConsumerException, match="is not started"):
        next(iter(pull.pull(topic)))
    with pull, pytest.raises(PullConsumerFetchMQFailed, match="Nowhere"):
        next(iter(pull.pull("Nowhere")))
    with pytest.raises(ProducerSendSyncFailed, match="has no body"):
        producer.send_sync(Message(topic))
    with pytest.raises(ProducerSendSyncFailed, match="needs a message"):
        producer.send_batch([])
    reserved = message(topic, "1")
    reserved.set_property("UNIQ_KEY", "mine")
    with pytest.raises(ProducerSendOrderlyFailed, match="keeps this name for itself") as refused:
        producer.send_orderly(reserved, 1)
    assert isinstance(refused.value.__cause__, Error)
    assert isinstance(refused.value, RocketMQException)


def test_what_is_not_built_is_said(caplog: pytest.LogCaptureFixture) -> None:
    for made in (Producer("P"), PushConsumer("G"), PullConsumer("G")):
        for call in (made.set_namesrv_domain, made.set_name_server_domain):
            with pytest.raises(NotImplementedError, match="give set_name_server_address"):
                call("http://names.example/rocketmq")
        with pytest.raises(RocketMQException, match="access_secret is empty"):
            made.set_session_credentials("key", "", "ALIYUN")
        made.set_session_credentials("", "", "")
        made.set_message_trace(False)
        assert not caplog.text
    made.set_message_trace(True)
    assert "there is no message trace" in caplog.text


def test_a_callback_may_shut_its_producer_down(topic: str, producer: Producer) -> None:
    done = threading.Event()

    def end(result: SendResult) -> None:
        producer.shutdown()
        done.set()

    producer.send_async(message(topic, "1"), end)
    assert done.wait(PATIENCE)
