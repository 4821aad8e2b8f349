"""History from the lines that a broker keeps it in; `broker/historyfile.py` says what they are."""

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Final, TypeVar

from .facts import FilterChange, Move
from .filters import EVERYTHING, Filter
from .history import Change, GroupHistory, History, Span, make_view

__all__ = ["history_of"]

log = logging.getLogger(__name__)

T = TypeVar("T")

_REPEATED: Final = 64  # events that may be in a file twice, at the most


def history_of(lines: Iterable[Mapping[str, Any]]) -> History | None:
    """Return what the lines tell; None if there is none. Lines that are not understood are passed
    over. If the broker did not stop in good order, the last span of each queue is open."""
    loaded: History | None = None
    spans: dict[int, Span] = {}
    is_clean = False
    for line in lines:
        try:
            if loaded is None:
                loaded = History(int(line["time"]))
                continue
            is_clean = line["t"] == "clean" or (is_clean and line["t"] == "end")
            _replay(loaded, spans, line)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            log.warning("a line of the history is passed over: %.200r (%r)", line, error)
    if loaded is not None and not is_clean:
        loaded.is_clean = False
        for history in loaded.groups.values():
            for queue in history.queues.values():
                last = {(span.member, span.lane): span for span in queue}
                for span in last.values():
                    span.is_open = True
    return loaded


def _replay(loaded: History, spans: dict[int, Span], line: Mapping[str, Any]) -> None:
    match line["t"]:
        case "group":
            history = GroupHistory.from_json(line["h"])
            loaded.groups[history.group, history.topic] = history
            for queue in history.queues.values():
                spans.update((span.number, span) for span in queue)
        case "end":
            span = spans.get(line["n"])
            if span is not None:
                span.end, span.acked = int(line["e"]), int(line["a"])
        case "gone":
            for key in list(loaded.groups):
                if line.get("g") in (None, key[0]) and line.get("o") in (None, key[1]):
                    del loaded.groups[key]
        case "clean":
            pass
        case kind:
            key = (str(line["g"]), str(line["o"]))
            history = loaded.groups.get(key) or GroupHistory(*key, loaded.since)
            loaded.groups[key] = history
            _replay_of_group(history, spans, kind, line)


def _replay_of_group(
    history: GroupHistory, spans: dict[int, Span], kind: str, line: Mapping[str, Any]
) -> None:
    match kind:
        case "span":
            number = int(line["n"])
            queue_id, start, end, member, by, own, view, began, acked, lane, *rest = line["s"]
            unless, change = rest
            if number not in spans:
                span = Span(start, end, member, _filter(by) or EVERYTHING, _filter(own), view,
                            began, acked, lane, number=number)  # fmt: skip
                span.unless = tuple(filter(None, map(_filter, unless)))
                if change is not None:
                    cut, old, new, is_handed = change
                    span.change = FilterChange(cut, Filter(*old), Filter(*new), is_handed)
                history.queues.setdefault(int(queue_id), []).append(span)
                spans[number] = span
        case "view":
            since, filters = line["v"]
            pairs = [(m, Filter(kind, text)) for kind, text, *ids in filters for m in ids]
            history.views[int(line["n"])] = make_view(int(since), pairs)
        case "change":
            time, member, before, after = line["c"]
            change = Change(int(time), member, _filter(before), _filter(after))
            _append_once(history.changes, change)
        case "move":
            time, queue_id, before, after, who, why, lane, wanted = line["m"]
            move = Move(
                time=int(time),
                queue_id=int(queue_id),
                before=before,
                after=int(after),
                by=who,
                why=why,
                lane=lane,
                filter=_filter(wanted),
            )
            _append_once(history.moves, move)
        case "kind":
            history.is_broadcasting, history.is_pull = bool(line["b"]), bool(line["p"])


def _append_once(events: deque[T], event: T) -> None:
    if event not in islice(reversed(events), _REPEATED):
        events.append(event)


def _filter(fields: list[Any] | None) -> Filter | None:
    return None if fields is None else Filter(fields[0], fields[1])
