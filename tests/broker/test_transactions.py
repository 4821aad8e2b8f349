"""Transactions: half messages, their end, the questions about them, and what a restart finds."""

import asyncio
import random
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from tamis.broker.config import BrokerConfig, Settings
from tamis.broker.handlers.transaction import end_transaction, resume_check
from tamis.broker.intake import Intake
from tamis.broker.members import Member, Producers
from tamis.broker.offsets import Offsets
from tamis.broker.topics import OP_TOPIC, TRANSACTION_LIMIT_TOPIC, Topics
from tamis.broker.transactions import GROUP, Transactions, to_half
from tamis.errors import ResponseError
from tamis.message import HALF_TOPIC, Host, StoredMessage, SysFlag
from tamis.net import aio
from tamis.net.aio import Peer
from tamis.net.server import Request, Route, Server
from tamis.store.commitlog import Appended
from tamis.store.config import StoreConfig
from tamis.store.files import Data, DiskFull, Files
from tamis.store.store import Store
from tamis.testing import LossyFiles
from tamis.wire import properties, record
from tamis.wire.codes import CommandFlag, Language, RequestCode, ResponseCode
from tamis.wire.command import Command
from tamis.wire.headers import CheckTransactionState, EndTransaction, OfMessage
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
SETTINGS = BrokerConfig(transaction_check_max=3)
COMMIT, ROLLBACK = int(SysFlag.COMMIT), int(SysFlag.ROLLBACK)


class Clock:
    def __init__(self) -> None:
        self.seconds = 1_800_000_000.0

    def __call__(self) -> float:
        return self.seconds

    @property
    def millis(self) -> int:
        return int(self.seconds * 1000)


class FullDisk(LossyFiles):
    def __init__(self) -> None:
        super().__init__(random.Random(0))
        self.is_full = False

    def write(self, path: Path, descriptor: int, offset: int, data: Data) -> None:
        if self.is_full and path.parent.name == "commitlog":
            raise DiskFull("the disk is full")
        super().write(path, descriptor, offset, data)


class Broker:
    def __init__(self, root: Path, clock: Clock, config: StoreConfig, files: Files | None) -> None:
        self.clock = clock
        self.store = Store(root, config, files=files, now=clock)
        self.on_stored = lambda: None
        self.intake = Intake(self.store, sync=False, on_stored=self._stored)
        folder = self.store.paths.config
        self.offsets = Offsets(folder, self.store)
        self.topics = Topics(folder, SETTINGS, clock, {})
        self.producers = Producers()
        self.settings = Settings(SETTINGS)
        self.transactions = Transactions(
            self.store,
            self.intake,
            self.offsets,
            self.topics,
            self.producers,
            self.settings,
            clock,
        )
        self.transactions.load()

    def _stored(self) -> None:
        self.store.dispatch()
        self.on_stored()

    async def prepare(self, *bodies: str, **more: str) -> list[Appended]:
        """Half messages, from a producer of group pg."""
        places: list[Appended] = []
        done = asyncio.get_running_loop().create_future()

        def finish(context: object, place) -> bytes:
            places.append(place)
            if len(places) == len(bodies):
                done.set_result(None)
            return b""

        for body in bodies:
            named = {"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": f"key of {body}", **more}
            draft = Draft(
                topic="T",
                queue_id=2,
                body=body.encode(),
                properties=properties.encode(named).encode(),
                flag=7,
                sys_flag=SysFlag.COMPRESSED | SysFlag.PREPARED,
                born_timestamp=self.clock.millis,
                born_host=Host(b"\x0a\0\0\1", 99),
            )
            self.transactions.put(draft, finish, None)
        await done
        return places

    async def end(self, place: Appended, decision: int, group: str = "pg") -> None:
        header = EndTransaction(
            producer_group=group,
            tran_state_table_offset=place.queue_offset,
            commit_log_offset=place.log_offset,
            commit_or_rollback=decision,
        )
        request = Request(Peer(lambda peer, commands: None), Command(code=header.CODE))
        work = end_transaction(self.transactions, header, request)
        assert work is not None
        answer = await work
        assert answer.code == ResponseCode.SUCCESS

    def messages(self, topic: str, queue_id: int = 0, begin: int = 0) -> list[StoredMessage]:
        queue = self.store.queues.get((topic, queue_id))
        if queue is None:
            return []
        offsets = [int(queue.units(n, 1)["offset"][0]) for n in range(begin, queue.max_offset)]
        return [self.store.message(offset) for offset in offsets]

    @property
    def seen(self) -> list[str]:
        """What consumers see."""
        return [message.body.decode() for message in self.messages("T", 2)]

    def found_by_apache(self) -> list[int]:
        """Open half messages, by the files and the offsets alone."""
        half = self.offsets.get(GROUP, HALF_TOPIC, 0) or 0
        op = self.offsets.get(GROUP, OP_TOPIC, 0) or 0
        ended = {int(message.body) for message in self.messages(OP_TOPIC, 0, op)}
        halves = [message.queue_offset for message in self.messages(HALF_TOPIC, 0, half)]
        return [offset for offset in halves if offset not in ended]

    def join(self, peer: Peer, group: str = "pg") -> None:
        self.producers.heartbeat(group, Member(peer, "client", Language.JAVA, 401, self.clock()))


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
        broker.transactions.note_progress()
        broker.offsets.snapshot()()
        broker.store.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


