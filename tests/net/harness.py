"""What tests of sockets need: a server on a port of its own, plain streams, and patience."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from tamis.net.server import Route, Server
from tamis.wire import command
from tamis.wire.command import Command
from tamis.wire.frame import FrameReader

PATIENCE = 20.0  # seconds


def run(work: Coroutine[Any, Any, None]) -> None:
    async def patiently() -> None:
        async with asyncio.timeout(6 * PATIENCE):
            await work

    asyncio.run(patiently())


async def until(condition: Callable[[], bool], state: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"still not so: {state()}"
        await asyncio.sleep(0.005)


@asynccontextmanager
async def serving(routes: Mapping[int, Route], **options: Any) -> AsyncIterator[tuple[Server, str]]:
    """The server and its address."""
    server = Server(routes, **options)
    port = await server.start("127.0.0.1", 0)
    try:
        yield server, f"127.0.0.1:{port}"
    finally:
        await server.close()


class Stream:
    """A client of bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._frames = FrameReader()
        self._found: list[Command] = []

    def send(self, *requests: Command) -> None:
        self.writer.write(b"".join(map(command.encode, requests)))

    async def answer(self) -> Command:
        while not self._found:
            data = await asyncio.wait_for(self.reader.read(65_536), PATIENCE)
            assert data, "the connection was closed"
            self._found += map(command.decode, self._frames.feed(data))
        return self._found.pop(0)

    async def rest(self) -> bytes:
        """Until the other side closes. A connection reset is an end too."""
        try:
            return await asyncio.wait_for(self.reader.read(), PATIENCE)
        except ConnectionError:
            return b""


@asynccontextmanager
async def stream(address: str, limit: int = 65_536) -> AsyncIterator[Stream]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=limit)
    try:
        yield Stream(reader, writer)
    finally:
        writer.transport.abort()
        with suppress(ConnectionError):
            await writer.wait_closed()
