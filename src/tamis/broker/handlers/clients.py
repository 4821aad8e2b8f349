"""Heartbeats, groups and their members, offsets, and the check of a client's filters."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from ...acl import Access
from ...errors import InvalidFilter, ResponseError
from ...net.longwork import LongWork, Steps, in_order, stepwise
from ...net.server import Answer, Request
from ...store.select import Limits
from ...store.store import Store
from ...wire import beans
from ...wire.bodies import CheckClientConfig, ConsumerIds, Heartbeat
from ...wire.codes import RequestCode, ResponseCode
from ...wire.command import Command
from ...wire.headers import (
    Nothing,
    OfConsumerGroup,
    OffsetResponse,
    QueryConsumerOffset,
    UnregisterClient,
    UpdateConsumerOffset,
)
from ..config import Settings
from ..conflicts import Conflicts
from ..filters import MOST_TAGS, Filters, is_quick, try_compile
from ..groups import Groups
from ..history import Recorder
from ..members import ConsumerGroup, Consumers, Member, Producers
from ..offsets import Offsets
from ..quotas import MOST_NAME
from ..takeovers import Takeovers
from ..topics import Topics, retry_topic
from .bodies import decode_steps

__all__ = [
    "Notices",
    "check_client_config",
    "consumer_list",
    "heartbeat",
    "query_offset",
    "unregister",
    "update_offset",
]

log = logging.getLogger(__name__)

_UNIT_SUB: Final = 2  # of a topic's system flag
_MEMORY: Final = Limits().memory  # bytes of the log that are taken to be in it
_TOLD_AT_ONCE: Final = 100  # members
_HEAVY: Final = 16 * 2**10  # bytes of a heartbeat that are counted
_OVERHEAD: Final = 4  # times what it is in JSON
_MOST_ID: Final = 1000  # characters of a client id


@in_order
def heartbeat(
    settings: Settings,
    topics: Topics,
    groups: Groups,
    consumers: Consumers,
    producers: Producers,
    filters: Filters,
    conflicts: Conflicts,
    header: None,
    request: Request,
    now: Callable[[], float] = time.monotonic,
    access: Access | None = None,
) -> Steps[Answer]:
    """A client says what it is. Its group and the group's retry topic are made if need be."""
    data = yield from decode_steps(Heartbeat, request, "no heartbeat")
    _check_size(settings, data)
    if access is not None:
        why = access.check_heartbeat(request.peer, request.command, data)
        if why is not None:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, why)
    command, peer = request.command, request.peer

    def member() -> Member:
        made = Member(peer, data.client_id, command.language, command.version, now())
        made.weight = weight
        return made

    # what a long heartbeat says is kept, and counts as memory of the connection
    weight = 0
    if len(request.body) >= _HEAVY:
        weight = _OVERHEAD * len(request.body) // max(len(data.consumers), 1)
    refused = None
    for consumer in data.consumers:
        yield None
        if peer.is_closed:  # meanwhile: nobody would tell us that it is gone
            return Answer()
        name = consumer.group
        refused = _why_full(settings, consumers, producers, consumers.groups_of(peer), name)
        if refused is not None:
            break
        try:
            known = groups.find(name, create=settings.config.auto_create_groups, client=peer.host)
        except ResponseError as error:  # the client may not create it
            refused = error.remark
            continue
        if known is not None:
            flag = _UNIT_SUB if consumer.unit_mode else 0
            topics.ensure(retry_topic(name), known.retry_queues, flag)
        elif "@" in name:
            refused = f"the group {name!r}: there may be no @ in its name"
            continue
        why = conflicts.refusal(name, member(), consumer.subscriptions)
        if why is not None:
            conflicts.refuse(name, member(), why)
            refused = why
            continue
        yield from conflicts.compile_steps(name, consumer.subscriptions)
        is_agreed = conflicts.is_agreed(name, peer, consumer.subscriptions)
        if is_agreed:
            filters.make_way_for(name, consumer.subscriptions)
        # before the group is told of: its pulls may follow at once
        yield from filters.register_steps(name, consumer.subscriptions)
        if not peer.is_closed:
            is_divided = name in conflicts.divisions
            is_other = consumers.heartbeat(
                consumer, member(), is_divided=is_divided, is_agreed=is_agreed
            )
            conflicts.joined(name, peer, is_other)
    for producer in data.producers:
        yield None
        if peer.is_closed:
            return Answer()
        full = _why_full(settings, consumers, producers, producers.groups_of(peer), producer.group)
        if full is not None:
            refused = full
            break
        producers.heartbeat(producer.group, member())
    if refused is not None:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, refused)
    return Answer()


