"""RocketMQ's C++ client against our servers; with TAMIS_TARGET=apache, against RocketMQ's own,
which is how these tests are shown to be right."""

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from interop.cppclient import PATIENCE, CppClient, Row, Target, target

QUEUES = 4  # of a topic made by a send


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with target(tmp_path_factory.mktemp("cpp") / "store") as cluster:
        yield cluster


@pytest.fixture
def topic() -> str:
    return f"cpp-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Callable[[], CppClient]]:
    with ExitStack() as stack:
        homes = iter(range(100))
        yield lambda: stack.enter_context(CppClient(tmp_path / f"home{next(homes)}"))


@pytest.fixture
def producer(cluster: Target, client: Callable[[], CppClient]) -> CppClient:
    started = client()
    started.ask("produce", nameserver=cluster.nameserver, group="cpp-producers")
    return started


@pytest.fixture
def pull(cluster: Target, client: Callable[[], CppClient]) -> Callable[..., list[Row]]:
    """All that a topic has once it has `count` of them: a send is answered before its message can
    be read, and before the name server knows a topic made by it."""
    puller = client()

    def pull(topic: str, count: int, **options: object) -> list[Row]:
        options |= {"nameserver": cluster.nameserver, "group": "cpp-pullers", "topic": topic}

        def enough(answer: tuple[int, list[Row]]) -> bool:
            queues, rows = answer
            return queues == QUEUES and len(rows) >= count

        until(lambda: puller.ask("pull", **options), enough)
        _, rows = puller.ask("pull", **options)  # and what came while queues were read
        return sorted(rows, key=lambda row: (row["queue"], row["offset"]))

    return pull


@pytest.fixture
def consume(
    cluster: Target, client: Callable[[], CppClient], pull: Callable[..., list[Row]]
) -> Callable[..., CppClient]:
    """A push consumer that runs; of the topic's own group unless told. One that found no route at
    its start would look again after half a minute."""

    def consume(topic: str, **options: object) -> CppClient:
        pull(topic, 0)
        consumer = client()
        options = {"group": f"{topic}-group", **options}
        consumer.ask("consume", nameserver=cluster.nameserver, topic=topic, **options)
        return consumer

    return consume


@pytest.mark.parametrize("how", ["sync", "async", "oneway", "orderly", "oneway-orderly"])
def test_a_message_sent_in_any_way_is_pulled_as_it_was(
    how: str, topic: str, producer: CppClient, pull: Callable[..., list[Row]]
) -> None:
    fields = {"topic": topic, "body": "größer 大", "tags": "Tag", "keys": "k1 k2"}
    properties = {"region": "eu", "colour": "dark red"}
    sent = producer.ask("send", how=how, queue=2, properties=properties, **fields)
    [row] = pull(topic, 1)
    assert {name: row[name] for name in fields} == fields
    assert row["properties"].items() >= properties.items()
    assert (row["offset"], row["times"]) == (0, 0)
    assert row["born"] <= row["stored"]
    if "orderly" in how:
        assert row["queue"] == 2
    if "oneway" not in how:
        assert sent == {"status": "OK", "id": row["id"], "offset": 0}


def test_a_long_body_is_stored_compressed_and_read_whole(
    topic: str, producer: CppClient, pull: Callable[..., list[Row]]
) -> None:
    body = "0123456789" * 2_000
    producer.ask("send", topic=topic, body=body)
    [row] = pull(topic, 1)
    assert row["body"] == body
    assert row["size"] < 1_000


def test_messages_of_one_queue_have_successive_offsets_in_the_order_sent(
    topic: str, producer: CppClient, pull: Callable[..., list[Row]]
) -> None:
    sent = send_to_all_queues(producer, topic, rounds=10)
    assert [(row["queue"], row["offset"], row["body"]) for row in pull(topic, 10 * QUEUES)] == [
        (queue, offset, body) for queue in sent for offset, body in enumerate(sent[queue])
    ]


def test_a_pull_by_tags_finds_those_tags_only(
    topic: str, producer: CppClient, pull: Callable[..., list[Row]]
) -> None:
    send_tagged(producer, topic, "a", "b", "c", "a", "Aa", "BB")
    assert len(pull(topic, 6)) == 6
    assert tags(pull(topic, 3, expression="a || c")) == ["a", "a", "c"]
    assert tags(pull(topic, 1, expression="Aa")) == ["Aa"]  # "BB" has the same hash
    assert tags(pull(topic, 0, expression="none")) == []


