"""A server of RocketMQ's protocol: connections, and for each request the handler a table names.

A handler is a function of the decoded header and the request. It gives an Answer; or a coroutine
or the steps of a long request that do; or None, and then answers by `request.answer` when it can,
or never.

Requests of a connection are served for a few milliseconds at a time; if it has sent more, it waits
its turn, and is not read from meanwhile. What takes longer than that is for `longwork`.
"""

import asyncio
import contextlib
import errno
import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from ..errors import ConfigError, LocalProtocolError, ResponseError
from ..security.tls import ServerContext, ServerTls
from ..wire import command as commands
from ..wire.codes import CommandFlag, ResponseCode
from ..wire.command import Command
from ..wire.connection import Connection
from ..wire.frame import MAX_HEADER, Encoding, frame
from ..wire.headers import Header
from . import descriptors
from .aio import BUSY, CROWDED, FLOODING, STOPPED, Peer, Take
from .buffers import MEMORY, Buffers
from .handshakes import Handshakes
from .longwork import Abandoned, Long, LongWork
from .rarely import Rarely
from .tasks import Tasks
from .tlstransport import ServerTransport

__all__ = ["Answer", "Gate", "Handler", "Request", "Result", "Route", "Server", "needless_header"]

log = logging.getLogger(__name__)

IDLE_SECONDS: Final = 120.0  # without a byte either way a connection is closed, as RocketMQ does
_SCAN_SECONDS: Final = 10.0
_REVIEW_SECONDS: Final = 1.0
_CLOSE_SECONDS: Final = 1.0  # for peers to take their last answers when the server closes
_WRITE_SIZE: Final = 256 * 2**10  # bytes of answers to gather for one write
_UNSENT: Final = 256 * 2**10  # bytes of answers the system keeps; what is more we keep, and count
MOST_CONNECTIONS: Final = 20_000
_TURN: Final = 0.003  # seconds to serve requests of one connection, then it is another's turn
_ROUND: Final = 0.01  # seconds to serve those that wait for their turn, then the loop goes on
_PIECE: Final = 64 * 2**10  # bytes to take apart at once
_LARGE: Final = 128 * 2**10  # bytes that come at once of who sends much
_FLOODING_AT_ONCE: Final = 4  # connections read from in one turn of the loop
_MOST_UNDER_WAY: Final = 256  # requests of one connection; until some are answered it waits
_CERTIFICATE_SECONDS: Final = 1.0  # between looks at the files of the certificate
_ONEWAY, _RESPONSE = int(CommandFlag.ONEWAY), int(CommandFlag.RESPONSE)  # plain: they are hot


@dataclass(slots=True)
class Answer:
    header: Header | None = None
    body: bytes = b""
    code: int = ResponseCode.SUCCESS
    remark: str | None = None
    json: bytes | None = None  # its header, ready but for the opaque (`%d`), where that is JSON


class Request:
    """A command, and whom to answer."""

    __slots__ = ("command", "peer")

    def __init__(self, peer: Peer, command: Command) -> None:
        self.peer = peer
        self.command = command

    @property
    def body(self) -> bytes:
        return self.command.body

    def encode(self, answer: Answer) -> bytes:
        """The frame of an answer; of a one-way request's, nothing."""
        request = self.command
        if request.flag & _ONEWAY:
            return b""
        if answer.json is not None and request.encoding is Encoding.JSON:
            with contextlib.suppress(LocalProtocolError):
                return frame(Encoding.JSON, answer.json % request.opaque, answer.body)
        command = Command(
            code=answer.code,
            opaque=request.opaque,
            flag=_RESPONSE,
            fields=answer.header.to_fields() if answer.header is not None else None,
            body=answer.body,
            remark=answer.remark,
            encoding=request.encoding,
        )
        try:
            return commands.encode(command)
        except LocalProtocolError as error:
            log.error("%s: the answer to request %d: %s", self.peer, request.code, error)
            command.code, command.remark = ResponseCode.SYSTEM_ERROR, str(error)
            command.fields, command.body = None, b""
            return commands.encode(command)

    def answer(self, answer: Answer) -> None:
        data = self.encode(answer)
        if data:
            self.peer.write(data)


Gate = Callable[[Peer, Command], str | None]  # why a request is refused
Result = Answer | None | Coroutine[Any, Any, Answer | None] | Long[Answer]
Handler = Callable[[Any, Request], Result]


@dataclass(frozen=True, slots=True)
class Route:
    """`letters`: the header travels under its one-letter names."""

    header: type[Header] | None
    handle: Handler
    letters: bool = False


