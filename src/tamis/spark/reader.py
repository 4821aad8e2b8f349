"""Batch reads: which ranges of which queues, cut into partitions; rows of each are `fetching`'s."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import datasource as ds
from pyspark.sql.types import StructType

from ..errors import ConfigError, DataLoss
from ..filter.tags import ALL
from ..wire.bodies import MessageQueue
from . import offsets, pushdown
from ._worker import settle
from .offsets import Bounds, Range
from .options import EARLIEST, LATEST, Options
from .origins import Origin, open_origin, placed
from .ranges import Fetch, LogRange, WireRange
from .schema import row_type

__all__ = [
    "BatchReader",
    "Partition",
    "PushingReader",
    "checked",
    "fetch_of",
    "packed_partitions_of",
    "partitions_of",
    "rows_of",
]

_READER_GROUP = "tamis-spark"  # who pulls, where no group is named
_PACKED = 1_000  # messages of several queues in one partition


@dataclass(frozen=True)
class Partition(ds.InputPartition):
    """Some ranges, one after the other; most often one."""

    parts: tuple[WireRange | LogRange, ...]


def fetch_of(options: Options) -> Fetch:
    is_all = options.tags is not None and options.tags.strip() in ("", ALL)
    return Fetch(
        columns=options.columns,
        properties=options.properties,
        tags=None if is_all else options.tags,
        sql=options.sql,
        dialect=options.dialect,
        at_broker=options.filter_at != "reader",
        or_reader=options.filter_at != "broker",
        fail_on_data_loss=options.fail_on_data_loss,
        fail_on_unreadable=options.fail_on_unreadable,
        max_body_size=options.max_body_size,
        data_timeout=options.data_timeout,
        batch_rows=options.batch_rows,
        pull_size=options.pull_size,
        timeout=options.timeout,
        retries=options.retries,
        group=options.group or _READER_GROUP,
        security=options.security,
    )


def checked(rows: StructType, options: Options) -> StructType:
    """The rows there will be. Raises ConfigError if others are asked for."""
    wanted = row_type(options.columns, options.properties)
    if rows != wanted:
        raise ConfigError(
            "the schema can't be chosen by .schema(…) or a list of columns: leave it out, and say"
            " with options columns and properties what is wanted"
        )
    return wanted


def partitions_of(origin: Origin, ranges: Sequence[Range], options: Options) -> list[Partition]:
    """One for each queue, of a store's files one for each of them, or as many as options say."""
    return [Partition((origin.partition(one),)) for one in _cut(origin, ranges, options)]


def _cut(origin: Origin, ranges: Sequence[Range], options: Options) -> list[Range]:
    if options.min_partitions is not None or options.max_per_partition is not None:
        return offsets.cut(ranges, options.min_partitions, options.max_per_partition)
    steps = [origin.in_a_file(one.queue) for one in ranges]
    return [
        piece
        for one, step in zip(ranges, steps, strict=True)
        for piece in (offsets.cut_at(one, step) if step else [one])
    ]


def packed_partitions_of(
    origin: Origin, ranges: Sequence[Range], options: Options
) -> list[Partition]:
    """For micro-batches, where a task costs more than the few messages of a queue: small ranges go
    together, unless options say into how many to cut."""
    if options.min_partitions is not None or options.max_per_partition is not None:
        return partitions_of(origin, ranges, options)
    packs = offsets.pack(_cut(origin, ranges, options), _PACKED)
    return [Partition(tuple(origin.partition(one) for one in pack)) for pack in packs]


def rows_of(partition: ds.InputPartition, fetch: Fetch) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, Partition):  # Spark's own, of a read that has none
        return
    from .fetching import fetch_log, fetch_wire  # loads compiled loops: not where it is planned

    for part in partition.parts:
        if isinstance(part, WireRange):
            yield from fetch_wire(part, fetch)
        else:
            yield from fetch_log(part, fetch)
    settle()


class BatchReader(ds.DataSourceReader):
    """Pickled to executors, so it holds nothing but what was asked for."""

    def __init__(self, options: Options, rows: StructType) -> None:
        self._options = options.for_batch()
        self._fetch = fetch_of(options)
        self._pushed = pushdown.Pushed()
        self._rows = checked(rows, options)

    def partitions(self) -> Sequence[ds.InputPartition]:
        with contextlib.closing(open_origin(self._options)) as origin:
            bounds = origin.bounds()
            if not bounds and self._options.pattern:
                raise ConfigError(f"option topicPattern: no topic matches {self._options.pattern}")
            ranges = self._pushed.narrowed(self._ranges(origin, bounds))
            return partitions_of(origin, self._narrowed_by_time(origin, ranges), self._options)

    def _ranges(self, origin: Origin, bounds: Mapping[MessageQueue, Bounds]) -> list[Range]:
        options = self._options
        first = EARLIEST if options.start is None else options.start
        last = LATEST if options.end is None else options.end
        starts = placed(origin, first, bounds, "startingOffsets")
        ends = placed(origin, last, bounds, "endingOffsets")
        ranges, holder = [], "store" if options.root else "broker"
        for queue, (low, high) in bounds.items():
            start, end = starts[queue], ends[queue]
            if options.fail_on_data_loss:
                if start < low:
                    raise DataLoss(str(queue), start, low, low, holder)
                for name, offset in (("startingOffsets", start), ("endingOffsets", end)):
                    if offset > high:
                        raise ConfigError(
                            f"option {name}: {queue} has no offset {offset}: it ends at {high}"
                        )
            start, end = min(max(start, low), high), min(max(end, low), high)
            if start > end and first != LATEST:
                raise ConfigError(f"{queue} would be read from {start} to {end}: that is backwards")
            if start < end:
                ranges.append(Range(queue, start, end))
        return ranges

    def _narrowed_by_time(self, origin: Origin, ranges: list[Range]) -> list[Range]:
        after, before = self._pushed.after, self._pushed.before
        found = []
        for queue, start, end in ranges:
            if after is not None:
                start = max(start, origin.offset_at(queue, after))
            if before is not None:
                end = min(end, origin.offset_at(queue, before))
            if start < end:
                found.append(Range(queue, start, end))
        return found

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        filters = self._pushed.filters
        for batch in rows_of(partition, self._fetch):
            yield batch.filter(pushdown.mask(batch, filters)) if filters else batch


class PushingReader(BatchReader):
    """Spark refuses a reader that has `pushFilters` where the setting for it is off."""

    def pushFilters(self, filters: list[ds.Filter]) -> Iterator[ds.Filter]:
        self._pushed, left = pushdown.push(filters, self._rows)
        if self._pushed.tags is not None and self._fetch.tags is None and self._fetch.sql is None:
            self._fetch = replace(self._fetch, tags=self._pushed.tags)
        yield from left
