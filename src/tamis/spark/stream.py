"""Streams: where one is, how far a trigger goes, what is told of it.

Spark may make a reader anew at any call, and plans a batch again after a crash: everything that
counts is derived from the positions it hands in. What is remembered here saves questions. Before
PySpark 4.2 it hands in less: `single.py`.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import datasource as ds
from pyspark.sql.types import StructType

from ..errors import ConfigError, DataLoss, Error
from ..wire.bodies import MessageQueue
from . import offsets
from .limits import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from .offsets import Bounds, Positions, Range
from .options import LATEST, Options
from .origins import Origin, open_origin, placed
from .reader import checked, fetch_of, packed_partitions_of, rows_of

__all__ = ["StreamReader"]

log = logging.getLogger(__name__)

_BOUNDS_LAST: Final = 0.05  # seconds; an idle query asks 90 times a second


class StreamReader(ds.DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Options, rows: StructType) -> None:
        self._options = options.for_stream()
        self._fetch = fetch_of(options)
        checked(rows, options)
        self._forget()

    def _forget(self) -> None:
        self._opened: Origin | None = None
        self._bounds: dict[MessageQueue, Bounds] = {}
        self._good_until = 0.0
        self._target: Mapping[MessageQueue, int] | None = None  # of AvailableNow
        self._last_trigger: float | None = None
        self._missing = frozenset[MessageQueue]()  # told of

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_fetch": self._fetch}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    @property
    def _origin(self) -> Origin:
        if self._opened is None:
            self._opened = open_origin(self._options)
        return self._opened

    @property
    def _holder(self) -> str:
        return "store" if self._options.root else "broker"

    def _there(self) -> dict[MessageQueue, Bounds]:
        began = time.monotonic()
        if not self._bounds or began > self._good_until:
            self._bounds = self._origin.bounds()
            now = time.monotonic()
            self._good_until = now + max(_BOUNDS_LAST, now - began)
        return self._bounds

    # How far to go

    def initialOffset(self) -> dict[str, Any]:
        bounds = self._there()
        place = LATEST if self._options.start is None else self._options.start
        starts = placed(self._origin, place, bounds, "startingOffsets")
        for queue, (low, high) in bounds.items():
            if self._options.fail_on_data_loss:
                if starts[queue] < low:
                    raise DataLoss(str(queue), starts[queue], low, low, self._holder)
                if starts[queue] > high:
                    raise ConfigError(
                        f"option startingOffsets: {queue} has no offset {starts[queue]}: it ends"
                        f" at {high}"
                    )
            starts[queue] = min(max(starts[queue], low), high)
        return Positions(starts).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Of a least and a most Python can name one: the least is known here anyway."""
        least, most = self._options.min_per_trigger, self._options.max_per_trigger
        if most is not None:
            return ReadMaxRows(most)
        return ReadAllAvailable() if least is None else ReadMinRows(least)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = {queue: end for queue, (_, end) in self._there().items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        here = Positions.from_json(start)
        self._origin.commit(here.offsets)  # Spark asks for more when all before is done with
        bounds = self._there()
        ends = self._ends(here, bounds)
        # what is gone, and may be, is passed over at once
        left = {
            q: max(at, bounds[q].first) if q in bounds else at for q, at in here.offsets.items()
        }
        wanted = replace(here, offsets=left).ranges(ends)
        if self._waits(wanted, limit) and ends.keys() <= here.offsets.keys():
            return start
        self._last_trigger = time.monotonic()
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        ends.update(offsets.share(wanted, most))
        # to Spark anything but the same is news
        return start if ends == here.offsets else here.moved(ends).to_json()

    def _waits(self, wanted: Sequence[Range], limit: ReadLimit) -> bool:
        """For more, as Kafka's does: not at first, nor longer than it may, nor if all is asked."""
        least = self._options.min_per_trigger
        if least is None or self._target is not None or isinstance(limit, ReadAllAvailable):
            return False
        if self._last_trigger is None or sum(one.size for one in wanted) >= least:
            return False
        return time.monotonic() - self._last_trigger < self._options.max_delay

    def _ends(
        self, here: Positions, bounds: Mapping[MessageQueue, Bounds]
    ) -> dict[MessageQueue, int]:
        """How far each queue could be read. A queue that was not known begins with its first
        message, with the batch after this one; one that is not there just now stays where it is."""
        ends = dict(here.offsets)
        for queue, (low, high) in bounds.items():
            if self._target is not None:
                high = min(high, self._target.get(queue, low))
            if queue not in here.offsets:
                ends[queue] = low
                continue
            at = here.offsets[queue]
            if at > bounds[queue].end:
                # fewer than were there: the topic was made anew, or the broker lost its disk
                if self._options.fail_on_data_loss:
                    raise DataLoss(str(queue), bounds[queue].end, at, None, self._holder)
                ends[queue] = low
                continue
            if at < low and self._options.fail_on_data_loss:
                raise DataLoss(str(queue), at, low, low, self._holder)
            ends[queue] = max(high, at)
        self._miss(frozenset(here.offsets.keys() - bounds.keys()), here.offsets)
        return ends

    def _miss(self, queues: frozenset[MessageQueue], at: Mapping[MessageQueue, int]) -> None:
        """Queues that were read and are not there: each is told of once."""
        for queue in sorted(queues - self._missing):
            self._check_name(queue)
            if not self._origin.is_gone(queue):
                log.warning("%s is not there at present: it is read when it comes back", queue)
                continue
            text = f"{queue} is gone, and what was not read of it (from offset {at[queue]} on)"
            if self._options.fail_on_data_loss:
                raise Error(f"{text}: set failOnDataLoss to false to go on with what is left")
            log.warning("%s", text)
        self._missing = queues

    def _check_name(self, queue: MessageQueue) -> None:
        """A store has one broker: what it is called is part of the positions."""
        name = self._options.broker or ""
        if self._options.root and replace(queue, broker_name=name) in self._bounds:
            raise ConfigError(f"option broker is {name!r}, the checkpoint has {queue}: leave it so")

    def reportLatestOffset(self) -> dict[str, Any] | None:
        ends = {queue: end for queue, (_, end) in self._there().items()}
        source = self._options.filter_facts()
        return Positions(ends, source=source).to_json() if ends else None

    def ahead(self, start: dict[str, Any] | None) -> int:
        """How many messages lie beyond `start`, or beyond where it would begin. It only looks: no
        offsets are committed. Raises what the next batch would."""
        here = Positions.from_json(self.initialOffset() if start is None else start)
        return sum(one.size for one in here.ranges(self._ends(here, self._there())))

    # What is read

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[ds.InputPartition]:
        here, there = Positions.from_json(start), Positions.from_json(end)
        if there.begun is not None and start != end:  # equal: only told where the query is
            here = replace(here, offsets=there.begun)
        ranges = here.ranges(there.offsets)
        return packed_partitions_of(self._origin, ranges, self._options)

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        return rows_of(partition, self._fetch)

    def commit(self, end: dict[str, Any]) -> None:
        self._origin.commit(Positions.from_json(end).offsets)

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None