class Producer(Peer):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__(lambda peer, commands: None)
        self.told: list[Command] = []

    def tell(self, request: Command) -> None:
        self.told.append(request)

    @property
    def asked(self) -> list[str]:
        return [record.decode(command.body).body.decode() for command in self.told]


# Half messages and their end


def test_a_half_message_is_seen_by_nobody(tmp_path: Path, clock: Clock) -> None:
    async def scenario() -> None:
        async with running(tmp_path, clock) as broker:
            [place] = await broker.prepare("one")
            assert broker.seen == []
            [half] = broker.messages(HALF_TOPIC)
            assert (half.log_offset, half.queue_offset) == (place.log_offset, place.queue_offset)
            assert half.sys_flag == SysFlag.COMPRESSED
            assert half.properties == {
                "TRAN_MSG": "true",
                "PGROUP": "pg",
                "UNIQ_KEY": "key of one",
                "REAL_TOPIC": "T",
                "REAL_QID": "2",
            }
            assert HALF_TOPIC in broker.topics

    asyncio.run(scenario())


def test_a_half_message_does_not_wait_for_a_delay_level() -> None:
    block = properties.encode({"DELAY": "3", "a": "b"}).encode()
    half = to_half(Draft(topic="T", properties=block))
    assert "DELAY" not in properties.decode_bytes(half.properties)


def test_a_committed_message_is_as_it_was_sent(tmp_path: Path, clock: Clock) -> None:
    async def scenario() -> None:
        async with running(tmp_path, clock) as broker:
            [place] = await broker.prepare("one")
            await broker.end(place, COMMIT)
            [message] = broker.messages("T", 2)
            assert message.body == b"one"
            assert message.sys_flag == SysFlag.COMPRESSED | SysFlag.COMMIT
            assert message.prepared_transaction_offset == place.log_offset
            assert (message.flag, message.born_host) == (7, Host(b"\x0a\0\0\1", 99))
            assert message.properties["UNIQ_KEY"] == "key of one"
            assert message.properties["REAL_TOPIC"] == "T"  # Apache's show it too
            [op] = broker.messages(OP_TOPIC)
            assert (op.tag, op.body, op.queue_id) == ("d", b"0", 0)
            assert len(broker.transactions) == 0

    asyncio.run(scenario())


def test_a_message_rolled_back_is_never_seen(tmp_path: Path, clock: Clock) -> None:
    async def scenario() -> None:
        async with running(tmp_path, clock) as broker:
            places = await broker.prepare("one", "two")
            await broker.end(places[1], ROLLBACK)
            assert broker.seen == []
            assert [op.body for op in broker.messages(OP_TOPIC)] == [b"1"]
            assert len(broker.transactions) == 1

    asyncio.run(scenario())


def test_the_first_decision_stands(tmp_path: Path, clock: Clock) -> None:
    async def scenario() -> None:
        async with running(tmp_path, clock) as broker:
            one, two = await broker.prepare("one", "two")
            await broker.end(one, COMMIT)
            await broker.end(one, COMMIT)
            await broker.end(one, ROLLBACK)
            await broker.end(two, ROLLBACK)
            await broker.end(two, COMMIT)
            assert broker.seen == ["one"]
            assert len(broker.messages(OP_TOPIC)) == 2

    asyncio.run(scenario())


