"""Rows to messages: each is read back by a client."""

import pickle
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, IntegerType, StringType, StructField, StructType
from sparkling import create_topic

from tamis.client import ConsumerConfig, QueueInfo, ReceivedMessage, blocking
from tamis.client.sending import hash_of
from tamis.errors import ConfigError, InvalidMessage, NoPermission, TopicNotFound, Unreachable
from tamis.message import RESERVED
from tamis.spark.schema import DEFAULT, row_type
from tamis.spark.write_options import WriteOptions
from tamis.spark.writer import BatchWriter, Written, batch_writer, stream_writer
from tamis.testing import LocalCluster, LocalNameServer


def save(df: DataFrame, cluster: LocalCluster, topic: str | None = None, **options: Any) -> None:
    writer = df.write.format("rocketmq").mode("append").option("nameserver", cluster.nameserver)
    writer.options(**options).save(topic)


TYPES = {"STRING": StringType(), "INT": IntegerType(), "ARRAY<INT>": ArrayType(IntegerType())}


def row(columns: str) -> StructType:
    """As DDL has it, without a session to parse it."""
    named = (one.split() for one in columns.split(","))
    return StructType([StructField(name, TYPES[kind]) for name, kind in named])


def received(cluster: LocalCluster, topic: str, count: int) -> list[ReceivedMessage]:
    """So many and no more, in the order of queues and offsets."""
    found = all_until(cluster, topic, lambda some: len(some) >= count)
    assert len(found) == stored(cluster, topic) == count
    return found


def all_until(
    cluster: LocalCluster, topic: str, done: Callable[[list[ReceivedMessage]], bool]
) -> list[ReceivedMessage]:
    """What is sent is queued a moment later, what is delayed later still."""
    config = ConsumerConfig(start="first", auto_commit=False)
    consumer = blocking.Consumer(cluster.nameserver, "reader", config=config)
    consumer.assign([one.queue for one in queues_of(cluster, topic)])
    found: list[ReceivedMessage] = []
    deadline = time.monotonic() + 60
    with consumer:
        while not done(found):
            assert time.monotonic() < deadline, f"{len(found)} came: {found}"
            found += consumer.getmany(500, 0.2)
    return sorted(found, key=lambda one: (one.queue.queue_id, one.offset))


def stored(cluster: LocalCluster, topic: str) -> int:
    return sum(one.end for one in queues_of(cluster, topic))


def queues_of(cluster: LocalCluster, topic: str) -> list[QueueInfo]:
    with blocking.Admin(cluster.nameserver) as admin:
        return list(admin.topic(topic).queues)


def own(message: ReceivedMessage) -> dict[str, str]:
    return {name: value for name, value in message.properties.items() if name not in RESERVED}


@pytest.mark.smoke
def test_all_columns_of_a_row_are_in_its_message(
    spark: SparkSession, local_cluster: LocalCluster
) -> None:
    rows = [
        ("one", "created", ["a", "b"], {"region": "eu", "blank": " ", "none": None}, 0, 7, "r-1"),
        ("two", None, None, None, None, None, None),
        ("late", "created", [], {}, 1, 0, "r-3"),
    ]
    columns = (
        "body STRING, tags STRING, keys ARRAY<STRING>, properties MAP<STRING,STRING>,"
        " delay_level INT, flag INT, row_key STRING"
    )
    save(spark.createDataFrame(rows, columns).coalesce(1), local_cluster, "columns")
    found = {one.body: one for one in received(local_cluster, "columns", 3)}
    one, two, late = found[b"one"], found[b"two"], found[b"late"]
    assert (one.tags, one.keys, own(one), one.flag) == (
        *("created", ("a", "b", "r-1")),
        *({"region": "eu"}, 7),
    )
    assert (two.tags, two.keys, own(two), two.flag) == (None, (), {}, 0)
    assert late.keys == ("r-3",)
    assert late.store_timestamp - late.born_timestamp >= 1000  # of level 1


