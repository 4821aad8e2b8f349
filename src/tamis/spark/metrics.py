"""What a stream's micro-batches did, told as they end: messages scanned and delivered, lag, bytes.

Spark has a place for a source's own figures, `StreamingQueryProgress.sources[].metrics`, but no way
for a source in Python to fill it (4.1, 4.2 and 4.3). So a listener derives them from what Spark
does say: offsets, rows, and the bytes that Python workers gave. How much of the lag will be
delivered the brokers are asked (`matching_lag.py`), in a thread of the listener's own.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from . import _needed  # noqa: F401  # isort: skip
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

from ..security import INSECURE, Security
from .matching_lag import matching_lag
from .progress import Backlog, backlogs, progress

__all__ = ["Metrics", "MetricsListener", "bytes_received"]

log = logging.getLogger(__name__)

_MOST: Final = 1000  # queries of which something is remembered; batches that wait to be told of
_EVERY: Final = 5.0  # seconds from one question to brokers to the next
_SECONDS: Final = 2.0  # that a question may take


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Of a micro-batch of one query; several sources of ours are added up."""

    name: str | None  # the query's
    query_id: str  # stays the same when it is started again from its checkpoint
    run_id: str
    batch: int
    at: str  # when it began, ISO 8601
    seconds: float  # that the whole trigger took
    scanned: int  # offsets passed
    delivered: int  # rows that were not filtered out at the source
    scanned_in_all: int  # since the query began, over all its runs
    lag: int | None  # offsets there are beyond; None if that is not known
    matching_lag: int | None  # those of `lag` that will be delivered; None if that is not known
    bytes: int | None  # that Python workers gave to Spark; None if it was too fast to be asked

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class MetricsListener(StreamingQueryListener):
    """Calls `tell` with the metrics of each micro-batch that reads a source of ours.

    `spark.streams.addListener(MetricsListener(spark, print))`. It is called a moment after the
    batch, one batch after the other, from a thread of Spark's, or from one of the listener's where
    brokers are asked for the matching lag: for a stream that filters and has messages before it,
    `every` so many seconds at most. Batches between have none. Add it before the query is
    started, else bytes are not known. Brokers are asked with the keys and TLS of `security`; if
    they refuse, the matching lag is not known. `last` has the latest metrics.
    """

    def __init__(
        self,
        spark: SparkSession,
        tell: Callable[[Metrics], None] = lambda metrics: None,
        *,
        every: float = _EVERY,
        security: Security = INSECURE,
    ) -> None:
        self._spark = spark
        self._tell = tell
        self._executions: dict[str, _Executions] = {}  # by run
        self._ended: list[str] = []  # runs, the last ones
        self._teller = _Teller(self._tell_of, every, security)
        self.last: Metrics | None = None

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        try:
            query = self._spark.streams.get(str(event.id))
        except (Py4JError, AssertionError):
            return
        if query is not None:
            self._executions[str(event.runId)] = _Executions(query)
            _bound(self._executions)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing was read."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        told = event.progress
        found = progress(told)
        if found is None:
            return
        run_id = str(told.runId)
        executions = self._executions.get(run_id)
        metrics = Metrics(
            name=told.name,
            query_id=str(told.id),
            run_id=run_id,
            batch=told.batchId,
            at=_iso(told.timestamp),
            seconds=told.batchDuration / 1000,
            scanned=found.scanned,
            delivered=found.delivered,
            scanned_in_all=found.scanned_in_all,
            lag=found.lag,
            matching_lag=None,
            bytes=executions.bytes(told.batchId) if executions is not None else None,
        )
        self._teller.add(metrics, backlogs(told))

    def _tell_of(self, metrics: Metrics) -> None:
        self.last = metrics
        self._tell(metrics)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        run_id = str(event.runId)
        self._executions.pop(run_id, None)
        with self._teller.changed:
            self._ended = [*self._ended[-_MOST:], run_id]
            self._teller.changed.notify_all()

    def wait(self, run_id: str, seconds: float) -> bool:
        """Until all that a run which has ended did is told, at most so long."""
        with self._teller.changed:
            return self._teller.changed.wait_for(
                lambda: run_id in self._ended and self._teller.is_idle, seconds
            )


