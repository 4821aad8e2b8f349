"""Who read what, by which filter: the record that fates are judged by.

For each group, topic and queue there are *spans*, in the order they began: one member was answered
with what lies from one offset to another, by one filter, while the group's members had the filters
of one *view*. Beside them, *changes* (members that come, go or subscribe differently) and *moves*
(progress that changed otherwise than by reading). The broker keeps it (`broker/history.py`); this
is the model, its JSON, and the questions it answers.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from .facts import FilterChange, Move, Reading, View
from .filters import Filter

__all__ = ["Change", "GroupHistory", "History", "Span"]

MOST_CHANGES: Final = 1000  # remembered of a group on a topic
MOST_MOVES: Final = 1000  # likewise
_MEMBERS_SHOWN: Final = 3  # client ids for each filter of a view
_MOST_FILTERS: Final = 64  # of a view
_MOST_READINGS: Final = 32  # of a message that are given; a hostile client reads it for ever
_MOST_TEXT: Final = 2**16  # characters of a view's filters, beyond which there are no more than two


@dataclass(slots=True, eq=False)
class Span:
    """Messages from `start` up to `end`, looked at for `member`. Progress is acknowledged up to
    `acked`. `is_open`: the broker stopped without saving how far it got."""

    start: int
    end: int
    member: str
    filter: Filter
    own: Filter | None
    view: int  # number in the views of the group on the topic
    began: int
    acked: int = 0
    lane: str = ""
    is_open: bool = False
    number: int = -1  # by which the broker's file knows it
    unless: tuple[Filter, ...] = ()  # what these want was left to other lanes
    change: FilterChange | None = None  # under way then

    def covers(self, offset: int) -> bool:
        return self.start <= offset < self.end


class Change(NamedTuple):
    """A member's subscription to a topic: None before it came, None after it left."""

    time: int
    member: str
    before: Filter | None
    after: Filter | None


