"""`isolate`: members that disagree are each served by their own subscription; nothing is lost."""

import asyncio
import logging
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest
from broker.group_members import Clock, GroupMember, sql, tags, tend
from broker.running import Client, run, running, until

from tamis.broker.broker import Broker
from tamis.broker.lanes import MOST_LANES, LaneFilter
from tamis.broker.tending import GivenUp
from tamis.store.tables import load_consumer_offsets
from tamis.wire.codes import RequestCode, ResponseCode

TOPIC, GROUP, QUEUES = "t", "g", 4


async def fill(client: Client, *kinds: str, rounds: int = 2) -> dict[str, list[str]]:
    """Messages of each tag in each queue; their bodies, by tag."""
    made: dict[str, list[str]] = {kind: [] for kind in kinds}
    for number in range(rounds):
        for queue_id in range(QUEUES):
            for kind in kinds:
                body = f"{kind}-{queue_id}-{number}-{len(made[kind])}"
                await client.send(
                    TOPIC, body.encode(), tags=kind, queue_id=queue_id,
                    properties={"kind": kind, "n": str(number)},
                )  # fmt: skip
                made[kind].append(body)
    return made


def committed(broker: Broker, topic: str = TOPIC) -> dict[int, int]:
    return broker.offsets.of(GROUP, topic)


def test_two_members_with_other_tags_lose_nothing_and_have_nothing_twice(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, subscription_conflicts="isolate") as (broker, client):
            sent = await fill(client, "A", "B")
            a = await GroupMember.join(broker, GROUP, "a", tags(TOPIC, "A"))
            b = await GroupMember.join(broker, GROUP, "b", tags(TOPIC, "B"))
            assert await a.queues(QUEUES) == await b.queues(QUEUES) == [0, 1, 2, 3]
            await a.consume(TOPIC, range(QUEUES))
            assert sorted(a.had) == sorted(sent["A"])
            # B has had nothing yet: the group is not beyond its first message
            assert all(offset <= 1 for offset in committed(broker).values())
            await b.consume(TOPIC, range(QUEUES))
            assert sorted(b.had) == sorted(sent["B"])
            assert committed(broker) == dict.fromkeys(range(QUEUES), 4)

    run(work())


def test_what_several_want_is_had_by_one(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, subscription_conflicts="isolate") as (broker, client):
            sent = await fill(client, "A", "B", "C")
            a = await GroupMember.join(broker, GROUP, "a", tags(TOPIC, "A||C"))
            b = await GroupMember.join(broker, GROUP, "b", tags(TOPIC, "B||C"))
            await b.consume(TOPIC, range(QUEUES))
            await a.consume(TOPIC, range(QUEUES))
            assert Counter(a.had + b.had) == Counter(chain(*sent.values()))
            assert set(sent["A"]) <= set(a.had)
            assert set(sent["B"]) <= set(b.had)

    run(work())


def test_sql_and_tags_in_one_group(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, subscription_conflicts="isolate") as (broker, client):
            sent = await fill(client, "A", "B", "C")
            a = await GroupMember.join(broker, GROUP, "a", sql(TOPIC, "kind IN ('A', 'C')", 5))
            b = await GroupMember.join(broker, GROUP, "b", tags(TOPIC, "*", 1))
            await a.consume(TOPIC, range(QUEUES), kind="SQL92")
            await b.consume(TOPIC, range(QUEUES))
            assert sorted(a.had) == sorted(sent["A"] + sent["C"])
            assert sorted(b.had) == sorted(sent["B"])

    run(work())


