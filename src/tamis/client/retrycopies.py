"""The copies of a message that members of a group sent back, found over the wire.

A member that fails sends a message back: the broker stores a copy in the delay topic, from there
one in `%RETRY%group` when it is due, or, if it failed too often, one in `%DLQ%group`. A copy has
the unique key of the message, by which the index knows it, and the id of the first in
ORIGIN_MESSAGE_ID.
"""

from typing import Final

from ..errors import NotFound
from ..fate import RetryFacts
from ..message import DELAY_TOPIC, PropertyName
from ..wire import headers
from . import cluster, lookups
from .received import ReceivedMessage, dead_letter_topic, retry_topic
from .session import Session

__all__ = ["newest_copy"]

_COPIES: Final = 32  # of a topic at a broker: no more are given for a unique key


async def newest_copy(session: Session, message: ReceivedMessage, group: str) -> RetryFacts | None:
    """Return the copy that was made last, at whatever broker; None if there is none. The message
    must have a unique key."""
    key = message.properties[PropertyName.UNIQUE_KEY]
    origin = message.properties.get(PropertyName.ORIGIN_MESSAGE_ID) or message.offset_message_id
    masters = await cluster.masters(session)
    topics = (DELAY_TOPIC, retry_topic(group), dead_letter_topic(group))
    copies: list[tuple[int, int, ReceivedMessage]] = []
    for stage, topic in enumerate(topics):  # of as many failures a later stage is newer
        for copy in await lookups.by_unique_key(session, masters, topic, key, _COPIES):
            is_of_group = topic != DELAY_TOPIC or _goes_to(copy, group)
            if is_of_group and _is_copy(copy, message, {origin, key}):
                copies.append((copy.reconsume_times, stage, copy))
    if not copies:
        return None
    times, stage, copy = max(copies, key=lambda one: one[:2])
    topic = topics[stage]
    if topic == DELAY_TOPIC:
        return RetryFacts(
            topic=retry_topic(group),
            times=times,
            is_dead=False,
            due=await _due(session, copy),
            message_id=copy.offset_message_id,
        )
    is_dead = topic == dead_letter_topic(group)
    return RetryFacts(
        topic=topic,
        times=times,
        is_dead=is_dead,
        is_consumed=not is_dead and await _is_passed(session, copy, group),
        message_id=copy.offset_message_id,
    )


def _goes_to(copy: ReceivedMessage, group: str) -> bool:
    return copy.properties.get(PropertyName.REAL_TOPIC) == retry_topic(group)


def _is_copy(copy: ReceivedMessage, message: ReceivedMessage, origins: set[str]) -> bool:
    """Whether it was made of this message, and not of another with the same unique key."""
    if copy.queue == message.queue and copy.offset == message.offset:
        return False
    origin = copy.properties.get(PropertyName.ORIGIN_MESSAGE_ID)
    topic = copy.properties.get(PropertyName.RETRY_TOPIC, message.topic)
    return topic == message.topic and origin is not None and origin in origins


async def _is_passed(session: Session, copy: ReceivedMessage, group: str) -> bool:
    address = await session.routes.master(copy.queue.broker_name)
    header = headers.QueryConsumerOffset(
        consumer_group=group, topic=copy.queue.topic, queue_id=copy.queue.queue_id
    )
    try:
        answer = await session.ask(address, header)
    except NotFound:
        return False
    return headers.OffsetResponse.from_fields(answer.fields).offset > copy.offset


async def _due(session: Session, copy: ReceivedMessage) -> int | None:
    """When a delayed message is due, which its queue has in place of the hash of its tag."""
    unit = await lookups.unit_at(session, copy.queue, copy.offset)
    return None if unit is None else unit.tags_code
