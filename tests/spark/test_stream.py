"""Streams: what a trigger takes, what a restart goes on with, what is told of it."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from sparkling import create_topic, send_all

from tamis.client import blocking
from tamis.message import Message
from tamis.pipeline.causes import is_slow_start
from tamis.spark import progress, reason
from tamis.spark.limits import HAS_ADMISSION_CONTROL
from tamis.testing import LocalCluster

COUNT = 90


@pytest.fixture(scope="module")
def topic(local_cluster: LocalCluster) -> str:
    create_topic(local_cluster, "Streamed", 3)
    fill(local_cluster, "Streamed", range(COUNT))
    return "Streamed"


def fill(cluster: LocalCluster, topic: str, numbers: range) -> None:
    send_all(
        cluster,
        [Message(topic, str(n), tags="AB"[n % 2], properties={"n": str(n)}) for n in numbers],
    )


def stream(spark: SparkSession, cluster: LocalCluster, topic: str, **options: Any) -> DataFrame:
    reader = spark.readStream.format("rocketmq").option("nameserver", cluster.nameserver)
    given = {"startingOffsets": "earliest", "columns": "topic,queue_id,offset,body,tags"} | options
    return reader.options(**given).load(topic)


def run(df: DataFrame, home: Path, out: str = "out") -> StreamingQuery:
    """All that is there, into Parquet; begun again where a busy machine did not start Python in the
    10 seconds that Spark waits."""
    writer = (
        df.writeStream.format("parquet")
        .option("checkpointLocation", str(home / "checkpoint"))
        .option("path", str(home / out))
        .trigger(availableNow=True)
    )
    for is_last in (False, False, True):
        query = writer.start()
        try:
            assert query.awaitTermination(180)
            break
        except StreamingQueryException as error:
            if is_last or not is_slow_start(error):
                raise
    return query


def bodies(spark: SparkSession, home: Path, out: str = "out") -> list[int]:
    return sorted(int(bytes(row.body)) for row in spark.read.parquet(str(home / out)).collect())


def wait_for(condition: Callable[[], Any], seconds: float = 120) -> Any:
    deadline = time.monotonic() + seconds
    while not (seen := condition()):
        assert time.monotonic() < deadline, seen
        time.sleep(0.05)
    return seen


@pytest.mark.skipif(not HAS_ADMISSION_CONTROL, reason="PySpark 4.1 has none: see below")
def test_available_now_takes_what_is_there_in_triggers_of_so_many(
    spark: SparkSession, local_cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    query = run(stream(spark, local_cluster, topic, maxOffsetsPerTrigger=40), tmp_path)
    told = [one.numInputRows for one in query.recentProgress if one.numInputRows]
    assert told == [40, 40, 10]
    assert bodies(spark, tmp_path) == list(range(COUNT))
    last = progress(query.lastProgress)
    assert last is not None
    assert (last.lag, last.scanned_in_all) == (0, COUNT)


@pytest.mark.skipif(HAS_ADMISSION_CONTROL, reason="only PySpark 4.1 has a single batch")
def test_available_now_in_a_single_batch_refuses_a_most_and_takes_all(
    spark: SparkSession, local_cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    with pytest.raises(StreamingQueryException) as caught:
        run(stream(spark, local_cluster, topic, maxOffsetsPerTrigger=40), tmp_path)
    assert "set option trigger to interval" in (reason(caught.value) or "")
    query = run(stream(spark, local_cluster, topic), tmp_path)
    assert [one.numInputRows for one in query.recentProgress if one.numInputRows] == [COUNT]
    assert bodies(spark, tmp_path) == list(range(COUNT))


@pytest.mark.smoke
def test_triggers_by_time_take_so_many_and_go_on_where_they_were(
    spark: SparkSession, local_cluster: LocalCluster, tmp_path: Path
) -> None:
    """Under every PySpark, with the option that 4.1 asks for. Batch 1 fails, is done again with the
    same messages though more have come, and what follows is limited too."""
    create_topic(local_cluster, "Limited", 3)
    fill(local_cluster, "Limited", range(COUNT))
    taken: dict[int, list[list[int]]] = {}

    def take(rows: DataFrame, batch: int) -> None:
        tries = taken.setdefault(batch, [])
        tries.append(sorted(int(bytes(row.body)) for row in rows.collect()))
        if batch == 1 and len(tries) == 1:
            raise RuntimeError("a crash")

    def start() -> StreamingQuery:
        df = stream(spark, local_cluster, "Limited", maxOffsetsPerTrigger=30, trigger="interval")
        writer = df.writeStream.foreachBatch(take).trigger(processingTime="0 seconds")
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    query = start()
    with pytest.raises(StreamingQueryException, match="a crash"):
        query.awaitTermination(180)
    told = progress(query.recentProgress[0])
    assert told is not None
    assert (told.scanned, told.lag) == (30, 60)
    fill(local_cluster, "Limited", range(COUNT, COUNT + 30))
    query = start()
    try:
        wait_for(lambda: (last := progress(query.lastProgress)) and last.scanned_in_all == 120)
        told = progress(query.lastProgress)
        assert told is not None
        assert told.lag == 0
    finally:
        query.stop()
    assert taken[1][0] == taken[1][1]
    assert [len(taken[batch][-1]) for batch in range(4)] == [30, 30, 30, 30]
    assert sorted(n for tries in taken.values() for n in tries[-1]) == list(range(120))


def test_a_query_that_runs_again_goes_on_where_it_was(
    spark: SparkSession, local_cluster: LocalCluster, tmp_path: Path
) -> None:
    create_topic(local_cluster, "Again", 3)
    fill(local_cluster, "Again", range(30))
    run(stream(spark, local_cluster, "Again"), tmp_path)
    fill(local_cluster, "Again", range(30, 50))
    query = run(stream(spark, local_cluster, "Again"), tmp_path)
    assert sum(one.numInputRows for one in query.recentProgress) == 20
    assert bodies(spark, tmp_path) == list(range(50))


def test_progress_tells_what_was_scanned_and_what_was_delivered(
    spark: SparkSession, local_cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    query = run(stream(spark, local_cluster, topic, tags="A"), tmp_path)
    told = next(one for one in map(progress, query.recentProgress) if one and one.scanned)
    assert (told.scanned, told.delivered, told.lag) == (COUNT, COUNT // 2, 0)
    source = json.loads(query.lastProgress.json)["sources"][0]
    assert source["endOffset"][""]["scanned"] == COUNT


def test_progress_is_committed_for_the_group(
    spark: SparkSession, local_cluster: LocalCluster, topic: str, tmp_path: Path
) -> None:
    run(stream(spark, local_cluster, topic, groupId="Progress"), tmp_path)
    if not HAS_ADMISSION_CONTROL:  # nothing is asked after the single batch: the next run tells
        run(stream(spark, local_cluster, topic, groupId="Progress"), tmp_path)
    with blocking.Admin(local_cluster.nameserver) as admin:
        found = admin.offsets("Progress", topic)
    assert sum(one.lag for one in found) == 0
    assert len(found) == 3


def test_a_trigger_waits_for_as_many_as_it_is_told_or_so_long(
    spark: SparkSession, local_cluster: LocalCluster, tmp_path: Path
) -> None:
    create_topic(local_cluster, "Few", 3)
    fill(local_cluster, "Few", range(10))
    df = stream(spark, local_cluster, "Few", minOffsetsPerTrigger=30, maxTriggerDelay="1h")
    query = df.writeStream.format("memory").queryName("few").start()
    try:
        wait_for(lambda: spark.table("few").count() == 10)  # the first waits for none
        fill(local_cluster, "Few", range(10, 20))
        wait_for(lambda: query.status["message"].startswith("Waiting for"))
        assert spark.table("few").count() == 10
        fill(local_cluster, "Few", range(20, 40))
        wait_for(lambda: spark.table("few").count() == 40)
    finally:
        query.stop()


def test_queues_that_appear_are_read_from_their_beginning(
    spark: SparkSession, local_cluster: LocalCluster, tmp_path: Path
) -> None:
    create_topic(local_cluster, "Grows", 1)
    fill(local_cluster, "Grows", range(5))
    df = stream(spark, local_cluster, "Grows", startingOffsets="latest")
    query = df.writeStream.format("memory").queryName("grows").start()
    try:
        wait_for(lambda: query.lastProgress is not None)
        create_topic(local_cluster, "Grows", 3)
        fill(local_cluster, "Grows", range(5, 25))
        wait_for(lambda: spark.table("grows").count() == 20)
        assert {row.queue_id for row in spark.table("grows").collect()} == {0, 1, 2}
    finally:
        query.stop()


def test_a_broker_that_lost_its_disk_is_data_loss_or_read_from_its_beginning(
    spark: SparkSession, tmp_path: Path
) -> None:
    with LocalCluster(log_file_size=2**24) as cluster:
        create_topic(cluster, "Anew", 1)
        fill(cluster, "Anew", range(10))
        run(stream(spark, cluster, "Anew"), tmp_path)
        cluster.stop_broker()
        assert cluster.store is not None
        shutil.rmtree(cluster.store)
        cluster.start_broker()
        create_topic(cluster, "Anew", 1)
        fill(cluster, "Anew", range(10, 13))
        with pytest.raises(StreamingQueryException) as caught:
            run(stream(spark, cluster, "Anew"), tmp_path)
        assert "set failOnDataLoss to false" in (reason(caught.value) or "")
        run(stream(spark, cluster, "Anew", failOnDataLoss="false"), tmp_path)
        if not HAS_ADMISSION_CONTROL:  # its single batch went to the beginning
            run(stream(spark, cluster, "Anew", failOnDataLoss="false"), tmp_path)
        assert bodies(spark, tmp_path) == list(range(13))


def test_the_files_of_a_store_can_be_streamed_while_its_broker_runs(
    spark: SparkSession, local_cluster: LocalCluster, tmp_path: Path
) -> None:
    create_topic(local_cluster, "Tailed", 2)
    fill(local_cluster, "Tailed", range(20))

    def tailed() -> DataFrame:
        reader = spark.readStream.format("rocketmq-log").option("topic", "Tailed")
        return reader.option("startingOffsets", "earliest").load(str(local_cluster.store))

    run(tailed(), tmp_path)
    fill(local_cluster, "Tailed", range(20, 35))
    run(tailed(), tmp_path)
    assert bodies(spark, tmp_path) == list(range(35))
