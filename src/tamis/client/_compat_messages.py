"""The `rocketmq` packages' messages, statuses and exceptions, for `compat`."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, IntEnum
from typing import NamedTuple

from ..errors import Error
from ..message import Message as ClientMessage
from ..message import PropertyName
from . import received

__all__ = [
    "ConsumeStatus",
    "ConsumerException",
    "MallocFailed",
    "Message",
    "MessageModel",
    "MessageProperty",
    "NotSupported",
    "NullPointerException",
    "ProducerException",
    "ProducerSendAsyncFailed",
    "ProducerSendOnewayFailed",
    "ProducerSendOrderlyFailed",
    "ProducerSendSyncFailed",
    "ProducerStartFailed",
    "PullConsumerFetchMQFailed",
    "PullConsumerFetchMessageFailed",
    "PullConsumerStartFailed",
    "PushConsumerStartFailed",
    "ReceivedMessage",
    "RecvMessage",
    "RocketMQException",
    "SendResult",
    "SendStatus",
    "Text",
    "TransactionStatus",
    "raising",
    "text",
]


class RocketMQException(Exception):
    """The root of theirs."""


class NotSupported(RocketMQException, NotImplementedError):
    """What can't be honoured, and should not be passed over."""


class NullPointerException(RocketMQException):
    """Never raised here; nor is the next."""


class MallocFailed(RocketMQException):
    pass


class ProducerException(RocketMQException):
    pass


class ProducerStartFailed(ProducerException):
    pass


class ProducerSendSyncFailed(ProducerException):
    pass


class ProducerSendOnewayFailed(ProducerException):
    pass


class ProducerSendOrderlyFailed(ProducerException):
    pass


class ProducerSendAsyncFailed(ProducerException):
    def __init__(
        self, msg: str, error: int = -1, file: str = "", line: int = 0, type: str = ""
    ) -> None:
        super().__init__(msg)
        self.error = error  # the broker's code, if it said one
        self.file = file
        self.line = line
        self.type = type


class ConsumerException(RocketMQException):
    pass


class PushConsumerStartFailed(ConsumerException):
    pass


class PullConsumerStartFailed(ConsumerException):
    pass


class PullConsumerFetchMQFailed(ConsumerException):
    pass


class PullConsumerFetchMessageFailed(ConsumerException):
    pass


@contextmanager
def raising(kind: type[RocketMQException]) -> Iterator[None]:
    try:
        yield
    except (Error, TimeoutError) as error:
        raise kind(str(error) or type(error).__name__) from error


class SendStatus(IntEnum):
    OK = 0
    FLUSH_DISK_TIMEOUT = 1
    FLUSH_SLAVE_TIMEOUT = 2
    SLAVE_NOT_AVAILABLE = 3


class ConsumeStatus(IntEnum):
    CONSUME_SUCCESS = 0
    RECONSUME_LATER = 1


class TransactionStatus(IntEnum):
    COMMIT = 0
    ROLLBACK = 1
    UNKNOWN = 2


class MessageModel(IntEnum):
    BROADCASTING = 0
    CLUSTERING = 1


class MessageProperty(Enum):
    TRACE_SWITCH = "TRACE_ON"
    MSG_REGION = "MSG_REGION"
    KEYS = "KEYS"
    TAGS = "TAGS"
    WAIT_STORE_MSG_OK = "WAIT"
    DELAY_TIME_LEVEL = "DELAY"
    RETRY_TOPIC = "RETRY_TOPIC"
    REAL_TOPIC = "REAL_TOPIC"
    REAL_QUEUE_ID = "REAL_QID"
    TRANSACTION_PREPARED = "TRAN_MSG"
    PRODUCER_GROUP = "PGROUP"
    MIN_OFFSET = "MIN_OFFSET"
    MAX_OFFSET = "MAX_OFFSET"
    BUYER_ID = "BUYER_ID"
    ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
    TRANSFER_FLAG = "TRANSFER_FLAG"
    CORRECTION_FLAG = "CORRECTION_FLAG"
    MQ2_FLAG = "MQ2_FLAG"
    RECONSUME_TIME = "RECONSUME_TIME"
    UNIQ_CLIENT_MESSAGE_ID_KEYIDX = "UNIQ_KEY"
    MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
    CONSUME_START_TIMESTAMP = "CONSUME_START_TIME"


