"""The table of what was decided about groups: what is saved is read again, whatever happens."""

import os
from pathlib import Path

import pytest
from disks import replace_call

from tamis.broker.lanes import Band, CutOver, Division, Lane, LaneFilter, Newcomer, lane_id
from tamis.broker.rules import MOST_RULES, Rules
from tamis.errors import StoreError

A, B = LaneFilter("TAG", "A || C", frozenset("AC")), LaneFilter("SQL92", "kind = 'B'")


class Crash(BaseException):
    """The power goes."""


def lane(number: int, one: LaneFilter, offset: int) -> Lane:
    filters = {"t": one}
    made = Lane(lane_id(filters), number, filters)
    made.progress = {("t", 0): offset, ("%RETRY%g", 0): 1}
    made.rewinds = {("t", 0): offset}
    made.bands = {("t", 0): [Band(3, 9, B), Band(9, 12)]}
    made.awaited = {"client": Newcomer("client", {("t", 0)})}
    return made


def filled(folder: Path, offset: int) -> Rules:
    rules = Rules(folder)
    rules.set_policy("g", "isolate")
    rules.set_policy("other", "reject")
    change = CutOver("t", A, B, {0: 5, 1: 7}, 1234, is_handed=True)
    division = Division("g", [lane(2, B, 7), lane(1, A, offset)], {"t": change})
    division.began = {("t", 0): 2}
    rules.divisions["g"] = division
    return rules


def told(rules: Rules) -> object:
    found = rules.divisions["g"]
    lanes = sorted(found.lanes, key=lambda one: one.born)
    return (
        rules.policies,
        [(x.id, x.born, x.filters, x.progress, x.rewinds, x.bands, x.awaited) for x in lanes],
        found.cutovers,
        found.began,
    )


def test_what_is_saved_is_read_again(tmp_path: Path) -> None:
    rules = filled(tmp_path, 4)
    rules.snapshot()()
    again = Rules(tmp_path)
    assert told(again) == told(rules)
    assert [one.born for one in again.divisions["g"].lanes] == [1, 2]  # the oldest first


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", range(1, 6))
def test_a_kill_at_any_step_leaves_a_table_that_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, is_done: bool
) -> None:
    filled(tmp_path, 4).snapshot()()
    old, save = told(Rules(tmp_path)), filled(tmp_path, 6).snapshot()
    new = told(filled(tmp_path, 6))
    steps = 0

    def dying(call):  # type: ignore[no-untyped-def]
        def called(*arguments, **others):  # type: ignore[no-untyped-def]
            nonlocal steps
            steps += 1
            if steps == step and not is_done:
                raise Crash
            result = call(*arguments, **others)
            if steps == step:
                raise Crash
            return result

        return called

    with monkeypatch.context() as patch:
        for name in ("fsync", "fdatasync", "replace"):
            replace_call(patch, tmp_path, name, dying(getattr(os, name)))
        with pytest.raises(Crash):
            save()
    assert told(Rules(tmp_path)) in (old, new)


@pytest.mark.parametrize(
    "text",
    [
        '{"groups": 1}',
        '{"groups": {"g": {"policy": "nonsense"}}}',
        '{"groups": {"g": {"lanes": [{"born": 1}]}}}',
        '{"groups": {"g": {"cutovers": [{"topic": "t"}]}}}',
        '{"groups": {"g": {"lanes": [{"born": 1, "filters": {"t": {"kind": "X", "text": ""}}}]}}}',
        "{}",
    ],
)
def test_a_table_that_makes_no_sense_is_refused_in_a_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "tamisGroups.json").write_text(text)
    with pytest.raises(StoreError, match=r"tamisGroups.json can't be read: .*move it"):
        Rules(tmp_path)


def test_there_is_room_for_so_many_groups(tmp_path: Path) -> None:
    rules = Rules(tmp_path)
    for number in range(MOST_RULES):
        rules.set_policy(f"g{number}", "reject")
    assert rules.has_room("g0")
    assert not rules.has_room("more")
    rules.set_policy("g0", None)
    assert rules.has_room("more")
