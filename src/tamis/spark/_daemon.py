"""Spark's daemon for Python workers, which has loaded what they need before it forks them.

`spark.python.daemon.module` names it where the driver is local (`starting`). Without it each worker
of a new session imports Arrow, pandas and Tamis and loads compiled loops for itself, two CPU
seconds of a first batch. The daemon itself is Spark's; tried with PySpark 4.1, 4.2 and 4.3.
"""

import contextlib
import importlib
import os
import sys

from ._quiet import Tracebacks

__all__ = ["WORKER", "load", "load_loops", "manage"]

WORKER = "pyspark.worker"  # of the daemons: those that plan need little
_NEEDED = (
    "pyspark.worker",
    "pandas",
    "pyarrow.compute",
    "tamis.spark.source",
    "tamis.spark.fetching",
    "tamis.spark.code",
)


def load() -> None:
    """What is missing is the worker's to find out, and to tell."""
    for name in _NEEDED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    os.register_at_fork(after_in_child=_reseed)


def load_loops() -> None:
    """On a new machine it compiles, once for all workers."""
    with contextlib.suppress(Exception):  # it is only sooner
        from tamis.client.warmup import load_readers

        load_readers()


def _reseed() -> None:
    """Chance must not be the same in all workers. Python's own `random` sees to itself."""
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


def manage() -> None:
    """Serve Spark, until it closes our standard input. `sys.argv` says what with."""
    from pyspark import daemon  # that of 4.1 looks at the arguments when it is imported

    vars(daemon)["traceback"] = Tracebacks()
    daemon.manager()


if __name__ == "__main__":
    if sys.argv[1:2] == [WORKER]:
        load()
        load_loops()
    manage()
