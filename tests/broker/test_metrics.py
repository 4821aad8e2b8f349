"""Metrics: what a scrape says of a broker that works, and the exact lag of filtered groups."""

import asyncio
import re
import threading
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tamis.broker.latency import Latency
from tamis.filter.tags import parse_tags
from tamis.net.aio import Peer, connect
from tamis.testing import LocalBroker
from tamis.wire import beans
from tamis.wire.bodies import ConsumerData, Heartbeat, Subscription
from tamis.wire.codes import PullFlag, RequestCode, ResponseCode
from tamis.wire.command import Command
from tamis.wire.headers import Header, PullMessage, SendMessage, UpdateConsumerOffset

PATIENCE = 20.0  # seconds
Labels = tuple[str, ...]


def scrape(url: str) -> dict[str, dict[Labels, float]]:
    """By name, then by the values of the labels in the order of their names."""
    page = urllib.request.urlopen(url, timeout=PATIENCE).read().decode()
    found: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            labels = tuple(sample.labels[name] for name in sorted(sample.labels))
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


async def ask(peer: Peer, header: Header | None, code: int = 0, body: bytes = b"") -> Command:
    fields = header.to_fields() if header is not None else None
    request = Command(code=code or getattr(header, "CODE", 0), fields=fields, body=body)
    return await peer.ask(request, PATIENCE)


async def send(peer: Peer, number: int, tag: str) -> None:
    header = SendMessage(
        producer_group="p",
        topic="T",
        default_topic="TBW102",
        default_topic_queue_nums=1,
        queue_id=0,
        sys_flag=0,
        born_timestamp=1,
        flag=0,
        properties=f"TAGS\x01{tag}\x02n\x01{number if number % 10 else 'none'}",
    )
    answer = await ask(peer, header, body=b"0123456789")
    assert answer.code == ResponseCode.SUCCESS, answer


async def subscribe(peer: Peer, group: str, expression: str, kind: str) -> None:
    tags = parse_tags(expression) if kind == "TAG" else None
    one = Subscription(
        topic="T",
        expression=expression,
        expression_type=kind,
        version=1,
        tags=sorted(tags.tags) if tags else [],
        codes=sorted(tags.codes) if tags else [],
    )
    consumer = ConsumerData(group=group, subscriptions=[one])
    beat = Heartbeat(client_id=f"c@{group}", producers=[], consumers=[consumer])
    answer = await ask(peer, None, RequestCode.HEART_BEAT, beans.encode(beat))
    assert answer.code == ResponseCode.SUCCESS, answer


async def pull(peer: Peer, group: str, offset: int, *, wait: float = 0.0) -> Command:
    header = PullMessage(
        consumer_group=group,
        topic="T",
        queue_id=0,
        queue_offset=offset,
        max_msg_nums=32,
        sys_flag=PullFlag.SUSPEND if wait else 0,
        suspend_timeout_millis=int(wait * 1000),
        sub_version=1,
    )
    return await ask(peer, header)


async def commit(peer: Peer, group: str, offset: int) -> None:
    header = UpdateConsumerOffset(consumer_group=group, topic="T", queue_id=0, commit_offset=offset)
    assert (await ask(peer, header)).code == ResponseCode.SUCCESS


async def until_queued(url: str, messages: int) -> None:
    """Queues follow the log: until the lag of a group that has committed nothing says so."""
    async with asyncio.timeout(PATIENCE):
        while (await asyncio.to_thread(scrape, url))["tamis_group_lag"]["tags", "T"] != messages:
            await asyncio.sleep(0.005)


