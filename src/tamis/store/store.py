"""A store directory, opened: append, dispatch, select.

`flushing` has what is synced and when, `retention` what is removed, `recovery` what is decided when
a store is opened.

What must not change is the order of an append: (1) there is room for the messages in their queues,
(2) the records are in the log, (3) with sync flush they are on the disk, (4) the caller is told.
Dispatch follows the log at its own pace; all it makes can be made again. While it fails, nothing
more is appended: nobody is told that a message is stored which nobody could read.
"""

import contextlib
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..errors import CorruptRecord, StoreError
from ..filter.bloom import BloomFilter
from ..filter.engines.columnar import BatchFilter
from ..filter.tags import TagFilter
from ..message import DELAY_TOPIC, PropertyName, QueueOffset, StoredMessage, SysFlag
from ..wire import properties as properties_block
from ..wire import record
from ..wire.record import Draft
from . import recovery, retention, tables
from ._walk import Rows
from .checkpoint import Checkpoint, save_checkpoint
from .commitlog import (
    Appended,
    Block,
    Chunk,
    CommitLog,
    IllegalMessage,
    Queue,
    batch_size,
    is_storable,
)
from .config import StoreConfig
from .consumequeue import ConsumeQueue, Extension
from .dispatch import Dispatcher, parse_delay_levels
from .files import DiskFull, Files, StorePaths
from .flushing import MANY, Flusher
from .groupfilters import GroupFilters
from .index import KeyIndex
from .notes import load_note
from .seals import Seals
from .select import Limits, QueueReader, Selection, SqlFilter, Status

__all__ = ["Store"]

log = logging.getLogger(__name__)


