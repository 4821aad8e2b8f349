"""History from the lines that a broker keeps it in; `broker/historyfile.py` says what they are.

Lines may come twice: those that were written while all of it was written to a new file, and those
of an attempt to save that failed in the end. So reading one twice changes nothing.
"""

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ..errors import StoreError
from .facts import RESET, FilterChange, Move
from .filters import EVERYTHING, Filter
from .history import Change, GroupHistory, History, Span, make_view

__all__ = ["VERSION", "NotHistory", "history_of"]

log = logging.getLogger(__name__)

VERSION: Final = 1  # of the file


class NotHistory(StoreError):
    """Raised for a file that was not written by this release, or not by us."""


def history_of(
    lines: Iterable[Mapping[str, Any] | None], name: str = "the history"
) -> History | None:
    """Return what the lines tell; None if there is none. Those that are not understood, or None,
    are passed over, and logged once, with the name of the file. If the broker did not stop in good
    order, the last span of each queue is open. Raises NotHistory."""
    reading, strange, last_fault = None, 0, ""
    for line in lines:
        if reading is None:
            reading = _Reading(_first(name, line))
            continue
        try:
            if line is None:
                raise ValueError("no JSON object")
            reading.replay(line)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            strange += 1
            last_fault = f"{type(error).__name__} {error}"
            reading.is_clean = False
    if strange:
        log.warning(
            "%s: %d lines can't be read and are passed over, the last for %.200s",
            *(name, strange, last_fault),
        )
    return None if reading is None else reading.result()


def _first(name: str, line: Mapping[str, Any] | None) -> History:
    try:
        if line is None or line["t"] != "since":
            raise ValueError
        loaded = History(int(line["time"]), forgotten=int(line.get("forgot", 0)))
        version = int(line.get("version", VERSION))
    except (KeyError, TypeError, ValueError):
        why = "the first line does not say since when it is kept"
        raise NotHistory(f"{name} can't be read: {why}") from None
    if version != VERSION:
        why = f"it is of version {version}, and this release reads version {VERSION}"
        raise NotHistory(f"{name} can't be read: {why}")
    return loaded


class _Reading:
    """The state of reading."""

    def __init__(self, loaded: History) -> None:
        self._loaded = loaded
        self._spans: dict[int, Span] = {}  # by number
        self._events: dict[tuple[str, str], set[Change | Move]] = {}  # that are known already
        self.is_clean = False

    def result(self) -> History:
        loaded = self._loaded
        loaded.is_clean = self.is_clean
        if not self.is_clean:
            for history in loaded.groups.values():
                for queue in history.queues.values():
                    last = {(span.member, span.lane): span for span in queue}
                    for span in last.values():
                        span.is_open = True
        return loaded

    def replay(self, line: Mapping[str, Any]) -> None:
        kind = line["t"]
        self.is_clean = kind == "clean"
        match kind:
            case "group":
                history = GroupHistory.from_json(line["h"])
                self._forget((history.group, history.topic))
                self._loaded.groups[history.group, history.topic] = history
                for queue in history.queues.values():
                    self._spans.update((span.number, span) for span in queue)
            case "end":
                span, end, acked = self._spans.get(line["n"]), int(line["e"]), int(line["a"])
                if span is not None:
                    span.end, span.acked = end, acked
            case "gone":
                self._loaded.forgotten = max(self._loaded.forgotten, int(line.get("forgot", 0)))
                for key in list(self._loaded.groups):
                    if line.get("g") in (None, key[0]) and line.get("o") in (None, key[1]):
                        self._forget(key)
            case "clean" | "start":
                pass
            case "span" | "view" | "change" | "move" | "kind":
                self._replay_of_group(kind, line)
            case _:
                raise ValueError(f"a line of kind {kind!r:.50}")

    def _forget(self, key: tuple[str, str]) -> None:
        """So that what comes again is new."""
        history = self._loaded.groups.pop(key, None)
        self._events.pop(key, None)
        for queue in history.queues.values() if history is not None else ():
            for span in queue:
                self._spans.pop(span.number, None)

    def _group(self, line: Mapping[str, Any]) -> GroupHistory:
        key = (str(line["g"]), str(line["o"]))
        history = self._loaded.groups.get(key)
        if history is None:
            since = max(self._loaded.since, self._loaded.forgotten)
            history = self._loaded.groups[key] = GroupHistory(*key, since)
        return history

    def _replay_of_group(self, kind: str, line: Mapping[str, Any]) -> None:
        match kind:
            case "span":
                queue_id, span = _span(line)
                if span.number not in self._spans:
                    self._group(line).queues.setdefault(queue_id, []).append(span)
                    self._spans[span.number] = span
            case "view":
                since, filters = line["v"]
                pairs = [(str(m), Filter(kind, text)) for kind, text, *ids in filters for m in ids]
                view = make_view(int(since), pairs)
                self._group(line).views[int(line["n"])] = view
            case "change":
                time, member, before, after = line["c"]
                change = Change(int(time), str(member), _filter(before), _filter(after))
                self._add_once(self._group(line).changes, line, change)
            case "move":
                move = _move(line)
                history = self._group(line)
                self._add_once(history.moves, line, move)
                if move.why == RESET:
                    known = history.resets.get(move.queue_id, 0)
                    history.resets[move.queue_id] = max(known, int(line["n"]))
            case "kind":
                history = self._group(line)
                history.is_broadcasting, history.is_pull = bool(line["b"]), bool(line["p"])

    def _add_once(self, events: deque[Any], line: Mapping[str, Any], event: Change | Move) -> None:
        history = self._group(line)
        key = (history.group, history.topic)
        known = self._events.get(key)
        if known is None:
            known = self._events[key] = {*history.changes, *history.moves}
        if event not in known:
            known.add(event)
            events.append(event)


def _span(line: Mapping[str, Any]) -> tuple[int, Span]:
    queue_id, start, end, member, by, own, view, began, acked, lane, *rest = line["s"]
    unless, change = rest
    span = Span(
        *(int(start), int(end), str(member), _filter(by) or EVERYTHING, _filter(own), int(view)),
        *(int(began), int(acked), str(lane)),
        number=int(line["n"]),
        unless=tuple(filter(None, map(_filter, unless))),
        change=_change(change),
    )
    return int(queue_id), span


def _move(line: Mapping[str, Any]) -> Move:
    time, queue_id, before, after, who, why, lane, wanted = line["m"]
    return Move(
        time=int(time),
        queue_id=int(queue_id),
        before=None if before is None else int(before),
        after=int(after),
        by=str(who),
        why=str(why),
        lane=str(lane),
        filter=_filter(wanted),
    )


def _change(fields: list[Any] | None) -> FilterChange | None:
    if fields is None:
        return None
    cut, old, new, is_handed = fields
    return FilterChange(int(cut), Filter(*old), Filter(*new), bool(is_handed))


def _filter(fields: list[Any] | None) -> Filter | None:
    return None if fields is None else Filter(fields[0], str(fields[1]))
