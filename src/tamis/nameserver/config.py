"""How a name server is run. Defaults are RocketMQ's."""

from dataclasses import dataclass, field
from pathlib import Path

from ..errors import ConfigError
from ..net.buffers import LEAST_MEMORY, MEMORY
from ..net.server import MOST_CONNECTIONS
from ..security.tls import ClientAuth, Mode

__all__ = ["NameServerConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerConfig:
    # Behaviour.
    bind: str = "127.0.0.1"  # anyone who can reach it may change routes
    port: int = 9876  # 0: the system picks one
    data: Path | None = None  # a directory for the key-value table; without it, kept in memory
    order_messages: bool = False  # routes carry the topic's order configuration, if it has one
    silent_seconds: float = (
        120.0  # a broker not heard of for longer is gone; clients ask it so long
    )

    # TLS. Files are read when it starts, and when they change.
    tls: Mode = "disabled"
    tls_cert: str = ""  # with its chain
    tls_key: str = ""
    tls_key_password: str = field(default="", repr=False)
    tls_key_password_file: str = ""
    tls_ca: str = ""  # verifies clients
    tls_client_auth: ClientAuth = "none"

    # Performance.
    scan_seconds: float = 10.0  # between looks for silent brokers; adds to the above
    most_connections: int = MOST_CONNECTIONS  # each costs a descriptor and some kilobytes
    connection_memory: int = MEMORY  # bytes that all of them together may keep
    most_brokers: int = 1_000  # names; each route asks all of them
    most_topics: int = 1_000_000  # of all brokers together; each takes some 200 bytes
    most_keys: int = 10_000  # of the key-value table, which is saved whole

    def __post_init__(self) -> None:
        if not self.bind:
            raise ConfigError("bind is empty: it takes a host name or an address")
        if not 0 <= self.port < 65_536:
            raise ConfigError(f"port = {self.port}: it takes 0 to 65535")
        if self.data is not None and not isinstance(self.data, Path):
            raise ConfigError(f"data = {self.data!r}: it takes a Path")
        for name in ("silent_seconds", "scan_seconds"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} = {getattr(self, name)}: it takes more than 0 seconds")
        for name in ("most_connections", "most_brokers", "most_topics", "most_keys"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} = {getattr(self, name)}: it takes 1 or more")
        if self.connection_memory < LEAST_MEMORY:
            raise ConfigError(
                f"connection_memory = {self.connection_memory}: it takes {LEAST_MEMORY} or more"
            )
