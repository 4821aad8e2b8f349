"""How many messages that match wait for each group: the exact lag of filters in code.

Every few seconds the broker is asked how far each group is. What pulls have judged is noted as they
go; the rest is judged here, by a copy of the class and for a part of the time only. The result is
told to the broker, whose metrics have the lag of all groups, and is in ours.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ..errors import ConsumerOffline, CorruptRecord, Error, ResponseError
from ..wire import beans, record
from ..wire.bodies import ConsumerConnection, ConsumeStats, MessageModel
from ..wire.codes import RequestCode, ResponseCode
from ..wire.headers import GetConsumeStats, OfConsumerGroup, ReportCodeLag
from .classes import Classes, FilterClass, Key
from .config import FilterServerConfig
from .link import FOUND, BrokerLink, Pulled
from .matchmap import MatchMap
from .rangejudge import RangeJudge

if TYPE_CHECKING:
    from .judging import Judged

__all__ = ["ClassLag", "CodeLags"]

log = logging.getLogger(__name__)

_SHARE: Final = 0.2  # of the time may be spent judging
_PULLS_FIRST: Final = 0.2  # seconds that pulls have to judge what has just come
_MOST_MEMORY: Final = 64 * 2**20  # bytes, which is half a billion messages that wait
_LEAST_VALID: Final = 15.0  # seconds that a count is shown for
_REPORTED: Final = 1000  # classes in one report
_UNSUPPORTED: Final = int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)

Progress = dict[int, tuple[int, int]]  # of each queue, what is committed and its end


@dataclass(frozen=True, slots=True)
class ClassLag:
    """The lag of a class's group in all queues of its topic at the broker."""

    group: str
    topic: str
    class_name: str
    matching: int
    oldest: int | None  # when the first message that matches was stored, in milliseconds
    until: float  # by the clock