def test_a_batch_is_one_message_for_its_flag_does_not_say_true(
    topic: str, producer: CppClient, pull: Callable[..., list[Row]]
) -> None:
    """The client sends `batch` as "1", which `Boolean.parseBoolean` takes for false. The stored
    body begins with a length, hence with a zero, which ends a C string."""
    bodies = ["first", "second", "third"]
    sent = producer.ask("batch", messages=[{"topic": topic, "body": body} for body in bodies])
    assert sent["status"] == "OK"
    [row] = pull(topic, 1)
    assert row["body"] == ""
    assert row["size"] > len(topic) + len("".join(bodies))


def test_a_delayed_message_arrives_after_its_time(
    topic: str, producer: CppClient, consume: Callable[..., CppClient]
) -> None:
    producer.ask("send", topic=topic, body="late", delay=1)  # a second
    [row] = consume(topic).wait_for(lambda rows: len(rows) == 1)
    assert (row["body"], row["topic"]) == ("late", topic)
    assert row["properties"]["REAL_TOPIC"] == topic
    assert row["stored"] - row["born"] >= 1_000  # milliseconds


def test_a_prepared_message_is_kept_from_consumers(
    topic: str, producer: CppClient, pull: Callable[..., list[Row]]
) -> None:
    """The package has no transactions, but marks such a message for the broker."""
    prepared = {"TRAN_MSG": "true", "PGROUP": "cpp-producers"}
    half = producer.ask("send", topic=topic, body="half", properties=prepared)
    assert half["status"] == "OK"
    producer.ask("send", topic=topic, body="whole")
    assert bodies(pull(topic, 1)) == ["whole"]


def test_a_push_consumer_gets_what_was_there_and_what_comes_each_once(
    topic: str, producer: CppClient, consume: Callable[..., CppClient]
) -> None:
    early = send_to_all_queues(producer, topic, rounds=5)
    consumer = consume(topic)
    consumer.wait_for(lambda rows: len(rows) >= 5 * QUEUES)
    started = time.monotonic()
    late = send_to_all_queues(producer, topic, rounds=5, prefix="late")
    rows = consumer.wait_for(lambda rows: len(rows) >= 10 * QUEUES)
    assert time.monotonic() - started < 5  # not when the broker gives up holding the pulls
    assert by_queue(rows, ordered=False) == {
        queue: sorted(early[queue] + late[queue]) for queue in range(QUEUES)
    }


def test_a_push_consumer_gets_the_tags_it_subscribed_to_only(
    topic: str, producer: CppClient, consume: Callable[..., CppClient]
) -> None:
    send_tagged(producer, topic, "a", "b", "Aa", "BB")
    consumer = consume(topic, expression="Aa || a")
    send_tagged(producer, topic, "b", "a", "BB", "c")
    for queue in range(QUEUES):  # after all others of its queue
        producer.ask("send", how="orderly", queue=queue, topic=topic, body="last", tags="Aa")
    rows = consumer.wait_for(lambda rows: bodies(rows).count("last") == QUEUES)
    assert tags(row for row in rows if row["body"] != "last") == ["Aa", "a", "a"]


def test_an_orderly_consumer_gets_each_queue_in_order_and_repeats_in_place(
    topic: str, producer: CppClient, consume: Callable[..., CppClient]
) -> None:
    sent = send_to_all_queues(producer, topic, rounds=10)
    consumer = consume(topic, orderly=True, failing=[sent[1][4]])
    rows = consumer.wait_for(lambda rows: len(rows) >= 10 * QUEUES + 1)
    assert [row["body"] for row in rows if row["failed"]] == [sent[1][4]]
    assert by_queue(rows) == {**sent, 1: [*sent[1][:5], *sent[1][4:]]}


def test_a_message_whose_consumption_failed_comes_again_by_the_retry_topic(
    topic: str, producer: CppClient, consume: Callable[..., CppClient]
) -> None:
    """One failure is that of all that were pulled with it, so it has its queue for itself."""
    producer.ask("send", how="orderly", queue=0, topic=topic, body="good")
    fields = {"topic": topic, "body": "bad", "tags": "Tag", "keys": "k"}
    bad = producer.ask("send", how="orderly", queue=1, **fields)
    consumer = consume(topic, failing=["bad"])
    rows = consumer.wait_for(lambda rows: bodies(rows).count("bad") == 2)  # ten seconds: level 3
    first, second = (row for row in rows if row["body"] == "bad")
    assert [first["times"], second["times"]] == [0, 1]
    assert first["id"] == second["id"] == bad["id"]
    same = "topic", "tags", "keys", "born"
    assert [second[name] for name in same] == [first[name] for name in same]
    assert second["stored"] - first["stored"] >= 10_000  # milliseconds
    assert second["properties"]["RETRY_TOPIC"] == topic
    assert sorted(bodies(rows)) == ["bad", "bad", "good"]


