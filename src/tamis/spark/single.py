"""Streams under PySpark 4.1, which asks a source for its latest offset and tells neither where the
query is nor how much a trigger may take.

Where the query is can be known all the same: the reader lives as long as the query, a query that is
resumed begins by planning an empty range where it was, and every batch is planned by its start and
end. So a trigger's least and most are kept here.

Which trigger it is can't be known, and AvailableNow is a single batch: one that is cut short would
be the last one, though more is there. So `maxOffsetsPerTrigger` is refused, unless the option
`trigger` says that the query goes on.
"""

from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql import datasource as ds
from pyspark.sql.types import StructType

from ..errors import ConfigError, Error
from .offsets import Positions
from .options import Options
from .stream import StreamReader

__all__ = ["SingleBatchReader"]

_WRAPPER: Final = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"


class SingleBatchReader(StreamReader):
    """A reader whose `latestOffset` takes nothing, as PySpark 4.1 calls it."""

    def __init__(self, options: Options, rows: StructType) -> None:
        if options.max_per_trigger is not None and options.trigger != "interval":
            raise ConfigError(
                "option maxOffsetsPerTrigger: under PySpark 4.1 trigger(availableNow=True) would"
                " end after so many messages: use PySpark 4.2 or later, leave it out, or set option"
                " trigger to interval if the query has a trigger by time"
            )
        super().__init__(options, rows)

    def _forget(self) -> None:
        super()._forget()
        self._here: dict[str, Any] | None = None  # what the next batch begins with
        self._began: dict[str, Any] | None = None  # if it is a query's first
        self._is_assumed = False  # nothing has been planned yet

    def initialOffset(self) -> dict[str, Any]:
        if self._began is None:
            self._began = super().initialOffset()
        return self._began

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        if self._here is None:
            self._here, self._is_assumed = self.initialOffset(), True
        found = super().latestOffset(self._here, self.getDefaultReadLimit())
        if found is self._here:
            return found
        # What is left is told with the position: Spark asks for nothing else.
        return Positions.from_json(found).with_left(self.ahead(found)).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[ds.InputPartition]:
        if start == end and self._is_assumed and start != self._here:
            raise Error(f"{_WRAPPER} can't be used under PySpark 4.1: leave it out")
        self._here, self._is_assumed = end, False
        return super().partitions(start, end)
