"""How many messages that match wait for a group that filters in code, in the metrics."""

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from filterserver.consuming import EVEN, RARE, Client, numbers, run, serving, until
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from tamis.errors import ResponseError
from tamis.filterserver import FilterServer, lag
from tamis.filterserver.matchmap import MatchMap
from tamis.filterserver.metrics import Exporter
from tamis.testing import LocalCluster
from tamis.wire import beans
from tamis.wire.bodies import ConsumerData, Heartbeat, MessageModel, Subscription
from tamis.wire.codes import RequestCode, ResponseCode
from tamis.wire.command import Command
from tamis.wire.headers import JudgeRange, UpdateConsumerOffset

FIRST_TIME = """
class FirstTime:
    columns = ("body",)

    def __init__(self):
        self.seen = set()

    def match(self, message):
        is_new = message.body not in self.seen
        self.seen.add(message.body)
        return is_new
"""
FAILING = """
class Failing:
    columns = ("body",)

    def match(self, message):
        if message.body == b"3":
            raise ValueError("three")
        return message.body == b"5"
"""


@asynccontextmanager
async def counting(
    queues: int = 1, **settings: Any
) -> AsyncIterator[tuple[LocalCluster, FilterServer, Client]]:
    settings = {"lag_seconds": 0.1} | settings
    size: dict[str, object] = {"log_file_size": 2**22, "index_slots": 1000, "index_entries": 4000}
    async with (
        LocalCluster(metrics_port=0, **size) as cluster,
        serving(cluster.broker, metrics_port=0, **settings) as server,
        Client.connected(cluster.broker, server.address) as client,
    ):
        await client.create_topic("T", queues)
        await until(lambda: server.registration.is_registered, lambda: server.registration.failure)
        yield cluster, server, client


async def subscribe(
    client: Client, class_name: str, model: MessageModel = MessageModel.CLUSTERING
) -> None:
    one = Subscription(topic="T", expression=class_name, class_filter_mode=True, version=1)
    consumer = ConsumerData(group="G", subscriptions=[one], message_model=model)
    beat = Heartbeat(client_id="c", producers=[], consumers=[consumer])
    request = Command(code=RequestCode.HEART_BEAT, body=beans.encode(beat))
    assert (await client.broker.ask(request, 60)).code == ResponseCode.SUCCESS


async def commit(client: Client, offset: int, queue_id: int = 0) -> None:
    header = UpdateConsumerOffset(
        consumer_group="G", topic="T", queue_id=queue_id, commit_offset=offset
    )
    answer = await client.broker.ask(Command(code=header.CODE, fields=header.to_fields()), 60)
    assert answer.code == ResponseCode.SUCCESS


def scrape(url: str, name: str) -> float | None:
    """The sample of group G, if there is one."""
    page = urllib.request.urlopen(url, timeout=60).read().decode()
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == name and sample.labels.get("group") == "G":
                return sample.value
    return None


async def told(url: str, name: str, expected: Callable[[float | None], bool]) -> float | None:
    """What a scrape says once it is as expected."""
    value: float | None = None
    for _ in range(600):
        value = await asyncio.to_thread(scrape, url, name)
        if expected(value):
            return value
        await asyncio.sleep(0.1)
    raise AssertionError(f"{name} stays {value}")


async def lag_is(server: FilterServer, matching: int) -> None:
    await until(
        lambda: [one.matching for one in server.lags.listed()] == [matching],
        lambda: server.lags.listed(),
    )


# A bit for each message.


@given(st.data())
def test_a_map_of_matches_counts_as_a_plain_set_does(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, 50))
    known, matching, low, high = MatchMap(at), set[int](), at, at
    for _ in range(data.draw(st.integers(1, 12))):
        if data.draw(st.booleans()):
            begin = data.draw(st.integers(max(low - 5, 0), high + 5))
            end = data.draw(st.integers(begin, begin + 40))
            chosen = data.draw(st.sets(st.integers(begin, end), max_size=20)) - {end}
            known.note(begin, end, sorted(chosen))
            if begin <= high < end:
                matching |= {offset for offset in chosen if offset >= high}
                high = end
        else:
            to = data.draw(st.integers(max(low - 3, 0), high + 3))
            known.forget_before(to)
            if not low <= to <= high:
                matching, high = set(), to
            low = to
        assert (known.low, known.high) == (low, high)
        begin = data.draw(st.integers(low, high))
        end = data.draw(st.integers(begin, high))
        wanted = sorted(offset for offset in matching if begin <= offset < end)
        assert known.count(begin, end) == len(wanted)
        assert known.first(begin, end) == (wanted[0] if wanted else None)
        assert known.size < 400