def test_a_consumer_started_again_goes_on_where_it_stopped(
    topic: str, producer: CppClient, consume: Callable[..., CppClient]
) -> None:
    """Except that of each queue the last may come again: we close on seeing it, which can be before
    the client has counted it."""
    seen = send_to_all_queues(producer, topic, rounds=3)
    first = consume(topic)
    first.wait_for(lambda rows: len(rows) == 3 * QUEUES)
    first.close()
    missed = send_to_all_queues(producer, topic, rounds=2, prefix="missed")
    due = {body for there in missed.values() for body in there}
    rows = consume(topic).wait_for(lambda rows: due <= set(bodies(rows)))
    for queue, got in by_queue(rows, ordered=False).items():
        assert got in (missed[queue], [seen[queue][-1], *missed[queue]])
    other = consume(topic, group=f"{topic}-other")
    other.wait_for(lambda rows: len(rows) == 5 * QUEUES)


def test_consumers_of_a_group_share_the_queues_and_inherit_them(
    topic: str, producer: CppClient, consume: Callable[..., CppClient]
) -> None:
    send_to_all_queues(producer, topic, rounds=1)
    one = consume(topic)
    one.wait_for(lambda rows: len(rows) == QUEUES)
    two = consume(topic)
    rounds = iter(range(1_000))

    def shares() -> tuple[int, int]:
        """How many queues are now the one's and the other's, by a message to each queue."""
        marked = f"round{next(rounds)}"
        send_to_all_queues(producer, topic, rounds=1, prefix=marked)

        def seen() -> list[set[int]]:
            return [
                {row["queue"] for row in list(who.received) if row["body"].startswith(marked)}
                for who in (one, two)
            ]

        mine, theirs = until(seen, lambda seen: len(seen[0] | seen[1]) == QUEUES)
        return len(mine), len(theirs)

    until(shares, lambda counts: counts == (2, 2))
    two.close()
    until(shares, lambda counts: counts == (4, 0))


def test_a_broadcast_reaches_every_consumer_of_the_group(
    topic: str, producer: CppClient, consume: Callable[..., CppClient]
) -> None:
    """Such a consumer begins at the end: what is sent once it has found it, it gets."""
    send_to_all_queues(producer, topic, rounds=1)
    consumers = [consume(topic, broadcast=True) for _ in range(2)]
    rounds = iter(range(1_000))

    def reached() -> list[int]:
        last = send_to_all_queues(producer, topic, rounds=1, prefix=f"round{next(rounds)}")
        due = {body for there in last.values() for body in there}
        return [len(due.intersection(bodies(list(who.received)))) for who in consumers]

    until(reached, lambda counts: counts == [QUEUES, QUEUES])


def send_to_all_queues(
    producer: CppClient, topic: str, rounds: int, prefix: str = "m"
) -> dict[int, list[str]]:
    """The bodies sent, by queue."""
    sent: dict[int, list[str]] = {queue: [] for queue in range(QUEUES)}
    for number in range(rounds):
        for queue, sent_there in sent.items():
            body = f"{prefix}-{queue}-{number}"
            producer.ask("send", how="orderly", queue=queue, topic=topic, body=body)
            sent_there.append(body)
    return sent


def send_tagged(producer: CppClient, topic: str, *tags: str) -> None:
    for tag in tags:
        producer.ask("send", topic=topic, body=f"tagged {tag}", tags=tag)


def by_queue(rows: list[Row], ordered: bool = True) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {queue: [] for queue in range(QUEUES)}
    for row in rows:
        found[row["queue"]].append(row["body"])
    return found if ordered else {queue: sorted(found[queue]) for queue in found}


def bodies(rows: list[Row]) -> list[str]:
    return [row["body"] for row in rows]


def tags(rows: Iterator[Row] | list[Row]) -> list[str]:
    return sorted(Counter(row["tags"] for row in rows).elements())


def until(look: Callable[[], Any], enough: Callable[[Any], bool]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not enough(seen := look()):
        assert time.monotonic() < deadline, f"after {PATIENCE} s: {seen}"
        time.sleep(0.02)
    return seen
