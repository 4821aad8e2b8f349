"""A store directory, opened: append, dispatch, select, keep and remove.

What must not change is the order of an append: (1) there is room for the messages in their queues,
(2) the records are in the log, (3) with sync flush they are on the disk, (4) the caller is told.
Dispatch follows the log at its own pace; all it makes can be made again. While it fails, nothing
more is appended: nobody is told that a message is stored which nobody could read.
"""

import contextlib
import json
import logging
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ..errors import CorruptRecord, InvalidFilter, StoreError
from ..filter import parse
from ..filter.bloom import BloomFilter
from ..filter.engines.columnar import BatchFilter
from ..filter.tags import TagFilter
from ..message import DELAY_TOPIC, PropertyName, QueueOffset, StoredMessage, SysFlag
from ..wire import properties as properties_block
from ..wire import record
from ..wire.record import Draft
from . import recovery, tables
from ._walk import Rows
from .checkpoint import Checkpoint, load_checkpoint, save_checkpoint
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
from .dispatch import Dispatcher, GroupFilter, parse_delay_levels
from .files import DiskFull, Files, StorePaths
from .index import KeyIndex
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
        self._group_filters: dict[str, list[GroupFilter]] = {}
        self._compiled: dict[str, BatchFilter] = {}  # theirs, by text
        self.set_filters(tables.load_filters(self.paths.config).values())
        self._checkpoint = load_checkpoint(self.paths.checkpoint)
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
            filters=(lambda topic: self._group_filters.get(topic, ())) if config.bitmaps else None,
            bloom=self._bloom,
        )
        self._appending = threading.Lock()
        self._flushing = threading.Condition()
        self._flush_running = False
        self._durable = 0
        self._failure: str | None = None  # of the disk: nothing can be promised any more
        self._dispatch_failure: str | None = None  # why messages do not get into their queues
        self._making = threading.Lock()  # of queues: who appends and who dispatches may differ
        self._grown: set[Queue] = set()  # queues that are to be flushed
        self._growing = threading.Lock()  # of that
        self.many = _MANY  # queues that are flushed together
        self._is_in_doubt = False  # whether the disk has what was flushed of queues and index
        self._uncorrected: list[ConsumeQueue] = []  # whose first messages may be gone
        self._last_time = 0  # of a message; store times never go back
        self._is_full = False  # told by `clean`
        self._next_offsets: dict[Queue, int] = {}
        self._unnoted = False  # whether there are queues that `tamis.json` does not know
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
        noted = self._noted()
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
            begin = recovery.first_file_after(self._log, self._checkpoint.safe)
            self._index.drop_after(self._checkpoint.index)
        else:  # never kept by us, or parts are gone: all is made again
            begin = self._log.start
            self._checkpoint = Checkpoint()
            save_checkpoint(self.paths.checkpoint, self._checkpoint, self._files)
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
        self._durable = state.end
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
        self._last_time = max(self._checkpoint.log, state.last_time)

    def _noted(self) -> tuple[list[Queue], int] | None:
        """The queues and the number of index files there were; None if we never kept this."""
        try:
            table = json.loads((self.paths.root / _OURS).read_text())
            return [(topic, queue_id) for topic, queue_id in table["queues"]], table["index_files"]
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _note(self) -> None:
        table = {
            "queues": [list(queue) for queue in list(self._queues)],  # others may be added
            "index_files": len(self._index.files),
            "index_slots": self.config.index_slots,
            "index_entries": self.config.index_entries,
        }
        tables.write_table(self.paths.root / _OURS, table, self._files)

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
            self.make_durable(end)  # 3
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
        """As `append`, of a batch as it travels: what many small messages should be sent as."""
        self._check_can_append()
        if _DELAY in envelope.properties:
            raise IllegalMessage("a delayed batch")
        with self._appending:
            count = batch_size(batch)
            self._reserve([((envelope.topic, envelope.queue_id), count)] if count > 0 else ())
            placed = self._log.append_batch(envelope, batch, self._next_offsets, self._time())
            end = self._log.end
        if self.config.flush == "sync":
            self.make_durable(end)
        return placed

    def append_block(self, block: Block) -> Rows | None:
        """As `append`, of a block; see `CommitLog.append_block`."""
        self._check_can_append()
        with self._appending:
            self._reserve(zip(block.queues, block.counts, strict=True))
            edges = self._log.append_block(block, self._next_offsets, self._time())
            end = self._log.end
        if self.config.flush == "sync":
            self.make_durable(end)
        return edges

    def _time(self) -> int:
        """Milliseconds that never go back: the checkpoint goes by them."""
        self._last_time = max(self._last_time, int(self._now() * 1000))
        return self._last_time

    def _check_can_append(self) -> None:
        if self._failure is not None:
            raise StoreError(self._failure)
        if self._dispatch_failure is not None:
            raise StoreError(
                f"nothing is stored while messages can't be put into queues: "
                f"{self._dispatch_failure}"
            )
        if self._is_full:
            used = f"{self._disk_used():.0%}"
            raise DiskFull(f"{self.paths.root}: {used} of the disk is in use; free some room")

    def make_durable(self, end: int | None = None) -> None:
        """What is in the log, up to `end` or all of it, is on the disk. Blocks; any thread may ask.

        Group commit: whoever comes first flushes for all who came before the flush began.
        """
        end = self._log.end if end is None else end
        while True:
            with self._flushing:
                while self._flush_running and self._durable < end:
                    self._flushing.wait()
                if self._durable >= end:
                    return
                self._flush_running = True
            reached = self._log.end
            try:
                if self._failure is not None:
                    raise StoreError(self._failure)
                self._log.flush()
                with self._flushing:
                    self._durable = max(self._durable, reached)
            except StoreError as error:
                # what the disk has is unknown now, and a second sync would not tell
                if self._failure is None:
                    self._failure = (
                        f"{error}, while syncing; "
                        "nothing more is stored until the store is opened again"
                    )
                raise StoreError(self._failure) from error
            finally:
                with self._flushing:
                    self._flush_running = False
                    self._flushing.notify_all()

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
        that time and a little more. Gives the queues grown.

        Raises StoreError; then appends are refused until a later call succeeds. Queues that had
        grown before it failed are given by that call."""
        try:
            self._dispatch(seconds)
        except Exception as error:
            self._dispatch_failure = str(error) or type(error).__name__
            raise
        self._dispatch_failure = None
        grown, self._dispatcher.grown = self._dispatcher.grown, set()
        with self._growing:
            self._grown |= grown
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
        """Every sound record from `start`; damaged places are passed over. `most`: in a chunk."""
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
        """The groups whose SQL goes into the bitmaps of messages dispatched from now on;
        `compiled`, by their expressions, need not be compiled again."""
        if not self.config.bitmaps:
            return
        found: dict[str, list[GroupFilter]] = {}
        known, self._compiled = {**self._compiled, **(compiled or {})}, {}
        for data in filters:
            try:
                batch_filter = known.get(data.expression) or BatchFilter(parse(data.expression))
            except InvalidFilter as error:
                log.warning("filter of %s on %s: %s", data.group, data.topic, error)
                continue
            self._compiled[data.expression] = batch_filter
            positions = data.bloom_positions
            if self._bloom.accepts(positions, data.bloom_bits):
                found.setdefault(data.topic, []).append(GroupFilter(batch_filter, positions))
        self._group_filters = found

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Made if it is not there."""
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
        self._unnoted = True
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
        """What a pull is answered with; see `select.QueueReader`."""
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
        """How many messages from `offset` up to `end`, or all there are, match."""
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
        """The record at a place in the log; raises CorruptRecord if there is none."""
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
        """Messages by key, exactly (RocketMQ also gives those whose hash collides)."""
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
        """Of a message, in milliseconds: ahead of the clock if that was put back."""
        return self._last_time

    @property
    def dispatched(self) -> int:
        """Up to where in the log queues and index are made."""
        return self._dispatched

    @property
    def queues(self) -> dict[Queue, ConsumeQueue]:
        return dict(self._queues)

    # Keeping

    def flush(self) -> None:
        """Makes all there is durable: (1) log, (2) queues and index, (3) the checkpoint of both.

        Raises StoreError. If queues or index could not be synced, what the disk has of them is not
        known any more: the checkpoint stays, and the next start makes them again from there.
        """
        end, stored = self._log.end, self._last_time
        caught_up = self._dispatched >= end
        self.make_durable(end)  # 1
        with self._growing:
            grown, self._grown = self._grown, set()
        try:
            if len(grown) > self.many and self._files.can_sync_all:
                self._flush_together([self._queues[key] for key in grown])  # 2
                grown.clear()
            for key in list(grown):
                self._queues[key].flush()  # 2
                grown.discard(key)
            self._index.flush()
        except StoreError:
            self._is_in_doubt = True
            raise
        finally:
            with self._growing:
                self._grown |= grown
        if self._unnoted:
            self._unnoted = False
            try:
                self._note()
            except StoreError:
                self._unnoted = True
                raise
        derived = 0 if self._is_in_doubt else stored
        self._checkpoint = self._checkpoint.advanced(
            log=stored,
            queues=derived if caught_up else 0,
            index=0 if self._is_in_doubt else self._index.last_timestamp,
        )
        save_checkpoint(self.paths.checkpoint, self._checkpoint, self._files)  # 3

    def _flush_together(self, queues: Iterable[ConsumeQueue]) -> None:
        """A sync of the whole file system: thousands of new files, each synced with its
        directories, would keep the disk from the log for minutes."""
        sequences = [sequence for queue in queues for sequence in queue.sequences]
        taken = [(sequence, sequence.take_unsynced()) for sequence in sequences]
        try:
            self._files.sync_all(self.paths.root)
        except StoreError:
            for sequence, unsynced in taken:
                sequence.give_back(unsynced)
            raise

    def close(self) -> None:
        """Everything is dispatched and on the disk; the next start has nothing to recover.

        Raises StoreError. Then it is closed all the same, and the next start recovers it.
        """
        try:
            self.dispatch()
            self._unnoted = True
            self.flush()
            self._index.close()
            if self._dispatched >= self._log.end and not self._is_in_doubt:
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
        last file. Gives the log files removed. To be called every few seconds: while more of the
        disk is in use than `full_ratio`, appends are refused. Queues follow, as far as they get in
        that time; the rest is left to `correct_queues`."""
        usage = shutil.disk_usage(self.paths.root)
        used, most = usage.used, self.config.clean_ratio * (usage.used + usage.free)
        oldest = self._now() - self.config.keep_hours * 3600
        removed = list[Path]()
        starts = self._log.files.starts
        for start in starts[: min(len(starts) - 1, _MOST_REMOVED)]:
            path = self._log.files.file_path(start)
            if path.stat().st_mtime > oldest and used <= most:
                break
            used -= path.stat().st_blocks * 512
            self._log.drop_first()
            removed.append(path)
        if removed:
            self._uncorrected = list(self._queues.values())
            self._index.drop_before(self._log.start)
        self._is_full = self._disk_used() > self.config.full_ratio
        self.correct_queues(seconds)
        return removed

    def correct_queues(self, seconds: float | None = None) -> bool:
        """Removes files of queues whose messages are gone from the log, and moves the queues' first
        offsets on; as far as it gets in that time. Gives whether that was all."""
        deadline = time.monotonic() + seconds if seconds is not None else None
        while self._uncorrected:
            queue = self._uncorrected[-1]
            queue.drop_before(self._log.start)
            queue.correct_min_offset(self._log.start)
            self._uncorrected.pop()
            if deadline is not None and time.monotonic() > deadline:
                break
        return not self._uncorrected

    def _disk_used(self) -> float:
        return disk_used(self.paths.root)


def disk_used(path: Path) -> float:
    """The part of what we could have of the disk, as RocketMQ reckons and df shows: what is kept
    for others does not count."""
    usage = shutil.disk_usage(path)
    return usage.used / max(usage.used + usage.free, 1)


_OURS = "tamis.json"
_OPEN: set[str] = set()  # roots of the stores this process has open
_MOST_REMOVED = 10  # log files by one `clean`, as RocketMQ does: it is not to hold up others
_HALF_WAY, _COUNTED = int(SysFlag.ROLLBACK), (0, int(SysFlag.COMMIT))  # which get a unit
_MANY = 64  # queues
_NEAR_THE_END = 2**20  # bytes left of a log file
_SLICE_ROWS = 1024  # dispatched together where time is short
_DELAY = PropertyName.DELAY.encode() + b"\x01"
