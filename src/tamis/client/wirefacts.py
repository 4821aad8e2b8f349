"""What can be learnt over the wire of a message and the groups that consume its topic.

For brokers that keep no history, as Apache's. Everything is asked of all brokers that may know, and
brokers are told apart by name, not by the address in a message's id. What could not be found out is
said in `GroupFacts.unknown`.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from ..errors import NotFound, ResponseError, TopicNotFound
from ..fate import Filter, GroupFacts, MemberNow, MessageFacts, Reading, standing_reading
from ..filter.logic import Outcome
from ..filter.tags import tags_code
from ..message import PropertyName
from ..wire import beans, bodies, headers
from ..wire.bodies import MessageQueue, Subscription
from ..wire.codes import Language, RequestCode
from . import cluster, groupmembers, lookups, offsets
from .received import ReceivedMessage, retry_topic
from .reports import is_system_group
from .retrycopies import newest_copy
from .session import Session

__all__ = [
    "StoredPlace",
    "consuming_groups",
    "filter_of",
    "gather_facts",
    "locate",
    "members_now",
]

_MEMBERS: Final = 64  # of a group that are asked what they subscribe to
_GROUPS: Final = 300  # whose members are asked for, if a broker does not tell who subscribes
_AT_ONCE: Final = 8  # groups
_ADDRESSES_BELOW: Final = -(2**31)  # tags codes that are addresses in the queue's extension
_NO_HISTORY: Final = (
    "This broker keeps no history: who read the queue, by which filter, and whether progress was"
    " moved by hand is not recorded."
)
_CONCLUDED: Final = (
    "This broker keeps no history: who read the queue was concluded from the versions of the"
    " members' subscriptions, which are older than the message. Members that came and left without"
    " having had a queue are not known."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPlace:
    """A place in a queue, and the message there, unless it has left the log."""

    queue: MessageQueue
    first: int  # offset of what the queue still has
    end: int
    message: ReceivedMessage | None
    facts: MessageFacts


async def locate(
    session: Session, queue: MessageQueue, offset: int, outcomes: Mapping[str, Outcome]
) -> StoredPlace:
    """Raises NotFound if the queue has not come to that offset yet."""
    first = await offsets.first_offset(session, queue)
    end = await offsets.last_offset(session, queue)
    if offset >= end:
        what = f"it has offsets {first} to {end - 1}" if end > first else "it is empty"
        raise NotFound(22, f"{queue} has no offset {offset}: {what}")
    unit = await lookups.unit_at(session, queue, offset) if offset >= first else None
    message = None
    if unit is not None:
        message = await lookups.view(session, queue.broker_name, unit.log_offset)
    code = None
    if unit is not None and message is not None:
        has_code = unit.tags_code >= _ADDRESSES_BELOW
        code = unit.tags_code if has_code else tags_code(message.tags)
    facts = MessageFacts(
        topic=queue.topic,
        queue_id=queue.queue_id,
        offset=offset,
        properties=None if message is None else message.properties,
        stored=None if message is None else message.store_timestamp,
        message_id=None if message is None else message.offset_message_id,
        broker=queue.broker_name,
        tags_code=code,
        bitmap=None if unit is None else unit.bitmap,
        code_outcomes=outcomes,
    )
    return StoredPlace(queue=queue, first=first, end=end, message=message, facts=facts)


async def consuming_groups(session: Session, topic: str) -> list[str]:
    """Return the groups that subscribe to a topic, or have an offset in it, at any broker."""

    async def ask(_: str, address: str) -> list[str]:
        code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
        answer = await session.ask(address, headers.OfTopic(topic=topic), code=code)
        return beans.decode(bodies.GroupList, answer.body).groups

    answers = await cluster.each(await cluster.places(session, topic), ask)
    groups = {group for some in answers.values() for group in some}
    if topic in groups:  # 5.3.3's `ConsumerManager` puts the topic where the group belongs
        groups.remove(topic)
        groups |= await _subscribers(session, topic)
    return sorted(group for group in groups if not is_system_group(group))


async def _subscribers(session: Session, topic: str) -> set[str]:
    """Return the connected groups that subscribe to a topic, of the first few hundred that brokers
    know, by asking for the members of each."""

    async def ask(_: str, address: str) -> set[str]:
        answer = await session.ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        return set(beans.decode(bodies.GroupTable, answer.body).groups)

    tables = await cluster.each(await cluster.places(session, topic), ask)
    names = sorted({name for some in tables.values() for name in some})[:_GROUPS]
    slots = asyncio.Semaphore(_AT_ONCE)

    async def subscribes(group: str) -> bool:
        async with slots:
            connected = await groupmembers.connections(session, group)
            return any(topic in one.subscriptions for one in connected.values())

    asked = await asyncio.gather(*map(subscribes, names))
    return {name for name, does in zip(names, asked, strict=True) if does}


async def gather_facts(session: Session, place: StoredPlace, groups: list[str]) -> list[GroupFacts]:
    """Return the facts of several groups, a few of which are asked about at the same time."""
    slots = asyncio.Semaphore(_AT_ONCE)

    async def ask(group: str) -> GroupFacts:
        async with slots:
            return await _group_facts(session, place, group)

    return await asyncio.gather(*map(ask, groups))


async def _group_facts(session: Session, place: StoredPlace, group: str) -> GroupFacts:
    connected = await groupmembers.connections(session, group)
    said = await groupmembers.running_infos(session, group, connected, _MEMBERS)
    committed, has_offsets = await _progress(session, place.queue, group)
    effective = _effective(place.queue, connected)
    some = next(iter(connected.values()), None)
    unknown = [
        f"Member {client_id} did not say what it subscribes to: {info}"
        for client_id, info in said.items()
        if isinstance(info, Exception)
    ]
    everyone = {one.client_id for each in connected.values() for one in each.connections}
    if len(everyone) > len(said):
        unknown.append(f"The group has {len(everyone)} members; {len(said)} were asked.")
    facts = GroupFacts(
        group=group,
        online=bool(connected),
        committed=committed,
        first_offset=place.first,
        end_offset=place.end,
        consume_type="" if some is None else some.consume_type,
        message_model="" if some is None else some.message_model,
        effective=None if effective is None else filter_of(effective),
        members={
            client_id: _own(place.queue.topic, info)
            for client_id, info in sorted(said.items())
            if isinstance(info, bodies.RunningInfo)
        },
        has_offsets=has_offsets,
        has_retry_topic=await _has_retry_topic(session, group),
    )
    if place.message is None:
        unknown.append("Whether copies of it wait to be consumed again: it has left the log.")
    elif PropertyName.UNIQUE_KEY not in place.message.properties:
        unknown.append("Whether it was sent back: it has no unique key to find copies by.")
    else:
        facts = replace(facts, retry=await newest_copy(session, place.message, group))
    if committed is None or committed <= place.facts.offset or not _can_conclude(facts):
        return replace(facts, unknown=(*unknown, _NO_HISTORY))
    members = members_now(place.queue, connected, said)
    version = 0 if effective is None else effective.version
    reading = standing_reading(place.facts, committed, members, facts.effective, version)
    if isinstance(reading, Reading) and len(said) == len(everyone):
        return replace(facts, readings=(reading,), unknown=(*unknown, _CONCLUDED))
    why = reading if isinstance(reading, str) else "Not all members were asked."
    return replace(facts, unknown=(*unknown, _NO_HISTORY, f"It can't be concluded either: {why}"))


def _can_conclude(facts: GroupFacts) -> bool:
    is_push = facts.consume_type == "CONSUME_PASSIVELY" and facts.message_model == "CLUSTERING"
    return is_push or not facts.online


def filter_of(subscription: Subscription) -> Filter:
    if subscription.class_filter_mode:
        return Filter("CODE", subscription.expression)
    if subscription.is_tags:
        return Filter("TAG", subscription.expression or "*")
    return Filter("SQL92", subscription.expression)


def _effective(
    queue: MessageQueue, connected: Mapping[str, bodies.ConsumerConnection]
) -> Subscription | None:
    """What the message's broker filters the group's pulls by."""
    at_broker = connected.get(queue.broker_name)
    return None if at_broker is None else at_broker.subscriptions.get(queue.topic)


def _own(topic: str, info: bodies.RunningInfo) -> Filter | None:
    subscriptions = [filter_of(one) for one in info.subscriptions if one.topic == topic]
    return subscriptions[0] if subscriptions else None


def members_now(
    queue: MessageQueue,
    connected: Mapping[str, bodies.ConsumerConnection],
    said: Mapping[str, bodies.RunningInfo | Exception],
) -> list[MemberNow]:
    """Return what members say of themselves, as far as one queue is concerned."""
    languages = {
        one.client_id: one.language for each in connected.values() for one in each.connections
    }
    members = []
    for client_id, info in said.items():
        if isinstance(info, Exception):
            members.append(MemberNow(client_id=client_id, filter=None, since=None, has_queue=False))
            continue
        versions = [one.version for one in info.subscriptions if one.topic == queue.topic]
        started = info.properties.get("PROP_CONSUMER_START_TIMESTAMP", "")
        is_dated = languages[client_id] == Language.JAVA.name and started.isdecimal()
        members.append(
            MemberNow(
                client_id=client_id,
                filter=_own(queue.topic, info),
                since=max(int(started), *versions) if is_dated and versions else None,
                has_queue=any(one == queue and not r.dropped for one, r in info.queues.items()),
                topics=frozenset(one.topic for one in info.subscriptions),
                sends_filter=info.properties.get("postSubscriptionWhenPull") == "true",
            )
        )
    return members


async def _progress(
    session: Session, queue: MessageQueue, group: str
) -> tuple[int | None, bool | None]:
    """Return the committed offset, None if there is none, and whether the group has any offset.

    A broker of 4.9 answers 0 where there is no offset and the queue begins at 0; its statistics
    list only topics that the group has offsets of. Where both say 0, nothing was committed.
    """
    address = await session.routes.master(queue.broker_name)
    header = headers.QueryConsumerOffset(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        set_zero_if_not_found=False,
    )
    try:
        answer = await session.ask(address, header)
        committed = headers.OffsetResponse.from_fields(answer.fields).offset
    except NotFound:
        committed = None

    async def ask(_: str, address: str) -> set[MessageQueue]:
        try:
            answer = await session.ask(address, headers.GetConsumeStats(consumer_group=group))
        except ResponseError:
            return set()
        return set(beans.decode(bodies.ConsumeStats, answer.body).queues)

    listed = await cluster.each(await cluster.masters(session), ask)
    queues = set().union(*listed.values())
    if committed == 0 and queue not in queues:
        committed = None
    return committed, bool(queues)


async def _has_retry_topic(session: Session, group: str) -> bool:
    try:
        await session.routes.get(retry_topic(group), fresh=True)
    except TopicNotFound:
        return False
    return True
