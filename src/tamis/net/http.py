"""A small HTTP server in threads, for metrics: with TLS, without it, or both on one port.

Each connection has a thread, which does the handshake, too: one that says nothing holds up nobody
else. There are few threads, and each ends after a while.
"""

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from ..security.tls import ServerContext
from .rarely import Rarely
from .tls import HANDSHAKE

__all__ = ["HttpServer"]

log = logging.getLogger(__name__)

_MOST: Final = 32  # connections at once; Prometheus needs one
_SECONDS: Final = 10.0  # for a handshake, a request, and between parts of an answer

App = Callable[[dict[str, Any], Any], Iterable[bytes]]


class HttpServer:
    """Listens from the start to `close`, and answers by `app`. Raises OSError.

    With a `certificate`, `enforcing` is HTTPS and `permissive` is both, told apart by the first
    byte. The certificate in force is asked for at each connection.
    """

    def __init__(self, host: str, port: int, app: App, certificate: ServerContext | None) -> None:
        class Server(_Server):
            address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]

        is_enforced = certificate is not None and certificate.tls.mode == "enforcing"
        self.scheme = "https" if is_enforced else "http"
        self._server = make_server(host, port, app, Server, _Handler)
        self._server.certificate = certificate
        self.port: int = self._server.server_port
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="tamis-http", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Waits for no answer that is under way."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(WSGIRequestHandler):
    timeout = _SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        pass


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 64
    certificate: ServerContext | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._lock = threading.Lock()
        # by address of the client: since when, and which; the oldest first
        self._open: dict[Any, tuple[float, socket.socket]] = {}
        self._warnings = Rarely(log)
        super().__init__(*arguments, **options)

    def server_bind(self) -> None:
        """Without asking a name server what our address is called."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._open) >= _MOST:
                self._close_slowest()
            is_full = len(self._open) >= _MOST
            if not is_full:
                self._open[client_address] = time.monotonic(), request
        if is_full:
            self._warnings.warn(f"{client_address[0]}: closed: {_MOST} requests are under way")
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no more threads
            self._forget(client_address)
            raise

    def _forget(self, client_address: Any) -> None:
        with self._lock:
            self._open.pop(client_address, None)

    def _close_slowest(self) -> None:
        """Its thread, which waits for it, ends."""
        address, (since, slowest) = next(iter(self._open.items()))
        if time.monotonic() - since > _SECONDS:
            del self._open[address]
            with contextlib.suppress(OSError):
                slowest.shutdown(socket.SHUT_RDWR)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            secured = self._secure(request, client_address)
            if secured is None:
                self.shutdown_request(request)
            else:
                super().process_request_thread(secured, client_address)
        except OSError as error:  # its handshake; what follows is for `handle_error`
            log.debug("%s: closed: %s", client_address[0], error)
            with self._lock:
                _, request = self._open.get(client_address, (0, request))
            self.shutdown_request(request)
        finally:
            self._forget(client_address)

    def _secure(self, request: socket.socket, client_address: Any) -> socket.socket | None:
        """With TLS, if it is wanted; None: the client is not to be served. Raises OSError."""
        certificate = self.certificate
        if certificate is None:
            return request
        request.settimeout(_SECONDS)
        first = request.recv(1, socket.MSG_PEEK)
        if first[:1] != bytes((HANDSHAKE,)):
            return request if first and certificate.tls.mode == "permissive" else None
        secured = certificate.context.wrap_socket(
            request, server_side=True, do_handshake_on_connect=False
        )
        with self._lock:
            if client_address in self._open:
                self._open[client_address] = self._open[client_address][0], secured
        secured.do_handshake()
        return secured

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("%s: request failed", client_address[0], exc_info=True)
