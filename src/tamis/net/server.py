"""A server of RocketMQ's protocol: connections, and for each request the handler a table names.

A handler is a function of the decoded header and the request. It gives an Answer; or a coroutine
that does; or None, and then answers by `request.answer` when it can, or never.
"""

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..errors import LocalProtocolError, ResponseError
from ..wire import command as commands
from ..wire.codes import CommandFlag, ResponseCode
from ..wire.command import Command
from ..wire.frame import Encoding, frame
from ..wire.headers import Header
from .aio import Peer, Take

__all__ = ["Answer", "Handler", "Request", "Result", "Route", "Server", "needless_header"]

log = logging.getLogger(__name__)

IDLE_SECONDS: Final = 120.0  # without a byte either way a connection is closed, as RocketMQ does
_SCAN_SECONDS: Final = 10.0
_CLOSE_SECONDS: Final = 1.0  # for peers to take their last answers when the server closes
_WRITE_SIZE: Final = 256 * 2**10  # bytes of answers to gather for one write
MOST_CONNECTIONS: Final = 20_000
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


Result = Answer | None | Coroutine[Any, Any, Answer | None]
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
    ) -> None:
        self._routes = routes
        self._take: Take | None = None
        self._on_close = on_close
        self._idle_seconds = idle_seconds
        self._most_connections = most_connections
        self._listening: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self.peers: set[Peer] = set()

    async def bind(self, host: str, port: int) -> int:
        """Takes a port; gives which, for the system picks one for 0. Raises OSError."""
        loop = asyncio.get_running_loop()
        # a deep queue: many clients come back at once after a restart
        server = await loop.create_server(
            self._connected, host, port, backlog=1024, start_serving=False
        )
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
        self._spawn(self._close_idle())
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
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._is_empty.wait()
        for peer in list(self.peers):
            peer.abort()
        await self._is_empty.wait()
        for server in self._listening:
            await server.wait_closed()
        self._listening.clear()

    def _connected(self) -> Peer:
        return _ServerPeer(self)

    def _serve(self, peer: Peer, requests: list[Command]) -> None:
        written, size = list[bytes](), 0
        for at, command in enumerate(requests):
            request = Request(peer, command)
            answer = self._answer(request)
            if answer is not None and (data := request.encode(answer)):
                written.append(data)
                size += len(data)
                if size >= _WRITE_SIZE:
                    peer.write(b"".join(written))
                    written.clear()
                    size = 0
                    if peer.postpone(requests[at + 1 :]):
                        return
        if written:
            peer.write(written[0] if len(written) == 1 else b"".join(written))

    def _answer(self, request: Request) -> Answer | None:
        command = request.command
        route = self._routes.get(command.code)
        if route is None:
            remark = f" request type {command.code} not supported"
            return Answer(code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
        try:
            header = None
            if route.header is not None:
                header = route.header.from_fields(command.fields, letters=route.letters)
            result = route.handle(header, request)
        except Exception as error:
            return self._failed(request, error)
        if result is None or isinstance(result, Answer):
            return result
        # one that is cancelled before its first step would leave the handler's unawaited
        self._spawn(self._finish(request, result)).add_done_callback(lambda task: result.close())
        return None

    async def _finish(self, request: Request, work: Coroutine[Any, Any, Answer | None]) -> None:
        try:
            answer = await work
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
        task.add_done_callback(self._tasks.discard)
        return task

    async def _close_idle(self) -> None:
        while True:
            await asyncio.sleep(min(_SCAN_SECONDS, self._idle_seconds / 4))
            oldest = time.monotonic() - self._idle_seconds
            for peer in list(self.peers):
                if peer.last_active < oldest:
                    log.info("%s: closed: silent for %g s", peer, self._idle_seconds)
                    peer.abort()  # it may have answers that it does not read


class _ServerPeer(Peer):
    def __init__(self, server: Server) -> None:
        super().__init__(server._serve, server._on_close, take=server._take)
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if len(self._server.peers) >= self._server._most_connections:
            log.warning("%s: closed: %d connections are enough", self, len(self._server.peers))
            self.close()
            return
        self._server.peers.add(self)
        self._server._is_empty.clear()

    def connection_lost(self, error: Exception | None) -> None:
        self._server.peers.discard(self)
        if not self._server.peers:
            self._server._is_empty.set()
        super().connection_lost(error)
