"""Filters are checked where they are written, and compared with those of the group's others."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from broker.asking import until
from client.targets import Cluster, Seen, in_loop

from tamis.client import Consumer, PushConsumer
from tamis.errors import FilterSyntaxError, FilterTypeError, InvalidFilter, SubscriptionMismatch

NOWHERE = "127.0.0.1:1"
LOGGER = "tamis.client"


def push() -> PushConsumer:
    return PushConsumer(NOWHERE, "Group", Seen())


def pull() -> Consumer:
    return Consumer(NOWHERE, "Group")


@pytest.mark.parametrize("make", [push, pull])
@pytest.mark.parametrize(
    ("filters", "column", "kind", "what"),
    [
        ({"sql": "a >"}, 4, FilterSyntaxError, ""),
        ({"sql": "price > 10 AND OR b = 1"}, 16, FilterSyntaxError, ""),
        ({"sql": "a = 'x"}, 5, FilterSyntaxError, ""),
        ({"sql": "a = NULL"}, 5, FilterTypeError, "IS NULL"),
        ({"sql": ""}, 1, FilterSyntaxError, ""),
        ({"tags": "||"}, 1, FilterSyntaxError, "for all messages"),
        ({"tags": "  "}, 1, FilterSyntaxError, "for all messages"),
    ],
)
def test_a_bad_filter_fails_where_it_is_written_with_the_column(
    make: Callable[[], PushConsumer | Consumer],
    filters: dict[str, str],
    column: int,
    kind: type[InvalidFilter],
    what: str,
) -> None:
    async def subscribe() -> None:
        make().subscribe("Orders", **filters)

    with pytest.raises(kind, match=rf"column {column}: .*{what}") as caught:
        asyncio.run(subscribe())
    assert caught.value.column == column


@pytest.mark.parametrize(
    ("filters", "rule"),
    [
        ({"sql": "colour = 1 AND colour = 2"}, "contradiction"),
        ({"tags": "one | another"}, "tag-separator"),
        ({"tags": "AaAa || BBBB"}, "tag-collision"),
    ],
)
def test_what_looks_wrong_in_a_filter_is_said_once(
    filters: dict[str, str], rule: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def subscribe() -> None:
        for topic in ("Orders", "Events"):
            push().subscribe(topic, **filters)
            pull().subscribe(topic, **filters)

    with caplog.at_level(logging.WARNING, LOGGER):
        asyncio.run(subscribe())
    [line] = caplog.messages
    [expression] = filters.values()
    assert rule in line
    assert repr(expression) in line
    assert "topic Orders" in line
    assert "column" in line


def test_a_good_filter_is_taken_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    async def subscribe() -> None:
        for filters in ({}, {"tags": "*"}, {"tags": "a || b"}, {"sql": "kind = 'x' AND n > 1.5"}):
            push().subscribe("Orders", **filters)

    with caplog.at_level(logging.WARNING, LOGGER):
        asyncio.run(subscribe())
    assert caplog.messages == []


# Members that differ


def _member(cluster: Cluster, group: str, kind: str, **settings: Any) -> PushConsumer | Consumer:
    if kind == "push":
        return cluster.push(group, Seen(), **settings)
    return cluster.consumer(group, **settings)


@pytest.mark.parametrize("kind", ["push", "pull"])
@in_loop
async def test_members_that_subscribe_differently_are_warned_with_both_filters(
    cluster: Cluster, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await cluster.create_topic("Orders")
    group = cluster.name("Group")
    one, two = _member(cluster, group, kind), _member(cluster, group, kind)
    one.subscribe(topic, tags="a")
    two.subscribe(topic, tags="a || b")
    with caplog.at_level(logging.WARNING, LOGGER):
        async with one, two:

            def warnings() -> list[str]:
                return [line for line in caplog.messages if "same subscriptions" in line]

            await until(lambda: len(warnings()) >= 2, lambda: caplog.messages)
    for line in warnings():
        assert group in line
        assert topic in line
        assert "tags 'a'" in line
        assert "tags 'a || b'" in line
    assert len(warnings()) == len(set(warnings()))  # each once
    assert any(one.client_id in line for line in warnings())
    assert any(two.client_id in line for line in warnings())


@in_loop
async def test_members_that_mean_the_same_are_not_warned(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await cluster.create_topic("Orders")
    group = cluster.name("Group")
    one, two = (cluster.push(group, Seen(), strict_subscriptions=True) for _ in range(2))
    one.subscribe(topic, tags="a || b")
    two.subscribe(topic, tags="b||a")
    with caplog.at_level(logging.WARNING, LOGGER):
        async with one, two:
            await until(
                lambda: min(_share(one, topic), _share(two, topic)) == 2, lambda: one.assignment
            )
    assert not [line for line in caplog.messages if "same subscriptions" in line]


def _share(consumer: PushConsumer, topic: str) -> int:
    return len([queue for queue in consumer.assignment if queue.topic == topic])


@pytest.mark.parametrize("kind", ["push", "pull"])
@in_loop
async def test_a_strict_member_does_not_start_beside_one_that_differs(
    cluster: Cluster, kind: str
) -> None:
    topic = await cluster.create_topic("Orders")
    group = cluster.name("Group")
    one = _member(cluster, group, "push")
    one.subscribe(topic, tags="a")
    two = _member(cluster, group, kind, strict_subscriptions=True)
    two.subscribe(topic, sql="TAGS = 'a'")
    async with one:
        with pytest.raises(SubscriptionMismatch) as caught:
            await two.start()
        error = caught.value
        assert (error.group, error.topic, error.member) == (group, topic, one.client_id)
        assert "tags 'a'" in str(error)
        assert "SQL92 \"TAGS = 'a'\"" in str(error)
        assert "give all members of a group the same subscriptions" in str(error)


@pytest.mark.parametrize("kind", ["push", "pull"])
@in_loop
async def test_a_strict_member_ends_when_one_that_differs_joins(
    cluster: Cluster, kind: str
) -> None:
    topic, other = await cluster.create_topic("Orders"), await cluster.create_topic("Events")
    group = cluster.name("Group")
    strict = _member(cluster, group, kind, strict_subscriptions=True)
    strict.subscribe(topic)

    async def work() -> None:
        if isinstance(strict, PushConsumer):
            await strict.run()
        else:
            async with strict:
                async for _ in strict:
                    pass

    working = asyncio.create_task(work())
    await until(lambda: len(strict.assignment) >= 4, lambda: strict.assignment)
    late = _member(cluster, group, "push")
    late.subscribe(other)
    async with late:
        with pytest.raises(SubscriptionMismatch, match="no subscription at all"):
            await working


@in_loop
async def test_a_differing_filter_taken_up_while_it_runs_is_noticed(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    topic, other = await cluster.create_topic("Orders"), await cluster.create_topic("Events")
    group = cluster.name("Group")
    one, two = cluster.push(group, Seen()), cluster.push(group, Seen())
    one.subscribe(topic)
    two.subscribe(topic)
    with caplog.at_level(logging.WARNING, LOGGER):
        async with one, two:
            await until(lambda: _share(one, topic) == 2, lambda: one.assignment)
            two.subscribe(other)
            await until(
                lambda: any(other in line for line in caplog.messages), lambda: caplog.messages
            )
