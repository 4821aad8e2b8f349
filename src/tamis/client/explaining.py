"""Why a message was, or was not, consumed: the broker's answer, or what the wire tells.

A Tamis broker judges by its history. Other brokers do not know the request: what they know is
gathered (`wirefacts`) and judged here. What code of a group says of the message only a filter
server knows: it is asked, and the broker judges again with the answer.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import orjson

from ..errors import ConfigError, Error, GroupNotFound, NotFound, ResponseError
from ..fate import Fate, GroupFacts, Judgement, judge
from ..filter.logic import Outcome
from ..message import DELAY_TOPIC, HALF_TOPIC, PropertyName
from ..wire import beans, bodies, headers
from ..wire.bodies import MessageQueue
from ..wire.codes import RequestCode, ResponseCode
from . import cluster, lookups, wirefacts
from .judgerange import code_outcome
from .received import RETRY_PREFIX, ReceivedMessage
from .routes import read_queues
from .session import Session

__all__ = ["MAX_MESSAGES", "explain", "find_messages", "find_queue"]

MAX_MESSAGES: Final = 64  # with one key, the newest
_MAX_TOPICS: Final = 300  # whose indexes are asked for a unique key
_AT_ONCE: Final = 16
_ON_THE_WAY: Final = (DELAY_TOPIC, HALF_TOPIC)  # where messages lie until their time has come
_LONGEST_ID: Final = 255
_BY_READINGS: Final = (  # fates that say how the message was read
    Fate.CONSUMED,
    Fate.FILTERED,
    Fate.LOST_TO_INCONSISTENCY,
    Fate.HASH_COLLISION,
    Fate.FILTER_FAILED,
)


async def explain(
    session: Session, queue: MessageQueue, offset: int, group: str | None = None
) -> list[Judgement]:
    """Return the message's fate for each group that consumes its topic, or for one group. Raises
    NotFound if the queue has no such offset yet."""
    judgements = await _judged(session, queue, offset, group, {})
    return [await _with_code(session, queue, offset, one) for one in judgements]


async def _with_code(
    session: Session, queue: MessageQueue, offset: int, judgement: Judgement
) -> Judgement:
    """Return what follows if filter servers can tell what the group's code says, where that was
    missing. Groups may have different classes of one name, so each is asked about by itself."""
    outcomes: dict[str, Outcome] = {}
    unanswered = ""
    for name in sorted(_undecided_classes(judgement)):
        answer = await code_outcome(session, judgement.group, name, queue, offset)
        if isinstance(answer, str):
            unanswered = answer
        else:
            outcomes[name] = answer
    if outcomes:
        [judgement] = await _judged(session, queue, offset, judgement.group, outcomes)
    if unanswered and judgement.fate is Fate.UNKNOWN:
        return replace(judgement, reason=f"{judgement.reason.rstrip('.')}: {unanswered}.")
    return judgement


async def _judged(
    session: Session,
    queue: MessageQueue,
    offset: int,
    group: str | None,
    outcomes: Mapping[str, Outcome],
) -> list[Judgement]:
    """Return the judgements that follow if code, by class name, says this of the message."""
    address = await session.routes.master(queue.broker_name)
    texts = {name: outcome.name.lower() for name, outcome in outcomes.items()}
    header = headers.ExplainMessage(
        topic=queue.topic,
        queue_id=queue.queue_id,
        offset=offset,
        group=group,
        code_outcomes=orjson.dumps(texts).decode() if texts else None,
    )
    try:
        answer = await session.ask(address, header)
    except ResponseError as error:
        if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise
        return await _judged_here(session, queue, offset, group, outcomes)
    return [_judgement(one) for one in orjson.loads(answer.body)["groups"]]


async def _judged_here(
    session: Session,
    queue: MessageQueue,
    offset: int,
    group: str | None,
    outcomes: Mapping[str, Outcome],
) -> list[Judgement]:
    place = await wirefacts.locate(session, queue, offset, outcomes)
    groups = await wirefacts.consuming_groups(session, queue.topic)
    facts = await wirefacts.gather_facts(session, place, groups if group is None else [group])
    if group is not None and group not in groups and facts[0].consume_type != "CONSUME_ACTIVELY":
        # of one that pulls, a broker may know neither a subscription nor an offset
        why = f"group {group} has nothing to do with topic {queue.topic}"
        raise GroupNotFound(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, why)
    judgements = [_concluded(judge(place.facts, one), one) for one in facts]
    return sorted(judgements, key=lambda one: one.fate is not Fate.LOST_TO_INCONSISTENCY)


def _concluded(judgement: Judgement, facts: GroupFacts) -> Judgement:
    """Say so in the reason if the fate rests on a reading that nobody recorded."""
    if not facts.readings or judgement.fate not in _BY_READINGS:
        return judgement
    since = datetime.fromtimestamp(facts.readings[-1].began / 1000, UTC)
    how = f"concluded from queues and filters that have not changed since {since:%F %T} UTC"
    return replace(judgement, reason=f"{judgement.reason.rstrip('.')} ({how}).")


def _judgement(answered: dict[str, Any]) -> Judgement:
    try:
        fate = Fate(answered["fate"])
    except ValueError:  # of a newer broker
        fate = Fate.UNKNOWN
    return Judgement(
        group=answered["group"],
        fate=fate,
        reason=answered["reason"],
        evidence=answered["evidence"],
    )


def _undecided_classes(judgement: Judgement) -> set[str]:
    """Names of the classes whose word on the message would have helped. While it waits, that is so
    only of a group that is split into lanes: it may wait for one, or be consumed by another."""
    evidence = judgement.evidence
    is_waiting = judgement.fate in (Fate.NOT_CONSUMED_YET, Fate.NOT_ONLINE)
    if judgement.fate is not Fate.UNKNOWN and not (is_waiting and evidence.get("lanes")):
        return set()
    filters = [evidence.get("filter_now"), *(evidence.get("members_now") or {}).values()]
    for reading in evidence.get("readings") or ():
        filters += [reading["broker_filter"], reading["member_filter"]]
        filters += reading.get("group_filters") or ()
    filters += [move.get("filter") for move in evidence.get("moves") or ()]
    filters += [lane["filter"] for lane in evidence.get("lanes") or ()]
    return {one["expression"] for one in filters if one and one["kind"] == "CODE"}


# Which message is meant.


async def find_messages(
    session: Session,
    message_id: str | None = None,
    *,
    topic: str | None = None,
    key: str | None = None,
) -> list[tuple[MessageQueue, int]]:
    """Return where messages are, by an id (an offset message id or a unique key) or by a key of the
    topic, the newest last. Raises NotFound, ConfigError."""
    if message_id is not None:
        if not message_id or len(message_id) > _LONGEST_ID or not message_id.isprintable():
            raise ConfigError(f"{message_id[:40]!r} can't be the id of a message")
        message = await _by_id(session, message_id, topic)
        return [await _delivered(session, message)]
    assert topic is not None
    assert key is not None
    messages = await lookups.by_key(session, topic, key, MAX_MESSAGES, None, None)
    if not messages:
        raise NotFound(ResponseCode.QUERY_NOT_FOUND, f"topic {topic} has no message with key {key}")
    return [(one.queue, one.offset) for one in messages]


async def _by_id(session: Session, message_id: str, topic: str | None) -> ReceivedMessage:
    try:
        return await lookups.by_id(session, message_id, topic)
    except Error as error:
        if topic is not None or isinstance(error, ConnectionError):
            raise
    topics = await _user_topics(session)
    if len(topics) > _MAX_TOPICS:
        raise NotFound(
            ResponseCode.QUERY_NOT_FOUND,
            f"{message_id} is not an offset message id of this cluster, and as a unique key it"
            f" needs its topic: there are {len(topics)} topics; pass --topic",
        )
    masters = await cluster.masters(session)
    slots = asyncio.Semaphore(_AT_ONCE)

    async def ask(topic: str) -> list[ReceivedMessage]:
        async with slots:
            return await lookups.by_unique_key(session, masters, topic, message_id)

    for messages in await asyncio.gather(*map(ask, topics)):
        if messages:
            return messages[0]
    raise NotFound(
        ResponseCode.QUERY_NOT_FOUND,
        f"there is no message {message_id}: it is not the offset message id of a stored message,"
        f" nor a unique key in any of the {len(topics)} topics",
    )


async def _user_topics(session: Session) -> list[str]:
    """Put messages that are on their way last: copies of others, sent back, are among them."""
    answer = await session.ask_nameserver(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    topics = beans.decode(bodies.TopicList, answer.body).topics
    users = [one for one in topics if not one.startswith((RETRY_PREFIX, "%DLQ%"))]
    return sorted(users, key=lambda one: (one in _ON_THE_WAY, one))


async def _delivered(session: Session, message: ReceivedMessage) -> tuple[MessageQueue, int]:
    """Where consumers find the message: one that is delayed, or half of a transaction, lies
    elsewhere until its time has come. Raises NotFound if that has not."""
    if message.queue.topic not in _ON_THE_WAY:
        return message.queue, message.offset
    topic = message.properties.get(PropertyName.REAL_TOPIC, "")
    key = message.properties.get(PropertyName.UNIQUE_KEY)
    if key is not None:
        masters = await cluster.masters(session)
        for one in await lookups.by_unique_key(session, masters, topic, key):
            return one.queue, one.offset
    why = "it is delayed, and not due yet"
    if message.queue.topic == HALF_TOPIC:
        why = "it is half of a transaction that was not committed"
    raise NotFound(
        ResponseCode.QUERY_NOT_FOUND,
        f"message {message.message_id} is not in topic {topic} yet, so no group can have it: {why}",
    )


async def find_queue(
    session: Session, topic: str, queue_id: int, broker: str | None = None
) -> MessageQueue:
    """Raises TopicNotFound, Error if there is no such queue, and ConfigError if several brokers
    have one."""
    queues = read_queues(topic, await session.routes.get(topic, fresh=True))
    matching = [
        one for one in queues if one.queue_id == queue_id and broker in (None, one.broker_name)
    ]
    if len(matching) == 1:
        return matching[0]
    if matching:
        names = " or ".join(f"{one.broker_name}:{queue_id}" for one in matching)
        raise ConfigError(
            f"{len(matching)} brokers have a queue {queue_id} of {topic}: say {names}"
        )
    named = f"{broker}:{queue_id}" if broker is not None else str(queue_id)
    raise Error(f"topic {topic} has no queue {named}; it has {_names(queues)}")


def _names(queues: Iterable[MessageQueue]) -> str:
    names = [f"{one.broker_name}:{one.queue_id}" for one in queues]
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
