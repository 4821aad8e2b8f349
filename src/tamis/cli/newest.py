"""The newest messages of a topic, over all of its queues. Nothing is changed at the broker."""

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..errors import CorruptRecord, Error
from .connecting import Cluster

if TYPE_CHECKING:
    from ..client import Consumer
    from ..client.fetching import Puller
    from ..wire.bodies import MessageQueue

__all__ = ["Newest", "StoredRecord", "read_newest"]

_READER: Final = "TOOLS_CONSUMER"  # every broker has this group: nothing is left behind
_MOST_BYTES: Final = 64 * 2**20  # of the records that are kept
_SMALLEST_STEP: Final = 32  # messages of a queue that are read at once
_PARALLEL: Final = 16  # queues


class StoredRecord(NamedTuple):
    """A message as it lies in the log. Older ones sort first."""

    store_timestamp: int
    broker_name: str
    log_offset: int
    queue_id: int
    offset: int
    record: bytes


class Newest(NamedTuple):
    records: list[StoredRecord]  # from the oldest on
    is_cut: bool  # there are fewer than wanted, for they are too large


async def read_newest(
    target: Cluster, topic: str, count: int, report: Callable[[Error], None]
) -> Newest:
    """Read the messages that were stored last. What can't be read is reported.

    Raises TopicNotFound, Unreachable, ResponseError, TimeoutError.
    """
    from ..client import Consumer, ConsumerConfig
    from ..client.fetching import Puller

    config = target.config(ConsumerConfig, hold=0.0, auto_commit=False)
    consumer = Consumer(target.nameserver, _READER, config=config)
    try:
        queues = await consumer.queues(topic)
        puller = Puller(consumer.session, _READER, config, posts=True)
        step = max(-(-count // max(len(queues), 1)), _SMALLEST_STEP)
        kept = _Kept(count)
        tails = [_Tail(queue, puller, step, kept, report) for queue in queues]
        await _each(tails, lambda tail: tail.find_ends(consumer))
        while tails := [tail for tail in tails if tail.may_have_newer]:
            await _each(tails, _Tail.read)
        return Newest(sorted(kept.records), kept.is_cut)
    finally:
        await consumer.close()


async def _each(tails: "list[_Tail]", work: "Callable[[_Tail], Coroutine[Any, Any, None]]") -> None:
    for at in range(0, len(tails), _PARALLEL):
        await asyncio.gather(*map(work, tails[at : at + _PARALLEL]))


class _Kept:
    """The newest records seen so far: at most a number of messages and of bytes."""

    def __init__(self, count: int) -> None:
        self.records: list[StoredRecord] = []  # a heap
        self.is_cut = False
        self._count = count
        self._bytes = 0
        self._dropped: StoredRecord | None = None  # the newest one

    def is_wanted(self, one: StoredRecord) -> bool:
        return self._dropped is None or one > self._dropped

    def add(self, one: StoredRecord) -> None:
        if not self.is_wanted(one):
            return
        heapq.heappush(self.records, one)
        self._bytes += len(one.record)
        while len(self.records) > self._count or self._bytes > _MOST_BYTES:
            self.is_cut = self.is_cut or len(self.records) <= self._count
            self._dropped = heapq.heappop(self.records)
            self._bytes -= len(self._dropped.record)


class _Tail:
    """The end of a queue, read backwards in steps for as long as there may be newer messages than
    those kept. Within a queue times don't go back."""

    def __init__(
        self,
        queue: "MessageQueue",
        puller: "Puller",
        step: int,
        kept: _Kept,
        report: Callable[[Error], None],
    ) -> None:
        self._queue = queue
        self._puller = puller
        self._step = step
        self._kept = kept
        self._report = report
        self._first = self._end = 0  # what is not read yet
        self._oldest: StoredRecord | None = None

    async def find_ends(self, consumer: "Consumer") -> None:
        self._end = await consumer.last_offset(self._queue)
        self._first = await consumer.first_offset(self._queue)

    @property
    def may_have_newer(self) -> bool:
        is_wanted = self._oldest is None or self._kept.is_wanted(self._oldest)
        return self._first < self._end and is_wanted

    async def read(self) -> None:
        start = max(self._first, self._end - self._step)
        oldest: StoredRecord | None = None
        async for one in self._records(start, self._end):
            oldest = oldest or one
            self._kept.add(one)
        self._oldest = oldest or self._oldest
        self._end = start

    async def _records(self, offset: int, end: int) -> AsyncIterator[StoredRecord]:
        from ..client.received import decode_all, examine
        from ..filter.tags import ALL
        from ..wire.bodies import Subscription

        queue = self._queue
        everything = Subscription(topic=queue.topic, expression=ALL, expression_type="TAG")
        is_single = False  # a damaged record is looked for: pulled alone, it has an offset
        while offset < end:
            most = 1 if is_single else end - offset
            pulled = await self._puller.pull(queue, offset, everything, most)
            if pulled.next_offset <= offset:
                self._report(Error(f"{queue}, offset {offset}: the broker does not give it"))
                return
            damaged = examine(pulled.body, queue, offset) if is_single and pulled.body else None
            if damaged is not None:
                self._report(damaged)
                offset, is_single = pulled.next_offset, False
                continue
            next_offset, is_single, at = pulled.next_offset, False, 0
            try:
                for message in decode_all(pulled.body, queue):
                    record = pulled.body[at : at + message.size]
                    at += message.size
                    if message.offset >= end:
                        return
                    yield StoredRecord(
                        message.store_timestamp,
                        queue.broker_name,
                        message.log_offset,
                        queue.queue_id,
                        message.offset,
                        record,
                    )
                    offset = message.offset + 1
            except CorruptRecord:
                is_single, next_offset = True, offset
            offset = next_offset