class Store:
    """One process at a time. Appends may come from any thread; dispatch, retention and closing from
    one. Selects may come from any thread, and neither wait for appends nor hold them up.
    """

    def __init__(
        self,
        root: Path | str,
        config: StoreConfig | None = None,
        *,
        files: Files | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Opens or makes a store, recovering it if it was not closed. Raises StoreError."""
        self.paths = StorePaths(Path(root))
        self.config = config or StoreConfig()
        self._files = files or Files(self.config.open_files or None)
        self._now = now
        if self.paths.root.exists() and not self.paths.root.is_dir():
            raise StoreError(f"{self.paths.root}: not a directory")
        self._root = str(self.paths.root.resolve())
        if self._root in _OPEN:  # a file lock is the process's: it would be given again
            raise StoreError(f"{root}: this process has it open already")
        self._lock_descriptor = self._files.lock(self.paths.lock)
        _OPEN.add(self._root)
        self._is_abandoned = False
        self._queues: dict[Queue, ConsumeQueue] = {}
        self._opened_log: CommitLog | None = None
        try:
            self._open()
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Lets go of the directory as it is, as if the process had ended here. Does nothing if that
        was done before."""
        if self._is_abandoned:
            return
        self._is_abandoned = True
        for queue in self._queues.values():
            queue.close()
        if self._opened_log is not None:
            self._opened_log.close()
        _OPEN.discard(self._root)
        os.close(self._lock_descriptor)

    def _open(self) -> None:
        config = self.config
        self._check_size_limits()
        self._log = self._opened_log = CommitLog(
            self.paths.commit_log,
            config.log_file_size,
            self._files,
            store_host=config.store_host,
            seals=Seals(self.paths.seals, self._files),
            max_body=config.max_body,
        )
        self._bloom = BloomFilter(config.bloom_error_percent, config.bloom_groups)
        self._group_filters = GroupFilters(self._bloom)
        self.set_filters(tables.load_filters(self.paths.config).values())
        self._index = KeyIndex(
            self.paths.index,
            config.index_slots,
            config.index_entries,
            now=self._now,
            system=self._files,
        )
        self._dispatcher = Dispatcher(
            self.queue,
            self._index,
            delays=parse_delay_levels(config.delay_levels),
            filters=self._group_filters.of if config.bitmaps else None,
            bloom=self._bloom,
        )
        self._flusher = Flusher(
            self.paths, self._files, config, self._log, self._queues, self._index
        )
        self.many = MANY  # more queues than that are flushed together
        self._appending = threading.Lock()
        self._dispatch_failure: str | None = None  # why messages do not get into their queues
        self._making = threading.Lock()  # of queues: who appends and who dispatches may differ
        self._uncorrected: list[ConsumeQueue] = []  # whose first messages may be gone
        self._last_time = 0  # of a message; store times never go back
        self._is_full = False  # told by `clean`
        self._next_offsets: dict[Queue, int] = {}
        self.damages: tuple[recovery.Damage, ...] = ()
        self._recover()

    def _check_size_limits(self) -> None:
        """Raises StoreError if not all kinds of files can be made."""
        config, check = self.config, self._files.check_size_limit
        check(config.log_file_size, "log files (log_file_size)")
        check(config.queue_file_size, "queue files (queue_file_size)")
        if config.extensions:
            check(config.extension_file_size, "extension files (extension_file_size)")
        check(self._index_size, "index files (index_slots, index_entries)")

    @property
    def _index_size(self) -> int:
        return 40 + 4 * self.config.index_slots + 20 * self.config.index_entries

    # Recovery

    def _recover(self) -> None:
        clean = not self.paths.abort.exists()
        noted = load_note(self.paths.note)
        for topic, queue_id in self.paths.existing_queues():
            self.queue(topic, queue_id)
        complete = (
            noted is not None
            and not set(noted[0]) - set(self._queues)
            and (noted[1] == 0 or bool(self._index.files))
            and all(map(recovery.has_extension, self._queues.values()))
        )
        # From here on files change. Should this be cut short, the next start must not trust them.
        self._files.touch(self.paths.abort)
        starts = self._log.files.starts
        begin: int
        if clean and complete:
            begin = starts[-3] if len(starts) > 3 else self._log.start
        elif complete:
            begin = recovery.first_file_after(self._log, self._flusher.checkpoint.safe)
            self._index.drop_after(self._flusher.checkpoint.index)
        else:  # never kept by us, or parts are gone: all is made again
            begin = self._log.start
            self._flusher.checkpoint = Checkpoint()
            save_checkpoint(self.paths.checkpoint, self._flusher.checkpoint, self._files)
            self._index.drop_after(-1)
        state = recovery.scan_log(self._log, begin)
        self.damages = state.damages
        for damage in state.damages:
            log.error("damaged: %s", damage)
        if state.torn is not None:
            log.warning("dropping the end of the log, which is not whole: %s", state.torn)
        self._log.truncate(state.end)
        if not clean:  # who wrote it may have been killed before it was on the disk
            self._log.files.mark_unsynced(begin)
        self._log.flush()
        self._flusher.durable = state.end
        certain = state.end if clean and complete else begin  # what queues hold beyond may be torn
        for queue in self._queues.values():
            recovery.trim_queue(queue, self._log.start, certain)
        if clean and complete:
            self._dispatched = int(state.end)  # `close` saw to it
        else:
            indexed = self._index.end_offset if self._index.files else 0
            self._dispatched = min(begin, max(indexed, self._log.start))
        for key in self.dispatch():
            self._queues[key].correct_min_offset(self._log.start)
        for key, queue in self._queues.items():
            self._next_offsets[key] = queue.max_offset
        self._last_time = max(self._flusher.checkpoint.log, state.last_time)

    # Writing

    def append(self, drafts: Sequence[Draft]) -> list[Appended]:
        """Stores messages, in order, all or none of them; tells when that is safe.

        Flush `sync`: they are on the disk when this returns, and survive a kill of the process and
        a power cut. Everything that waits shares one flush. Flush `async`: they are with the
        operating system, survive a kill, and a power cut only after the next `flush`.
        """
        self._check_can_append()
        drafts = [d if _DELAY not in d.properties else self._delayed(d) for d in drafts]
        with self._appending:
            counted = (d for d in drafts if d.sys_flag & _HALF_WAY in _COUNTED)
            self._reserve(Counter((d.topic, d.queue_id) for d in counted).items())  # 1
            placed = self._log.append(drafts, self._next_offsets, self._time())  # 2
            end = self._log.end
        if self.config.flush == "sync":
            self._flusher.make_durable(end)  # 3
        return placed  # 4

    def _reserve(self, queues: Iterable[tuple[Queue, int]]) -> None:
        """Make sure that so many more messages can be put into each of the queues."""
        if self._log.files.room() < _NEAR_THE_END:
            self._check_size_limits()  # the log is about to begin a file
        for key, count in queues:
            queue = self._queues.get(key)
            if queue is None:
                if not is_storable(key[0]) or not 0 <= key[1] < 2**31:
                    continue  # the log will say what is wrong with it
                queue = self.queue(*key)
            queue.reserve(self._next_offsets.get(key, 0) + count)

    def append_batch(self, envelope: Draft, batch: bytes) -> list[Appended]:
        """Stores a batch as it travels, as `append` does: the way to send many small messages."""
        self._check_can_append()
        if _DELAY in envelope.properties:
            raise IllegalMessage("a delayed batch")
        with self._appending:
            count = batch_size(batch)
            self._reserve([((envelope.topic, envelope.queue_id), count)] if count > 0 else ())
            placed = self._log.append_batch(envelope, batch, self._next_offsets, self._time())
            end = self._log.end
        if self.config.flush == "sync":
            self._flusher.make_durable(end)
        return placed

    def append_block(self, block: Block) -> Rows | None:
        """Stores a block, as `append` does; see `CommitLog.append_block`."""
        self._check_can_append()
        with self._appending:
            self._reserve(zip(block.queues, block.counts, strict=True))
            edges = self._log.append_block(block, self._next_offsets, self._time())
            end = self._log.end
        if self.config.flush == "sync":
            self._flusher.make_durable(end)
        return edges

    def _time(self) -> int:
        """Returns milliseconds that never go back: the checkpoint goes by them."""
        self._last_time = max(self._last_time, int(self._now() * 1000))
        return self._last_time

    def _check_can_append(self) -> None:
        if self._flusher.failure is not None:
            raise StoreError(self._flusher.failure)
        if self._dispatch_failure is not None:
            raise StoreError(
                f"nothing is stored while messages can't be put into queues: "
                f"{self._dispatch_failure}"
            )
        if self._is_full:
            used = f"{retention.disk_used(self.paths.root):.0%}"
            raise DiskFull(f"{self.paths.root}: {used} of the disk is in use; free some room")

    def make_durable(self, end: int | None = None) -> None:
        """Returns when the log, up to `end` or all of it, is on the disk. Any thread may call it.
        Raises StoreError."""
        self._flusher.make_durable(end)

    def _delayed(self, draft: Draft) -> Draft:
        """A message with a delay level waits in the delay topic (`CommitLog.putMessage`)."""
        if draft.topic == DELAY_TOPIC:
            return draft
        if draft.sys_flag & SysFlag.ROLLBACK not in (0, SysFlag.COMMIT):
            return draft
        properties = properties_block.decode_bytes(draft.properties)
        try:
            level = int(properties.get(PropertyName.DELAY, "0"))
        except ValueError:
            return draft
        if level <= 0:
            return draft
        level = min(level, len(parse_delay_levels(self.config.delay_levels)))
        properties[PropertyName.DELAY] = str(level)
        properties[PropertyName.REAL_TOPIC] = draft.topic
        properties[PropertyName.REAL_QUEUE] = str(draft.queue_id)
        block = properties_block.encode(properties).encode()
        return replace(draft, topic=DELAY_TOPIC, queue_id=level - 1, properties=block)

    def dispatch(self, seconds: float | None = None) -> set[Queue]:
        """Brings queues, extensions and index up to the end of the log, or as far as it gets in
        that time and a little more. Returns the queues that have grown.

        Raises StoreError; then appends are refused until a later call succeeds. Queues that had
        grown before it failed are returned by that call."""
        try:
            self._dispatch(seconds)
        except Exception as error:
            self._dispatch_failure = str(error) or type(error).__name__
            raise
        self._dispatch_failure = None
        grown, self._dispatcher.grown = self._dispatcher.grown, set()
        self._flusher.add_grown(grown)
        return grown

    def _dispatch(self, seconds: float | None) -> None:
        deadline = time.monotonic() + seconds if seconds is not None else None
        most = None if seconds is None else _SLICE_ROWS
        # what a start did not find damaged, or was written since, is taken for sound
        start = max(self._dispatched, self._log.start)
        for chunk in self.sound_chunks(start, check_crc=bool(self.damages), most=most):
            self._dispatcher.dispatch(chunk)
            self._dispatched = chunk.end
            if deadline is not None and time.monotonic() > deadline:
                break

    def sound_chunks(
        self, start: int | None = None, *, check_crc: bool = True, most: int | None = None
    ) -> Iterator[Chunk]:
        """Yields every sound record from `start`, at most `most` in a chunk; damaged places are
        passed over."""
        at: int | None = self._log.start if start is None else start
        while at is not None and at < self._log.end:
            try:
                yield from self._log.walk(at, check_crc=check_crc, most=most)
                return
            except CorruptRecord as bad:
                at = recovery.next_record(self._log, bad.offset + 1)

    def set_filters(
        self,
        filters: Iterable[tables.FilterData],
        compiled: Mapping[str, BatchFilter] | None = None,
    ) -> None:
        """Sets the groups whose SQL goes into the bitmaps of messages dispatched from now on;
        `compiled`, by their expressions, need not be compiled again."""
        if self.config.bitmaps:
            self._group_filters.replace(filters, compiled)

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Returns the queue, which is made if it is not there."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            with self._making:
                queue = self._queues.get((topic, queue_id)) or self._make_queue(topic, queue_id)
        return queue

    def _make_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        config = self.config
        extension = None
        if config.extensions:
            path = self.paths.extension(topic, queue_id)
            extension = Extension(path, config.extension_file_size, self._files)
        path = self.paths.queue(topic, queue_id)
        queue = ConsumeQueue(path, config.queue_file_size, self._files, extension)
        self._queues[topic, queue_id] = queue
        self._flusher.has_unnoted = True
        return queue

    def find_queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self._queues.get((topic, queue_id))

    # Reading

    def select(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        limits: Limits | None = None,
        wanted: TagFilter | SqlFilter | None = None,
    ) -> Selection:
        """Returns what a pull is answered with; see `select.QueueReader`."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            nothing = QueueOffset(0)
            return Selection(Status.NO_MESSAGE_IN_QUEUE, [], nothing, nothing, nothing)
        return QueueReader(self._log, queue).select(offset, limits or Limits(), wanted)

    def count(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        wanted: TagFilter | SqlFilter | None = None,
        end: int | None = None,
    ) -> int:
        """Returns how many messages from `offset` up to `end`, or all there are, match."""
        queue = self._queues.get((topic, queue_id))
        return 0 if queue is None else QueueReader(self._log, queue).count(offset, wanted, end)

    def next_match(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        wanted: TagFilter | SqlFilter | None = None,
    ) -> QueueOffset | None:
        queue = self._queues.get((topic, queue_id))
        return None if queue is None else QueueReader(self._log, queue).next_match(offset, wanted)

    def message(self, offset: int) -> StoredMessage:
        """Returns the message at a place in the log. Raises CorruptRecord if there is none."""
        file = str(self._log.files.file_path(offset))
        view = self._log.files.view(offset)
        size = record.record_size(memoryview(view.data)) if len(view) >= 8 else 0
        data = self._log.sound_record(offset, size)
        if not len(data):
            raise CorruptRecord(file, offset, "there is no sound record")
        return record.decode(memoryview(data.data), file=file)

    def query(
        self, topic: str, key: str, limit: int = 32, begin: int = 0, end: int = 2**63 - 1
    ) -> list[StoredMessage]:
        """Returns messages by key, exactly (RocketMQ's also those whose hash collides)."""
        found = []
        for offset in sorted(set(self._index.query(topic, key, limit, begin, end))):
            with contextlib.suppress(CorruptRecord):
                message = self.message(offset)
                keys = message.properties.get(PropertyName.KEYS, "").split(" ")
                if message.topic == topic and (
                    key in keys or key == message.properties.get(PropertyName.UNIQUE_KEY)
                ):
                    found.append(message)
        return found

    @property
    def log(self) -> CommitLog:
        return self._log

    @property
    def index(self) -> KeyIndex:
        return self._index

    @property
    def last_time(self) -> int:
        """The latest store time, in milliseconds: ahead of the clock if that was put back."""
        return self._last_time

    @property
    def dispatched(self) -> int:
        """The offset in the log up to which queues and index are made."""
        return self._dispatched

    @property
    def queues(self) -> dict[Queue, ConsumeQueue]:
        return dict(self._queues)

    # Keeping

    def flush(self) -> None:
        """Makes all there is durable; see `flushing`. Raises StoreError."""
        end, stored = self._log.end, self._last_time
        is_dispatched = self._dispatched >= end
        self._flusher.flush(end, stored, is_dispatched=is_dispatched, many=self.many)

    def close(self) -> None:
        """Everything is dispatched and on the disk; the next start has nothing to recover.

        Raises StoreError. Then it is closed all the same, and the next start recovers it.
        """
        try:
            self.dispatch()
            self._flusher.has_unnoted = True
            self.flush()
            self._index.close()
            if self._dispatched >= self._log.end and not self._flusher.is_in_doubt:
                self._files.remove(self.paths.abort)
                self._files.sync_directory(self.paths.root)
        finally:
            self.abandon()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def clean(self, seconds: float | None = None) -> list[Path]:
        """Removes what is older than `keep_hours`, or the oldest if the disk is too full; never the
        last file. Returns the log files removed. To be called every few seconds: while more of the
        disk is in use than `full_ratio`, appends are refused. Queues follow, as far as they get in
        that time; the rest is left to `correct_queues`."""
        removed = retention.drop_expired(self._log, self.paths.root, self.config, self._now())
        if removed:
            self._uncorrected = list(self._queues.values())
            self._index.drop_before(self._log.start)
        self._is_full = retention.disk_used(self.paths.root) > self.config.full_ratio
        self.correct_queues(seconds)
        return removed

    def correct_queues(self, seconds: float | None = None) -> bool:
        """Removes files of queues whose messages are gone from the log, and moves the queues' first
        offsets on; as far as it gets in that time. Returns whether that was all."""
        retention.correct_queues(self._uncorrected, self._log, seconds)
        return not self._uncorrected


_OPEN: set[str] = set()  # roots of the stores this process has open
_HALF_WAY, _COUNTED = int(SysFlag.ROLLBACK), (0, int(SysFlag.COMMIT))  # which get a unit
_NEAR_THE_END = 2**20  # bytes left of a log file
_SLICE_ROWS = 1024  # dispatched together where time is short
_DELAY = PropertyName.DELAY.encode() + b"\x01"
