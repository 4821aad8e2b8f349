"""What filters ask a source for."""

import pytest
from pyspark.sql import SparkSession

from tamis.errors import ConfigError
from tamis.pipeline.config import DEFAULT_COLUMNS, Filter, Sink, Source, Subscription
from tamis.pipeline.steps import check_code, evaluate, needs

SQL = Filter("sql", "price > 5")


def code(body: str, isolation: str = "off") -> Filter:
    return Filter("code", "a.py:A", source=f"class A:\n  {body}\n", isolation=isolation)


ASKED = {
    "def match(self, m): ...": (DEFAULT_COLUMNS, ("price",)),
    "columns = ('body',)\n  def match(self, m): ...": (("offset", "body"), ("price",)),
    "properties = ('region', 'price:int')\n  def match(self, m): ...": (
        ("offset",),
        ("price", "region"),
    ),
    "properties = ('TAGS', 'Body', 'a b')\n  def match(self, m): ...": (
        ("offset", "tags", "properties"),  # such columns can't be had, the map has them
        ("price",),
    ),
    "columns = ('property_string', 'flag')\n  def match(self, m): ...": (
        ("offset", "property_string", "flag"),
        ("price",),
    ),
}


@pytest.mark.parametrize("body", ASKED)
def test_code_asks_for_what_it_declares(body: str) -> None:
    asked = needs([SQL, code(body)], ["offset"])
    assert (asked.columns, asked.properties) == ASKED[body]


def test_code_that_can_t_be_used_is_known_before_a_job_starts() -> None:
    live, kept = Source(nameserver="h:1", topics=("t",)), Source(archive="kept")
    with pytest.raises(ConfigError, match=r"^code a\.py:A: class A has neither match nor match_b"):
        check_code(code("..."), live)
    raw = code("columns = ('property_string',)\n  def match(self, m): ...")
    check_code(raw, live)
    with pytest.raises(ConfigError, match=r"^code a\.py:A: an archive has no property_string"):
        check_code(raw, kept)
    check_code(code("def match(self, m): ..."), kept)
    check_code(SQL, kept)


def test_the_group_that_asks_is_told(spark: SparkSession) -> None:
    body = "columns = ('offset',)\n  def match(self, m, context): return context.group == 'a'"
    groups = [Subscription(name, code(body), Sink(format="noop")) for name in ("a", "b")]
    found = evaluate(spark.range(2).toDF("offset").coalesce(1), groups).collect()
    assert [(row.groups, row.failed) for row in found] == [(["a"], [])] * 2
