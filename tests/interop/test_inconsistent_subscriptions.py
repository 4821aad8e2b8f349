"""Members of one group that subscribe with different tags: what RocketMQ loses is what our policy
`rocketmq` loses, and our policies `reject` and `isolate` lose nothing."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from interop import disagreement
from interop.cluster import INSTEAD, Target, apache_cluster, our_cluster
from interop.disagreement import PATIENCE, SETTINGS, Group, Outcome, Position
from interop.javaclient import JavaClient, wait_for

# In each of the queues 0 to 3, TagA has the offsets 2 and 4, TagB 3 and 5; a reads the queues 0
# and 1, b the others.
KEPT = {
    "a": {"a": [(0, 2), (0, 4), (1, 2), (1, 4)], "b": []},
    "b": {"a": [], "b": [(2, 3), (2, 5), (3, 3), (3, 5)]},
}


@pytest.fixture(scope="module")
def java() -> Iterator[JavaClient]:
    with JavaClient("4.9") as client:
        yield client


@pytest.fixture(scope="module", params=["apache", "tamis"])
def losing_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Target]:
    store = tmp_path_factory.mktemp(request.param) / "store"
    if request.param == "apache":
        with apache_cluster(store, line="4.9", **SETTINGS) as theirs:
            yield theirs
    else:
        with our_cluster(store, **SETTINGS) as ours:
            yield ours


@pytest.mark.parametrize("winner", ["a", "b"])
def test_what_apaches_broker_loses_to_different_tags_ours_loses_too(
    losing_cluster: Target, java: JavaClient, tmp_path: Path, winner: str
) -> None:
    outcome = disagreement.race(
        losing_cluster, java, tmp_path, winner=winner, check=check_that_all_seems_consumed
    )
    assert outcome.received == KEPT[winner]
    assert outcome.committed == [6, 6, 6, 6]
    assert len(outcome.lost) == 12


def test_nobody_decides_who_wins_and_messages_are_lost_all_the_same(
    losing_cluster: Target, java: JavaClient, tmp_path: Path
) -> None:
    outcome = disagreement.race(
        losing_cluster,
        java,
        tmp_path,
        tags=(["TagA", "TagC"], ["TagB", "TagC"]),
        messages=["TagA", "TagB", "TagC", "TagD"],
        check=check_that_all_seems_consumed,
    )
    assert outcome.received == disagreement.expected_in_race(outcome)
    # Of the winner's own tag half, of the loser's all; TagC passes both filters everywhere.
    assert len(outcome.lost) == 6


def check_that_all_seems_consumed(group: Group, outcome: Outcome) -> None:
    assert outcome.committed == group.ends()
    [winner] = outcome.winners
    for message in outcome.lost:
        in_force = message.tag in outcome.tags[winner]
        assert group.track(message) == ("CONSUMED" if in_force else "CONSUMED_BUT_FILTERED")


@pytest.mark.skipif(INSTEAD is not None, reason="RocketMQ does not explain")
@pytest.mark.parametrize("losing_cluster", ["tamis"], indirect=True)
@pytest.mark.parametrize("winner", ["a", "b"])
def test_our_broker_explains_exactly_the_lost_ones_as_lost(
    losing_cluster: Target, java: JavaClient, tmp_path: Path, winner: str
) -> None:
    def check(group: Group, outcome: Outcome) -> None:
        fates = {message: group.explain(message)["fate"] for message in group.sent}
        lost = [message for message, fate in fates.items() if fate == "LOST_TO_INCONSISTENCY"]
        assert sorted(lost) == outcome.lost
        received = {position for positions in group.received().values() for position in positions}
        consumed = {message.position for message, fate in fates.items() if fate == "CONSUMED"}
        assert consumed == received
        # b was no member yet when these were sent, so nobody wanted them
        filtered = [message for message, fate in fates.items() if fate == "FILTERED"]
        assert sorted(filtered) == [
            message
            for message in sorted(group.sent)
            if message not in outcome.sent and message.tag == "TagB"
        ]

    # The pause is twice as long as pulls are held here. Without it a, who lost half of its queues,
    # may be given a message there by a pull that came after b had asked where to begin; nobody
    # could tell from outside whether it was consumed, so its fate would be UNKNOWN.
    disagreement.race(losing_cluster, java, tmp_path, winner=winner, pause=1.0, check=check)


def test_members_whose_pulls_bring_their_tags_lose_what_is_in_the_others_queues(
    losing_cluster: Target, java: JavaClient, tmp_path: Path
) -> None:
    outcome = disagreement.race(losing_cluster, java, tmp_path, post_subscription=True)
    assert outcome.received == disagreement.expected_in_race(outcome, post_subscription=True)
    assert len(outcome.lost) == 8


@pytest.mark.parametrize("winner", ["a", "b"])
def test_members_with_different_sql_are_given_what_the_winner_wants(
    losing_cluster: Target, java: JavaClient, tmp_path: Path, winner: str
) -> None:
    outcome = disagreement.race(losing_cluster, java, tmp_path, winner=winner, sql=True)
    assert outcome.received == disagreement.expected_in_race(outcome, sql=True)
    assert {message.tag for message in outcome.lost} == {"TagB" if winner == "a" else "TagA"}
    assert len(outcome.lost) == 8


@pytest.mark.parametrize("leaver", ["a", "b"])
def test_after_one_has_left_the_other_is_given_all_it_wants_but_nothing_lost_before(
    losing_cluster: Target, java: JavaClient, tmp_path: Path, leaver: str
) -> None:
    """Member a is the one that had won."""

    def check(group: Group, outcome: Outcome) -> None:
        [stayer] = {"a", "b"} - {leaver}
        before = group.received()[stayer]
        group.remove(leaver)
        group.await_owners({queue: [stayer] for queue in group.queues})
        group.await_winner(stayer)
        sent = group.send("TagA", "TagB")
        group.await_rest()
        later = [message.position for message in sent if message.tag in outcome.tags[stayer]]
        assert group.received()[stayer] == sorted(before + later)

    disagreement.race(losing_cluster, java, tmp_path, winner="a", check=check)


@pytest.fixture(scope="module")
def rejecting_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with cluster_with_policy("reject", tmp_path_factory.mktemp("reject") / "store") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def isolating_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with cluster_with_policy("isolate", tmp_path_factory.mktemp("isolate") / "store") as cluster:
        yield cluster


@contextmanager
def cluster_with_policy(policy: str, store: Path) -> Iterator[Target]:
    if INSTEAD is not None:
        pytest.skip("RocketMQ has no policies for members that disagree")
    with our_cluster(store, subscription_conflicts=policy, **SETTINGS) as cluster:
        yield cluster


def test_a_member_that_disagrees_is_refused_until_the_other_leaves_and_none_is_lost(
    rejecting_cluster: Target, java: JavaClient, tmp_path: Path
) -> None:
    before, after = disagreement.second_member_refused(rejecting_cluster, java, tmp_path)
    assert before.winners == ["a"]
    assert before.received == {"a": of_tags(before, "TagA"), "b": []}
    assert after.winners == ["b"]
    assert after.received == {"a": [], "b": of_tags(after, "TagB")}
    assert before.lost == after.lost == []


def two_java(group: Group) -> None:
    group.add_java("a", "TagA")
    group.add_java("b", "TagB")
    group.await_owners({queue: ["a", "b"] for queue in group.queues})


def two_java_in_order(group: Group) -> None:
    group.add_java("a", "TagA", ordered=True)
    group.add_java("b", "TagB", ordered=True)
    group.await_owners({queue: ["a", "b"] for queue in group.queues})


def two_java_with_sql(group: Group) -> None:
    group.add_java("a", "TagA", sql=True)
    group.add_java("b", "TagB", sql=True)
    group.await_owners({queue: ["a", "b"] for queue in group.queues})


def two_java_whose_pulls_bring_their_tags(group: Group) -> None:
    group.add_java("a", "TagA", post_subscription=True)
    group.add_java("b", "TagB", post_subscription=True)
    group.await_owners({queue: ["a", "b"] for queue in group.queues})


def java_and_cpp(group: Group) -> None:
    group.add_java("a", "TagA")
    group.add_cpp("b", "TagB")


def java_and_js(group: Group) -> None:
    group.add_java("a", "TagA")
    group.add_js("b", "TagB")


def cpp_and_js(group: Group) -> None:
    group.add_cpp("a", "TagA")
    group.add_js("b", "TagB")


@pytest.mark.parametrize(
    "add_members",
    [
        two_java,
        two_java_in_order,
        two_java_with_sql,
        two_java_whose_pulls_bring_their_tags,
        java_and_cpp,
        java_and_js,
        cpp_and_js,
    ],
)
def test_each_isolated_member_is_given_what_it_wants_once_and_nothing_else(
    isolating_cluster: Target,
    java: JavaClient,
    tmp_path: Path,
    add_members: Callable[[Group], None],
) -> None:
    outcome = disagreement.each_by_its_own(isolating_cluster, java, tmp_path, add_members)
    assert outcome.received == {"a": of_tags(outcome, "TagA"), "b": of_tags(outcome, "TagB")}
    assert outcome.lost == []


def test_members_that_agree_share_the_queues_beside_one_that_does_not(
    isolating_cluster: Target, java: JavaClient, tmp_path: Path
) -> None:
    def add_members(group: Group) -> None:
        group.add_java("a1", "TagA")
        group.add_java("a2", "TagA")
        group.add_java("b", "TagB")
        halves = {0: "a1", 1: "a1", 2: "a2", 3: "a2"}
        group.await_owners({queue: [half, "b"] for queue, half in halves.items()})

    outcome = disagreement.each_by_its_own(isolating_cluster, java, tmp_path, add_members)
    wanted = of_tags(outcome, "TagA")
    assert outcome.received == {
        "a1": [position for position in wanted if position.queue < 2],
        "a2": [position for position in wanted if position.queue >= 2],
        "b": of_tags(outcome, "TagB"),
    }


def test_what_a_member_that_left_wants_is_held_until_it_is_back(
    isolating_cluster: Target, java: JavaClient, tmp_path: Path
) -> None:
    def check(group: Group, outcome: Outcome) -> None:
        held = group.ends()
        group.remove("b")
        group.await_joined(1)
        sent = sorted(group.send("TagB", "TagA", "TagB"))
        given = [message.position for message in sent if message.tag == "TagA"]
        wait_for(
            lambda: group.received()["a"], lambda received: set(given) <= set(received), PATIENCE
        )
        time.sleep(2)  # a's client commits twice a second
        assert group.committed() == held
        group.add_java("c", "TagB")
        group.await_rest()
        assert group.received() == {
            "a": sorted(outcome.received["a"] + given),
            "b": outcome.received["b"],
            "c": [message.position for message in sent if message.tag == "TagB"],
        }

    disagreement.each_by_its_own(isolating_cluster, java, tmp_path, two_java, check=check)


def three_that_overlap(group: Group) -> None:
    group.add_java("a", "TagA", "TagC")
    group.add_java("b", "TagB", "TagC")
    group.add_java("c", "TagC")


def three_clients_that_overlap(group: Group) -> None:
    group.add_java("a", "TagA", "TagC")
    group.add_cpp("b", "TagB", "TagC")
    group.add_js("c", "TagC")


@pytest.mark.parametrize("add_members", [three_that_overlap, three_clients_that_overlap])
def test_what_several_isolated_members_want_is_given_to_one_of_them(
    isolating_cluster: Target,
    java: JavaClient,
    tmp_path: Path,
    add_members: Callable[[Group], None],
) -> None:
    outcome = disagreement.each_by_its_own(
        isolating_cluster,
        java,
        tmp_path,
        add_members,
        messages=["TagA", "TagB", "TagC", "TagD", "TagC"],
    )
    received = sorted(position for heard in outcome.received.values() for position in heard)
    assert received == of_tags(outcome, "TagA", "TagB", "TagC")
    for name, tags in outcome.tags.items():
        assert set(outcome.received[name]) <= set(of_tags(outcome, *tags))


def of_tags(outcome: Outcome, *tags: str) -> list[Position]:
    return [message.position for message in outcome.sent if message.tag in tags]
