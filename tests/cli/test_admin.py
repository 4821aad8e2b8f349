"""`tamis topics`, `groups` and `offsets`, run in this process against a cluster of its own."""

import asyncio
import io
import json
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import click
import pytest

from tamis.cli.main import main
from tamis.cli.options import parse_time
from tamis.client import Consumer, ConsumerConfig, Message, Producer, PushConsumer
from tamis.testing import LocalCluster

HOUR = 3_600_000  # milliseconds
PATIENCE = 20.0  # seconds


class Done(NamedTuple):
    code: object
    stdout: str
    stderr: str

    @property
    def lines(self) -> list[str]:
        return self.stdout.splitlines()

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


Tamis = Callable[..., Done]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as cluster:
        yield cluster


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def tamis(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Tamis:
    monkeypatch.setenv("NAMESRV_ADDR", cluster.nameserver)

    def run(*arguments: str, typed: str | None = None) -> Done:
        stdin = io.StringIO() if typed is None else Terminal(typed)
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setattr(sys, "argv", ["tamis", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(ended.value.code, *capsys.readouterr())

    return run


def name(what: str) -> str:
    return f"{what}-{uuid.uuid4().hex[:8]}"


def consumed(cluster: LocalCluster, tamis: Tamis, *bodies: str) -> tuple[str, str]:
    """A topic of one queue and a group that has read all of it."""
    topic, group = name("Topic"), name("Group")
    tamis("topics", "create", topic, "--queues", "1")

    async def fill() -> None:
        async with Producer(cluster.nameserver) as producer:
            for body in bodies:
                await producer.send(Message(topic, body))
        consumer = Consumer(cluster.nameserver, group, config=ConsumerConfig(start="first"))
        consumer.subscribe(topic)
        count = 0
        async with consumer:
            async with asyncio.timeout(PATIENCE):
                while count < len(bodies):
                    count += len(await consumer.getmany())

    asyncio.run(fill())
    return topic, group


# Topics


def test_a_topic_is_created_listed_shown_and_deleted(tamis: Tamis) -> None:
    topic = name("Orders")
    assert tamis("topics", "create", topic, "--queues", "2") == (
        0,
        "",
        f"topic {topic} is at broker-a, with 2 queues each\n",
    )
    assert topic in tamis("topics").lines
    assert topic in tamis("topics", "list").lines
    shown = tamis("topics", "show", topic)
    assert (shown.code, shown.stderr) == (0, "")
    assert shown.lines == [
        f"topic   {topic}",
        "at      broker-a (2 queues, rw)",
        "groups  none",
        "",
        "broker    queue  first  end  messages  last stored",
        "broker-a      0      0    0         0  -",
        "broker-a      1      0    0         0  -",
    ]
    assert tamis("topics", "delete", topic, "--yes").stderr == f"topic {topic} is deleted\n"
    assert topic not in tamis("topics", "--all").lines


def test_json_is_an_object_a_line(cluster: LocalCluster, tamis: Tamis) -> None:
    topic, group = consumed(cluster, tamis, "a", "b")
    assert {"topic": topic} in tamis("topics", "--json").rows
    [shown] = tamis("topics", "show", topic, "--json").rows
    [queue] = shown.pop("queues")
    assert queue.pop("last_stored") > 0
    assert queue == {"broker": "broker-a", "queue": 0, "first": 0, "end": 2}
    assert shown == {
        "topic": topic,
        "brokers": [
            {"broker": "broker-a", "read_queues": 1, "write_queues": 1, "permission": "rw"}
        ],
        "groups": [group],
    }
    [made] = tamis("topics", "create", topic, "--queues", "1", "--permission", "r", "--json").rows
    assert made == {"topic": topic, "queues": 1, "permission": "r", "brokers": ["broker-a"]}


def test_topics_of_the_system_are_listed_with_all_only(tamis: Tamis) -> None:
    assert "TBW102" in tamis("topics", "--all").lines
    assert "TBW102" not in tamis("topics").lines


def test_the_name_server_may_be_named_before_or_after_the_command(
    cluster: LocalCluster, tamis: Tamis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:1")
    given = ("-n", cluster.nameserver)
    assert tamis("topics", *given).code == 0
    assert tamis("topics", *given, "list").code == 0
    assert tamis("topics", "list", *given).code == 0
    assert tamis("topics").code == 1


# Errors


def test_what_is_not_there_exits_1_with_one_line(tamis: Tamis) -> None:
    for arguments in (
        ("topics", "show", "Nothing"),
        ("topics", "delete", "Nothing", "--yes"),
        ("groups", "show", "Nobody"),
        ("groups", "delete", "Nobody", "--yes"),
        ("offsets", "show", "Nobody"),
        ("offsets", "reset", "Nobody", "--topic", "TBW102", "--to", "first", "--yes"),
    ):
        done = tamis(*arguments)
        assert (done.code, done.stdout, done.stderr.count("\n")) == (1, "", 1), arguments
        assert "check the spelling" in done.stderr


def test_nobody_at_the_address_exits_1_and_an_address_that_is_none_2(tamis: Tamis) -> None:
    done = tamis("topics", "-n", "127.0.0.1:1")
    assert (done.code, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "the name server at 127.0.0.1:1 can't be reached" in done.stderr
    done = tamis("topics", "-n", "nowhere")
    assert (done.code, done.stderr.count("\n")) == (2, 1)


def test_misuse_exits_2_with_one_line(tamis: Tamis) -> None:
    for arguments, said in (
        (("topics", "shwo"), "No such command 'shwo'"),
        (("topics", "create", "a b"), "can't be the name of a topic"),
        (("topics", "create", "T", "--queues", "0"), "queues = 0"),
        (("topics", "delete", "T"), "--yes"),
        (("offsets", "reset", "G", "--topic", "T", "--to", "soon"), "'soon' is no time"),
        (
            ("offsets", "reset", "G", "--topic", "T", "--to", "1", "--queue", "x"),
            "'x' is not BROKER:ID",
        ),
    ):
        done = tamis(*arguments)
        assert (done.code, done.stdout, done.stderr.count("\n")) == (2, "", 1), done
        assert said in done.stderr


def test_who_is_asked_may_say_no(tamis: Tamis) -> None:
    topic = name("Kept")
    tamis("topics", "create", topic)
    done = tamis("topics", "delete", topic, typed="n\n")
    assert (done.code, done.stdout) == (1, "")
    assert "nothing is changed" in done.stderr
    assert topic in tamis("topics").lines
    assert tamis("topics", "delete", topic, typed="y\n").code == 0
    assert topic not in tamis("topics").lines


# Groups


def test_a_group_is_created_listed_shown_and_deleted(tamis: Tamis) -> None:
    group = name("Group")
    done = tamis("groups", "create", group, "--retries", "3")
    assert done == (0, "", f"group {group} is known to broker-a\n")
    assert group in tamis("groups").lines
    assert {"group": group} in tamis("groups", "list", "--json").rows
    assert tamis("groups", "show", group).lines == [
        f"group    {group}",
        "at       broker-a",
        "is       offline",
        "retries  3",
        "policy   rocketmq",
    ]
    assert tamis("groups", "delete", group, "--yes").code == 0
    assert group not in tamis("groups").lines


def test_a_group_shows_its_members_and_where_they_differ(
    cluster: LocalCluster, tamis: Tamis
) -> None:
    topic, group = name("Topic"), name("Group")
    tamis("topics", "create", topic, "--queues", "1")

    async def look() -> tuple[PushConsumer, PushConsumer, Done, Done]:
        one, other = (PushConsumer(cluster.nameserver, group, lambda message: None) for _ in "ab")
        one.subscribe(topic, tags="a")
        other.subscribe(topic, sql="n > 1")
        async with one, other:
            shown = await asyncio.to_thread(tamis, "groups", "show", group)
            listed = await asyncio.to_thread(tamis, "groups", "show", group, "--json")
        return one, other, shown, listed

    one, other, shown, listed = asyncio.run(look())
    assert (shown.code, shown.stderr) == (0, "")
    assert "CONSUME_PASSIVELY, CLUSTERING, CONSUME_FROM_LAST_OFFSET" in shown.stdout
    assert shown.stdout.count("mismatch: member") == 1
    assert f"{topic} tags 'a'" in shown.stdout
    assert f"{topic} SQL92 'n > 1'" in shown.stdout
    [row] = listed.rows
    assert {member["client_id"] for member in row["members"]} == {one.client_id, other.client_id}
    [mismatch] = row["mismatches"]
    assert {mismatch["member"], mismatch["effective"]} == {"a", "n > 1"}
    assert (mismatch["topic"], mismatch["broker"]) == (topic, "broker-a")
    assert mismatch["loses_messages"] is True
    assert row["policies"] == ["rocketmq"]


def test_a_group_whose_members_are_isolated_is_not_said_to_lose_messages(
    cluster: LocalCluster, tamis: Tamis
) -> None:
    topic, group = name("Topic"), name("Group")
    tamis("topics", "create", topic, "--queues", "1")
    tamis("groups", "create", group)
    tamis("groups", "policy", group, "isolate")

    async def look() -> list[Done]:
        one, other, third = (
            PushConsumer(cluster.nameserver, group, lambda message: None) for _ in "abc"
        )
        for consumer, tag in (one, "a"), (other, "b"), (third, "c"):
            consumer.subscribe(topic, tags=tag)
        show = ("groups", "show", group)
        async with one, other:
            shown = [await asyncio.to_thread(tamis, *show)]
            await asyncio.to_thread(tamis, "groups", "policy", group, "reject")
            async with third:
                shown += [await asyncio.to_thread(tamis, *show)]
                shown += [await asyncio.to_thread(tamis, *show, "--json")]
        return shown

    isolated, rejecting, listed = asyncio.run(look())
    assert "policy   isolate\n" in isolated.stdout
    assert isolated.stdout.count("each member is served by its own subscription") == 1
    assert "messages are lost" not in isolated.stdout
    assert "policy   reject\n" in rejecting.stdout
    assert f"refused: group {group} on {topic}: member " in rejecting.stdout
    [row] = listed.rows
    assert row["policies"] == ["reject"]
    assert row["refused"]


# Offsets


def test_offsets_are_shown_in_a_table_and_as_json(cluster: LocalCluster, tamis: Tamis) -> None:
    topic, group = consumed(cluster, tamis, "a", "b", "c")
    shown = tamis("offsets", "show", group, "--topic", topic)
    assert shown.code == 0
    head, row, _, total = shown.lines
    assert head.split() == [
        "topic",
        "broker",
        "queue",
        "committed",
        "end",
        "lag",
        "matching",
        "next",
        "matching",
        "last",
        "consumed",
    ]
    assert row.split()[:8] == [topic, "broker-a", "0", "3", "3", "0", "0", "-"]
    assert total == "lag in all: 0, matching 0"
    [found] = tamis("offsets", "show", group, "--topic", topic, "--json").rows
    assert found.pop("last_consumed") > 0
    assert found == {
        "group": group,
        "topic": topic,
        "broker": "broker-a",
        "queue": 0,
        "committed": 3,
        "end": 3,
        "lag": 0,
        "matching_lag": 0,
        "is_complete": True,
        "next_match_offset": None,
        "next_match_stored": None,
        "next_match_age": None,
        "reason": None,
    }
    assert {row["topic"] for row in tamis("offsets", "show", group, "--json").rows} >= {topic}


def test_a_group_that_has_consumed_nothing_is_said_to(tamis: Tamis) -> None:
    group = name("Group")
    tamis("groups", "create", group)
    assert tamis("offsets", "show", group) == (0, "", f"group {group} has consumed nothing yet\n")


def test_a_reset_is_planned_then_done(cluster: LocalCluster, tamis: Tamis) -> None:
    topic, group = consumed(cluster, tamis, "a", "b", "c", "d")
    reset = ("offsets", "reset", group, "--topic", topic)

    def committed() -> int:
        [found] = tamis("offsets", "show", group, "--topic", topic, "--json").rows
        return int(found["committed"])

    planned = tamis(*reset, "--to", "first", "--dry-run")
    assert planned.code == 0
    assert [line.split() for line in planned.lines] == [
        ["topic", "broker", "queue", "from", "to"],
        [topic, "broker-a", "0", "4", "0"],
    ]
    assert committed() == 4
    assert tamis(*reset, "--to", "first").code == 2  # nobody can be asked
    assert tamis(*reset, "--to", "first", typed="n\n").code == 1
    assert committed() == 4
    for goal, offset in (("first", 0), ("last", 4), ("2", 2), ("1h", 0), ("now", 4), ("-2h", 0)):
        [moved] = tamis(*reset, "--to", goal, "--yes", "--json").rows
        assert (moved["to"], committed()) == (offset, offset), goal
    done = tamis(*reset, "--to", "3", "--queue", "broker-a:0", typed="y\n")
    assert (done.code, committed()) == (0, 3)
    assert "Reset group" in done.stderr
    assert done.lines[-1].split() == [topic, "broker-a", "0", "0", "3"]
    [stayed] = tamis(*reset, "--to", "last", "--only-back", "--yes", "--json").rows
    assert (stayed["to"], committed()) == (3, 3)


# Times


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", 10 * HOUR),
        ("1h", 9 * HOUR),
        ("30m", 10 * HOUR - HOUR // 2),
        ("-2h", 8 * HOUR),
        ("2h ago", 8 * HOUR),
        ("1h30m", 9 * HOUR - HOUR // 2),
        ("90s", 10 * HOUR - 90_000),
        ("7d", 0),
        ("1970-01-01T03:00Z", 3 * HOUR),
        ("1970-01-01 03:00:00.250+01:00", 2 * HOUR + 250),
    ],
)
def test_a_time_is_a_date_or_so_long_ago(text: str, expected: int) -> None:
    assert parse_time(text, now=lambda: 36_000.0) == expected


def test_a_time_without_a_zone_is_local() -> None:
    local = time.mktime((2024, 5, 1, 12, 0, 0, 0, 0, -1))
    assert parse_time("2024-05-01T12:00") == local * 1000


@pytest.mark.parametrize("text", ["", "soon", "1x", "h", "2024-13-01", "123", "1h ago ago"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is no time"):
        parse_time(text)


def test_fewer_queues_are_asked_about_if_messages_are_in_the_others(
    cluster: LocalCluster, tamis: Tamis
) -> None:
    topic = name("Topic")
    assert tamis("topics", "create", topic, "--queues", "4").code == 0
    assert tamis("topics", "create", topic, "--queues", "3").code == 0  # nothing is in them

    async def fill() -> None:
        async with Producer(cluster.nameserver) as producer:
            queues = await producer.queues(topic)
            for queue in [*queues, queues[2]]:
                await producer.send(Message(topic, b"x"), queue=queue)

    def stored() -> int:
        [row] = tamis("topics", "show", topic, "--json").rows
        return sum(one["end"] - one["first"] for one in row["queues"])

    asyncio.run(fill())
    deadline = time.monotonic() + PATIENCE
    while stored() < 4:  # what is stored is in its queue soon
        assert time.monotonic() < deadline
    shrink = ("topics", "create", topic, "--queues", "1")
    said = f"Topic {topic} has 2 more queues: with 1 a broker, 3 messages in them can't be consumed"
    done = tamis(*shrink)
    assert (done.code, done.stdout) == (2, "")
    assert said in done.stderr
    assert "pass --yes" in done.stderr
    done = tamis(*shrink, typed="n\n")
    assert (done.code, done.stdout) == (1, "")
    assert said in done.stderr
    [row] = tamis("topics", "show", topic, "--json").rows
    assert [one["read_queues"] for one in row["brokers"]] == [3]
    assert tamis("topics", "create", topic, "--queues", "5").code == 0  # hides nothing
    assert tamis(*shrink, "--broker", "broker-a", "--yes").code == 0
    [row] = tamis("topics", "show", topic, "--json").rows
    assert [one["read_queues"] for one in row["brokers"]] == [1]
    assert tamis("topics", "create", topic, "--queues", "3").code == 0
    assert stored() == 4  # all are there again
