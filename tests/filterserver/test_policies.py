"""What becomes of messages that a filter fails on, and what consumers are told."""

import asyncio
import json
import logging
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from client.relaying import DAMAGES, MARK, damaging
from filterserver.consuming import EVEN, Client, numbers, run, serving, standing

from tamis.client import Admin
from tamis.code import CodeFilter, Context, load
from tamis.code.contract import Needs
from tamis.code.verdicts import Verdicts
from tamis.errors import SandboxError
from tamis.filter.logic import Outcome
from tamis.filterserver.classes import Held
from tamis.sandbox import Limits
from tamis.wire import record
from tamis.wire.codes import PullFlag, RequestCode, ResponseCode
from tamis.wire.command import Command
from tamis.wire.headers import PullMessage

BODIES = [b"0", b"1", b"2", b"x", b"4", b"5", b"6"]  # int() fails on the fourth


@pytest.mark.parametrize(
    ("policy", "offsets", "word"),
    [
        ("skip", [0, 2, 4, 6], "skipped"),
        ("pass", [0, 2, 3, 4, 6], "passed on unfiltered"),
        ("dead-letter", [0, 2, 4, 6], "sent to the dead letters"),
    ],
)
def test_a_message_the_filter_fails_on(
    policy: str, offsets: list[int], word: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "tamis.filterserver")

    async def work() -> None:
        async with standing(on_error=policy) as (_, server, client):
            await client.send(*BODIES)
            await client.upload(EVEN, "Even")
            answer = await client.pull(0)
            assert (answer.code, answer.offsets, answer.following) == (0, offsets, 7)
            assert f"the filter failed on 1 message, {word}" in answer.remark
            assert "group G, topic T, queue 0, offset 3: ValueError" in answer.remark
            tally = next(iter(server.classes)).tally
            assert (tally.messages, tally.failed, tally.matched) == (7, 1, len(offsets))
            assert "offset 3: ValueError" in tally.last_failure
            dead = await _dead_letters(client)
            assert dead == ([b"x"] if policy == "dead-letter" else [])
            # asked for once more, it is not sent there twice
            assert (await client.pull(0)).offsets == offsets
            assert await _dead_letters(client) == dead
            assert f"on_error {policy}: group G, topic T, queue 0, offset 3" in caplog.text

    run(work())


async def _dead_letters(client: Client) -> list[bytes]:
    header = PullMessage(
        consumer_group="tool", topic="%DLQ%G", queue_id=0, queue_offset=0, max_msg_nums=32,
        sys_flag=PullFlag.SUBSCRIPTION, subscription="*",
    )  # fmt: skip
    answer = await client.broker.ask(Command(code=header.CODE, fields=header.to_fields()), 20)
    if answer.code != 0:
        return []
    found = []
    at = 0
    while at < len(answer.body):
        size = int.from_bytes(answer.body[at : at + 4])
        found.append(record.decode(answer.body[at : at + size]).body)
        at += size
    return found


def test_a_message_that_is_held_back_is_named_and_tried_again_later() -> None:
    async def work() -> None:
        now = [1000.0]
        async with standing(on_error="hold") as (_, server, client):
            server.puller._clock = lambda: now[0]
            await client.send(*BODIES)
            await client.upload(EVEN, "Even")
            answer = await client.pull(0)
            assert (answer.code, answer.offsets, answer.following) == (0, [0, 2], 3)
            tries = []
            for seconds in (0, 0.5, 1, 1, 2, 0):
                now[0] += seconds
                answer = await client.pull(3, hold=10)
                assert answer.code == ResponseCode.SYSTEM_ERROR
                assert answer.remark.startswith("group G, topic T, queue 0, offset 3: held back")
                assert "ValueError" in answer.remark
                one = next(iter(server.classes))
                tries.append(one.held[0].tries)
            assert tries == [1, 1, 2, 2, 3, 3]  # after 1 s, after 2 s more; then after 4
            assert one.tally.failed == 1
            # a class that can read it lets the queue go on
            mended = EVEN.replace("int(message.body)", "message.body != b'x' and int(message.body)")
            assert (await client.upload(mended, "Even")).code == 0
            answer = await client.pull(3)
            assert (answer.code, answer.offsets, answer.following) == (0, [4, 6], 7)

    run(work())


def test_a_held_message_far_from_the_consumer_moves_it_there_first() -> None:
    async def work() -> None:
        async with standing(on_error="hold") as (_, _, client):
            await client.send(b"1", b"3", b"5", b"x", b"4")
            await client.upload(EVEN, "Even")
            answer = await client.pull(0, hold=10)
            assert (answer.code, answer.following) == (20, 3)
            assert (await client.pull(3, hold=10)).code == ResponseCode.SYSTEM_ERROR

    run(work())


