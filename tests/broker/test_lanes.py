"""`isolate`: members that disagree are each served by their own subscription; nothing is lost."""

from collections import Counter
from itertools import chain
from pathlib import Path

from broker.group_members import GroupMember, sql, tags
from broker.running import Client, run, running

from tamis.broker.broker import Broker

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
