"""Pulls through a filter server: statuses, offsets, waiting, and what is passed on."""

import asyncio
import itertools
import shutil
import threading

import numpy as np
import pyarrow as pa
import pytest
from filterserver.consuming import (
    EVEN,
    NONE,
    RARE,
    Client,
    numbers,
    run,
    serving,
    standing,
    until,
)

from tamis.code import CodeFilter, Context, Judge, Needs, load
from tamis.code.verdicts import Verdicts
from tamis.filterserver import reading
from tamis.filterserver.classes import Classes, Identity
from tamis.filterserver.link import BrokerLink, Pulled
from tamis.filterserver.reading import Memory, Stream
from tamis.net.aio import Peer
from tamis.wire.codes import PullFlag, RequestCode, ResponseCode
from tamis.wire.command import Command
from tamis.wire.headers import PullMessage, QueryConsumerOffset


def test_only_what_matches_is_given_as_it_lies_in_the_log() -> None:
    async def work() -> None:
        async with standing() as (_, _, client):
            await client.send(*numbers(10))
            assert (await client.upload(EVEN, "Even")).code == 0
            answer = await client.pull(0)
            assert (answer.code, answer.offsets) == (0, [0, 2, 4, 6, 8])
            assert (answer.following, answer.min_offset, answer.max_offset) == (10, 0, 10)
            assert answer.suggested == 0
            header = PullMessage(
                consumer_group="other", topic="T", queue_id=0, queue_offset=0, max_msg_nums=32,
                sys_flag=PullFlag.SUBSCRIPTION, subscription="*",
            )  # fmt: skip
            whole = await client.broker.ask(
                Command(code=header.CODE, fields=header.to_fields()), 20
            )
            for message in answer.messages:
                start = whole.body.index(b"%d" % message.queue_offset)
                assert start > 0
            assert all(answer.records[at : at + 91] in whole.body for at in _starts(answer.records))

    run(work())


def _starts(records: bytes) -> list[int]:
    starts, at = [], 0
    while at < len(records):
        starts.append(at)
        at += int.from_bytes(records[at : at + 4])
    return starts


def test_a_pull_without_a_class_is_refused_and_says_so() -> None:
    async def work() -> None:
        async with standing() as (_, server, client):
            await client.send(*numbers(3))
            answer = await client.pull(0)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "group G, topic T: this filter server has no class" in answer.remark
            assert server.puller.unknown == 1

    run(work())


def test_no_more_messages_than_asked_for_and_the_rest_in_the_next_pulls() -> None:
    async def work() -> None:
        async with standing() as (_, server, client):
            await client.send(*numbers(100))
            await client.upload(EVEN, "Even")
            answer = await client.pull(0, most=7)
            assert answer.offsets == [0, 2, 4, 6, 8, 10, 12]
            assert answer.following == 14
            bodies, end = await client.consume(answer.following, most=7)
            assert bodies == numbers(100)[14::2]
            assert end == 100
            # what was judged was kept, and not judged again
            assert next(iter(server.classes)).tally.messages == 100

    run(work())


def test_an_answer_has_no_more_bytes_than_set_but_one_message_in_any_case() -> None:
    async def work() -> None:
        async with standing(answer_bytes=1024) as (_, _, client):
            await client.send(*([b"0".ljust(700)] * 3), b"0".ljust(5000))
            await client.upload(EVEN, "Even")
            assert (await client.pull(0)).offsets == [0]
            assert (await client.pull(3)).offsets == [3]
            bodies, _ = await client.consume()
            assert [len(body) for body in bodies] == [700, 700, 700, 5000]

    run(work())


def test_ten_thousand_messages_with_a_rare_match_move_the_offset_past_all_of_them() -> None:
    async def work() -> None:
        async with standing() as (_, server, client):
            await client.send(*numbers(10_000))
            await client.upload(RARE, "Rare")
            bodies, end = await client.consume()
            assert bodies == [b"%d" % number for number in range(999, 10_000, 1000)]
            assert end == 10_000
            tally = next(iter(server.classes)).tally
            assert (tally.messages, tally.matched, tally.failed) == (10_000, 10, 0)
            assert server.streams.memory.used == 0

    run(work())


