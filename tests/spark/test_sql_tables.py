"""Topics and stores as tables of Spark's catalog, and as views: created, read back, refused."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession
from sparkling import create_topic, sample_orders, send_all

from tamis.spark import reason
from tamis.testing import LocalCluster


@pytest.fixture(scope="module")
def orders(local_cluster: LocalCluster) -> str:
    create_topic(local_cluster, "orders")
    send_all(local_cluster, sample_orders("orders", 90))
    return f"nameserver '{local_cluster.nameserver}', topic 'orders'"


@pytest.fixture
def sql(spark: SparkSession, tmp_path: Path) -> Iterator[SparkSession]:
    """A database of the test's own."""
    spark.sql(f"CREATE DATABASE tried LOCATION '{tmp_path}'")
    spark.sql("USE tried")
    yield spark
    spark.sql("USE default")
    spark.sql("DROP DATABASE tried CASCADE")


def only(spark: SparkSession, query: str) -> object:
    ((value,),) = spark.sql(query).collect()
    return value


def refusal(spark: SparkSession, query: str) -> str:
    """Our line, the only one of ours in what Spark says."""
    with pytest.raises(PySparkException) as caught:
        spark.sql(query).collect()
    assert str(caught.value).count("tamis.errors.") == 1
    return reason(caught.value) or ""


def test_a_table_is_read_back_in_this_session_and_in_another(
    sql: SparkSession, orders: str
) -> None:
    sql.sql(f"CREATE TABLE o USING rocketmq OPTIONS ({orders}, sql 'price >= 80')")
    assert only(sql, "SELECT count(*) FROM o WHERE tags = 'paid'") == 3
    assert sql.read.table("o").count() == 10
    assert sql.newSession().table("tried.o").where("properties['price'] = '85'").count() == 1
    assert sql.table("o").columns[:3] == ["topic", "broker", "queue_id"]


def test_a_table_has_the_columns_its_options_ask_for(sql: SparkSession, orders: str) -> None:
    sql.sql(
        f"CREATE TABLE o USING rocketmq OPTIONS ({orders},"
        " Columns 'tags,offset', properties 'price:int') COMMENT 'all' TBLPROPERTIES (owned 'me')"
    )
    assert only(sql, "SELECT max(price) FROM o WHERE tags = 'new'") == 87
    kinds = [(one.name, one.dataType.simpleString()) for one in sql.table("o").schema]
    assert kinds == [("tags", "string"), ("offset", "bigint"), ("price", "int")]


def test_options_of_a_query_go_before_those_of_the_table(sql: SparkSession, orders: str) -> None:
    sql.sql(f"CREATE TABLE o USING rocketmq OPTIONS ({orders}, tags 'new')")
    assert only(sql, "SELECT count(*) FROM o WITH (tags 'new || paid')") == 60
    assert sql.read.option("tags", "*").table("o").count() == 90
    assert only(sql, "SELECT count(*) FROM o") == 30
    told = refusal(sql, "SELECT * FROM o WITH (columns 'tags')")
    assert told.startswith("the columns of this table are not those of its options")


def test_a_table_is_streamed(sql: SparkSession, orders: str) -> None:
    sql.sql(
        f"CREATE TABLE o USING rocketmq OPTIONS ({orders},"
        " startingOffsets 'earliest', maxTriggerDelay '1m')"
    )
    assert sql.table("o").count() == 90  # a batch has no triggers
    query = (
        sql.readStream.table("o")
        .select("offset")
        .writeStream.format("memory")
        .queryName("streamed_table")
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert sql.table("streamed_table").count() == 90


def test_a_topic_has_no_location(sql: SparkSession, orders: str) -> None:
    at = f"CREATE TABLE o USING rocketmq OPTIONS ({orders}) LOCATION '/tmp/orders'"
    by_path = f"CREATE TABLE o USING rocketmq OPTIONS ({orders}, path 'orders')"
    for query in (at, by_path):
        assert refusal(sql, query).startswith("a topic has no LOCATION and no option path")
        assert not sql.catalog.tableExists("o")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("topic 'orders'", "option nameserver is missing"),
        ("nameserver 'n:1', topik 'orders'", "there is no option topik: did you mean topic?"),
        ("nameserver 'n:1', topic 'o', columns 'bodi'", "option columns: there is no column"),
        ("nameserver 'n:1', topic 'o', sql 'price == 3'", "column 8: expected a value"),
    ],
)  # fmt: skip
def test_bad_options_are_refused_when_the_table_is_created(
    sql: SparkSession, options: str, told: str
) -> None:
    assert refusal(sql, f"CREATE TABLE o USING rocketmq OPTIONS ({options})").startswith(told)
    assert not sql.catalog.tableExists("o")


def test_columns_in_the_statement_are_refused_when_it_is_read(
    sql: SparkSession, orders: str
) -> None:
    """Spark does not ask a Python source when it creates such a table."""
    sql.sql(f"CREATE TABLE o (offset BIGINT, colour STRING) USING rocketmq OPTIONS ({orders})")
    assert "created with a list of columns" in refusal(sql, "SELECT * FROM o")
    view = f"CREATE TEMPORARY VIEW v (colour STRING) USING rocketmq OPTIONS ({orders})"
    sql.sql(view)
    assert "a list of columns: leave it out" in refusal(sql, "SELECT * FROM v")
    sql.catalog.dropTempView("v")


