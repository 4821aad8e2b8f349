"""Filters as Columns: RocketMQ's outcome, on every kind of column, whatever Spark's settings."""

import io
import json
import os
import random
from collections.abc import Iterator, Sequence

import corpora
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from strategies import NAMES, TELLING_TEXTS, expressions, messages

from tamis.cli import evaluation
from tamis.errors import ConfigError, FilterSyntaxError, InvalidFilter
from tamis.filter import Dialect, Expr, parse, render
from tamis.filter.engines.catalyst import Compiler
from tamis.filter.engines.closures import compile_closure, evaluate
from tamis.filter.tags import parse_tags
from tamis.spark.columns import properties_of, raw, sql92, sql92_outcome, tags, typed
from tamis.wire import properties

MAP = pa.map_(pa.string(), pa.string())


# All of them take minutes: a query has a column for each of 16,000 expressions.
ALL = os.environ.get("TAMIS_THOROUGH") == "1"


@pytest.mark.parametrize(
    ("name", "dialect", "step"),
    [
        ("sql92", Dialect.V4_9, 1 if ALL else 25),
        ("sql92-5.3.3", Dialect.V5_1_3, 1 if ALL else 5),
    ],
)
def test_eval_with_catalyst_agrees_with_the_recorded_engine(
    spark: SparkSession, name: str, dialect: Dialect, step: int
) -> None:
    lines = corpora.text(name).splitlines()[::step]
    recorded = [json.loads(line) for line in lines]
    cases = evaluation.cases(io.BytesIO("\n".join(lines).encode()), lambda *_: pytest.fail(str(_)))
    answers = [json.loads(line) for line in evaluation.with_catalyst(cases, dialect)]
    assert len(answers) == len(recorded)
    for row, answer in zip(recorded, answers, strict=True):
        assert answer["id"] == row["id"]
        assert (answer["compile"], answer["matched"]) == (row["compile"], row["matched"]), row
        is_error = isinstance(answer["result"], str)
        assert is_error == isinstance(row["result"], str), row
        assert is_error or answer["result"] == row["result"], row


