"""Warnings about what strangers do: at most one line a second, with how many there were."""

import logging
import math
import time
from collections.abc import Callable
from typing import Final

__all__ = ["Rarely"]

_SECONDS: Final = 1.0  # between lines


class Rarely:
    """Belongs to one thread."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._last = -math.inf
        self._unlogged = 0

    def warn(self, line: str) -> None:
        now = self._clock()
        if now - self._last < _SECONDS:
            self._unlogged += 1
            return
        others = f"; {self._unlogged} others before it" if self._unlogged else ""
        self._log.warning("%s%s", line, others)
        self._last, self._unlogged = now, 0
