"""Messages by key and id, offsets by time: against a plain list, and against what Apache said."""

import base64
import json
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.broker.filters import Filters
from tamis.broker.handlers import queries, topics
from tamis.broker.members import Consumers, Member
from tamis.errors import ResponseError
from tamis.filter.bloom import BloomFilter
from tamis.message import Host
from tamis.net.aio import Peer
from tamis.net.server import Answer, Request
from tamis.store.config import StoreConfig
from tamis.store.store import Store
from tamis.wire import beans, command, record
from tamis.wire.bodies import (
    ConsumerData,
    QueueUnits,
    Subscription,
    TopicConfig,
    TopicStats,
)
from tamis.wire.codes import Language, RequestCode
from tamis.wire.command import Command
from tamis.wire.frame import FrameReader
from tamis.wire.headers import (
    Header,
    OffsetResponse,
    OfQueue,
    OfTopic,
    QueryConsumeQueue,
    QueryMessage,
    QueryMessageResponse,
    SearchOffset,
    TimestampResponse,
    ViewMessage,
)
from tamis.wire.record import Draft

GOLDEN = Path(__file__).parents[1] / "golden"
SMALL = StoreConfig(
    flush="async",
    log_file_size=4096,
    queue_file_size=20 * 8,
    extension_file_size=8192,
    index_slots=64,
    index_entries=256,
)
ASKED = Request(Peer(lambda peer, requests: None), Command(code=0))
IPV6 = Host(bytes(range(16)), 9)


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


def fill(store: Store, clock: Clock, times: list[int], topic: str = "T", **more: object) -> None:
    """A message at each of the times, in milliseconds."""
    for number, millis in enumerate(times):
        clock.seconds = (millis + 0.5) / 1000
        keys = f"KEYS\x01key{number} all".encode()
        draft = Draft(topic=topic, body=b"%d" % number, properties=keys, **more)  # type: ignore[arg-type]
        store.append([draft])
    store.dispatch()


def searched(store: Store, timestamp: int, topic: str = "T") -> int:
    header = SearchOffset(topic=topic, queue_id=0, timestamp=timestamp)
    answer = queries.search_offset(store, header, ASKED)
    assert isinstance(answer.header, OffsetResponse)
    return answer.header.offset


# By time.


@pytest.mark.parametrize(
    ("timestamp", "offset"),
    [
        (0, 0),
        (1000, 0),
        (1004, 0),
        (1005, 0),  # as near to either: the earlier
        (1006, 1),
        (1010, 1),  # two have that time: the first
        (1011, 2),
        (1999, 3),
        (2000, 3),
        (9999, 3),  # the last there is, not the next
    ],
)
def test_a_time_gives_the_message_nearest_to_it(
    store: Store, clock: Clock, timestamp: int, offset: int
) -> None:
    fill(store, clock, [1000, 1010, 1010, 2000])
    assert searched(store, timestamp) == offset


def test_the_time_of_a_queue_that_is_not_there_is_offset_0(store: Store) -> None:
    assert searched(store, 5, "None") == 0


@settings(max_examples=25)
@given(
    times=st.lists(st.integers(1, 3000), min_size=1, max_size=40).map(sorted),
    timestamp=st.integers(0, 3500),
    born_v6=st.booleans(),
)
def test_the_search_by_time_is_as_good_as_looking_at_all(
    tmp_path_factory: pytest.TempPathFactory, times: list[int], timestamp: int, born_v6: bool
) -> None:
    clock = Clock()
    more = {"born_host": IPV6} if born_v6 else {}
    with Store(tmp_path_factory.mktemp("store"), SMALL, now=clock) as store:
        fill(store, clock, times, **more)
        found = searched(store, timestamp)
        queue = store.find_queue("T", 0)
        assert [queries.store_time(store, queue, n) for n in range(len(times))] == times
    nearest = [
        (abs(stored - timestamp), stored, -n if stored < timestamp else n)
        for n, stored in enumerate(times)
    ]
    assert found == abs(min(nearest)[2])


def test_messages_gone_from_the_log_are_passed_over_by_time(store: Store, clock: Clock) -> None:
    fill(store, clock, list(range(1000, 1080)))
    first = store.log.files.starts[1]
    while store.log.start < first:
        store.log.drop_first()
    queue = store.find_queue("T", 0)
    assert queue is not None
    kept = [n for n in range(80) if queries.store_time(store, queue, n) >= 0]
    assert 0 < kept[0] < 79
    assert searched(store, 0) == kept[0]
    assert searched(store, 1079) == 79


def test_the_search_reads_few_records(store: Store, clock: Clock) -> None:
    fill(store, clock, list(range(1, 513)))
    reads = 0
    read = store.log.record

    def counted(offset: int, size: int) -> object:
        nonlocal reads
        reads += 1
        return read(offset, size)

    store.log.record = counted  # type: ignore[method-assign, assignment]
    assert searched(store, 300) == 299
    assert reads <= 13


