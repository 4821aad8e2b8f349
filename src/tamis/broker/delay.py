"""Messages that wait for their time: RocketMQ's `ScheduleMessageService` (4.9.4).

They lie in the delay topic, a queue for each level, and their queue units say when they are due.
Delivered at least once: (1) the copy for the real topic is stored, (2) the level's offset moves on,
(3) offsets are saved, with what was delivered on the disk before. Between 1 and 2 nothing waits for
the disk, even with sync flush: a message must not be late because the disk is busy, and a copy that
a power cut loses is made again, for its offset is not saved. Different on purpose: a delivered
message has no DELAY property left, which Apache's still shows, and what no store takes is passed
over instead of tried for ever.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ..errors import CorruptRecord, StoreError
from ..message import DELAY_TOPIC, HALF_TOPIC, PropertyName, QueueOffset, StoredMessage
from ..store import tables
from ..store.commitlog import IllegalMessage
from ..store.consumequeue import ConsumeQueue, Units
from ..store.format import EXT_ADDRESS_MAX, UNIT_BLANK_SIZE
from ..store.store import Store
from ..wire import properties as properties_block
from ..wire import record
from ..wire.record import Draft
from .intake import Intake

__all__ = ["Delays"]

log = logging.getLogger(__name__)

_BATCH: Final = 512  # messages delivered together, at the most
_BATCH_BYTES: Final = 4 * 2**20
_GRAIN: Final = 0.05  # seconds; news of delayed messages is looked at no more often
_LONGEST: Final = 1.0  # seconds of sleep while something waits: the clock may be set
_AFTER_FAILURE: Final = 1.0  # seconds


@dataclass(frozen=True, slots=True)
class _Due:
    """Some units of a level from its offset on, and the copies to store of them."""

    count: int
    numbers: list[int]  # which of the units each draft is of
    drafts: list[Draft]


class Delays:
    """All of it runs in one event loop; what `snapshot` gives may run in a thread."""

    def __init__(
        self,
        store: Store,
        intake: Intake,
        folder: Path,
        levels: Sequence[int],
        now: Callable[[], float],
    ) -> None:
        """`levels`: milliseconds, level 1 first; see `dispatch.parse_delay_levels`."""
        self._store = store
        self._intake = intake
        self._folder = folder
        self._levels = levels
        self._now = now
        self._offsets = tables.load_delay_offsets(folder)
        self._woken = asyncio.Event()
        self._is_failing = False
        self.path = folder / "delayOffset.json"
        self.changes = 0

    @property
    def offsets(self) -> dict[int, int]:
        """By level, how far its queue was delivered."""
        return dict(self._offsets)

    def progress(self) -> dict[int, tuple[int, int]]:
        """By level: how far it was delivered, of how many."""
        return {
            level: (self._offsets.get(level, 0), queue.max_offset)
            for level, queue in self._queues().items()
        }

    def snapshot(self) -> Callable[[], None]:
        """What saves the table as it is now; may be called in another thread."""
        offsets, end = dict(self._offsets), self._store.log.end

        def save() -> None:
            self._store.make_durable(end)  # else a power cut could leave an offset without a copy
            tables.save_delay_offsets(self._folder, offsets)

        return save

    def wake(self) -> None:
        """There are new messages in the delay topic."""
        self._woken.set()

    async def run(self) -> None:
        """Delivers until it is cancelled."""
        while True:
            self._woken.clear()
            try:
                wait = await self.deliver()
            except StoreError as error:
                if not self._is_failing:
                    log.error("delayed messages are not delivered, trying again: %s", error)
                self._is_failing = True
                await asyncio.sleep(_AFTER_FAILURE)
                continue
            except Exception:  # the edge: those that wait are not to wait for ever
                log.exception("delayed messages are not delivered, trying again")
                await asyncio.sleep(_AFTER_FAILURE)
                continue
            if self._is_failing:
                log.info("delayed messages are delivered again")
            self._is_failing = False
            await self._sleep(wait)

    async def _sleep(self, wait: float | None) -> None:
        """Until the next message is due. News may bring an earlier one; they are looked at together
        with those that follow within a moment, but never later than the next is due."""
        longest = None if wait is None else min(wait, _LONGEST)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest):
                await self._woken.wait()
                await asyncio.sleep(_GRAIN)

    async def deliver(self) -> float | None:
        """Delivers all that is due. Gives the seconds until the next is, None if nothing waits.

        Raises StoreError when a copy can't be stored; it will be tried again.
        """
        while True:
            waits, due = list[float](), list[tuple[int, ConsumeQueue]]()
            for level, queue in self._queues().items():
                wait = self._wait_for(level, queue)
                if wait is None:
                    continue
                if wait > 0:
                    waits.append(wait)
                else:
                    due.append((level, queue))
            if not due:
                return min(waits, default=None)
            failures = list[StoreError]()
            for level, queue in due:  # a batch of each in turn: none is to hold up the others
                try:
                    self._deliver_some(level, queue)
                except StoreError as error:
                    failures.append(error)
                await asyncio.sleep(0)
            if failures:
                raise failures[0]

    def _queues(self) -> dict[int, ConsumeQueue]:
        found = dict[int, ConsumeQueue]()
        for number in range(len(self._levels)):
            queue = self._store.find_queue(DELAY_TOPIC, number)
            if queue is not None:
                found[number + 1] = queue
        return found

    def _wait_for(self, level: int, queue: ConsumeQueue) -> float | None:
        """Seconds until a level's next message is due; 0 if it is, None if there is none."""
        offset = self._next(level, queue)
        if offset >= queue.max_offset:
            return None
        units = queue.units(offset, 1)
        if not len(units):
            return 0.0
        now = int(self._now() * 1000)
        first = int(self._times(level, queue, units)[0])
        is_early = now < first <= now + self._levels[level - 1]
        return (first - now) / 1000 if is_early else 0.0

    def _deliver_some(self, level: int, queue: ConsumeQueue) -> None:
        """As `deliver`, a batch of one level."""
        offset = self._next(level, queue)
        if not len(queue.units(offset, 1)):
            self._move(level, queue.next_file(offset))
            return
        due = self._due(level, queue, offset, int(self._now() * 1000))
        outcomes = self._intake.append(due.drafts) if due.drafts else []  # 1
        for number, outcome in zip(due.numbers, outcomes, strict=True):
            if isinstance(outcome, IllegalMessage):
                self._pass_over(level, offset + number, str(outcome))
            elif isinstance(outcome, StoreError):
                self._move(level, offset + number)
                raise outcome
        self._move(level, offset + due.count)  # 2

    def _next(self, level: int, queue: ConsumeQueue) -> int:
        """Where to go on; corrected as `correctDelayOffset` does."""
        offset = self._offsets.get(level, 0)
        bounded = min(max(offset, queue.min_offset), queue.max_offset)
        if bounded != offset:
            if level in self._offsets:
                log.error("delay level %d: offset %d is now %d", level, offset, bounded)
            self._move(level, bounded)
        return bounded

    def _move(self, level: int, offset: int) -> None:
        self._offsets[level] = QueueOffset(offset)
        self.changes += 1

    def _times(self, level: int, queue: ConsumeQueue, units: Units) -> Any:
        """Milliseconds at which each is due."""
        times = units["code"].astype("int64")
        for number in (times <= EXT_ADDRESS_MAX).nonzero()[0].tolist():
            extension = queue.extension
            found = extension.unit(int(times[number])) if extension is not None else None
            times[number] = (
                found.code if found is not None else self._computed(level, units[number])
            )
        return times

    def _computed(self, level: int, unit: Any) -> int:
        """For a unit that leads to an extension which is not there."""
        try:
            stored = self._store.message(int(unit["offset"])).store_timestamp
        except CorruptRecord:
            return 0
        return stored + self._levels[level - 1]

    def _due(self, level: int, queue: ConsumeQueue, offset: int, now: int) -> _Due:
        """Those whose time has come, from `offset` on, up to the first that is to wait.

        A time further away than the level's delay is wrong, and taken for now: levels or the clock
        were changed (`correctDeliverTimestamp`).
        """
        units = queue.units(offset, _BATCH)
        times = self._times(level, queue, units)
        waits = (times > now) & (times <= now + self._levels[level - 1])
        count = int(waits.argmax()) if waits.any() else len(units)
        units = units[:count]
        is_message = units["size"] != UNIT_BLANK_SIZE
        sizes = units["size"].astype("int64") * is_message
        fitting = max(int((sizes.cumsum() <= _BATCH_BYTES).sum()), 1)
        numbers = is_message[:fitting].nonzero()[0]
        records = self._store.log.sound_records(
            units["offset"][numbers].astype("int64"), sizes[numbers]
        )
        due = _Due(fitting, [], [])
        for number, data in zip(numbers.tolist(), records, strict=True):
            try:
                if not len(data):
                    raise CorruptRecord("", int(units["offset"][number]), "no sound record")
                draft = _delivered(record.decode(memoryview(data.data)))
            except (CorruptRecord, ValueError) as error:
                self._pass_over(level, offset + number, str(error))
            else:
                due.numbers.append(number)
                due.drafts.append(draft)
        return due

    def _pass_over(self, level: int, offset: int, why: str) -> None:
        log.error("delay level %d: the message at %d is not delivered: %s", level, offset, why)


def _delivered(message: StoredMessage) -> Draft:
    """The copy for the real topic. Raises ValueError if the message does not say where to."""
    properties = dict(message.properties)
    properties.pop(PropertyName.DELAY, None)  # the store would have it wait again
    topic = properties.get(PropertyName.REAL_TOPIC)
    if topic is None:
        raise ValueError("it has no real topic")
    if topic == HALF_TOPIC:
        raise ValueError("a half message of a transaction can't be delayed")
    queue_id = int(properties.get(PropertyName.REAL_QUEUE, ""))
    return Draft.of(message, topic, queue_id, properties_block.encode(properties).encode())