def test_nothing_matching_for_long_tells_the_consumer_how_far_it_was_looked() -> None:
    async def work() -> None:
        async with standing(scan_seconds=1.0, batch=1000) as (_, server, client):
            ticks = itertools.count(1000.0)
            server.puller._clock = lambda: next(ticks)  # each look at it is a second later
            await client.send(*numbers(3000))
            await client.upload(NONE, "Nothing")
            offset, answers = 0, 0
            while offset < 3000:
                answer = await client.pull(offset, hold=10)
                assert (answer.code, answer.bodies) == (20, [])
                assert offset < answer.following <= 3000
                offset, answers = answer.following, answers + 1
            assert answers > 1  # about a thousand are judged in a second
            answer = await client.pull(offset)
            assert (answer.code, answer.following) == (19, 3000)

    run(work())


def test_a_pull_at_the_end_waits_for_a_message_that_matches() -> None:
    async def work() -> None:
        async with standing(scan_seconds=20) as (_, server, client):
            await client.send(*numbers(2))
            await client.upload(EVEN, "Even")
            _, end = await client.consume()
            assert end == 2
            held = asyncio.create_task(client.pull(2, hold=30))
            await until(lambda: server.puller.waiting == 1)
            await client.send(b"3", b"5")
            await until(lambda: next(iter(server.classes)).tally.messages == 4)
            assert not held.done()
            await client.send(b"4")
            answer = await held
            assert (answer.code, answer.bodies, answer.following) == (0, [b"4"], 5)
            assert server.puller.waiting == 0

    run(work())


def test_a_pull_at_the_end_tells_how_far_it_was_looked_before_its_time_is_up() -> None:
    async def work() -> None:
        async with standing(scan_seconds=0.2) as (_, server, client):
            await client.send(*numbers(2))
            await client.upload(NONE, "Nothing")
            async with asyncio.timeout(30):
                answer = await client.pull(0, hold=60)
                assert (answer.code, answer.following) == (20, 2)
                held = asyncio.create_task(client.pull(2, hold=60))
                await until(lambda: server.puller.waiting == 1)
                await client.send(b"3")
                answer = await held
            assert (answer.code, answer.following) == (20, 3)

    run(work())


def test_a_pull_that_waited_in_vain_says_whether_anything_was_looked_at() -> None:
    async def work() -> None:
        async with standing() as (_, server, client):
            await client.upload(EVEN, "Even")
            answer = await client.pull(0, hold=0.2)
            assert (answer.code, answer.following) == (19, 0)
            held = asyncio.create_task(client.pull(0, hold=2))
            await until(lambda: server.puller.waiting == 1)
            await client.send(b"1")
            answer = await held
            assert (answer.code, answer.following) == (20, 1)

    run(work())


def test_an_offset_that_is_not_there_is_answered_as_the_broker_does() -> None:
    async def work() -> None:
        async with standing() as (_, _, client):
            await client.send(*numbers(5))
            await client.upload(EVEN, "Even")
            answer = await client.pull(100)
            assert (answer.code, answer.following) == (ResponseCode.PULL_OFFSET_MOVED, 5)
            answer = await client.pull(5)
            assert (answer.code, answer.following) == (ResponseCode.PULL_NOT_FOUND, 5)
            answer = await client.pull(-1)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            answer = await client.pull(0, queue_id=7)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "the broker says: queueId[7] is illegal" in answer.remark

    run(work())


def test_a_topic_that_the_broker_does_not_have_is_an_error_with_its_words() -> None:
    async def work() -> None:
        async with standing() as (_, _, client):
            await client.upload(EVEN, "Even", topic="absent")
            answer = await client.pull(0, topic="absent")
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "topic[absent] not exist" in answer.remark

    run(work())


def test_how_far_the_group_is_is_passed_on_to_the_broker() -> None:
    async def work() -> None:
        async with standing() as (_, _, client):
            await client.send(*numbers(20))
            await client.upload(EVEN, "Even")
            await client.pull(0, commit=6)
            await _until_committed(client, 6)

    run(work())


async def _until_committed(client: Client, offset: int) -> None:
    header = QueryConsumerOffset(consumer_group="G", topic="T", queue_id=0)
    request = Command(code=header.CODE, fields=header.to_fields())
    for _ in range(1000):
        answer = await client.broker.ask(request, 20)
        if answer.code == 0 and answer.fields == {"offset": str(offset)}:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(answer)


def test_two_groups_read_the_same_queue_each_by_its_own_class() -> None:
    async def work() -> None:
        async with standing(queues=2) as (_, _, client):
            for queue_id in (0, 1):
                await client.send(*numbers(2500), queue_id=queue_id)
            await client.upload(EVEN, "Even", group="A")
            await client.upload(RARE, "Rare", group="B")
            results = await asyncio.gather(
                *(
                    client.consume(group=group, queue_id=queue_id)
                    for group in ("A", "B")
                    for queue_id in (0, 1)
                )
            )
            even, rare = numbers(2500)[::2], [b"999", b"1999"]
            assert [bodies for bodies, _ in results] == [even, even, rare, rare]

    run(work())


