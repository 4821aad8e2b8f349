"""Delayed messages: delivered when due, in order, at least once, whatever happens between."""

import asyncio
import random
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tamis.broker.delay import _BATCH, Delays
from tamis.broker.intake import Intake
from tamis.errors import StoreError
from tamis.message import DELAY_TOPIC, HALF_TOPIC, Host, StoredMessage, SysFlag
from tamis.store.config import StoreConfig
from tamis.store.dispatch import parse_delay_levels
from tamis.store.files import Data, DiskFull, Files
from tamis.store.store import Store
from tamis.testing import LossyFiles
from tamis.wire import properties, record
from tamis.wire.record import Draft

GOLDEN = Path(__file__).parents[1] / "golden" / "stores"
CONFIG = StoreConfig(
    flush="async",
    log_file_size=2**20,
    queue_file_size=20_000,
    extension_file_size=2**16,
    index_slots=64,
    index_entries=256,
)


class Clock:
    def __init__(self) -> None:
        self.seconds = 1_800_000_000.0
        self.asked = 0

    def __call__(self) -> float:
        self.asked += 1
        return self.seconds


class Broker:
    def __init__(self, root: Path, clock: Clock, config: StoreConfig, files: Files | None) -> None:
        self.store = Store(root, config, files=files, now=clock)
        self.intake = Intake(self.store, sync=False, on_stored=self.store.dispatch)
        levels = parse_delay_levels(config.delay_levels)
        self.delays = Delays(self.store, self.intake, self.store.paths.config, levels, clock)

    async def send(self, *drafts: Draft) -> None:
        await self.intake.store(drafts)

    def messages(self, topic: str, queue_id: int = 0) -> list[StoredMessage]:
        queue = self.store.queues.get((topic, queue_id))
        if queue is None:
            return []
        offsets = [int(queue.units(n, 1)["offset"][0]) for n in range(queue.max_offset)]
        return [self.store.message(offset) for offset in offsets]

    def bodies(self, topic: str, queue_id: int = 0) -> list[str]:
        return [message.body.decode() for message in self.messages(topic, queue_id)]


@asynccontextmanager
async def running(
    root: Path,
    clock: Clock,
    config: StoreConfig = CONFIG,
    *,
    files: Files | None = None,
    crash: bool = False,
) -> AsyncIterator[Broker]:
    broker = Broker(root, clock, config, files)
    try:
        yield broker
        await broker.intake.close()
    except BaseException:
        broker.store.abandon()
        raise
    if crash:
        broker.store.abandon()
    else:
        broker.delays.snapshot()()
        broker.store.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=[False, True], ids=["plain", "extensions"])
def config(request: pytest.FixtureRequest) -> StoreConfig:
    return StoreConfig(**{**vars(CONFIG), "extensions": request.param})


def delayed(body: str, level: int = 1, topic: str = "T", **more: str) -> Draft:
    block = properties.encode({"TAGS": "late", "DELAY": str(level), **more}).encode()
    return Draft(topic=topic, body=body.encode(), properties=block)


def test_a_message_waits_and_is_then_delivered_as_it_was_sent(
    tmp_path: Path, clock: Clock, config: StoreConfig
) -> None:
    async def scenario() -> None:
        async with running(tmp_path, clock, config) as broker:
            sent = Draft(
                topic="T",
                queue_id=3,
                body=b"later",
                properties=properties.encode({"DELAY": "2", "KEYS": "k", "a": "b"}).encode(),
                flag=7,
                sys_flag=SysFlag.COMPRESSED,
                born_timestamp=123,
                born_host=Host(b"\x0a\0\0\1", 99),
                reconsume_times=5,
            )
            await broker.send(sent)
            assert await broker.delays.deliver() == pytest.approx(5.0)
            clock.seconds += 4.999
            assert await broker.delays.deliver() == pytest.approx(0.001)
            assert broker.messages("T", 3) == []
            clock.seconds += 0.001
            assert await broker.delays.deliver() is None
            [message] = broker.messages("T", 3)
            expected = {"KEYS": "k", "a": "b", "REAL_TOPIC": "T", "REAL_QID": "3"}
            assert message.properties == expected
            assert message.body == b"later"
            assert (message.flag, message.sys_flag) == (7, SysFlag.COMPRESSED)
            assert (message.born_timestamp, message.born_host) == (123, Host(b"\x0a\0\0\1", 99))
            assert (message.reconsume_times, message.prepared_transaction_offset) == (5, 0)
            assert broker.delays.offsets == {2: 1}

    asyncio.run(scenario())


def test_all_that_is_due_is_delivered_in_order_and_no_more(
    tmp_path: Path, clock: Clock, config: StoreConfig
) -> None:
    async def scenario() -> None:
        async with running(tmp_path, clock, config) as broker:
            early = [f"early {n}" for n in range(2 * _BATCH + 10)]
            await broker.send(*(delayed(body) for body in early))
            await broker.send(delayed("other level", 2, "U"))
            clock.seconds += 0.5
            await broker.send(delayed("late"))
            clock.seconds += 0.5
            assert await broker.delays.deliver() == pytest.approx(0.5)
            assert broker.bodies("T") == early
            clock.seconds += 4
            assert await broker.delays.deliver() is None
            assert broker.bodies("T") == [*early, "late"]
            assert broker.bodies("U") == ["other level"]
            assert broker.delays.progress() == {1: (len(early) + 1, len(early) + 1), 2: (1, 1)}

    asyncio.run(scenario())


