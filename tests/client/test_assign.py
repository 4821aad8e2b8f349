"""Shares of a group's members: each queue once, the same from any order. Java's own answers are
compared in `interop/test_assign.py`."""

from collections.abc import Sequence
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.client import assign
from tamis.client.assign import STRATEGIES, Strategy
from tamis.errors import ConfigError
from tamis.wire.bodies import MessageQueue

# Before and after the surrogates, and beyond the characters of one code unit.
names = st.text("ab1-@é中\ue000～😀𝒳", min_size=1, max_size=5)
queues = st.lists(
    st.builds(MessageQueue, st.sampled_from(["t", "T～", "T😀"]), names, st.integers(0, 20)),
    unique=True,
    max_size=40,
)
members = st.lists(names, unique=True, min_size=1, max_size=12)


def row(count: int, broker: str = "b") -> list[MessageQueue]:
    return [MessageQueue("t", broker, i) for i in range(count)]


def ids(share: Sequence[MessageQueue]) -> list[int]:
    return [queue.queue_id for queue in share]


def by_broker(queue: MessageQueue) -> str:
    return queue.broker_name[0]


def by_name(member: str) -> str:
    return member[0]


nearby = assign.machine_room_nearby(assign.average, by_broker, by_name)


@pytest.mark.parametrize("strategy", [*STRATEGIES.values(), nearby])
@given(queues=queues, members=members)
def test_each_queue_goes_to_one_member(
    strategy: Strategy, queues: list[MessageQueue], members: list[str]
) -> None:
    shares = [assign.assign(strategy, queues, members, member) for member in members]
    assert sorted(chain(*shares)) == sorted(queues)


@pytest.mark.parametrize("strategy", [*STRATEGIES.values(), assign.machine_room("ab"), nearby])
@given(data=st.data(), queues=queues, members=members)
def test_a_share_does_not_depend_on_the_order_of_the_lists(
    strategy: Strategy, data: st.DataObject, queues: list[MessageQueue], members: list[str]
) -> None:
    me = data.draw(st.sampled_from(members))
    share = assign.assign(strategy, queues, members, me)
    queues = data.draw(st.permutations(queues))
    members = data.draw(st.permutations(members))
    assert assign.assign(strategy, queues, members, me) == share


@pytest.mark.parametrize("strategy", [assign.average, assign.average_by_circle])
@given(queues=queues, members=members)
def test_no_member_has_two_queues_more_than_another(
    strategy: Strategy, queues: list[MessageQueue], members: list[str]
) -> None:
    sizes = [len(assign.assign(strategy, queues, members, member)) for member in members]
    assert max(sizes) - min(sizes) <= 1


@given(data=st.data(), queues=queues, members=members)
def test_by_hash_a_member_that_leaves_moves_only_its_own_queues(
    data: st.DataObject, queues: list[MessageQueue], members: list[str]
) -> None:
    leaver = data.draw(st.sampled_from(members))
    stayers = [member for member in members if member != leaver]
    for member in stayers:
        before = assign.assign(assign.consistent_hash, queues, members, member)
        after = assign.assign(assign.consistent_hash, queues, stayers, member)
        assert set(before) <= set(after)


