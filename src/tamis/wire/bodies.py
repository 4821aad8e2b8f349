"""What commands carry as JSON in their bodies, each declared once; see `beans`."""

import zlib
from dataclasses import dataclass, field
from enum import IntFlag, StrEnum
from typing import Annotated, Any

from ..java import decode_utf8
from . import beans, fastjson

__all__ = [
    "BrokerData",
    "BrokerStats",
    "CheckClientConfig",
    "ClusterInfo",
    "Connection",
    "ConsumeDirectlyResult",
    "ConsumeFromWhere",
    "ConsumeStats",
    "ConsumeType",
    "ConsumerConnection",
    "ConsumerData",
    "ConsumerIds",
    "ConsumerStatus",
    "DataVersion",
    "GroupConfig",
    "GroupList",
    "GroupTable",
    "Heartbeat",
    "KvTable",
    "LockRequest",
    "LockResponse",
    "MessageModel",
    "MessageQueue",
    "OffsetTable",
    "OffsetWrapper",
    "Perm",
    "ProducerConnection",
    "ProducerData",
    "QueueData",
    "QueueReport",
    "Registration",
    "ResetOffsets",
    "RunningInfo",
    "Subscription",
    "TimeSpan",
    "TimeSpans",
    "TopicConfig",
    "TopicFilterType",
    "TopicList",
    "TopicRoute",
    "TopicStats",
    "TopicTable",
    "UnlockRequest",
    "decode_properties",
    "encode_properties",
]


class Perm(IntFlag):
    """What a topic allows. RocketMQ's source names bit positions; these are the masks."""

    INHERIT = 1 << 0
    WRITE = 1 << 1
    READ = 1 << 2
    PRIORITY = 1 << 3


# Enums are in Java's order: some clients write a constant's place.


class TopicFilterType(StrEnum):
    SINGLE_TAG = "SINGLE_TAG"
    MULTI_TAG = "MULTI_TAG"


# A name that is not known, such as those of RocketMQ 5, is as good as none: Java reads null.


class ConsumeType(StrEnum):
    CONSUME_ACTIVELY = "CONSUME_ACTIVELY"
    CONSUME_PASSIVELY = "CONSUME_PASSIVELY"

    @classmethod
    def _missing_(cls, value: object) -> "ConsumeType":
        return cls.CONSUME_PASSIVELY


class MessageModel(StrEnum):
    BROADCASTING = "BROADCASTING"
    CLUSTERING = "CLUSTERING"

    @classmethod
    def _missing_(cls, value: object) -> "MessageModel":
        return cls.CLUSTERING


class ConsumeFromWhere(StrEnum):
    LAST_OFFSET = "CONSUME_FROM_LAST_OFFSET"
    LAST_OFFSET_BUT_MIN_AT_FIRST = "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST"
    MIN_OFFSET = "CONSUME_FROM_MIN_OFFSET"
    MAX_OFFSET = "CONSUME_FROM_MAX_OFFSET"
    FIRST_OFFSET = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"

    @classmethod
    def _missing_(cls, value: object) -> "ConsumeFromWhere":
        return cls.LAST_OFFSET