# Offsets of a queue.


def test_the_first_and_the_last_offset_and_the_oldest_time_of_a_queue(
    store: Store, clock: Clock
) -> None:
    fill(store, clock, [1000, 1001, 1002])
    header = OfQueue(topic="T", queue_id=0)
    assert queries.last_offset(store, header, ASKED).header == OffsetResponse(offset=3)
    assert queries.first_offset(store, header, ASKED).header == OffsetResponse(offset=0)
    assert queries.oldest_time(store, header, ASKED).header == TimestampResponse(timestamp=1000)


def test_a_queue_that_is_not_there_ends_at_0_and_begins_at_minus_1(store: Store) -> None:
    header = OfQueue(topic="T", queue_id=9)
    assert queries.last_offset(store, header, ASKED).header == OffsetResponse(offset=0)
    assert queries.first_offset(store, header, ASKED).header == OffsetResponse(offset=0)
    assert queries.oldest_time(store, header, ASKED).header == TimestampResponse(timestamp=-1)
    assert store.queues == {}  # asking does not make it


# By key and id.


def query(store: Store, key: str, limit: int = 64, unique: str | None = None) -> Answer:
    header = QueryMessage(
        topic="T", key=key, max_num=limit, begin_timestamp=0, end_timestamp=2**62,
        is_unique_key=unique,
    )  # fmt: skip
    return queries.query_message(store, header, ASKED)


