"""What executors read, over the wire and from files: all of it, in order, once, or an error."""

import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tamis.client import Message, ProducerConfig, blocking
from tamis.errors import (
    DataLoss,
    GroupNotFound,
    ResponseError,
    TopicNotFound,
    Unreachable,
    UnreadableMessage,
)
from tamis.security import INSECURE, Credentials, Security
from tamis.spark import fetching
from tamis.spark.fetching import (
    arrow_schema,
    fetch_log,
    fetch_wire,
    log_bounds,
    log_offset_at,
)
from tamis.spark.ranges import Fetch, LogRange, WireRange
from tamis.spark.schema import COLUMNS, DEFAULT
from tamis.testing import LocalCluster
from tamis.wire.bodies import MessageQueue

TOPIC = "orders"
COUNT = 1000
LARGE = 40  # messages of 50 KiB, in a topic of their own: an answer has five
QUEUE = MessageQueue(TOPIC, "broker-a", 0)
PLAIN = Fetch(columns=DEFAULT)


def message(number: int) -> Message:
    properties = {"n": str(number), "price": f"{number / 4}", "even": str(number % 2 == 0)}
    if number % 3 == 0:
        properties["odd one"] = "not a number"
    tags = ("red", "green", "AaAa", "BBBB", None)[number % 5]  # two of the same hash
    return Message(TOPIC, f"body {number}", tags=tags, keys=f"k{number}", properties=properties)


@pytest.fixture(autouse=True, scope="module")
def idle_connections() -> Iterator[None]:
    """Closed at the end: a worker of Spark's keeps them until it ends."""
    yield
    while fetching._IDLE:
        fetching._IDLE.popitem()[1][0].close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(log_file_size=2**22, queue_file_size=20 * 300) as cluster:
        with blocking.Admin(cluster.nameserver) as admin:
            for topic in (TOPIC, "large", "empty"):
                admin.create_topic(topic, queues=1)
        with blocking.Producer(cluster.nameserver) as producer:
            producer.send_batch([message(number) for number in range(COUNT)])
            producer.send_batch([Message("large", bytes(50 << 10))] * LARGE)
        yield cluster


def wire(cluster: LocalCluster, start: int = 0, end: int = COUNT, topic: str = TOPIC) -> WireRange:
    queue = MessageQueue(topic, "broker-a", 0)
    return WireRange(queue, start, end, (cluster.broker,))


def logged(cluster: LocalCluster, start: int = 0, end: int = COUNT) -> LogRange:
    return LogRange(str(cluster.store), "broker-a", TOPIC, 0, start, end)


def table(batches: Iterator[pa.RecordBatch], fetch: Fetch = PLAIN) -> pa.Table:
    return pa.Table.from_batches(list(batches), arrow_schema(fetch))


def offsets(batches: Iterator[pa.RecordBatch], fetch: Fetch = PLAIN) -> list[int]:
    found: list[int] = table(batches, fetch)["offset"].to_pylist()
    return found


def test_rows_tell_what_was_sent(cluster: LocalCluster) -> None:
    rows = table(fetch_wire(wire(cluster), PLAIN)).to_pylist()
    for number, row in enumerate(rows):
        sent = message(number)
        assert (row["topic"], row["broker"], row["queue_id"]) == (TOPIC, "broker-a", 0)
        assert (row["offset"], row["body"], row["tags"]) == (number, sent.body, sent.tags)
        assert dict(row["properties"]).items() >= dict(sent.properties).items()
    assert len(rows) == COUNT


FILTERS: list[dict[str, Any]] = [
    {},
    {"tags": "red"},
    {"tags": "AaAa || green"},
    {"sql": "n BETWEEN 100 AND 600 AND even = 'True'"},
    {"sql": "price > 200.0 AND TAGS IS NOT NULL"},
    {"sql": "n = 777"},
    {"sql": "n < 0"},
    {"sql": "n >= 0"},
]


@pytest.mark.parametrize("wanted", FILTERS, ids=str)
def test_a_filter_gives_the_same_rows_wherever_it_is_done(
    cluster: LocalCluster, wanted: dict[str, Any]
) -> None:
    fetch = replace(PLAIN, columns=tuple(COLUMNS), batch_rows=300, **wanted)
    found = table(fetch_wire(wire(cluster), fetch), fetch)
    assert found == table(fetch_wire(wire(cluster), replace(fetch, at_broker=False)), fetch)
    assert found == table(fetch_log(logged(cluster), fetch), fetch)
    assert found["offset"].to_pylist() == [n for n in range(COUNT) if matches(message(n), wanted)]


