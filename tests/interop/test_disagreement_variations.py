"""Groups that disagree in other ways than by two tags, with the real Java client: three members,
`*` beside a tag, SQL beside tags, one queue. RocketMQ's broker and ours lose the same messages and
commit the same offsets, and `explain` names exactly those on both."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from interop.cluster import INSTEAD, Target, apache_cluster, our_cluster
from interop.disagreement import SETTINGS, Group, JavaMember, Position
from interop.javaclient import JavaClient

from tamis.client.blocking import Admin
from tamis.fate.standing import STANDING_MARGIN

SENT = ("TagA", "TagB", "TagC", "TagD")


@pytest.fixture(scope="module")
def java() -> Iterator[JavaClient]:
    with JavaClient("4.9") as client:
        yield client


@pytest.fixture(scope="module", params=["apache", "tamis"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Target]:
    store = tmp_path_factory.mktemp(request.param) / "store"
    running = apache_cluster if request.param == "apache" else our_cluster
    with running(store, **SETTINGS) as one:
        yield one


def three_tags(group: Group) -> list[JavaMember]:
    return [group.add_java(tag[-1].lower(), tag) for tag in ("TagA", "TagB", "TagC")]


def all_beside_a_tag(group: Group) -> list[JavaMember]:
    return [group.add_java("a", *SENT, expression="*"), group.add_java("b", "TagB")]


def sql_beside_tags(group: Group) -> list[JavaMember]:
    return [group.add_java("a", "TagA", "TagC", sql=True), group.add_java("b", "TagB", "TagC")]


@pytest.mark.parametrize(
    ("add_members", "winner", "queues"),
    [
        (three_tags, "c", 4),
        (all_beside_a_tag, "a", 4),
        (all_beside_a_tag, "b", 1),
        (sql_beside_tags, "a", 4),
        (sql_beside_tags, "b", 4),
    ],
)
def test_both_brokers_lose_the_same_and_explain_names_it(
    cluster: Target,
    java: JavaClient,
    tmp_path: Path,
    add_members: Callable[[Group], list[JavaMember]],
    winner: str,
    queues: int,
) -> None:
    with Group(cluster, java, tmp_path, queues=queues) as group:
        members = {one.name: one for one in add_members(group)}
        group.await_joined(len(members))
        group.await_owners(_shared_out(sorted(members), queues))
        members[winner].subscribe_again()
        group.await_winner(winner)
        time.sleep(STANDING_MARGIN / 1000 + 0.5)
        group.send(*SENT, *SENT)
        group.await_rest()
        assert group.winners() == [winner], "the subscription in force changed meanwhile"

        owners = {queue: members[name] for queue, [name] in group.owners().items()}
        expected: dict[str, list[Position]] = {name: [] for name in members}
        for message in sorted(group.sent):
            owner = owners[message.position.queue]
            if message.tag in members[winner].tags and (owner.is_sql or message.tag in owner.tags):
                expected[owner.name].append(message.position)
        assert group.received() == expected
        assert group.committed() == [2 * len(SENT)] * queues
        if INSTEAD is None:
            check_fates(group, expected)


def check_fates(group: Group, received: dict[str, list[Position]]) -> None:
    given = {position for positions in received.values() for position in positions}
    with Admin(group.target.nameserver) as admin:
        for message in group.sent:
            [judgement] = admin.explain(message.message_id, group=group.name)
            wanting = [one.name for one in group.members.values() if message.tag in one.tags]
            if message.position in given:
                expected = "CONSUMED"
            else:
                expected = "LOST_TO_INCONSISTENCY" if wanting else "FILTERED"
            assert judgement.fate == expected, (message, judgement)
            if expected == "LOST_TO_INCONSISTENCY":
                assert all(f"@{java_name(group, one)}" in judgement.reason for one in wanting)


def java_name(group: Group, member: str) -> str:
    return group.java.name(member)


def _shared_out(names: list[str], queues: int) -> dict[int, list[str]]:
    """As RocketMQ's average strategy shares queues: consecutive ones, the first have one more."""
    each, more = divmod(queues, len(names))
    made: list[str] = []
    for at, name in enumerate(names):
        made += [name] * (each + (at < more))
    return {queue: [name] for queue, name in enumerate(made)}
