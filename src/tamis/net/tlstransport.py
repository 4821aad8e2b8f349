"""The asyncio shell of TLS: a protocol to the socket's transport, a transport to a `Peer`.

Plain text is given to the peer in the pieces in which it came, and what the peer writes is
encrypted at once: buffers, limits and pauses are those of the socket's transport.
"""

import asyncio
import math
import ssl
import time
from collections.abc import Callable
from typing import Any, Final, cast

from ..security import ClientTls
from .handshakes import Handshakes
from .tls import HANDSHAKE, TlsFailure, TlsStream, explain

__all__ = ["ClientTransport", "ServerTransport"]

_MOST_HELLO: Final = 32_768  # bytes of a client's hello; it is a few hundred
_TURN: Final = 0.002  # seconds of decrypting what came of one connection, then it waits its turn


class _TlsTransport(asyncio.Transport, asyncio.Protocol):
    """What both ends have in common."""

    def __init__(self, peer: asyncio.Protocol) -> None:
        super().__init__()
        self._peer = peer
        self._raw: asyncio.Transport | None = None
        self._stream: TlsStream | None = None

    # Called by the socket's transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        stream = self._stream
        if stream is None or not stream.is_established:
            self._shake(data)
        else:
            self._receive(stream, data)

    def _shake(self, data: bytes) -> None:
        raise NotImplementedError

    def _receive(self, stream: TlsStream, data: bytes, until: float = math.inf) -> None:
        try:
            plain = stream.receive(data, until)
        except ssl.SSLError as error:
            self._failed(stream, error)
            return
        self._flush(stream)
        if plain:
            self._peer.data_received(plain)
        if stream.is_ended:
            self.close()

    def _failed(self, stream: TlsStream, error: ssl.SSLError) -> None:
        """The other end is told, and the connection closed."""
        self._flush(stream)
        if self._raw is not None:
            self._raw.close()

    def _flush(self, stream: TlsStream) -> None:
        data = stream.flush()
        if data and self._raw is not None and not self._raw.is_closing():
            self._raw.write(data)

    def pause_writing(self) -> None:
        self._peer.pause_writing()

    def resume_writing(self) -> None:
        self._peer.resume_writing()

    # Called by the peer.

    def write(self, data: Any) -> None:
        stream, raw = self._stream, self._raw
        if stream is None or not stream.is_established or raw is None or raw.is_closing():
            return  # it has asked nothing yet, or hears nothing any more
        try:
            records = stream.send(data)
        except ssl.SSLError as error:
            self._failed(stream, error)
            return
        if len(records) == 1:
            raw.write(records[0])
        else:
            raw.writelines(records)  # a copy less of what is long

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default if self._raw is None else self._raw.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._raw is not None:
            self._raw.set_write_buffer_limits(high=high, low=low)

    def get_write_buffer_size(self) -> int:
        return 0 if self._raw is None else self._raw.get_write_buffer_size()

    def is_closing(self) -> bool:
        return self._raw is None or self._raw.is_closing()

    def pause_reading(self) -> None:
        if self._raw is not None:
            self._raw.pause_reading()

    def resume_reading(self) -> None:
        if self._raw is not None:
            self._raw.resume_reading()

    def close(self) -> None:
        raw, stream = self._raw, self._stream
        if raw is None or raw.is_closing():
            return
        if stream is not None and stream.is_established:
            raw.write(stream.end())
        raw.close()

    def abort(self) -> None:
        if self._raw is not None:
            self._raw.abort()


class ClientTransport(_TlsTransport):
    """The peer is told of a connection when the handshake is complete, which `established` waits
    for. It raises OSError: an `ssl.SSLError`, or what became of the connection."""

    def __init__(
        self, peer: asyncio.Protocol, context: ssl.SSLContext, tls: ClientTls, name: str
    ) -> None:
        super().__init__(peer)
        self._stream = TlsStream(context, server_side=False, name=name)
        self._tls = tls
        self._name = name
        self._failure: ssl.SSLError | None = None
        self.established: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._shake(b"")

    def _shake(self, data: bytes) -> None:
        stream = self._stream
        assert stream is not None
        try:
            is_complete = stream.shake(data)
        except ssl.SSLError as error:
            self._failed(stream, error)
            return
        self._flush(stream)
        if not is_complete:
            return
        if self.established.done():  # given up
            self.abort()
            return
        self._peer.connection_made(self)
        self.established.set_result(None)
        self._receive(stream, b"")

    def _failed(self, stream: TlsStream, error: ssl.SSLError) -> None:
        self._failure = error
        super()._failed(stream, error)
        if not self.established.done():
            self.established.set_exception(error)

    def connection_lost(self, error: Exception | None) -> None:
        stream, self._raw = self._stream, None
        if stream is not None and stream.is_established:
            if self._failure is not None:
                error = TlsFailure(explain(self._failure, self._tls, self._name))
            self._peer.connection_lost(error)
        if not self.established.done():
            self.established.set_exception(error or ConnectionResetError())


