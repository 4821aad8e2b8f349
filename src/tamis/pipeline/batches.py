"""A job that takes its source in micro-batches, as one streaming query of Spark's."""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, Generic, TypeVar

from pyspark.sql import DataFrame, SparkSession

from ..spark.progress import Progress
from . import files, sources
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
        # Positions, in all that the source has had: where it ends, where the batch began, its size.
        self._end: int | None = None
        self._at = self._size = 0
        self._before = 0  # messages of the batches before
        self._part = 0.0  # of the batch, done
        summary.notes += checkpoint.notes
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
        checkpoint, summary, config = self._checkpoint, self.summary, self._config
        planned = checkpoint.offsets(checkpoint.planned)
        ahead = sources.check(config.source, planned, limit=config.max_offsets_per_batch)
        if ahead is not None:
            self._end = self._scanned(checkpoint.planned) + ahead
        self._at = self._scanned(checkpoint.done)
        rows = sources.open_source(
            self._spark,
            config.source,
            streaming=True,
            columns=columns,
            properties=properties,
            limit=config.max_offsets_per_batch or _MESSAGES,
        )
        writer = rows.writeStream.foreachBatch(self._begin).queryName(config.file.stem)
        writer = writer.option("checkpointLocation", files.for_spark(checkpoint.location))
        if continuous:
            millis = round(1000 * config.interval)
            writer = writer.trigger(processingTime=f"{millis} milliseconds")
        else:
            writer = writer.trigger(availableNow=True)
        summary.started = datetime.now(UTC).isoformat(timespec="seconds")
        began = time.perf_counter()
        try:
            drive(writer.start(), self._stop, report, is_busy=self._is_busy, told=self._told)
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
        self._at, self._before, self._part = self._scanned(batch - 1), self.summary.messages, 0.0
        self._size = self._scanned(batch) - self._at
        try:
            self.take(rows, batch)
            self._part = 1.0
        except BaseException as error:
            self._failure = error
            raise

    def _scanned(self, batch: int) -> int:
        """Positions passed when it ended; an archive's are not known."""
        beside = (self._checkpoint.offsets(batch) or {}).get("", {})
        return int(beside.get("scanned", 0))

    def _told(self, of_spark: Progress | None) -> tuple[int, int | None]:
        """Spark tells of whole batches; within one, as many as there are tasks done."""
        if self._size and self._part < 1.0:
            self._part = max(self._part, self._tasks_done())
        passed = round(self._size * self._part)
        if of_spark is not None and of_spark.lag is not None:
            self._end = of_spark.scanned_in_all + of_spark.lag
        left = None if self._end is None else max(self._end - self._at - passed, 0)
        return max(self._before + passed, self.summary.messages), left

    def _tasks_done(self) -> float:
        context = getattr(self._spark, "sparkContext", None)  # Spark Connect has none
        if context is None:
            return 0.0
        tracker = context.statusTracker()
        stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
        tasks = sum(one.numTasks for one in stages if one)
        return sum(one.numCompletedTasks for one in stages if one) / tasks if tasks else 0.0
