"""What goes wrong, and what the client does then: servers die, connections break in the middle of a
frame, handlers are slow, raise, or never end.

Each docstring is the documented outcome. With TAMIS_INTEROP=required the servers are RocketMQ's
too.
"""

import asyncio
import contextlib
import re
import signal
import struct
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from broker.asking import ask, close, command, create_topic, until
from client.targets import TARGETS
from interop.cluster import ApacheCluster

from tamis.client import (
    Consumer,
    ConsumerConfig,
    Message,
    MessageQueue,
    Producer,
    ProducerConfig,
    PushConsumer,
    ReceivedMessage,
)
from tamis.errors import Error, SendFailed, Unreachable
from tamis.net import aio
from tamis.wire import beans
from tamis.wire.bodies import ConsumerData, ConsumeType, Heartbeat
from tamis.wire.codes import RequestCode

PATIENCE = 90.0  # seconds, for what takes one or two where nobody else is at work
QUEUES = 4
DELAYS = "1s 1s 1s 1s 1s 1s"  # a message that failed comes again after a second


# The servers


class Servers(Protocol):
    """A name server and a broker, each a process; they keep ports and data. To start one that runs
    does nothing."""

    nameserver: str
    broker: str

    def start_nameserver(self) -> None: ...

    def kill_nameserver(self) -> None: ...

    def start_broker(self) -> None: ...

    def kill_broker(self) -> None: ...