def matches(one: Message, wanted: dict[str, Any]) -> bool:
    n, tag = int(one.properties["n"]), one.tags
    if "tags" in wanted:
        return tag in wanted["tags"].split(" || ")
    verdicts = (100 <= n <= 600 and n % 2 == 0, n > 800 and tag is not None, n == 777, False, True)
    return verdicts[FILTERS.index(wanted) - 3] if "sql" in wanted else True


@pytest.mark.parametrize(("start", "end"), [(0, 0), (0, 1), (31, 33), (299, 301), (7, 1000)])
@pytest.mark.parametrize("pull_size", [1, 7, 32, 5000])
def test_a_range_comes_whole_in_order_and_once(
    cluster: LocalCluster, start: int, end: int, pull_size: int
) -> None:
    for wanted in ({}, {"sql": "n >= 0"}, {"sql": "n >= 0", "at_broker": False}):
        fetch = replace(PLAIN, pull_size=pull_size, batch_rows=100, **wanted)
        assert offsets(fetch_wire(wire(cluster, start, end), fetch)) == [*range(start, end)]
    assert offsets(fetch_log(logged(cluster, start, end), fetch)) == [*range(start, end)]


def test_answers_that_are_full_of_bytes_are_gone_on_with(cluster: LocalCluster) -> None:
    for fetch in (PLAIN, replace(PLAIN, sql="TAGS IS NULL")):
        assert offsets(fetch_wire(wire(cluster, 0, LARGE, "large"), fetch)) == [*range(LARGE)]


def test_batches_have_about_the_rows_asked_for(cluster: LocalCluster) -> None:
    sizes = [len(batch) for batch in fetch_log(logged(cluster), replace(PLAIN, batch_rows=300))]
    assert sizes == [300, 300, 300, 100]
    sizes = [len(batch) for batch in fetch_wire(wire(cluster), replace(PLAIN, batch_rows=300))]
    assert sum(sizes) == COUNT
    assert max(sizes) < 300 + 32


def test_properties_come_as_columns_of_their_type(cluster: LocalCluster) -> None:
    typed = (("n", "int"), ("price", "double"), ("even", "boolean"), ("odd one", "long"))
    fetch = replace(PLAIN, columns=("offset", "tags_code"), properties=typed)
    for batches in (fetch_wire(wire(cluster), fetch), fetch_log(logged(cluster), fetch)):
        row = table(batches, fetch).to_pylist()[3]
        assert row == {
            "offset": 3,
            "tags_code": 2031744,
            "n": 3,
            "price": 0.75,
            "even": False,
            "odd one": None,
        }


class Cutting:
    """Passes bytes on to a broker and back, and cuts each connection after so many."""

    def __init__(self, address: str, after: int) -> None:
        host, port = address.split(":")
        self._to, self._after = (host, int(port)), after
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.count = 0
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            end, _ = self._listener.accept()
            if self._after < 0:
                end.close()
                return
            self.count += 1
            with end, socket.create_connection(self._to) as broker:
                sending = threading.Thread(target=self._send, args=(end, broker))
                sending.start()
                self._pass(broker, end, self._after)
                end.shutdown(socket.SHUT_RDWR)
                sending.join()

    def _send(self, end: socket.socket, broker: socket.socket) -> None:
        self._pass(end, broker, -1)
        broker.shutdown(socket.SHUT_RDWR)

    def _pass(self, source: socket.socket, to: socket.socket, left: int) -> None:
        try:
            while left and (data := source.recv(left if left > 0 else 65536)):
                to.sendall(data)
                left -= len(data) if left > 0 else 0
        except OSError:
            pass

    def close(self) -> None:
        self._after = -1
        if (self.address, INSECURE) in fetching._IDLE:  # it would be kept for the next range
            fetching._IDLE.pop((self.address, INSECURE))[0].close()
        socket.create_connection(self._listener.getsockname()).close()
        self._thread.join()
        self._listener.close()


@pytest.mark.parametrize("wanted", [{}, {"sql": "n >= 0"}], ids=str)
def test_a_connection_that_breaks_costs_and_doubles_nothing(
    cluster: LocalCluster, wanted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "_PAUSE", 0.001)
    with closing(Cutting(cluster.broker, 60_000)) as between:
        part = replace(wire(cluster), addresses=(between.address,))
        assert offsets(fetch_wire(part, replace(PLAIN, **wanted))) == [*range(COUNT)]
        assert between.count > 3


