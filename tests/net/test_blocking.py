"""The blocking shell: requests at once, answers in any order, and what ends it."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from net.harness import PATIENCE

from tamis.net import blocking
from tamis.net.server import Answer, Request, Route, Server, needless_header
from tamis.wire.command import Command

ECHO, LATER, NEVER = range(1000, 1003)


def echo(request: Request) -> Answer:
    return Answer(body=request.body)


async def later(request: Request) -> Answer:
    await asyncio.sleep(0.05)
    return Answer(body=b"late")


async def never(request: Request) -> Answer:
    await asyncio.sleep(3600)
    return Answer()


ROUTES = {
    code: Route(None, needless_header(handler))
    for code, handler in ((ECHO, echo), (LATER, later), (NEVER, never))
}


@contextmanager
def serving() -> Iterator[str]:
    """The address of a server in a thread of its own."""
    ready, address = threading.Event(), list[str]()

    async def serve() -> None:
        server = Server(ROUTES)
        port = await server.start("127.0.0.1", 0)
        done = asyncio.Event()
        address.append(f"127.0.0.1:{port}")
        stop.append(lambda: loop.call_soon_threadsafe(done.set))
        loop = asyncio.get_running_loop()
        ready.set()
        await done.wait()
        await server.close()

    stop: list[object] = []
    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(PATIENCE)
    try:
        yield address[0]
    finally:
        stop[0]()  # type: ignore[operator]
        thread.join()


def test_requests_travel_together_and_answers_come_in_any_order() -> None:
    with serving() as address, blocking.connect(address) as peer:
        late = peer.post(Command(code=LATER))
        early = [peer.post(Command(code=ECHO, body=b"%d" % i)) for i in range(100)]
        assert peer.answer(late, PATIENCE).body == b"late"
        assert [peer.answer(one, PATIENCE).body for one in early] == [b"%d" % i for i in range(100)]
        assert peer.ask(Command(code=ECHO, body=b"again"), PATIENCE).body == b"again"


def test_answers_are_given_as_they_come() -> None:
    with serving() as address, blocking.connect(address) as peer:
        asked = {peer.post(Command(code=ECHO, body=bytes(3 << 20))) for _ in range(4)}
        while asked:
            for answer in peer.answers(PATIENCE):
                assert len(answer.body) == 3 << 20
                asked.remove(answer.opaque)


def test_one_that_is_not_answered_in_time_is_not_waited_for() -> None:
    with serving() as address, blocking.connect(address) as peer:
        with pytest.raises(TimeoutError, match=r"did not answer in 0\.05 s"):
            peer.ask(Command(code=NEVER), 0.05)
        assert peer.ask(Command(code=ECHO, body=b"there"), PATIENCE).body == b"there"


def test_a_server_that_goes_is_a_broken_connection() -> None:
    with serving() as address:
        peer = blocking.connect(address)
        peer.ask(Command(code=ECHO), PATIENCE)
    for _ in range(2):
        with pytest.raises(ConnectionError):
            peer.ask(Command(code=ECHO), PATIENCE)
    peer.close()


def test_what_is_no_frame_breaks_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        peer = blocking.connect(f"127.0.0.1:{server.getsockname()[1]}")
        end, _ = server.accept()
        end.sendall(b"GET / HTTP/1.1\r\n")
        with end, pytest.raises(ConnectionError, match="a frame of"):
            peer.ask(Command(code=ECHO), PATIENCE)
        peer.close()


def test_nobody_there_is_said_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    with pytest.raises(ConnectionError, match=address):
        blocking.connect(address)
    with pytest.raises(ValueError, match="is not an address"):
        blocking.connect("nowhere")