# What scrapes say.


def test_both_scrapes_tell_what_waits_as_messages_come_and_are_consumed() -> None:
    async def work() -> None:
        async with counting(queues=2) as (cluster, server, client):
            exporter = await asyncio.to_thread(Exporter, server)
            ours = f"http://127.0.0.1:{exporter.port}/metrics"
            try:
                await client.send(*numbers(1000))
                await client.send(*numbers(10), queue_id=1)
                await client.upload(EVEN, "Even")
                await subscribe(client, "Even")
                for url, name in (
                    (cluster.metrics, "tamis_group_matching_lag"),
                    (ours, "tamis_code_filter_matching_lag"),
                ):
                    await told(url, name, lambda value: value == 505)
                await commit(client, 501)
                await told(cluster.metrics, "tamis_group_matching_lag", lambda v: v == 254)
                age = "tamis_group_next_match_age_seconds"
                assert 0 < (await asyncio.to_thread(scrape, cluster.metrics, age) or 0) < 600
                await client.send(*numbers(2), queue_id=1)
                await told(cluster.metrics, "tamis_group_matching_lag", lambda v: v == 255)
                await commit(client, 1000)
                await commit(client, 12, queue_id=1)
                await told(cluster.metrics, "tamis_group_matching_lag", lambda v: v == 0)
                assert await asyncio.to_thread(scrape, cluster.metrics, age) == 0
                assert await asyncio.to_thread(scrape, cluster.metrics, "tamis_group_lag") == 0
                await commit(client, 0)  # a reset to the start
                await told(cluster.metrics, "tamis_group_matching_lag", lambda v: v == 500)
            finally:
                await asyncio.to_thread(exporter.close)

    run(work())


def test_what_pulls_have_judged_is_not_judged_again() -> None:
    async def work() -> None:
        async with counting(lag_seconds=3600) as (_, server, client):
            await client.upload(RARE, "Rare")
            await client.send(*numbers(1))
            _, at = await client.consume()
            await commit(client, at)
            await server.lags.count()
            await client.send(*numbers(5000))
            await client.consume(at)  # judged, and not committed
            await server.lags.count()
            assert [one.matching for one in server.lags.listed()] == [5]
            assert len(server.copies) == 0, "nothing was left to judge"
            await client.send(*numbers(1000))
            await server.lags.count()
            assert [one.matching for one in server.lags.listed()] == [6]
            assert len(server.copies) == 1

    run(work())


def test_a_backlog_is_counted_a_part_at_a_time_and_told_when_it_is_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lag, "_SHARE", 0.0001)

    async def work() -> None:
        async with counting(batch=100) as (_, server, client):
            await client.send(*numbers(3000))
            await client.upload(EVEN, "Even")
            seen = set[int]()

            def progress() -> bool:
                seen.update(known.high for maps in server.lags._maps.values()
                            for known in maps.values())  # fmt: skip
                return bool(server.lags.listed())

            await until(progress)
            assert len(seen) >= 3, seen
            assert [one.matching for one in server.lags.listed()] == [1500]

    run(work())


def test_failures_wait_only_where_they_are_passed() -> None:
    async def work() -> None:
        for on_error, matching in (("skip", 1), ("pass", 2)):
            async with counting(on_error=on_error) as (_, server, client):
                await client.send(*numbers(10))
                await client.upload(FAILING, "Failing")
                await lag_is(server, matching)

    run(work())


def test_counting_and_questions_do_not_change_what_a_class_with_state_says() -> None:
    async def work() -> None:
        async with counting() as (_, server, client):
            await client.send(*numbers(20))
            await client.upload(FIRST_TIME, "FirstTime")
            await lag_is(server, 20)
            header = JudgeRange(consumer_group="G", topic="T", queue_id=0, begin=0, end=20)
            request = Command(code=header.CODE, fields=header.to_fields())
            assert (await client.server.ask(request, 60)).code == ResponseCode.SUCCESS
            assert (await client.consume())[0] == numbers(20)

    run(work())


