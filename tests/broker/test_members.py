"""Groups as heartbeats make them: subscriptions and their versions, members that come and go."""

import logging

import pytest

from tamis.broker.members import ConsumerGroup, Consumers, Member, Producers
from tamis.net.aio import Peer
from tamis.wire.bodies import ConsumerData, Subscription
from tamis.wire.codes import Language


def member(client_id: str = "c1", seen: float = 0.0) -> Member:
    return Member(Peer(lambda peer, requests: None), client_id, Language.JAVA, 401, seen)


def subscription(topic: str, expression: str, version: int) -> Subscription:
    return Subscription(topic=topic, expression=expression, version=version)


def data(*subscriptions: Subscription, model: str = "CLUSTERING") -> ConsumerData:
    return ConsumerData(group="g", subscriptions=list(subscriptions), message_model=model)


class Told:
    """What a group's listeners were told."""

    def __init__(self, consumers: Consumers) -> None:
        self.changes: list[list[str]] = []
        self.empty: list[str] = []
        consumers.on_change = self._changed
        consumers.on_empty = self.empty.append

    def _changed(self, group: ConsumerGroup) -> None:
        self.changes.append(group.client_ids)


@pytest.fixture
def consumers() -> Consumers:
    return Consumers()


@pytest.fixture
def told(consumers: Consumers) -> Told:
    return Told(consumers)


# RocketMQ's table of what a heartbeat does to a group's subscriptions.


@pytest.mark.parametrize(
    ("known", "said", "kept", "is_change"),
    [
        (None, ("A", 5), ("A", 5), True),
        (("A", 5), ("B", 6), ("B", 6), False),  # a higher version replaces, and is no change
        (("A", 5), ("B", 5), ("A", 5), False),  # the same or a lower one is passed over
        (("A", 5), ("B", 4), ("A", 5), False),
        (("A", 5), None, None, True),  # a topic no longer said is dropped
    ],
)
def test_a_groups_subscription_is_that_of_the_highest_version(
    consumers: Consumers,
    told: Told,
    known: tuple[str, int] | None,
    said: tuple[str, int] | None,
    kept: tuple[str, int] | None,
    is_change: bool,
) -> None:
    one = member()
    always = subscription("Other", "*", 1)
    consumers.heartbeat(data(always, *([subscription("T", *known)] if known else [])), one)
    told.changes.clear()
    consumers.heartbeat(data(always, *([subscription("T", *said)] if said else [])), one)
    found = consumers.groups["g"].subscriptions.get("T")
    assert (found and (found.expression, found.version)) == kept
    assert bool(told.changes) is is_change


def test_members_are_told_when_one_joins_leaves_or_is_lost(
    consumers: Consumers, told: Told
) -> None:
    one, two = member("c1"), member("c2")
    both = data(subscription("T", "*", 1))
    consumers.heartbeat(both, one)
    consumers.heartbeat(both, two)
    consumers.heartbeat(both, two)  # nothing new
    consumers.leave(one.peer, "g")
    assert told.changes == [["c1"], ["c1", "c2"], ["c2"]]
    consumers.drop(two.peer)
    assert told.empty == ["g"]
    assert not consumers.groups


def test_a_silent_member_is_dropped_and_the_others_told(consumers: Consumers, told: Told) -> None:
    both = data(subscription("T", "*", 1))
    consumers.heartbeat(both, member("old", seen=10))
    consumers.heartbeat(both, member("new", seen=100))
    list(consumers.drop_silent(before=50))
    assert consumers.groups["g"].client_ids == ["new"]
    assert told.changes[-1] == ["new"]


def test_members_that_subscribe_differently_are_warned_of_once(
    consumers: Consumers, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    one, two = member("c1"), member("c2")
    for _ in range(3):
        consumers.heartbeat(data(subscription("T", "A", 1)), one)
        consumers.heartbeat(data(subscription("T", "B", 2)), two)
    warnings = [text for text in caplog.messages if "subscribe differently" in text]
    assert len(warnings) == 1
    assert "TAG A" in warnings[0]
    assert "TAG B" in warnings[0]
    assert consumers.groups["g"].differences() == {"T": {"TAG A": ["c1"], "TAG B": ["c2"]}}


def test_two_members_of_one_name_are_warned_of(
    consumers: Consumers, caplog: pytest.LogCaptureFixture
) -> None:
    consumers.heartbeat(data(), member("same"))
    consumers.heartbeat(data(), member("same"))
    assert any("call themselves same" in text for text in caplog.messages)


def test_producers_are_asked_in_turn_and_found_by_name() -> None:
    producers = Producers()
    one, two = member("p1"), member("p2")
    producers.heartbeat("pg", one)
    producers.heartbeat("pg", two)
    asked = {producers.any_of("pg") is one, producers.any_of("pg") is one}
    assert asked == {True, False}
    assert producers.find("p2") is two
    producers.drop(one.peer)
    producers.leave(two.peer, "pg")
    assert producers.any_of("pg") is None
    assert not producers.groups
