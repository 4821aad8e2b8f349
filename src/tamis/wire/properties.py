"""A message's properties as they travel and lie in a record: `name \\x01 value \\x02 name …`.

RocketMQ's `MessageDecoder` (4.9): a part without a name or a value is skipped, the first \\x01
splits, the last of a repeated name wins. So an empty value does not survive the wire.
"""

from collections.abc import Mapping

from ..java import decode_utf8

__all__ = ["decode", "decode_bytes", "encode"]

NAME_END = "\x01"
VALUE_END = "\x02"


def decode(text: str) -> dict[str, str]:
    parts = [part.partition(NAME_END) for part in text.split(VALUE_END)]
    return {name: value for name, _, value in parts if name and value}


def decode_bytes(data: bytes) -> dict[str, str]:
    """As `decode`, of UTF-8 that may be damaged."""
    return decode(decode_utf8(data))


def encode(properties: Mapping[str, str]) -> str:
    return VALUE_END.join(f"{name}{NAME_END}{value}" for name, value in properties.items())
