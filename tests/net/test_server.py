"""A server: what it answers, whom it closes, and what it leaves behind."""

import asyncio
import logging
import os
import resource
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from net.harness import PATIENCE, Stream, run, serving, stream, until

from tamis.errors import ResponseError
from tamis.net.server import Answer, Request, Route, Server, needless_header
from tamis.wire import command as commands
from tamis.wire.codes import CommandFlag
from tamis.wire.command import Command
from tamis.wire.frame import MAX_FRAME, Encoding
from tamis.wire.headers import GetRoute, Header, OffsetResponse

ECHO, ADD, REFUSE, FAIL, LATER, NEVER, HUGE = range(1000, 1007)


def echo(request: Request) -> Answer:
    return Answer(body=request.body)


def routes() -> dict[int, Route]:
    async def later(request: Request) -> Answer:
        await asyncio.sleep(0)
        if request.body == b"refuse":
            raise ResponseError(17, "no such topic")
        if request.body == b"fail":
            raise RuntimeError("later")
        return Answer(body=request.body)

    def refuse(request: Request) -> Answer:
        raise ResponseError(16, "not allowed")

    def fail(request: Request) -> Answer:
        raise RuntimeError("at once")

    def add(header: Header, request: Request) -> Answer:
        assert isinstance(header, GetRoute)
        return Answer(header=OffsetResponse(offset=len(header.topic)), remark="counted")

    return {
        ECHO: Route(None, needless_header(echo)),
        ADD: Route(GetRoute, add),
        REFUSE: Route(None, needless_header(refuse)),
        FAIL: Route(None, needless_header(fail)),
        LATER: Route(None, needless_header(later)),
        NEVER: Route(None, needless_header(lambda request: None)),
        HUGE: Route(None, needless_header(lambda request: Answer(body=bytes(MAX_FRAME)))),
    }


async def asked(client: Stream, code: int, body: bytes = b"", **more: object) -> Command:
    client.send(Command(code=code, opaque=7, body=body, **more))  # type: ignore[arg-type]
    answer = await client.answer()
    assert answer.is_response
    assert answer.opaque == 7
    return answer


@pytest.mark.parametrize("encoding", Encoding)
def test_an_answer_is_in_the_encoding_it_was_asked_in(encoding: Encoding) -> None:
    async def main() -> None:
        async with serving(routes()) as (_, address), stream(address) as client:
            answer = await asked(client, ADD, fields={"topic": "Orders"}, encoding=encoding)
            assert answer == Command(
                code=0,
                opaque=7,
                flag=CommandFlag.RESPONSE,
                fields={"offset": "6"},
                remark="counted",
                encoding=encoding,
            )
            for code in (REFUSE, FAIL, 4242):  # RocketMQ answers these in JSON, whatever it was
                assert (await asked(client, code, encoding=encoding)).encoding is encoding

    run(main())


def test_both_encodings_may_meet_on_one_connection() -> None:
    async def main() -> None:
        async with serving(routes()) as (_, address), stream(address) as client:
            for encoding in (*Encoding, *Encoding):
                assert (await asked(client, ECHO, b"x", encoding=encoding)).encoding is encoding

    run(main())


def test_pipelined_requests_are_answered_each_once() -> None:
    async def main() -> None:
        async with serving(routes()) as (_, address), stream(address) as client:
            client.send(
                *(Command(code=(ECHO, LATER)[i % 2], opaque=i, body=b"%d" % i) for i in range(500))
            )
            answers = [await client.answer() for _ in range(500)]
            assert sorted((a.opaque, a.body) for a in answers) == [
                (i, b"%d" % i) for i in range(500)
            ]

    run(main())


def test_a_request_in_single_bytes_is_answered() -> None:
    async def main() -> None:
        async with serving(routes()) as (_, address), stream(address) as client:
            for byte in commands.encode(Command(code=ECHO, opaque=7, body=b"slow")):
                client.writer.write(bytes([byte]))
                await client.writer.drain()
            assert (await client.answer()).body == b"slow"

    run(main())


