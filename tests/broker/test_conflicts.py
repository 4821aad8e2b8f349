"""Members of a group that subscribe differently, under each policy."""

import json
import logging
from pathlib import Path

import pytest
from broker.group_members import GroupMember, sql, tags
from broker.running import Client, messages, run, running, until

from tamis.broker.broker import Broker
from tamis.wire.codes import RequestCode, ResponseCode
from tamis.wire.headers import SetGroupPolicy

TOPIC, GROUP = "t", "g"


async def close(member: GroupMember, broker: Broker) -> None:
    """Its connection is gone, and the broker knows."""
    peers = len(broker.server.peers)
    member.client.peer.close()
    await until(lambda: len(broker.server.peers) < peers)
    await until(lambda: all(
        one.client_id != member.name
        for group in broker.consumers.groups.values() for one in group.members.values()
    ))  # fmt: skip


async def set_policy(client: Client, policy: str) -> int:
    header = SetGroupPolicy(group=GROUP, policy=policy)
    return (await client.ask(RequestCode.SET_GROUP_POLICY, header.to_fields())).code


# rocketmq


def test_by_default_the_last_one_wins_which_is_counted_and_logged_loudly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with running(tmp_path) as (broker, client):
            await client.send(TOPIC, tags="A")
            await client.send(TOPIC, tags="B")
            a = await GroupMember.join(broker, GROUP, "a", tags(TOPIC, "A", 1))
            b = await GroupMember.join(broker, GROUP, "b", tags(TOPIC, "B", 2))
            assert await a.peers() == ["a", "b"]
            found = messages((await a.pull(TOPIC, 0, 0)).body)
            assert [one.properties["TAGS"] for one in found] == ["B"]
            assert broker.conflicts.disagreeing == {GROUP}
            assert broker.conflicts.conflicts == 1
            assert not broker.conflicts.is_needed
            await b.leave()
            assert not broker.conflicts.disagreeing

    with caplog.at_level(logging.ERROR):
        run(work())
    assert [text for text in caplog.messages if "messages are LOST" in text]


def test_the_same_tags_in_another_order_are_no_difference(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, subscription_conflicts="reject") as (broker, _):
            await GroupMember.join(broker, GROUP, "a", tags(TOPIC, "A||B"))
            b = await GroupMember.join(broker, GROUP, "b", tags(TOPIC, "B || A"))
            assert await b.peers() == ["a", "b"]
            assert broker.conflicts.conflicts == 0

    run(work())


# reject


def test_reject_refuses_the_later_member_and_names_both_and_what_they_want(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, subscription_conflicts="reject") as (broker, client):
            await client.send(TOPIC, tags="A")
            a = await GroupMember.join(broker, GROUP, "a", tags(TOPIC, "A"))
            b = await GroupMember.join(broker, GROUP, "b", sql(TOPIC, "n > 1", 9))
            refused = await b.beat()
            assert refused.code == ResponseCode.SYSTEM_ERROR
            for part in ("member b", "member a", "SQL92 'n > 1'", "TAG 'A'"):
                assert part in (refused.remark or "")
            assert await a.peers() == ["a"]
            # neither with the group's filter nor with its own
            for pull in (await b.pull(TOPIC, 0, 0), await b.pull(TOPIC, 0, 0, subscription="*")):
                assert (pull.code, pull.remark) == (refused.code, refused.remark)
            assert (await a.pull(TOPIC, 0, 0)).code == ResponseCode.SUCCESS
            assert (await a.beat()).code == ResponseCode.SUCCESS
            assert broker.conflicts.refusals == 1

    run(work())


def test_a_refused_member_gets_in_once_the_other_is_gone(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, subscription_conflicts="reject") as (broker, client):
            await client.send(TOPIC, tags="A", properties={"n": "2"})
            a = await GroupMember.join(broker, GROUP, "a", sql(TOPIC, "n = 1", 9))
            b = await GroupMember.join(broker, GROUP, "b", sql(TOPIC, "n = 2", 1))
            assert (await b.beat()).code == ResponseCode.SYSTEM_ERROR
            await close(a, broker)
            assert (await b.beat()).code == ResponseCode.SUCCESS
            # by its own filter, though the other's had a higher version
            assert len(messages((await b.pull(TOPIC, 0, 0, kind="SQL92")).body)) == 1

    run(work())


def test_a_member_may_change_its_mind_while_it_is_alone(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, subscription_conflicts="reject") as (broker, client):
            await client.send(TOPIC, tags="B")
            a = await GroupMember.join(broker, GROUP, "a", tags(TOPIC, "A", 5))
            assert (await a.beat(tags(TOPIC, "B", 4))).code == ResponseCode.SUCCESS
            assert len(messages((await a.pull(TOPIC, 0, 0)).body)) == 1

    run(work())