def drawn(strategy: st.SearchStrategy, count: int) -> list:
    """Examples that are the same each time."""
    found: list = []

    @settings(
        max_examples=count,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def draw(one: object) -> None:
        found.append(one)

    draw()
    return found


def telling_messages(count: int) -> list[dict[str, str]]:
    choose = random.Random(7)
    return [
        {name: choose.choice(TELLING_TEXTS) for name in NAMES if choose.random() < 0.7}
        for _ in range(count)
    ]


@pytest.fixture(scope="module")
def rows() -> list[dict[str, str] | None]:
    some = [*drawn(messages, 30), *telling_messages(120)]
    return [evaluation._stored_properties(row) for row in some]


@pytest.fixture(scope="module")
def table(spark: SparkSession, rows: list, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """The rows in a file, so that queries run as jobs, in generated code."""
    maps = pa.array([None if row is None else list(row.items()) for row in rows], MAP)
    strings = [None if row is None else properties.encode(row) for row in rows]
    path = str(tmp_path_factory.mktemp("rows") / "rows")
    made = spark.createDataFrame(
        pa.table({"row": range(len(rows)), "properties": maps, "property_string": strings})
    )
    made.coalesce(1).write.parquet(path)
    return spark.read.parquet(path)


def disagreements(
    compiler: Compiler, exprs: Sequence[Expr], rows: Sequence[dict[str, str] | None], df: DataFrame
) -> Iterator[str]:
    """Of both forms with the closures, a column each."""
    columns: list[Column] = []
    for expr in exprs:
        columns += [compiler.compile_outcome(expr), compiler.compile_matched(expr)]
    named = [column.alias(f"c{n}") for n, column in enumerate(columns)]
    for found in df.select("row", *named).collect():
        for n, expr in enumerate(exprs):
            row = rows[found.row]
            expected = evaluate(compile_closure(expr), row)
            outcome, matched = found[2 * n + 1], found[2 * n + 2]
            if (outcome, matched) != (expected, expected.matched):
                yield f"{render(expr)}\n  {row!r}\n  {expected.name}, not {outcome}, {matched}"


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_catalyst_agrees_with_closures_on_maps(
    spark: SparkSession, table: DataFrame, rows: list, ansi: str
) -> None:
    exprs = drawn(expressions(), 80)[:: 1 if ansi == "true" else 3]
    compiler = Compiler(properties_of("properties"))
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", ansi)
    try:
        found = list(disagreements(compiler, exprs, rows, table))
    finally:
        spark.conf.set("spark.sql.ansi.enabled", before)
    assert not found, "\n".join(found[:10])


def test_catalyst_agrees_with_closures_on_property_strings(table: DataFrame, rows: list) -> None:
    stored = [None if row is None else properties.decode(properties.encode(row)) for row in rows]
    compiler = Compiler(properties_of(raw("property_string")))
    found = list(disagreements(compiler, drawn(expressions(), 40), stored, table))
    assert not found, "\n".join(found[:10])


# Each holds an order of evaluation, a coercion or a text on which Spark and Java part.
TELLING = [
    "a > 5",
    "a >= 5 AND a < 2147483647",
    "a <> 5",
    "5 <> a",
    "5 = a",
    "a = 2147483648",
    "a > 5.5",
    "a <> 5.5",
    "a BETWEEN -5 AND 12345678",
    "a NOT BETWEEN 1.5 AND 5.5",
    "a < b",
    "a <= b",
    "a = b",
    "a <> b",
    "a = TRUE",
    "TRUE = a",
    "a > 5 OR b > 5 OR c > 5",
    "a > 5 OR a < 3 OR b = '5'",
    "NOT (a > 5 AND b > 5)",
    "NOT (a > 5 OR b IS NULL)",
    "(a > 5 OR b = '5') AND (c IS NOT NULL OR b < 3)",
    "b IS NULL OR (a > 5 AND NOT (c > 5 OR b = 'x'))",
    "(a > 5) = (b > 5)",
    "(a > 5) IS NULL",
    "(a > 5) = b",
    "a = (b > 5)",
    "a = 5 = b = c",
    "a = 5 OR a = 7 OR a IN ('5', 'x') OR a = 5.0",
]


def test_telling_expressions_have_the_outcome_of_closures(table: DataFrame, rows: list) -> None:
    compiler = Compiler(properties_of("properties"))
    found = list(disagreements(compiler, [parse(text) for text in TELLING], rows, table))
    assert not found, "\n".join(found[:10])


DAMAGED = [
    "a\x015\x02a\x017\x02",  # the last wins
    "a\x015\x02a\x01\x02",  # but not an empty one
    "a\x01\x01\x02",
    "\x02\x02a\x015",
    "ba\x015\x02a",
    "\x01a\x015\x02ab\x016",
    "a\x015\x01b\x016\x02b\x017",
    "$\x015\x02a.b\x016",
    "",
    "a",
    "\x01",
    "a\x01\n5\x02b\x01\ufffd",
]


def test_damaged_property_strings_are_read_as_rocketmq_does(spark: SparkSession) -> None:
    names = ["a", "b", "ab", "$"]
    property_of = properties_of(raw("text"))
    df = spark.createDataFrame(pa.table({"text": [*DAMAGED, None]}))
    found = df.select(*[property_of(name).alias(f"p{n}") for n, name in enumerate(names)]).collect()
    expected = [properties.decode(text) for text in DAMAGED] + [{}]
    assert [dict(zip(names, row, strict=True)) for row in found] == [
        {name: row.get(name) for name in names} for row in expected
    ]


def test_a_typed_column_is_compared_by_value_and_null_is_missing(spark: SparkSession) -> None:
    df = spark.createDataFrame(
        [
            (5, 2**40, 5.5, True, "x"),
            (None, None, None, None, None),
            (-1, 7, float("nan"), False, ""),
        ],
        "i int, l bigint, d double, b boolean, s string",
    )
    outcomes = {
        "i = 5": [1, 2, 0],
        "i > 4.5": [1, 2, 0],
        "i = '5'": [1, 2, 0],
        "5 <> i": [0, 1, 1],
        "i = TRUE": [0, 2, 0],
        "l > 5": [1, 2, 1],
        "l > i": [1, 2, 1],
        "d > 5": [1, 2, 1],  # NaN is above all
        "d = 5.5": [1, 2, 0],
        "d IN ('5.5')": [1, 2, 0],
        "b = TRUE": [1, 2, 0],
        "b <> TRUE": [0, 2, 1],
        "b > 5": [3, 2, 3],  # no number is `true`
        "b IS NULL": [0, 1, 0],
        "s = 'x' OR nobody IS NOT NULL": [1, 2, 0],
    }
    named = {name: typed(name, kind) for name, kind in (("i", "int"), ("l", "long"))}
    mapping = {**named, "d": typed(F.col("d"), "double"), "b": typed("b", "boolean"), "s": "s"}
    for given_as in (df, mapping):
        columns = [sql92_outcome(text, properties=given_as) for text in outcomes]
        matches = [sql92(text, properties=given_as) for text in outcomes]
        found = df.select(*columns, *matches).collect()
        for n, (text, expected) in enumerate(outcomes.items()):
            assert [row[n] for row in found] == expected, text
            assert [row[n + len(outcomes)] for row in found] == [o == 1 for o in expected], text


def test_a_decimal_is_a_number_and_a_type_no_property_has_is_refused(spark: SparkSession) -> None:
    df = spark.sql("SELECT CAST(99.5 AS DECIMAL(10, 2)) AS price, current_date() AS day")
    asked = ("price > 99", "price > 100", "price IS NULL")
    found = df.select(*(sql92(text, properties=df) for text in asked)).collect()
    assert tuple(found[0]) == (True, False, False)
    with pytest.raises(ConfigError, match="column day is date: no property has such a type"):
        sql92("day IS NULL", properties=df)


def test_tags_match_the_text_exactly(spark: SparkSession) -> None:
    values = ["a", "b", "Aa", "BB", "*", "", " ", "a||b", None]
    df = spark.createDataFrame(pa.table({"tags": pa.array(values, pa.string())}))
    tried = ["*", "", "a", "a || b", "Aa", "|| ||", " ", "*||a", "a|b"]
    found = df.select(*[tags(text).alias(f"t{n}") for n, text in enumerate(tried)]).collect()
    for n, text in enumerate(tried):
        assert [row[n] for row in found] == [parse_tags(text).matches(tag) for tag in values], text


def test_bad_text_is_refused_with_its_column_before_spark_sees_it() -> None:
    with pytest.raises(InvalidFilter, match="column 4"):
        sql92("a == 5")
    with pytest.raises(InvalidFilter):
        sql92_outcome("a CONTAINS b", dialect=Dialect.V5_1_3)
    with pytest.raises(FilterSyntaxError):
        tags("||")
    with pytest.raises(ValueError, match=r"'5.3' is no dialect: there are 4.9, 5.1.3"):
        sql92("a = 1", dialect="5.3")
    with pytest.raises(ConfigError, match="'decimal' is no type"):
        typed("price", "decimal")


def test_large_and_deep_expressions_stay_in_generated_code(
    table: DataFrame, rows: list, capsys: pytest.CaptureFixture[str]
) -> None:
    deep = "a > 1"
    for n in range(40):
        deep = f"({deep}) {'OR' if n % 2 else 'AND'} b = {n}"
    texts = [
        " OR ".join(f"(a = 'v{n}' AND b > {n})" for n in range(30)),
        " OR ".join(f"a = {n}" for n in range(1000)),
        deep,
    ]
    for text in texts:
        closure = compile_closure(parse(text))
        expected = sum(evaluate(closure, row).matched for row in rows)
        query = table.where(sql92(text))
        query.explain(mode="formatted")
        assert "* Filter" in capsys.readouterr().out
        assert query.count() == expected
    sizes = [len(str(sql92_outcome(text))) for text in texts]
    assert max(sizes) < 2_000_000  # linear: doubled at each of 40 levels it would not end


def test_matches_and_outcomes_are_never_null(table: DataFrame) -> None:
    schema = table.select(sql92("a > 5").alias("m"), sql92_outcome("a > 5").alias("o")).schema
    assert [(field.dataType.simpleString(), field.nullable) for field in schema] == [
        ("boolean", False),
        ("tinyint", False),
    ]