def test_a_message_that_the_broker_does_not_take_as_a_dead_letter_is_held_back() -> None:
    async def work() -> None:
        async with standing(on_error="dead-letter") as (cluster, _, client):
            await client.send(*BODIES)
            await client.upload(EVEN, "Even")
            request = Command(code=25, body=b"autoCreateSubscriptionGroup=false")
            assert (await client.broker.ask(request, 20)).code == 0
            assert cluster.broker
            answer = await client.pull(0)
            assert (answer.code, answer.offsets, answer.following) == (0, [0, 2], 3)
            answer = await client.pull(3)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "can't be sent to the dead letters" in answer.remark
            assert await _dead_letters(client) == []

    run(work())


def test_a_filter_that_fails_on_everything_does_not_block_its_queue() -> None:
    async def work() -> None:
        async with standing() as (_, server, client):
            await client.send(*numbers(2000))
            await client.upload("class F:\n  def match(self, message): 1 / 0\n", "F")
            bodies, end = await client.consume()
            assert (bodies, end) == ([], 2000)
            assert next(iter(server.classes)).tally.failed == 2000

    run(work())


BATCH = """
import pyarrow as pa

class Batch:
    columns = ("body",)

    def match_batch(self, batch):
        return pa.array([int(body) % 2 == 0 for body in batch["body"].to_pylist()])
"""


def test_a_message_that_a_batch_fails_on_does_not_fail_the_others() -> None:
    async def work() -> None:
        async with standing() as (_, server, client):
            bodies = numbers(1000)
            bodies[77] = bodies[600] = b"x"
            await client.send(*bodies)
            await client.upload(BATCH, "Batch")
            given, end = await client.consume()
            assert given == [body for body in bodies if body != b"x" and int(body) % 2 == 0]
            assert end == 1000
            tally = next(iter(server.classes)).tally
            assert (tally.messages, tally.failed) == (1000, 2)
            assert "offset 600: ValueError" in tally.last_failure

    run(work())


@dataclass
class _Usage:
    restarts: int = 0


class _Breaking:
    """A judge as a sandbox's is whose filter breaks a limit with every batch."""

    needs = Needs(is_batch=True, columns=("body",))

    def __init__(self, code: CodeFilter, context: Context) -> None:
        self.usage = _Usage()
        self.batches = 0

    def judge(self, batch: pa.RecordBatch) -> Verdicts:
        self.batches += 1
        self.usage.restarts += 1
        return Verdicts(np.full(batch.num_rows, int(Outcome.ERROR), np.uint8), {0: "too long"})

    def close(self) -> None:
        pass


def test_a_batch_that_broke_a_limit_is_not_judged_again_in_parts() -> None:
    """The sandbox did that, and rests after a few."""
    made: list[_Breaking] = []

    def make(code: CodeFilter, context: Context) -> _Breaking:
        made.append(_Breaking(code, context))
        return made[-1]

    async def work() -> None:
        async with standing(make_judge=make) as (_, _, client):
            await client.send(*numbers(10))
            await client.upload(BATCH, "Batch")
            answer = await client.pull(0)
            assert (answer.code, answer.following) == (20, 10)
            assert "failed on 10 messages" in answer.remark
            assert made[0].batches == 1

    run(work())


def test_a_message_whose_body_cannot_be_read_has_failed_whatever_the_filter_says() -> None:
    text = "class All:\n    columns = ('body',)\n    def match(self, message): return True\n"

    async def work() -> None:
        async with standing() as (_, server, client):
            await client.send(b"0")
            await client.send(b"this is not compressed", flags=1)
            await client.send(b"2")
            await client.upload(text, "All")
            answer = await client.pull(0)
            assert (answer.offsets, answer.following) == ([0, 2], 3)
            assert next(iter(server.classes)).tally.failed == 1
            assert "offset 1: its body can't be read" in answer.remark

    run(work())


def test_a_held_message_that_the_consumers_left_behind_is_forgotten() -> None:
    async def work() -> None:
        now = [1000.0]
        async with standing(on_error="hold") as (_, server, client):
            server.puller._clock = lambda: now[0]
            await client.send(*BODIES)
            await client.upload(EVEN, "Even")
            await client.pull(0)
            assert (await client.pull(3)).code == ResponseCode.SYSTEM_ERROR
            one = next(iter(server.classes))
            now[0] += 30
            server.puller.sweep()
            assert [held.offset for held in one.held.values()] == [3]
            assert (await client.pull(4)).offsets == [4, 6]  # an offset was set past it
            now[0] += 90
            server.puller.sweep()
            assert not one.held

    run(work())


def test_the_status_fits_in_an_answer_however_much_is_held_back() -> None:
    async def work() -> None:
        async with standing() as (_, server, client):
            await client.upload(EVEN, "Even")
            one = next(iter(server.classes))
            for queue_id in range(9000):
                one.hold_back(queue_id, Held(1, "because " * 300, 1, 1e12))
            request = Command(code=RequestCode.GET_FILTER_SERVER_STATUS)
            answer = await client.server.ask(request, 60)
            assert answer.code == 0, answer.remark
            [shown] = json.loads(answer.body)["classes"]
            assert (shown["held_queues"], len(shown["held"])) == (9000, 16)

    run(work())