@pytest.mark.parametrize("code", [ECHO, REFUSE, FAIL, LATER, NEVER, HUGE, 4242])
def test_a_one_way_request_gets_no_answer(code: int) -> None:
    async def main() -> None:
        async with serving(routes()) as (server, address), stream(address) as client:
            client.send(Command(code=code, opaque=1, flag=CommandFlag.ONEWAY))
            await until(lambda: not server._tasks, lambda: server._tasks)
            assert (await asked(client, ECHO)).code == 0  # the first answer there is

    run(main())


def test_an_unknown_code_is_answered_as_rocketmq_does() -> None:
    async def main() -> None:
        async with serving(routes()) as (_, address), stream(address) as client:
            answer = await asked(client, 4242)
            assert (answer.code, answer.remark) == (3, " request type 4242 not supported")

    run(main())


def test_an_answer_nobody_asked_for_is_dropped() -> None:
    async def main() -> None:
        async with serving(routes()) as (_, address), stream(address) as client:
            client.send(Command(code=ECHO, opaque=1, flag=CommandFlag.RESPONSE))
            assert (await asked(client, ECHO, b"x")).body == b"x"

    run(main())


@pytest.mark.parametrize(
    ("code", "body", "refusal", "remark"),
    [
        (REFUSE, b"", 16, "not allowed"),
        (LATER, b"refuse", 17, "no such topic"),
        (ADD, b"", 1, "GetRoute: the field topic is missing"),
    ],
)
def test_a_refusal_is_its_code_and_remark(
    code: int, body: bytes, refusal: int, remark: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with serving(routes()) as (_, address), stream(address) as client:
            answer = await asked(client, code, body)
            assert (answer.code, answer.remark) == (refusal, remark)
            assert (await asked(client, ECHO)).code == 0

    run(main())
    assert not caplog.records


@pytest.mark.parametrize(
    ("code", "body", "text"), [(FAIL, b"", "at once"), (LATER, b"fail", "later")]
)
def test_a_failure_is_code_1_and_a_traceback_in_the_log(
    code: int, body: bytes, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with serving(routes()) as (_, address), stream(address) as client:
            answer = await asked(client, code, body)
            assert (answer.code, answer.remark) == (1, f"RuntimeError: {text}")
            assert (await asked(client, ECHO)).code == 0

    run(main())
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], RuntimeError)
    assert f"request {code} failed" in record.getMessage()


