"""Topics as tools make, change, delete and look at them."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tamis.broker.config import BrokerConfig, Settings
from tamis.broker.handlers import topics as handlers
from tamis.broker.history import Recorder
from tamis.broker.members import Consumers, Member
from tamis.broker.offsets import Offsets
from tamis.broker.topics import Topics
from tamis.errors import ResponseError
from tamis.net.aio import Peer
from tamis.net.server import Request
from tamis.store.config import StoreConfig
from tamis.store.store import Store
from tamis.wire import beans
from tamis.wire.bodies import (
    ConsumerData,
    GroupList,
    MessageQueue,
    Perm,
    QueueStats,
    Subscription,
    TimeSpans,
    TopicConfig,
    TopicFilterType,
    TopicList,
    TopicStats,
    TopicTable,
)
from tamis.wire.codes import Language
from tamis.wire.command import Command
from tamis.wire.headers import CreateTopic, OfTopic, OfTopicAndGroup
from tamis.wire.record import Draft

ASKED = Request(Peer(lambda peer, requests: None), Command(code=0))
SMALL = StoreConfig(flush="async", log_file_size=65_536, index_slots=64, index_entries=256)


class Clock:
    def __init__(self) -> None:
        self.seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[Store]:
    with Store(tmp_path / "store", SMALL, now=clock) as opened:
        yield opened


@pytest.fixture
def topics(tmp_path: Path, clock: Clock) -> Topics:
    return Topics(tmp_path, BrokerConfig(), clock, {})


@pytest.fixture
def offsets(tmp_path: Path, store: Store) -> Offsets:
    return Offsets(tmp_path, store)


@pytest.fixture
def recorder(tmp_path: Path, clock: Clock) -> Recorder:
    return Recorder(tmp_path, Settings(BrokerConfig()), Consumers(), lambda *_: 0, clock)


def create(topics: Topics, name: str, **more: object) -> None:
    values: dict[str, object] = {"read_queue_nums": 2, "write_queue_nums": 2, "perm": 6} | more
    handlers.create_topic(topics, CreateTopic(topic=name, **values), ASKED)  # type: ignore[arg-type]


def test_a_topic_is_made_as_asked_and_then_changed(topics: Topics) -> None:
    told: list[TopicConfig | None] = []
    topics.on_change = told.append
    create(topics, "T", read_queue_nums=3, perm=4, topic_filter_type="MULTI_TAG", order=True)
    assert topics["T"] == TopicConfig(
        name="T",
        read_queues=3,
        write_queues=2,
        perm=Perm.READ,
        filter_type=TopicFilterType.MULTI_TAG,
    )
    create(topics, "T", perm=6)
    assert topics["T"].perm == Perm.READ | Perm.WRITE
    assert [one.name for one in told if one] == ["T", "T"]


@pytest.mark.parametrize(
    ("name", "more", "why"),
    [
        ("TBW102", {}, "The topic[TBW102] is conflict with system topic."),
        ("DefaultCluster", {}, "The topic[DefaultCluster] is conflict with system topic."),
        ("a b", {}, "illegal characters"),
        (" ", {}, "The specified topic is blank."),
        ("T" * 128, {}, "longer than topic max length"),
        ("T", {"read_queue_nums": -1}, "fewer than 0 queues"),
        ("T", {"topic_filter_type": "X"}, "SINGLE_TAG"),
    ],
)
def test_a_topic_that_can_not_be_is_refused_with_1(
    topics: Topics, name: str, more: dict[str, object], why: str
) -> None:
    before = dict(topics)
    with pytest.raises(ResponseError) as refused:
        create(topics, name, **more)
    assert refused.value.code == 1
    assert why in refused.value.remark
    assert dict(topics) == before


def test_a_deleted_topic_is_gone_with_its_offsets(
    topics: Topics, offsets: Offsets, recorder: Recorder
) -> None:
    create(topics, "T")
    offsets.commit("g", "T", 0, 5)
    offsets.commit("g", "U", 0, 5)
    handlers.delete_topic(topics, offsets, recorder, OfTopic(topic="T"), ASKED)
    assert "T" not in topics
    assert offsets.topics("g") == ["U"]
    handlers.delete_topic(
        topics, offsets, recorder, OfTopic(topic="T"), ASKED
    )  # once more is no error


def test_a_system_topic_is_not_deleted(
    topics: Topics, offsets: Offsets, recorder: Recorder
) -> None:
    with pytest.raises(ResponseError, match="conflict with system topic"):
        handlers.delete_topic(
            topics, offsets, recorder, OfTopic(topic="SCHEDULE_TOPIC_XXXX"), ASKED
        )
    assert "SCHEDULE_TOPIC_XXXX" in topics


def test_all_topics_are_told_with_their_version(topics: Topics) -> None:
    create(topics, "T")
    table = beans.decode(TopicTable, handlers.all_topics(topics, None, ASKED).body)
    assert table.topics == dict(topics)
    assert table.version == topics.version


def test_one_topic_is_told_and_an_unknown_one_is_17(topics: Topics) -> None:
    create(topics, "T")
    body = handlers.one_topic(topics, OfTopic(topic="T"), ASKED).body
    assert beans.decode(TopicConfig, body) == topics["T"]
    with pytest.raises(ResponseError) as refused:
        handlers.one_topic(topics, OfTopic(topic="None"), ASKED)
    assert (refused.value.code, refused.value.remark) == (17, "topic[None] not exist")


def test_system_topics_are_told_apart(topics: Topics) -> None:
    create(topics, "T")
    found = beans.decode(TopicList, handlers.system_topics(topics, None, ASKED).body).topics
    assert {"TBW102", "DefaultCluster", "broker-a", "SELF_TEST_TOPIC"} <= set(found)
    assert "T" not in found


def fill(store: Store, clock: Clock, times: list[int], queues: int = 1) -> None:
    for millis in times:
        clock.seconds = (millis + 0.5) / 1000
        store.append([Draft(topic="T", queue_id=queue_id) for queue_id in range(queues)])
    store.dispatch()


def test_topic_stats_tell_each_queue_that_can_be_written(
    topics: Topics, store: Store, clock: Clock
) -> None:
    create(topics, "T", read_queue_nums=1)
    fill(store, clock, [1000, 2000, 3000])
    body = handlers.topic_stats("b", topics, store, OfTopic(topic="T"), ASKED).body
    assert beans.decode(TopicStats, body).queues == {
        MessageQueue("T", "b", 0): QueueStats(
            min_offset=0, max_offset=3, last_update_timestamp=3000
        ),
        MessageQueue("T", "b", 1): QueueStats(min_offset=0, max_offset=0, last_update_timestamp=0),
    }
    with pytest.raises(ResponseError) as refused:
        handlers.topic_stats("b", topics, store, OfTopic(topic="None"), ASKED)
    assert refused.value.code == 17


def test_who_consumes_are_those_online_and_those_with_offsets(offsets: Offsets) -> None:
    consumers = Consumers()
    member = Member(ASKED.peer, "c", Language.JAVA, 401, 0.0)
    one = Subscription(topic="T", expression="*")
    consumers.heartbeat(ConsumerData(group="online", subscriptions=[one]), member)
    offsets.commit("once", "T", 0, 1)
    offsets.commit("online", "T", 0, 1)
    offsets.commit("other", "U", 0, 1)
    body = handlers.consumed_by(consumers, offsets, OfTopic(topic="T"), ASKED).body
    assert beans.decode(GroupList, body).groups == ["once", "online"]


def test_time_spans_tell_how_far_behind_a_group_is(
    topics: Topics, store: Store, offsets: Offsets, clock: Clock
) -> None:
    create(topics, "T", write_queue_nums=4)
    fill(store, clock, [1000, 2000, 3000], queues=3)
    offsets.commit("g", "T", 0, 2)
    offsets.commit("g", "T", 1, 3)
    clock.seconds = 10.0
    header = OfTopicAndGroup(topic="T", group="g")
    body = handlers.consume_time_spans("b", topics, offsets, store, clock, header, ASKED).body
    found = [
        (s.min_timestamp, s.max_timestamp, s.consume_timestamp, s.delay_time)
        for s in beans.decode(TimeSpans, body).spans
    ]
    assert found == [
        (1000, 3000, 2000, 7000),
        (1000, 3000, 3000, 0),  # all of it is consumed
        (1000, 3000, 1000, 9000),  # nothing is: it stands at the first message
        (-1, -1, -1, 0),  # there is no message
    ]


def test_a_clean_up_is_done_before_it_is_answered() -> None:
    done = []

    async def clean() -> None:
        done.append(True)

    assert asyncio.run(handlers.clean_up(clean, None, ASKED)).code == 0
    assert done