class _Resting:
    """A judge as a sandbox's is while it recovers from breaches."""

    needs = Needs(is_batch=False, columns=("body",))

    def __init__(self, code: CodeFilter, context: Context) -> None:
        self._inner = load(code, context)
        self.needs = self._inner.needs
        self.rests = True

    def judge(self, batch: pa.RecordBatch) -> Verdicts:
        if self.rests:
            raise SandboxError("killed 3 times for using too much memory", retry_after=7.0)
        return self._inner.judge(batch)

    def close(self) -> None:
        self._inner.close()


def test_a_filter_that_is_not_run_for_a_while_is_an_error_and_then_nothing_is_missing() -> None:
    made: list[_Resting] = []

    def make(code: CodeFilter, context: Context) -> _Resting:
        made.append(_Resting(code, context))
        return made[-1]

    async def work() -> None:
        async with standing(make_judge=make) as (_, _, client):
            await client.send(*numbers(100))
            await client.upload(EVEN, "Even")
            for _ in range(3):
                answer = await client.pull(0, hold=10)
                assert answer.code == ResponseCode.SYSTEM_ERROR
                assert answer.remark == (
                    "group G, topic T, queue 0, offset 0: the filter is not run: killed 3 times"
                    " for using too much memory; again in 7 s"
                )
            made[0].rests = False
            bodies, end = await client.consume()
            assert (bodies, end) == (numbers(100)[::2], 100)

    run(work())


def test_one_group_whose_filter_takes_long_does_not_hold_up_another() -> None:
    slow = (
        "import time\nclass Slow:\n    columns = ('tags',)\n"
        "    def match(self, message):\n        time.sleep(0.1)\n        return True\n"
    )

    async def work() -> None:
        async with standing(queues=2) as (_, server, client):
            await client.send(*numbers(20))
            await client.upload(slow, "Slow", group="slow")
            await client.upload(EVEN, "Even")
            waiting = [
                asyncio.create_task(client.pull(0, group="slow", hold=20)) for _ in range(100)
            ]
            await asyncio.sleep(0)
            bodies, _ = await client.consume()
            assert bodies == numbers(20)[::2]
            assert not any(task.done() for task in waiting)
            for task in waiting:
                task.cancel()
            client.server.abort()
            await asyncio.gather(*waiting, return_exceptions=True)
            assert server.puller.waiting <= 100

    run(work())


BAD = """
import os

class Bad:
    columns = ("body",)

    def match(self, message):
        if message.body == b"loop":
            while True:
                pass
        if message.body == b"exit":
            os._exit(3)
        return int(message.body) % 2 == 0
"""


def test_a_filter_that_breaks_limits_is_reported_and_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With the real sandbox."""
    caplog.set_level(logging.WARNING, "tamis")

    async def work() -> None:
        # the other one is to be in time on a busy machine too
        limits = Limits(wall=3.0, cpu=6.0)
        async with standing(make_judge=None, limits=limits) as (_, server, client):
            bodies = [b"0", b"1", b"loop", b"3", b"4", b"exit", b"6"]
            await client.send(*bodies)
            for group, text, name in (("G", BAD, "Bad"), ("other", EVEN, "Even")):
                answer = await client.upload(text, name, group=group)
                assert answer.code == 0, answer.remark
            assert server.isolation, "what holds here is known once there is a class"
            answer = await client.pull(0, hold=30)
            assert (answer.code, answer.offsets, answer.following) == (0, [0, 4, 6], 7)
            said = "the filter failed on 2 messages, skipped: group G, topic T, queue 0, offset 5: "
            assert said in answer.remark
            bad, even = server.classes
            assert (bad.tally.failed, bad.tally.matched) == (2, 3)
            assert bad.restarts >= 2
            assert "group G, topic T" in caplog.text
            assert "took longer than" in caplog.text or "ended" in caplog.text
            answer = await client.pull(0, group="other")
            assert (answer.code, answer.offsets) == (0, [0, 4, 6])
            assert (even.tally.failed, even.restarts) == (2, 0)  # int() of the two

    run(work())


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_record_is_a_message_that_the_filter_fails_on(kind: str) -> None:
    bodies = [b"0", b"1", b"2", MARK, b"4", b"5", MARK, MARK, b"8"]

    async def work() -> None:
        async with standing() as (cluster, _, client):
            await client.send(*bodies)
            with ExitStack() as stack:
                nameserver = await asyncio.to_thread(
                    stack.enter_context, damaging(cluster, DAMAGES[kind], "T")
                )
                async with Admin(nameserver) as admin:
                    [relay] = [one.address for one in await admin.brokers()]
                async with (
                    serving(relay) as server,
                    Client.connected(cluster.broker, server.address) as consumer,
                ):
                    await consumer.upload(EVEN, "Even")
                    given, end = await consumer.consume(hold=0.1)
                    assert (given, end) == ([b"0", b"2", b"4", b"8"], 9)
                    tally = next(iter(server.classes)).tally
                    assert (tally.messages, tally.failed) == (9, 3)
                    assert "queue 0, offset 7: an answer of broker-a for T" in tally.last_failure
                await asyncio.to_thread(stack.close)

    run(work())
