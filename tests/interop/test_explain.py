"""`explain` with the real Java client as consumer, on Apache's broker and on ours: the fate, and
that the track in its evidence is what mqadmin prints."""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from interop.cluster import INSTEAD, Target, apache_cluster, our_cluster
from interop.javaclient import JavaClient, Row, wait_for

from tamis.client.blocking import Admin
from tamis.fate import Fate, Judgement
from tamis.fate.standing import STANDING_MARGIN

SETTINGS: dict[str, object] = {"messageDelayLevel": "1s 2s 1m" + 15 * " 1m"}
LONG = 3  # the delay level of a minute


@dataclass(frozen=True)
class Desk:
    """A cluster, and Java clients to fill it and to read it."""

    kind: str
    cluster: Target
    java: JavaClient

    def topic(self, stem: str, queues: int = 1) -> str:
        return self.java.create_topic(self.cluster.broker, self.java.name(stem), queues=queues)

    def send(self, topic: str, *tags: str, **fields: Any) -> list[Row]:
        """A message each, spread over the topic's queues in turn."""
        messages = [
            {"topic": topic, "body": tag, "tags": tag, "shard": i, **fields}
            for i, tag in enumerate(tags)
        ]
        return self.java.send("producer", *messages)

    def await_commit(self, group: str, topic: str, *offsets: int) -> None:
        self.java.await_commits(self.cluster.broker, group, topic, offsets)

    def await_queues(self, client: str, topic: str, count: int) -> None:
        """Until a member has its queues, and for so long that messages from now on are known to
        have been stored later."""
        wait_for(lambda: self.java.assignment(client, topic), lambda seen: len(seen) == count)
        time.sleep(STANDING_MARGIN / 1000 + 0.3)

    def explain(self, sent: Row, group: str, **more: Any) -> Judgement:
        with Admin(self.cluster.nameserver) as admin:
            [judgement] = admin.explain(sent["offset_msg_id"], group=group, **more)
        return judgement

    def track(self, sent: Row, group: str) -> str | None:
        """What mqadmin says; None if it does not know of the group."""
        [output] = self.java.admin(["queryMsgById", "-i", sent["offset_msg_id"]])
        tracks = dict(re.findall(r"consumerGroup=([^,]+), trackType=(\w+)", output))
        return tracks.get(group)

    def check(self, sent: Row, group: str, *fates: Fate) -> Judgement:
        """One of these fates, and mqadmin's track."""
        judgement = self.explain(sent, group)
        assert judgement.fate in fates, judgement
        assert judgement.evidence["track"] == self.track(sent, group), judgement
        return judgement

    def expected(self, fate: Fate) -> Fate:
        """What only history tells is not known of Apache's broker."""
        return Fate.UNKNOWN if self.kind == "apache" else fate


@pytest.fixture(scope="module")
def java() -> Iterator[JavaClient]:
    with JavaClient("4.9") as client:
        yield client


@pytest.fixture(scope="module", params=["apache", "tamis"])
def desk(
    request: pytest.FixtureRequest, java: JavaClient, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Desk]:
    store = tmp_path_factory.mktemp(request.param) / "store"
    running = apache_cluster if request.param == "apache" else our_cluster
    kind = "apache" if INSTEAD is not None else request.param
    with running(store, **SETTINGS) as cluster:
        java.nameserver = cluster.nameserver
        java.renew()
        java.producer("producer")
        try:
            yield Desk(kind, cluster, java)
        finally:
            java.stop_all()


def test_a_message_that_came_while_all_stood_still_is_known_to_be_consumed(desk: Desk) -> None:
    topic, group = desk.topic("Consumed"), desk.java.name("consumed")
    [before] = desk.send(topic, "T")
    desk.java.push("consumed", group, {topic: {}})
    desk.await_commit(group, topic, 1)
    desk.check(before, group, desk.expected(Fate.CONSUMED))
    desk.await_queues("consumed", topic, 1)
    [after] = desk.send(topic, "T")
    desk.await_commit(group, topic, 2)
    judgement = desk.check(after, group, Fate.CONSUMED)
    assert judgement.evidence["committed"] == 2
    assert "127.0.0.1@consumed" in judgement.reason
    desk.java.stop("consumed")


