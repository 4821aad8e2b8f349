"""How a filter server is run. Durations are seconds, sizes bytes."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, get_args

from ..errors import ConfigError
from ..net.aio import parse_address
from ..security import INSECURE, Security
from ..security.tls import ClientAuth, Mode

if TYPE_CHECKING:
    from ..sandbox import Limits

__all__ = ["FilterServerConfig", "Isolation", "OnError", "Uploads"]

OnError = Literal["skip", "pass", "hold", "dead-letter"]
Isolation = Literal["required", "best-effort", "off"]
Uploads = bool | Literal["loopback"]

_KIB: Final = 1024
_MIB: Final = 1024 * _KIB
_RANGES: Final[dict[str, tuple[float, float]]] = {
    "port": (0, 65_535),
    "metrics_port": (-1, 65_535),
    "max_source_size": (1, 8 * _MIB),
    "register_seconds": (0.01, 3600),
    "conflict_seconds": (0.01, 86_400),
    "most_classes": (1, 100_000),
    "unused_seconds": (0.1, 31_536_000),
    "lag_seconds": (0, 3600),
    "most_connection_pulls": (1, 1_000_000),
    "most_pulls": (1, 1_000_000),
    "read_ahead": (_MIB, 2**40),
    "batch": (1, 1_000_000),
    "answer_bytes": (_KIB, 15 * _MIB),
    "scan_seconds": (0.01, 20),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterServerConfig:
    # Where it is.
    broker: str = "127.0.0.1:10911"  # the one it reads from and registers with
    nameservers: str = ""  # host:port;host:port: told to people only, the broker names us there
    host: str = "127.0.0.1"  # where it listens
    port: int = 0  # 0: the system picks one
    advertise: str = ""  # the host clients are told; empty: `host`, or how the broker sees us
    metrics_port: int = -1  # 0: picked; -1: no metrics

    # TLS, of its port and its metrics. Files are read when it starts, and when they change.
    tls: Mode = "disabled"
    tls_cert: str = ""  # with its chain
    tls_key: str = ""
    tls_key_password: str = field(default="", repr=False)
    tls_key_password_file: str = ""
    tls_ca: str = ""  # verifies clients
    tls_client_auth: ClientAuth = "none"
    security: Security = INSECURE  # of the connection to the broker

    # What it allows.
    uploads: Uploads = False  # from anywhere, or from this machine alone
    secret: str | None = field(
        default=None, repr=False
    )  # an upload has to bring it (the field `tamisSecret`)
    acl_file: str = ""  # plain_acl.yml; empty: requests need not be signed
    isolation: Isolation = "required"  # what is not had: no uploads, or a warning
    on_error: OnError = "skip"  # what becomes of a message that the filter fails on
    limits: "Limits | None" = None  # of each filter; None: the sandbox's own
    modules: tuple[str, ...] = ("numpy", "pyarrow")  # besides the standard library
    max_source_size: int = _MIB  # as `tamis.code.MAX_SOURCE`

    # Timing.
    register_seconds: float = 10.0  # brokers forget a filter server after 30 s
    conflict_seconds: float = 60.0  # a source that was replaced comes back after so long a silence
    unused_seconds: float = 600.0  # then a class that nobody uploads or asks for is dropped
    lag_seconds: float = 5.0  # between counts of what waits for each group; 0: it is not counted
    scan_seconds: float = 1.0  # without a match, then the consumer is told how far we are

    # Performance: raising one costs memory.
    most_classes: int = 256  # each has a process of its own
    most_pulls: int = 10_000  # that wait at once
    most_connection_pulls: int = 2_000  # those of one connection
    read_ahead: int = 64 * _MIB  # bytes of all that was read and is not given out yet
    batch: int = 4096  # messages that a filter is given at once, if there are as many
    answer_bytes: int = _MIB  # of messages in one answer; one message may have more

    def __post_init__(self) -> None:
        for name, kind in (("isolation", Isolation), ("on_error", OnError)):
            value = getattr(self, name)
            if value not in get_args(kind):
                raise ConfigError(f"{name} = {value!r}: it takes {' or '.join(get_args(kind))}")
        if self.uploads not in (True, False, "loopback"):
            raise ConfigError(f"uploads = {self.uploads!r}: it takes True, False or 'loopback'")
        if self.secret is not None and (not self.secret or not self.secret.isprintable()):
            raise ConfigError("secret: it takes printable characters, at least one")
        for name, (lowest, highest) in _RANGES.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not lowest <= value <= highest:
                raise ConfigError(f"{name} = {value!r}: it takes {lowest:.10g} to {highest:.10g}")
        for name, address in (("broker", self.broker), *self._nameservers()):
            try:
                parse_address(address)
            except ValueError as error:
                raise ConfigError(f"{name}: {error}") from None
        if not self.host:
            raise ConfigError("host = '': it takes an address; 0.0.0.0 stands for all")
        if self.advertise in ("0.0.0.0", "::") or any(c in " /" for c in self.advertise):
            raise ConfigError(f"advertise = {self.advertise!r}: it takes a host clients can reach")

    def _nameservers(self) -> list[tuple[str, str]]:
        parts = self.nameservers.replace(",", ";").split(";")
        return [("nameservers", part.strip()) for part in parts if part.strip()]
