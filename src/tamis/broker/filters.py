"""The SQL filters of groups, compiled: RocketMQ's `ConsumerFilterManager`.

A filter is filed under (topic, group) with the version its client gave it. It is born when it is
registered or changed, and dead when its group is gone or no longer subscribes; dead ones are still
good for pulls and bitmaps until they are cleaned away. They outlive a restart: the text is saved
and compiled again.
"""

import contextlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from ..errors import InvalidFilter
from ..filter import parse
from ..filter.bloom import BloomFilter
from ..filter.engines.columnar import BatchFilter
from ..filter.tags import TagFilter
from ..java import string_hash
from ..net.longwork import Steps
from ..store import tables
from ..store.select import SqlFilter
from ..store.tables import FilterData
from ..wire.bodies import Subscription

__all__ = [
    "FILTER_COST",
    "MOST_TAGS",
    "MOST_TEXT",
    "Filters",
    "checked_length",
    "compile_sql",
    "is_quick",
    "tag_filter",
    "try_compile",
]

log = logging.getLogger(__name__)

MOST_TEXT = 65_536  # characters
MOST_TAGS = MOST_TEXT // 4  # of a subscription; as many as fit in the longest expression
FILTER_COST = 75  # bytes a compiled filter takes for each character
MOST_CHARACTERS = 2 * 2**20  # of all groups' expressions together
_DEAD_AT_START = 30_000  # milliseconds ago: until their group is heard of
_QUICK: Final = 256  # characters that are compiled in a millisecond
_CACHED: Final = 2**20  # characters of expressions that are remembered
_AT_ONCE: Final = 32  # filters that are put in place without a pause
_SHOWN: Final = 1000  # characters of an expression in messages

Compiled = BatchFilter | InvalidFilter


