"""A JavaScript client against our servers; with TAMIS_TARGET=apache, against RocketMQ's own, which
is how these tests are shown to be right. Its header fields are JSON's own numbers and booleans, and
its version is 121."""

import hashlib
import struct
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from interop.cppclient import CppClient, Row, Target, target
from interop.jsclient import JsClient, body

QUEUES = 4
SQL = {"expressionType": "SQL92", "subString": "region = 'eu' AND TAGS <> 'b'"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with target(tmp_path_factory.mktemp("js") / "store") as cluster:
        yield cluster


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Callable[[], JsClient]]:
    with ExitStack() as stack:
        homes = iter(range(100))
        yield lambda: stack.enter_context(JsClient(tmp_path / f"home{next(homes)}"))


@pytest.fixture
def producer(cluster: Target, client: Callable[[], JsClient]) -> JsClient:
    started = client()
    started.ask("produce", nameserver=cluster.nameserver, group="js-producers")
    return started


@pytest.fixture
def topic(producer: JsClient) -> str:
    made = f"js-{uuid.uuid4().hex[:12]}"
    producer.ask("create", topic=made, queues=QUEUES)
    return made


@pytest.fixture
def consume(cluster: Target, client: Callable[[], JsClient]) -> Callable[..., JsClient]:
    """A consumer that runs; of the topic's own group unless told."""

    def consume(topic: str, **options: object) -> JsClient:
        consumer = client()
        options = {"group": f"{topic}-group", **options}
        consumer.ask("consume", nameserver=cluster.nameserver, topic=topic, **options)
        return consumer

    return consume


def test_a_message_is_consumed_as_it_was_sent(
    topic: str, producer: JsClient, consume: Callable[..., JsClient]
) -> None:
    text, properties = "größer 大", {"region": "eu", "colour": "dark red"}
    fields = {"topic": topic, "body": text, "tags": "Tag", "keys": ["k1", "k2"]}
    sent = producer.ask("send", properties=properties, **fields)
    [row] = consume(topic).wait_for(lambda rows: len(rows) == 1)
    assert (row["topic"], row["tags"], row["keys"]) == (topic, "Tag", "k1 k2")
    assert body(row).decode() == text
    assert row["properties"].items() >= properties.items()
    assert (row["offset"], row["times"]) == (0, 0)
    assert row["born"] <= row["stored"]
    place = {name: row[name] for name in ("id", "queue", "offset")}
    assert sent == {"status": "SEND_OK", **place}


def test_a_long_body_is_stored_compressed_and_read_whole(
    topic: str, producer: JsClient, consume: Callable[..., JsClient]
) -> None:
    long = "0123456789" * 2_000
    producer.ask("send", topic=topic, body=long)
    [row] = consume(topic).wait_for(lambda rows: len(rows) == 1)
    assert body(row).decode() == long
    assert row["size"] < 1_000


def test_messages_of_one_sharding_key_are_consumed_in_the_order_sent(
    topic: str, producer: JsClient, consume: Callable[..., JsClient]
) -> None:
    """To the client a key that falls on queue 0 is no key."""
    shards = {key: queue for key in "abcdefgh" if (queue := queue_of(key))}
    assert set(shards.values()) == {1, 2, 3}
    consumer = consume(topic)
    for number in range(10):
        for key, queue in shards.items():
            text = f"{key}{number}"
            assert producer.ask("send", topic=topic, body=text, shard=key)["queue"] == queue
    rows = consumer.wait_for(lambda rows: len(rows) >= 10 * len(shards))
    for key in shards:
        mine = [text for text in texts(rows) if text.startswith(key)]
        assert mine == [f"{key}{number}" for number in range(10)]


def test_a_delayed_message_arrives_after_its_time(
    topic: str, producer: JsClient, consume: Callable[..., JsClient]
) -> None:
    producer.ask("send", topic=topic, body="late", delay=1)  # a second
    [row] = consume(topic).wait_for(lambda rows: len(rows) == 1)
    assert (body(row), row["topic"]) == (b"late", topic)
    assert row["stored"] - row["born"] >= 1_000  # milliseconds