def test_a_connection_is_used_again_unless_it_was_closed() -> None:
    one_try = replace(PLAIN, retries=0)
    with LocalCluster(log_file_size=2**22) as cluster:
        with blocking.Admin(cluster.nameserver) as admin:
            admin.create_topic(TOPIC, queues=1)
        with blocking.Producer(cluster.nameserver) as producer:
            producer.send_batch([message(number) for number in range(100)])
        part = wire(cluster, 0, 100)
        assert len(offsets(fetch_wire(part, one_try))) == 100
        kept, _ = fetching._IDLE[cluster.broker, INSECURE]
        assert len(offsets(fetch_wire(part, one_try))) == 100
        assert fetching._IDLE[cluster.broker, INSECURE][0] is kept
        keys = Security(Credentials("other", "secret"))
        assert len(offsets(fetch_wire(part, replace(one_try, security=keys)))) == 100
        other, _ = fetching._IDLE.pop((cluster.broker, keys))
        other.close()
        assert other is not kept  # one signs with its own key
        cluster.restart_broker()
        assert len(offsets(fetch_wire(part, one_try))) == 100
        assert fetching._IDLE.pop((cluster.broker, INSECURE))[0].close() is None
        assert kept.is_closed


def test_another_address_is_tried_and_none_is_said_so(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "_PAUSE", 0.001)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        dead = f"127.0.0.1:{closed.getsockname()[1]}"
    part = replace(wire(cluster), addresses=(dead, cluster.broker))
    assert len(offsets(fetch_wire(part, PLAIN))) == COUNT
    with pytest.raises(Unreachable, match=f"the broker at {dead} can't be reached"):
        offsets(fetch_wire(replace(part, addresses=(dead,)), replace(PLAIN, retries=1)))


