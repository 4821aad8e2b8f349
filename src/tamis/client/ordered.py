"""Ordered consumption: a queue is locked at its broker, and its messages are handled one after the
other. One that fails is tried again before any that follows it.

RocketMQ's times: a lock lives 60 s at the broker, is renewed every 20 s, and counts as lost here
after 30 s without an answer.
"""

import asyncio
import logging
import time
from itertools import groupby, islice
from operator import attrgetter
from typing import TYPE_CHECKING, ClassVar, Final

from ..errors import Error
from ..wire import beans
from ..wire.bodies import LockRequest, LockResponse, MessageQueue
from ..wire.codes import RequestCode
from .received import ReceivedMessage

if TYPE_CHECKING:
    from .push import PushConsumer
    from .session import Session
    from .workqueue import WorkQueue

__all__ = ["Locks", "consume_in_order"]

log = logging.getLogger(__name__)

_LIFE: Final = 30.0
_LOOK_AGAIN: Final = 0.1


class Locks:
    """Of one consumer, at the masters of its queues."""

    RENEWAL: ClassVar = 20.0

    def __init__(self, session: "Session", group: str) -> None:
        self._session = session
        self._group = group

    @staticmethod
    def until() -> float:
        """How long a lock that was given now counts."""
        return time.monotonic() + _LIFE

    async def acquire(self, queues: list[MessageQueue]) -> list[MessageQueue]:
        """Those that are locked for this client now."""
        held: list[MessageQueue] = []
        for address, some in (await self._by_broker(queues)).items():
            body = beans.encode(self._request(some))
            try:
                answer = await self._session.ask(address, RequestCode.LOCK_BATCH_MQ, body)
                held += beans.decode(LockResponse, answer.body).queues
            except (Error, TimeoutError, ValueError) as error:
                log.warning("group %s: queues are not locked: %s", self._group, error)
        return [queue for queue in queues if queue in held]

    async def release(self, queues: list[MessageQueue]) -> None:
        for address, some in (await self._by_broker(queues)).items():
            body = beans.encode(self._request(some))
            try:
                await self._session.ask(address, RequestCode.UNLOCK_BATCH_MQ, body)
            except (Error, TimeoutError) as error:
                log.warning("group %s: queues stay locked for a minute: %s", self._group, error)

    def _request(self, queues: list[MessageQueue]) -> LockRequest:
        return LockRequest(client_id=self._session.client_id, group=self._group, queues=queues)

    async def _by_broker(self, queues: list[MessageQueue]) -> dict[str, list[MessageQueue]]:
        found: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            try:
                address = await self._session.routes.master(queue.broker_name)
            except (Error, TimeoutError) as error:
                log.warning("%s: not locked: %s", queue, error)
            else:
                found.setdefault(address, []).append(queue)
        return found


async def consume_in_order(consumer: "PushConsumer", work: "WorkQueue") -> None:
    """One queue, until it is given up."""
    config = consumer.config
    while not work.is_dropped:
        if not work.waiting:
            work.arrived.clear()
            await work.arrived.wait()
            continue
        if time.monotonic() >= work.locked_until:
            await consumer.renew(work)
            if time.monotonic() >= work.locked_until:
                await asyncio.sleep(_LOOK_AGAIN)
            continue
        first = islice(work.waiting, config.handler_batch)
        _, alike = next(groupby(first, key=attrgetter("topic")))  # each topic has its handler
        messages = list(alike)
        async with consumer.slot():
            if work.is_dropped or consumer.is_draining:
                return
            if time.monotonic() >= work.locked_until:
                continue  # it was lost while others were handled
            is_consumed, level = await consumer.call(messages)
        if is_consumed:
            consumer.done(work, messages)
        elif not await _put_aside(consumer, work, messages, at_once=level == -1):
            await _pause(work, config.suspend)


async def _put_aside(
    consumer: "PushConsumer",
    work: "WorkQueue",
    messages: list[ReceivedMessage],
    *,
    at_once: bool,
) -> bool:
    """Those that failed too often go to the dead letter topic; whether all did."""
    gone = []
    for message in messages:
        is_hopeless = at_once or not message.is_readable
        if is_hopeless or message.reconsume_times >= consumer.max_reconsume_times:
            if await consumer.dead_letter(message):
                gone.append(message)
        else:
            message.reconsume_times += 1
    if len(gone) == len(messages):
        consumer.done(work, gone)
        return True
    return False


async def _pause(work: "WorkQueue", seconds: float) -> None:
    end = time.monotonic() + seconds
    while not work.is_dropped and (left := end - time.monotonic()) > 0:
        await asyncio.sleep(min(left, _LOOK_AGAIN))
