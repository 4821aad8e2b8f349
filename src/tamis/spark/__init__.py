"""RocketMQ's topics as DataFrames, and its filters as Columns.

`session()` gives a Spark session that knows the formats `rocketmq` and `rocketmq-log`; `register`
teaches them to one that is there. `sql92` and `tags` are filters to be used in `where`.
`MetricsListener` tells what the micro-batches of streams did.
"""

from . import _needed  # noqa: F401  # isort: skip
from .columns import raw, sql92, sql92_outcome, tags, typed
from .metrics import Metrics, MetricsListener
from .progress import Progress, progress, reason
from .session import session
from .source import register

__all__ = [
    "Metrics",
    "MetricsListener",
    "Progress",
    "progress",
    "raw",
    "reason",
    "register",
    "session",
    "sql92",
    "sql92_outcome",
    "tags",
    "typed",
]
