"""Keeps history in memory and in its file, within bounds: the half of the recorder that does not
ask what is recorded. `history.py` has the other half.

Lines wait until they are written in another thread; how far spans are is noted beside them. When
the file has grown to several times what it holds, all that is held is written to a new one.
Bounded: what concerns only messages that have left the log is dropped all the time. If the rest
takes too much (`history_bytes`), the groups that take most lose the older half of it; the offset,
or the time, before which not all is known is kept then.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from ..errors import StoreError
from ..fate.facts import Move
from ..fate.filters import Filter
from ..fate.history import GroupHistory, History, Span
from ..fate.loading import VERSION, NotHistory, history_of
from ..net.aio import Peer
from .config import Settings
from .historyfile import HistoryFile, read_lines

__all__ = [
    "MOST_HELD",
    "MOST_SPANS",
    "MOST_TOPICS",
    "GroupOnTopic",
    "KeptHistory",
    "Reader",
    "load_history",
]

log = logging.getLogger(__name__)

MOST_TOPICS: Final = 20_000  # groups on topics: clients may make up names for ever
_MOST_LINES: Final = 100_000  # not yet written; beyond that the file is written anew
_LEAST_SIZE: Final = 1 << 20  # bytes of the file, below which it is not written anew
_GROWTH: Final = 4  # times what it held when it was last written anew
_HELD: Final = 2  # times `history_bytes`: room is made when it is saved next
MOST_HELD: Final = 4  # times `history_bytes`: room is made at once
_ROOM_SECONDS: Final = 0.005  # of making room at once
_LEAST_SPANS: Final = 4  # of a queue that are kept when room is made
MOST_SPANS: Final = 10_000  # of a queue: readers may take turns for ever
_CLEAN: Final = orjson.dumps({"t": "clean"})
_START: Final = orjson.dumps({"t": "start"})


@dataclass(slots=True, eq=False)
class GroupOnTopic:
    """A group on a topic: its history, and how many members have which filter."""

    history: GroupHistory
    view: int = -1  # number of the one in force
    filters: Counter[Filter] = field(default_factory=Counter)
    readers: set[tuple[str, str, int, str]] = field(default_factory=set)  # keys of `_readers`
    used: set[int] = field(default_factory=set)  # views that spans have
    size: int = 0  # bytes, about, that it takes in the file
    last_moves: dict[int, Move] = field(default_factory=dict)  # by queue


@dataclass(slots=True, eq=False)
class Reader:
    """Who reads a queue now: the span, and what to recognise a pull of the same kind by."""

    span: Span
    peer: Peer
    source: object
    view: int
    topic: GroupOnTopic
    behind: bool = True  # whether spans before this one may not be acknowledged


class KeptHistory:
    """Belongs to the event loop; what `snapshot` returns may be called in another thread, one at a
    time. `min_offset` tells where a queue begins. Raises StoreError for a file that can't be read.
    """

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        min_offset: Callable[[str, int], int],
        now: Callable[[], float],
    ) -> None:
        self._settings = settings
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
        self._topics: dict[tuple[str, str], GroupOnTopic] = {}
        # By group, topic, queue and lane: one lookup for each pull.
        self._readers: dict[tuple[str, str, int, str], Reader] = {}
        self._unclean: list[tuple[str, str]] = []  # to be looked through by `clean`
        self._held = 0  # bytes, about, that all of it takes in the file
        self._waiting = 0  # bytes of `_lines`
        self._started = self._millis()
        self._was_killed = loaded is not None and not loaded.is_clean
        self.since = self._millis() if loaded is None else loaded.since
        if loaded is None:
            self._write(self._first_line())
        else:
            self._forgotten = loaded.forgotten
            self._topics = {key: GroupOnTopic(history) for key, history in loaded.groups.items()}
            self._write({"t": "start", "time": self._started})
            for topic in self._topics.values():
                topic.size = self._file.size // len(self._topics)  # until it is written anew
            self._held = self._file.size

    @property
    def path(self) -> Path:
        return self._file.path

    def _load(self) -> History | None:
        try:
            return load_history(self._file.path)
        except NotHistory as error:
            aside = self._file.set_aside()
            log.error("%s: it is kept as %s, and history begins anew", error, aside.name)
            return None

    def _first_line(self) -> dict[str, Any]:
        return {"t": "since", "time": self.since, "version": VERSION, "forgot": self._forgotten}

    def history(self, group: str, topic: str) -> GroupHistory | None:
        known = self._topics.get((group, topic))
        return None if known is None else known.history

    def groups(self, topic: str) -> list[str]:
        """Return the groups that have read the topic, or subscribed to it."""
        return [group for group, one in self._topics if one == topic]

    def known(self, group: str | None = None, topic: str | None = None) -> list[GroupHistory]:
        return [
            known.history
            for (one_group, one_topic), known in self._topics.items()
            if group in (None, one_group) and topic in (None, one_topic)
        ]

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

    def _millis(self) -> int:
        return int(self._now() * 1000)

    def _write(self, line: dict[str, Any], known: GroupOnTopic | None = None) -> None:
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

    def _halve(self, known: GroupOnTopic) -> bool:
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

    def _drop_older(self, known: GroupOnTopic, queue_id: int) -> None:
        spans, floors = known.history.queues[queue_id], known.history.floors
        half = len(spans) // 2
        known.history.queues[queue_id] = spans[half:]
        end = floors.get(queue_id, 0)
        for span in spans[:half]:
            end = max(end, span.end)
            self._moved.pop(span, None)
        floors[queue_id] = end

    def _drop_spans(self, known: GroupOnTopic, queue_id: int, gone: Iterable[Span]) -> None:
        dropped = set(gone)
        if dropped:
            spans = known.history.queues[queue_id]
            known.history.queues[queue_id] = [span for span in spans if span not in dropped]
            for span in dropped:
                self._moved.pop(span, None)

    def _drop_views(self, known: GroupOnTopic) -> None:
        known.used = {span.view for spans in known.history.queues.values() for span in spans}
        kept = {*known.used, known.view, known.view - 1}
        views = known.history.views
        if len(views) > len(kept):
            known.history.views = {n: view for n, view in views.items() if n in kept}

    def close(self) -> None:
        """Say that all is saved: nothing was read that is not recorded. To be saved after it."""
        self._is_closed = True
        self.changes += 1


def load_history(path: Path) -> History | None:
    """Return what a file holds; None if there is none. Raises NotHistory, OSError."""
    return history_of(read_lines(path), str(path))