class SendResult(NamedTuple):
    status: SendStatus
    msg_id: str
    offset: int


Text = str | bytes


def text(value: Text) -> str:
    return value.decode() if isinstance(value, bytes) else value


class Message:
    """To be sent. Text may be bytes, and the other way round."""

    def __init__(self, topic: Text) -> None:
        self._topic = text(topic)
        self._body = b""
        self._properties: dict[str, str] = {}

    def set_keys(self, keys: Text) -> None:
        """Several are separated by spaces."""
        self.set_property(PropertyName.KEYS, keys)

    def set_tags(self, tags: Text) -> None:
        self.set_property(PropertyName.TAGS, tags)

    def set_body(self, body: Text) -> None:
        self._body = body.encode() if isinstance(body, str) else body

    def set_property(self, key: Text, value: Text) -> None:
        self._properties[text(key)] = text(value)

    def set_delay_time_level(self, delay_time_level: int) -> None:
        self.set_property(PropertyName.DELAY, str(delay_time_level))

    def made(self) -> ClientMessage:
        """As the client takes it. A blank property is as good as none. Raises InvalidMessage."""
        own = {name: value for name, value in self._properties.items() if value.strip()}
        level = own.pop(PropertyName.DELAY, "0")
        return ClientMessage(
            self._topic,
            self._body,
            tags=own.pop(PropertyName.TAGS, None),
            keys=own.pop(PropertyName.KEYS, ""),
            delay_level=int(level) if level.isdigit() else 0,
            wait_stored=own.pop(PropertyName.WAIT, "true") != "false",
            properties=own,
        )


class ReceivedMessage:
    """`message` is the client's."""

    def __init__(self, message: received.ReceivedMessage) -> None:
        self.message = message

    @property
    def topic(self) -> str:
        return self.message.topic

    @property
    def id(self) -> str:
        return self.message.message_id

    @property
    def tags(self) -> bytes:
        return self.get_property(MessageProperty.TAGS)

    @property
    def keys(self) -> bytes:
        return self.get_property(MessageProperty.KEYS)

    @property
    def body(self) -> bytes:
        return self.message.body

    @property
    def delay_time_level(self) -> int:
        return self.message.delay_level

    @property
    def queue_id(self) -> int:
        return self.message.queue.queue_id

    @property
    def reconsume_times(self) -> int:
        return self.message.reconsume_times

    @property
    def store_size(self) -> int:
        return self.message.size

    @property
    def born_timestamp(self) -> int:
        return self.message.born_timestamp

    @property
    def store_timestamp(self) -> int:
        return self.message.store_timestamp

    @property
    def queue_offset(self) -> int:
        return self.message.offset

    @property
    def commit_log_offset(self) -> int:
        return self.message.log_offset

    @property
    def prepared_transaction_offset(self) -> int:
        """Of no use to anyone but the broker."""
        return 0

    def get_property(self, prop: MessageProperty | Text) -> bytes:
        name = prop.value if isinstance(prop, MessageProperty) else text(prop)
        return self.message.properties.get(name, "").encode()

    def __getitem__(self, key: MessageProperty | Text) -> bytes:
        return self.get_property(key)

    def __str__(self) -> str:
        return self.body.decode()

    def __bytes__(self) -> bytes:
        return self.body

    def __repr__(self) -> str:
        body = repr(self.body) if self.message.is_readable else "unreadable"
        return f"<ReceivedMessage topic={self.topic!r} id={self.id!r} body={body}>"


RecvMessage = ReceivedMessage
