"""Spares users the traceback of a Python worker that Spark has let go.

Spark ends a worker that was idle for a minute by closing its socket. Over Unix domain sockets the
worker meets a broken pipe then, and Spark's daemon, whose child it is, prints it.
"""

import sys
import traceback
from types import TracebackType
from typing import Any

__all__ = ["be_quiet"]


class _Tracebacks:
    """The module `traceback`, as Spark's daemon uses it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(traceback, name)

    def print_exc(self) -> None:
        if not isinstance(sys.exc_info()[1], BrokenPipeError):
            traceback.print_exc()


def be_quiet() -> None:
    """In a worker; elsewhere it does nothing."""
    main: Any = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    name = spec.name if spec is not None else ""
    if name == "pyspark.daemon":
        main.traceback = _Tracebacks()
    elif name.startswith("pyspark.sql."):  # those of a stream's planning, when it is stopped
        sys.excepthook = _tell


def _tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, BrokenPipeError):
        sys.__excepthook__(kind, error, trace)