def test_a_scrape_tells_what_went_in_and_out_and_what_filters_said() -> None:
    async def work(broker: LocalBroker) -> None:
        peer = await connect(broker.broker)
        await subscribe(peer, "tags", "a", "TAG")
        for number in range(20):
            await send(peer, number, "ab"[number % 2])
        await subscribe(peer, "sql", "n > 14", "SQL92")
        await until_queued(broker.metrics, 20)
        answers = [await pull(peer, "tags", 0), await pull(peer, "sql", 0)]
        assert [answer.code for answer in answers] == [ResponseCode.SUCCESS] * 2
        waiting = asyncio.ensure_future(pull(peer, "tags", 20, wait=PATIENCE))
        await commit(peer, "tags", 5)
        seen = await asyncio.to_thread(scrape, broker.metrics)
        assert seen["tamis_messages_in_total"] == {("T",): 20}
        assert seen["tamis_bytes_in_total"]["T",] > 200
        assert seen["tamis_messages_out_total"] == {("tags", "T"): 10, ("sql", "T"): 5}
        for verdict, tags, sql in (("evaluated", 20, 20), ("matched", 10, 5), ("failed", 0, 2)):
            told = seen[f"tamis_filter_{verdict}_total"]
            assert (told["tags", "T"], told["sql", "T"]) == (tags, sql), verdict
        assert seen["tamis_filter_filtered_total"] == {("tags", "T"): 10, ("sql", "T"): 13}
        assert seen["tamis_held_pulls"] == {(): 1}
        assert seen["tamis_connections"] == {(): 1}
        assert seen["tamis_group_lag"] == {("tags", "T"): 15, ("sql", "T"): 20}
        assert seen["tamis_group_matching_lag"] == {("tags", "T"): 7, ("sql", "T"): 5}
        ages = seen["tamis_group_next_match_age_seconds"]
        assert set(ages) == {("tags", "T"), ("sql", "T")}
        assert all(0 < age < PATIENCE for age in ages.values()), ages
        await commit(peer, "sql", 20)
        seen = await asyncio.to_thread(scrape, broker.metrics)
        assert seen["tamis_group_next_match_age_seconds"]["sql", "T"] == 0
        await commit(peer, "sql", 0)
        assert seen["tamis_undispatched_bytes"] == {(): 0}
        await send(peer, 21, "a")
        assert (await waiting).code == ResponseCode.SUCCESS
        seen = await asyncio.to_thread(scrape, broker.metrics)
        assert seen["tamis_held_pulls"] == {(): 0}
        assert seen["tamis_group_matching_lag"] == {("tags", "T"): 8, ("sql", "T"): 6}
        peer.close()

    with LocalBroker(metrics_port=0) as broker:
        asyncio.run(work(broker))


def test_a_group_that_is_gone_has_its_last_filter() -> None:
    async def work(broker: LocalBroker) -> None:
        peer = await connect(broker.broker)
        await subscribe(peer, "tags", "a", "TAG")
        for number in range(10):
            await send(peer, number, "ab"[number % 2])
        await subscribe(peer, "sql", "n > 6", "SQL92")
        await until_queued(broker.metrics, 10)
        for group in ("tags", "sql"):
            await commit(peer, group, 4)
        peer.close()
        async with asyncio.timeout(PATIENCE):
            while (await asyncio.to_thread(scrape, broker.metrics))["tamis_connections"][()]:
                await asyncio.sleep(0.005)
        seen = await asyncio.to_thread(scrape, broker.metrics)
        assert seen["tamis_group_lag"] == {("tags", "T"): 6, ("sql", "T"): 6}
        assert seen["tamis_group_matching_lag"] == {("tags", "T"): 3, ("sql", "T"): 3}

    with LocalBroker(metrics_port=0) as broker:
        asyncio.run(work(broker))


def test_scrapes_at_the_same_time_are_all_answered() -> None:
    with LocalBroker(metrics_port=0) as broker:
        told = []
        threads = [
            threading.Thread(target=lambda: told.append(scrape(broker.metrics))) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(told) == 8
        assert all(seen["tamis_broker_info"] for seen in told)


def test_the_document_has_every_metric() -> None:
    document = (Path(__file__).parents[2] / "docs" / "broker.md").read_text()
    told = set(re.findall(r"^\| (`tamis_.*?`) \|", document, re.MULTILINE))
    names = {name for cell in told for name in re.findall(r"tamis_\w+", cell)}
    with LocalBroker(metrics_port=0) as broker:
        page = urllib.request.urlopen(broker.metrics, timeout=PATIENCE).read().decode()
    seen = set(re.findall(r"^# TYPE (tamis_\w+)", page, re.MULTILINE))
    assert names == seen


def test_metrics_are_off_unless_asked_for() -> None:
    with LocalBroker() as broker:
        assert broker.metrics == ""


def test_latencies_are_counted_by_bounds() -> None:
    latency = Latency()
    for seconds in (0.0001, 0.0002, 0.3, 99.0):
        latency.observe(seconds)
    buckets = dict(latency.buckets())
    assert buckets[0.0001] == 1, "a bound is part of its bucket"
    assert buckets[0.25] == 2
    assert buckets[0.5] == 3
    assert (buckets[10.0], buckets[float("inf")]) == (3, 4)
    assert latency.sum == pytest.approx(99.3003)