def test_large_messages_are_delivered_a_few_at_a_time(tmp_path: Path, clock: Clock) -> None:
    config = StoreConfig(**{**vars(CONFIG), "log_file_size": 2**24})

    async def scenario() -> None:
        async with running(tmp_path, clock, config) as broker:
            bodies = [str(n) * 1_500_000 for n in range(7)]
            await broker.send(*map(delayed, bodies))
            clock.seconds += 1
            await broker.delays.deliver()
            assert broker.bodies("T") == bodies

    asyncio.run(scenario())


def test_nothing_is_delivered_twice_after_a_restart(tmp_path: Path, clock: Clock) -> None:
    async def scenario() -> None:
        async with running(tmp_path, clock) as broker:
            await broker.send(delayed("one"), delayed("far", 3))
            clock.seconds += 1
            await broker.delays.deliver()
            await broker.send(delayed("two"))
            assert broker.delays.changes
        async with running(tmp_path, clock) as broker:
            assert broker.delays.offsets == {1: 1}
            clock.seconds += 60
            assert await broker.delays.deliver() is None
            assert sorted(broker.bodies("T")) == ["far", "one", "two"]

    asyncio.run(scenario())


def test_what_was_not_noted_before_a_crash_is_delivered_again(tmp_path: Path, clock: Clock) -> None:
    async def scenario() -> None:
        async with running(tmp_path, clock, crash=True) as broker:
            await broker.send(delayed("one"))
            clock.seconds += 1
            await broker.delays.deliver()
            broker.delays.snapshot()()
            await broker.send(delayed("two"), delayed("three"))
            clock.seconds += 1
            await broker.delays.deliver()
            await broker.send(delayed("four"))
        async with running(tmp_path, clock) as broker:
            clock.seconds += 1
            await broker.delays.deliver()
            assert broker.bodies("T") == ["one", "two", "three", "two", "three", "four"]

    asyncio.run(scenario())


