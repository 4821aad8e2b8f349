"""Calling a user's handler, coroutine or not, and what its answer means."""

import asyncio
import inspect
import logging
import queue
import threading
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import Any, Final

from ..errors import ConfigError
from .received import ReceivedMessage

__all__ = ["ConsumeStatus", "DaemonThread", "Handler", "Handlers", "RetryLater", "Verdict"]

log = logging.getLogger(__name__)


class ConsumeStatus(Enum):
    SUCCESS = "CONSUME_SUCCESS"
    RETRY = "RECONSUME_LATER"


class RetryLater(Exception):
    """Returned or raised by a handler: again, after the time of that delay level; 0 for one that
    grows with each attempt, -1 for the dead letter topic at once."""

    def __init__(self, delay_level: int = 0) -> None:
        super().__init__(delay_level)
        if not isinstance(delay_level, int) or delay_level < -1:
            raise ConfigError(f"RetryLater({delay_level!r}): it takes -1, 0 or a delay level")
        self.delay_level = delay_level


Said = bool | ConsumeStatus | RetryLater | None
Handler = Callable[[Any], Said | Awaitable[Said]]
Verdict = tuple[bool, int]  # whether it is consumed; if not, at which delay level it comes again

_CONSUMED: Final[Verdict] = (True, 0)
_GRACE: Final = 1.0  # seconds for a handler that is cancelled to end in


class Handlers:
    """Calls them. A handler that takes too long is given up: a coroutine is cancelled; a thread
    can't be, so it is left to itself and another takes its place."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._idle: list[DaemonThread] = []
        self.abandoned = 0  # threads and tasks whose handler did not end at all

    async def call(
        self, handler: Handler, messages: Sequence[ReceivedMessage], *, as_list: bool
    ) -> Verdict:
        """Never raises for what the handler does."""
        argument: Any = list(messages) if as_list else messages[0]
        try:
            if inspect.iscoroutinefunction(handler):
                said = await self._limited(handler(argument))
            else:
                said = await self._in_thread(handler, argument)
                if inspect.isawaitable(said):
                    said = await self._limited(said)
        except RetryLater as later:
            return False, later.delay_level
        except TimeoutError as error:
            shown = messages[0].message_id
            log.error("message %s: it is retried: %s", shown, error or "TimeoutError")
            return False, 0
        except Exception:
            shown = messages[0].message_id
            log.exception("message %s: the handler failed, it is retried", shown)
            return False, 0
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            log.error(
                "message %s: the handler was cancelled, it is retried", messages[0].message_id
            )
            return False, 0
        return _verdict(said)

    async def _limited(self, work: Awaitable[Said]) -> Said:
        """In a task of its own: one that will not be cancelled is left to itself."""
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[bool] = loop.create_future()  # asyncio.wait takes three times as long
        task.add_done_callback(lambda _: _settle(ended, True, None))
        timer = loop.call_later(self._timeout, _settle, ended, False, None)
        try:
            if await ended:
                return task.result()
        except asyncio.CancelledError:
            task.cancel()
            raise
        finally:
            timer.cancel()
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=_GRACE)
        if not done:
            self.abandoned += 1
            task.add_done_callback(_forget)
        raise TimeoutError(self._why())

    async def _in_thread(self, handler: Handler, argument: Any) -> Any:
        thread = self._idle.pop() if self._idle else DaemonThread()
        done = thread.run(handler, argument)
        try:
            finished, _ = await asyncio.wait([done], timeout=self._timeout)
        except asyncio.CancelledError:
            thread.abandon()
            raise
        if not finished:
            self.abandoned += 1
            thread.abandon()
            done.add_done_callback(_forget)
            raise TimeoutError(self._why())
        self._idle.append(thread)
        return done.result()

    def _why(self) -> str:
        return f"the handler did not end within {self._timeout:g} s (handler_timeout)"

    def close(self) -> None:
        for thread in self._idle:
            thread.abandon()
        self._idle = []


def _verdict(said: Any) -> Verdict:
    if said is None or said is True or said is ConsumeStatus.SUCCESS:
        return _CONSUMED
    if isinstance(said, RetryLater):
        return False, said.delay_level
    if said is False or said is ConsumeStatus.RETRY:
        return False, 0
    log.error("a handler gave %r: None, True or a ConsumeStatus is expected; it is retried", said)
    return False, 0


def _forget(task: "asyncio.Future[Said]") -> None:
    if not task.cancelled():
        task.exception()


class DaemonThread:
    """A daemon: one that never ends must not keep the process from ending."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[
            tuple[asyncio.AbstractEventLoop, asyncio.Future[Any], Callable[[Any], Any], Any] | None
        ] = queue.SimpleQueue()
        thread = threading.Thread(target=self._run, name="tamis-handler", daemon=True)
        thread.start()

    def run(self, handler: Callable[[Any], Any], argument: Any) -> "asyncio.Future[Any]":
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        self._work.put((loop, done, handler, argument))
        return done

    def abandon(self) -> None:
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            loop, done, handler, argument = work
            try:
                said, error = handler(argument), None
            except BaseException as raised:  # SystemExit of a handler is no more than a failure
                said, error = None, raised
            try:
                loop.call_soon_threadsafe(_settle, done, said, error)
            except RuntimeError:
                return  # the loop is closed: nobody waits


def _settle(done: "asyncio.Future[Any]", said: Any, error: BaseException | None) -> None:
    if done.done():
        return
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        done.set_exception(error)
    elif error is not None:
        done.set_exception(RuntimeError(f"the handler ended with {error!r}"))
    else:
        done.set_result(said)
