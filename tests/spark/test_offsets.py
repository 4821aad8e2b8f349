"""Positions, shares and cuts: arithmetic on offsets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.errors import ConfigError
from tamis.spark.offsets import Positions, Range, cut, cut_at, pack, share
from tamis.wire.bodies import MessageQueue

queues = st.builds(
    MessageQueue,
    st.sampled_from(["a", "b", "%RETRY%g"]),
    st.sampled_from(["broker-a", "b", ""]),
    st.integers(0, 20),
)
offsets = st.dictionaries(queues, st.integers(0, 2**60), max_size=8)
ranges = st.dictionaries(
    queues, st.tuples(st.integers(0, 2**40), st.integers(1, 10_000)), max_size=8
).map(lambda found: [Range(queue, at, at + size) for queue, (at, size) in sorted(found.items())])


@given(offsets, st.integers(0, 2**60), st.none() | offsets)
def test_positions_come_back_from_json(
    found: dict[MessageQueue, int], scanned: int, begun: dict[MessageQueue, int] | None
) -> None:
    positions = Positions(found, scanned, begun)
    assert Positions.from_json(positions.to_json()) == positions


def test_what_is_no_position_is_said_so_in_a_line() -> None:
    for wrong in ({"t": 5}, {"t": {"b": {"x": 1}}}, {"logOffset": 3}):
        with pytest.raises(ConfigError, match="the checkpoint is damaged, or of another source"):
            Positions.from_json(wrong)


@given(ranges, st.integers(1, 50_000))
def test_a_trigger_takes_as_many_as_it_may_and_no_more(found: list[Range], most: int) -> None:
    ends = share(found, most)
    taken = sum(ends[one.queue] - one.start for one in found)
    assert taken == min(most, sum(one.size for one in found))
    least = 1 if most >= len(found) else 0  # no queue is starved by another
    assert all(one.start + least <= ends[one.queue] <= one.end for one in found)


@given(ranges.filter(bool), st.data())
def test_queues_take_turns_where_there_is_not_one_message_for_each(
    found: list[Range], data: st.DataObject
) -> None:
    most = data.draw(st.integers(1, len(found)))
    left = {one.queue: one for one in found}
    for _ in range(len(found)):
        at = {one.queue: one.start for one in left.values()}
        for queue, end in share(left.values(), most).items():
            left[queue] = left[queue]._replace(start=end)
        if any(one.size == 0 for one in left.values()) or len(left) < most:
            return
        assert sum(one.start - at[queue] for queue, one in left.items()) == most
    assert all(one.start > first.start for one, first in zip(left.values(), found, strict=True))


@given(ranges, st.none() | st.integers(1, 40), st.none() | st.integers(1, 5_000))
def test_cuts_are_the_same_messages_in_order(
    found: list[Range], at_least: int | None, largest: int | None
) -> None:
    pieces = cut(found, at_least, largest)
    for one in found:
        of_queue = [piece for piece in pieces if piece.queue == one.queue]
        assert [of_queue[0].start, *(piece.end for piece in of_queue)] == [
            *(piece.start for piece in of_queue),
            one.end,
        ]
        assert of_queue[0].start == one.start
        assert all(piece.size > 0 for piece in of_queue)
        if largest is not None:
            assert all(piece.size <= largest for piece in of_queue)
    total = sum(one.size for one in found)
    if at_least is not None and found and all(one.size >= at_least for one in found):
        assert len(pieces) >= min(at_least, total)


@given(ranges, st.integers(1, 5_000))
def test_pieces_of_files_are_the_same_messages_each_in_one_file(
    found: list[Range], step: int
) -> None:
    for one in found:
        pieces = cut_at(one, step)
        assert [*range(one.start, one.end)] == [
            at for piece in pieces for at in range(piece.start, piece.end)
        ]
        assert all(piece.start // step == (piece.end - 1) // step for piece in pieces)


@given(ranges, st.integers(1, 5_000))
def test_packs_hold_all_ranges_and_only_small_ones_share_one(found: list[Range], size: int) -> None:
    packs = pack(found, size)
    assert [one for some in packs for one in some] == found
    assert all(len(some) == 1 or sum(one.size for one in some) <= size for some in packs)


def test_what_lies_between_positions_is_what_both_know() -> None:
    a, b, c = (MessageQueue("t", "b", number) for number in range(3))
    here = Positions({a: 5, b: 7}, scanned=10)
    assert here.ranges({a: 9, b: 7, c: 4}) == [Range(a, 5, 9)]
    assert here.moved({a: 9, b: 7, c: 4}).scanned == 14
    assert here.moved({a: 9}).begun is None
    assert Positions({a: 5}).moved({a: 9}).begun == {a: 5}
