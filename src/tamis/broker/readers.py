"""Who reads which topic by which filter: the groups that have a lag."""

from collections.abc import Callable, Collection, Generator, Hashable, Mapping
from dataclasses import dataclass
from typing import Final

from ..errors import InvalidFilter
from ..fate.history import GroupHistory
from ..filter.tags import parse_tags
from ..store.select import SqlFilter, Wanted
from ..store.store import Store
from ..wire.bodies import MessageModel, Subscription
from .config import Settings
from .filters import Filters, compile_sql, tag_filter
from .members import Consumers
from .offsets import Offsets
from .topics import RETRY_PREFIX, Topics

__all__ = ["Reader", "ReaderFilter", "Readers", "last_filter"]


@dataclass(frozen=True, slots=True)
class ReaderFilter:
    """What a group filters a topic by. `unknown` says why the broker can't count by it, if so."""

    kind: str  # TAG, SQL92 or CODE
    text: str
    wanted: Wanted = None  # None: everything
    unknown: str = ""

    @property
    def key(self) -> Hashable:
        """Equal for filters that match the same messages."""
        if isinstance(self.wanted, SqlFilter):
            return self.kind, self.text
        is_all = self.wanted is None or self.wanted.matches_all
        return None if is_all or self.wanted is None else self.wanted.codes


@dataclass(frozen=True, slots=True)
class Reader:
    """Somebody who reads the queues of a topic by a filter: a group, or a part of one.

    `committed` has its offsets by queue, and those of queues that are not there are 0; None if it
    commits none. `filter` is None if it is not known, and `unknown` says why.
    """

    group: str
    topic: str
    queues: Collection[int]
    committed: Mapping[int, int] | None
    filter: ReaderFilter | None
    unknown: str = ""
    lane: str = ""  # of a group that is divided, its part

    @property
    def why_unknown(self) -> str:
        return self.unknown or (self.filter.unknown if self.filter is not None else "")


