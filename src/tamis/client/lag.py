"""Exact lag over the wire: asked of brokers, and of filter servers where a group filters in code.

A broker of Tamis counts itself. Where a group filters in code, a filter server of the broker judges
the messages. Apache's brokers tell the tags codes of a queue, which are counted here; by SQL they
can't be counted without pulling all of them, and that is said instead.
"""

import json
import random
import time
from dataclasses import dataclass, replace
from typing import Any, Final

from ..errors import ConsumerOffline, Error, NotFound, ResponseError
from ..filter.tags import TagFilter, parse_tags
from ..java import string_hash
from ..wire import beans, headers, record
from ..wire.bodies import (
    ConsumerConnection,
    ConsumeStats,
    MessageModel,
    MessageQueue,
    QueueUnits,
    Subscription,
    TopicRoute,
)
from ..wire.codes import RequestCode, ResponseCode
from .received import RETRY_PREFIX
from .reports import MatchingLag
from .session import Session, request_of

__all__ = ["Question"]

_STEP: Final = 1.0  # seconds of counting that are asked for at once
_MARGIN: Final = 5.0  # seconds that an answer may take beyond that
_UNITS: Final = 2048  # of a queue, in one answer of Apache's brokers
_BLANK: Final = 2**31 - 1  # the size of a unit without a message
_UNSUPPORTED: Final = int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)


@dataclass(frozen=True, slots=True)
class Question:
    """The lag of groups in a topic, or in all, by a time of the monotonic clock."""

    session: Session
    group: str | None  # None: all that are named
    groups: list[str]
    topic: str | None
    deadline: float

    async def ask(self, broker: str, address: str) -> list[MatchingLag]:
        """Return the lags of groups at one broker. Raises what asking does."""
        rows = await self._counted_by_broker(broker, address)
        if rows is None:
            rows = []
            for group in self.groups:
                rows += await self._counted_here(address, group)
        for at, row in enumerate(rows):
            if row.filter_type == "CODE" and row.committed is not None:
                rows[at] = await _judged(self.session, address, row, self.deadline)
        return rows

    async def _counted_by_broker(self, broker: str, address: str) -> list[MatchingLag] | None:
        """None if the broker does not know the request. It is asked again while there is time and
        it has not counted to the end: what it has counted it remembers."""
        named = set(self.groups)
        while True:
            seconds = max(min(_STEP, self.deadline - time.monotonic()), 0.0)
            header = headers.GetMatchingLag(
                consumer_group=self.group, topic=self.topic, timeout_millis=int(seconds * 1000)
            )
            accepted = (ResponseCode.SUCCESS, _UNSUPPORTED)
            answer = await self.session.ask(
                address, header, accept=accepted, timeout=seconds + _MARGIN
            )
            if answer.code == _UNSUPPORTED:
                return None
            rows = [_row(broker, told) for told in json.loads(answer.body)]
            rows = [row for row in rows if row.group in named]
            is_counting = any(row.matching_lag is not None and not row.is_complete for row in rows)
            if not is_counting or time.monotonic() >= self.deadline:
                return rows

    async def _counted_here(self, address: str, group: str) -> list[MatchingLag]:
        """Count with what a broker tells that does not count itself."""
        connection = await _connection(self.session, address, group)
        header = headers.GetConsumeStats(consumer_group=group, topic=self.topic)
        answer = await self.session.ask(address, header)
        rows = []
        for queue, progress in beans.decode(ConsumeStats, answer.body).queues.items():
            subscribed = connection.subscriptions.get(queue.topic) if connection else None
            is_retry = queue.topic.startswith(RETRY_PREFIX)
            row = MatchingLag(
                group=group,
                queue=queue,
                committed=progress.consumer_offset,
                end=progress.broker_offset,
                filter_type=_kind(subscribed, is_retry),
                expression="*" if is_retry else subscribed.expression if subscribed else None,
            )
            why = _why_unknown(row, connection)
            if why == _BROADCASTING:
                row = replace(row, committed=None, reason=why)
            elif why:
                row = replace(row, reason=why)
            elif row.filter_type == "TAG":
                by = parse_tags("*") if is_retry or subscribed is None else _tag_filter(subscribed)
                row = await _count_codes(self.session, address, row, by, self.deadline)
            rows.append(row)
        return rows


def _row(broker: str, told: dict[str, Any]) -> MatchingLag:
    by = told["filter"] or {}
    return MatchingLag(
        group=told["group"],
        queue=MessageQueue(told["topic"], broker, told["queue"]),
        committed=told["committed"],
        end=told["end"],
        matching_lag=told["matching_lag"],
        is_complete=told["is_complete"],
        next_match_offset=told["next_match_offset"],
        next_match_stored=told["next_match_stored"],
        filter_type=by.get("type"),
        expression=by.get("expression"),
        reason=told["reason"] or "",
        lane=told.get("lane"),
    )


# Filters in code.


async def _judged(session: Session, address: str, row: MatchingLag, deadline: float) -> MatchingLag:
    """Have a filter server of the broker count that has the group's class."""
    try:
        servers = await _filter_servers(session, row.queue.topic, address)
    except (Error, TimeoutError) as error:
        return replace(row, reason=f"its filter is code, and filter servers are not known: {error}")
    if not servers:
        why = "its filter is code, and there is no filter server to ask"
        return replace(row, reason=why)
    random.shuffle(servers)
    why = ""
    for server in servers:
        try:
            return await _judged_at(session, server, row, deadline)
        except (Error, TimeoutError, ValueError, KeyError) as error:
            why = f"its filter is code, and the filter server {server} says: {error}"
    return replace(row, reason=why)


