"""What a filter in code is: a class with `match` or `match_batch`, and what it says it needs."""

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa  # type: ignore[import-untyped]

from .verdicts import Verdicts

__all__ = ["Context", "Judge", "Needs"]


@dataclass(frozen=True, slots=True)
class Context:
    """Who asks: passed to a method that takes a second argument."""

    group: str
    topic: str


@dataclass(frozen=True, slots=True)
class Needs:
    """What a class declares that it needs: the columns of the batches it is given."""

    is_batch: bool  # it has `match_batch`
    columns: tuple[str, ...]
    properties: tuple[tuple[str, str], ...] = ()  # name and type; columns after the others
    is_declared: bool = False


class Judge(Protocol):
    """A filter that is ready to judge batches. One caller at a time."""

    @property
    def needs(self) -> Needs: ...

    def judge(self, batch: pa.RecordBatch) -> Verdicts:
        """Judge a batch that has the columns needed, in their order."""

    def close(self) -> None: ...
