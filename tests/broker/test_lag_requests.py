"""GET_MATCHING_LAG: what a broker answers, for whom, and that it keeps nobody waiting."""

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest
from broker.running import Client, run, running, until

from tamis.broker.broker import Broker
from tamis.broker.handlers import lag as handler
from tamis.broker.lag import totals
from tamis.broker.readers import Reader, ReaderFilter, last_filter
from tamis.filter.tags import parse_tags
from tamis.wire import properties
from tamis.wire.bodies import MessageModel, Subscription
from tamis.wire.codes import RequestCode, ResponseCode
from tamis.wire.command import Command
from tamis.wire.headers import CountMatches, GetMatchingLag, OfQueue, UpdateConsumerOffset
from tamis.wire.record import Draft


async def ask(client: Client, **asked: Any) -> list[dict[str, Any]]:
    fields = GetMatchingLag(**asked).to_fields()
    answer = await client.ask(RequestCode.GET_MATCHING_LAG, fields)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    told: list[dict[str, Any]] = orjson.loads(answer.body)
    return told


async def commit(client: Client, group: str, topic: str, offset: int) -> None:
    header = UpdateConsumerOffset(
        consumer_group=group, topic=topic, queue_id=0, commit_offset=offset
    )
    await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header.to_fields())


def by_sql(topic: str, text: str) -> Subscription:
    return Subscription(topic=topic, expression=text, expression_type="SQL92", version=1)


def test_each_group_is_told_by_its_own_filter(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path) as (_, client):
            for number in range(10):
                named = {"n": str(number)}
                await client.send("T", tags="ab"[number % 2], queue_id=0, properties=named)
            tags = Subscription(topic="T", expression="a", tags=["a"], codes=[97], version=1)
            code = Subscription(topic="T", expression="x.Y", class_filter_mode=True)
            await client.heartbeat("tags", tags)
            await client.heartbeat("sql", by_sql("T", "n > 6"))
            await client.heartbeat("code", code)
            await client.heartbeat("all", Subscription(topic="T", expression="*"))
            model = MessageModel.BROADCASTING
            await client.heartbeat("each", tags, message_model=model)
            for group in ("tags", "sql", "code", "all", "gone"):
                await commit(client, group, "T", 3)
            rows = [row for row in await ask(client) if row["queue"] == 0]
            told = {row["group"]: (row["lag"], row["matching_lag"]) for row in rows}
            assert told == {
                "tags": (7, 3),
                "sql": (7, 3),
                "code": (7, None),
                "all": (7, 7),
                "each": (None, None),
                "gone": (7, None),
            }
            reasons = {row["group"]: row["reason"] for row in rows if row["reason"]}
            assert set(reasons) == {"code", "each", "gone"}
            next_offsets = {row["group"]: row["next_match_offset"] for row in rows}
            assert next_offsets["tags"] == 4
            assert next_offsets["sql"] == 7
            for row in rows:
                assert row["is_complete"] == (row["matching_lag"] is not None)
                assert (row["next_match_stored"] is None) == (row["next_match_offset"] is None)
            one = await ask(client, consumer_group="sql", topic="T")
            assert {(row["group"], row["topic"]) for row in one} == {("sql", "T")}
            assert one[0]["filter"] == {"type": "SQL92", "expression": "n > 6"}
            assert [row["queue"] for row in one] == [0, 1, 2, 3], "those without messages too"
            assert await ask(client, consumer_group="nobody") == []
            assert await ask(client, topic="Other") == []

    run(scene())