@dataclass(frozen=True, slots=True, kw_only=True)
class DataVersion:
    """Goes up with every change of a table; the name server compares it."""

    timestamp: int = 0  # milliseconds
    counter: int = 0

    def next(self, now: int) -> "DataVersion":
        return DataVersion(timestamp=now, counter=self.counter + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    name: Annotated[str, "topicName"]
    read_queues: Annotated[int, "readQueueNums"] = 16
    write_queues: Annotated[int, "writeQueueNums"] = 16
    perm: Perm = Perm.READ | Perm.WRITE
    filter_type: Annotated[TopicFilterType, "topicFilterType"] = TopicFilterType.SINGLE_TAG
    sys_flag: Annotated[int, "topicSysFlag"] = 0
    order: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    name: Annotated[str, "groupName"]
    consume_enabled: Annotated[bool, "consumeEnable"] = True
    consume_from_min_enabled: Annotated[bool, "consumeFromMinEnable"] = True
    consume_broadcast_enabled: Annotated[bool, "consumeBroadcastEnable"] = True
    retry_queues: Annotated[int, "retryQueueNums"] = 1
    retry_max_times: int = 16
    broker_id: int = 0  # the master
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed: Annotated[bool, "notifyConsumerIdsChangedEnable"] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicTable:
    topics: Annotated[dict[str, TopicConfig], "topicConfigTable"]
    version: Annotated[DataVersion, "dataVersion"] = DataVersion()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTable:
    groups: Annotated[dict[str, GroupConfig], "subscriptionGroupTable"]
    version: Annotated[DataVersion, "dataVersion"] = DataVersion()


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    topic: str
    broker_name: str
    queue_id: int

    def __str__(self) -> str:
        return f"queue {self.queue_id} of {self.topic} at {self.broker_name}"


# Clients and the broker.


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    topic: str
    expression: Annotated[str, "subString"]
    expression_type: str | None = None
    version: Annotated[int, "subVersion"] = 0
    tags: Annotated[list[str], "tagsSet"] = field(default_factory=list)
    codes: Annotated[list[int], "codeSet"] = field(default_factory=list)
    class_filter_mode: bool = False
    # Ours: which source the class has. Java's brokers and tools pass over fields they don't know.
    code_crc: Annotated[int | None, "tamisCodeCRC"] = None

    @property
    def is_tags(self) -> bool:
        return self.expression_type in (None, "", "TAG")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerData:
    group: Annotated[str, "groupName"]
    consume_type: ConsumeType = ConsumeType.CONSUME_PASSIVELY
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET
    subscriptions: Annotated[list[Subscription], "subscriptionDataSet"]
    unit_mode: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerData:
    group: Annotated[str, "groupName"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    client_id: Annotated[str, "clientID"]
    producers: Annotated[list[ProducerData], "producerDataSet"]
    consumers: Annotated[list[ConsumerData], "consumerDataSet"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckClientConfig:
    client_id: str
    group: str
    subscription: Annotated[Subscription | None, "subscriptionData"] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerIds:
    ids: Annotated[list[str], "consumerIdList"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockRequest:
    client_id: str
    group: Annotated[str, "consumerGroup"]
    queues: Annotated[list[MessageQueue], "mqSet"]


UnlockRequest = LockRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class LockResponse:
    queues: Annotated[list[MessageQueue], "lockOKMQSet"]


# Tools and the broker.


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    min_offset: int
    max_offset: int
    last_update_timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStats:
    queues: Annotated[dict[MessageQueue, QueueStats], "offsetTable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueProgress:
    broker_offset: int
    consumer_offset: int
    last_timestamp: int
    pull_offset: int = 0  # 5.x's tools read it


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeStats:
    queues: Annotated[dict[MessageQueue, QueueProgress], "offsetTable"]
    consume_tps: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConsumeStats:
    stats: Annotated[list[dict[str, list[ConsumeStats]]], "consumeStatsList"]
    broker_addr: str
    total_diff: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    client_id: str
    client_addr: str
    language: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConnection:
    connections: Annotated[list[Connection], "connectionSet"]
    subscriptions: Annotated[dict[str, Subscription], "subscriptionTable"]
    consume_type: str
    message_model: str
    consume_from_where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConnection:
    connections: Annotated[list[Connection], "connectionSet"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerInfo:
    client_id: str
    remote_ip: Annotated[str, "remoteIP"]
    language: str
    version: int
    last_update_timestamp: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerTable:
    producers: Annotated[dict[str, list[ProducerInfo]], "data"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupList:
    groups: Annotated[list[str], "groupList"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetOffsets:
    offsets: Annotated[dict[MessageQueue, int], "offsetTable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetOffsetsOfCpp:
    """The C++ client reads no object keys."""

    offsets: Annotated[list[dict[str, Any]], "offsetTable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerStatus:
    by_client: Annotated[dict[str, dict[MessageQueue, int]], "consumerTable"]
    queues: Annotated[dict[MessageQueue, int], "messageQueueTable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueReport:
    """What a member of a group says of a queue it reads (`ProcessQueueInfo`)."""

    commit_offset: int = 0
    first_cached: Annotated[int, "cachedMsgMinOffset"] = 0
    last_cached: Annotated[int, "cachedMsgMaxOffset"] = 0
    cached: Annotated[int, "cachedMsgCount"] = 0
    cached_mib: Annotated[int, "cachedMsgSizeInMiB"] = 0
    locked: bool = False
    last_lock_timestamp: int = 0
    dropped: Annotated[bool, "droped"] = False
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningInfo:
    """What a member of a group says of itself (`ConsumerRunningInfo`)."""

    properties: dict[str, str]
    subscriptions: Annotated[list[Subscription], "subscriptionSet"]
    queues: Annotated[dict[MessageQueue, QueueReport], "mqTable"]
    rates: Annotated[dict[str, dict[str, float]], "statusTable"] = field(default_factory=dict)
    stack: Annotated[str | None, "jstack"] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeDirectlyResult:
    order: bool = False
    auto_commit: bool = True
    result: Annotated[str, "consumeResult"]
    remark: str | None = None
    millis: Annotated[int, "spentTimeMills"] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetWrapper:
    """Offsets of all groups, by `topic@group`."""

    offsets: Annotated[dict[str, dict[int, int]], "offsetTable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetTable:
    offsets: Annotated[dict[int, int], "offsetTable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionOffsets:
    offsets: Annotated[dict[int, int], "correctionOffsets"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpan:
    queue: Annotated[MessageQueue, "messageQueue"]
    min_timestamp: Annotated[int, "minTimeStamp"]
    max_timestamp: Annotated[int, "maxTimeStamp"]
    consume_timestamp: Annotated[int, "consumeTimeStamp"]
    delay_time: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpans:
    spans: Annotated[list[TimeSpan], "consumeTimeSpanSet"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsItem:
    sum: int = 0
    tps: float = 0.0
    average: Annotated[float, "avgpt"] = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStats:
    minute: Annotated[StatsItem, "statsMinute"] = StatsItem()
    hour: Annotated[StatsItem, "statsHour"] = StatsItem()
    day: Annotated[StatsItem, "statsDay"] = StatsItem()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueUnit:
    log_offset: Annotated[int, "physicOffset"]
    size: Annotated[int, "physicSize"]
    tags_code: int
    evaluated: Annotated[bool, "eval"] = False
    bitmap: Annotated[str | None, "bitMap"] = None
    message: Annotated[str | None, "msg"] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueUnits:
    units: Annotated[list[QueueUnit], "queueData"]
    min_index: Annotated[int, "minQueueIndex"]
    max_index: Annotated[int, "maxQueueIndex"]
    subscription: Annotated[Subscription | None, "subscriptionData"] = None
    filter_data: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KvTable:
    table: dict[str, str]


# The name server.


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerData:
    cluster: str
    broker_name: str
    addresses: Annotated[dict[int, str], "brokerAddrs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueData:
    broker_name: str
    read_queues: Annotated[int, "readQueueNums"]
    write_queues: Annotated[int, "writeQueueNums"]
    perm: Perm
    sys_flag: Annotated[int, "topicSysFlag"] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRoute:
    queues: Annotated[list[QueueData], "queueDatas"]
    brokers: Annotated[list[BrokerData], "brokerDatas"]
    filter_servers: Annotated[dict[str, list[str]], "filterServerTable"] = field(
        default_factory=dict
    )
    order_topic_conf: str | None = None

    def encode(self, *, standard: bool) -> bytes:
        """`standard`: keys in quotes, as clients from 4.9.4 on are given them."""
        made = beans.to_json(self)
        if standard:
            for broker in made["brokerDatas"]:
                broker["brokerAddrs"] = {str(i): at for i, at in broker["brokerAddrs"].items()}
        return fastjson.render(made).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterInfo:
    brokers: Annotated[dict[str, BrokerData], "brokerAddrTable"]
    clusters: Annotated[dict[str, list[str]], "clusterAddrTable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicList:
    topics: Annotated[list[str], "topicList"]
    broker_addr: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What a broker tells of itself: its topics, and its filter servers if it speaks of them."""

    table: Annotated[TopicTable, "topicConfigSerializeWrapper"]
    filter_servers: Annotated[list[str] | None, "filterServerList"] = None

    @classmethod
    def decode(cls, body: bytes, *, compressed: bool) -> "Registration":
        """Raises ValueError."""
        return _decompress(body) if compressed else beans.decode(cls, body)


_MOST_TOPICS = 16 * 2**20  # bytes of a registration, unpacked: what a frame could hold


def _decompress(body: bytes) -> Registration:
    """`RegisterBrokerBody.decode`: parts with their lengths before them, in one zlib stream."""
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(body, _MOST_TOPICS)
    except zlib.error as error:
        raise ValueError(f"a registration that can't be unpacked: {error}") from None
    if stream.unconsumed_tail:
        raise ValueError(f"a registration of more than {_MOST_TOPICS} bytes")
    at = 0

    def part() -> str:
        nonlocal at
        size = count()
        if not 0 <= size <= len(data) - at:
            raise ValueError("a registration that is cut short")
        at += size
        return decode_utf8(data[at - size : at])

    def count() -> int:
        nonlocal at
        if len(data) - at < 4:
            raise ValueError("a registration that is cut short")
        at += 4
        return int.from_bytes(data[at - 4 : at], signed=True)

    version = beans.from_json(DataVersion, fastjson.parse(part()))
    topics = {}
    for _ in range(count()):
        name, reads, writes, perm, filter_type, *_ = part().split(" ")
        topics[name] = TopicConfig(
            name=name,
            read_queues=int(reads),
            write_queues=int(writes),
            perm=Perm(int(perm)),
            filter_type=TopicFilterType(filter_type),
        )
    return beans.from_json(
        Registration,
        {"filterServerList": fastjson.parse(part())},
        table=TopicTable(topics=topics, version=version),
    )


def decode_properties(body: bytes) -> dict[str, str]:
    """`name=value` lines, as Java's properties in their plain form."""
    made = {}
    for line in body.decode().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.lstrip().startswith(("#", "!")):
            made[name.strip()] = value.strip()
    return made


def encode_properties(values: dict[str, str]) -> bytes:
    return "".join(f"{name}={value}\n" for name, value in values.items()).encode()