class Ours:
    """`tamis nameserver` and `tamis broker`."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.nameserver = self.broker = "127.0.0.1:0"

    def start_nameserver(self) -> None:
        if "nameserver" not in self._processes:
            self.nameserver = self._start("nameserver", "--port", _port(self.nameserver))

    def kill_nameserver(self) -> None:
        self._kill("nameserver")

    def start_broker(self) -> None:
        if "broker" not in self._processes:
            options = ["--port", _port(self.broker), "--nameserver", self.nameserver]
            options += ["--data", str(self._home / "data"), "--set", f"messageDelayLevel={DELAYS}"]
            self.broker = self._start("broker", *options)

    def kill_broker(self) -> None:
        self._kill("broker")

    def kill(self) -> None:
        for name in list(self._processes):
            self._kill(name)

    def _start(self, name: str, *options: str) -> str:
        """The address it says when it is ready."""
        said, log = self._home / f"{name}.out", self._home / f"{name}.log"
        line = [str(Path(sys.executable).with_name("tamis")), name, *options]
        with said.open("wb") as out, log.open("ab") as err:
            process = self._processes[name] = subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )
        deadline = time.monotonic() + 2 * PATIENCE  # the first time, some code is compiled
        while not (found := re.search(r"(\d+\.\d+\.\d+\.\d+:\d+).*\n", said.read_text())):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{name} does not start\n{log.read_text()[-3000:]}")
            time.sleep(0.02)
        return found[1]

    def _kill(self, name: str) -> None:
        process = self._processes.pop(name, None)
        if process is not None:
            process.kill()
            process.wait()


class Apaches(ApacheCluster):
    def start_nameserver(self) -> None:
        if "nameserver" not in self._processes:
            self._serve_names(int(_port(self.nameserver)))

    def kill_nameserver(self) -> None:
        self._end_one("nameserver", signal.SIGKILL)

    def start_broker(self) -> None:
        if "broker" not in self._processes:
            self._serve_broker()

    def kill_broker(self) -> None:
        self._end_one("broker", signal.SIGKILL)


def _port(address: str) -> str:
    return address.rpartition(":")[2]


@pytest.fixture(scope="module", params=TARGETS)
def processes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Servers]:
    home = tmp_path_factory.mktemp(request.param)
    started: Ours | Apaches
    if request.param != "tamis":
        settings = {"messageDelayLevel": DELAYS, "registerNameServerPeriod": 10_000}
        started = Apaches(home / "store", line=request.param, **settings)
        started.start()
    else:
        started = Ours(home)
    try:
        yield started
    finally:
        started.kill()


@pytest.fixture
def servers(processes: Servers) -> Servers:
    """They run, whatever a test before did."""
    processes.start_nameserver()
    processes.start_broker()
    return processes


def run(work: Coroutine[Any, Any, None]) -> None:
    async def patiently() -> None:
        async with asyncio.timeout(4 * PATIENCE):
            await work

    asyncio.run(patiently())


async def made(servers: Servers, topic: str, queues: int = QUEUES) -> str:
    """A topic that the name server knows."""
    peer = await aio.connect(servers.broker, PATIENCE)
    await create_topic(peer, topic, queues)
    await close(peer)
    async with Producer(servers.nameserver) as producer:
        await known(producer, topic)
    return topic


async def known(producer: Producer, topic: str) -> list[MessageQueue]:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return await producer.queues(topic)
        except Error:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.05)


def quick(**settings: Any) -> ConsumerConfig:
    return ConsumerConfig(
        **{
            "start": "first",
            "route_interval": 0.5,
            "heartbeat_interval": 0.5,
            "rebalance_interval": 1.0,
            "commit_interval": 0.2,
            **settings,
        }
    )


async def wait(condition: Callable[[], Any], state: Callable[[], object]) -> None:
    await until(lambda: bool(condition()), state, PATIENCE)


# What was sent and what came


class Journal:
    """Bodies are numbers."""

    def __init__(self) -> None:
        self.acked: set[str] = set()
        self.refused: list[Exception] = []
        self.handled: Counter[str] = Counter()
        self.order: dict[MessageQueue, list[int]] = defaultdict(list)  # offsets, the first time
        self._number = 0
        self._is_sending = True

    async def send(self, producer: Producer, topic: str, padding: int = 0) -> None:
        self._number += 1
        body = f"{self._number}".ljust(padding)
        try:
            await producer.send(Message(topic, body.encode()))
        except SendFailed as error:
            self.refused.append(error)
        else:
            self.acked.add(body)

    async def send_on(self, producer: Producer, topic: str) -> None:
        while self._is_sending:
            await self.send(producer, topic)
            await asyncio.sleep(0.002)  # others are to get a turn too

    def stop(self) -> None:
        self._is_sending = False

    async def handle(self, message: ReceivedMessage) -> None:
        if not self.handled[message.text]:
            self.order[message.queue].append(message.offset)
        self.handled[message.text] += 1

    @property
    def missing(self) -> set[str]:
        return self.acked - set(self.handled)

    async def grows(self, by: int = 30) -> None:
        """Messages are acknowledged and handled."""
        acked, handled = len(self.acked) + by, len(self.handled) + by
        await wait(lambda: len(self.acked) >= acked and len(self.handled) >= handled, self.state)

    async def refuses(self) -> None:
        count = len(self.refused)
        await wait(lambda: len(self.refused) > count, self.state)

    async def complete(self) -> None:
        await wait(lambda: not self.missing, self.state)

    def state(self) -> str:
        return (
            f"{len(self.acked)} acknowledged, {len(self.refused)} refused"
            f" (the last: {self.refused[-1:]}), {len(self.handled)} handled,"
            f" missing: {sorted(self.missing, key=int)[:10]}"
        )


@contextlib.asynccontextmanager
async def sending(journal: Journal, producer: Producer, topic: str) -> AsyncIterator[None]:
    """All the while; at the end, everything acknowledged has been handled."""
    tasks = [asyncio.create_task(journal.send_on(producer, topic)) for _ in range(3)]
    try:
        yield
    finally:
        journal.stop()
        await asyncio.gather(*tasks)
    await journal.complete()


def consumer(
    nameserver: str, group: str, topic: str, handler: Any, *, ordered: bool = False, **settings: Any
) -> PushConsumer:
    made = PushConsumer(nameserver, group, handler, ordered=ordered, config=quick(**settings))
    made.subscribe(topic)
    return made


# Servers die


@pytest.mark.parametrize("ordered", [False, True])
def test_a_killed_broker_loses_nothing_acknowledged_and_consumers_go_on(
    servers: Servers, ordered: bool
) -> None:
    """A broker dies and comes back: sends are tried again and then raise SendFailed, none that was
    acknowledged is lost, consumers go on by themselves; some messages may come twice."""

    async def body() -> None:
        topic = await made(servers, f"Killed-{ordered}")
        journal = Journal()
        config = ProducerConfig(route_interval=0.5, heartbeat_interval=0.5)
        async with (
            Producer(servers.nameserver, config=config) as producer,
            consumer(servers.nameserver, topic, topic, journal.handle, ordered=ordered),
            sending(journal, producer, topic),
        ):
            for both in (False, True):
                await journal.grows()
                await asyncio.to_thread(servers.kill_broker)
                if both:
                    await asyncio.to_thread(servers.kill_nameserver)
                await journal.refuses()
                if both:
                    await asyncio.to_thread(servers.start_nameserver)
                await asyncio.to_thread(servers.start_broker)
            await journal.grows()
        if ordered:
            for queue, offsets in journal.order.items():
                assert offsets == sorted(offsets), f"{queue} was not handled in order"

    run(body())


def test_without_a_name_server_known_topics_go_on_and_new_ones_wait_for_it(
    servers: Servers,
) -> None:
    """The name server is gone: what is known goes on being sent to and consumed; a topic not known
    yet is SendFailed, a client not started yet Unreachable. When it is back nothing need be done.
    """

    async def body() -> None:
        topic = await made(servers, "NameServer")
        journal = Journal()
        config = ProducerConfig(route_interval=0.2, heartbeat_interval=0.2)
        async with (
            Producer(servers.nameserver, config=config) as producer,
            consumer(servers.nameserver, topic, topic, journal.handle, route_interval=0.2),
            sending(journal, producer, topic),
        ):
            await journal.grows()
            await asyncio.to_thread(servers.kill_nameserver)
            await journal.grows(300)
            with pytest.raises(SendFailed) as refused:
                await producer.send(Message("NameServer-new", b"x"))
            assert isinstance(refused.value.cause, Unreachable)
            with pytest.raises(Unreachable):
                await Producer(servers.nameserver).start()
            with pytest.raises(Unreachable):
                await consumer(servers.nameserver, "late", topic, journal.handle).start()

            await asyncio.to_thread(servers.start_nameserver)
            late = Journal()
            async with asyncio.timeout(PATIENCE):  # brokers register again after a while
                while not late.acked:
                    await late.send(producer, "NameServer-new")
            await made(servers, "NameServer-new")
            async with consumer(servers.nameserver, "late", "NameServer-new", late.handle):
                await late.complete()
            await journal.grows()
        assert not journal.refused, journal.state()

    run(body())


# Connections break


Cut = tuple[str, int, bool]  # which way, after how many bytes, and whether by a reset


class Gateway:
    """Between a client and the servers: in what the name server says it puts its own address for
    the broker's, and it cuts connections to that."""

    def __init__(self, servers: Servers, cuts: Iterable[Cut] = ()) -> None:
        self._servers = servers
        self.cuts = deque(cuts)  # one a connection, in turn; then none is cut
        self.connections = 0

    async def __aenter__(self) -> "Gateway":
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening = [
            await asyncio.start_server(self._tracked(self._rewrite), "127.0.0.1", 0),
            await asyncio.start_server(self._tracked(self._pass), "127.0.0.1", 0),
        ]
        names, self._broker = (
            f"127.0.0.1:{one.sockets[0].getsockname()[1]}" for one in self._listening
        )
        self.nameserver = names
        return self

    async def __aexit__(self, *_: object) -> None:
        for one in self._listening:
            one.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for one in self._listening:
            await one.wait_closed()

    def _tracked(self, work: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(self._connect(work, reader, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return begin

    async def _connect(
        self,
        work: Callable[..., Coroutine[Any, Any, None]],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        address = self._servers.nameserver if work == self._rewrite else self._servers.broker
        there: asyncio.StreamWriter | None = None
        try:
            answers, there = await asyncio.open_connection(*aio.parse_address(address))
            await work(reader, writer, answers, there)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # then the other end is closed too
        finally:
            for one in (writer, there):
                if one is not None:
                    one.close()
                    with contextlib.suppress(ConnectionError):
                        await one.wait_closed()

    async def _rewrite(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answers: asyncio.StreamReader,
        there: asyncio.StreamWriter,
    ) -> None:
        while True:
            there.write(await _frame(reader))
            data = (await _frame(answers))[4:]
            data = data.replace(self._servers.broker.encode(), self._broker.encode())
            writer.write(struct.pack(">i", len(data)) + data)

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        answers: asyncio.StreamReader,
        there: asyncio.StreamWriter,
    ) -> None:
        self.connections += 1
        way, limit, reset = self.cuts.popleft() if self.cuts else ("", 0, False)
        copies = [
            asyncio.create_task(_copy(reader, there, limit if way == "up" else None)),
            asyncio.create_task(_copy(answers, writer, limit if way == "down" else None)),
        ]
        try:
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for copy in copies:
                copy.cancel()
            await asyncio.gather(*copies, return_exceptions=True)
        if way and reset:
            writer.transport.abort()
            there.transport.abort()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    length = await reader.readexactly(4)
    return length + await reader.readexactly(*struct.unpack(">i", length))


async def _copy(
    source: asyncio.StreamReader, target: asyncio.StreamWriter, limit: int | None
) -> None:
    while limit is None or limit > 0:
        data = await source.read(65_536 if limit is None else limit)
        if not data:
            return
        target.write(data)
        await target.drain()
        if limit is not None:
            limit -= len(data)


@pytest.mark.parametrize("retries", [0, 2])
def test_sends_over_a_connection_that_breaks_anywhere_are_acknowledged_or_raise(
    servers: Servers, retries: int
) -> None:
    """A connection breaks within a frame: a send is tried again on a new one as often as `retries`
    says, then raises SendFailed; what was acknowledged is stored, what raised may be."""

    async def body() -> None:
        topic = await made(servers, f"CutSends-{retries}")
        journal = Journal()
        step = 61 if retries else 9  # there are pauses between attempts
        cuts = [
            (way, limit, (limit // step) % 2 == 0)
            for limit in range(0, 1800, step)
            for way in ("up", "down")
        ]
        async with (
            Gateway(servers, cuts) as gateway,
            Producer(gateway.nameserver, config=ProducerConfig(retries=retries)) as producer,
        ):
            while gateway.cuts:
                await journal.send(producer, topic, padding=200)
            acked = len(journal.acked)
            for _ in range(20):
                await journal.send(producer, topic)
            assert len(journal.acked) >= acked + 19, journal.state()  # the last cut may be to come
        if not retries:
            assert journal.refused, "no cut met a send"
        async with consumer(servers.nameserver, topic, topic, journal.handle):
            await journal.complete()

    run(body())


@pytest.mark.parametrize("way", ["up", "down"])
def test_consumers_whose_connection_breaks_anywhere_miss_nothing(
    servers: Servers, way: str
) -> None:
    """A connection breaks within a frame: a consumer connects again after a second at most and goes
    on where it was; nothing is left out, some messages may come twice."""

    async def body() -> None:
        topic = await made(servers, f"CutPulls-{way}")
        first, last = {f"{n}" for n in range(80)}, {f"{n}" for n in range(80, 100)}

        async def follow(number: int) -> None:
            handled: Counter[str] = Counter()

            async def handle(message: ReceivedMessage) -> None:
                handled[message.text] += 1

            cuts = [(way, 61 * number + 977 * turn, number % 2 == 0) for turn in range(4)]
            async with (
                Gateway(servers, cuts) as gateway,
                consumer(gateway.nameserver, f"{topic}-{number}", topic, handle) as one,
            ):

                def state() -> object:
                    missing = sorted((first | last) - set(handled))
                    return number, gateway.connections, gateway.cuts, of(one, topic), missing

                await wait(lambda: first <= set(handled) and not gateway.cuts, state)
                ready.release()
                await wait(lambda: last <= set(handled), state)

        followers, ready = 16, asyncio.Semaphore(0)
        async with Producer(servers.nameserver) as producer, asyncio.TaskGroup() as group:
            for text in sorted(first):
                await producer.send(Message(topic, text))
            for number in range(followers):
                group.create_task(follow(number))
            for _ in range(followers):
                await ready.acquire()
            for text in sorted(last):
                await producer.send(Message(topic, text))

    run(body())


def test_a_connection_the_broker_has_not_forgotten_leaves_no_queue_unread(
    servers: Servers,
) -> None:
    """A connection breaks, and the broker still counts it as a member for up to two minutes: the
    client reads the queues of that place too."""

    async def body() -> None:
        topic = await made(servers, "Ghost")
        journal = Journal()
        one = consumer(
            servers.nameserver,
            topic,
            topic,
            journal.handle,
            client_ip="127.0.0.1",
            instance_name="I",
        )
        ghost = ConsumerData(
            group=topic,
            consume_type=ConsumeType.CONSUME_PASSIVELY,
            subscriptions=list(one.subscriptions.values()),
        )
        beat = Heartbeat(client_id=one.client_id, producers=[], consumers=[ghost])
        peer = await aio.connect(servers.broker, PATIENCE)
        await ask(peer, command(None, RequestCode.HEART_BEAT, beans.encode(beat)))
        async with one, Producer(servers.nameserver) as producer:
            await wait(lambda: len(of(one, topic)) == QUEUES, lambda: one.assignment)
            for _ in range(4 * QUEUES):
                await journal.send(producer, topic)
            await journal.complete()
        await close(peer)

    run(body())


def of(one: PushConsumer, topic: str) -> list[MessageQueue]:
    """Its queues of a topic."""
    return [queue for queue in one.assignment if queue.topic == topic]


# Handlers are slow, raise, or never end


@pytest.mark.parametrize("limit", ["messages", "bytes", "span"])
def test_a_slow_handler_is_given_no_more_than_the_limits_and_other_queues_go_on(
    servers: Servers, limit: str
) -> None:
    """A slow handler: no more of its queue is pulled than max_queue_messages, max_queue_bytes and
    max_span allow, and one pull beyond; other queues go on while `concurrency` leaves them room."""
    each, pull = 100, 4
    bounds = {"messages": {"max_queue_messages": 8}, "bytes": {"max_queue_bytes": 8 * 1300}}
    settings: dict[str, Any] = bounds.get(limit, {"max_span": 8})

    async def body() -> None:
        topic = await made(servers, f"Slow-{limit}")
        journal, gate = Journal(), asyncio.Event()
        cached: list[int] = []
        passed: set[int] = set()  # offsets of the slow queue

        async def handle(message: ReceivedMessage) -> None:
            if message.queue.queue_id == 0:
                if limit != "span" or message.offset == 0:
                    await gate.wait()
                passed.add(message.offset)
            await journal.handle(message)
            reports = slow.reports()
            cached.extend(reports[one].cached for one in reports if one.queue_id == 0)

        async with Producer(servers.nameserver) as producer:
            for queue in await producer.queues(topic):
                for number in range(each):
                    text = f"{queue.queue_id * each + number}".ljust(1000)
                    journal.acked.add(text)
                    await producer.send(Message(topic, text), queue=queue)
        slow = consumer(
            servers.nameserver, topic, topic, handle, concurrency=20, pull_size=pull, **settings
        )
        async with slow:
            others = {text for text in journal.acked if int(text) >= each}
            await wait(lambda: others <= set(journal.handled), journal.state)
            if limit == "span":
                await wait(lambda: max(passed, default=0) >= 8, lambda: passed)
                assert max(passed) < 8 + pull
            else:
                assert not passed
            gate.set()
            await journal.complete()
        assert 0 < max(cached) <= 8 + pull
        assert set(journal.handled.values()) == {1}

    run(body())


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
def test_a_message_whose_handler_raises_is_retried_and_then_a_dead_letter(
    servers: Servers, kind: str
) -> None:
    """A handler raises: the message comes again after a delay, max_reconsume_times times, then it
    is in the dead letter topic; other messages are not held up."""

    async def body() -> None:
        topic = await made(servers, f"Raises-{kind}")
        deliveries: dict[str, list[int]] = defaultdict(list)

        def note(message: ReceivedMessage) -> None:
            deliveries[message.text].append(message.reconsume_times)
            assert message.topic == topic
            if message.text == "bad":
                raise ValueError("it is bad")

        async def handle(message: ReceivedMessage) -> None:
            note(message)

        handler = handle if kind == "coroutine" else note
        async with (
            Producer(servers.nameserver) as producer,
            consumer(servers.nameserver, topic, topic, handler, max_reconsume_times=2),
        ):
            for text in ("bad", "good", "better"):
                await producer.send(Message(topic, text, tags="T", properties={"p": "1"}))
            dead = await dead_letters(servers, topic, 1)
        assert deliveries == {"bad": [0, 1, 2], "good": [0], "better": [0]}
        [letter] = dead
        assert (letter.text, letter.tags, letter.properties["p"]) == ("bad", "T", "1")
        assert letter.properties["RETRY_TOPIC"] == topic  # where it was sent to

    run(body())


def test_an_ordered_message_that_fails_is_tried_again_before_any_that_follows(
    servers: Servers,
) -> None:
    """An ordered handler raises: its queue waits `suspend` seconds and tries that message again;
    after max_reconsume_times it is in the dead letter topic and the queue goes on."""

    async def body() -> None:
        topic = await made(servers, "RaisesInOrder", queues=1)
        deliveries: list[str] = []

        async def handle(message: ReceivedMessage) -> None:
            deliveries.append(message.text)
            if message.text == "2":
                raise ValueError("it is bad")

        async with (
            Producer(servers.nameserver) as producer,
            consumer(
                servers.nameserver, topic, topic, handle,
                ordered=True, max_reconsume_times=2, suspend=0.05,
            ),
        ):  # fmt: skip
            for number in range(5):
                await producer.send(Message(topic, f"{number}"), key="k")
            [letter] = await dead_letters(servers, topic, 1)
            await wait(lambda: "4" in deliveries, lambda: deliveries)
        assert deliveries == ["0", "1", "2", "2", "2", "3", "4"]
        assert letter.text == "2"

    run(body())


async def dead_letters(servers: Servers, group: str, count: int) -> list[ReceivedMessage]:
    topic = f"%DLQ%{group}"
    async with Producer(servers.nameserver) as producer:
        queues = await known(producer, topic)
    found: list[ReceivedMessage] = []
    reader = Consumer(servers.nameserver, f"{group}-dead", config=quick())
    reader.assign(queues)
    async with reader:
        deadline = time.monotonic() + PATIENCE
        while len(found) < count:
            assert time.monotonic() < deadline, f"{topic}: {found}"
            found += await reader.getmany(timeout=0.5)
    return found


def test_a_coroutine_that_never_ends_is_cancelled_and_its_message_retried(
    servers: Servers,
) -> None:
    """A handler that is a coroutine does not end within handler_timeout: it is cancelled, and the
    message is retried as if it had failed."""

    async def body() -> None:
        topic = await made(servers, "EndlessTask")
        cancelled: list[str] = []
        done: list[tuple[str, int]] = []

        async def handle(message: ReceivedMessage) -> None:
            if message.text == "endless" and message.reconsume_times < 2:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    cancelled.append(message.text)
                    raise
            done.append((message.text, message.reconsume_times))

        async with (
            Producer(servers.nameserver) as producer,
            consumer(servers.nameserver, topic, topic, handle, handler_timeout=0.3, concurrency=1),
        ):
            for text in ("endless", "other"):
                await producer.send(Message(topic, text))
            await wait(lambda: len(done) == 2, lambda: (cancelled, done))
        assert cancelled == ["endless", "endless"]
        assert sorted(done) == [("endless", 2), ("other", 0)]

    run(body())


def test_a_thread_that_never_ends_is_left_and_another_takes_its_place(servers: Servers) -> None:
    """A handler in a thread does not end within handler_timeout: the thread is left to itself,
    another takes its place, and the message is retried; what the first says later counts for
    nothing. `close` does not wait for it."""

    async def body() -> None:
        topic = await made(servers, "EndlessThread")
        stuck, done = threading.Event(), list[tuple[str, int, int]]()

        def handle(message: ReceivedMessage) -> None:
            if message.text == "endless" and message.reconsume_times == 0:
                begun.append(threading.get_ident())
                stuck.wait()
                raise ValueError("nobody hears this")
            done.append((message.text, message.reconsume_times, threading.get_ident()))

        begun: list[int] = []
        try:
            async with (
                Producer(servers.nameserver) as producer,
                consumer(
                    servers.nameserver, topic, topic, handle, handler_timeout=0.3, concurrency=1
                ),
            ):
                await producer.send(Message(topic, "endless"))
                await wait(lambda: bool(begun), lambda: (begun, done))
                await producer.send(Message(topic, "other"))
                await wait(lambda: len(done) == 2, lambda: (begun, done))
            assert not stuck.is_set()
            assert sorted(one[:2] for one in done) == [("endless", 1), ("other", 0)]
            assert len(begun) == 1
            assert begun[0] not in {thread for _, _, thread in done}
        finally:
            stuck.set()

    run(body())


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
@pytest.mark.parametrize("ordered", [False, True])
def test_a_consumer_that_is_closed_waits_for_its_handlers_only_so_long(
    servers: Servers, kind: str, ordered: bool
) -> None:
    """`close` waits `drain` seconds for handlers that run; what they had not done by then the next
    member of the group gets."""

    async def body() -> None:
        topic = await made(servers, f"Closed-{kind}-{ordered}", queues=1)
        stuck, begun = threading.Event(), list[str]()

        def handle_in_thread(message: ReceivedMessage) -> None:
            begun.append(message.text)
            stuck.wait()

        async def handle(message: ReceivedMessage) -> None:
            begun.append(message.text)
            await asyncio.Event().wait()

        handler: Any = handle if kind == "coroutine" else handle_in_thread
        try:
            async with Producer(servers.nameserver) as producer:
                await producer.send(Message(topic, "1"))
            first = consumer(servers.nameserver, topic, topic, handler, drain=0.2, ordered=ordered)
            await first.start()
            await wait(lambda: begun, lambda: "not begun")
            async with asyncio.timeout(PATIENCE):
                await first.close()
            journal = Journal()
            journal.acked.add("1")
            async with consumer(servers.nameserver, topic, topic, journal.handle, ordered=ordered):
                await journal.complete()
        finally:
            stuck.set()

    run(body())


PROGRAM = """
import asyncio, sys, threading
from tamis.client import ConsumerConfig, PushConsumer

nameserver, topic = sys.argv[1:]
begun = threading.Event()

def handle(message):
    begun.set()
    threading.Event().wait()

async def main():
    config = ConsumerConfig(start="first", drain=0.2)
    consumer = PushConsumer(nameserver, topic, handle, config=config)
    consumer.subscribe(topic)
    async with consumer:
        while not begun.is_set():
            await asyncio.sleep(0.01)
    print("closed", flush=True)

asyncio.run(main())
"""


def test_a_process_ends_though_a_handler_in_a_thread_never_does(servers: Servers) -> None:
    """A process can end while a handler still runs in a thread."""

    async def body() -> None:
        topic = await made(servers, "Exit")
        async with Producer(servers.nameserver) as producer:
            await producer.send(Message(topic, "1"))
        ended = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", PROGRAM, servers.nameserver, topic],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert (ended.returncode, ended.stdout) == (0, "closed\n"), ended.stderr

    run(body())