def test_two_commits_at_once_are_one(tmp_path: Path, clock: Clock) -> None:
    async def scenario() -> None:
        async with running(tmp_path, clock) as broker:
            [place] = await broker.prepare("one")
            await asyncio.gather(*(broker.end(place, COMMIT) for _ in range(3)))
            assert broker.seen == ["one"]
            assert len(broker.messages(OP_TOPIC)) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("change", "remark"),
    [
        ({"group": "other"}, "The producer group wrong"),
        ({"queue_offset": 1}, "The transaction state table offset wrong"),
        ({"log_offset": 1}, "Find prepared transaction message failed"),
        ({"log_offset": -1}, "Find prepared transaction message failed"),
        ({"log_offset": 10**15}, "Find prepared transaction message failed"),
        ({"log_offset": "plain"}, "Find prepared transaction message failed"),
    ],
)
@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
def test_an_end_that_does_not_fit_is_refused(
    change: dict, remark: str, decision: int, tmp_path: Path, clock: Clock
) -> None:
    async def scenario() -> None:
        async with running(tmp_path, clock) as broker:
            [plain] = await broker.intake.store([Draft(topic="T", body=b"plain")])
            [place] = await broker.prepare("one")
            wrong = {**change}
            group = wrong.pop("group", "pg")
            if wrong.get("log_offset") == "plain":
                wrong["log_offset"] = plain.log_offset
            with pytest.raises(ResponseError) as refused:
                await broker.end(place._replace(**wrong), decision, group)
            assert (refused.value.code, refused.value.remark) == (
                ResponseCode.SYSTEM_ERROR,
                remark,
            )
            assert broker.seen == []
            assert len(broker.transactions) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("decision", [0, 4, 1, -1])
def test_who_has_not_decided_is_not_answered(decision: int, tmp_path: Path, clock: Clock) -> None:
    async def scenario() -> None:
        async with running(tmp_path, clock) as broker:
            [place] = await broker.prepare("one")
            header = EndTransaction(
                producer_group="pg",
                tran_state_table_offset=place.queue_offset,
                commit_log_offset=place.log_offset,
                commit_or_rollback=decision,
            )
            request = Request(Peer(lambda peer, commands: None), Command(code=header.CODE))
            assert end_transaction(broker.transactions, header, request) is None
            assert len(broker.transactions) == 1

    asyncio.run(scenario())


def test_nothing_is_kept_of_transactions_that_ended(tmp_path: Path, clock: Clock) -> None:
    async def scenario() -> None:
        async with running(tmp_path, clock) as broker:
            places = await broker.prepare(*map(str, range(500)))
            await asyncio.gather(*(broker.end(place, COMMIT) for place in places))
            assert len(broker.transactions) == 0
            assert sorted(map(int, broker.seen)) == list(range(500))
            broker.transactions.note_progress()
            assert broker.offsets.get(GROUP, HALF_TOPIC, 0) == 500
            assert broker.offsets.get(GROUP, OP_TOPIC, 0) == 500

    asyncio.run(scenario())


@pytest.mark.parametrize("by", ["check", "end"])
def test_a_disk_that_fills_up_between_message_and_op_gives_the_message_once(
    by: str, tmp_path: Path, clock: Clock
) -> None:
    files = FullDisk()

    def fill() -> None:
        files.is_full = True

    async def scenario() -> None:
        async with running(tmp_path, clock, files=files) as broker:
            [place] = await broker.prepare("one")
            broker.on_stored = fill
            with pytest.raises(ResponseError) as refused:
                await broker.end(place, COMMIT)
            assert refused.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert broker.seen == ["one"]
            assert place.queue_offset in broker.transactions
            broker.on_stored, files.is_full = lambda: None, False
            if by == "check":
                await broker.transactions.check()
            else:
                await broker.end(place, COMMIT)
            assert len(broker.transactions) == 0
            await broker.end(place, COMMIT)
            assert broker.seen == ["one"]

    asyncio.run(scenario())


