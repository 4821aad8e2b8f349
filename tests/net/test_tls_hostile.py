"""Handshakes that strangers begin and do not end: those who are served notice nothing."""

import asyncio
import logging
import socket
import ssl
import time
from contextlib import ExitStack

import pytest
from certificates import Authority, Certificate
from net.harness import PATIENCE, Stream, run, serving, stream, until

from tamis.net import aio, handshakes, tlstransport
from tamis.net.server import Answer, Request, Route, Server, needless_header
from tamis.security import ClientTls, Security, ServerTls
from tamis.wire.command import Command, encode

ECHO = 1000
ROUTES = {ECHO: Route(None, needless_header(lambda request: Answer(body=request.body)))}
MANY = 400


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def certificate(authority: Authority) -> Certificate:
    return authority.issue(rsa=True)  # the most expensive to answer with


@pytest.fixture(scope="module")
def tls(certificate: Certificate) -> ServerTls:
    return ServerTls(mode="enforcing", cert=certificate.cert, key=certificate.key)


@pytest.fixture(scope="module")
def security(authority: Authority) -> Security:
    return Security(tls=ClientTls(ca=authority.ca))


def hello() -> bytes:
    """What a client says first."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ClientTls(verify=False).context()
    client = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def shaking(server: Server) -> handshakes.Handshakes:
    assert server.handshakes is not None
    return server.handshakes


def connected(stack: ExitStack, address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return stack.enter_context(socket.create_connection((host, int(port)), PATIENCE))


def test_handshakes_left_open_are_bounded_and_the_oldest_are_given_up(
    tls: ServerTls, security: Security, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that comes last is served all the same, and one that was there goes on."""
    first = hello()

    async def main() -> None:
        async with serving(ROUTES, tls=tls) as (it, address):
            shaking(it)._most = MANY // 4
            known = await aio.connect(address, PATIENCE, security=security)
            with ExitStack() as stack:
                for number in range(MANY):
                    connected(stack, address).send(first)
                    if number % 50 == 0:
                        answer = await known.ask(Command(code=ECHO, body=b"x"), PATIENCE)
                        assert answer.body == b"x"
                await until(
                    lambda: shaking(it).failed == MANY - MANY // 4, lambda: shaking(it).failed
                )
                assert len(shaking(it)) == MANY // 4
                newcomer = await aio.connect(address, PATIENCE, security=security)
                assert (await newcomer.ask(Command(code=ECHO, body=b"y"), PATIENCE)).body == b"y"
                newcomer.close()
            await until(lambda: len(it.peers) == 1, lambda: it.peers)
            assert not shaking(it)
            known.close()

    run(main())


def test_hellos_that_come_at_once_are_answered_in_turns_with_other_work(
    tls: ServerTls,
) -> None:
    """The loop is not held up for as long as all of them take."""
    first = hello()

    async def main() -> None:
        async with serving(ROUTES, tls=tls) as (it, address):
            with ExitStack() as stack:
                sockets = [connected(stack, address) for _ in range(MANY)]
                await until(lambda: len(it.peers) == MANY, lambda: len(it.peers))
                for one in sockets:
                    one.send(first)
                turns, began = 0, time.process_time()
                while len(shaking(it)) < MANY or shaking(it)._waiting:
                    await asyncio.sleep(0)
                    turns += 1
                    assert time.process_time() - began < PATIENCE
                spent = time.process_time() - began
                assert turns >= spent / 0.003 / 10, (turns, spent)

    run(main())


