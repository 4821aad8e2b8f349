"""Filters in code on Spark: what travels to the workers, and what comes back."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from tamis.code import CodeFilter, Context, Needs, code_filter
from tamis.errors import CodeError
from tamis.spark.code import _evaluate, needs, outcome

F, T, N, E = range(4)
CONTEXT = Context("group", "orders")


def code(body: str) -> CodeFilter:
    return CodeFilter("mine.py:Mine", f"class Mine:\n    {body}\n")


def rows(spark: SparkSession) -> DataFrame:
    made = spark.createDataFrame(
        [("1", 0, "9.5", b"a"), ("x", 1, "cheap", b"b"), (None, 2, None, b"c")],
        "tags string, offset long, price string, body binary",
    )
    with_map = made.selectExpr(
        "*", "map_filter(map('TAGS', tags, 'price', price), (k, v) -> v IS NOT NULL) properties"
    )
    return with_map.coalesce(1)


def answers(rows: DataFrame, filter: CodeFilter, **given: object) -> list[int | str]:
    answer = outcome(filter, CONTEXT, **given)
    found = rows.select(answer.alias("it")).collect()
    assert all((row.it.outcome == E) == (row.it.error is not None) for row in found)
    return [row.it.error or row.it.outcome for row in found]


def test_workers_need_not_have_the_file(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "odd.py"
    file.write_text(
        "class Odd:\n    def match(self, message):\n        return int(message.tags) % 2 == 1\n"
    )
    odd = code_filter("odd.py:Odd", tmp_path)
    file.unlink()
    assert answers(rows(spark), odd, columns=["tags", "offset", "properties"]) == [
        T,
        "ValueError: invalid literal for int() with base 10: 'x'",
        "TypeError: int() argument must be a string, a bytes-like object or a real number, not "
        "'NoneType'",
    ]


def test_only_what_is_declared_is_sent_and_properties_have_their_types(
    spark: SparkSession,
) -> None:
    """The filter says what crossed."""
    declared = "columns = ('offset',)\n    properties = ('price:double',)\n    "
    names = code(declared + "def match_batch(self, b): raise ValueError(str(b.schema.names))")
    assert answers(rows(spark), names) == ["ValueError: ['offset', 'price']"] * 3
    big = code(declared + "def match(self, m): return m.properties.get('price', 0.0) > 9")
    assert answers(rows(spark), big) == [T, F, F]
    kinds = code(declared + "def match_batch(self, b): raise ValueError(str(b.schema.types))")
    assert answers(rows(spark), kinds) == ["ValueError: [DataType(int64), DataType(double)]"] * 3


def test_a_property_is_had_wherever_the_caller_says(spark: SparkSession) -> None:
    eu = code(
        "properties = ('region',)\n    def match(self, m): return m.properties == {'region': '1'}"
    )
    frame = rows(spark)
    assert answers(frame, eu, property_of=lambda name: frame["tags"]) == [T, F, F]


def test_code_is_told_group_and_topic(spark: SparkSession) -> None:
    told = code(
        "columns = ('offset',)\n    def match_batch(self, b, context):"
        " return [context.group == 'group' and context.topic == 'orders'] * len(b)"
    )
    assert answers(rows(spark), told) == [T, T, T]


def test_a_message_that_a_batch_fails_on_fails_alone_as_elsewhere(spark: SparkSession) -> None:
    first = code(
        "columns = ('offset',)\n    def match_batch(self, b):"
        " return [1 // offset >= 0 for offset in b['offset'].to_pylist()]"
    )
    failed, *others = answers(rows(spark), first)
    assert "ZeroDivisionError" in str(failed)
    assert others == [T, T]


STRUCT = pa.StructArray.from_arrays([pa.array([7, 8, 9])], names=["offset"])


def test_one_object_of_a_process_sees_all_batches_of_a_group() -> None:
    counting = code(
        "columns = ('offset',)\n    seen = 0\n"
        "    def match(self, m): self.seen += 1; return self.seen % 2 == 0"
    )

    def judged(context: Context) -> list[int]:
        answer = _evaluate(counting, context, "off", STRUCT)
        return [row["outcome"] for row in answer.to_pylist()]

    assert [*judged(CONTEXT), *judged(CONTEXT)] == [F, T, F, T, F, T]
    assert judged(Context("other", "orders")) == [F, T, F]


def test_code_that_workers_can_t_load_fails_on_every_row() -> None:
    answer = _evaluate(code("import nowhere"), CONTEXT, "off", STRUCT).to_pylist()
    why = "ModuleNotFoundError: No module named 'nowhere'"
    assert answer == [{"outcome": E, "error": why}] * 3


def test_more_failures_than_are_explained_are_all_failures() -> None:
    many = pa.StructArray.from_arrays([pa.array(range(500))], names=["offset"])
    failing = code("columns = ('offset',)\n    def match(self, m): raise ValueError(m.offset)")
    answer = _evaluate(failing, CONTEXT, "off", many).to_pylist()
    assert {row["outcome"] for row in answer} == {E}
    assert [answer[row]["error"] for row in (0, 499)] == ["ValueError: 0", "ValueError: 499"]
    assert all(row["error"] for row in answer)


def test_what_a_filter_needs_is_known_on_the_driver() -> None:
    assert needs(code("columns = ('body',)\n    def match(self, m): ...")) == Needs(
        False, ("body",), (), is_declared=True
    )
    with pytest.raises(CodeError, match="there are topic"):
        needs(code("columns = ('bdy',)\n    def match(self, m): ..."))


PRYING = (
    "columns = ('offset',)\n    properties = ('price:double',)\n"
    "    def match(self, m):\n"
    "        if m.offset == 1: open('/etc/passwd').read()\n"
    "        return m.properties.get('price') == 9.5\n"
)


def test_a_stranger_s_code_is_locked_in(spark: SparkSession) -> None:
    first, second, third = answers(rows(spark), code(PRYING), isolation="required")
    assert (first, third) == (T, F)
    assert "/etc/passwd" in str(second)


def test_a_stranger_s_code_is_not_loaded_by_the_driver(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with pytest.raises(CodeError):
        needs(code(f"open({json.dumps(str(mark))}, 'w')"), "required")
    assert not mark.exists()
