"""One pull, from its first look to its answer: answered at once, after a longer search, or held.

What it has read is recorded when it is answered (`history`). Who may pull, and by which filter, is
left to `pull`.
"""

from collections.abc import Coroutine
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final

from ...errors import ResponseError
from ...fate.facts import FilterChange
from ...fate.filters import EVERYTHING, Filter
from ...filter.engines.closures import compile_closure, evaluate
from ...filter.logic import Outcome
from ...filter.tags import TagFilter
from ...message import StoredMessage
from ...net.aio import Peer
from ...net.server import Answer, Request
from ...store.commitlog import Queue
from ...store.files import Bytes
from ...store.select import Limits, Selection, SqlFilter, Status
from ...store.tables import FilterData
from ...wire import command as commands
from ...wire import record
from ...wire.bodies import Subscription
from ...wire.codes import CommandFlag, PullFlag, ResponseCode
from ...wire.command import Command
from ...wire.frame import Encoding
from ...wire.headers import PullMessage, PullMessageResponse
from .. import lanereads
from ..filters import (
    FILTER_COST,
)
from ..history import filter_of
from ..lanes import Division, Lane
from ..topics import RETRY_PREFIX

if TYPE_CHECKING:
    from .pull import Puller

__all__ = ["REMEMBERED", "LaneSource", "Pull", "PullResult", "Wanted"]

REMEMBERED: Final = 1000  # characters of tag expressions that are not parsed for each pull
_SLICE_SECONDS: Final = 0.004  # of looking for a match, before others are served
# For each pull: an IntFlag's `&` takes a microsecond, looking a member up a tenth of one.
_SUSPEND, _SUBSCRIPTION = int(PullFlag.SUSPEND), int(PullFlag.SUBSCRIPTION)
_FOUND: Final = Status.FOUND
_NO_MATCHED: Final = Status.NO_MATCHED_MESSAGE
_SUCCESS: Final = ResponseCode.SUCCESS

Wanted = TagFilter | SqlFilter | None
PullResult = Answer | None | Coroutine[Any, Any, Answer | None]


@lru_cache(256)
def _limits(messages: int, count: int, size: int) -> Limits:
    return Limits(
        messages=max(messages, 1), count=max(count, 1), bytes=size, seconds=_SLICE_SECONDS
    )


@dataclass(frozen=True, slots=True)
class LaneSource:
    """What the filter of a member's pull was made from, in a group that is divided."""

    division: Division
    lane: Lane
    stamp: object
    is_before: bool  # the cut of a change of filter

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, LaneSource)
            and self.stamp is other.stamp
            and self.lane is other.lane
            and self.is_before is other.is_before
        )

    __hash__ = None  # type: ignore[assignment]