class Readers:
    """Lists the groups of a broker that read a topic: those with offsets, and those whose members
    subscribe. `steps` are for the loop; `listed` is for any thread."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        topics: Topics,
        consumers: Consumers,
        offsets: Offsets,
        filters: Filters,
    ) -> None:
        self._settings = settings
        self._store = store
        self._topics = topics
        self._consumers = consumers
        self._offsets = offsets
        self._filters = filters
        # what a group without members was last seen to filter by: (kind, text), if that is kept
        self.last_filter: Callable[[str, str], tuple[str, str] | None] = lambda group, topic: None
        # the parts of a group that is divided, in place of the group, for the given queues
        self.lanes: Callable[[str, str, Collection[int]], list[Reader]] = lambda *_: []

    def steps(
        self, group: str | None = None, topic: str | None = None
    ) -> Generator[None, None, list[Reader]]:
        """Return the readers of one group, of one topic, or all of them, in steps."""
        wanted: dict[tuple[str, str], None] = {}
        for of_topic, name in self._offsets.pairs():
            if group in (None, name) and topic in (None, of_topic):
                wanted[name, of_topic] = None
        online = self._consumers.groups
        for name in list(online) if group is None else [group]:
            subscribed = online[name].subscriptions if name in online else {}
            for of_topic in list(subscribed):
                if topic in (None, of_topic):
                    wanted[name, of_topic] = None
            yield
        stored: dict[str, list[int]] = {}
        for of_topic, queue_id in self._store.queues:
            stored.setdefault(of_topic, []).append(queue_id)
        made = list[Reader]()
        for name, of_topic in sorted(wanted):
            known = self._topics.get(of_topic)
            listed = stored.get(of_topic, [])
            queues = range(known.read_queues) if known is not None else sorted(listed)
            made += self.lanes(name, of_topic, queues) or [self._reader(name, of_topic, queues)]
            yield
        return made

    def listed(self, group: str | None = None, topic: str | None = None) -> list[Reader]:
        """The same at once, from any thread."""
        while True:
            steps = self.steps(group, topic)
            try:
                while True:
                    next(steps)
            except StopIteration as over:
                made: list[Reader] = over.value
                return made
            except (RuntimeError, KeyError):  # a table was changed by the loop meanwhile
                continue

    def _reader(self, group: str, topic: str, queues: Collection[int]) -> Reader:
        here = self._consumers.groups.get(group)
        if here is not None and here.message_model == MessageModel.BROADCASTING:
            by, _ = self._filter(here.subscriptions.get(topic), group, topic)
            return Reader(group, topic, queues, None, by, _BROADCASTING)
        by, unknown = None, _LEFT
        if here is not None and any(
            topic in one.subscriptions for one in list(here.members.values())
        ):
            unknown = _OVERRULED
        if here is None or not here.subscriptions or topic in here.subscriptions:
            one = here.subscriptions.get(topic) if here is not None else None
            by, unknown = self._filter(one, group, topic)
        return Reader(group, topic, queues, self._offsets.of(group, topic), by, unknown)

    def _filter(
        self, one: Subscription | None, group: str, topic: str
    ) -> tuple[ReaderFilter | None, str]:
        """The group's filter of a topic, by what its members subscribe to if there are any; or None
        and why it is not known."""
        if topic.startswith(RETRY_PREFIX):
            is_filtered = self._settings.config.filter_retries
            return ReaderFilter("TAG", "*", None, _RETRIES if is_filtered else ""), ""
        if one is None:
            return self._last_filter(group, topic)
        if one.class_filter_mode:
            return ReaderFilter("CODE", one.expression, None, _CODE), ""
        if one.is_tags:
            return ReaderFilter("TAG", one.expression, tag_filter(one)), ""
        sql = self._filters.sql(topic, group)
        fault = self._filters.fault(topic, group)
        if sql is None or fault is not None:
            why = f"its filter is not used: {fault}" if fault else "its filter is not known yet"
            return ReaderFilter("SQL92", one.expression, None, why), ""
        data = self._filters.get(topic, group)
        return ReaderFilter("SQL92", data.expression if data else one.expression, sql), ""

    def _last_filter(self, group: str, topic: str) -> tuple[ReaderFilter | None, str]:
        """Return the filter of a group without members. Its SQL is kept for a while; what else it
        filtered by is for others to know."""
        data, sql = self._filters.get(topic, group), self._filters.sql(topic, group)
        if data is not None and sql is not None:
            return ReaderFilter("SQL92", data.expression, sql), ""
        last = self.last_filter(group, topic)
        if last is None:
            return None, _OFFLINE
        kind, text = last
        if kind == "CODE":
            return ReaderFilter(kind, text, None, _CODE), ""
        try:
            if kind == "TAG":
                return ReaderFilter(kind, text, parse_tags(text)), ""
            return ReaderFilter(kind, text, SqlFilter(compile_sql(text, kind))), ""
        except InvalidFilter as error:
            return ReaderFilter(kind, text, None, f"its filter is not used: {error}"), ""


def last_filter(history: GroupHistory | None) -> tuple[str, str] | None:
    """What a group without members filtered by when the last of them left, or when the broker was
    stopped; None if that is not recorded, or if they differed."""
    if history is None or not history.changes:
        return None
    seen = [view for _, view in sorted(history.views.items()) if view.filters]
    if seen and len(seen[-1].filters) > 1:
        return None
    change = history.changes[-1]
    by = change.after or change.before
    return None if by is None else (by.kind, by.text)


_BROADCASTING: Final = "it is broadcasting: each member keeps its own offsets"
_LEFT: Final = "the group has members, and none of them subscribes to the topic any more"
_OVERRULED: Final = (
    "the last heartbeat of the group names other topics, and decides for all members"
)
_OFFLINE: Final = "the group has no members, and its last filter is not known"
_CODE: Final = "its filter is code, which a filter server runs and the broker can't"
_RETRIES: Final = "retries are filtered by what the group wants of their first topics"
