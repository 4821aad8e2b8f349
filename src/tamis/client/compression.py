"""Bodies that travel compressed: zlib both ways, what newer clients send (LZ4, Zstandard) one way.

Bit 0 of the system flag says that a body is compressed, bits 8 to 10 how: RocketMQ 5's
`MessageSysFlag` and `CompressionType`. Clients before 4.9.4 leave those at 0 and mean zlib.
"""

import zlib
from typing import Final

from ..errors import CorruptRecord

__all__ = ["compress", "decompress"]

_KIND_SHIFT: Final = 8
_KIND_MASK: Final = 0x7
_ZLIB: Final = (0, 3)
_CODECS: Final = {1: "lz4", 2: "zstd"}  # Arrow's names; its lz4 stream is the frame format


def compress(body: bytes, level: int) -> bytes:
    """With zlib: every client reads it."""
    return zlib.compress(body, level)


def decompress(body: bytes, sys_flag: int) -> bytes:
    """The body as it was sent; `sys_flag` tells how it was compressed, not whether it was.

    Raises CorruptRecord for what can't be read, or is of a kind not known: the log holds it so, and
    another connection will not mend it. An empty body stays empty (`MessageDecoder`).
    """
    if not body:
        return body
    kind = sys_flag >> _KIND_SHIFT & _KIND_MASK
    try:
        if kind in _ZLIB:
            return zlib.decompress(body)
        if kind in _CODECS:
            return _read_stream(body, _CODECS[kind])
    except (zlib.error, OSError) as error:
        raise CorruptRecord("a compressed body", 0, str(error)) from None
    raise CorruptRecord("a compressed body", 0, f"compression of kind {kind} is not known")


def _read_stream(body: bytes, codec: str) -> bytes:
    import pyarrow as pa  # type: ignore[import-untyped]

    with pa.CompressedInputStream(pa.BufferReader(body), codec) as stream:
        data: bytes = stream.read()
    return data
