"""Files and tables: what a batch that is done again adds to them, which is nothing."""

import os
from typing import Any

import pytest
from sinks.driving import Failed, Pipeline, keys, wanted
from sinks.jars import BY_VERSION, SPARK

ALL = range(50)
# The column that has the keys when a file is read again. Parquet stands for the others in CI.
FILES = {"parquet": "keys"}
if os.environ.get("TAMIS_THOROUGH") == "1":
    FILES |= {"avro": "keys", "csv": "_c0", "json": "keys", "orc": "keys", "text": "value"}
TABLES = {"delta": 'path = "out"', "iceberg": 'table = "ice.db.orders"'}


@pytest.mark.parametrize("format", FILES)
def test_files_have_each_message_once(pipeline: Pipeline, format: str) -> None:
    pipeline.describe(f'format = "{format}", path = "out", columns = ["keys"]')
    pipeline.send(ALL)
    pipeline.run()
    pipeline.lose_a_commit()
    pipeline.run()
    out = str(pipeline.folder / "out")
    assert keys(pipeline.driver.read(format, out, FILES[format])) == wanted(ALL)


@pytest.mark.parametrize(
    "format",
    [
        pytest.param(one, marks=pytest.mark.skipif(SPARK in BY_VERSION[one], reason="it is there"))
        for one in TABLES
    ],
)
def test_a_format_that_nobody_publishes_for_this_spark_is_refused_before_anything_is_written(
    pipeline: Pipeline, format: str
) -> None:
    pipeline.describe(f'format = "{format}", {TABLES[format]}')
    pipeline.send(range(2))
    with pytest.raises(Failed, match=rf"sink of format {format}: this Spark has none of that name"):
        pipeline.run()
    assert not (pipeline.folder / "out").exists()
    assert not list(pipeline.folder.rglob("state.json"))  # of a run that began


@pytest.mark.skipif(SPARK == "4.3", reason="there is no Delta for Spark 4.3")
@pytest.mark.parametrize("place", ["path", "table"])
def test_delta_has_each_message_once(pipeline: Pipeline, place: str) -> None:
    name = str(pipeline.folder / "out") if place == "path" else f"orders_{pipeline.topic[5:]}"
    table = f"delta.`{name}`" if place == "path" else name
    pipeline.describe(f'format = "delta", {place} = "{name}"')

    def commits() -> int:
        return len(pipeline.driver.ask("sql", text=f"DESCRIBE HISTORY {table}"))

    pipeline.send(range(20))
    pipeline.run()
    before = commits()
    pipeline.lose_a_commit()  # of the batch that made the table
    pipeline.run()
    assert commits() == before
    pipeline.send(range(20, 50))
    pipeline.run()
    assert commits() == before + 2
    pipeline.lose_a_commit()
    pipeline.run()
    assert commits() == before + 2
    assert keys(pipeline.driver.ask("sql", text=f"SELECT keys FROM {table}")) == wanted(ALL)


@pytest.mark.skipif(SPARK != "4.1", reason="Iceberg's runtime is for Spark 4.1")
def test_iceberg_has_each_message_once(pipeline: Pipeline) -> None:
    table = f"ice.db.orders_{pipeline.topic[5:]}"
    pipeline.describe(f'format = "iceberg", table = "{table}"')
    pipeline.send(ALL)
    pipeline.run()

    def read(what: str) -> list[list[Any]]:
        pipeline.driver.ask("sql", text=f"REFRESH TABLE {table}")  # another session wrote to it
        found: list[list[Any]] = pipeline.driver.ask("sql", text=f"SELECT {what}")
        return found

    before = read(f"snapshot_id FROM {table}.snapshots")
    assert len(before) == 3
    pipeline.lose_a_commit()
    pipeline.run()
    assert read(f"snapshot_id FROM {table}.snapshots") == before
    pipeline.send(range(50, 60))
    pipeline.run()
    assert keys(read(f"keys FROM {table}")) == wanted(range(60))
