"""Records who read what, by which filter, so that a message's fate can be told afterwards.

The broker tells this of every answered pull, commit, reset and change of members. While a member
reads a queue on by the same filter, only a number is changed; a line is written when something
else happens, and every few seconds for how far readers are (`historyfile.py`). It is saved before
the offsets are: no saved offset has passed a message whose reader is not recorded.

What is kept of it, where and within which bounds: `historykeeping.py`.
"""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from ..fate.facts import EXPIRED, RESET, UNSAVED, FilterChange, Move
from ..fate.filters import Filter
from ..fate.history import Change, GroupHistory, Span, make_view
from ..net.aio import Peer
from ..wire.bodies import Subscription
from .config import Settings
from .groups import SYSTEM_PREFIX
from .historykeeping import (
    MOST_HELD,
    MOST_SPANS,
    MOST_TOPICS,
    GroupOnTopic,
    KeptHistory,
    Reader,
    load_history,
)
from .members import ConsumerGroup, Consumers, Member
from .topics import RETRY_PREFIX

__all__ = ["SYSTEM_GROUPS", "Recorder", "filter_of", "load_history"]

log = logging.getLogger(__name__)

T = TypeVar("T")

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


class Filtered(Protocol):
    """A pull: it is asked for its filter only if a new span begins. What the filters of `unless`
    want is not given to it, but to other lanes. `change` is one of the group's filter that is under
    way."""

    def filter(self) -> Filter: ...

    def unless(self) -> tuple[Filter, ...]: ...

    def change(self) -> FilterChange | None: ...


class Recorder(KeptHistory):
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
        super().__init__(folder, settings, min_offset, now)
        self._consumers = consumers
        self.disagreements = 0  # times that members of a group came to differ
        for topic in self._topics.values():
            self._all_left(topic)

    def _all_left(self, topic: GroupOnTopic) -> None:
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
        self._readers[key] = Reader(span, peer, source, known.view, known)

    def _add(self, known: GroupOnTopic, queue_id: int, span: Span) -> None:
        span.number, self._next_number = self._next_number, self._next_number + 1
        history = known.history
        spans = history.queues.setdefault(queue_id, [])
        spans.append(span)
        known.used.add(span.view)
        fields = _span_fields(queue_id, span)
        where = {"g": history.group, "o": history.topic, "n": span.number}
        self._write({"t": "span", **where, "s": fields}, known)
        if len(spans) > MOST_SPANS:
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

    def _tenure(self, known: GroupOnTopic, queue_id: int, member: str, lane: str) -> list[Span]:
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
        self, known: GroupOnTopic, queue_id: int, member: str, after: int, lane: str
    ) -> int | None:
        """Return up to where the member has read the queue; None if it has not."""
        tenure = self._tenure(known, queue_id, member, lane)
        for span in tenure:
            if span.start < after and span.acked < min(after, span.end):
                span.acked = min(after, span.end)
                self._moved[span] = None
        return tenure[0].end if tenure and tenure[-1].start <= after else None

    def _read_through_filter_server(
        self, known: GroupOnTopic, queue_id: int, before: int, after: int, member: str, own: Filter
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

    def _put_view(self, known: GroupOnTopic, members: Mapping[Peer, Member]) -> None:
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

    def _topic(self, group: str, topic: str) -> GroupOnTopic:
        if self._held > MOST_HELD * self._settings.config.history_bytes:
            self._make_room()  # the file can't be written, or not as fast as this comes
        known = self._topics.get((group, topic))
        if known is None:
            while len(self._topics) >= MOST_TOPICS:
                self._drop_for_room(next(iter(self._topics)))  # the first that came
            since = max(self.since, self._forgotten)
            known = self._topics[group, topic] = GroupOnTopic(GroupHistory(group, topic, since))
            online = self._consumers.groups.get(group)
            members = {} if online is None else online.members
            for member in members.values():
                by = filter_of(member.subscriptions.get(topic))
                if by is not None:
                    known.filters[by] += 1
            self._put_view(known, members)
        return known

    def _member(self, group: str, topic: str, peer: Peer | None) -> tuple[str, Filter | None]:
        known = self._consumers.groups.get(group)
        member = known.members.get(peer) if known is not None and peer is not None else None
        if member is None:
            return str(peer), None
        return member.client_id, filter_of(member.subscriptions.get(topic))


def _differs(before: Subscription | None, after: Subscription) -> bool:
    """Whether they filter differently; mostly only their versions differ."""
    return (
        before is None
        or before.expression != after.expression
        or before.expression_type != after.expression_type
        or before.class_filter_mode != after.class_filter_mode
    )


def _is_reset(known: GroupOnTopic, queue_id: int, after: int) -> bool:
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
