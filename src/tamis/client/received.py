"""A message as a consumer is given it, and how an answer to a pull is taken apart into them."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Final

from ..errors import CorruptRecord, UnreadableMessage
from ..java import decode_utf8
from ..message import Host, PropertyName, SysFlag
from ..wire import properties, record
from ..wire.bodies import MessageQueue
from . import compression

__all__ = [
    "RETRY_PREFIX",
    "ReceivedMessage",
    "dead_letter_topic",
    "decode_all",
    "decode_one",
    "examine",
    "retry_topic",
]

RETRY_PREFIX: Final = "%RETRY%"
_DEAD_LETTER_PREFIX: Final = "%DLQ%"
_COMPRESSED: Final = int(SysFlag.COMPRESSED)


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def dead_letter_topic(group: str) -> str:
    return _DEAD_LETTER_PREFIX + group


@dataclass(slots=True, kw_only=True, eq=False)
class ReceivedMessage:
    """`topic` is the one it was sent to, also when it comes from the group's retry topic; `queue`
    is the one it was pulled from.

    A compressed body is decompressed when it is first asked for. `body` raises UnreadableMessage
    if that fails, or if there would be more than `max_body_size` bytes of it.
    """

    topic: str
    body: bytes  # decompressed
    properties: dict[str, str]
    queue: MessageQueue
    offset: int  # in its queue
    reconsume_times: int = 0
    born_timestamp: int = 0  # milliseconds, as the other
    store_timestamp: int = 0
    born_host: Host = field(default=Host(b"\0\0\0\0", 0), repr=False)
    store_host: Host = field(default=Host(b"\0\0\0\0", 0), repr=False)
    log_offset: int = 0
    flag: int = 0
    sys_flag: int = 0
    size: int = 0  # as stored
    body_crc: int = 0
    stored_body: bytes = field(default=b"", repr=False)  # of a compressed one, as it was received
    max_body_size: int = field(default=compression.MAX_BODY_SIZE, repr=False)

    def mark_compressed(self, limit: int) -> None:
        """Say that its body is compressed: decompressed when it is asked for, it may have `limit`
        bytes."""
        self.stored_body, self.max_body_size = self.body, limit
        del self.body  # `__getattr__` decompresses it

    def __getattr__(self, name: str) -> bytes:
        """Only called for what is not there: a body that is not decompressed yet."""
        if name != "body":
            raise AttributeError(f"a message has no attribute {name!r}")
        try:
            body = compression.decompress(self.stored_body, self.sys_flag, self.max_body_size)
        except CorruptRecord as error:
            raise UnreadableMessage(
                self.queue.topic,
                self.queue.broker_name,
                self.queue.queue_id,
                self.offset,
                error.reason,
                self.message_id,
            ) from None
        self.body = body
        return body

    def __repr__(self) -> str:
        shown = [
            f"{one.name}={getattr(self, one.name)!r}"
            for one in fields(self)
            if one.repr and (one.name != "body" or self.is_readable)
        ]
        return f"ReceivedMessage({', '.join(shown)})"

    @property
    def is_readable(self) -> bool:
        """Whether its body can be decompressed, which is done for that."""
        try:
            return self.body is not None
        except UnreadableMessage:
            return False

    @property
    def tags(self) -> str | None:
        return self.properties.get(PropertyName.TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.properties.get(PropertyName.KEYS, "").split())

    @property
    def message_id(self) -> str:
        """What its producer knows it by; of one without such a key, where it lies."""
        return self.properties.get(PropertyName.UNIQUE_KEY) or self.offset_message_id

    @property
    def offset_message_id(self) -> str:
        """Where it lies: broker address and place in its log."""
        where = self.store_host.address + self.store_host.port.to_bytes(4)
        return (where + self.log_offset.to_bytes(8)).hex().upper()

    @property
    def transaction_id(self) -> str | None:
        if self.properties.get(PropertyName.TRANSACTION_PREPARED) != "true":
            return None
        return self.properties.get(PropertyName.UNIQUE_KEY)

    @property
    def delay_level(self) -> int:
        text = self.properties.get(PropertyName.DELAY, "")
        return int(text) if text.isdigit() else 0

    @property
    def text(self) -> str:
        """The body as UTF-8."""
        return self.body.decode(errors="replace")


# One struct for each combination of host sizes, born and store: see `wire.record`.
_STRUCTS: Final = {
    (born, store): struct.Struct(f">4x4xI4xiqqiq{born}sq{store}siqi")
    for born in (8, 20)
    for store in (8, 20)
}
_USUAL: Final = _STRUCTS[8, 8]
_START: Final = struct.Struct(">II")
_SYS_FLAG: Final = struct.Struct(">i")


def decode_all(
    body: bytes, queue: MessageQueue, limit: int = compression.MAX_BODY_SIZE
) -> Iterator[ReceivedMessage]:
    """The messages of a pull's answer. Raises CorruptRecord, after those that came before it."""
    at, end = 0, len(body)
    while at < end:
        message = decode_one(body, queue, at, limit)
        yield message
        at += message.size


