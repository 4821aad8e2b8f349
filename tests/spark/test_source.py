"""Batch reads: the same rows by the client, over the wire and from the files, of every broker."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from client.targets import SETTINGS, TARGETS, Cluster, running
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tamis.client import blocking
from tamis.client.config import ConsumerConfig
from tamis.message import Message
from tamis.spark import reason

COUNT, QUEUES = 400, 4
TAGS = ["PAID", "REFUND", "NEW", ""]


class Filled(NamedTuple):
    cluster: Cluster
    store: Path
    topic: str
    broker: str


def message(topic: str, number: int) -> Message:
    properties = {"region": "eu" if number % 3 else "us", "price": str(number)}
    if number % 50 == 0:
        properties["price"] = "cheap"  # no number: SQL fails on it
    body = f"body {number}".encode() * (1 if number % 7 else 1000)  # some are compressed
    return Message(
        topic, body, tags=TAGS[number % 4] or None, keys=[f"k{number}"], properties=properties
    )


@pytest.fixture(scope="module", params=TARGETS)
def filled(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Filled]:
    """A topic of every broker."""
    with filling(request.param, tmp_path_factory.mktemp("filled")) as filled:
        yield filled


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    with filling("tamis", tmp_path_factory.mktemp("ours")) as filled:
        yield filled


@contextmanager
def filling(target: str, home: Path) -> Iterator[Filled]:
    with running(target, home, **SETTINGS) as cluster:
        topic = Cluster.name("Rows")
        with blocking.Admin(cluster.nameserver) as admin:
            admin.create_topic(topic, queues=QUEUES)
            with blocking.Producer(cluster.nameserver) as producer:
                sent = [producer.submit(message(topic, n)) for n in range(COUNT)]
                for one in sent:
                    one.result(30)
            while sum(one.end for one in admin.topic(topic).queues) < COUNT:
                pass
            broker = admin.topic(topic).queues[0].queue.broker_name
        yield Filled(cluster, home / "store", topic, broker)


def by_client(filled: Filled, count: int, **filters: str) -> list[tuple[Any, ...]]:
    """All rows there are, of the client's record batches."""
    rows: list[tuple[Any, ...]] = []
    group = Cluster.name("Reader")
    config = ConsumerConfig(start="first")
    consumer = blocking.Consumer(filled.cluster.nameserver, group, config=config)
    with blocking.Admin(filled.cluster.nameserver) as admin:
        queues = [one.queue for one in admin.topic(filled.topic).queues]
    consumer.assign(queues, **filters)
    with consumer:
        for batch in consumer.batches(idle=10):
            rows += [
                comparable({**row, "properties": dict(row["properties"])})
                for row in batch.to_pylist()
            ]
            if len(rows) >= count:
                break
    return sorted(rows)


def by_spark(df: DataFrame) -> list[tuple[Any, ...]]:
    assert df.columns == DEFAULT
    return sorted(comparable(row.asDict()) for row in df.collect())


DEFAULT = [
    *("topic", "broker", "queue_id", "offset", "store_timestamp", "born_timestamp", "tags"),
    *("keys", "properties", "body", "message_id"),
]


def comparable(row: dict[str, Any]) -> tuple[Any, ...]:
    def plain(value: Any) -> Any:
        if isinstance(value, datetime):
            if value.tzinfo is None:  # Spark's are of the session's time zone, which is UTC
                value = value.replace(tzinfo=UTC)
            return value.timestamp()
        return sorted(value.items()) if isinstance(value, dict) else value

    values = [plain(row[name]) for name in DEFAULT]
    return tuple("" if one is None else bytes(one) if isinstance(one, bytearray) else one
                 for one in values)  # fmt: skip


def wire(spark: SparkSession, filled: Filled, **options: Any) -> DataFrame:
    reader = spark.read.format("rocketmq").option("nameserver", filled.cluster.nameserver)
    return reader.options(**options).load(filled.topic)


