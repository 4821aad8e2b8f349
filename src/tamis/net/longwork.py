"""Requests that take long, so that nobody else waits for them.

A long request is a generator, its steps. It yields None whenever it may be interrupted, and a
function when that is to be called in another thread; the function's result is sent back to it.
Steps that are over soon are run at once. Others go on in slices of a few milliseconds: one slice
in each turn of the loop, however many requests there are, and connection by connection, so that
one that asks for much is not served before others. Functions are called in a single thread, in
the same order: Python code in several threads would take the interpreter away from the loop.
"""

import asyncio
import functools
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Generic, ParamSpec, TypeVar

from .aio import Peer

__all__ = ["Abandoned", "Long", "LongWork", "Steps", "in_order", "stepwise"]

P = ParamSpec("P")
T = TypeVar("T")
Function = Callable[[], Any]
Steps = Generator[Function | None, Any, T]

_SLICE: Final = 0.003  # seconds of processor time
_FEW: Final = 16  # steps that are taken in any case


class Abandoned(Exception):
    """Raised in place of a result when whoever asked for it is gone."""


@dataclass(slots=True)
class Long(Generic[T]):
    """A request whose steps are not over yet."""

    steps: Steps[T]
    wanted: Function | None = None  # the function that the steps wait for
    in_order: bool = False


def stepwise(handle: Callable[P, Steps[T]]) -> Callable[P, T | Long[T]]:
    """For a handler that is a generator: its result if that is there in a moment, or a `Long`."""

    @functools.wraps(handle)
    def begin(*args: P.args, **kwargs: P.kwargs) -> T | Long[T]:
        steps = handle(*args, **kwargs)
        try:
            return Long(steps, _advance(steps))
        except StopIteration as over:
            result: T = over.value
            return result

    return begin


def in_order(handle: Callable[P, Steps[T]]) -> Callable[P, Long[T]]:
    """As `stepwise`, for requests of a connection that change something: none of them begins
    before those that came earlier are over."""

    @functools.wraps(handle)
    def begin(*args: P.args, **kwargs: P.kwargs) -> Long[T]:
        return Long(handle(*args, **kwargs), in_order=True)

    return begin


def _advance(
    steps: Steps[Any], value: object = None, error: Exception | None = None
) -> Function | None:
    """Runs the steps for a slice of time, or until they want a function called. StopIteration
    has their result."""
    wanted = steps.send(value) if error is None else steps.throw(error)
    until, count = time.thread_time() + _SLICE, 0
    while wanted is None and (count < _FEW or time.thread_time() < until):
        wanted = next(steps)
        count += 1
    return wanted


class _InTurn:
    """Futures by their owner; those who have some take turns. No owner keeps an empty queue."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}

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

    def finish(self, peer: Peer, long: Long[T]) -> T | Coroutine[Any, Any, T]:
        """What the steps come to, or a coroutine that gets it. They are given up when the
        connection is closed."""
        if not long.in_order:
            return self._go_on(peer, long.steps, long.wanted)
        before, wanted = self._last.get(peer), None
        if before is None:
            try:
                wanted = _advance(long.steps)
            except StopIteration as over:
                result: T = over.value
                return result
        ended = self._last[peer] = asyncio.Event()
        return self._go_on_in_order(peer, long.steps, wanted, before, ended)

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
            return await self._go_on(peer, steps, wanted)
        finally:
            over.set()
            if self._last.get(peer) is over:
                del self._last[peer]

    async def _go_on(self, peer: Peer, steps: Steps[T], wanted: Function | None) -> T:
        try:
            while not peer.is_closed:
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

    async def turn(self, owner: Hashable) -> None:
        """Returns when it is the owner's turn to take a slice of the loop's time."""
        future = self._slices.join(owner)
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._next_slice)
        await future

    def _next_slice(self) -> None:
        # whoever is woken runs before this is called again: callbacks run in the order they came
        self._is_scheduled = self._slices.wake_next()
        if self._is_scheduled:
            asyncio.get_running_loop().call_soon(self._next_slice)

    async def call(self, owner: Hashable, function: Callable[[], T]) -> T:
        """The result of a function that is called in the thread, when it is the owner's turn."""
        if self._is_calling:
            turn = self._calls.join(owner)
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
