"""Where messages enter the store: those that come together are stored together.

Everything put in one turn of the event loop is one append, and with sync flush everything that came
while the disk was busy is one flush. This is what makes 128 requests in flight cheap.

1. put: the message waits for the end of the turn. 2. append: it is in the log. 3. sync flush only:
a thread waits for the disk, the loop goes on. 4. whoever put it is told. Dispatch follows 2.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from ..errors import StoreError
from ..net.aio import Peer
from ..store.commitlog import Appended, Block
from ..store.store import Store
from ..wire.record import Draft

if TYPE_CHECKING:
    from ..store._walk import Rows

__all__ = ["Finish", "Intake"]

log = logging.getLogger(__name__)

# Given what was put with the message, and its place or why it has none; gives what to write back.
Finish = Callable[[Any, Appended | StoreError], bytes]


_AT_ONCE: Final = 0.0005  # seconds: the loop may wait so long, others hardly notice


class Intake:
    """`on_stored` is told after each append, to dispatch. `latest_flush` is how long one took."""

    def __init__(self, store: Store, *, sync: bool, on_stored: Callable[[], None]) -> None:
        self._store = store
        self._sync = sync
        self._on_stored = on_stored
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[Draft, Finish, Any, Peer | None]] = []
        self._scheduled = False
        self._unsynced: list[Callable[[StoreError | None], None]] = []  # told when it is safe
        self._disk = ThreadPoolExecutor(1, "tamis-disk") if sync else None
        self._is_idle = asyncio.Event()  # nothing is being synced
        self._is_idle.set()
        self._disk_seconds = _AT_ONCE  # what a sync took lately
        self.backlog = 0  # messages put and not yet told of
        self.on_flush: Callable[[float], None] = lambda seconds: None
        self.on_append: Callable[[float, int], None] = lambda seconds, messages: None

    def put(self, draft: Draft, finish: Finish, context: Any, peer: Peer | None = None) -> None:
        """`finish` is called when the message is as safe as was asked for."""
        self._waiting.append((draft, finish, context, peer))
        self.backlog += 1
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._append)

    async def store(self, drafts: Sequence[Draft]) -> list[Appended]:
        """As `put`, for those that wait. Raises StoreError."""
        futures = []
        for draft in drafts:
            future: asyncio.Future[Appended] = self._loop.create_future()
            futures.append(future)
            self.put(draft, _resolve, future)
        return list(await asyncio.gather(*futures))

    def append(self, drafts: Sequence[Draft]) -> list[Appended | StoreError]:
        """Stores messages at once, after all that was put before, and does not wait for the disk:
        for whoever stores them again should they be lost. Returns the place of each, or why it has
        none: one that is refused is no reason to store the others twice."""
        if self._waiting:
            self._append()
        started = time.monotonic()
        placed = self._append_each(drafts)
        self.on_append(time.monotonic() - started, len(drafts))
        self._on_stored()
        return placed

    def append_batch(self, envelope: Draft, batch: bytes) -> list[Appended]:
        """A batch as it travelled, after all that was put before; with sync flush see `synced`.
        Raises StoreError."""
        if self._waiting:
            self._append()
        started = time.monotonic()
        placed = self._store.append_batch(envelope, batch)
        self.on_append(time.monotonic() - started, len(placed))
        self._on_stored()
        return placed

    def append_block(self, block: Block) -> "Rows | None":
        """Messages that came together, at once, after all that was put before; see
        `Store.append_block`, and `tell_when_synced`. Raises StoreError."""
        if self._waiting:
            self._append()
        started = time.monotonic()
        placed = self._store.append_block(block)
        if placed is not None:
            self.on_append(time.monotonic() - started, len(block.rows))
            self._on_stored()
        return placed

    def tell_when_synced(
        self, count: int, peer: Peer, finish: Callable[[StoreError | None], bytes]
    ) -> None:
        """With sync flush: `finish` is called when the messages just appended are on the disk, or
        with why they are not; gives what to write back."""
        self.backlog += count

        def tell(error: StoreError | None) -> None:
            self.backlog -= count
            if data := finish(error):
                peer.write(data)

        self._wait_for_disk(tell)

    @property
    def is_sync(self) -> bool:
        return self._sync

    async def synced(self) -> None:
        """All that is in the log now is on the disk, if that is asked for."""
        if self._disk is not None:
            await self._loop.run_in_executor(self._disk, self._sync_log)

    def _append(self) -> None:
        self._scheduled = False
        batch, self._waiting = self._waiting, []
        if not batch:  # `append_block` came before
            return
        started = time.monotonic()
        placed = self._append_each([one[0] for one in batch])
        self.on_append(time.monotonic() - started, len(batch))
        self._on_stored()
        if self._sync:
            self._wait_for_disk(
                lambda error: self._finish(batch, placed if error is None else [error] * len(batch))
            )
        else:
            self._finish(batch, placed)

    def _append_each(self, drafts: Sequence[Draft]) -> list[Appended | StoreError]:
        try:
            return [*self._store.append(drafts)]
        except Exception:  # the edge: one of them is at fault, the others are not
            return [self._append_one(draft) for draft in drafts]

    def _append_one(self, draft: Draft) -> Appended | StoreError:
        try:
            return self._store.append([draft])[0]
        except StoreError as error:
            return error
        except Exception as error:
            log.exception("a message of %s could not be stored", draft.topic)
            return StoreError(f"{type(error).__name__}: {error}")

    def _finish(
        self,
        batch: list[tuple[Draft, Finish, Any, Peer | None]],
        placed: Sequence[Appended | StoreError],
    ) -> None:
        self.backlog -= len(batch)
        answers: dict[Peer, list[bytes]] = {}
        for (_, finish, context, peer), place in zip(batch, placed, strict=True):
            data = finish(context, place)
            if peer is not None and data:
                answers.setdefault(peer, []).append(data)
        for peer, parts in answers.items():
            peer.write(b"".join(parts))

    # Sync flush: one after the other, each for all that came before it. A disk that answers at once
    # is waited for here, for a thread would take longer to be asked; any other, in a thread.

    def _wait_for_disk(self, tell: Callable[[StoreError | None], None]) -> None:
        self._unsynced.append(tell)
        if self._is_idle.is_set():
            self._is_idle.clear()
            self._loop.call_soon(self._sync_next)  # after all of this turn

    def _sync_next(self) -> None:
        waiting, self._unsynced = self._unsynced, []
        if not waiting or self._disk is None:
            self._is_idle.set()
        elif self._disk_seconds < _AT_ONCE:
            self._synced(waiting, self._try_sync())
        else:
            self._disk.submit(self._sync_for, waiting)

    def _sync_for(self, waiting: list[Callable[[StoreError | None], None]]) -> None:
        """In the disk's thread. No futures: they would take longer than the disk (bench_broker)."""
        self._loop.call_soon_threadsafe(self._synced, waiting, self._try_sync())

    def _try_sync(self) -> StoreError | None:
        try:
            self._sync_log()
        except StoreError as error:
            return error
        except Exception as error:
            log.exception("the log could not be synced")
            return StoreError(f"{type(error).__name__}: {error}")
        return None

    def _synced(
        self, waiting: list[Callable[[StoreError | None], None]], failed: StoreError | None
    ) -> None:
        self._loop.call_soon(self._sync_next)
        for tell in waiting:
            try:
                tell(failed)
            except Exception:  # the edge: the others are to be told all the same
                log.exception("an answer could not be given")

    def _sync_log(self) -> None:
        started = time.monotonic()
        self._store.make_durable()
        took = time.monotonic() - started
        self._disk_seconds += (took - self._disk_seconds) / 8
        self.on_flush(took)

    async def drain(self) -> None:
        """All that was put is safe, and those who put it are told."""
        if self._waiting:
            self._append()
        await self._is_idle.wait()

    async def close(self) -> None:
        """When nobody puts any more."""
        await self.drain()
        if self._disk is not None:
            self._disk.shutdown()


def _resolve(future: "asyncio.Future[Appended]", place: Appended | StoreError) -> bytes:
    if not future.done():
        if isinstance(place, StoreError):
            future.set_exception(place)
        else:
            future.set_result(place)
    return b""
