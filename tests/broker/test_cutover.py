"""A change of a group's filter: the old one before the cut-over, the new one from there on."""

import asyncio
import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from broker.group_members import Clock, GroupMember, sql, tags, tend
from broker.running import Client, run, running, until

from tamis.broker.broker import Broker
from tamis.broker.locks import Locks
from tamis.wire.bodies import MessageQueue, Subscription
from tamis.wire.codes import RequestCode, ResponseCode
from tamis.wire.command import Command
from tamis.wire.headers import SetGroupFilter

TOPIC, GROUP, QUEUES = "t", "g", 4
POLICIES = pytest.mark.parametrize("policy", ["rocketmq", "reject", "isolate"])


async def fill(client: Client, *kinds: str, mark: str = "") -> dict[str, list[str]]:
    """One message of each tag in each queue; their bodies, by tag."""
    made: dict[str, list[str]] = {kind: [] for kind in kinds}
    for queue_id in range(QUEUES):
        for kind in kinds:
            body = f"{kind}{queue_id}{mark}"
            await client.send(
                TOPIC, body.encode(), tags=kind, queue_id=queue_id, properties={"kind": kind}
            )
            made[kind].append(body)
    return made


async def ask_change(client: Client, kind: str, expression: str, **others: Any) -> Command:
    header = SetGroupFilter(group=GROUP, topic=TOPIC, kind=kind, expression=expression, **others)
    return await client.ask(RequestCode.SET_GROUP_FILTER, header.to_fields())


async def change(client: Client, kind: str, expression: str, **others: Any) -> dict[str, Any]:
    answer = await ask_change(client, kind, expression, **others)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    made: dict[str, Any] = json.loads(answer.body)
    return made


def committed(broker: Broker) -> dict[int, int]:
    return broker.offsets.of(GROUP, TOPIC)


async def consume(member: GroupMember, one: Subscription) -> None:
    how = {"kind": "SQL92"} if one.expression_type == "SQL92" else {}
    await member.consume(TOPIC, await member.queues(QUEUES), version=one.version, **how)


@POLICIES
@pytest.mark.parametrize("new", [tags(TOPIC, "B", 9), sql(TOPIC, "kind = 'B'", 9)])
def test_a_rolling_restart_loses_nothing(tmp_path: Path, policy: str, new: Subscription) -> None:
    async def work() -> None:
        old = tags(TOPIC, "A")
        async with running(tmp_path, subscription_conflicts=policy) as (broker, client):
            first = await GroupMember.join(broker, GROUP, "m1", old)
            second = await GroupMember.join(broker, GROUP, "m2", old)
            before = await fill(client, "A", "B", mark=" before")
            made = await change(client, "SQL92" if new.expression_type else "TAG", new.expression)
            assert made["cuts"] == dict.fromkeys(map(str, range(QUEUES)), 2)
            after = await fill(client, "A", "B", mark=" after")
            await first.leave()
            later = await GroupMember.join(broker, GROUP, "m1 new", new)
            await consume(later, new)
            assert sorted(later.had) == sorted(after["B"])
            # the old filter still has all to do before the cut
            assert all(offset < 2 for offset in committed(broker).values())
            await consume(second, old)
            assert sorted(second.had) == sorted(before["A"])
            assert committed(broker) == dict.fromkeys(range(QUEUES), 4)
            await second.leave()
            last = await GroupMember.join(broker, GROUP, "m2 new", new)
            assert await last.peers() == ["m1 new", "m2 new"]
            await tend(broker)
            await tend(broker)
            assert not broker.conflicts.divisions
            more = await fill(client, "A", "B", mark=" more")
            for one in (later, last):
                await consume(one, new)
            assert sorted(later.had + last.had) == sorted(after["B"] + more["B"])

    run(work())