@pytest.mark.parametrize("wanted", [{}, {"sql": "n >= 0"}], ids=str)
def test_what_a_slave_has_not_got_yet_is_not_lost(
    cluster: LocalCluster, wanted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another broker with less of the topic, asked while the first does not answer."""
    monkeypatch.setattr(fetching, "_PAUSE", 0.001)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        dead = f"127.0.0.1:{closed.getsockname()[1]}"
    with LocalCluster(log_file_size=2**22) as behind:
        with blocking.Admin(behind.nameserver) as admin:
            admin.create_topic(TOPIC, queues=1)
        with blocking.Producer(behind.nameserver) as producer:
            producer.send_batch([message(number) for number in range(300)])
        fetch = replace(PLAIN, retries=3, fail_on_data_loss=False, **wanted)
        part = replace(wire(cluster), addresses=(dead, behind.broker))
        with pytest.raises(Unreachable, match=r"is behind|refused"):
            offsets(fetch_wire(part, fetch))
        whole = replace(part, addresses=(dead, behind.broker, cluster.broker))
        assert offsets(fetch_wire(whole, fetch)) == [*range(COUNT)]


def test_a_broker_that_must_filter_and_can_not_is_said_so() -> None:
    with LocalCluster(sql_filters=False) as cluster:
        with blocking.Admin(cluster.nameserver) as admin:
            admin.create_topic(TOPIC, queues=1)
        with blocking.Producer(cluster.nameserver) as producer:
            producer.send(message(1))
        fetch = replace(PLAIN, sql="n > 0", or_reader=False)
        with pytest.raises(ResponseError, match=r"orders/broker-a/0 can't be read: .*filter"):
            offsets(fetch_wire(wire(cluster, 0, 2), fetch))


def test_a_broker_without_sql_leaves_it_to_the_reader(tmp_path: Path) -> None:
    with LocalCluster(sql_filters=False, auto_create_groups=False) as cluster:
        with blocking.Admin(cluster.nameserver) as admin:
            admin.create_topic(TOPIC, queues=1)
            admin.create_group("readers")
        with blocking.Producer(cluster.nameserver) as producer:
            producer.send_batch([message(number) for number in range(100)])
        fetch = replace(PLAIN, sql="n > 89", group="readers")
        assert offsets(fetch_wire(wire(cluster, 0, 100), fetch)) == [*range(90, 100)]
        with pytest.raises(
            GroupNotFound, match=r"orders/broker-a/0 can.t be read: .*option groupId"
        ):
            offsets(fetch_wire(wire(cluster, 0, 100), PLAIN))


def test_a_topic_that_is_not_there_is_said_so(cluster: LocalCluster) -> None:
    with pytest.raises(TopicNotFound, match="nowhere/broker-a/0 can't be read"):
        offsets(fetch_wire(wire(cluster, topic="nowhere"), PLAIN))


@pytest.mark.parametrize("wanted", [{}, {"sql": "n >= 0"}, {"tags": "red"}], ids=str)
def test_offsets_beyond_the_end_are_lost(cluster: LocalCluster, wanted: dict[str, Any]) -> None:
    strict = replace(PLAIN, data_timeout=0.0, **wanted)
    lax = replace(strict, fail_on_data_loss=False)
    for start in (950, COUNT, COUNT + 50):
        parts = wire(cluster, start, COUNT + 100), logged(cluster, start, COUNT + 100)
        for fetch, part in zip((fetch_wire, fetch_log), parts, strict=True):
            with pytest.raises(DataLoss, match=r"gone from the \w+ \(it ends before"):
                offsets(fetch(part, strict))  # type: ignore[operator]
            found = offsets(fetch(part, lax))  # type: ignore[operator]
            assert found == [n for n in range(start, COUNT) if matches(message(n), wanted)]
    with pytest.raises(DataLoss):
        offsets(fetch_wire(wire(cluster, 0, 10, "empty"), strict))


def test_messages_whose_log_file_is_gone_are_lost(tmp_path: Path) -> None:
    settings = {"log_file_size": 40_000, "queue_file_size": 20 * 50}
    with LocalCluster(tmp_path, **settings) as cluster:
        with blocking.Admin(cluster.nameserver) as admin:
            admin.create_topic(TOPIC, queues=1)
        with blocking.Producer(cluster.nameserver) as producer:
            for first in range(0, 400, 50):
                producer.send_batch([message(number) for number in range(first, first + 50)])
        cluster.stop_broker()
        (tmp_path / "commitlog" / f"{0:020}").unlink()
        cluster.start_broker()
        first, end = log_bounds(str(tmp_path))[TOPIC, 0]
        assert (0 < first < 400, end) == (True, 400)
        lost = rf"orders/broker-a/0: offsets 5 to {first - 1} are gone from the \w+"
        for wanted in ({}, {"sql": "n >= 0"}):
            for fetch, part in (
                (fetch_wire, wire(cluster, 5, 400)),
                (fetch_log, logged(cluster, 5, 400)),
            ):
                with pytest.raises(DataLoss, match=lost + rf" \(it begins at {first}\)"):
                    offsets(fetch(part, replace(PLAIN, **wanted)))  # type: ignore[operator]
                lax = replace(PLAIN, fail_on_data_loss=False, **wanted)
                assert offsets(fetch(part, lax)) == [*range(first, 400)]  # type: ignore[operator]


@pytest.fixture
def copy(cluster: LocalCluster, tmp_path: Path) -> Path:
    """Of the store, with the broker still on it."""
    unneeded = shutil.ignore_patterns("index")
    shutil.copytree(str(cluster.store), tmp_path / "copy", ignore=unneeded)
    return tmp_path / "copy"


def change_record(root: Path, offset: int, at: int, data: bytes) -> None:
    """Of a message: bytes from `at` in its record on."""
    number, file = offset % 300, offset // 300 * 6000
    units = (root / "consumequeue" / TOPIC / "0" / f"{file:020}").read_bytes()
    place = int.from_bytes(units[20 * number : 20 * number + 8])
    with (root / "commitlog" / f"{0:020}").open("r+b") as log:
        log.seek(place + at)
        log.write(data)


def test_a_damaged_record_is_lost(cluster: LocalCluster, copy: Path) -> None:
    change_record(copy, 500, 90, b"?")  # in its body
    part = replace(logged(cluster), root=str(copy))
    with pytest.raises(DataLoss, match="offset 500 is gone from the store"):
        offsets(fetch_log(part, PLAIN))
    lax = replace(PLAIN, fail_on_data_loss=False)
    assert offsets(fetch_log(part, lax)) == [n for n in range(COUNT) if n != 500]


def test_records_that_the_driver_saw_and_an_executor_does_not_are_lost_not_skipped(
    cluster: LocalCluster, copy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    change_record(copy, 990, 0, bytes(2**20))  # all that follows, too
    assert log_bounds(str(copy))[TOPIC, 0] == (0, 990)
    part = replace(logged(cluster), root=str(copy))
    impatient = replace(PLAIN, data_timeout=0.05)
    late = r"offsets 990 to 999 are gone from the store \(it ends before, and did not grow within 0"
    with pytest.raises(DataLoss, match=late + r"\.05 s\): raise dataTimeout if it is only late"):
        offsets(fetch_log(part, impatient))
    assert not caplog.text
    lax = replace(impatient, fail_on_data_loss=False)
    assert offsets(fetch_log(part, lax)) == [*range(990)]
    assert "offsets 990 to 999 are gone" in caplog.text


@pytest.mark.parametrize("missing", ["records", "a part of the last record", "the queue"])
def test_records_that_an_executor_sees_later_are_waited_for(
    cluster: LocalCluster, copy: Path, missing: str
) -> None:
    log, queue = copy / "commitlog" / f"{0:020}", copy / "consumequeue" / TOPIC
    whole = log.read_bytes()
    if missing == "records":
        change_record(copy, 990, 0, bytes(2**20))
    elif missing == "a part of the last record":
        change_record(copy, COUNT - 1, 92, bytes(2**20))
    else:
        queue.rename(copy / "elsewhere")

    def restore() -> None:
        if missing == "the queue":
            (copy / "elsewhere").rename(queue)
        with log.open("r+b") as file:
            file.write(whole)

    timer = threading.Timer(0.2, restore)
    timer.start()
    part = replace(logged(cluster), root=str(copy))
    assert offsets(fetch_log(part, PLAIN)) == [*range(COUNT)]
    timer.join()


@pytest.mark.parametrize("wanted", [{}, {"sql": "n >= 0"}], ids=str)
def test_messages_that_a_broker_has_not_got_yet_are_waited_for(wanted: dict[str, Any]) -> None:
    """As one has them not that recovers its queues after a start."""
    with LocalCluster(log_file_size=2**22) as cluster:
        with blocking.Admin(cluster.nameserver) as admin:
            admin.create_topic(TOPIC, queues=1)
        with blocking.Producer(cluster.nameserver) as producer:
            producer.send_batch([message(number) for number in range(50)])
            rest = [message(number) for number in range(50, 100)]
            timer = threading.Timer(0.2, producer.send_batch, [rest])
            timer.start()
            fetch = replace(PLAIN, **wanted)
            assert offsets(fetch_wire(wire(cluster, 0, 100), fetch)) == [*range(100)]
            timer.join()


def test_bounds_and_times_tell_where_queues_begin(cluster: LocalCluster) -> None:
    bounds = log_bounds(str(cluster.store))
    assert (bounds[TOPIC, 0], bounds["large", 0]) == ((0, COUNT), (0, LARGE))
    stored = table(fetch_log(logged(cluster), PLAIN))["store_timestamp"].cast(pa.int64())
    times = [time // 1000 for time in stored.to_pylist()]
    for millis in (0, times[0], times[500], times[-1], times[-1] + 1):
        wanted = sum(time < millis for time in times)
        assert log_offset_at(str(cluster.store), TOPIC, 0, millis) == wanted


def test_a_body_that_can_not_be_read_fails_by_name_or_is_null(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with LocalCluster(tmp_path / "store", log_file_size=2**22) as cluster:
        with blocking.Admin(cluster.nameserver) as admin:
            admin.create_topic(TOPIC, queues=1)
        config = ProducerConfig(compress_over=1000)
        with blocking.Producer(cluster.nameserver, config=config) as producer:
            for size in (10, 5000, 10):
                sent = producer.send(Message(TOPIC, bytes(size)))
        assert sent.offset == 2
        strict = replace(PLAIN, max_body_size=4999)
        lax = replace(strict, fail_on_unreadable=False)
        for fetch, part in (
            (fetch_wire, wire(cluster, 0, 3)),
            (fetch_log, logged(cluster, 0, 3)),
        ):
            named = (
                r"topic orders, queue 0 of broker-a, offset 1 \(message \w+\): .*more than 4,999"
            )
            why = r".*: raise option maxBodySize to read it; set failOnUnreadable to false"
            with pytest.raises(UnreadableMessage, match=named + why):
                offsets(fetch(part, strict))  # type: ignore[operator]
            caplog.clear()
            rows = table(fetch(part, lax))  # type: ignore[operator]
            assert rows["body"].to_pylist() == [bytes(10), None, bytes(10)]
            assert "offset 1 (message" in caplog.text
            assert table(fetch(part, PLAIN))["body"].to_pylist()[1] == bytes(5000)  # type: ignore[operator]
