"""TLS of clients and servers: what is wanted of it, and the contexts of Python's `ssl` for it.

TLS 1.2 and later. Certificates and keys are files in PEM; they are read again when they change.
"""

import os
import re
import ssl
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from ..errors import ConfigError

__all__ = ["TLS_SETTINGS", "ClientAuth", "ClientTls", "Mode", "ServerContext", "ServerTls"]

Mode = Literal["disabled", "permissive", "enforcing"]
ClientAuth = Literal["none", "optional", "require"]

MODES: Final = ("disabled", "permissive", "enforcing")
CLIENT_AUTHS: Final = ("none", "optional", "require")
_MOST_CONTEXTS: Final = 32  # of clients; each may hold a few hundred authorities
_LONGEST_PASSWORD: Final = 1024
_CERTIFICATE: Final = re.compile(
    r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL
)

_Stamp = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True, slots=True)
class ClientTls:
    """How a client verifies a server: its certificate by `ca` (the system's authorities if empty),
    its name by the address that was connected to, or `server_name`.

    `pinned`: trust the server that has the first certificate of this file, and no other, whatever
    its name. For servers that connect to each other and share a certificate.
    """

    ca: str = ""
    verify: bool = True  # False: whoever answers is believed
    server_name: str = ""
    cert: str = ""  # our own, for servers that ask for one
    key: str = ""
    key_password: str = field(default="", repr=False)
    pinned: str = ""

    def __post_init__(self) -> None:
        if self.key and not self.cert:
            raise ConfigError("tls_key without tls_cert: a key is of no use without a certificate")

    def context(self) -> ssl.SSLContext:
        """Returns the context for these settings, made anew if one of the files has changed.
        Raises ConfigError for files that can't be used."""
        stamp = _stamp(self.ca, self.cert, self.key, self.pinned)
        with _contexts_lock:
            known = _contexts.get(self)
            if known is not None and known[0] == stamp:
                _contexts.move_to_end(self)
                return known[1]
        made = self.new_context()
        with _contexts_lock:
            _contexts[self] = stamp, made
            _contexts.move_to_end(self)
            while len(_contexts) > _MOST_CONTEXTS:
                _contexts.popitem(last=False)
        return made

    def new_context(self, *, any_name: bool = False) -> ssl.SSLContext:
        """Raises ConfigError."""
        made = _new_context(ssl.PROTOCOL_TLS_CLIENT)
        if any_name:
            made.check_hostname = False
        if not self.verify:
            made.check_hostname = False
            made.verify_mode = ssl.CERT_NONE
        elif self.pinned:
            made.check_hostname = False
            made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            _load_first(made, self.pinned)
        elif self.ca:
            # the file may have a server's own certificate, without that of its authority
            made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            _load_authorities(made, self.ca)
        else:
            made.load_default_certs(ssl.Purpose.SERVER_AUTH)
        if self.cert:
            _load_certificate(made, self.cert, self.key, self.key_password)
        return made


_contexts: OrderedDict[ClientTls, tuple[_Stamp, ssl.SSLContext]] = OrderedDict()
_contexts_lock = threading.Lock()


# Of the configurations of servers.
TLS_SETTINGS: Final = (
    *("tls", "tls_cert", "tls_key", "tls_key_password", "tls_key_password_file"),
    *("tls_ca", "tls_client_auth"),
)


class _TlsSettings(Protocol):
    """What the configurations of servers have in common."""

    @property
    def tls(self) -> Mode: ...
    @property
    def tls_cert(self) -> str: ...
    @property
    def tls_key(self) -> str: ...
    @property
    def tls_key_password(self) -> str: ...
    @property
    def tls_key_password_file(self) -> str: ...
    @property
    def tls_ca(self) -> str: ...
    @property
    def tls_client_auth(self) -> ClientAuth: ...


