"""What tests of Spark share: one driver for the whole run, a broker with messages in it.

The conftest.py of each folder that has such tests imports the fixtures.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tamis.client import blocking
from tamis.client.outgoing import SendResult
from tamis.message import Message
from tamis.spark.session import session
from tamis.testing import LocalCluster

__all__ = [
    "ROOT",
    "SETTINGS",
    "create_topic",
    "dear_by_tag",
    "local_cluster",
    "sample_orders",
    "send_all",
    "spark",
]

ROOT = Path(__file__).parents[1]

SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.sql.dataFrameDebugging.enabled": "false",  # columns are made 4 times faster
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    driver = session("tests", master="local[2]", config=SETTINGS)
    yield driver
    driver.stop()


@pytest.fixture(scope="module")
def local_cluster() -> Iterator[LocalCluster]:
    """A broker and a name server for the tests of a module: each has topics of its own."""
    with LocalCluster(log_file_size=2**24) as cluster:
        yield cluster


def create_topic(cluster: LocalCluster, topic: str, queues: int = 4) -> None:
    with blocking.Admin(cluster.nameserver) as admin:
        admin.create_topic(topic, queues=queues)


def send_all(cluster: LocalCluster, messages: Iterable[Message]) -> list[SendResult]:
    """Where each went, in the order given."""
    with blocking.Producer(cluster.nameserver) as producer:
        sent = [producer.submit(message) for message in messages]
        return [future.result(60) for future in sent]


def sample_orders(topic: str, number: int) -> list[Message]:
    """Orders with a tag, a region and a price: `examples/spark` counts them."""
    return [
        Message(
            topic,
            f"order {n}",
            tags=("new", "paid", "sent")[n % 3],
            keys=f"order-{n}",
            properties={"region": ("EU", "US")[n % 2], "price": str(n)},
        )
        for n in range(number)
    ]


def dear_by_tag(messages: Iterable[Message]) -> list[tuple[str, int, float]]:
    """What `examples/spark/dear_orders.py` is to print of them."""
    prices: dict[str, list[float]] = {}
    for message in messages:
        price = float(message.properties["price"])
        if message.properties["region"] == "EU" and price > 100:
            prices.setdefault(message.tags or "", []).append(price)
    return [(tags, len(found), sum(found)) for tags, found in sorted(prices.items())]