def bodies(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        message = record.decode(data, at)
        found.append(message.body)
        at += message.size
    return found


def test_messages_are_found_by_key_as_they_lie_in_the_log(store: Store, clock: Clock) -> None:
    fill(store, clock, [1000, 2000, 3000])
    answer = query(store, "key1")
    assert bodies(answer.body) == [b"1"]
    assert isinstance(answer.header, QueryMessageResponse)
    assert answer.header.index_last_update_timestamp == 3000
    assert (
        answer.header.index_last_update_phyoffset
        == store.message(int(store.queues["T", 0].units(2, 1)["offset"][0])).log_offset
    )
    assert bodies(query(store, "all").body) == [b"0", b"1", b"2"]
    assert bodies(query(store, "all", limit=2).body) == [b"1", b"2"]  # the newest


def test_a_query_by_unique_key_gives_up_to_32(store: Store, clock: Clock) -> None:
    fill(store, clock, list(range(1000, 1050)))
    assert len(bodies(query(store, "all", limit=1, unique="true").body)) == 32
    assert len(bodies(query(store, "all", limit=1, unique="false").body)) == 1


def test_a_key_nobody_has_is_answered_22(store: Store, clock: Clock) -> None:
    fill(store, clock, [1000])
    answer = query(store, "none")
    assert (answer.code, answer.body) == (22, b"")
    assert answer.remark == "can not find message, maybe time range not correct"


def test_found_records_stop_before_the_frame_is_too_large(tmp_path: Path) -> None:
    config = StoreConfig(flush="async", log_file_size=2**25, index_slots=64, index_entries=256)
    with Store(tmp_path / "large", config) as store:
        store.append(
            [Draft(topic="T", body=bytes(4_000_000), properties=b"KEYS\x01k") for _ in range(6)]
        )
        store.dispatch()
        assert len(bodies(query(store, "k").body)) == 4


def test_a_message_is_seen_by_its_place(store: Store, clock: Clock) -> None:
    fill(store, clock, [1000, 2000])
    place = int(store.queues["T", 0].units(1, 1)["offset"][0])
    assert bodies(queries.view_message(store, ViewMessage(offset=place), ASKED).body) == [b"1"]


@pytest.mark.parametrize("offset", [-1, 1, 12_345_678, 2**63 - 1])
def test_a_place_without_a_message_is_answered_1(store: Store, clock: Clock, offset: int) -> None:
    fill(store, clock, [1000, 2000])
    with pytest.raises(ResponseError) as refused:
        queries.view_message(store, ViewMessage(offset=offset), ASKED)
    assert refused.value.code == 1
    assert refused.value.remark == f"can not find message by the offset, {offset}"


# The units of a queue.


def units(
    store: Store, index: int, count: int, group: str | None = None, expression: str = "a"
) -> QueueUnits:
    consumers = Consumers()
    filters = Filters(store.paths.config, BloomFilter(), lambda: 1.0)
    one = Subscription(topic="T", expression=expression, tags=["a"], codes=[97])
    member = Member(ASKED.peer, "c", Language.JAVA, 401, 0.0)
    consumers.heartbeat(ConsumerData(group="g", subscriptions=[one]), member)
    header = QueryConsumeQueue(
        topic="T", queue_id=0, index=index, count=count, consumer_group=group
    )
    answer = queries.query_consume_queue(store, consumers, filters, header, ASKED)
    return beans.decode(QueueUnits, answer.body)


def test_the_units_of_a_queue_are_told(store: Store, clock: Clock) -> None:
    store.append([Draft(topic="T", properties=b"TAGS\x01" + tag) for tag in (b"a", b"b", b"a")])
    store.dispatch()
    found = units(store, 1, 9)
    assert [unit.tags_code for unit in found.units] == [98, 97]
    assert (found.min_index, found.max_index) == (0, 3)
    assert (found.subscription, found.filter_data) == (None, None)


def test_a_group_is_told_of_with_the_units(store: Store) -> None:
    store.append([Draft(topic="T")])
    store.dispatch()
    assert units(store, 0, 1, "nobody").filter_data == "nobody@T is not online!"
    found = units(store, 0, 1, "g")
    assert found.subscription is not None
    assert (found.subscription.expression, found.filter_data) == ("a", "null")


def test_units_with_an_extension_tell_what_the_filter_says(tmp_path: Path) -> None:
    config = StoreConfig(flush="async", extensions=True, bitmaps=True)
    with Store(tmp_path / "extended", config) as store:
        store.append([Draft(topic="T", properties=b"TAGS\x01" + tag) for tag in (b"a", b"b")])
        store.dispatch()
        found = units(store, 0, 2, "g").units
        assert [unit.evaluated for unit in found] == [True, False]


@pytest.mark.parametrize(("topic", "index"), [("None", 0), ("T", 5), ("T", -1)])
def test_units_that_are_not_there_are_answered_1(store: Store, topic: str, index: int) -> None:
    store.append([Draft(topic="T")])
    store.dispatch()
    header = QueryConsumeQueue(topic=topic, queue_id=0, index=index, count=1)
    filters = Filters(store.paths.config, BloomFilter(), lambda: 1.0)
    with pytest.raises(ResponseError, match="is not exist!") as refused:
        queries.query_consume_queue(store, Consumers(), filters, header, ASKED)
    assert refused.value.code == 1


# What Apache said of the same store.


@pytest.fixture(scope="module")
def apaches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """The store of the broker whose frames `errors.jsonl` holds, as it was some moments later."""
    folder = tmp_path_factory.mktemp("golden")
    with tarfile.open(GOLDEN / "stores" / "clean.tar.gz") as tar:
        tar.extractall(folder, filter="data")
    config = StoreConfig(
        log_file_size=131_072,
        queue_file_size=2000,
        extension_file_size=8192,
        index_slots=64,
        index_entries=256,
        extensions=True,
        bitmaps=True,
    )
    with Store(folder / "clean", config) as opened:
        yield opened


HANDLERS: dict[int, tuple[type[Header], Callable[[Store, Header, Request], Answer]]] = {
    RequestCode.QUERY_MESSAGE: (QueryMessage, queries.query_message),  # type: ignore[dict-item]
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: (SearchOffset, queries.search_offset),  # type: ignore[dict-item]
    RequestCode.GET_MAX_OFFSET: (OfQueue, queries.last_offset),  # type: ignore[dict-item]
    RequestCode.GET_MIN_OFFSET: (OfQueue, queries.first_offset),  # type: ignore[dict-item]
    RequestCode.VIEW_MESSAGE_BY_ID: (ViewMessage, queries.view_message),  # type: ignore[dict-item]
}


def recorded(*codes: int) -> list[tuple[Command, Command]]:
    """Requests and their answers, from `errors.jsonl`."""
    lines = {}
    found = []
    for text in (GOLDEN / "frames" / "errors.jsonl").read_text().splitlines():
        line = json.loads(text)
        (frame,) = FrameReader().feed(base64.b64decode(line["frame"]))
        lines[line["seq"]] = command.decode(frame)
        if line.get("answers") in codes:
            found.append((lines[line["request_seq"]], lines[line["seq"]]))
    return found


@pytest.mark.parametrize(("asked", "said"), recorded(*HANDLERS))
def test_queries_are_answered_as_apache_answered_them(
    apaches: Store, asked: Command, said: Command
) -> None:
    kind, handle = HANDLERS[asked.code]
    try:
        answer = handle(apaches, kind.from_fields(asked.fields), ASKED)
    except ResponseError as error:
        answer = Answer(code=error.code, remark=error.remark)
    assert (answer.code, answer.remark) == (said.code, said.remark)
    assert answer.body == said.body
    fields = answer.header.to_fields() if answer.header is not None else {}
    assert fields == (said.fields or {})


def test_topic_stats_are_as_apache_told_them(apaches: Store) -> None:
    [(asked, said)] = recorded(RequestCode.GET_TOPIC_STATS_INFO)
    known = {"Orders": TopicConfig(name="Orders", read_queues=4, write_queues=4)}
    told = partial(topics.topic_stats, "broker-a", known, apaches)  # type: ignore[arg-type]
    answer = told(OfTopic.from_fields(asked.fields), ASKED)
    assert beans.decode(TopicStats, answer.body) == beans.decode(TopicStats, said.body)
