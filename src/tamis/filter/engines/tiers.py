"""Whether a loop that is not compiled yet is compiled at its first call, or run as plain Python.

numba compiles a loop when it is first called with arguments of some types, and keeps it on disk;
all loops of a broker take half a minute. A server can't wait that long: while `run_plain` holds, a
loop that is neither in memory nor on disk runs as its plain twin (`plain`), while another process
(`warming`) compiles it. Each call looks whether that is done, so loops become fast one by one. Once
a loop is compiled nothing of this is on its way: numba asks only where it has no code.
"""

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from .plain import plain_twin

__all__ = ["is_plain", "run_compiled", "run_plain", "watch"]

_LOOK_AGAIN: Final = 0.25  # seconds between two looks for a loop on disk
_state = threading.Event()  # set: plain


def run_plain() -> None:
    """From now on loops that are not compiled run as plain Python."""
    _state.set()


def run_compiled() -> None:
    """From now on loops that are not compiled are compiled when they are called: numba's way."""
    _state.clear()


def is_plain() -> bool:
    """Whether there may be loops that run as plain Python."""
    return _state.is_set()


def watch(loop: Any) -> Any:
    """Let a loop of numba's be run by its twin; returns it."""
    if not hasattr(loop, "_compile_for_args"):  # NUMBA_DISABLE_JIT
        return loop
    compile_now = loop._compile_for_args
    twin: Callable[..., Any] | None = None
    looked: dict[tuple[Any, ...], float] = {}  # when, by the types of arguments

    def code_for(*args: Any, **kws: Any) -> Any:
        """What numba is to call with these arguments, for which it has nothing."""
        nonlocal twin
        if not _state.is_set():
            return compile_now(*args, **kws)
        types = tuple(map(loop.typeof_pyval, args))
        loop._types_active_call.clear()
        now = time.monotonic()
        if now >= looked.get(types, 0.0):
            looked[types] = now + _LOOK_AGAIN
            kept = _from_disk(loop, types)
            if kept is not None:
                return kept
        if twin is None:
            twin = plain_twin(loop)
        return twin

    loop._compile_for_args = code_for
    return loop


def _from_disk(loop: Any, types: tuple[Any, ...]) -> Any:
    """The entry point of what is kept on disk; None if there is nothing for these types."""
    from numba.core.compiler_lock import global_compiler_lock

    with global_compiler_lock:
        known = loop.overloads.get(types)
        if known is not None:
            return known.entry_point
        kept = loop._cache.load_overload(types, loop.targetctx)
        if kept is None:
            return None
        loop.targetctx.insert_user_function(kept.entry_point, kept.fndesc, [kept.library])
        loop.add_overload(kept)
        return kept.entry_point