async def _filter_servers(session: Session, topic: str, address: str) -> list[str]:
    answer = await session.ask_nameserver(headers.GetRoute(topic=topic))
    return list(beans.decode(TopicRoute, answer.body).filter_servers.get(address, ()))


async def _judged_at(
    session: Session, server: str, row: MatchingLag, deadline: float
) -> MatchingLag:
    """Raises what asking does."""
    assert row.committed is not None
    at, end, matching = min(row.committed, row.end), row.end, 0
    first: dict[str, Any] | None = None
    peer = await session.peer(server, "filter server")
    while at < end:
        left = deadline - time.monotonic()
        if left <= 0:
            break
        header = headers.JudgeRange(
            consumer_group=row.group,
            topic=row.queue.topic,
            queue_id=row.queue.queue_id,
            begin=at,
            end=end,
            class_name=row.expression,
            timeout_millis=int(min(_STEP, left) * 1000),
        )
        answer = await peer.ask(request_of(header), _STEP + _MARGIN)
        if answer.code == _UNSUPPORTED:
            raise NotFound(answer.code, "it is not one of Tamis, which could judge messages")
        if answer.code != ResponseCode.SUCCESS:
            raise ResponseError.of(answer.code, answer.remark, session.access_key)
        told = json.loads(answer.body)
        matching += told["matching"]
        if first is None and told["next_match_offset"] is not None:
            first = told
        if told["judged_to"] <= at:
            raise Error("it does not get on")
        at = told["judged_to"]
    is_complete = at >= end
    return replace(
        row,
        matching_lag=matching,
        is_complete=is_complete,
        next_match_offset=first["next_match_offset"] if first is not None else None,
        next_match_stored=first["next_match_stored"] if first is not None else None,
        reason="" if is_complete else "not counted to the end yet",
    )


# Apache's brokers.


async def _connection(session: Session, address: str, group: str) -> ConsumerConnection | None:
    """None if the group has no members at the broker."""
    header = headers.OfConsumerGroup(consumer_group=group)
    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
    try:
        answer = await session.ask(address, header, code=code)
    except ConsumerOffline:
        return None
    found = beans.decode(ConsumerConnection, answer.body)
    return found if found.connections else None


_BROADCASTING: Final = "it is broadcasting: each member keeps its own offsets"


def _why_unknown(row: MatchingLag, connection: ConsumerConnection | None) -> str:
    """Why such a broker can't be asked how many messages match; empty if it can."""
    if connection is not None and connection.message_model == MessageModel.BROADCASTING:
        return _BROADCASTING
    if row.filter_type == "SQL92":
        return "this broker can't count by SQL92"
    if row.filter_type is not None:
        return ""
    if connection is None:
        return "the group has no members, and the broker does not keep its filter"
    return "none of the group's members subscribes to the topic"


def _kind(one: Subscription | None, is_retry: bool) -> str | None:
    if is_retry:
        return "TAG"
    if one is None:
        return None
    return "CODE" if one.class_filter_mode else "TAG" if one.is_tags else "SQL92"


def _tag_filter(one: Subscription) -> TagFilter:
    """The C++ client sends zeros for codes."""
    if one.expression == "*":
        return parse_tags("*")
    codes = map(string_hash, one.tags) if one.tags else one.codes
    return TagFilter(one.expression, frozenset(one.tags), frozenset(codes))


async def _count_codes(
    session: Session, address: str, row: MatchingLag, by: TagFilter, deadline: float
) -> MatchingLag:
    """Read the queue's units from the committed offset on, and count those with a wanted code."""
    assert row.committed is not None
    at, matching, first = row.committed, 0, None
    queue = row.queue
    while at < row.end and time.monotonic() < deadline:
        header = headers.QueryConsumeQueue(
            topic=queue.topic,
            queue_id=queue.queue_id,
            index=at,
            count=min(_UNITS, row.end - at),
            consumer_group=row.group,
        )
        try:
            answer = await session.ask(address, header)
        except ResponseError as error:
            if error.code == _UNSUPPORTED:
                return replace(row, reason="this broker does not tell the tags of its messages")
            return replace(row, reason=f"this broker does not tell its messages' tags: {error}")
        if not answer.body:  # the offset is gone, or not there yet: Apache says it so
            offset = await _first_offset(session, address, queue)
            if offset <= at:
                return replace(row, reason="this broker does not tell the tags of its messages")
            at = offset
            continue
        found = beans.decode(QueueUnits, answer.body)
        if not found.units:
            return replace(row, reason="this broker does not tell the tags of its messages")
        for unit in found.units:
            # a code that has more than four bytes is where the code is; then the broker compares
            is_code = -(2**31) <= unit.tags_code < 2**31
            is_match = by.matches_code(unit.tags_code) if is_code else unit.evaluated
            if unit.size != _BLANK and (by.matches_all or is_match):
                matching += 1
                first = first if first is not None else (at, unit.log_offset)
            at += 1
            if at == row.end:
                break
    is_complete = at >= row.end
    stored = await _stored(session, address, first[1]) if first is not None else None
    return replace(
        row,
        matching_lag=matching,
        is_complete=is_complete,
        next_match_offset=first[0] if first is not None else None,
        next_match_stored=stored,
        reason="" if is_complete else "not counted to the end yet",
    )


async def _first_offset(session: Session, address: str, queue: MessageQueue) -> int:
    header = headers.OfQueue(topic=queue.topic, queue_id=queue.queue_id)
    answer = await session.ask(address, header, code=RequestCode.GET_MIN_OFFSET)
    return headers.OffsetResponse.from_fields(answer.fields).offset


async def _stored(session: Session, address: str, log_offset: int) -> int | None:
    try:
        answer = await session.ask(address, headers.ViewMessage(offset=log_offset))
        return record.decode(memoryview(answer.body), file="").store_timestamp
    except Error:  # it is gone by now
        return None
