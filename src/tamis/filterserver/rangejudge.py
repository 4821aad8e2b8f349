"""Judges stretches of queues by a class, without consuming anything.

For questions about messages that are there already (`ranges`) and for the lag of groups (`lag`). A
copy of the class judges (`copies`); nothing is tallied, held back or sent back.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ..errors import CorruptRecord, Error
from .classes import FilterClass
from .copies import Copies
from .link import END, MOVED, BrokerLink, Pulled
from .pulls import Puller, damaged
from .reading import Memory, Stream

if TYPE_CHECKING:
    from ..code import Judge
    from .judging import Judged

__all__ = ["Note", "RangeJudge"]

Note = Callable[["Judged", list[Pulled]], None]  # what came of a batch

_READ_AHEAD: Final = 16 * 2**20  # bytes, of all ranges; pulls have memory of their own


class RangeJudge:
    def __init__(
        self,
        batch: int,
        link: BrokerLink,
        puller: Puller,
        copies: Copies,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`batch`: messages that a class is given at once."""
        self._batch = batch
        self._link = link
        self._puller = puller
        self._copies = copies
        self._clock = clock
        self.memory = Memory(_READ_AHEAD)

    async def judge(
        self,
        by: FilterClass,
        queue_id: int,
        begin: int,
        end: int,
        *,
        deadline: float,
        note: Note,
        is_over: Callable[[], bool] = lambda: False,
    ) -> int:
        """Judge messages from `begin` up to `end`, batch by batch, until the deadline or until
        `is_over`, but at least one batch. Return up to where that was done; messages that are gone
        or not there yet count as done. Raises Error and TimeoutError."""
        async with self._copies.using(by) as (judge, lock):
            stream = Stream(self._link, self.memory, by, queue_id, begin)
            try:
                while (
                    stream.position < end
                    and not is_over()
                    and (self._clock() < deadline or stream.position == begin)
                ):
                    if not stream.is_current:
                        raise Error("the class or the connection to the broker is another one now")
                    pulled = await stream.read(most=end - stream.position)
                    if pulled is None:
                        async with lock:
                            await self._judge_batch(stream, judge, end, note)
                    elif pulled.code == END:
                        return end
                    elif pulled.code == MOVED:
                        if pulled.next_offset <= stream.position:
                            return end
                        stream.drop()  # the first ones are gone
                        stream = Stream(self._link, self.memory, by, queue_id, pulled.next_offset)
                return min(stream.position, end)
            finally:
                stream.drop()

    async def _judge_batch(self, stream: Stream, judge: "Judge", end: int, note: Note) -> None:
        answers = await stream.batch(min(self._batch, end - stream.position))
        if not answers:
            return
        try:
            judged = await self._puller.judge_in_thread(judge, stream.by.topic, answers)
        except CorruptRecord as error:
            if not stream.is_isolating:
                stream.isolate(answers)
                return
            judged = damaged(answers[0], error)
        note(judged, answers)
        stream.judged(answers, (), answers[-1].next_offset)
