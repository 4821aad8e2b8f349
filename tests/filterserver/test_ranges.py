"""JUDGE_RANGE: what a class says of messages, without consuming any."""

import asyncio
import json
from base64 import b64decode
from typing import Any

from filterserver.consuming import EVEN, RARE, Client, numbers, run, standing, until

from tamis.wire.codes import ResponseCode
from tamis.wire.command import Command
from tamis.wire.headers import JudgeRange

FAILING = """
class Failing:
    columns = ("body",)

    def match(self, message):
        if message.body == b"3":
            raise ValueError("three")
        return message.body == b"5"
"""


async def judge(client: Client, begin: int, end: int, **more: Any) -> Command:
    asked: dict[str, Any] = {"consumer_group": "G", "topic": "T", "queue_id": 0} | more
    header = JudgeRange(begin=begin, end=end, **asked)
    request = Command(code=header.CODE, fields=header.to_fields())
    return await client.server.ask(request, 60)


async def judged(client: Client, begin: int, end: int, **more: Any) -> dict[str, Any]:
    answer = await judge(client, begin, end, **more)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    told: dict[str, Any] = json.loads(answer.body)
    return told


def test_matches_of_a_range_are_counted_and_the_first_is_named() -> None:
    async def work() -> None:
        async with standing() as (_, server, client):
            await client.send(*numbers(100))
            await client.upload(EVEN, "Even")
            told = await judged(client, 7, 50)
            assert (told["judged_to"], told["messages"]) == (50, 43)
            assert (told["matched"], told["failed"], told["matching"]) == (21, 0, 21)
            assert (told["class"], told["begin"]) == ("Even", 7)
            assert told["next_match_offset"] == 8
            pulled = (await client.pull(8, most=1)).messages[0]
            assert told["next_match_stored"] == pulled.store_timestamp
            nothing = await judged(client, 7, 8)
            assert (nothing["matching"], nothing["next_match_offset"]) == (0, None)
            beyond = await judged(client, 90, 1000)
            assert (beyond["judged_to"], beyond["matching"], beyond["messages"]) == (1000, 5, 10)
            tally = next(iter(server.classes)).tally
            assert tally.messages <= 100, "questions are not counted as pulls are"

    run(work())


def test_a_long_range_takes_several_requests_and_pulls_go_on_meanwhile() -> None:
    async def work() -> None:
        async with standing(batch=500) as (_, server, client):
            await client.send(*numbers(10_000))
            await client.upload(RARE, "Rare")
            at = matching = requests = 0
            while at < 10_000:
                told = await judged(client, at, 10_000, timeout_millis=0)
                assert told["begin"] == at < told["judged_to"]
                at, matching, requests = (
                    told["judged_to"], matching + told["matching"], requests + 1,
                )  # fmt: skip
            assert (at, matching) == (10_000, 10)
            assert requests > 5
            counting = asyncio.create_task(judged(client, 0, 10_000))
            assert [len((await client.consume())[0])] == [10]
            assert (await counting)["matching"] == 10
            assert server.ranges._judge.memory.used == 0

    run(work())


def test_outcomes_say_which_message_failed_and_why() -> None:
    async def work() -> None:
        async with standing() as (_, _, client):
            await client.send(*numbers(10))
            await client.upload(FAILING, "Failing")
            told = await judged(client, 0, 10, outcomes=True)
            assert (told["matched"], told["failed"], told["matching"]) == (1, 1, 1)
            failed, matched = told["outcomes"]
            assert (failed["offset"], failed["outcome"]) == (3, "failed")
            assert "three" in failed["reason"]
            assert matched == {"offset": 5, "outcome": "matched", "reason": None}
            assert (await judged(client, 4, 5, outcomes=True))["outcomes"] == []
            refused = await judge(client, 0, 5000, outcomes=True)
            assert refused.code == ResponseCode.SYSTEM_ERROR
            assert "up to 1000 messages" in (refused.remark or "")

    run(work())


def test_bitmaps_say_which_messages_matched_and_failed() -> None:
    async def work() -> None:
        async with standing(batch=500) as (_, _, client):
            await client.send(*numbers(2000))
            await client.upload(FAILING, "Failing")
            told = await judged(client, 2, 2000, bitmaps=True)
            assert told["judged_to"] == 2000
            matched, failed = (_set_bits(told[name]) for name in ("matched_bits", "failed_bits"))
            assert (matched, failed) == ([5 - 2], [3 - 2])
            assert "outcomes" not in told
            part = await judged(client, 0, 2000, bitmaps=True, timeout_millis=0)
            size = len(b64decode(part["matched_bits"]))
            assert size == (part["judged_to"] + 7) // 8 < 250, "as far as it came"
            refused = await judge(client, 0, 1_000_001, bitmaps=True)
            assert "a bitmap is of up to 1000000 messages" in (refused.remark or "")

    run(work())


def _set_bits(text: str) -> list[int]:
    number = int.from_bytes(b64decode(text), "little")
    return [place for place in range(number.bit_length()) if number >> place & 1]


def test_a_failure_that_is_passed_on_is_a_match() -> None:
    async def work() -> None:
        async with standing(on_error="pass") as (_, _, client):
            await client.send(*numbers(10))
            await client.upload(FAILING, "Failing")
            told = await judged(client, 0, 10)
            assert (told["matched"], told["failed"], told["matching"]) == (1, 1, 2)
            assert (told["next_match_offset"], told["on_error"]) == (3, "pass")

    run(work())


def test_what_is_not_there_is_refused_in_a_line() -> None:
    async def work() -> None:
        async with standing() as (_, _, client):
            await client.send(*numbers(3))
            for more in ({}, {"consumer_group": "other"}, {"topic": "other"}):
                answer = await judge(client, 0, 3, **more)
                assert answer.code == ResponseCode.SYSTEM_ERROR
                assert "does not have a class of the group" in (answer.remark or "")
            await client.upload(EVEN, "Even")
            answer = await judge(client, 0, 3, class_name="Odd")
            assert "does not have class Odd of the group" in (answer.remark or "")
            assert (await judged(client, 0, 3, class_name="Even"))["matching"] == 2
            for begin, end in ((3, 0), (-1, 3)):
                answer = await judge(client, begin, end)
                assert "there is no such range" in (answer.remark or "")

    run(work())


def test_a_class_in_a_sandbox_is_asked_the_same_way() -> None:
    async def work() -> None:
        async with standing(make_judge=None, isolation="best-effort") as (_, server, client):
            await client.send(*numbers(50))
            assert (await client.upload(EVEN, "Even")).code == 0
            await until(lambda: len(server.classes) == 1)
            assert (await judged(client, 0, 50))["matching"] == 25

    run(work())
