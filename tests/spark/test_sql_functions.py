"""`sql92`, `sql92_outcome` and `tags` in SQL: Catalyst expressions with RocketMQ's outcomes."""

import json
from collections.abc import Iterator

import corpora
import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

import tamis.spark
from tamis.cli import evaluation
from tamis.filter import parse
from tamis.filter.engines.closures import compile_closure, evaluate
from tamis.filter.tags import parse_tags
from tamis.spark import sql_udfs
from tamis.wire import properties

MAP = pa.map_(pa.string(), pa.string())


def recorded(step: int) -> list[dict]:
    """Of the corpus: what compiles, and has properties that can be."""
    rows = [json.loads(line) for line in corpora.text("sql92").splitlines()[::step]]
    return [row for row in rows if row["compile"] == "ok"]


@pytest.fixture(scope="module")
def cases() -> list[dict]:
    return recorded(300)


@pytest.fixture(scope="module")
def messages(spark: SparkSession, cases: list[dict]) -> Iterator[DataFrame]:
    """The properties of each case, in a view: as the map and as the string that travels."""
    stored = [evaluation._stored_properties(case["props"]) for case in cases]
    maps = pa.array([None if one is None else list(one.items()) for one in stored], MAP)
    strings = [None if one is None else properties.encode(one) for one in stored]
    made = spark.createDataFrame(
        pa.table({"row": range(len(cases)), "properties": maps, "property_string": strings})
    )
    made.createOrReplaceTempView("messages")
    yield made
    spark.catalog.dropTempView("messages")


def test_functions_agree_with_the_recorded_engine_and_with_closures(
    spark: SparkSession, messages: DataFrame, cases: list[dict]
) -> None:
    assert len(cases) > 30
    made = ", ".join(
        f"sql92_outcome(properties, :f{n}) o{n}, sql92(properties, :f{n}) m{n}"
        for n in range(len(cases))
    )
    texts = {f"f{n}": case["expr"] for n, case in enumerate(cases)}
    found = spark.sql(f"SELECT row, {made} FROM messages ORDER BY row", texts).collect()
    closures = [compile_closure(parse(case["expr"])) for case in cases]
    for case, row in zip(cases, found, strict=True):
        assert row[f"m{row.row}"] == case["matched"], case
        for n, closure in enumerate(closures):
            expected = evaluate(closure, evaluation._stored_properties(case["props"]))
            assert (row[f"o{n}"], row[f"m{n}"]) == (expected, expected.matched), texts[f"f{n}"]


@pytest.fixture(scope="module")
def lamps(spark: SparkSession) -> Iterator[str]:
    """A view of four messages: prices 5, 50, 500 and none."""
    rows = [
        {"price": "5", "name": "O'Neill"},
        {"price": "50"},
        {"price": "500"},
        {"name": "x"},
    ]
    made = pa.table(
        {
            "properties": pa.array([list(row.items()) for row in rows], MAP),
            "property_string": [properties.encode(row) for row in rows],
            "price": pa.array([5.5, 50.0, 500.0, None]),
            "day": pa.array([None] * 4, pa.date32()),
            "tags": ["A", "B", None, "A"],
        }
    )
    spark.createDataFrame(made).createOrReplaceTempView("lamps")
    yield "lamps"
    spark.catalog.dropTempView("lamps")


def count(spark: SparkSession, condition: str, source: str = "lamps") -> int:
    return spark.sql(f"SELECT 1 FROM {source} WHERE {condition}").count()


@pytest.mark.parametrize(
    ("condition", "matching"),
    [
        ("sql92(properties, 'price > 10')", 2),
        ("SQL92(properties, 'price > 10') AND tags IS NULL", 1),
        ("NOT sql92(properties, 'price > 10')", 2),
        ("sql92(property_string, 'price > 10')", 2),
        ("sql92(struct(price), 'price > 5')", 3),  # by value, where RocketMQ fails to read 5.5
        ("sql92(properties, 'name = \\'O\\'\\'Neill\\'')", 1),
        ('sql92(properties, "price > " || "10")', 2),
        ("sql92(properties, 'name CONTAINS \\'Nei\\'', '5.1.3')", 1),
        ("sql92_outcome(properties, 'price > 10') = 2", 1),
        ("tags(tags, 'A || C')", 2),
        ("tags(tags, '*')", 4),
    ],
)
def test_a_condition_matches(
    spark: SparkSession, lamps: str, condition: str, matching: int
) -> None:
    assert count(spark, condition) == matching


def test_no_python_runs_for_them(spark: SparkSession, lamps: str) -> None:
    query = spark.sql(
        "SELECT sql92_outcome(properties, 'price > 1') o FROM lamps"
        " WHERE sql92(properties, 'price > 10') AND tags(tags, 'B')"
    )
    plan = query._jdf.queryExecution().analyzed().toString()
    assert "Python" not in plan
    assert "try_cast" in plan
    assert [row.o for row in query.collect()] == [1]


