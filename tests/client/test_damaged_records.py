"""Records that are damaged when they reach a consumer: what was taken before them is given, they
are named, and what follows is read."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from broker.asking import until
from client.relaying import DAMAGES, MARK, damaging
from client.targets import QUICK, in_loop

from tamis.client import Consumer, ConsumerConfig, Message, MessageQueue, PushConsumer, blocking
from tamis.client.compat import PullConsumer, PullConsumerFetchMessageFailed
from tamis.errors import UnreadableMessage
from tamis.testing import LocalCluster

TOPIC = "Orders"
QUEUE = MessageQueue(TOPIC, "broker-a", 0)
# the offset in the queue is the number
BODIES = [b"0", b"1", MARK, b"3", b"4", MARK, MARK, b"7"]
SOUND = ["0", "1", "3", "4", "7"]
DAMAGED = [2, 5, 6]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    home = tmp_path_factory.mktemp("cluster")
    with LocalCluster(home / "store", enablePropertyFilter=True) as made:
        with blocking.Admin(made.nameserver) as admin:
            admin.create_topic(TOPIC, queues=1)
        with blocking.Producer(made.nameserver) as producer:
            for number, body in enumerate(BODIES):
                tag = "even" if number % 2 == 0 else "odd"
                message = Message(TOPIC, body, tags=tag, properties={"n": str(number)})
                assert producer.send(message).offset == number
        yield made


@pytest.fixture
def nameserver(cluster: LocalCluster) -> Iterator[str]:
    with damaging(cluster, DAMAGES["magic"], TOPIC) as address:
        yield address


def config(**settings: object) -> ConsumerConfig:
    return ConsumerConfig(**(QUICK | {"hold": 1.0} | settings))  # type: ignore[arg-type]


def name(error: UnreadableMessage) -> tuple[str, str | None, int, int]:
    return error.topic, error.broker, error.queue_id, error.offset


async def take_all(consumer: Consumer, end: int = len(BODIES)) -> tuple[list[str], list[int]]:
    """What is given, and the offsets of what is told of, until the end of the queue."""
    found: list[str] = []
    errors: list[int] = []
    while (consumer.position(QUEUE) or 0) < end:
        try:
            found += [one.text for one in await consumer.getmany(timeout=0.5)]
        except UnreadableMessage as error:
            errors.append(error.offset)
    return found, errors


@pytest.mark.parametrize("kind", DAMAGES)
@in_loop
async def test_getmany_gives_what_came_before_then_names_the_record_and_goes_on(
    cluster: LocalCluster, kind: str
) -> None:
    with ExitStack() as stack:
        address = await asyncio.to_thread(
            stack.enter_context, damaging(cluster, DAMAGES[kind], TOPIC)
        )
        consumer = Consumer(address, f"many-{len(kind)}", config=config(auto_commit=False))
        consumer.assign([QUEUE])
        async with consumer:
            found: list[str] = []
            while len(found) < 2:
                found += [one.text for one in await consumer.getmany(timeout=5.0)]
            assert found == SOUND[:2]
            await consumer.commit()  # of what was given, and of nothing else
            assert await consumer.committed(QUEUE) == 2
            with pytest.raises(UnreadableMessage) as raised:
                await consumer.getmany(timeout=20.0)
            assert name(raised.value) == (TOPIC, "broker-a", 0, 2)
            assert str(raised.value).startswith("topic Orders, queue 0 of broker-a, offset 2: dama")
            assert await take_all(consumer) == (SOUND[2:], DAMAGED[1:])
        await asyncio.to_thread(stack.close)


@in_loop
async def test_an_error_that_ends_the_consumer_is_told_again_by_the_next(nameserver: str) -> None:
    async def read_until_error() -> list[str]:
        consumer = Consumer(nameserver, "twice", config=config())
        consumer.assign([QUEUE])
        found: list[str] = []
        try:
            async with consumer:
                async for message in consumer:
                    found.append(message.text)
        except UnreadableMessage as error:
            return [*found, f"error at {error.offset}"]
        return found

    assert await read_until_error() == ["0", "1", "error at 2"]
    assert await read_until_error() == ["error at 2"]  # what was given is done, its place is not


@in_loop
async def test_one_by_one_the_loop_can_be_entered_again(nameserver: str) -> None:
    consumer = Consumer(nameserver, "single", config=config())
    consumer.assign([QUEUE])
    found, errors = [], []
    async with consumer:
        while len(found) < len(SOUND):
            try:
                async for message in consumer:
                    found.append(message.text)
                    if len(found) == len(SOUND):
                        break
            except UnreadableMessage as error:
                errors.append(error.offset)
    assert (found, errors) == (SOUND, DAMAGED)


@pytest.mark.parametrize(
    ("filter", "sound", "damaged"),
    [
        ({"tags": "even"}, ["0", "4"], [2, 6]),
        ({"sql": "n > 3"}, ["4", "7"], [5, 6]),
    ],
    ids=["tags", "sql"],
)
@in_loop
async def test_behind_a_filter_the_damaged_records_offset_is_known_too(
    nameserver: str, filter: dict[str, str], sound: list[str], damaged: list[int]
) -> None:
    consumer = Consumer(nameserver, "filtered", config=config(auto_commit=False))
    consumer.assign([QUEUE], **filter)  # type: ignore[arg-type]
    async with consumer:
        assert await take_all(consumer) == (sound, damaged)


@in_loop
async def test_batches_give_the_rows_before_and_go_on_behind(nameserver: str) -> None:
    consumer = Consumer(nameserver, "columns", config=config())
    consumer.assign([QUEUE])
    rows: list[bytes] = []
    errors = []
    async with consumer:
        while len(rows) < len(SOUND):
            try:
                async for batch in consumer.batches(idle=5.0):
                    rows += batch.column("body").to_pylist()
                    if len(rows) == len(SOUND):
                        break
            except UnreadableMessage as error:
                assert [row.decode() for row in rows] == SOUND[: len(rows)]
                errors.append(error.offset)
        await consumer.commit()
        assert await consumer.committed(QUEUE) == len(BODIES)
    assert ([row.decode() for row in rows], errors) == (SOUND, DAMAGED)


def test_a_blocking_consumer_does_as_the_other(nameserver: str) -> None:
    consumer = blocking.Consumer(nameserver, "blocking", config=config())
    consumer.assign([QUEUE])
    found, errors = [], []
    with consumer:
        while len(found) < len(SOUND):
            try:
                found += [one.text for one in consumer.getmany(timeout=5.0)]
            except UnreadableMessage as error:
                errors.append(error.offset)
    assert (found, errors) == (SOUND, DAMAGED)


def test_a_pull_of_the_other_packages_names_it_and_the_next_goes_on(nameserver: str) -> None:
    consumer = PullConsumer("compat")
    consumer.set_name_server_address(nameserver)
    found, errors = [], []
    with consumer:
        while True:
            try:
                for message in consumer.pull(TOPIC):
                    found.append(message.body.decode())
                break
            except PullConsumerFetchMessageFailed as error:
                errors.append(getattr(error.__cause__, "offset", error))
    assert (found, errors) == (SOUND, DAMAGED)


@pytest.mark.parametrize("ordered", [False, True])
@in_loop
async def test_a_push_consumer_logs_it_tells_of_it_and_goes_on(
    nameserver: str, ordered: bool, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []
    told: list[UnreadableMessage] = []

    async def handle(message: object) -> None:
        seen.append(message.text)  # type: ignore[attr-defined]

    group = f"push-{ordered}"
    consumer = PushConsumer(
        nameserver, group, handle, ordered=ordered, on_unreadable=told.append, config=config()
    )
    consumer.subscribe(TOPIC)
    async with consumer:
        await until(lambda: len(seen) == len(SOUND) and len(told) == len(DAMAGED), lambda: seen)
    assert sorted(seen) == SOUND
    assert [one.offset for one in told] == DAMAGED
    assert f"group {group}: passed over: topic Orders, queue 0 of broker-a, offset 2" in caplog.text
