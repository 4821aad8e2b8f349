"""Kafka, a broker of one node."""

from collections.abc import Iterator

import pytest
from sinks.driving import Pipeline, keys, wanted
from sinks.servers import kafka_broker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with kafka_broker(tmp_path_factory.mktemp("broker")) as address:
        yield address


def test_kafka_has_each_message_at_least_once_and_repeats_can_be_told(
    pipeline: Pipeline, broker: str
) -> None:
    servers = f'options = {{ "kafka.bootstrap.servers" = "{broker}" }}'
    columns = """columns = { key = "concat_ws('/', broker, queue_id, offset)", value = "body" }"""
    pipeline.describe(f'format = "kafka", topic = "sunk", {columns}, {servers}')
    pipeline.send(range(50))
    pipeline.run()
    assert bodies(pipeline, broker) == wanted(range(50))
    pipeline.lose_a_commit()
    pipeline.run()
    assert len(bodies(pipeline, broker)) == 30  # the last batch has 10, 5 of them A
    assert bodies(pipeline, broker, distinct=True) == wanted(range(50))


def bodies(pipeline: Pipeline, broker: str, *, distinct: bool = False) -> list[int]:
    """Numbers of the orders; `distinct`: of one record for each key."""
    options = {"kafka.bootstrap.servers": broker, "subscribe": "sunk"}
    rows = pipeline.driver.read(
        "kafka", columns="substring(string(value), 7);string(key)", **options
    )
    if distinct:
        rows = [[number] for number in {key: number for number, key in rows}.values()]
    return keys(rows)
