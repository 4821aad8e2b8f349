"""Spares users what Spark says for nothing: the traceback of a Python worker that it has let go,
and an error's text a second time.

Spark ends a worker that was idle for a minute by closing its socket. Over Unix domain sockets the
worker meets a broken pipe then, and Spark's daemon, whose child it is, prints it.
"""

import sys
import traceback
from types import TracebackType
from typing import Any

from pyspark.logger import PySparkLogger

__all__ = ["Tracebacks", "be_quiet", "be_quiet_as", "tell_errors_once"]


class Tracebacks:
    """The module `traceback`, as Spark's daemon uses it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(traceback, name)

    def print_exc(self) -> None:
        if not isinstance(sys.exc_info()[1], BrokenPipeError):
            traceback.print_exc()


def be_quiet() -> None:
    """In a worker; elsewhere it does nothing. Our own daemon is quiet by itself."""
    main: Any = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    name = spec.name if spec is not None else ""
    if name == "pyspark.daemon":
        main.traceback = Tracebacks()
    else:
        be_quiet_as(name)


def be_quiet_as(name: str) -> None:
    """In a process that is the main module so named, or will be."""
    if name.startswith("pyspark.sql."):  # those of a stream's planning, when it is stopped
        sys.excepthook = _tell


def _tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, BrokenPipeError):
        sys.__excepthook__(kind, error, trace)


def tell_errors_once() -> None:
    """PySpark logs an error of a query, with Java's stack, in a line of JSON on stderr before it
    raises it: whoever sees the exception reads it twice. The loggers are PySpark's own class, hence
    made by it; to have the lines, set `disabled` of the logger back to False."""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
