"""How many connections the servers of this process may have: a share of its descriptors.

A descriptor that is not there when the store opens a file costs more than a connection refused. A
quarter of the soft limit is the store's, a hundred are for everything else.
"""

import resource
import sys
import threading
from collections.abc import Set
from typing import Final

__all__ = ["count", "forget", "has_room", "room", "spare"]

_OTHERS: Final = 100
_LEAST: Final = 8

_lock = threading.Lock()  # servers may run in several loops
_counted: list[Set[object]] = []  # connections, by server


def room() -> int:
    """Connections that all servers of the process may have together, by the limit in force."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    return max(soft - soft // 4 - _OTHERS, _LEAST)


def spare() -> int:
    """Descriptors that are left for what is no connection, by the limit in force."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else max(soft - room(), 0)


def has_room() -> bool:
    """Whether there may be one more connection."""
    with _lock:
        return sum(map(len, _counted)) < room()


def count(connections: Set[object]) -> None:
    """From now on these connections of a server that listens count."""
    with _lock:
        if not any(one is connections for one in _counted):
            _counted.append(connections)


def forget(connections: Set[object]) -> None:
    """The server is closed."""
    with _lock:
        _counted[:] = [one for one in _counted if one is not connections]