def files(spark: SparkSession, filled: Filled, **options: Any) -> DataFrame:
    reader = spark.read.format("rocketmq-log").option("topic", filled.topic)
    return reader.option("broker", filled.broker).options(**options).load(str(filled.store))


@pytest.mark.parametrize(
    ("filters", "is_wanted"),
    [
        ({}, lambda n: True),
        ({"tags": "PAID || NEW"}, lambda n: n % 4 in (0, 2)),
        ({"sql": "region = 'eu' AND price > 100"}, lambda n: n % 3 and n > 100 and n % 50),
    ],
    ids=["all", "tags", "sql"],
)
def test_the_same_rows_come_three_ways(
    spark: SparkSession,
    filled: Filled,
    filters: dict[str, str],
    is_wanted: Callable[[int], bool],
) -> None:
    expected = sum(bool(is_wanted(n)) for n in range(COUNT))
    rows = by_client(filled, expected, **filters)
    assert len(rows) == expected
    assert by_spark(wire(spark, filled, **filters)) == rows
    assert by_spark(files(spark, filled, **filters)) == rows
    if filters:
        assert by_spark(wire(spark, filled, **filters, filterAt="reader")) == rows


def test_ranges_are_cut_and_each_message_is_in_one(spark: SparkSession, ours: Filled) -> None:
    for df in (
        wire(spark, ours, minPartitions=9, columns="queue_id,offset"),
        wire(spark, ours, maxRecordsPerPartition=30, columns="queue_id,offset"),
        files(spark, ours, maxRecordsPerPartition=30, columns="queue_id,offset"),
    ):
        assert df.rdd.getNumPartitions() >= 9
        rows = df.collect()
        assert len(set(rows)) == len(rows) == COUNT


