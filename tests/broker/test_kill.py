"""`tamis up` is killed under load and started again: what was acknowledged is there, consumers go
on, and nothing is skipped.

`TAMIS_KILLS` is how often in each flush mode, `TAMIS_CRASH_SEED` repeats the moments of a run.
"""

import asyncio
import os
import random
from collections import defaultdict
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from broker.asking import (
    PATIENCE,
    ask,
    close,
    create_topic,
    messages_of,
    pull_request,
    route,
    until,
    view,
)
from broker.child import Child
from broker.load import Ack, Group, Id, Journal, Member, Producer, finish, groups_on

from tamis.message import StoredMessage
from tamis.net import aio
from tamis.store.tables import load_consumer_offsets

KILLS = int(os.environ.get("TAMIS_KILLS", 3))
SEED = int(os.environ.get("TAMIS_CRASH_SEED", random.randrange(2**32)))
TOPIC, QUEUES = "Load", 4
KINDS = ("plain", "plain", "binary", "batch", "delayed", "transaction", "fresh")
OWN_QUEUE = ("plain", "binary", "batch")  # what is answered is the message's own place

# Quick to look through, and several are filled.
SMALL_FILES = [
    option
    for name, value in {
        "log_file_size": 2**19,
        "queue_file_size": 4000,
        "index_slots": 100,
        "index_entries": 400,
    }.items()
    for option in ("--set", f"{name}={value}")
]


class Load:
    """Producers of all kinds and a consumer of each filter, and what they were told."""

    def __init__(self) -> None:
        self.groups = groups_on(TOPIC, QUEUES)
        self.journal = Journal(self.groups)
        self.acks: list[Ack] = []
        self.at: dict[tuple[int, int], tuple[Id, str]] = {}  # queue and offset to what was there
        self.moved: list[str] = []
        self.producers = [
            Producer(
                self.journal,
                n,
                kind,
                TOPIC,
                QUEUES,
                on_ack=self.acks.append,
                rate=200 if kind == "fresh" else 0,
            )
            for n, kind in enumerate(KINDS)
        ]
        self.members = [
            Member(self.journal, group, f"c-{group.name}", on_message=self._got)
            for group in self.groups
        ]

    def _got(self, group: Group, one: Id, message: StoredMessage) -> None:
        place, what = (message.queue_id, message.queue_offset), (one, message.message_id)
        if self.at.setdefault(place, what) != what:
            self.moved.append(f"{place} was {self.at[place]} and is {what}")

    async def until(self, condition: Callable[[], bool]) -> None:
        await until(
            lambda: condition() or bool(self.faults),
            lambda: (self.journal.state(), [one.began for one in self.members]),
        )
        assert not self.faults, self.faults[:5]

    @property
    def faults(self) -> list[str]:
        parts = [*self.producers, *self.members]
        return [fault for part in parts for fault in part.faults] + self.journal.strange


def run(work: Coroutine[Any, Any, None]) -> None:
    async def patiently() -> None:
        async with asyncio.timeout((10 + KILLS) * PATIENCE):
            await work

    asyncio.run(patiently())


@pytest.mark.parametrize("flush", ["sync", "async"])
def test_what_was_acknowledged_survives_kills_and_nothing_is_skipped(
    tmp_path: Path, flush: str
) -> None:
    child = Child(tmp_path, "--flush", flush, *SMALL_FILES)
    try:
        # once is enough: it takes five seconds
        run(_kill_and_go_on(child, random.Random(SEED), until_saved=flush == "async"))
    except BaseException as error:
        error.add_note(f"TAMIS_CRASH_SEED={SEED}\n{child.log[-2000:]}")
        raise
    finally:
        child.end()


async def _kill_and_go_on(child: Child, rng: random.Random, until_saved: bool) -> None:
    load = Load()
    await child.start()
    peer = await aio.connect(child.broker)
    await create_topic(peer, TOPIC, QUEUES)
    await close(peer)
    tasks = [asyncio.create_task(one.run(child.broker)) for one in (*load.producers, *load.members)]
    sending = tasks[: len(load.producers)]
    try:
        for number in range(KILLS):
            acked = load.journal.acked
            await load.until(lambda acked=acked: load.journal.acked > acked)
            await asyncio.sleep(rng.uniform(0.0, 0.7))
            if until_saved and number == KILLS - 1:
                await load.until(lambda: bool(_saved(child)))
            saved = _saved(child)
            child.kill()
            await child.start()
            await load.until(lambda: all(len(one.began) == QUEUES + 1 for one in load.members))
            for (topic, group), queue_id in saved:
                [member] = [one for one in load.members if one.group.name == group]
                assert member.began[topic, queue_id] >= saved[(topic, group), queue_id]
        for producer in load.producers:
            producer.is_stopped = True
        await load.until(lambda: load.journal.is_even and all(task.done() for task in sending))
        for member in load.members:
            member.leave()
        await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)
    finally:
        await finish(*tasks)
    _compare(load)
    await _look_up(child, load)
    assert await child.stop() == 0


def _saved(child: Child) -> dict[tuple[tuple[str, str], int], int]:
    """Offsets of our groups, by topic, group and queue: they are saved every five seconds."""
    found = load_consumer_offsets(child.directory / "data" / "config")
    names = {group.name for group in groups_on(TOPIC, QUEUES)}
    return {
        (k, n): offset
        for k, queues in found.items()
        if k[1] in names
        for n, offset in queues.items()
    }


def _compare(load: Load) -> None:
    assert [load.journal.missing(group) for group in load.groups] == [[]] * len(load.groups)
    assert not load.moved, load.moved[:5]
    placed: dict[tuple[int, int], list[int]] = defaultdict(list)
    for ack in sorted(load.acks):
        if KINDS[ack.one.producer] in OWN_QUEUE:
            found = load.at.get((ack.queue_id, ack.offset))
            assert found == (ack.one, ack.message_id), f"{ack}: there is {found}"
            placed[ack.one.producer, ack.queue_id].append(ack.offset)
    for queue, offsets in placed.items():
        assert offsets == sorted(set(offsets)), f"{queue}: not in the order they were sent in"


async def _look_up(child: Child, load: Load) -> None:
    """The rest, one by one: what is answered for them is another place than consumers see."""
    peer, nameserver = await aio.connect(child.broker), await aio.connect(child.nameserver)

    async def look_up(ack: Ack) -> None:
        message = await view(peer, ack.message_id)
        assert (Id.of(message.body), message.queue_offset) == (ack.one, ack.offset)
        if KINDS[ack.one.producer] == "fresh":
            request = pull_request("late", message.topic, ack.queue_id, ack.offset)
            assert next(messages_of((await ask(peer, request)).body)) == message
            [queues] = (await route(nameserver, message.topic)).queues
            assert queues.write_queues == QUEUES, f"{message.topic} was made with {QUEUES} queues"

    rest = [ack for ack in load.acks if KINDS[ack.one.producer] not in OWN_QUEUE]
    assert {KINDS[ack.one.producer] for ack in rest} == {"delayed", "transaction", "fresh"}
    try:
        await asyncio.gather(*map(look_up, rest))
    finally:
        await close(peer)
        await close(nameserver)
