"""Half a cluster of ours and half of Apache's: a broker registers at the other's name server, and
clients find it there."""

import json
from pathlib import Path

import pytest
from interop.cluster import ApacheNameServer, apache_cluster, our_broker, our_nameserver
from interop.javaclient import JavaClient, wait_for

from tamis.store.tables import save_topics
from tamis.wire.bodies import DataVersion, TopicConfig


def test_a_broker_of_apaches_is_found_by_our_name_server(tmp_path: Path) -> None:
    with (
        our_nameserver(tmp_path / "names") as nameserver,
        apache_cluster(tmp_path / "store", nameserver) as cluster,
        JavaClient("4.9", nameserver) as java,
    ):
        send_and_receive(java, nameserver, cluster.broker)
        cluster.restart_broker()
        send_and_receive(java, nameserver, cluster.broker)
        cluster.kill()
        wait_for(
            lambda: java.request(nameserver, 105, {"topic": "SELF_TEST_TOPIC"}),
            lambda route: route["code"] == 17,
        )


def test_a_newer_broker_of_apaches_is_found_by_our_name_server(tmp_path: Path) -> None:
    with (
        our_nameserver(tmp_path / "names") as nameserver,
        apache_cluster(tmp_path / "store", nameserver, "5.3") as cluster,
        JavaClient("5.3", nameserver) as java,
    ):
        send_and_receive(java, nameserver, cluster.broker)


def test_a_broker_of_ours_is_found_by_apaches_name_server(tmp_path: Path) -> None:
    with (
        ApacheNameServer(tmp_path / "names") as server,
        our_broker(server.nameserver, tmp_path / "store") as broker,
        JavaClient("4.9", server.nameserver) as java,
    ):
        send_and_receive(java, server.nameserver, broker)


def test_a_broker_of_ours_is_found_by_apaches_newer_name_server(tmp_path: Path) -> None:
    with (
        ApacheNameServer(tmp_path / "names", "5.3") as server,
        our_broker(server.nameserver, tmp_path / "store") as broker,
        JavaClient("5.3", server.nameserver) as java,
    ):
        send_and_receive(java, server.nameserver, broker)


@pytest.mark.parametrize("line", ["4.9", "5.3"])
def test_a_broker_with_more_topics_than_fit_in_a_registration_is_found_with_all(
    tmp_path: Path, line: str
) -> None:
    """It registers in parts; a later registration, or a new topic, takes none of them away."""
    topics = {
        name: TopicConfig(name=name, read_queues=3, write_queues=3)
        for name in (f"Many-{number}" for number in range(25_000))
    }
    save_topics(tmp_path / "store" / "config", topics, DataVersion(timestamp=1, counter=1))
    with (
        ApacheNameServer(tmp_path / "names", line) as server,
        our_broker(server.nameserver, tmp_path / "store") as broker,
        JavaClient(line, server.nameserver) as java,
    ):

        def found() -> set[str]:
            answer = java.request(server.nameserver, 206)  # GET_ALL_TOPIC_LIST_FROM_NAMESERVER
            return set(json.loads(answer["body"])["topicList"])

        names = wait_for(found, lambda names: len(names) > len(topics))
        assert names >= topics.keys()
        made = java.create_topic(broker, java.name("Made"), queues=2)
        names = wait_for(found, lambda names: made in names)
        assert names >= topics.keys()
        for name in ("Many-0", "Many-9999", "Many-10000", "Many-24999", made):
            route = java.request(server.nameserver, 105, {"topic": name})
            assert route["code"] == 0
            assert broker.encode() in route["body"]


def send_and_receive(java: JavaClient, nameserver: str, broker: str) -> None:
    """To a topic made by hand and to one made by sending; by tags and by SQL."""
    java.renew()
    made, new = java.create_topic(broker, java.name("Made"), queues=2), java.name("New")
    cluster = java.request(nameserver, 106)
    assert cluster["code"] == 0
    assert broker.encode() in cluster["body"]
    java.push("all", java.name("all"), {made: {"tags": "T"}})
    java.push("some", java.name("some"), {made: {"sql": "n > 7"}})
    java.producer()
    for topic in made, new:
        rows = java.send(
            "producer",
            *(
                {"topic": topic, "body": f"{i}", "tags": "T", "properties": {"n": f"{i}"}}
                for i in range(10)
            ),
        )
        assert [row.get("status") for row in rows] == ["SEND_OK"] * 10
    assert sorted(row["body"] for row in java.received("all", 10)) == list("0123456789")
    assert sorted(row["body"] for row in java.received("some", 2)) == ["8", "9"]
    java.push("new", java.name("new"), {new: {}})
    assert sorted(row["body"] for row in java.received("new", 10)) == list("0123456789")
    java.stop_all()
