"""Bodies that travel compressed: zlib both ways, what newer clients send (LZ4, Zstandard) one way.

Bit 0 of the system flag says that a body is compressed, bits 8 to 10 how: RocketMQ 5's
`MessageSysFlag` and `CompressionType`. Clients before 4.9.4 leave those at 0 and mean zlib.
"""

import zlib
from typing import Final

from ..errors import CorruptRecord

__all__ = ["MAX_BODY_SIZE", "compress", "decompress"]

# The default bound for a decompressed body. RocketMQ's producers take bodies of 4 MiB, ours can be
# set to take 16 MiB, and no frame is larger than that.
MAX_BODY_SIZE: Final = 16 * 2**20

_KIND_SHIFT: Final = 8
_KIND_MASK: Final = 0x7
_ZLIB: Final = (0, 3)
_NAME: Final = "a compressed body"
_PIECE: Final = 2**20  # bytes decompressed at a time
_CODECS: Final = {1: "lz4", 2: "zstd"}  # Arrow's names; its lz4 stream is the frame format


def compress(body: bytes, level: int) -> bytes:
    """With zlib: every client reads it."""
    return zlib.compress(body, level)


def decompress(body: bytes, sys_flag: int, limit: int = MAX_BODY_SIZE) -> bytes:
    """The body as it was sent; `sys_flag` tells how it was compressed, not whether it was.

    Raises CorruptRecord for what can't be read, is of a kind not known, or has more than `limit`
    bytes: the log holds it so, and another connection will not mend it. At most one byte more than
    `limit` is ever decompressed: one megabyte of zlib can hold a gigabyte. An empty body stays
    empty (`MessageDecoder`).
    """
    if not body:
        return body
    kind = sys_flag >> _KIND_SHIFT & _KIND_MASK
    try:
        if kind in _ZLIB:
            data = _read_zlib(body, limit)
        elif kind in _CODECS:
            data = _read_stream(body, _CODECS[kind], limit)
        else:
            raise CorruptRecord(_NAME, 0, f"compression of kind {kind} is not known")
    except (zlib.error, OSError) as error:
        raise CorruptRecord(_NAME, 0, str(error)) from None
    if len(data) > limit:
        raise CorruptRecord(
            _NAME,
            0,
            f"the body of {len(body):,} bytes has more than {limit:,} when it is decompressed:"
            " raise max_body_size to read it",
        )
    return data


def _read_zlib(body: bytes, limit: int) -> bytes:
    stream = zlib.decompressobj()
    data = stream.decompress(body, limit + 1)
    if len(data) <= limit and not stream.eof:
        raise zlib.error("the compressed body is cut short")
    return data


def _read_stream(body: bytes, codec: str, limit: int) -> bytes:
    import pyarrow as pa  # type: ignore[import-untyped]

    found, size = [], 0
    with pa.CompressedInputStream(pa.BufferReader(body), codec) as stream:
        while size <= limit and (data := stream.read(min(_PIECE, limit + 1 - size))):
            found.append(data)
            size += len(data)
    return b"".join(found)
