"""`tamis doctor` on RocketMQ 4.9.4 and 5.3.3 with the Java client in it: what can be learnt over
the wire is found, and what can't is said."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from interop.cluster import ApacheCluster, apache_cluster
from interop.javaclient import LINES, JavaClient, wait_for

UPDATE_OFFSET = 15  # requests
PATIENCE = 90.0  # seconds


@dataclass(frozen=True)
class Report:
    code: int
    rows: list[dict[str, Any]]
    errors: str

    def finding(self, check: str) -> dict[str, Any]:
        [row] = [row for row in self.rows if row["check"] == check]
        return row

    @property
    def checks(self) -> set[str]:
        return {row["check"] for row in self.rows if row["severity"] != "unchecked"}

    @property
    def unchecked(self) -> set[str]:
        return {row["evidence"]["what"] for row in self.rows if row["severity"] == "unchecked"}


@dataclass(frozen=True)
class Ward:
    cluster: ApacheCluster
    java: JavaClient

    def examine(self, group: str) -> Report:
        command = ["doctor", "--json", "--group", group, "-n", self.cluster.nameserver]
        done = subprocess.run(
            [sys.executable, "-m", "tamis", *command],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        return Report(done.returncode, rows, done.stderr)

    def topic(self, *messages: dict[str, Any]) -> str:
        """A topic of two queues with these messages in it, in turn in each queue."""
        self.java.renew()
        topic = self.java.create_topic(self.cluster.broker, self.java.name("Orders"), 2)
        if messages:
            producer = self.java.producer(self.java.name("producer"))
            self.java.send(
                producer,
                *({"topic": topic, "body": "x", "shard": i, **m} for i, m in enumerate(messages)),
            )
        return topic


@pytest.fixture(scope="module", params=LINES)
def ward(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ward]:
    store, line = tmp_path_factory.mktemp("doctor") / "store", request.param
    haste: dict[str, object] = {"longPollingEnable": False, "shortPollingTimeMills": 500}
    with (
        apache_cluster(store, line=line, **haste) as cluster,
        JavaClient(line, cluster.nameserver) as java,
    ):
        yield Ward(cluster, java)


def test_a_healthy_group_has_no_findings_and_what_was_not_checked_is_said(ward: Ward) -> None:
    topic = ward.topic(*({"tags": "a"} for _ in range(4)))
    group, client = ward.java.name("healthy"), ward.java.name("one")
    ward.java.push(client, group, {topic: {"tags": "a"}})
    ward.java.received(client, 4)
    wait_for(lambda: ward.java.assignment(client, topic), lambda queues: len(queues) == 2)
    report = ward.examine(group)
    ward.java.stop(client)
    assert (report.code, report.errors) == (0, "")
    assert report.checks == set()
    assert {"subscriptions in the past", "what filters said of messages in the past"} <= (
        report.unchecked
    )


def test_java_members_with_different_tags_are_serious(ward: Ward) -> None:
    topic = ward.topic({"tags": "TagA"}, {"tags": "TagB"})
    group = ward.java.name("disagreeing")
    one, other = ward.java.name("one"), ward.java.name("other")
    ward.java.push(one, group, {topic: {"tags": "TagA"}})
    ward.java.push(other, group, {topic: {"tags": "TagB"}})
    report = ward.examine(group)
    ward.java.stop(one)
    ward.java.stop(other)
    assert report.code == 1
    found = report.finding("inconsistent-subscriptions")
    assert (found["severity"], found["group"], found["topic"]) == ("serious", group, topic)
    members = found["evidence"]["members"]
    assert {text: len(ids) for text, ids in members.items()} == {"tags 'TagA'": 1, "tags 'TagB'": 1}
    assert one in members["tags 'TagA'"][0]
    assert found["evidence"]["brokers_filter_by"]["broker-a"] in members
    assert found["command"].startswith(f"tamis groups show {group} ")


def test_sql_that_fails_on_some_messages_is_found_by_trying_it_on_the_newest(ward: Ward) -> None:
    numbers = [{"properties": {"n": n}} for n in ("1", "many", "7", "8")]
    topic = ward.topic(*numbers)
    group, client = ward.java.name("failing"), ward.java.name("one")
    ward.java.push(client, group, {topic: {"sql": "n > 5"}})
    ward.java.received(client, 2)
    report = ward.examine(group)
    ward.java.stop(client)
    assert report.code == 1
    assert report.finding("failing-filters")["evidence"]["failed"] == 1


def test_offsets_beyond_the_log_and_lag_without_members_are_found(ward: Ward) -> None:
    topic = ward.topic(*({"tags": "a"} for _ in range(4)))
    group = ward.java.name("lost")
    made = f"updateSubGroup -b {ward.cluster.broker} -g {group}".split()
    assert "success" in ward.java.admin(made)[0]
    for queue, offset in (0, 1), (1, 500):
        fields = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": str(queue),
            "commitOffset": str(offset),
        }
        assert ward.java.request(ward.cluster.broker, UPDATE_OFFSET, fields)["code"] == 0
    report = ward.examine(group)
    assert report.code == 1
    [beyond] = report.finding("offsets-beyond-the-log")["evidence"]["queues"]
    assert (beyond["queue"], beyond["committed"], beyond["end"]) == (1, 500, 2)
    assert report.finding("lag-without-members")["evidence"]["lag"] == 1


def test_tags_of_one_hash_and_dead_letters_are_found(ward: Ward) -> None:
    topic = ward.topic({"tags": "Aa"}, {"tags": "BB"})
    group, client = ward.java.name("colliding"), ward.java.name("one")
    ward.java.push(client, group, {topic: {"tags": "Aa"}}, fail=-1, max_reconsume=0)
    ward.java.received(client, 1)
    letters = f"%DLQ%{group}"
    wait_for(
        lambda: ward.java.request(ward.cluster.nameserver, 105, {"topic": letters}),
        lambda route: route["code"] == 0,
    )
    report = ward.examine(group)
    ward.java.stop(client)
    assert report.finding("tag-collisions")["evidence"]["messages_sampled"] == {"Aa": 1, "BB": 1}
    assert report.finding("dead-letters")["evidence"]["messages"] == 1
