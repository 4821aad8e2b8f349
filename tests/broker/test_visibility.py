"""Whoever asks after a message was acknowledged sees it, whatever they ask."""

import asyncio
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from broker.asking import messages_of, pull_request, send_request
from broker.running import Client, messages, run, running

from tamis.broker.delay import Delays
from tamis.broker.intake import Intake
from tamis.store.config import StoreConfig
from tamis.store.store import Store
from tamis.testing import LossyFiles
from tamis.wire import beans, properties
from tamis.wire import headers as h
from tamis.wire.bodies import ConsumeStats, TopicStats
from tamis.wire.codes import RequestCode, ResponseCode
from tamis.wire.record import Draft, batch_item

PAIRS = 300


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_a_pull_that_does_not_wait_finds_what_was_acknowledged_before(
    tmp_path: Path, flush: str
) -> None:
    async def scene() -> None:
        async with running(tmp_path, flush=flush) as (broker, client):
            await client.send("T", b"first")  # makes the topic
            other = await Client.connect(broker.address)
            codes = []
            for number in range(1, PAIRS):
                sent = await client.send("T", b"%d" % number)
                assert sent.code == ResponseCode.SUCCESS
                puller = (client, other)[number % 2]
                found = await puller.pull("T", number)
                codes.append(found.code)
                if found.code == ResponseCode.SUCCESS:
                    assert [one.body for one in messages(found.body)] == [b"%d" % number]
            other.peer.close()
            assert {code: codes.count(code) for code in codes} == {ResponseCode.SUCCESS: PAIRS - 1}

    run(scene())


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_sends_that_came_in_one_piece_are_there_at_the_next_pull(
    tmp_path: Path, flush: str
) -> None:
    async def scene() -> None:
        async with running(tmp_path, flush=flush) as (_, client):
            await client.send("T", b"first")
            for turn in range(40):
                asked = [
                    client.peer.ask(send_request("T", 1, b"%d" % number), 20) for number in range(8)
                ]
                sent = await asyncio.gather(*asked)
                assert {one.code for one in sent} == {ResponseCode.SUCCESS}
                found = await client.peer.ask(pull_request("g", "T", 1, turn * 8), 20)
                assert found.code == ResponseCode.SUCCESS
                assert len(list(messages_of(found.body))) == 8

    run(scene())


async def _max_offset(client: Client, topic: str = "T") -> object:
    fields = h.OfQueue(topic=topic, queue_id=0).to_fields()
    answer = await client.ask(RequestCode.GET_MAX_OFFSET, fields)
    return int((answer.fields or {})["offset"])


async def _found_by_key(client: Client) -> object:
    """How many messages have one of the keys k0, k1, k2, ..."""
    count = 0
    while True:
        header = h.QueryMessage(
            topic="T", key=f"k{count}", max_num=32, begin_timestamp=0, end_timestamp=2**62
        )
        answer = await client.ask(header.CODE, header.to_fields())
        if answer.code != ResponseCode.SUCCESS:
            return count
        count += 1


async def _newest_by_time(client: Client) -> object:
    header = h.SearchOffset(topic="T", queue_id=0, timestamp=2**42)
    answer = await client.ask(header.CODE, header.to_fields())
    return int((answer.fields or {})["offset"]) + 1


async def _in_topic_statistics(client: Client) -> object:
    answer = await client.ask(RequestCode.GET_TOPIC_STATS_INFO, h.OfTopic(topic="T").to_fields())
    return max(one.max_offset for one in beans.decode(TopicStats, answer.body).queues.values())


async def _in_consume_statistics(client: Client) -> object:
    header = h.GetConsumeStats(consumer_group="g", topic="T")
    answer = await client.ask(header.CODE, header.to_fields())
    return max(one.broker_offset for one in beans.decode(ConsumeStats, answer.body).queues.values())


@pytest.mark.parametrize(
    "look",
    [
        _max_offset,
        _found_by_key,
        _newest_by_time,
        _in_topic_statistics,
        _in_consume_statistics,
    ],
)
def test_every_question_about_messages_counts_what_was_acknowledged_before(
    tmp_path: Path, look: Any
) -> None:
    async def scene() -> None:
        async with running(tmp_path) as (_, client):
            for number in range(60):
                await client.send("T", properties={"KEYS": f"k{number}"})
                if number % 10 == 9 or look is not _found_by_key:
                    assert await look(client) == number + 1

    run(scene())


def test_a_backlog_that_takes_several_slices_is_waited_for(tmp_path: Path) -> None:
    count = 40_000

    async def scene() -> None:
        async with running(tmp_path, log_file_size=2**26) as (broker, client):
            body = b"".join(batch_item(b"x", b"TAGS\x01a") for _ in range(count))
            for topic in (f"T{attempt}" for attempt in range(20)):
                await client.send(topic, queue_id=1)
                fields = {"a": "p", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0",
                          "g": "1", "h": "0", "m": "true"}  # fmt: skip
                await client.ask(RequestCode.SEND_BATCH_MESSAGE, fields, body)
                if not broker.queueing.is_current:  # or this tests nothing: it was done already
                    break
            else:
                pytest.fail("every backlog was queued before the pull could come")
            newest, last = await asyncio.gather(
                client.pull(topic, count - 1), _max_offset(client, topic)
            )
            assert len(messages(newest.body)) == 1
            assert last == count

    run(scene())