def test_a_message_that_arrives_while_both_wait_goes_to_whom_it_is_for(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, subscription_conflicts="isolate") as (broker, client):
            await fill(client, "A", "B", rounds=1)
            a = await GroupMember.join(broker, GROUP, "a", tags(TOPIC, "A"))
            b = await GroupMember.join(broker, GROUP, "b", tags(TOPIC, "B"))
            await a.consume(TOPIC, [0])
            await b.consume(TOPIC, [0])
            waiting = asyncio.gather(a.step(TOPIC, 0, suspend=10), b.step(TOPIC, 0, suspend=10))
            await until(lambda: broker.holds.count == 2)
            await client.send(TOPIC, b"more", tags="B")
            await client.send(TOPIC, b"for a", tags="A")
            of_a, of_b = await waiting
            assert [one.body for one in of_a] == [b"for a"]
            assert [one.body for one in of_b] == [b"more"]

    run(work())


def test_members_with_equal_subscriptions_share_the_queues_of_their_lane(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, subscription_conflicts="isolate") as (broker, client):
            sent = await fill(client, "A", "B")
            members = [
                await GroupMember.join(broker, GROUP, name, tags(TOPIC, kind))
                for name, kind in (("a1", "A"), ("b1", "B"), ("a2", "A"), ("b2", "B"))
            ]
            assert [await one.peers() for one in members[:2]] == [["a1", "a2"], ["b1", "b2"]]
            for one in members:
                await one.consume(TOPIC, await one.queues(QUEUES))
            had = Counter(chain(*(one.had for one in members)))
            assert had == Counter(chain(*sent.values()))
            assert committed(broker) == dict.fromkeys(range(QUEUES), 4)
            told = [one.code for one in members[0].client.told]
            assert RequestCode.NOTIFY_CONSUMER_IDS_CHANGED in told

    run(work())


def test_a_lane_begins_where_the_group_is(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, subscription_conflicts="isolate") as (broker, client):
            await fill(client, "A", "B")
            a = await GroupMember.join(broker, GROUP, "a", tags(TOPIC, "A"))
            await a.consume(TOPIC, range(QUEUES))  # alone: what is B is passed
            sent = await fill(client, "A", "B", rounds=1)
            b = await GroupMember.join(broker, GROUP, "b", tags(TOPIC, "B"))
            assert await b.offset(TOPIC, 0) == 4
            await b.consume(TOPIC, range(QUEUES))
            assert sorted(b.had) == sorted(sent["B"])
            assert await a.offset(TOPIC, 0) == 4
            assert committed(broker) == dict.fromkeys(range(QUEUES), 4)
            await a.consume(TOPIC, range(QUEUES))
            assert committed(broker) == dict.fromkeys(range(QUEUES), 6)

    run(work())


def test_a_member_that_changes_its_filter_reads_again_what_it_passed_over(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, subscription_conflicts="isolate") as (broker, client):
            sent = await fill(client, "A", "B")
            a = await GroupMember.join(broker, GROUP, "a", tags(TOPIC, "A"))
            b = await GroupMember.join(broker, GROUP, "b", tags(TOPIC, "A"))
            await b.consume(TOPIC, [0], commits=False)
            await b.commit(TOPIC, 0, 1)
            b.had.clear()
            await b.beat(tags(TOPIC, "B", 2))
            assert (await b.pull(TOPIC, 0, 4, version=2)).code == ResponseCode.PULL_OFFSET_MOVED
            # said before it knew that it has to go back
            await b.commit(TOPIC, 0, 4)
            assert await b.offset(TOPIC, 0) == 1
            await b.consume(TOPIC, [0], version=2)
            assert b.had == [body for body in sent["B"] if body.startswith("B-0")]
            await a.consume(TOPIC, [0])
            assert committed(broker) == {0: 4}

    run(work())


