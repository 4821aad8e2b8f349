"""Pulls that wait for a message: RocketMQ's `PullRequestHoldService`.

A held pull is asked again when its queue has grown, from where it had looked: the answer goes out
as soon as a message that matches is there. One whose queue grew without a match is answered at a
sweep with how far it has looked, so that its group's progress is seen; one whose time is up,
with nothing.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from ..net.aio import Peer
from ..store.commitlog import Queue

__all__ = ["Holdable", "Holds"]

log = logging.getLogger(__name__)

PROGRESS_SECONDS = 5.0  # after which a pull that has looked further says so


class Holdable(Protocol):
    """`resume` gives whether it was answered; `is_due`, that it is to be asked again at a sweep.
    `expire` answers, and so does `fail`, when one of the others raised."""

    queue: Queue
    is_due: bool
    held_since: float
    held_until: float

    @property
    def peer(self) -> Peer: ...

    @property
    def has_progressed(self) -> bool: ...

    def resume(self) -> bool: ...

    def expire(self) -> None: ...

    def fail(self, error: Exception) -> None: ...


class Holds:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._held: dict[Queue, list[Holdable]] = {}
        self.count = 0

    def hold(self, pull: Holdable, seconds: float) -> None:
        pull.held_since = self._clock()
        pull.held_until = pull.held_since + seconds
        self._held.setdefault(pull.queue, []).append(pull)
        self.count += 1

    def grown(self, queues: Iterable[Queue]) -> None:
        """These queues have more messages."""
        if self._held:
            for queue in queues:
                self._keep(queue, lambda pull: not (pull.peer.is_closed or pull.resume()))

    def sweep(self) -> None:
        """To be called about every second. Pulls whose connection is gone go with the first look
        at their queue: looking for them when it closes would be a look at all."""
        now = self._clock()
        for queue in list(self._held):
            self._keep(queue, lambda pull: not (pull.peer.is_closed or self._expired(pull, now)))

    def _expired(self, pull: Holdable, now: float) -> bool:
        progressed = pull.has_progressed and now - pull.held_since >= PROGRESS_SECONDS
        if now >= pull.held_until or progressed:
            pull.expire()
            return True
        return pull.is_due and pull.resume()

    def answer_all(self) -> None:
        """The broker stops. Raises nothing: what follows has to be done."""

        def expire(pull: Holdable) -> bool:
            pull.expire()
            return False

        for queue in list(self._held):
            self._keep(queue, expire)

    def _keep(self, queue: Queue, wanted: Callable[[Holdable], bool]) -> None:
        held = self._held.pop(queue, [])
        if not held:
            return
        kept = []
        for pull in held:
            try:
                if wanted(pull):
                    kept.append(pull)
            except Exception as error:  # the edge: one pull is not to take the others with it
                self._fail(pull, error)
        self.count -= len(held) - len(kept)
        if kept:
            self._held.setdefault(queue, []).extend(kept)

    def _fail(self, pull: Holdable, error: Exception) -> None:
        """Nobody else will answer it, and its client would wait for as long as it has patience."""
        log.error("a held pull of %s failed", pull.peer, exc_info=error)
        try:
            pull.fail(error)
        except Exception:
            log.exception("a held pull of %s could not be answered", pull.peer)
