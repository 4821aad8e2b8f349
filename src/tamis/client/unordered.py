"""Unordered consumption, RocketMQ's "concurrently": any of `concurrency` workers takes the next
message. One that fails goes back to the broker, and the others go on.

A message is finished only when its handler succeeded or a broker has it again. One that could not
be sent back is handled again here.
"""

import asyncio
import logging
from collections import deque
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from .received import ReceivedMessage
from .sendback import SendBack
from .workqueue import WorkQueue

if TYPE_CHECKING:
    from .push import PushConsumer

__all__ = ["ReadyMessages"]

log = logging.getLogger(__name__)

_AGAIN: Final = 5.0  # seconds until a message is handled again that could not be sent back


class ReadyMessages:
    """Messages of all queues of one consumer, ready to be handled by the first worker that is
    free. `busy` is the number of workers that are not."""

    def __init__(self, consumer: "PushConsumer", send_back: SendBack) -> None:
        self._consumer = consumer
        self._config = consumer.config
        self._send_back = send_back
        self._ready: deque[tuple[WorkQueue, list[ReceivedMessage]]] = deque()
        self._count = asyncio.Semaphore(0)  # how many are ready
        self.busy = 0

    def put(self, work: WorkQueue, messages: list[ReceivedMessage]) -> None:
        size = self._config.handler_batch
        for _, some in groupby(messages, key=attrgetter("topic")):  # each has its handler
            alike = list(some)
            for at in range(0, len(alike), size):
                self._ready.append((work, alike[at : at + size]))
                self._count.release()

    async def consume(self) -> None:
        """Runs a worker, until it is cancelled."""
        while True:
            await self._count.acquire()
            work, messages = self._ready.popleft()
            if work.is_dropped or self._consumer.is_draining:
                continue
            self.busy += 1
            try:
                await self._handle(work, messages)
            except asyncio.CancelledError:
                raise
            except Exception:  # the edge: a worker is not to be lost
                log.exception("%s", work.queue)
            finally:
                self.busy -= 1

    async def _handle(self, work: WorkQueue, messages: list[ReceivedMessage]) -> None:
        is_consumed, level = await self._consumer.call(messages)
        if work.is_dropped:
            return  # it is another member's now, and comes again there
        for message in messages:
            # for what can't be read another attempt would end the same
            if is_consumed or await self._give_back(message, level if message.is_readable else -1):
                work.finish(message)
            else:
                asyncio.get_running_loop().call_later(_AGAIN, self._again, work, message)
        work.update_room(self._config, ordered=False)

    async def _give_back(self, message: ReceivedMessage, level: int) -> bool:
        """Returns whether the message needs no further attempt here."""
        if self._config.is_broadcasting:
            log.error(
                "message %s is dropped: it failed, and broadcasting knows no retry",
                message.message_id,
            )
            return True
        try:
            return await self._send_back(message, level)
        except Exception:  # whatever it is: the message is not to be forgotten
            log.exception("message %s: it is handled again here", message.message_id)
            return False

    def _again(self, work: WorkQueue, message: ReceivedMessage) -> None:
        message.reconsume_times += 1
        self._ready.append((work, [message]))
        self._count.release()