def test_a_prepared_message_is_kept_from_consumers(
    topic: str, producer: JsClient, consume: Callable[..., JsClient]
) -> None:
    """The package has no transactions, but marks such a message for the broker."""
    half = {"TRAN_MSG": "true", "PGROUP": "js-producers"}
    sent = producer.ask("send", topic=topic, body="half", properties=half, shard="a")
    whole = producer.ask("send", topic=topic, body="whole", shard="a")
    assert whole["queue"] == sent["queue"]
    [row] = consume(topic).wait_for(lambda rows: len(rows) >= 1)
    assert body(row) == b"whole"
    assert row["offset"] == 0


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("a || Aa", ["a-eu", "a-us", "Aa-eu"]),  # "BB" has the hash of "Aa"
        (SQL, ["a-eu", "Aa-eu", "BB-eu"]),
    ],
    ids=["tags", "sql"],
)
def test_a_consumer_gets_what_it_subscribed_to_only(
    expression: object,
    wanted: list[str],
    topic: str,
    producer: JsClient,
    consume: Callable[..., JsClient],
) -> None:
    consumer = consume(topic, expression=expression)
    for text in "a-eu", "a-us", "b-eu", "b-us", "Aa-eu", "BB-eu", "BB-us":
        tag, region = text.split("-")
        fields = {"tags": tag, "properties": {"region": region}}
        producer.ask("send", topic=topic, body=text, shard="a", **fields)
    last = {"tags": "a", "properties": {"region": "eu"}}
    producer.ask("send", topic=topic, body="last", shard="a", **last)
    rows = consumer.wait_for(lambda rows: "last" in texts(rows))
    assert texts(rows) == [*wanted, "last"]


def test_a_message_whose_consumption_failed_comes_again_by_the_retry_topic(
    topic: str, producer: JsClient, consume: Callable[..., JsClient]
) -> None:
    consumer = consume(topic, failing=["bad"])
    fields = {"tags": "Tag", "keys": ["k"], "shard": "a"}
    producer.ask("send", topic=topic, body="bad", **fields)
    producer.ask("send", topic=topic, body="good", **fields)
    rows = consumer.wait_for(lambda rows: len(rows) == 3)  # ten seconds: level 3
    assert texts(rows) == ["bad", "good", "bad"]
    first, _, second = rows
    assert [first["times"], second["times"]] == [0, 1]
    same = "topic", "tags", "keys", "born"
    assert [second[name] for name in same] == [first[name] for name in same]
    assert second["stored"] - first["stored"] >= 10_000  # milliseconds
    assert second["properties"]["ORIGIN_MESSAGE_ID"] == first["id"]


def test_a_consumer_started_again_goes_on_where_it_stopped(
    topic: str, producer: JsClient, consume: Callable[..., JsClient]
) -> None:
    """For a queue whose offset is 0 the client commits -1."""
    first = consume(topic)
    for text in "a1", "a2", "a3":
        producer.ask("send", topic=topic, body=text, shard="a")
    first.wait_for(lambda rows: len(rows) == 3)
    first.close()
    producer.ask("send", topic=topic, body="a4", shard="a")
    producer.ask("send", topic=topic, body="b1", shard="b")
    assert queue_of("a") != queue_of("b")
    rows = consume(topic).wait_for(lambda rows: len(rows) >= 2)
    assert sorted(texts(rows)) == ["a4", "b1"]


def test_a_batch_of_the_cpp_client_is_one_message_with_all_of_them_in_its_body(
    topic: str, cluster: Target, consume: Callable[..., JsClient], tmp_path: Path
) -> None:
    with CppClient(tmp_path / "cpp") as cpp:
        cpp.ask("produce", nameserver=cluster.nameserver, group="cpp-producers")
        sent = [b"first", b"second", b"third"]
        cpp.ask("batch", messages=[{"topic": topic, "body": one.decode()} for one in sent])
        cpp.ask("send", topic=topic, body="alone", tags="Tag", keys="k")
    rows = consume(topic).wait_for(lambda rows: len(rows) >= 2)
    [batch] = [row for row in rows if body(row) != b"alone"]
    assert bodies_of_batch(body(batch)) == sent


def queue_of(shard: str) -> int:
    """As the client places a sharding key."""
    return int.from_bytes(hashlib.md5(shard.encode()).digest()[:4]) % QUEUES


def texts(rows: list[Row]) -> list[str]:
    return [body(row).decode() for row in rows]


def bodies_of_batch(data: bytes) -> list[bytes]:
    found = []
    while data:
        # total size, magic, CRC, flag, body length
        total, _, _, _, length = struct.unpack_from(">iiiii", data)
        found.append(data[20 : 20 + length])
        data = data[total:]
    return found
