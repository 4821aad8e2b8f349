"""How a server is run by a command: from its ready line to a clean stop on a signal."""

import asyncio
import contextlib
import gc
import ipaddress
import logging
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, Final

import click

__all__ = ["Start", "listening", "serve", "show_address", "warn_if_open"]

log = logging.getLogger(__name__)

_PATIENCE: Final = 2.0  # seconds of starting, after which something is said
# Garbage in cycles is mostly young. Looking through all objects stops every thread for a tenth of
# a second and more where a stranger made a million of them: it is left for rare occasions.
_GARBAGE: Final = (5_000, 10, 2_000)
_SWITCH: Final = 0.0005  # seconds that a thread keeps the interpreter while another waits for it

Start = Callable[[AsyncExitStack], Awaitable[str]]  # returns what to say when it is ready


def show_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def warn_if_open(what: str, host: str, why: str) -> None:
    """For a server without access control that others than this machine can reach."""
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        is_loopback = host == "localhost"
    if not is_loopback:
        log.warning("%s: it listens on %s, and %s", what, host, why)


@contextlib.contextmanager
def listening(what: str, host: str, port: int, *options: str) -> Any:
    """What is wrong with a port, in one line. Errors of files have a name and pass."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise click.ClickException(
            f"{what}: can't listen on {show_address(host, port)}: {reason}"
            f" (see {', '.join(options)})"
        ) from None


def serve(start: Start) -> None:
    """Until a signal. The first one stops in good order, a second one ends the process."""
    from ..net.aio import loop_factory

    _raise_file_limit()
    slow = threading.Timer(_PATIENCE, _excuse)
    slow.daemon = True
    slow.start()
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            runner.run(_serve(start, slow.cancel))
    finally:
        slow.cancel()


def _excuse() -> None:
    log.info("still starting: a store that was not closed is looked through, and loops are loaded")


async def _serve(start: Start, ready: Callable[[], None]) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    signals = (signal.SIGINT, signal.SIGTERM)

    def stop_now(name: str) -> None:
        log.info("stopping: %s", name)
        stop.set()
        for number in signals:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in signals:
        loop.add_signal_handler(number, stop_now, number.name)
    async with AsyncExitStack() as stack:
        told = await start(stack)
        gc.collect()
        gc.freeze()  # code and tables stay: looking through them holds the loop up for 80 ms
        gc.set_threshold(*_GARBAGE)
        # A thread that has waited for the disk must not wait long for the interpreter, too: with
        # Python's 5 ms a send took 60 ms beside a busy loop (benchmarks/hostile.py, statistics).
        sys.setswitchinterval(_SWITCH)
        ready()
        if not stop.is_set():
            click.echo(f"tamis: ready: {told}")
        await stop.wait()


def _raise_file_limit() -> None:
    """A connection costs a descriptor, and so does a file of the store."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
