"""PULL_MESSAGE: who may pull, by which filter, what is there, and what if nothing is.

RocketMQ's `PullMessageProcessor` (4.9.4) for checks, their order and codes. Different on purpose:
a pull that carries SQL which does not compile is refused instead of answered with everything; a
rare match is looked for further than 800 messages, in slices, so that others are served between.
"""

import contextlib
import time
from collections.abc import Callable, Coroutine
from functools import lru_cache
from typing import Final

from ...errors import InvalidFilter, ResponseError, StoreError
from ...filter.tags import TagFilter, parse_tags
from ...net.longwork import LongWork
from ...net.server import Answer, Request
from ...store.select import SqlFilter
from ...store.store import Store
from ...wire.bodies import Perm, Subscription, TopicConfig
from ...wire.codes import PullFlag, ResponseCode
from ...wire.headers import PullMessage
from .. import lanes
from ..config import Settings
from ..conflicts import Conflicts
from ..filters import (
    Filters,
    checked_length,
    compile_sql,
    is_quick,
    tag_filter,
    try_compile,
)
from ..groups import Groups
from ..history import Recorder
from ..holds import Holds
from ..lanes import Division
from ..members import Consumers
from ..offsets import Offsets
from ..queueing import Queueing
from ..stats import Stats
from ..takeovers import Takeovers
from ..topics import Topics
from ..verdicts import Verdicts
from .onepull import REMEMBERED, LaneSource, Pull, PullResult, Wanted

__all__ = ["Puller"]

# For each pull: an IntFlag's `&` takes a microsecond, looking a member up a tenth of one.
_READ: Final = int(Perm.READ)
_COMMIT_OFFSET: Final = int(PullFlag.COMMIT_OFFSET)
_SUBSCRIPTION: Final = int(PullFlag.SUBSCRIPTION)
_FILTER_SERVERS: Final = "FILTERSRV_CONSUMER"
_FILTER_SERVER_MESSAGES: Final = 1024  # they judge thousands at once, and are near
_FAQ: Final = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."


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
        topic = self.check(header, request)
        wanted, source = self.find_filter(header, request)
        pull = Pull(self, header, request, wanted, source)
        self.takeovers.claimed(header.consumer_group, pull.queue, pull.lane, request.peer)
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

    def check(self, header: PullMessage, request: Request) -> TopicConfig:
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

    def find_filter(self, header: PullMessage, request: Request) -> tuple[Wanted, object]:
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
    if expression is not None and len(expression) > REMEMBERED:
        return parse_tags(checked_length(expression))
    return _short_tag_filter(expression)


@lru_cache(1024)
def _short_tag_filter(expression: str | None) -> TagFilter | None:
    made = parse_tags(expression)
    return None if made.matches_all else made


def _sql_filter(expression: str, expression_type: str | None) -> SqlFilter:
    return SqlFilter(compile_sql(expression, expression_type))
