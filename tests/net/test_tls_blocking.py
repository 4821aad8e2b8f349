"""The blocking shell with TLS: the same answers, the same errors."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from certificates import Authority, Certificate
from net.harness import PATIENCE

from tamis.errors import ConfigError
from tamis.net import blocking
from tamis.net.server import Answer, Request, Route, Server, needless_header
from tamis.security import ClientTls, Credentials, Security, ServerTls
from tamis.security.credentials import content_of, signature_of
from tamis.wire.command import Command
from tamis.wire.frame import MAX_FRAME

ECHO, LATER, NEVER, KEEP, HANG_UP = range(1000, 1005)
kept: list[Command] = []


async def later(request: Request) -> Answer:
    await asyncio.sleep(0.05)
    return Answer(body=b"late")


async def never(request: Request) -> Answer:
    await asyncio.sleep(3600)
    return Answer()


def keep(request: Request) -> Answer:
    kept.append(request.command)
    return Answer()


def hang_up(request: Request) -> Answer:
    asyncio.get_running_loop().call_later(0.05, request.peer.close)
    return Answer(body=b"goodbye")


ROUTES = {
    ECHO: Route(None, needless_header(lambda request: Answer(body=request.body))),
    LATER: Route(None, needless_header(later)),
    NEVER: Route(None, needless_header(never)),
    KEEP: Route(None, needless_header(keep)),
    HANG_UP: Route(None, needless_header(hang_up)),
}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def certificate(authority: Authority) -> Certificate:
    return authority.issue()


@pytest.fixture(scope="module")
def address(certificate: Certificate) -> Iterator[str]:
    tls = ServerTls(mode="enforcing", cert=certificate.cert, key=certificate.key)
    with serving(tls) as address:
        yield address


@pytest.fixture(scope="module")
def security(authority: Authority) -> Security:
    return Security(tls=ClientTls(ca=authority.ca))


@contextmanager
def serving(tls: ServerTls | None) -> Iterator[str]:
    """The address of a server in a thread of its own."""
    ready, address, stop = threading.Event(), list[str](), list[Callable[[], object]]()

    async def serve() -> None:
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        server = Server(ROUTES, tls=tls)
        address.append(f"127.0.0.1:{await server.start('127.0.0.1', 0)}")
        stop.append(lambda: loop.call_soon_threadsafe(done.set))
        ready.set()
        await done.wait()
        await server.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(PATIENCE)
    try:
        yield address[0]
    finally:
        stop[0]()
        thread.join()


def test_answers_come_in_any_order(address: str, security: Security) -> None:
    with blocking.connect(address, PATIENCE, security=security) as peer:
        late = peer.post(Command(code=LATER))
        early = peer.post(Command(code=ECHO, body=b"early"))
        assert peer.answer(early, PATIENCE).body == b"early"
        assert peer.answer(late, PATIENCE).body == b"late"


@pytest.mark.parametrize("size", [0, 1, 16_384, 16_385, 1_000_000, MAX_FRAME - 65_536])
def test_bodies_of_any_size_pass_both_ways(size: int, address: str, security: Security) -> None:
    with blocking.connect(address, PATIENCE, security=security) as peer:
        body = bytes(range(256)) * (size // 256) + bytes(size % 256)
        assert peer.ask(Command(code=ECHO, body=body), PATIENCE).body == body


def test_answers_are_read_while_requests_are_sent(address: str, security: Security) -> None:
    """More both ways than sockets hold: one that only wrote would wait for ever."""
    with blocking.connect(address, PATIENCE, security=security) as peer:
        bodies = [bytes([number]) * (1 << 20) for number in range(24)]
        opaques = [peer.post(Command(code=ECHO, body=body)) for body in bodies]
        answers = [peer.answer(opaque, PATIENCE).body for opaque in opaques]
        assert answers == bodies


def test_no_answer_in_time_is_a_timeout_and_the_connection_can_be_used(
    address: str, security: Security
) -> None:
    with blocking.connect(address, PATIENCE, security=security) as peer:
        with pytest.raises(TimeoutError, match=r"did not answer in 0.1 s"):
            peer.ask(Command(code=NEVER), 0.1)
        assert peer.ask(Command(code=ECHO, body=b"x"), PATIENCE).body == b"x"


def test_it_is_idle_whatever_tls_itself_has_to_say(address: str, security: Security) -> None:
    """TLS 1.3 sends tickets after the handshake: bytes that are no answer."""
    with blocking.connect(address, PATIENCE, security=security) as peer:
        assert peer.is_idle
        opaque = peer.post(Command(code=LATER))
        assert not peer.is_idle
        peer.answer(opaque, PATIENCE)
        assert peer.is_idle
        assert peer.is_idle


def test_it_is_not_idle_after_the_server_hung_up(address: str, security: Security) -> None:
    with blocking.connect(address, PATIENCE, security=security) as peer:
        assert peer.ask(Command(code=HANG_UP), PATIENCE).body == b"goodbye"
        with pytest.raises(ConnectionError, match="closed the connection"):
            peer.ask(Command(code=NEVER), PATIENCE)
        assert not peer.is_idle
    with blocking.connect(address, PATIENCE, security=security) as peer:
        peer.ask(Command(code=HANG_UP), PATIENCE)
        deadline = threading.Event()
        for _ in range(200):
            if not peer.is_idle:
                break
            deadline.wait(0.02)
        assert not peer.is_idle


def test_it_says_why_a_certificate_does_not_fit(
    authority: Authority, address: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    stranger = Authority(tmp_path_factory.mktemp("stranger"))
    refused = {
        f"its certificate is not signed by tls_ca {stranger.ca}": ClientTls(ca=stranger.ca),
        "its certificate is not for elsewhere.example; it is for 127.0.0.1": ClientTls(
            ca=authority.ca, server_name="elsewhere.example"
        ),
    }
    for why, tls in refused.items():
        with pytest.raises(ConnectionError) as raised:
            blocking.connect(address, PATIENCE, security=Security(tls=tls))
        assert str(raised.value).startswith(f"{address}: {why}")
    with pytest.raises(ConfigError, match=r"tls_ca /nowhere\.pem: No such file"):
        blocking.connect(address, security=Security(tls=ClientTls(ca="/nowhere.pem")))
    with blocking.connect(address, security=Security(tls=ClientTls(verify=False))) as peer:
        assert peer.ask(Command(code=ECHO, body=b"x"), PATIENCE).body == b"x"


def test_it_says_that_a_certificate_of_ours_is_wanted(
    authority: Authority, certificate: Certificate, security: Security
) -> None:
    tls = ServerTls(
        mode="enforcing",
        cert=certificate.cert,
        key=certificate.key,
        ca=authority.ca,
        client_auth="require",
    )
    own = authority.issue("client", password="open sesame")
    with serving(tls) as address:
        with (
            pytest.raises(ConnectionError, match="it wants a certificate of ours"),
            blocking.connect(address, PATIENCE, security=security) as peer,
        ):
            peer.ask(Command(code=ECHO), PATIENCE)
        ours = ClientTls(ca=authority.ca, cert=own.cert, key=own.key, key_password=own.password)
        with blocking.connect(address, PATIENCE, security=Security(tls=ours)) as peer:
            assert peer.ask(Command(code=ECHO, body=b"x"), PATIENCE).body == b"x"


def test_it_says_that_a_server_does_not_speak_tls(security: Security) -> None:
    with (
        serving(None) as address,
        pytest.raises(ConnectionError, match=r"does it speak TLS\?"),
    ):
        blocking.connect(address, PATIENCE, security=security)


def test_a_handshake_that_is_not_answered_ends_with_the_connect_timeout(
    security: Security,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(TimeoutError, match=r"did not complete a TLS handshake in 0.2 s"):
            blocking.connect(address, 0.2, security=security)


def test_requests_are_signed_and_the_callers_commands_are_left_alone(
    authority: Authority, address: str
) -> None:
    keys = Credentials("me", "secret-of-mine")
    request = Command(code=KEEP, fields={"topic": "Orders"}, body=b"body")
    security = Security(keys, ClientTls(ca=authority.ca))
    with blocking.connect(address, PATIENCE, security=security) as peer:
        peer.ask(request, PATIENCE)
        peer.ask(request, PATIENCE)
    assert request.fields == {"topic": "Orders"}
    for one in kept[-2:]:
        assert one.fields is not None
        assert one.fields["AccessKey"] == "me"
        expected = signature_of(content_of(one.fields, one.body), keys.secret_key)
        assert one.fields["Signature"] == expected