def test_members_that_read_one_queue_at_different_places_do_not_disturb_each_other() -> None:
    """As members of a broadcasting group do."""

    async def work() -> None:
        async with standing() as (_, _, client):
            await client.send(*numbers(3000))
            await client.upload(EVEN, "Even")
            results = await asyncio.gather(
                *(client.consume(offset, most=10) for offset in (0, 500, 2001))
            )
            for (bodies, end), offset in zip(results, (0, 500, 2002), strict=True):
                assert bodies == numbers(3000)[offset::2]
                assert end == 3000

    run(work())


def test_going_back_gives_the_same_messages_again() -> None:
    async def work() -> None:
        async with standing() as (_, _, client):
            await client.send(*numbers(50))
            await client.upload(EVEN, "Even")
            first = await client.pull(0, most=5)
            assert (await client.pull(0, most=5)).records == first.records
            assert (await client.pull(4, most=2)).offsets == [4, 6]

    run(work())


def test_long_messages_come_in_short_answers_of_the_broker() -> None:
    """Of 20 KB each, 13 fit in one answer, and not the 32 of short ones."""

    async def work() -> None:
        async with standing(batch=64) as (_, _, client):
            short = numbers(400)
            long = [b"%d" % number + b" " * 20_000 for number in range(150)]
            await client.send(*short, *long, *short)
            await client.upload(EVEN, "Even")
            bodies, end = await client.consume()
            assert bodies == [body for body in (*short, *long, *short) if int(body) % 2 == 0]
            assert end == 950

    run(work())


def test_what_is_read_ahead_is_bounded_however_many_queues_there_are() -> None:
    async def work() -> None:
        async with standing(queues=4, read_ahead=2**20) as (_, server, client):
            for queue_id in range(4):
                await client.send(*[b"0" * 1000] * 1500, queue_id=queue_id)
            await client.upload(EVEN, "Even")
            for _ in range(3):
                answers = await asyncio.gather(
                    *(client.pull(0, queue_id=queue_id, most=1) for queue_id in range(4))
                )
                assert [answer.offsets for answer in answers] == [[0]] * 4
                assert server.streams.memory.used <= 2**20
            for queue_id in range(4):
                bodies, _ = await client.consume(queue_id=queue_id)
                assert len(bodies) == 1500

    run(work())


def test_a_broker_that_is_restarted_in_the_middle_loses_and_doubles_nothing() -> None:
    async def work() -> None:
        async with standing() as (cluster, server, client):
            await client.send(*numbers(3000))
            await client.upload(EVEN, "Even")
            bodies, offset, restarted = list[bytes](), 0, False
            while True:
                answer = await client.pull(offset)
                if answer.code == ResponseCode.SYSTEM_ERROR:
                    assert restarted
                    assert "broker" in answer.remark
                    await asyncio.sleep(0.05)
                    continue
                if answer.code == 19:
                    break
                bodies += answer.bodies
                offset = answer.following
                if len(bodies) > 700 and not restarted:
                    await asyncio.to_thread(cluster.restart_broker)
                    restarted = True
            assert restarted
            assert bodies == numbers(3000)[::2]
            await until(lambda: server.registration.is_registered)

    run(work())


def test_what_was_read_of_messages_that_the_broker_lost_is_not_given_out() -> None:
    """A broker that crashed gives the offsets of messages that it had not flushed to others."""

    async def work() -> None:
        async with standing() as (cluster, server, client):
            await client.send(*numbers(100))
            await client.upload(EVEN, "Even")
            assert (await client.pull(0, most=1, commit=6)).offsets == [0]
            assert server.streams.memory.used > 0  # the others are kept for the next pull
            await _until_committed(client, 6)
            await asyncio.to_thread(cluster.stop_broker)
            assert cluster.store is not None
            shutil.rmtree(cluster.store)
            await asyncio.to_thread(cluster.start_broker)
            async with Client.connected(cluster.broker, server.address) as after:
                await after.create_topic("T", 1)
                await after.send(*[b"1"] * 50, b"50", *[b"1"] * 49)
                await until(lambda: server.link.is_connected)
                bodies, end = await client.consume(2, commit=6)
                assert (bodies, end) == ([b"50"], 100)
                # nor is the group's offset taken for known
                await _until_committed(after, 6)

    run(work())


