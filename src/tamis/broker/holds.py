"""Pulls that wait for a message: RocketMQ's `PullRequestHoldService`.

A held pull is asked again when its queue has grown, from where it had looked: the answer goes out
as soon as a message that matches is there. One whose queue grew without a match is answered at a
sweep with how far it has looked, so that its group's progress is seen; one whose time is up,
with nothing.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

from ..net.aio import Peer
from ..store.commitlog import Queue

__all__ = ["Holdable", "Holds"]

log = logging.getLogger(__name__)

PROGRESS_SECONDS = 5.0  # after which a pull that has looked further says so
_SLICE: Final = 0.003  # seconds of asking, before others are served
_PIECE: Final = 200  # pulls between two looks at the clock


class Holdable(Protocol):
    """`resume` gives whether it was answered; `is_due`, that it is to be asked again at a sweep.
    `expire` answers, and so does `fail`, when one of the others raised. `weight` is how many bytes
    count as its connection's while it is held; it must not change."""

    queue: Queue
    is_due: bool
    held_since: float
    held_until: float

    @property
    def peer(self) -> Peer: ...

    @property
    def weight(self) -> int: ...

    @property
    def has_progressed(self) -> bool: ...

    def resume(self) -> bool: ...

    def expire(self) -> None: ...

    def fail(self, error: Exception) -> None: ...


class Holds:
    """Belongs to one event loop. A hundred thousand pulls may wait, also for one queue: they are
    asked in slices, so that others are served between."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._held: dict[Queue, deque[Holdable]] = {}
        self._unasked: dict[Queue, int] = {}  # of queues that have grown: how many are to be asked
        self._is_scheduled = False
        self.count = 0

    def hold(self, pull: Holdable, seconds: float) -> None:
        pull.held_since = self._clock()
        pull.held_until = pull.held_since + seconds
        self._held.setdefault(pull.queue, deque()).append(pull)
        self.count += 1
        pull.peer.kept += pull.weight

    def grown(self, queues: Iterable[Queue]) -> None:
        """These queues have more messages. Those who wait are asked now, or soon if many."""
        if not self._held:
            return
        for queue in queues:
            held = self._held.get(queue)
            if held:
                self._unasked[queue] = len(held)
        if not self._is_scheduled:
            self._ask()

    def _ask(self) -> None:
        self._is_scheduled = False
        until = self._clock() + _SLICE
        while self._unasked:
            queue, left = next(iter(self._unasked.items()))
            del self._unasked[queue]
            self._keep(queue, _PIECE, lambda pull: not (pull.peer.is_closed or pull.resume()))
            if left > _PIECE:
                self._unasked[queue] = left - _PIECE
            if self._unasked and self._clock() >= until:
                self._is_scheduled = True
                asyncio.get_running_loop().call_soon(self._ask)
                return

    def sweep(self) -> Iterator[None]:
        """To be gone through about once a second, step by step. Pulls whose connection is gone go
        with the first look at their queue: looking for them when it closes would be a look at
        all."""
        now = self._clock()
        for queue in list(self._held):
            for _ in range(0, len(self._held.get(queue, ())), _PIECE):
                self._keep(
                    queue,
                    _PIECE,
                    lambda pull: not (pull.peer.is_closed or self._expired(pull, now)),
                )
                yield

    def _expired(self, pull: Holdable, now: float) -> bool:
        progressed = pull.has_progressed and now - pull.held_since >= PROGRESS_SECONDS
        if now >= pull.held_until or progressed:
            pull.expire()
            return True
        return pull.is_due and pull.resume()

    def answer_all(self) -> None:
        """The broker stops, or who may pull has changed. Raises nothing: what follows has to be
        done."""

        def expire(pull: Holdable) -> bool:
            pull.expire()
            return False

        for queue in list(self._held):
            self._keep(queue, self.count, expire)

    def _keep(self, queue: Queue, most: int, wanted: Callable[[Holdable], bool]) -> None:
        """Goes through those who have waited longest, and puts the ones to keep at the end."""
        held = self._held.get(queue)
        if held is None:
            return
        for _ in range(min(most, len(held))):
            if not held:  # someone else went through them meanwhile
                break
            pull = held.popleft()
            self.count -= 1
            pull.peer.kept -= pull.weight
            try:
                if wanted(pull):
                    held.append(pull)
                    self.count += 1
                    pull.peer.kept += pull.weight
            except Exception as error:  # the edge: one pull is not to take the others with it
                self._fail(pull, error)
        if not held and self._held.get(queue) is held:
            del self._held[queue]

    def _fail(self, pull: Holdable, error: Exception) -> None:
        """Nobody else will answer it, and its client would wait for as long as it has patience."""
        log.error("a held pull of %s failed", pull.peer, exc_info=error)
        try:
            pull.fail(error)
        except Exception:
            log.exception("a held pull of %s could not be answered", pull.peer)