def test_members_with_the_old_filter_wait_at_the_cut_and_are_not_passed_by(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (broker, client):
            await fill(client, "A", mark=" before")
            old = await GroupMember.join(broker, GROUP, "old", tags(TOPIC, "A"))
            await old.consume(TOPIC, range(QUEUES))
            await change(client, "TAG", "A || B")
            await fill(client, "A", mark=" after")
            answer = await old.pull(TOPIC, 0, 1)
            assert answer.code == ResponseCode.PULL_NOT_FOUND
            assert (answer.fields or {})["nextBeginOffset"] == "1"
            assert committed(broker) == dict.fromkeys(range(QUEUES), 1)

    run(work())


def test_without_members_of_the_old_filter_the_new_ones_get_what_is_left(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (broker, client):
            before = await fill(client, "A", "C", mark=" before")
            old = await GroupMember.join(broker, GROUP, "old", tags(TOPIC, "A || C"))
            assert [one.body for one in await old.step(TOPIC, 0)] == [b"A0 before", b"C0 before"]
            for queue_id in range(QUEUES):
                await old.commit(TOPIC, queue_id, 0)
            await change(client, "SQL92", "kind = 'B'")
            after = await fill(client, "A", "B", mark=" after")
            new = sql(TOPIC, "kind = 'B'")
            member = await GroupMember.join(broker, GROUP, "new", new)
            await consume(member, new)
            assert sorted(member.had) == sorted(after["B"])
            member.had.clear()
            await old.leave()  # with all of it still to do
            await tend(broker)
            await consume(member, new)  # its client takes whatever the broker gives it
            assert sorted(member.had) == sorted(chain(*before.values()))
            await tend(broker)
            await tend(broker)
            assert committed(broker) == dict.fromkeys(range(QUEUES), 4)
            assert not broker.conflicts.divisions

    run(work())


def test_what_new_clients_would_drop_is_held_and_then_given_up_with_a_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        clock = Clock()
        async with running(tmp_path, clock=clock) as (broker, client):
            before = await fill(client, "A", "B", mark=" before")
            old = await GroupMember.join(broker, GROUP, "old", tags(TOPIC, "A || B"))
            for queue_id in range(QUEUES):
                await old.commit(TOPIC, queue_id, 0)
            await change(client, "TAG", "B")
            new = tags(TOPIC, "B", 5)
            member = await GroupMember.join(broker, GROUP, "new", new)
            await old.leave()
            await tend(broker)
            await consume(member, new)
            assert sorted(member.had) == sorted(before["B"])
            await tend(broker)
            assert committed(broker) == dict.fromkeys(range(QUEUES), 0)  # A waits for the old
            clock.ahead += 601
            await member.beat()
            await tend(broker)
            await tend(broker)
            assert committed(broker) == dict.fromkeys(range(QUEUES), 2)
            assert not broker.conflicts.divisions
            assert broker.tending.given_up == 1
            moves = broker.recorder.history(GROUP, TOPIC).moves  # type: ignore[union-attr]
            assert {(one.queue_id, one.before, one.after) for one in moves} >= {
                (queue_id, 0, 2) for queue_id in range(QUEUES)
            }

    run(work())
    assert any("is given up" in text for text in caplog.messages)


def test_a_cut_over_outlives_a_restart_of_the_broker(tmp_path: Path) -> None:
    async def work() -> None:
        old, new = tags(TOPIC, "A"), tags(TOPIC, "B")
        async with running(tmp_path) as (broker, client):
            await GroupMember.join(broker, GROUP, "old", old)
            before = await fill(client, "A", "B", mark=" before")
            await change(client, "TAG", "B")
        async with running(tmp_path) as (broker, client):
            after = await fill(client, "A", "B", mark=" after")
            later = await GroupMember.join(broker, GROUP, "new", new)
            await consume(later, new)
            former = await GroupMember.join(broker, GROUP, "old", old)
            await consume(former, old)
            assert sorted(former.had) == sorted(before["A"])
            assert sorted(later.had) == sorted(after["B"])

    run(work())


def test_a_group_that_is_offline_can_be_given_another_filter(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (broker, client):
            before = await fill(client, "A", "B", mark=" before")
            member = await GroupMember.join(broker, GROUP, "old", tags(TOPIC, "A"))
            await member.consume(TOPIC, [0])
            for queue_id in (1, 2, 3):
                await member.commit(TOPIC, queue_id, 0)
            await member.leave()
            answer = await ask_change(client, "SQL92", "kind = 'B'")
            assert "no member of it is connected" in (answer.remark or "")
            await change(
                client, "SQL92", "kind = 'B'", old_kind="TAG", old_expression="A"
            )  # fmt: skip
            after = await fill(client, "A", "B", mark=" after")
            new = sql(TOPIC, "kind = 'B'")
            member = await GroupMember.join(broker, GROUP, "new", new)
            await tend(broker)
            await consume(member, new)
            assert sorted(member.had) == sorted(before["A"][1:] + after["B"])

    run(work())


def test_a_cut_can_be_at_an_offset_at_a_time_or_different_for_each_queue(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (broker, client):
            await fill(client, "A", "B")
            await GroupMember.join(broker, GROUP, "old", tags(TOPIC, "A"))
            for start, cuts in (
                ("offset:1", [1, 1, 1, 1]),
                ("offset:7", [7, 7, 7, 7]),
                ("time:1", [0, 0, 0, 0]),
                (f"time:{int(broker.now() * 1000)}", [2, 2, 2, 2]),
                ('queues:{"0": 0, "1": 1}', [0, 1, 2, 2]),
            ):
                made = await change(client, "TAG", "B", start=start)
                assert [made["cuts"][str(one)] for one in range(QUEUES)] == cuts
                assert (await ask_change(client, "TAG", "C")).code == ResponseCode.SYSTEM_ERROR
                assert (await ask_change(client, "", "", cancel=True)).code == 0
            assert not broker.conflicts.divisions

    run(work())


@pytest.mark.parametrize(
    ("kind", "expression", "others", "why"),
    [
        ("SQL92", "a >", {}, ""),
        ("TAG", "||", {}, ""),
        ("NONSENSE", "a", {}, "it is TAG or SQL92"),
        ("TAG", "A", {}, "it filters by TAG 'A' already"),
        ("TAG", "B", {"start": "soon"}, "it is now, an offset, a time or offsets"),
        ("TAG", "B", {"start": "offset:-1"}, "it is now, an offset, a time or offsets"),
        ("TAG", "B", {"start": "time:99999999999999"}, "can't be in the future"),
        ("TAG", "B", {"start": "queues:[1]"}, "it is now, an offset, a time or offsets"),
        ("TAG", "B", {"cancel": True}, "there is no cut-over to cancel"),
    ],
)
def test_a_change_that_makes_no_sense_is_refused_in_a_line(
    tmp_path: Path, kind: str, expression: str, others: dict[str, Any], why: str
) -> None:
    async def work() -> None:
        async with running(tmp_path) as (broker, client):
            await fill(client, "A")
            await GroupMember.join(broker, GROUP, "old", tags(TOPIC, "A"))
            answer = await ask_change(client, kind, expression, **others)
            assert answer.code in (
                ResponseCode.SYSTEM_ERROR,
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            )
            assert why in (answer.remark or "")
            assert not broker.conflicts.divisions

    run(work())


def test_under_reject_a_member_with_neither_filter_is_refused(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, subscription_conflicts="reject") as (broker, client):
            await fill(client, "A")
            await GroupMember.join(broker, GROUP, "old", tags(TOPIC, "A"))
            await change(client, "TAG", "B")
            other = await GroupMember.join(broker, GROUP, "other", tags(TOPIC, "C"))
            answer = await other.beat()
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "from TAG 'A' to TAG 'B'; other has TAG 'C'" in (answer.remark or "")

    run(work())


def test_a_held_pull_of_the_new_filter_is_answered_when_the_cut_is_reached(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (broker, client):
            await fill(client, "A")
            await GroupMember.join(broker, GROUP, "old", tags(TOPIC, "A"))
            await change(client, "TAG", "B", start="offset:3")
            new = await GroupMember.join(broker, GROUP, "new", tags(TOPIC, "B"))
            assert await new.offset(TOPIC, 0) == 3
            waiting = asyncio.create_task(new.step(TOPIC, 0, suspend=15))
            await until(lambda: broker.holds.count == 1)
            for number in range(3):
                await client.send(TOPIC, f"B{number}".encode(), tags="B")
            assert [one.body for one in await waiting] == [b"B2"]

    run(work())


def test_locks_of_members_go_with_them_when_the_group_is_divided_and_united() -> None:
    locks = Locks(lambda: 0.0)
    queues = [MessageQueue(TOPIC, "b", 0), MessageQueue(TOPIC, "b", 1)]
    assert locks.lock(GROUP, "old", queues) == queues
    locks.rename(GROUP, {"old": f"{GROUP}\0lane"})
    assert locks.lock(GROUP, "other", queues[:1]) == queues[:1]
    assert not locks.lock(f"{GROUP}\0lane", "other", queues)
    locks.rename(GROUP, {"old": GROUP})
    assert locks.lock(GROUP, "old", queues) == queues[1:]  # the other's lock stays
    assert locks.lock(f"{GROUP}x", "another", queues) == queues


def test_what_became_of_each_message_is_known_and_in_words(tmp_path: Path) -> None:
    async def work() -> None:
        old, new = tags(TOPIC, "A"), tags(TOPIC, "B", 9)
        async with running(tmp_path) as (broker, client):
            first = await GroupMember.join(broker, GROUP, "old", old)
            await fill(client, "A", "B")
            await first.consume(TOPIC, range(QUEUES))
            await fill(client, "A", "B")
            await change(client, "TAG", "B")
            await fill(client, "A", "B")
            later = await GroupMember.join(broker, GROUP, "new", new)
            await consume(later, new)
            waiting = await explain(client, 2)
            assert waiting["fate"] == "NOT_CONSUMED_YET"
            assert waiting["reason"] == "It waits for members with tags 'A' (old), who are at 2."
            await first.consume(TOPIC, range(QUEUES))
            await first.leave()
            await tend(broker)
            await tend(broker)
            assert not broker.conflicts.divisions
            told = [await explain(client, offset) for offset in range(6)]
            assert [one["fate"] for one in told] == ["CONSUMED", "FILTERED"] * 2 + [
                "FILTERED",
                "CONSUMED",
            ]
            assert told[3]["reason"] == (
                "At offset 4 of this queue the group's filter was changed from tags 'A' to tags "
                "'B'; before that the old one holds, which does not match: it has the tag 'B'."
            )
            assert told[4]["reason"] == (
                "At offset 4 of this queue the group's filter was changed from tags 'A' to tags "
                "'B'; after that the new one holds, which does not match: it has the tag 'A'."
            )

    run(work())


async def explain(client: Client, offset: int) -> dict[str, Any]:
    fields = {"topic": TOPIC, "queueId": "0", "offset": str(offset), "group": GROUP}
    answer = await client.ask(RequestCode.EXPLAIN_MESSAGE, fields)
    [told] = json.loads(answer.body)["groups"]
    return dict(told)