def test_a_filter_server_that_starts_again_knows_no_class_until_one_is_uploaded() -> None:
    async def work() -> None:
        async with standing() as (cluster, _, client):
            await client.send(*numbers(10))
            async with (
                serving(cluster.broker) as again,
                Client.connected(cluster.broker, again.address) as other,
            ):
                assert (await other.pull(0)).code == ResponseCode.SYSTEM_ERROR
                await other.upload(EVEN, "Even")
                assert (await other.pull(0)).offsets == [0, 2, 4, 6, 8]

    run(work())


def test_pulls_of_a_connection_that_is_gone_are_not_waited_for() -> None:
    async def work() -> None:
        async with standing() as (_, server, client):
            await client.upload(EVEN, "Even")
            held = asyncio.create_task(client.pull(0, hold=30))
            await until(lambda: server.puller.waiting == 1)
            client.server.abort()
            await asyncio.gather(held, return_exceptions=True)
            await until(lambda: server.puller.waiting == 0)

    run(work())


def test_more_pulls_than_may_wait_are_told_that_it_is_busy() -> None:
    async def work() -> None:
        async with standing(most_pulls=2) as (_, server, client):
            await client.upload(EVEN, "Even")
            held = [asyncio.create_task(client.pull(0, hold=1)) for _ in range(2)]
            await until(lambda: server.puller.waiting == 2)
            answer = await client.pull(0, hold=1)
            assert answer.code == ResponseCode.SYSTEM_BUSY
            assert [(await one).code for one in held] == [19, 19]

    run(work())


def test_one_connection_can_not_have_all_the_pulls_that_may_wait() -> None:
    async def work() -> None:
        async with (
            standing(most_connection_pulls=2) as (cluster, server, client),
            Client.connected(cluster.broker, server.address) as other,
        ):
            await client.upload(EVEN, "Even")
            held = [asyncio.create_task(client.pull(0, hold=1)) for _ in range(2)]
            await until(lambda: server.puller.waiting == 2)
            assert (await client.pull(0, hold=1)).code == ResponseCode.SYSTEM_BUSY
            assert (await other.pull(0, hold=0.1)).code == ResponseCode.PULL_NOT_FOUND
            assert [(await one).code for one in held] == [19, 19]

    run(work())


def test_filters_that_hang_hold_up_no_other_group_however_many_they_are() -> None:
    go_on = threading.Event()

    def make(code: CodeFilter, context: Context) -> Judge:
        return _Hanging(go_on) if context.group != "G" else load(code, context)

    async def work() -> None:
        async with standing(make_judge=make, most_classes=100) as (_, server, client):
            await client.send(*numbers(10))
            groups = [f"hanging-{number}" for number in range(99)]
            for group in groups:
                await client.upload(EVEN, "Even", group=group)
            await client.upload(EVEN, "Even")
            held = [asyncio.create_task(client.pull(0, group=group)) for group in groups]
            await until(lambda: server.puller.waiting == 99)
            try:
                assert (await client.pull(0)).offsets == [0, 2, 4, 6, 8]
            finally:
                go_on.set()
            assert {(await one).code for one in held} == {20}

    run(work())


class _Hanging:
    needs = Needs(is_batch=True, columns=("body",))

    def __init__(self, go_on: threading.Event) -> None:
        self._go_on = go_on

    def judge(self, batch: pa.RecordBatch) -> Verdicts:
        self._go_on.wait(60)
        return Verdicts(np.zeros(batch.num_rows, np.uint8))

    def close(self) -> None:
        pass


def test_a_request_that_is_not_for_a_filter_server_is_told_so() -> None:
    async def work() -> None:
        async with standing() as (_, _, client):
            answer = await client.server.ask(Command(code=RequestCode.SEND_MESSAGE), 20)
            assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED

    run(work())


def test_a_waiting_pull_goes_by_the_class_that_is_uploaded_meanwhile() -> None:
    async def work() -> None:
        async with standing(make_judge=load) as (_, server, client):
            await client.send(b"2")
            await client.upload(NONE, "Nothing")
            held = asyncio.create_task(client.pull(0, hold=30))
            await until(lambda: next(iter(server.classes)).tally.messages == 1)
            await client.upload(EVEN, "Even")
            await client.send(b"3")
            answer = await held
            assert (answer.code, answer.bodies) == (0, [b"2"])

    run(work())


