"""What a message is to everyone: names of properties, topics and flags, and kinds of offset."""

from dataclasses import dataclass, field
from enum import IntFlag
from typing import Final, NamedTuple, NewType

__all__ = [
    "DELAY_TOPIC",
    "HALF_TOPIC",
    "LOOPBACK",
    "Host",
    "LogOffset",
    "PropertyName",
    "QueueOffset",
    "StoredMessage",
    "SysFlag",
]

QueueOffset = NewType("QueueOffset", int)  # the nth message of a queue
LogOffset = NewType("LogOffset", int)  # a byte of the commit log

DELAY_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"


class PropertyName:
    """Properties RocketMQ itself reads or writes."""

    TAGS: Final = "TAGS"
    KEYS: Final = "KEYS"
    UNIQUE_KEY: Final = "UNIQ_KEY"
    DELAY: Final = "DELAY"
    REAL_TOPIC: Final = "REAL_TOPIC"
    REAL_QUEUE: Final = "REAL_QID"


class SysFlag(IntFlag):
    """Bits of a record's system flag (RocketMQ's `MessageSysFlag`)."""

    COMPRESSED = 0x1
    MULTI_TAGS = 0x2
    PREPARED = 0x4
    COMMIT = 0x8
    ROLLBACK = 0xC
    BORN_HOST_V6 = 0x10
    STORE_HOST_V6 = 0x20

    @property
    def transaction(self) -> "SysFlag":
        """PREPARED, COMMIT, ROLLBACK or 0."""
        return self & SysFlag.ROLLBACK


class Host(NamedTuple):
    """An address as records hold it: 4 or 16 bytes, and a port."""

    address: bytes
    port: int

    @property
    def is_v6(self) -> bool:
        return len(self.address) == 16

    def __str__(self) -> str:
        import ipaddress

        shown = ipaddress.ip_address(self.address)
        return f"[{shown}]:{self.port}" if self.is_v6 else f"{shown}:{self.port}"


LOOPBACK: Final = Host(b"\x7f\0\0\1", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """A record of the commit log. The body is as stored: compressed if `sys_flag` says so."""

    log_offset: LogOffset
    size: int
    body_crc: int
    topic: str
    queue_id: int
    queue_offset: QueueOffset
    flag: int
    sys_flag: SysFlag
    born_timestamp: int  # milliseconds, as the other
    born_host: Host
    store_timestamp: int
    store_host: Host
    reconsume_times: int
    prepared_transaction_offset: LogOffset
    body: bytes
    properties: dict[str, str] = field(default_factory=dict)

    @property
    def tag(self) -> str | None:
        return self.properties.get(PropertyName.TAGS)

    @property
    def message_id(self) -> str:
        """RocketMQ's offset message id: where the message lies."""
        where = self.store_host.address + self.store_host.port.to_bytes(4)
        return (where + self.log_offset.to_bytes(8)).hex().upper()