def test_an_answer_too_long_for_a_frame_is_code_1(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with serving(routes()) as (_, address), stream(address) as client:
            answer = await asked(client, HUGE)
            assert answer.code == 1
            assert "it takes up to 16777212" in str(answer.remark)
            assert (await asked(client, ECHO)).code == 0

    run(main())
    assert len(caplog.records) == 1


NONSENSE = {
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "TLS": bytes.fromhex("16030100c8010000c403035a"),
    "too long": bytes.fromhex("0100000000000010"),
    "zeros": bytes(100),
    "no JSON": bytes.fromhex("0000000a 00000006") + b"nonsns",
    "no fields": bytes.fromhex("00000008 01000004 00000000"),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_closes_that_connection_with_one_line_and_no_other(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with (
            serving(routes()) as (server, address),
            stream(address) as good,
            stream(address) as bad,
        ):
            assert (await asked(good, ECHO)).code == 0
            assert (await asked(bad, ECHO)).code == 0
            bad.writer.write(NONSENSE[name])
            assert await bad.rest() == b""
            assert (await asked(good, ECHO, b"still here")).body == b"still here"
            await until(lambda: len(server.peers) == 1, lambda: server.peers)

    run(main())
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "closed: a" in record.getMessage()
    assert ("TLS" in record.getMessage()) is (name == "TLS")


SIZE = 64 * 1024


def test_requests_wait_while_their_peer_does_not_read() -> None:
    """All of them came in one piece: their answers are 128 MiB."""
    count, served = 2000, 0

    def answer(request: Request) -> Answer:
        nonlocal served
        served += 1
        return Answer(body=bytes(SIZE))

    async def main() -> None:
        table = {ECHO: Route(None, needless_header(answer))}
        async with serving(table) as (_, address), stream(address, limit=1024) as client:
            client.send(*(Command(code=ECHO, opaque=i) for i in range(count)))
            await standstill(lambda: served)
            assert 0 < served * SIZE < 32 * 2**20
            for i in range(count):
                found = await client.answer()
                assert (found.opaque, len(found.body)) == (i, SIZE)

    run(main())


def test_a_peer_that_does_not_read_is_not_read_from_until_it_does() -> None:
    count, served = 1000, 0

    def answer(request: Request) -> Answer:
        nonlocal served
        served += 1
        return Answer(body=request.body)

    async def main() -> None:
        table = {ECHO: Route(None, needless_header(answer))}
        async with (
            serving(table) as (_, address),
            stream(address, limit=1024) as client,
            stream(address) as other,
        ):
            for i in range(count):
                client.send(Command(code=ECHO, opaque=i, body=bytes(SIZE)))
            await standstill(lambda: served)
            assert 0 < served * SIZE < 32 * 2**20
            assert client.writer.transport.get_write_buffer_size() > 0  # nobody takes it
            assert (await asked(other, ECHO, b"x")).body == b"x"
            for i in range(count):
                assert (await client.answer()).opaque == i

    run(main())


async def standstill(count: Callable[[], int]) -> None:
    """Until it is more than nothing and has not changed for a while."""
    seen, turns = count(), 0

    def still() -> bool:
        nonlocal seen, turns
        turns = turns + 1 if count() == seen and seen else 0
        seen = count()
        return turns >= 60

    await until(still, count)


def test_a_silent_connection_is_closed_and_a_busy_one_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    async def main() -> None:
        async with (
            serving(routes(), idle_seconds=1.0) as (server, address),
            stream(address) as silent,
            stream(address) as busy,
        ):
            ended = asyncio.create_task(silent.rest())
            while not ended.done():
                assert (await asked(busy, ECHO)).code == 0
                await asyncio.sleep(0.02)
            assert await ended == b""
            assert (await asked(busy, ECHO)).code == 0
            assert len(server.peers) == 1

    run(main())
    assert [record.getMessage().partition(" ")[2] for record in caplog.records] == [
        "closed: silent for 1 s"
    ]


def test_a_peer_that_reads_nothing_is_closed_when_it_has_been_silent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    async def main() -> None:
        table = {ECHO: Route(None, needless_header(lambda request: Answer(body=bytes(SIZE))))}
        async with (
            serving(table, idle_seconds=0.3) as (server, address),
            stream(address, limit=1024) as client,
        ):
            client.send(*(Command(code=ECHO, opaque=i) for i in range(1000)))
            await until(lambda: len(server.peers) == 1, lambda: server.peers)
            await until(lambda: not server.peers, lambda: server.peers)

    run(main())
    assert len(caplog.records) == 1


def test_connections_beyond_the_most_are_closed(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with (
            serving(routes(), most_connections=2) as (server, address),
            stream(address) as one,
        ):
            assert (await asked(one, ECHO)).code == 0
            async with stream(address) as two:
                assert (await asked(two, ECHO)).code == 0
                async with stream(address) as three:
                    three.send(Command(code=ECHO))
                    assert await three.rest() == b""
                assert (await asked(two, ECHO)).code == 0
            await until(lambda: len(server.peers) == 1, lambda: server.peers)
            async with stream(address) as four:
                assert (await asked(four, ECHO)).code == 0

    run(main())
    (record,) = caplog.records
    assert "2 connections are enough" in record.getMessage()


def test_two_thousand_idle_connections_open_and_close() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = 6000 if hard == resource.RLIM_INFINITY else min(6000, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, room), hard))
    count = min(2000, (max(soft, room) - 300) // 2)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with serving(routes()) as (server, address):
            host, _, port = address.rpartition(":")
            sockets = [socket.socket() for _ in range(count)]
            try:
                for one in sockets:
                    one.setblocking(False)
                for at in range(0, count, 500):
                    some = sockets[at : at + 500]
                    await asyncio.gather(*(loop.sock_connect(s, (host, int(port))) for s in some))
                await until(lambda: len(server.peers) == count, lambda: len(server.peers))
                async with stream(address) as client:
                    assert (await asked(client, ECHO, b"room")).body == b"room"
            finally:
                for one in sockets:
                    one.close()
            await until(lambda: not server.peers, lambda: len(server.peers))

    try:
        run(main())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def sockets_open() -> int:
    links = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            links.append(os.readlink(link))
        except FileNotFoundError:  # the folder itself was one
            continue
    return sum(link.startswith("socket:") for link in links)


def test_a_closed_server_leaves_no_task_and_no_socket() -> None:
    closed: list[object] = []

    async def wait_for_ever(request: Request) -> Answer:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async def main() -> None:
        table = {**routes(), LATER: Route(None, needless_header(wait_for_ever))}
        before = sockets_open()
        async with serving(table, on_close=closed.append) as (server, address):
            async with stream(address) as one, stream(address) as two:
                assert (await asked(one, ECHO)).code == 0
                two.send(Command(code=LATER), Command(code=NEVER))
                await until(lambda: len(server._tasks) == 1, lambda: server._tasks)
                await server.close()
                assert asyncio.all_tasks() == {asyncio.current_task()}
                assert not server.peers
                assert len(closed) == 2
                assert await one.rest() == b""
                assert await two.rest() == b""
                with pytest.raises(ConnectionRefusedError):
                    async with stream(address):
                        pass
            assert sockets_open() == before
            await server.close()  # once more does nothing

    run(main())


def test_a_server_closes_though_a_peer_does_not_read() -> None:
    async def main() -> None:
        table = {ECHO: Route(None, needless_header(lambda request: Answer(body=bytes(SIZE))))}
        async with serving(table) as (server, address), stream(address, limit=1024) as client:
            client.send(*(Command(code=ECHO, opaque=i) for i in range(1000)))
            await until(lambda: any(p._is_full for p in server.peers), lambda: server.peers)
            async with asyncio.timeout(PATIENCE):
                await server.close()
            assert not server.peers

    run(main())


def test_a_server_closed_before_a_handler_began_leaves_it_quietly() -> None:
    """Warnings are errors: a coroutine never awaited would show."""

    async def main() -> None:
        closing: list[asyncio.Task[None]] = []

        def close(request: Request) -> None:
            closing.append(asyncio.get_running_loop().create_task(server.close()))

        table = {**routes(), NEVER: Route(None, needless_header(close))}
        async with serving(table) as (server, address), stream(address) as client:
            client.send(Command(code=NEVER), Command(code=LATER, opaque=1))
            assert await client.rest() == b""
            await closing[0]

    run(main())


def test_an_answer_written_before_the_close_arrives() -> None:
    def answer_and_close(request: Request) -> None:
        request.answer(Answer(body=bytes(8 * 2**20)))
        request.peer.close()

    async def main() -> None:
        table = {ECHO: Route(None, needless_header(answer_and_close))}
        async with serving(table) as (_, address), stream(address) as client:
            client.send(Command(code=ECHO))
            assert len((await client.answer()).body) == 8 * 2**20
            assert await client.rest() == b""

    run(main())


def test_a_server_listens_on_several_ports() -> None:
    async def main() -> None:
        async with serving(routes()) as (server, address):
            port = await server.start("127.0.0.1", 0)
            for one in (address, f"127.0.0.1:{port}"):
                async with stream(one) as client:
                    assert (await asked(client, ECHO, b"x")).body == b"x"

    run(main())


def test_a_port_in_use_is_an_os_error() -> None:
    async def main() -> None:
        async with serving(routes()) as (_, address):
            other = Server(routes())
            with pytest.raises(OSError):
                await other.start("127.0.0.1", int(address.rpartition(":")[2]))
            await other.close()

    run(main())
