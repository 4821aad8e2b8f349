"""What a run did: for a person, and as JSON for programs. Jobs add fields to `Summary`."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from . import files
from .config import is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["GroupCounts", "RouteSummary", "Sample", "Summary", "check_place", "columns_of"]


def check_place(path: str) -> None:
    """Check that one can be written there. Raises ConfigError."""
    if is_local(path) and os.path.isdir(path):
        raise ConfigError(f"[run] summary {path}: that is a directory")
    files.check_writable(path.rpartition("/")[0] or "/", f"[run] summary {path}")


@dataclass(frozen=True, slots=True)
class Sample:
    """A message, by where it lies. `reason`: why it failed, if it did."""

    place: str  # topic/broker/queue at offset
    message_id: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.place}  {self.message_id}" + (f"  {self.reason}" if self.reason else "")


@dataclass(kw_only=True)
class Summary:
    """The JSON has these names. `status`: done, stopped, failed, or not run."""

    job: str
    file: str
    source: str
    status: str = "done"
    started: str = ""  # ISO 8601
    seconds: float = 0.0  # of the job, without starting Spark
    messages: int = 0  # read in this run
    batches: int = 0
    offsets: Any = None  # up to which all is done, as the source has them
    notes: list[str] = field(default_factory=list)  # what a person should know

    metrics: dict[str, int | None] = field(
        default_factory=dict
    )  # of a streaming job: see `batches`

    @property
    def warnings(self) -> list[str]:
        """What stands in the first line, before all else."""
        return []

    @property
    def filter_errors(self) -> int:
        """How often a filter failed on a message."""
        return 0

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "warnings": self.warnings}

    def lines(self) -> list[str]:
        """For a person."""
        return [*self.head(), *self.body(), *(f"  note: {note}" for note in self.notes)]

    def head(self) -> list[str]:
        if self.status == "not run":
            return [f"{self.file}: {self.job} of {self.source}: all is well, nothing was done"]
        rate = f", {self.messages / self.seconds:,.0f} a second" if self.seconds else ""
        batches = "one batch" if self.batches == 1 else f"{self.batches} batches"
        warnings = "".join(f"WARNING: {one}; " for one in self.warnings)
        return [
            f"{self.file}: {warnings}{self.job} {self.status}: {self.messages:,} messages"
            f" of {self.source} in {self.seconds:.1f} s, {batches}{rate}"
        ]

    def body(self) -> list[str]:
        """What the job adds."""
        return []

    def write(self, path: str, spark: "SparkSession | None" = None) -> None:
        place = files.of(path, spark)
        place.make(path.rpartition("/")[0] + "/")  # with it, as of a file system's root
        place.write(path, json.dumps(self.to_dict(), indent=1, ensure_ascii=False) + "\n")


@dataclass(slots=True)
class GroupCounts:
    """Of one subscription in this run; `total` and `total_failed` since its checkpoint began."""

    group: str
    filter: str
    sink: str
    promise: str
    messages: int = 0  # that its filter was asked about
    matched: int = 0
    failed: int = 0
    samples: list[Sample] = field(default_factory=list)  # of those that failed
    total: int = 0
    total_failed: int = 0


@dataclass(kw_only=True)
class RouteSummary(Summary):
    groups: list[GroupCounts] = field(default_factory=list)
    unmatched: int = 0
    unmatched_sink: str | None = None
    unmatched_samples: list[Sample] = field(default_factory=list)

    @property
    def warnings(self) -> list[str]:
        return [
            f"the filter of {one.group} failed on every message"
            for one in self.groups
            if 0 < one.messages == one.failed
        ]

    @property
    def filter_errors(self) -> int:
        return sum(one.failed for one in self.groups)

    def body(self) -> list[str]:
        rows = [
            (one.group, f"{one.matched:,}", one.filter, f"{one.sink} ({one.promise})")
            for one in self.groups
        ]
        rows.append(("unmatched", f"{self.unmatched:,}", "", self.unmatched_sink or "not kept"))
        if self.status == "not run":
            rows = [(group, filter, sink, "") for group, _, filter, sink in rows]
            return ["  " + line for line in columns_of(rows)]
        lines = ["  " + line for line in columns_of(rows, right=(1,))]
        lines += [f"    such as {sample}" for sample in self.unmatched_samples]
        for one in self.groups:
            if one.failed:
                lines.append(f"  {one.group} failed on {one.failed:,} messages, such as")
                lines += [f"    {sample}" for sample in one.samples]
        return lines


def columns_of(rows: Sequence[tuple[str, ...]], right: tuple[int, ...] = ()) -> list[str]:
    """Rows as lines with their cells under each other; `right` are aligned there."""
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
