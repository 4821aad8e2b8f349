"""Reading queues ahead of their consumers, and keeping what matched until it is asked for.

A broker answers a pull with some 32 messages; a filter wants a thousand at once. Where it is
certain that the broker has more, many pulls are under way at the same time, each from where the one
before will end; those of the next batch travel while a batch is judged.
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, NamedTuple

from .classes import FilterClass
from .link import END, FOUND, MOVED, BrokerLink, Pulled

__all__ = ["Kept", "Memory", "Stream", "Streams"]

_PROBE: Final = 1024  # messages to ask for when it is not known how many the broker gives
_WINDOW: Final = 64  # pulls under way at once for one stream
_ROUNDS: Final = 16  # windows after which the broker is asked again how much it gives
_GUESSED_SIZE: Final = 1024  # of a message
_MOST_IDLE: Final = 10_000
_MOST_AT_QUEUE: Final = 64  # of one queue, for consumers at different places
_IDLE_SECONDS: Final = 60.0  # without a pull; then what a stream keeps is dropped


class Kept(NamedTuple):
    offset: int
    record: bytes


class Memory:
    """One limit for what all streams keep: what was read and not judged, and what matched and was
    not asked for yet."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    @property
    def room(self) -> int:
        return self.limit - self.used


class Stream:
    """A queue as one consumer of a group reads it. All that matched from `begin` up to `position`
    is in `kept`. For one pull at a time."""

    def __init__(
        self, link: BrokerLink, memory: Memory, by: FilterClass, queue_id: int, offset: int
    ) -> None:
        self.by = by
        self.queue_id = queue_id
        self.begin = self.position = offset
        self.kept: deque[Kept] = deque()
        self.min_offset = self.max_offset = 0
        self.failures = 0  # messages that failed since the last answer, and the last reason
        self.failure = ""
        self._link = link
        self._losses = link.losses
        self._memory = memory
        self._read: deque[Pulled] = deque()  # not judged, from `position` on
        self._flying: deque[asyncio.Future[Pulled]] = deque()
        self._size = 0  # bytes of all that is kept and read
        self._reserved = 0  # bytes that are expected
        self._stride = 0  # messages that the broker gives at once; 0: not known
        self._rounds = 0
        self._record_size = _GUESSED_SIZE
        self._singly_before = offset  # up to there, messages are pulled one at a time

    @property
    def has_read(self) -> bool:
        return bool(self._read or self._flying)

    @property
    def is_current(self) -> bool:
        """Whether its class is in force and all of it was read over one connection. A broker that
        crashed may have lost messages, and given their offsets to others."""
        return self.by.is_active and self._losses == self._link.losses

    @property
    def is_isolating(self) -> bool:
        """Whether messages are pulled one at a time."""
        return self.position < self._singly_before

    def forget_before(self, offset: int) -> None:
        """The consumer is that far."""
        while self.kept and self.kept[0].offset < offset:
            self._account(-len(self.kept.popleft().record))
        self.begin = max(self.begin, offset)

    def take(self, count: int, size: int) -> tuple[list[bytes], int]:
        """Up to so many of the records kept and so many bytes, at least one; and the offset of the
        next one, or from which there is none."""
        taken = list[bytes]()
        while self.kept and len(taken) < count:
            length = len(self.kept[0].record)
            if taken and length > size:
                break
            size -= length
            self._account(-length)
            taken.append(self.kept.popleft().record)
        self.begin = self.kept[0].offset if self.kept else self.position
        return taken, self.begin

    async def read(self, hold: float = 0.0, most: int = _PROBE) -> Pulled | None:
        """Read from `position` on, up to `most` messages, waiting up to `hold` seconds where the
        queue ends. Returns the broker's answer if it has no messages, else None. Raises
        ResponseError, Unreachable or TimeoutError."""
        if self.has_read:
            return None
        most = 1 if self.is_isolating else min(most, _PROBE)
        pulled = await self._link.pull(self.by.topic, self.queue_id, self.position, most, hold)
        self.min_offset, self.max_offset = pulled.min_offset, pulled.max_offset
        if pulled.code == FOUND and pulled.next_offset > pulled.offset and pulled.body:
            self._keep_read(pulled)
            self._stride = 0 if most == 1 else pulled.next_offset - pulled.offset
            self._rounds = 0
            return None
        if pulled.code not in (END, MOVED) and pulled.next_offset > self.position:
            self.position = pulled.next_offset  # there is a gap
        return pulled

    async def batch(self, count: int) -> list[Pulled]:
        """What was read, so many messages if there are as many; and have more come meanwhile.
        `judged` or `unread` is to be called next. Raises what `read` does."""
        self._read_ahead(count)
        await self._gather(count)
        taken, messages = list[Pulled](), 0
        while self._read and messages < count:
            taken.append(self._read.popleft())
            messages += taken[-1].next_offset - taken[-1].offset
        self._read_ahead(count, after=taken)
        return taken

    def unread(self, answers: list[Pulled]) -> None:
        """They could not be judged, and will be later."""
        self._read.extendleft(reversed(answers))

    def judged(self, answers: list[Pulled], kept: Iterable[Kept], position: int) -> None:
        """Note what matched, and up to where that is known; if that is not all of the answers,
        what was read after them is of no use."""
        for one in answers:
            self._account(-len(one.body))
        for match in kept:
            self.kept.append(match)
            self._account(len(match.record))
        self.position = position
        if answers and position != answers[-1].next_offset:
            self._forget_read()

    def isolate(self, answers: list[Pulled]) -> None:
        """A record in them is damaged. Pulled one at a time, the queue's index says where the next
        begins, whatever the damaged one says of its own size."""
        self._singly_before = answers[-1].next_offset
        self._stride = 0
        self.judged(answers, (), self.position)
        self._forget_read()

    def drop(self) -> None:
        self._forget_read()
        self._account(-self._size)
        self.kept.clear()

    # Reading ahead.

    def _read_ahead(self, batch: int, after: list[Pulled] | None = None) -> None:
        """Post pulls where it is certain that each finds all it asks for, or the end of the queue.
        `after`: what is being judged lies before."""
        peer = self._link.connected_peer
        if not self._stride or peer is None or self._flying or self._rounds >= _ROUNDS:
            return
        last = self._read[-1] if self._read else after[-1] if after else None
        at = last.next_offset if last is not None else self.position
        there = sum(one.next_offset - one.offset for one in self._read)
        size = max(self._stride * self._record_size, 1)
        count = min(
            -(-(self.max_offset - at) // self._stride),
            -(-(batch - there) // self._stride),
            self._memory.room // size,
            _WINDOW,
        )
        if count < 1:
            return
        self._rounds += 1
        for number in range(count):
            offset = at + number * self._stride
            future = self._link.post_pull(peer, self.by.topic, self.queue_id, offset, self._stride)
            future.add_done_callback(partial(self._arrived, size))
            self._flying.append(future)
        self._reserve(count * size)

    def _arrived(self, expected: int, future: "asyncio.Future[Pulled]") -> None:
        """It may be far more than expected, and nobody may ask for it soon."""
        if future in self._flying and not future.cancelled() and future.exception() is None:
            self._reserve(self._reserved + max(len(future.result().body) - expected, 0))

    async def _gather(self, batch: int) -> None:
        """Wait for as many as are judged at once."""
        while self._flying:
            at = self._read[-1].next_offset if self._read else self.position
            if at - self.position >= batch:
                return
            try:
                pulled = await asyncio.shield(self._flying[0])
            except Exception:
                self._land()
                if self._read:
                    return
                raise
            self._flying.popleft()
            self.min_offset, self.max_offset = pulled.min_offset, pulled.max_offset
            if pulled.offset != at or pulled.code != FOUND or pulled.next_offset <= at:
                self._land()
                return
            self._keep_read(pulled)
            given = pulled.next_offset - pulled.offset
            if given < self._stride and pulled.next_offset < pulled.max_offset:
                # of long messages it gives fewer at once
                self._stride = given
                self._land()
            elif not self._flying:
                self._reserve(0)

    def _land(self) -> None:
        """Nobody waits any more for what is under way."""
        for future in self._flying:
            if not future.cancel() and not future.cancelled():
                future.exception()  # what one met, the others did too
        self._flying.clear()
        self._reserve(0)

    def _keep_read(self, pulled: Pulled) -> None:
        self._read.append(pulled)
        self._account(len(pulled.body))
        self._record_size = max(len(pulled.body) // (pulled.next_offset - pulled.offset), 1)

    def _forget_read(self) -> None:
        self._land()
        for one in self._read:
            self._account(-len(one.body))
        self._read.clear()

    def _account(self, size: int) -> None:
        self._size += size
        self._memory.used += size

    def _reserve(self, size: int) -> None:
        self._memory.used += size - self._reserved
        self._reserved = size


class Streams:
    """Streams that no pull is using, to be gone on with by the next one. What they keep is
    bounded: those that have not been used for longest are dropped."""

    def __init__(
        self, link: BrokerLink, limit: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._link = link
        self._clock = clock
        self._idle: OrderedDict[Stream, float] = OrderedDict()  # since when
        self._places: dict[tuple[FilterClass, int], list[Stream]] = {}
        self.memory = Memory(limit)

    def __len__(self) -> int:
        return len(self._idle)

    def take(self, by: FilterClass, queue_id: int, offset: int) -> Stream:
        """The stream that knows what matches from the offset on, or a new one. It is the caller's
        until it is `put` back."""
        for stream in list(self._places.get((by, queue_id), ())):
            if not stream.is_current:
                self._drop(stream)
            elif stream.begin <= offset <= stream.position:
                self._remove(stream)
                stream.forget_before(offset)
                return stream
        if self.memory.room <= 0:
            self._relieve()
        return Stream(self._link, self.memory, by, queue_id, offset)

    def put(self, stream: Stream) -> None:
        if not stream.is_current:
            stream.drop()
            return
        self._idle[stream] = self._clock()
        others = self._places.setdefault((stream.by, stream.queue_id), [])
        others.append(stream)
        if len(others) > _MOST_AT_QUEUE:
            self._drop(others[0])
        self._relieve()

    def forget(self, by: FilterClass) -> None:
        """The class is no more."""
        for stream in [stream for stream in self._idle if stream.by is by]:
            self._drop(stream)

    def sweep(self) -> None:
        """Drop those whose consumers have not come back."""
        before = self._clock() - _IDLE_SECONDS
        while self._idle:
            stream, since = next(iter(self._idle.items()))
            if since >= before:
                return
            self._drop(stream)

    def close(self) -> None:
        for stream in list(self._idle):
            self._drop(stream)

    def _relieve(self) -> None:
        while self._idle and (self.memory.room < 0 or len(self._idle) > _MOST_IDLE):
            self._drop(next(iter(self._idle)))

    def _drop(self, stream: Stream) -> None:
        self._remove(stream)
        stream.drop()

    def _remove(self, stream: Stream) -> None:
        del self._idle[stream]
        place = (stream.by, stream.queue_id)
        others = self._places[place]
        others.remove(stream)
        if not others:
            del self._places[place]
