"""One end of a TLS connection without its socket: encrypted bytes in, plain bytes out, and back.

`ssl`'s own sockets can't be polled, and the event loops' TLS can't be told what was read already:
both shells move bytes between a socket and a `TlsStream`.
"""

import contextlib
import math
import ssl
import time
from collections.abc import Sequence
from typing import Final

from ..security import ClientTls

__all__ = ["HANDSHAKE", "TlsFailure", "TlsStream", "explain", "server_name"]

HANDSHAKE: Final = 0x16  # the first byte of a TLS connection, and of no frame that is taken
# Bytes: the longest plain text of a record. Not more is given to OpenSSL at once, for its buffers
# never shrink; to encrypt a megabyte takes 0.4 ms so, and 1.1 ms in pieces of 64 KiB.
_RECORD: Final = 16_384


class TlsFailure(ConnectionError):
    """TLS failed. Its text is one line that says why."""


class TlsStream:
    """Not for several threads. After an `ssl.SSLError` it is of no more use, but for `flush`: the
    other end is to be told."""

    __slots__ = ("_incoming", "_outgoing", "_rest", "_ssl", "is_ended", "is_established")

    def __init__(
        self, context: ssl.SSLContext, *, server_side: bool, name: str | None = None
    ) -> None:
        """`name`: of the server, for clients."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=name
        )
        self._rest = b""  # that was not looked at
        self.is_established = False
        self.is_ended = False  # the other end sends no more

    def shake(self, data: bytes = b"") -> bool:
        """Goes on with the handshake; returns whether it is complete. What is to be sent is
        returned by `flush`. Raises ssl.SSLError."""
        at = 0
        while True:
            self._incoming.write(data[at : at + _RECORD])
            at += _RECORD
            try:
                self._ssl.do_handshake()
            except ssl.SSLWantReadError:
                if at < len(data):
                    continue
                return False
            self._rest = data[at:]
            self.is_established = True
            return True

    def receive(self, data: bytes = b"", until: float = math.inf) -> bytes:
        """Returns the plain text of all records that are whole; or of some, when it is `until`
        (monotonic seconds): then there is a `rest`, for the next call. Raises ssl.SSLError."""
        if self._rest:
            data, self._rest = self._rest + data, b""
        if len(data) <= _RECORD:
            self._incoming.write(data)
            return self._read()
        view, found = memoryview(data), []
        for at in range(0, len(data), _RECORD):
            self._incoming.write(view[at : at + _RECORD])
            found.append(self._read())
            if time.monotonic() >= until:
                self._rest = data[at + _RECORD :]
                break
        return b"".join(found)

    @property
    def rest(self) -> int:
        """Bytes that were received and not looked at."""
        return len(self._rest)

    def _read(self) -> bytes:
        incoming, read = self._incoming, self._ssl.read
        first, more = b"", None
        try:
            while incoming.pending and not self.is_ended:
                part = read(_RECORD)
                if not part:
                    self.is_ended = True
                elif not first:
                    first = part
                elif more is None:
                    more = [first, part]
                else:
                    more.append(part)
        except ssl.SSLWantReadError:
            pass  # the rest of a record is on its way
        return first if more is None else b"".join(more)

    def send(self, data: bytes) -> list[bytes]:
        """Returns what is to be sent for plain text, a record each. Raises ssl.SSLError."""
        if 0 < len(data) <= _RECORD:
            self._ssl.write(data)
            return [self._outgoing.read()]
        view, made = memoryview(data), []
        while view:
            view = view[self._ssl.write(view[:_RECORD]) :]
            made.append(self._outgoing.read())
        return made

    def flush(self) -> bytes:
        """Returns what is to be sent that nobody asked for: parts of handshakes, alerts."""
        return self._outgoing.read() if self._outgoing.pending else b""

    def end(self) -> bytes:
        """Returns what tells the other end that no more is sent."""
        with contextlib.suppress(ssl.SSLError, ValueError):  # it has not said so itself
            self._ssl.unwrap()
        return self.flush()


def server_name(tls: ClientTls, host: str) -> str:
    """The name that a server's certificate has to have."""
    return tls.server_name or host


# Codes of OpenSSL's verification (X509_V_ERR_...).
_NOT_YET_VALID, _EXPIRED = 9, 10
WRONG_NAMES: Final = (62, 64)  # of a host; of an address
_UNKNOWN: Final = (18, 19, 20, 21)  # self-signed; so is the last of the chain; issuer not known
_REFUSED_CERTIFICATE: Final = (
    "UNKNOWN_CA",
    "BAD_CERTIFICATE",
    "UNSUPPORTED_CERTIFICATE",
    "CERTIFICATE_REVOKED",
    "CERTIFICATE_EXPIRED",
    "CERTIFICATE_UNKNOWN",
)


def explain(error: Exception, tls: ClientTls, name: str, names: Sequence[str] = ()) -> str:
    """Why a connection to a server could not be made or was lost, in one line. `names`: those in
    its certificate, where they are known."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _explain_verification(error, tls, name, names)
    if not isinstance(error, ssl.SSLError) or isinstance(error, ssl.SSLEOFError):
        return "it closed the connection in the TLS handshake; does it speak TLS?"
    reason = error.reason or str(error)
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_TOO_SMALL"):
        return "it does not speak TLS: its answer to a handshake is something else"
    if "ALERT" in reason:
        if "CERTIFICATE_REQUIRED" in reason:
            return "it wants a certificate of ours (tls_cert and tls_key)"
        if tls.cert and any(one in reason for one in _REFUSED_CERTIFICATE):
            return f"it does not accept our certificate {tls.cert} ({_words(reason)})"
        if "HANDSHAKE_FAILURE" in reason or any(one in reason for one in _REFUSED_CERTIFICATE):
            more = "" if tls.cert else "; does it want a certificate of ours (tls_cert)?"
            return f"it refused the TLS handshake ({_words(reason)}){more}"
        return f"it refused the TLS handshake ({_words(reason)})"
    return f"TLS failed ({_words(reason)})"


def _explain_verification(
    error: ssl.SSLCertVerificationError,
    tls: ClientTls,
    name: str,
    names: Sequence[str],
) -> str:
    code = error.verify_code
    if code == _EXPIRED:
        return "its certificate has expired"
    if code == _NOT_YET_VALID:
        return "its certificate is not valid yet; is the clock right?"
    if code in WRONG_NAMES:
        others = f"; it is for {', '.join(names)}" if names else ""
        return f"its certificate is not for {name}{others} (tls_server_name: which one to expect)"
    if code in _UNKNOWN and tls.pinned:
        return f"its certificate is not that of {tls.pinned}"
    if code in _UNKNOWN:
        by = f"tls_ca {tls.ca}" if tls.ca else "an authority that this system knows"
        hint = "" if tls.ca else "; name its authority with tls_ca"
        return f"its certificate is not signed by {by} ({error.verify_message}){hint}"
    return f"its certificate can't be verified: {error.verify_message}"


def _words(reason: str) -> str:
    return reason.lower().replace("_", " ")