def test_they_are_found_wherever_sql_is(spark: SparkSession, lamps: str) -> None:
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW dear AS"
        " SELECT * FROM lamps WHERE sql92(properties, 'price > 10')"
    )
    assert count(spark, "true", "dear") == 2
    common = (
        "WITH c AS (SELECT properties p FROM lamps) SELECT * FROM c WHERE sql92(p, 'price = 5')"
    )
    assert spark.sql(common).count() == 1
    assert spark.table("lamps").where("sql92(properties, 'price = 5')").count() == 1
    inside = "SELECT 1 FROM lamps a WHERE EXISTS (SELECT 1 FROM dear b WHERE a.price = b.price"
    assert spark.sql(f"{inside} AND sql92(a.properties, 'price > 100'))").count() == 1
    grouped = spark.sql(
        "SELECT sql92(properties, 'price > 10'), count(*) n FROM lamps"
        " GROUP BY sql92(properties, 'price > 10')"
    )
    assert {(row[0], row.n) for row in grouped.collect()} == {(True, 2), (False, 2)}
    spark.catalog.dropTempView("dear")


def test_another_session_has_them_when_it_is_registered(spark: SparkSession) -> None:
    other = spark.newSession()
    query = "SELECT sql92(map('a', '1'), 'a = 1')"
    with pytest.raises(AnalysisException, match="UNRESOLVED_ROUTINE"):
        other.sql(query)
    tamis.spark.register(other)
    tamis.spark.register(other)
    assert other.sql(query).first()[0] is True


def test_a_function_of_the_users_own_is_left_alone(spark: SparkSession) -> None:
    other = spark.newSession()
    other.sql("CREATE TEMPORARY FUNCTION tags(x STRING) RETURNS STRING RETURN upper(x)")
    tamis.spark.register(other)
    assert other.sql("SELECT tags('a')").first()[0] == "A"
    assert other.sql("SELECT sql92(map('a', '1'), 'a = 1')").first()[0] is True


def test_a_view_kept_in_the_catalog_is_refused_by_spark(spark: SparkSession, lamps: str) -> None:
    with pytest.raises(AnalysisException, match=r"INVALID_TEMP_OBJ_REFERENCE.*`sql92`"):
        spark.sql("CREATE VIEW kept AS SELECT 1 AS a WHERE sql92(map('a', '1'), 'a = 1')")


@pytest.mark.parametrize(
    ("condition", "told"),
    [
        ("sql92(properties, 'price == 3')",
         "sql92: column 8: expected a value or a property, found '=' (write = for 'equal')\n"
         "price == 3\n       ^"),
        ("tags(tags, '||')", "tags: column 1: a list of separators with no tag"),
        ("sql92(properties, tags)", "sql92: a filter can't be lamps.tags: write it as"),
        ("sql92(properties, string(NULL))", "sql92: a filter can't be CAST(NULL AS STRING): write"),
        ("sql92(properties, 5)", "sql92: a filter can't be 5: write it as a constant text"),
        ("sql92(properties)", "sql92: wrong number of arguments, 1: write sql92(properties, 'filt"),
        ("tags(tags, 'A', 'B')", "tags: wrong number of arguments, 3: write tags(tags, 'A || B')"),
        ("sql92(properties, 'a = 1', '5.3')", "sql92: '5.3' is no dialect: there are 4.9, 5.1.3"),
        ("sql92(price, 'a = 1')", "sql92: its first argument is double: it takes properties"),
        ("sql92(struct(day), 'day = 1')", "sql92: column day is date: no property has"),
        ("tags(properties, 'A')", "tags: its first argument is map<string,string>: it takes"),
    ],
)  # fmt: skip
def test_what_can_not_be_is_told_once(
    spark: SparkSession,
    lamps: str,
    condition: str,
    told: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(PySparkException) as caught:
        count(spark, condition)
    assert str(caught.value).startswith(told)
    assert "JVM stacktrace" not in str(caught.value)
    assert "Traceback" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_a_column_that_is_not_there_is_told_by_spark(spark: SparkSession, lamps: str) -> None:
    with pytest.raises(AnalysisException, match="UNRESOLVED_COLUMN"):
        count(spark, "sql92(propertis, 'price > 10')")


def test_functions_for_connect_give_the_same(cases: list[dict]) -> None:
    """As a worker of the server calls them, with a batch."""
    stored = [evaluation._stored_properties(case["props"]) for case in cases]
    maps = pa.array([None if one is None else list(one.items()) for one in stored], MAP)
    strings = pa.array([None if one is None else properties.encode(one) for one in stored])
    for case in cases:
        closure = compile_closure(parse(case["expr"]))
        expected = [evaluate(closure, one) for one in stored]
        texts = pa.array([case["expr"]] * len(cases))
        assert sql_udfs.sql92_outcome(maps, texts).to_pylist() == expected
        assert sql_udfs.sql92(maps, texts).to_pylist() == [one.matched for one in expected]
        decoded = [
            None if one is None else properties.decode(properties.encode(one)) for one in stored
        ]
        assert sql_udfs.sql92_outcome(strings, texts).to_pylist() == [
            evaluate(closure, one) for one in decoded
        ]
    found = sql_udfs.tags(pa.array(["A", None, "b"]), pa.array(["A || B"] * 3)).to_pylist()
    assert found == [parse_tags("A || B").matches(tag) for tag in ("A", None, "b")]
    with pytest.raises(tamis.errors.ConfigError, match="sql92: its filter is not a constant"):
        sql_udfs.sql92(maps[:2], pa.array(["a = 1", "a = 2"]))
