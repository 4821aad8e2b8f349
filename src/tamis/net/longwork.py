"""Requests that take long, so that nobody else waits for them.

A long request is a generator, its steps. It yields None whenever it may be interrupted, and a
function when that is to be called in another thread; the function's result is sent back to it.
Steps that are over soon are run at once. Others go on in slices of a few milliseconds: one slice
in each turn of the loop, however many requests there are, and connection by connection, so that
one that asks for much is not served before others. Functions are called in a single thread, in
the same order: Python code in several threads would take the interpreter away from the loop.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from .aio import Peer

__all__ = ["Abandoned", "LongWork", "Steps"]

T = TypeVar("T")
Function = Callable[[], Any]
Steps = Generator[Function | None, Any, T]

_SLICE: Final = 0.003  # seconds


class Abandoned(Exception):
    """Raised in place of a result when whoever asked for it is gone."""


class _InTurn:
    """Futures by their owner; those who have some take turns. No owner keeps an empty queue."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def join(self, owner: Hashable) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, deque()).append(future)
        return future

    def wake_next(self) -> bool:
        """Lets one go on, and returns whether there was any."""
        while self._waiting:
            owner, queue = next(iter(self._waiting.items()))
            future = queue.popleft()
            del self._waiting[owner]
            if queue:
                self._waiting[owner] = queue  # behind all others
            if not future.done():
                future.set_result(None)
                return True
        return False


class LongWork:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._slices = _InTurn()
        self._is_scheduled = False
        self._calls = _InTurn()
        self._is_calling = False
        self._thread: ThreadPoolExecutor | None = None
        self._last: dict[Peer, asyncio.Event] = {}  # by connection, the end of its last in order

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def run(
        self, peer: Peer, steps: Steps[T], *, to_the_end: bool = False
    ) -> T | Coroutine[Any, Any, T]:
        """The result of the steps if they are over in a moment, else a coroutine that gets it.
        They are given up when the connection is closed, unless they go on `to_the_end`."""
        try:
            wanted = _advance(steps)
        except StopIteration as over:
            result: T = over.value
            return result
        return self._go_on(peer, steps, wanted, to_the_end)

    def run_in_order(self, peer: Peer, steps: Steps[T]) -> T | Coroutine[Any, Any, T]:
        """As `run`, for requests of a connection that change something: none of them begins before
        those that came earlier are over."""
        before, wanted = self._last.get(peer), None
        if before is None:
            try:
                wanted = _advance(steps)
            except StopIteration as over:
                result: T = over.value
                return result
        turn = self._last[peer] = asyncio.Event()
        return self._go_on_in_order(peer, steps, wanted, before, turn)

    async def _go_on_in_order(
        self,
        peer: Peer,
        steps: Steps[T],
        wanted: Function | None,
        before: asyncio.Event | None,
        over: asyncio.Event,
    ) -> T:
        try:
            if before is not None:
                await before.wait()
            return await self._go_on(peer, steps, wanted, to_the_end=False)
        finally:
            over.set()
            if self._last.get(peer) is over:
                del self._last[peer]

    async def turn(self, peer: Hashable) -> None:
        """Returns when it is the connection's turn to take a slice of the loop's time."""
        future = self._slices.join(peer)
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._next_slice)
        await future

    def _next_slice(self) -> None:
        # whoever is woken runs before this is called again: what waits runs in the order it came
        self._is_scheduled = self._slices.wake_next()
        if self._is_scheduled:
            asyncio.get_running_loop().call_soon(self._next_slice)

    async def call(self, peer: Hashable, function: Callable[[], T]) -> T:
        """The result of a function that is called in the thread, when it is its turn."""
        if self._is_calling:
            turn = self._calls.join(peer)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():  # it was its turn: the next one's, then
                    self._is_calling = self._calls.wake_next()
                raise
        self._is_calling = True
        try:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "tamis-long")
            return await asyncio.get_running_loop().run_in_executor(self._thread, function)
        finally:
            self._is_calling = self._calls.wake_next()

    async def _go_on(
        self, peer: Peer, steps: Steps[T], wanted: Function | None, to_the_end: bool
    ) -> T:
        try:
            while to_the_end or not peer.is_closed:
                value, error = None, None
                if wanted is not None:
                    try:
                        value = await self.call(peer, wanted)
                    except Exception as failure:  # the steps are to deal with it
                        error = failure
                await self.turn(peer)
                wanted = _advance(steps, value, error)
        except StopIteration as over:
            result: T = over.value
            return result
        finally:
            steps.close()
        raise Abandoned(f"{peer} closed the connection")


def _advance(
    steps: Steps[Any], value: object = None, error: Exception | None = None
) -> Function | None:
    """Runs the steps for a slice of time, or until they want a function called. StopIteration
    has their result."""
    until = time.monotonic() + _SLICE
    wanted = steps.send(value) if error is None else steps.throw(error)
    while wanted is None and time.monotonic() < until:
        wanted = next(steps)
    return wanted