def test_what_can_not_be_queued_is_said_and_comes_when_it_can(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path) as (_, client):
            await client.send("Other")
            await client.pull("Other")
            index = tmp_path / "index"
            index.write_bytes(b"")  # where a directory is to be
            held = asyncio.create_task(client.pull("Other", 1, suspend=20))
            keyed = {"KEYS": "k"}
            assert (await client.send("T", b"kept", properties=keyed)).code == ResponseCode.SUCCESS
            fields = h.OfQueue(topic="T", queue_id=0).to_fields()
            asked = await client.ask(RequestCode.GET_MAX_OFFSET, fields)
            assert asked.code == ResponseCode.SYSTEM_ERROR
            assert str(index) in (asked.remark or "")
            refused = await client.send("Other", b"nobody could look it up")
            assert refused.code != ResponseCode.SUCCESS
            assert str(index) in (refused.remark or "")
            old = await client.pull("Other")  # nothing is wrong with that
            assert len(messages(old.body)) == 1
            index.unlink()
            found = await client.pull("T")
            assert [one.body for one in messages(found.body)] == [b"kept"]
            assert (await client.ask(RequestCode.GET_MAX_OFFSET, fields)).code == 0
            await client.send("Other", b"wakes it")
            assert [one.body for one in messages((await held).body)] == [b"wakes it"]

    run(scene())


def test_a_message_whose_queue_can_not_be_made_is_not_acknowledged(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path) as (_, client):
            await client.send("Other")
            (tmp_path / "consumequeue" / "T").write_bytes(b"")  # where a directory is to be
            refused = await client.send("T", b"lost")
            assert refused.code != ResponseCode.SUCCESS
            assert str(tmp_path / "consumequeue" / "T") in (refused.remark or "")
            assert (await client.send("Other", b"is stored")).code == ResponseCode.SUCCESS
            (tmp_path / "consumequeue" / "T").unlink()
            assert (await client.send("T", b"kept")).code == ResponseCode.SUCCESS
            found = await client.pull("T")
            assert [one.body for one in messages(found.body)] == [b"kept"]

    run(scene())


class _HurriedLoop(asyncio.SelectorEventLoop):
    """Its clock jumps to the next timer when there is nothing else to do."""

    def __init__(self) -> None:
        super().__init__()
        self._at = 0.0
        select = self._selector.select  # type: ignore[attr-defined]

        def hurry(timeout: float | None = None) -> Any:
            ready = select(0)
            if not ready and timeout:
                self._at += timeout
            return ready

        self._selector.select = hurry  # type: ignore[attr-defined]

    def time(self) -> float:
        return self._at


@pytest.fixture
def hurried() -> Iterator[asyncio.AbstractEventLoop]:
    loop = _HurriedLoop()
    yield loop
    loop.close()


def test_news_do_not_make_a_delayed_message_late(
    tmp_path: Path, hurried: asyncio.AbstractEventLoop
) -> None:
    async def scene() -> list[int]:
        def now() -> float:
            return 1_800_000_000 + hurried.time()

        config = StoreConfig(flush="async", log_file_size=2**20, index_slots=64, index_entries=256)
        with Store(tmp_path, config, now=now) as store:
            intake = Intake(store, sync=False, on_stored=store.dispatch)
            delays = Delays(store, intake, store.paths.config, [1000, 5000], now)
            block = properties.encode({"DELAY": "1"}).encode()
            delivering = asyncio.create_task(delays.run())
            for _ in range(37):  # each is news for those before it
                await intake.store([Draft(topic="T", properties=block)])
                delays.wake()
                await asyncio.sleep(0.077)
            async with asyncio.timeout(10):
                while (queue := store.find_queue("T", 0)) is None or queue.max_offset < 37:
                    await asyncio.sleep(0.01)
            delivering.cancel()
            late = []
            for number in range(37):
                delayed = store.find_queue("SCHEDULE_TOPIC_XXXX", 0)
                assert delayed is not None
                waited = store.message(int(delayed.units(number, 1)["offset"][0]))
                given = store.message(int(queue.units(number, 1)["offset"][0]))
                late.append(given.store_timestamp - waited.store_timestamp - 1000)
            return late

    late = hurried.run_until_complete(scene())
    assert max(late) <= 2  # milliseconds, of a clock that only counts


class SlowDisk(LossyFiles):
    """No sync returns before the disk is free."""

    def __init__(self) -> None:
        super().__init__(random.Random(1))
        self.is_free = threading.Event()
        self.is_free.set()

    def before_sync(self, file: Any) -> None:
        self.is_free.wait()
        super().before_sync(file)


def test_a_busy_disk_does_not_make_a_delayed_message_late(tmp_path: Path) -> None:
    async def scene() -> None:
        seconds = [1_800_000_000.0]
        files = SlowDisk()
        config = StoreConfig(flush="async", log_file_size=2**20, index_slots=64, index_entries=256)
        store = Store(tmp_path, config, files=files, now=lambda: seconds[0])
        intake = Intake(store, sync=True, on_stored=store.dispatch)
        delays = Delays(store, intake, store.paths.config, [1000], lambda: seconds[0])
        block = properties.encode({"DELAY": "1"}).encode()
        await intake.store([Draft(topic="T", properties=block)])
        seconds[0] += 1
        intake._disk_seconds = 1.0  # it was slow before: a thread waits for it
        files.is_free.clear()
        try:
            async with asyncio.timeout(5):
                assert await delays.deliver() is None
            queue = store.find_queue("T", 0)
            assert queue is not None
            assert queue.max_offset == 1
        finally:
            files.is_free.set()
        await intake.close()
        delays.snapshot()()  # waits for the disk
        store.close()

    run(scene())
