"""What the driver tells executors: which range of which queue, and what to make of it.

Apart from `fetching`, which does it, so that planning loads no compiled loops.
"""

from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from ..client.compression import MAX_BODY_SIZE
from ..security import INSECURE, Security
from ..wire.bodies import MessageQueue

__all__ = ["Fetch", "LogRange", "WireRange"]


@dataclass(frozen=True, slots=True)
class Fetch:
    """What to make of a range: made on the driver, the same for all of them."""

    columns: tuple[str, ...]
    properties: tuple[tuple[str, str], ...] = ()  # names and types
    tags: str | None = None
    sql: str | None = None
    dialect: str = "4.9"
    at_broker: bool = True  # it is asked to filter; over the wire only
    or_reader: bool = True  # where it can't
    fail_on_data_loss: bool = True
    fail_on_unreadable: bool = True  # else such a body is null
    max_body_size: int = MAX_BODY_SIZE
    data_timeout: float = 30.0  # seconds for planned messages to be there
    batch_rows: int = 10_000
    pull_size: int = 32
    timeout: float = 10.0
    retries: int = 5
    group: str = "tamis-spark"
    security: Security = INSECURE


@dataclass(frozen=True)
class WireRange(InputPartition):
    """Offsets `start` up to `end` of a queue; `addresses` are of its broker, the master first."""

    queue: MessageQueue
    start: int
    end: int
    addresses: tuple[str, ...]


@dataclass(frozen=True)
class LogRange(InputPartition):
    """Offsets `start` up to `end` of a queue in a store directory."""

    root: str
    broker: str | None
    topic: str
    queue_id: int
    start: int
    end: int
