"""Who we are to a server, and how we know who it is: keys and TLS of a client's connections.

Servers have `tls` in common with clients; whether a key may do something is for `tamis.acl`.
"""

from dataclasses import dataclass
from typing import Final

from .credentials import Credentials
from .tls import ClientTls, ServerTls

__all__ = ["INSECURE", "ClientTls", "Credentials", "Security", "ServerTls"]


@dataclass(frozen=True, slots=True)
class Security:
    """What all connections of a client have in common."""

    credentials: Credentials | None = None  # with which requests are signed
    tls: ClientTls | None = None  # None: in the clear

    @property
    def access_key(self) -> str | None:
        return self.credentials.access_key if self.credentials is not None else None


INSECURE: Final = Security()