def test_a_member_that_changes_its_mind_beside_others_is_out(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, subscription_conflicts="reject") as (broker, client):
            await client.send(TOPIC, tags="A")
            a = await GroupMember.join(broker, GROUP, "a", tags(TOPIC, "A"))
            b = await GroupMember.join(broker, GROUP, "b", tags(TOPIC, "A"))
            assert (await a.beat(tags(TOPIC, "B"))).code == ResponseCode.SYSTEM_ERROR
            assert await b.peers() == ["b"]
            assert (await a.pull(TOPIC, 0, 0)).code == ResponseCode.SYSTEM_ERROR
            assert (await a.beat(tags(TOPIC, "A"))).code == ResponseCode.SUCCESS
            assert await b.peers() == ["a", "b"]

    run(work())


def test_a_client_that_connects_anew_is_not_in_conflict_with_itself(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, subscription_conflicts="reject") as (broker, _):
            await GroupMember.join(broker, GROUP, "a", tags(TOPIC, "A"))
            again = await GroupMember.join(broker, GROUP, "a", tags(TOPIC, "B"))
            assert (await again.beat()).code == ResponseCode.SUCCESS
            assert await again.peers() == ["a"]
            b = await GroupMember.join(broker, GROUP, "b", tags(TOPIC, "B"))
            assert await b.peers() == ["a", "b"]

    run(work())


def test_a_topic_that_only_one_member_subscribes_to_is_a_difference(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, subscription_conflicts="reject") as (broker, _):
            await GroupMember.join(broker, GROUP, "a", tags(TOPIC, "A"))
            b = await GroupMember.join(broker, GROUP, "b", tags(TOPIC, "A"), tags("u", "*"))
            answer = await b.beat()
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "on u: member b subscribes to TAG '*', member a to nothing" in answer.remark

    run(work())


# Of a group.


def test_a_group_may_have_a_policy_of_its_own_which_outlives_a_restart(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (broker, client):
            assert await set_policy(client, "reject") == ResponseCode.SUCCESS
            assert await set_policy(client, "nonsense") == ResponseCode.SYSTEM_ERROR
        async with running(tmp_path) as (broker, client):
            await GroupMember.join(broker, GROUP, "a", tags(TOPIC, "A"))
            b = await GroupMember.join(broker, GROUP, "b", tags(TOPIC, "B"))
            assert (await b.beat()).code == ResponseCode.SYSTEM_ERROR
            assert await set_policy(client, "default") == ResponseCode.SUCCESS
            assert (await b.beat()).code == ResponseCode.SUCCESS
            assert await b.peers() == ["a", "b"]

    run(work())


def test_refused_members_are_told_of_though_their_group_has_no_rules_of_its_own(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        async with running(tmp_path, subscription_conflicts="reject") as (broker, client):
            await GroupMember.join(broker, GROUP, "a", tags(TOPIC, "A"))
            await GroupMember.join(broker, GROUP, "b", tags(TOPIC, "B"))
            answer = await client.ask(RequestCode.GET_GROUP_RULES, {})
            [told] = json.loads(answer.body)["groups"]
            assert told["group"] == GROUP
            assert "member b subscribes to TAG 'B'" in told["refused"][0]

    run(work())


@pytest.mark.parametrize("before", ["rocketmq", "isolate"])
def test_reject_holds_as_soon_as_it_is_set_and_not_from_the_next_heartbeat_on(
    tmp_path: Path, before: str
) -> None:
    async def work() -> None:
        async with running(tmp_path, subscription_conflicts=before) as (broker, client):
            a = await GroupMember.join(broker, GROUP, "a", tags(TOPIC, "A", 1))
            b = await GroupMember.join(broker, GROUP, "b", tags(TOPIC, "B", 2))
            c = await GroupMember.join(broker, GROUP, "c", tags(TOPIC, "A", 1))
            assert await set_policy(client, "reject") == ResponseCode.SUCCESS
            for tag in "AB":
                await client.send(TOPIC, tags=tag)
            refused = await b.pull(TOPIC, 0, 0, version=2)
            assert refused.code == ResponseCode.SYSTEM_ERROR
            assert "member b subscribes to TAG 'B', member a to TAG 'A'" in (refused.remark or "")
            for member in (a, c):
                assert await member.peers() == ["a", "c"]
                found = messages((await member.pull(TOPIC, 0, 0)).body)
                assert [one.properties["TAGS"] for one in found] == ["A"]

    run(work())


def test_the_policy_can_be_changed_while_members_disagree(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path) as (broker, _):
            a = await GroupMember.join(broker, GROUP, "a", tags(TOPIC, "A"))
            b = await GroupMember.join(broker, GROUP, "b", tags(TOPIC, "B", 2))
            assert await b.peers() == ["a", "b"]
            broker.settings.change({"subscriptionConflicts": "isolate"})
            assert (await a.peers(), await b.peers()) == (["a"], ["b"])
            broker.settings.change({"subscriptionConflicts": "reject"})
            assert (await a.beat()).code == ResponseCode.SUCCESS
            assert (await b.beat()).code == ResponseCode.SYSTEM_ERROR  # the later one
            assert await a.peers() == ["a"]
            broker.settings.change({"subscriptionConflicts": "rocketmq"})
            assert (await b.beat()).code == ResponseCode.SUCCESS
            assert await a.peers() == ["a", "b"]

    run(work())
