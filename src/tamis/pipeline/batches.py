"""A job that takes its source in micro-batches, as one streaming query of Spark's."""

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Generic, TypeVar

from ..spark import _needed  # noqa: F401  # isort: skip
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ..spark.limits import HAS_ADMISSION_CONTROL
from ..spark.metrics import Metrics, MetricsListener, bytes_received
from ..spark.offsets import Positions
from ..spark.progress import Progress
from . import files, sources
from .checkpoint import Checkpoint
from .config import Config
from .metrics_file import append_line
from .runner import JobFailed, Report, SlowStart, Stop, Stopped, drive, one_line
from .summary import Summary

__all__ = ["Batches"]

_LAST_WORDS: Final = 5.0  # seconds for Spark to tell of a query that has ended
_STARTS: Final = 3  # of a query for whose source Python does not start in time
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
        self._is_over: Callable[[], bool] | None = None  # where Spark does not know
        self._query: StreamingQuery | None = None
        self._bytes: dict[int, int | None] = {}  # read by the last batch
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
        elif HAS_ADMISSION_CONTROL or config.source.archive is not None:
            writer = writer.trigger(availableNow=True)
        else:  # PySpark 4.1 would end with the first batch, or with one that is done again
            writer = writer.trigger(processingTime="0 seconds")
            begin = checkpoint.offsets(checkpoint.done)
            self._is_over = partial(self._is_at, sources.ends(config.source), begin)
        summary.started = datetime.now(UTC).isoformat(timespec="seconds")
        began = time.perf_counter()
        listener = MetricsListener(
            self._spark, self._metered, security=sources.security_of(config.source)
        )
        self._spark.streams.addListener(listener)
        try:
            self._drive(writer, report)
        except JobFailed as error:
            summary.status = "failed"
            failed = error if self._failure is None else JobFailed(one_line(self._failure))
            failed.summary = summary
            raise failed from self._failure
        finally:
            summary.seconds = round(time.perf_counter() - began, 3)
            summary.offsets = checkpoint.offsets(checkpoint.last_done())
            with contextlib.suppress(Py4JError):  # Java is gone: whoever waits for it says so
                if self._query is not None:
                    listener.wait(str(self._query.runId), _LAST_WORDS)
                self._spark.streams.removeListener(listener)
        if self._stop.asked:
            summary.status = "stopped"
            summary.notes.append("run it again to go on from there")
        return summary

    def _drive(self, writer: DataStreamWriter, report: Report) -> None:
        """Start the query and see it to its end. One that did not get as far as its first batch,
        because the machine was too busy to start Python in time, is started again."""
        for is_last in (False,) * (_STARTS - 1) + (True,):
            self._query = writer.start()
            try:
                drive(
                    self._query,
                    self._stop,
                    report,
                    is_busy=self._is_busy,
                    told=self._told,
                    is_over=self._is_over,
                )
                break
            except SlowStart:
                if is_last or self._batch is not None:
                    raise
                report.say("Spark's Python did not start in time on this busy machine: retrying")

    def _metered(self, of_batch: Metrics) -> None:
        """Called when Spark has recorded a batch as done."""
        query = self._query
        if of_batch.name != self._config.file.stem:
            return
        if query is not None and of_batch.run_id != str(query.runId):
            return
        if of_batch.batch in self._bytes:  # asked while it was done, so it is the batch's
            of_batch = replace(of_batch, bytes=self._bytes[of_batch.batch])
        totals = self.summary.metrics
        for name in ("scanned", "delivered", "bytes"):
            more = getattr(of_batch, name)
            if more is not None:
                totals[name] = (totals.get(name) or 0) + more
        totals["lag"], totals["matching_lag"] = of_batch.lag, of_batch.matching_lag
        if self._config.metrics is not None:
            append_line(self._config.metrics, of_batch.to_dict())

    def _is_busy(self) -> bool:
        return self._batch is not None and self._checkpoint.last_done() < self._batch

    def _is_at(self, target: Positions | None, begin: dict[str, Any] | None) -> bool:
        """Whether all that lies before `target` is done, having begun at `begin`. Queues that came
        later are not waited for; those that lost their messages are begun anew."""
        done = self._checkpoint.offsets(self._checkpoint.last_done())
        if target is None or (done is None and not self._end):
            return True
        if done is None:
            return False
        here, start = Positions.from_json(done), Positions.from_json(begin or {})
        lost = [q for q, at in target.offsets.items() if start.offsets.get(q, at) > at]
        is_anew = all(here.offsets.get(queue) != start.offsets[queue] for queue in lost)
        return is_anew and not here.ranges(target.offsets)

    def _begin(self, rows: DataFrame, batch: int) -> None:
        if self._stop.asked or (self._is_over is not None and self._is_over()):
            raise Stopped
        self._batch = batch
        self._at, self._before, self._part = self._scanned(batch - 1), self.summary.messages, 0.0
        self._size = self._scanned(batch) - self._at
        try:
            self.take(rows, batch)
            self._part = 1.0
            if self._query is not None:
                self._bytes = {batch: bytes_received(self._query, batch)}
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
