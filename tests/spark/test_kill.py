"""A query killed in the middle of a batch, and again, loses nothing and doubles nothing."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession
from sparkling import create_topic, send_all

from tamis.message import Message
from tamis.spark.limits import HAS_ADMISSION_CONTROL
from tamis.testing import LocalCluster

COUNT, A_BATCH = 600, 200

# Slow enough to be killed: each batch of rows says that it has begun, and takes its time.
PROGRAM = """
import os, sys, time
import tamis.spark
from tamis.spark.limits import HAS_ADMISSION_CONTROL

nameserver, home, marks = sys.argv[1:]

def slowly(batches):
    for batch in batches:
        open(f"{marks}/{time.time_ns()}-{os.getpid()}", "w").close()
        time.sleep(0.15)
        yield batch

config = {"spark.driver.memory": "1g", "spark.sql.execution.arrow.maxRecordsPerBatch": "20"}
spark = tamis.spark.session(master="local[2]", config=config)
limit = {"maxOffsetsPerTrigger": 200} if HAS_ADMISSION_CONTROL else {}
rows = (
    spark.readStream.format("rocketmq").option("nameserver", nameserver)
    .option("startingOffsets", "earliest").options(**limit)
    .option("columns", "queue_id,offset").load("Killed")
)
query = (
    rows.mapInArrow(slowly, rows.schema).writeStream.format("parquet")
    .option("checkpointLocation", home + "/checkpoint").option("path", home + "/out")
    .trigger(availableNow=True).start()
)
query.awaitTermination()
"""


def start(cluster: LocalCluster, home: Path) -> "subprocess.Popen[bytes]":
    marks = home / "marks"
    marks.mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, cluster.nameserver, str(home), str(marks)],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def kill_after(cluster: LocalCluster, home: Path, count: int) -> None:
    """Once so many more pieces of batches are begun."""
    before = len(list((home / "marks").glob("*"))) if (home / "marks").exists() else 0
    running = start(cluster, home)
    deadline = time.monotonic() + 300
    while len(list((home / "marks").glob("*"))) < before + count:
        assert running.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < deadline, "it did not come so far"
        time.sleep(0.02)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait(30)


def test_a_query_killed_in_mid_batch_loses_and_doubles_nothing(
    spark: SparkSession, local_cluster: LocalCluster, tmp_path: Path
) -> None:
    create_topic(local_cluster, "Killed", 3)
    send_all(local_cluster, [Message("Killed", str(n)) for n in range(COUNT)])
    kill_after(local_cluster, tmp_path, 3)  # in the first batch
    kill_after(local_cluster, tmp_path, 14)  # some batches later
    last = start(local_cluster, tmp_path)
    assert last.wait(400) == 0
    batches = list((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"))
    assert len(batches) == (COUNT // A_BATCH if HAS_ADMISSION_CONTROL else 1)
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert len(rows) == len(set(rows)) == COUNT
