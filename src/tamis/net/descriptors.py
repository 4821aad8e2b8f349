"""How many connections the servers of this process may have: a share of its descriptors.

A descriptor that is not there when the store opens a file costs more than a connection refused. A
quarter of the soft limit is the store's, a hundred are for everything else.
"""

import resource
import sys
import threading
from typing import Final

__all__ = ["release", "room", "take"]

_OTHERS: Final = 100
_LEAST: Final = 8

_lock = threading.Lock()  # servers may run in several loops
_taken = 0


def room() -> int:
    """Connections that all servers of the process may have together, by the limit in force."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    return max(soft - soft // 4 - _OTHERS, _LEAST)


def take() -> bool:
    """For one more connection; returns whether there is room for it."""
    global _taken
    with _lock:
        if _taken >= room():
            return False
        _taken += 1
        return True


def release() -> None:
    global _taken
    with _lock:
        _taken -= 1