def test_a_crash_between_message_and_op_gives_the_message_twice_and_not_never(
    tmp_path: Path, clock: Clock
) -> None:
    files = FullDisk()

    def fill() -> None:
        files.is_full = True

    async def scenario() -> None:
        async with running(tmp_path, clock, files=files, crash=True) as broker:
            [place] = await broker.prepare("one")
            broker.on_stored = fill
            with pytest.raises(ResponseError):
                await broker.end(place, COMMIT)
        async with running(tmp_path, clock) as broker:
            assert broker.seen == ["one"]
            await broker.end(place, COMMIT)
            assert broker.seen == ["one", "one"]
            await broker.end(place, COMMIT)
            assert broker.seen == ["one", "one"]

    asyncio.run(scenario())


# Restarts


@pytest.mark.parametrize("crash", [False, True], ids=["closed", "crashed"])
def test_open_transactions_are_found_again(crash: bool, tmp_path: Path, clock: Clock) -> None:
    async def scenario() -> None:
        async with running(tmp_path, clock, crash=crash) as broker:
            places = await broker.prepare(*map(str, range(6)))
            await broker.end(places[0], COMMIT)
            await broker.end(places[2], ROLLBACK)
            await broker.end(places[4], COMMIT)
            if not crash:
                await broker.end(places[5], COMMIT)
        async with running(tmp_path, clock) as broker:
            is_open = [place.queue_offset in broker.transactions for place in places]
            assert is_open == [False, True, False, True, False, crash]
            await broker.end(places[0], COMMIT)
            await broker.end(places[2], COMMIT)
            await broker.end(places[1], COMMIT)
            await broker.end(places[3], ROLLBACK)
            if crash:
                await broker.end(places[5], COMMIT)
            assert sorted(broker.seen) == ["0", "1", "4", "5"]
            assert len(broker.transactions) == 0
            places += await broker.prepare("6")
            await broker.end(places[6], COMMIT)
            assert "6" in broker.seen

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", range(6))
def test_the_files_tell_an_apache_broker_which_are_open(
    seed: int, tmp_path: Path, clock: Clock
) -> None:
    rng = random.Random(seed)
    still: dict[int, Appended] = {}

    async def scenario() -> None:
        for crash in (False, True, False):
            async with running(tmp_path, clock, crash=crash) as broker:
                assert [offset in broker.transactions for offset in still] == [True] * len(still)
                assert len(broker.transactions) == len(still)
                for _ in range(60):
                    if rng.random() < 0.5:
                        names = (str(rng.random()) for _ in range(rng.randint(1, 4)))
                        for place in await broker.prepare(*names):
                            still[place.queue_offset] = place
                    chosen = rng.sample(sorted(still), min(len(still), rng.randint(0, 2)))
                    ends = [broker.end(still.pop(o), rng.choice([8, 12])) for o in chosen]
                    await asyncio.gather(*ends)
                    if rng.random() < 0.2:
                        await broker.transactions.check()
                    assert broker.found_by_apache() == sorted(still)
                if not crash:
                    broker.transactions.note_progress()
                    assert broker.found_by_apache() == sorted(still)
                    lowest = min(still, default=len(broker.messages(HALF_TOPIC)))
                    assert (broker.offsets.get(GROUP, HALF_TOPIC, 0) or 0) == lowest

    asyncio.run(scenario())


def test_a_broker_without_transactions_notes_no_offsets(tmp_path: Path, clock: Clock) -> None:
    async def scenario() -> None:
        async with running(tmp_path, clock) as broker:
            await broker.transactions.check()
            broker.transactions.note_progress()
            assert broker.offsets.all() == {}
            assert HALF_TOPIC not in broker.topics

    asyncio.run(scenario())


