"""Looking into a store directory, ours or Apache's: no broker is needed, no byte is changed."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..errors import CorruptRecord, StoreError
from ..filter.engines.columnar import BatchFilter
from ..filter.logic import Outcome
from ..filter.tags import TagFilter
from ..message import DELAY_TOPIC, LOOPBACK, StoredMessage
from ..wire import record
from . import recovery, tables
from ._walk import Column
from .commitlog import Chunk, CommitLog, Queue
from .config import StoreConfig
from .consumequeue import ConsumeQueue, Extension, Units
from .dispatch import Dispatcher, parse_delay_levels
from .files import Files, StorePaths, file_start
from .format import EXT_ADDRESS_MAX, UNIT_BLANK_SIZE, UNIT_SIZE
from .index import ENTRY as INDEX_ENTRY
from .index import KeyIndex
from .notes import load_index_shape
from .seals import Seals

__all__ = ["Directory", "Problem", "QueueStat"]

Progress = Callable[[int], None]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Problem:
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclass(frozen=True, slots=True)
class QueueStat:
    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    files: int


class Directory:
    """A store, read-only. File sizes are those found: no configuration is needed.

    A broker may be running on it; then the end is wherever it was when a call began.
    """

    def __init__(self, root: Path | str) -> None:
        self.paths = StorePaths(Path(root))
        if not self.paths.root.exists():
            raise StoreError(f"{root}: there is no such directory")
        if not self.paths.commit_log.is_dir():
            raise StoreError(f"{root}: not a store: it has no commitlog directory")
        self._files = Files()
        size = self._file_size(self.paths.commit_log)
        self._refuse_other_versions()
        self.log = CommitLog(
            self.paths.commit_log,
            size,
            self._files,
            store_host=LOOPBACK,
            seals=Seals(self.paths.seals),
            writable=False,
        )
        self.was_closed = not self.paths.abort.exists()

    def _refuse_other_versions(self) -> None:
        for path in sorted(self.paths.commit_log.iterdir())[:1]:
            with path.open("rb") as file:
                if file.read(8)[4:] == b"\xda\xa3\x20\xab":
                    raise StoreError(f"{path}: written by RocketMQ 5 in a format that 4.9 has not")

    def _file_size(self, directory: Path) -> int:
        """Of the files of a sequence; any will do if there is none."""
        try:
            for path in sorted(directory.iterdir()):
                if file_start(path.name) is not None and path.stat().st_size:
                    return path.stat().st_size
        except PermissionError as error:
            raise StoreError(f"{error.filename}: permission denied") from None
        except (FileNotFoundError, NotADirectoryError):
            pass
        return UNIT_SIZE * 5

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Up to the first unit that was never written."""
        queue = self.open_queue(topic, queue_id)
        queue.sequence.end = _queue_end(queue) * UNIT_SIZE
        return queue

    def open_queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """All its files hold, written or not."""
        path, extension_path = (
            self.paths.queue(topic, queue_id),
            self.paths.extension(topic, queue_id),
        )
        extension = None
        if extension_path.is_dir():
            size = self._file_size(extension_path)
            extension = Extension(extension_path, size, self._files, writable=False)
        return ConsumeQueue(path, self._file_size(path), self._files, extension, writable=False)

    def chunks(
        self, progress: Progress | None = None, *, check_crc: bool = False
    ) -> Iterator[Chunk]:
        """Every sound record, in order; stops at the end of what was written."""
        at: int | None = self.log.start
        while at is not None:
            try:
                for chunk in self.log.walk(at, check_crc=check_crc):
                    yield chunk
                    if progress is not None:
                        progress(chunk.end - self.log.start)
                return
            except CorruptRecord as bad:
                at = recovery.next_record(self.log, bad.offset + 1)

    def messages(
        self,
        topic: str | None = None,
        queue_id: int | None = None,
        wanted: TagFilter | BatchFilter | None = None,
        progress: Progress | None = None,
    ) -> Iterator[StoredMessage]:
        """In the order of the log. A tag filter is exact here, as at a client."""
        name = None if topic is None else topic.encode()
        for chunk in self.chunks(progress, check_crc=True):
            rows, data = chunk.rows, chunk.data
            keep = np.ones(len(rows), dtype=np.bool_)
            if queue_id is not None:
                keep &= rows[:, Column.QUEUE] == queue_id
            if name is not None:
                keep &= rows[:, Column.TOPIC_SIZE] == len(name)
            if isinstance(wanted, BatchFilter):
                starts = np.ascontiguousarray(rows[:, Column.PROPERTIES_AT])
                ends = starts + rows[:, Column.PROPERTIES_SIZE]
                keep &= wanted.match_spans(data, starts, ends) == Outcome.TRUE
            for row in rows[keep]:
                message = record.decode(memoryview(data.data), int(row[Column.AT]))
                if topic is not None and message.topic != topic:
                    continue
                if isinstance(wanted, TagFilter) and not wanted.matches(message.tag):
                    continue
                yield message

    def stat(self) -> list[QueueStat]:
        stats = []
        for topic, queue_id in self.paths.existing_queues():
            queue = self.queue(topic, queue_id)
            queue.correct_min_offset(self.log.start)
            files = len(queue.sequence.starts)
            low, high = queue.min_offset, queue.max_offset
            stats.append(QueueStat(topic, queue_id, low, high, files))
            queue.close()
        return stats

    def verify(self, progress: Progress | None = None) -> Iterator[Problem]:
        """What is wrong, and where. A store whose broker was killed is not wrong for that alone."""
        state = recovery.scan_log(self.log, self.log.start)
        for damage in state.damages:
            yield Problem(f"{damage.file}, offset {damage.start} to {damage.end}", damage.reason)
        if state.torn is not None and self.was_closed:
            yield Problem(*state.torn.split(": ", 1))
        yield from self._verify_sizes()
        expected, keys = self._expected(progress)
        for key in sorted(set(expected) | set(self.paths.existing_queues())):
            yield from self._verify_queue(key, expected.get(key, {}))
        yield from self._verify_index(keys)
        for load in (
            tables.load_topics,
            tables.load_groups,
            tables.load_consumer_offsets,
            tables.load_delay_offsets,
            tables.load_filters,
        ):
            try:
                load(self.paths.config)
            except StoreError as error:
                yield Problem(*str(error).split(": ", 1))

    def _verify_sizes(self) -> Iterator[Problem]:
        """All queues have files of one size, and so have all extensions."""
        for place in (self.paths.queue, self.paths.extension):
            queues = self.paths.existing_queues()
            directories = [place(*key) for key in queues if place(*key).is_dir()]
            sizes = {directory: self._file_size(directory) for directory in directories}
            usual = Counter(sizes.values()).most_common(1)
            for directory, size in sizes.items():
                if size != usual[0][0]:
                    what = f"files of {size} bytes, where others have {usual[0][0]}"
                    yield Problem(str(directory), what)

    def _expected(
        self, progress: Progress | None
    ) -> tuple[dict[Queue, dict[int, tuple[int, int, int]]], set[tuple[int, int]]]:
        """The units each queue should have, by queue offset, and (hash, offset) of every key."""
        collectors: dict[Queue, _Collector] = {}
        keys = _KeyCollector()

        def queue_of(topic: str, queue_id: int) -> ConsumeQueue:
            # of a queue, it has what dispatch uses
            return collectors.setdefault((topic, queue_id), _Collector())  # type: ignore[return-value]

        delays = parse_delay_levels(StoreConfig().delay_levels)
        dispatcher = Dispatcher(queue_of, keys, delays=delays)  # type: ignore[arg-type]  # likewise
        for chunk in self.chunks(progress, check_crc=True):
            dispatcher.dispatch(chunk)
        return {key: collector.units for key, collector in collectors.items()}, keys.found

    def _verify_queue(
        self, key: Queue, expected: dict[int, tuple[int, int, int]]
    ) -> Iterator[Problem]:
        where = str(self.paths.queue(*key))
        try:
            queue = self.queue(*key)
        except StoreError as error:
            yield Problem(*str(error).split(": ", 1))
            return
        found = 0
        for start in queue.sequence.starts:
            units = queue.units(start // UNIT_SIZE, queue.sequence.file_size // UNIT_SIZE)
            for number, (offset, size, code) in enumerate(units.tolist(), start // UNIT_SIZE):
                if size == UNIT_BLANK_SIZE or offset < self.log.start:
                    continue
                found += 1
                wanted = expected.get(number)
                if wanted is None or wanted[:2] != (offset, size):
                    what = f"unit {number} leads to offset {offset} of the log"
                    yield Problem(where, f"{what}, where its message is not")
                elif key[0] == DELAY_TOPIC:
                    continue  # its code is a time, by the delay levels of the broker that wrote it
                elif (problem := _code_problem(queue, code, wanted[2])) is not None:
                    yield Problem(where, f"unit {number}: {problem}")
        if found < len(expected) and self.was_closed:
            yield Problem(where, f"{len(expected) - found} messages of the log have no unit")
        queue.close()

    def _verify_index(self, expected: set[tuple[int, int]]) -> Iterator[Problem]:
        """`expected` are (hash, offset) of all keys in the log."""
        paths = sorted(p for p in self.paths.index.glob("*") if p.name.isdigit())
        found: set[tuple[int, int]] = set()
        for path in paths:
            slots, entries = self._index_shape(path.stat().st_size)
            if slots < 1 or 40 + 4 * slots + 20 * entries != path.stat().st_size:
                yield Problem(str(path), f"{path.stat().st_size} bytes: not an index file")
                return
        if paths:
            index = KeyIndex(self.paths.index, slots, entries, writable=False)
            for path, what in index.verify():
                yield Problem(str(path), what)
            index.close()
            for path in paths:
                rows = np.fromfile(path, dtype=INDEX_ENTRY, offset=40 + 4 * slots)
                count = int.from_bytes(path.read_bytes()[36:40], "big", signed=True)
                rows = rows[1 : max(count, 1)]
                rows = rows[rows["offset"] >= self.log.start]
                found |= set(zip(rows["hash"].tolist(), rows["offset"].tolist(), strict=True))
        if strangers := len(found - expected):
            yield Problem(str(self.paths.index), f"{strangers} entries are of no key in the log")
        if self.was_closed and (missing := len(expected - found)):
            yield Problem(str(self.paths.index), f"{missing} keys of the log have no entry")

    def _index_shape(self, size: int) -> tuple[int, int]:
        """(slots, entries): as we noted, or four entries a slot as RocketMQ has by default."""
        slots = (size - 40) // 84
        return load_index_shape(self.paths.note) or (slots, 4 * slots)


def _queue_end(queue: ConsumeQueue) -> int:
    """The number of the first unit that was never written."""
    end = queue.sequence.start // UNIT_SIZE
    for start in queue.sequence.starts:
        units = queue.units(start // UNIT_SIZE, queue.sequence.file_size // UNIT_SIZE)
        empty = np.flatnonzero((units["size"] <= 0) | (units["offset"] < 0))
        end = start // UNIT_SIZE + (int(empty[0]) if len(empty) else len(units))
        if len(empty):
            break
    return end


def _code_problem(queue: ConsumeQueue, code: int, wanted: int) -> str | None:
    if code > EXT_ADDRESS_MAX:
        return None if code == wanted else f"tags code {code}, where the message has {wanted}"
    unit = queue.extension.unit(code) if queue.extension is not None else None
    if unit is None:
        return "its extension is missing"
    if unit.code != wanted:
        return f"its extension has tags code {unit.code}, where the message has {wanted}"
    return None


@dataclass
class _Collector:
    """Takes what dispatch makes for a queue."""

    units: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    extension: None = None
    sequence: tuple[()] = ()
    max_offset: int = 0

    def append(self, offset: int, units: Units) -> None:
        self.units.update(enumerate(units.tolist(), offset))


@dataclass
class _KeyCollector:
    """Takes what dispatch makes for the index."""

    found: set[tuple[int, int]] = field(default_factory=set)

    def put(self, hashes: Ints, offsets: Ints, timestamps: Ints) -> None:
        self.found |= set(zip(hashes.tolist(), offsets.tolist(), strict=True))
