"""What of a store is on the disk, and how the rest gets there.

The order must not change: (1) the log, (2) queues, index and our note of them, (3) the checkpoint
of both. A checkpoint never says more than the disk has for certain: after a sync that failed nobody
knows what that is, so nothing more is appended if it was the log's, and the checkpoint of queues
and index stays where it is if it was theirs.
"""

import threading
from collections.abc import Iterable, Mapping

from ..errors import StoreError
from .checkpoint import load_checkpoint, save_checkpoint
from .commitlog import CommitLog, Queue
from .config import StoreConfig
from .consumequeue import ConsumeQueue
from .files import Files, StorePaths
from .index import KeyIndex
from .notes import save_note

__all__ = ["MANY", "Flusher"]

MANY = 64  # more queues than that are flushed together


class Flusher:
    """`make_durable` and `add_grown` may be called by any thread, the others by one at a time."""

    def __init__(
        self,
        paths: StorePaths,
        files: Files,
        config: StoreConfig,
        log: CommitLog,
        queues: Mapping[Queue, ConsumeQueue],
        index: KeyIndex,
    ) -> None:
        """`queues` may grow while this looks at them."""
        self._paths = paths
        self._files = files
        self._config = config
        self._log = log
        self._queues = queues
        self._index = index
        self._flushing = threading.Condition()
        self._flush_running = False
        self._grown: set[Queue] = set()  # queues that are to be flushed
        self._growing = threading.Lock()  # of that
        self.durable = 0  # up to where the log is on the disk
        self.failure: str | None = None  # why the log is synced no more: nothing can be promised
        self.is_in_doubt = False  # it is unknown what the disk has of queues and index
        self.has_unnoted = False  # whether there are queues that our note does not have
        self.checkpoint = load_checkpoint(paths.checkpoint)

    def make_durable(self, end: int | None = None) -> None:
        """Returns when the log, up to `end` or all of it, is on the disk. Raises StoreError.

        Group commit: whoever comes first flushes for all who came before the flush began.
        """
        end = self._log.end if end is None else end
        while True:
            with self._flushing:
                while self._flush_running and self.durable < end:
                    self._flushing.wait()
                if self.durable >= end:
                    return
                self._flush_running = True
            reached = self._log.end
            try:
                if self.failure is not None:
                    raise StoreError(self.failure)
                self._log.flush()
                with self._flushing:
                    self.durable = max(self.durable, reached)
            except StoreError as error:
                # what the disk has is unknown now, and a second sync would not tell
                if self.failure is None:
                    self.failure = (
                        f"{error}, while syncing; "
                        "nothing more is stored until the store is opened again"
                    )
                raise StoreError(self.failure) from error
            finally:
                with self._flushing:
                    self._flush_running = False
                    self._flushing.notify_all()

    def add_grown(self, queues: set[Queue]) -> None:
        """Has the next `flush` sync these queues."""
        with self._growing:
            self._grown |= queues

    def flush(self, end: int, stored: int, *, is_dispatched: bool, many: int = MANY) -> None:
        """Makes everything durable. `end` and `stored` are the end of the log and the store time of
        its last message; `is_dispatched` says whether queues and index have all before that. More
        than `many` queues are synced together.

        Raises StoreError. If queues or index could not be synced, what the disk has of them is not
        known any more: their checkpoint stays, and the next start makes them again from there.
        """
        self.make_durable(end)  # 1
        with self._growing:
            grown, self._grown = self._grown, set()
        try:
            if len(grown) > many and self._files.can_sync_all:
                self._flush_together([self._queues[key] for key in grown])  # 2
                grown.clear()
            for key in list(grown):
                self._queues[key].flush()  # 2
                grown.discard(key)
            self._index.flush()
        except StoreError:
            self.is_in_doubt = True
            raise
        finally:
            with self._growing:
                self._grown |= grown
        if self.has_unnoted:
            self.has_unnoted = False
            try:
                self._save_note()
            except StoreError:
                self.has_unnoted = True
                raise
        derived = 0 if self.is_in_doubt else stored
        self.checkpoint = self.checkpoint.advanced(
            log=stored,
            queues=derived if is_dispatched else 0,
            index=0 if self.is_in_doubt else self._index.last_timestamp,
        )
        save_checkpoint(self._paths.checkpoint, self.checkpoint, self._files)  # 3

    def _flush_together(self, queues: Iterable[ConsumeQueue]) -> None:
        """Syncs the whole file system: thousands of new files, each synced with its directories,
        would keep the disk from the log for minutes."""
        sequences = [sequence for queue in queues for sequence in queue.sequences]
        taken = [(sequence, sequence.take_unsynced()) for sequence in sequences]
        try:
            self._files.sync_all(self._paths.root)
        except StoreError:
            for sequence, unsynced in taken:
                sequence.give_back(unsynced)
            raise

    def _save_note(self) -> None:
        save_note(
            self._paths.note,
            list(self._queues),  # others may be added
            index_files=len(self._index.files),
            index_shape=(self._config.index_slots, self._config.index_entries),
            files=self._files,
        )
