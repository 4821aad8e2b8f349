"""Streams: where one is, how far a trigger goes, what is told of it.

Spark may make a reader anew at any call, and plans a batch again after a crash: everything that
counts is derived from the positions it hands in. What is remembered here saves questions.
"""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import datasource as ds
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from ..errors import ConfigError, DataLoss
from ..wire.bodies import MessageQueue
from . import offsets
from .offsets import Bounds, Positions
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
        self._asked = 0.0
        self._target: Mapping[MessageQueue, int] | None = None  # of AvailableNow
        self._last_trigger = time.monotonic()

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
        now = time.monotonic()
        if not self._bounds or now - self._asked > _BOUNDS_LAST:
            self._bounds = self._origin.bounds()
            self._asked = time.monotonic()
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
        most = self._options.max_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = {queue: end for queue, (_, end) in self._there().items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        here = Positions.from_json(start)
        self._origin.commit(here.offsets)  # Spark asks for more when all before is done with
        ends = self._ends(here, self._there())
        wanted = here.ranges(ends)
        total = sum(one.size for one in wanted)
        least = self._options.min_per_trigger
        if least is not None and total < least and self._target is None:
            waited = time.monotonic() - self._last_trigger
            if waited < self._options.max_delay:
                return start
        self._last_trigger = time.monotonic()
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        ends.update(offsets.share(wanted, most))
        return here.moved(ends).to_json()

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
        for queue in here.offsets.keys() - bounds.keys():
            log.warning("%s is not there at present: it is read when it comes back", queue)
        return ends

    def reportLatestOffset(self) -> dict[str, Any] | None:
        ends = {queue: end for queue, (_, end) in self._there().items()}
        return Positions(ends).to_json() if ends else None

    # What is read

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[ds.InputPartition]:
        ranges = Positions.from_json(start).ranges(Positions.from_json(end).offsets)
        return packed_partitions_of(self._origin, ranges, self._options)

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        return rows_of(partition, self._fetch)

    def commit(self, end: dict[str, Any]) -> None:
        self._origin.commit(Positions.from_json(end).offsets)

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None
