"""Apache's mqadmin, of 4.9.4 and of 5.3.3, against our servers. With TAMIS_TARGET=apache (or
apache-5.3, which the newer one wants) against RocketMQ's own."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from interop.cluster import INSTEAD, Target, our_cluster
from interop.javaclient import LINES, JavaClient, Row, wait_for

MESSAGES = 8


@dataclass(frozen=True)
class Desk:
    """A cluster with a topic of 4 queues, 2 messages in each; a group that has read all of them and
    is online; and its producer, online too."""

    cluster: Target
    java: JavaClient
    topic: str
    group: str
    producers: str
    sent: list[Row]

    def ask(self, command: str) -> str:
        [output] = self.java.admin(command.split())
        return output

    def ask_until(self, command: str, *texts: str) -> str:
        """Asks again until the answer has all of these in it."""
        output: str = wait_for(
            lambda: self.ask(command), lambda output: all(text in output for text in texts)
        )
        return output

    def rows(self, command: str) -> list[list[str]]:
        """Of the table that is printed, without the head."""
        lines = self.ask(command).splitlines()
        return [line.split() for line in lines if line and not line.startswith("#")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with our_cluster(tmp_path_factory.mktemp("admin") / "store") as cluster:
        yield cluster


@pytest.fixture(scope="module", params=LINES)
def desk(request: pytest.FixtureRequest, cluster: Target) -> Iterator[Desk]:
    line = request.param
    if (line, INSTEAD) == ("5.3", "4.9"):
        pytest.skip("mqadmin of 5.3 asks what a broker of 4.9 does not know")
    with JavaClient(line, cluster.nameserver) as java:
        topic, group, producers = (java.name(n) for n in ("Orders", "readers", "producers"))
        made = java.admin(f"updateTopic -b {cluster.broker} -t {topic} -r 4 -w 4".split())
        assert "success" in made[0]
        wait_for(
            lambda: java.request(cluster.nameserver, 105, {"topic": topic}),
            lambda route: route["code"] == 0,
        )
        java.producer("producer", producers)
        messages = [
            {"topic": topic, "body": f"body {i}", "keys": f"k{i}", "tags": "T", "shard": i}
            for i in range(MESSAGES)
        ]
        sent = java.send("producer", *messages)
        java.push("first", group, {topic: {}})
        java.received("first", MESSAGES)
        java.stop("first")
        java.await_commits(cluster.broker, group, topic, [2, 2, 2, 2])
        java.push("reader", group, {topic: {}})
        wait_for(lambda: java.assignment("reader", topic), lambda queues: len(queues) == 4)
        yield Desk(cluster, java, topic, group, producers, sent)


def test_topics_are_listed_with_their_cluster_and_their_groups(desk: Desk) -> None:
    listed = desk.ask("topicList").split()
    assert {desk.topic, f"%RETRY%{desk.group}", "TBW102", "SELF_TEST_TOPIC"} <= set(listed)
    assert ["DefaultCluster", desk.topic, desk.group] in desk.rows("topicList -c")


def test_a_route_names_the_broker_and_its_queues(desk: Desk) -> None:
    route = re.sub(r"\s", "", desk.ask(f"topicRoute -t {desk.topic}"))
    assert f'"brokerAddrs":{{0:"{desk.cluster.broker}"}}' in route
    assert '"brokerName":"broker-a"' in route
    assert '"perm":6,"readQueueNums":4' in route
    assert '"writeQueueNums":4' in route
    assert "CODE: 17" in desk.ask("topicRoute -t Nowhere")


def test_a_topics_status_has_the_offsets_and_time_of_each_queue(desk: Desk) -> None:
    rows = desk.rows(f"topicStatus -t {desk.topic}")
    table = [row for row in rows if row[0] == "broker-a"]
    assert [row[:4] for row in table] == [["broker-a", f"{i}", "0", "2"] for i in range(4)]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", row[4]) for row in table)


def test_the_progress_of_a_group_is_known_by_queue_and_in_sum(desk: Desk) -> None:
    output = desk.ask_until(f"consumerProgress -g {desk.group}", "Diff Total: 0")
    rows = [line.split() for line in output.splitlines() if line.startswith(desk.topic)]
    expected = [[desk.topic, "broker-a", f"{queue}", "2", "2"] for queue in range(4)]
    assert sorted(row[:5] for row in rows) == expected
    groups = {row[0]: row for row in desk.rows("consumerProgress")}
    _, count, version, kind, model, *_, total = groups[desk.group]
    assert (count, kind, model, total) == ("1", "PUSH", "CLUSTERING", "0")
    assert version.startswith(f"V{desk.java.line.replace('.', '_')}")
    assert "CODE: 17" in desk.ask("consumerProgress -g nobody")


def test_the_progress_of_a_group_that_is_away_shows_what_waits(desk: Desk) -> None:
    topic = desk.java.create_topic(desk.cluster.broker, desk.java.name("Away"), queues=1)
    group = desk.java.name("away")
    messages = [{"topic": topic, "body": f"{i}"} for i in range(5)]
    desk.java.send("producer", *messages[:2])
    desk.java.push("away", group, {topic: {}})
    desk.java.received("away", 2)
    desk.java.stop("away")
    desk.java.send("producer", *messages[2:])
    output = desk.ask_until(f"consumerProgress -g {group}", "Diff Total: 3")
    [row] = [line.split() for line in output.splitlines() if line.startswith(topic)]
    assert row[:6] == [topic, "broker-a", "0", "5", "2", "3"]
    assert "CODE: 206" in desk.ask(f"consumerConnection -g {group}")
    stats = {tuple(row[:2]): row[2] for row in desk.rows(f"statsAll -t {topic}")}
    assert stats[topic, group] == "3"


def test_a_groups_members_and_subscriptions_are_known(desk: Desk) -> None:
    output = desk.ask(f"consumerConnection -g {desk.group}")
    assert re.search(r"127\.0\.0\.1@reader-\d+ +127\.0\.0\.1:\d+ +JAVA +V[45]_", output)
    words = [line.split() for line in output.splitlines()]
    assert [desk.topic, "*"] in words
    assert [f"%RETRY%{desk.group}", "*"] in words
    assert "ConsumeType: CONSUME_PASSIVELY" in output
    assert "MessageModel: CLUSTERING" in output
    assert "ConsumeFromWhere: CONSUME_FROM_FIRST_OFFSET" in output


def test_a_consumers_own_account_of_itself_is_passed_on(desk: Desk) -> None:
    output = desk.ask(f"consumerStatus -g {desk.group}")
    assert "Same subscription in the same group of consumer" in output
    assert "Rebalance OK" in output
    [member] = re.findall(r"127\.0\.0\.1@reader-\d+", output)[:1]
    output = desk.ask(f"consumerStatus -g {desk.group} -i {member}")
    assert "#Consumer Properties#" in output
    assert re.search(rf"{desk.topic} +broker-a +3 ", output)


def test_a_producer_is_known_by_its_group(desk: Desk) -> None:
    command = f"producerConnection -g {desk.producers} -t {desk.topic}"
    output = desk.ask_until(command, "127.0.0.1@producer-")
    assert re.search(r"127\.0\.0\.1:\d+ +JAVA +V[45]_", output)


def test_a_message_is_found_by_its_ids_and_its_key(desk: Desk) -> None:
    sent = desk.sent[5]
    about = f" -t {desk.topic}" if desk.java.line == "5.3" else ""
    by_id = desk.ask(f"queryMsgById -i {sent['offset_msg_id']}{about}")
    by_unique_key = desk.ask(f"queryMsgByUniqueKey -t {desk.topic} -i {sent['msg_id']}")
    for output in by_id, by_unique_key:
        fields = dict(re.findall(r"^([A-Z][A-Za-z ]+): +(.*)$", output, re.MULTILINE))
        assert fields["Topic"] == desk.topic
        assert fields["Tags"] == "[T]"
        assert fields["Keys"] == "[k5]"
        assert fields["Queue ID"] == "1"
        assert fields["Queue Offset"] == "1"
        assert fields["Store Host"] == desk.cluster.broker
        assert f"UNIQ_KEY={sent['msg_id']}" in fields["Properties"]
        body = Path(fields["Message Body Path"])  # the same both times
        assert body.read_bytes() == b"body 5"
    body.unlink()
    assert f"consumerGroup={desk.group}, trackType=CONSUMED" in by_id
    by_key = desk.rows(f"queryMsgByKey -t {desk.topic} -k k5")
    assert [sent["msg_id"], "1", "1"] in by_key


def test_the_cluster_and_its_broker_tell_their_state(desk: Desk) -> None:
    rows = [row for row in desk.rows("clusterList") if row[0] == "DefaultCluster"]
    assert [row[:4] for row in rows] == [["DefaultCluster", "broker-a", "0", desk.cluster.broker]]
    assert re.fullmatch(r"V\d_\d_\d", rows[0][4])
    status = dict(
        map(str.strip, line.split(":", 1))
        for line in desk.ask(f"brokerStatus -b {desk.cluster.broker}").splitlines()
        if ":" in line
    )
    assert re.fullmatch(r"V\d_\d_\d", status["brokerVersionDesc"])
    assert int(status["msgPutTotalTodayNow"]) >= MESSAGES
    assert int(status["commitLogMaxOffset"]) > int(status["commitLogMinOffset"])
    assert {"bootTimestamp", "putTps", "runtime", "sendThreadPoolQueueSize"} <= set(status)
    assert {"pullThreadPoolQueueSize", "pageCacheLockTimeMills", "commitLogDiskRatio"} <= set(
        status
    )


def test_a_topic_is_made_changed_and_deleted(desk: Desk) -> None:
    topic, broker = desk.java.name("Brief"), desk.cluster.broker
    assert "success" in desk.ask(f"updateTopic -b {broker} -t {topic} -r 2 -w 2")
    desk.ask_until(f"topicRoute -t {topic}", '"readQueueNums":2', '"writeQueueNums":2')
    assert "success" in desk.ask(f"updateTopic -c DefaultCluster -t {topic} -r 6 -w 5 -p 4")
    desk.ask_until(f"topicRoute -t {topic}", '"readQueueNums":6', '"writeQueueNums":5', '"perm":4')
    output = desk.ask(f"deleteTopic -c DefaultCluster -t {topic}")
    assert f"delete topic [{topic}] from cluster [DefaultCluster] success." in output
    assert f"delete topic [{topic}] from NameServer success." in output
    assert topic not in desk.ask("topicList").split()
    assert "CODE: 17" in desk.ask(f"topicRoute -t {topic}")


def test_a_group_is_made_with_its_settings(desk: Desk) -> None:
    group, broker = desk.java.name("made"), desk.cluster.broker
    output = desk.ask(f"updateSubGroup -b {broker} -g {group} -r 3 -s true")
    assert f"create subscription group to {broker} success." in output
    config = re.sub(r"[ \t]", "", desk.ask(f"getConsumerConfig -g {group}"))
    assert f"groupName={group}" in config
    assert "retryMaxTimes=3" in config
    assert "success" in desk.ask(f"deleteSubGroup -b {broker} -g {group}")


def test_a_setting_of_the_broker_is_changed_while_it_runs(desk: Desk) -> None:
    broker, name = desk.cluster.broker, "autoCreateSubscriptionGroup"

    def value() -> str:
        rows = [line.split() for line in desk.ask(f"getBrokerConfig -b {broker}").splitlines()]
        [value] = [row[2] for row in rows if row[:2] == [name, "="]]
        return value

    assert value() == "true"
    for wanted in "false", "true":
        output = desk.ask(f"updateBrokerConfig -b {broker} -k {name} -v {wanted}")
        assert f"update broker config success, {broker}" in output
        assert value() == wanted


def test_a_group_that_is_away_begins_again_after_a_reset(desk: Desk) -> None:
    topic = desk.java.create_topic(desk.cluster.broker, desk.java.name("Reset"), queues=2)
    group = desk.java.name("resetting")
    desk.java.send("producer", *({"topic": topic, "body": f"{i}", "shard": i} for i in range(6)))
    desk.java.push("before", group, {topic: {}})
    desk.java.received("before", 6)
    desk.java.stop("before")
    desk.java.await_commits(desk.cluster.broker, group, topic, [3, 3])
    output = desk.ask(f"resetOffsetByTime -g {group} -t {topic} -s 0")
    assert re.search(r"broker-a +1 ", output), output
    desk.ask_until(f"consumerProgress -g {group}", "Diff Total: 6")
    desk.java.push("after", group, {topic: {}})
    assert sorted(row["body"] for row in desk.java.received("after", 6)) == list("012345")
    desk.java.stop("after")


def test_a_group_that_is_online_begins_again_after_a_reset(desk: Desk) -> None:
    if desk.java.line != "4.9":
        pytest.skip("once is enough: the client waits 10 s before it moves")
    topic = desk.java.create_topic(desk.cluster.broker, desk.java.name("Rewind"), queues=2)
    group = desk.java.name("rewinding")
    desk.java.send("producer", *({"topic": topic, "body": f"{i}", "shard": i} for i in range(6)))
    desk.java.push("before", group, {topic: {}})
    desk.java.received("before", 6)
    desk.java.stop("before")
    # A broker resets only what it has.
    desk.java.await_commits(desk.cluster.broker, group, topic, [3, 3])
    desk.java.push("rewinding", group, {topic: {}})
    wait_for(lambda: desk.java.assignment("rewinding", topic), lambda queues: queues == [0, 1])
    output = desk.ask(f"resetOffsetByTime -g {group} -t {topic} -s 0")
    assert sorted(re.findall(r"broker-a +(\d) +(\d)", output)) == [("0", "0"), ("1", "0")]
    again = desk.java.received("rewinding", 6)
    assert sorted(row["body"] for row in again) == list("012345")
    desk.java.stop("rewinding")
