"""Who a client is: its address, its client id, and the unique keys it gives to messages."""

import itertools
import os
import socket
import struct
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Final

__all__ = ["UniqueKeys", "client_id", "local_address", "process"]

_counter: Final = itertools.count()
_process = 0  # how many forks this process is away from where it was loaded


def process() -> int:
    """Another number in a process that was forked off. (Asking for the process id is a system
    call; for each message that is too much: bench_client.)"""
    return _process


def _forked() -> None:
    global _process
    _process += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


@lru_cache(1)
def local_address() -> str:
    """This machine's, as RocketMQ's clients choose it: the first IPv4 that is not private to the
    host, else whatever there is. Nothing is sent anywhere for it.
    """
    try:
        found = [
            str(info[4][0])
            for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
        ]
    except OSError:
        found = []
    for address in found:
        if not address.startswith(("127.0", "192.168")):
            return address
    return found[-1] if found else "127.0.0.1"


def client_id(ip: str = "", instance: str = "", unit: str = "", suffix: str = "") -> str:
    """`ip@instance[@unit][@suffix]`, unlike any other unless `instance` is given.

    The process id is looked up each time: a forked child is somebody else.
    """
    instance = instance or f"{os.getpid()}#{time.monotonic_ns()}{next(_counter)}"
    return "@".join(filter(None, (ip or local_address(), instance, unit, suffix)))


class UniqueKeys:
    """RocketMQ's client-side message ids: 32 upper-case hexadecimal digits.

        4 bytes address   2 process id   4 of this object's own
        4 milliseconds since the month began, local time   2 a counter

    `MessageClientIDSetter`. A process that was forked off has other keys.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._process = -1
        self._prefix = ""
        self._base = self._until = 0.0
        self._count = int.from_bytes(os.urandom(2))

    def next(self) -> str:
        now = self._now()
        if not self._base <= now < self._until or _process != self._process:
            self._begin(now)
        self._count = (self._count + 1) & 0xFFFF
        since = int((now - self._base) * 1000)
        return f"{self._prefix}{since & 0xFFFFFFFF:08X}{self._count:04X}"

    def _begin(self, now: float) -> None:
        month = time.localtime(now)
        following = (month.tm_year + month.tm_mon // 12, month.tm_mon % 12 + 1)
        self._base = time.mktime((month.tm_year, month.tm_mon, 1, 0, 0, 0, 0, 0, -1))
        self._until = time.mktime((*following, 1, 0, 0, 0, 0, 0, -1))
        if _process != self._process:
            self._process = _process
            address = socket.inet_aton(local_address())
            own = struct.pack(">4sH4s", address, os.getpid() & 0xFFFF, os.urandom(4))
            self._prefix = own.hex().upper()
