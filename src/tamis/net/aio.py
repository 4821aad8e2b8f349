"""The asyncio shell of a connection: it moves bytes, times out what is not answered, and holds a
peer back that sends faster than it reads.
"""

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Callable
from functools import partial
from typing import Final, cast

from ..errors import RemoteProtocolError
from ..security import INSECURE, ClientTls, Credentials, Security
from ..security.credentials import signed
from ..wire.codes import CommandFlag
from ..wire.command import Command
from ..wire.connection import Connection
from ..wire.frame import MAX_FRAME
from . import certificates
from .addresses import parse_address
from .tls import TlsFailure, explain, server_name
from .tlstransport import ClientTransport

__all__ = ["Peer", "Settle", "Take", "connect", "connect_pair", "loop_factory", "parse_address"]

log = logging.getLogger(__name__)

_HIGH_WATER: Final = 4 * 2**20  # bytes waiting to be sent at which a peer is no longer read from
_LOW_WATER: Final = 1 * 2**20
_SILENCE: Final = 5.0  # seconds without an answer, or anything else

# Why a peer is not read from. It is read from again when there is no reason left.
FULL: Final = 1  # it does not read its answers
BUSY: Final = 2  # it has sent more requests than could be served in its turn
CROWDED: Final = 4  # too many of its requests are under way
GREEDY: Final = 8  # connections hold more memory than they may, and it holds much of it
STOPPED: Final = 16  # for good
FLOODING: Final = 32  # it sends much at once: others are read from first


Take = Callable[["Peer", bytes], int]
Settle = Callable[[Command | Exception], None]


