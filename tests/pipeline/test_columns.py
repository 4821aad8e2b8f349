"""Columns of sinks that a message does not have; and what a run tells of itself."""

import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession
from sparkling import create_topic, send_all

from tamis.cli.main import main
from tamis.errors import ConfigError
from tamis.message import Message
from tamis.pipeline import projection
from tamis.pipeline.config import Sink
from tamis.pipeline.sinks import Sinks
from tamis.testing import LocalCluster

NUMBERS = itertools.count()
WHERE = "a.toml: subscription a: sink: "


def send(cluster: LocalCluster, topic: str, count: int) -> None:
    create_topic(cluster, topic, queues=2)
    send_all(
        cluster,
        (
            Message(
                topic,
                json.dumps({"id": n, "buyer": {"name": f"b{n}"}}),
                tags="PAID" if n % 2 else "NEW",
                keys=str(n),
                properties={"price": f"{n}.5", "region": "eu"},
            )
            for n in range(count)
        ),
    )


@pytest.fixture(autouse=True)
def _log_of_derby(spark: SparkSession, tmp_path: Path) -> None:
    """The database that comes with Spark has its log in the current directory otherwise."""
    log = str(tmp_path / "derby.log")
    spark._jvm.java.lang.System.setProperty("derby.stream.error.file", log)  # type: ignore[union-attr]


class Done(NamedTuple):
    code: object
    out: str
    err: str


