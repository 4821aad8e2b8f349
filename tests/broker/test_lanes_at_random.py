"""`isolate` whatever happens: members come, go, crash and commit late, the broker restarts.

What counts as had is what a member was given and then acknowledged; what a member was given when it
crashed does not count. Whatever one of the subscriptions wants must be had in the end.
"""

import asyncio
import random
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from broker.group_members import Clock, GroupMember, sql, tags, tend
from broker.running import Client, run, running, until

from tamis.broker.broker import Broker
from tamis.wire.bodies import Subscription

TOPIC, GROUP, QUEUES = "t", "g", 3
SUBSCRIPTIONS = [
    tags(TOPIC, "A||C"),
    tags(TOPIC, "B||C"),
    sql(TOPIC, "kind = 'D' OR kind = 'A'"),
    tags(TOPIC, "E"),
]
WANTS = ["AC", "BC", "DA", "E"]


@dataclass
class Reader:
    """A member as a client is: it has the queues that are its own, and what it was given there."""

    member: GroupMember
    number: int  # of its subscription
    given: dict[int, list[tuple[int, str]]] = field(default_factory=dict)

    async def read(self, queue_id: int) -> None:
        owned = await self.member.queues(QUEUES)
        for gone in [one for one in self.given if one not in owned]:
            del self.given[gone]
            self.member.at.pop((TOPIC, gone), None)
        if queue_id not in owned:
            return
        place = (TOPIC, queue_id)
        before = self.member.at.get(place)
        how: dict[str, Any] = {"kind": "SQL92"} if self.number == 2 else {}
        found = await self.member.step(TOPIC, queue_id, most=3, **how)
        given = self.given.setdefault(queue_id, [])
        if before is not None and found and found[0].queue_offset < before:
            given.clear()  # it was told to go back
        for message in found:
            body = message.body.decode()
            assert body[0] in WANTS[self.number], f"{body} to {WANTS[self.number]}"
            given.append((message.queue_offset, body))

    async def acknowledge(self, queue_id: int, had: set[str]) -> None:
        if queue_id in self.given:
            offset = self.member.at[TOPIC, queue_id]
            done = self.given[queue_id]
            self.given[queue_id] = []
            await self.member.commit(TOPIC, queue_id, offset)
            had.update(body for _, body in done)


@dataclass
class World:
    path: Path
    choose: random.Random
    clock: Clock = field(default_factory=Clock)
    readers: list[Reader] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)
    had: set[str] = field(default_factory=set)

    async def start(self) -> None:
        self.stack = AsyncExitStack()
        settings = {"subscription_conflicts": "isolate", "isolate_hold_seconds": 10_000_000.0}
        made = await self.stack.enter_async_context(
            running(self.path, clock=self.clock, **settings)
        )
        self.broker: Broker = made[0]
        self.client: Client = made[1]

    async def send(self) -> None:
        kind, queue_id = self.choose.choice("ABCDEF"), self.choose.randrange(QUEUES)
        body = f"{kind}{len(self.sent)}"
        await self.client.send(
            TOPIC, body.encode(), tags=kind, queue_id=queue_id, properties={"kind": kind}
        )
        self.sent.append(body)

    async def join(self, number: int | None = None) -> None:
        number = self.choose.randrange(len(SUBSCRIPTIONS)) if number is None else number
        said: Subscription = SUBSCRIPTIONS[number]
        name = f"m{self.choose.randrange(10**9)}"
        member = await GroupMember.join(self.broker, GROUP, name, said)
        self.readers.append(Reader(member, number))

    async def leave(self, *, crashes: bool) -> None:
        if len(self.readers) < 2:
            return
        reader = self.readers.pop(self.choose.randrange(len(self.readers)))
        if not crashes:
            for queue_id in list(reader.given):
                await reader.acknowledge(queue_id, self.had)
            await reader.member.leave()
            return
        reader.member.client.peer.close()
        group = self.broker.consumers.groups[GROUP]
        await until(lambda: group.find(reader.member.name) is None)

    async def change(self) -> None:
        """A member subscribes to something else, and goes on in its queues from where it was."""
        reader = self.choose.choice(self.readers)
        reader.number += self.choose.randrange(1, len(SUBSCRIPTIONS))
        reader.number %= len(SUBSCRIPTIONS)
        for given in reader.given.values():
            given.clear()
        await reader.member.beat(SUBSCRIPTIONS[reader.number])

    async def restart(self) -> None:
        """Clients outlive it, and connect anew."""
        await self.stack.aclose()
        await self.start()
        for reader in self.readers:
            reader.member.client = await Client.connect(self.broker.address)
            await reader.member.beat()

    async def read(self) -> None:
        if self.readers:
            reader, queue_id = self.choose.choice(self.readers), self.choose.randrange(QUEUES)
            await reader.read(queue_id)
            if self.choose.random() < 0.7:
                await reader.acknowledge(queue_id, self.had)

    async def pass_time(self) -> None:
        self.clock.ahead += self.choose.choice([1, 20, 70])
        for reader in self.readers:
            await reader.member.beat()
        await tend(self.broker)

    async def finish(self) -> None:
        for number in range(len(SUBSCRIPTIONS)):
            await self.join(number)
        for _ in range(3):
            for reader in self.readers:
                for queue_id in range(QUEUES):
                    for _ in range(len(self.sent)):
                        before = reader.member.at.get((TOPIC, queue_id))
                        await reader.read(queue_id)
                        if reader.member.at.get((TOPIC, queue_id)) == before:
                            break
                    await reader.acknowledge(queue_id, self.had)
            await self.pass_time()
        await self.stack.aclose()


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_nothing_that_a_member_wants_is_lost(tmp_path: Path, seed: int) -> None:
    async def work() -> None:
        world = World(tmp_path, random.Random(seed))
        await world.start()
        for _ in range(6):
            await world.send()
        for number in range(len(SUBSCRIPTIONS)):
            await world.join(number)
        for reader in world.readers:
            for queue_id in range(QUEUES):
                await reader.read(queue_id)
        for _ in range(200):
            kind = world.choose.random()
            if kind < 0.35:
                await world.send()
            elif kind < 0.8:
                await world.read()
            elif kind < 0.86:
                await world.join()
            elif kind < 0.92:
                await world.leave(crashes=world.choose.random() < 0.5)
            elif kind < 0.95:
                await world.change()
            elif kind < 0.99:
                await world.pass_time()
            else:
                await world.restart()
        await world.finish()
        wanted = {body for body in world.sent if body[0] != "F"}
        assert world.had >= wanted, sorted(wanted - world.had)

    asyncio.run(asyncio.wait_for(work(), 120))


def test_the_simulation_sees_a_loss(tmp_path: Path) -> None:
    """Without the policy it does lose messages: else it would prove nothing."""

    async def work() -> None:
        world = World(tmp_path, random.Random(1))
        await world.start()
        world.broker.settings.change({"subscriptionConflicts": "rocketmq"})
        for number in (0, 3):
            await world.join(number)
        for _ in range(30):
            await world.send()
        for reader in world.readers:
            for queue_id in range(QUEUES):
                for _ in range(20):
                    await reader.member.step(TOPIC, queue_id)
                    await reader.member.commit(TOPIC, queue_id, reader.member.at[TOPIC, queue_id])
        ends = {i: q.max_offset for i in range(QUEUES)
                if (q := world.broker.store.find_queue(TOPIC, i))}  # fmt: skip
        assert world.broker.offsets.of(GROUP, TOPIC) == ends
        await world.stack.aclose()

    run(work())