def test_a_damaged_message_is_passed_over(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with running(tmp_path, clock) as broker:
            await broker.send(delayed("one"), delayed("DAMAGED"), delayed("three"))
            [path] = (tmp_path / "commitlog").iterdir()
            data = path.read_bytes()
            with path.open("r+b") as file:
                file.seek(data.index(b"DAMAGED"))
                file.write(b"damaged")
            clock.seconds += 1
            await broker.delays.deliver()
            assert broker.bodies("T") == ["one", "three"]
            assert broker.delays.offsets == {1: 3}

    asyncio.run(scenario())
    assert "delay level 1: the message at 1 is not delivered" in caplog.text


@pytest.mark.parametrize(
    ("real", "why"),
    [
        ({"REAL_TOPIC": HALF_TOPIC, "REAL_QID": "0"}, "a half message"),
        ({"REAL_TOPIC": "no/topic", "REAL_QID": "0"}, "no /"),
        ({"REAL_TOPIC": "T", "REAL_QID": "-1"}, "queue -1"),
        ({"REAL_TOPIC": "T", "REAL_QID": "x"}, "'x'"),
        ({"REAL_TOPIC": "T"}, "''"),
        ({"REAL_QID": "0"}, "no real topic"),
    ],
)
def test_what_has_nowhere_to_go_is_dropped_with_a_log_line(
    real: dict[str, str], why: str, tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with running(tmp_path, clock) as broker:
            block = properties.encode({"DELAY": "1", **real}).encode()
            lost = Draft(topic=DELAY_TOPIC, queue_id=0, body=b"lost", properties=block)
            await broker.send(delayed("one"), lost, delayed("three"))
            clock.seconds += 1
            assert await broker.delays.deliver() is None
            assert broker.bodies("T") == ["one", "three"]
            assert broker.delays.offsets == {1: 3}

    asyncio.run(scenario())
    assert "the message at 1 is not delivered" in caplog.text
    assert why in caplog.text


def test_a_time_further_away_than_the_level_is_taken_for_now(tmp_path: Path, clock: Clock) -> None:
    async def scenario() -> None:
        async with running(tmp_path, clock) as broker:
            await broker.send(delayed("stored in the future", 2))
            clock.seconds -= 0.001
            assert await broker.delays.deliver() is None
            assert broker.bodies("T") == ["stored in the future"]

    asyncio.run(scenario())


class FullDisk(LossyFiles):
    def __init__(self) -> None:
        super().__init__(random.Random(0))
        self.is_full = False

    def write(self, path: Path, descriptor: int, offset: int, data: Data) -> None:
        if self.is_full and path.parent.name == "commitlog":
            raise DiskFull("the disk is full")
        super().write(path, descriptor, offset, data)


def test_what_cannot_be_stored_is_tried_again(tmp_path: Path, clock: Clock) -> None:
    files = FullDisk()

    async def scenario() -> None:
        async with running(tmp_path, clock, files=files) as broker:
            await broker.send(delayed("one"), delayed("two"))
            clock.seconds += 1
            files.is_full = True
            with pytest.raises(StoreError):
                await broker.delays.deliver()
            assert broker.bodies("T") == []
            files.is_full = False
            await broker.delays.deliver()
            assert broker.bodies("T") == ["one", "two"]

    asyncio.run(scenario())


@pytest.mark.parametrize("saved", [-5, 0, 2, 1000])
def test_an_offset_outside_the_queue_is_corrected(saved: int, tmp_path: Path, clock: Clock) -> None:
    async def scenario() -> None:
        async with running(tmp_path, clock) as broker:
            await broker.send(*(delayed(str(n)) for n in range(4)))
        text = f'{{"offsetTable":{{1:{saved}}}}}'
        (tmp_path / "config" / "delayOffset.json").write_text(text)
        clock.seconds += 1
        async with running(tmp_path, clock) as broker:
            assert await broker.delays.deliver() is None
            assert broker.bodies("T") == ["0", "1", "2", "3"][max(saved, 0) :]
            assert broker.delays.offsets == {1: 4}

    asyncio.run(scenario())


def test_units_whose_extension_is_gone_are_due_by_their_store_time(
    tmp_path: Path, clock: Clock
) -> None:
    extended = StoreConfig(**{**vars(CONFIG), "extensions": True})

    async def scenario() -> None:
        async with running(tmp_path, clock, extended) as broker:
            await broker.send(delayed("one"))
        async with running(tmp_path, clock) as broker:
            assert await broker.delays.deliver() == pytest.approx(1.0)
            clock.seconds += 1
            assert await broker.delays.deliver() is None
            assert broker.bodies("T") == ["one"]

    asyncio.run(scenario())


async def until(condition, state, seconds: float = 10.0) -> None:
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"still {state()}"
        await asyncio.sleep(0.005)


def test_running_it_sleeps_until_it_is_woken(tmp_path: Path, clock: Clock) -> None:
    async def scenario() -> None:
        async with running(tmp_path, clock) as broker:
            await broker.send(delayed("far", 18))
            asked = clock.asked
            task = asyncio.create_task(broker.delays.run())
            await until(lambda: clock.asked > asked, lambda: clock.asked)
            await broker.send(delayed("one"))
            clock.seconds += 1
            asked = clock.asked
            for _ in range(100):
                await asyncio.sleep(0)
            assert clock.asked == asked
            broker.delays.wake()
            await until(lambda: broker.bodies("T") == ["one"], lambda: broker.bodies("T"))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(scenario())


def test_running_it_goes_on_after_a_failure(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture, monkeypatch
) -> None:
    monkeypatch.setattr("tamis.broker.delay._AFTER_FAILURE", 0.01)
    files = FullDisk()

    async def scenario() -> None:
        async with running(tmp_path, clock, files=files) as broker:
            await broker.send(delayed("one"))
            clock.seconds += 1
            files.is_full = True
            task = asyncio.create_task(broker.delays.run())
            await until(lambda: "trying again" in caplog.text, lambda: caplog.text)
            files.is_full = False
            await until(lambda: broker.bodies("T") == ["one"], lambda: broker.bodies("T"))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(scenario())
    assert caplog.text.count("trying again") == 1


@pytest.mark.parametrize("name", ["clean", "killed"])
def test_apaches_store_is_gone_on_with(name: str, tmp_path: Path, clock: Clock) -> None:
    """What it had delivered by the offsets it saved is not delivered again, the rest is."""
    with tarfile.open(GOLDEN / f"{name}.tar.gz") as tar:
        tar.extractall(tmp_path, filter="data")
    sizes = {"log_file_size": 131_072, "queue_file_size": 2000, "extension_file_size": 8192}
    config = StoreConfig(**{**vars(CONFIG), **sizes, "extensions": True, "bitmaps": True})

    async def scenario() -> None:
        async with running(tmp_path / name, clock, config) as broker:
            saved = broker.delays.offsets
            waiting = [
                message
                for level, (_, size) in broker.delays.progress().items()
                for message in broker.messages(DELAY_TOPIC, level - 1)[saved.get(level, 0) : size]
            ]
            assert waiting == [] or name == "killed"
            before = broker.store.log.end
            assert await broker.delays.deliver() is None
            delivered = [
                record.decode(bytes(chunk.data[at : at + size]))
                for chunk in broker.store.sound_chunks(before)
                for at, size in zip(
                    (chunk.offsets - chunk.file_start).tolist(),
                    chunk.rows[:, 1].tolist(),
                    strict=True,
                )
            ]
            assert sorted(m.properties["UNIQ_KEY"] for m in delivered) == sorted(
                m.properties["UNIQ_KEY"] for m in waiting
            )

    asyncio.run(scenario())