def test_what_is_unknown_of_apaches_broker_is_said_with_what_todays_filter_says(
    desk: Desk,
) -> None:
    topic, group = desk.topic("Before"), desk.java.name("before")
    [wanted, other] = desk.send(topic, "T", "U")
    desk.java.push("before", group, {topic: {"tags": "T"}})
    desk.await_commit(group, topic, 2)
    passed = desk.check(wanted, group, desk.expected(Fate.CONSUMED))
    left = desk.check(other, group, desk.expected(Fate.FILTERED))
    assert left.evidence["track"] == "CONSUMED_BUT_FILTERED"
    if desk.kind == "apache":
        assert "keeps no history" in passed.reason
        assert "it would match" in passed.reason
        assert "it would not match" in left.reason
        assert any("changed after it was stored" in one for one in left.evidence["unknown"])
    desk.java.stop("before")
    wait_for(lambda: desk.track(wanted, group), lambda seen: seen == "NOT_ONLINE")
    desk.check(wanted, group, desk.expected(Fate.CONSUMED))


def test_messages_wait_for_a_group_that_is_away(desk: Desk) -> None:
    topic, group = desk.topic("Away"), desk.java.name("away")
    desk.send(topic, "T")
    desk.java.push("away", group, {topic: {}})
    desk.java.received("away", 1)
    desk.await_commit(group, topic, 1)
    desk.java.stop("away")
    [sent] = desk.send(topic, "T")
    wait_for(lambda: desk.track(sent, group), lambda seen: seen == "NOT_ONLINE")
    desk.check(sent, group, Fate.NOT_ONLINE)


def test_a_message_that_an_ordered_consumer_fails_on_is_not_consumed_yet(desk: Desk) -> None:
    topic, group = desk.topic("Ordered"), desk.java.name("ordered")
    desk.java.push("ordered", group, {topic: {}}, ordered=True, fail=-1, failing="bad")
    desk.await_queues("ordered", topic, 1)
    desk.send(topic, "good")
    [bad] = desk.send(topic, "bad")
    desk.await_commit(group, topic, 1)
    desk.check(bad, group, Fate.NOT_CONSUMED_YET)
    desk.java.stop("ordered")


def test_tags_and_sql_that_do_not_match_are_told_apart_from_consumption(desk: Desk) -> None:
    topic, tags, sql = desk.topic("Filtered"), desk.java.name("tags"), desk.java.name("sql")
    desk.java.push("tags", tags, {topic: {"tags": "A || B"}})
    desk.java.push("sql", sql, {topic: {"sql": "price > 5 AND TAGS = 'C'"}})
    for client in "tags", "sql":
        desk.await_queues(client, topic, 1)
    [cheap, dear] = (desk.send(topic, "C", properties={"price": price})[0] for price in "39")
    for group in tags, sql:
        desk.await_commit(group, topic, 2)
    assert "'C'" in desk.check(cheap, tags, Fate.FILTERED).reason
    judgement = desk.check(cheap, sql, Fate.FILTERED)
    assert judgement.evidence["track"] == "CONSUMED"  # RocketMQ's tools know nothing of SQL
    assert "price" in judgement.reason
    assert judgement.evidence["sql"]["part"]["parts"][0]["outcome"] == "false"
    desk.check(dear, sql, Fate.CONSUMED)
    desk.java.stop("tags", "sql")


def test_members_that_disagree_lose_messages_and_these_are_named(desk: Desk) -> None:
    topic, group = desk.topic("Lost", queues=4), desk.java.name("lost")
    desk.java.push("a-member", group, {topic: {"tags": "TagA"}})
    desk.java.push("b-member", group, {topic: {"tags": "TagB"}})
    for client in "a-member", "b-member":
        desk.await_queues(client, topic, 2)
    sent = desk.send(topic, *(["TagA"] * 4 + ["TagB"] * 4 + ["TagC"] * 4))
    wait_for(  # an answer that brings nothing moves progress when its hold of 15 s ends
        lambda: _committed(desk, group, topic), lambda seen: seen == ["3"] * 4, 40
    )
    received = {
        row["msg_id"] for one in ("a-member", "b-member") for row in desk.java.received(one)
    }
    for row, tag in zip(sent, ["TagA"] * 4 + ["TagB"] * 4 + ["TagC"] * 4, strict=True):
        fate = Fate.CONSUMED if row["msg_id"] in received else Fate.LOST_TO_INCONSISTENCY
        judgement = desk.check(row, group, Fate.FILTERED if tag == "TagC" else fate)
        if judgement.fate is Fate.LOST_TO_INCONSISTENCY:
            member = "a" if tag == "TagA" else "b"
            assert f"It was wanted (127.0.0.1@{member}-member" in judgement.reason
    assert len(received) == 2
    desk.java.stop("a-member", "b-member")


