"""A message on its way to the wire: checked, given its unique key, compressed, packed into batches.

Pure: no sockets, no clocks but the keys' own.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from ..errors import InvalidMessage, RemoteProtocolError
from ..message import Message, PropertyName, SysFlag, check_tag
from ..wire import properties, record
from ..wire.bodies import MessageQueue
from ..wire.codes import RequestCode, ResponseCode
from ..wire.command import Command, Fields
from . import compression
from .config import ProducerConfig, check_topic
from .identity import UniqueKeys
from .received import RETRY_PREFIX

__all__ = ["Outgoing", "SendResult", "SendStatus", "pack", "prepare", "results_of", "split"]

_MAX_PROPERTIES: Final = record.MAX_PROPERTIES
_ZLIB: Final = int(SysFlag.COMPRESSED) | 3 << 8  # how it is compressed, as 4.9.4 says it


class SendStatus(StrEnum):
    """All mean stored; all but OK, not as safely as the broker was configured to."""

    OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


STATUSES: Final = {
    int(ResponseCode.SUCCESS): SendStatus.OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
}


class SendResult(NamedTuple):
    """Where a message is. `message_id` is its unique key, `offset_message_id` its place."""

    status: SendStatus
    message_id: str
    offset_message_id: str
    queue: MessageQueue
    offset: int
    transaction_id: str | None = None
    region: str = "DefaultRegion"


@dataclass(slots=True)
class Outgoing:
    """One request's worth: a message, or a batch of one topic. `ids` are of each message."""

    topic: str
    body: bytes
    properties: str
    ids: list[str]
    sys_flag: int = 0
    flag: int = 0
    is_batch: bool = False
    code: int = int(RequestCode.SEND_MESSAGE_V2)
    reconsume_times: int = 0
    max_reconsume_times: int | None = None

    def request(
        self, group: str, config: ProducerConfig, queue_id: int, born: int, command: Command
    ) -> Command:
        """Fills `command`. The letters are those of `wire.headers.SendMessage`; written out, since
        this is done for every message (bench_client)."""
        fields: Fields = {
            "a": group,
            "b": self.topic,
            "c": config.default_topic,
            "d": str(config.default_queues),
            "e": str(queue_id),
            "f": str(self.sys_flag),
            "g": str(born),
            "h": str(self.flag),
            "i": self.properties,
            "j": str(self.reconsume_times),
            "k": "false",
            "m": "true" if self.is_batch else "false",
        }
        if self.max_reconsume_times is not None:
            fields["l"] = str(self.max_reconsume_times)
        command.fields = fields
        command.body = self.body
        command.code = self.code
        return command


_topics: set[str] = set()  # that were found to be good


def prepare(
    message: Message, config: ProducerConfig, keys: UniqueKeys, more: Fields | None = None
) -> Outgoing:
    """`more` are properties of ours. Raises InvalidMessage, InvalidName."""
    named, body = _checked(message, config), message.body
    if more:
        named.update(more)
    unique = named.setdefault(PropertyName.UNIQUE_KEY, keys.next())
    sys_flag = 0
    if len(body) >= config.compress_over:
        smaller = compression.compress(body, config.compress_level)
        if len(smaller) < len(body):
            body, sys_flag = smaller, _ZLIB
    block = _block(named, message)
    return Outgoing(message.topic, body, block, [unique], sys_flag, message.flag)


def _checked(message: Message, config: ProducerConfig) -> dict[str, str]:
    if message.topic not in _topics:
        check_topic(message.topic, to_send=True)
        if len(_topics) < 10_000:
            _topics.add(message.topic)
    if not message.body:
        raise InvalidMessage(
            f"a message to {message.topic} has no body: RocketMQ wants at least one byte"
        )
    if len(message.body) > config.max_message_size:
        raise InvalidMessage(
            f"a message to {message.topic} has {len(message.body)} bytes, at most"
            f" {config.max_message_size} are taken (max_message_size; the broker has its own limit)"
        )
    if not 0 <= message.delay_level <= config.max_delay_level:
        raise InvalidMessage(
            f"delay_level = {message.delay_level}: it is 0 for none, or 1 to"
            f" {config.max_delay_level} (max_delay_level), as many as brokers have"
        )
    if message.tags and config.check_tags:
        check_tag(message.tags)
    return message.all_properties()