def decode_one(
    body: bytes, queue: MessageQueue, at: int = 0, limit: int = compression.MAX_BODY_SIZE
) -> ReceivedMessage:
    """The message at `at`; its body may have `limit` bytes when it is decompressed. Raises
    CorruptRecord."""
    try:
        return _decode(body, queue, at, limit)
    except (struct.error, IndexError):
        raise CorruptRecord("", at, "the record is cut short") from None


def examine(body: bytes, queue: MessageQueue, offset: int) -> UnreadableMessage | None:
    """What is wrong with the record of the one message of an answer, which has this offset."""
    try:
        decode_one(body, queue)
    except CorruptRecord as error:
        return UnreadableMessage(
            queue.topic, queue.broker_name, queue.queue_id, offset, f"damaged: {error.reason}"
        )
    return None


def _decode(data: bytes, queue: MessageQueue, at: int, limit: int) -> ReceivedMessage:
    total, magic = _START.unpack_from(data, at)
    if magic != record.MAGIC:
        raise CorruptRecord("", at, f"magic number {magic:#010x}, not {record.MAGIC:#010x}")
    (sys_flag,) = _SYS_FLAG.unpack_from(data, at + 36)
    head = _USUAL
    if sys_flag & 0x30:
        head = _STRUCTS[20 if sys_flag & 0x10 else 8, 20 if sys_flag & 0x20 else 8]
    (
        crc,
        flag,
        offset,
        log_offset,
        _,
        born,
        born_host,
        stored,
        store_host,
        reconsumes,
        _,
        length,
    ) = head.unpack_from(data, at)
    body_at = at + head.size
    topic_at = body_at + length + 1
    block_at = topic_at + data[topic_at - 1] + 2
    block_end = block_at + int.from_bytes(data[block_at - 2 : block_at], signed=True)
    if block_end - at != total or length < 0 or len(data) < at + total or block_end < block_at:
        raise CorruptRecord("", at, f"says {total} bytes, its parts make {block_end - at}")
    body = data[body_at : topic_at - 1]
    named = properties.decode(decode_utf8(data[block_at:block_end]))
    topic = decode_utf8(data[topic_at : block_at - 2])
    if topic.startswith(RETRY_PREFIX):
        topic = named.get(PropertyName.RETRY_TOPIC, topic)
    message = ReceivedMessage(
        topic=topic,
        body=body,
        properties=named,
        queue=queue,
        offset=offset,
        reconsume_times=reconsumes,
        born_timestamp=born,
        store_timestamp=stored,
        born_host=_host(born_host),
        store_host=_host(store_host),
        log_offset=log_offset,
        flag=flag,
        sys_flag=sys_flag,
        size=total,
        body_crc=crc,
    )
    if sys_flag & _COMPRESSED:
        message.mark_compressed(limit)
    return message


def _host(data: bytes) -> Host:
    return Host(data[:-4], int.from_bytes(data[-4:]))