@dataclass(slots=True, eq=False)
class GroupHistory:
    """A group on a topic."""

    group: str
    topic: str
    since: int  # from when on all of it is known
    views: dict[int, View] = field(default_factory=dict)  # by number; the last is in force
    queues: dict[int, list[Span]] = field(default_factory=dict)
    moves: deque[Move] = field(default_factory=lambda: deque(maxlen=MOST_MOVES))
    changes: deque[Change] = field(default_factory=lambda: deque(maxlen=MOST_CHANGES))
    floors: dict[int, int] = field(default_factory=dict)  # offsets before which spans were dropped
    resets: dict[int, int] = field(default_factory=dict)  # by queue: spans before are done with
    is_broadcasting: bool = False
    is_pull: bool = False

    def readings(self, queue_id: int, offset: int) -> tuple[Reading, ...]:
        """Return who read the message, the first first. If it was read very often, the last of
        those that acknowledged it, and of those that did not."""
        spans = [span for span in self.queues.get(queue_id, ()) if span.covers(offset)]
        if len(spans) > _MOST_READINGS:
            acked = [span for span in spans if span.acked > offset][-_MOST_READINGS // 2 :]
            others = [span for span in spans if span.acked <= offset][-_MOST_READINGS // 2 :]
            kept = {*acked, *others}
            spans = [span for span in spans if span in kept]
        return tuple(
            Reading(
                member=span.member,
                filter=span.filter,
                own=span.own,
                view=self.views.get(span.view, NO_VIEW),
                began=span.began,
                start=span.start,
                end=span.end,
                acknowledged=span.acked > offset,
                lane=span.lane,
                unless=span.unless,
                change=span.change,
            )
            for span in spans
        )

    def moves_of(self, queue_id: int) -> tuple[Move, ...]:
        return tuple(move for move in self.moves if move.queue_id == queue_id)

    def first_read(self, queue_id: int) -> int | None:
        """Return the lowest offset that any span of the queue begins at."""
        return min((span.start for span in self.queues.get(queue_id, ())), default=None)

    def unsaved_from(self, queue_id: int, offset: int) -> int | None:
        """Return the end of a span that may have gone on to the message, had the broker not
        stopped before it could save that."""
        ends = [s.end for s in self.queues.get(queue_id, ()) if s.is_open and s.end <= offset]
        return max(ends, default=None)

    def is_known_from(self, queue_id: int) -> int:
        """Return the offset before which spans of the queue are no longer kept."""
        return self.floors.get(queue_id, 0)

    def complete_since(self, queue_id: int, offset: int, broker_since: int) -> int:
        """Return from when on all readings of the message are known, at a broker that has kept
        history since `broker_since`."""
        if offset < self.is_known_from(queue_id):
            began = [span.began for span in self.queues.get(queue_id, ())]
            return min(began, default=broker_since)
        return max(broker_since, self.since)

    def to_json(self) -> dict[str, Any]:
        """Return all of it, filters by number. From any thread: each table is copied at once."""
        numbers = _Numbers()
        spans = [
            [
                *(queue_id, span.start, span.end, span.member, numbers[span.filter]),
                *(numbers[span.own], span.view, span.began, span.acked, span.lane),
                *(span.is_open, span.number, [numbers[by] for by in span.unless]),
                _change_to_json(span.change, numbers),
            ]
            for queue_id, spans in list(self.queues.items())
            for span in list(spans)
        ]
        views = {
            str(number): [view.since, [[numbers[f], list(m)] for f, m in view.filters.items()]]
            for number, view in list(self.views.items())
        }
        return {
            "group": self.group,
            "topic": self.topic,
            "since": self.since,
            "spans": spans,
            "views": views,
            "moves": [_move_to_json(move, numbers) for move in list(self.moves)],
            "changes": [
                [c.time, c.member, numbers[c.before], numbers[c.after]] for c in list(self.changes)
            ],
            "floors": {str(queue_id): offset for queue_id, offset in list(self.floors.items())},
            "resets": {str(queue_id): number for queue_id, number in list(self.resets.items())},
            "broadcasting": self.is_broadcasting,
            "pull": self.is_pull,
            "filters": numbers.to_json(),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "GroupHistory":
        """Raises KeyError, TypeError, ValueError or IndexError for what is not such a record."""
        filters: list[Filter] = [Filter(kind, text) for kind, text in value["filters"]]

        def named(number: int | None) -> Filter | None:
            return None if number is None else filters[number]

        made = cls(value["group"], value["topic"], int(value["since"]))
        for queue_id, start, end, member, by, own, view, began, acked, lane, *rest in value[
            "spans"
        ]:
            is_open, number, unless, change = rest
            made.queues.setdefault(int(queue_id), []).append(
                Span(
                    *(int(start), int(end), str(member), filters[by], named(own), int(view)),
                    *(int(began), int(acked), str(lane), bool(is_open), int(number)),
                    tuple(filters[other] for other in unless),
                    _change_from_json(change, filters),
                )
            )
        for number, (since, members) in dict(value["views"]).items():
            made.views[int(number)] = View(
                int(since), {filters[by]: tuple(ids) for by, ids in members}
            )
        made.moves.extend(_move_from_json(fields, filters) for fields in value["moves"])
        for time, member, before, after in value["changes"]:
            made.changes.append(Change(int(time), str(member), named(before), named(after)))
        for table, name in ((made.floors, "floors"), (made.resets, "resets")):
            table.update((int(queue), int(at)) for queue, at in dict(value.get(name, {})).items())
        made.is_broadcasting, made.is_pull = bool(value["broadcasting"]), bool(value["pull"])
        return made


NO_VIEW: Final = View(0, {})


@dataclass(slots=True, eq=False)
class History:
    """A broker's history from `since` on, or the part of it that somebody asked for."""

    since: int
    groups: dict[tuple[str, str], GroupHistory] = field(default_factory=dict)  # by group, topic
    broker: str = ""
    forgotten: int = 0  # when groups were last dropped for want of room
    is_clean: bool = True  # whether the broker stopped in good order

    def to_json(self) -> dict[str, Any]:
        groups = [history.to_json() for history in self.groups.values()]
        return {"broker": self.broker, "since": self.since, "groups": groups}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "History":
        """Raises as `GroupHistory.from_json`."""
        groups = map(GroupHistory.from_json, value["groups"])
        known = {(history.group, history.topic): history for history in groups}
        return cls(int(value["since"]), known, str(value.get("broker", "")))


def make_view(time: int, filters: Iterable[tuple[str, Filter]]) -> View:
    """Return the view of members, given by client id and filter; cut short if they have very many
    different ones."""
    made: dict[Filter, tuple[str, ...]] = {}
    size = 0
    for member, by in filters:
        known = made.get(by)
        if known is None:
            size += len(by.text)
            if len(made) < 2 or (len(made) < _MOST_FILTERS and size <= _MOST_TEXT):
                made[by] = (member,)
        elif len(known) < _MEMBERS_SHOWN and member not in known:
            made[by] = (*known, member)
    return View(time, made)


class _Numbers:
    """Gives each filter a number, in the order they are met."""

    def __init__(self) -> None:
        self._numbers: dict[Filter, int] = {}

    def __getitem__(self, by: Filter | None) -> int | None:
        return None if by is None else self._numbers.setdefault(by, len(self._numbers))

    def to_json(self) -> list[list[str]]:
        return [[by.kind, by.text] for by in self._numbers]


def _change_to_json(change: FilterChange | None, numbers: _Numbers) -> list[Any] | None:
    if change is None:
        return None
    return [change.cut, numbers[change.old], numbers[change.new], change.is_handed]


def _change_from_json(fields: list[Any] | None, filters: list[Filter]) -> FilterChange | None:
    if fields is None:
        return None
    cut, old, new, is_handed = fields
    return FilterChange(int(cut), filters[old], filters[new], bool(is_handed))


def _move_to_json(move: Move, numbers: _Numbers) -> list[Any]:
    return [
        *(move.time, move.queue_id, move.before, move.after, move.by, move.why, move.lane),
        numbers[move.filter],
    ]


def _move_from_json(fields: list[Any], filters: list[Filter]) -> Move:
    time, queue_id, before, after, by, why, lane, wanted = fields
    return Move(
        time=int(time),
        queue_id=int(queue_id),
        before=None if before is None else int(before),
        after=int(after),
        by=str(by),
        why=str(why),
        lane=str(lane),
        filter=None if wanted is None else filters[wanted],
    )
