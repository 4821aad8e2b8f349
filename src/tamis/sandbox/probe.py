"""What holds on this machine: found out by trying, in a child that is shut in as filters are.

`attempt` runs in the child and does what a hostile filter would; `judge` makes a `Report` of it in
the server. A barrier counts only if something ran into it.
"""

import contextlib
import os
import resource
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from . import linux
from .plan import Plan

__all__ = ["Report", "attempt", "judge"]

LEVELS: Final = {
    1: "namespaces, Landlock, seccomp, limits",
    2: "Landlock, seccomp, limits; the names and sizes of files can be seen",
    3: "seccomp, limits; no file can be opened, and only what is loaded before can be imported",
    4: "limits only",
}
# What `required` means, of what `attempt` tries.
_NEEDED: Final = {
    "no_new_privs": "a program with more rights could be started",
    "seccomp": "system calls are not restricted",
    "processes": "it can start processes",
    "memory": "memory is not limited",
    "reading": "it can read files that are not Python's",
    "writing": "it can write files",
    "network": "it can open sockets",
    "signals": "it can send signals to others",
    "environment": "it sees an environment",
    "descriptors": "it has descriptors that are not its own",
    "server memory": "it can read the memory of the server",
}
_USEFUL: Final = {
    "threads": "the number of threads is limited by memory alone",
    "importing": "modules that are not loaded before can't be imported",
}


@dataclass(frozen=True, slots=True)
class Report:
    """What keeps a filter in, on this machine."""

    level: int  # 1, the best, to 4
    holds: tuple[str, ...]
    missing: tuple[str, ...]  # a line each

    @property
    def is_contained(self) -> bool:
        """Whether `isolation = "required"` is fulfilled."""
        return self.level < 4

    def __str__(self) -> str:
        return f"isolation level {self.level} of 4: {LEVELS[self.level]}"


def judge(plan: Plan, tried: Mapping[str, bool], missing: list[str]) -> tuple[Report, list[str]]:
    """Return a report, and what of the things needed does not hold."""
    broken = [f"{name}: {line}" for name, line in _NEEDED.items() if not tried.get(name)]
    useful = [f"{name}: {line}" for name, line in _USEFUL.items() if not tried.get(name)]
    if not plan.has_landlock and plan.level == 1:
        useful.append("landlock: files are kept away by namespaces alone")
    holds = tuple(name for name in (*_NEEDED, *_USEFUL) if tried.get(name))
    level = 4 if broken else plan.level
    return Report(level, holds, (*missing, *broken, *useful)), broken


def attempt(plan: Plan, order: Mapping[str, Any]) -> dict[str, bool]:
    """Try to break out. True: it was prevented, or the thing wanted is there."""
    canary, server = order["canary"], order["server"]
    reading = ("/etc/passwd", canary, "/proc/self/environ", "/proc/self/maps", "/")
    scratch = ("/tmp", "/dev/shm", "/var/tmp", plan.standard_library, os.path.dirname(canary), "/")
    return {
        "no_new_privs": _says(39, 1),
        "seccomp": _says(21, 2),
        "processes": _is_refused(_fork) and _is_refused(lambda: os.execv("/bin/true", ["true"])),
        "memory": _is_refused(lambda: bytearray(order["address_space"]), MemoryError),
        "reading": all(_is_refused(partial(_read, one)) for one in reading),
        "writing": all(_is_refused(partial(_write, one)) for one in scratch),
        "network": all(
            _is_refused(partial(_connectable, one))
            for one in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX)
        ),
        "signals": _is_refused(lambda: os.kill(server, 0)) and _is_refused(lambda: os.kill(-1, 0)),
        "environment": not os.environ,
        "descriptors": _descriptors() <= {0, 1, 2, 3},
        "server memory": _is_refused(lambda: _read(f"/proc/{server}/mem", 0)),
        "threads": _most_threads(order["processes"] + 1) < order["processes"],
        "importing": not _is_refused(lambda: _read(f"{plan.standard_library}/this.py")),
    }


def _is_refused(action: Callable[[], object], by: type[BaseException] = OSError) -> bool:
    try:
        action()
    except by:
        return True
    return False


def _says(option: int, expected: int) -> bool:
    with contextlib.suppress(OSError):
        return linux.prctl(option) == expected
    return False


def _fork() -> None:
    if not (pid := os.fork()):
        os._exit(0)
    os.waitpid(pid, 0)


def _connectable(family: int) -> None:
    socket.socket(family).close()


def _read(path: str, size: int = 1) -> None:
    """Open a file, or a directory, and read."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if os.path.isdir(path):
            # of the new root nothing but Python can be listed
            if os.path.exists(f"{path}/etc") or os.path.exists(f"{path}/proc"):
                os.listdir(descriptor)
            else:
                raise PermissionError(path)
        else:
            os.read(descriptor, size)
    finally:
        os.close(descriptor)


def _write(directory: str) -> None:
    path = f"{directory}/tamis-probe-{os.getpid()}"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.close(descriptor)
    os.unlink(path)


def _descriptors() -> set[int]:
    found = set()
    for descriptor in range(min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 4096)):
        with contextlib.suppress(OSError):
            os.fstat(descriptor)
            found.add(descriptor)
    return found


def _most_threads(wanted: int) -> int:
    """Start threads that wait, and return how many there could be."""
    done = threading.Event()
    started = []
    try:
        for _ in range(wanted):
            started.append(threading.Thread(target=done.wait, daemon=True))
            started[-1].start()
    except (RuntimeError, MemoryError):
        started.pop()
    done.set()
    return len(started)
