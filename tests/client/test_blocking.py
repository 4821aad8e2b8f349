"""The client without `await`: threads, Ctrl-C, forks, and that it is the same as the other."""

import asyncio
import inspect
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest
from client.targets import Cluster

from tamis import client
from tamis.client import (
    ConsumerConfig,
    Message,
    ProducerConfig,
    ReceivedMessage,
    RetryLater,
    SendStatus,
    TransactionState,
    admin,
    blocking,
)
from tamis.errors import ClientClosed, Error, InvalidMessage, TopicNotFound, Unreachable

PATIENCE = 30.0  # seconds
QUICK = ConsumerConfig(start="first", commit_interval=0.2, rebalance_interval=1.0)


@pytest.fixture(scope="module")
def nameserver(cluster: Cluster) -> str:
    return cluster.nameserver


@pytest.fixture
def topic(nameserver: str) -> str:
    """Of one queue."""
    name = f"T-{uuid.uuid4().hex[:8]}"
    with blocking.Admin(nameserver) as one:
        one.create_topic(name, queues=1)
    return name


@pytest.fixture
def producer(nameserver: str) -> Iterator[blocking.Producer]:
    with blocking.Producer(nameserver) as one:
        yield one


def reader(nameserver: str, topic: str, group: str = "") -> blocking.Consumer:
    made = blocking.Consumer(nameserver, group or f"G-{uuid.uuid4().hex[:8]}", config=QUICK)
    made.subscribe(topic)
    return made


def fill(producer: blocking.Producer, topic: str, *bodies: str) -> None:
    for body in bodies:
        producer.send(Message(topic, body.encode()))


def take(consumer: blocking.Consumer, count: int) -> list[str]:
    found: list[str] = []
    deadline = time.monotonic() + PATIENCE
    while len(found) < count:
        found += [one.text for one in consumer.getmany(count - len(found), timeout=1.0)]
        assert time.monotonic() < deadline, found
    return found


