"""A key and its secret, and the signature of a request, as RocketMQ's Java client makes it.

The signature covers the values of the header's fields, in the order of their names, and the body.
It covers neither the names, nor where a value ends, nor the request's code: whoever can read and
write a connection can alter requests without the secret. TLS is what prevents that.
"""

import hashlib
from binascii import b2a_base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from ..errors import ConfigError
from ..java import encode_utf8
from ..wire.command import Command, Fields

__all__ = [
    "ACCESS_KEY",
    "SECURITY_TOKEN",
    "SIGNATURE",
    "Credentials",
    "content_of",
    "sign",
    "signature_of",
    "signed",
]

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
SECURITY_TOKEN: Final = "SecurityToken"
# 4.9's brokers leave the second one out when they verify. Java's client of 4.9.4 signs it all the
# same, so that a query for a unique key is refused there (`PlainAccessValidator.parse`).
_NOT_SIGNED: Final = (SIGNATURE, "_UNIQUE_KEY_QUERY")
_BLOCK: Final = 64  # bytes of SHA-1


@dataclass(frozen=True, slots=True)
class Credentials:
    """Its secrets are not in its text."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.access_key or not self.secret_key:
            given = "access_key" if self.access_key else "secret_key"
            missing = "secret_key" if self.access_key else "access_key"
            raise ConfigError(f"{given} without {missing}: both are needed, or neither")


def signed(request: Command, credentials: Credentials) -> Command:
    """The request with the key and the signature among its fields; what they were before is
    replaced. A copy: the caller may ask again, and elsewhere.

    It is done for every request of a client, and takes 4 µs (docs/security.md).
    """
    fields: Fields = {**request.fields} if request.fields is not None else {}
    fields[ACCESS_KEY] = credentials.access_key
    if credentials.security_token is not None:
        fields[SECURITY_TOKEN] = credentials.security_token
    fields[SIGNATURE] = signature_of(content_of(fields, request.body), credentials.secret_key)
    return Command(
        code=request.code,
        opaque=request.opaque,
        flag=request.flag,
        fields=fields,
        body=request.body,
        remark=request.remark,
        language=request.language,
        version=request.version,
        encoding=request.encoding,
    )


def sign(request: Command, credentials: Credentials) -> None:
    """Adds the key and the signature to the request's fields."""
    request.fields = signed(request, credentials).fields


def content_of(fields: Mapping[str, str], body: bytes) -> bytes:
    """What is signed."""
    names = _signed_names(tuple(fields))
    return encode_utf8("".join([fields[name] for name in names])) + body


def signature_of(content: bytes, secret_key: str) -> str:
    """HMAC with SHA-1, in base64. What depends on the secret alone is computed once."""
    inner, outer = (one.copy() for one in _keyed(secret_key))
    inner.update(content)
    outer.update(inner.digest())
    return b2a_base64(outer.digest(), newline=False).decode()


@lru_cache(256)
def _signed_names(names: tuple[str, ...]) -> list[str]:
    """In Java's order."""
    return sorted((name for name in names if name not in _NOT_SIGNED), key=_utf16)


@lru_cache(64)
def _keyed(secret_key: str) -> tuple["hashlib._Hash", "hashlib._Hash"]:
    key = encode_utf8(secret_key)
    key = (hashlib.sha1(key).digest() if len(key) > _BLOCK else key).ljust(_BLOCK, b"\0")
    pads = (bytes(byte ^ pad for byte in key) for pad in (0x36, 0x5C))
    inner, outer = map(hashlib.sha1, pads)
    return inner, outer


def _utf16(name: str) -> bytes:
    """Java compares strings by their UTF-16 units."""
    return name.encode("utf-16-be", "surrogatepass")
