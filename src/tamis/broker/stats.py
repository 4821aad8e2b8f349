"""What was put, got and sent back: counted as it happens, sampled by the clock.

Counts only grow, from the start of the broker on; rates come from samples of them, as in RocketMQ's
`StoreStatsService`, `BrokerStats` and `BrokerStatsManager`. Counts are plain dicts and integers:
another thread may read them at any time, one number at a time.
"""

import logging
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar, cast

from ..wire.bodies import BrokerStats, StatsItem

__all__ = ["Count", "Stats"]

log = logging.getLogger(__name__)

RATE_SECONDS: Final = (10, 60, 600)  # over which rates are told
# Up to how many milliseconds storing took, of those RocketMQ counts together, and their names.
_BOUNDS: Final = (0, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
_NAMES: Final = (
    *("[<=0ms]", "[0~10ms]", "[10~50ms]", "[50~100ms]", "[100~200ms]", "[200~500ms]"),
    *("[500ms~1s]", "[1~2s]", "[2~3s]", "[3~4s]", "[4~5s]", "[5~10s]", "[10s~]"),
)


@dataclass(slots=True)
class Count:
    """`calls`: in how many goes; a batch is one, an answer to a pull another."""

    messages: int = 0
    bytes: int = 0
    calls: int = 0

    def add(self, messages: int, size: int) -> None:
        self.messages += messages
        self.bytes += size
        self.calls += 1


class Stats:
    """`put` and its like are called once a batch; `tick` about every second."""

    def __init__(self, cluster: str = "DefaultCluster", now: Callable[[], float] = time.time):
        self._cluster = cluster
        self.started = now()
        self.puts: dict[str, Count] = {}  # by topic
        self.gets: dict[tuple[str, str], Count] = {}  # by topic and group
        self.backs: dict[tuple[str, str], Count] = {}  # by topic and group
        self.put_total = Count()
        self.got_total = Count()
        self.missed = 0  # pulls that found nothing
        self.failed = 0  # messages that could not be stored
        self.slowest_put = 0.0  # seconds
        self.slowest_get = 0.0
        self.yesterday_morning = (0, 0)  # messages put and got, in all, when that day began
        self.this_morning = (0, 0)
        self._day = time.localtime(self.started)[:3]
        self._latencies = _Latencies()
        self._rates: deque[tuple[float, int, int, int, int]] = deque(maxlen=RATE_SECONDS[-1] + 1)
        self._last_sample: _Sample = {}
        self._minute = _Window(10, 7)
        self._hour = _Window(600, 7)
        self._day_window = _Window(3600, 25)

    # Called where it happens.

    def put(self, topic: str, messages: int, size: int) -> None:
        _count(self.puts, topic).add(messages, size)
        self.put_total.add(messages, size)

    def put_failed(self, messages: int = 1) -> None:
        self.failed += messages

    def put_took(self, seconds: float, messages: int) -> None:
        """From when messages came until they were stored, all of them together."""
        self.slowest_put = max(self.slowest_put, seconds)
        self._latencies.add(seconds * 1000, messages)

    def got(self, topic: str, group: str, messages: int, size: int) -> None:
        _count(self.gets, (topic, group)).add(messages, size)
        self.got_total.add(messages, size)

    def got_nothing(self) -> None:
        self.missed += 1

    def get_took(self, seconds: float) -> None:
        self.slowest_get = max(self.slowest_get, seconds)

    def sent_back(self, group: str, topic: str) -> None:
        _count(self.backs, (topic, group)).add(1, 0)

    # Called by the clock.

    def tick(self, now: float) -> None:
        """`now` is the time of day, as `started` is: days begin by it."""
        put, got = self.put_total, self.got_total
        self._rates.append((now, put.messages, got.calls, self.missed, got.messages))
        for window in (self._minute, self._hour, self._day_window):
            if window.is_due(now):
                window.take(now, self._sample())
        self._latencies.tick(now)
        today = time.localtime(now)[:3]
        if today != self._day:
            self._day = today
            self.yesterday_morning = self.this_morning
            self.this_morning = (put.messages, got.messages)
            log.info(
                "yesterday: %d messages put, %d got",
                *(a - b for a, b in zip(self.this_morning, self.yesterday_morning, strict=True)),
            )

    def _sample(self) -> "_Sample":
        """Shares what did not change with the sample before: there may be thousands of names."""
        made: _Sample = {}
        before, self._last_sample = self._last_sample, made
        for kind, table in (("put", self.puts), ("got", self.gets), ("back", self.backs)):
            for key, count in cast("dict[object, Count]", table).items():
                counts = (count.messages, count.bytes, count.calls)
                known = before.get((kind, key))
                made[kind, key] = known if known == counts else counts
        made["put", None] = (self.put_total.messages, self.put_total.bytes, 0)
        made["got", None] = (self.got_total.messages, self.got_total.bytes, 0)
        return made

    # What tools ask for.

    def rates(self, column: str) -> list[float]:
        """Per second over each of RATE_SECONDS: put, found and missed (pulls), got (messages)."""
        at = 1 + ("put", "found", "missed", "got").index(column)
        return [self._rate(at, seconds) for seconds in RATE_SECONDS]

    def _rate(self, at: int, seconds: int) -> float:
        if len(self._rates) < 2:
            return 0.0
        last = self._rates[-1]
        # from the newest sample that is that old; while there is none, from the start
        first = bisect_right(self._rates, last[0] - seconds + 0.5, key=lambda sample: sample[0])
        oldest = self._rates[max(first - 1, 0)]
        span = last[0] - oldest[0]
        return (last[at] - oldest[at]) / span if span > 0 else 0.0

    def item(self, name: str, key: str) -> BrokerStats | None:
        """By RocketMQ's names; None if nothing was ever counted under the key."""
        found = self._find(name, key)
        if found is None:
            return None
        sampled, column = found
        return BrokerStats(
            minute=self._minute.of(sampled, column),
            hour=self._hour.of(sampled, column),
            day=self._day_window.of(sampled, column),
        )

    def _find(self, name: str, key: str) -> "tuple[_Key, int] | None":
        """What it is sampled under, and whether its messages (0) or bytes (1) are meant."""
        topic, _, group = key.partition("@")
        match name:
            case "TOPIC_PUT_NUMS" | "TOPIC_PUT_SIZE" if key in self.puts:
                return ("put", key), int(name.endswith("SIZE"))
            case "GROUP_GET_NUMS" | "GROUP_GET_SIZE" if (topic, group) in self.gets:
                return ("got", (topic, group)), int(name.endswith("SIZE"))
            case "SNDBCK_PUT_NUMS" if (topic, group) in self.backs:
                return ("back", (topic, group)), 0
            case "BROKER_PUT_NUMS" if key == self._cluster:
                return ("put", None), 0
            case "BROKER_GET_NUMS" if key == self._cluster:
                return ("got", None), 0
        return None

    def consume_rate(self, group: str, topic: str) -> float:
        """Messages a second the group got of the topic in the last minute."""
        return self._minute.of(("got", (topic, group)), 0).tps

    def latencies(self) -> str:
        """How many messages of the last minute took how long, as RocketMQ shows it."""
        return self._latencies.shown()

    def latency(self, part: float) -> float:
        """Milliseconds within which that part of the last minute's messages was stored."""
        return self._latencies.quantile(part)


_Key = tuple[str, object]  # what was done; the topic, topic and group, or None for all of it
_Sample = dict[_Key, tuple[int, int, int]]


_MOST: Final = 10_000  # topics and groups that are counted: clients may make up names for ever

K = TypeVar("K")


def _count(counts: dict[K, Count], key: K) -> Count:
    found = counts.get(key)
    if found is None:
        while len(counts) >= _MOST:
            del counts[next(iter(counts))]  # the first that came
        found = counts[key] = Count()
    return found


class _Window:
    """The last `length` samples of all counts, `seconds` apart (`StatsItem`)."""

    def __init__(self, seconds: int, length: int) -> None:
        self._seconds = seconds
        self._samples: deque[tuple[float, _Sample]] = deque(maxlen=length)

    def is_due(self, now: float) -> bool:
        return not self._samples or now - self._samples[-1][0] > self._seconds - 0.5

    def take(self, now: float, sample: _Sample) -> None:
        if not self._samples:
            self._samples.append((now - self._seconds, {}))
        self._samples.append((now, sample))

    def of(self, key: _Key, column: int) -> StatsItem:
        """Since the sample before the first that has the key."""
        before: tuple[float, _Sample] | None = None
        for sample in self._samples:
            if key in sample[1]:
                break
            before = sample
        else:
            return StatsItem()
        time_then, then = before or self._samples[0]
        time_now, now = self._samples[-1]
        old, new = then.get(key, (0, 0, 0)), now.get(key, (0, 0, 0))
        value, calls, span = new[column] - old[column], new[2] - old[2], time_now - time_then
        return StatsItem(
            sum=value,
            tps=value / span if span > 0 else 0.0,
            average=value / calls if calls else 0.0,
        )


class _Latencies:
    """Of this minute and of the last, which is the one shown. Milliseconds."""

    # finer than what is shown: by these, quantiles are told
    _STEPS: Final = (
        *(*range(1, 21), *range(22, 51, 2), *range(55, 101, 5), *range(110, 201, 10)),
        *(*range(250, 501, 50), *range(600, 1001, 100), *range(2000, 10_001, 1000)),
    )

    def __init__(self) -> None:
        self._begun: float | None = None
        self._now, self._last = self._empty(), self._empty()

    def _empty(self) -> tuple[list[int], list[int]]:
        return [0] * len(_NAMES), [0] * (len(self._STEPS) + 1)

    def add(self, millis: float, messages: int) -> None:
        coarse, fine = self._now
        whole = int(millis)
        coarse[bisect_right(_BOUNDS, whole) if whole else 0] += messages
        fine[bisect_left(self._STEPS, millis)] += messages

    def tick(self, now: float) -> None:
        if self._begun is None:
            self._begun = now
        if now - self._begun >= 60:
            self._begun = now
            self._last, self._now = self._now, self._empty()

    def shown(self) -> str:
        return "".join(
            f"{name}:{count} " for name, count in zip(_NAMES, self._last[0], strict=True)
        )

    def quantile(self, part: float) -> float:
        counts = self._last[1]
        wanted, passed = part * sum(counts), 0
        if not wanted:
            return 0.0
        for step, count in enumerate(counts):
            if passed + count >= wanted:
                low = self._STEPS[step - 1] if step else 0
                high = self._STEPS[min(step, len(self._STEPS) - 1)]
                return float(low + max(high - low, 0) * (wanted - passed) / count)
            passed += count
        return float(self._STEPS[-1])