@pytest.fixture
def tamis(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Done]:
    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["tamis", "pipeline", "run", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(ended.value.code, *capsys.readouterr())

    return run


WRONG = {
    ("noop", "a", "double(prise)"): "A column, .* with name `prise` cannot be resolved",
    ("noop", "a", "double("): "Syntax error at or near end of input",
    ("noop", "a", "sum(offset)"): "a column is made of one message: no aggregates",
    ("noop", "a", "explode(properties)"): "a column is made of one message",
    ("noop", "a", "row_number() OVER (ORDER BY offset)"): "a column is made of one message",
    ("noop", "a", "price_of(keys)"): "`price_of`",
    ("noop", "a", "NULL"): "it has no type: write CAST",
    ("noop", "a", "*"): "it gives several values: one for each column",
    ("noop", "order.*", "keys"): "it gives string, which has no fields",
    ("csv", "a", "properties"): r"a: it is map<string,string>, for which csv has no room",
    ("text", "a", "offset"): "a: it is bigint, text takes a string",
    ("jdbc", "a", "properties"): "a: it is map<string,string>, for which jdbc has no room",
    ("text", "o.*", "struct(keys, tags)"): "text takes one, here are keys, tags",
    ("kafka", "value", "offset"): "value: it is bigint, kafka takes string or binary",
    ("kafka", "o.*", "struct(keys AS key)"): "kafka needs a column value",
    ("kafka", "o.*", "struct(body AS value, offset)"): "offset: kafka has no room for it",
}


@pytest.mark.parametrize(("format", "name", "text"), WRONG)
def test_an_expression_that_can_t_be_written_is_told_by_its_key(
    spark: SparkSession, format: str, name: str, text: str
) -> None:
    sink = Sink(format=format, columns=(name,), expressions={name: text}, where=WHERE)
    with pytest.raises(ConfigError, match=WRONG[format, name, text]) as caught:
        projection.check(spark, sink)
    said = str(caught.value)
    assert said.startswith(f"{WHERE}columns: ")
    assert "\n" not in said


def test_a_field_of_a_flattened_struct_that_is_there_already_is_told(spark: SparkSession) -> None:
    made = {"order.*": "from_json(string(body), 'id INT, keys STRING')"}
    sink = Sink(format="noop", columns=("keys", "order.*"), expressions=made, where=WHERE)
    with pytest.raises(ConfigError, match=r"there are two called keys, one of which is a field of"):
        Sinks(spark, "x").check([sink])


@pytest.mark.parametrize("driver", [{}, {"driver": "org.example.Driver"}])
def test_a_database_without_a_driver_is_told_before_it_is_written_to(
    spark: SparkSession, driver: dict[str, str]
) -> None:
    options = {"url": "jdbc:nosuch://h/d", **driver}
    sink = Sink(format="jdbc", table="a", columns=("keys",), options=options, where=WHERE)
    with pytest.raises(ConfigError, match=r"^a.toml: .*: is the driver's package missing"):
        Sinks(spark, "x").check([sink])


def test_expressions_make_typed_tables_of_files_and_of_a_database(
    spark: SparkSession, local_cluster: LocalCluster, tmp_path: Path, tamis: Callable[..., Done]
) -> None:
    topic = f"typed-{next(NUMBERS)}"
    send(local_cluster, topic, 10)
    url = f"jdbc:derby:memory:{topic}"
    file = tmp_path / "orders.toml"
    text = f"""
        [source]
        nameserver = "{local_cluster.nameserver}"
        topic = "{topic}"
        [run]
        metrics = "metrics.jsonl"

        [[subscription]]
        group = "all"
        tags = "*"
        [subscription.sink]
        format = "parquet"
        path = "all"
        [subscription.sink.columns]
        keys = "keys"
        price = "try_cast(properties['price'] AS double)"
        "order.*" = "from_json(body, 'id BIGINT, buyer STRUCT<name: STRING>')"
        day = "date(store_timestamp)"

        [[subscription]]
        group = "paid"
        tags = "PAID"
        [subscription.sink]
        format = "parquet"
        path = "paid"
        columns = ["keys", {{ twice = "2 * offset" }}]

        [[subscription]]
        group = "base"
        tags = "NEW"
        [subscription.sink]
        format = "jdbc"
        table = "orders"
        columns = {{ id = "int(keys)", price = "double(properties['price'])" }}
        options = {{ url = "{url};create=true" }}
        """
    file.write_text(text)
    done = tamis(str(file), "--json")
    assert done.code == 0, done.err
    rows = spark.read.parquet(str(tmp_path / "all")).drop("batch")
    assert [one.simpleString() for one in rows.schema] == [
        *("keys:string", "price:double", "id:bigint", "buyer:struct<name:string>", "day:date")
    ]
    found = sorted((int(r.keys), r.price, r.id, r.buyer.name) for r in rows.collect())
    assert found == [(n, n + 0.5, n, f"b{n}") for n in range(10)]
    paid = spark.read.parquet(str(tmp_path / "paid"))
    assert sorted(int(row["keys"]) for row in paid.collect()) == [1, 3, 5, 7, 9]
    assert paid.columns == ["keys", "twice", "batch"]
    base = spark.read.jdbc(url, "orders").collect()
    assert sorted((row.id, row.price) for row in base) == [(n, n + 0.5) for n in range(0, 10, 2)]

    # What the source did is in the summary, and by batches in the file.
    metrics = json.loads(done.out)["metrics"]
    assert (metrics["scanned"], metrics["lag"], metrics["matching_lag"]) == (10, 0, 0)
    assert metrics["bytes"] > 0
    [line] = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert {name: json.loads(line)[name] for name in metrics} == metrics

    # The same file with a mistake in it is told of before anything is written, dry or not.
    file.write_text(
        text.replace("2 * offset", "2 * ofset").replace('path = "paid"', 'path = "again"')
    )
    for arguments in ((), ("--dry-run",)):
        done = tamis(str(file), *arguments)
        assert done.code == 2
        [said] = done.err.strip().splitlines()
        assert f"{file}: subscription paid: sink: columns: twice = '2 * ofset': " in said
        assert not (tmp_path / "again").exists()


def test_a_filter_that_fails_on_everything_is_told_and_can_fail_the_run(
    local_cluster: LocalCluster, tmp_path: Path, tamis: Callable[..., Done], spark: SparkSession
) -> None:
    topic = f"failing-{next(NUMBERS)}"
    send(local_cluster, topic, 4)
    for flags, code in ((), 0), (("--fail-on-filter-errors",), 1):
        file = tmp_path / f"run{code}.toml"
        file.write_text(
            f'[source]\nnameserver = "{local_cluster.nameserver}"\ntopic = "{topic}"\n'
            '[[subscription]]\ngroup = "eu"\nsql = "region > 1"\nsink = { format = "noop" }\n'
        )
        done = tamis(str(file), *flags)
        assert done.code == code, done.err
        first = done.out.splitlines()[0]
        assert "WARNING: the filter of eu failed on every message; route done: 4 messages" in first
        assert ("filters failed on messages 4 times" in done.err) is bool(code)