class ServerTransport(_TlsTransport):
    """Tells by the first byte whether a client speaks TLS. If it does not and need not, it is no
    longer here: the socket's transport and the peer are made known to each other.

    The peer is told of a connection at once, and counts; it hears and says nothing before the
    handshake is complete.
    """

    def __init__(
        self,
        peer: asyncio.Protocol,
        handshakes: Handshakes,
        go_plain: Callable[[asyncio.Transport], None] | None,
    ) -> None:
        """`go_plain`: gives the peer another transport; None: whoever does not speak TLS is
        closed."""
        super().__init__(peer)
        self._handshakes = handshakes
        self._go_plain = go_plain
        self._hello: list[bytes] | None = []  # that waits for its turn; None: it was answered
        self._hello_size = 0
        self._waits = False
        self._is_paused = False

    def __str__(self) -> str:
        return str(self._peer)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._peer.connection_made(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._handshakes.drop(self)
        self._raw = None
        self._peer.connection_lost(error)

    def _shake(self, data: bytes) -> None:
        if self._stream is None:
            if data[0] != HANDSHAKE:
                self._take_plain(data)
                return
            self._stream = TlsStream(self._handshakes.context, server_side=True)
            self._handshakes.begin(self)
        if self._hello is None:
            self._step(self._stream, data)
            return
        self._hello.append(data)
        self._hello_size += len(data)
        if self._hello_size > _MOST_HELLO:
            self._handshakes.fail(self, f"its hello has more than {_MOST_HELLO} bytes")
            self.abort()
        else:
            self._wait_in_turn()

    def _take_plain(self, data: bytes) -> None:
        raw = self._raw
        if raw is None:
            return
        if self._go_plain is None:
            self._handshakes.refuse_plain(self)
            self.abort()
            return
        self._raw = None
        raw.set_protocol(self._peer)
        self._go_plain(raw)
        self._peer.data_received(data)

    def go_on(self) -> None:
        """It is its turn."""
        stream, hello = self._stream, self._hello
        self._waits = False
        if stream is None or self._raw is None or self._raw.is_closing():
            return
        if hello is not None:
            self._hello = []
            self._step(stream, b"".join(hello))
        else:
            self._receive(stream, b"")
        if not self._waits and not self._is_paused:
            super().resume_reading()

    def _wait_in_turn(self) -> None:
        if not self._waits:
            self._waits = True
            if not self._is_paused:
                super().pause_reading()
            self._handshakes.wait_in_turn(self)

    def _receive(self, stream: TlsStream, data: bytes, until: float = 0.0) -> None:
        """Records of a byte each take ten milliseconds and more: others are served between."""
        super()._receive(stream, data, until or time.monotonic() + _TURN)
        if stream.rest:
            self._wait_in_turn()

    def _step(self, stream: TlsStream, data: bytes) -> None:
        try:
            is_complete = stream.shake(data)
        except ssl.SSLError as error:
            self._failed(stream, error)
            return
        answer = stream.flush()
        if answer and self._raw is not None:
            self._hello = None  # what comes now takes no time worth mentioning
            self._raw.write(answer)
        if is_complete:
            self._hello = None
            self._handshakes.complete(self)
            self._receive(stream, b"")

    def _failed(self, stream: TlsStream, error: ssl.SSLError) -> None:
        what = "TLS" if stream.is_established else "TLS handshake"
        reason = (error.reason or str(error)).lower().replace("_", " ")
        self._handshakes.fail(self, f"{what} failed: {reason}")
        super()._failed(stream, error)

    def get_write_buffer_size(self) -> int:
        """With what waits to be decrypted: all that is kept for the connection is counted."""
        waiting = self._stream.rest if self._stream is not None else 0
        return super().get_write_buffer_size() + waiting

    def pause_reading(self) -> None:
        self._is_paused = True
        if not self._waits:
            super().pause_reading()

    def resume_reading(self) -> None:
        self._is_paused = False
        if not self._waits:
            super().resume_reading()
