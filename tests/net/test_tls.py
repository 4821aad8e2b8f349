"""TLS between our own ends: who is let in, who is believed, and what errors say."""

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority, Certificate
from net.harness import PATIENCE, run, serving, stream, until

from tamis.errors import ConfigError
from tamis.net import aio, server
from tamis.net.server import Answer, Request, Route, Server, needless_header
from tamis.security import INSECURE, ClientTls, Credentials, Security, ServerTls
from tamis.security.credentials import content_of, signature_of
from tamis.wire.codes import CommandFlag
from tamis.wire.command import Command
from tamis.wire.frame import MAX_FRAME

ECHO, PUSH, NEVER, FIELDS = range(1000, 1004)
LARGE = MAX_FRAME - 65_536


def echo(request: Request) -> Answer:
    return Answer(body=request.body)


def push(request: Request) -> Answer:
    request.peer.tell(Command(code=7, body=request.body))
    return Answer()


async def never(request: Request) -> Answer:
    await asyncio.sleep(3600)
    return Answer()


ROUTES = {
    ECHO: Route(None, needless_header(echo)),
    PUSH: Route(None, needless_header(push)),
    NEVER: Route(None, needless_header(never)),
}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"), "Another authority")


@pytest.fixture(scope="module")
def certificate(authority: Authority) -> Certificate:
    return authority.issue()


def server_tls(certificate: Certificate, mode: str = "enforcing", **more: Any) -> ServerTls:
    return ServerTls(
        mode=mode,  # type: ignore[arg-type]
        cert=certificate.cert,
        key=certificate.key,
        **more,
    )


def trusting(authority: Authority, **more: Any) -> Security:
    return Security(tls=ClientTls(ca=authority.ca, **more))


async def asked(address: str, security: Security, body: bytes = b"hello") -> Command:
    peer = await aio.connect(address, PATIENCE, security=security)
    try:
        return await peer.ask(Command(code=ECHO, body=body), PATIENCE)
    finally:
        peer.close()


async def refusal(address: str, security: Security) -> str:
    """Why there is no connection, or no answer."""
    with pytest.raises(ConnectionError) as raised:
        await asked(address, security)
    line = str(raised.value)
    assert line.startswith(f"{address}: ")
    assert "\n" not in line
    return line.removeprefix(f"{address}: ")


@asynccontextmanager
async def saying(words: bytes) -> AsyncIterator[str]:
    """The address of a server that says something to one client, and nothing more."""
    done = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(words)
        with suppress(ConnectionError):
            await reader.read()
        writer.transport.abort()
        with suppress(ConnectionError):
            await writer.wait_closed()
        done.set()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await asyncio.wait_for(done.wait(), PATIENCE)


@pytest.mark.parametrize("mode", ["permissive", "enforcing"])
def test_a_client_that_trusts_the_authority_is_served_over_tls(
    mode: str, authority: Authority, certificate: Certificate
) -> None:
    async def main() -> None:
        async with serving(ROUTES, tls=server_tls(certificate, mode)) as (it, address):
            assert (await asked(address, trusting(authority))).body == b"hello"
            assert it.handshakes is not None
            assert it.handshakes.completed == 1

    run(main())


def test_a_permissive_port_takes_plain_connections_beside_those_with_tls(
    authority: Authority, certificate: Certificate
) -> None:
    async def main() -> None:
        async with serving(ROUTES, tls=server_tls(certificate, "permissive")) as (_, address):
            secured = await aio.connect(address, PATIENCE, security=trusting(authority))
            plain = await aio.connect(address, PATIENCE)
            for peer in (secured, plain, secured, plain):
                answer = await peer.ask(Command(code=ECHO, body=b"x"), PATIENCE)
                assert answer.body == b"x"
            async with stream(address) as bytewise:
                for byte in b"\0\0":  # the first one decides
                    bytewise.writer.write(bytes([byte]))
                    await bytewise.writer.drain()
            secured.close()
            plain.close()

    run(main())