def test_rows_of_a_sharding_key_are_in_its_queue_in_order(
    spark: SparkSession, local_cluster: LocalCluster
) -> None:
    create_topic(local_cluster, "sharded", queues=3)
    df = spark.range(3000).selectExpr(
        "CAST(id AS STRING) AS body", "concat('k', id % 7) AS sharding_key"
    )
    save(df.coalesce(1), local_cluster, "sharded", batchRows=50)
    queues: dict[str, list[int]] = {}
    for message in received(local_cluster, "sharded", 3000):
        number = int(message.body)
        assert message.queue.queue_id == hash_of(f"k{number % 7}") % 3
        queues.setdefault(f"k{number % 7}", []).append(number)
    assert queues == {f"k{n}": [*range(n, 3000, 7)] for n in range(7)}


def test_rows_go_to_the_topic_and_queue_they_name(
    spark: SparkSession, local_cluster: LocalCluster
) -> None:
    rows = [("left", "a", 0), ("left", "b", 3), ("right", "c", 1), ("right", "d", None)]
    df = spark.createDataFrame(rows, "topic STRING, body STRING, queue_id INT")
    save(df, local_cluster)
    left = received(local_cluster, "left", 2)
    assert [(one.body, one.queue.queue_id) for one in left] == [(b"a", 0), (b"b", 3)]
    right = {one.body: one.queue.queue_id for one in received(local_cluster, "right", 2)}
    assert right.keys() == {b"c", b"d"}
    assert right[b"c"] == 1


def test_what_was_read_can_be_written_and_has_its_origin_as_a_key(
    spark: SparkSession, local_cluster: LocalCluster
) -> None:
    properties = {"TAGS": "t", "KEYS": "k", "UNIQ_KEY": "OLD", "WAIT": "true", "DELAY": "3"}
    shared = {"topic": "orders", "broker": "b", "queue_id": 9, "tags": "t", "keys": "k"}
    shared |= {"properties": {**properties, "region": "eu"}, "message_id": "OLD"}
    rows = [
        {**shared, "offset": offset, "body": body}
        for offset, body in [(5, b"x"), (6, b"first half"), (6, b"second half"), (None, b"new")]
    ]
    df = spark.createDataFrame(
        [tuple(one.get(name) for name in DEFAULT) for one in rows], row_type(DEFAULT)
    )
    save(df.coalesce(1), local_cluster, "copy")
    found = received(local_cluster, "copy", 4)
    assert [(one.body, one.keys) for one in found][:3] == [
        (b"x", ("k", "orders/b/9/5/OLD")),
        (b"first half", ("k", "orders/b/9/6/OLD")),
        (b"second half", ("k", "orders/b/9/6/OLD/1")),
    ]
    assert found[3].body == b"new"  # it was not read from a queue
    assert found[3].keys[1].endswith("-0-3")
    for one in found:
        assert (one.tags, own(one), one.message_id != "OLD") == ("t", {"region": "eu"}, True)
        assert "DELAY" not in one.properties
    # without columns of their own, tags and keys are those among the properties
    save(df.select("body", "properties").limit(1), local_cluster, "bare", rowKey="none")
    (bare,) = received(local_cluster, "bare", 1)
    assert (bare.tags, bare.keys, own(bare)) == ("t", ("k",), {"region": "eu"})


def written(cluster: LocalCluster, topic: str, **options: str) -> BatchWriter:
    """As it comes to a task."""
    made = batch_writer(
        row("body STRING, sharding_key STRING"),
        {"nameserver": cluster.nameserver, "topic": topic, **options},
        False,
    )
    copy = pickle.loads(pickle.dumps(made))
    assert isinstance(copy, BatchWriter)
    return copy


def batches(*sizes: int) -> Iterator[pa.RecordBatch]:
    at = 0
    for size in sizes:
        bodies = [str(number) for number in range(at, at + size)]
        keys = [f"k{number % 3}" for number in range(size)]
        yield pa.record_batch({"body": bodies, "sharding_key": keys})
        at += size


