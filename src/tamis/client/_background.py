"""The event loop behind the blocking client: a thread, and how calls get into it and out again."""

import asyncio
import atexit
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, Final, ParamSpec, Protocol, Self, TypeVar

from ..errors import Error
from ..net.aio import loop_factory

__all__ = ["Facade", "pass_on", "result"]

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_SLICE: Final = 1.0  # seconds: on Windows, a wait without an end does not notice Ctrl-C
_PATIENCE: Final = 5.0  # seconds, for the thread to end when the program does


class Background:
    """The event loop, and the thread it runs in."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.open: set[Facade] = set()
        self._is_ending = False
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._live, name="tamis-client", daemon=True)
        self._thread.start()
        self._ready.wait()

    def _live(self) -> None:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            self.loop = runner.get_loop()
            self.loop.call_soon(self._ready.set)
            while not self._is_ending:
                try:
                    self.loop.run_forever()
                except (SystemExit, KeyboardInterrupt):  # of a handler: asyncio lets them through
                    log.exception("a handler wanted to end the program")

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What it gives or raises. If the wait is interrupted, it is cancelled, and its end waited
        for: a second interrupt does not."""
        ended: Future[T] = Future()
        begun: list[asyncio.Task[T]] = []

        def begin() -> None:
            begun.append(self.loop.create_task(work))
            begun[0].add_done_callback(partial(pass_on, ended))

        self.loop.call_soon_threadsafe(begin)
        try:
            return result(ended)
        except BaseException:
            if not ended.done():
                self.loop.call_soon_threadsafe(lambda: begun[0].cancel())
                with contextlib.suppress(Exception):
                    result(ended)
            raise

    def end(self) -> None:
        for one in list(self.open):
            log.info("a %s was not closed: it is closed now", one.what)
            try:
                one.close()
            except Exception as error:  # the edge: the others are to be closed too
                log.warning("a %s could not be closed: %s", one.what, error)
        self._is_ending = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_PATIENCE)

    @property
    def is_here(self) -> bool:
        return threading.current_thread() is self._thread


def pass_on(ended: "Future[T]", work: "asyncio.Future[T]") -> None:
    if work.cancelled():
        ended.set_exception(CancelledError())
    elif (error := work.exception()) is not None:
        ended.set_exception(error)
    else:
        ended.set_result(work.result())


def result(ended: "Future[T]") -> T:
    while True:
        with contextlib.suppress(TimeoutError):
            ended.exception(_SLICE)
        if ended.done():
            return ended.result()


_lock = threading.Lock()
_current: Background | None = None
_left_behind: list[Background | None] = []  # by a fork: their memory is the parent's, untouched


def _background() -> Background:
    global _current
    with _lock:
        if _current is None:
            _current = Background()
        return _current


def _forget() -> None:
    """In a child: the thread is not there."""
    global _lock, _current
    _lock = threading.Lock()
    _left_behind.append(_current)
    _current = None


def _end() -> None:
    if _current is not None:
        _current.end()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget)
atexit.register(_end)


class Inner(Protocol):
    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


class Facade:
    """`with` starts and closes it."""

    what: ClassVar[str]

    def __init__(self) -> None:
        self._background = _background()

    @property
    def _client(self) -> Inner:
        raise NotImplementedError

    def start(self) -> None:
        self._run(self._client.start)
        self._background.open.add(self)

    def close(self) -> None:
        """Can be called twice; does nothing in a forked child, whose parent has it."""
        if self._background.pid == os.getpid():
            self._run(self._client.close)
            self._background.open.discard(self)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._background.pid == os.getpid():
            self._run(self._client.__aexit__, kind, error, traceback)
            self._background.open.discard(self)

    def _check(self) -> None:
        if self._background.pid != os.getpid():
            raise Error(
                f"this {self.what} was made in another process: make a new one after a fork"
            )

    def _run(
        self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        self._check()
        if self._background.is_here:
            raise Error(
                f"this {self.what} would wait for the thread it is called in: coroutines and"
                " selectors can't make blocking calls"
            )
        return self._background.run(function(*args, **kwargs))

    def _call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """In the loop: what it is to change belongs to it."""
        if self._background.is_here:
            return function(*args, **kwargs)

        async def call() -> T:
            return function(*args, **kwargs)

        return self._run(call)