def test_a_member_that_leaves_and_returns_goes_on_where_it_was(tmp_path: Path) -> None:
    async def work() -> None:
        clock = Clock()
        settings = {"subscription_conflicts": "isolate", "isolate_hold_seconds": 600}
        async with running(tmp_path, clock=clock, **settings) as (broker, client):
            first = await fill(client, "A", "B", rounds=1)
            a = await GroupMember.join(broker, GROUP, "a", tags(TOPIC, "A"))
            b = await GroupMember.join(broker, GROUP, "b", tags(TOPIC, "B"))
            await a.consume(TOPIC, range(QUEUES))
            await b.consume(TOPIC, range(QUEUES))
            await b.leave()
            second = await fill(client, "A", "B", rounds=1)
            await a.consume(TOPIC, range(QUEUES))
            for _ in range(3):
                clock.ahead += 100
                await a.beat()
                await tend(broker)
            # up to B's first message, and no further
            assert committed(broker) == dict.fromkeys(range(QUEUES), 3)
            b = await GroupMember.join(broker, GROUP, "b again", tags(TOPIC, "B"))
            await b.consume(TOPIC, range(QUEUES))
            assert sorted(a.had) == sorted(first["A"] + second["A"])
            assert sorted(b.had) == sorted(second["B"])
            assert committed(broker) == dict.fromkeys(range(QUEUES), 4)

    run(work())


def test_a_lane_without_members_is_given_up_after_a_while_and_that_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        clock = Clock()
        settings = {"subscription_conflicts": "isolate", "isolate_hold_seconds": 600}
        async with running(tmp_path, clock=clock, **settings) as (broker, client):
            told: list[GivenUp] = []
            broker.tending.on_lane_given_up = told.append
            sent = await fill(client, "A", "B", "C", rounds=1)
            b = await GroupMember.join(broker, GROUP, "b", tags(TOPIC, "B||C"))
            a = await GroupMember.join(broker, GROUP, "a", tags(TOPIC, "A||C"))
            await a.consume(TOPIC, range(QUEUES))
            assert sorted(a.had) == sorted(sent["A"])  # C is B's, which has read nothing yet
            await b.offset(TOPIC, 0)
            await b.pull(TOPIC, 0, 0)
            await b.leave()
            clock.ahead += 599
            await a.beat()
            await tend(broker)
            clock.ahead += 2
            await a.beat()
            await tend(broker)
            assert not told, "the time counts from when the others were seen"
            clock.ahead += 600
            await a.beat()
            await tend(broker)
            assert [one.group for one in told] == [GROUP]
            assert told[0].filters == {TOPIC: LaneFilter.of(tags(TOPIC, "B||C"))}
            # what both wanted is the other's now, and nothing is had twice
            a.had.clear()
            await a.consume(TOPIC, [0])
            assert a.had == [body for body in sent["C"] if body.startswith("C-0")]
            await tend(broker)
            assert not broker.conflicts.divisions
            assert committed(broker)[0] == 3

    with caplog.at_level(logging.WARNING):
        run(work())
    assert any("is given up" in text for text in caplog.messages)


def test_lanes_outlive_a_restart_of_the_broker(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, subscription_conflicts="isolate") as (broker, client):
            sent = await fill(client, "A", "B", "C")
            a = await GroupMember.join(broker, GROUP, "a", tags(TOPIC, "A||C"))
            b = await GroupMember.join(broker, GROUP, "b", tags(TOPIC, "B||C"))
            await a.consume(TOPIC, [0, 1])
            await b.consume(TOPIC, [2, 3])
            had = a.had + b.had
        async with running(tmp_path, subscription_conflicts="isolate") as (broker, client):
            b = await GroupMember.join(broker, GROUP, "b", tags(TOPIC, "B||C"))
            await b.consume(TOPIC, range(QUEUES))
            a = await GroupMember.join(broker, GROUP, "a", tags(TOPIC, "A||C"))
            await a.consume(TOPIC, range(QUEUES))
            assert Counter(had + a.had + b.had) == Counter(chain(*sent.values()))
            assert committed(broker) == dict.fromkeys(range(QUEUES), 6)

    run(work())


