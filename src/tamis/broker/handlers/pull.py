"""PULL_MESSAGE: who may pull, by which filter, what is there, and what if nothing is.

RocketMQ's `PullMessageProcessor` (4.9.4) for checks, their order and codes. Different on purpose:
a pull that carries SQL which does not compile is refused instead of answered with everything; a
rare match is looked for further than 800 messages, in slices, so that others are served between.
"""

import contextlib
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final

from ...errors import InvalidFilter, ResponseError, StoreError
from ...fate.facts import FilterChange
from ...fate.filters import EVERYTHING, Filter
from ...filter.engines.closures import compile_closure, evaluate
from ...filter.logic import Outcome
from ...filter.tags import TagFilter, parse_tags
from ...message import StoredMessage
from ...net.aio import Peer
from ...net.longwork import LongWork
from ...net.server import Answer, Request
from ...store.commitlog import Queue
from ...store.files import Bytes
from ...store.select import Limits, Selection, SqlFilter, Status
from ...store.store import Store
from ...store.tables import FilterData
from ...wire import command as commands
from ...wire import record
from ...wire.bodies import Perm, Subscription, TopicConfig
from ...wire.codes import CommandFlag, PullFlag, ResponseCode
from ...wire.command import Command
from ...wire.frame import Encoding
from ...wire.headers import PullMessage, PullMessageResponse
from .. import lanereads, lanes
from ..config import Settings
from ..conflicts import Conflicts
from ..filters import (
    FILTER_COST,
    Filters,
    checked_length,
    compile_sql,
    is_quick,
    tag_filter,
    try_compile,
)
from ..groups import Groups
from ..history import Recorder, filter_of
from ..holds import Holds
from ..lanes import Division, Lane
from ..members import Consumers
from ..offsets import Offsets
from ..queueing import Queueing
from ..stats import Stats
from ..takeovers import Takeovers
from ..topics import RETRY_PREFIX, Topics
from ..verdicts import Verdicts

__all__ = ["Pull", "Puller"]

_REMEMBERED: Final = 1000  # characters of tag expressions that are not parsed for each pull
_SLICE_SECONDS: Final = 0.004  # of looking for a match, before others are served
# For each pull: an IntFlag's `&` takes a microsecond, looking a member up a tenth of one.
_READ: Final = int(Perm.READ)
_COMMIT_OFFSET, _SUSPEND = int(PullFlag.COMMIT_OFFSET), int(PullFlag.SUSPEND)
_SUBSCRIPTION: Final = int(PullFlag.SUBSCRIPTION)
_FOUND: Final = Status.FOUND
_NO_MATCHED: Final = Status.NO_MATCHED_MESSAGE
_SUCCESS: Final = ResponseCode.SUCCESS
_FILTER_SERVERS: Final = "FILTERSRV_CONSUMER"
_FILTER_SERVER_MESSAGES: Final = 1024  # they judge thousands at once, and are near
_FAQ: Final = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."

Wanted = TagFilter | SqlFilter | None
PullResult = Answer | None | Coroutine[Any, Any, Answer | None]


