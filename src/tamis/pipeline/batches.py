"""A job that takes its source in micro-batches, as one streaming query of Spark's."""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, Generic, TypeVar

from pyspark.sql import DataFrame, SparkSession

from . import sources
from .checkpoint import Checkpoint
from .config import Config
from .runner import JobFailed, Report, Stop, Stopped, drive, one_line
from .summary import Summary

__all__ = ["Batches"]

_MESSAGES: Final = 2_000_000  # of a batch, if the file does not say

S = TypeVar("S", bound=Summary)


class Batches(ABC, Generic[S]):
    """One run of it. Spark calls `take` with each batch, from a thread of its own."""

    def __init__(
        self,
        spark: SparkSession,
        config: Config,
        checkpoint: Checkpoint,
        stop: Stop,
        summary: S,
    ) -> None:
        self._spark = spark
        self._config = config
        self._checkpoint = checkpoint
        self._stop = stop
        self.summary = summary
        self._batch: int | None = None  # begun last
        self._failure: BaseException | None = None
        if self._is_again:
            summary.notes.append(
                f"batch {checkpoint.planned} was begun by an earlier run and is done again"
            )

    @abstractmethod
    def take(self, rows: DataFrame, batch: int) -> None:
        """All of a batch. One that was not recorded as done comes again, with the same rows."""

    @property
    def _is_again(self) -> bool:
        return self._checkpoint.planned > self._checkpoint.done

    def _go(
        self, columns: Sequence[str], properties: Sequence[str], continuous: bool, report: Report
    ) -> S:
        """Until all that is there now is done, or with `continuous` until stopped. Raises
        JobFailed."""
        checkpoint, summary = self._checkpoint, self.summary
        rows = sources.open_source(
            self._spark,
            self._config.source,
            streaming=True,
            columns=columns,
            properties=properties,
            limit=self._config.max_offsets_per_batch or _MESSAGES,
        )
        writer = rows.writeStream.foreachBatch(self._begin).queryName(self._config.file.stem)
        writer = writer.option("checkpointLocation", checkpoint.location)
        if continuous:
            millis = round(1000 * self._config.interval)
            writer = writer.trigger(processingTime=f"{millis} milliseconds")
        else:
            writer = writer.trigger(availableNow=True)
        summary.started = datetime.now(UTC).isoformat(timespec="seconds")
        began = time.perf_counter()
        try:
            drive(
                writer.start(),
                self._stop,
                report,
                is_busy=self._is_busy,
                messages=lambda: summary.messages,
            )
        except JobFailed as error:
            summary.status = "failed"
            failed = error if self._failure is None else JobFailed(one_line(self._failure))
            failed.summary = summary
            raise failed from self._failure
        finally:
            summary.seconds = round(time.perf_counter() - began, 3)
            summary.offsets = checkpoint.offsets(checkpoint.last_done())
        if self._stop.asked:
            summary.status = "stopped"
            summary.notes.append("run it again to go on from there")
        return summary

    def _is_busy(self) -> bool:
        return self._batch is not None and self._checkpoint.last_done() < self._batch

    def _begin(self, rows: DataFrame, batch: int) -> None:
        if self._stop.asked:
            raise Stopped
        self._batch = batch
        try:
            self.take(rows, batch)
        except BaseException as error:
            self._failure = error
            raise