class _Slow:
    """A judge that waits until it is told to go on."""

    def __init__(self, code: CodeFilter, context: Context) -> None:
        self._inner = load(code, context)
        self.needs = self._inner.needs
        self.may_go = threading.Event()
        self.is_asked = threading.Event()

    def judge(self, batch: pa.RecordBatch) -> Verdicts:
        self.is_asked.set()
        assert self.may_go.wait(60)
        return self._inner.judge(batch)

    def close(self) -> None:
        self._inner.close()


def test_a_class_that_is_uploaded_while_another_judges_decides_in_its_place() -> None:
    made: list[_Slow] = []

    def make(code: CodeFilter, context: Context) -> _Slow:
        made.append(_Slow(code, context))
        return made[-1]

    async def work() -> None:
        async with standing(make_judge=make) as (_, _, client):
            await client.send(*numbers(10))
            await client.upload(EVEN, "Even")
            pulling = asyncio.create_task(client.pull(0))
            await asyncio.to_thread(made[0].is_asked.wait, 60)
            assert (await client.upload(EVEN.replace("== 0", "== 1"), "Even")).code == 0
            made[1].may_go.set()
            made[0].may_go.set()
            answer = await pulling
            assert (answer.code, answer.offsets) == (0, [1, 3, 5, 7, 9])

    run(work())


def test_a_connection_that_is_lost_while_its_messages_are_judged_costs_nothing() -> None:
    made: list[_Slow] = []

    def make(code: CodeFilter, context: Context) -> _Slow:
        made.append(_Slow(code, context))
        return made[-1]

    async def work() -> None:
        async with standing(make_judge=make) as (cluster, server, client):
            await client.send(*numbers(10))
            await client.upload(EVEN, "Even")
            pulling = asyncio.create_task(client.pull(0))
            await asyncio.to_thread(made[0].is_asked.wait, 60)
            client.server.abort()
            await asyncio.gather(pulling, return_exceptions=True)
            await until(lambda: server.puller._waiting == {})
            async with Client.connected(cluster.broker, server.address) as after:
                pulling = asyncio.create_task(after.pull(0))
                await until(lambda: server.puller.waiting == 2)  # the judge has one caller
                made[0].may_go.set()
                assert (await pulling).offsets == [0, 2, 4, 6, 8]
                await until(lambda: server.puller.waiting == 0)
                assert (await after.consume())[1] == 10
            server.streams.close()
            assert server.streams.memory.used == 0
            assert server.background.failures == {}

    run(work())


# Reading ahead, part by part.


class _Link(BrokerLink):
    """Pulls are answered when the test says so."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1:1")
        self._peer = Peer(lambda peer, requests: None)
        self.posted: list[tuple[int, asyncio.Future[Pulled]]] = []

    def post_pull(
        self, peer: Peer, topic: str, queue_id: int, offset: int, most: int, hold: float = 0.0
    ) -> "asyncio.Future[Pulled]":
        self.posted.append((offset, asyncio.get_running_loop().create_future()))
        return self.posted[-1][1]


def _stream(link: BrokerLink, memory: Memory) -> Stream:
    classes = Classes(1, 60, lambda one: None)
    by = classes.put(("T", "G"), Identity("F", 1), None, "", Peer(lambda *_: None))  # type: ignore
    return Stream(link, memory, by, 0, 0)


def test_answers_larger_than_expected_count_when_they_come_and_not_when_they_are_used() -> None:
    async def work() -> None:
        link, memory = _Link(), Memory(2**30)
        stream = _stream(link, memory)
        reading_first = asyncio.create_task(stream.read())
        await asyncio.sleep(0)
        link.posted[0][1].set_result(Pulled(0, 0, 10, 0, 1000, b"x" * 100))  # 10 bytes each
        await reading_first
        stream._read_ahead(50)
        assert [offset for offset, _ in link.posted[1:]] == [10, 20, 30, 40]
        expected = memory.used
        assert expected == 100 + 4 * 100
        for offset, future in link.posted[1:]:
            future.set_result(Pulled(0, offset, offset + 10, 0, 1000, b"x" * 5000))
        await asyncio.sleep(0)
        assert memory.used == expected + 4 * 4900
        stream.drop()
        assert memory.used == 0

    run(work())


def test_streams_without_a_pull_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody can ask for queues that do not exist."""
    monkeypatch.setattr(reading, "_MOST_IDLE", 20)

    async def work() -> None:
        async with standing() as (_, server, client):
            await client.upload(EVEN, "Even")
            for queue_id in range(100):
                assert (await client.pull(0, queue_id=queue_id + 1)).code == 1
                assert len(server.streams) <= 20
            assert len(server.streams._places) <= 20

    run(work())
