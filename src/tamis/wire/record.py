"""A message as it lies in the commit log, and travels in the answer to a pull.

    4 total size   4 magic   4 CRC-32 of the body   4 queue id   4 flag   8 queue offset
    8 log offset   4 system flag   8 born   8|20 born host   8 stored   8|20 store host
    4 reconsume times   8 prepared transaction offset   4 body length, body
    1 topic length, topic   2 length of properties, properties

Big-endian. RocketMQ 4.9's `CommitLog.MessageExtEncoder` and `MessageDecoder`.
"""

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from zlib import crc32

from ..errors import CorruptRecord
from ..java import decode_utf8
from ..message import LOOPBACK, Host, LogOffset, QueueOffset, StoredMessage, SysFlag
from . import properties

__all__ = [
    "BLANK_MAGIC",
    "MAGIC",
    "Draft",
    "batch_item",
    "body_crc",
    "decode",
    "pack_host",
    "prefixed",
    "record_size",
]

MAGIC: Final = 0xDAA320A7
BLANK_MAGIC: Final = 0xCBD43194  # fills what is left of a file
FIXED_SIZE: Final = 91  # with both hosts v4; 12 more for each v6
MAX_TOPIC: Final = 127  # a signed byte holds its length
MAX_PROPERTIES: Final = 32767

# One struct for each combination of host sizes, born and store; 8 bytes are v4, 20 are v6.
_STRUCTS: Final = {
    (born, store): struct.Struct(
        f">IIIiiqqiq{born}sq{store}siqi"
        # total, magic, crc, queue, flag, queue offset, log offset, sysflag, born, born host,
        # stored, store host, reconsumes, prepared offset, body length
    )
    for born in (8, 20)
    for store in (8, 20)
}
# What encoding needs of it: how to pack, its size with the length of the properties, the two flags.
_HEADS: Final = {
    (born, store): (
        head.pack,
        head.size + 2,
        (0x10 if born == 20 else 0) | (0x20 if store == 20 else 0),
    )
    for (born, store), head in _STRUCTS.items()
}
_HOST_V4 = struct.Struct(">4si")
_HOST_V6 = struct.Struct(">16si")
_START = struct.Struct(">II")
_SYS_FLAG = struct.Struct(">i")
_SYS_FLAG_AT = 36
_PROPERTIES_LENGTH = struct.Struct(">h")