def test_an_enforcing_port_closes_plain_connections_and_says_so_once_a_second(
    authority: Authority, certificate: Certificate, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with serving(ROUTES, tls=server_tls(certificate)) as (it, address):
            for _ in range(5):
                async with stream(address) as plain:
                    plain.send(Command(code=ECHO, opaque=1))
                    assert await plain.rest() == b""
            assert it.handshakes is not None
            assert it.handshakes.refused == 5
            assert (await asked(address, trusting(authority))).body == b"hello"

    with caplog.at_level(logging.WARNING, "tamis.net"):
        run(main())
    lines = [one.message for one in caplog.records if "does not speak TLS" in one.message]
    assert 1 <= len(lines) < 5


def test_a_client_without_tls_is_told_that_an_enforcing_server_closed_it(
    certificate: Certificate,
) -> None:
    async def main() -> None:
        async with serving(ROUTES, tls=server_tls(certificate)) as (_, address):
            peer = await aio.connect(address, PATIENCE)
            with pytest.raises(ConnectionError, match="closed the connection"):
                await peer.ask(Command(code=ECHO), PATIENCE)

    run(main())


@pytest.mark.parametrize("tls", [None, ServerTls()], ids=["none", "disabled"])
def test_a_server_without_tls_closes_a_hello_and_the_client_says_why(
    tls: ServerTls | None, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with serving(ROUTES, tls=tls) as (_, address):
            assert "does it speak TLS?" in await refusal(address, trusting(authority))
            assert (await asked(address, INSECURE)).body == b"hello"

    run(main())
    assert "a TLS handshake, where plain text is spoken" in caplog.text


def test_a_server_that_answers_something_else_is_said_not_to_speak_tls(
    authority: Authority,
) -> None:
    async def main() -> None:
        async with saying(b"220 welcome to a server of another kind\r\n") as address:
            assert "does not speak TLS" in await refusal(address, trusting(authority))

    run(main())


def test_a_handshake_that_is_not_answered_ends_with_the_connect_timeout(
    authority: Authority,
) -> None:
    async def main() -> None:
        async with saying(b"") as address:
            with pytest.raises(TimeoutError, match=r"did not complete a TLS handshake in 0.2 s"):
                await aio.connect(address, 0.2, security=trusting(authority))

    run(main())


def test_an_unknown_authority_is_refused_unless_verification_is_off(
    authority: Authority, stranger: Authority, certificate: Certificate
) -> None:
    async def main() -> None:
        async with serving(ROUTES, tls=server_tls(certificate)) as (_, address):
            why = await refusal(address, trusting(stranger))
            assert why.startswith(f"its certificate is not signed by tls_ca {stranger.ca}")
            why = await refusal(address, Security(tls=ClientTls()))
            assert "not signed by an authority that this system knows" in why
            assert why.endswith("name its authority with tls_ca")
            assert (await asked(address, Security(tls=ClientTls(verify=False)))).body == b"hello"

    run(main())


def test_another_name_is_refused_with_the_wanted_one_and_those_there_are(
    authority: Authority,
) -> None:
    async def main() -> None:
        certificate = authority.issue("broker.example", "*.internal.example", "192.0.2.7")
        async with serving(ROUTES, tls=server_tls(certificate)) as (_, address):
            why = await refusal(address, trusting(authority))
            assert why == (
                "its certificate is not for 127.0.0.1; it is for broker.example,"
                " *.internal.example, 192.0.2.7 (tls_server_name: which one to expect)"
            )
            why = await refusal(address, trusting(authority, server_name="other.example"))
            assert why.startswith("its certificate is not for other.example; it is for broker")
            for name in ("broker.example", "a.internal.example", "192.0.2.7"):
                security = trusting(authority, server_name=name)
                assert (await asked(address, security)).body == b"hello"

    run(main())


def test_an_expired_certificate_is_refused(authority: Authority) -> None:
    async def main() -> None:
        async with serving(ROUTES, tls=server_tls(authority.issue(days=-1))) as (_, address):
            why = await refusal(address, trusting(authority))
            assert why == "its certificate has expired"

    run(main())


def test_a_certificate_can_be_trusted_without_its_authority(
    authority: Authority, certificate: Certificate
) -> None:
    """As `tls_ca`, with its name; pinned, whatever its name; no other of the same authority."""

    async def main() -> None:
        nameless = authority.issue("elsewhere.example")
        chain = Path(nameless.cert).with_name("chain.pem")
        chain.write_text(Path(nameless.cert).read_text() + Path(authority.ca).read_text())
        itself = Security(tls=ClientTls(ca=certificate.cert))
        pinned = Security(tls=ClientTls(pinned=str(chain)))
        async with serving(ROUTES, tls=server_tls(certificate)) as (_, address):
            assert (await asked(address, itself)).body == b"hello"
            assert "is not that of" in await refusal(address, pinned)
        async with serving(ROUTES, tls=server_tls(nameless)) as (_, address):
            assert (await asked(address, pinned)).body == b"hello"

    run(main())


def test_clients_without_a_certificate_are_refused_where_one_is_required(
    authority: Authority, stranger: Authority, certificate: Certificate
) -> None:
    async def main() -> None:
        tls = server_tls(certificate, ca=authority.ca, client_auth="require")
        own, foreign = authority.issue("client"), stranger.issue("client")
        async with serving(ROUTES, tls=tls) as (it, address):
            why = await refusal(address, trusting(authority))
            assert why == "it wants a certificate of ours (tls_cert and tls_key)"
            why = await refusal(address, trusting(authority, cert=foreign.cert, key=foreign.key))
            assert why.startswith(f"it does not accept our certificate {foreign.cert}")
            security = trusting(authority, cert=own.cert, key=own.key)
            assert (await asked(address, security)).body == b"hello"
            assert it.handshakes is not None
            assert it.handshakes.failed == 2

    run(main())


def test_clients_may_have_a_certificate_where_it_is_optional(
    authority: Authority, stranger: Authority, certificate: Certificate
) -> None:
    async def main() -> None:
        tls = server_tls(certificate, ca=authority.ca, client_auth="optional")
        own, foreign = authority.issue("client"), stranger.issue("client")
        async with serving(ROUTES, tls=tls) as (_, address):
            assert (await asked(address, trusting(authority))).body == b"hello"
            security = trusting(authority, cert=own.cert, key=own.key)
            assert (await asked(address, security)).body == b"hello"
            why = await refusal(address, trusting(authority, cert=foreign.cert, key=foreign.key))
            assert "does not accept our certificate" in why

    run(main())


def test_frames_of_any_size_pass_both_ways_at_once(
    authority: Authority, certificate: Certificate
) -> None:
    async def main() -> None:
        async with serving(ROUTES, tls=server_tls(certificate)) as (_, address):
            told: asyncio.Queue[bytes] = asyncio.Queue()
            peer = await aio.connect(
                address,
                PATIENCE,
                lambda peer, requests: [told.put_nowait(one.body) for one in requests] and None,
                security=trusting(authority),
            )
            sizes = (0, 1, 16_383, 16_384, 16_385, 65_536, 65_537, 1_000_000, LARGE)
            bodies = [bytes(i % 251 for i in range(997)) * (size // 997 + 1) for size in sizes]
            bodies = [body[:size] for body, size in zip(bodies, sizes, strict=True)]
            answers = await asyncio.gather(
                *(peer.ask(Command(code=ECHO, body=body), PATIENCE) for body in bodies)
            )
            assert [answer.body for answer in answers] == bodies
            await peer.ask(Command(code=PUSH, body=bodies[-1]), PATIENCE)
            assert await asyncio.wait_for(told.get(), PATIENCE) == bodies[-1]
            peer.close()

    run(main())


def test_a_client_that_does_not_read_is_not_read_from_with_tls_either(
    authority: Authority, certificate: Certificate
) -> None:
    """What it is owed is counted, and stays far below what it asked for."""

    async def main() -> None:
        async with serving(ROUTES, tls=server_tls(certificate)) as (it, address):
            client = trusting(authority).tls
            assert client is not None
            host, _, port = address.rpartition(":")
            reader, writer = await asyncio.open_connection(
                host, int(port), ssl=client.context(), limit=65_536
            )
            request = aio.Connection().ask(Command(code=ECHO, body=bytes(1 << 20)))[1]

            async def send() -> None:
                for _ in range(60):
                    writer.write(request)
                    await writer.drain()

            sending = asyncio.create_task(send())
            (peer,) = it.peers
            await until(lambda: peer.is_full, lambda: it.buffers.total)
            await asyncio.sleep(0.2)
            assert not sending.done()
            assert 1 << 20 < it.buffers.total < 32 << 20
            received = 0
            while received < 60 << 20:
                data = await asyncio.wait_for(reader.read(1 << 20), PATIENCE)
                assert data, f"closed after {received} bytes"
                received += len(data)
            await sending
            writer.transport.abort()

    run(main())


def test_the_certificate_is_reloaded_when_its_files_change(
    tmp_path: Path,
    authority: Authority,
    stranger: Authority,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One that can't be used is refused in a line, and the old one stays. Connections stay."""
    monkeypatch.setattr(server, "_CERTIFICATE_SECONDS", 0.02)
    old, new = authority.issue(), stranger.issue()
    files = Certificate(str(tmp_path / "cert.pem"), str(tmp_path / "key.pem"))

    def install(certificate: Certificate) -> None:
        shutil.copy(certificate.cert, files.cert)
        shutil.copy(certificate.key, files.key)

    async def main() -> None:
        async with serving(ROUTES, tls=server_tls(files)) as (it, address):
            peer = await aio.connect(address, PATIENCE, security=trusting(authority))
            Path(files.cert).write_text("-----BEGIN CERTIFICATE-----\nnonsense\n")
            await until(lambda: "stays in force" in caplog.text, lambda: caplog.text)
            await asyncio.sleep(0.2)
            assert caplog.text.count("stays in force") == 1
            assert (await asked(address, trusting(authority))).body == b"hello"
            install(new)
            await until(lambda: f"{files.cert}: reloaded" in caplog.text, lambda: caplog.text)
            assert (await asked(address, trusting(stranger))).body == b"hello"
            assert "not signed by" in await refusal(address, trusting(authority))
            assert (await peer.ask(Command(code=ECHO, body=b"still"), PATIENCE)).body == b"still"
            peer.close()
            assert not it.background.failures

    install(old)
    with caplog.at_level(logging.INFO, "tamis.net"):
        run(main())


def test_a_client_notices_that_the_file_of_its_authority_changed(
    tmp_path: Path, authority: Authority, stranger: Authority, certificate: Certificate
) -> None:
    file = tmp_path / "ca.pem"
    security = Security(tls=ClientTls(ca=str(file)))

    async def main() -> None:
        async with serving(ROUTES, tls=server_tls(certificate)) as (_, address):
            shutil.copy(stranger.ca, file)
            assert "not signed by" in await refusal(address, security)
            file.unlink()
            shutil.copy(authority.ca, file)
            assert (await asked(address, security)).body == b"hello"
            assert security.tls is not None
            assert security.tls.context() is security.tls.context()
            file.unlink()
            with pytest.raises(ConfigError, match=r"tls_ca .*: No such file"):
                await asked(address, security)

    run(main())


def test_closing_a_server_ends_connections_with_tls_in_any_state(
    authority: Authority, certificate: Certificate
) -> None:
    async def main() -> None:
        it = Server(ROUTES, tls=server_tls(certificate))
        address = f"127.0.0.1:{await it.start('127.0.0.1', 0)}"
        peer = await aio.connect(address, PATIENCE, security=trusting(authority))
        pending = asyncio.create_task(peer.ask(Command(code=NEVER), PATIENCE))
        async with stream(address) as silent, stream(address) as halfway:
            halfway.writer.write(b"\x16\x03\x01\x02\x00")
            await until(lambda: len(it.peers) == 3, lambda: it.peers)
            await it.close()
            assert await silent.rest() == b""
            assert await halfway.rest() == b""
        with pytest.raises(ConnectionError):
            await pending

    run(main())


def test_requests_are_signed_each_and_the_callers_commands_are_left_alone(
    authority: Authority, certificate: Certificate
) -> None:
    signed: list[Command] = []

    def keep(request: Request) -> Answer:
        signed.append(request.command)
        return Answer()

    keys = Credentials("me", "secret-of-mine", "token")
    request = Command(code=FIELDS, fields={"topic": "Orders", "b": "2"}, body=b"body")
    routes = {FIELDS: Route(None, needless_header(keep))}

    async def main() -> None:
        async with serving(routes, tls=server_tls(certificate, "permissive")) as (_, address):
            for security in (
                Security(keys, ClientTls(ca=authority.ca)),
                Security(Credentials("other", "another-secret")),
                INSECURE,
            ):
                peer = await aio.connect(address, PATIENCE, security=security)
                await peer.ask(request, PATIENCE)
                peer.tell(Command(code=FIELDS, flag=int(CommandFlag.ONEWAY), body=b"one way"))
                await peer.ask(Command(code=FIELDS), PATIENCE)
                peer.close()

    run(main())
    assert request.fields == {"topic": "Orders", "b": "2"}
    assert [(one.fields or {}).get("AccessKey") for one in signed] == (
        ["me"] * 3 + ["other"] * 3 + [None] * 3
    )
    for one in signed[:3]:
        fields = one.fields or {}
        assert fields["SecurityToken"] == "token"
        expected = signature_of(content_of(fields, one.body), keys.secret_key)
        assert fields["Signature"] == expected
    assert "SecurityToken" not in (signed[3].fields or {})
