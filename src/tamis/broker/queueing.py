"""Keeps queues and index up with the log: when what was stored is dispatched, and who waits for it.

RocketMQ's `ReputMessageService` (4.9.4). A message may be acknowledged before it is in its queue,
but whoever asks after the acknowledgement must see it. So there are two occasions to dispatch:

- soon after an append, in slices that leave most of the loop's time to others (`stored`);
- when a request is about to read queues or index (`catch_up`, or `caught_up` if more than a slice
  is left to do).

Either way, the pulls that wait for what was dispatched are answered, and delayed messages are
noticed.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from ..errors import StoreError
from ..message import DELAY_TOPIC
from ..store.store import Store
from .holds import Holds
from .latency import Latency

__all__ = ["Queueing"]

log = logging.getLogger(__name__)

_SLICE: Final = 0.005  # seconds
_MOST_REST: Final = 0.02  # seconds of a slice that count: a busy machine can make one look long
_UNWATCHED: Final = 0.001  # seconds after an append, if nobody waits for it


class Queueing:
    """All of it runs in the event loop. `failure` says why dispatch does not work, while so."""

    def __init__(self, store: Store, holds: Holds, clock: Callable[[], float]) -> None:
        self._store = store
        self._holds = holds
        self._clock = clock
        self.on_delayed: Callable[[], None] = lambda: None
        self.latency = Latency()
        self.failure: str | None = None
        self._is_scheduled = False
        self._is_behind = False  # the last slice was not enough
        self._ended = 0.0  # when the last slice did
        self._seconds = 0.0  # what it took
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []  # up to which log offset

    @property
    def is_current(self) -> bool:
        return self._store.dispatched >= self._store.log.end

    def stored(self) -> None:
        """Dispatches soon: at once if somebody waits, but for no more than a fourth of the loop's
        time, or half of it while there is a backlog."""
        if self._is_scheduled:
            return
        self._is_scheduled = True
        since = self._clock() - self._ended
        rest = (1 if self._is_behind else 3) * min(self._seconds, _MOST_REST)
        is_watched = self._holds.count or self._waiting
        pause = max(rest - since, 0.0 if is_watched else _UNWATCHED)
        asyncio.get_running_loop().call_later(pause, self._follow)

    def catch_up(self) -> bool:
        """Dispatches what is stored, if a slice is enough for it. Returns whether queues and index
        are up with the log. Raises StoreError."""
        if self.is_current:
            return True
        if self._is_behind:
            return False
        self._dispatch()
        if self.failure is not None:
            raise StoreError(self.failure)
        return self.is_current

    async def caught_up(self) -> None:
        """Returns when all that is in the log now is in queues and index. Raises StoreError."""
        end = self._store.log.end
        if self._store.dispatched < end:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((end, future))
            self.stored()
            await future

    def _follow(self) -> None:
        self._is_scheduled = False
        if not self.is_current:
            self._dispatch()

    def _dispatch(self) -> None:
        started = self._clock()
        try:
            grown = self._store.dispatch(_SLICE)
        except (StoreError, OSError) as error:
            self._fail(str(error))
            return
        except Exception as error:  # the edge: readers are told, and it is tried again
            log.exception("messages are stored, but could not be queued")
            self._fail(f"{type(error).__name__}: {error}")
            return
        if self.failure is not None:
            log.info("messages are queued again")
            self.failure = None
        self._ended = self._clock()
        self._seconds = self._ended - started
        self.latency.observe(self._seconds)
        self._is_behind = not self.is_current
        if self._waiting:
            self._tell_waiting()
        if self._is_behind:
            self.stored()
        if any(topic == DELAY_TOPIC for topic, _ in grown):
            self.on_delayed()
        self._holds.grown(grown)

    def _fail(self, why: str) -> None:
        """The next message, request or sweep tries again."""
        failure = f"messages are stored, but can't be queued: {why}"
        if failure != self.failure:
            log.error("%s; trying again", failure)
        self.failure = failure
        self._is_behind = False
        waiting, self._waiting = self._waiting, []
        for _, future in waiting:
            if not future.done():
                future.set_exception(StoreError(failure))

    def _tell_waiting(self) -> None:
        reached, waiting = self._store.dispatched, self._waiting
        self._waiting = [one for one in waiting if one[0] > reached]
        for end, future in waiting:
            if end <= reached and not future.done():
                future.set_result(None)
