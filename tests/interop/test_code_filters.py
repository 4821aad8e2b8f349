"""Apache's Java clients, 4.9.4 and 4.2.0, with filters in code: `subscribe(topic, class, source)`.

Through Apache's filter server 4.2.0 beside our broker with a class in Java; through ours, beside
our broker and beside Apache's 4.9.4, with one in Python.
"""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from interop.cluster import Target, our_cluster
from interop.filterserver import CLIENTS, ApacheFilterServer, CodeConsumer
from interop.javaclient import wait_for

from tamis.client import Message
from tamis.client.blocking import Admin, Producer

QUEUES = 4
LARGE = "large " * 20_000  # the producer compresses it

JAVA = """package tamis.filters;

import org.apache.rocketmq.common.filter.FilterContext;
import org.apache.rocketmq.common.filter.MessageFilter;
import org.apache.rocketmq.common.message.MessageExt;

public class EveryTenth implements MessageFilter {
    @Override
    public boolean match(MessageExt message, FilterContext context) {
        if (!context.getConsumerGroup().startsWith("filtered")) {
            return false;
        }
        String n = message.getProperty("n");
        return n != null && Integer.parseInt(n) % 10 == 3
            || new String(message.getBody()).startsWith("large");
    }
}
"""

PYTHON = """
class EveryTenth:
    def match(self, message, context):
        if not context.group.startswith("filtered"):
            return False
        n = message.properties.get("n")
        return (n is not None and int(n) % 10 == 3) or message.body.startswith(b"large")
"""

BATCHES = """
import pyarrow.compute as pc


class EveryTenth:
    columns = ("body",)
    properties = ("n:long",)

    def match_batch(self, batch):
        n = batch.column("n")
        last_digit = pc.subtract(n, pc.multiply(pc.divide(n, 10), 10))
        is_large = pc.starts_with(batch.column("body"), b"large")
        return pc.or_kleene(pc.equal(last_digit, 3), is_large)
"""


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with our_cluster(tmp_path_factory.mktemp("ours") / "store") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def apaches_filter_server(
    ours: Target, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApacheFilterServer]:
    home = tmp_path_factory.mktemp("filtersrv")
    with ApacheFilterServer(home, ours.broker, ours.nameserver) as server:
        yield server


@pytest.mark.parametrize("client", CLIENTS)
def test_apaches_filter_server_beside_our_broker_serves_javas_clients(
    client: str, ours: Target, apaches_filter_server: ApacheFilterServer, tmp_path: Path
) -> None:
    consume_filtered(client, ours, "tamis.filters.EveryTenth", JAVA, tmp_path / "client")


def consume_filtered(client: str, target: Target, name: str, source: str, home: Path) -> None:
    """What was stored before the consumer came and what comes later; what matches and nothing
    else, and the group's offsets pass what does not."""
    topic, group = f"Topic-{secrets.token_hex(3)}", f"filtered-{secrets.token_hex(3)}"
    with Admin(target.nameserver) as admin, Producer(target.nameserver) as producer:
        admin.create_topic(topic, queues=QUEUES)
        send(producer, topic, range(200))
        with CodeConsumer(client, home, target.nameserver, group, topic, name, source) as consumer:
            early = consumer.received(21)
            send(producer, topic, range(200, 400))
            consumer.received(42)
            # Nobody gets these: only an answer without messages can tell the offset after them.
            send(producer, topic, range(404, 410), large=False)
            wait_for(
                lambda: admin.offsets(group, topic),
                lambda queues: len(queues) == QUEUES and all(not q.lag for q in queues),
            )
            rows = consumer.received()
    assert {row["properties"]["n"] for row in early} == {*wanted(0, 200), "-1"}
    assert sorted(row["properties"]["n"] for row in rows) == sorted(
        [*wanted(0, 400), "-1", "-1"]
    ), consumer.log()
    assert {row["body"] for row in rows if row["properties"]["n"] == "-1"} == {LARGE}
    assert {row["queue"] for row in rows} == set(range(QUEUES))
    assert {row["tags"] for row in rows} == {"T"}


def send(producer: Producer, topic: str, numbers: range, large: bool = True) -> None:
    for n in numbers:
        producer.send(Message(topic, f"{n}".encode(), tags="T", properties={"n": f"{n}"}))
    if large:
        producer.send(Message(topic, LARGE.encode(), tags="T", properties={"n": "-1"}))


def wanted(first: int, end: int) -> list[str]:
    return [f"{n}" for n in range(first, end) if n % 10 == 3]
