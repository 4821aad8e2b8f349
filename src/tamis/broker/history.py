"""Records who read what, by which filter, so that a message's fate can be told afterwards.

The broker tells this of every answered pull, commit, reset and change of members. While a member
reads a queue on by the same filter, only a number is changed; a line is written when something
else happens, and every few seconds for how far readers are (`historyfile.py`). It is saved before
the offsets are: no saved offset has passed a message whose reader is not recorded.

Bounded: what concerns only messages that have left the log is dropped when the file is written
anew. If that or what is held takes too much (`history_bytes`), the groups that take most lose the
older half of it; the offset, or the time, before which not all is known is kept then.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import orjson

from ..errors import StoreError
from ..fate.facts import EXPIRED, RESET, UNSAVED, FilterChange, Move
from ..fate.filters import Filter
from ..fate.history import Change, GroupHistory, History, Span, make_view
from ..fate.loading import VERSION, NotHistory, history_of
from ..net.aio import Peer
from ..wire.bodies import Subscription
from .config import Settings
from .groups import SYSTEM_PREFIX
from .historyfile import HistoryFile, read_lines
from .members import ConsumerGroup, Consumers, Member
from .topics import RETRY_PREFIX

__all__ = ["SYSTEM_GROUPS", "Recorder", "filter_of", "load_history"]

log = logging.getLogger(__name__)

T = TypeVar("T")

_MOST_TOPICS: Final = 20_000  # groups on topics: clients may make up names for ever
_MOST_LINES: Final = 100_000  # not yet written; beyond that the file is written anew
_LEAST_SIZE: Final = 1 << 20  # bytes of the file, below which it is not written anew
_GROWTH: Final = 4  # times what it held when it was last written anew
_HELD: Final = 2  # times `history_bytes`: room is made when it is saved next
_MOST_HELD: Final = 4  # times `history_bytes`: room is made at once
_ROOM_SECONDS: Final = 0.005  # of making room at once
_LEAST_SPANS: Final = 4  # of a queue that are kept when room is made
_MOST_SPANS: Final = 10_000  # of a queue: readers may take turns for ever
_CLEAN: Final = orjson.dumps({"t": "clean"})
_START: Final = orjson.dumps({"t": "start"})
# Tools read as these, and so does our Spark source if it is given no group.
SYSTEM_GROUPS: Final = frozenset(
    ["FILTERSRV_CONSUMER", "TOOLS_CONSUMER", "SELF_TEST_C_GROUP", "tamis-spark"]
)


def filter_of(subscription: Subscription | None) -> Filter | None:
    if subscription is None:
        return None
    if subscription.class_filter_mode:
        return Filter("CODE", subscription.expression)
    if subscription.is_tags:
        return Filter("TAG", subscription.expression)
    return Filter("SQL92", subscription.expression)


@dataclass(slots=True, eq=False)
class _Topic:
    """A group on a topic: its history, and how many members have which filter."""

    history: GroupHistory
    view: int = -1  # number of the one in force
    filters: Counter[Filter] = field(default_factory=Counter)
    readers: set[tuple[str, str, int, str]] = field(default_factory=set)  # keys of `_readers`
    used: set[int] = field(default_factory=set)  # views that spans have
    size: int = 0  # bytes, about, that it takes in the file
    last_moves: dict[int, Move] = field(default_factory=dict)  # by queue


@dataclass(slots=True, eq=False)
class _Reader:
    """Who reads a queue now: the span, and what to recognise a pull of the same kind by."""

    span: Span
    peer: Peer
    source: object
    view: int
    topic: _Topic
    behind: bool = True  # whether spans before this one may not be acknowledged


class Filtered(Protocol):
    """A pull: it is asked for its filter only if a new span begins. What the filters of `unless`
    want is not given to it, but to other lanes. `change` is one of the group's filter that is under
    way."""

    def filter(self) -> Filter: ...

    def unless(self) -> tuple[Filter, ...]: ...

    def change(self) -> FilterChange | None: ...


class Recorder:
    """Belongs to the event loop; what `snapshot` returns may be called in another thread, one at a
    time. `min_offset` tells where a queue begins. Raises StoreError for a file that can't be read.
    """

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        consumers: Consumers,
        min_offset: Callable[[str, int], int],
        now: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._consumers = consumers
        self._min_offset = min_offset
        self._now = now
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = HistoryFile(folder)
            loaded = self._load()
        except OSError as error:
            raise StoreError(
                f"{error.filename or folder} can't be read: {error.strerror or error}. Mend it, or "
                "move it away: history then begins anew"
            ) from None
        self._lock = threading.Lock()  # of what waits to be written
        self._lines: list[bytes] = []
        self._moved: dict[Span, None] = {}  # spans that have got further
        self._next_number = 0
        self._is_to_be_rewritten = False
        self._is_too_large = False
        self._forgotten = 0  # when groups were last dropped for want of room
        self._is_closed = False
        self._is_clean = False  # whether the file says so
        self._size_when_new = self._file.size
        self.changes = 0
        self.on_change: Callable[[], None] = lambda: None
        self._topics: dict[tuple[str, str], _Topic] = {}
        # By group, topic, queue and lane: one lookup for each pull.
        self._readers: dict[tuple[str, str, int, str], _Reader] = {}
        self._unclean: list[tuple[str, str]] = []  # to be looked through by `clean`
        self._held = 0  # bytes, about, that all of it takes in the file
        self._waiting = 0  # bytes of `_lines`
        self._started = self._millis()
        self._was_killed = loaded is not None and not loaded.is_clean
        self.since = self._millis() if loaded is None else loaded.since
        self.disagreements = 0  # times that members of a group came to differ
        if loaded is None:
            self._write(self._first_line())
        else:
            self._forgotten = loaded.forgotten
            self._topics = {key: _Topic(history) for key, history in loaded.groups.items()}
            self._write({"t": "start", "time": self._started})
            for topic in self._topics.values():
                topic.size = self._file.size // len(self._topics)  # until it is written anew
                self._all_left(topic)
            self._held = self._file.size

    def _load(self) -> History | None:
        try:
            return load_history(self._file.path)
        except NotHistory as error:
            aside = self._file.set_aside()
            log.error("%s: it is kept as %s, and history begins anew", error, aside.name)
            return None

    def _first_line(self) -> dict[str, Any]:
        return {"t": "since", "time": self.since, "version": VERSION, "forgot": self._forgotten}

    @property
    def path(self) -> Path:
        return self._file.path

    def _all_left(self, topic: _Topic) -> None:
        """After a restart nobody is a member until it says so again."""
        history = topic.history
        for spans in history.queues.values():
            self._next_number = max(self._next_number, *(span.number + 1 for span in spans))
        for move in history.moves:
            topic.last_moves[move.queue_id] = move
        self._next_number = max(self._next_number, *history.resets.values(), 0)
        topic.view = max(history.views, default=-1)
        self._drop_views(topic)
        if topic.view >= 0 and history.views[topic.view].filters:
            self._put_view(topic, {})

    # What is told.

    def read(
        self,
        group: str,
        topic: str,
        queue_id: int,
        peer: Peer,
        source: object,
        by: "Filtered",
        start: int,
        end: int,
        lane: str = "",
    ) -> None:
        """A pull was answered with what lies from `start` to `end`. `source` is the same object, or
        an equal text, as long as the filter of `by` is the same."""
        reader = self._readers.get((group, topic, queue_id, lane))
        if (
            reader is not None
            and reader.peer is peer
            and reader.view == reader.topic.view
            and (span := reader.span).end == start
            and (reader.source is source or reader.source == source)
        ):
            span.end = end
            self._moved[span] = None
        elif end > start and not _is_ignored(group, topic):
            self._begin(group, topic, queue_id, peer, source, by, start, end, lane)

    def _begin(
        self,
        group: str,
        topic: str,
        queue_id: int,
        peer: Peer,
        source: object,
        pull: Filtered,
        start: int,
        end: int,
        lane: str,
    ) -> None:
        by, unless, change = pull.filter(), pull.unless(), pull.change()
        known = self._topic(group, topic)
        member, own = self._member(group, topic, peer)
        spans = known.history.queues.get(queue_id, ())
        last = next((span for span in reversed(spans) if span.lane == lane), None)
        if last is not None and last.number < known.history.resets.get(queue_id, 0):
            last = None  # the group was reset since
        is_same = last is not None and _kind_of(last) == (member, by, own, unless, change)
        if last is not None and is_same and last.is_open and last.end < start:
            # the member was answered so far before the broker was killed
            last.end, last.is_open = start, False
            self._moved[last] = None
        if last is not None and is_same and last.end == start and last.view == known.view:
            last.end, span = end, last  # only the version of a subscription is another
            self._moved[last] = None
        else:
            span = Span(start, end, member, by, own, known.view, self._millis(), start, lane)
            span.unless, span.change = unless, change
            self._add(known, queue_id, span)
        key = (group, topic, queue_id, lane)
        known.readers.add(key)
        self._readers[key] = _Reader(span, peer, source, known.view, known)

    def _add(self, known: _Topic, queue_id: int, span: Span) -> None:
        span.number, self._next_number = self._next_number, self._next_number + 1
        history = known.history
        spans = history.queues.setdefault(queue_id, [])
        spans.append(span)
        known.used.add(span.view)
        fields = _span_fields(queue_id, span)
        where = {"g": history.group, "o": history.topic, "n": span.number}
        self._write({"t": "span", **where, "s": fields}, known)
        if len(spans) > _MOST_SPANS:
            self._drop_older(known, queue_id)

    def committed(
        self,
        group: str,
        topic: str,
        queue_id: int,
        before: int | None,
        after: int,
        peer: Peer | None,
        lane: str = "",
    ) -> None:
        """Somebody said how far the group is; `before` is what it was."""
        reader = self._readers.get((group, topic, queue_id, lane))
        if reader is not None and reader.peer is peer:
            span = reader.span
            is_reset = _is_reset(reader.topic, queue_id, after)
            if not is_reset and not reader.behind and span.acked <= after <= span.end:
                span.acked = after
                self._moved[span] = None
                return
        if (before is None and after == 0) or _is_ignored(group, topic):
            return
        member, own = self._member(group, topic, peer)
        known = self._topic(group, topic)
        if own is not None and own.kind == "CODE" and peer is not None:
            self._read_through_filter_server(known, queue_id, before or 0, after, member, own)
            return
        if _is_reset(known, queue_id, after):
            return  # the members were told of it
        read_to = self._acknowledge(known, queue_id, member, after, lane)
        if reader is not None and reader.peer is peer:
            reader.behind = any(
                s.acked < s.end for s in self._tenure(known, queue_id, member, lane)[1:]
            )
        if before != after and (read_to is None or read_to < after or after < (before or 0)):
            who = member if peer is not None else "a tool"
            why = "an offset was set"
            if (
                self._was_killed
                and self._is_member(group, peer)
                and (
                    read_to is None
                    or self._tenure(known, queue_id, member, lane)[0].began < self._started
                )
            ):
                why = UNSAVED
            self.moved(group, topic, queue_id, before, after, who, why, lane)

    def _is_member(self, group: str, peer: Peer | None) -> bool:
        known = self._consumers.groups.get(group)
        return known is not None and peer in known.members

    def _tenure(self, known: _Topic, queue_id: int, member: str, lane: str) -> list[Span]:
        """Return the spans that a member read one after the other without a gap, the last first;
        also across the moment when its group was divided into lanes, or united."""
        tenure: list[Span] = []
        for span in reversed(known.history.queues.get(queue_id, [])):
            if span.member != member or (span.lane != lane and span.lane and lane):
                continue
            if (tenure and span.end != tenure[-1].start) or span.number < known.history.resets.get(
                queue_id, 0
            ):
                break
            tenure.append(span)
        return tenure

    def _acknowledge(
        self, known: _Topic, queue_id: int, member: str, after: int, lane: str
    ) -> int | None:
        """Return up to where the member has read the queue; None if it has not."""
        tenure = self._tenure(known, queue_id, member, lane)
        for span in tenure:
            if span.start < after and span.acked < min(after, span.end):
                span.acked = min(after, span.end)
                self._moved[span] = None
        return tenure[0].end if tenure and tenure[-1].start <= after else None

    def _read_through_filter_server(
        self, known: _Topic, queue_id: int, before: int, after: int, member: str, own: Filter
    ) -> None:
        """What a member has that filters by code is seen only by what it commits."""
        if after < before:
            history = known.history
            who, why = member, "an offset was set"
            self.moved(history.group, history.topic, queue_id, before, after, who, why)
            return
        spans = known.history.queues.get(queue_id)
        last = spans[-1] if spans else None
        if last is not None and (last.end, last.member, last.own, last.view) == (
            *(before, member, own),
            known.view,
        ):
            last.end = last.acked = after
            self._moved[last] = None
            return
        span = Span(before, after, member, own, own, known.view, self._millis(), after)
        self._add(known, queue_id, span)

    def moved(
        self,
        group: str,
        topic: str,
        queue_id: int,
        before: int | None,
        after: int,
        by: str,
        why: str,
        lane: str = "",
        wanted: Filter | None = None,
    ) -> None:
        """Progress changed otherwise than by reading."""
        if _is_ignored(group, topic):
            return
        move = Move(
            time=self._millis(),
            queue_id=queue_id,
            before=before,
            after=after,
            by=by,
            why=why,
            lane=lane,
            filter=wanted,
        )
        known = self._topic(group, topic)
        known.history.moves.append(move)
        known.last_moves[queue_id] = move
        line: dict[str, Any] = {"t": "move", "g": group, "o": topic, "m": _move_fields(move)}
        if why == RESET:  # members begin anew
            line["n"] = known.history.resets[queue_id] = self._next_number
            key = (group, topic, queue_id, lane)
            self._readers.pop(key, None)
            known.readers.discard(key)
        self._write(line, known)

    def expired(
        self, group: str, topic: str, queue_id: int, peer: Peer, before: int, after: int
    ) -> None:
        """A pull was told to go on at `after`, since what it asked for has left the log."""
        known = self._topics.get((group, topic))
        last = known.history.moves[-1] if known is not None and known.history.moves else None
        if last is None or (last.queue_id, last.before, last.after, last.why) != (
            *(queue_id, before, after),
            EXPIRED,
        ):
            member, _ = self._member(group, topic, peer)
            self.moved(group, topic, queue_id, before, after, member, EXPIRED)

    def member_changed(
        self, group: ConsumerGroup, member: Member, before: Mapping[str, Subscription]
    ) -> None:
        """A member came, went or subscribes differently; `before` is what it subscribed to. If it
        went, its subscriptions are empty by now."""
        after = member.subscriptions
        changed = [topic for topic, new in after.items() if _differs(before.get(topic), new)]
        changed += [topic for topic in before if topic not in after]
        for topic in changed:
            old, new = filter_of(before.get(topic)), filter_of(after.get(topic))
            if _is_ignored(group.name, topic):
                continue
            is_new = (group.name, topic) not in self._topics
            known = self._topic(group.name, topic)
            history = known.history
            change = Change(self._millis(), member.client_id, old, new)
            history.changes.append(change)
            fields = [change.time, change.member, _fields(old), _fields(new)]
            self._write({"t": "change", "g": group.name, "o": topic, "c": fields}, known)
            self._set_kind(history, group)
            distinct = set(known.filters)
            if is_new:  # its view is of today's members
                self.disagreements += len(distinct) > 1
                continue
            if old is not None:
                known.filters[old] -= 1
                if known.filters[old] <= 0:
                    del known.filters[old]
            if new is not None:
                known.filters[new] += 1
            if distinct != set(known.filters):
                if len(known.filters) > max(len(distinct), 1):
                    self.disagreements += 1
                self._put_view(known, group.members)

    def _set_kind(self, history: GroupHistory, group: ConsumerGroup) -> None:
        kind = (group.message_model == "BROADCASTING", group.consume_type == "CONSUME_ACTIVELY")
        if group.members and kind != (history.is_broadcasting, history.is_pull):
            history.is_broadcasting, history.is_pull = kind
            where = {"g": history.group, "o": history.topic}
            self._write({"t": "kind", **where, "b": kind[0], "p": kind[1]})

    def _put_view(self, known: _Topic, members: Mapping[Peer, Member]) -> None:
        history = known.history
        filters = (
            (member.client_id, by)
            for member in members.values()
            if (by := filter_of(member.subscriptions.get(history.topic))) is not None
        )
        view = make_view(self._millis(), filters)
        known.view += 1
        history.views[known.view] = view
        if known.view - 2 not in known.used:  # the last but one may be what members left with
            history.views.pop(known.view - 2, None)
        fields = [view.since, [[f.kind, f.text, *ids] for f, ids in view.filters.items()]]
        line = {"t": "view", "g": history.group, "o": history.topic, "n": known.view, "v": fields}
        self._write(line, known)

    def topic_deleted(self, topic: str) -> None:
        self._forget(lambda key: key[1] == topic, {"t": "gone", "o": topic})

    def _forget(self, is_gone: Callable[[tuple[str, str]], bool], line: dict[str, Any]) -> None:
        gone = [key for key in self._topics if is_gone(key)]
        for key in gone:
            self._drop(key)
        if gone:
            self._write(line)

    # What is asked.

    def history(self, group: str, topic: str) -> GroupHistory | None:
        known = self._topics.get((group, topic))
        return None if known is None else known.history

    def groups(self, topic: str) -> list[str]:
        """Those that have read the topic, or subscribed to it."""
        return [group for group, one in self._topics if one == topic]

    def known(self, group: str | None = None, topic: str | None = None) -> list[GroupHistory]:
        return [
            known.history
            for (one_group, one_topic), known in self._topics.items()
            if group in (None, one_group) and topic in (None, one_topic)
        ]

    # Keeping.

    def _topic(self, group: str, topic: str) -> _Topic:
        if self._held > _MOST_HELD * self._settings.config.history_bytes:
            self._make_room()  # the file can't be written, or not as fast as this comes
        known = self._topics.get((group, topic))
        if known is None:
            while len(self._topics) >= _MOST_TOPICS:
                self._drop_for_room(next(iter(self._topics)))  # the first that came
            since = max(self.since, self._forgotten)
            known = self._topics[group, topic] = _Topic(GroupHistory(group, topic, since))
            online = self._consumers.groups.get(group)
            members = {} if online is None else online.members
            for member in members.values():
                by = filter_of(member.subscriptions.get(topic))
                if by is not None:
                    known.filters[by] += 1
            self._put_view(known, members)
        return known

    def _drop(self, key: tuple[str, str]) -> None:
        known = self._topics.pop(key)
        self._held -= known.size
        for reader in known.readers:
            self._readers.pop(reader, None)
        for spans in known.history.queues.values():
            for span in spans:
                self._moved.pop(span, None)

    def _drop_for_room(self, key: tuple[str, str]) -> None:
        """If it comes again, it is not known from before."""
        self._drop(key)
        self._forgotten = max(self._millis(), self._forgotten)
        self._write({"t": "gone", "g": key[0], "o": key[1], "forgot": self._forgotten})

    def _member(self, group: str, topic: str, peer: Peer | None) -> tuple[str, Filter | None]:
        known = self._consumers.groups.get(group)
        member = known.members.get(peer) if known is not None and peer is not None else None
        if member is None:
            return str(peer), None
        return member.client_id, filter_of(member.subscriptions.get(topic))

    def _millis(self) -> int:
        return int(self._now() * 1000)

    def _write(self, line: dict[str, Any], known: _Topic | None = None) -> None:
        data = orjson.dumps(line)
        if known is not None:
            known.size += len(data)
            self._held += len(data)
        with self._lock:
            is_much = self._waiting > self._settings.config.history_bytes
            if len(self._lines) >= _MOST_LINES or is_much:
                self._lines.clear()
                self._waiting = 0
                self._is_to_be_rewritten = True
            self._lines.append(data)
            self._waiting += len(data)
        self.changes += 1
        self.on_change()

    def note_progress(self) -> None:
        """Have it saved how far readers are."""
        if self._moved:
            self.changes += 1

    def snapshot(self) -> Callable[[], None]:
        """Return what saves it; see `saving.Table`."""
        limit = self._settings.config.history_bytes
        if self._is_too_large or self._held > _HELD * limit:
            self._make_room()
            self._is_to_be_rewritten |= not self._is_too_large
        most = min(limit, max(_LEAST_SIZE, _GROWTH * self._size_when_new))
        if self._is_too_large:
            most = 2 * limit  # it is worth while when there is room
        if not self._is_to_be_rewritten and self._file.size <= most:
            return self.flush
        self._is_to_be_rewritten = False
        return lambda: self._rewrite(limit)

    def flush(self) -> None:
        """Write what waits, from any thread. Raises OSError."""
        lines = self._take_lines()
        moved = self._progress()
        ends = [
            orjson.dumps({"t": "end", "n": span.number, "e": end, "a": acked})
            for span, end, acked in moved
        ]
        data = [*lines, *ends]
        if self._is_closed and (data or not self._is_clean):
            data.append(_CLEAN)  # last: whoever reads it knows that all is there
        try:
            self._file.append(data)
        except OSError:
            self._put_back(lines)
            raise
        self._is_clean = self._is_closed
        self._saved(moved)

    def _take_lines(self) -> list[bytes]:
        with self._lock:
            lines, self._lines, self._waiting = self._lines, [], 0
        return lines

    def _put_back(self, lines: list[bytes]) -> None:
        """What could not be written waits for the next attempt."""
        with self._lock:
            self._lines[:0] = lines
            self._waiting += sum(map(len, lines))

    def _progress(self) -> list[tuple[Span, int, int]]:
        """How far spans are that have got further."""
        return [(span, span.end, span.acked) for span in list(self._moved)]

    def _saved(self, moved: list[tuple[Span, int, int]]) -> None:
        """The loop may move spans on meanwhile: it sets the number first, then notes the span; here
        it is the other way round, so that no change is missed."""
        for span, end, acked in moved:
            self._moved.pop(span, None)
            if (span.end, span.acked) != (end, acked):
                self._moved[span] = None

    def _rewrite(self, limit: int) -> None:
        """Write all that is kept to a new file, in another thread. Raises OSError."""
        waiting = self._take_lines()  # all of it will be in the new file
        moved = self._progress()
        lines = [orjson.dumps(self._first_line())]
        for known in list(self._topics.values()):
            lines.append(orjson.dumps({"t": "group", "h": known.history.to_json()}))
            known.size = len(lines[-1])
        lines.append(_CLEAN if self._is_closed else _START)
        held = sum(map(len, lines))
        try:
            self._file.replace(lines)
        except OSError:
            self._is_to_be_rewritten = True
            self._put_back(waiting)
            raise
        self._is_clean = self._is_closed
        self._saved(moved)
        self._size_when_new, self._held = self._file.size, held
        if self._file.size > limit // 2:
            self._is_too_large = True

    def clean(self, count: int = 200) -> None:
        """Drop what concerns only messages that have left the log, of the next `count` groups and
        topics."""
        if not self._unclean:
            self._unclean = list(self._topics)
        for _ in range(min(count, len(self._unclean))):
            known = self._topics.get(self._unclean.pop())
            if known is None:
                continue
            history = known.history
            for queue_id, spans in history.queues.items():
                first = self._min_offset(history.topic, queue_id)
                self._drop_spans(known, queue_id, [s for s in spans[:-1] if s.end <= first])
            self._drop_views(known)

    def _make_room(self) -> None:
        """Have those that take more than their share lose the older half of what is known of them,
        the largest first; if that is not enough, forget the first that came. If it takes longer
        than a moment, the rest is done when it is saved next."""
        log.warning("history takes more than history_bytes allows: the oldest of it is dropped")
        target = self._settings.config.history_bytes // 4
        share = target // max(len(self._topics), 1)
        total = sum(known.size for known in self._topics.values())
        deadline = time.thread_time() + _ROOM_SECONDS
        for key, known in sorted(self._topics.items(), key=lambda one: -one[1].size):
            while total > target and known.size > share and time.thread_time() < deadline:
                total -= known.size
                if not self._halve(known):
                    self._drop_for_room(key)
                    break
                known.size //= 2
                total += known.size
        for key in list(self._topics):
            if total <= target or time.thread_time() > deadline:
                break
            total -= self._topics[key].size
            self._drop_for_room(key)
        self._held, self._is_too_large = total, total > target

    def _halve(self, known: _Topic) -> bool:
        """Return whether there was enough to drop half of it."""
        history = known.history
        queues = [one for one, spans in history.queues.items() if len(spans) >= 2 * _LEAST_SPANS]
        for queue_id in queues:
            self._drop_older(known, queue_id)
        self._drop_views(known)
        events = [one for one in (history.changes, history.moves) if len(one) >= 2 * _LEAST_SPANS]
        for one in events:
            for _ in range(len(one) // 2):
                history.since = max(history.since, one.popleft().time + 1)
        return bool(queues or events)

    def _drop_older(self, known: _Topic, queue_id: int) -> None:
        spans, floors = known.history.queues[queue_id], known.history.floors
        half = len(spans) // 2
        known.history.queues[queue_id] = spans[half:]
        end = floors.get(queue_id, 0)
        for span in spans[:half]:
            end = max(end, span.end)
            self._moved.pop(span, None)
        floors[queue_id] = end

    def _drop_spans(self, known: _Topic, queue_id: int, gone: Iterable[Span]) -> None:
        dropped = set(gone)
        if dropped:
            spans = known.history.queues[queue_id]
            known.history.queues[queue_id] = [span for span in spans if span not in dropped]
            for span in dropped:
                self._moved.pop(span, None)

    def _drop_views(self, known: _Topic) -> None:
        known.used = {span.view for spans in known.history.queues.values() for span in spans}
        kept = {*known.used, known.view, known.view - 1}
        views = known.history.views
        if len(views) > len(kept):
            known.history.views = {n: view for n, view in views.items() if n in kept}

    def close(self) -> None:
        """Say that all is saved: nothing was read that is not recorded. To be saved after it."""
        self._is_closed = True
        self.changes += 1


def _differs(before: Subscription | None, after: Subscription) -> bool:
    """Whether they filter differently; mostly only their versions differ."""
    return (
        before is None
        or before.expression != after.expression
        or before.expression_type != after.expression_type
        or before.class_filter_mode != after.class_filter_mode
    )


def _is_reset(known: _Topic, queue_id: int, after: int) -> bool:
    """Whether setting an offset is what the members were told to do."""
    last = known.last_moves.get(queue_id)
    return last is not None and last.after == after and last.why == RESET


def _is_ignored(group: str, topic: str) -> bool:
    return (
        group in SYSTEM_GROUPS or group.startswith(SYSTEM_PREFIX) or topic.startswith(RETRY_PREFIX)
    )


def _fields(by: Filter | None) -> list[str] | None:
    return None if by is None else [by.kind, by.text]


def _kind_of(span: Span) -> tuple[object, ...]:
    """What two readers that follow each other have in common, if they are one."""
    return span.member, span.filter, span.own, span.unless, span.change


def _span_fields(queue_id: int, span: Span) -> list[Any]:
    return [
        *(queue_id, span.start, span.end, span.member, _fields(span.filter), _fields(span.own)),
        *(span.view, span.began, span.acked, span.lane, [_fields(by) for by in span.unless]),
        _change_fields(span.change),
    ]


def _change_fields(change: FilterChange | None) -> list[Any] | None:
    if change is None:
        return None
    return [change.cut, _fields(change.old), _fields(change.new), change.is_handed]


def _move_fields(move: Move) -> list[Any]:
    return [
        *(move.time, move.queue_id, move.before, move.after, move.by, move.why, move.lane),
        _fields(move.filter),
    ]


def load_history(path: Path) -> History | None:
    """Return what a file holds; None if there is none. Raises NotHistory, OSError."""
    return history_of(read_lines(path), str(path))
