"""Counts, and the rates sampled from them, by a clock that is moved by hand."""

import time

import pytest

from tamis.broker.stats import Stats
from tamis.wire.bodies import BrokerStats, StatsItem

NOON = time.mktime((2026, 5, 4, 12, 0, 0, 0, 0, -1))


def run(stats: Stats, begin: float, seconds: int, messages: int = 0) -> float:
    """So many seconds, in each of which so many messages are put and got; gives when it ends."""
    for second in range(1, seconds + 1):
        if messages:
            stats.put("T", messages, 10 * messages)
            stats.got("T", "g", messages, 20 * messages)
        stats.tick(begin + second)
    return begin + seconds


@pytest.fixture
def stats() -> Stats:
    made = Stats("cluster", lambda: NOON)
    made.tick(NOON)
    return made


def item(stats: Stats, name: str, key: str) -> BrokerStats:
    found = stats.item(name, key)
    assert found is not None
    return found


def test_counts_are_kept_by_topic_and_in_all(stats: Stats) -> None:
    stats.put("T", 3, 300)
    stats.put("T", 1, 50)
    stats.put("U", 2, 2)
    count = stats.puts["T"]
    assert (count.messages, count.bytes, count.calls) == (4, 350, 2)
    assert (stats.put_total.messages, stats.put_total.bytes) == (6, 352)


def test_rates_are_over_10_seconds_1_minute_and_10_minutes(stats: Stats) -> None:
    now = run(stats, NOON, 600, messages=1)
    run(stats, now, 10, messages=7)
    assert stats.rates("put") == pytest.approx([7, (50 + 70) / 60, (590 + 70) / 600])
    assert stats.rates("got") == stats.rates("put")
    assert stats.rates("found") == pytest.approx([1, 1, 1])  # answers, whatever was in them
    assert stats.rates("missed") == [0, 0, 0]


def test_a_young_broker_tells_its_rate_since_it_started(stats: Stats) -> None:
    assert stats.rates("put") == [0, 0, 0]
    run(stats, NOON, 4, messages=5)
    assert stats.rates("put") == pytest.approx([5, 5, 5])


def test_ticks_further_apart_give_the_same_rates(stats: Stats) -> None:
    for step in range(1, 10):
        stats.put("T", 30, 0)
        stats.tick(NOON + 10 * step)
    assert stats.rates("put") == pytest.approx([3, 3, 3])


@pytest.mark.parametrize(
    ("name", "key", "total", "average"),
    [
        ("TOPIC_PUT_NUMS", "T", 240, 4),
        ("TOPIC_PUT_SIZE", "T", 2400, 40),
        ("GROUP_GET_NUMS", "T@g", 240, 4),
        ("GROUP_GET_SIZE", "T@g", 4800, 80),
        ("BROKER_PUT_NUMS", "cluster", 240, 0),
        ("BROKER_GET_NUMS", "cluster", 240, 0),
    ],
)
def test_the_last_minute_is_told_under_apaches_names(
    stats: Stats, name: str, key: str, total: int, average: float
) -> None:
    now = run(stats, NOON, 600, messages=9)
    run(stats, now, 60, messages=4)
    assert item(stats, name, key).minute == StatsItem(
        sum=total, tps=pytest.approx(total / 60), average=average
    )


def test_hours_and_days_are_sampled_less_often(stats: Stats) -> None:
    now = NOON
    for _ in range(26 * 360):
        now += 10
        stats.put("T", 1, 1)
        stats.tick(now)
    found = item(stats, "TOPIC_PUT_NUMS", "T")
    assert (found.hour.sum, found.day.sum) == (360, 24 * 360)
    assert found.day.tps == pytest.approx(0.1)


def test_what_was_counted_but_not_sampled_yet_is_0(stats: Stats) -> None:
    stats.put("T", 1, 1)
    assert item(stats, "TOPIC_PUT_NUMS", "T") == BrokerStats()


def test_a_new_topic_counts_from_the_sample_before_it(stats: Stats) -> None:
    now = run(stats, NOON, 50)
    stats.put("T", 100, 0)
    run(stats, now, 10)
    assert item(stats, "TOPIC_PUT_NUMS", "T").minute == StatsItem(sum=100, tps=10, average=100)


@pytest.mark.parametrize(
    ("name", "key"),
    [("TOPIC_PUT_NUMS", "U"), ("GROUP_GET_NUMS", "T"), ("BROKER_PUT_NUMS", "other"), ("X", "T")],
)
def test_what_nobody_counted_is_not_there(stats: Stats, name: str, key: str) -> None:
    stats.put("T", 1, 1)
    stats.got("T", "g", 1, 1)
    assert stats.item(name, key) is None


def test_messages_sent_back_are_counted_by_topic_and_group(stats: Stats) -> None:
    stats.sent_back("g", "T")
    stats.sent_back("g", "T")
    run(stats, NOON, 10)
    assert item(stats, "SNDBCK_PUT_NUMS", "T@g").minute.sum == 2


def test_the_rate_of_a_group_is_that_of_the_last_minute(stats: Stats) -> None:
    run(stats, NOON, 60, messages=3)
    assert stats.consume_rate("g", "T") == pytest.approx(3, rel=0.2)
    assert stats.consume_rate("other", "T") == 0


def test_at_midnight_a_new_day_is_counted_from(stats: Stats) -> None:
    stats.put("T", 5, 0)
    stats.got("T", "g", 4, 0)
    stats.tick(NOON + 43_199)
    assert (stats.this_morning, stats.yesterday_morning) == ((0, 0), (0, 0))
    stats.tick(NOON + 43_200)
    assert (stats.this_morning, stats.yesterday_morning) == ((5, 4), (0, 0))
    stats.put("T", 1, 0)
    stats.tick(NOON + 43_200 + 86_400)
    assert (stats.this_morning, stats.yesterday_morning) == ((6, 4), (5, 4))


def test_how_long_storing_took_is_told_of_the_last_whole_minute(stats: Stats) -> None:
    stats.put_took(0.0004, 980)
    stats.put_took(0.03, 19)
    stats.put_took(1.5, 1)
    assert stats.latency(0.99) == 0
    run(stats, NOON, 60)
    assert stats.latencies().split()[:3] == ["[<=0ms]:980", "[0~10ms]:0", "[10~50ms]:19"]
    assert "[1~2s]:1 " in stats.latencies()
    assert 28 <= stats.latency(0.99) <= 30
    assert stats.latency(0.5) < 1
    assert stats.slowest_put == 1.5
    run(stats, NOON + 60, 60)
    assert stats.latency(0.99) == 0