def test_what_rocketmq_reads_is_the_least_of_the_lanes(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, subscription_conflicts="isolate") as (broker, client):
            await fill(client, "A", "B")
            a = await GroupMember.join(broker, GROUP, "a", tags(TOPIC, "A"))
            b = await GroupMember.join(broker, GROUP, "b", tags(TOPIC, "B"))
            await a.consume(TOPIC, range(QUEUES))
            await b.consume(TOPIC, [0, 1])
            await b.commit(TOPIC, 2, 2)
            await b.commit(TOPIC, 3, 0)
        saved = load_consumer_offsets(tmp_path / "config")[TOPIC, GROUP]
        assert saved == {0: 4, 1: 4, 2: 2, 3: 0}

    run(work())


def test_an_offset_that_no_lane_has_moved_is_committed_all_the_same(tmp_path: Path) -> None:
    """Otherwise `mqadmin resetOffsetByTime` finds queues without an offset, and refuses."""

    async def work() -> None:
        async with running(tmp_path, subscription_conflicts="isolate") as (broker, client):
            await client.send(TOPIC, tags="A", queue_id=0)
            a = await GroupMember.join(broker, GROUP, "a", tags(TOPIC, "A"))
            b = await GroupMember.join(broker, GROUP, "b", tags(TOPIC, "B"))
            for member in (a, b):
                await member.consume(TOPIC, [0, 1])
            assert broker.offsets.of(GROUP, TOPIC) == {0: 1, 1: 0}

    run(work())


def test_a_message_sent_back_comes_back_to_the_lane_it_was_sent_from(tmp_path: Path) -> None:
    async def work() -> None:
        retry = f"%RETRY%{GROUP}"
        settings = {"subscription_conflicts": "isolate", "delay_levels": "1s 1s 1s 1s"}
        async with running(tmp_path, **settings) as (broker, client):
            await fill(client, "A", "B", rounds=1)
            a = await GroupMember.join(broker, GROUP, "a", tags(TOPIC, "A"), retries=True)
            b = await GroupMember.join(broker, GROUP, "b", tags(TOPIC, "B"), retries=True)
            (of_a,) = await a.step(TOPIC, 0)
            (of_b,) = await b.step(TOPIC, 0)
            await a.client.send_back(of_a, GROUP, 1)
            await b.client.send_back(of_b, GROUP, 1)
            await until(lambda: (q := broker.store.find_queue(retry, 0)) and q.max_offset == 2)
            await b.consume(retry, [0])
            await a.consume(retry, [0])
            assert (a.had, b.had) == ([of_a.body.decode()], [of_b.body.decode()])
            assert committed(broker, retry) == {0: 2}

    run(work())


def test_a_retry_of_a_lane_that_is_gone_goes_to_who_is_there(tmp_path: Path) -> None:
    async def work() -> None:
        clock, retry = Clock(), f"%RETRY%{GROUP}"
        settings = {"subscription_conflicts": "isolate", "delay_levels": "1s 1s 1s 1s"}
        async with running(tmp_path, clock=clock, **settings) as (broker, client):
            await fill(client, "A", "B", rounds=1)
            a = await GroupMember.join(broker, GROUP, "a", tags(TOPIC, "A"), retries=True)
            b = await GroupMember.join(broker, GROUP, "b", tags(TOPIC, "B"), retries=True)
            await b.consume(retry, [0])
            (of_b,) = await b.step(TOPIC, 0)
            await b.client.send_back(of_b, GROUP, 1)
            await until(lambda: (q := broker.store.find_queue(retry, 0)) and q.max_offset == 1)
            assert not await a.consume(retry, [0])
            await b.leave()
            await tend(broker)
            clock.ahead += 601
            await a.beat()
            await tend(broker)
            assert await a.consume(retry, [0]) == [of_b.body.decode()]

    run(work())


def test_queues_are_locked_within_a_lane(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, subscription_conflicts="isolate") as (broker, client):
            await fill(client, "A", rounds=1)
            a = await GroupMember.join(broker, GROUP, "a", tags(TOPIC, "A"))
            other = await GroupMember.join(broker, GROUP, "a2", tags(TOPIC, "A"))
            b = await GroupMember.join(broker, GROUP, "b", tags(TOPIC, "B"))
            assert await a.lock(TOPIC, 0)
            assert await b.lock(TOPIC, 0)
            assert not await other.lock(TOPIC, 0)
            assert await a.lock(TOPIC, 0)

    run(work())


