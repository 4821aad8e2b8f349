"""A queue as a push consumer reads it: its messages that are not done yet.

Messages may be done in any order. `done_to`, which is what the group's offset is saved as, is the
offset of the first that is not: it never passes a message that is not done.
"""

import asyncio
import time
from collections import deque

from ..wire.bodies import MessageQueue, QueueReport
from .config import ConsumerConfig
from .fetching import Stream
from .received import ReceivedMessage

__all__ = ["WorkQueue"]


class WorkQueue(Stream):
    """A queue that is read, with its messages that are not done yet."""

    def __init__(self, queue: MessageQueue, offset: int) -> None:
        super().__init__(queue, offset)
        self.waiting: deque[ReceivedMessage] = deque()  # of an ordered consumer: not begun
        self.bytes = 0
        self.committed: int | None = None  # what was saved last
        self.last_consume = time.time()
        self.locked_until = 0.0
        self.worker: asyncio.Task[None] | None = None
        self.arrived = asyncio.Event()
        self._order: deque[int] = deque()  # offsets not done, ascending
        self._done: set[int] = set()
        self._reached = offset  # all before it was pulled

    def __len__(self) -> int:
        return len(self._order)

    def put(self, messages: list[ReceivedMessage], reached: int) -> None:
        for message in messages:
            self._order.append(message.offset)
            self.bytes += message.size
        self._reached = reached

    def finish(self, message: ReceivedMessage) -> None:
        self._done.add(message.offset)
        self.bytes -= message.size
        while self._order and self._order[0] in self._done:
            self._done.discard(self._order.popleft())
        self.last_consume = time.time()

    @property
    def done_to(self) -> int:
        """Every message before it is done."""
        return self._order[0] if self._order else self._reached

    @property
    def span(self) -> int:
        return self._order[-1] - self._order[0] if self._order else 0

    def update_room(self, config: ConsumerConfig, *, ordered: bool) -> None:
        """Sets `room` and `is_full` by what is not done yet; pulling goes on if there is room
        again."""
        # bytes and span are bounded as what is there suggests; with nothing there, nothing is known
        each = self.bytes // len(self) + 1 if len(self) else config.max_queue_bytes
        self.room = min(
            config.max_queue_messages - len(self),
            config.max_span - self.span,
            (config.max_queue_bytes - self.bytes) // each,
        )
        was, self.is_full = (
            self.is_full,
            (
                len(self) >= config.max_queue_messages
                or self.bytes >= config.max_queue_bytes
                or (not ordered and self.span >= config.max_span)
            ),
        )
        if was and not self.is_full:
            self.changed()

    def report(self) -> QueueReport:
        """Returns what brokers are told of it."""
        first, last = (self._order[0], self._order[-1]) if self._order else (0, 0)
        return QueueReport(
            commit_offset=self.done_to,
            first_cached=first,
            last_cached=last,
            cached=len(self),
            cached_mib=self.bytes >> 20,
            locked=time.monotonic() < self.locked_until,
            dropped=self.is_dropped,
            last_pull_timestamp=int(self.last_pull * 1000),
            last_consume_timestamp=int(self.last_consume * 1000),
        )

    async def wait_for_worker(self, timeout: float) -> None:
        """Waits for the worker of an ordered queue that was dropped: it ends when it sees that. One
        that does not is cancelled after `timeout` seconds."""
        self.arrived.set()
        if self.worker is not None and self.worker is not asyncio.current_task():
            await asyncio.wait([self.worker], timeout=timeout)
            self.worker.cancel()
