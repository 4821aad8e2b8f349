"""Saves the broker's tables: topics, groups, offsets, delays and filters, each a JSON file.

A table counts its changes, and stays unsaved until a file that has all of them is on the disk. A
save that fails (a full disk, no inode left) is tried again with growing pauses; it is logged when
it begins to fail and when it works again, not at each attempt, and shown by the metrics. Whoever
must not be told of success before a change is on the disk waits for `durable`.

A table that keeps a journal need not be saved for that: its journal is synced, and the table is
saved as often as a twentieth of the time allows.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Final, Protocol

from ..errors import StoreError

__all__ = ["Saver", "Table", "reason"]

log = logging.getLogger(__name__)

_SOON: Final = 0.02  # seconds: the changes of a moment are one save
_FIRST_PAUSE: Final = 0.1  # seconds between attempts; twice as long after each failure
_LONGEST_PAUSE: Final = 5.0
_SHARE: Final = 20  # times what a save took: until the next one, if there is a journal
_LONGEST_WAIT: Final = 30.0  # seconds; RocketMQ would not know of the changes, should it take over


class Table(Protocol):
    """`changes` counts them. What `snapshot` returns saves the table as it is now to `path`, and
    may be called in another thread."""

    changes: int

    @property
    def path(self) -> Path: ...

    def snapshot(self) -> Callable[[], None]: ...


@dataclass(slots=True, eq=False)
class _Kept:
    """A table, and how far it is saved."""

    name: str
    table: Table
    sync: Callable[[], None] | None  # its journal, in another thread
    saved: int = 0  # changes that are in the file
    synced: int = 0  # changes that are in the journal
    due: float | None = None  # when to save it
    rests: float = -inf  # until when it is enough to sync the journal
    pause: float = _FIRST_PAUSE
    failures: int = 0
    failure: str | None = None  # why the last attempt failed
    waiting: list[tuple[int, asyncio.Future[None]]] = field(default_factory=list)  # for changes

    @property
    def is_saved(self) -> bool:
        return self.saved >= self.table.changes

    @property
    def is_durable(self) -> bool:
        return max(self.saved, self.synced) >= self.table.changes


class Saver:
    """All of it runs in the event loop; files are written in a thread, one at a time."""

    def __init__(self, in_thread: Callable[[Callable[[], None]], Awaitable[Any]]) -> None:
        self._in_thread = in_thread
        self._tables: dict[str, _Kept] = {}
        self._woken = asyncio.Event()

    def add(self, name: str, table: Table, sync: Callable[[], None] | None = None) -> None:
        """`sync`: makes the changes durable in a journal, and may be called in another thread."""
        self._tables[name] = _Kept(name, table, sync)

    def soon(self, name: str, seconds: float = _SOON) -> None:
        """Saves a table a moment later, if it has changed; if saving fails, when that is tried
        next."""
        kept = self._tables[name]
        if not kept.is_saved and (kept.due is None or kept.failure is None):
            self._save_by(kept, seconds)

    async def durable(self, *names: str) -> None:
        """Returns when all changes these tables have now are on the disk. Raises StoreError if an
        attempt fails; more are made all the same."""
        futures = []
        for kept in (self._tables[name] for name in names):
            if not kept.is_durable:
                future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                kept.waiting.append((kept.table.changes, future))
                futures.append(future)
                self._save_by(kept, _SOON)  # at once, even if it failed a moment ago
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    def failures(self) -> dict[str, tuple[bool, int]]:
        """By table: whether saving it fails now, and how often it did. From any thread."""
        return {
            name: (kept.failure is not None, kept.failures) for name, kept in self._tables.items()
        }

    async def run(self) -> None:
        """Saves what is due, until it is cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            self._woken.clear()
            due = [(kept.due, kept) for kept in self._tables.values() if kept.due is not None]
            at, kept = min(due, key=lambda one: one[0], default=(None, None))
            if at is not None and kept is not None and at <= clock():
                await self._save(kept)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(at):
                    await self._woken.wait()

    def save_all(self) -> None:
        """Saves every table once, in this thread, when `run` has ended. What fails is logged, and
        does not keep the others from being saved."""
        for kept in self._tables.values():
            changes = kept.table.changes
            try:
                kept.table.snapshot()()
            except Exception as error:
                why = reason(error, kept.table.path)
                log.error("the %s are not saved, what changed last is lost: %s", kept.name, why)
            else:
                kept.saved = changes

    def _save_by(self, kept: _Kept, seconds: float) -> None:
        at = asyncio.get_running_loop().time() + seconds
        if kept.due is None or at < kept.due:
            kept.due = at
            self._woken.set()

    async def _save(self, kept: _Kept) -> None:
        kept.due = None
        clock = asyncio.get_running_loop().time
        if clock() < kept.rests and await self._is_synced(kept):
            self._save_by(kept, kept.rests - clock())
            return
        changes, began = kept.table.changes, clock()
        try:
            await self._in_thread(kept.table.snapshot())
        except (StoreError, OSError) as error:
            self._failed(kept, changes, reason(error, kept.table.path))
        except Exception as error:  # the edge: the other tables are to be saved all the same
            log.exception("the %s could not be saved", kept.name)
            self._failed(kept, changes, reason(error, kept.table.path))
        else:
            self._succeeded(kept, changes)
            if kept.sync is not None:
                kept.rests = clock() + min(_SHARE * (clock() - began), _LONGEST_WAIT)

    async def _is_synced(self, kept: _Kept) -> bool:
        """Whether the changes are durable in the journal; if not, the table has to be saved."""
        assert kept.sync is not None
        changes = kept.table.changes
        try:
            await self._in_thread(kept.sync)
        except OSError as error:
            log.warning("the changes of the %s can't be synced: %s", kept.name, error)
            return False
        kept.synced = changes
        for future in self._told(kept, changes):
            future.set_result(None)
        return True

    def _succeeded(self, kept: _Kept, changes: int) -> None:
        if kept.failure is not None:
            log.info("the %s are saved again", kept.name)
        kept.failure, kept.pause, kept.saved = None, _FIRST_PAUSE, changes
        for future in self._told(kept, changes):
            future.set_result(None)

    def _failed(self, kept: _Kept, changes: int, why: str) -> None:
        if why != kept.failure:
            log.error("the %s can't be saved, trying again: %s", kept.name, why)
        kept.failure, kept.failures = why, kept.failures + 1
        self._save_by(kept, kept.pause)
        kept.pause = min(2 * kept.pause, _LONGEST_PAUSE)
        for future in self._told(kept, changes):
            future.set_exception(StoreError(why))

    def _told(self, kept: _Kept, changes: int) -> list[asyncio.Future[None]]:
        """Who waited for as many changes; the others wait for the next attempt."""
        waiting = kept.waiting
        kept.waiting = [one for one in waiting if one[0] > changes]
        return [future for wanted, future in waiting if wanted <= changes and not future.done()]


def reason(error: Exception, path: Path) -> str:
    """Which file, and what was wrong with it, in one line."""
    if isinstance(error, OSError):
        return f"{error.filename or path}: {error.strerror or error}"
    text = str(error) if isinstance(error, StoreError) else f"{type(error).__name__}: {error}"
    return text if str(path.parent.parent) in text else f"{path}: {text}"
