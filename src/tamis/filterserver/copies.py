"""Second copies of classes: questions about messages are answered by them.

A class may keep state between batches. If a question were put to the one that judges for the
consumers, what they get would depend on who asked. A copy costs a process, so there are few, and
those that nobody needs any more are closed.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ..errors import Error
from .classes import FilterClass

if TYPE_CHECKING:
    from ..code import Judge

__all__ = ["MOST_COPIES", "Copies"]

MOST_COPIES: Final = 8
_IDLE_SECONDS: Final = 60.0


@dataclass(slots=True, eq=False)
class _Copy:
    judge: "Judge"
    users: int = 0
    used: float = 0.0  # when somebody last began or ended
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # one caller of `judge` at a time


class Copies:
    """Belongs to the event loop. Loading and closing are the caller's: they take time."""

    def __init__(
        self,
        load: Callable[[FilterClass], "Awaitable[Judge]"],
        close: "Callable[[Judge], Awaitable[None]]",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load = load
        self._close = close
        self._clock = clock
        self._copies: OrderedDict[FilterClass, _Copy] = OrderedDict()
        self._loading = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._copies)

    @asynccontextmanager
    async def using(self, by: FilterClass) -> "AsyncIterator[tuple[Judge, asyncio.Lock]]":
        """Give the copy of a class, and the lock to hold while it judges. Raises Error if there are
        too many, and what loading a class does."""
        async with self._loading:
            copy = self._copies.get(by)
            if copy is None:
                copy = await self._make(by)
            copy.users += 1
        copy.used = self._clock()
        try:
            yield copy.judge, copy.lock
        finally:
            copy.users -= 1
            copy.used = self._clock()
            if by in self._copies:
                self._copies.move_to_end(by)
            if not by.is_active:
                await self._drop(by)

    async def sweep(self) -> None:
        """Close those that were not used for a while, or whose class was replaced."""
        before = self._clock() - _IDLE_SECONDS
        for by, copy in list(self._copies.items()):
            if not copy.users and (copy.used < before or not by.is_active):
                await self._drop(by)

    async def close(self) -> None:
        copies, self._copies = self._copies, OrderedDict()
        await asyncio.gather(*(self._close(copy.judge) for copy in copies.values()))

    async def _make(self, by: FilterClass) -> _Copy:
        if len(self._copies) >= MOST_COPIES:
            idle = next((other for other, copy in self._copies.items() if not copy.users), None)
            if idle is None:
                raise Error(f"{MOST_COPIES} classes are answering questions already")
            await self._drop(idle)
        made = self._copies[by] = _Copy(await self._load(by))
        return made

    async def _drop(self, by: FilterClass) -> None:
        copy = self._copies.get(by)
        if copy is not None and not copy.users:
            del self._copies[by]
            await self._close(copy.judge)