def test_a_task_tried_again_gives_rows_the_same_keys(local_cluster: LocalCluster) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield from batches(10)
        all_until(local_cluster, "again", lambda some: len(some) == 10)
        raise RuntimeError("the task is lost")

    writer = written(local_cluster, "again")
    with pytest.raises(RuntimeError, match="the task is lost"):
        writer.write(failing())
    assert writer.write(batches(10, 10, 5)) == Written(rows=25, size=10 + 2 * 15)
    given: dict[bytes, set[str]] = {}
    for message in received(local_cluster, "again", 35):
        given.setdefault(message.body, set()).update(message.keys)
    assert given == {str(n).encode(): {f"{writer.options.job_id}-0-{n}"} for n in range(25)}
    assert writer.options.job_id != written(local_cluster, "again").options.job_id
    assert written(local_cluster, "again", jobId="tonight").options.job_id == "tonight"


def keys(messages: list[ReceivedMessage]) -> set[str]:
    return {key for message in messages for key in message.keys}


def test_rows_in_order_stay_so_while_the_broker_restarts() -> None:
    def restarting() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches(300, 300, 300)):
            if number == 1:
                cluster.restart_broker()
            yield batch

    with LocalCluster() as cluster:
        # more tries than usual: where other tests run too a restart takes its time
        writer = written(cluster, "restarted", batchRows="20", retries="10", requestTimeout="30s")
        assert writer.write(restarting()).rows == 900
        last: dict[str, int] = {}
        seen = set()
        for message in all_until(cluster, "restarted", lambda some: len(keys(some)) == 900):
            (key,) = message.keys
            if key not in seen:  # a repeat is dropped by its key
                seen.add(key)
                shard = f"k{int(message.body) % 300 % 3}"
                assert last.get(shard, -1) < int(message.body)
                last[shard] = int(message.body)