class Peer(asyncio.Protocol):
    """Whoever is at the other end. `on_requests` gets all that came in one piece, at once.

    `take` is asked first, with bytes that begin with a whole frame: it may serve requests from the
    start on in a way of its own, and gives how many bytes that was. `holds_back`: one that does not
    read is not read from, as servers do; if both sides did, both might wait for ever. Requests of
    ours are signed by `credentials`.
    """

    def __init__(
        self,
        on_requests: Callable[["Peer", list[Command]], None],
        on_close: Callable[["Peer"], None] | None = None,
        max_frame: int = MAX_FRAME,
        take: Take | None = None,
        *,
        holds_back: bool = True,
        credentials: Credentials | None = None,
    ) -> None:
        self._credentials = credentials
        self._on_requests = on_requests
        self._take = take
        self._holds_back = holds_back
        self._drained: asyncio.Future[None] | None = None
        self._unwritten: list[bytes] = []  # of this turn of the loop
        self._silent_since: float | None = None
        self._on_close = on_close
        self._wire = Connection(max_frame)
        self._waiting: dict[int, Settle] = {}
        self._is_full = False
        self._pauses = 0  # reasons not to read from it
        self._transport: asyncio.Transport | None = None
        self.address: tuple[str, int] = ("", 0)
        self.last_active = self.last_received = time.monotonic()
        self.is_closed = False
        self._why = ""  # if more is known than that
        self.memo: object = None  # what whoever serves it keeps with it
        self.kept = 0  # bytes that whoever serves it keeps for it

    def __str__(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by class
        self._transport.set_write_buffer_limits(high=_HIGH_WATER, low=_LOW_WATER)
        name = transport.get_extra_info("peername")
        # the other end of a pair has no name
        self.address = (name[0], name[1]) if name else ("127.0.0.1", 0)

    def use(self, transport: asyncio.Transport) -> None:
        """From now on this one, which has the same socket."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self.last_active = self.last_received = time.monotonic()
        self._silent_since = None
        if self._take is not None and not self._pauses:
            data = self._wire.join(data)
            if not data:
                return
            taken = self._take(self, data)
            if taken == len(data):
                return
            data = data[taken:]
        self._deliver(data)

    def _deliver(self, data: bytes) -> None:
        commands = self._decode(data)
        if commands:
            self._on_requests(self, commands)

    def _decode(self, data: bytes) -> list[Command]:
        """The requests in `data`; whoever waits for an answer in it is told."""
        try:
            commands = self._wire.receive(data)
        except RemoteProtocolError as error:
            log.warning("%s: closed: %s", self, error)
            self.stop_reading()  # what follows can't be told apart
            self.close()
            return []
        if self._waiting:
            commands = [one for one in commands if not self._is_answer(one)]
        return commands

    def _is_answer(self, command: Command) -> bool:
        if not command.is_response:
            return False
        settle = self._waiting.pop(command.opaque, None)
        if settle is not None:
            settle(command)
        return True

    def pause_writing(self) -> None:
        """It does not read its answers: then it is not asked for more requests either."""
        self._is_full = True
        if self._holds_back:
            self.pause_reading(FULL)

    def resume_writing(self) -> None:
        if self._pauses & STOPPED:
            return
        self._is_full = False
        if self._holds_back:
            self._drain()
            if not self._is_full:
                self.resume_reading(FULL)
        else:
            self._wake()

    def _drain(self) -> None:
        """It takes answers again: for servers, which may have requests of it that wait."""

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = True
        self._transport = None
        if isinstance(error, TlsFailure):
            self._why = f"{self}: {error}"
        waiting, self._waiting = self._waiting, {}
        for settle in waiting.values():
            settle(self._lost())
        self._wake()
        if self._on_close is not None:
            self._on_close(self)

    def _lost(self) -> ConnectionError:
        return ConnectionError(self._why or f"{self} closed the connection")

    def _wake(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._drained = None

    # Called by us.

    async def drained(self) -> None:
        """It takes more, or it is gone. For clients."""
        while self._is_full and not self.is_closed:
            if self._drained is None:
                self._drained = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._drained)

    def write(self, data: bytes) -> None:
        """Whole frames. Dropped if the connection is gone: its peer can't be told anything."""
        if self._transport is not None and not self._transport.is_closing():
            self.last_active = time.monotonic()
            self._transport.write(data)

    def pause_reading(self, why: int) -> None:
        """What it sends from now on stays with the system, until the reason is gone."""
        if not self._pauses and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        self._pauses |= why

    def resume_reading(self, why: int) -> None:
        if not self._pauses & why:
            return
        self._pauses &= ~why
        if not self._pauses and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def stop_reading(self) -> None:
        """For good. What it sends from now on is not looked at."""
        self._is_full = True
        self.pause_reading(STOPPED)

    @property
    def is_full(self) -> bool:
        """It does not read what it is sent: nothing large should be added."""
        return self._is_full

    def tell(self, request: Command) -> None:
        """One-way."""
        request.flag |= CommandFlag.ONEWAY
        self._put(self._wire.ask(self._signed(request))[1])

    async def ask(self, request: Command, timeout: float) -> Command:
        """Its answer. Raises TimeoutError or ConnectionError."""
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[Command] = loop.create_future()
        opaque = self.post(request, partial(_resolve, waiting))
        # by hand: asyncio.timeout takes longer than all the rest
        timer = loop.call_later(timeout, _resolve, waiting, TimeoutError())
        began = time.monotonic()
        try:
            return await waiting
        except TimeoutError:
            self.doubt(began)
            raise
        finally:
            timer.cancel()
            self.forget(opaque)

    def post(self, request: Command, settle: Settle) -> int:
        """As `ask`, for those who don't wait here: `settle` is called with the answer, or with why
        there is none. They keep time themselves, and `forget` what is not waited for any more.

        Raises ConnectionError, LocalProtocolError.
        """
        if self.is_closed:
            raise self._lost()
        opaque, data = self._wire.ask(self._signed(request))
        self._put(data)
        self._waiting[opaque] = settle
        return opaque

    def _signed(self, request: Command) -> Command:
        return request if self._credentials is None else signed(request, self._credentials)

    def _put(self, data: bytes) -> None:
        if self._unwritten:
            self._unwritten.append(data)
        elif self._waiting:  # more may follow in this turn of the loop
            asyncio.get_running_loop().call_soon(self._write_all)
            self._unwritten.append(data)
        else:
            self.write(data)

    def doubt(self, since: float) -> None:
        """A request that was sent then (monotonic seconds) was not answered. If nothing at all is
        heard for a while, the other end may be gone without a word: no more of this connection."""
        if self.last_received >= since:
            self._silent_since = None
            return
        self._silent_since = min(since, self._silent_since or since)
        if not self._holds_back and time.monotonic() - self._silent_since >= _SILENCE:
            log.warning("%s: nothing is heard of it: the connection is given up", self)
            self.abort()

    def forget(self, opaque: int) -> None:
        if self._waiting.pop(opaque, None) is not None:
            self._wire.settle(opaque)

    def _write_all(self) -> None:
        """What was asked in one turn is written at once: a system call for all of it."""
        parts, self._unwritten = self._unwritten, []
        self.write(parts[0] if len(parts) == 1 else b"".join(parts))

    @property
    def host(self) -> str:
        return self.address[0]

    @property
    def local_host(self) -> str:
        """Our own end, as the other one sees it; empty if it has no name."""
        name = self._transport.get_extra_info("sockname") if self._transport is not None else None
        return name[0] if name else ""

    def close(self) -> None:
        """Once what was written is sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """At once."""
        if self._transport is not None:
            self._transport.abort()


def _resolve(waiting: "asyncio.Future[Command]", answer: Command | Exception) -> None:
    if waiting.done():
        return
    if isinstance(answer, Command):
        waiting.set_result(answer)
    else:
        waiting.set_exception(answer)


async def connect(
    address: str,
    timeout: float = 3.0,
    on_requests: Callable[[Peer, list[Command]], None] = lambda peer, requests: None,
    on_close: Callable[[Peer], None] | None = None,
    *,
    security: Security = INSECURE,
) -> Peer:
    """Raises ConnectionError or TimeoutError; ConfigError for files of `security.tls` that can't be
    used."""
    host, port = parse_address(address)
    peer = Peer(on_requests, on_close, holds_back=False, credentials=security.credentials)
    is_connected = False
    try:
        async with asyncio.timeout(timeout) as limit:
            if security.tls is None:
                await asyncio.get_running_loop().create_connection(lambda: peer, host, port)
            else:
                tls, name = security.tls, server_name(security.tls, host)
                shell = ClientTransport(peer, await _context(tls), tls, name)
                await asyncio.get_running_loop().create_connection(lambda: shell, host, port)
                is_connected = True
                await _shake_hands(shell, address, tls, name, limit.when() or 0)
    except TimeoutError:
        what = "complete a TLS handshake" if is_connected else "accept a connection"
        raise TimeoutError(f"{address} did not {what} in {timeout:g} s") from None
    except TlsFailure:
        raise
    except OSError as error:  # of several addresses, or of a name: not a ConnectionError
        raise ConnectionError(f"{address}: {error}") from error
    return peer


async def _context(tls: ClientTls) -> ssl.SSLContext:
    """The first one takes a while: the authorities of the system are read."""
    return await asyncio.to_thread(tls.context)


async def _shake_hands(
    shell: ClientTransport, address: str, tls: ClientTls, name: str, deadline: float
) -> None:
    """Raises TlsFailure, with the address."""
    try:
        await shell.established
    except OSError as error:
        names: list[str] = []
        if certificates.is_wrong_name(error):
            left = deadline - asyncio.get_running_loop().time()
            names = await asyncio.to_thread(certificates.names, address, tls, left / 2)
        raise TlsFailure(f"{address}: {explain(error, tls, name, names)}") from error
    except BaseException:  # nobody waits any more
        shell.abort()
        raise


async def connect_pair(end: socket.socket) -> Peer:
    """To who has the other end, in this process."""
    loop = asyncio.get_running_loop()
    _, peer = await loop.create_connection(
        lambda: Peer(lambda peer, requests: None, holds_back=False), sock=end
    )
    return peer


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Of the servers' event loop; None for asyncio's own."""
    try:
        import uvloop
    except ImportError:  # not on Windows
        return None
    return uvloop.new_event_loop
