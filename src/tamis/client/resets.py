"""Setting back, or forward, where a group goes on: what the offsets would be, and how they become
so at brokers that each have their own way.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..errors import ConfigError, Error, ServerFault
from ..wire import beans, bodies, headers
from ..wire.bodies import MessageQueue
from ..wire.codes import RequestCode
from .offsets import BrokerOffsets, first_offset, last_offset, offset_at
from .routes import read_queues
from .session import Session

__all__ = ["Goal", "plan", "reset"]

Offsets = dict[MessageQueue, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """One of the first three; of one queue if it is given; only backwards without `force`."""

    to: Literal["first", "last"] | None = None
    time_ms: int | None = None
    offset: int | None = None
    queue: MessageQueue | None = None
    force: bool = True

    def __post_init__(self) -> None:
        given = [self.to, self.time_ms, self.offset]
        if given.count(None) != 2 or self.to not in (None, "first", "last"):
            raise ConfigError("a reset is to 'first' or 'last', to a time or to an offset")
        if (self.time_ms or 0) < 0 or (self.offset or 0) < 0:
            raise ConfigError("a reset's time or offset can't be less than 0")

    @property
    def is_one_time_for_all(self) -> bool:
        return self.offset is None and self.queue is None

    @property
    def timestamp(self) -> int:
        """As brokers take it: -1 is the end."""
        return {"first": 0, "last": -1}[self.to] if self.to is not None else self.time_ms or 0


async def plan(
    session: Session, topic: str, goal: Goal, committed: Mapping[MessageQueue, int]
) -> Offsets:
    """Of each queue. Raises TopicNotFound, and Error if there is no such queue."""
    queues = read_queues(topic, await session.routes.get(topic, fresh=True))
    if goal.queue is not None:
        if goal.queue not in queues:
            names = ", ".join(f"{one.broker_name}:{one.queue_id}" for one in queues)
            wanted = f"{goal.queue.broker_name}:{goal.queue.queue_id}"
            raise Error(f"topic {topic} has no queue {wanted}; it has {names}")
        queues = [goal.queue]
    found = await asyncio.gather(*(_offset(session, one, goal) for one in queues))
    made = dict(zip(queues, found, strict=True))
    if not goal.force:
        made = {one: min(offset, committed.get(one, offset)) for one, offset in made.items()}
    return made


async def _offset(session: Session, queue: MessageQueue, goal: Goal) -> int:
    if goal.time_ms is not None:
        return await offset_at(session, queue, goal.time_ms)
    if goal.to == "last":
        return await last_offset(session, queue)
    first = await first_offset(session, queue)
    if goal.offset is None:
        return first
    return min(max(goal.offset, first), await last_offset(session, queue))


async def reset(
    session: Session, group: str, topic: str, goal: Goal, planned: Offsets, *, online: set[str]
) -> Offsets:
    """`online` are the brokers the group has members at. Gives what the offsets are now, or will
    be when the members have heard of it."""
    ways = {name: await _ways(session, name) for name in online}
    by_broker: dict[str, Offsets] = {}
    for queue, offset in planned.items():
        by_broker.setdefault(queue.broker_name, {})[queue] = offset
    for name in sorted(by_broker.keys() & online):
        if not goal.is_one_time_for_all and not ways[name].takes_queues:
            raise Error(
                f"group {group} has members at {name}, which can tell them to go to a time only,"
                " in all queues: do so, or stop the members and reset again"
            )
    made: Offsets = {}
    for name, offsets in by_broker.items():
        if name not in online:
            await _commit(session, group, offsets)
            made |= offsets
        elif goal.is_one_time_for_all and (goal.force or not ways[name].is_server_side):
            header = headers.ResetOffset(
                topic=topic, group=group, timestamp=goal.timestamp, is_force=goal.force
            )
            made |= await _tell(session, name, header)
        else:
            for queue, offset in offsets.items():
                made |= await _tell(session, name, _of_queue(group, queue, offset))
    return dict(sorted(made.items()))


@dataclass(frozen=True, slots=True)
class _Ways:
    is_server_side: bool  # RocketMQ 5: members need not be told, and `force` is not looked at
    takes_queues: bool  # and their offsets: RocketMQ 5 if it is so, and Tamis


async def _ways(session: Session, broker: str) -> _Ways:
    address = await session.routes.master(broker)
    answer = await session.ask(address, RequestCode.GET_BROKER_CONFIG)
    settings = bodies.decode_properties(answer.body)
    is_server_side = settings.get("useServerSideResetOffset") == "true"
    is_tamis = "pullScanSeconds" in settings  # nobody else has this one
    return _Ways(is_server_side, is_server_side or is_tamis)


async def _commit(session: Session, group: str, offsets: Offsets) -> None:
    """One after the other: of first commits that come together RocketMQ may lose one
    (`ConsumerOffsetManager.commitOffset`). RocketMQ 5 takes none, and does not say so, while
    members have not heard of an earlier reset: then it is reset again."""
    store = BrokerOffsets(session, group)
    for queue, offset in offsets.items():
        await store.save({queue: offset})
        if await store.load(queue) != offset:
            await _tell(session, queue.broker_name, _of_queue(group, queue, offset))


def _of_queue(group: str, queue: MessageQueue, offset: int) -> headers.ResetOffset:
    return headers.ResetOffset(
        topic=queue.topic,
        group=group,
        timestamp=0,  # has to be there
        is_force=True,
        queue_id=queue.queue_id,
        offset=offset,
    )


async def _tell(session: Session, broker: str, header: headers.ResetOffset) -> Offsets:
    address = await session.routes.master(broker)
    try:
        answer = await session.ask(address, header)
    except ServerFault as error:
        raise Error(
            f"{broker} does not reset group {header.group} ({error.remark}): if its members are new"
            " and have no offset of some queue yet, wait a little, or stop them and reset again"
        ) from error
    return beans.decode(bodies.ResetOffsets, answer.body).offsets
