"""One limit for all that a server's connections keep in memory.

Each connection may have part of a frame, requests that wait, and answers that are not read: a few
megabytes, which is little for one and too much for thousands. When all of it together is above the
limit, the connections that hold the most are not read from; if that does not help, they are closed.
"""

import logging
import time
from collections.abc import Callable
from typing import Final, Protocol

from .aio import GREEDY

__all__ = ["LEAST_MEMORY", "MEMORY", "Buffers"]

log = logging.getLogger(__name__)

MEMORY: Final = 256 * 2**20  # bytes
LEAST_MEMORY: Final = 64 * 2**20  # a few of the longest frames must fit
_SMALL: Final = 4096  # bytes of one connection that are not counted
_PATIENCE: Final = 10.0  # seconds a connection is not read from before it is closed


class Buffered(Protocol):
    @property
    def buffered(self) -> int: ...

    def pause_reading(self, why: int) -> None: ...

    def resume_reading(self, why: int) -> None: ...

    def abort(self) -> None: ...


class Buffers:
    """Belongs to one event loop. `paused` and `closed` count connections since the start."""

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self.total = 0
        self.paused = self.closed = 0
        self._clock = clock
        self._sizes: dict[Buffered, int] = {}
        self._paused: dict[Buffered, float] = {}  # since when
        self._next_look = limit  # bytes at which something is to be done

    def note(self, peer: Buffered, size: int) -> None:
        """A connection holds that many bytes now."""
        if size < _SMALL:
            if peer in self._sizes:
                self.total -= self._sizes.pop(peer)
            return
        self.total += size - self._sizes.get(peer, 0)
        self._sizes[peer] = size
        if self.total > self._next_look:
            self._relieve()

    def forget(self, peer: Buffered) -> None:
        """It is closed."""
        self.total -= self._sizes.pop(peer, 0)
        self._paused.pop(peer, None)

    def review(self) -> None:
        """To be called every second: what was read by its peer is not told to us."""
        if not self._sizes:
            return
        self._measure()
        now = self._clock()
        wanted = self.limit * 3 // 4
        if self.total > wanted:
            late = [peer for peer, since in self._paused.items() if now - since > _PATIENCE]
            self._close(late, wanted)
        if self.total <= wanted:
            for peer in list(self._paused):
                del self._paused[peer]
                peer.resume_reading(GREEDY)
        elif self.total > self.limit:
            self._relieve()
        else:
            self._next_look = self.limit

    def _relieve(self) -> None:
        """Above the limit the greediest are paused, and above a quarter more they are closed."""
        self._measure()
        if self.total > self.limit * 5 // 4:
            self._close(list(self._sizes), self.limit)
        excess, count = self.total - self.limit * 3 // 4, 0
        if self.total > self.limit:
            for peer in sorted(self._sizes, key=self._sizes.__getitem__, reverse=True):
                if excess <= 0:
                    break
                excess -= self._sizes[peer]
                if peer not in self._paused:
                    self._paused[peer] = self._clock()
                    peer.pause_reading(GREEDY)
                    count += 1
        if count:
            self.paused += count
            log.warning(
                "connections hold %d MiB, more than connection_memory allows: "
                "%d that hold the most are not read from",
                *(self.total >> 20, count),
            )
        # not for every byte more: this looks at all of them
        self._next_look = max(self.limit, self.total + self.limit // 64)

    def _close(self, peers: list[Buffered], wanted: int) -> None:
        peers.sort(key=lambda peer: self._sizes.get(peer, 0), reverse=True)
        closed, freed, largest = 0, 0, ""
        for peer in peers:
            if self.total <= wanted:
                break
            size = self._sizes.get(peer, 0)
            largest = largest or f"{peer} with {size >> 10} KiB"
            self.forget(peer)
            peer.abort()
            closed, freed = closed + 1, freed + size
        if closed:
            self.closed += closed
            log.warning(
                "connections hold too much (connection_memory): closed %d that held %d MiB, "
                "the largest %s",
                *(closed, freed >> 20, largest),
            )

    def _measure(self) -> None:
        self._sizes = {p: size for p in self._sizes if (size := p.buffered) >= _SMALL}
        self.total = sum(self._sizes.values())
