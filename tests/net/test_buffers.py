"""What connections keep in memory has one limit: the greediest are paused, then closed."""

import logging
import socket
import struct
from contextlib import AsyncExitStack
from typing import Any

import pytest
from net.harness import Stream, run, serving, stream, until

from tamis.net.buffers import Buffers
from tamis.net.server import Answer, Request, Route, needless_header
from tamis.wire.command import Command, encode

ECHO, LARGE = 1000, 1001
MIB = 2**20


def routes() -> dict[int, Route]:
    def large(request: Request) -> Answer:
        return Answer(body=bytes(256 * 1024))

    return {
        ECHO: Route(None, needless_header(lambda request: Answer(body=request.body))),
        LARGE: Route(None, needless_header(large)),
    }


async def is_served(client: Stream) -> None:
    client.send(Command(code=ECHO, opaque=7, body=b"x"))
    assert (await client.answer()).body == b"x"


def test_parts_of_frames_are_limited_for_all_connections_together(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each says that 8 MiB follow, and sends 2: 32 MiB where 4 are allowed."""
    limit = 4 * MIB

    async def main() -> None:
        async with AsyncExitStack() as stack:
            server, address = await stack.enter_async_context(
                serving(routes(), connection_memory=limit)
            )
            good = await stack.enter_async_context(stream(address))
            most = 0
            for _ in range(16):
                bad = await stack.enter_async_context(stream(address))
                bad.writer.write(struct.pack(">iI", 8 * MIB, 10) + bytes(2 * MIB))
                await is_served(good)
                most = max(most, server.buffers.total)
            await until(lambda: server.buffers.paused > 0, lambda: server.buffers.total)
            await is_served(good)
            assert max(most, server.buffers.total) < 2 * limit
            assert good.writer.transport.is_closing() is False

    with caplog.at_level(logging.WARNING, "tamis.net"):
        run(main())
    assert "not read from" in caplog.text


def test_answers_that_are_not_read_are_limited_for_all_connections_together(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limit = 4 * MIB

    async def main() -> None:
        async with AsyncExitStack() as stack:
            server, address = await stack.enter_async_context(
                serving(routes(), connection_memory=limit)
            )
            good = await stack.enter_async_context(stream(address))
            for _ in range(8):
                slow = await stack.enter_async_context(stream(address, limit=1024))
                slow.send(*(Command(code=LARGE, opaque=i) for i in range(40)))
                await is_served(good)
            await until(lambda: server.buffers.closed > 0, lambda: server.buffers.total)
            await until(lambda: server.buffers.total <= 2 * limit, lambda: server.buffers.total)
            await is_served(good)
            assert len(server.peers) < 9

    with caplog.at_level(logging.WARNING, "tamis.net"):
        run(main())
    assert "connections hold too much (connection_memory): closed" in caplog.text


def test_answers_that_are_not_read_are_kept_where_they_count() -> None:
    """The system would take megabytes of each connection, which no limit of ours would see."""

    async def main() -> None:
        async with serving(routes()) as (server, address):
            host, _, port = address.rpartition(":")
            with socket.socket() as slow:
                slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                slow.connect((host, int(port)))
                slow.sendall(b"".join(encode(Command(code=LARGE, opaque=i)) for i in range(8)))
                await until(lambda: server.buffers.total > MIB, lambda: server.buffers.total)

    run(main())


class Holder:
    """A connection, as the budget sees it."""

    def __init__(self, size: int) -> None:
        self.buffered = size
        self.is_paused = self.is_aborted = False

    def pause_reading(self, why: int) -> None:
        self.is_paused = True

    def resume_reading(self, why: int) -> None:
        self.is_paused = False

    def abort(self) -> None:
        self.is_aborted = True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_greediest_are_paused_first_then_closed_and_the_others_go_on() -> None:
    clock = Clock()
    buffers = Buffers(1000_000, clock)
    greedy, small = Holder(900_000), [Holder(50_000) for _ in range(4)]
    for one in (greedy, *small):
        buffers.note(one, one.buffered)
    assert (buffers.total, greedy.is_paused) == (1_100_000, True)
    assert not any(one.is_paused for one in small)
    clock.now = 5.0
    buffers.review()
    assert greedy.is_paused
    assert not greedy.is_aborted
    clock.now = 11.0  # it had time enough
    buffers.review()
    assert greedy.is_aborted
    assert buffers.total == 200_000
    assert not any(one.is_aborted for one in small)


def test_who_was_paused_is_read_from_again_when_there_is_room() -> None:
    buffers = Buffers(1000_000, Clock())
    greedy, other = Holder(900_000), Holder(200_000)
    for one in (greedy, other):
        buffers.note(one, one.buffered)
    assert greedy.is_paused
    greedy.buffered = 100_000  # it has read some
    buffers.review()
    assert not greedy.is_paused
    assert buffers.total == 300_000
    buffers.forget(greedy)
    buffers.note(other, 0)
    assert buffers.total == 0


def test_who_sends_much_is_read_from_in_turns_and_loses_nothing() -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            it, address = await stack.enter_async_context(serving(routes()))
            senders = [await stack.enter_async_context(stream(address)) for _ in range(12)]
            one = await stack.enter_async_context(stream(address))
            waiting, real = list[int](), it._read_later

            def read_later(peer: Any) -> None:
                real(peer)
                waiting.append(len(it._flooding))

            it._read_later = read_later  # type: ignore[method-assign]
            bodies = [bytes([number]) * (2 * MIB) for number in range(12)]
            for number, sender in enumerate(senders):
                sender.send(Command(code=ECHO, opaque=number, body=bodies[number]))
            await is_served(one)
            for body, sender in zip(bodies, senders, strict=True):
                assert (await sender.answer()).body == body
            assert max(waiting) > 1  # they did wait for each other
            assert not it._flooding

    run(main())
