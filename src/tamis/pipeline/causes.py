"""What a person needs to know of an exception of Spark's, in one line.

A failure in a Python worker comes as the text of a traceback, without the machine it happened on:
that Spark says of the stage that failed.
"""

import re
import time
from typing import Any, Final

from ..spark import _needed  # noqa: F401  # isort: skip
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import PySparkException

from ..errors import Error
from ..spark.progress import reason

__all__ = ["is_slow_start", "last_line", "one_line"]

_TRACEBACK: Final = "Traceback (most recent call last):"
_OF_WORKER: Final = "Python worker"  # in the text of what went wrong in one
_ENDED: Final = "Python worker exited unexpectedly"
_SLOW_START: Final = "Python worker failed to connect back"
_TASK: Final = re.compile(r"\(TID \d+\) \((\S+) executor (\S+)\)")
_LOCAL: Final = "driver"  # the executor's name where it is the driver
_TASKS: Final = 16  # looked at in a stage: a task is tried again four times
_LOOKS: Final = 20  # for the stage: Spark learns of it a moment after the error is raised
_PAUSE: Final = 0.05  # seconds between them


def one_line(error: BaseException) -> str:
    """What a person needs of an exception of Spark's."""
    if isinstance(error, Error):
        return str(error)
    text = str(error)
    if _ENDED in text:
        host, _ = _task_of(text) or _failed_task(_ENDED) or ("", "")
        place = f" on {host}" if host else ""
        return (
            f"a Python worker{place} ended unexpectedly: it was killed, perhaps for want of memory;"
            " see the executor's log"
        )
    if is_slow_start(error):
        return (
            "a Python process of Spark's did not start within 10 seconds, which is all that Spark"
            " allows: the machine is too busy; run it again when it is less so"
        )
    ours = reason(error)
    if ours is not None:
        return ours + _place(text, ours, is_ours=True)
    raised = last_line(text)
    if raised is not None:
        return raised + _place(text, raised)
    return _first_line(error, text)


def is_slow_start(error: BaseException) -> bool:
    """Whether Spark gave up waiting for a Python process that it had started.

    It waits 10 seconds for the process of a streaming source, and no setting changes that
    (`PythonWorkerFactory.createSimpleWorker`, Spark 4.1 to 4.3).
    """
    return _SLOW_START in str(error)


def last_line(text: str) -> str | None:
    """The exception of the last traceback in a text, as Python prints it; None if there is none."""
    _, found, rest = text.rpartition(_TRACEBACK)
    if not found:
        return None
    lines = (line.rstrip() for line in rest.splitlines())
    return next((line for line in lines if line and not line[0].isspace()), None)


def _place(text: str, line: str, *, is_ours: bool = False) -> str:
    """Where a worker failed; of our own errors only if it is another machine's."""
    if _OF_WORKER not in text:
        return ""
    host, executor = _task_of(text) or _failed_task(line) or ("", _LOCAL)
    if is_ours and executor == _LOCAL:
        return ""
    return f" (in a Python worker on {host})" if host else " (in a Python worker)"


def _task_of(text: str) -> tuple[str, str] | None:
    """The host and the executor of the task that failed, where Spark's text has them."""
    found = _TASK.search(text)
    return (found[1], found[2]) if found else None


def _failed_task(line: str) -> tuple[str, str] | None:
    """The same, by the stage that failed with this line. Spark Connect can't be asked."""
    context = SparkContext._active_spark_context
    if context is None:
        return None
    try:
        for _ in range(_LOOKS):
            if found := _in_stages(context, line):
                return found
            time.sleep(_PAUSE)
    except (Py4JError, TypeError, AttributeError):  # Java is gone, or has it in another way
        return None
    return None


def _in_stages(context: SparkContext, line: str) -> tuple[str, str] | None:
    jvm: Any = context._jvm
    store: Any = context._jsc.sc().statusStore()
    api = jvm.org.apache.spark.status.api.v1
    is_failed = jvm.java.util.ArrayList()
    is_failed.add(api.StageStatus.FAILED)
    quantiles, tasks = (getattr(store, f"stageList$default${number}")() for number in (4, 5))
    stages = _all(store.stageList(is_failed, False, False, quantiles, tasks))
    is_failed = jvm.java.util.ArrayList()
    is_failed.add(api.TaskStatus.FAILED)
    for stage in sorted(stages, key=lambda stage: -int(stage.stageId())):
        number, attempt = stage.stageId(), stage.attemptId()
        of_stage = store.taskList(number, attempt, 0, _TASKS, api.TaskSorting.ID, is_failed)
        for task in _all(of_stage):
            said = task.errorMessage()
            if said.isDefined() and line in said.get():
                return task.host(), task.executorId()
    return None


def _all(sequence: Any) -> list[Any]:
    """Of one of Scala's."""
    return [sequence.apply(number) for number in range(sequence.size())]


def _first_line(error: BaseException, text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    first = lines[0]
    if isinstance(error, Py4JJavaError):  # the first line says which call it was
        first = lines[1].removeprefix(": ") if lines[1:] else first
    if isinstance(error, (PySparkException, Py4JJavaError)):
        caused = [line for line in lines if line.startswith("Caused by: ")]
        first = caused[-1].removeprefix("Caused by: ") if caused else first
    return first