def body_crc(body: bytes) -> int:
    return crc32(body) & 0x7FFFFFFF if body else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A message that has no place yet. `properties` is the block as it will lie in the record."""

    topic: str
    queue_id: int = 0
    body: bytes = b""
    properties: bytes = b""
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: Host = LOOPBACK
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0

    @classmethod
    def of(cls, message: StoredMessage, topic: str, queue_id: int, properties: bytes) -> "Draft":
        """A stored message once more, for another queue and with other properties."""
        return cls(
            topic=topic,
            queue_id=queue_id,
            body=message.body,
            properties=properties,
            flag=message.flag,
            sys_flag=message.sys_flag,
            born_timestamp=message.born_timestamp,
            born_host=message.born_host,
            reconsume_times=message.reconsume_times,
        )

    def encode(
        self, queue_offset: int, log_offset: int, store_timestamp: int, store_host: bytes
    ) -> bytes:
        """The record at its place. `store_host` is packed already: see `pack_host`."""
        body, block = self.body, self.properties
        topic, born_host = prefixed(self.topic), pack_host(self.born_host)
        head, size, v6_flags = _HEADS[len(born_host), len(store_host)]
        length = len(body)
        packed = head(
            size + length + len(topic) + len(block),
            MAGIC,
            crc32(body) & 0x7FFFFFFF if length else 0,
            self.queue_id,
            self.flag,
            queue_offset,
            log_offset,
            self.sys_flag & ~0x30 | v6_flags,
            self.born_timestamp,
            born_host,
            store_timestamp,
            store_host,
            self.reconsume_times,
            self.prepared_transaction_offset,
            length,
        )
        return b"".join((packed, body, topic, len(block).to_bytes(2), block))


@lru_cache(1024)
def prefixed(topic: str) -> bytes:
    """A topic with its length before it."""
    data = topic.encode()
    return bytes((len(data),)) + data


def batch_item(body: bytes, properties: bytes = b"", flag: int = 0) -> bytes:
    """A message within a batch, as it travels (`MessageDecoder.encodeMessage`)."""
    head = _ITEM.pack(22 + len(body) + len(properties), 0, 0, flag, len(body))
    return b"".join((head, body, len(properties).to_bytes(2), properties))


# total size, magic and CRC (both 0: the broker makes its own), flag, body length
_ITEM = struct.Struct(">iiiii")


def record_size(data: bytes | memoryview, at: int = 0) -> int:
    size: int = _START.unpack_from(data, at)[0]
    return size


def decode(
    data: bytes | memoryview, at: int = 0, *, check_crc: bool = False, file: str = ""
) -> StoredMessage:
    """The record at `at`; raises CorruptRecord, with `file` in it, for anything else."""
    try:
        return _decode(data, at, check_crc, file)
    except (struct.error, IndexError):
        raise CorruptRecord(file, at, "the record is cut short") from None


def _decode(data: bytes | memoryview, at: int, check_crc: bool, file: str) -> StoredMessage:
    total, magic = _START.unpack_from(data, at)
    if magic != MAGIC:
        raise CorruptRecord(file, at, f"magic number {magic:#010x}, not {MAGIC:#010x}")
    sys_flag = SysFlag(_SYS_FLAG.unpack_from(data, at + _SYS_FLAG_AT)[0])
    head = _STRUCTS[20 if sys_flag & 0x10 else 8, 20 if sys_flag & 0x20 else 8]
    (
        _,
        _,
        crc,
        queue_id,
        flag,
        queue_offset,
        log_offset,
        _,
        born,
        born_host,
        stored,
        store_host,
        reconsumes,
        prepared,
        body_length,
    ) = head.unpack_from(data, at)
    body_at = at + head.size
    topic_at = body_at + body_length + 1
    if body_length < 0:
        raise CorruptRecord(file, at, f"body of {body_length} bytes")
    block_at = topic_at + data[topic_at - 1] + 2
    (block_length,) = _PROPERTIES_LENGTH.unpack_from(data, block_at - 2)
    if block_at + block_length - at != total:
        parts = block_at + block_length - at
        raise CorruptRecord(file, at, f"says {total} bytes, its parts make {parts}")
    body = bytes(data[body_at : topic_at - 1])
    if len(body) != body_length or len(data) < at + total:
        raise CorruptRecord(file, at, "the record is cut short")
    if check_crc and body_crc(body) != crc:
        raise CorruptRecord(file, at, f"the body's CRC is {body_crc(body)}, recorded was {crc}")
    return StoredMessage(
        log_offset=LogOffset(log_offset),
        size=total,
        body_crc=crc,
        topic=decode_utf8(bytes(data[topic_at : block_at - 2])),
        queue_id=queue_id,
        queue_offset=QueueOffset(queue_offset),
        flag=flag,
        sys_flag=sys_flag,
        born_timestamp=born,
        born_host=_unpack_host(born_host),
        store_timestamp=stored,
        store_host=_unpack_host(store_host),
        reconsume_times=reconsumes,
        prepared_transaction_offset=LogOffset(prepared),
        body=body,
        properties=properties.decode_bytes(bytes(data[block_at : block_at + block_length])),
    )


@lru_cache(1024)
def pack_host(host: Host) -> bytes:
    return (_HOST_V6 if host.is_v6 else _HOST_V4).pack(*host)


def _unpack_host(data: bytes) -> Host:
    return Host(*(_HOST_V6 if len(data) == 20 else _HOST_V4).unpack(data))