def _committed(desk: Desk, group: str, topic: str) -> list[str | None]:
    asked = {"consumerGroup": group, "topic": topic}
    answers = (
        desk.java.request(desk.cluster.broker, 14, {**asked, "queueId": queue})
        for queue in range(4)
    )
    return [(answer["fields"] or {}).get("offset") for answer in answers]


def test_a_message_sent_back_is_retried_and_then_consumed(desk: Desk) -> None:
    topic, group = desk.topic("Retried"), desk.java.name("retried")
    desk.java.push("retried", group, {topic: {}}, fail=1, delay_level=1)
    desk.await_queues("retried", topic, 1)
    [sent] = desk.send(topic, "T")
    judgement = wait_for(lambda: desk.explain(sent, group), lambda seen: seen.fate is Fate.RETRYING)
    assert judgement.evidence["retry"]["times"] == 1
    judgement = wait_for(lambda: desk.explain(sent, group), lambda seen: seen.fate is Fate.CONSUMED)
    assert judgement.reason.startswith("It was sent back once and then consumed")
    desk.check(sent, group, Fate.CONSUMED)
    desk.java.stop("retried")


def test_a_message_that_waits_to_come_again_is_known_with_its_time(desk: Desk) -> None:
    topic, group = desk.topic("Waiting"), desk.java.name("waiting")
    desk.java.push("waiting", group, {topic: {}}, fail=-1, delay_level=LONG)
    desk.await_queues("waiting", topic, 1)
    [sent] = desk.send(topic, "T")
    desk.await_commit(group, topic, 1)
    judgement = desk.check(sent, group, Fate.RETRYING)
    retry = judgement.evidence["retry"]
    assert retry["due"] > time.time() * 1000 + 30_000
    assert (retry["topic"], retry["times"]) == (f"%RETRY%{group}", 1)
    desk.java.stop("waiting")


def test_a_message_that_failed_too_often_is_found_among_the_dead_letters(desk: Desk) -> None:
    topic, group = desk.topic("Dead"), desk.java.name("dead")
    desk.java.push("dead", group, {topic: {}}, fail=-1, delay_level=1, max_reconsume=1)
    desk.await_queues("dead", topic, 1)
    [sent] = desk.send(topic, "T")
    judgement = wait_for(
        lambda: desk.explain(sent, group), lambda seen: seen.fate is Fate.DEAD_LETTERED
    )
    assert f"is in %DLQ%{group} now" in judgement.reason
    desk.check(sent, group, Fate.DEAD_LETTERED)
    desk.java.stop("dead")
    wait_for(lambda: desk.track(sent, group), lambda seen: seen == "NOT_ONLINE")
    desk.check(sent, group, Fate.DEAD_LETTERED)


def test_a_group_that_broadcasts_is_said_to(desk: Desk) -> None:
    topic, group = desk.topic("Broadcast"), desk.java.name("broadcast")
    desk.java.push("broadcast", group, {topic: {}}, broadcast=True)
    desk.await_queues("broadcast", topic, 1)
    [sent] = desk.send(topic, "T")
    desk.java.received("broadcast", 1)
    judgement = desk.check(sent, group, Fate.BROADCASTING)
    assert judgement.evidence["track"] == "NOT_ONLINE"  # so RocketMQ's tools
    desk.java.stop("broadcast")


def test_a_group_that_pulls_and_commits_nothing_keeps_its_progress_itself(desk: Desk) -> None:
    topic, group = desk.topic("Pulled"), desk.java.name("pulled")
    desk.java.lite("pulled", group, {topic: {}}, auto_commit=False)
    [sent] = desk.send(topic, "T")
    assert len(desk.java.poll("pulled", 1)) == 1
    desk.check(sent, group, Fate.PULL)
    desk.java.stop("pulled")


def test_a_message_is_found_by_unique_key_with_and_without_its_topic(desk: Desk) -> None:
    topic, group = desk.topic("Found"), desk.java.name("found")
    desk.java.push("found", group, {topic: {}})
    [sent] = desk.send(topic, "T", keys="order-7")
    desk.await_commit(group, topic, 1)
    with Admin(desk.cluster.nameserver) as admin:
        ways: list[dict[str, Any]] = [
            {"message_id": sent["msg_id"]},
            {"message_id": sent["msg_id"], "topic": topic},
            {"key": "order-7", "topic": topic},
            {"topic": topic, "queue_id": 0, "offset": 0},
        ]
        for way in ways:
            [judgement] = admin.explain(**way)
            assert judgement.group == group
            assert judgement.evidence["message_id"] in (sent["offset_msg_id"], sent["msg_id"])
    desk.java.stop("found")