def test_a_damaged_half_message_is_passed_over(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with running(tmp_path, clock) as broker:
            await broker.prepare("one", "DAMAGED", "three")
        [path] = (tmp_path / "commitlog").iterdir()
        data = path.read_bytes()
        with path.open("r+b") as file:
            file.seek(data.index(b"DAMAGED"))
            file.write(b"damaged")
        async with running(tmp_path, clock) as broker:
            assert [offset in broker.transactions for offset in range(3)] == [True, False, True]

    asyncio.run(scenario())
    assert "passed over" in caplog.text


# Checks


def test_a_producer_is_asked_about_an_old_transaction(tmp_path: Path, clock: Clock) -> None:
    async def scenario() -> None:
        async with running(tmp_path, clock) as broker:
            producer = Producer()
            broker.join(producer)
            [place] = await broker.prepare("one")
            clock.seconds += 5.999
            await broker.transactions.check()
            assert producer.told == []
            clock.seconds += 0.001
            await broker.transactions.check()
            [command] = producer.told
            assert command.code == RequestCode.CHECK_TRANSACTION_STATE
            [half] = broker.messages(HALF_TOPIC)
            assert CheckTransactionState.from_fields(command.fields) == CheckTransactionState(
                tran_state_table_offset=place.queue_offset,
                commit_log_offset=place.log_offset,
                msg_id="key of one",
                transaction_id="key of one",
                offset_msg_id=half.message_id,
            )
            asked = record.decode(command.body, check_crc=True)
            assert (asked.topic, asked.queue_id, asked.body) == ("T", 2, b"one")
            assert (asked.queue_offset, asked.log_offset) == (half.queue_offset, half.log_offset)
            assert (asked.store_timestamp, asked.store_host) == (
                half.store_timestamp,
                half.store_host,
            )
            assert asked.properties == half.properties | {"TRANSACTION_CHECK_TIMES": "1"}
            assert len(broker.messages(HALF_TOPIC)) == 1

    asyncio.run(scenario())


def test_a_message_may_ask_for_more_time_or_less(tmp_path: Path, clock: Clock) -> None:
    async def scenario() -> None:
        async with running(tmp_path, clock) as broker:
            producer = Producer()
            broker.join(producer)
            for body, seconds in (("short", "2"), ("long", "30"), ("none", "-1"), ("bad", "x")):
                await broker.prepare(body, CHECK_IMMUNITY_TIME_IN_SECONDS=seconds)
            seen = []
            for step in (2, 4, 24):
                clock.seconds += step
                await broker.transactions.check()
                seen.append(producer.asked)
                producer.told.clear()
            everyone = ["short", "long", "none", "bad"]
            assert seen == [["short"], ["short", "none", "bad"], everyone]

    asyncio.run(scenario())


def test_a_transaction_nobody_ends_is_put_aside(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with running(tmp_path, clock) as broker:
            producer = Producer()
            broker.join(producer)
            await broker.prepare("one")
            for _ in range(SETTINGS.transaction_check_max):
                clock.seconds += 60
                await broker.transactions.check()
            assert len(producer.told) == SETTINGS.transaction_check_max
            assert broker.messages(TRANSACTION_LIMIT_TOPIC) == []
            clock.seconds += 60
            await broker.transactions.check()
            assert len(producer.told) == SETTINGS.transaction_check_max
            [aside] = broker.messages(TRANSACTION_LIMIT_TOPIC)
            assert aside.body == b"one"
            assert aside.properties["REAL_TOPIC"] == "T"
            assert TRANSACTION_LIMIT_TOPIC in broker.topics
            assert len(broker.transactions) == 0
            assert broker.found_by_apache() == []
        async with running(tmp_path, clock) as broker:
            assert len(broker.transactions) == 0

    asyncio.run(scenario())
    assert "put aside" in caplog.text


def test_what_was_put_aside_can_be_asked_about_again(tmp_path: Path, clock: Clock) -> None:
    async def scenario() -> None:
        async with running(tmp_path, clock) as broker:
            producer = Producer()
            broker.join(producer)
            await broker.prepare("one")
            for _ in range(SETTINGS.transaction_check_max + 1):
                clock.seconds += 60
                await broker.transactions.check()
            [aside] = broker.messages(TRANSACTION_LIMIT_TOPIC)
            request = Request(producer, Command(code=RequestCode.RESUME_CHECK_HALF_MESSAGE))
            header = OfMessage(msg_id=aside.message_id)
            answer = await resume_check(broker.transactions, header, request)
            assert answer.code == ResponseCode.SUCCESS
            producer.told.clear()
            await broker.transactions.check()
            [command] = producer.told
            asked = CheckTransactionState.from_fields(command.fields)
            assert asked.tran_state_table_offset == 1
            place = Appended(asked.commit_log_offset, 0, asked.tran_state_table_offset)
            await broker.end(place, COMMIT)
            assert broker.seen == ["one"]

    asyncio.run(scenario())


@pytest.mark.parametrize("message_id", [None, "", "x", "0" * 32, "F" * 32])
def test_what_is_not_there_is_not_asked_about_again(
    message_id: str | None, tmp_path: Path, clock: Clock
) -> None:
    async def scenario() -> None:
        async with running(tmp_path, clock) as broker:
            await broker.intake.store([Draft(topic="T", body=b"plain")])
            request = Request(Producer(), Command(code=RequestCode.RESUME_CHECK_HALF_MESSAGE))
            with pytest.raises(ResponseError):
                await resume_check(broker.transactions, OfMessage(msg_id=message_id), request)

    asyncio.run(scenario())


def test_without_a_producer_nobody_is_asked(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with running(tmp_path, clock) as broker:
            other = Producer()
            broker.join(other, "another group")
            await broker.prepare("one", "two")
            clock.seconds += 60
            await broker.transactions.check()
            assert other.told == []
            assert len(broker.transactions) == 2

    asyncio.run(scenario())
    assert "no producer of group pg to ask about 2 transactions" in caplog.text


def test_producers_of_a_group_are_asked_in_turn(tmp_path: Path, clock: Clock) -> None:
    async def scenario() -> None:
        async with running(tmp_path, clock) as broker:
            first, second = Producer(), Producer()
            broker.join(first)
            broker.join(second)
            await broker.prepare(*map(str, range(10)))
            clock.seconds += 6
            await broker.transactions.check()
            assert (len(first.told), len(second.told)) == (5, 5)

    asyncio.run(scenario())


def test_running_it_asks_again_and_again(tmp_path: Path, clock: Clock) -> None:
    async def scenario() -> None:
        async with running(tmp_path, clock) as broker:
            broker.settings.change({"transactionCheckInterval": "1"})
            producer = Producer()
            broker.join(producer)
            await broker.prepare("one")
            clock.seconds += 6
            task = asyncio.create_task(broker.transactions.run())
            await until(lambda: producer.asked == ["one"] * 3, lambda: producer.asked)
            await until(lambda: not len(broker.transactions), lambda: producer.asked)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(scenario())


def test_a_producer_is_asked_and_answers_over_the_wire(tmp_path: Path, clock: Clock) -> None:
    async def scenario() -> None:
        async with running(tmp_path, clock) as broker:
            code = RequestCode.END_TRANSACTION
            route = Route(EndTransaction, partial(end_transaction, broker.transactions))
            server = Server({code: route})
            port = await server.start("127.0.0.1", 0)
            answers: list[Command] = []

            def answer(peer: Peer, commands: list[Command]) -> None:
                for command in commands:
                    assert command.flag & CommandFlag.ONEWAY
                    asked = CheckTransactionState.from_fields(command.fields)
                    header = EndTransaction(
                        producer_group=record.decode(command.body).properties["PGROUP"],
                        tran_state_table_offset=asked.tran_state_table_offset,
                        commit_log_offset=asked.commit_log_offset,
                        commit_or_rollback=COMMIT,
                        from_transaction_check=True,
                        msg_id=asked.msg_id,
                    )
                    end = Command(code=code, fields=header.to_fields())
                    task = asyncio.create_task(peer.ask(end, 10))
                    task.add_done_callback(lambda done: answers.append(done.result()))

            client = await aio.connect(f"127.0.0.1:{port}", on_requests=answer)
            await until(lambda: server.peers, lambda: server.peers)
            broker.join(next(iter(server.peers)))
            await broker.prepare("one")
            clock.seconds += 6
            await broker.transactions.check()
            await until(lambda: answers, lambda: (answers, broker.seen))
            assert [one.code for one in answers] == [ResponseCode.SUCCESS]
            assert broker.seen == ["one"]
            client.close()
            await server.close()

    asyncio.run(scenario())


async def until(condition, state, seconds: float = 10.0) -> None:
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"still {state()}"
        await asyncio.sleep(0.005)


# Files that Apache's broker wrote


def half_draft(broker: Broker, body: str, **more: str) -> Draft:
    named = {"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": f"key of {body}", **more}
    draft = Draft(
        topic="T",
        queue_id=2,
        body=body.encode(),
        properties=properties.encode(named).encode(),
        born_timestamp=broker.clock.millis,
    )
    return to_half(draft)


def op_draft(*offsets: int, tag: str = "d") -> Draft:
    body = ",".join(map(str, offsets)).encode()
    return Draft(topic=OP_TOPIC, body=body, properties=f"TAGS\x01{tag}\x02WAIT\x01true".encode())


def test_the_count_of_a_copy_goes_on(tmp_path: Path, clock: Clock) -> None:
    async def scenario() -> None:
        async with running(tmp_path, clock, crash=True) as broker:
            await broker.intake.store([half_draft(broker, "one")])
            await broker.intake.store([half_draft(broker, "one", TRANSACTION_CHECK_TIMES="2")])
            broker.offsets.commit(GROUP, HALF_TOPIC, 0, 1)
            broker.offsets.snapshot()()
        async with running(tmp_path, clock) as broker:
            assert len(broker.transactions) == 1
            producer = Producer()
            broker.join(producer)
            clock.seconds += 60
            await broker.transactions.check()
            assert producer.asked == ["one"]
            await broker.transactions.check()
            assert producer.asked == ["one"]
            assert [m.body for m in broker.messages(TRANSACTION_LIMIT_TOPIC)] == [b"one"]

    asyncio.run(scenario())


@pytest.mark.parametrize("noted", [0, 1], ids=["offset not saved", "offset saved"])
@pytest.mark.parametrize(
    "mark",
    [{"TRANSACTION_CHECK_TIMES": "1"}, {"TRAN_PREPARED_QUEUE_OFFSET": "0"}],
    ids=["asked about", "immune"],
)
def test_a_copy_is_ended_by_an_end_of_the_original(
    mark: dict[str, str], noted: int, tmp_path: Path, clock: Clock
) -> None:
    async def scenario() -> None:
        async with running(tmp_path, clock, crash=True) as broker:
            [original] = await broker.intake.store([half_draft(broker, "one")])
            [copy] = await broker.intake.store([half_draft(broker, "one", **mark)])
            broker.offsets.commit(GROUP, HALF_TOPIC, 0, noted)
            broker.offsets.snapshot()()
        async with running(tmp_path, clock) as broker:
            assert len(broker.transactions) == 1
            await broker.end(original, COMMIT)
            assert broker.seen == ["one"]
            assert len(broker.transactions) == 0
            await broker.end(copy, COMMIT)
            assert broker.seen == ["one"]
        async with running(tmp_path, clock) as broker:
            assert len(broker.transactions) == 0

    asyncio.run(scenario())


def test_a_copy_whose_original_was_ended_is_not_open(tmp_path: Path, clock: Clock) -> None:
    async def scenario() -> None:
        async with running(tmp_path, clock, crash=True) as broker:
            await broker.intake.store([half_draft(broker, "one")])
            copy = half_draft(broker, "one", TRAN_PREPARED_QUEUE_OFFSET="0")
            await broker.intake.store([copy, op_draft(0)])
            broker.offsets.commit(GROUP, HALF_TOPIC, 0, 1)
            broker.offsets.snapshot()()
        async with running(tmp_path, clock) as broker:
            assert len(broker.transactions) == 0

    asyncio.run(scenario())


def test_op_messages_of_5_x_end_several(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with running(tmp_path, clock, crash=True) as broker:
            await broker.intake.store([half_draft(broker, str(n)) for n in range(4)])
            await broker.intake.store([op_draft(0, 2), op_draft(1, tag="x")])
        async with running(tmp_path, clock) as broker:
            assert [offset in broker.transactions for offset in range(4)] == [
                False,
                True,
                False,
                True,
            ]

    asyncio.run(scenario())
    assert "tag 'x'" in caplog.text


@pytest.mark.parametrize("name", ["clean", "killed"])
def test_nothing_is_open_in_apaches_stores(name: str, tmp_path: Path, clock: Clock) -> None:
    with tarfile.open(GOLDEN / f"{name}.tar.gz") as tar:
        tar.extractall(tmp_path, filter="data")
    sizes = {"log_file_size": 131_072, "queue_file_size": 2000, "extension_file_size": 8192}
    config = StoreConfig(**{**vars(CONFIG), **sizes, "extensions": True, "bitmaps": True})

    async def scenario() -> None:
        async with running(tmp_path / name, clock, config) as broker:
            halves, ops = broker.messages(HALF_TOPIC), broker.messages(OP_TOPIC)
            assert len(halves) == len(ops) > 0
            assert len(broker.transactions) == 0
            end = broker.store.log.end
            for half in halves:
                place = Appended(half.log_offset, half.size, half.queue_offset)
                await broker.end(place, COMMIT, half.properties["PGROUP"])
            await broker.transactions.check()
            assert broker.store.log.end == end
            assert broker.offsets.get(GROUP, HALF_TOPIC, 0) == len(halves)
            assert broker.offsets.get(GROUP, OP_TOPIC, 0) == len(ops)

    asyncio.run(scenario())


def test_what_is_stored_is_what_apache_stores(tmp_path: Path, clock: Clock) -> None:
    """Its own committed transactions, done again by us: the same but for their places."""
    with tarfile.open(GOLDEN / "clean.tar.gz") as tar:
        tar.extractall(tmp_path, filter="data")
    sizes = {"log_file_size": 131_072, "queue_file_size": 2000, "extension_file_size": 8192}
    config = StoreConfig(**{**vars(CONFIG), **sizes, "extensions": True, "bitmaps": True})

    def told(message: StoredMessage) -> tuple:
        return (
            *(message.topic, message.queue_id, message.body, message.flag, message.sys_flag),
            *(message.born_timestamp, message.reconsume_times, message.properties),
        )

    async def scenario() -> None:
        async with running(tmp_path / "clean", clock, config) as broker:
            halves = {half.log_offset: half for half in broker.messages(HALF_TOPIC)}
            theirs = [
                message
                for topic, queue_id in broker.store.queues
                if topic == "Notes"
                for message in broker.messages(topic, queue_id)
                if message.sys_flag.transaction == SysFlag.COMMIT
            ]
        async with running(tmp_path / "ours", clock) as broker:
            for final in theirs:
                half = halves[final.prepared_transaction_offset]
                bare = {k: v for k, v in half.properties.items() if not k.startswith("REAL_")}
                draft = Draft(
                    topic=final.topic,
                    queue_id=final.queue_id,
                    body=half.body,
                    properties=properties.encode(bare).encode(),
                    sys_flag=SysFlag.PREPARED,
                    born_timestamp=half.born_timestamp,
                )
                before = len(broker.messages(HALF_TOPIC))
                broker.transactions.put(draft, lambda context, place: b"", None)
                await until(lambda: len(broker.transactions), lambda: broker.transactions)
                ours = broker.messages(HALF_TOPIC)[before]
                assert told(ours) == told(half)
                place = Appended(ours.log_offset, 0, ours.queue_offset)
                await broker.end(place, COMMIT, half.properties["PGROUP"])
                assert told(broker.messages(final.topic, final.queue_id)[-1]) == told(final)

    asyncio.run(scenario())


class Unlucky(random.Random):
    """Of what was not synced, a power cut loses everything."""

    def random(self) -> float:
        return 0.0


@pytest.mark.parametrize("decision", [COMMIT, None], ids=["committed", "open"])
def test_a_power_cut_after_offsets_were_saved_loses_no_transaction(
    decision: int | None, tmp_path: Path, clock: Clock
) -> None:
    async def scenario() -> None:
        files = LossyFiles(Unlucky(1))
        async with running(tmp_path, clock, files=files, crash=True) as broker:
            [before, place] = await broker.prepare("before", "one")
            await broker.end(before, COMMIT)
            if decision is not None:
                await broker.end(place, decision)
            broker.transactions.note_progress()
            broker.offsets.snapshot()()
        files.power_cut()
        async with running(tmp_path, clock) as broker:
            if decision is not None:
                assert broker.seen == ["before", "one"]
                return
            producer = Producer()
            broker.join(producer)
            clock.seconds += 60
            await broker.transactions.check()
            assert producer.asked == ["one"]

    asyncio.run(scenario())
