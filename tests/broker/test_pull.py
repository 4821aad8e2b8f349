"""Pulls over a connection: who may, by which filter, what is found, and what if nothing is yet."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from broker.running import SMALL, Client, messages, run, running, until

from tamis.broker.broker import Broker
from tamis.broker.config import BrokerConfig
from tamis.broker.handlers import onepull as handler
from tamis.broker.verdicts import Tally
from tamis.wire.bodies import Perm, Subscription
from tamis.wire.codes import PullFlag, RequestCode, ResponseCode
from tamis.wire.command import Command
from tamis.wire.frame import Encoding
from tamis.wire.headers import PullMessage, PullMessageResponse

FOUND, NOT_FOUND = ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND
RETRY, MOVED = ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED


class Clock:
    def __init__(self) -> None:
        self.seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds


@asynccontextmanager
async def timed(store: Path, clock: Clock, **settings: Any) -> AsyncIterator[tuple[Broker, Client]]:
    """A broker whose time passes when the test says so."""
    broker = Broker(BrokerConfig(port=0, **(SMALL | settings)), store, clock=clock)
    await broker.start()
    client = await Client.connect(broker.address)
    try:
        yield broker, client
    finally:
        client.peer.close()
        await broker.close()


async def stored(broker: Broker, topic: str, count: int, queue_id: int = 0) -> None:
    """Waits until so many messages are in the queue."""
    await until(lambda: (q := broker.store.find_queue(topic, queue_id)) and q.max_offset == count)


async def fill(broker: Broker, client: Client, tags: str, topic: str = "T") -> None:
    """A message for each letter, which is its tag and body; `n` is its number."""
    for number, tag in enumerate(tags):
        await client.send(topic, tag.encode(), tags=tag, properties={"n": str(number)})
    await stored(broker, topic, len(tags))


def offsets(answer: Command) -> tuple[int, int, int]:
    header = PullMessageResponse.from_fields(answer.fields)
    assert header.suggest_which_broker_id == 0
    return header.next_begin_offset, header.min_offset, header.max_offset


def bodies(answer: Command) -> list[bytes]:
    return [message.body for message in messages(answer.body)]


def sql(expression: str, version: int = 1, topic: str = "T") -> Subscription:
    return Subscription(
        topic=topic, expression=expression, expression_type="SQL92", version=version
    )


# Who may pull, in the order it is asked.


def test_refusals_come_in_rocketmqs_order(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path, auto_create_groups=False) as (broker, client):
            await fill(broker, client, "a")
            wrong: dict[str, Any] = {"group": "unknown", "queue_id": 99}
            refusals = []

            async def refused(topic: str) -> None:
                answer = await client.pull(topic, **wrong)
                refusals.append((answer.code, (answer.remark or "").partition(" ")[0]))

            broker.settings.change({"brokerPermission": "2"})
            await refused("None")
            broker.settings.change({"brokerPermission": "6"})
            await refused("None")
            broker.groups.put(replace(broker.groups["TOOLS_CONSUMER"], name="unknown"))
            broker.groups.put(replace(broker.groups["unknown"], consume_enabled=False))
            await refused("None")
            broker.groups.put(replace(broker.groups["unknown"], consume_enabled=True))
            await refused("None")
            broker.topics.put(replace(broker.topics["T"], perm=Perm.WRITE))
            await refused("T")
            broker.topics.put(replace(broker.topics["T"], perm=Perm.READ | Perm.WRITE))
            await refused("T")
            wrong["queue_id"] = 0
            wrong["subscription"] = None
            await refused("T")
            assert refusals == [
                (ResponseCode.NO_PERMISSION, "the"),
                (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription"),
                (ResponseCode.NO_PERMISSION, "subscription"),
                (ResponseCode.TOPIC_NOT_EXIST, "topic[None]"),
                (ResponseCode.NO_PERMISSION, "the"),
                (ResponseCode.SYSTEM_ERROR, "queueId[99]"),
                (ResponseCode.SUBSCRIPTION_NOT_EXIST, "the"),
            ]

    run(scene())


def test_a_registered_filter_must_be_there_and_as_new_as_the_pulls(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            await fill(broker, client, "ab")

            async def code(version: int, topic: str = "T") -> int:
                answer = await client.pull(topic, subscription=None, version=version)
                return answer.code

            assert await code(1) == ResponseCode.SUBSCRIPTION_NOT_EXIST  # no such group
            await client.heartbeat("g", Subscription(topic="Other", expression="*"))
            assert await code(1) == ResponseCode.SUBSCRIPTION_NOT_EXIST  # no such topic in it
            await client.heartbeat("g", sql("n >", 5))
            assert await code(6) == ResponseCode.SUBSCRIPTION_NOT_LATEST
            answer = await client.pull("T", subscription=None, version=5)
            assert answer.code == ResponseCode.FILTER_DATA_NOT_EXIST
            assert "'n >'" in (answer.remark or "")  # and what is wrong with it
            await client.heartbeat("g", sql("n > 0", 6))
            assert await code(6) == FOUND
            broker.settings.change({"enablePropertyFilter": "false"})
            assert await code(6) == ResponseCode.SYSTEM_ERROR
            broker.settings.change({"enablePropertyFilter": "true"})
            broker.groups.put(replace(broker.groups["g"], consume_broadcast_enabled=False))
            await client.heartbeat("g", sql("n > 0", 6), message_model="BROADCASTING")
            assert await code(6) == ResponseCode.NO_PERMISSION

    run(scene())


@pytest.mark.parametrize(
    ("kind", "expression"),
    [("SQL92", "n >"), ("SQL92", ""), ("TAG", "||"), ("PYTHON", "n > 1")],
)
def test_a_pulls_own_filter_that_does_not_compile_is_refused(
    kind: str, expression: str, tmp_path: Path
) -> None:
    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            await fill(broker, client, "a")
            answer = await client.pull("T", subscription=expression, kind=kind)
            assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
            assert repr(expression) in (answer.remark or "")
            assert not answer.body

    run(scene())


# What is found.


def test_each_filter_gets_its_messages_and_the_offset_after_them(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            await fill(broker, client, "abcabc")
            for subscription, kind, found, following in (
                ("*", "TAG", b"abcabc", 6),
                ("a", "TAG", b"aa", 6),
                ("a || c", "TAG", b"acac", 6),
                ("n > 3", "SQL92", b"bc", 6),
                ("n > 9", "SQL92", b"", 6),
            ):
                answer = await client.pull("T", subscription=subscription, kind=kind)
                assert b"".join(bodies(answer)) == found
                assert answer.code == (FOUND if found else RETRY)
                assert answer.remark == ("FOUND" if found else "NO_MATCHED_MESSAGE")
                assert offsets(answer) == (following, 0, 6)
            answer = await client.pull("T", 1, subscription="a || c", most=2)
            assert (bodies(answer), offsets(answer)) == ([b"c", b"a"], (4, 0, 6))

    run(scene())


def test_a_filter_server_is_given_more_messages_at_once_than_others(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (broker, client):
            await fill(broker, client, "a" * 100)
            for group, most, count in (
                ("g", 80, 32),
                ("FILTERSRV_CONSUMER", 80, 80),
                ("FILTERSRV_CONSUMER", 1024, 100),
            ):
                assert len(await client.all_of("T", group=group, most=most)) == count

    run(work())


def test_the_binary_header_says_the_same_as_the_json_one(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            await fill(broker, client, "abc")
            header = PullMessage(
                consumer_group="g",
                topic="T",
                queue_id=0,
                queue_offset=1,
                max_msg_nums=32,
                sys_flag=PullFlag.SUBSCRIPTION,
                subscription="*",
            )
            for encoding in Encoding:
                request = Command(
                    code=RequestCode.PULL_MESSAGE, fields=header.to_fields(), encoding=encoding
                )
                answer = await client.peer.ask(request, timeout=20)
                assert (answer.encoding, answer.code) == (encoding, FOUND)
                assert (answer.remark, bodies(answer)) == ("FOUND", [b"b", b"c"])
                assert offsets(answer) == (3, 0, 3)

    run(scene())


@pytest.mark.parametrize(
    ("topic", "offset", "code", "following", "remark"),
    [
        ("Empty", 0, NOT_FOUND, 0, "NO_MESSAGE_IN_QUEUE"),
        ("Empty", 5, MOVED, 0, "NO_MESSAGE_IN_QUEUE"),
        ("T", 2, NOT_FOUND, 2, "OFFSET_OVERFLOW_ONE"),
        ("T", 3, MOVED, 2, "OFFSET_OVERFLOW_BADLY"),
        ("T", -1, MOVED, 0, "OFFSET_TOO_SMALL"),
    ],
)
def test_an_offset_outside_the_queue_is_answered_with_where_to_go_on(
    topic: str, offset: int, code: int, following: int, remark: str, tmp_path: Path
) -> None:
    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            await fill(broker, client, "ab")
            await client.send("Empty", queue_id=1)
            answer = await client.pull(topic, offset)
            assert (answer.code, answer.remark) == (code, remark)
            assert offsets(answer)[0] == following
            assert not answer.body

    run(scene())


def test_a_rare_match_is_found_in_slices_while_others_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            monkeypatch.setattr(handler, "_SLICE_SECONDS", 0.0)
            handler._limits.cache_clear()
            # with no time left a slice is one look: of a queue file of SQL's first few messages
            await fill(broker, client, "a" * 400 + "b")
            other = await Client.connect(broker.address)
            rare = asyncio.ensure_future(client.pull("T", subscription="n = 400", kind="SQL92"))
            answer = await other.pull("T", most=1)
            assert bodies(answer) == [b"a"]
            assert bodies(await rare) == [b"b"]
            other.peer.close()

    try:
        run(scene())
    finally:
        handler._limits.cache_clear()


def test_a_search_that_takes_too_long_is_answered_with_how_far_it_got(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        async with running(tmp_path, pull_scan_seconds=1e-9) as (broker, client):
            monkeypatch.setattr(handler, "_SLICE_SECONDS", 0.0)
            handler._limits.cache_clear()
            await fill(broker, client, "a" * 100 + "b")
            answer = await client.pull("T", subscription="n = 100", kind="SQL92", suspend=60)
            following = offsets(answer)[0]
            assert (answer.code, bodies(answer)) == (RETRY, [])
            assert 0 < following < 101
            while answer.code != FOUND:
                assert following < 101, "it is over, and nothing was found"
                answer = await client.pull(
                    "T", following, subscription="n = 100", kind="SQL92", suspend=60
                )
                following = offsets(answer)[0]
            assert bodies(answer) == [b"b"]

    try:
        run(scene())
    finally:
        handler._limits.cache_clear()


# The offset that comes with a pull.


def test_the_offset_is_committed_even_if_nothing_is_found_yet(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            await fill(broker, client, "ab")
            header = PullMessage(
                consumer_group="g",
                topic="T",
                queue_id=0,
                queue_offset=2,
                max_msg_nums=32,
                sys_flag=PullFlag.SUBSCRIPTION | PullFlag.SUSPEND | PullFlag.COMMIT_OFFSET,
                commit_offset=1,
                suspend_timeout_millis=60_000,
                subscription="*",
            )
            fields = header.to_fields()
            held = asyncio.ensure_future(client.ask(RequestCode.PULL_MESSAGE, fields))
            await until(lambda: broker.holds.count == 1)
            assert broker.offsets.get("g", "T", 0) == 1
            fields["commitOffset"], fields["sysFlag"] = "2", "4"  # without the flag it is nothing
            await client.ask(RequestCode.PULL_MESSAGE, fields)
            await client.send("T", b"c")
            assert bodies(await held) == [b"c"]
            assert broker.offsets.get("g", "T", 0) == 1

    run(scene())


# Pulls that wait.


@pytest.mark.parametrize(
    ("subscription", "kind"), [("b", "TAG"), ("wanted = 'yes'", "SQL92"), ("*", "TAG")]
)
def test_a_held_pull_is_answered_by_the_first_message_that_matches(
    subscription: str, kind: str, tmp_path: Path
) -> None:
    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            await fill(broker, client, "a")
            held = asyncio.ensure_future(
                client.pull("T", 1, subscription=subscription, kind=kind, suspend=60)
            )
            await until(lambda: broker.holds.count == 1)
            if subscription != "*":
                await client.send("T", b"no", tags="a")
                await stored(broker, "T", 2)
                await until(lambda: all(p.has_progressed for p in broker.holds._held["T", 0]))
                assert not held.done()
            await client.send("T", b"yes", tags="b", properties={"wanted": "yes"})
            answer = await held
            assert (answer.code, bodies(answer)) == (FOUND, [b"yes"])
            assert offsets(answer)[0] == offsets(answer)[2]
            assert broker.holds.count == 0

    run(scene())


def test_a_held_pull_whose_time_is_up_is_told_there_is_nothing(tmp_path: Path) -> None:
    clock = Clock()

    async def scene() -> None:
        async with timed(tmp_path, clock) as (broker, client):
            await fill(broker, client, "a")
            held = asyncio.ensure_future(client.pull("T", 1, suspend=15))
            await until(lambda: broker.holds.count == 1)
            clock.seconds += 14.9
            list(broker.holds.sweep())
            assert broker.holds.count == 1
            clock.seconds += 0.2
            list(broker.holds.sweep())
            answer = await held
            assert (answer.code, answer.remark) == (NOT_FOUND, "OFFSET_OVERFLOW_ONE")
            assert offsets(answer) == (1, 0, 1)

    run(scene())


def test_a_held_pull_that_has_looked_further_says_so_after_a_while(tmp_path: Path) -> None:
    clock = Clock()

    async def scene() -> None:
        async with timed(tmp_path, clock) as (broker, client):
            await fill(broker, client, "a")
            held = asyncio.ensure_future(client.pull("T", 1, subscription="b", suspend=60))
            await until(lambda: broker.holds.count == 1)
            await client.send("T", tags="a")
            await stored(broker, "T", 2)
            await until(lambda: all(p.has_progressed for p in broker.holds._held["T", 0]))
            clock.seconds += 4
            list(broker.holds.sweep())
            assert broker.holds.count == 1
            clock.seconds += 2
            list(broker.holds.sweep())
            answer = await held
            assert (answer.code, answer.remark) == (RETRY, "NO_MATCHED_MESSAGE")
            assert offsets(answer) == (2, 0, 2)

    run(scene())


def test_without_long_polling_a_pull_waits_the_short_time_only(tmp_path: Path) -> None:
    clock = Clock()

    async def scene() -> None:
        async with timed(tmp_path, clock, long_polling=False) as (broker, client):
            await fill(broker, client, "a")
            held = asyncio.ensure_future(client.pull("T", 1, suspend=60))
            await until(lambda: broker.holds.count == 1)
            clock.seconds += 1.1
            list(broker.holds.sweep())
            assert (await held).code == NOT_FOUND

    run(scene())


def test_no_more_pulls_are_held_than_are_allowed(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path, pull_backlog=1) as (broker, client):
            await fill(broker, client, "a")
            held = asyncio.ensure_future(client.pull("T", 1, suspend=60))
            await until(lambda: broker.holds.count == 1)
            assert (await client.pull("T", 1, suspend=60)).code == ResponseCode.SYSTEM_BUSY
            await client.send("T", b"b")
            assert bodies(await held) == [b"b"]

    run(scene())


def test_a_filter_that_changes_while_its_pull_is_held_counts_from_the_pulls_offset(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            await fill(broker, client, "a")
            await client.heartbeat("g", sql("n = 7", 1))
            held = asyncio.ensure_future(client.pull("T", 1, subscription=None, suspend=60))
            await until(lambda: broker.holds.count == 1)
            await client.send("T", b"8", properties={"n": "8"})
            await stored(broker, "T", 2)
            await until(lambda: all(p.has_progressed for p in broker.holds._held["T", 0]))
            await client.heartbeat("g", sql("n > 7", 2))
            await client.send("T", b"0", properties={"n": "0"})
            answer = await held  # what was passed over before is wanted now
            assert (answer.code, bodies(answer)) == (FOUND, [b"8"])

    run(scene())


def test_a_held_pull_that_may_no_longer_pull_is_told_so(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            await fill(broker, client, "a")
            held = asyncio.ensure_future(client.pull("T", 1, suspend=60))
            await until(lambda: broker.holds.count == 1)
            broker.groups.put(replace(broker.groups["g"], consume_enabled=False))
            await client.send("T")
            assert (await held).code == ResponseCode.NO_PERMISSION

    run(scene())


# What the filters said.


def test_verdicts_are_counted_with_the_failures_and_where_they_were(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            await client.heartbeat("g", sql("n > 1", 1))
            for value in ("1", "x", "9", "y", "2"):  # text has no order: that can't be told
                await client.send("T", value.encode(), properties={"n": value})
            await stored(broker, "T", 5)
            answer = await client.pull("T", subscription=None, kind="SQL92", version=1)
            assert bodies(answer) == [b"9", b"2"]
            tally = broker.verdicts.tallies["g", "T"]
            assert (tally.evaluated, tally.matched, tally.failed, tally.filtered) == (5, 2, 2, 1)
            assert list(tally.samples) == [(0, 1), (0, 3)]
            await client.pull("T", subscription=None, kind="SQL92", version=1, most=1)
            assert (tally.evaluated, tally.matched, tally.failed) == (8, 3, 3)  # up to the 9
            await client.pull("T", group="all")  # without a filter there is nothing to count
            assert ("all", "T") not in broker.verdicts.tallies
            await client.pull("T", group="tags", subscription="none")
            assert broker.verdicts.tallies["tags", "T"] == Tally(evaluated=5)

    run(scene())


# Messages that come again.


@pytest.mark.parametrize(("switch", "found"), [("false", [b"0", b"1"]), ("true", [b"1"])])
def test_retried_messages_go_by_the_groups_filter_if_that_is_switched_on(
    switch: str, found: list[bytes], tmp_path: Path
) -> None:
    retry = Subscription(topic="%RETRY%g", expression="*", version=1)

    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            await client.heartbeat("g", sql("n > 0", 1), retry)
            for n in ("0", "1"):
                named = {"n": n, "RETRY_TOPIC": "T"}
                await client.send("%RETRY%g", n.encode(), properties=named)
            await stored(broker, "%RETRY%g", 2)
            broker.settings.change({"filterSupportRetry": switch})
            answer = await client.pull("%RETRY%g", subscription=None, version=1)
            assert bodies(answer) == found
            assert offsets(answer)[0] == 2

    run(scene())


def test_what_was_got_is_counted(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            await fill(broker, client, "abc")
            answer = await client.pull("T")
            got = broker.stats.gets["T", "g"]
            assert (got.messages, got.bytes, got.calls) == (3, len(answer.body), 1)
            await client.pull("T", 3)
            assert got.calls == 1

    run(scene())


class Faulty:
    """In place of a method: works until it is broken, as files do when descriptors run out."""

    def __init__(self, works: Any) -> None:
        self.works = works
        self.is_broken = False

    def __call__(self, *arguments: Any) -> Any:
        if self.is_broken:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return self.works(*arguments)


@pytest.mark.parametrize("moment", ["grown", "sweep"])
def test_a_held_pull_whose_second_look_fails_is_answered(tmp_path: Path, moment: str) -> None:
    async def scene() -> None:
        clock = Clock()
        async with timed(tmp_path, clock) as (broker, client):
            await fill(broker, client, "a")
            faulty = Faulty(broker.store.select if moment == "grown" else broker.store.find_queue)
            setattr(broker.store, faulty.works.__name__, faulty)
            held = asyncio.ensure_future(client.pull("T", 1, suspend=60))
            await until(lambda: broker.holds.count == 1)
            faulty.is_broken = True
            if moment == "grown":
                await client.send("T", b"b")
            else:
                clock.seconds += 100
            answer = await held
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "Too many open files" in (answer.remark or "")
            assert broker.holds.count == 0
            faulty.is_broken = False
            await client.send("T", b"c")
            assert b"c" in bodies(await client.pull("T", 1))

    run(scene())


def test_a_stop_is_not_cut_short_by_a_held_pull_that_fails(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            await client.send("T", b"a")
            await client.send("Other", b"a")
            faulty = Faulty(broker.store.find_queue)
            broker.store.find_queue = faulty  # type: ignore[method-assign]
            held = [
                asyncio.ensure_future(client.pull(topic, 1, suspend=60)) for topic in ("T", "Other")
            ]
            await until(lambda: broker.holds.count == 2)
            faulty.is_broken = True
            broker.holds.answer_all()
            for answer in await asyncio.gather(*held):
                assert answer.code == ResponseCode.SYSTEM_ERROR
        assert not (tmp_path / "abort").exists()

    run(scene())
