"""What a message is to everyone: names of properties, topics and flags, and kinds of offset."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntFlag
from typing import Final, NamedTuple, NewType

from .errors import InvalidMessage

__all__ = [
    "DELAY_TOPIC",
    "HALF_TOPIC",
    "LOOPBACK",
    "RESERVED",
    "Host",
    "LogOffset",
    "Message",
    "PropertyName",
    "QueueOffset",
    "StoredMessage",
    "SysFlag",
    "check_tag",
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
    WAIT: Final = "WAIT"
    REAL_TOPIC: Final = "REAL_TOPIC"
    REAL_QUEUE: Final = "REAL_QID"
    RETRY_TOPIC: Final = "RETRY_TOPIC"
    ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
    RECONSUME_TIME: Final = "RECONSUME_TIME"
    MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
    TRANSACTION_PREPARED: Final = "TRAN_MSG"
    PRODUCER_GROUP: Final = "PGROUP"
    CORRELATION_ID: Final = "CORRELATION_ID"
    REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
    TTL: Final = "TTL"
    CLUSTER: Final = "CLUSTER"
    MESSAGE_TYPE: Final = "MSG_TYPE"


_NO_PROPERTIES: Final[Mapping[str, str]] = {}
# What users may not set by hand: `MessageConst.STRING_HASH_SET`.
RESERVED: Final = frozenset(
    [
        "KEYS",
        "TAGS",
        "WAIT",
        "DELAY",
        "RETRY_TOPIC",
        "REAL_TOPIC",
        "REAL_QID",
        "TRAN_MSG",
        "PGROUP",
        "MIN_OFFSET",
        "MAX_OFFSET",
        "BUYER_ID",
        "ORIGIN_MESSAGE_ID",
        "TRANSFER_FLAG",
        "CORRECTION_FLAG",
        "MQ2_FLAG",
        "RECONSUME_TIME",
        "UNIQ_KEY",
        "MAX_RECONSUME_TIMES",
        "CONSUME_START_TIME",
        "INSTANCE_ID",
        "CORRELATION_ID",
        "REPLY_TO_CLIENT",
        "TTL",
        "ARRIVE_TIME",
        "PUSH_REPLY_TIME",
        "CLUSTER",
        "MSG_TYPE",
        "MSG_REGION",
        "TRACE_ON",
        "INNER_MULTI_QUEUE_OFFSET",
    ]
)


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


@dataclass(frozen=True, slots=True, init=False)
class Message:
    """What a producer sends. Text is taken for a body too, and encoded as UTF-8. `delay_level` is 1
    to 18: see `docs/client.md` for the times."""

    topic: str
    body: bytes
    tags: str | None
    keys: tuple[str, ...]
    properties: Mapping[str, str]
    delay_level: int
    flag: int
    wait_stored: bool

    def __init__(
        self,
        topic: str,
        body: bytes | bytearray | memoryview | str,
        *,
        tags: str | None = None,
        keys: str | Sequence[str] = (),
        properties: Mapping[str, str] = _NO_PROPERTIES,
        delay_level: int = 0,
        flag: int = 0,
        wait_stored: bool = True,
    ) -> None:
        """Raises InvalidMessage for what RocketMQ would not take or keep, and for what is of
        another type."""
        if not isinstance(topic, str):
            raise InvalidMessage(f"topic = {_shown(topic)}: it is text")
        if not isinstance(body, (bytes, str, bytearray, memoryview)):
            hint = ""
            if isinstance(body, (dict, list, tuple)):
                hint = "; json.dumps makes text of it"
            raise InvalidMessage(f"body = {_shown(body)}: it is bytes or text{hint}")
        put = object.__setattr__  # it is frozen
        put(self, "topic", topic)
        put(self, "body", _utf8("body", body) if isinstance(body, str) else bytes(body))
        put(self, "tags", tags)
        put(self, "keys", _keys(keys) if keys else ())
        if properties and not isinstance(properties, Mapping):
            raise InvalidMessage(
                f"properties = {_shown(properties)}: it is a mapping of names to values, both text"
            )
        put(self, "properties", dict(properties))
        put(self, "delay_level", delay_level)
        put(self, "flag", flag)
        put(self, "wait_stored", wait_stored)
        if properties:
            _check_properties(properties)
        if tags is not None and not isinstance(tags, str):
            raise InvalidMessage(f"tags = {tags!r}: it is text")
        for name, number in ("delay_level", delay_level), ("flag", flag):
            if not isinstance(number, int) or not -(2**31) <= number < 2**31:
                raise InvalidMessage(f"{name} = {number!r}: it is a whole number of 32 bits")

    def all_properties(self) -> dict[str, str]:
        """As they travel: with tags, keys and the like among them."""
        made = dict(self.properties)
        if self.keys:
            made[PropertyName.KEYS] = " ".join(self.keys)
        if self.tags:
            made[PropertyName.TAGS] = self.tags
        if self.delay_level:
            made[PropertyName.DELAY] = str(self.delay_level)
        made[PropertyName.WAIT] = "true" if self.wait_stored else "false"
        return made


def _utf8(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessage(f"{name}: {error.reason}, at {error.start}") from None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _keys(keys: str | Sequence[str]) -> tuple[str, ...]:
    """Blanks are between keys: text with blanks is several."""
    if isinstance(keys, str):
        return tuple(keys.split())
    if isinstance(keys, bytes) or not isinstance(keys, Iterable):
        raise InvalidMessage(f"keys = {_shown(keys)}: it is text, or a sequence of texts")
    keys = tuple(keys)
    for one in keys:
        if not isinstance(one, str) or len(one.split()) != 1:
            raise InvalidMessage(f"keys: {one!r} is not text without blanks, which separate keys")
    return keys


def check_tag(tag: str) -> None:
    """Raises InvalidMessage for a tag that no tag expression can name: they have `||` between tags,
    and blanks around them mean nothing."""
    if "||" in tag:
        raise InvalidMessage(
            f"tags = {_shown(tag)}: a message has one tag, and || separates tags in a subscription:"
            " none could name this one"
        )
    if tag != tag.strip():
        raise InvalidMessage(
            f"tags = {_shown(tag)}: blanks around a tag mean nothing in a subscription: none could"
            " name this one"
        )


def _check_properties(properties: Mapping[str, str]) -> None:
    for name, value in properties.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidMessage(f"property {name!r} = {value!r}: names and values are text")
        if name in RESERVED:
            hint = _HINTS.get(name, "")
            raise InvalidMessage(f"property {name}: RocketMQ keeps this name for itself{hint}")
        if not name.strip() or not value.strip():
            why = "RocketMQ does not keep blank ones"
            raise InvalidMessage(f"property {name!r} = {value!r}: {why}")


_HINTS: Final = {
    "TAGS": "; give tags=",
    "KEYS": "; give keys=",
    "DELAY": "; give delay_level=",
    "WAIT": "; give wait_stored=",
}


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
