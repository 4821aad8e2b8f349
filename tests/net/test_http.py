"""The HTTP server of metrics: who is answered, by which protocol, and who holds up nobody."""

import socket
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from certificates import Authority, Certificate
from net.harness import PATIENCE

from tamis.net import http
from tamis.net.http import HttpServer
from tamis.security import ClientTls, ServerTls
from tamis.security.tls import Mode, ServerContext


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def certificate(authority: Authority) -> Certificate:
    return authority.issue()


def app(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
    start("200 OK", [("Content-Type", "text/plain")])
    return [b"hello"]


@contextmanager
def serving(certificate: Certificate, mode: Mode) -> Iterator[HttpServer]:
    context = None
    if mode != "disabled":
        context = ServerContext(ServerTls(mode, certificate.cert, certificate.key))
    server = HttpServer("127.0.0.1", 0, app, context)
    try:
        yield server
    finally:
        server.close()


def got(server: HttpServer, scheme: str, authority: Authority) -> bytes:
    tls = ClientTls(ca=authority.ca).context() if scheme == "https" else None
    url = f"{scheme}://127.0.0.1:{server.port}/metrics"
    with urllib.request.urlopen(url, timeout=PATIENCE, context=tls) as answer:
        said: bytes = answer.read()
        return said


@pytest.mark.parametrize(
    ("mode", "schemes", "told"),
    [
        ("disabled", {"http"}, "http"),
        ("permissive", {"http", "https"}, "http"),
        ("enforcing", {"https"}, "https"),
    ],
)
def test_the_mode_says_which_protocols_are_answered(
    mode: Mode, schemes: set[str], told: str, authority: Authority, certificate: Certificate
) -> None:
    with serving(certificate, mode) as server:
        assert server.scheme == told
        for scheme in ("http", "https"):
            if scheme in schemes:
                assert got(server, scheme, authority) == b"hello"
            else:
                with pytest.raises(OSError):
                    got(server, scheme, authority)


@pytest.mark.parametrize("first", [b"", b"\x16", b"GET /metrics HTT"])
def test_clients_that_stop_in_the_middle_hold_up_nobody(
    first: bytes, authority: Authority, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are as many as may be; the oldest is closed for the next once it took too long."""
    monkeypatch.setattr(http, "_SECONDS", 0.3)
    monkeypatch.setattr(http._Handler, "timeout", PATIENCE)
    with serving(certificate, "permissive") as server, ExitStack() as stack:
        for _ in range(http._MOST):
            end = socket.create_connection(("127.0.0.1", server.port), PATIENCE)
            stack.enter_context(end).send(first)
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                assert got(server, "https", authority) == b"hello"
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
