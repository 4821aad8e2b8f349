"""What a server's certificate says, for an error message that helps.

OpenSSL does not give a certificate away whose verification failed: it is asked for again.
"""

import socket
import ssl
import time
from typing import Any, Final

from ..security import ClientTls
from .addresses import parse_address
from .tls import WRONG_NAMES

__all__ = ["is_wrong_name", "names"]

_MOST: Final = 10  # names that are told


def is_wrong_name(error: Exception) -> bool:
    return isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in WRONG_NAMES


def names(address: str, tls: ClientTls, timeout: float) -> list[str]:
    """Returns the names in the certificate of the server there, if it can be had in time. It is
    verified in all but its name. Blocks."""
    deadline = time.monotonic() + timeout
    try:
        context = tls.new_context(any_name=True)
        with socket.create_connection(parse_address(address), max(timeout, 0.01)) as plain:
            plain.settimeout(max(deadline - time.monotonic(), 0.01))
            with context.wrap_socket(plain) as connection:
                found = connection.getpeercert() or {}
    except OSError:
        return []
    alternatives: Any = found.get("subjectAltName", ())
    return [str(value) for _, value in alternatives][:_MOST]