@pytest.mark.parametrize(
    ("strategy", "count", "shares"),
    [
        ("AVG", 8, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        ("AVG", 7, [[0, 1, 2], [3, 4], [5, 6]]),
        ("AVG", 6, [[0, 1], [2, 3], [4, 5]]),
        ("AVG", 3, [[0], [1], [2]]),
        ("AVG", 2, [[0], [1], []]),
        ("AVG_BY_CIRCLE", 8, [[0, 3, 6], [1, 4, 7], [2, 5]]),
        ("AVG_BY_CIRCLE", 3, [[0], [1], [2]]),
        ("AVG_BY_CIRCLE", 2, [[0], [1], []]),
    ],
)
def test_three_members_share(strategy: str, count: int, shares: list[list[int]]) -> None:
    found = [assign.assign(STRATEGIES[strategy], row(count), "abc", me) for me in "abc"]
    assert [ids(share) for share in found] == shares


def test_queues_are_numbered_not_spelled() -> None:
    assert ids(assign.assign(assign.average, reversed(row(12)), "ab", "a")) == [0, 1, 2, 3, 4, 5]


def test_names_are_ordered_by_code_units_of_utf_16() -> None:
    """By code points, as Python compares, it is the other way round."""
    assert "😀" > "～"
    there = [MessageQueue("t", "～", 0), MessageQueue("t", "😀", 0)]
    [first] = assign.assign(assign.average, there, ["～", "😀"], "😀")
    assert first.broker_name == "😀"


@pytest.mark.parametrize(
    "strategy", [*STRATEGIES.values(), assign.machine_room("b"), nearby, assign.fixed(row(4))]
)
def test_a_stranger_has_nothing_and_of_nothing_there_is_no_share(strategy: Strategy) -> None:
    assert assign.assign(strategy, row(4), ["a", "b"], "c") == []
    assert assign.assign(strategy, row(4), [], "c") == []
    assert assign.assign(strategy, [], ["a", "c"], "c") == []


@pytest.mark.parametrize("strategy", [*STRATEGIES.values(), assign.machine_room("b"), nearby])
def test_a_strategy_by_itself_gives_a_stranger_nothing(strategy: Strategy) -> None:
    assert strategy(row(4), ["a", "b"], "c") == []
    assert strategy(row(4), [], "c") == []


@pytest.mark.parametrize(
    ("strategy", "shares"),
    [("AVG", {"a": [0, 1], "b": [4, 5]}), ("AVG_BY_CIRCLE", {"a": [0, 3], "b": [2, 5]})],
)
def test_two_connections_with_one_id_have_the_place_of_the_first(
    strategy: str, shares: dict[str, list[int]]
) -> None:
    for me, share in shares.items():
        assert ids(assign.assign(STRATEGIES[strategy], row(6), ["a", "b", "a"], me)) == share


def test_by_hash_two_connections_with_one_id_leave_no_queue_out() -> None:
    shares = [assign.assign(assign.consistent_hash, row(50), ["a", "b", "a"], me) for me in "ab"]
    assert sorted(chain(*shares)) == row(50)


@pytest.mark.parametrize(
    ("count", "shares"),
    [(8, [[0, 1, 6], [2, 3, 7], [4, 5]]), (3, [[0], [1], [2]]), (2, [[0], [1], []])],
)
def test_by_machine_room_the_rest_is_dealt_out_last(count: int, shares: list[list[int]]) -> None:
    here = row(count, "r1@b")
    strategy = assign.machine_room(["r1", "r2"])
    found = [assign.assign(strategy, here + row(5, "r3@b"), "xyz", me) for me in "xyz"]
    assert [ids(share) for share in found] == shares


@pytest.mark.parametrize(
    ("broker", "is_in_it"),
    [
        ("room@b", True),
        ("room@b@", True),
        ("room@b@@", True),
        ("room@b@c", False),
        ("room@", False),
        ("room", False),
        ("b@room", False),
        ("@room@b", False),
        ("Room@b", False),
    ],
)
def test_a_room_is_read_from_the_broker_name_as_java_splits_it(broker: str, is_in_it: bool) -> None:
    there = row(1, broker)
    share = assign.assign(assign.machine_room(["room"]), there, ["me"], "me")
    assert share == (there if is_in_it else [])


def test_a_fixed_list_is_for_everyone() -> None:
    chosen = row(2)
    strategy = assign.fixed(chosen)
    for me in "ab":
        share = assign.assign(strategy, row(8, "elsewhere"), "ab", me)
        assert share == row(2)
        share.clear()  # what a caller does with it is its own affair
    chosen.clear()
    assert assign.assign(strategy, row(8), "ab", "b") == row(2)


def test_nearby_a_room_has_its_own_queues_and_a_part_of_the_deserted_ones() -> None:
    everything = row(4, "r1") + row(2, "s1") + row(3, "t1") + row(3, "q1")
    found = {
        me: assign.assign(nearby, everything, ["r-a", "r-b", "s-a"], me)
        for me in ["r-a", "r-b", "s-a"]
    }
    seen = {me: [f"{q.broker_name} {q.queue_id}" for q in share] for me, share in found.items()}
    assert seen == {
        "r-a": ["r1 0", "r1 1", "q1 0", "t1 0"],
        "r-b": ["r1 2", "r1 3", "q1 1", "t1 1"],
        "s-a": ["s1 0", "s1 1", "q1 2", "t1 2"],
    }


def test_nearby_refuses_a_queue_or_a_member_of_no_room() -> None:
    lost_queue = assign.machine_room_nearby(assign.average, lambda queue: "", by_name)
    with pytest.raises(ConfigError, match=r"no machine room .* brokerName=b, queueId=0"):
        assign.assign(lost_queue, row(1), ["a"], "a")
    lost_member = assign.machine_room_nearby(assign.average, by_broker, lambda member: "")
    with pytest.raises(ConfigError, match="no machine room is known for member a"):
        assign.assign(lost_member, row(1), ["a"], "a")
