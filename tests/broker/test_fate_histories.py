"""Random histories of one group: what the broker gives out is what the rules say, and the fate it
tells of every message is the plain simulator's.

Members come, go, crash and subscribe differently; queues change hands, also while the last owner
still reads; offsets are committed, and moved by tools and resets; the broker is stopped and started
again, or killed. A kill leaves a copy of the broker's directory as it is at that moment.

`TAMIS_FATE_EXAMPLES` is how many histories are tried; with `TAMIS_THOROUGH=1` it is 1000.
"""

import asyncio
import os
import shutil
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
from broker.running import SMALL, Client, messages, until
from broker.simulator import FILTERS, Message, Simulator, Wish
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.broker.broker import Broker
from tamis.broker.config import BrokerConfig
from tamis.filter.tags import parse_tags
from tamis.wire.bodies import Subscription
from tamis.wire.codes import PullFlag, ResponseCode
from tamis.wire.headers import (
    CreateTopic,
    ExplainMessage,
    PullMessage,
    QueryConsumerOffset,
    ResetOffset,
    UnregisterClient,
    UpdateConsumerOffset,
)

IS_THOROUGH = os.environ.get("TAMIS_THOROUGH") == "1"
EXAMPLES = int(os.environ.get("TAMIS_FATE_EXAMPLES", 1000 if IS_THOROUGH else 30))
TOPIC, GROUP, QUEUES = "T", "G", 2
NAMES = ("c1", "c2", "c3")
# An address of this process alone: a broker takes a second port, two below its own, and another
# test's broker may have it.
ADDRESS = f"127.9.{os.getpid() >> 8 & 255}.{os.getpid() & 255 or 1}"
FILES: dict[str, Any] = {
    "bind": ADDRESS,
    "queue_file_size": 2000,
    "log_file_size": 2**17,
    "flush_interval": 3600.0,
}
REFUSED = {
    ResponseCode.SUBSCRIPTION_NOT_EXIST,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED,
    ResponseCode.FILTER_DATA_NOT_EXIST,
}
CREATED = CreateTopic(
    topic=TOPIC,
    default_topic="TBW102",
    read_queue_nums=QUEUES,
    write_queue_nums=QUEUES,
    perm=6,
    topic_filter_type="SINGLE_TAG",
)


# The script: each step does what it says if that is possible then, or nothing.


@dataclass(frozen=True)
class Send:
    queue: int
    tags: tuple[str | None, ...]
    price: str | None


@dataclass(frozen=True)
class Beat:
    """A heartbeat: it joins, or subscribes anew."""

    name: str
    filter: int
    version: int


@dataclass(frozen=True)
class Leave:
    name: str
    crashes: bool


@dataclass(frozen=True)
class Balance:
    """Each queue goes to one member; who loses one commits first, as clients do, or does not."""

    rotation: int
    commits: bool


@dataclass(frozen=True)
class Take:
    """A queue is read by one more, as it is while members do not agree on who is there."""

    name: str
    queue: int
    at_end: bool


@dataclass(frozen=True)
class Pull:
    """`which` of those that have the queue."""

    queue: int
    which: int
    most: int
    brings_own: bool
    commits: bool


@dataclass(frozen=True)
class Commit:
    """What it has read, or `behind` messages less."""

    queue: int
    which: int
    behind: int


@dataclass(frozen=True)
class CommitAt:
    """Wherever it has read to, if it has read at all: a client that seeks."""

    queue: int
    which: int
    part: float


@dataclass(frozen=True)
class Work:
    """All members read to the ends of their queues, and commit that."""


@dataclass(frozen=True)
class Reset:
    """By a tool that sets the offset, or by asking the broker to reset the group."""

    queue: int
    part: float
    asks_broker: bool


@dataclass(frozen=True)
class Save:
    pass


@dataclass(frozen=True)
class Restart:
    is_killed: bool


@dataclass(frozen=True)
class Check:
    pass


Step = (
    Send
    | Beat
    | Leave
    | Balance
    | Take
    | Pull
    | Commit
    | CommitAt
    | Work
    | Reset
    | Save
    | Restart
    | Check
)

