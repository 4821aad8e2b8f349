"""Which brokers to leave alone for a while: those that failed, or were slow to answer."""

import time
from collections.abc import Callable, Sequence
from typing import Final

from ..wire.bodies import MessageQueue

__all__ = ["Faults"]

# A send that took so long, and for how long its broker is avoided: seconds, as RocketMQ has them.
_AVOIDANCE: Final = (
    (15.0, 600.0),
    (3.0, 180.0),
    (2.0, 120.0),
    (1.0, 60.0),
    (0.55, 30.0),
)
_FAILURE: Final = 30.0  # seconds: one that failed may be back soon


class Faults:
    """By broker name. Pure but for the clock it is given."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._slow: dict[str, tuple[float, float]] = {}  # seconds it took, avoided until

    def note(self, broker: str, seconds: float) -> None:
        for limit, avoidance in _AVOIDANCE:
            if seconds >= limit:
                self._slow[broker] = (seconds, self._now() + avoidance)
                return
        self._slow.pop(broker, None)

    def note_failure(self, broker: str) -> None:
        self._slow[broker] = (_FAILURE, self._now() + _FAILURE)

    def is_avoided(self, broker: str) -> bool:
        known = self._slow.get(broker)
        return known is not None and self._now() < known[1]

    def choose(self, queues: Sequence[MessageQueue], turn: int, last: str | None) -> MessageQueue:
        """The next in turn of a broker that is not avoided nor was the last one tried; if there is
        none, of the broker that was least slow."""
        count = len(queues)
        if not self._slow and last is None:
            return queues[turn % count]
        for other in (last, None):
            for step in range(count):
                queue = queues[(turn + step) % count]
                if queue.broker_name != other and not self.is_avoided(queue.broker_name):
                    return queue
        names = {queue.broker_name for queue in queues}
        others = names - {last} or names
        best = min(others, key=lambda name: self._slow.get(name, (0.0, 0.0)))
        of_best = [queue for queue in queues if queue.broker_name == best]
        return of_best[turn % len(of_best)]