class CodeLags:
    """Belongs to the event loop; `listed` is for any thread."""

    def __init__(
        self,
        config: FilterServerConfig,
        classes: Classes,
        link: BrokerLink,
        judge: RangeJudge,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._classes = classes
        self._link = link
        self._judge = judge
        self._clock = clock
        self._maps: dict[FilterClass, dict[int, MatchMap]] = {}
        self._lags: dict[Key, ClassLag] = {}
        self._losses = link.losses
        self._turn = 0  # which class is judged first
        self._unsupported = -1  # the connection, as a number, whose broker takes no reports
        self._is_full = False
        self._has_judged = False  # in this round

    @property
    def valid_seconds(self) -> float:
        return max(3 * self._config.lag_seconds, _LEAST_VALID)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._config.lag_seconds)
            if len(self._classes) or self._maps:
                await self.count()

    def listed(self) -> list[ClassLag]:
        """What is known, and not too old."""
        now = self._clock()
        return [lag for lag in list(self._lags.values()) if lag.until >= now]

    def note(
        self, by: FilterClass, queue_id: int, begin: int, end: int, matching: list[int]
    ) -> None:
        """A pull had these messages judged."""
        known = self._maps.get(by, {}).get(queue_id)
        if known is not None and self._losses == self._link.losses and not self._is_full:
            known.note(begin, end, matching)

    async def count(self) -> None:
        """Count once for all classes, as far as there is time, and report."""
        self._forget()
        classes = list(self._classes)
        self._turn = (self._turn + 1) % max(len(classes), 1)
        progress = dict[FilterClass, Progress]()
        for by in classes[self._turn :] + classes[: self._turn]:
            try:
                progress[by] = await self._progress(by)
            except (Error, TimeoutError, ValueError) as error:
                log.debug("the progress of group %s is not known: %s", by.group, error)
        if any(self._is_behind(by, queues) for by, queues in progress.items()):
            await asyncio.sleep(_PULLS_FIRST)
        self._has_judged = False
        deadline = self._clock() + _SHARE * self._config.lag_seconds
        for by, queues in progress.items():
            if not by.is_active:
                continue
            try:
                lag = await self._count(by, queues, deadline)
            except (Error, TimeoutError) as error:
                log.debug("the lag of group %s is not counted: %s", by.group, error)
                continue
            if lag is not None:
                self._lags[by.key] = lag
        await self._report()

    async def _progress(self, by: FilterClass) -> Progress:
        """Ask the broker; empty for a group that broadcasts, which commits nothing."""
        header = OfConsumerGroup(consumer_group=by.group)
        try:
            answer = await self._link.ask(header, code=RequestCode.GET_CONSUMER_CONNECTION_LIST)
            connection = beans.decode(ConsumerConnection, answer.body)
            if connection.message_model == MessageModel.BROADCASTING:
                return {}
        except ConsumerOffline:
            pass
        answer = await self._link.ask(GetConsumeStats(consumer_group=by.group, topic=by.topic))
        return {
            queue.queue_id: (max(progress.consumer_offset, 0), progress.broker_offset)
            for queue, progress in beans.decode(ConsumeStats, answer.body).queues.items()
            if queue.topic == by.topic
        }

    def _is_behind(self, by: FilterClass, queues: Progress) -> bool:
        """Whether there are messages that nobody judged. What was consumed is forgotten."""
        maps = self._maps.setdefault(by, {})
        for queue_id in [queue_id for queue_id in maps if queue_id not in queues]:
            del maps[queue_id]
        is_behind = False
        for queue_id, (committed, end) in queues.items():
            known = maps.get(queue_id)
            if known is None or known.checked > end:  # the queue was made anew
                known = maps[queue_id] = MatchMap(committed)
            known.forget_before(committed)
            known.checked = end
            is_behind |= known.high < end
        return is_behind

    async def _count(self, by: FilterClass, queues: Progress, deadline: float) -> ClassLag | None:
        """None if there was no time to judge all that waits. Raises what judging does."""
        if not queues:
            return None
        maps = self._maps.setdefault(by, {})
        matching, oldest, is_complete = 0, None, True
        for queue_id, (committed, end) in queues.items():
            known = maps.setdefault(queue_id, MatchMap(committed))
            # at least something in each round, however little time there is
            has_time = self._clock() < deadline or not self._has_judged
            if known.high < end and has_time and self._has_room(end - known.high):
                self._has_judged = True
                await self._judge_rest(by, queue_id, known, end, deadline)
            if known.high < end or known.low > committed:
                is_complete = False
                continue
            matching += known.count(committed, end)
            first = known.first(committed, end)
            if first is not None and is_complete:
                stored = await self._stored(by, queue_id, known, first)
                if stored is not None:
                    oldest = stored if oldest is None else min(oldest, stored)
        if not is_complete:
            return None
        until = self._clock() + self.valid_seconds
        return ClassLag(by.group, by.topic, by.identity.class_name, matching, oldest, until)

    async def _judge_rest(
        self, by: FilterClass, queue_id: int, known: MatchMap, end: int, deadline: float
    ) -> None:
        passes_failures = self._config.on_error == "pass"

        def note(judged: "Judged", answers: list[Pulled]) -> None:
            # messages between what is known and these are gone
            begin = min(answers[0].offset, known.high)
            offsets = [row.offset for row in judged.rows if row.reason is None or passes_failures]
            known.note(begin, answers[-1].next_offset, offsets)

        judged_to = await self._judge.judge(
            by, queue_id, known.high, end, deadline=deadline, note=note
        )
        known.note(known.high, judged_to, ())

    async def _stored(
        self, by: FilterClass, queue_id: int, known: MatchMap, offset: int
    ) -> int | None:
        """When the message was stored, in milliseconds; None if it is gone."""
        if known.stored is None or known.stored[0] != offset:
            pulled = await self._link.pull(by.topic, queue_id, offset, 1)
            if pulled.code != FOUND:
                return None
            try:
                message = record.decode(memoryview(pulled.body), file="")
            except CorruptRecord:
                return None
            known.stored = (offset, message.store_timestamp)
        return known.stored[1]

    def _has_room(self, messages: int) -> bool:
        size = sum(known.size for maps in self._maps.values() for known in maps.values())
        is_full = size + messages // 8 > _MOST_MEMORY
        if is_full and not self._is_full:
            log.warning(
                "too many messages wait to be counted, some groups will have no matching lag: %d"
                " bytes are used of %d",
                *(size, _MOST_MEMORY),
            )
        self._is_full = is_full
        return not is_full

    def _forget(self) -> None:
        """What is of classes that are gone, or of a broker that may have lost messages since."""
        if self._losses != self._link.losses:
            self._losses = self._link.losses
            self._maps.clear()
        for by in [by for by in self._maps if not by.is_active]:
            del self._maps[by]
        self._lags = {lag_key(lag): lag for lag in self.listed() if self._is_of_active(lag)}

    def _is_of_active(self, lag: ClassLag) -> bool:
        by = self._classes.get(lag_key(lag))
        return by is not None and by.identity.class_name == lag.class_name

    async def _report(self) -> None:
        """Tell the broker, unless it is Apache's, or a slave."""
        lags = self.listed()
        if self._unsupported == self._link.losses or self._link.broker_id:
            return
        for start in range(0, len(lags), _REPORTED):
            told = [
                {
                    "group": lag.group,
                    "topic": lag.topic,
                    "class": lag.class_name,
                    "matching": lag.matching,
                    "oldest": lag.oldest,
                }
                for lag in lags[start : start + _REPORTED]
            ]
            body = json.dumps({"seconds": self.valid_seconds, "lags": told}).encode()
            try:
                await self._link.ask(ReportCodeLag(), body=body)
            except ResponseError as error:
                if error.code == _UNSUPPORTED:
                    self._unsupported = self._link.losses
                    return
                log.warning("the broker does not take the lags of groups: %s", error.remark)
            except (Error, TimeoutError) as error:
                log.debug("the lags of groups are not reported: %s", error)
                return


def lag_key(lag: ClassLag) -> Key:
    return lag.topic, lag.group