names, queues, which = st.sampled_from(NAMES), st.integers(0, QUEUES - 1), st.integers(0, 1)
tags = st.sampled_from(["A", "B", "Aa", "BB", None])
parts = st.sampled_from([0.0, 0.3, 0.7, 1.0])
beats = st.builds(Beat, names, st.integers(0, len(FILTERS) - 1), st.integers(1, 5))
sends = st.builds(
    Send,
    queues,
    st.lists(tags, min_size=2, max_size=5).map(tuple),
    st.sampled_from([None, "3", "9", "much"]),
)
pulls = st.builds(
    Pull,
    queues,
    which,
    st.sampled_from([1, 2, 32]),
    st.sampled_from([False, False, False, True]),
    st.booleans(),
)
balances = st.builds(Balance, st.integers(0, 2), st.booleans())
commits = st.builds(Commit, queues, which, st.sampled_from([0, 0, 1, 2]))
rare_steps = st.one_of(
    st.builds(Leave, names, st.booleans()),
    st.builds(Take, names, queues, st.booleans()),
    st.builds(CommitAt, queues, which, parts),
    st.builds(Reset, queues, parts, st.booleans()),
    st.builds(Save),
    st.builds(Restart, st.booleans()),
    st.builds(Work),
    st.builds(Check),
)
rounds = st.tuples(  # what a group does all day, and something that disturbs it
    st.lists(sends, max_size=2),
    st.lists(st.one_of(beats, balances), max_size=2),
    st.lists(st.one_of(pulls, commits), min_size=2, max_size=6),
    st.lists(rare_steps, max_size=2),
).map(lambda some: [step for part in some for step in part])
scripts = st.tuples(
    st.lists(sends, min_size=2, max_size=4),
    st.lists(beats, min_size=1, max_size=3),
    balances,
    st.lists(rounds, min_size=4, max_size=10),
).map(lambda all: [*all[0], *all[1], all[2], *(step for some in all[3] for step in some)])


def subscription(wish: Wish, version: int) -> Subscription:
    if wish.is_sql:
        return Subscription(
            topic=TOPIC, expression=wish.text, expression_type="SQL92", version=version
        )
    parsed = parse_tags(wish.text)
    return Subscription(
        topic=TOPIC,
        expression=wish.text,
        expression_type="TAG",
        version=version,
        tags=sorted(parsed.tags),
        codes=sorted(parsed.codes),
    )


def copy_of_running(store: Path, copy: Path) -> None:
    """What a kill leaves. A table that is saved meanwhile takes files away: once more then."""
    while True:
        try:
            shutil.copytree(store, copy, ignore=shutil.ignore_patterns("*.tmp", "*.new"))
        except shutil.Error:
            shutil.rmtree(copy)
        else:
            return


