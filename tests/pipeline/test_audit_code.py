"""The job audit on groups that filter in code: filter servers are asked, as by `tamis explain`."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from sparkling import create_topic, send_all

from tamis.client import blocking
from tamis.client.config import ConsumerConfig
from tamis.client.received import ReceivedMessage
from tamis.code import CodeFilter
from tamis.message import Message
from tamis.pipeline import audit, load
from tamis.testing import LocalCluster

PATIENCE = 60.0  # seconds
TOPIC, COUNT, LATE = "coded", 80, 20
ALONE, MIXED, CLASHING, GONE = "alone", "mixed", "clashing", "gone"
SOON = {"route_interval": 0.3, "heartbeat_interval": 0.3, "rebalance_interval": 1.0}
CONSUMER = ConsumerConfig(start="first", commit_interval=0.2, hold=1.0, **SOON)
EVEN = """
class Even:
    columns = ("body",)

    def match(self, message):
        number = int(message.body.decode().split()[1])
        if number % 20 == 7:
            raise ValueError("seven")
        return number % 2 == 0
"""
AUDIT = """
job = "audit"
[source]
{source}
topic = "coded"
[audit]
groups = {groups}
table = {{ format = "parquet", path = "out/fates" }}
lost = {{ format = "parquet", path = "out/lost" }}
report = "audit.html"
"""
Place = tuple[int, int]  # queue, offset


def code(name: str = "Even", text: str = EVEN) -> CodeFilter:
    return CodeFilter(f"filters.py:{name}", text.replace("class Even", f"class {name}"))


def number_of(body: str) -> int:
    return int(body.split()[1])


@dataclass
class Coded:
    """Groups with a member that filters in code; all but one have a second member."""

    cluster: LocalCluster
    members: ExitStack = field(default_factory=ExitStack)
    received: dict[str, set[Place]] = field(default_factory=dict)  # by group
    bodies: dict[Place, str] = field(default_factory=dict)

    def join(self, group: str, **by: Any) -> blocking.PushConsumer:
        own = self.received.setdefault(group, set())

        def receive(message: ReceivedMessage) -> None:
            own.add((message.queue.queue_id, message.offset))

        consumer = blocking.PushConsumer(self.cluster.nameserver, group, receive, config=CONSUMER)
        consumer.subscribe(TOPIC, **by)
        return self.members.enter_context(consumer)

    def send(self, first: int, end: int) -> None:
        bodies = [f"body {n}" for n in range(first, end)]
        sent = [Message(TOPIC, body, tags="AB"[number_of(body) // 2 % 2]) for body in bodies]
        for result, body in zip(send_all(self.cluster, sent), bodies, strict=True):
            self.bodies[result.queue.queue_id, result.offset] = body

    def wait(self, *groups: str) -> None:
        with blocking.Admin(self.cluster.nameserver) as admin:

            def lag() -> int:
                return sum(
                    one.end - one.committed
                    for group in groups
                    for one in admin.offsets(group, TOPIC)
                )

            eventually(lambda: lag() == 0, lag)

    def explained(self) -> dict[tuple[int, int, str], tuple[str, str]]:
        """What `tamis explain` says of each message: fate and reason."""
        with blocking.Admin(self.cluster.nameserver) as admin:
            return {
                (*place, one.group): (str(one.fate), one.reason)
                for place in self.bodies
                for one in admin.explain(topic=TOPIC, queue_id=place[0], offset=place[1])
            }


def eventually(holds: Callable[[], object], state: Callable[[], object] = lambda: "") -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, state()
        time.sleep(0.1)


@pytest.fixture(scope="module")
def coded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coded]:
    root = tmp_path_factory.mktemp("coded")
    with LocalCluster(root, log_file_size=2**24, filter_servers=1) as cluster:
        made = Coded(cluster)
        with blocking.Admin(cluster.nameserver) as admin, made.members:
            eventually(lambda: bool(admin.filter_servers()), admin.filter_servers)
            create_topic(cluster, TOPIC, queues=4)
            made.join(ALONE, code=code())
            made.join(MIXED, code=code())
            made.join(MIXED, tags="A")
            made.join(CLASHING, code=code("Odd", EVEN.replace("== 0", "== 1")))
            made.join(CLASHING, code=code())
            leaving = made.join(GONE, code=code())
            for group, size in ((MIXED, 2), (CLASHING, 2), (ALONE, 1), (GONE, 1)):
                eventually(lambda g=group, n=size: len(admin.group(g).members) == n)
            made.send(0, COUNT - LATE)
            made.wait(ALONE, MIXED, CLASHING, GONE)
            leaving.close()  # what comes now waits for it
            made.send(COUNT - LATE, COUNT)
            made.wait(ALONE, MIXED, CLASHING)
            yield made


@pytest.fixture
def run_audit(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path
) -> Callable[..., tuple[audit.AuditSummary, dict[tuple[int, int, str], str]]]:
    def run(
        *groups: str, source: str | None = None
    ) -> tuple[audit.AuditSummary, dict[tuple[int, int, str], str]]:
        """Return the summary, and the fates by queue, offset and group."""
        file = tmp_path / "audit.toml"
        if source is None:
            source = f'nameserver = "{request.getfixturevalue("coded").cluster.nameserver}"'
        file.write_text(AUDIT.format(source=source, groups=json.dumps(groups)))
        config = load(file)
        audit.check(config)
        summary = audit.run(spark, config)
        rows = spark.read.parquet(str(tmp_path / "out/fates")).collect()
        return summary, {(row.queue_id, row.offset, row.group): row.fate for row in rows}

    return run


def test_every_fate_is_what_explain_says(
    coded: Coded, run_audit: Callable[..., Any], spark: SparkSession, tmp_path: Path
) -> None:
    summary, fates = run_audit(ALONE, MIXED, CLASHING, GONE)
    told = coded.explained()
    assert len(fates) == 4 * COUNT
    assert fates == {key: fate for key, (fate, _) in told.items()}
    assert any("code Even was run by filter servers as it is now" in one for one in summary.notes)

    lost = spark.read.parquet(str(tmp_path / "out/lost")).collect()
    assert {(row.queue_id, row.offset, row.group): row.reason for row in lost} == {
        key: reason for key, (fate, reason) in told.items() if fate == "LOST_TO_INCONSISTENCY"
    }
    assert any("by code Even" in row.reason for row in lost)
    assert all("code was judged as it is now" in row.reason for row in lost)


def test_fates_are_what_members_were_given(coded: Coded, run_audit: Callable[..., Any]) -> None:
    """Not only does the audit agree with explain: both are right."""
    _, fates = run_audit(ALONE, MIXED)
    for (queue_id, offset, group), fate in fates.items():
        place = (queue_id, offset)
        number = number_of(coded.bodies[place])
        fails, is_even, is_a = number % 20 == 7, number % 2 == 0, number // 2 % 2 == 0
        if place in coded.received[group]:
            expected = {"CONSUMED"}
        elif (is_even and not fails) or (group == MIXED and is_a):
            expected = {"LOST_TO_INCONSISTENCY"}
        else:
            expected = {"FILTER_FAILED", "FILTERED"} if fails else {"FILTERED"}
        assert fate in expected, (group, number, fate)
    by_group = {group: {fate for (_, _, g), fate in fates.items() if g == group}
                for group in (ALONE, MIXED)}  # fmt: skip
    assert by_group[ALONE] == {"CONSUMED", "FILTERED", "FILTER_FAILED"}
    assert {"CONSUMED", "FILTERED", "LOST_TO_INCONSISTENCY"} <= by_group[MIXED]


def test_what_waits_is_not_asked_about(coded: Coded, run_audit: Callable[..., Any]) -> None:
    _, fates = run_audit(GONE)
    waiting = {key for key, fate in fates.items() if fate == "NOT_ONLINE"}
    numbers = {number_of(coded.bodies[key[:2]]) for key in waiting}
    assert numbers == set(range(COUNT - LATE, COUNT))


def test_a_class_that_no_filter_server_has_is_named(
    coded: Coded, run_audit: Callable[..., Any]
) -> None:
    """A filter server has one class of a group: of two that clash, the other can't be asked."""
    summary, fates = run_audit(CLASHING)
    assert "UNKNOWN" in fates.values()
    [said] = summary.unknown
    count = sum(fate == "UNKNOWN" for fate in fates.values())
    assert said.startswith(f"{CLASHING}, {count} messages: ")
    assert "does not have class" in said
    assert "connect a member of clashing that subscribes by" in said
    reasons = [reason for (_, _, group), (fate, reason) in coded.explained().items()
               if group == CLASHING and fate == "UNKNOWN"]  # fmt: skip
    assert len(reasons) == count
    assert all("connect a member of clashing" in reason for reason in reasons)


