"""What Spark asks of a stream's reader, asked without Spark: how far a trigger goes, and what comes
of brokers and queues that are not there."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sparkling import create_topic, send_all

from tamis.client import blocking
from tamis.errors import ConfigError, Error, Unreachable
from tamis.message import Message
from tamis.spark import origins
from tamis.spark.limits import ReadAllAvailable, ReadLimit, ReadMaxRows, ReadMinRows
from tamis.spark.offsets import Positions
from tamis.spark.options import Options, Time
from tamis.spark.reader import BatchReader, Partition
from tamis.spark.schema import row_type
from tamis.spark.single import SingleBatchReader
from tamis.spark.stream import StreamReader
from tamis.store.scan import bounds
from tamis.testing import LocalCluster

ALL = ReadAllAvailable()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    monkeypatch.setattr(origins, "_ROUTES_LAST", 0.0)
    with LocalCluster(log_file_size=2**22, queue_file_size=20 * 50) as cluster:
        create_topic(cluster, "Lamps", 2)
        yield cluster


def fill(cluster: LocalCluster, count: int, topic: str = "Lamps") -> None:
    """Returns when they are in their queues: a broker answers before."""
    sent = send_all(cluster, [Message(topic, str(number)) for number in range(count)])
    ends = {one.queue.queue_id: one.offset + 1 for one in sent}
    deadline = time.monotonic() + 20
    while any(
        bounds(str(cluster.store), topic.__eq__).get((topic, number), (0, 0))[1] < end
        for number, end in ends.items()
    ):
        assert time.monotonic() < deadline
        time.sleep(0.01)


Made = Callable[..., StreamReader]


@pytest.fixture
def reader(cluster: LocalCluster) -> Iterator[Made]:
    with contextlib.ExitStack() as opened:

        def make(kind: type[StreamReader] = StreamReader, **options: Any) -> StreamReader:
            said = {"nameserver": cluster.nameserver, "startingOffsets": "earliest", "retries": "0"}
            if not {"topic", "topicPattern", "assign"} & options.keys():
                said["topic"] = "Lamps"
            parsed = Options.parse(said | options, of_log=False)
            made = kind(parsed, row_type(parsed.columns, parsed.properties))
            opened.callback(made.stop)
            return made

        yield make


def size(made: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> int:
    """Of what is between them, by the partitions there are for it."""
    found = made.partitions(start, end)
    parts = [part for one in found if isinstance(one, Partition) for part in one.parts]
    return sum(part.end - part.start for part in parts)


def latest(made: StreamReader, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
    made._good_until = 0.0  # as if some time had passed
    return made.latestOffset(start, limit)


def passed(position: dict[str, Any]) -> int:
    return Positions.from_json(position).scanned


def test_a_topic_whose_broker_is_away_is_waited_for(
    cluster: LocalCluster, reader: Made, caplog: pytest.LogCaptureFixture
) -> None:
    fill(cluster, 10)
    made = reader()
    first = latest(made, made.initialOffset(), ALL)
    assert passed(first) == 10
    cluster.stop_broker()
    deadline = time.monotonic() + 20
    with caplog.at_level(logging.WARNING, "tamis.spark"):
        while not caplog.messages:  # until the name server knows
            assert time.monotonic() < deadline
            with contextlib.suppress(Unreachable):
                assert latest(made, first, ALL) == first
        for _ in range(5):
            assert latest(made, first, ALL) == first
        told = [text for text in caplog.messages if "not there at present" in text]
    assert len(told) == 2  # one a queue
    with pytest.raises(Unreachable, match=r"broker broker-a|the broker at"):  # a batch done again
        reader(topicPattern="L.*").partitions(beginning_of(first), first)
    cluster.start_broker()
    fill(cluster, 3)
    assert passed(latest(made, first, ALL)) == 13


def beginning_of(position: dict[str, Any]) -> dict[str, Any]:
    """The beginning of all queues of a position."""
    return Positions(dict.fromkeys(Positions.from_json(position).offsets, 0)).to_json()


def test_a_queue_that_is_gone_is_data_loss(
    cluster: LocalCluster, reader: Made, caplog: pytest.LogCaptureFixture
) -> None:
    create_topic(cluster, "Chairs", 1)
    fill(cluster, 6)
    fill(cluster, 4, "Chairs")
    strict = reader(topicPattern="Lamps|Chairs")
    lax = reader(topicPattern="Lamps|Chairs", failOnDataLoss="false")
    here = latest(strict, strict.initialOffset(), ReadMaxRows(5))
    latest(lax, here, ALL)
    with blocking.Admin(cluster.nameserver) as admin:
        admin.delete_topic("Chairs")
    with pytest.raises(Error, match=r"Chairs.* is gone.*set failOnDataLoss to false"):
        latest(strict, here, ALL)
    with caplog.at_level(logging.WARNING, "tamis.spark"):
        there = latest(lax, here, ALL)
        latest(lax, there, ALL)
        assert len([text for text in caplog.messages if "is gone" in text]) == 1
    assert sum(there["Lamps"]["broker-a"].values()) == 6
    assert there["Chairs"] == here["Chairs"]


def test_of_queues_that_were_named_no_others_are_read(
    cluster: LocalCluster, reader: Made, caplog: pytest.LogCaptureFixture
) -> None:
    fill(cluster, 6)
    made = reader(assign='{"Lamps": {"broker-a": [1]}}', failOnDataLoss="false")
    here = latest(made, made.initialOffset(), ALL)
    assert passed(here) == 3
    create_topic(cluster, "Lamps", 1)
    deadline = time.monotonic() + 20
    while not any("is gone" in text for text in caplog.messages):
        assert time.monotonic() < deadline
        assert latest(made, here, ALL) == here


def test_a_first_batch_that_is_done_again_is_the_same(cluster: LocalCluster, reader: Made) -> None:
    """Spark has recorded where it ends, and asks anew where it begins."""
    fill(cluster, 10)
    killed = reader()
    end = latest(killed, killed.initialOffset(), ReadMaxRows(7))
    fill(cluster, 10)
    for options in ({}, {"startingOffsets": "latest"}):
        again = reader(**options)
        assert size(again, again.initialOffset(), end) == 7
        following = latest(again, end, ALL)
        assert size(again, end, following) == 13


def test_a_trigger_waits_for_more_but_not_the_first_nor_if_all_is_asked_for(
    cluster: LocalCluster, reader: Made
) -> None:
    fill(cluster, 3)
    made = reader(minOffsetsPerTrigger="5", maxTriggerDelay="1h")
    assert made.getDefaultReadLimit() == ReadMinRows(5)
    first = latest(made, made.initialOffset(), ReadMinRows(5))
    assert passed(first) == 3
    fill(cluster, 4)
    assert latest(made, first, ReadMinRows(5)) == first
    assert passed(latest(made, first, ALL)) == 7
    fill(cluster, 1)
    assert passed(latest(made, first, ReadMinRows(5))) == 8
    quick = reader(minOffsetsPerTrigger="50", maxTriggerDelay="1")  # a millisecond
    at = latest(quick, quick.initialOffset(), ReadMinRows(50))
    fill(cluster, 1)
    time.sleep(0.01)
    assert passed(latest(quick, at, ReadMinRows(50))) == 9


def test_a_time_to_come_is_the_end_though_more_has_come_since(cluster: LocalCluster) -> None:
    fill(cluster, 4)
    options = Options.parse({"nameserver": cluster.nameserver, "topic": "Lamps"}, of_log=False)
    origin = origins.open_origin(options)
    found = origin.bounds()
    fill(cluster, 4)
    placed = origins.placed(origin, Time(2**50), found, "endingTimestamp")
    assert placed == {queue: end for queue, (_, end) in found.items()}
    origin.close()


def test_what_a_stores_broker_is_called_stays_as_it_was(cluster: LocalCluster) -> None:
    fill(cluster, 4)

    def of_log(**options: str) -> StreamReader:
        said = {"path": str(cluster.store), "topic": "Lamps", "startingOffsets": "earliest"}
        parsed = Options.parse(said | options, of_log=True)
        return StreamReader(parsed, row_type(parsed.columns, parsed.properties))

    made = of_log()
    here = latest(made, made.initialOffset(), ALL)
    with pytest.raises(ConfigError, match="option broker is 'b'"):
        latest(of_log(broker="b"), here, ALL)


def test_a_store_is_read_by_files_of_its_queues_and_a_topic_by_its_queues(
    cluster: LocalCluster,
) -> None:
    fill(cluster, 250)  # a file of a queue has 50

    def sizes(**options: str) -> list[int]:
        of_log = "path" in options
        parsed = Options.parse({"topic": "Lamps", **options}, of_log=of_log)
        found = BatchReader(parsed, row_type(parsed.columns, ())).partitions()
        parts = [one.parts for one in found if isinstance(one, Partition)]
        return [part.end - part.start for (part,) in parts]

    store = sizes(path=str(cluster.store))
    assert sum(store) == 250
    assert max(store) == 50
    assert len(sizes(nameserver=cluster.nameserver)) == 2


def test_a_pattern_takes_in_no_topic_of_rocketmqs(cluster: LocalCluster, reader: Made) -> None:
    fill(cluster, 1)
    made = reader(topicPattern=".*")
    assert [topic for topic in made.initialOffset() if topic] == ["Lamps"]


# Under PySpark 4.1, which says nothing when it asks for the latest offset


def limited(reader: Made) -> Any:
    return reader(SingleBatchReader, maxOffsetsPerTrigger="4", trigger="interval")


def test_a_reader_that_is_told_nothing_knows_its_place_by_what_is_planned(
    cluster: LocalCluster, reader: Made
) -> None:
    fill(cluster, 10)
    made = limited(reader)
    first = made.latestOffset()
    assert (passed(first), Positions.from_json(first).left) == (4, 6)
    assert size(made, made.initialOffset(), first) == 4
    second = made.latestOffset()
    assert size(made, first, second) == 4
    again = limited(reader)  # a query that is resumed plans nothing at its last position
    assert size(again, first, first) == 0
    assert again.latestOffset() == second
    assert size(again, first, second) == 4
    assert passed(again.latestOffset()) == 10
    assert size(again, second, last := again.latestOffset()) == 2
    assert again.latestOffset() == last


def test_a_reader_that_would_guess_a_resumed_querys_place_fails(
    cluster: LocalCluster, reader: Made
) -> None:
    fill(cluster, 10)
    made = limited(reader)
    first = made.latestOffset()
    again = limited(reader)
    again.latestOffset()  # what Spark's wrapper of AvailableNow does before it tells the place
    with pytest.raises(Error, match=r"triggerAvailableNowWrapper.enabled can't be used"):
        again.partitions(first, first)


def test_a_most_is_refused_where_the_trigger_is_not_known(
    cluster: LocalCluster, reader: Made
) -> None:
    with pytest.raises(ConfigError, match="set option trigger to interval"):
        reader(SingleBatchReader, maxOffsetsPerTrigger="4")
