"""A change of a group's filter with real clients, whose members are restarted one by one: before
the cut the old filter holds, from there on the new one. Nothing is lost, nothing is had twice, and
`explain` says so of every message."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from interop.cluster import INSTEAD, Target, our_cluster
from interop.disagreement import (
    PATIENCE,
    SETTINGS,
    Group,
    Member,
    Position,
    Sent,
    sql_expression,
    tag_expression,
)
from interop.javaclient import JavaClient, wait_for

from tamis.client.blocking import Admin

OLD, NEW = frozenset({"TagA", "TagC"}), frozenset({"TagB", "TagC"})
KINDS = "TagA", "TagB", "TagC", "TagD"  # each filter wants one that the other does not
AddMember = Callable[[Group, str, Iterable[str]], Member]


@pytest.fixture(scope="module")
def java() -> Iterator[JavaClient]:
    with JavaClient("4.9") as client:
        yield client


@pytest.fixture(scope="module", params=["rocketmq", "isolate"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Target]:
    if INSTEAD is not None:
        pytest.skip("RocketMQ knows no change of a filter")
    store = tmp_path_factory.mktemp(request.param) / "store"
    with our_cluster(store, subscription_conflicts=request.param, **SETTINGS) as ours:
        yield ours


@dataclass
class Change:
    """Of a group's filter from OLD to NEW; what is sent after it is wanted by NEW alone."""

    group: Group
    is_sql: bool = False
    before: list[Sent] = field(default_factory=list)
    after: list[Sent] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)  # by queue

    def announce(self, **old: str) -> None:
        self.before = list(self.group.sent)
        kind, express = ("sql", sql_expression) if self.is_sql else ("tags", tag_expression)
        with Admin(self.group.target.nameserver) as admin:
            [made] = admin.set_group_filter(
                self.group.name, self.group.topic, **{kind: express(NEW)}, **old
            )
        self.cuts = list(made["cuts"].values())
        assert self.cuts == self.group.ends()

    def send(self) -> None:
        self.after += self.group.send(*KINDS)

    @property
    def wanted_before(self) -> list[Position]:
        return sorted(message.position for message in self.before if message.tag in OLD)

    @property
    def wanted_after(self) -> list[Position]:
        return sorted(message.position for message in self.after if message.tag in NEW)

    def received(self, *members: str) -> list[Position]:
        received = self.group.received()
        return sorted(position for name in members for position in received[name])

    def await_received(self, expected: list[Position], *members: str) -> None:
        """By these members together: each message once, and no other."""
        wait_for(lambda: self.received(*members), lambda seen: len(seen) >= len(expected), PATIENCE)
        assert self.received(*members) == expected

    def rules(self) -> dict[str, Any]:
        with Admin(self.group.target.nameserver) as admin:
            [broker] = admin.group_rules(self.group.name)
        rules: dict[str, Any] = broker["groups"][0]
        return rules

    def await_progress(self, tags: frozenset[str], offsets: list[int]) -> None:
        """Of the members that want these. What a client has not committed when another takes its
        queues over is had twice, as always in RocketMQ."""
        express = sql_expression if self.is_sql else tag_expression

        def progress() -> list[int]:
            [lane] = [
                lane
                for lane in self.rules()["lanes"]
                if lane["filters"][self.group.topic]["text"] == express(tags)
            ]
            return [at["offset"] for at in lane["progress"] if at["topic"] == self.group.topic]

        wait_for(progress, lambda seen: seen == offsets, PATIENCE)

    def await_end(self) -> None:
        """All is read, and the group is as any other again."""
        self.group.await_rest()
        done = {"cutovers": [], "lanes": [], "refused": []}
        wait_for(self.rules, lambda rules: done.items() <= rules.items(), PATIENCE)

    def check_fates(self) -> dict[Position, str]:
        """What a listener was given is CONSUMED, all else FILTERED. Returns the reasons."""
        received = {*self.received(*self.group.members)}
        explained = {one.position: self.group.explain(one) for one in self.group.sent}
        expected = {at: "CONSUMED" if at in received else "FILTERED" for at in explained}
        wrong = {
            at: (row["fate"], row["reason"])
            for at, row in explained.items()
            if row["fate"] != expected[at]
        }
        assert not wrong
        return {at: row["reason"] for at, row in explained.items()}


def java_with_tags(group: Group, name: str, tags: Iterable[str]) -> Member:
    return group.add_java(name, *tags)


def java_with_sql(group: Group, name: str, tags: Iterable[str]) -> Member:
    return group.add_java(name, *tags, sql=True)


def java_in_order(group: Group, name: str, tags: Iterable[str]) -> Member:
    return group.add_java(name, *tags, ordered=True)


def cpp(group: Group, name: str, tags: Iterable[str]) -> Member:
    return group.add_cpp(name, *tags)


MEMBERS = [java_with_tags, java_with_sql, java_in_order, cpp]


@pytest.mark.parametrize("add", MEMBERS)
def test_members_restarted_one_by_one_get_the_old_before_and_the_new_after_the_cut(
    cluster: Target, java: JavaClient, tmp_path: Path, add: AddMember
) -> None:
    with Group(cluster, java, tmp_path) as group:
        change = Change(group, is_sql=add is java_with_sql)
        add(group, "old 1", OLD)
        add(group, "old 2", OLD)
        group.await_joined(2)
        group.send(*KINDS)
        wait_for(lambda: group.received()["old 1"], bool, PATIENCE)
        wait_for(lambda: group.received()["old 2"], bool, PATIENCE)
        group.send(*KINDS)  # which is hardly read when the change is announced
        change.announce()
        change.send()
        change.await_received(change.wanted_before, "old 1", "old 2")
        change.await_progress(OLD, change.cuts)

        group.remove("old 1")
        add(group, "new 1", NEW)
        change.send()
        change.await_received(change.wanted_after, "new 1")
        change.await_progress(NEW, group.ends())

        group.remove("old 2")
        add(group, "new 2", NEW)
        group.await_joined(2)
        change.await_end()
        change.send()
        group.await_rest()
        assert change.received("old 1", "old 2") == change.wanted_before
        assert change.received("new 1", "new 2") == change.wanted_after
        change.check_fates()


@pytest.mark.parametrize("cluster", ["rocketmq"], indirect=True)
def test_what_is_left_when_all_old_members_are_gone_goes_to_new_ones_with_sql(
    cluster: Target, java: JavaClient, tmp_path: Path
) -> None:
    with Group(cluster, java, tmp_path) as group:
        change = Change(group, is_sql=True)
        java_with_sql(group, "old", OLD)
        group.send(*KINDS)
        group.await_rest()
        group.remove("old")
        group.await_joined(0)
        group.send(*KINDS)
        change.announce(old_sql=sql_expression(OLD))
        change.send()
        java_with_sql(group, "new", NEW)
        change.await_end()
        left = [at for at in change.wanted_before if at not in group.received()["old"]]
        assert len(left) == 2 * len(group.queues)
        assert group.received()["new"] == sorted(left + change.wanted_after)
        reasons = change.check_fates()
        assert all("no member had SQL" in reasons[at] for at in left)
