"""A streaming query from start to end: progress told, interruptions taken, errors in a line.

The first Ctrl-C or SIGTERM lets the batch in progress end; a second gives it up, and the next run
does it again. Either way nothing is lost, and nothing doubled where a sink is exactly once.
"""

import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any, Final, Self

from ..spark import _needed  # noqa: F401  # isort: skip
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.utils import is_remote

from ..errors import Error
from ..spark import starting
from ..spark.progress import Progress, progress
from ..spark.session import session
from .causes import is_slow_start, one_line
from .report import Report
from .summary import Summary

__all__ = [
    "JobFailed",
    "Report",
    "SlowStart",
    "Stop",
    "Stopped",
    "drive",
    "is_quick",
    "one_line",
    "spark_session",
    "watched",
]

_LOOK: Final = 0.2  # seconds between looks at the query
# Messages up to which Java does without its second compiler: 30,000 take 7 CPU seconds less,
# 600,000 take 5 more.
_FEW: Final = 250_000
_LOOK_AT_TASKS: Final = 0.5  # seconds between looks at how far Spark is


class JobFailed(Error):
    """Spark could not do it. `summary` is of what was done before, if it is known."""

    summary: Summary | None = None


class SlowStart(JobFailed):
    """Spark gave up waiting for a Python process to start: a busy machine, and worth a retry."""


class Stopped(Exception):
    """Raised by a batch that is not to begin any more."""


class Stop:
    """How often we were asked to stop, and by which signal. Within `with` it takes the signals."""

    def __init__(self, say: Callable[[str], None] = lambda text: None) -> None:
        self.count = 0
        self.signal = 0
        self.on_give_up: Callable[[], None] | None = None  # called from the second time on
        self._say = say
        self._before: dict[int, Any] = {}

    @property
    def asked(self) -> bool:
        return self.count > 0

    def ask(self, number: int = signal.SIGINT) -> None:
        self.count += 1
        self.signal = number
        if self.count == 1:
            self._say("stopping when this batch is done; once more gives it up")
        elif self.on_give_up is not None:
            # In a thread of its own: a signal may have come in the middle of a call to Java.
            threading.Thread(target=self.on_give_up, daemon=True).start()

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, number: int, _: FrameType | None) -> None:
        self.ask(number)


@contextlib.contextmanager
def spark_session(
    name: str, master: str | None, settings: Mapping[str, str], *, messages: int | None = None
) -> Iterator[SparkSession]:
    """The one there is, or a new one that ends with the block; `messages`: how many it is for."""
    there = SparkSession.getActiveSession()
    is_short = messages is not None and messages <= _FEW
    spark = session(name, master=master, config=settings, is_short=is_short)
    try:
        yield spark
    finally:
        if there is None:
            spark.stop()


def is_quick(spark: SparkSession) -> bool:
    """Whether it is one of this machine, which starts as quickly as it can (`spark.starting`)."""
    context = getattr(spark, "sparkContext", None)  # Spark Connect has none
    return context is not None and starting.is_quick(context.master)


def drive(
    query: StreamingQuery,
    stop: Stop,
    report: Report,
    *,
    is_busy: Callable[[], bool],
    told: Callable[[Progress | None], tuple[int, int | None]],
    is_over: Callable[[], bool] | None = None,
) -> None:
    """Until it has ended, or `is_over` between two batches. `is_busy`: a batch is in progress and
    not yet recorded as done; `told`: how many messages went through and are left, given what Spark
    last told. Raises JobFailed (SlowStart), unless it was stopped between batches or given up."""
    py4j = logging.getLogger("py4j.clientserver")  # it logs what a batch raises, as do we
    level = py4j.level
    py4j.setLevel(logging.CRITICAL)
    report.begin()
    try:
        while not query.awaitTermination(_LOOK):  # type: ignore[arg-type]  # seconds, also parts
            if report.is_due:
                report.update(*told(progress(query.lastProgress)), force=True)
            if stop.count > 1 or ((stop.asked or (is_over and is_over())) and not is_busy()):
                query.stop()
    except StreamingQueryException as error:
        is_ended = stop.asked or (is_over is not None and is_over())
        if stop.count < 2 and (not is_ended or is_busy()):
            failure = SlowStart if is_slow_start(error) else JobFailed
            raise failure(one_line(error)) from None
    finally:
        report.close()
        if query.isActive:
            query.stop()
        py4j.setLevel(level)


@contextlib.contextmanager
def watched(
    spark: SparkSession, report: Report | None, messages: int | None = None
) -> Iterator[None]:
    """Tells the report what Spark's tasks say they have read, while they run: each when it ends,
    and all of them with the heartbeats of their executors. Of tasks that can't say it, how many are
    done is told, as a share of `messages`."""
    if report is None or is_remote():
        yield
        return
    store = spark.sparkContext._jsc.sc().statusStore()
    is_over = threading.Event()

    def look() -> None:
        most = 0  # other stages read less: what was counted, samples
        with contextlib.suppress(Py4JError):  # Java is gone: whoever waits for it says so
            while not is_over.wait(_LOOK_AT_TASKS):
                stages = store.activeStages()
                active = [stages.apply(number) for number in range(stages.size())]
                if messages is None:
                    read = [stage.inputRecords() for stage in active]
                else:
                    read = [
                        messages * stage.numCompleteTasks() // max(stage.numTasks(), 1)
                        for stage in active
                    ]
                most = max(most, *read, 0)
                report.update(most, None if messages is None else messages - most)

    report.begin()
    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield
    finally:
        is_over.set()
        looking.join()
        report.close()