def test_another_class_is_counted_anew_and_a_dropped_one_is_no_longer_told() -> None:
    async def work() -> None:
        async with counting(unused_seconds=3.0) as (_, server, client):
            await client.send(*numbers(1000))
            await client.upload(EVEN, "Even")
            await lag_is(server, 500)
            await client.upload(RARE, "Rare")
            await lag_is(server, 1)
            assert [one.class_name for one in server.lags.listed()] == ["Rare"]
            await until(lambda: not len(server.classes))
            await until(lambda: not server.lags.listed() and not server.lags._maps)
            await until(lambda: not len(server.copies))

    run(work())


def test_a_group_that_broadcasts_has_no_lag() -> None:
    async def work() -> None:
        async with counting() as (cluster, server, client):
            await client.send(*numbers(10))
            await subscribe(client, "Even", MessageModel.BROADCASTING)
            await client.upload(EVEN, "Even")
            for _ in range(3):
                await server.lags.count()
            assert server.lags.listed() == []
            name = "tamis_group_matching_lag"
            assert await asyncio.to_thread(scrape, cluster.metrics, name) is None

    run(work())


def test_a_queue_that_ends_before_it_did_is_counted_anew() -> None:
    async def work() -> None:
        async with counting(lag_seconds=3600) as (_, server, client):
            await client.send(*numbers(100))
            await client.upload(EVEN, "Even")
            await server.lags.count()
            assert [one.matching for one in server.lags.listed()] == [50]
            (by,) = server.classes
            assert server.lags._is_behind(by, {0: (0, 7)})
            assert server.lags._maps[by][0].high == 0
            assert server.lags._is_behind(by, {1: (0, 7)})
            assert list(server.lags._maps[by]) == [1]

    run(work())


def test_a_broker_that_comes_back_is_counted_anew() -> None:
    async def work() -> None:
        async with counting() as (cluster, server, client):
            await client.send(*numbers(100))
            await client.upload(EVEN, "Even")
            await lag_is(server, 50)
            maps = server.lags._maps
            before = list(maps.values())
            await asyncio.to_thread(cluster.restart_broker)
            await until(lambda: maps and next(iter(maps.values())) is not before[0])
            await lag_is(server, 50)

    run(work())


def test_too_much_to_remember_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag, "_MOST_MEMORY", 400)

    async def work() -> None:
        async with counting() as (_, server, client):
            await client.send(*numbers(2000))
            await client.upload(EVEN, "Even")
            for _ in range(3):
                await server.lags.count()
            assert server.lags.listed() == []
            await commit(client, 1900)
            await lag_is(server, 50)

    run(work())


# What a broker takes.


def test_only_a_registered_filter_server_reports_and_only_reports() -> None:
    async def work() -> None:
        async with counting(lag_seconds=0) as (cluster, server, client):
            row = {"group": "G", "topic": "T", "class": "Even", "matching": 7, "oldest": None}
            report = {"seconds": 60, "lags": [row]}

            async def refusal(body: bytes) -> str:
                with pytest.raises(ResponseError) as caught:
                    await server.link.ask(lag.ReportCodeLag(), body=body)
                return caught.value.remark or ""

            request = Command(code=RequestCode.REPORT_CODE_LAG, body=json.dumps(report).encode())
            answer = await client.broker.ask(request, 60)
            assert answer.code == ResponseCode.NO_PERMISSION
            for body in (
                *(b"", b"{", b"[]", b'{"seconds": 1}', b'{"seconds": "x", "lags": []}'),
                *(b'{"seconds": 1, "lags": [{}]}', b'{"seconds": 1, "lags": [1]}'),
            ):
                assert "not a report of lags" in await refusal(body), body
            many = {"seconds": 60, "lags": [row | {"group": str(n)} for n in range(10_001)]}
            assert "takes no more" in await refusal(json.dumps(many).encode())
            await client.send(*numbers(10))
            await subscribe(client, "a.package.Even")
            await server.link.ask(lag.ReportCodeLag(), body=json.dumps(report).encode())
            name = "tamis_group_matching_lag"
            assert await asyncio.to_thread(scrape, cluster.metrics, name) == 7
            await server.close()
            await told(cluster.metrics, name, lambda value: value is None)

    run(work())
