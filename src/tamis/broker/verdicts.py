"""What the filters of each group said: evaluated, matched, failed, with samples of failures.

A filter that fails on a message is not one that says no, though the message is not delivered either
way: whoever asks why it was not consumed is to find it here and in the log.
"""

import logging
from collections import deque
from dataclasses import dataclass, field

__all__ = ["Tally", "Verdicts"]

log = logging.getLogger(__name__)

_MOST = 10_000  # groups and topics that are counted: clients may make up names for ever


@dataclass(slots=True)
class Tally:
    evaluated: int = 0  # messages a filter was asked about
    matched: int = 0  # of them, delivered
    failed: int = 0  # of them, it could not tell
    samples: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=8))
    # queue and offset of the latest that failed

    @property
    def filtered(self) -> int:
        return self.evaluated - self.matched - self.failed


class Verdicts:
    def __init__(self) -> None:
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
        tally = self.tallies.get((group, topic))
        if tally is None:
            while len(self.tallies) >= _MOST:
                del self.tallies[next(iter(self.tallies))]  # the first that came
            tally = self.tallies[group, topic] = Tally()
        tally.evaluated += evaluated
        tally.matched += matched
        if failed:
            before, tally.failed = tally.failed, tally.failed + failed
            tally.samples.extend((queue_id, offset) for offset in failures)
            if len(str(before)) < len(str(tally.failed)) or not before:  # 1, 10, 100, ... of them
                log.warning(
                    "the filter of group %s on %s failed on %d messages so far, which are not "
                    "delivered; the latest: queue %d, offsets %s",
                    *(group, topic, tally.failed, queue_id, list(failures)),
                )
