"""Questions about what is stored: messages by key and by id, offsets of queues, offsets by time.

RocketMQ's `QueryMessageProcessor` and the queries of its `AdminBrokerProcessor` (4.9.4).
"""

import json
from bisect import bisect_left
from typing import Final

from ...errors import CorruptRecord, ResponseError
from ...filter.bloom import BitArray
from ...message import SysFlag
from ...net.longwork import Steps, stepwise
from ...net.server import Answer, Request
from ...store.consumequeue import ConsumeQueue, ExtensionUnit
from ...store.format import EXT_ADDRESS_MAX
from ...store.index import HEADER, Header
from ...store.store import Store
from ...store.tables import FilterData
from ...wire import beans, record
from ...wire.bodies import QueueUnit, QueueUnits, Subscription
from ...wire.codes import ResponseCode
from ...wire.frame import MAX_FRAME
from ...wire.headers import (
    OffsetResponse,
    OfQueue,
    QueryConsumeQueue,
    QueryMessage,
    QueryMessageResponse,
    SearchOffset,
    TimestampResponse,
    ViewMessage,
)
from ..filters import Filters, tag_filter
from ..members import Consumers
from .bodies import answer_steps

__all__ = [
    "first_offset",
    "last_offset",
    "log_record",
    "offset_at",
    "oldest_time",
    "query_consume_queue",
    "query_message",
    "record_time",
    "search_offset",
    "store_time",
    "view_message",
]

_UNIQUE_KEY_LIMIT: Final = 32  # `defaultQueryMaxNum`
_MOST_FOUND: Final = 64  # `maxMsgsNumBatch`
_MOST_BYTES: Final = MAX_FRAME - 65_536  # of records in one answer: a header goes with them
_MOST_UNITS: Final = 65_536  # of a queue in one answer
_UNITS_AT_ONCE: Final = 1024


def query_message(store: Store, header: QueryMessage, request: Request) -> Answer:
    """Records by key. Those whose key merely has the same hash, RocketMQ gives too; we do not."""
    limit = _UNIQUE_KEY_LIMIT if header.is_unique_key == "true" else header.max_num
    limit = min(limit, _MOST_FOUND)
    found, size = list[bytes](), 0
    for message in store.query(
        header.topic, header.key, limit, header.begin_timestamp, header.end_timestamp
    ):
        size += message.size
        if found and size > _MOST_BYTES:
            break
        found.append(store.log.record(message.log_offset, message.size).tobytes())
    if not found:
        return Answer(
            QueryMessageResponse(index_last_update_timestamp=0, index_last_update_phyoffset=0),
            code=ResponseCode.QUERY_NOT_FOUND,
            remark="can not find message, maybe time range not correct",
        )
    last = _index_header(store)
    described = QueryMessageResponse(
        index_last_update_timestamp=last.end_time, index_last_update_phyoffset=last.end_offset
    )
    return Answer(described, b"".join(found))


def _index_header(store: Store) -> Header:
    """Of the newest index file: it tells how far the index reaches."""
    with store.index.files[-1].open("rb") as file:
        return Header._make(HEADER.unpack(file.read(HEADER.size)))


def view_message(store: Store, header: ViewMessage, request: Request) -> Answer:
    return Answer(body=log_record(store, header.offset))


def log_record(store: Store, offset: int) -> bytes:
    """The record at a place of the log, as it lies. Raises ResponseError if there is none."""
    try:
        if offset >= 0:
            message = store.message(offset)
            return store.log.record(offset, message.size).tobytes()
    except CorruptRecord:
        pass
    why = f"can not find message by the offset, {offset}"
    raise ResponseError(ResponseCode.SYSTEM_ERROR, why)


# Offsets and times of a queue.


def search_offset(store: Store, header: SearchOffset, request: Request) -> Answer:
    offset = offset_at(store, header.topic, header.queue_id, header.timestamp)
    return Answer(OffsetResponse(offset=offset))


def last_offset(store: Store, header: OfQueue, request: Request) -> Answer:
    """GET_MAX_OFFSET: that of the next message to come."""
    queue = store.find_queue(header.topic, header.queue_id)
    return Answer(OffsetResponse(offset=queue.max_offset if queue is not None else 0))


def first_offset(store: Store, header: OfQueue, request: Request) -> Answer:
    """GET_MIN_OFFSET; of a queue without messages 0, for RocketMQ makes the queue when asked."""
    queue = store.find_queue(header.topic, header.queue_id)
    return Answer(OffsetResponse(offset=queue.min_offset if queue is not None else 0))


def oldest_time(store: Store, header: OfQueue, request: Request) -> Answer:
    queue = store.find_queue(header.topic, header.queue_id)
    stored = store_time(store, queue, queue.min_offset) if queue is not None else -1
    return Answer(TimestampResponse(timestamp=stored))


