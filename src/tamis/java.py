"""Java's strings where Python's differ; RocketMQ's files, wire and filters rest on them."""

import re

__all__ = ["decode_utf8", "encode_utf8", "string_hash", "trim"]

_BLANKS = "".join(map(chr, range(0x21)))


def trim(text: str) -> str:
    """`String.trim`: code units up to U+0020 go, other blanks stay."""
    return text.strip(_BLANKS)


def string_hash(text: str) -> int:
    """`String.hashCode`: over UTF-16 code units, a signed 32-bit number."""
    result = 0
    if text.isascii():
        for unit in text.encode("ascii"):
            result = (31 * result + unit) & 0xFFFFFFFF
    else:
        data = text.encode("utf-16-le", "surrogatepass")
        for low, high in zip(data[::2], data[1::2], strict=True):
            result = (31 * result + (high << 8 | low)) & 0xFFFFFFFF
    return result - 2**32 if result >= 2**31 else result


def decode_utf8(data: bytes) -> str:
    """`new String(data, UTF_8)`: what can't be read becomes U+FFFD, never an error."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return _SURROGATE.sub("\ufffd".encode(), data).decode("utf-8", "replace")


# An encoded surrogate, cut short or not, is one unreadable character to Java and several to Python.
_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")


def encode_utf8(text: str) -> bytes:
    """`text.getBytes(UTF_8)`: half of a surrogate pair becomes a question mark, never an error."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        units = text.encode("utf-16-be", "surrogatepass")
        return units.decode("utf-16-be", "surrogatepass").encode("utf-8", "replace")