def _check_size(settings: Settings, data: Heartbeat) -> None:
    """Raises ResponseError for a heartbeat that no client in its senses sends."""
    config = settings.config
    groups = max(len(data.consumers), len(data.producers))
    subscriptions = sum(len(consumer.subscriptions) for consumer in data.consumers)
    why = None
    if len(data.client_id) > _MOST_ID:
        why = f"a client id of {len(data.client_id)} characters: the broker takes {_MOST_ID}"
    elif groups > config.heartbeat_groups:
        why = f"a heartbeat with {groups} groups: the broker takes {config.heartbeat_groups}"
        why += " of a connection (heartbeat_groups); use several clients"
    elif subscriptions > config.heartbeat_subscriptions:
        why = (
            f"a heartbeat with {subscriptions} subscriptions: the broker takes "
            f"{config.heartbeat_subscriptions} (heartbeat_subscriptions); use several clients"
        )
    else:
        for consumer in data.consumers:
            for one in consumer.subscriptions:
                if one.is_tags and max(len(one.tags), len(one.codes)) > MOST_TAGS:
                    count = max(len(one.tags), len(one.codes))
                    why = f"topic {one.topic}: {count} tags, the broker takes {MOST_TAGS}"
    if why is not None:
        log.warning("client %.100s: %s", data.client_id, why)
        raise ResponseError(ResponseCode.SYSTEM_ERROR, why)


def _why_full(
    settings: Settings,
    consumers: Consumers,
    producers: Producers,
    groups: Mapping[str, None],
    name: str,
) -> str | None:
    """Why a connection that is in these groups can't be in one more."""
    config = settings.config
    if name in groups:
        return None
    if len(name) > MOST_NAME:
        return f"a group's name of {len(name)} characters: the broker takes {MOST_NAME}"
    if len(groups) >= config.heartbeat_groups:
        return (
            f"this connection is in {len(groups)} groups, the broker takes no more "
            "(heartbeat_groups); use several clients"
        )
    if consumers.count + producers.count >= config.most_members:
        return f"the broker's groups have {config.most_members} members, it takes no more"
    return None


class Notices:
    """Tells the members of groups that they are others now: each then works out its queues anew.
    In slices, and once for all changes of a moment: a group may have thousands."""

    def __init__(self, settings: Settings, groups: Groups, work: LongWork) -> None:
        self._settings = settings
        self._groups = groups
        self._work = work
        self._changed: dict[str, ConsumerGroup] = {}
        self._woken = asyncio.Event()

    def changed(self, group: ConsumerGroup) -> None:
        known = self._groups.get(group.name)
        if self._settings.config.notify_members and (
            known is None or known.notify_consumer_ids_changed
        ):
            self._changed[group.name] = group
            self._woken.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            while self._changed:
                name = next(iter(self._changed))
                group = self._changed.pop(name)
                fields = OfConsumerGroup(consumer_group=name).to_fields()
                code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
                for number, member in enumerate(list(group.members.values()), 1):
                    if not member.peer.is_full:  # it looks again every 20 s anyway
                        member.peer.tell(Command(code=code, fields=fields))
                    if number % _TOLD_AT_ONCE == 0:
                        await self._work.turn(self)
                await self._work.turn(self)