class _Cache:
    """What expressions compile to, or why they don't. For several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: OrderedDict[tuple[str, str | None], Compiled] = OrderedDict()
        self._characters = 0

    def get(self, key: tuple[str, str | None]) -> Compiled | None:
        with self._lock:
            found = self._found.get(key)
            if found is not None:
                self._found.move_to_end(key)
            return found

    def put(self, key: tuple[str, str | None], compiled: Compiled) -> None:
        with self._lock:
            if key not in self._found:
                self._characters += len(key[0]) + 64
            self._found[key] = compiled
            while self._characters > _CACHED:
                (text, _), _ = self._found.popitem(last=False)
                self._characters -= len(text) + 64


_cache = _Cache()


def is_quick(expression: str | None, expression_type: str | None) -> bool:
    """Whether `compile_sql` takes no more than a moment."""
    if expression is None or len(expression) <= _QUICK or len(expression) > MOST_TEXT:
        return True
    return _cache.get((expression, expression_type)) is not None


def checked_length(expression: str) -> str:
    """Return an expression. Raises InvalidFilter if it is too long."""
    if len(expression) > MOST_TEXT:
        reason = f"an expression of {len(expression)} characters: it takes {MOST_TEXT}"
        hint = "compiling it would hold up all others"
        raise InvalidFilter(expression[:80], 0, reason, hint)
    return expression


def try_compile(expression: str, expression_type: str | None) -> Compiled:
    """As `compile_sql`, but it returns what that raises. May be called in any thread."""
    try:
        checked_length(expression)
    except InvalidFilter as error:
        return error.with_traceback(None)  # it is not remembered
    key = (expression, expression_type)
    found = _cache.get(key)
    if found is None:
        try:
            found = _compile(expression, expression_type)
        except InvalidFilter as error:
            found = error.with_traceback(None)
        _cache.put(key, found)
    return found


def compile_sql(expression: str, expression_type: str | None) -> BatchFilter:
    """Raises InvalidFilter, of an unknown kind of expression too."""
    found = try_compile(expression, expression_type)
    if isinstance(found, InvalidFilter):
        raise found.with_traceback(None)
    return found


def _compile(expression: str, expression_type: str | None) -> BatchFilter:
    if expression_type != "SQL92":
        reason = f"expressions of type {expression_type!r} are not known here"
        raise InvalidFilter(expression, 0, reason, "the types are TAG and SQL92")
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
        self._topics: dict[str, dict[str, None]] = {}  # of the entries, by group
        self._characters = 0  # of the entries' expressions
        self._faults: dict[str, dict[str, str]] = {}  # by group and topic: why it does not compile
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
            self._file(key, _Entry(data, compiled))

    def _file(self, key: tuple[str, str], entry: _Entry) -> None:
        self._unfile(key)
        self._entries[key] = entry
        self._topics.setdefault(key[1], {})[key[0]] = None
        self._characters += len(entry.data.expression)

    def _unfile(self, key: tuple[str, str]) -> bool:
        """Returns whether it was there."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        self._characters -= len(entry.data.expression)
        topics = self._topics[key[1]]
        del topics[key[0]]
        if not topics:
            del self._topics[key[1]]
        return True

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
        return self._faults.get(group, {}).get(topic)

    def faults(self) -> list[tuple[tuple[str, str], str]]:
        """Return, by group and topic, why a filter that was sent is not used."""
        found = self._faults.items()
        return [((group, topic), why) for group, some in found for topic, why in some.items()]

    def all(self) -> list[FilterData]:
        return [entry.data for entry in self._entries.values()]

    @property
    def compiled(self) -> Mapping[str, BatchFilter]:
        """By their expressions."""
        return {e.data.expression: e.compiled for e in self._entries.values() if e.compiled}

    def register(self, group: str, subscriptions: Iterable[Subscription]) -> None:
        """All that a heartbeat of the group subscribes to."""
        steps = self.register_steps(group, list(subscriptions))
        with contextlib.suppress(StopIteration):
            wanted = next(steps)
            while True:
                wanted = steps.send(wanted() if wanted is not None else None)

    def register_steps(self, group: str, subscriptions: list[Subscription]) -> Steps[None]:
        """As `register`. Long expressions are compiled elsewhere, others one a step; those that
        are put in place together are seen together."""
        compiled: list[tuple[Subscription, Compiled]] = []
        for one in subscriptions:
            if one.is_tags or not one.expression or not self._is_due(group, one):
                continue
            if is_quick(one.expression, one.expression_type):
                made = try_compile(one.expression, one.expression_type)
                yield None
            else:
                made = yield partial(try_compile, one.expression, one.expression_type)
            compiled.append((one, made))
        for at in range(0, len(compiled), _AT_ONCE):
            is_changed = False
            for one, made in compiled[at : at + _AT_ONCE]:
                # once more: another member may have been faster
                if self._is_due(group, one):
                    is_changed |= self._put((one.topic, group), one, made)
            if is_changed:
                self._changed()
            yield None
        topics = {one.topic for one in subscriptions}
        for topic in list(self._topics.get(group, ())):
            if topic not in topics:
                self._die(topic, group)
        faults = self._faults.get(group)
        if faults is not None:
            kept = {topic: why for topic, why in faults.items() if topic in topics}
            self._faults[group] = kept
            if not kept:
                del self._faults[group]

    def make_way_for(self, group: str, subscriptions: Iterable[Subscription]) -> None:
        """Drops what the group had in place of these, whatever the versions are: its members agree,
        so it is of members that are gone."""
        for one in subscriptions:
            entry = self._entries.get((one.topic, group))
            if entry is not None and (one.is_tags or entry.data.expression != one.expression):
                self._unfile((one.topic, group))

    def _is_due(self, group: str, one: Subscription) -> bool:
        """Whether it is another than what is known; else that is kept, or revived."""
        key = (one.topic, group)
        entry = self._entries.get(key)
        if entry is None:
            return True
        data = entry.data
        if one.version < data.client_version:
            if data.is_dead and one.expression != data.expression:
                log.warning(
                    "group %s on %s: %.200r is passed over, %.200r has a higher version",
                    *(group, one.topic, one.expression, data.expression),
                )
            return False
        same = (data.expression, data.expression_type) == (one.expression, one.expression_type)
        if one.version == data.client_version or same:
            # its text is not looked at if the version is the same
            if data.is_dead or one.version > data.client_version:
                dead = 0 if data.is_dead else data.dead_time
                entry.data = replace(data, dead_time=dead, client_version=one.version)
                self.changes += 1
            return False
        return True

    def _put(self, key: tuple[str, str], one: Subscription, compiled: Compiled) -> bool:
        """Returns whether something changed."""
        topic, group = key
        fault = None
        if isinstance(compiled, InvalidFilter):
            fault = f"{_shown(one.expression)}, {compiled}"
        elif not self._make_room(key, len(one.expression)):
            fault = (
                f"{_shown(one.expression)}: the broker has SQL filters of {MOST_CHARACTERS} "
                "characters already, which is all it takes; shorten or drop some"
            )
        if fault is not None:
            faults = self._faults.setdefault(group, {})
            if faults.get(topic) != fault:
                log.warning("group %s on %s: a filter that is not used: %s", group, topic, fault)
            faults[topic] = fault
            return self._unfile(key)
        assert isinstance(compiled, BatchFilter)
        self._faults.get(group, {}).pop(topic, None)
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
        self._file(key, _Entry(data, compiled))
        log.info("group %s on %s: filter %.200r", group, topic, one.expression)
        return True

    def _make_room(self, key: tuple[str, str], characters: int) -> bool:
        """For that many more, by dropping those of groups that are gone if need be."""
        known = self._entries.get(key)
        characters -= len(known.data.expression) if known is not None else 0
        if self._characters + characters > MOST_CHARACTERS:
            dead = [k for k, e in self._entries.items() if e.data.is_dead and k != key]
            dead.sort(key=lambda k: self._entries[k].data.dead_time)
            while dead and self._characters + characters > MOST_CHARACTERS:
                self._unfile(dead.pop(0))
        return self._characters + characters <= MOST_CHARACTERS

    def _die(self, topic: str, group: str) -> None:
        entry = self._entries[topic, group]
        if not entry.data.is_dead:
            entry.data = replace(entry.data, dead_time=self._millis())
            self.changes += 1

    def leave(self, group: str) -> None:
        """The last member of the group is gone."""
        for topic in self._topics.get(group, ()):
            self._die(topic, group)
        self._faults.pop(group, None)

    def clean(self, keep_seconds: float) -> None:
        oldest = self._millis() - int(keep_seconds * 1000)
        gone = [k for k, e in self._entries.items() if e.data.is_dead and e.data.dead_time < oldest]
        for key in gone:
            self._unfile(key)
            log.info("filter of %s on %s: dropped, its group is long gone", key[1], key[0])
        if gone:
            self._changed()

    def _changed(self) -> None:
        self.changes += 1
        self.on_change()

    def snapshot(self) -> Callable[[], None]:
        entries = {key: entry.data for key, entry in self._entries.items()}
        return lambda: tables.save_filters(self._folder, entries)


def _shown(expression: str) -> str:
    if len(expression) <= _SHOWN:
        return repr(expression)
    return f"{expression[:_SHOWN]!r}... ({len(expression)} characters)"