def _block(named: dict[str, str], message: Message) -> str:
    """The properties as they travel."""
    block = properties.encode(named)
    if block.count("\x01") != len(named) or block.count("\x02") != len(named) - 1:
        raise InvalidMessage(
            f"a message to {message.topic} has a \\x01 or \\x02: these separate properties"
        )
    try:
        block.encode()
    except UnicodeEncodeError as error:
        why = f"a message to {message.topic} has properties that are no text: {error.reason}"
        raise InvalidMessage(why) from None
    if len(block) * 3 > _MAX_PROPERTIES and len(block.encode()) > _MAX_PROPERTIES:
        raise InvalidMessage(
            f"a message to {message.topic} has {len(block.encode())} bytes of properties:"
            f" at most {_MAX_PROPERTIES} are taken; put it into the body"
        )
    return block


def split(
    messages: Sequence[Message], config: ProducerConfig, keys: UniqueKeys
) -> list[tuple[Outgoing, list[int]]]:
    """Batches of one topic each, no larger than the limit, in the order of their first message;
    with each, the numbers of its messages."""
    by_topic: dict[tuple[str, bool], list[int]] = {}
    for number, message in enumerate(messages):
        by_topic.setdefault((message.topic, message.wait_stored), []).append(number)
    made = []
    for numbers in by_topic.values():
        for chunk in _chunks(((n, _item(messages[n], config, keys)) for n in numbers), config):
            made.append(
                (pack(messages[chunk[0][0]], [item for _, item in chunk]), [n for n, _ in chunk])
            )
    return made


_Item = tuple[bytes, str]  # a message of a batch, and its unique key


def _item(message: Message, config: ProducerConfig, keys: UniqueKeys) -> _Item:
    named = _checked(message, config)
    if message.delay_level:
        raise InvalidMessage(f"a message to {message.topic} with a delay: batches take none")
    if message.topic.startswith(RETRY_PREFIX):
        raise InvalidMessage(f"a message to {message.topic}: batches take no retries")
    unique = keys.next()
    named[PropertyName.UNIQUE_KEY] = unique
    block = _block(named, message)
    return record.batch_item(message.body, block.encode(), message.flag), unique


def _chunks(
    items: Iterable[tuple[int, _Item]], config: ProducerConfig
) -> Iterator[list[tuple[int, _Item]]]:
    chunk: list[tuple[int, _Item]] = []
    size = 0
    for number, item in items:
        if chunk and size + len(item[0]) > config.max_message_size:
            yield chunk
            chunk, size = [], 0
        chunk.append((number, item))
        size += len(item[0])
    if chunk:
        yield chunk


def pack(first: Message, items: Sequence[_Item]) -> Outgoing:
    wait = "true" if first.wait_stored else "false"
    return Outgoing(
        first.topic,
        b"".join(data for data, _ in items),
        f"{PropertyName.WAIT}\x01{wait}",
        [unique for _, unique in items],
        is_batch=True,
        code=int(RequestCode.SEND_BATCH_MESSAGE),
    )


def results_of(outgoing: Outgoing, queue: MessageQueue, answer: Command) -> list[SendResult]:
    """One a message. Raises RemoteProtocolError for an answer that does not say where it is."""
    fields = answer.fields or {}
    try:
        queue_id, first = int(fields["queueId"]), int(fields["queueOffset"])
        places = fields["msgId"].split(",")
    except (KeyError, ValueError) as error:
        raise RemoteProtocolError(f"an answer to a send that lacks {error}") from None
    if queue_id != queue.queue_id:
        queue = MessageQueue(queue.topic, queue.broker_name, queue_id)
    status = STATUSES[answer.code]
    region = fields.get("MSG_REGION", "DefaultRegion")
    if len(places) != len(outgoing.ids):  # Apache's older brokers name the first one only
        places += [""] * (len(outgoing.ids) - len(places))
    transaction = fields.get("transactionId")
    return [
        SendResult(status, unique, place, queue, first + number, transaction, region)
        for number, (unique, place) in enumerate(zip(outgoing.ids, places, strict=False))
    ]