class _Teller:
    """Tells of batches in their order. Those that are known at once are told of at once; if one has
    to be asked about, it and those behind it are told of by a thread that ends when none is left.
    If too many wait, whoever adds one waits too."""

    def __init__(self, tell: Callable[[Metrics], None], every: float, security: Security) -> None:
        self._tell = tell
        self._every = every
        self._security = security
        self._waiting: deque[tuple[Metrics, Sequence[Backlog]]] = deque()
        self._asked: float | None = None  # when the last answer was there
        self.is_idle = True
        self.changed = threading.Condition()

    def add(self, metrics: Metrics, sources: Sequence[Backlog]) -> None:
        with self.changed:
            if not self.is_idle or self._is_to_be_asked(sources):
                self.changed.wait_for(lambda: len(self._waiting) < _MOST)
                self._waiting.append((metrics, sources))
                if self.is_idle:
                    self.is_idle = False
                    threading.Thread(target=self._run, name="tamis-metrics", daemon=True).start()
                return
        self._tell(replace(metrics, matching_lag=matching_lag(sources, 0.0)))

    def _is_to_be_asked(self, sources: Sequence[Backlog]) -> bool:
        unknown = [one for one in sources if one.matching is None]
        if not unknown or not all(one.is_askable for one in unknown):
            return False
        return self._asked is None or time.monotonic() >= self._asked + self._every

    def _run(self) -> None:
        while True:
            with self.changed:
                if not self._waiting:
                    self.is_idle = True
                    self.changed.notify_all()
                    return
                metrics, sources = self._waiting.popleft()
                self.changed.notify_all()
            try:
                is_to_be_asked = self._is_to_be_asked(sources)
                security = self._security if is_to_be_asked else None
                found = matching_lag(sources, _SECONDS, security)
                if is_to_be_asked:
                    self._asked = time.monotonic()
                self._tell(replace(metrics, matching_lag=found))
            except Exception:  # the edge of the thread: the next batch is told of all the same
                log.exception("metrics of batch %d of %s are lost", metrics.batch, metrics.name)


def _bound(remembered: dict[str, Any]) -> None:
    if len(remembered) > _MOST:
        del remembered[next(iter(remembered))]


def _iso(timestamp: str) -> str:
    """Spark's, to the second."""
    moment = datetime.fromisoformat(timestamp.replace("Z", "+00:00"))
    return moment.astimezone(UTC).isoformat(timespec="seconds")


class _Executions:
    """What Spark made of the micro-batches of one run. It has only the one it is at, which may be
    the next when the last is told of: so that one is kept until it is told of itself."""

    def __init__(self, query: StreamingQuery) -> None:
        self._running: Any = _running(query)
        self._kept: Any = None

    def bytes(self, batch: int) -> int | None:
        kept, self._kept = self._kept, _at(self._running)
        for execution in (kept, self._kept):
            if execution is not None and _batch(execution) == batch:
                return _received(execution)
        return None


def bytes_received(query: StreamingQuery, batch: int) -> int | None:
    """The bytes that Python workers gave for the micro-batch a query is at; None if it is at
    another by now, or can't be asked, as one of Spark Connect."""
    execution = _at(_running(query))
    return _received(execution) if execution is not None and _batch(execution) == batch else None


def _running(query: StreamingQuery) -> Any:
    wrapped: Any = getattr(query, "_jsq", None)  # Spark Connect has none
    try:
        return None if wrapped is None else wrapped.streamingQuery()
    except (Py4JError, TypeError):
        return None


def _at(running: Any) -> Any:
    try:
        return None if running is None else running.lastExecution()
    except (Py4JError, TypeError):  # Java is gone, or has it in another way
        return None


def _batch(execution: Any) -> int | None:
    try:
        return int(execution.currentBatchId())
    except (Py4JError, TypeError):
        return None


def _received(execution: Any) -> int | None:
    try:
        leaves = execution.executedPlan().collectLeaves()
        found = [
            leaves.apply(number).metrics().get("pythonDataReceived")
            for number in range(leaves.size())
        ]
        values = [int(one.get().value()) for one in found if one.isDefined()]
    except (Py4JError, TypeError):
        return None
    return sum(values) if values else None
