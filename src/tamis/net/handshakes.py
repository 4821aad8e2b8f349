"""The TLS handshakes of a server that are under way: how many, for how long, and whose turn it is.

To answer a hello takes up to a millisecond of the event loop. Hellos are answered for a few
milliseconds in each turn of the loop, so that connections that exist are served between them. When
too many handshakes are under way, the oldest is given up: one that is meant seriously is complete
after a few round trips, those left open are the oldest. A connection whose records take long to
decrypt waits its turn here, too.
"""

import asyncio
import logging
import ssl
import time
from collections import deque
from typing import Final, Protocol

from ..security.tls import ServerContext
from .rarely import Rarely

__all__ = ["Handshakes", "Shaking"]

log = logging.getLogger(__name__)

MOST: Final = 1_000  # handshakes under way; each has some 60 KiB
SECONDS: Final = 10.0  # for a handshake
_TURN: Final = 0.003  # seconds of this in one turn of the loop


class Shaking(Protocol):
    def go_on(self) -> None: ...

    def abort(self) -> None: ...


class Handshakes:
    """Belongs to one event loop. `completed`, `failed` and `refused` (those without TLS) count
    connections since the start."""

    def __init__(
        self, certificate: ServerContext, most: int = MOST, seconds: float = SECONDS
    ) -> None:
        self._certificate = certificate
        self._most = most
        self._seconds = seconds
        self._under_way: dict[Shaking, asyncio.TimerHandle] = {}  # the oldest first
        self._waiting: deque[Shaking] = deque()
        self._is_turn_due = False
        self._warnings = Rarely(log)
        self.completed = self.failed = self.refused = 0

    def __len__(self) -> int:
        return len(self._under_way)

    @property
    def context(self) -> ssl.SSLContext:
        """For the next one."""
        return self._certificate.context

    def begin(self, one: Shaking) -> None:
        loop = asyncio.get_running_loop()
        self._under_way[one] = loop.call_later(self._seconds, self._give_up, one)
        if len(self._under_way) > self._most:
            oldest = next(iter(self._under_way))
            self.fail(oldest, f"{self._most} TLS handshakes are under way, and this is the oldest")
            oldest.abort()

    def complete(self, one: Shaking) -> None:
        self._end(one)
        self.completed += 1

    def drop(self, one: Shaking) -> None:
        """Its connection is gone."""
        if self._end(one):
            self.failed += 1

    def fail(self, one: Shaking, why: str) -> None:
        self._end(one)
        self.failed += 1
        self._warnings.warn(f"{one}: closed: {why}")

    def _end(self, one: Shaking) -> bool:
        timer = self._under_way.pop(one, None)
        if timer is not None:
            timer.cancel()
        return timer is not None

    def refuse_plain(self, one: Shaking) -> None:
        self.refused += 1
        self._warnings.warn(f"{one}: closed: it does not speak TLS, which this server enforces")

    def wait_in_turn(self, one: Shaking) -> None:
        self._waiting.append(one)
        self._plan()

    def _plan(self) -> None:
        if self._waiting and not self._is_turn_due:
            self._is_turn_due = True
            asyncio.get_running_loop().call_soon(self._serve_some)

    def _serve_some(self) -> None:
        self._is_turn_due = False
        until = time.monotonic() + _TURN
        while self._waiting:
            one = self._waiting.popleft()
            try:
                one.go_on()
            except Exception:  # the edge of a connection
                log.exception("%s: closed: what it sent can't be decrypted", one)
                one.abort()
            if time.monotonic() >= until:
                break
        self._plan()

    def _give_up(self, one: Shaking) -> None:
        if one in self._under_way:
            self.fail(one, f"its TLS handshake is not complete after {self._seconds:g} s")
            one.abort()
