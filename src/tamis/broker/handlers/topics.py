"""Topics, for tools: make, change, delete, list them; what is in them and who consumes them.

RocketMQ's `AdminBrokerProcessor` (4.9.4).
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from ...errors import ResponseError
from ...net.longwork import Steps, stepwise
from ...net.server import Answer, Request
from ...store.store import Store
from ...wire import beans
from ...wire.bodies import (
    GroupList,
    MessageQueue,
    Perm,
    QueueStats,
    TimeSpan,
    TimeSpans,
    TopicConfig,
    TopicFilterType,
    TopicList,
    TopicStats,
    TopicTable,
)
from ...wire.codes import ResponseCode
from ...wire.headers import CreateTopic, OfTopic, OfTopicAndGroup
from ..history import Recorder
from ..members import Consumers
from ..offsets import Offsets
from ..topics import Topics, why_illegal
from .bodies import answer_steps
from .queries import store_time

__all__ = [
    "all_topics",
    "clean_up",
    "consume_time_spans",
    "consumed_by",
    "create_topic",
    "delete_topic",
    "find_topic",
    "one_topic",
    "system_topics",
    "topic_stats",
]

log = logging.getLogger(__name__)


MOST_QUEUES: Final = 10_000  # of a topic: tools ask for all of them at once


def create_topic(topics: Topics, header: CreateTopic, request: Request) -> Answer:
    """Or change it. `order` and the default topic are passed over, as RocketMQ does."""
    _check_name(topics, header.topic)
    if min(header.read_queue_nums, header.write_queue_nums) < 0:
        why = f"The topic[{header.topic}] can't have fewer than 0 queues"
        raise ResponseError(ResponseCode.SYSTEM_ERROR, why)
    if max(header.read_queue_nums, header.write_queue_nums) > MOST_QUEUES:
        why = f"The topic[{header.topic}] can't have more than {MOST_QUEUES} queues"
        raise ResponseError(ResponseCode.SYSTEM_ERROR, why)
    try:
        filter_type = TopicFilterType(header.topic_filter_type or TopicFilterType.SINGLE_TAG)
    except ValueError:
        known = ", ".join(TopicFilterType)
        why = f"topicFilterType = {header.topic_filter_type!r:.40}: it takes one of {known}"
        raise ResponseError(ResponseCode.SYSTEM_ERROR, why) from None
    topics.check_quota(header.topic, None)
    log.info("topic %s: put by %s", header.topic, request.peer)
    topics.put(
        TopicConfig(
            name=header.topic,
            read_queues=header.read_queue_nums,
            write_queues=header.write_queue_nums,
            perm=Perm(header.perm),
            filter_type=filter_type,
            sys_flag=header.topic_sys_flag,
        )
    )
    return Answer()


def delete_topic(
    topics: Topics, offsets: Offsets, recorder: Recorder, header: OfTopic, request: Request
) -> Answer:
    """With what groups have consumed of it. Its messages stay until they are too old; RocketMQ
    removes its queues at once, and a topic made anew under the name counts from 0 there."""
    _check_name(topics, header.topic)
    log.info("topic %s: its deletion is asked for by %s", header.topic, request.peer)
    topics.delete(header.topic)
    offsets.forget_topic(header.topic)
    recorder.topic_deleted(header.topic)
    return Answer()


def _check_name(topics: Topics, topic: str) -> None:
    why = why_illegal(topic)
    if why is None and topics.is_system(topic):
        why = f"The topic[{topic}] is conflict with system topic."
    if why is not None:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, why)


@stepwise
def all_topics(topics: Topics, header: None, request: Request) -> Steps[Answer]:
    table = TopicTable(topics=topics.copy(), version=topics.version)
    return (yield from answer_steps(table))


def one_topic(topics: Topics, header: OfTopic, request: Request) -> Answer:
    """5.x's tools ask for it."""
    return Answer(body=beans.encode(find_topic(topics, header.topic)))


def find_topic(topics: Topics, topic: str) -> TopicConfig:
    """Raises ResponseError if it is not there."""
    found = topics.get(topic)
    if found is None:
        raise ResponseError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
    return found


def system_topics(topics: Topics, header: None, request: Request) -> Answer:
    return Answer(body=beans.encode(TopicList(topics=topics.system)))


@stepwise
def topic_stats(
    broker: str, topics: Topics, store: Store, header: OfTopic, request: Request
) -> Steps[Answer]:
    made = {}
    for queue_id in range(find_topic(topics, header.topic).write_queues):
        queue = store.find_queue(header.topic, queue_id)
        low, high = (queue.min_offset, queue.max_offset) if queue is not None else (0, 0)
        made[MessageQueue(header.topic, broker, queue_id)] = QueueStats(
            min_offset=low,
            max_offset=high,
            last_update_timestamp=store_time(store, queue, high - 1) if high else 0,
        )
        yield None
    return (yield from answer_steps(TopicStats(queues=made)))


@stepwise
def consumed_by(
    consumers: Consumers, offsets: Offsets, header: OfTopic, request: Request
) -> Steps[Answer]:
    """Groups that subscribe to it now, or once did."""
    found = {*consumers.subscribers(header.topic), *offsets.groups(header.topic)}
    yield None
    return (yield from answer_steps(GroupList(groups=sorted(found))))


@stepwise
def consume_time_spans(
    broker: str,
    topics: Topics,
    offsets: Offsets,
    store: Store,
    now: Callable[[], float],
    header: OfTopicAndGroup,
    request: Request,
) -> Steps[Answer]:
    """How old the first and the last message of each queue are, and the last one consumed."""
    spans = []
    for queue_id in range(find_topic(topics, header.topic).write_queues):
        queue = store.find_queue(header.topic, queue_id)
        low, high = (queue.min_offset, queue.max_offset) if queue is not None else (0, 0)
        oldest = store_time(store, queue, low)
        consumed = offsets.get(header.group, header.topic, queue_id)
        at = consumed if consumed is not None else -1
        delay = 0
        if at < high:
            # without an offset RocketMQ takes the age of the epoch; we, that of the first message
            waiting = store_time(store, queue, max(at, low))
            delay = int(now() * 1000) - waiting if waiting >= 0 else 0
        spans.append(
            TimeSpan(
                queue=MessageQueue(header.topic, broker, queue_id),
                min_timestamp=oldest,
                max_timestamp=store_time(store, queue, high - 1),
                consume_timestamp=store_time(store, queue, at - 1) if at > 0 else oldest,
                delay_time=delay,
            )
        )
        yield None
    return (yield from answer_steps(TimeSpans(spans=spans)))


async def clean_up(
    clean: Callable[[], Awaitable[object]], header: None, request: Request
) -> Answer:
    """CLEAN_EXPIRED_CONSUMEQUEUE, CLEAN_UNUSED_TOPIC and DELETE_EXPIRED_COMMITLOG: here queues go
    with the log files their messages were in, so that all three are one."""
    log.info("a clean-up is asked for by %s", request.peer)
    await clean()
    return Answer()
