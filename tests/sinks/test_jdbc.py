"""JDBC, to PostgreSQL."""

from collections.abc import Iterator

import pytest
from sinks.driving import Failed, Pipeline, wanted
from sinks.servers import Database, postgres


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    with postgres() as found:
        yield found


COLUMNS = 'columns = ["keys", "tags", "queue_id", "offset"]'


def options(database: Database) -> str:
    return f'options = {{ url = "{database.url}", driver = "org.postgresql.Driver" }}'


def test_a_database_has_each_message_at_least_once_and_repeats_can_be_told(
    pipeline: Pipeline, database: Database
) -> None:
    pipeline.describe(f'format = "jdbc", table = "orders", {COLUMNS}, {options(database)}')
    pipeline.send(range(50))
    pipeline.run()
    assert len(database.sql("SELECT keys FROM orders")) == 25
    pipeline.lose_a_commit()
    pipeline.run()
    assert len(database.sql("SELECT keys FROM orders")) == 30  # the last batch has 10, 5 of them A
    every = database.sql('SELECT DISTINCT keys, queue_id, "offset" FROM orders')
    assert sorted(int(line.split("|")[0]) for line in every) == wanted(range(50))


def test_a_key_of_the_table_keeps_repeats_out_and_stops_the_run(
    pipeline: Pipeline, database: Database
) -> None:
    database.sql(
        'CREATE TABLE once (keys text, tags text, queue_id int, "offset" bigint,'
        ' PRIMARY KEY (queue_id, "offset"))'
    )
    pipeline.describe(f'format = "jdbc", table = "once", {COLUMNS}, {options(database)}')
    pipeline.send(range(20))
    pipeline.run()
    pipeline.lose_a_commit()
    with pytest.raises(Failed, match="duplicate key value"):
        pipeline.run()
    assert len(database.sql("SELECT keys FROM once")) == 10
