"""Spares users the traceback of a Python worker that Spark has let go.

Spark ends a worker that was idle for a minute by closing its socket. Over Unix domain sockets the
worker meets a broken pipe then, and Spark's daemon, whose child it is, prints it.
"""

import sys
import traceback
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
    if spec is not None and spec.name == "pyspark.daemon":
        main.traceback = _Tracebacks()