@dataclass
class Driver:
    """Does the script with a broker and with the simulator, and compares."""

    folder: Path
    counts: Counter[str]
    model: Simulator = field(default_factory=lambda: Simulator(QUEUES))
    clients: dict[str, Client] = field(default_factory=dict)
    subscriptions: dict[str, tuple[Wish, int]] = field(default_factory=dict)  # in their order
    starts: int = 0

    async def run(self, script: list[Step]) -> None:
        await self.start(self.folder / "0")
        try:
            await self.tool.ask(CREATED.CODE, CREATED.to_fields())
            for step in script:
                await self.do(step)
            await self.check()
        finally:
            await self.stop()

    async def start(self, store: Path) -> None:
        self.starts += 1
        self.store = store
        self.broker = Broker(BrokerConfig(port=0, **(SMALL | FILES)), store)
        await self.broker.start()
        self.tool = await Client.connect(self.broker.address)

    async def stop(self) -> None:
        for client in (self.tool, *self.clients.values()):
            client.peer.close()
        self.clients.clear()
        await self.broker.close()

    async def do(self, step: Step) -> None:
        match step:
            case Send():
                await self.send(step)
            case Beat(name, number, version):
                await self.heartbeat(name, FILTERS[number], version)
            case Leave(name, crashes) if name in self.clients:
                await self.leave(name, crashes)
            case Balance():
                await self.balance(step)
            case Take(name, queue, at_end) if name in self.clients:
                await self.take(name, queue, at_end)
            case Pull(queue, which) if name := self.holder(queue, which):
                await self.pull(name, step)
            case Commit(queue, which, behind) if name := self.holder(queue, which):
                offset = self.model.positions[name, queue] - behind
                offset = max(offset, self.model.starts[name, queue])
                await self.commit(name, queue, offset)
            case CommitAt(queue, which, part) if name := self.holder(queue, which):
                if self.model.positions[name, queue] > self.model.starts[name, queue]:
                    await self.commit(name, queue, int(self.model.end(queue) * part))
            case Work():
                await self.work()
            case Reset():
                await self.reset(step)
            case Save():
                await self.save()
            case Restart(is_killed):
                await self.restart(is_killed)
            case Check():
                await self.check()

    async def send(self, step: Send) -> None:
        for tag in step.tags:
            properties = {} if step.price is None else {"price": step.price}
            answer = await self.tool.send(
                TOPIC, tags=tag or "", queue_id=step.queue, properties=properties
            )
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            offset = int((answer.fields or {})["queueOffset"])
            self.model.stored(Message(step.queue, offset, tag, step.price))

    async def heartbeat(self, name: str, wish: Wish, version: int) -> None:
        if name not in self.clients:
            self.clients[name] = await Client.connect(self.broker.address)
        answer = await self.clients[name].heartbeat(
            GROUP, subscription(wish, version), client_id=name
        )
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        self.subscriptions[name] = (wish, version)
        self.model.heartbeat(name, wish, version)

    async def leave(self, name: str, crashes: bool) -> None:
        client = self.clients.pop(name)
        del self.subscriptions[name]
        if not crashes:
            header = UnregisterClient(client_id=name, consumer_group=GROUP)
            await client.ask(header.CODE, header.to_fields())
        client.peer.close()
        await until(lambda: name not in self.connected())
        self.model.left(name)

    def connected(self) -> list[str]:
        group = self.broker.consumers.groups.get(GROUP)
        return [] if group is None else group.client_ids

    async def balance(self, step: Balance) -> None:
        members = sorted(self.clients)
        for queue in range(QUEUES):
            owner = members[(queue + step.rotation) % len(members)] if members else None
            for name in members:
                position = self.model.positions.get((name, queue))
                if name == owner or position is None:
                    continue
                if step.commits:
                    await self.commit(name, queue, position)
                self.model.drop(name, queue)
        for queue in range(QUEUES):
            owner = members[(queue + step.rotation) % len(members)] if members else None
            if owner is not None and (owner, queue) not in self.model.positions:
                await self.take(owner, queue, at_end=False)

    async def take(self, name: str, queue: int, at_end: bool) -> None:
        start = self.model.end(queue) if at_end else 0
        position = self.model.take(name, queue, start)
        committed = await self.committed(queue)
        assert position == (start if committed is None else committed)

    async def committed(self, queue: int) -> int | None:
        header = QueryConsumerOffset(
            consumer_group=GROUP, topic=TOPIC, queue_id=queue, set_zero_if_not_found=False
        )
        answer = await self.tool.ask(header.CODE, header.to_fields())
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return int((answer.fields or {})["offset"])

    def holder(self, queue: int, which: int) -> str | None:
        names = [name for name in self.clients if (name, queue) in self.model.positions]
        return names[which % len(names)] if names else None

    async def work(self) -> None:
        for name, queue in list(self.model.positions):
            before = -1
            while before < self.model.positions[name, queue]:
                before = self.model.positions[name, queue]
                await self.pull(name, Pull(queue, 0, 32, brings_own=False, commits=False))
            await self.commit(name, queue, before)

    async def pull(self, name: str, step: Pull) -> None:
        queue = step.queue
        position, wish = self.model.positions[name, queue], self.subscriptions[name][0]
        flags = PullFlag.SUBSCRIPTION if step.brings_own else PullFlag(0)
        flags |= PullFlag.COMMIT_OFFSET if step.commits else PullFlag(0)
        header = PullMessage(
            consumer_group=GROUP,
            topic=TOPIC,
            queue_id=queue,
            queue_offset=position,
            max_msg_nums=step.most,
            sys_flag=flags,
            commit_offset=position,
            suspend_timeout_millis=0,
            subscription=wish.text if step.brings_own else None,
            sub_version=0,
            expression_type="SQL92" if wish.is_sql else "TAG",
        )
        answer = await self.clients[name].ask(header.CODE, header.to_fields())
        by = self.model.filter_of(name, step.brings_own)
        if by is None:
            assert answer.code in REFUSED, answer
            return
        assert answer.code not in REFUSED, answer
        following = int((answer.fields or {})["nextBeginOffset"])
        assert following > position or position == self.model.end(queue), answer
        received = [message.queue_offset for message in messages(answer.body)]
        assert received == self.model.pulled(name, queue, by, following)
        self.counts["deliveries"] += len(received)
        if step.commits:
            self.model.commit(name, queue, position)

    async def commit(self, name: str, queue: int, offset: int) -> None:
        await self.set_offset(self.clients[name], queue, offset)
        self.model.commit(name, queue, offset)

    async def set_offset(self, client: Client, queue: int, offset: int) -> None:
        header = UpdateConsumerOffset(
            consumer_group=GROUP, topic=TOPIC, queue_id=queue, commit_offset=offset
        )
        answer = await client.ask(header.CODE, header.to_fields())
        assert answer.code == ResponseCode.SUCCESS, answer.remark

    async def reset(self, step: Reset) -> None:
        queue, offset = step.queue, int(self.model.end(step.queue) * step.part)
        if not step.asks_broker:
            await self.set_offset(self.tool, queue, offset)
            self.model.move(queue, offset)
            return
        header = ResetOffset(
            topic=TOPIC, group=GROUP, timestamp=-1, is_force=True, queue_id=queue, offset=offset
        )
        answer = await self.tool.ask(header.CODE, header.to_fields())
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        self.model.reset(queue)
        if not self.clients:
            self.model.move(queue, offset)
        for name in list(self.clients):
            if (name, queue) in self.model.positions:
                await self.set_offset(self.clients[name], queue, offset)
                self.model.reset_by_member(name, queue, offset)

    async def save(self) -> None:
        await self.broker.saver.durable(*self.broker.saver.failures())
        self.model.saved()

    async def restart(self, is_killed: bool) -> None:
        self.counts["kills" if is_killed else "restarts"] += 1
        if is_killed:
            # Who came, and who began to read what, is on the disk within a moment; how far they got
            # is not. A kill within that moment is not our subject.
            await self.broker.saver.durable("topics", "groups", "filters")
            await until(lambda: self.broker.saver._tables["history"].is_saved)
            copy = self.folder / str(self.starts)
            copy_of_running(self.store, copy)
            await self.stop()
            await self.start(copy)
            self.model.killed({queue: await self.committed(queue) for queue in range(QUEUES)})
        else:
            await self.stop()
            await self.start(self.store)
            self.model.restarted()
        for name, (wish, version) in self.subscriptions.items():
            await self.heartbeat(name, wish, version)

    async def check(self) -> None:
        """Compares the offsets, and the fates of all messages."""
        for queue in range(QUEUES):
            assert await self.committed(queue) == self.model.committed.get(queue)
        for (queue, offset), expected in self.model.fates().items():
            told = await self.explain(queue, offset)
            fate = told["fate"]
            self.counts[fate] += 1
            if fate == expected.fate:
                continue
            assert fate == "UNKNOWN", (queue, offset, expected, told)
            assert expected.may_be_unknown, (queue, offset, expected, told)
            self.counts["not known after a kill"] += 1

    async def explain(self, queue: int, offset: int) -> dict[str, Any]:
        """Returns what the broker says of the group; NOT_CONSUMED_YET is what it says by silence of
        a group that it has never heard of."""
        header = ExplainMessage(topic=TOPIC, queue_id=queue, offset=offset, group=GROUP)
        answer = await self.tool.ask(header.CODE, header.to_fields())
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        [told] = orjson.loads(answer.body)["groups"]
        assert told["group"] == GROUP
        assert told["reason"].endswith("."), told
        assert told["evidence"]["offset"] == offset
        return dict(told)


def test_fates_of_random_histories_are_the_simulators() -> None:
    counts = Counter[str]()

    @settings(max_examples=EXAMPLES)
    @given(scripts)
    def check(script: list[Step]) -> None:
        with TemporaryDirectory() as folder:
            asyncio.run(Driver(Path(folder), counts).run(script))

    check()
    fates = {fate: n for fate, n in counts.items() if fate.isupper()}
    # some 3 % as a rule, but with few examples one that kills often may make it 8 %
    assert counts["not known after a kill"] < sum(fates.values()) / 8, counts