def test_a_retry_is_for_everybody_of_the_group_and_filters_of_the_gone_are_looked_up(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            for _ in range(4):
                await client.send("T", tags="a", queue_id=0)
            await commit(client, "g", "T", 1)
            await commit(client, "g", "%RETRY%g", 0)
            rows = {row["topic"]: row for row in await ask(client, consumer_group="g")}
            assert rows["T"]["matching_lag"] is None
            assert rows.get("%RETRY%g", {"matching_lag": 0})["matching_lag"] == 0
            tags = ["a", "b"]
            one = Subscription(topic="T", expression="a || b", tags=tags, version=1)
            member = await Client.connect(broker.address)
            await member.heartbeat("g", one)
            member.peer.close()
            await until(lambda: not broker.consumers.groups)
            [row] = [row for row in await ask(client, topic="T") if row["queue"] == 0]
            assert (row["matching_lag"], row["filter"]["expression"]) == (3, "a || b")
            members = [await Client.connect(broker.address) for _ in range(2)]
            for number, member in enumerate(members):
                one = Subscription(topic="T", expression=tags[number], tags=[tags[number]])
                await member.heartbeat("g", one, client_id=f"c{number}")
            history = broker.recorder.history("g", "T")
            assert last_filter(history) is None, "they differ"
            for member in members:
                member.peer.close()

    run(scene())


def test_the_lanes_of_a_divided_group_are_counted_each_by_its_own_filter(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            for number in range(10):
                await client.send("T", tags="ab"[number % 2], queue_id=0)
            await commit(client, "g", "T", 2)
            broker.readers.lanes = lambda group, topic, queues: [
                Reader(group, topic, queues, {0: at}, by_tags(tag), lane=tag)
                for tag, at in (("a", 2), ("b", 6))
            ]
            rows = [row for row in await ask(client, topic="T") if row["queue"] == 0]
            told = {
                row["lane"]: (row["committed"], row["lag"], row["matching_lag"]) for row in rows
            }
            assert told == {"a": (2, 8, 4), "b": (6, 4, 2)}
            [total] = totals(broker.lags.count(broker.readers.listed("g", "T"), 10.0)).values()
            assert (total.lag, total.matching) == (8, None)

    run(scene())


def by_tags(text: str) -> ReaderFilter:
    return ReaderFilter("TAG", text, parse_tags(text))


def test_too_much_at_once_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler, "_MOST_ROWS", 3)

    async def scene() -> None:
        async with running(tmp_path) as (_, client):
            await client.send("T")
            await commit(client, "g", "T", 0)
            answer = await client.ask(RequestCode.GET_MATCHING_LAG)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "the lag of 4 queues of groups: name a group or a topic" in (answer.remark or "")

    run(scene())


def store_many(broker: Broker, count: int) -> None:
    text = properties.encode({"a": "1", "b": "x"}).encode()
    drafts = [Draft(topic="T", body=b"x", properties=text) for _ in range(1000)]
    for _ in range(count // 1000):
        broker.store.append(drafts)
    broker.store.dispatch()


def test_others_are_answered_while_it_counts_and_it_ends_in_time(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path, log_file_size=2**26) as (broker, client):
            await client.send("T", queue_id=0)
            store_many(broker, 200_000)
            for number in range(40):
                await client.heartbeat(f"g{number}", by_sql("T", f"a = '{number}' OR b <> 'y'"))
            other = await Client.connect(broker.address)
            long = asyncio.ensure_future(ask(client, timeout_millis=10_000))
            await asyncio.sleep(0)
            fields = OfQueue(topic="T", queue_id=0).to_fields()
            for _ in range(3):
                probe = await other.ask(RequestCode.GET_MAX_OFFSET, fields)
                assert probe.code == ResponseCode.SUCCESS
            assert not long.done(), "it was served first"
            rows = [row for row in await long if row["queue"] == 0]
            assert {row["matching_lag"] for row in rows} == {200_000}
            store_many(broker, 200_000)
            rows = [row for row in await ask(client, timeout_millis=0) if row["queue"] == 0]
            assert not any(row["is_complete"] for row in rows)
            assert all(row["matching_lag"] <= 400_000 for row in rows)
            rows = [row for row in await ask(client, timeout_millis=10_000) if row["queue"] == 0]
            assert {row["matching_lag"] for row in rows} == {400_000}
            other.peer.close()

    run(scene())


async def count(client: Client, ranges: Any, *, topic: str = "T", **asked: Any) -> Command:
    fields = CountMatches(topic=topic, **asked).to_fields()
    return await client.ask(RequestCode.COUNT_MATCHES, fields, orjson.dumps(ranges))


def test_matches_in_ranges_are_counted_by_a_filter_of_nobodys(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            for number in range(20):
                named = {"n": str(number)}
                await client.send("T", tags="ab"[number % 2], queue_id=0, properties=named)
                await client.send("T", tags="a", queue_id=1, properties=named)
            ranges = [[0, 3, 10], [1, 19, 20], [2, 0, 7]]
            for asked, expected in (
                ({"expression": "a"}, [3, 1, 0]),
                ({"expression": "b || c", "expression_type": "TAG"}, [4, 0, 0]),
                ({"expression": "*"}, [7, 1, 0]),
                ({"expression": "n > 6", "expression_type": "SQL92"}, [3, 1, 0]),
                ({"expression": "n > 6 AND TAGS = 'a'", "expression_type": "SQL92"}, [1, 1, 0]),
            ):
                answer = await count(client, ranges, **asked)
                assert answer.code == ResponseCode.SUCCESS, answer.remark
                told = orjson.loads(answer.body)
                assert told == [[queue, n] for queue, n in enumerate(expected)], asked
            for edges in ([0, 0, 0], [0, 10, 3], [0, 20, 90], [9, 0, 5]):
                answer = await count(client, [edges], expression="a")
                assert orjson.loads(answer.body) == [[edges[0], 0]], edges
            answer = await count(client, [[0, 0, 9999]], expression="a")
            assert orjson.loads(answer.body) == [[0, 10]], "there are no more"
            assert not broker.consumers.groups
            assert await ask(client) == [], "it has made no group"

    run(scene())


def test_a_count_of_ranges_ends_in_time_and_goes_on_when_asked_again(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path, log_file_size=2**26) as (broker, client):
            await client.send("T", queue_id=0)
            store_many(broker, 100_000)
            asked = {"expression": "b = 'x'", "expression_type": "SQL92"}
            answer = await count(client, [[0, 0, 90_000]], timeout_millis=0, **asked)
            assert orjson.loads(answer.body) == [[0, None]]
            answer = await count(client, [[0, 1, 90_001]], timeout_millis=10_000, **asked)
            assert orjson.loads(answer.body) == [[0, 90_000]]

    run(scene())


def test_a_count_that_can_not_be_is_refused_with_the_reason(tmp_path: Path) -> None:
    async def scene() -> None:
        async with running(tmp_path) as (_, client):
            await client.send("T")
            for ranges in ({"0": 1}, [[0, 1]], [[0, 1, -2]], [["0", 1, 2]], [[0, 1, 1.5]], 7, None):
                answer = await count(client, ranges, expression="a")
                assert answer.code == ResponseCode.SYSTEM_ERROR, ranges
                assert "no list of [queue, begin, end]" in (answer.remark or "")
            many = [[number, 0, 1] for number in range(1025)]
            answer = await count(client, many, expression="a")
            assert "1025 queues, it takes up to 1024" in (answer.remark or "")
            answer = await count(client, [[0, 0, 1]], expression="a", topic="Nowhere")
            assert answer.code == ResponseCode.TOPIC_NOT_EXIST
            for asked in ({"expression": "n >", "expression_type": "SQL92"}, {"expression": "||"},
                          {"expression": "x", "expression_type": "NO"}):  # fmt: skip
                answer = await count(client, [[0, 0, 1]], **asked)
                assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED, asked
        async with running(tmp_path, sql_filters=False) as (_, client):
            answer = await count(client, [[0, 0, 1]], expression="n > 1", expression_type="SQL92")
            assert "switched off" in (answer.remark or "")

    run(scene())
