"""`tamis doctor`, run in this process against a cluster of its own with our clients in it."""

import asyncio
import io
import json
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from broker.running import Client

from tamis.cli.main import main
from tamis.client import Admin, ConsumerConfig, Message, Producer, PushConsumer
from tamis.client.config import ClientConfig
from tamis.client.session import Session
from tamis.testing import LocalCluster, LocalNameServer
from tamis.wire import beans, bodies, headers
from tamis.wire.bodies import Subscription

PATIENCE = 20.0  # seconds


class Done(NamedTuple):
    code: object
    stdout: str
    stderr: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stdout.splitlines()]

    def findings(self, check: str) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["check"] == check]

    def finding(self, check: str) -> dict[str, Any]:
        [row] = self.findings(check)
        return row


Tamis = Callable[..., Done]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(enablePropertyFilter=True) as cluster:
        yield cluster


@pytest.fixture
def tamis(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Tamis:
    monkeypatch.setenv("NAMESRV_ADDR", cluster.nameserver)

    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "stdin", io.StringIO())
        monkeypatch.setattr(sys, "argv", ["tamis", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(ended.value.code, *capsys.readouterr())

    return run


def name(what: str) -> str:
    return f"{what}-{uuid.uuid4().hex[:8]}"


async def made_topic(cluster: LocalCluster, *messages: Message, queues: int = 2) -> str:
    """A topic with these messages in it, in turn in each queue."""
    topic = name("Topic")
    async with Admin(cluster.nameserver) as admin:
        await admin.create_topic(topic, queues=queues)
    async with Producer(cluster.nameserver) as producer:
        for message in messages:
            await producer.send(replace(message, topic=topic))
    return topic


def tagged(tag: str, count: int = 1, **properties: str) -> list[Message]:
    return [Message("", b"x", tags=tag, properties=properties) for _ in range(count)]


def member(cluster: LocalCluster, group: str, topic: str, **given: Any) -> PushConsumer:
    """A member of a group, with a filter and an instance name."""
    instance = given.pop("instance_name", "")
    handler = given.pop("handler", lambda message: None)
    config = ConsumerConfig(
        start="first", instance_name=instance, commit_interval=0.1, max_reconsume_times=0
    )
    made = PushConsumer(cluster.nameserver, group, handler, config=config)
    made.subscribe(topic, **given)
    return made


async def wait_for(look: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not await look():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


async def is_read(cluster: LocalCluster, group: str, topic: str) -> bool:
    async with Admin(cluster.nameserver) as admin:
        return all(one.lag == 0 for one in await admin.offsets(group, topic))


async def doctor(tamis: Tamis, *arguments: str) -> Done:
    return await asyncio.to_thread(tamis, "doctor", *arguments)


@asynccontextmanager
async def session_of(cluster: LocalCluster) -> AsyncIterator[Session]:
    session = Session("admin", cluster.nameserver, ClientConfig())
    await session.start()
    try:
        yield session
    finally:
        await session.close()


def test_a_healthy_cluster_has_no_findings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def look(cluster: LocalCluster) -> None:
        topic = await made_topic(cluster, *tagged("paid", 4))
        async with member(cluster, "payers", topic, tags="paid"):
            await wait_for(lambda: is_read(cluster, "payers", topic))
            monkeypatch.setattr(sys, "argv", ["tamis", "doctor", "-n", cluster.nameserver])
            with pytest.raises(SystemExit) as ended:
                await asyncio.to_thread(main)
        assert ended.value.code == 0

    with LocalCluster() as cluster:
        asyncio.run(look(cluster))
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out.splitlines()[-1] == "nothing found (1 group, 2 topics, 1 broker)"
    assert "\033" not in shown.out


def test_members_with_different_tags_are_serious(cluster: LocalCluster, tamis: Tamis) -> None:
    async def look() -> tuple[str, str, list[str], Done, Done]:
        topic, group = await made_topic(cluster, *tagged("a")), name("Group")
        one = member(cluster, group, topic, tags="a")
        other = member(cluster, group, topic, tags="b")
        async with one, other:
            shown = await doctor(tamis, "--group", group)
            listed = await doctor(tamis, "--group", group, "--json")
        return topic, group, [one.client_id, other.client_id], shown, listed

    topic, group, ids, shown, listed = asyncio.run(look())
    assert shown.code == listed.code == 1
    found = listed.finding("inconsistent-subscriptions")
    assert (found["severity"], found["group"], found["topic"]) == ("serious", group, topic)
    assert found["evidence"]["members"] == {"tags 'a'": [ids[0]], "tags 'b'": [ids[1]]}
    assert found["evidence"]["brokers_filter_by"]["broker-a"] in ("tags 'a'", "tags 'b'")
    assert found["command"].startswith("tamis groups ")
    lines = shown.stdout.splitlines()
    assert lines[0] == "SERIOUS"
    assert f"  inconsistent-subscriptions: {found['message']}" in lines
    assert f"      {'fix' if found['mends'] else 'see'}: {found['command']}" in lines
    assert "1 serious" in lines[-1]


def test_members_that_disagreed_in_the_past_are_serious_if_messages_were_passed(
    cluster: LocalCluster, tamis: Tamis
) -> None:
    async def look() -> tuple[str, str, str, Done]:
        messages = [*tagged("a", 8), *tagged("b", 8)]
        topic, group = await made_topic(cluster, *messages, queues=4), name("Group")
        one = member(cluster, group, topic, tags="a")
        other = member(cluster, group, topic, tags="b")
        async with one:
            async with other:
                await wait_for(lambda: is_read(cluster, group, topic))
            async with Producer(cluster.nameserver) as producer:
                await producer.send(Message(topic, b"x", tags="a"))
            await wait_for(lambda: is_read(cluster, group, topic))
            done = await doctor(tamis, "--group", group, "--json")
        return topic, group, other.client_id, done

    topic, group, gone, done = asyncio.run(look())
    assert done.code == 1
    assert done.findings("inconsistent-subscriptions") == []
    found = done.finding("past-inconsistencies")
    assert (found["severity"], found["group"], found["topic"]) == ("serious", group, topic)
    evidence = found["evidence"]
    assert 0 < evidence["messages_passed"] <= 16
    assert evidence["judged"] == evidence["messages_passed"]
    assert 0 < len(evidence["lost"]) <= 16
    assert evidence["until"] is not None
    assert {"tags 'a'", "tags 'b'"} in [set(view["filters"]) for view in evidence["views"]]
    assert gone in {change["member"] for change in evidence["changes"]}
    assert found["command"].startswith(f"tamis explain --topic {topic} --queue ")


def test_members_that_write_the_same_tags_differently_are_no_finding(
    cluster: LocalCluster, tamis: Tamis
) -> None:
    async def look() -> Done:
        topic, group = await made_topic(cluster, *tagged("a")), name("Group")
        one = member(cluster, group, topic, tags="a || b")
        async with one, member(cluster, group, topic, tags="b||a"):
            await wait_for(lambda: is_read(cluster, group, topic))
            return await doctor(tamis, "--group", group, "--json")

    done = asyncio.run(look())
    assert done.code == 0
    assert [row for row in done.rows if row["severity"] != "unchecked"] == []


def test_a_filter_that_fails_on_messages_is_serious(cluster: LocalCluster, tamis: Tamis) -> None:
    async def look() -> tuple[str, Done]:
        messages = [*tagged("a", 2, n="many"), *tagged("a", 2, n="7")]
        topic, group = await made_topic(cluster, *messages, queues=1), name("Group")
        async with member(cluster, group, topic, sql="n > 5"):
            await wait_for(lambda: is_read(cluster, group, topic))
            return topic, await doctor(tamis, "--group", group, "--json")

    topic, done = asyncio.run(look())
    assert done.code == 1
    found = done.finding("failing-filters")
    assert (found["severity"], found["topic"], found["queue"]) == ("serious", topic, 0)
    assert found["evidence"]["failed"] == found["evidence"]["failed_recently"] == 2
    assert found["evidence"]["latest"] == [{"queue": 0, "offset": n} for n in range(2)]
    assert found["command"].startswith(f"tamis explain --topic {topic} --queue 0 --offset 1 ")


def test_a_filter_that_matched_nothing_lately_is_a_warning(
    cluster: LocalCluster, tamis: Tamis
) -> None:
    async def look() -> Done:
        topic, group = await made_topic(cluster, *tagged("payed", 120)), name("Group")
        async with member(cluster, group, topic, tags="paid"):
            await wait_for(lambda: is_read(cluster, group, topic))
            return await doctor(tamis, "--group", group, "--json")

    found = asyncio.run(look()).finding("idle-filters")
    assert found["severity"] == "warning"
    assert found["evidence"]["evaluated"] == 120
    assert found["evidence"]["tags_sampled"] == ["payed"]


def test_a_trap_in_a_live_expression_is_found(cluster: LocalCluster, tamis: Tamis) -> None:
    async def look() -> Done:
        topic, group = await made_topic(cluster), name("Group")
        async with member(cluster, group, topic, tags="a,b"):
            return await doctor(tamis, "--group", group, "--json")

    done = asyncio.run(look())
    assert done.code == 1
    found = done.finding("lint")
    assert found["severity"] == "serious"
    assert found["command"] == "tamis filter lint --tags a,b"
    assert found["advice"] == "subscribe by 'a || b'"


def test_lag_without_a_member_is_found(cluster: LocalCluster, tamis: Tamis) -> None:
    async def look() -> tuple[str, Done]:
        topic, group = await made_topic(cluster, *tagged("a"), queues=1), name("Group")
        async with member(cluster, group, topic):
            await wait_for(lambda: is_read(cluster, group, topic))
        async with Producer(cluster.nameserver) as producer:
            for _ in range(3):
                await producer.send(Message(topic, b"y"))
        return group, await doctor(tamis, "--group", group, "--json")

    group, done = asyncio.run(look())
    assert done.code == 0
    found = done.finding("lag-without-members")
    assert (found["severity"], found["evidence"]["lag"]) == ("warning", 3)
    assert found["evidence"]["matching_lag"] == 3
    assert found["command"].startswith(f"tamis offsets show {group} ")


def test_offsets_beyond_the_log_are_serious_and_the_command_mends_them(
    cluster: LocalCluster, tamis: Tamis
) -> None:
    async def look() -> tuple[str, str, Done]:
        topic, group = await made_topic(cluster, *tagged("a", 2), queues=1), name("Group")
        async with Admin(cluster.nameserver) as admin:
            await admin.create_group(group)
        async with session_of(cluster) as session:
            header = headers.UpdateConsumerOffset(
                consumer_group=group, topic=topic, queue_id=0, commit_offset=500
            )
            await session.ask(cluster.broker, header)
        return topic, group, await doctor(tamis, "--group", group, "--json")

    _, group, done = asyncio.run(look())
    assert done.code == 1
    found = done.finding("offsets-beyond-the-log")
    assert found["severity"] == "serious"
    assert found["evidence"]["queues"] == [
        {"broker": "broker-a", "queue": 0, "committed": 500, "first": 0, "end": 2}
    ]
    words = found["command"].split()
    assert tamis(*words[1:], "--yes").code == 0
    assert tamis("doctor", "--group", group, "--json").findings("offsets-beyond-the-log") == []


def test_dead_letters_are_found(cluster: LocalCluster, tamis: Tamis) -> None:
    def fail(message: object) -> None:
        raise ValueError("as it should")

    async def look() -> tuple[str, Done]:
        topic, group = await made_topic(cluster, *tagged("a", 2), queues=1), name("Group")
        async with Admin(cluster.nameserver) as admin:
            await admin.create_group(group, retries=0)

            async def are_dead() -> bool:
                return f"%DLQ%{group}" in await admin.topics()

            async with member(cluster, group, topic, handler=fail):
                await wait_for(are_dead)
                await wait_for(lambda: is_read(cluster, group, topic))
        return group, await doctor(tamis, "--group", group, "--json")

    group, done = asyncio.run(look())
    assert done.code == 0
    found = done.finding("dead-letters")
    assert (found["severity"], found["topic"]) == ("warning", f"%DLQ%{group}")
    assert found["evidence"]["messages"] == 2


def test_members_with_one_client_id_are_serious(cluster: LocalCluster, tamis: Tamis) -> None:
    async def look() -> tuple[str, Done]:
        topic, group = await made_topic(cluster, *tagged("a")), name("Group")
        one, other = (member(cluster, group, topic, instance_name="same") for _ in "ab")
        async with one, other:
            return one.client_id, await doctor(tamis, "--group", group, "--json")

    client_id, done = asyncio.run(look())
    assert done.code == 1
    found = done.finding("duplicate-client-ids")
    assert found["evidence"]["client_id"] == client_id
    assert len(found["evidence"]["addresses"]["broker-a"]) == 2


def test_tags_of_one_hash_are_found_in_messages_and_in_subscriptions(
    cluster: LocalCluster, tamis: Tamis
) -> None:
    async def look() -> Done:
        topic = await made_topic(cluster, *tagged("Aa", 2), *tagged("BB", 3))
        group = name("Group")
        async with member(cluster, group, topic, tags="Aa"):
            await wait_for(lambda: is_read(cluster, group, topic))
            return await doctor(tamis, "--group", group, "--json")

    found = asyncio.run(look()).finding("tag-collisions")
    assert found["severity"] == "warning"
    assert found["evidence"]["messages_sampled"] == {"Aa": 2, "BB": 3}
    assert (found["evidence"]["subscribed"], found["evidence"]["others"]) == (["Aa"], ["BB"])


def test_a_filter_of_a_group_that_is_gone_is_dead(cluster: LocalCluster, tamis: Tamis) -> None:
    async def look() -> Done:
        topic, group = await made_topic(cluster), name("Group")
        async with member(cluster, group, topic, sql="n = 1"):
            pass
        return await doctor(tamis, "--group", group, "--json")

    found = asyncio.run(look()).finding("dead-filters")
    assert (found["severity"], found["evidence"]["expression"]) == ("info", "n = 1")


def test_a_queue_that_nobody_reads_is_found(cluster: LocalCluster, tamis: Tamis) -> None:
    """A member of the group that does not subscribe to the topic is given queues of it."""

    async def look() -> tuple[str, Done]:
        topic, group = await made_topic(cluster, *tagged("a", 8), queues=4), name("Group")
        elsewhere = await made_topic(cluster)
        one, other = member(cluster, group, topic), member(cluster, group, elsewhere)
        async with one, other:

            async def are_shared_out() -> bool:
                return len([queue for queue in one.assignment if queue.topic == topic]) == 2

            await wait_for(are_shared_out)
            return topic, await doctor(tamis, "--group", group, "--json")

    topic, done = asyncio.run(look())
    assert done.code == 1
    [found] = [one for one in done.findings("queues-without-owner") if one["topic"] == topic]
    assert len(found["evidence"]["queues"]) == 2


def test_a_member_that_does_not_answer_is_said_not_to_be_checked(
    cluster: LocalCluster, tamis: Tamis
) -> None:
    async def look() -> Done:
        topic, group = await made_topic(cluster, *tagged("a")), name("Group")
        mute = await Client.connect(cluster.broker)
        await mute.heartbeat(group, Subscription(topic=topic, expression="a"), client_id="mute")
        done = await doctor(tamis, "--group", group, "--json", "--timeout", "3")
        mute.peer.close()
        return done

    done = asyncio.run(look())
    assert done.code == 0
    [left] = [row for row in done.findings("not-checked") if "members" in row["message"]]
    assert left["evidence"]["where"][0].startswith("mute of ")


def test_a_broker_that_does_not_answer_is_a_finding(
    tamis: Tamis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def register(address: str) -> None:
        header = headers.RegisterBroker(
            broker_name="gone", broker_addr="127.0.0.1:1", cluster_name="c", broker_id=0
        )
        table = bodies.TopicTable(topics={}, version=bodies.DataVersion(timestamp=1))
        session = Session("admin", address, ClientConfig())
        await session.start()
        await session.ask_nameserver(header, beans.encode(bodies.Registration(table=table)))
        tamis_done.append(await doctor(tamis, "--json"))
        await session.close()

    tamis_done: list[Done] = []
    with LocalNameServer() as server:
        monkeypatch.setenv("NAMESRV_ADDR", server.nameserver)
        asyncio.run(register(server.nameserver))
    [done] = tamis_done
    assert done.code == 1
    found = done.finding("silent-brokers")
    assert (found["severity"], found["broker"]) == ("serious", "gone")
    assert found["evidence"]["address"] == "127.0.0.1:1"


def test_no_name_server_is_one_line_and_exit_1(
    tamis: Tamis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:1")
    done = tamis("doctor")
    assert (done.code, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert "127.0.0.1:1" in done.stderr


def test_a_group_that_nobody_knows_is_one_line_and_exit_1(tamis: Tamis) -> None:
    done = tamis("doctor", "--group", "nobody")
    assert (done.code, done.stdout) == (1, "")
    assert "group nobody is not known to any broker" in done.stderr


def test_misuse_is_exit_2(tamis: Tamis) -> None:
    assert tamis("doctor", "--gruop", "x").code == 2
    assert tamis("doctor", "extra").code == 2