def test_a_stores_files_run_no_code(coded: Coded, run_audit: Callable[..., Any]) -> None:
    _, expected = run_audit(ALONE)

    def told() -> Any:
        return run_audit(ALONE, source=f'store = "{coded.cluster.store}"')

    def is_saved() -> bool:  # the broker saves every few seconds
        return len(told()[1]) == len(expected)

    eventually(is_saved)
    summary, fates = told()
    assert set(fates.values()) == {"UNKNOWN"}
    assert any(
        "a store's files do not tell what class Even of alone says; audit over the name server"
        in one
        for one in summary.unknown
    )
    assert "What is not known" in (Path(summary.report or "")).read_text()


def test_without_a_filter_server_the_reason_says_what_to_do(
    local_cluster: LocalCluster, run_audit: Callable[..., Any]
) -> None:
    """The member filters by itself; what its class said nobody else knows."""
    create_topic(local_cluster, TOPIC, queues=1)
    made = Coded(local_cluster)
    with made.members:
        made.join(ALONE, code=code())
        made.send(0, 6)
        made.wait(ALONE)
        nameserver = f'nameserver = "{local_cluster.nameserver}"'
        summary, fates = run_audit(ALONE, source=nameserver)
        told = made.explained()
    assert set(fates.values()) == {"UNKNOWN"}
    assert fates == {key: fate for key, (fate, _) in told.items()}
    advice = (
        "can't be asked what class Even of alone says, for it has no filter server; start a filter "
        "server beside it and connect a member of alone that subscribes by Even, and ask again"
    )
    assert [one for one in summary.unknown if one.startswith("alone, 6 messages: ")]
    assert any(advice in one for one in summary.unknown)
    assert all(reason.endswith(f"{advice}.") for _, reason in told.values())
