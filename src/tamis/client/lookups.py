"""Finding single messages: by where they lie, by their unique key, by a key of the user's."""

from typing import Final

from ..errors import Error, NotFound, ResponseError, ServerFault
from ..message import Host, PropertyName
from ..wire import beans, headers, record
from ..wire.bodies import MessageQueue, QueueUnit, QueueUnits
from ..wire.codes import ResponseCode
from . import cluster
from .received import ReceivedMessage, decode_one
from .session import Session

__all__ = ["by_id", "by_key", "by_unique_key", "unit_at", "view"]

_ALWAYS: Final = 2**63 - 1
_UNIQUE_KEY_LIMIT: Final = 32  # brokers give so many, whatever is asked for


async def by_id(session: Session, message_id: str, topic: str | None) -> ReceivedMessage:
    """An id may be a place or a unique key, they look alike. It names an address: nobody is asked
    but a broker of the cluster."""
    brokers = {one.address: one.name for one in await cluster.brokers(session)}
    address, offset = _place(message_id)
    if address in brokers:
        try:
            answer = await session.ask(address, headers.ViewMessage(offset=offset))
            return _received(session, answer.body, brokers[address])[0]
        except ServerFault:  # nothing lies there
            if topic is None:
                raise NotFound(
                    ResponseCode.QUERY_NOT_FOUND,
                    f"there is no message {message_id} at {brokers[address]}: it is too old and"
                    " was removed, or it is a unique key, and the topic is needed too",
                ) from None
    if topic is None:
        raise Error(
            f"{message_id} is no offset message id of a broker of this cluster: if it is a unique"
            " key, the topic is needed too"
        )
    limit, unique = _UNIQUE_KEY_LIMIT, "true"
    for one in await _query(session, topic, message_id, limit, 0, _ALWAYS, unique):
        if one.properties.get(PropertyName.UNIQUE_KEY) == message_id:
            return one
    why = f"there is no message {message_id} in topic {topic}"
    raise NotFound(ResponseCode.QUERY_NOT_FOUND, why)


async def by_key(
    session: Session, topic: str, key: str, limit: int, begin: int | None, end: int | None
) -> list[ReceivedMessage]:
    until = _ALWAYS if end is None else end
    found = await _query(session, topic, key, limit, begin or 0, until)
    return [one for one in found if key in one.keys][-limit:]  # RocketMQ compares hashes


async def _query(
    session: Session,
    topic: str,
    key: str,
    limit: int,
    begin: int,
    end: int,
    is_unique_key: str | None = None,
) -> list[ReceivedMessage]:
    """What all indexes have under the hash of the key, in the order it was stored in."""
    asked = await cluster.places(session, topic)
    return await _query_at(session, asked, topic, key, limit, begin, end, is_unique_key)


async def by_unique_key(
    session: Session, asked: dict[str, str], topic: str, key: str, limit: int = _UNIQUE_KEY_LIMIT
) -> list[ReceivedMessage]:
    """Return the messages of a topic with a unique key, in the order they were stored in, from the
    brokers that are `asked`; they need not have the topic."""
    messages = await _query_at(session, asked, topic, key, limit, 0, _ALWAYS, "true")
    return [one for one in messages if one.properties.get(PropertyName.UNIQUE_KEY) == key]


async def unit_at(session: Session, queue: MessageQueue, offset: int) -> QueueUnit | None:
    """Return what a queue has at an offset: where the message lies, its tags code, its bitmap;
    None if there is nothing."""
    address = await session.routes.master(queue.broker_name)
    header = headers.QueryConsumeQueue(
        topic=queue.topic, queue_id=queue.queue_id, index=offset, count=1
    )
    try:
        answer = await session.ask(address, header)
    except ResponseError:
        return None
    units = beans.decode(QueueUnits, answer.body).units if answer.body else []
    return units[0] if units else None


async def view(session: Session, broker: str, log_offset: int) -> ReceivedMessage | None:
    """Return the message that lies there in a broker's log; None if there is none."""
    address = await session.routes.master(broker)
    try:
        answer = await session.ask(address, headers.ViewMessage(offset=log_offset))
    except ResponseError:
        return None
    return _received(session, answer.body, broker)[0]


async def _query_at(
    session: Session,
    asked: dict[str, str],
    topic: str,
    key: str,
    limit: int,
    begin: int,
    end: int,
    is_unique_key: str | None,
) -> list[ReceivedMessage]:
    header = headers.QueryMessage(
        topic=topic,
        key=key,
        max_num=limit,
        begin_timestamp=begin,
        end_timestamp=end,
        is_unique_key=is_unique_key,
    )

    async def ask(name: str, address: str) -> list[ReceivedMessage]:
        try:
            answer = await session.ask(address, header)
        except NotFound:
            return []
        return _received(session, answer.body, name)

    found = (await cluster.each(asked, ask)).values()
    return sorted((one for some in found for one in some), key=lambda one: one.store_timestamp)


def _place(message_id: str) -> tuple[str, int]:
    """The broker's address and the place in its log; nothing if it can't be such an id."""
    try:
        data = bytes.fromhex(message_id)
    except ValueError:
        return "", 0
    if len(data) not in (16, 28):
        return "", 0
    host = Host(data[:-12], int.from_bytes(data[-12:-8]))
    return str(host), int.from_bytes(data[-8:], signed=True)


def _received(session: Session, body: bytes, broker: str) -> list[ReceivedMessage]:
    """Of an answer with records of any queues."""
    found, at = [], 0
    while at < len(body):
        stored = record.decode(body, at)
        queue = MessageQueue(stored.topic, broker, stored.queue_id)
        found.append(decode_one(body, queue, at, session.config.max_body_size))
        at += stored.size
    return found