def test_rows_are_inserted_with_the_options_of_the_statement(
    sql: SparkSession, local_cluster: LocalCluster
) -> None:
    create_topic(local_cluster, "inserted")
    where = f"nameserver '{local_cluster.nameserver}', topic 'inserted'"
    sql.sql(f"CREATE TABLE t USING rocketmq OPTIONS ({where})")
    sql.sql(
        f"INSERT INTO t WITH ({where}) (body, tags, properties)"
        " VALUES (CAST('lamp' AS BINARY), 'new', map('price', '7'))"
    )
    row = only(sql, "SELECT struct(string(body), tags, properties['price'], topic) FROM t")
    assert tuple(row) == ("lamp", "new", "7", "inserted")
    sql.sql(f"INSERT INTO t WITH ({where}) SELECT * FROM t")
    assert sql.table("t").count() == 2
    told = refusal(sql, "INSERT INTO t SELECT * FROM t")
    assert "INSERT INTO name WITH (nameserver 'host:port', topic '…')" in told
    assert "can't be overwritten" in refusal(sql, f"INSERT OVERWRITE t WITH ({where}) TABLE t")
    assert sql.table("t").count() == 2


def test_rows_of_one_table_never_go_to_the_topic_they_came_from(
    sql: SparkSession, orders: str, local_cluster: LocalCluster
) -> None:
    """Same columns, so Spark hands the columns of the first on as they are."""
    create_topic(local_cluster, "other")
    sql.sql(f"CREATE TABLE o USING rocketmq OPTIONS ({orders})")
    sql.sql(f"CREATE TABLE other USING rocketmq OPTIONS ({orders.replace('orders', 'other')})")
    assert "Spark does not hand over" in refusal(sql, "INSERT INTO other SELECT * FROM o")
    assert sql.table("o").count() == 90


def test_a_table_made_of_a_query_is_refused(
    sql: SparkSession, orders: str, local_cluster: LocalCluster
) -> None:
    create_topic(local_cluster, "saved")
    sql.sql(f"CREATE TABLE o USING rocketmq OPTIONS ({orders})")
    told = refusal(sql, f"CREATE TABLE c USING rocketmq OPTIONS ({orders}) AS SELECT * FROM o")
    assert "Spark does not hand over the options of a table" in told
    assert not sql.catalog.tableExists("c")
    (
        sql.table("o")
        .write.format("rocketmq")
        .option("nameserver", local_cluster.nameserver)
        .option("topic", "saved")
        .saveAsTable("s")
    )
    assert "AS SELECT or by saveAsTable" in refusal(sql, "SELECT * FROM s")


def test_a_stores_directory_is_a_table(
    sql: SparkSession, orders: str, local_cluster: LocalCluster
) -> None:
    store = Path(local_cluster.store)
    sql.sql(f"CREATE TABLE l USING `rocketmq-log` OPTIONS (topic 'orders') LOCATION '{store}'")
    sql.sql(f"CREATE TABLE p USING `rocketmq-log` OPTIONS (topic 'orders', path '{store}')")
    assert only(sql, "SELECT count(*) FROM l") == 90
    assert only(sql, "SELECT count(*) FROM p WITH (sql 'price < 10')") == 10
    assert "only read" in refusal(sql, "INSERT INTO l SELECT * FROM p")
    files = sorted(store.rglob("*"))
    with pytest.raises(AnalysisException):
        sql.sql("TRUNCATE TABLE l")
    sql.sql("DROP TABLE l")
    assert sorted(store.rglob("*")) == files
    assert only(sql, "SELECT count(*) FROM p") == 90
    told = refusal(sql, "CREATE TABLE n USING `rocketmq-log` OPTIONS (topic 'orders')")
    assert told.startswith("name the store's directory")


def test_a_temporary_view_is_read_and_filtered(sql: SparkSession, orders: str) -> None:
    sql.sql(f"CREATE TEMPORARY VIEW v USING rocketmq OPTIONS ({orders}, tags 'sent')")
    assert only(sql, "SELECT count(*) FROM v WHERE sql92(properties, 'price < 10')") == 3
    sql.catalog.dropTempView("v")


def test_a_bad_filter_is_told_once_with_its_place(sql: SparkSession, orders: str) -> None:
    with pytest.raises(PySparkException) as caught:
        sql.sql(f"CREATE TABLE o USING rocketmq OPTIONS ({orders}, sql 'price == 3')")
    said = str(caught.value)
    assert said.count("expected a value or a property") == 1
    assert "\nprice == 3\n       ^\n" in said
    assert said.count("\n") < 10


def test_an_error_of_a_query_is_not_logged_beside_being_raised(
    sql: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        sql.sql("SELECT * FROM nothing_of_this_name")
    with pytest.raises(AnalysisException, match="UNRESOLVED_COLUMN"):
        sql.range(1).select("nothing_of_this_name")
    assert capfd.readouterr() == ("", "")
