"""Heartbeats, groups and their members, offsets, and the check of a client's filters."""

import logging
import time
from collections.abc import Callable
from typing import Final

from ...errors import InvalidFilter, ResponseError
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
from ..filters import Filters, compile_sql
from ..groups import Groups
from ..members import ConsumerGroup, Consumers, Member, Producers
from ..offsets import Offsets
from ..topics import Topics, retry_topic

__all__ = [
    "check_client_config",
    "consumer_list",
    "heartbeat",
    "notify_members",
    "query_offset",
    "unregister",
    "update_offset",
]

log = logging.getLogger(__name__)

_UNIT_SUB: Final = 2  # of a topic's system flag
_MEMORY: Final = Limits().memory  # bytes of the log that are taken to be in it


def heartbeat(
    settings: Settings,
    topics: Topics,
    groups: Groups,
    consumers: Consumers,
    producers: Producers,
    filters: Filters,
    header: None,
    request: Request,
    now: Callable[[], float] = time.monotonic,
) -> Answer:
    """A client says what it is. Its group and the group's retry topic are made if need be."""
    try:
        data = beans.decode(Heartbeat, request.body)
    except ValueError as error:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, f"no heartbeat: {error}") from None
    command = request.command

    def member() -> Member:
        return Member(request.peer, data.client_id, command.language, command.version, now())

    refused = None
    for consumer in data.consumers:
        known = groups.find(consumer.group, create=settings.config.auto_create_groups)
        if known is not None:
            flag = _UNIT_SUB if consumer.unit_mode else 0
            topics.ensure(retry_topic(consumer.group), known.retry_queues, flag)
        elif "@" in consumer.group:
            refused = f"the group {consumer.group!r}: there may be no @ in its name"
            continue
        # before the group is told of: its pulls may follow at once
        filters.register(consumer.group, consumer.subscriptions)
        consumers.heartbeat(consumer, member())
    for producer in data.producers:
        producers.heartbeat(producer.group, member())
    if refused is not None:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, refused)
    return Answer()


def notify_members(settings: Settings, groups: Groups, group: ConsumerGroup) -> None:
    """Tells all members that they are others now: each then works out its queues anew."""
    known = groups.get(group.name)
    if not settings.config.notify_members or (
        known is not None and not known.notify_consumer_ids_changed
    ):
        return
    fields = OfConsumerGroup(consumer_group=group.name).to_fields()
    for member in group.members.values():
        member.peer.tell(Command(code=RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, fields=fields))


def unregister(
    consumers: Consumers, producers: Producers, header: UnregisterClient, request: Request
) -> Answer:
    if header.producer_group is not None:
        producers.leave(request.peer, header.producer_group)
    if header.consumer_group is not None:
        consumers.leave(request.peer, header.consumer_group)
    return Answer(Nothing())


def consumer_list(consumers: Consumers, header: OfConsumerGroup, request: Request) -> Answer:
    group = consumers.groups.get(header.consumer_group)
    if group is None:
        why = f"no consumer for this group, {header.consumer_group}"
        raise ResponseError(ResponseCode.SYSTEM_ERROR, why)
    return Answer(Nothing(), beans.encode(ConsumerIds(ids=group.client_ids)))


def check_client_config(settings: Settings, header: None, request: Request) -> Answer:
    """A client asks, before it starts, whether its filter will do."""
    try:
        one = beans.decode(CheckClientConfig, request.body).subscription if request.body else None
    except ValueError as error:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, f"no client config: {error}") from None
    if one is None or one.is_tags:
        return Answer()
    if not settings.config.sql_filters:
        why = (
            f"The broker does not support consumer to filter message by {one.expression_type}; "
            "it is switched off there (enablePropertyFilter)"
        )
        raise ResponseError(ResponseCode.SYSTEM_ERROR, why)
    try:
        compile_sql(one.expression, one.expression_type)
    except InvalidFilter as error:
        why = f"{one.expression!r}, {error}"
        raise ResponseError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, why) from None
    return Answer()


def update_offset(offsets: Offsets, header: UpdateConsumerOffset, request: Request) -> Answer:
    offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
    return Answer(Nothing())


def query_offset(
    offsets: Offsets, store: Store, header: QueryConsumerOffset, request: Request
) -> Answer:
    """Without one a new group begins at the start, if the queue still has its start and that is
    not far behind; else the client decides where."""
    found = offsets.get(header.consumer_group, header.topic, header.queue_id)
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