def offset_at(store: Store, topic: str, queue_id: int, timestamp: int) -> int:
    """The message stored at that time, or nearest to it, the earlier if two are (milliseconds).

    Beyond the last message it is that message's offset, not the next one's
    (`ConsumeQueue.getOffsetInQueueByTime`, 4.9). Of several with the time, the first.
    """
    queue = store.find_queue(topic, queue_id)
    if queue is None:
        return 0
    low, high = int(queue.min_offset), int(queue.max_offset)
    # a message that can't be read is taken for an early one: the log loses its oldest first
    right = low + bisect_left(
        range(low, high), timestamp, key=lambda offset: store_time(store, queue, offset)
    )
    before = store_time(store, queue, right - 1) if right > low else -1
    if right >= high:
        return right - 1 if before >= 0 else high
    after = store_time(store, queue, right)
    return right - 1 if before >= 0 and timestamp - before <= after - timestamp else right


def store_time(store: Store, queue: ConsumeQueue | None, offset: int) -> int:
    """When the message at that offset of the queue was stored, in milliseconds; -1 if unknown."""
    if queue is None or offset < 0:
        return -1
    units = queue.units(offset, 1)
    if not len(units):
        return -1
    return record_time(store, int(units["offset"][0]), int(units["size"][0]))


def record_time(store: Store, offset: int, size: int) -> int:
    """The same, of the record at a place of the log."""
    data = store.log.record(offset, size)
    if len(data) < record.FIXED_SIZE:
        return -1
    sys_flag = int.from_bytes(data[36:40].tobytes())
    at = 68 if sys_flag & SysFlag.BORN_HOST_V6 else 56
    return int.from_bytes(data[at : at + 8].tobytes(), signed=True)


# A queue's units, for people.


@stepwise
def query_consume_queue(
    store: Store,
    consumers: Consumers,
    filters: Filters,
    header: QueryConsumeQueue,
    request: Request,
) -> Steps[Answer]:
    """As many units as were asked for, of one file and no more than `_MOST_UNITS`."""
    name = f"{header.queue_id}@{header.topic}"
    queue = store.find_queue(header.topic, header.queue_id)
    if queue is None:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, f"{name} is not exist!")
    units = queue.units(header.index, max(min(header.count, _MOST_UNITS), 0))
    if header.index < queue.min_offset or header.index >= queue.max_offset:
        # RocketMQ says 0 and sends no body, which its own tool can't read
        why = f"Index {header.index} of {name} is not exist!"
        raise ResponseError(ResponseCode.SYSTEM_ERROR, why)
    one, data, shown = None, None, None
    if header.consumer_group is not None:
        group = consumers.groups.get(header.consumer_group)
        one = group.subscriptions.get(header.topic) if group is not None else None
        if one is None:
            shown = f"{header.consumer_group}@{header.topic} is not online!"
        else:
            data = filters.get(header.topic, header.consumer_group)
            shown = json.dumps(beans.to_json(data), indent=1) if data is not None else "null"
    made = []
    units = units.copy()  # the queue may lose the file while this goes on
    for at in range(0, len(units), _UNITS_AT_ONCE):
        for offset, size, code in units[at : at + _UNITS_AT_ONCE].tolist():
            made.append(_unit(queue, offset, size, code, one, data))
            yield None
    body = QueueUnits(
        units=made,
        min_index=queue.min_offset,
        max_index=queue.max_offset,
        subscription=one,
        filter_data=shown,
    )
    return (yield from answer_steps(body))


def _unit(
    queue: ConsumeQueue,
    offset: int,
    size: int,
    code: int,
    one: Subscription | None,
    data: FilterData | None,
) -> QueueUnit:
    evaluated, bitmap, message = False, None, None
    if queue.extension is not None and code <= EXT_ADDRESS_MAX:
        unit = queue.extension.unit(code)
        if unit is None:
            message = f"Cq extend not exist!addr: {code}"
        else:
            evaluated = one is not None and _may_match(unit, one, data)
            if unit.bitmap is not None:
                bitmap = "".join(f"{byte:08b}" for byte in reversed(unit.bitmap))
    return QueueUnit(
        log_offset=offset,
        size=size,
        tags_code=code,
        evaluated=evaluated,
        bitmap=bitmap,
        message=message,
    )


def _may_match(unit: ExtensionUnit, one: Subscription, data: FilterData | None) -> bool:
    """What a pull's first sieve says of it (`ExpressionMessageFilter.isMatchedByConsumeQueue`)."""
    if one.class_filter_mode:
        return True
    if one.is_tags:
        wanted = tag_filter(one)
        return wanted is None or wanted.matches_code(unit.code)
    if data is None or unit.bitmap is None or unit.stored <= data.born_time:
        return True
    if len(unit.bitmap) * 8 != data.bloom_bits:
        return True
    bits = BitArray(data.bloom_bits, unit.bitmap)
    return all(bits[position] for position in data.bloom_positions)
