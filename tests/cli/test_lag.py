"""`tamis groups lag`, and the exact lag in `groups show` and `offsets show`."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from cli.test_admin import Done, name

from tamis.cli.main import tamis as command
from tamis.cli.tables import age_text
from tamis.client import Consumer, ConsumerConfig, Message, Producer
from tamis.net.aio import connect
from tamis.testing import LocalCluster
from tamis.wire.command import Command
from tamis.wire.headers import UpdateConsumerOffset


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as cluster:
        yield cluster


async def run(*arguments: str, cluster: LocalCluster) -> Done:
    """In a thread: a member of the group is online meanwhile, in this loop."""
    from click.testing import CliRunner

    given = [*arguments, "--nameserver", cluster.nameserver]
    result = await asyncio.to_thread(CliRunner().invoke, command, given)
    return Done(result.exit_code, result.stdout, result.stderr)


def with_member(
    cluster: LocalCluster, work: Callable[[str, str], Awaitable[None]], **subscription: Any
) -> None:
    """Twelve messages, tags a and b, in a queue; the group stands at the third."""

    async def fill_and_work() -> None:
        topic, group = name("Topic"), name("Group")
        made = await run("topics", "create", topic, "--queues", "1", cluster=cluster)
        assert made.code == 0, made
        async with Producer(cluster.nameserver) as producer:
            for number in range(12):
                properties = {"n": str(number)}
                message = Message(topic, "x", tags="ab"[number % 2], properties=properties)
                await producer.send(message)
        peer = await connect(cluster.broker)
        header = UpdateConsumerOffset(
            consumer_group=group, topic=topic, queue_id=0, commit_offset=2
        )
        await peer.ask(Command(code=header.CODE, fields=header.to_fields()), 20)
        peer.close()
        config = ConsumerConfig(start="first", commit_interval=600.0)
        consumer = Consumer(cluster.nameserver, group, config=config)
        consumer.subscribe(topic, **subscription)
        async with consumer:
            await work(topic, group)

    asyncio.run(fill_and_work())


def test_the_lag_is_listed_by_queue(cluster: LocalCluster) -> None:
    async def work(topic: str, group: str) -> None:
        done = await run("groups", "lag", group, "--topic", topic, cluster=cluster)
        assert (done.code, done.stderr) == (0, "")
        head, row, _, total = done.lines
        assert head.split("  ") != head.split()
        assert row.split()[:7] == [topic, "broker-a", "0", "2", "12", "10", "5"]
        assert row.endswith("s")
        assert total == "lag in all: 10, matching 5"
        done = await run("groups", "lag", group, "--topic", topic, "--json", cluster=cluster)
        [row_told] = done.rows
        assert 0 <= row_told.pop("next_match_age") < 60
        assert row_told.pop("next_match_stored") > 0
        assert row_told == {
            "group": group,
            "topic": topic,
            "broker": "broker-a",
            "queue": 0,
            "lane": None,
            "committed": 2,
            "end": 12,
            "lag": 10,
            "matching_lag": 5,
            "is_complete": True,
            "next_match_offset": 3,
            "reason": None,
            "filter": {"type": "TAG", "expression": "b"},
        }
        every = await run("groups", "lag", cluster=cluster)
        assert every.lines[0].split()[0] == "group"
        assert next(line.split()[7] for line in every.lines if line.startswith(group)) == "5"

    with_member(cluster, work, tags="b")


def test_a_group_and_its_offsets_are_shown_with_the_lag(cluster: LocalCluster) -> None:
    async def work(topic: str, group: str) -> None:
        done = await run("groups", "show", group, cluster=cluster)
        assert done.code == 0, done
        [row] = [line.split() for line in done.lines if line.split()[:3] == [topic, "10", "4"]]
        assert row[3].endswith("s")
        [told] = (await run("groups", "show", group, "--json", cluster=cluster)).rows
        [of_topic] = [one for one in told["lag"] if one["topic"] == topic]
        assert (of_topic["lag"], of_topic["matching_lag"], of_topic["is_complete"]) == (10, 4, True)
        assert of_topic["next_match_age"] >= 0
        done = await run("offsets", "show", group, "--topic", topic, cluster=cluster)
        assert done.lines[1].split()[:7] == [topic, "broker-a", "0", "2", "12", "10", "4"]
        assert done.lines[-1] == "lag in all: 10, matching 4"
        done = await run("offsets", "show", group, "--topic", topic, "--json", cluster=cluster)
        [offset] = done.rows
        assert (offset["lag"], offset["matching_lag"], offset["next_match_offset"]) == (10, 4, 8)

    with_member(cluster, work, sql="n > 7")


def test_what_is_not_known_is_a_dash_and_a_reason(cluster: LocalCluster) -> None:
    async def work(topic: str, group: str) -> None:
        done = await run("groups", "lag", group, "--topic", topic, cluster=cluster)
        assert done.code == 0, done
        assert done.lines[1].split()[3:] == ["-", "12", "-", "-", "-"]
        reason = "it is broadcasting: each member keeps its own offsets"
        assert done.lines[-1] == f"group {group} on {topic}: {reason}"

    async def broadcasting() -> None:
        topic, group = name("Topic"), name("Group")
        await run("topics", "create", topic, "--queues", "1", cluster=cluster)
        async with Producer(cluster.nameserver) as producer:
            for _ in range(12):
                await producer.send(Message(topic, "x"))
        config = ConsumerConfig(start="first", model="broadcasting")
        consumer = Consumer(cluster.nameserver, group, config=config)
        consumer.subscribe(topic)
        async with consumer:
            await work(topic, group)

    asyncio.run(broadcasting())


def test_a_group_without_offsets_is_said_to_have_consumed_nothing(cluster: LocalCluster) -> None:
    async def work() -> None:
        group = name("Group")
        assert (await run("groups", "create", group, cluster=cluster)).code == 0
        done = await run("groups", "lag", group, cluster=cluster)
        assert done == (0, "", f"group {group} has consumed nothing yet\n")

    asyncio.run(work())


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0s"),
        (0.4, "0s"),
        (59.9, "59s"),
        (60, "1m"),
        (200, "3m 20s"),
        (3600, "1h"),
        (3605, "1h"),
        (90_000, "1d 1h"),
    ],
)
def test_an_age_has_its_two_largest_units(seconds: float, text: str) -> None:
    assert age_text(seconds) == text
