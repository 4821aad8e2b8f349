"""Frames: how commands lie on a TCP stream.

    length of what follows   4 bytes
    header encoding          1 byte: 0 JSON, 1 binary
    length of the header     3 bytes
    header, body

A length or encoding that can't be is an error at once, before anything is kept for it.
"""

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from ..errors import LocalProtocolError, RemoteProtocolError

__all__ = ["MAX_FRAME", "MAX_HEADER", "Encoding", "Frame", "FrameReader", "frame"]

MAX_FRAME: Final = 16 * 2**20  # bytes, its length field included (`NettyDecoder`)
# Of a request's header. RocketMQ has no limit but the frame's; its longest have an expression of
# 65,536 characters. A header is read at once, while all others wait: this one takes some 10 ms.
MAX_HEADER: Final = 512 * 2**10
_HEAD: Final = struct.Struct(">iI")  # length; encoding and length of the header


class Encoding(IntEnum):
    """Of a command's header (RocketMQ's `SerializeType`)."""

    JSON = 0
    ROCKETMQ = 1


class Frame(NamedTuple):
    encoding: Encoding
    header: bytes
    body: bytes


def frame(encoding: Encoding, header: bytes, body: bytes = b"") -> bytes:
    """Raises LocalProtocolError for one that is too long to be read anywhere."""
    length = 4 + len(header) + len(body)
    if length > MAX_FRAME - 4:
        raise LocalProtocolError(f"a frame of {length} bytes: it takes up to {MAX_FRAME - 4}")
    return b"".join((_HEAD.pack(length, encoding << 24 | len(header)), header, body))


class FrameReader:
    """Takes a stream in pieces of any size, gives whole frames. After an error, use no more."""

    def __init__(self, max_frame: int = MAX_FRAME, max_header: int = MAX_FRAME) -> None:
        self._max_frame = max_frame
        self._max_header = max_header
        self._kept = bytearray()  # of a frame not whole yet
        self._wanted = 8  # bytes at which to look again

    @property
    def pending(self) -> int:
        """Bytes kept of a frame that is not whole yet."""
        return len(self._kept)

    def join(self, data: bytes) -> bytes:
        """What was kept, with `data` after it, to be fed again; nothing if that is kept too,
        because it still has no whole frame."""
        if not self._kept:
            return data
        self._kept += data
        if len(self._kept) < self._wanted:
            return b""
        data, self._kept = bytes(self._kept), bytearray()
        return data

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that end in `data`. Raises RemoteProtocolError for what can't be one."""
        data = self.join(data)
        if not data:
            return []
        frames = list[Frame]()
        at, size = 0, len(data)
        unpack = _HEAD.unpack_from
        while size - at >= 8:
            length, mark = unpack(data, at)
            header_size = mark & 0xFFFFFF
            if (
                not 4 + header_size <= length <= self._max_frame - 4
                or mark >> 25
                or header_size > self._max_header
            ):
                raise RemoteProtocolError(self._why(length, mark))
            end = at + 4 + length
            if end > size:
                self._wanted = end - at
                break
            body_at = at + 8 + header_size
            frames.append(Frame(_ENCODINGS[mark >> 24], data[at + 8 : body_at], data[body_at:end]))
            at = end
        else:
            self._wanted = 8
        if at < size:
            self._kept += data[at:] if at else data
        return frames

    def _why(self, length: int, mark: int) -> str:
        if length >> 24 == 0x16:
            return "a TLS handshake, where plain text is spoken"
        if not 4 <= length <= self._max_frame - 4:
            return f"a frame of {length} bytes: it takes 4 to {self._max_frame - 4}"
        if mark >> 25:
            return f"a header of encoding {mark >> 24}: it takes 0 (JSON) or 1 (ROCKETMQ)"
        if mark & 0xFFFFFF > self._max_header:
            return f"a header of {mark & 0xFFFFFF} bytes: it takes up to {self._max_header}"
        return f"a header of {mark & 0xFFFFFF} bytes in a frame of {length}"


_ENCODINGS: Final = (Encoding.JSON, Encoding.ROCKETMQ)