@dataclass(frozen=True, slots=True)
class ServerTls:
    """`permissive`: with TLS and without on one port. `client_auth`: whether clients are asked for
    certificates, which `ca` verifies."""

    mode: Mode = "disabled"
    cert: str = ""
    key: str = ""
    key_password: str = field(default="", repr=False)
    key_password_file: str = ""  # instead of the password itself
    ca: str = ""
    client_auth: ClientAuth = "none"

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ConfigError(f"tls = {self.mode!r}: it is {', '.join(MODES[:-1])} or {MODES[-1]}")
        if self.client_auth not in CLIENT_AUTHS:
            raise ConfigError(
                f"tls_client_auth = {self.client_auth!r}: it is none, optional or require"
            )
        if self.mode == "disabled":
            return
        if not self.cert or not self.key:
            missing = "tls_cert" if not self.cert else "tls_key"
            raise ConfigError(
                f"tls = {self.mode}: it needs tls_cert and tls_key; {missing} is missing"
            )
        if self.key_password and self.key_password_file:
            raise ConfigError(
                "tls_key_password (or TAMIS_TLS_KEY_PASSWORD) and tls_key_password_file: only one"
                " of them"
            )
        if self.client_auth != "none" and not self.ca:
            raise ConfigError(
                f"tls_client_auth = {self.client_auth}: it needs tls_ca, to verify them"
            )

    @classmethod
    def of(cls, settings: _TlsSettings) -> "ServerTls":
        """The TLS that a server's configuration asks for. Raises ConfigError."""
        return cls(
            mode=settings.tls,
            cert=settings.tls_cert,
            key=settings.tls_key,
            key_password=settings.tls_key_password,
            key_password_file=settings.tls_key_password_file,
            ca=settings.tls_ca,
            client_auth=settings.tls_client_auth,
        )

    def context(self) -> ssl.SSLContext:
        """Raises ConfigError for files that can't be used."""
        made = _new_context(ssl.PROTOCOL_TLS_SERVER)
        _load_certificate(made, self.cert, self.key, self._password())
        if self.client_auth != "none":
            _load_authorities(made, self.ca)
            made.verify_mode = (
                ssl.CERT_REQUIRED if self.client_auth == "require" else ssl.CERT_OPTIONAL
            )
        return made

    def peers(self) -> ClientTls | None:
        """Returns how to connect to a server with the same settings; None: without TLS.

        Its certificate is ours: no authority and no name is needed to know it. It is asked for as
        a client's certificate, too, if servers want one.
        """
        if self.mode != "enforcing":
            return None
        if self.client_auth == "none":
            return ClientTls(pinned=self.cert)
        return ClientTls(
            pinned=self.cert, cert=self.cert, key=self.key, key_password=self._password()
        )

    def _password(self) -> str:
        if not self.key_password_file:
            return self.key_password
        name = f"tls_key_password_file {self.key_password_file}"
        try:
            with open(self.key_password_file, "rb") as file:
                data = file.read(_LONGEST_PASSWORD + 1)
            password = data.decode().rstrip("\r\n")
        except OSError as error:
            raise ConfigError(f"{name}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{name}: not text in UTF-8") from None
        if not password or len(data) > _LONGEST_PASSWORD:
            why = "it is empty" if not password else f"more than {_LONGEST_PASSWORD} bytes"
            raise ConfigError(f"{name}: {why}")
        return password


class ServerContext:
    """The context in force of a server, from its files as they are now.

    `context` may be read by any thread; `reload` is for one.
    """

    def __init__(self, tls: ServerTls) -> None:
        """Raises ConfigError for files that can't be used."""
        self.tls = tls
        self._stamp = self._last_seen = self._look()
        self.context = tls.context()

    def reload(self) -> bool:
        """Returns whether there is another certificate in force: the files have changed, and not
        since the last call. Raises ConfigError, once for each change, if they can't be used; the
        certificate in force stays."""
        seen, before = self._look(), self._last_seen
        self._last_seen = seen
        if seen == self._stamp or seen != before:  # the second file may be on its way
            return False
        self._stamp = seen
        self.context = self.tls.context()
        return True

    def _look(self) -> _Stamp:
        tls = self.tls
        return _stamp(tls.cert, tls.key, tls.key_password_file, tls.ca)


def _stamp(*paths: str) -> _Stamp:
    """What changes when one of the files does."""
    return tuple(_stamp_of(path) for path in paths)


def _stamp_of(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path) if path else None
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino) if found is not None else None


def _new_context(protocol: int) -> ssl.SSLContext:
    made = ssl.SSLContext(protocol)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.options |= ssl.OP_NO_RENEGOTIATION  # a client could make us do handshakes all day
    return made


def _load_certificate(context: ssl.SSLContext, cert: str, key: str, password: str) -> None:
    for name, path in ("tls_cert", cert), ("tls_key", key):
        if path:
            _check_readable(name, path)
    try:
        # never asked for at a terminal
        context.load_cert_chain(cert, key or None, lambda: password)
    except ssl.SSLError as error:
        reason = error.reason or str(error)
        if reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"tls_key {key}: it is not the key of {cert}") from None
        what = f"{cert} and {key}" if key else cert
        raise ConfigError(
            f"tls_cert {what}: not a certificate and a key in PEM, or encrypted with another"
            f" password ({reason})"
        ) from None
    except OSError as error:
        raise ConfigError(f"tls_cert {cert}: {error.strerror or error}") from None


def _load_authorities(context: ssl.SSLContext, path: str) -> None:
    _check_readable("tls_ca", path)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise ConfigError(
            f"tls_ca {path}: no certificates in PEM ({error.reason or error})"
        ) from None
    except OSError as error:
        raise ConfigError(f"tls_ca {path}: {error.strerror or error}") from None


def _load_first(context: ssl.SSLContext, path: str) -> None:
    """The authorities that may follow the first one are not to be trusted."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            found = _CERTIFICATE.search(file.read())
        if found is None:
            raise ConfigError(f"tls_cert {path}: no certificate in PEM")
        context.load_verify_locations(cadata=found.group())
    except ssl.SSLError as error:
        raise ConfigError(f"tls_cert {path}: no certificate in PEM ({error.reason})") from None
    except OSError as error:
        raise ConfigError(f"tls_cert {path}: {error.strerror}") from None


def _check_readable(name: str, path: str) -> None:
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise ConfigError(f"{name} {path}: {error.strerror}") from None
