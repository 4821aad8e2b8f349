"""The SQL filters of groups, compiled: RocketMQ's `ConsumerFilterManager`.

A filter is filed under (topic, group) with the version its client gave it. It is born when it is
registered or changed, and dead when its group is gone or no longer subscribes; dead ones are still
good for pulls and bitmaps until they are cleaned away. They outlive a restart: the text is saved
and compiled again.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import InvalidFilter
from ..filter import parse
from ..filter.bloom import BloomFilter
from ..filter.engines.columnar import BatchFilter
from ..filter.tags import TagFilter
from ..java import string_hash
from ..store import tables
from ..store.select import SqlFilter
from ..store.tables import FilterData
from ..wire.bodies import Subscription

__all__ = ["Filters", "compile_sql", "tag_filter"]

log = logging.getLogger(__name__)

MOST_TEXT = 65_536  # characters
_DEAD_AT_START = 30_000  # milliseconds ago: until their group is heard of


def compile_sql(expression: str, expression_type: str | None) -> BatchFilter:
    """Raises InvalidFilter, of an unknown kind of expression too."""
    if expression_type != "SQL92":
        reason = f"expressions of type {expression_type!r} are not known here"
        raise InvalidFilter(expression, 0, reason, "the types are TAG and SQL92")
    if len(expression) > MOST_TEXT:
        reason = f"an expression of {len(expression)} characters: it takes {MOST_TEXT}"
        raise InvalidFilter(expression[:80], 0, reason, "compiling it would hold up all others")
    return BatchFilter(parse(expression))


def tag_filter(one: Subscription) -> TagFilter | None:
    """Of a subscription by tags; None for everything. The C++ client sends zeros for codes."""
    if one.class_filter_mode or one.expression == "*":
        return None
    codes = map(string_hash, one.tags) if one.tags else one.codes
    return TagFilter(one.expression, frozenset(one.tags), frozenset(codes))


@dataclass(slots=True)
class _Entry:
    data: FilterData
    compiled: BatchFilter | None


class Filters:
    """`on_change` is told when the filters that go into bitmaps are others."""

    def __init__(self, folder: Path, bloom: BloomFilter, now: Callable[[], float]) -> None:
        self._folder = folder
        self._bloom = bloom
        self._now = now
        self.on_change: Callable[[], None] = lambda: None
        self.path = folder / "consumerFilter.json"
        self.changes = 0
        self._entries: dict[tuple[str, str], _Entry] = {}
        self._faults: dict[tuple[str, str], str] = {}  # why the group's last one does not compile
        loaded = tables.load_filters(folder)
        if not all(bloom.accepts(d.bloom_positions, d.bloom_bits) for d in loaded.values()):
            log.warning("saved filters are for other bloom settings; they are not used")
            loaded = {}
        for key, data in loaded.items():
            if not data.is_dead:
                dead = max(self._millis() - _DEAD_AT_START, data.born_time)
                data = replace(data, dead_time=dead)
            try:
                compiled = compile_sql(data.expression, data.expression_type)
            except InvalidFilter as error:
                log.warning("filter of %s on %s: %s", data.group, data.topic, error)
                continue
            self._entries[key] = _Entry(data, compiled)

    def _millis(self) -> int:
        return int(self._now() * 1000)

    def get(self, topic: str, group: str) -> FilterData | None:
        entry = self._entries.get((topic, group))
        return entry.data if entry is not None else None

    def sql(self, topic: str, group: str) -> SqlFilter | None:
        """What a pull of the group filters by."""
        entry = self._entries.get((topic, group))
        if entry is None or entry.compiled is None:
            return None
        data = entry.data
        return SqlFilter(entry.compiled, data.bloom_positions, data.bloom_bits, data.born_time)

    def fault(self, topic: str, group: str) -> str | None:
        return self._faults.get((topic, group))

    def all(self) -> list[FilterData]:
        return [entry.data for entry in self._entries.values()]

    def register(self, group: str, subscriptions: Iterable[Subscription]) -> None:
        """All that a heartbeat of the group subscribes to."""
        topics = set()
        for one in subscriptions:
            topics.add(one.topic)
            if not one.is_tags and one.expression:
                self._register(group, one)
        for topic, owner in list(self._entries):
            if owner == group and topic not in topics:
                self._die(topic, group)

    def _register(self, group: str, one: Subscription) -> None:
        key = (one.topic, group)
        entry = self._entries.get(key)
        if entry is None:
            self._put(key, one)
            return
        data = entry.data
        if one.version < data.client_version:
            if data.is_dead and one.expression != data.expression:
                log.warning(
                    "group %s on %s: %r is passed over, %r has a higher version",
                    *(group, one.topic, one.expression, data.expression),
                )
            return
        same = (data.expression, data.expression_type) == (one.expression, one.expression_type)
        if one.version == data.client_version or same:
            # its text is not looked at if the version is the same
            if data.is_dead or one.version > data.client_version:
                dead = 0 if data.is_dead else data.dead_time
                entry.data = replace(data, dead_time=dead, client_version=one.version)
                self.changes += 1
            return
        self._put(key, one)

    def _put(self, key: tuple[str, str], one: Subscription) -> None:
        topic, group = key
        try:
            compiled = compile_sql(one.expression, one.expression_type)
        except InvalidFilter as error:
            fault = f"{one.expression!r}, {error}"
            if self._faults.get(key) != fault:
                log.warning(
                    "group %s on %s: a filter that does not compile: %s", group, topic, fault
                )
            self._faults[key] = fault
            if self._entries.pop(key, None) is not None:
                self._changed()
            return
        self._faults.pop(key, None)
        data = FilterData(
            group=group,
            topic=topic,
            expression=one.expression,
            expression_type=one.expression_type or "SQL92",
            born_time=self._millis(),
            client_version=one.version,
            bloom_positions=self._bloom.positions(f"{group}#{topic}"),
            bloom_bits=self._bloom.bits,
        )
        self._entries[key] = _Entry(data, compiled)
        log.info("group %s on %s: filter %r", group, topic, one.expression)
        self._changed()

    def _die(self, topic: str, group: str) -> None:
        entry = self._entries[topic, group]
        if not entry.data.is_dead:
            entry.data = replace(entry.data, dead_time=self._millis())
            self.changes += 1

    def leave(self, group: str) -> None:
        """The last member of the group is gone."""
        for topic, owner in list(self._entries):
            if owner == group:
                self._die(topic, group)
        for key in [key for key in self._faults if key[1] == group]:
            del self._faults[key]

    def clean(self, keep_seconds: float) -> None:
        oldest = self._millis() - int(keep_seconds * 1000)
        gone = [k for k, e in self._entries.items() if e.data.is_dead and e.data.dead_time < oldest]
        for key in gone:
            del self._entries[key]
            log.info("filter of %s on %s: dropped, its group is long gone", key[1], key[0])
        if gone:
            self._changed()

    def _changed(self) -> None:
        self.changes += 1
        self.on_change()

    def snapshot(self) -> Callable[[], None]:
        entries = {key: entry.data for key, entry in self._entries.items()}
        return lambda: tables.save_filters(self._folder, entries)