@in_order
def unregister(
    consumers: Consumers, producers: Producers, header: UnregisterClient, request: Request
) -> Steps[Answer]:
    yield None
    if header.producer_group is not None:
        producers.leave(request.peer, header.producer_group)
    if header.consumer_group is not None:
        consumers.leave(request.peer, header.consumer_group)
    return Answer(Nothing())


@stepwise
def consumer_list(
    consumers: Consumers, conflicts: Conflicts, header: OfConsumerGroup, request: Request
) -> Steps[Answer]:
    """Answer who shares the queues; in a divided group, who does so in the member's lane."""
    group = consumers.groups.get(header.consumer_group)
    if group is None:
        why = f"no consumer for this group, {header.consumer_group}"
        raise ResponseError(ResponseCode.SYSTEM_ERROR, why)
    body = yield from beans.encode_steps(ConsumerIds(ids=conflicts.client_ids(group, request.peer)))
    return Answer(Nothing(), body)


@stepwise
def check_client_config(settings: Settings, header: None, request: Request) -> Steps[Answer]:
    """A client asks, before it starts, whether its filter will do."""
    one = None
    if request.body:
        said = yield from decode_steps(CheckClientConfig, request, "no client config")
        one = said.subscription
    if one is None or one.is_tags:
        return Answer()
    if not settings.config.sql_filters:
        why = (
            f"The broker does not support consumer to filter message by {one.expression_type}; "
            "it is switched off there (enablePropertyFilter)"
        )
        raise ResponseError(ResponseCode.SYSTEM_ERROR, why)
    compiling = partial(try_compile, one.expression, one.expression_type)
    if is_quick(one.expression, one.expression_type):
        found = compiling()
    else:
        found = yield compiling
    if isinstance(found, InvalidFilter):
        why = f"{one.expression!r}, {found}"
        raise ResponseError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, why)
    return Answer()


def update_offset(
    settings: Settings,
    offsets: Offsets,
    recorder: Recorder,
    conflicts: Conflicts,
    header: UpdateConsumerOffset,
    request: Request,
) -> Answer:
    most = settings.config.most_offsets
    if max(len(header.consumer_group), len(header.topic)) > MOST_NAME:
        why = f"a name of more than {MOST_NAME} characters"
        raise ResponseError(ResponseCode.SYSTEM_ERROR, why)
    if not offsets.has_room(header.consumer_group, header.topic, header.queue_id, most):
        why = (
            f"the broker keeps {most} offsets of groups and takes no more (most_offsets); delete "
            "groups that are not used"
        )
        raise ResponseError(ResponseCode.SYSTEM_ERROR, why)
    queue = (header.consumer_group, header.topic, header.queue_id)
    if conflicts.is_needed and conflicts.commit(*queue, header.commit_offset, request.peer):
        return Answer(Nothing())
    before = offsets.commit(*queue, header.commit_offset)
    if before != header.commit_offset:
        recorder.committed(*queue, before, header.commit_offset, request.peer)
    return Answer(Nothing())


def query_offset(
    offsets: Offsets,
    store: Store,
    conflicts: Conflicts,
    takeovers: Takeovers,
    header: QueryConsumerOffset,
    request: Request,
) -> Answer:
    """Without one a new group begins at the start, if the queue still has its start and that is
    not far behind; else the client decides where."""
    asked = (header.topic, header.queue_id)
    takeovers.claimed(header.consumer_group, asked, "", request.peer)
    found = offsets.get(header.consumer_group, header.topic, header.queue_id)
    if conflicts.is_needed:
        own = conflicts.offset(header.consumer_group, request.peer, asked)
        found = own if own is not None else found
    if found is not None and found >= 0:
        return Answer(OffsetResponse(offset=found))
    queue = store.find_queue(header.topic, header.queue_id)
    if header.set_zero_if_not_found and (queue is None or queue.min_offset <= 0):
        behind = 0
        if queue is not None and queue.max_offset:
            behind = store.log.end - int(queue.units(0, 1)["offset"][0])
        if behind <= _MEMORY:
            return Answer(OffsetResponse(offset=0))
    why = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
    raise ResponseError(ResponseCode.QUERY_NOT_FOUND, why)
