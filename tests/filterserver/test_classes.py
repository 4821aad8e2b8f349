"""The table of classes: counts that outlive a replacement, and limits of what is remembered."""

from types import SimpleNamespace
from typing import Any

from tamis.filterserver.classes import Classes, FilterClass, Held, Identity

KEY = ("T", "G")


def _table(**settings: Any) -> tuple[Classes, list[FilterClass], list[float]]:
    disposed: list[FilterClass] = []
    now = [1000.0]
    made = Classes(
        settings.pop("most", 10),
        settings.pop("conflict_seconds", 60.0),
        disposed.append,
        lambda: now[0],
        lambda: 0.0,
    )
    return made, disposed, now


def _put(table: Classes, crc: int, peer: Any, restarts: int = 0) -> FilterClass:
    judge: Any = SimpleNamespace(usage=SimpleNamespace(restarts=restarts))
    return table.put(KEY, Identity("C", crc), judge, "", peer)


def test_counts_go_on_when_a_class_is_replaced() -> None:
    table, disposed, _ = _table()
    first = _put(table, 1, "a", restarts=2)
    first.tally.messages = 7
    second = _put(table, 2, "b", restarts=1)
    assert disposed == [first]
    assert not first.is_active
    assert second.tally.messages == 7
    assert second.restarts == 3


def test_a_replaced_source_is_in_conflict_until_nobody_holds_the_active_one() -> None:
    table, _, now = _table()
    _put(table, 1, "a")
    _put(table, 2, "b")
    assert table.conflict(KEY, Identity("C", 3)) is None
    assert table.conflict(KEY, Identity("C", 1)) == "b"
    now[0] += 59
    assert table.conflict(KEY, Identity("C", 1)) == "b"
    now[0] += 2
    assert table.conflict(KEY, Identity("C", 1)) is None
    assert table.conflicts == 2


def test_another_class_of_the_same_source_is_another_filter() -> None:
    table, _, _ = _table()
    _put(table, 1, "a")
    assert table.conflict(KEY, Identity("Other", 1)) is None


def test_what_is_remembered_of_sources_members_and_positions_is_bounded() -> None:
    table, _, now = _table()
    for crc in range(100):
        one = _put(table, crc, "a")
    assert len(table._replaced[KEY]) <= 32
    for member in range(3000):
        now[0] += 0.001
        one.hold_by(f"member {member}", now[0])  # type: ignore[arg-type]
    assert len(one.holders) == 1000
    assert "member 2999" in one.holders
    for queue_id in range(20_000):
        one.hold_back(queue_id, Held(0, "", 1, 0.0))
        one.note_dead(queue_id, 0)
    assert len(one.held) == len(one.dead) == 10_000
    assert one.is_dead(19_999, 0)
    assert not one.is_dead(0, 0)


def test_unused_classes_are_dropped_and_used_ones_stay() -> None:
    table, disposed, now = _table()
    one = _put(table, 1, "a")
    now[0] += 30
    one.pulled_by("someone", now[0])  # type: ignore[arg-type]
    now[0] += 40
    assert table.drop_unused(60) == []
    now[0] += 30
    assert table.drop_unused(60) == [one]
    assert disposed == [one]
    assert table.get(KEY) is None
    assert table.conflict(KEY, Identity("C", 1)) is None
