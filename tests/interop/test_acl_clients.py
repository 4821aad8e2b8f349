"""Apache's Java client with its `AclClientRPCHook`, and mqadmin with keys, against our broker:
right, wrong and missing keys, and mqadmin's commands about accounts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from interop.aclservers import GuardedApache, ask_all, guarded_cluster, signed
from interop.javaclient import LINES, JavaClient, JavaError, Row, wait_for

from tamis.testing import LocalCluster

ADMIN = {"access_key": "admin-key", "secret_key": "admin-secret"}
PUB = {"access_key": "pub-key", "secret_key": "pub-secret"}
SUB = {"access_key": "sub-key", "secret_key": "sub-secret"}
WRONG = {"access_key": "pub-key", "secret_key": "wrong-secret"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with guarded_cluster(tmp_path_factory.mktemp("guarded")) as cluster:
        yield cluster


@pytest.fixture(scope="module", params=LINES)
def java(request: pytest.FixtureRequest, cluster: LocalCluster) -> Iterator[JavaClient]:
    with JavaClient(request.param, cluster.nameserver) as java:
        yield java


@pytest.fixture(scope="module")
def tools(cluster: LocalCluster) -> Iterator[JavaClient]:
    """RocketMQ 5.3 has commands of another kind for accounts."""
    with JavaClient("4.9", cluster.nameserver) as java:
        yield java


def home_of(cluster: LocalCluster) -> Path:
    assert cluster.store is not None
    return cluster.store.parent


def admin(java: JavaClient, command: str, key: str | None = "admin-key",
          secret: str = "admin-secret") -> str:  # fmt: skip
    java.set_admin_key(key, secret)
    [output] = java.admin(command.split())
    return output


@pytest.fixture(scope="module")
def topic(java: JavaClient, cluster: LocalCluster) -> str:
    return make_topic(java, cluster)


def make_topic(java: JavaClient, cluster: LocalCluster) -> str:
    name = java.name("Orders")
    made = admin(java, f"updateTopic -b {cluster.broker} -t {name} -r 2 -w 2")
    assert "success" in made
    wait_for(
        lambda: java.request(cluster.nameserver, 105, {"topic": name}),
        lambda route: route["code"] == 0,
    )
    return name


def test_a_producer_sends_with_a_key_that_may(java: JavaClient, topic: str) -> None:
    java.producer("pub", **PUB)
    messages = [{"topic": topic, "body": f"body é {i}", "keys": f"k{i}"} for i in range(20)]
    for mode in ("sync", "async", "batch"):
        rows = java.send("pub", *messages, mode=mode)
        assert all("error" not in row for row in rows), rows
    java.stop("pub")


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({}, "No accessKey is configured"),
        (WRONG, "Check signature failed for accessKey=pub-key"),
        ({"access_key": "stranger", "secret_key": "some-secret"}, "No acl config for stranger"),
        (SUB, "No default permission for topic:"),
    ],
    ids=["missing", "wrong", "unknown", "too few rights"],
)
@pytest.mark.parametrize("mode", ["sync", "async", "batch"])
def test_a_producer_without_the_right_key_is_told_why(
    java: JavaClient, topic: str, keys: dict[str, Any], why: str, mode: str
) -> None:
    java.producer("refused", **keys)
    row, told = send_refused(java, "refused", topic, mode)
    java.stop("refused")
    assert row["code"] == 1, row
    assert f"AclException: {why}" in told


def send_refused(java: JavaClient, client: str, topic: str, mode: str) -> tuple[Row, str]:
    """The row, and all that is told: the client wraps the reason."""
    before = len(java.log())
    [row] = java.send(client, {"topic": topic, "body": "x"}, mode=mode)
    return row, row["message"] + java.log()[before:]


def test_a_consumer_reads_retries_and_commits_with_a_key_that_may(
    java: JavaClient, cluster: LocalCluster, topic: str
) -> None:
    java.producer("pub", **PUB)
    group = java.name("readers")
    java.push("reader", group, {topic: {}}, fail=1, failing="again", **SUB)
    java.send("pub", {"topic": topic, "body": "again"})
    rows = java.received("reader", 2)
    wait_for(
        lambda: [row["body"] for row in java.received("reader", 0)],
        lambda seen: seen.count("again") >= 2,
    )
    assert rows
    java.stop("reader", "pub")
    told = admin(java, f"consumerProgress -g {group}")
    assert topic in told
    assert f"%RETRY%{group}" in told


def test_a_consumer_without_the_right_key_reads_nothing(java: JavaClient, topic: str) -> None:
    java.puller("refused", java.name("refused"), **PUB)
    with pytest.raises(JavaError, match="AclException: No default permission for"):
        java.pull("refused", topic, 0, 0)
    java.stop("refused")


def test_traces_are_sent_with_any_key(java: JavaClient, cluster: LocalCluster) -> None:
    fields = {
        "a": "p",
        "b": "RMQ_SYS_TRACE_TOPIC",
        "c": "TBW102",
        "d": "1",
        "e": "0",
        "f": "0",
        "g": "0",
        "h": "0",
        "i": "",
        "j": "0",
        "k": "false",
        "m": "false",
    }
    made = {310: (signed(fields, b"x", "nobody-key", "nobody-secret"), b"x")}
    assert ask_all(cluster.broker, made)[310][0] == 0


def test_mqadmin_is_told_why_without_the_right_key(java: JavaClient, cluster: LocalCluster) -> None:
    command = f"updateTopic -b {cluster.broker} -t Nowhere -r 1 -w 1"
    assert "No accessKey is configured" in admin(java, command, None)
    assert "Check signature failed" in admin(java, command, "admin-key", "wrong-secret")
    assert "Need admin permission for request code=17" in admin(
        java, command, "pub-key", "pub-secret"
    )


def test_mqadmin_changes_accounts_and_they_hold_at_once(
    tools: JavaClient, cluster: LocalCluster
) -> None:
    broker, key, topic = cluster.broker, tools.name("new"), make_topic(tools, cluster)
    made = admin(
        tools,
        f"updateAclConfig -b {broker} -a {key} -s new-secret -t {topic}=PUB,Other=DENY -i DENY"
        " -u SUB -m false",
    )
    assert "create or update plain access config" in made
    tools.producer("new", access_key=key, secret_key="new-secret")
    [row] = tools.send("new", {"topic": topic, "body": "x"})
    assert "error" not in row, row
    listed = admin(tools, f"getAclConfig -b {broker}")
    assert key in listed
    assert f"[{topic}=PUB, Other=DENY]" in listed
    version = admin(tools, f"clusterAclConfigVersion -b {broker}")
    assert "success" in version
    assert "broker-a" in version
    assert "delete plain access config" in admin(tools, f"deleteAclConfig -b {broker} -a {key}")
    assert f"No acl config for {key}" in send_refused(tools, "new", topic, "sync")[1]
    tools.stop("new")
    again = admin(tools, f"deleteAclConfig -b {broker} -a {key}")
    assert "has been deleted failed" in again
    file = yaml.safe_load((home_of(cluster) / "plain_acl.yml").read_text())
    assert file["dataVersion"][0]["counter"] >= 2
    assert key not in [account["accessKey"] for account in file["accounts"]]


def test_mqadmin_changes_accounts_with_an_administrators_key_only(
    tools: JavaClient, cluster: LocalCluster
) -> None:
    for command in (
        f"updateAclConfig -b {cluster.broker} -a another-key -s another-secret -m true",
        f"deleteAclConfig -b {cluster.broker} -a admin-key",
        f"updateGlobalWhiteAddr -b {cluster.broker} -g *",
    ):
        assert "Need admin permission" in admin(tools, command, "sub-key", "sub-secret")


def test_mqadmin_changes_white_addresses(tools: JavaClient, cluster: LocalCluster) -> None:
    broker = cluster.broker
    request: dict[int, tuple[dict[str, str] | None, bytes]] = {21: (None, b"")}
    assert ask_all(broker, request)[21][0] == 1
    put = f"updateGlobalWhiteAddr -b {broker} -g"
    assert "success" in admin(tools, f"{put} 10.9.9.9,127.0.0.*")
    assert ask_all(broker, request)[21][0] == 0
    assert "success" in admin(tools, f"{put} 10.9.9.9")
    assert ask_all(broker, request)[21][0] == 1


def test_a_file_that_we_changed_is_read_by_apaches_broker(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    fields = {
        "accessKey": "made-by-us",
        "secretKey": "12345678",
        "admin": "false",
        "defaultTopicPerm": "PUB",
        "topicPerms": "T=PUB|SUB,U=DENY",
    }
    request = {50: (signed(fields, b"", "admin-key", "admin-secret"), b"")}
    assert ask_all(cluster.broker, request)[50] == (0, "")
    text = (home_of(cluster) / "plain_acl.yml").read_text()
    apache = GuardedApache(tmp_path / "store", text)
    apache.start()
    try:
        for topic, is_allowed in (("T", True), ("V", True), ("U", False)):
            asked = {310: (signed({"b": topic, "a": "p"}, b"", "made-by-us", "12345678"), b"")}
            _, remark = ask_all(apache.broker, asked)[310]
            assert ("No default permission" not in remark) is is_allowed, remark
        version = ask_all(apache.broker, {52: (signed({}, b"", "admin-key", "admin-secret"), b"")})
        assert version[52][0] == 0
    finally:
        apache.kill()