def until(condition: Callable[[], object], shown: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, shown()
        time.sleep(0.005)


# Sending


def test_what_is_sent_is_consumed(nameserver: str, topic: str, producer: blocking.Producer) -> None:
    sent = producer.send(Message(topic, "ärger".encode(), tags="a", keys="k"))
    assert (sent.status, sent.queue.topic, sent.offset) == (SendStatus.OK, topic, 0)
    with reader(nameserver, topic) as consumer:
        for message in consumer:
            assert (message.text, message.tags, message.keys) == ("ärger", "a", ("k",))
            assert message.message_id == sent.message_id
            break
        assert [queue.topic for queue in consumer.assignment] == [topic]


def test_submit_gives_futures_in_the_order_of_the_queue(
    topic: str, producer: blocking.Producer
) -> None:
    futures = [producer.submit(Message(topic, b"%d" % n), key="k") for n in range(500)]
    assert [one.result(PATIENCE).offset for one in futures] == list(range(500))


def test_what_send_raises_is_in_the_future(topic: str, producer: blocking.Producer) -> None:
    with pytest.raises(InvalidMessage):
        producer.send(Message(topic, b""))
    failed = producer.submit(Message(topic, b""))
    assert isinstance(failed.exception(PATIENCE), InvalidMessage)


def test_any_thread_may_send(nameserver: str, topic: str, producer: blocking.Producer) -> None:
    def send(thread: int) -> None:
        for n in range(50):
            producer.send(Message(topic, f"{thread} {n}".encode()))

    with ThreadPoolExecutor(8) as threads:
        done, _ = wait([threads.submit(send, thread) for thread in range(8)])
        assert [one.exception() for one in done] == [None] * 8
    with reader(nameserver, topic) as consumer:
        found = take(consumer, 400)
    assert sorted(found) == sorted(f"{thread} {n}" for thread in range(8) for n in range(50))
    for thread in range(8):
        own = [text for text in found if text.startswith(f"{thread} ")]
        assert own == [f"{thread} {n}" for n in range(50)]


def test_a_batch_gives_a_result_a_message(topic: str, producer: blocking.Producer) -> None:
    sent = producer.send_batch(Message(topic, b"%d" % n) for n in range(3))
    assert [one.offset for one in sent] == [0, 1, 2]


def test_one_way_arrives(nameserver: str, topic: str, producer: blocking.Producer) -> None:
    producer.send_oneway(Message(topic, b"gone"))
    with reader(nameserver, topic) as consumer:
        assert take(consumer, 1) == ["gone"]


def test_closing_waits_for_what_was_submitted(nameserver: str, topic: str) -> None:
    with blocking.Producer(nameserver) as producer:
        futures = [producer.submit(Message(topic, b"x")) for _ in range(100)]
    assert all(one.done() for one in futures)
    assert {one.result().status for one in futures} == {SendStatus.OK}
    with pytest.raises(ClientClosed):
        producer.send(Message(topic, b"late"))


def test_a_name_server_that_is_not_there_is_named() -> None:
    config = ProducerConfig(connect_timeout=2.0)
    with (
        pytest.raises(Unreachable, match=r"127\.0\.0\.1:1 "),
        blocking.Producer("127.0.0.1:1", config=config),
    ):
        pass


def test_a_transaction_is_seen_when_its_block_has_ended_well(nameserver: str, topic: str) -> None:
    def check(message: ReceivedMessage) -> bool:
        return message.text == "open"

    with blocking.Producer(nameserver, "P-transactions", check=check) as producer:
        with producer.transaction(Message(topic, b"good")) as transaction:
            assert transaction.result.status is SendStatus.OK
        with pytest.raises(ZeroDivisionError), producer.transaction(Message(topic, b"bad")):
            raise ZeroDivisionError
        with producer.transaction(Message(topic, b"taken back")) as transaction:
            transaction.rollback()
        with producer.transaction(Message(topic, b"open")) as transaction:
            transaction.leave_open()
        _, state = producer.send_in_transaction(Message(topic, b"run"), lambda *_: True)
        assert state is TransactionState.COMMIT
        with reader(nameserver, topic) as consumer:
            assert sorted(take(consumer, 3)) == ["good", "open", "run"]


def test_a_request_is_replied_to_by_a_handler(
    nameserver: str, topic: str, producer: blocking.Producer
) -> None:
    def answer(message: ReceivedMessage) -> None:
        producer.reply(message, message.body.upper())  # in a thread: it may wait

    consumer = blocking.PushConsumer(nameserver, f"G-{topic}", config=QUICK)
    consumer.subscribe(topic, answer)
    with consumer:
        assert producer.request(Message(topic, b"hello"), timeout=PATIENCE).body == b"HELLO"


# Consuming


def test_an_exception_leaves_the_last_message_uncommitted(
    nameserver: str, topic: str, producer: blocking.Producer
) -> None:
    fill(producer, topic, "1", "2", "3", "4")
    group = f"G-{uuid.uuid4().hex[:8]}"
    seen = []

    def fail_at_three() -> None:
        with reader(nameserver, topic, group) as consumer:
            for message in consumer:
                seen.append(message.text)
                if message.text == "3":
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_at_three()
    assert seen == ["1", "2", "3"]
    with reader(nameserver, topic, group) as consumer:
        assert take(consumer, 2) == ["3", "4"]
    with reader(nameserver, topic, group) as consumer:  # the end without one commits all
        [queue] = consumer.assignment
        assert (consumer.committed(queue), consumer.position(queue)) == (4, 4)


def test_many_and_batches_and_offsets(
    nameserver: str, topic: str, producer: blocking.Producer
) -> None:
    fill(producer, topic, "1", "2", "3", "4", "5")
    with reader(nameserver, topic) as consumer:
        assert take(consumer, 5) == ["1", "2", "3", "4", "5"]
        assert consumer.getmany(timeout=0.0) == []
        [queue] = consumer.queues(topic)
        assert (consumer.first_offset(queue), consumer.last_offset(queue)) == (0, 5)
        consumer.seek(queue, 3)
        assert take(consumer, 1) == ["4"]
        consumer.seek_to_first()
        rows = [row for batch in consumer.batches(idle=0.5) for row in batch.to_pylist()]
        assert [row["body"] for row in rows] == [b"1", b"2", b"3", b"4", b"5"]
        consumer.commit()
        assert consumer.committed(queue) == 5
        consumer.seek_to_time(1000)
        assert consumer.offset_at(queue, 1000) == consumer.position(queue) == 0


def test_iteration_ends_when_another_thread_closes_it(nameserver: str, topic: str) -> None:
    consumer = reader(nameserver, topic)
    consumer.start()
    with ThreadPoolExecutor(1) as threads:
        found = threads.submit(list, consumer)
        until(lambda: is_waiting(threads), lambda: "it does not wait")
        consumer.close()
        assert found.result(PATIENCE) == []


def is_waiting(threads: ThreadPoolExecutor | None = None) -> bool:
    """Whether the thread, or the main one, waits for the loop."""
    thread = next(iter(threads._threads)) if threads is not None else threading.main_thread()
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        if frame.f_code.co_name == "result" and "_background" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


def test_handlers_are_called_until_another_thread_closes_it(
    nameserver: str, topic: str, producer: blocking.Producer
) -> None:
    seen: list[tuple[str, int]] = []

    def handle(message: ReceivedMessage) -> object:
        seen.append((message.text, message.reconsume_times))
        return RetryLater(1) if message.reconsume_times == 0 and message.text == "2" else None

    consumer = blocking.PushConsumer(nameserver, f"G-{topic}", handle, config=QUICK)
    consumer.subscribe(topic, tags="a || b")
    with ThreadPoolExecutor(1) as threads:
        ended = threads.submit(consumer.run)
        for number, tag in enumerate("abc"):
            producer.send(Message(topic, b"%d" % (number + 1), tags=tag))
        until(lambda: len(seen) == 3, lambda: seen)
        assert [queue.topic for queue in consumer.assignment] == [f"%RETRY%G-{topic}", topic]
        consumer.pause()
        consumer.resume()
        consumer.close()
        assert ended.result(PATIENCE) is None
    assert sorted(seen) == [("1", 0), ("2", 0), ("2", 1)]


def test_a_topic_that_is_not_there_is_an_error(nameserver: str) -> None:
    with pytest.raises(TopicNotFound, match="Nowhere"), reader(nameserver, "Nowhere"):
        pass


# Threads


def test_what_would_wait_for_its_own_thread_is_refused(
    topic: str, producer: blocking.Producer
) -> None:
    def select(queues: Any, message: Message) -> Any:
        return producer.queues(topic)[0]

    with pytest.raises(Error, match="can't make blocking calls"):
        producer.send(Message(topic, b"x"), selector=select)


def test_a_handler_that_exits_does_not_take_the_others_along(
    nameserver: str, topic: str, producer: blocking.Producer
) -> None:
    called = threading.Event()

    async def leave(message: ReceivedMessage) -> None:
        called.set()
        raise SystemExit(3)

    consumer = blocking.PushConsumer(nameserver, f"G-{topic}", leave, config=QUICK)
    consumer.subscribe(topic)
    with consumer:
        fill(producer, topic, "1")
        assert called.wait(PATIENCE)
        assert producer.send(Message(topic, b"2")).status is SendStatus.OK


# Ctrl-C


@pytest.fixture(autouse=True)
def interrupts() -> Iterator[None]:
    """Come as KeyboardInterrupt: a process that was started in the background ignores them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt_when_waiting() -> threading.Thread:
    def interrupt() -> None:
        until(is_waiting, lambda: "it does not wait")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    return thread


def test_an_interrupted_wait_can_be_taken_up_again(
    nameserver: str, topic: str, producer: blocking.Producer
) -> None:
    with reader(nameserver, topic) as consumer:
        for wait_for_one in (lambda: next(consumer), lambda: consumer.getmany(timeout=PATIENCE)):
            thread = interrupt_when_waiting()
            with pytest.raises(KeyboardInterrupt):
                wait_for_one()
            thread.join()
        fill(producer, topic, "1")
        assert take(consumer, 1) == ["1"]


def test_what_was_taken_when_the_interrupt_came_is_not_lost(
    nameserver: str, topic: str, producer: blocking.Producer
) -> None:
    fill(producer, topic, "1", "2")
    group = f"G-{topic}"

    def interrupt(consumer: blocking.Consumer) -> None:
        async def take_and_wait() -> None:
            [message] = await consumer._inner.getmany(1)
            assert message.text == "1"
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            await asyncio.Event().wait()

        with pytest.raises(KeyboardInterrupt):
            consumer._take(take_and_wait)

    with reader(nameserver, topic, group) as consumer:
        interrupt(consumer)
    with reader(nameserver, topic, group) as consumer:
        interrupt(consumer)
        consumer.commit()
        assert [consumer.committed(queue) for queue in consumer.assignment] == [0]
        assert take(consumer, 2) == ["1", "2"]


def test_an_interrupted_run_waits_for_its_handlers(
    nameserver: str, topic: str, producer: blocking.Producer
) -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def handle(message: ReceivedMessage) -> None:
        begun.set()
        assert go_on.wait(PATIENCE)
        ended.set()

    fill(producer, topic, "1")
    consumer = blocking.PushConsumer(nameserver, f"G-{topic}", handle, config=QUICK)
    consumer.subscribe(topic)

    def interrupt() -> None:
        assert begun.wait(PATIENCE)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        until(lambda: consumer._inner.is_draining, lambda: "it is not being closed")
        go_on.set()

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        consumer.run()
    assert ended.is_set()
    thread.join()
    with reader(nameserver, topic, f"G-{topic}") as after:
        assert [after.committed(queue) for queue in after.assignment] == [1]


# Processes


def program(text: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", text, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def test_what_is_not_closed_is_closed_at_the_end_of_the_program(
    nameserver: str, topic: str
) -> None:
    text = """
import sys
from tamis.client import Message, blocking
producer = blocking.Producer(sys.argv[1])
producer.start()
for n in range(300):
    producer.submit(Message(sys.argv[2], b"%d" % n), key="k")
"""
    program(text, nameserver, topic)
    with reader(nameserver, topic) as consumer:
        assert take(consumer, 300) == [str(n) for n in range(300)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_a_forked_child_makes_its_own(nameserver: str, topic: str) -> None:
    text = """
import os, sys
from tamis.client import Message, blocking
from tamis.errors import Error
with blocking.Producer(sys.argv[1]) as producer:
    producer.send(Message(sys.argv[2], b"parent, before"))
    child = os.fork()
    if child == 0:
        try:
            producer.send(Message(sys.argv[2], b"never"))
        except Error as error:
            print(error, flush=True)
        producer.close()
        with blocking.Producer(sys.argv[1]) as own:
            own.send(Message(sys.argv[2], b"child"))
            print(own.client_id != producer.client_id, flush=True)
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0
    producer.send(Message(sys.argv[2], b"parent, after"))
"""
    refused = "this producer was made in another process: make a new one after a fork"
    assert program(text, nameserver, topic).splitlines() == [refused, "True"]
    with reader(nameserver, topic) as consumer:
        assert take(consumer, 3) == ["parent, before", "child", "parent, after"]


def test_importing_it_starts_nothing() -> None:
    text = """
import sys, threading
import tamis.client.blocking, tamis.client.compat
print(threading.active_count(), [m for m in ("numpy", "pyarrow", "numba") if m in sys.modules])
"""
    assert program(text) == "1 []\n"


# The same as the other


PAIRS = [
    (client.Producer, blocking.Producer),
    (client.Consumer, blocking.Consumer),
    (client.PushConsumer, blocking.PushConsumer),
    (admin.Admin, blocking.Admin),
    (client.transactions.Transaction, blocking.Transaction),
]
INTERNAL = {  # called by other parts of the client
    *("session", "held", "gain", "lose", "restart", "reports", "work_queues", "call", "slot"),
    *("done", "dead_letter", "renew", "max_reconsume_times", "is_draining", "queues_to_send"),
}


@pytest.mark.parametrize(("other", "ours"), PAIRS, ids=lambda one: one.__name__)
def test_it_has_what_the_other_has(other: type, ours: type) -> None:
    names = {name for name in vars(other) if not name.startswith("_")} - INTERNAL
    assert names <= set(dir(ours))
    for name in sorted(names):
        theirs, mine = getattr(other, name), getattr(ours, name)
        if not inspect.isfunction(theirs):
            continue
        assert not inspect.iscoroutinefunction(mine)
        expected = inspect.signature(theirs).parameters
        assert list(inspect.signature(mine).parameters.values()) == list(expected.values()), name


@pytest.mark.parametrize(("other", "ours"), PAIRS[:4], ids=lambda one: one.__name__)
def test_it_is_made_like_the_other(other: type, ours: type) -> None:
    expected = inspect.signature(other).parameters
    assert list(inspect.signature(ours).parameters.values()) == list(expected.values())
