"""The sources and the filter columns over Spark Connect: a server of its own, a client of it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from spark import standalone
from sparkling import ROOT, create_topic, dear_by_tag, sample_orders, send_all

from tamis.testing import LocalCluster

EXAMPLE = ROOT / "examples" / "spark" / "dear_orders.py"

# In a process of its own: a session of Connect's changes what `SparkSession` means in a process.
PROGRAM = """\
import os

from tamis.spark import progress, reason, session, sql92, tags

NAMESERVER, SERVER, STORE, FILES = os.environ["TRIED"].split("|")
spark = session(master=SERVER)
assert session() is spark


def source(reader, name="rocketmq"):
    return reader.format(name).option("nameserver", NAMESERVER)


orders = source(spark.read).load("orders")
print("all", orders.count())
print("where", orders.where("tags = 'paid'").count())
print("sql92", orders.where(sql92("price BETWEEN 10 AND 19")).count())
print("tags", orders.where(tags("new || paid")).count())
print("at the source", source(spark.read).option("sql", "price < 10").load("orders").count())
print("log", spark.read.format("rocketmq-log").option("topic", "orders").load(STORE).count())

query = (
    source(spark.readStream)
    .option("startingOffsets", "earliest")
    .load("orders")
    .where(sql92("region = 'EU'"))
    .select("offset")
    .writeStream.format("parquet")
    .option("path", os.path.join(FILES, "out"))
    .option("checkpointLocation", os.path.join(FILES, "checkpoint"))
    .trigger(availableNow=True)
    .start()
)
assert query.awaitTermination(300)
print("stream", spark.read.parquet(os.path.join(FILES, "out")).count())
print("scanned", progress(query.lastProgress).scanned)

source(orders.select("body", "tags").limit(5).write).option("topic", "copies").mode(
    "append"
).save()
print("write", source(spark.read).load("copies").count())
try:
    source(spark.read).option("topik", "orders").load().count()
except Exception as error:
    print("refused", "topik" in str(error))

spark.sql(f"CREATE TABLE t USING rocketmq OPTIONS (nameserver '{NAMESERVER}', topic 'orders')")
print("table", spark.sql("SELECT 1 FROM t WITH (sql 'price < 10')").count())
told = "SELECT sql92_outcome(properties, 'a = 1') FROM t WHERE sql92(properties, 'price < 30')"
print("function", spark.sql(f"{told} AND tags(tags, 'new')").collect()[0][0])
print("function", spark.sql(f"{told} AND tags(tags, 'new')").count())
try:
    spark.sql(told.replace("<", "==")).collect()
except Exception as error:
    print("refused", reason(error))
spark.stop()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with standalone.connect_server(tmp_path_factory.mktemp("connect")) as address:
        yield address


def run(*command: str | Path, **variables: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, **variables},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_what_works_in_a_session_works_over_connect(
    server: str, local_cluster: LocalCluster, tmp_path: Path
) -> None:
    create_topic(local_cluster, "orders")
    create_topic(local_cluster, "copies", queues=1)
    messages = sample_orders("orders", 300)
    send_all(local_cluster, messages)
    tried = (local_cluster.nameserver, server, str(local_cluster.store), str(tmp_path))
    assert run("-c", PROGRAM, TRIED="|".join(tried)) == [
        "all 300",
        "where 100",
        "sql92 10",
        "tags 200",
        "at the source 10",
        "log 300",
        "stream 150",
        "scanned 300",
        "write 5",
        "refused True",
        "table 10",
        "function 2",
        "function 10",
        "refused column 8: expected a value or a property, found '=' (write = for 'equal')",
    ]
    example = run(EXAMPLE, "--nameserver", local_cluster.nameserver, "--master", server)
    assert example == [f"{t} {n} {total}" for t, n, total in dear_by_tag(messages)]