def needless_header(handle: Callable[[Request], Result]) -> Handler:
    """For a handler whose request has no header."""
    return lambda header, request: handle(request)


class Server:
    """Listens from `start` to `close`. All of it runs in one event loop."""

    def __init__(
        self,
        routes: Mapping[int, Route],
        *,
        on_close: Callable[[Peer], None] = lambda peer: None,
        idle_seconds: float = IDLE_SECONDS,
        most_connections: int = MOST_CONNECTIONS,
        connection_memory: int = MEMORY,
        tasks: Tasks | None = None,
        gate: Gate | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        """`connection_memory`: bytes that all connections may keep together. `tasks`: where its
        own background tasks belong. `gate` is asked about each request first. Raises ConfigError
        for a certificate that can't be used."""
        self._routes = routes
        self._gate = gate
        self._take: Take | None = None
        self._on_close = on_close
        self._idle_seconds = idle_seconds
        self._most_connections = most_connections
        self._listening: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._background = tasks if tasks is not None else Tasks()
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self._in_turn: dict[_ServerPeer, None] = {}  # those with requests that wait
        self._flooding: dict[_ServerPeer, None] = {}  # those that are not read from for a moment
        self._is_round_due = False
        self._refusals = Rarely(log)
        self.certificate: ServerContext | None = None
        self.handshakes: Handshakes | None = None
        self._takes_plain = True
        if tls is not None and tls.mode != "disabled":
            self.certificate = ServerContext(tls)
            self.handshakes = Handshakes(self.certificate)
            self._takes_plain = tls.mode == "permissive"
        self.refused = 0  # connections, since the start
        self.work = LongWork()
        self.buffers = Buffers(connection_memory)
        self.peers: set[Peer] = set()

    async def bind(self, host: str, port: int) -> int:
        """Takes a port; gives which, for the system picks one for 0. Raises OSError."""
        descriptors.count(self.peers)
        loop = asyncio.get_running_loop()
        # a deep queue: many clients come back at once after a restart
        connected = self._connected if self.handshakes is None else self._connected_by_tls
        server = await loop.create_server(connected, host, port, backlog=1024, start_serving=False)
        if not server.sockets:  # asyncio passes over an address for which it gets no socket
            raise OSError(errno.EMFILE, f"no socket for {host}:{port}; are too many files open?")
        self._listening.append(server)
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    async def adopt(self, end: socket.socket) -> None:
        """Serves who has the other end of a pair: nobody else can connect."""
        await asyncio.get_running_loop().connect_accepted_socket(self._connected, end)

    async def serve(
        self, routes: Mapping[int, Route] | None = None, take: Take | None = None
    ) -> None:
        """Begins to take connections on the ports bound. `take`: see `Peer`."""
        if routes is not None:
            self._routes = routes
        self._take = take
        self._background.keep("idle connections", self._close_idle)
        self._background.keep("connection memory", self._review_buffers)
        if self.certificate is not None:
            self._background.keep("certificate", self._watch_certificate)
        for server in self._listening:
            await server.start_serving()

    async def start(self, host: str, port: int) -> int:
        """Both at once."""
        bound = await self.bind(host, port)
        await self.serve()
        return bound

    @property
    def tasks(self) -> int:
        return len(self._tasks)

    @property
    def background(self) -> Tasks:
        return self._background

    def stop_reading(self) -> None:
        """No more requests; answers still go out."""
        for server in self._listening:
            server.close()
        for peer in self.peers:
            peer.stop_reading()

    async def close(self) -> None:
        for server in self._listening:
            server.close()
        for peer in list(self.peers):
            peer.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._background.close()
        self.work.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._is_empty.wait()
        for peer in list(self.peers):
            peer.abort()
        await self._is_empty.wait()
        for server in self._listening:
            await server.wait_closed()
        self._listening.clear()
        descriptors.forget(self.peers)

    def _connected(self) -> Peer:
        return _ServerPeer(self)

    def _connected_by_tls(self) -> ServerTransport:
        assert self.handshakes is not None
        peer = _ServerPeer(self)
        return ServerTransport(peer, self.handshakes, peer.use if self._takes_plain else None)

    def _serve(self, peer: "_ServerPeer") -> None:
        """Answers requests of a connection for its share of time; it comes again if there are
        more."""
        until = time.monotonic() + _TURN
        written, size = list[bytes](), 0
        while not peer.is_full and peer.under_way < _MOST_UNDER_WAY:
            command = peer.next_request()
            if command is None:
                break
            request = Request(peer, command)
            answer = self._answer(peer, request)
            if answer is not None and (data := request.encode(answer)):
                written.append(data)
                size += len(data)
                if size >= _WRITE_SIZE:
                    peer.write(b"".join(written))
                    written.clear()
                    size = 0
            if time.monotonic() >= until:
                break
        if written:
            peer.write(written[0] if len(written) == 1 else b"".join(written))
        if not peer.has_requests:
            peer.resume_reading(BUSY)
        else:
            peer.pause_reading(BUSY)
            if peer.under_way >= _MOST_UNDER_WAY:
                peer.pause_reading(CROWDED)
            elif not peer.is_full:
                self._wait_in_turn(peer)

    def _wait_in_turn(self, peer: "_ServerPeer") -> None:
        self._in_turn[peer] = None
        if not self._is_round_due:
            self._is_round_due = True
            asyncio.get_running_loop().call_soon(self._serve_round)

    def _read_later(self, peer: "_ServerPeer") -> None:
        """A connection that sends much is read from again in another turn of the loop. The event
        loop would read megabytes of each of hundreds of them before it serves anybody else."""
        peer.pause_reading(FLOODING)
        if not self._flooding:
            asyncio.get_running_loop().call_soon(self._read_some)
        self._flooding[peer] = None

    def _read_some(self) -> None:
        for peer in list(islice(self._flooding, _FLOODING_AT_ONCE)):
            del self._flooding[peer]
            peer.resume_reading(FLOODING)
        if self._flooding:
            asyncio.get_running_loop().call_soon(self._read_some)

    def _serve_round(self) -> None:
        """Serves those that wait, each its share, for as long as the loop can be held up."""
        self._is_round_due = False
        until = time.monotonic() + _ROUND
        for peer in list(self._in_turn):
            del self._in_turn[peer]
            try:
                self._serve(peer)
            except Exception:  # the edge of a connection
                log.exception("%s: closed: its requests can't be served", peer)
                peer.abort()
            if time.monotonic() >= until:
                break
        if self._in_turn and not self._is_round_due:
            self._is_round_due = True
            asyncio.get_running_loop().call_soon(self._serve_round)

    def _answer(self, peer: "_ServerPeer", request: Request) -> Answer | None:
        command = request.command
        if self._gate is not None:  # before anything else, as RocketMQ's RPC hooks
            try:
                refusal = self._gate(peer, command)
            except Exception as error:
                return self._failed(request, error)
            if refusal is not None:
                return Answer(code=ResponseCode.SYSTEM_ERROR, remark=refusal)
        route = self._routes.get(command.code)
        if route is None:
            remark = f" request type {command.code} not supported"
            return Answer(code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
        try:
            header = None
            if route.header is not None:
                header = route.header.from_fields(command.fields, letters=route.letters)
            result = route.handle(header, request)
            if isinstance(result, Long):
                result = self.work.finish(peer, result)
        except Exception as error:
            return self._failed(request, error)
        if result is None or isinstance(result, Answer):
            return result
        # one that is cancelled before its first step would leave the handler's unawaited
        peer.began(command)
        task = self._spawn(self._finish(request, result))

        def ended(task: asyncio.Task[None]) -> None:
            result.close()
            peer.ended(command)
            if peer.under_way <= _MOST_UNDER_WAY // 2 and peer.is_crowded:
                peer.resume_reading(CROWDED)
                self._wait_in_turn(peer)

        task.add_done_callback(ended)
        return None

    async def _finish(self, request: Request, work: Coroutine[Any, Any, Answer | None]) -> None:
        try:
            answer = await work
        except Abandoned:
            return
        except Exception as error:
            answer = self._failed(request, error)
        if answer is not None:
            request.answer(answer)

    def _failed(self, request: Request, error: Exception) -> Answer:
        if isinstance(error, ResponseError):
            return Answer(code=error.code, remark=error.remark)
        log.exception("%s: request %d failed", request.peer, request.command.code, exc_info=error)
        return Answer(code=ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a request was not answered: %r", error, exc_info=error)

    async def _close_idle(self) -> None:
        while True:
            await asyncio.sleep(min(_SCAN_SECONDS, self._idle_seconds / 4))
            oldest = time.monotonic() - self._idle_seconds
            for peer in list(self.peers):
                if peer.last_active < oldest:
                    log.info("%s: closed: silent for %g s", peer, self._idle_seconds)
                    peer.abort()  # it may have answers that it does not read

    async def _review_buffers(self) -> None:
        while True:
            await asyncio.sleep(_REVIEW_SECONDS)
            self.buffers.review()

    async def _watch_certificate(self) -> None:
        certificate = self.certificate
        while certificate is not None:
            await asyncio.sleep(_CERTIFICATE_SECONDS)
            try:
                if await asyncio.to_thread(certificate.reload):
                    log.info("certificate %s: reloaded", certificate.tls.cert)
            except ConfigError as error:
                log.error("%s; the certificate that was loaded before stays in force", error)

    def _admit(self, peer: Peer) -> bool:
        """Whether there may be one more connection."""
        if len(self.peers) >= self._most_connections:
            why = f"{self._most_connections} connections are enough (most_connections)"
        elif not descriptors.has_room():
            why = f"the limit of open files leaves room for {descriptors.room()} (ulimit -n)"
        else:
            return True
        self.refused += 1
        self._refusals.warn(f"{peer}: closed: {why}")
        return False


class _ServerPeer(Peer):
    """A connection with its requests that wait."""

    def __init__(self, server: Server) -> None:
        super().__init__(_nobody, server._on_close, take=server._take)
        self._wire = Connection(max_header=MAX_HEADER)
        self._server = server
        self._undecoded: deque[bytes] = deque()
        self._at = 0  # in the first of them
        self._undecoded_size = 0
        self._requests: deque[Command] = deque()
        self._requests_size = 0  # bytes they came in
        self._under_way_size = 0
        self.under_way = 0  # requests whose answers are waited for, without those held

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self._server._admit(self):
            self.stop_reading()
            self.abort()
            return
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT)
        self._server.peers.add(self)
        self._server._is_empty.clear()

    def connection_lost(self, error: Exception | None) -> None:
        server = self._server
        server.peers.discard(self)
        server._in_turn.pop(self, None)
        server._flooding.pop(self, None)
        server.buffers.forget(self)
        self._wire = Connection()  # whoever still knows it is not to keep what it sent
        self._undecoded.clear()
        self._requests.clear()
        self._undecoded_size = self._requests_size = self._at = 0
        if not server.peers:
            server._is_empty.set()
        super().connection_lost(error)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._note_size()
        if len(data) >= _LARGE:
            self._server._read_later(self)

    def _deliver(self, data: bytes) -> None:
        self._undecoded.append(data)
        self._undecoded_size += len(data)
        if not self._pauses:
            self._server._serve(self)

    def _drain(self) -> None:
        if self.has_requests:
            self._server._serve(self)

    def resume_reading(self, why: int) -> None:
        super().resume_reading(why)
        if not self._pauses and self.has_requests:
            self._server._wait_in_turn(self)

    @property
    def has_requests(self) -> bool:
        """Whether there may be some that were not looked at."""
        return bool(self._requests or self._undecoded) and not self._pauses & STOPPED

    @property
    def is_crowded(self) -> bool:
        return bool(self._pauses & CROWDED)

    def next_request(self) -> Command | None:
        while not self._requests:
            self._requests_size = 0
            if not self._undecoded or self._pauses & STOPPED:
                return None
            piece = self._next_piece()
            self._requests.extend(self._decode(piece))
            self._requests_size = len(piece) if self._requests else 0
        return self._requests.popleft()

    def _next_piece(self) -> bytes:
        """Takes as much of what came as can be taken apart at once: a piece, or the whole of a
        frame that is longer."""
        data, at = self._undecoded[0], self._at
        size = _PIECE
        if not self._wire.pending:
            size = max(size, 4 + int.from_bytes(data[at : at + 4]))
        if len(data) - at <= size:
            self._undecoded.popleft()
            self._at = 0
        else:
            self._at = at + size
        self._undecoded_size -= min(size, len(data) - at)
        return data[at : at + size] if at or size < len(data) else data

    def began(self, request: Command) -> None:
        self.under_way += 1
        self._under_way_size += len(request.body)

    def ended(self, request: Command) -> None:
        self.under_way -= 1
        self._under_way_size -= len(request.body)

    def write(self, data: bytes) -> None:
        super().write(data)
        self._note_size()

    @property
    def buffered(self) -> int:
        """Bytes it makes us keep: parts of frames, requests, answers it does not read."""
        transport = self._transport
        return (
            self._wire.pending
            + self._undecoded_size
            + self._requests_size
            + self._under_way_size
            + self.kept
            + (transport.get_write_buffer_size() if transport is not None else 0)
        )

    def _note_size(self) -> None:
        if not self.is_closed:
            self._server.buffers.note(self, self.buffered)


def _nobody(peer: Peer, requests: list[Command]) -> None:
    raise AssertionError("a server takes its requests one by one")
