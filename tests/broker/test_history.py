"""What the broker records of readers and members, the fates it tells by it, and that it lasts."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import orjson
import pytest
from broker.running import Client, run, running

from tamis.broker.broker import Broker
from tamis.broker.config import BrokerConfig
from tamis.broker.history import load_history
from tamis.broker.historyfile import NAME
from tamis.wire.bodies import Subscription
from tamis.wire.codes import RequestCode, ResponseCode
from tamis.wire.headers import ExplainMessage, GetHistory, UpdateConsumerOffset


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run_it(*args: Any, **named: Any) -> None:
        run(test(*args, **named))

    return run_it


def tags(expression: str, version: int, topic: str = "T") -> Subscription:
    named = [tag.strip() for tag in expression.split("||")]
    return Subscription(topic=topic, expression=expression, version=version, tags=named)


def sql(expression: str, version: int) -> Subscription:
    return Subscription(topic="T", expression=expression, expression_type="SQL92", version=version)


async def commit(client: Client, group: str, queue_id: int, offset: int) -> None:
    header = UpdateConsumerOffset(
        consumer_group=group, topic="T", queue_id=queue_id, commit_offset=offset
    )
    answer = await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header.to_fields())
    assert answer.code == ResponseCode.SUCCESS


async def explain(client: Client, offset: int, queue_id: int = 0, **more: Any) -> dict[str, Any]:
    """By group."""
    header = ExplainMessage(topic="T", queue_id=queue_id, offset=offset, **more)
    answer = await client.ask(RequestCode.EXPLAIN_MESSAGE, header.to_fields())
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return {one["group"]: one for one in orjson.loads(answer.body)["groups"]}


async def fate(client: Client, offset: int, group: str = "g", queue_id: int = 0) -> str:
    return str((await explain(client, offset, queue_id))[group]["fate"])


@in_a_loop
async def test_what_two_members_with_different_tags_lose_is_told(tmp_path: Path) -> None:
    async with running(tmp_path) as (broker, a):
        b = await Client.connect(broker.address)
        await a.heartbeat("g", tags("A", 1), client_id="a")
        await b.heartbeat("g", tags("B", 2), client_id="b")
        for tag in "AB":
            for queue_id in (0, 1):
                await a.send("T", tags=tag, queue_id=queue_id)
        # the broker has B's filter; a reads queue 0, b queue 1
        for client, queue_id in ((a, 0), (b, 1)):
            await client.pull("T", 0, queue_id=queue_id, subscription=None)
            await commit(client, "g", queue_id, 2)
        said = {
            (queue_id, offset): (await explain(a, offset, queue_id))["g"]
            for queue_id in (0, 1)
            for offset in (0, 1)
        }
        fates = {place: one["fate"] for place, one in said.items()}
        assert fates == {
            (0, 0): "LOST_TO_INCONSISTENCY",  # A, which a wanted: filtered at the broker
            (0, 1): "LOST_TO_INCONSISTENCY",  # B, which b wanted: dropped by a's client
            (1, 0): "LOST_TO_INCONSISTENCY",
            (1, 1): "CONSUMED",
        }
        assert said[0, 0]["reason"] == (
            "It was wanted (a by tags 'A'), and a had the queue, but the broker filtered the group "
            "by tags 'B' then: members of the group subscribe differently."
        )
        evidence = said[0, 1]["evidence"]
        assert evidence["readings"][0]["member"] == "a"
        assert evidence["readings"][0]["wanted_by"] == [
            {"kind": "TAG", "expression": "B", "members": ["b"]}
        ]
        b.peer.close()


@in_a_loop
async def test_fate_goes_by_the_filter_of_then_not_of_today(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, a):
        await a.send("T", tags="A")
        await a.send("T", tags="B")
        await a.heartbeat("g", tags("A", 1), client_id="a")
        await a.pull("T", subscription=None)
        await commit(a, "g", 0, 2)
        await a.heartbeat("g", tags("B", 2), client_id="a")
        assert [await fate(a, 0), await fate(a, 1)] == ["CONSUMED", "FILTERED"]


@in_a_loop
async def test_all_fates_a_group_can_have(tmp_path: Path) -> None:
    async with running(tmp_path) as (broker, a):
        for number, properties in enumerate(
            [{"n": "1"}, {"n": "x"}, {"n": "7"}, {"n": "9"}, {"n": "9"}]
        ):
            await a.send("T", str(number).encode(), properties=properties)
        await a.heartbeat("g", sql("n > 5", 1), client_id="a")
        await a.heartbeat("late", sql("n > 5", 1), client_id="a")
        await a.pull("T", subscription=None)
        await commit(a, "g", 0, 3)
        assert [await fate(a, offset) for offset in range(5)] == [
            "FILTERED",
            "FILTER_FAILED",
            "CONSUMED",
            "NOT_CONSUMED_YET",
            "NOT_CONSUMED_YET",
        ]
        await commit(a, "g", 0, 5)
        assert await fate(a, 4) == "CONSUMED"
        tool = await Client.connect(broker.address)
        await commit(tool, "late", 0, 4)
        assert [await fate(a, 3, "late"), await fate(a, 4, "late")] == [
            "SKIPPED_BY_RESET",
            "NOT_CONSUMED_YET",
        ]
        assert "FILTER_FAILED" in str(await explain(a, 1, group="g"))
        refused = await a.ask(
            RequestCode.EXPLAIN_MESSAGE,
            ExplainMessage(topic="T", queue_id=0, offset=5).to_fields(),
        )
        assert refused.remark == "topic T has no message 5 in queue 0: it ends at 5"
        tool.peer.close()


@pytest.mark.parametrize("is_killed", [False, True])
@in_a_loop
async def test_history_outlives_the_broker(tmp_path: Path, is_killed: bool) -> None:
    settings: dict[str, Any] = {"flush": "async", "log_file_size": 2**20}
    broker = Broker(BrokerConfig(port=0, **settings), tmp_path)
    await broker.start()
    a = await Client.connect(broker.address)
    for tag in "ABAB":
        await a.send("T", tags=tag)
    await a.heartbeat("g", tags("A", 1), client_id="a")
    await a.pull("T", subscription=None)
    await commit(a, "g", 0, 2)
    if is_killed:
        await broker.saver.durable("history", "consumer offsets")
        broker.recorder.note_progress()
        await broker.saver.durable("history")
        kept = (tmp_path / "config" / NAME).read_bytes()
        await broker.close()
        (tmp_path / "config" / NAME).write_bytes(kept)
    else:
        await broker.close()
    a.peer.close()
    async with running(tmp_path) as (again, b):
        assert [await fate(b, 0), await fate(b, 1)] == ["CONSUMED", "FILTERED"]
        await b.heartbeat("g", tags("A", 1), client_id="a")
        await b.pull("T", 2, subscription=None)
        await commit(b, "g", 0, 4)
        assert [await fate(b, offset) for offset in range(4)] == [
            *("CONSUMED", "FILTERED", "CONSUMED", "FILTERED"),
        ]
        history = again.recorder.history("g", "T")
        assert history is not None
        assert [(s.start, s.end, s.acked) for s in history.queues[0]] == [(0, 4, 2), (2, 4, 4)]


@in_a_loop
async def test_a_group_that_was_there_before_history_is_unknown(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, a):
        await a.send("T", tags="A")
        await commit(a, "g", 0, 1)
    (tmp_path / "config" / NAME).unlink()
    await asyncio.sleep(0.01)
    async with running(tmp_path) as (_, a):
        said = (await explain(a, 0))["g"]
        assert said["fate"] == "UNKNOWN"
        assert "this broker keeps no history before 20" in said["reason"]


@in_a_loop
async def test_the_file_is_written_anew_and_stays_within_its_limit(tmp_path: Path) -> None:
    async with running(tmp_path, history_bytes=65_536) as (broker, a):
        b = await Client.connect(broker.address)
        for _ in range(40):
            await a.send("T", tags="A")
        for number in range(2000):
            client, name = (a, "a" * 60) if number % 2 else (b, "b" * 60)
            if number < 2:
                await client.heartbeat("g", tags("A", 1), client_id=name)
            await client.pull("T", number % 40, subscription=None)
        for _ in range(8):
            broker.recorder._write({"t": "kind", "g": "g", "o": "T", "b": False, "p": False})
            await broker.saver.durable("history")
        assert broker.recorder.path.stat().st_size < 2 * 65_536
        history = load_history(broker.recorder.path)
        assert history is not None
        spans = history.groups["g", "T"].queues[0]
        assert spans[-1].member == "a" * 60
        assert len(spans) < 2000
        b.peer.close()


@in_a_loop
async def test_history_is_given_out(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, a):
        await a.send("T", tags="A")
        await a.heartbeat("g", tags("A", 1), client_id="a")
        await a.pull("T", subscription=None)
        answer = await a.ask(RequestCode.GET_HISTORY, GetHistory(topic="T").to_fields())
        (group,) = orjson.loads(answer.body)["groups"]
        assert (group["group"], group["topic"]) == ("g", "T")
        assert group["spans"][0][:4] == [0, 0, 1, "a"]
        assert [change[1] for change in group["changes"]] == ["a"]


@pytest.mark.parametrize("cut", [1, 7, 40])
@in_a_loop
async def test_a_file_that_was_cut_short_or_spoilt_is_read_as_far_as_it_goes(
    tmp_path: Path, cut: int
) -> None:
    async with running(tmp_path) as (broker, a):
        await a.send("T", tags="A")
        await a.heartbeat("g", tags("A", 1), client_id="a")
        await a.pull("T", subscription=None)
        await commit(a, "g", 0, 1)
    path = tmp_path / "config" / NAME
    data = path.read_bytes()
    path.write_bytes(data[:-cut] + b'\n[1]\n{"t":"span"}\n\xff\xff\n{"t":"end","n":77,"e":1,"a":1}')
    async with running(tmp_path) as (broker, a):
        assert await fate(a, 0) in ("CONSUMED", "UNKNOWN")
        await a.heartbeat("g", tags("A", 1), client_id="a")
        await broker.saver.durable("history")
    assert load_history(path) is not None