def test_a_handshake_that_takes_too_long_is_given_up(
    tls: ServerTls, caplog: pytest.LogCaptureFixture
) -> None:
    """Truncated anywhere, or a byte at a time; and bytes that are no handshake at once."""
    first = hello()

    async def main() -> None:
        async with serving(ROUTES, tls=tls) as (it, address):
            shaking(it)._seconds = 0.3
            with ExitStack() as stack:
                for end in (1, 2, 5, 6, 9, len(first) // 2, len(first) - 1, len(first)):
                    connected(stack, address).send(first[:end])
                slow = connected(stack, address)
                silent = connected(stack, address)
                await until(lambda: len(it.peers) == 10, lambda: len(it.peers))
                for byte in first[:100]:
                    if len(it.peers) == 1:
                        break
                    try:
                        slow.send(bytes([byte]))
                    except ConnectionError:
                        break
                    await asyncio.sleep(0.02)
                await until(lambda: len(it.peers) == 1, lambda: it.peers)
                assert shaking(it).failed == 9
                assert not shaking(it)
                silent.send(b"\x16\x03\x01\x00\x04oops")
                await until(lambda: not it.peers, lambda: it.peers)
                assert shaking(it).failed == 10

    with caplog.at_level(logging.WARNING, "tamis.net"):
        run(main())
    assert "its TLS handshake is not complete after 0.3 s" in caplog.text
    assert "Traceback" not in caplog.text


def test_a_hello_without_end_is_cut_off(tls: ServerTls) -> None:
    async def main() -> None:
        async with serving(ROUTES, tls=tls) as (it, address), stream(address) as client:
            # records of handshake, each a further part of a message of 16 MiB
            part = b"\x16\x03\x01\x40\x00" + b"\x01\xff\xff\xff" + bytes(16_380)
            for _ in range(64):
                client.writer.write(part)
            assert await client.rest() == b""
            await until(lambda: not it.peers, lambda: it.peers)
            assert shaking(it).failed == 1

    run(main())


def test_connections_that_say_nothing_are_closed_when_they_were_idle_for_long(
    tls: ServerTls, security: Security
) -> None:
    async def main() -> None:
        options = {"idle_seconds": 0.5, "most_connections": 3}
        async with serving(ROUTES, tls=tls, **options) as (it, address):
            with ExitStack() as stack:
                for _ in range(3):
                    connected(stack, address)
                await until(lambda: len(it.peers) == 3, lambda: it.peers)
                with pytest.raises(ConnectionError):
                    await aio.connect(address, PATIENCE, security=security)
                assert it.refused == 1
                await until(lambda: not it.peers, lambda: it.peers)
                peer = await aio.connect(address, PATIENCE, security=security)
                assert (await peer.ask(Command(code=ECHO, body=b"x"), PATIENCE)).body == b"x"
                peer.close()

    run(main())


def test_renegotiation_is_refused(tls: ServerTls) -> None:
    """It is in TLS 1.2 only; a client could make a server work for nothing."""
    assert tls.context().options & ssl.OP_NO_RENEGOTIATION
    assert tls.context().minimum_version == ssl.TLSVersion.TLSv1_2


async def shaken(client: Stream, version: ssl.TLSVersion) -> tuple[ssl.SSLObject, ssl.MemoryBIO]:
    """The client's end of a handshake by hand, and what it wants to send."""
    context = ClientTls(verify=False).new_context()
    context.maximum_version = version
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    end = context.wrap_bio(incoming, outgoing)
    while True:
        try:
            end.do_handshake()
            return end, outgoing
        except ssl.SSLWantReadError:
            client.writer.write(outgoing.read())
            incoming.write(await asyncio.wait_for(client.reader.read(65_536), PATIENCE))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_records_that_were_tampered_with_close_the_connection(
    version: ssl.TLSVersion, tls: ServerTls, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with serving(ROUTES, tls=tls) as (it, address), stream(address) as client:
            end, outgoing = await shaken(client, version)
            end.write(b"some request")
            client.writer.write(outgoing.read()[:-1] + b"?")
            await client.rest()
            await until(lambda: not it.peers, lambda: it.peers)

    with caplog.at_level(logging.WARNING, "tamis.net"):
        run(main())
    assert "closed: TLS failed: decryption failed or bad record mac" in caplog.text


@pytest.mark.parametrize("turn", [0.0, tlstransport._TURN])
def test_records_of_a_byte_each_are_decrypted_in_turns_with_other_work(
    turn: float, tls: ServerTls, security: Security, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With their handshake's last message, too; and nothing is lost or out of order."""
    monkeypatch.setattr(tlstransport, "_TURN", turn)
    body = bytes(number % 251 for number in range(20_000))
    seen: list[bytes] = []

    def keep(request: Request) -> Answer:
        seen.append(request.body)
        return Answer()

    async def main() -> None:
        routes = {**ROUTES, 7: Route(None, needless_header(keep))}
        async with serving(routes, tls=tls) as (it, address), stream(address) as client:
            end, outgoing = await shaken(client, ssl.TLSVersion.TLSv1_3)
            frame = encode(Command(code=7, opaque=1, body=body))
            for byte in frame:
                end.write(bytes([byte]))
            client.writer.write(outgoing.read())  # the handshake's end before it
            other = await aio.connect(address, PATIENCE, security=security)
            assert (await other.ask(Command(code=ECHO, body=b"x"), PATIENCE)).body == b"x"
            await until(lambda: bool(seen), lambda: it.buffers.total)
            assert seen == [body]
            other.close()

    run(main())
