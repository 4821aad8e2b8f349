"""Background tasks of a server: watched, logged, counted, and started again when they fail."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Final

__all__ = ["Tasks"]

log = logging.getLogger(__name__)

_FIRST_PAUSE: Final = 0.1  # seconds before a failed task is started again; then twice as many
_LONGEST_PAUSE: Final = 30.0
_HEALTHY: Final = 60.0  # a task that ran this long begins with the first pause again


class Tasks:
    """The tasks of one server. Belongs to one event loop.

    `restarts` counts, by name, how often a task that is to run for ever was started again;
    `failures`, how often a task or a step of one failed. Both may be read by other threads.
    """

    def __init__(self) -> None:
        self.restarts: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self._running: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def keep(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Run `work()` until it is cancelled. Whatever it raises is logged with its traceback, and
        `work` is called again after a pause, as it is when it returns: it should not."""
        return self.spawn(name, self._keep(name, work))

    def spawn(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` once. Whatever it raises is logged with its traceback and counted."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    async def close(self) -> None:
        """Cancel all of them, and wait until they are gone."""
        while self._running:
            tasks = list(self._running)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._running.difference_update(tasks)  # their callbacks come a turn later

    async def _keep(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        pause = _FIRST_PAUSE
        while True:
            started = time.monotonic()
            error: BaseException | None = None
            try:
                await work()
            except asyncio.CancelledError as cancelled:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                error = cancelled  # something it waited for was cancelled, and not the task
            except Exception as failure:  # the edge of a task
                error = failure
            if time.monotonic() - started >= _HEALTHY:
                pause = _FIRST_PAUSE
            self.failures[name] += 1
            self.restarts[name] += 1
            log.error(
                "background task %r %s; it is started again in %g s",
                *(name, "ended" if error is None else f"failed ({error!r})", pause),
                exc_info=error,
            )
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            name = task.get_name()
            self.failures[name] += 1
            log.error("task %r failed: %r", name, error, exc_info=error)