class Pull:
    """One pull, from its first look to its answer."""

    __slots__ = ("_at", "_by", "_header", "_request", "_source", "_wanted", "held_since",
                 "held_until", "is_due",
        "queue", "successor")  # fmt: skip

    def __init__(
        self, by: "Puller", header: PullMessage, request: Request, wanted: Wanted, source: object
    ) -> None:
        self._by = by
        self._header = header
        self._request = request
        self._wanted = wanted
        self._source = source
        self._at = header.queue_offset  # from where to look
        self.queue: Queue = (header.topic, header.queue_id)
        self.held_since = self.held_until = 0.0
        self.is_due = False
        self.successor: Peer | None = None

    @property
    def lane(self) -> str:
        """The one it is for, if its group is divided."""
        return self._source.lane.id if isinstance(self._source, LaneSource) else ""

    @property
    def peer(self) -> Peer:
        return self._request.peer

    @property
    def weight(self) -> int:
        """Bytes it keeps while it is held, if it brought a long filter of its own."""
        text = self._header.subscription
        if text is None or len(text) <= REMEMBERED or not self._header.sys_flag & _SUBSCRIPTION:
            return 0
        return len(text) * FILTER_COST

    @property
    def has_progressed(self) -> bool:
        return self._at > self._header.queue_offset

    def first(self) -> PullResult:
        """The answer, unless it is to come later."""
        selection = self._select()
        if selection.status is _FOUND:
            return self._answer(selection)
        if self._is_to_go_on(selection):
            return self._go_on(selection)
        if self._is_to_be_held(selection):
            config = self._by.settings.config
            if self._by.holds.count >= config.pull_backlog:
                why = f"[OVERLOAD]{config.pull_backlog} pulls are waiting already"
                return Answer(code=ResponseCode.SYSTEM_BUSY, remark=why)
            by, group = self._by, self._header.consumer_group
            by.takeovers.held(group, self.queue, self.lane, self)
            asked = self._header.suspend_timeout_millis / 1000
            self._by.holds.hold(
                self, asked if config.long_polling else config.short_polling_seconds
            )
            return None
        failure = self._by.queueing.failure
        if failure is not None and selection.status is not Status.NO_MATCHED_MESSAGE:
            # there may be more than the queue says: it must not look as if there were nothing
            raise ResponseError(ResponseCode.SYSTEM_ERROR, failure)
        return self._answer(selection)

    def resume(self) -> bool:
        """Its queue has grown; whether it was answered."""
        self.is_due = self.peer.is_full  # then later: what it does not read would pile up here
        if self.is_due:
            return False
        if self._by.takeovers.is_taken_over(self._header.consumer_group, self):
            return False
        try:
            self._look_up_filter()
        except ResponseError as error:
            self._request.answer(Answer(code=error.code, remark=error.remark))
            return True
        selection = self._select()
        if self._is_to_go_on(selection):  # there is more than a slice: the client asks again
            self._request.answer(self._answer(selection))
            return True
        if selection.status in (Status.NO_MATCHED_MESSAGE, Status.OFFSET_OVERFLOW_ONE):
            return False
        self._request.answer(self._answer(selection))
        return True

    def _look_up_filter(self) -> None:
        """As it is now. If it is another, it may want what was passed over."""
        self._by.check(self._header, self._request)
        if self._header.sys_flag & _SUBSCRIPTION and not self._by.conflicts.is_needed:
            return  # it brought its own, which is not to be compiled again
        wanted, source = self._by.find_filter(self._header, self._request)
        if source is not self._source and source != self._source:
            self._wanted, self._source, self._at = wanted, source, self._header.queue_offset

    def expire(self) -> None:
        try:
            self._look_up_filter()
        except ResponseError as error:
            self._request.answer(Answer(code=error.code, remark=error.remark))
            return
        status = Status.NO_MATCHED_MESSAGE if self.has_progressed else Status.OFFSET_OVERFLOW_ONE
        selection = self._select_at_end(status)
        self._request.answer(self._answer(selection))

    def fail(self, error: Exception) -> None:
        why = f"{'/'.join(map(str, self.queue))}: {type(error).__name__}: {error}"
        self._request.answer(Answer(code=ResponseCode.SYSTEM_ERROR, remark=why))

    def _select_at_end(self, status: Status) -> Selection:
        queue = self._by.store.find_queue(*self.queue)
        if queue is None or not queue.max_offset:
            status = Status.NO_MESSAGE_IN_QUEUE if not self.has_progressed else status
        low, high = (queue.min_offset, queue.max_offset) if queue is not None else (0, 0)
        return Selection(status, [], self._at, low, high)  # type: ignore[arg-type]

    def _select(self) -> Selection:
        """Looks from `_at` for a slice of time, and moves `_at` on if there is nothing."""
        config, header = self._by.settings.config, self._header
        limits = _limits(header.max_msg_nums, self._by.most(header), config.pull_bytes)
        if isinstance(self._source, LaneSource):
            found = self._select_of_lane(self._source, limits)
        else:
            found = self._by.store.select(*self.queue, self._at, limits, self._wanted)
        if config.filter_retries and header.topic.startswith(RETRY_PREFIX) and found.records:
            found = self._without_unwanted_retries(found)
        self._count(found)
        if found.status is Status.NO_MATCHED_MESSAGE:
            self._at = found.next_offset
        return found

    def _select_of_lane(self, source: "LaneSource", limits: Limits) -> Selection:
        division, lane, store = source.division, source.lane, self._by.store
        target = lane.touch(self.queue, self._header.queue_offset, self.peer)
        if target is not None:
            return lanereads.moved(store, self.queue, target)
        division.note_beginning(lane, self.queue, self._header.queue_offset)
        found = lanereads.read(store, division, lane, self.queue, self._at, limits)
        read_to = max(lane.served.get(self.queue, 0), found.next_offset, self._at)
        lane.served[self.queue] = read_to
        return found

    def _is_to_go_on(self, selection: Selection) -> bool:
        return (
            selection.status is Status.NO_MATCHED_MESSAGE
            and selection.next_offset < selection.max_offset
        )

    async def _go_on(self, selection: Selection) -> Answer:
        deadline = self._by.clock() + self._by.settings.config.pull_scan_seconds
        while (
            self._is_to_go_on(selection)
            and self._by.clock() < deadline
            and not self._request.peer.is_closed
        ):
            await self._by.work.turn(self._request.peer)
            self._look_up_filter()
            selection = self._select()
        if selection.status is Status.OFFSET_OVERFLOW_ONE:  # it got to the end meanwhile
            selection = selection._replace(status=Status.NO_MATCHED_MESSAGE)
        return self._answer(selection)

    def _is_to_be_held(self, selection: Selection) -> bool:
        return bool(self._header.sys_flag & _SUSPEND) and (
            self._code(selection) == ResponseCode.PULL_NOT_FOUND
        )

    def _record(self, selection: Selection) -> None:
        """Who was answered, by which filter, with what: for whoever asks about a message later."""
        header, status = self._header, selection.status
        if status is _FOUND or status is _NO_MATCHED:
            source = self._source
            if source is None:
                source = (header.subscription, header.expression_type)
            self._by.recorder.read(
                header.consumer_group,
                header.topic,
                header.queue_id,
                self._request.peer,
                source,
                self,
                header.queue_offset,
                selection.next_offset,
                self.lane,
            )
        elif status is Status.OFFSET_TOO_SMALL:
            queue = (header.consumer_group, header.topic, header.queue_id)
            span = (header.queue_offset, selection.next_offset)
            self._by.recorder.expired(*queue, self._request.peer, *span)

    def filter(self) -> Filter:
        """What the broker filters this pull by."""
        header, source = self._header, self._source
        if isinstance(source, Subscription):
            return filter_of(source) or EVERYTHING
        if isinstance(source, FilterData):
            return Filter("SQL92", source.expression)
        if isinstance(source, LaneSource):
            by = source.division.filter_at(source.lane, self.queue, header.queue_offset)
            return Filter(by.kind, by.text) if by is not None else EVERYTHING
        if header.expression_type in (None, "", "TAG"):
            return Filter("TAG", header.subscription or "*")
        return Filter("SQL92", header.subscription or "")

    def unless(self) -> tuple[Filter, ...]:
        """The filters of others who come first."""
        source, at = self._source, self._header.queue_offset
        if not isinstance(source, LaneSource):
            return ()
        first = source.division.filters_before(source.lane, self.queue, at)
        return tuple(Filter(by.kind, by.text) for by in first)

    def change(self) -> FilterChange | None:
        """The change of the group's filter that is under way, if there is one."""
        source = self._source
        return source.division.change_in(self.queue) if isinstance(source, LaneSource) else None

    def _answer(self, selection: Selection) -> Answer:
        self._record(selection)
        body, count = selection.body, len(selection.records)
        if count:
            self._by.stats.got(self._header.topic, self._header.consumer_group, count, len(body))
        else:
            self._by.stats.got_nothing()
        code = self._code(selection)
        remark = _REMARKS[selection.status]
        offsets = selection.next_offset, selection.min_offset, selection.max_offset
        if self._request.command.encoding is Encoding.JSON:
            return Answer(None, body, code, remark, _json(code, remark) % offsets)
        return Answer(_response(*offsets), body, code, remark)

    def _code(self, selection: Selection) -> ResponseCode:
        if selection.status is _FOUND:  # mostly
            return _SUCCESS
        match selection.status:
            case Status.NO_MATCHED_MESSAGE | Status.MESSAGE_WAS_REMOVING:
                return ResponseCode.PULL_RETRY_IMMEDIATELY
            case Status.NO_MATCHED_QUEUE | Status.NO_MESSAGE_IN_QUEUE:
                first = self._header.queue_offset == 0
                return ResponseCode.PULL_NOT_FOUND if first else ResponseCode.PULL_OFFSET_MOVED
            case Status.OFFSET_FOUND_NULL | Status.OFFSET_OVERFLOW_ONE:
                return ResponseCode.PULL_NOT_FOUND
            case Status.OFFSET_OVERFLOW_BADLY | Status.OFFSET_TOO_SMALL:
                return ResponseCode.PULL_OFFSET_MOVED

    def _count(self, found: Selection) -> None:
        if self._wanted is None:
            return
        scanned = found.next_offset - self._at
        if scanned <= 0:
            return
        self._by.verdicts.count(
            self._header.consumer_group,
            self._header.topic,
            self._header.queue_id,
            scanned,
            len(found.records),
            found.failed,
            found.failures,
        )

    def _without_unwanted_retries(self, found: Selection) -> Selection:
        """Retried messages go by the group's filter on the topic they came from
        (`ExpressionForRetryMessageFilter`)."""
        kept, failures = list[Bytes](), list[int]()
        for one in found.records:
            message = record.decode(memoryview(one.data))
            outcome = self._of_retry(message)
            if outcome is Outcome.TRUE:
                kept.append(one)
            elif outcome is Outcome.ERROR:
                failures.append(message.queue_offset)
        self._by.verdicts.count(
            self._header.consumer_group,
            self._header.topic,
            self._header.queue_id,
            len(found.records),
            len(kept),
            len(failures),
            tuple(failures),
        )
        status = Status.FOUND if kept else Status.NO_MATCHED_MESSAGE
        return found._replace(status=status, records=kept)

    def _of_retry(self, message: StoredMessage) -> Outcome:
        group = self._header.topic.removeprefix(RETRY_PREFIX)
        sql = self._by.filters.sql(message.properties.get("RETRY_TOPIC", ""), group)
        if sql is None:
            return Outcome.TRUE
        return evaluate(compile_closure(sql.batch_filter.expression), message.properties)


def _response(following: int, low: int, high: int) -> PullMessageResponse:
    return PullMessageResponse(
        suggest_which_broker_id=0, next_begin_offset=following, min_offset=low, max_offset=high
    )


@cache
def _json(code: ResponseCode, remark: str) -> bytes:
    """The header of an answer, with places for the offsets of `_response` and the opaque."""
    marks = (111_111_111, 222_222_222, 333_333_333, 444_444_444)
    command = Command(
        code=code,
        opaque=marks[3],
        flag=CommandFlag.RESPONSE,
        fields=_response(*marks[:3]).to_fields(),
        remark=remark,
    )
    header = commands.encode(command)[8:]
    for mark in marks[:3]:
        header = header.replace(b"%d" % mark, b"%d")
    return header.replace(b"%d" % marks[3], b"%%d")


_REMARKS: Final = {
    status: "NO_MATCHED_LOGIC_QUEUE" if status is Status.NO_MATCHED_QUEUE else status.name
    for status in Status
}
