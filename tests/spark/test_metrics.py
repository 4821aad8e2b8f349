"""What a listener tells of a stream's batches; the matching lag is counted, never guessed."""

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from sparkling import create_topic, send_all

from tamis.message import Message
from tamis.security import INSECURE
from tamis.spark import Metrics, MetricsListener
from tamis.spark.limits import HAS_ADMISSION_CONTROL
from tamis.spark.matching_lag import matching_lag
from tamis.spark.offsets import Range
from tamis.spark.progress import Backlog
from tamis.testing import LocalCluster
from tamis.wire.bodies import MessageQueue
from tamis.wire.codes import RequestCode

NUMBERS = itertools.count()
COUNT, BATCHES = 40, 4
by_batches = pytest.mark.skipif(
    not HAS_ADMISSION_CONTROL,
    reason="PySpark 4.1 knows no limit of a batch where a stream ends with what is there",
)


@pytest.fixture(scope="module")
def topic(local_cluster: LocalCluster) -> str:
    """Its tags are NEW and PAID in turn, the prices count. In each queue as many of both."""
    create_topic(local_cluster, "Measured", queues=2)
    messages = [
        Message("Measured", "x", tags=("NEW", "PAID")[n // 2 % 2], properties={"price": str(n)})
        for n in range(COUNT)
    ]
    send_all(local_cluster, messages)
    return "Measured"


def metered(
    spark: SparkSession, home: Path, options: dict[str, str], *, every: float = 0.0
) -> list[Metrics]:
    """Of each batch of a stream of all there is, ten messages at a time."""
    told: list[Metrics] = []
    listener = MetricsListener(spark, told.append, every=every)
    spark.streams.addListener(listener)
    format = "rocketmq" if "nameserver" in options else "rocketmq-log"
    try:
        limit = {"maxOffsetsPerTrigger": str(COUNT // BATCHES)} if HAS_ADMISSION_CONTROL else {}
        source = spark.readStream.format(format).options(startingOffsets="earliest", **limit)
        rows = source.options(columns="offset", **options).load()
        writer = rows.writeStream.format("noop").queryName("measured")
        writer = writer.option("checkpointLocation", str(home / f"checkpoint-{next(NUMBERS)}"))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        assert listener.wait(str(query.runId), 30)
    finally:
        spark.streams.removeListener(listener)
    assert listener.last == told[-1]
    return told


def left(told: list[Metrics]) -> list[int]:
    """What was delivered after each batch."""
    delivered = [one.delivered for one in told]
    return [sum(delivered[number + 1 :]) for number in range(len(told))]


def test_a_listener_tells_what_each_batch_of_a_stream_did(
    spark: SparkSession, local_cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    told = metered(
        spark, tmp_path, {"nameserver": local_cluster.nameserver, "topic": topic, "tags": "PAID"}
    )
    batches = range(BATCHES if HAS_ADMISSION_CONTROL else 1)
    assert [(one.name, one.batch, one.scanned) for one in told] == [
        ("measured", batch, COUNT // len(batches)) for batch in batches
    ]
    assert [one.lag for one in told] == ([30, 20, 10, 0] if HAS_ADMISSION_CONTROL else [0])
    assert sum(one.delivered for one in told) == 20
    assert [one.matching_lag for one in told] == left(told)
    assert told[-1].bytes  # of those before Spark may have gone on too fast
    assert all(one.bytes is None or one.bytes > 0 for one in told)


@by_batches
def test_the_matching_lag_of_a_stream_is_what_it_delivers_afterwards(
    spark: SparkSession, local_cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    """The matches lie at the end: their share so far says nothing of those to come."""
    told = metered(
        spark,
        tmp_path,
        {"nameserver": local_cluster.nameserver, "topic": topic, "sql": "price >= 33"},
    )
    assert [one.delivered for one in told] == [0, 0, 0, 7]
    assert [one.matching_lag for one in told] == [7, 7, 7, 0]


@by_batches
def test_without_a_filter_the_matching_lag_is_the_lag(
    spark: SparkSession, local_cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    where = {"nameserver": local_cluster.nameserver, "topic": topic}
    told = metered(spark, tmp_path, {**where, "tags": "*"}, every=3600)
    assert [one.matching_lag for one in told] == [one.lag for one in told] == [30, 20, 10, 0]


@by_batches
def test_brokers_are_asked_now_and_then_and_batches_between_have_no_matching_lag(
    spark: SparkSession, local_cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    where = {"nameserver": local_cluster.nameserver, "topic": topic}
    told = metered(spark, tmp_path, {**where, "sql": "price >= 33"}, every=3600)
    assert [one.matching_lag for one in told] == [7, None, None, 0]


@by_batches
def test_what_a_broker_can_not_count_is_not_guessed(
    spark: SparkSession, local_cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    where = {"nameserver": local_cluster.nameserver, "topic": topic}
    with _as_apache_s(local_cluster):
        told = metered(spark, tmp_path, {**where, "tags": "PAID"})
    assert [one.lag for one in told] == [30, 20, 10, 0]
    assert [one.matching_lag for one in told] == [None, None, None, 0]
    newer = {"sql": "price >= 33", "dialect": "5.1.3", "filterAt": "reader"}
    told = metered(spark, tmp_path, {**where, **newer})
    assert [one.matching_lag for one in told] == [None, None, None, 0]


@by_batches
def test_nobody_counts_in_the_files_of_a_store(
    spark: SparkSession, local_cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    where = {"path": str(local_cluster.store), "topic": topic}
    told = metered(spark, tmp_path, {**where, "tags": "PAID"})
    assert [one.matching_lag for one in told] == [None, None, None, 0]
    told = metered(spark, tmp_path, where)
    assert [one.matching_lag for one in told] == [30, 20, 10, 0]


def test_a_cluster_that_is_gone_is_waited_for_so_long_and_no_longer() -> None:
    gone = Backlog(
        lag=5,
        ranges=(Range(MessageQueue("T", "broker-a", 0), 0, 5),),
        source={"nameserver": "127.0.0.1:1", "tags": "a"},
    )
    began = time.monotonic()
    assert matching_lag([gone], 1.0, INSECURE) is None
    assert time.monotonic() - began < 10.0
    known = Backlog(lag=5, ranges=gone.ranges, source={"nameserver": "127.0.0.1:1"})
    assert matching_lag([known, known], 1.0, INSECURE) == 10
    assert matching_lag([known, gone], 1.0, INSECURE) is None


@contextmanager
def _as_apache_s(cluster: LocalCluster) -> Iterator[None]:
    """Its brokers do not know the request."""
    assert cluster._running is not None
    routes: Any = cluster._running[0].server._routes  # type: ignore[attr-defined]
    taken = routes.pop(RequestCode.COUNT_MATCHES)
    try:
        yield
    finally:
        routes[RequestCode.COUNT_MATCHES] = taken
