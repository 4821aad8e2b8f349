"""A message's properties as they travel and lie in a record: `name \\x01 value \\x02 name …`.

RocketMQ's `MessageDecoder` (4.9): a part without a name or a value is skipped, the first \\x01
splits, the last of a repeated name wins. So an empty value does not survive the wire.
"""

import re
from collections.abc import Mapping

__all__ = ["decode", "decode_bytes", "encode"]

NAME_END = "\x01"
VALUE_END = "\x02"


def decode(text: str) -> dict[str, str]:
    parts = [part.partition(NAME_END) for part in text.split(VALUE_END)]
    return {name: value for name, _, value in parts if name and value}


def decode_bytes(data: bytes) -> dict[str, str]:
    """As `decode`, of UTF-8 that may be damaged: what can't be read becomes U+FFFD, as in Java."""
    try:
        return decode(data.decode())
    except UnicodeDecodeError:
        return decode(_SURROGATE.sub("\ufffd".encode(), data).decode("utf-8", "replace"))


# An encoded surrogate is one unreadable character to Java and three to Python.
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")


def encode(properties: Mapping[str, str]) -> str:
    return VALUE_END.join(f"{name}{NAME_END}{value}" for name, value in properties.items())