def test_a_micro_batch_tried_again_gives_rows_the_same_keys(
    spark: SparkSession, local_cluster: LocalCluster, tmp_path: Path
) -> None:
    source = tmp_path / "in"
    source.mkdir()

    def run(name: str) -> None:
        (source / name).write_text("".join(f"{name}-{n}\n" for n in range(5)))
        query = (
            spark.readStream.schema("body STRING")
            .text(str(source))
            .writeStream.format("rocketmq")
            .queryName("named")  # comes to the sink as an option
            .option("nameserver", local_cluster.nameserver)
            .option("topic", "stream")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(60)
        ids.add(str(query.id))

    ids: set[str] = set()
    run("a")
    shutil.rmtree(tmp_path / "checkpoint" / "commits")  # as if it had ended before
    run("b")
    given: dict[str, list[str]] = {}
    for message in received(local_cluster, "stream", 15):
        given.setdefault(message.body.decode(), []).extend(message.keys)
    (query_id,) = ids
    assert given == {
        **{f"a-{n}": [f"{query_id}-0-0-{n}"] * 2 for n in range(5)},
        **{f"b-{n}": [f"{query_id}-1-0-{n}"] for n in range(5)},
    }


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ("body STRING", {"topc": "t"}, "there is no option topc: did you mean topic?"),
        ("body STRING", {"topic": "a b"}, "can't be the name of a topic: ' ' is none of"),
        ("body STRING", {"topic": "t", "path": "t"}, "option path: another option says that"),
        ("body STRING", {"topic": "t", "retries": "x"}, "option retries: 'x' is no whole number"),
        ("body STRING", {"topic": "t", "jobId": "a b"}, "option jobId: 'a b' is empty or has"),
        ("body STRING", {"topic": "t", "maxMessageSize": "99999999"}, "max_message_size = 9999"),
        ("body STRING", {}, "give option topic, or a column topic"),
        ("tags STRING", {"topic": "t"}, "there is no column body"),
        ("body INT", {"topic": "t"}, "column body is int: it takes BINARY or STRING"),
        ("body STRING, keys ARRAY<INT>", {"topic": "t"}, "keys is array<int>: it takes STRING or"),
        ("body STRING, tag STRING", {"topic": "t"}, "column tag can't be written to a topic: drop"),
        (
            "body STRING, sharding_key STRING, queue_id INT",
            {"topic": "t"},
            "sharding_key and queue_id both name a queue",
        ),
        ("body STRING, broker STRING", {"topic": "t"}, "broker needs a column queue_id"),
    ],
)
def test_what_can_t_be_written_is_said_before_the_job(
    columns: str, options: dict[str, str], said: str
) -> None:
    given = {"nameserver": "127.0.0.1:1", **options}
    with pytest.raises(ConfigError) as caught:
        batch_writer(row(columns), given, False)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_topic_that_can_t_be_written_to_is_said_before_the_job() -> None:
    body = row("body STRING")
    with pytest.raises(ConfigError, match="option nameserver is missing"):
        WriteOptions.parse({"topic": "t"})
    with pytest.raises(Unreachable, match=r"the name server at 127\.0\.0\.1:1 can't be reached"):
        batch_writer(body, {"nameserver": "127.0.0.1:1", "topic": "t"}, False)
    with LocalNameServer() as server, pytest.raises(TopicNotFound, match="no broker is registered"):
        batch_writer(body, {"nameserver": server.nameserver, "topic": "t"}, False)
    with LocalCluster(brokerIP1="127.0.0.2") as cluster:  # where nobody listens
        given = {"nameserver": cluster.nameserver, "topic": "t"}
        with pytest.raises(Unreachable, match=r"the broker at 127\.0\.0\.2:\d+ can't be reached"):
            batch_writer(body, given, False)
    with LocalCluster() as cluster:
        given = {"nameserver": cluster.nameserver, "topic": "closed"}
        with pytest.raises(ConfigError, match="can't be overwritten"):
            batch_writer(body, given, True)
        with pytest.raises(ConfigError, match="can't be overwritten"):
            stream_writer(body, given, True)
        with blocking.Admin(cluster.nameserver) as admin:
            admin.create_topic("closed", permission="r")
        with pytest.raises(NoPermission, match="topic closed has no queue that can be written"):
            batch_writer(body, given, False)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"body": None}, "row 4: its body is null or empty"),
        ({"body": ""}, "row 4: its body is null or empty"),
        ({"body": "x" * 101}, "row 4: its body has 101 bytes, at most 100 are taken"),
        ({"keys": ["ok", "not ok"]}, "row 4: keys: 'not ok' is empty or has blanks"),
        ({"topic": None}, "row 4: it has no topic"),
        ({"topic": "a b"}, "can't be the name of a topic"),
        ({"properties": [("a\x02b", "c")]}, "separate properties"),
        ({"queue_id": 77}, "topic rows has no queue 77 to write to"),
        ({"row_key": "a b"}, "row 4: row_key: 'a b' is empty or has blanks"),
    ],
)
def test_a_row_that_is_no_message_fails_the_task_in_a_line(
    local_cluster: LocalCluster, wrong: dict[str, object], said: str
) -> None:
    kind = pa.schema(
        {
            "topic": pa.string(),
            "body": pa.string(),
            "keys": pa.list_(pa.string()),
            "properties": pa.map_(pa.string(), pa.string()),
            "queue_id": pa.int32(),
            "row_key": pa.string(),
        }
    )
    good = {"topic": "rows", "body": "fine", "keys": [], "properties": [], "queue_id": None}
    good |= {"row_key": None}
    given = {"nameserver": local_cluster.nameserver, "maxMessageSize": "100"}
    writer = BatchWriter(WriteOptions.parse(given))
    tables = [
        pa.RecordBatch.from_pylist(rows, kind) for rows in ([good] * 3, [good, {**good, **wrong}])
    ]
    with pytest.raises((InvalidMessage, ConfigError)) as caught:
        writer.write(iter(tables))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_failed_job_says_why_in_a_line(spark: SparkSession, local_cluster: LocalCluster) -> None:
    df = spark.createDataFrame([("fine",), (None,)], "body STRING").coalesce(1)
    with pytest.raises(Exception, match="InvalidMessage: partition 0, row 1: its body is null"):
        save(df, local_cluster, "failed")
    with pytest.raises(Exception, match="ConfigError: there is no option batchrow: did you mean"):
        save(df, local_cluster, "failed", batchRow=1)
