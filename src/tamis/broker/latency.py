"""How long something took, each time: counts by bounds, as Prometheus has them."""

from bisect import bisect_left
from typing import Final

__all__ = ["Latency"]


class Latency:
    """Observed in one thread; another may read it at any time."""

    BOUNDS: Final = (
        *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
        *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
    )  # seconds

    def __init__(self) -> None:
        self._counts = [0] * (len(self.BOUNDS) + 1)
        self.sum = 0.0  # seconds

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self.BOUNDS, seconds)] += 1
        self.sum += seconds

    def buckets(self) -> list[tuple[float, int]]:
        """Each bound, and how many took no longer; the last is without a bound."""
        found, total = [], 0
        for bound, count in zip((*self.BOUNDS, float("inf")), list(self._counts), strict=True):
            total += count
            found.append((bound, total))
        return found
