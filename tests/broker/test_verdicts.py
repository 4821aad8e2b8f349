"""What filters said, counted by the hour, and the request that tells it."""

import json
from pathlib import Path

from broker.running import run, running

from tamis.broker.verdicts import Verdicts
from tamis.wire.bodies import Subscription
from tamis.wire.codes import RequestCode, ResponseCode

HOUR = 3600.0


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000 * HOUR + 60

    def __call__(self) -> float:
        return self.now


def test_recent_counts_are_those_of_the_last_day() -> None:
    clock = Clock()
    verdicts = Verdicts(clock)
    verdicts.count("g", "T", 0, 10, 1, 2)
    began = clock.now
    tally = verdicts.tallies["g", "T"]
    recent = tally.recent(clock.now)
    assert (recent.since, recent.evaluated, recent.matched, recent.failed) == (began, 10, 1, 2)
    clock.now += 5 * HOUR
    verdicts.count("g", "T", 0, 100, 10)
    verdicts.count("g", "T", 0, 1, 0)
    recent = tally.recent(clock.now)
    assert (recent.since, recent.evaluated, recent.matched, recent.failed) == (began, 111, 11, 2)
    clock.now += 20 * HOUR
    recent = tally.recent(clock.now)
    assert (recent.evaluated, recent.matched, recent.failed) == (101, 10, 0)
    assert recent.since == began - 60 + 5 * HOUR
    assert (tally.evaluated, tally.matched, tally.failed) == (111, 11, 2)


def test_a_clock_that_goes_back_does_no_harm() -> None:
    clock = Clock()
    verdicts = Verdicts(clock)
    verdicts.count("g", "T", 0, 10, 1)
    clock.now -= 30 * HOUR
    verdicts.count("g", "T", 0, 5, 1)
    assert verdicts.tallies["g", "T"].recent(clock.now).evaluated == 15


def test_no_more_hours_are_kept_than_are_told() -> None:
    clock = Clock()
    verdicts = Verdicts(clock)
    for _ in range(100):
        verdicts.count("g", "T", 0, 1, 1)
        clock.now += HOUR
    assert len(verdicts.tallies["g", "T"].hours) == 24


def test_a_broker_tells_what_filters_said_and_which_are_dead(tmp_path: Path) -> None:
    def sql(text: str, version: int) -> Subscription:
        return Subscription(topic="T", expression=text, expression_type="SQL92", version=version)

    async def scene() -> None:
        async with running(tmp_path) as (broker, client):
            await client.heartbeat("g", sql("n > 1", 1))
            for value in ("1", "x", "9"):
                await client.send("T", properties={"n": value})
            await client.pull("T", subscription=None, kind="SQL92", version=1)
            await client.heartbeat("wrong", sql("n >", 1), client_id="d")
            answer = await client.ask(RequestCode.GET_FILTER_VERDICTS)
            assert answer.code == ResponseCode.SUCCESS
            rows = {row["group"]: row for row in json.loads(answer.body)}
            told = rows["g"]
            assert (told["evaluated"], told["matched"], told["failed"]) == (3, 1, 1)
            assert told["recent"] == {
                "since": told["since"],
                "evaluated": 3,
                "matched": 1,
                "failed": 1,
            }
            assert told["samples"] == [[0, 1]]
            assert (told["expression"], told["dead_since"]) == ("n > 1", None)
            assert "n >" in rows["wrong"]["fault"]
            broker.filters.leave("g")
            answer = await client.ask(RequestCode.GET_FILTER_VERDICTS, {"group": "g"})
            [told] = json.loads(answer.body)
            assert told["dead_since"] > 0

    run(scene())
