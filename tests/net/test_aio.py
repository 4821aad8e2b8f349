"""Peers: asking and telling, both ways, and what ends it."""

import asyncio

import pytest
from net.harness import run, serving, until

from tamis.net.aio import Peer, connect, parse_address
from tamis.net.server import Answer, Request, Route, needless_header
from tamis.wire.codes import CommandFlag
from tamis.wire.command import Command
from tamis.wire.frame import Encoding

ECHO, HOLD, TURN, DROP = range(1000, 1004)


def echo(request: Request) -> Answer:
    return Answer(body=request.body)


ROUTES = {ECHO: Route(None, needless_header(echo))}


def answer_with_more(peer: Peer, requests: list[Command]) -> None:
    for one in requests:
        Request(peer, one).answer(Answer(body=one.body + b" and back"))


@pytest.mark.parametrize("encoding", Encoding)
def test_a_peer_is_asked_and_answers(encoding: Encoding) -> None:
    async def main() -> None:
        async with serving(ROUTES) as (_, address):
            peer = await connect(address)
            answers = await asyncio.gather(
                *(
                    peer.ask(Command(code=ECHO, body=b"%d" % i, encoding=encoding), timeout=10)
                    for i in range(100)
                )
            )
            assert [one.body for one in answers] == [b"%d" % i for i in range(100)]
            assert not peer._waiting
            assert peer._wire.outstanding == 0
            peer.close()

    run(main())


def test_a_server_asks_its_client_on_the_same_connection() -> None:
    async def turn(request: Request) -> Answer:
        answer = await request.peer.ask(Command(code=307, body=request.body), timeout=10)
        return Answer(body=answer.body + b" again")

    async def main() -> None:
        async with serving({TURN: Route(None, needless_header(turn))}) as (_, address):
            peer = await connect(address, on_requests=answer_with_more)
            answer = await peer.ask(Command(code=TURN, body=b"there"), timeout=10)
            assert answer.body == b"there and back again"
            peer.close()

    run(main())


def test_what_is_told_arrives_and_is_not_answered() -> None:
    async def main() -> None:
        heard: list[Command] = []
        table = {ECHO: Route(None, lambda header, request: heard.append(request.command))}
        async with serving(table) as (server, address):
            told: list[Command] = []
            peer = await connect(address, on_requests=lambda peer, requests: told.extend(requests))
            peer.tell(Command(code=ECHO, body=b"up"))
            await until(lambda: bool(heard), lambda: heard)
            assert heard[0].flag == CommandFlag.ONEWAY
            (other,) = server.peers
            other.tell(Command(code=40, fields={"consumerGroup": "g"}))
            await until(lambda: bool(told), lambda: told)
            assert (told[0].code, told[0].is_oneway) == (40, True)
            assert peer._wire.outstanding == 0
            peer.close()

    run(main())


def test_no_answer_in_time_is_a_timeout_and_a_late_one_is_dropped() -> None:
    async def main() -> None:
        held: list[Request] = []
        table = {**ROUTES, HOLD: Route(None, lambda header, request: held.append(request))}
        async with serving(table) as (_, address):
            peer = await connect(address)
            with pytest.raises(TimeoutError):
                await peer.ask(Command(code=HOLD), timeout=0.05)
            assert not peer._waiting
            assert peer._wire.outstanding == 0
            await until(lambda: bool(held), lambda: held)
            held[0].answer(Answer(body=b"late"))
            assert (await peer.ask(Command(code=ECHO, body=b"x"), timeout=10)).body == b"x"
            peer.close()

    run(main())


def test_a_held_request_is_answered_later() -> None:
    async def main() -> None:
        held: list[Request] = []
        table = {HOLD: Route(None, lambda header, request: held.append(request))}
        async with serving(table) as (_, address):
            peer = await connect(address)
            asking = asyncio.create_task(peer.ask(Command(code=HOLD), timeout=10))
            await until(lambda: bool(held), lambda: held)
            held[0].answer(Answer(code=19, remark="nothing"))
            answer = await asking
            assert (answer.code, answer.remark) == (19, "nothing")
            peer.close()

    run(main())


def test_a_lost_connection_fails_all_who_wait() -> None:
    def drop(request: Request) -> None:
        request.peer.abort()

    async def main() -> None:
        table = {
            HOLD: Route(None, needless_header(lambda request: None)),
            DROP: Route(None, needless_header(drop)),
        }
        closed: list[Peer] = []
        async with serving(table) as (_, address):
            peer = await connect(address, on_close=closed.append)
            results = await asyncio.gather(
                *(peer.ask(Command(code=code), timeout=10) for code in (HOLD, HOLD, DROP)),
                return_exceptions=True,
            )
            assert [type(one) for one in results] == [ConnectionError] * 3
            assert peer.is_closed
            assert closed == [peer]
            with pytest.raises(ConnectionError):
                await peer.ask(Command(code=HOLD), timeout=10)
            peer.tell(Command(code=HOLD))  # dropped
            peer.close()

    run(main())


def test_a_held_request_of_a_lost_connection_is_answered_into_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        held: list[Request] = []
        table = {HOLD: Route(None, lambda header, request: held.append(request))}
        async with serving(table) as (server, address):
            peer = await connect(address)
            peer.tell(Command(code=ECHO))
            asking = asyncio.create_task(peer.ask(Command(code=HOLD), timeout=10))
            await until(lambda: bool(held), lambda: held)
            held[0].peer.close()
            for _ in range(20):
                held[0].answer(Answer(body=b"nobody"))
            with pytest.raises(ConnectionError):
                await asking
            await until(lambda: not server.peers, lambda: server.peers)
            held[0].answer(Answer(body=b"nobody"))

    run(main())
    assert not caplog.records


def test_nonsense_from_a_server_fails_who_waits(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            await reader.read()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        peer = await connect(f"127.0.0.1:{port}")
        with pytest.raises(ConnectionError):
            await peer.ask(Command(code=ECHO), timeout=10)
        server.close()
        await server.wait_closed()

    run(main())
    assert len(caplog.records) == 1


@pytest.mark.parametrize("address", ["127.0.0.1:1", "localhost:1"])
def test_nobody_there_is_a_connection_error(address: str) -> None:
    async def main() -> None:
        with pytest.raises(ConnectionError):
            await connect(address)

    run(main())


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9876", ("127.0.0.1", 9876)),
        (" localhost:1 ", ("localhost", 1)),
        ("[::1]:9876", ("::1", 9876)),
    ],
)
def test_addresses_are_read(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", ":", "a", "a:", ":1", "a:0", "a:65536", "a:-1", "a:b", "a:²"])
def test_what_is_no_address_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        parse_address(text)