def test_a_pull_that_brings_its_filter_is_of_the_lane_with_that_filter(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, subscription_conflicts="isolate") as (broker, client):
            sent = await fill(client, "A", "C", rounds=1)
            a = await GroupMember.join(broker, GROUP, "a", tags(TOPIC, "A||C"))
            b = await GroupMember.join(broker, GROUP, "b", tags(TOPIC, "C"))
            await b.consume(TOPIC, range(QUEUES), subscription="C")
            await a.consume(TOPIC, range(QUEUES), subscription="C || A")
            assert (b.had, sorted(a.had)) == ([], sorted(chain(*sent.values())))
            # connected anew, and not yet heard of
            stranger = GroupMember(client, GROUP, "b", [tags(TOPIC, "C")])
            answer = await stranger.pull(TOPIC, 0, 0, subscription="C")
            assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
            answer = await stranger.pull(TOPIC, 0, 0)
            assert answer.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
            assert (await stranger.commit(TOPIC, 0, 2)).code == ResponseCode.SYSTEM_ERROR

    run(work())


def test_members_that_agree_again_are_served_as_one(tmp_path: Path) -> None:
    async def work() -> None:
        clock = Clock()
        async with running(tmp_path, clock=clock, subscription_conflicts="isolate") as (
            broker,
            client,
        ):
            await fill(client, "A", "B", rounds=1)
            a = await GroupMember.join(broker, GROUP, "a", sql(TOPIC, "kind = 'A'", 9))
            b = await GroupMember.join(broker, GROUP, "b", sql(TOPIC, "kind = 'B'", 10))
            await a.consume(TOPIC, range(QUEUES), kind="SQL92")
            await b.consume(TOPIC, range(QUEUES), kind="SQL92")
            await b.leave()
            await tend(broker)
            clock.ahead += 601
            await a.beat()
            await tend(broker)
            assert not broker.conflicts.is_needed
            assert await a.peers() == ["a"]
            sent = await fill(client, "A", "B", rounds=1)
            a.had.clear()
            await a.consume(TOPIC, range(QUEUES), kind="SQL92", version=9)
            assert sorted(a.had) == sorted(sent["A"])

    run(work())


def test_more_subscriptions_than_there_can_be_lanes_are_refused(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, subscription_conflicts="isolate") as (broker, _):
            for number in range(MOST_LANES):
                one = await GroupMember.join(broker, GROUP, f"m{number}", tags(TOPIC, f"T{number}"))
                assert await one.peers() == [f"m{number}"]
            more = await GroupMember.join(broker, GROUP, "more", tags(TOPIC, "U"))
            answer = await more.beat()
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert f"{MOST_LANES} different subscriptions" in (answer.remark or "")

    run(work())


def test_a_reset_moves_lanes_that_have_no_member(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, subscription_conflicts="isolate") as (broker, client):
            await fill(client, "A", "B")
            a = await GroupMember.join(broker, GROUP, "a", tags(TOPIC, "A"))
            b = await GroupMember.join(broker, GROUP, "b", tags(TOPIC, "B"))
            await a.consume(TOPIC, range(QUEUES))
            await b.consume(TOPIC, range(QUEUES))
            await b.leave()
            await a.leave()
            outsider = GroupMember(client, GROUP, "tool", [])
            assert (await outsider.commit(TOPIC, 0, 1)).code == ResponseCode.SUCCESS
            a = await GroupMember.join(broker, GROUP, "a", tags(TOPIC, "A"))
            b = await GroupMember.join(broker, GROUP, "b", tags(TOPIC, "B"))
            assert (await a.offset(TOPIC, 0), await b.offset(TOPIC, 0)) == (1, 1)
            assert await a.offset(TOPIC, 1) == 4

    run(work())
