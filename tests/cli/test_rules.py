"""`tamis groups policy`, `filter` and `rules`, run in this process against a cluster of its own."""

import asyncio
import json
import sys
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from tamis.cli.main import main
from tamis.client import Admin, ConsumerConfig, Message, Producer, PushConsumer, blocking
from tamis.testing import LocalCluster

PATIENCE = 20.0  # seconds


class Done(NamedTuple):
    code: object
    stdout: str
    stderr: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stdout.splitlines()]


Tamis = Callable[..., Done]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as cluster:
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


def name(what: str) -> str:
    return f"{what}-{uuid.uuid4().hex[:8]}"


def test_a_policy_is_set_shown_and_taken_back(tamis: Tamis) -> None:
    group = name("Group")
    done = tamis("groups", "policy", group, "isolate")
    assert done == (0, f"group {group} at broker-a: isolate\n", "")
    shown = tamis("groups", "rules", group)
    assert f"group {group}: policy isolate\n" in shown.stdout
    (row,) = tamis("groups", "rules", group, "--json").rows
    assert row["groups"][0]["own_policy"] == "isolate"
    done = tamis("groups", "policy", group, "default")
    assert done.stdout == f"group {group} at broker-a: rocketmq (the broker's)\n"
    assert tamis("groups", "policy", group, "nonsense").code == 2


def test_a_filter_is_changed_from_now_on_and_that_is_cancelled(tamis: Tamis) -> None:
    topic, group = name("Topic"), name("Group")
    tamis("topics", "create", topic, "--queues", "2")
    done = tamis("groups", "filter", group, topic, "--sql", "a > 1")
    assert done.code == 1
    assert "no member of it is connected" in done.stderr
    change = ("groups", "filter", group, topic, "--sql", "a > 1", "--old-tags", "A")
    (row,) = tamis(*change, "--json").rows
    assert row["new"] == {"kind": "SQL92", "text": "a > 1"}
    assert row["cuts"] == {"0": 0, "1": 0}
    shown = tamis("groups", "rules", group).stdout
    assert f"{topic} changes from TAG 'A' to SQL92 'a > 1', from offset 0: 0, 1: 0 on" in shown
    assert tamis(*change).code == 1  # one at a time
    done = tamis("groups", "filter", group, topic, "--cancel")
    assert done.stdout.startswith(
        f"broker-a: the change of {topic} from TAG 'A' to SQL92 'a > 1' is cancelled\n"
    )
    assert tamis("groups", "filter", group, topic, "--cancel").code == 1


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ([], "give the new filter by --sql or by --tags"),
        (["--sql", "a > 1", "--tags", "A"], "give the new filter by --sql or by --tags"),
        (["--tags", "A", "--old-sql", "a", "--old-tags", "A"], "--old-sql or --old-tags"),
        (["--cancel", "--tags", "A"], "--cancel takes no filter"),
        (["--tags", "A", "--from", "whenever"], "is no time"),
    ],
)
def test_a_change_that_is_misspelt_is_refused(tamis: Tamis, options: list[str], why: str) -> None:
    done = tamis("groups", "filter", "g", "t", *options)
    assert done.code == 2
    assert why in done.stderr


def test_sql_that_does_not_parse_is_refused_before_it_is_sent(tamis: Tamis) -> None:
    topic = name("Topic")
    tamis("topics", "create", topic)
    done = tamis("groups", "filter", "g", topic, "--sql", "a >", "--old-tags", "A")
    assert (done.code, done.stdout) == (2, "")


def test_our_own_client_is_isolated_and_loses_nothing(cluster: LocalCluster) -> None:
    topic, group = name("Topic"), name("Group")

    async def work() -> None:
        had: dict[str, list[str]] = {"A": [], "B": []}
        async with Admin(cluster.nameserver) as admin, Producer(cluster.nameserver) as producer:
            await admin.create_topic(topic)
            await admin.set_group_policy(group, "isolate")

            def listener(kind: str) -> Callable[[Any], None]:
                return lambda message: had[kind].append(message.body.decode())

            consumers = []
            for kind in had:
                one = PushConsumer(
                    cluster.nameserver, group, listener(kind), config=ConsumerConfig(start="first")
                )
                one.subscribe(topic, tags=kind)
                consumers.append(one)
            async with consumers[0], consumers[1]:
                wanted: dict[str, list[str]] = {"A": [], "B": []}
                for number in range(40):
                    kind = "AB"[number % 2]
                    await producer.send(Message(topic, f"{kind}{number}", tags=kind))
                    wanted[kind].append(f"{kind}{number}")
                async with asyncio.timeout(PATIENCE):
                    while any(len(had[kind]) < 20 for kind in had):
                        await asyncio.sleep(0.02)
                assert {kind: sorted(some) for kind, some in had.items()} == {
                    kind: sorted(some) for kind, some in wanted.items()
                }
                (rules,) = await admin.group_rules(group)
                assert len(rules["groups"][0]["lanes"]) == 2

    asyncio.run(work())


def test_the_blocking_client_has_the_same(cluster: LocalCluster) -> None:
    group = name("Group")
    with blocking.Admin(cluster.nameserver) as admin:
        assert admin.set_group_policy(group, "reject")[0]["policy"] == "reject"
        assert admin.group_rules(group)[0]["groups"][0]["policy"] == "reject"
