"""A streaming query from start to end: progress told, interruptions taken, errors in a line.

The first Ctrl-C or SIGTERM lets the batch in progress end; a second gives it up, and the next run
does it again. Either way nothing is lost, and nothing doubled where a sink is exactly once.
"""

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import IO, Any, Final, Self

from ..spark import _needed  # noqa: F401  # isort: skip
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.utils import is_remote

from ..errors import Error
from ..spark.progress import Progress, progress, reason
from ..spark.session import session
from .summary import Summary

__all__ = [
    "JobFailed",
    "Report",
    "Stop",
    "Stopped",
    "drive",
    "one_line",
    "spark_session",
    "watched",
]

_LOOK: Final = 0.2  # seconds between looks at the query
_LOOK_AT_TASKS: Final = 0.5  # seconds between looks at how far Spark is


class JobFailed(Error):
    """Spark could not do it. `summary` is of what was done before, if it is known."""

    summary: Summary | None = None


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


class Report:
    """Progress: a line that is written over on a terminal, else a line every few seconds."""

    def __init__(self, stream: IO[str] | None, now: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._is_terminal = stream is not None and stream.isatty()
        self._every = 0.5 if self._is_terminal else 5.0
        self._now = now
        self._began = self._last = now()
        self._is_open = False

    def begin(self) -> None:
        """What is told of the rate counts from here."""
        self._began = self._last = self._now()

    @property
    def is_due(self) -> bool:
        return self._stream is not None and self._now() - self._last >= self._every

    def update(self, messages: int, lag: int | None = None, *, force: bool = False) -> None:
        now = self._now()
        if self._stream is None or (now - self._last < self._every and not force):
            return
        self._last = now
        seconds = max(now - self._began, 1e-9)
        text = f"{messages:,} messages in {seconds:.0f} s, {messages / seconds:,.0f} a second"
        if lag is not None:
            text += f", {lag:,} to go"
        if self._is_terminal:
            self._stream.write(f"\r\x1b[K{text}")
            self._is_open = True
        else:
            self._stream.write(text + "\n")
        self._stream.flush()

    def say(self, text: str) -> None:
        self.close()
        if self._stream is not None:
            self._stream.write(text + "\n")
            self._stream.flush()

    def close(self) -> None:
        if self._is_open and self._stream is not None:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
        self._is_open = False


@contextlib.contextmanager
def spark_session(
    name: str, master: str | None, settings: Mapping[str, str]
) -> Iterator[SparkSession]:
    """The one there is, or a new one that ends with the block."""
    there = SparkSession.getActiveSession()
    spark = session(name, master=master, config=settings)
    try:
        yield spark
    finally:
        if there is None:
            spark.stop()


def drive(
    query: StreamingQuery,
    stop: Stop,
    report: Report,
    *,
    is_busy: Callable[[], bool],
    told: Callable[[Progress | None], tuple[int, int | None]],
) -> None:
    """Until it has ended. `is_busy`: a batch is in progress and not yet recorded as done; `told`:
    how many messages went through and are left, given what Spark last told. Raises JobFailed,
    unless it was stopped between batches or given up."""
    py4j = logging.getLogger("py4j.clientserver")  # it logs what a batch raises, as do we
    level = py4j.level
    py4j.setLevel(logging.CRITICAL)
    report.begin()
    try:
        while not query.awaitTermination(_LOOK):  # type: ignore[arg-type]  # seconds, also parts
            if report.is_due:
                report.update(*told(progress(query.lastProgress)), force=True)
            if stop.count > 1 or (stop.asked and not is_busy()):
                query.stop()
    except StreamingQueryException as error:
        if stop.count < 2 and (not stop.asked or is_busy()):
            raise JobFailed(one_line(error)) from None
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


def one_line(error: BaseException) -> str:
    """What a person needs of an exception of Spark's."""
    if isinstance(error, Error):
        return str(error)
    ours = reason(error)
    if ours is not None:
        return ours
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    text = lines[0]
    if isinstance(error, Py4JJavaError):  # the first line says which call it was
        text = lines[1].removeprefix(": ") if lines[1:] else text
    if isinstance(error, (PySparkException, Py4JJavaError)):
        caused = [line for line in lines if line.startswith("Caused by: ")]
        text = caused[-1].removeprefix("Caused by: ") if caused else text
    return text
