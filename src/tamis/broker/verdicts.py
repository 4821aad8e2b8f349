"""What the filters of each group said: evaluated, matched, failed, with samples of failures.

A filter that fails on a message is not one that says no, though the message is not delivered either
way: whoever asks why it was not consumed is to find it here and in the log.
"""

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

__all__ = ["Recent", "Tally", "Verdicts"]

log = logging.getLogger(__name__)

_MOST = 10_000  # groups and topics that are counted: clients may make up names for ever
_HOUR: Final = 3600  # seconds
_HOURS: Final = 24  # that are counted apart


@dataclass(slots=True)
class Recent:
    """The counts of an hour, or of several; `since` is when they begin, in seconds."""

    since: float
    evaluated: int = 0
    matched: int = 0
    failed: int = 0


@dataclass(slots=True)
class Tally:
    evaluated: int = 0  # messages a filter was asked about
    matched: int = 0  # of them, delivered
    failed: int = 0  # of them, it could not tell
    samples: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=8))
    # queue and offset of the latest that failed
    began: float = field(default=0.0, compare=False)  # when it was asked first, in seconds
    hours: deque[Recent] = field(default_factory=lambda: deque(maxlen=_HOURS), compare=False)

    @property
    def filtered(self) -> int:
        return self.evaluated - self.matched - self.failed

    def recent(self, now: float) -> Recent:
        """Return the counts of the last day, in whole hours."""
        oldest = now - _HOUR * _HOURS
        hours = [hour for hour in self.hours if hour.since >= oldest]
        return Recent(
            max(min((hour.since for hour in hours), default=now), self.began),
            sum(hour.evaluated for hour in hours),
            sum(hour.matched for hour in hours),
            sum(hour.failed for hour in hours),
        )


class Verdicts:
    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self.tallies: dict[tuple[str, str], Tally] = {}  # by group and topic

    def count(
        self,
        group: str,
        topic: str,
        queue_id: int,
        evaluated: int,
        matched: int,
        failed: int = 0,
        failures: tuple[int, ...] = (),
    ) -> None:
        now = self._now()
        tally = self.tallies.get((group, topic))
        if tally is None:
            while len(self.tallies) >= _MOST:
                del self.tallies[next(iter(self.tallies))]  # the first that came
            tally = self.tallies[group, topic] = Tally(began=now)
        tally.evaluated += evaluated
        tally.matched += matched
        hours = tally.hours
        if not hours or not 0 <= now - hours[-1].since < _HOUR:
            hours.append(Recent(now // _HOUR * _HOUR))
        hour = hours[-1]
        hour.evaluated += evaluated
        hour.matched += matched
        if failed:
            hour.failed += failed
            before, tally.failed = tally.failed, tally.failed + failed
            tally.samples.extend((queue_id, offset) for offset in failures)
            if len(str(before)) < len(str(tally.failed)) or not before:  # 1, 10, 100, ... of them
                log.warning(
                    "the filter of group %s on %s failed on %d messages so far, which are not "
                    "delivered; the latest: queue %d, offsets %s",
                    *(group, topic, tally.failed, queue_id, list(failures)),
                )
