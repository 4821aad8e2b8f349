"""The memory of all filters of a sandbox together."""

import os
import threading
from pathlib import Path
from typing import Final, Protocol

__all__ = ["Budget", "Holder", "half_of_memory"]

# Limits of the container that we are in, if it says so.
_CGROUPS: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


class Holder(Protocol):
    """Something that has memory: a cell."""

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for it. One that is not idle asks the budget itself, repeatedly."""

    def release_memory(self, reason: str) -> bool:
        """Give back what it has. Returns False, and does nothing, if it is not idle."""


class Budget:
    """Says who has to give memory back when too much is in use. Thread-safe.

    Those that are idle come first, because no message is lost with them, and of those the largest.
    If what the others have is too much by itself the largest of them has to.
    """

    def __init__(self, most: int) -> None:
        """`most`: bytes."""
        self._most = most
        self._lock = threading.Lock()
        self._held: dict[Holder, int] = {}

    def exceeded(self, holder: Holder, size: int) -> str | None:
        """Note what a holder has that is not idle, and let others give back what is too much.
        Returns a reason if it is this one that must, now."""
        with self._lock:
            held = self._held
            held[holder] = size
            left = sum(held.values()) - self._most
            if left <= 0:
                return None
            reason = f"ended: all filters together need more than {self._most >> 20} MiB"
            idle = sorted((one for one in held if one.is_idle), key=held.__getitem__, reverse=True)
            if left <= sum(held[one] for one in idle):
                for one in idle:
                    if left > 0 and one.release_memory(reason):
                        left -= held[one]
                        held[one] = 0
                return None
            if max(held, key=lambda one: 0 if one in idle else held[one]) is not holder:
                return None
            held[holder] = 0
            return reason

    def forget(self, holder: Holder) -> None:
        with self._lock:
            self._held.pop(holder, None)


def half_of_memory() -> int:
    """Return half of the bytes of memory that this machine or container has."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in _CGROUPS:
        try:
            found.append(int(Path(path).read_text()))
        except (OSError, ValueError):  # another version of cgroups, or "max"
            continue
    return min(found) // 2
