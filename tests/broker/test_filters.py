"""The filters of groups: RocketMQ's table of registrations, deaths and revivals, and restarts."""

from pathlib import Path

import pytest

from tamis.broker.filters import Filters
from tamis.filter.bloom import BloomFilter
from tamis.store.tables import FilterData
from tamis.wire.bodies import Subscription

BLOOM = BloomFilter(20, 32)


class Clock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def filters(tmp_path: Path, clock: Clock) -> Filters:
    return Filters(tmp_path, BLOOM, clock)


def sql(expression: str, version: int, topic: str = "T") -> Subscription:
    return Subscription(
        topic=topic, expression=expression, expression_type="SQL92", version=version
    )


def found(filters: Filters, topic: str = "T") -> FilterData:
    data = filters.get(topic, "g")
    assert data is not None
    return data


def test_a_new_filter_is_born_with_its_bits(filters: Filters, clock: Clock) -> None:
    filters.register("g", [sql("a > 1", 5)])
    data = found(filters)
    assert (data.expression, data.client_version, data.born_time) == ("a > 1", 5, 1_000_000)
    assert not data.is_dead
    assert data.bloom_positions == BLOOM.positions("g#T")
    assert filters.sql("T", "g") is not None


@pytest.mark.parametrize(
    ("expression", "version", "is_dead", "kept", "born", "dead_after"),
    [
        ("a > 2", 4, False, ("a > 1", 5), 1000, False),  # an older version: passed over
        ("a > 2", 5, False, ("a > 1", 5), 1000, False),  # the same: its text is not looked at
        ("a > 2", 5, True, ("a > 1", 5), 1000, False),  # but it is alive again
        ("a > 1", 6, False, ("a > 1", 6), 1000, False),  # newer, the same text: born when it was
        ("a > 1", 6, True, ("a > 1", 6), 1000, False),
        ("a > 2", 6, False, ("a > 2", 6), 1500, False),  # newer, another text: born again
        ("a > 2", 6, True, ("a > 2", 6), 1500, False),
    ],
)
def test_a_known_filter_is_kept_revived_or_replaced(
    filters: Filters,
    clock: Clock,
    expression: str,
    version: int,
    is_dead: bool,
    kept: tuple[str, int],
    born: int,
    dead_after: bool,
) -> None:
    filters.register("g", [sql("a > 1", 5)])
    clock.seconds = 1200
    if is_dead:
        filters.leave("g")
        assert found(filters).is_dead
    clock.seconds = 1500
    filters.register("g", [sql(expression, version)])
    data = found(filters)
    assert (data.expression, data.client_version) == kept
    assert data.born_time == born * 1000
    assert data.is_dead is dead_after


def test_a_newer_filter_that_does_not_compile_removes_the_old_and_says_why(
    filters: Filters,
) -> None:
    filters.register("g", [sql("a > 1", 5)])
    filters.register("g", [sql("a >", 6)])
    assert filters.get("T", "g") is None
    assert "column" in (filters.fault("T", "g") or "")
    filters.register("g", [sql("a > 3", 7)])
    assert found(filters).expression == "a > 3"
    assert filters.fault("T", "g") is None


def test_a_topic_the_group_no_longer_says_dies_and_still_filters(filters: Filters) -> None:
    filters.register("g", [sql("a > 1", 5), sql("b = 2", 5, topic="U")])
    filters.register("g", [sql("a > 1", 5)])
    assert not found(filters).is_dead
    assert found(filters, "U").is_dead
    assert filters.sql("U", "g") is not None


def test_tags_leave_an_old_filter_as_it_is(filters: Filters) -> None:
    filters.register("g", [sql("a > 1", 5)])
    filters.register("g", [Subscription(topic="T", expression="A", version=6)])
    assert found(filters).expression == "a > 1"
    assert not found(filters).is_dead


def test_filters_outlive_a_restart_compiled_and_dead_until_heard_of(
    filters: Filters, tmp_path: Path, clock: Clock
) -> None:
    filters.register("g", [sql("a > 1", 5)])
    filters.snapshot()()
    clock.seconds = 5000
    again = Filters(tmp_path, BLOOM, clock)
    assert found(again).is_dead
    assert found(again).born_time == 1_000_000
    assert again.sql("T", "g") is not None
    again.register("g", [sql("a > 1", 5)])
    assert not found(again).is_dead
    assert found(again).born_time == 1_000_000


def test_saved_filters_of_other_bloom_settings_are_not_used(
    filters: Filters, tmp_path: Path, clock: Clock
) -> None:
    filters.register("g", [sql("a > 1", 5)])
    filters.snapshot()()
    assert Filters(tmp_path, BloomFilter(10, 64), clock).get("T", "g") is None


def test_the_long_dead_are_cleaned_away(filters: Filters, clock: Clock) -> None:
    filters.register("g", [sql("a > 1", 5)])
    filters.register("h", [sql("a > 1", 5)])
    filters.leave("g")
    clock.seconds += 90_000
    filters.clean(86_400)
    assert filters.get("T", "g") is None
    assert filters.get("T", "h") is not None


def test_a_change_is_told_for_the_bitmaps(filters: Filters) -> None:
    told: list[int] = []
    filters.on_change = lambda: told.append(len(filters.all()))
    filters.register("g", [sql("a > 1", 5)])
    filters.register("g", [sql("a > 1", 6)])  # the same text: bits stay
    filters.register("g", [sql("a > 2", 7)])
    assert told == [1, 1]
