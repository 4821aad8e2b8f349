"""The blocking shell of a connection: for who has a thread to wait in, and no event loop.

Several requests may be on their way at once: `post` each, then take the answers as they come.
"""

import contextlib
import select
import socket
import ssl
import time
from typing import Final, Self

from ..errors import RemoteProtocolError
from ..security import INSECURE, ClientTls, Credentials, Security
from ..security.credentials import signed
from ..wire.codes import CommandFlag
from ..wire.command import Command
from ..wire.connection import Connection
from . import certificates
from .addresses import parse_address
from .tls import TlsFailure, TlsStream, explain, server_name

__all__ = ["BlockingPeer", "connect"]

_PIECE: Final = 1 << 20  # bytes asked of the socket at once
_HANDSHAKE_PIECE: Final = 65_536


class BlockingPeer:
    """Not for several threads. What the other end asks of us is not answered. Requests are signed
    by `credentials`, and encrypted by `tls`, whose handshake is complete."""

    def __init__(
        self,
        end: socket.socket,
        address: str,
        credentials: Credentials | None = None,
        tls: "_Tls | None" = None,
    ) -> None:
        self._credentials = credentials
        self._tls = tls
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
        if self._credentials is not None:
            request = signed(request, self._credentials)
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
        plain, self._unsent = b"".join(self._unsent), []
        try:
            data = memoryview(
                plain if self._tls is None else b"".join(self._tls.stream.send(plain))
            )
        except ssl.SSLError as error:
            raise self._lost(error) from error
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
        self._take(size)

    def _take(self, size: int) -> None:
        """Keep the answers in what was read."""
        data: bytes = bytes(self._view[:size])
        try:
            if self._tls is not None:
                data = self._tls.stream.receive(data)
            found = self._wire.receive(data)
        except (RemoteProtocolError, ssl.SSLError) as error:
            raise self._lost(error) from error
        for one in found:
            if one.flag & CommandFlag.RESPONSE:
                self._answers[one.opaque] = one
        if self._tls is not None and self._tls.stream.is_ended and not self._answers:
            self.close()
            raise ConnectionError(f"{self} closed the connection")

    def _left(self, deadline: float, timeout: float) -> float:
        left = deadline - time.monotonic()
        if left <= 0:
            raise self._timeout(timeout)
        return left

    def _timeout(self, timeout: float) -> TimeoutError:
        return TimeoutError(f"{self} did not answer in {timeout:g} s")

    def _lost(self, error: Exception) -> ConnectionError:
        self.close()
        if isinstance(error, ssl.SSLError) and self._tls is not None:
            return TlsFailure(f"{self}: {explain(error, self._tls.wanted, self._tls.name)}")
        return ConnectionError(f"{self}: {error}")

    @property
    def is_idle(self) -> bool:
        """Whether it can be used for something else: nothing is on its way, and the other end has
        not closed it."""
        if self.is_closed or self._wire.outstanding or self._unsent or self._answers:
            return False
        self._socket.settimeout(0)
        try:
            if self._tls is None:
                self._socket.recv(1, socket.MSG_PEEK)
                return False  # closed, or it says something unasked
            # with TLS there may be something for TLS itself
            while size := self._socket.recv_into(self._buffer):
                if self._tls.stream.receive(bytes(self._view[:size])):
                    break
        except BlockingIOError:
            return not (self._tls is not None and self._tls.stream.is_ended)
        except OSError:
            pass
        return False

    def close(self) -> None:
        """At once. May be called again."""
        self.is_closed = True
        self._socket.close()


class _Tls:
    """The TLS of a connection, and what was wanted of it."""

    def __init__(self, tls: ClientTls, address: str) -> None:
        """Raises ConfigError."""
        self.wanted = tls
        self.name = server_name(tls, parse_address(address)[0])
        self.stream = TlsStream(tls.context(), server_side=False, name=self.name)
        self._address = address

    def shake_hands(self, end: socket.socket, deadline: float) -> None:
        """Raises OSError."""
        data = b""
        try:
            while not self.stream.shake(data):
                self._send(end, deadline)
                end.settimeout(max(deadline - time.monotonic(), 0.001))
                data = end.recv(_HANDSHAKE_PIECE)
                if not data:
                    raise ConnectionResetError
            self._send(end, deadline)
        except TimeoutError:
            raise
        except OSError as error:
            if isinstance(error, ssl.SSLError):
                with contextlib.suppress(OSError):
                    self._send(end, deadline)  # why it fails
            names: list[str] = []
            if certificates.is_wrong_name(error):
                left = deadline - time.monotonic()
                names = certificates.names(self._address, self.wanted, left)
            why = explain(error, self.wanted, self.name, names)
            raise TlsFailure(f"{self._address}: {why}") from error

    def _send(self, end: socket.socket, deadline: float) -> None:
        end.settimeout(max(deadline - time.monotonic(), 0.001))
        end.sendall(self.stream.flush())


def connect(address: str, timeout: float = 3.0, *, security: Security = INSECURE) -> BlockingPeer:
    """Raises ConnectionError or TimeoutError, ValueError for what is no address; ConfigError for
    files of `security.tls` that can't be used."""
    place = parse_address(address)
    tls = _Tls(security.tls, address) if security.tls is not None else None
    deadline = time.monotonic() + timeout
    end = None
    try:
        end = socket.create_connection(place, timeout)
        if tls is not None:
            tls.shake_hands(end, deadline)
        return BlockingPeer(end, address, security.credentials, tls)
    except BaseException as error:
        if end is not None:
            end.close()
        if isinstance(error, TimeoutError):
            what = "accept a connection" if end is None else "complete a TLS handshake"
            raise TimeoutError(f"{address} did not {what} in {timeout:g} s") from None
        if isinstance(error, OSError) and not isinstance(error, TlsFailure):
            raise ConnectionError(f"{address}: {error}") from error
        raise
