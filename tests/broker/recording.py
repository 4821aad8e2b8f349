"""A recorder of history by itself: members and readers made up at random, and what it holds
compared with what its file gives back."""

import random
from pathlib import Path
from typing import Any, cast

from tamis.broker.config import BrokerConfig, Settings
from tamis.broker.history import Recorder, load_history
from tamis.broker.members import Consumers, Member
from tamis.fate.facts import RESET, FilterChange
from tamis.fate.filters import Filter
from tamis.fate.history import GroupHistory, History
from tamis.net.aio import Peer
from tamis.wire.bodies import ConsumerData, Subscription
from tamis.wire.command import Language

TOPICS = ("T", "U")
GROUPS = ("g", "h", "i")


class Connection:
    """As much of a peer as members need."""

    kept = 0

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return self.name


class Clock:
    def __init__(self) -> None:
        self.seconds = 1_763_430_000.0

    def __call__(self) -> float:
        return self.seconds


class ByTags:
    """A pull's filter."""

    def __init__(self, tag: str) -> None:
        self.tag = tag

    def filter(self) -> Filter:
        return Filter("TAG", self.tag)

    def unless(self) -> tuple[Filter, ...]:
        return ()

    def change(self) -> FilterChange | None:
        return None


class Recording:
    """A recorder, and three connections whose doings it is told of."""

    def __init__(self, folder: Path, seed: int = 1, clock: Clock | None = None, **settings: Any):
        self.clock = clock or Clock()
        self.random = random.Random(seed)
        self.consumers = Consumers()
        self.recorder = Recorder(
            folder,
            Settings(BrokerConfig(**settings)),
            self.consumers,
            lambda topic, queue_id: 0,
            self.clock,
        )
        self.consumers.on_member = self.recorder.member_changed
        self.peers = [cast("Peer", Connection(f"c{number}")) for number in range(3)]
        self.positions: dict[tuple[str, str, int], int] = {}

    def join(self, group: str, peer: Peer, tag: str, topic: str = "T") -> None:
        one = Subscription(topic=topic, expression=tag, tags=[tag])
        member = Member(peer, str(peer), Language.JAVA, 401, 0.0)
        self.consumers.heartbeat(ConsumerData(group=group, subscriptions=[one]), member)

    def read(self, group: str, topic: str, queue_id: int, peer: Peer, start: int, end: int,
             tag: str = "A") -> None:  # fmt: skip
        self.recorder.read(group, topic, queue_id, peer, tag, ByTags(tag), start, end)

    def step(self) -> None:
        """Something happens."""
        chance, recorder = self.random, self.recorder
        self.clock.seconds += chance.random()
        group, topic = chance.choice(GROUPS), chance.choice(TOPICS)
        queue_id, peer = chance.randrange(2), chance.choice(self.peers)
        queue = (group, topic, queue_id)
        at = self.positions.get(queue, 0)
        what = chance.random()
        if what < 0.55:
            start = at if chance.random() < 0.8 else chance.randrange(at + 1)
            self.positions[queue] = start + chance.randrange(1, 9)
            self.read(*queue, peer, start, self.positions[queue], chance.choice("AB"))
        elif what < 0.8:
            recorder.committed(*queue, None, chance.randrange(at + 2), peer)
        elif what < 0.93:
            if chance.random() < 0.5:
                self.join(group, peer, chance.choice("ABC"), topic)
            else:
                self.consumers.leave(peer, group)
        elif what < 0.98:
            recorder.moved(*queue, at, 0, "a tool", chance.choice((RESET, "an offset was set")))
        else:
            recorder.topic_deleted(topic)

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def save(self) -> None:
        """As the broker's saver does. Raises OSError."""
        self.recorder.note_progress()
        self.recorder.snapshot()()

    def loaded(self) -> History:
        found = load_history(self.recorder.path)
        assert found is not None
        return found

    def check_saved(self) -> None:
        """What is known is what is read from the file."""
        assert_same(self.held(), self.loaded().groups)

    def held(self) -> dict[tuple[str, str], GroupHistory]:
        return {(one.group, one.topic): one for one in self.recorder.known()}


def assert_same(
    held: dict[tuple[str, str], GroupHistory], read: dict[tuple[str, str], GroupHistory]
) -> None:
    """Of views, those that spans name; a file may have more."""
    assert held.keys() == read.keys()
    for key, one in held.items():
        other = read[key]
        assert spans(other) == spans(one), key
        assert list(other.changes) == list(one.changes), key
        assert list(other.moves) == list(one.moves), key
        assert other.since == one.since, key
        used = {span.view for queue in one.queues.values() for span in queue}
        for number in used & one.views.keys():
            assert other.views[number] == one.views[number], (key, number)


def spans(history: GroupHistory) -> dict[int, list[tuple[Any, ...]]]:
    return {
        queue_id: [
            (s.number, s.start, s.end, s.acked, s.member, s.filter, s.own, s.view, s.lane)
            for s in queue
        ]
        for queue_id, queue in history.queues.items()
        if queue
    }
