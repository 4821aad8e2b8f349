"""The blocking shell of a connection: for who has a thread to wait in, and no event loop.

Several requests may be on their way at once: `post` each, then take the answers as they come.
"""

import select
import socket
import time
from typing import Final, Self

from ..errors import RemoteProtocolError
from ..wire.codes import CommandFlag
from ..wire.command import Command
from ..wire.connection import Connection
from .aio import parse_address

__all__ = ["BlockingPeer", "connect"]

_PIECE: Final = 1 << 20  # bytes asked of the socket at once


class BlockingPeer:
    """Not for several threads. What the other end asks of us is not answered."""

    def __init__(self, end: socket.socket, address: str) -> None:
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = end
        self._address = address
        self._wire = Connection()
        self._answers: dict[int, Command] = {}  # that were not asked for yet
        self._unsent: list[bytes] = []
        self._buffer = bytearray(_PIECE)
        self._view = memoryview(self._buffer)
        self.is_closed = False

    def __str__(self) -> str:
        return self._address

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def post(self, request: Command) -> int:
        """The `opaque` of its answer. It travels with the next `send` or wait, with others.

        Raises LocalProtocolError.
        """
        opaque, data = self._wire.ask(request)
        self._unsent.append(data)
        return opaque

    def answers(self, timeout: float) -> list[Command]:
        """Those that came since, at least one. Raises TimeoutError or ConnectionError."""
        if not self._answers:
            self.send(timeout)
        deadline = time.monotonic() + timeout
        while not self._answers:
            self._receive(deadline, timeout)
        found = list(self._answers.values())
        self._answers.clear()
        return found

    def answer(self, opaque: int, timeout: float) -> Command:
        """That one; others are kept. Raises TimeoutError or ConnectionError."""
        self.send(timeout)
        deadline = time.monotonic() + timeout
        while opaque not in self._answers:
            self._receive(deadline, timeout)
        return self._answers.pop(opaque)

    def ask(self, request: Command, timeout: float) -> Command:
        """Raises TimeoutError, ConnectionError or LocalProtocolError."""
        opaque = self.post(request)
        try:
            return self.answer(opaque, timeout)
        finally:
            self._wire.settle(opaque)

    def send(self, timeout: float) -> None:
        """Send what was posted, now. Raises TimeoutError or ConnectionError.

        Answers that come meanwhile are read: a server takes no more requests of a peer that does
        not read its answers, and both would wait.
        """
        if self.is_closed:
            raise ConnectionError(f"{self} closed the connection")
        if not self._unsent:
            return
        data, self._unsent = memoryview(b"".join(self._unsent)), []
        deadline = time.monotonic() + timeout
        while data:
            self._socket.settimeout(0)
            try:
                data = data[self._socket.send(data) :]
            except BlockingIOError:
                self._wait_to_send(deadline, timeout)
            except OSError as error:
                raise self._lost(error) from error

    def _wait_to_send(self, deadline: float, timeout: float) -> None:
        ready = select.poll()
        ready.register(self._socket, select.POLLIN | select.POLLOUT)
        events = ready.poll(max(deadline - time.monotonic(), 0) * 1000)
        if not events:
            self.close()  # part of a frame may have gone
            raise self._timeout(timeout)
        if events[0][1] & select.POLLIN:
            self._receive(deadline, timeout)

    def _receive(self, deadline: float, timeout: float) -> None:
        """Read what is there, or wait for it, and keep the answers in it."""
        self._socket.settimeout(self._left(deadline, timeout))
        try:
            size = self._socket.recv_into(self._buffer)
        except TimeoutError:
            raise self._timeout(timeout) from None
        except OSError as error:
            raise self._lost(error) from error
        if not size:
            self.close()
            raise ConnectionError(f"{self} closed the connection")
        try:
            found = self._wire.receive(bytes(self._view[:size]))
        except RemoteProtocolError as error:
            raise self._lost(error) from error
        for one in found:
            if one.flag & CommandFlag.RESPONSE:
                self._answers[one.opaque] = one

    def _left(self, deadline: float, timeout: float) -> float:
        left = deadline - time.monotonic()
        if left <= 0:
            raise self._timeout(timeout)
        return left

    def _timeout(self, timeout: float) -> TimeoutError:
        return TimeoutError(f"{self} did not answer in {timeout:g} s")

    def _lost(self, error: Exception) -> ConnectionError:
        self.close()
        return ConnectionError(f"{self}: {error}")

    @property
    def is_idle(self) -> bool:
        """Whether it can be used for something else: nothing is on its way, and the other end has
        not closed it."""
        if self.is_closed or self._wire.outstanding or self._unsent or self._answers:
            return False
        try:
            self._socket.settimeout(0)
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False  # closed, or it says something unasked

    def close(self) -> None:
        """At once. May be called again."""
        self.is_closed = True
        self._socket.close()


def connect(address: str, timeout: float = 3.0) -> BlockingPeer:
    """Raises ConnectionError or TimeoutError, ValueError for what is no address."""
    try:
        return BlockingPeer(socket.create_connection(parse_address(address), timeout), address)
    except TimeoutError:
        raise TimeoutError(f"{address} did not accept a connection in {timeout:g} s") from None
    except OSError as error:
        raise ConnectionError(f"{address}: {error}") from error