class Puller:
    """Answers pulls; `pull_message` is the handler."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        topics: Topics,
        groups: Groups,
        consumers: Consumers,
        filters: Filters,
        offsets: Offsets,
        holds: Holds,
        queueing: Queueing,
        stats: Stats,
        verdicts: Verdicts,
        recorder: Recorder,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self.store = store
        self.topics = topics
        self.groups = groups
        self.consumers = consumers
        self.filters = filters
        self.offsets = offsets
        self.holds = holds
        self.queueing = queueing
        self.stats = stats
        self.verdicts = verdicts
        self.recorder = recorder
        self.clock = clock
        self.work = LongWork()
        self.takeovers = Takeovers(consumers)
        self.conflicts: Conflicts  # set by the broker
        self._tags: dict[str, dict[str, tuple[Subscription, TagFilter | None]]] = {}

    def pull_message(self, header: PullMessage, request: Request) -> PullResult:
        """Answers, after what was stored before the pull came is in its queue."""
        if (
            header.sys_flag & _SUBSCRIPTION
            and header.expression_type not in (None, "", "TAG")
            and not is_quick(header.subscription, header.expression_type)
        ):
            return self._pull_compiled(header, request)
        return self._pull_current(header, request)

    async def _pull_compiled(self, header: PullMessage, request: Request) -> Answer | None:
        """A pull that brings a long expression: it is compiled where it holds nobody up."""
        expression, kind = header.subscription or "", header.expression_type
        await self.work.call(request.peer, lambda: try_compile(expression, kind))
        result = self._pull_current(header, request)
        return await result if isinstance(result, Coroutine) else result

    def _pull_current(self, header: PullMessage, request: Request) -> PullResult:
        if not self.queueing.is_current and self._is_near_end(header):
            try:
                if not self.queueing.catch_up():
                    return self._pull_later(header, request)
            except StoreError:
                pass  # what is queued is given out all the same; see `Pull.first`
        return self._pull(header, request)

    def _is_near_end(self, header: PullMessage) -> bool:
        """Whether the pull may reach the newest messages. One further behind need not wait."""
        queue = self.store.find_queue(header.topic, header.queue_id)
        most = min(header.max_msg_nums, self.most(header))
        return queue is None or queue.max_offset - header.queue_offset < most

    def most(self, header: PullMessage) -> int:
        """How many messages an answer may have."""
        most = self.settings.config.pull_messages
        if header.consumer_group == _FILTER_SERVERS:
            most = max(most, _FILTER_SERVER_MESSAGES)
        return most

    async def _pull_later(self, header: PullMessage, request: Request) -> Answer | None:
        """There is more to queue than the loop may be held up for."""
        with contextlib.suppress(StoreError):
            await self.queueing.caught_up()
        result = self._pull(header, request)
        return await result if isinstance(result, Coroutine) else result

    def _pull(self, header: PullMessage, request: Request) -> PullResult:
        topic = self._check(header, request)
        wanted, source = self._filter(header, request)
        pull = Pull(self, header, request, wanted, source)
        self.takeovers.pulled(header.consumer_group, pull.queue, pull.lane, request.peer)
        answer = pull.first()
        if header.sys_flag & _COMMIT_OFFSET and not self._is_committed_by_lane(
            header, request, source
        ):
            place = (header.consumer_group, topic.name, header.queue_id)
            if self.offsets.has_room(*place, self.settings.config.most_offsets):
                before = self.offsets.commit(*place, header.commit_offset)
                if before != header.commit_offset:
                    self.recorder.committed(*place, before, header.commit_offset, request.peer)
        return answer

    def forget(self, group: str) -> None:
        """Its last member is gone."""
        self._tags.pop(group, None)
        self.takeovers.forget(group)

    # Who may pull.

    def _check(self, header: PullMessage, request: Request) -> TopicConfig:
        config = self.settings.config
        if not config.permission & _READ:
            why = f"the broker[{config.name}] pulling message is forbidden"
            raise ResponseError(ResponseCode.NO_PERMISSION, why)
        group = self.groups.find(
            header.consumer_group, create=config.auto_create_groups, client=request.peer.host
        )
        if group is None:
            why = f"subscription group [{header.consumer_group}] does not exist, create it first"
            raise ResponseError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, why + _FAQ)
        if not group.consume_enabled:
            why = f"subscription group no permission, {header.consumer_group}"
            raise ResponseError(ResponseCode.NO_PERMISSION, why)
        topic = self.topics.get(header.topic)
        if topic is None:
            why = f"topic[{header.topic}] not exist, apply first please!{_FAQ}"
            raise ResponseError(ResponseCode.TOPIC_NOT_EXIST, why)
        if not int(topic.perm) & _READ:
            why = f"the topic[{header.topic}] pulling message is forbidden"
            raise ResponseError(ResponseCode.NO_PERMISSION, why)
        if not 0 <= header.queue_id < topic.read_queues:
            why = (
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] "
                f"topicConfig.readQueueNums:[{topic.read_queues}] consumer:[{request.peer}]"
            )
            raise ResponseError(ResponseCode.SYSTEM_ERROR, why)
        return topic

    # By which filter.

    def _filter(self, header: PullMessage, request: Request) -> tuple[Wanted, object]:
        """The filter, and what it was made from: while that is the same, so is the filter."""
        if self.conflicts.is_needed:
            division = self.conflicts.check(header.consumer_group, request.peer)
            if division is not None:
                return self._filter_of_lane(division, header, request)
        if header.sys_flag & _SUBSCRIPTION:
            wanted = self._own_filter(header.subscription, header.expression_type)
            return wanted, None
        return self._registered_filter(header)

    def _filter_of_lane(
        self, division: Division, header: PullMessage, request: Request
    ) -> tuple[Wanted, object]:
        """The group is divided: the member's own subscription, and its lane."""
        wanted, own = None, None
        if header.sys_flag & _SUBSCRIPTION:
            wanted = self._own_filter(header.subscription, header.expression_type)
            own = lanes.filter_of_pull(header.subscription, header.expression_type)
        elif division.is_broadcast and not (
            self.groups[header.consumer_group].consume_broadcast_enabled
        ):
            why = f"the consumer group[{header.consumer_group}] can not consume by broadcast way"
            raise ResponseError(ResponseCode.NO_PERMISSION, why)
        lane = self.conflicts.pull_lane(
            division, request.peer, header.topic, own, header.sub_version
        )
        if lane is None:
            return wanted, None
        filter_of_topic = lane.filters.get(header.topic)
        if filter_of_topic is not None:
            if filter_of_topic.kind == "SQL92":
                self._check_sql_enabled(filter_of_topic.kind)
            wanted = filter_of_topic.wanted
        change = division.cutovers.get(header.topic)
        is_before = change is not None and header.queue_offset < change.cut(header.queue_id)
        return wanted, LaneSource(division, lane, division.stamp, is_before)

    def _is_committed_by_lane(self, header: PullMessage, request: Request, source: object) -> bool:
        if not isinstance(source, LaneSource):
            # not by a stranger either, while members of a divided group have their own
            return self.conflicts.is_needed and header.consumer_group in self.conflicts.divisions
        queue = (header.topic, header.queue_id)
        at, offset = (source.division, source.lane, queue), header.commit_offset
        self.conflicts.commit_lane(*at, offset, request.peer)
        return True

    def _own_filter(self, expression: str | None, expression_type: str | None) -> Wanted:
        try:
            if expression_type in (None, "", "TAG"):
                return _tag_filter(expression)
            self._check_sql_enabled(expression_type)
            return _sql_filter(expression or "", expression_type)
        except InvalidFilter as error:
            why = f"parse the consumer's subscription failed: {expression!r:.1000}, {error}"
            raise ResponseError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, why) from None

    def _registered_filter(self, header: PullMessage) -> tuple[Wanted, object]:
        name, topic = header.consumer_group, header.topic
        group = self.consumers.groups.get(name)
        if group is None:
            why = "the consumer's group info not exist" + _FAQ
            raise ResponseError(ResponseCode.SUBSCRIPTION_NOT_EXIST, why)
        if (
            group.message_model == "BROADCASTING"
            and not self.groups[name].consume_broadcast_enabled
        ):
            why = f"the consumer group[{name}] can not consume by broadcast way"
            raise ResponseError(ResponseCode.NO_PERMISSION, why)
        one = group.subscriptions.get(topic)
        if one is None:
            why = f"the consumer's subscription not exist: group {name}, topic {topic}{_FAQ}"
            raise ResponseError(ResponseCode.SUBSCRIPTION_NOT_EXIST, why)
        if one.version < header.sub_version:
            why = "the consumer's subscription not latest"
            raise ResponseError(ResponseCode.SUBSCRIPTION_NOT_LATEST, why)
        if one.is_tags or one.class_filter_mode:
            return self._tags_of(name, topic, one), one
        data = self.filters.get(topic, name)
        if data is None:
            fault = self.filters.fault(topic, name)
            why = "The broker's consumer filter data is not exist!Your expression may be wrong!"
            raise ResponseError(
                ResponseCode.FILTER_DATA_NOT_EXIST, f"{why} {fault}" if fault else why
            )
        if data.client_version < header.sub_version:
            why = "the consumer's consumer filter data not latest"
            raise ResponseError(ResponseCode.FILTER_DATA_NOT_LATEST, why)
        self._check_sql_enabled(one.expression_type)
        return self.filters.sql(topic, name), data

    def _tags_of(self, group: str, topic: str, one: Subscription) -> TagFilter | None:
        known = self._tags.get(group, {}).get(topic)
        if known is not None and known[0] is one:
            return known[1]
        made = tag_filter(one)
        self._tags.setdefault(group, {})[topic] = (one, made)
        return made

    def _check_sql_enabled(self, expression_type: str | None) -> None:
        if not self.settings.config.sql_filters:
            why = (
                f"The broker does not support consumer to filter message by {expression_type}; "
                "it is switched off there (enablePropertyFilter)"
            )
            raise ResponseError(ResponseCode.SYSTEM_ERROR, why)


def _tag_filter(expression: str | None) -> TagFilter | None:
    """Return the filter that a pull brings; None for all messages. Raises InvalidFilter."""
    if expression is not None and len(expression) > _REMEMBERED:
        return parse_tags(checked_length(expression))
    return _short_tag_filter(expression)


@lru_cache(1024)
def _short_tag_filter(expression: str | None) -> TagFilter | None:
    made = parse_tags(expression)
    return None if made.matches_all else made


def _sql_filter(expression: str, expression_type: str | None) -> SqlFilter:
    return SqlFilter(compile_sql(expression, expression_type))


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
        self, by: Puller, header: PullMessage, request: Request, wanted: Wanted, source: object
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
        if text is None or len(text) <= _REMEMBERED or not self._header.sys_flag & _SUBSCRIPTION:
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
        self._by._check(self._header, self._request)
        if self._header.sys_flag & _SUBSCRIPTION and not self._by.conflicts.is_needed:
            return  # it brought its own, which is not to be compiled again
        wanted, source = self._by._filter(self._header, self._request)
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
        """Of the group's filter, if one is under way."""
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