def test_offsets_and_times_bound_what_is_read(spark: SparkSession, filled: Filled) -> None:
    every = wire(spark, filled, columns="queue_id,offset,store_timestamp").collect()
    ends = {n: max(row.offset for row in every if row.queue_id == n) + 1 for n in range(QUEUES)}
    start = {filled.topic: {filled.broker: {"0": 5, "1": -2, "2": -1, "3": 0}}}
    end = {filled.topic: {filled.broker: {"0": 15, "1": 3, "2": -1, "3": -1}}}
    bounds = {"startingOffsets": json.dumps(start), "endingOffsets": json.dumps(end)}
    expected = {(0, n) for n in range(5, 15)} | {(1, n) for n in range(3)}
    expected |= {(3, n) for n in range(ends[3])}
    for read in (wire, files):
        rows = read(spark, filled, columns="queue_id,offset", **bounds).collect()
        assert {tuple(row) for row in rows} == expected
        assert len(rows) == len(expected)
    times = sorted(row.store_timestamp.replace(tzinfo=UTC) for row in every)
    first, last = times[COUNT // 4], times[COUNT // 2]
    span = {"startingTimestamp": first.isoformat(), "endingTimestamp": last.isoformat()}
    for read in (wire, files):
        rows = read(spark, filled, columns="store_timestamp", **span).collect()
        got = sorted(row.store_timestamp.replace(tzinfo=UTC) for row in rows)
        assert got == [time for time in times if first <= time < last]


@pytest.mark.smoke
def test_named_properties_are_columns_of_their_type(spark: SparkSession, ours: Filled) -> None:
    for read in (wire, files):
        df = read(spark, ours, columns="keys,property_string", properties="region,price:int")
        assert df.dtypes[2:] == [("region", "string"), ("price", "int")]
        for row in df.collect():
            number = int(row.keys[1:])
            assert row.region == ("eu" if number % 3 else "us")
            assert row.price == (number if number % 50 else None)
            price = number if number % 50 else "cheap"
            assert f"price\x01{price}\x02" in row.property_string + "\x02"


@contextmanager
def pushing(spark: SparkSession) -> Iterator[None]:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        yield
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")


@pytest.mark.parametrize(
    ("where", "is_wanted"),
    [
        ("tags = 'PAID'", lambda n: n % 4 == 0),
        ("tags IN ('PAID', 'NEW') AND price >= 100", lambda n: not n % 2 and n >= 100 and n % 50),
        ("tags IS NULL", lambda n: n % 4 == 3),
        ("NOT tags = 'PAID'", lambda n: n % 4 in (1, 2)),
        ("region <> 'eu' AND keys LIKE 'k1%'", lambda n: not n % 3 and str(n)[0] == "1"),
        ("price < 10 OR tags = 'NEW'", lambda n: (n % 50 and n < 10) or n % 4 == 2),
        ("queue_id = 2 AND offset > 10 AND offset <= 20", None),
        ("topic = 'another'", lambda n: False),
        ("store_timestamp > timestamp'2000-01-01'", lambda n: True),
        ("store_timestamp > timestamp'2100-01-01'", lambda n: False),
    ],
)
def test_a_where_gives_the_same_rows_whether_it_is_pushed_or_not(
    spark: SparkSession, ours: Filled, where: str, is_wanted: Callable[[int], bool] | None
) -> None:
    columns = "topic,queue_id,offset,tags,keys,store_timestamp"
    options = {"columns": columns, "properties": "region,price:int"}
    found = [{row.keys for row in files(spark, ours, **options).where(where).collect()}]
    with pushing(spark):
        for read in (wire, files):
            rows = read(spark, ours, **options).where(where).collect()
            found.append({row.keys for row in rows})
    assert found[0] == found[1] == found[2]
    if is_wanted is None:
        assert len(found[0]) == 10
    else:
        assert found[0] == {f"k{n}" for n in range(COUNT) if is_wanted(n)}


def test_a_pushed_where_leaves_nothing_to_spark(spark: SparkSession, ours: Filled) -> None:
    def plan(where: str) -> str:
        df = wire(spark, ours, columns="offset,tags").where(where)
        return str(df._jdf.queryExecution().executedPlan().toString())

    assert "Filter (" in plan("tags = 'PAID' AND offset < 5")
    with pushing(spark):
        assert "Filter (" not in plan("tags = 'PAID' AND offset < 5")
        assert "Filter (" in plan("tags = 'PAID' AND offset + 1 < 5")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"topik": "x"}, "there is no option topik: did you mean topic?"),
        ({"sql": "price >"}, "column 8"),
        ({"startingOffsets": '{"%s": {"%s": {"0": 1}}}'}, "name every queue"),
        ({"startingOffsets": '{"%s": {"%s": {"0":999,"1":0,"2":0,"3":0}}}'}, "has no offset 999"),
    ],
)
def test_what_can_not_be_is_told_in_a_line_before_a_job_starts(
    spark: SparkSession, ours: Filled, options: dict[str, str], told: str
) -> None:
    names = (ours.topic, ours.broker)
    given = {name: text % names if "%s" in text else text for name, text in options.items()}
    with pytest.raises(PySparkException) as caught:
        wire(spark, ours, **given).collect()
    assert told in (reason(caught.value) or str(caught.value))


def test_a_missing_topic_and_a_dead_broker_are_told(spark: SparkSession, ours: Filled) -> None:
    reader = spark.read.format("rocketmq").option("retries", 0).option("requestTimeout", "2s")
    with pytest.raises(PySparkException) as caught:
        reader.option("nameserver", ours.cluster.nameserver).load("nosuch").collect()
    assert "nosuch" in (reason(caught.value) or "")
    with pytest.raises(PySparkException) as caught:
        reader.option("nameserver", "127.0.0.1:1").load(ours.topic).collect()
    assert "127.0.0.1:1" in (reason(caught.value) or "")
    with pytest.raises(PySparkException) as caught:
        spark.read.format("rocketmq-log").load("/nosuch").collect()
    assert "/nosuch" in (reason(caught.value) or "")
