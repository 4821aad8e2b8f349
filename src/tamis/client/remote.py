"""What brokers and tools ask a running consumer: how it is, where it is, to begin elsewhere, to
handle one message now.
"""

import json
import logging
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import Protocol

from ..net.aio import Peer
from ..wire import beans, headers
from ..wire.bodies import (
    ConsumeDirectlyResult,
    ConsumerStatus,
    ConsumeType,
    MessageQueue,
    QueueReport,
    ResetOffsets,
    RunningInfo,
    Subscription,
)
from ..wire.codes import VERSION, RequestCode, ResponseCode, version_name
from ..wire.command import Command
from .config import ConsumerConfig
from .handling import Verdict
from .received import ReceivedMessage, decode_one
from .session import Session

__all__ = ["Asked", "Remote"]

log = logging.getLogger(__name__)


class Asked(Protocol):
    """A consumer."""

    group: str
    config: ConsumerConfig
    started: float

    @property
    def session(self) -> Session: ...

    @property
    def subscriptions(self) -> dict[str, Subscription]: ...

    def reports(self) -> dict[MessageQueue, QueueReport]: ...

    async def restart(self, offsets: dict[MessageQueue, int]) -> None: ...


class Remote:
    """`handle` is a push consumer's: others are given their messages, they take them."""

    def __init__(
        self,
        consumer: Asked,
        *,
        ordered: bool = False,
        handle: Callable[[list[ReceivedMessage]], Awaitable[Verdict]] | None = None,
    ) -> None:
        self._consumer = consumer
        self._ordered = ordered
        self._handle = handle
        consumer.session.listeners.update(
            {
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset,
                RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._status,
                RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            }
        )
        if handle is not None:
            consumer.session.listeners[RequestCode.CONSUME_MESSAGE_DIRECTLY] = self._directly

    async def _reset(self, peer: Peer, request: Command) -> None:
        """No answer. RocketMQ's clients stop for ten seconds; there is no need to."""
        header = headers.ResetOffset.from_fields(request.fields)
        if header.group == self._consumer.group:
            await self._consumer.restart(beans.decode(ResetOffsets, request.body).offsets)

    async def _status(self, peer: Peer, request: Command) -> Command:
        header = headers.GetConsumerStatus.from_fields(request.fields)
        offsets = {
            queue: report.commit_offset
            for queue, report in self._consumer.reports().items()
            if queue.topic == header.topic
        }
        body = beans.encode(ConsumerStatus(by_client={}, queues=offsets))
        return Command(code=ResponseCode.SUCCESS, body=body)

    async def _running_info(self, peer: Peer, request: Command) -> Command:
        header = headers.GetRunningInfo.from_fields(request.fields)
        consumer = self._consumer
        if header.consumer_group != consumer.group:
            why = f"the group {header.consumer_group} has no member here"
            return Command(code=ResponseCode.SYSTEM_ERROR, remark=why)
        kind = ConsumeType.CONSUME_ACTIVELY
        if self._handle is not None:
            kind = ConsumeType.CONSUME_PASSIVELY
        info = RunningInfo(
            properties={
                "PROP_NAMESERVER_ADDR": consumer.session.nameserver,
                "PROP_THREADPOOL_CORE_SIZE": str(consumer.config.concurrency),
                "PROP_CONSUMEORDERLY": json.dumps(self._ordered),
                "PROP_CONSUME_TYPE": kind.value,
                "PROP_CLIENT_VERSION": version_name(VERSION),
                "PROP_CONSUMER_START_TIMESTAMP": str(int(consumer.started * 1000)),
                "language": f"Python {sys.version.split()[0]}",
            },
            subscriptions=list(consumer.subscriptions.values()),
            queues=consumer.reports(),
            stack=_stacks() if header.jstack_enable else None,
        )
        return Command(code=ResponseCode.SUCCESS, body=beans.encode(info))

    async def _directly(self, peer: Peer, request: Command) -> Command:
        """Offsets are not touched by it."""
        assert self._handle is not None
        header = headers.ConsumeDirectly.from_fields(request.fields)
        limit = self._consumer.config.max_body_size
        message = decode_one(request.body, MessageQueue("", header.broker_name or "", 0), 0, limit)
        message.queue = MessageQueue(message.topic, header.broker_name or "", 0)
        began = time.monotonic()
        is_consumed, _ = await self._handle([message])
        result = ConsumeDirectlyResult(
            order=self._ordered,
            result="CR_SUCCESS" if is_consumed else "CR_LATER",
            millis=int((time.monotonic() - began) * 1000),
        )
        return Command(code=ResponseCode.SUCCESS, body=beans.encode(result))


def _stacks() -> str:
    """Of all threads."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        parts.append(f"{names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}")
    return "\n".join(parts)
