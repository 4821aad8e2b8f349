"""The history's model: what covers an offset, what it answers, and its JSON."""

import contextlib
from dataclasses import fields
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.fate import Filter, GroupHistory, History, Move, Span, View
from tamis.fate.history import MOST_CHANGES, MOST_MOVES, Change, make_view

TAG_A, TAG_B, SQL = Filter("TAG", "A"), Filter("TAG", "B"), Filter("SQL92", "a > 1")

FILTERS = st.sampled_from([TAG_A, TAG_B, SQL, Filter("CODE", "C"), Filter("TAG", "ü ' \"")])
NAMES = st.sampled_from(["c1", "c2", "10.0.0.1@4", "é"])
OFFSETS = st.integers(0, 2**60)
OPTIONAL_FILTERS = st.none() | FILTERS
SPANS = st.builds(
    Span,
    OFFSETS,
    OFFSETS,
    NAMES,
    FILTERS,
    OPTIONAL_FILTERS,
    st.integers(0, 3),
    OFFSETS,
    OFFSETS,
    st.sampled_from(["", "lane"]),
    st.booleans(),
)
VIEWS = st.builds(View, OFFSETS, st.dictionaries(FILTERS, st.tuples(NAMES)))
MOVES = st.builds(
    Move,
    time=OFFSETS,
    queue_id=st.integers(0, 9),
    before=st.none() | OFFSETS,
    after=OFFSETS,
    by=NAMES,
    why=st.text(max_size=5),
    lane=st.sampled_from(["", "lane"]),
    filter=OPTIONAL_FILTERS,
)
CHANGES = st.builds(Change, OFFSETS, NAMES, OPTIONAL_FILTERS, OPTIONAL_FILTERS)


@st.composite
def histories(draw: st.DrawFn) -> History:
    made = History(draw(OFFSETS), broker=draw(st.sampled_from(["", "b"])))
    for key in draw(st.sets(st.tuples(NAMES, NAMES), max_size=3)):
        one = made.groups[key] = GroupHistory(*key, draw(OFFSETS))
        one.views.update(draw(st.dictionaries(st.integers(0, 3), VIEWS)))
        spans = st.lists(SPANS, min_size=1, max_size=4)
        one.queues.update(draw(st.dictionaries(st.integers(0, 5), spans)))
        one.moves.extend(draw(st.lists(MOVES, max_size=4)))
        one.changes.extend(draw(st.lists(CHANGES, max_size=4)))
        one.floors.update(draw(st.dictionaries(st.integers(0, 5), OFFSETS)))
        one.is_broadcasting, one.is_pull = draw(st.booleans()), draw(st.booleans())
    return made


@given(histories())
def test_json_keeps_all_of_it(history: History) -> None:
    again = History.from_json(orjson.loads(orjson.dumps(history.to_json())))
    assert repr(again) == repr(history)  # all fields, also those that are added later
    for one in again.groups.values():
        assert one.moves.maxlen == MOST_MOVES
        assert one.changes.maxlen == MOST_CHANGES


@given(histories(), st.data())
def test_what_is_not_such_a_record_is_refused_by_the_errors_that_are_named(
    history: History, data: st.DataObject
) -> None:
    record = history.to_json()
    if not record["groups"]:
        return
    spoilt = data.draw(st.sampled_from(record["groups"]))
    key = data.draw(st.sampled_from(sorted(spoilt)))
    if data.draw(st.booleans()):
        del spoilt[key]
    else:
        spoilt[key] = data.draw(st.sampled_from([None, 3, "x", [3], [[3]], {"x": 3}]))
    with contextlib.suppress(KeyError, TypeError, ValueError, IndexError):  # no other
        History.from_json(record)


def test_span_has_no_field_that_json_forgets() -> None:
    assert len(fields(Span)) + 1 == len(_one_span().to_json()["spans"][0])


def _one_span(**others: Any) -> GroupHistory:
    made = GroupHistory("G", "T", 5)
    made.views[1] = make_view(3, [("c1", TAG_A)])
    span: dict[str, Any] = {
        "start": 3, "end": 8, "member": "c1", "filter": TAG_A, "own": TAG_B, "view": 1, "began": 9,
    }  # fmt: skip
    made.queues[0] = [Span(**(span | others))]
    return made


@pytest.mark.parametrize(("offset", "is_read"), [(2, False), (3, True), (7, True), (8, False)])
def test_a_span_covers_its_start_and_not_its_end(offset: int, is_read: bool) -> None:
    assert bool(_one_span().readings(0, offset)) is is_read
    assert not _one_span().readings(1, offset)


@pytest.mark.parametrize(("acked", "is_acked"), [(0, False), (5, False), (6, True)])
def test_progress_acknowledges_what_lies_before_it(acked: int, is_acked: bool) -> None:
    [reading] = _one_span(acked=acked).readings(0, 5)
    assert reading.acknowledged is is_acked
    assert (reading.filter, reading.own, reading.view.filters) == (TAG_A, TAG_B, {TAG_A: ("c1",)})


@pytest.mark.parametrize(("offset", "unsaved"), [(7, None), (8, 8), (100, 8)])
def test_an_open_span_may_have_gone_on(offset: int, unsaved: int | None) -> None:
    assert _one_span(is_open=True).unsaved_from(0, offset) == unsaved
    assert _one_span().unsaved_from(0, offset) is None


def test_the_first_read_is_the_lowest_start() -> None:
    history = _one_span()
    history.queues[0].append(Span(1, 2, "c1", TAG_A, None, 1, 9))
    assert history.first_read(0) == 1
    assert history.first_read(1) is None


def test_moves_are_those_of_the_queue() -> None:
    history = _one_span()
    history.moves.extend(
        Move(time=1, queue_id=q, before=0, after=n, by="x", why="y") for q, n in [(0, 1), (1, 2)]
    )
    assert [move.after for move in history.moves_of(1)] == [2]


def test_a_view_names_three_members_of_each_filter() -> None:
    view = make_view(1, [*((f"c{n}", TAG_A) for n in range(5)), ("c0", TAG_A), ("d", TAG_B)])
    assert view.filters == {TAG_A: ("c0", "c1", "c2"), TAG_B: ("d",)}
