"""Compiles the loops of a machine once, in a process of its own, and tells whether that is done.

numba keeps compiled code beside the source, or in its cache directory. When everything a broker and
a reader need is there, a stamp beside it says for which processor, versions and sources; without
one a machine is new. The process is `tamis warm`. It goes on if whoever began it ends, so that even
programs of a second leave a machine that is warm; a lock keeps it the only one.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from . import tiers

__all__ = ["LOOP_FILES", "begin", "exclusively", "is_warm", "mark_warm"]

log = logging.getLogger(__name__)

_PACKAGE: Final = Path(__file__).parents[2]
# The modules with loops: a change of one makes numba compile anew.
LOOP_FILES: Final = (
    "broker/_send_loops.py",
    "broker/_send_signatures.py",
    "client/_walk.py",
    "filter/engines/_kernel.py",
    "filter/engines/_numbers.py",
    "store/_batch.py",
    "store/_crc.py",
    "store/_sieve.py",
    "store/_tally.py",
    "store/_walk.py",
    "store/dispatch.py",
    "store/index.py",
)
_NICE: Final = 10  # it is in nobody's way
_LONGEST: Final = 600.0  # seconds it may take, on the slowest machine
_LAST_LINES: Final = 2000  # bytes of what it said
_beginning = threading.Lock()
_begun = False


def is_warm() -> bool:
    """Whether everything is compiled, for this processor, these versions and these sources."""
    try:
        return bool(json.loads(_stamp().read_text("utf-8"))["key"] == _key())
    except (OSError, ValueError, KeyError, TypeError):
        return False


def mark_warm() -> None:
    """Tell that everything is compiled."""
    path = _stamp()
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps({"key": _key()}), "utf-8")
    draft.replace(path)


@contextlib.contextmanager
def exclusively() -> Iterator[None]:
    """Wait until no other process compiles."""
    path = _stamp().with_suffix(".lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def begin(ended: Callable[[], None] = lambda: None) -> None:
    """Start compiling, once a process, and run loops as plain Python until it is done.

    `ended` is called in another thread then, done or failed.
    """
    global _begun
    with _beginning:
        if _begun:
            return
        _begun = True
    tiers.run_plain()
    threading.Thread(target=_watch, args=(ended,), name="tamis-warming", daemon=True).start()


def _watch(ended: Callable[[], None]) -> None:
    try:
        _compile()
    except (OSError, subprocess.SubprocessError, _Failed) as error:
        log.warning("loops could not be compiled beforehand (%s): each is at its first use", error)
    finally:
        tiers.run_compiled()
        ended()


class _Failed(Exception):
    pass


def _compile() -> None:
    paths = os.pathsep.join([str(_PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(
        [sys.executable, "-m", "tamis", "warm", "--quiet"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths},
        start_new_session=True,  # Ctrl-C is not for it
    )
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, process.pid, os.getpriority(os.PRIO_PROCESS, 0) + _NICE)
    try:
        _, said = process.communicate(timeout=_LONGEST)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    if process.returncode:
        lines = said[-_LAST_LINES:].decode("utf-8", "replace").strip().splitlines()
        raise _Failed(lines[-1] if lines else f"exit code {process.returncode}")


def _stamp() -> Path:
    from ._kernel import run_strings

    kernel: Any = run_strings
    return Path(kernel._cache.cache_path) / "tamis-loops.json"


def _key() -> str:
    import llvmlite  # type: ignore[import-untyped]
    import numba
    import numpy
    from numba.core.registry import cpu_target

    digest = hashlib.sha256()
    target: Any = cpu_target
    made_for = target.target_context.codegen().magic_tuple()
    versions = (sys.version, numba.__version__, llvmlite.__version__, numpy.__version__)
    digest.update(repr((made_for, versions)).encode())
    for name in LOOP_FILES:
        found = os.stat(_PACKAGE / name)
        digest.update(repr((name, found.st_mtime, found.st_size)).encode())
    return digest.hexdigest()
