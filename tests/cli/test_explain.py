"""`tamis explain`: the cards and the JSON, how a message is named, how it ends."""

import asyncio
import re
import sys
from collections.abc import Iterator
from typing import Any

import click
import pytest
from cli.test_admin import Done, Tamis, name

from tamis.cli import explain as command
from tamis.cli.main import main
from tamis.client import Admin, ConsumerConfig, Message, Producer, PushConsumer, SendResult
from tamis.fate import Fate, Judgement
from tamis.testing import LocalCluster

PATIENCE = 20.0  # seconds
QUICK: dict[str, Any] = {"start": "first", "commit_interval": 0.2, "rebalance_interval": 1.0}


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
        monkeypatch.setattr(sys, "argv", ["tamis", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return Done(ended.value.code, *capsys.readouterr())

    return run


async def _consumed(
    nameserver: str, topic: str, groups: dict[str, dict[str, str]], message: Message
) -> SendResult:
    """Sends the message; each group, with its filter, has passed it when this returns."""
    async with Producer(nameserver) as producer, Admin(nameserver) as admin:
        sent = await producer.send(message)
        for group, by in groups.items():
            consumer = PushConsumer(
                nameserver, group, lambda message: None, config=ConsumerConfig(**QUICK)
            )
            consumer.subscribe(topic, **by)
            async with consumer, asyncio.timeout(PATIENCE):
                while not any(one.committed for one in await admin.offsets(group, topic)):
                    await asyncio.sleep(0.05)
    return sent


@pytest.fixture
def explained(cluster: LocalCluster, tamis: Tamis) -> tuple[str, SendResult, dict[str, str]]:
    """A topic, its message, and groups: one that wants all, one by tag, one by SQL."""
    topic = name("Orders")
    tamis("topics", "create", topic, "--queues", "1")
    filters = {"all": {}, "tag": {"tags": "other"}, "sql": {"sql": "price > 5 AND price < 9"}}
    names = {which: name(which) for which in filters}
    message = Message(topic, "x", tags="T", keys="order-7", properties={"price": "3"})
    by_group = {names[which]: by for which, by in filters.items()}
    sent = asyncio.run(_consumed(cluster.nameserver, topic, by_group, message))
    return topic, sent, names


Explained = tuple[str, SendResult, dict[str, str]]


def test_there_is_a_card_for_each_group(explained: Explained, tamis: Tamis) -> None:
    topic, sent, names = explained
    done = tamis("explain", sent.offset_message_id)
    assert (done.code, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    head, *cards = done.stdout.split("\n\n")
    assert head.splitlines()[:2] == [
        f"message  {sent.offset_message_id}",
        f"at       {topic}, queue broker-a:0, offset 0",
    ]
    assert re.search(r"^tag      T \(hash 84\)$", head, re.MULTILINE)
    by_group = {card.splitlines()[0].split()[-1]: card for card in cards}
    assert by_group[names["all"]].startswith("✓ CONSUMED")
    assert by_group[names["tag"]].startswith("- FILTERED")
    assert "the group's filter is tags 'other'" in by_group[names["tag"]]
    assert re.search(r"progress +1; the queue has 0 to 1", by_group[names["all"]])
    assert re.search(r"history +since \d{4}-", by_group[names["all"]])
    assert by_group[names["sql"]].splitlines()[-4:] == [
        "    SQL part by part:",
        "      false    price > 5 AND price < 9",
        "      false      price > 5              price is '3', read as 3",
        "      skipped    price < 9",
    ]


def test_json_is_an_object_a_line(explained: Explained, tamis: Tamis) -> None:
    topic, sent, names = explained
    for way in (
        [sent.message_id],
        [sent.message_id, "--topic", topic],
        ["--topic", topic, "--key", "order-7"],
        ["--topic", topic, "--queue", "0", "--offset", "0"],
        ["--topic", topic, "--queue", "broker-a:0", "--offset", "0"],
    ):
        done = tamis("explain", *way, "--json")
        assert (done.code, done.stderr) == (0, "")
        assert {row["group"]: row["fate"] for row in done.rows} == {
            names["all"]: "CONSUMED",
            names["tag"]: "FILTERED",
            names["sql"]: "FILTERED",
        }
        assert all(set(row) == {"group", "fate", "reason", "evidence"} for row in done.rows)
    [row] = tamis("explain", sent.message_id, "--group", names["tag"], "--json").rows
    assert row["evidence"]["message_id"] == sent.offset_message_id


def test_a_message_that_nobody_consumes_is_explained_by_that(
    cluster: LocalCluster,
    tamis: Tamis,
) -> None:
    topic = name("Lonely")
    tamis("topics", "create", topic, "--queues", "1")
    asyncio.run(_consumed(cluster.nameserver, topic, {}, Message(topic, "x")))
    done = tamis("explain", "--topic", topic, "--queue", "0", "--offset", "0")
    assert (done.code, done.stdout) == (0, "")
    assert done.stderr == "no group consumes the topic of this message, or ever did\n"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ([], "name a message: MESSAGE_ID, --key, or --queue and --offset"),
        (["id", "--key", "k"], "MESSAGE_ID and --key name a message in two ways: give one"),
        (["id", "--queue", "0"], "MESSAGE_ID and --queue and --offset name a message in two"),
        (["--key", "k"], "--key needs --topic"),
        (["--queue", "0", "--offset", "1"], "--queue and --offset needs --topic"),
        (["--topic", "T", "--queue", "0"], "--queue needs --offset"),
        (["--topic", "T", "--offset", "0"], "--offset needs --queue"),
        (["--topic", "T", "--queue", "a:b", "--offset", "0"], "'a:b' is not ID or BROKER:ID"),
        (["--topic", "T", "--queue", ":1", "--offset", "0"], "':1' is not ID or BROKER:ID"),
        (["--topic", "T", "--queue", "0", "--offset", "-1"], "-1 is not in the range x>=0"),
        (["--topic", "T"], "name a message"),
        ([""], "'' can't be the id of a message"),
        (["a\tb"], "'a\\tb' can't be the id of a message"),
    ],
)
def test_what_is_misused_is_said_in_a_line(tamis: Tamis, arguments: list[str], why: str) -> None:
    done = tamis("explain", *arguments)
    assert (done.code, done.stdout) == (2, "")
    assert why in done.stderr
    assert done.stderr.count("\n") == 1


def test_what_is_not_there_is_said_in_a_line(explained: Explained, tamis: Tamis) -> None:
    topic, sent, _ = explained
    place = ["--topic", topic, "--queue", "0", "--offset"]
    for arguments, why in (
        (["0" * 32], "there is no message 00000000000000000000000000000000"),
        (["nonsense", "--topic", topic], f"there is no message nonsense in topic {topic}"),
        ([sent.message_id, "--group", "nobody"], "group nobody is not known to any broker"),
        (["--topic", topic, "--key", "never"], f"topic {topic} has no message with key never"),
        ([*place, "1"], f"topic {topic} has no message 1 in queue 0"),
        (["--topic", topic, "--queue", "7", "--offset", "0"], f"topic {topic} has no queue 7"),
        (["--topic", "Nowhere", "--queue", "0", "--offset", "0"], "topic Nowhere is not known"),
    ):
        done = tamis("explain", *arguments)
        assert (done.code, done.stdout) == (1, "")
        assert why in done.stderr
        assert done.stderr.count("\n") == 1


# The cards themselves

EVIDENCE = {
    "topic": "T",
    "broker": "b",
    "queue": 0,
    "offset": 5,
    "message_id": "ID",
    "committed": 6,
    "queue_begins_at": 0,
    "queue_ends_at": 6,
    "history_since": 1,
}


@pytest.mark.parametrize("fate", Fate)
def test_every_fate_has_a_look(fate: Fate, capsys: pytest.CaptureFixture[str]) -> None:
    command.print_cards([Judgement(group="G", fate=fate, reason="So.", evidence=EVIDENCE)])
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(rf". {fate}  G", lines[3])
    assert lines[4] == "  So."


def test_what_went_wrong_comes_first_and_says_what_to_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command.print_cards(
        [
            Judgement(group=fate.value.lower(), fate=fate, reason="So.", evidence=EVIDENCE)
            for fate in (Fate.CONSUMED, Fate.LOST_TO_INCONSISTENCY, Fate.SKIPPED_BY_RESET)
        ]
    )
    out = capsys.readouterr().out
    symbols = [line[0] for line in out.splitlines() if re.match(r"[✗»✓]", line)]
    assert symbols == ["✗", "»", "✓"]
    assert "→ let it not happen again: tamis groups policy lost_to_inconsistency isolate" in out
    assert "→ read it again: tamis offsets reset skipped_by_reset --topic T" in out


def test_commands_can_be_pasted_whatever_the_topic_is_called(
    capsys: pytest.CaptureFixture[str],
) -> None:
    evidence = EVIDENCE | {"topic": "%odd|Topic"}
    card = Judgement(group="a|b", fate=Fate.SKIPPED_BY_RESET, reason="So.", evidence=evidence)
    command.print_cards([card])
    assert "tamis offsets reset 'a|b' --topic '%odd|Topic' --queue b:0 " in capsys.readouterr().out


def test_a_split_group_is_not_said_to_be_filtered_by_one_filter(
    capsys: pytest.CaptureFixture[str],
) -> None:
    everything, tag = ({"kind": "TAG", "expression": text} for text in ("*", "A"))
    common = {"broker_said": "true", "client_keeps": True, "acknowledged": True}
    evidence = EVIDENCE | {
        "online": True,
        "policy": "isolate",
        "filter_now": tag,
        "members_now": {"c1": everything, "c2": tag},
        "lanes": [{"filter": tag, "committed": 6, "members": ["c2"]}],
        "readings": [
            common | {"member": "c1", "member_filter": everything, "broker_filter": everything},
            common
            | {"member": "c2", "member_filter": tag, "broker_filter": tag, "left_to_others": True},
        ],
    }
    command.print_cards([Judgement(group="G", fate=Fate.CONSUMED, reason="So.", evidence=evidence)])
    out = capsys.readouterr().out
    assert "2 members; policy isolate; each is served by its own filter" in out
    assert "c1, by all messages: matched; progress passed it" in out
    assert "c2, by tags 'A': matched, but it was left to other members that want it" in out


def test_a_group_that_is_isolated_already_is_not_told_to_be(
    capsys: pytest.CaptureFixture[str],
) -> None:
    evidence = EVIDENCE | {"policy": "isolate"}
    card = Judgement(group="G", fate=Fate.LOST_TO_INCONSISTENCY, reason="So.", evidence=evidence)
    command.print_cards([card])
    assert "groups policy" not in capsys.readouterr().out


def test_a_terminal_is_given_colours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(click.utils, "should_strip_ansi", lambda *_: False)
    card = Judgement(group="G", fate=Fate.LOST_TO_INCONSISTENCY, reason="So.", evidence=EVIDENCE)
    command.print_cards([card])
    assert "\x1b[31m" in capsys.readouterr().out
