"""What Spark's progress of a query says of our sources: how much was looked at, how much of it was
wanted, how much is left.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .offsets import Positions, Range

__all__ = ["Backlog", "Progress", "backlogs", "progress", "reason"]


@dataclass(frozen=True)
class Progress:
    """Of one micro-batch."""

    scanned: int  # offsets passed
    delivered: int  # rows that were not filtered out at the source
    lag: int | None  # offsets there are beyond; None if that is not known
    scanned_in_all: int  # since the query began


def progress(of_query: Any) -> Progress | None:
    """Of `query.lastProgress`, or of what a listener is given. Several sources of ours are added
    up; None if there is none of them, or nothing yet."""
    if of_query is None:
        return None
    found = [
        one
        for source in _sources(of_query)
        if (one := _of_source(source)) is not None
    ]  # fmt: skip
    if not found:
        return None
    lags = [one.lag for one in found]
    return Progress(
        scanned=sum(one.scanned for one in found),
        delivered=sum(one.delivered for one in found),
        lag=None if None in lags else sum(lag for lag in lags if lag is not None),
        scanned_in_all=sum(one.scanned_in_all for one in found),
    )


@dataclass(frozen=True)
class Backlog:
    """What one source had before it when a micro-batch was planned."""

    lag: int | None
    ranges: tuple[Range, ...]  # empty if they are not known
    source: Mapping[str, str] | None  # where it reads, and by which filter; None if not known

    @property
    def matching(self) -> int | None:
        """How many messages of it will be delivered, if that is known without a question."""
        if self.lag == 0:
            return 0
        is_filtered = self.source is None or {"tags", "sql"} & self.source.keys()
        return None if is_filtered else self.lag

    @property
    def is_askable(self) -> bool:
        """Whether there are brokers that may know. Brokers filter by the language of 4.9 only."""
        source = self.source or {}
        return "nameserver" in source and "dialect" not in source and bool(self.ranges)


def backlogs(of_query: Any) -> list[Backlog]:
    """Those of all sources of ours, of what `progress` takes."""
    found = []
    for source in _sources(of_query):
        end, latest = _positions(source.get("endOffset")), _positions(source.get("latestOffset"))
        if end is not None:
            ranges = () if latest is None else tuple(end.ranges(latest.offsets))
            facts = None if latest is None else latest.source
            found.append(Backlog(_lag(end, latest), ranges, facts))
    return found


def _sources(of_query: Any) -> list[dict[str, Any]]:
    # What PySpark gives is a dict too, but the offsets in that of 4.1 are Python's text, not JSON.
    told = json.loads(of_query.json) if hasattr(of_query, "json") else of_query
    return list(told.get("sources", ()))


def _lag(end: Positions, latest: Positions | None) -> int | None:
    if end.left is not None or latest is None:
        return end.left
    return sum(one.size for one in end.ranges(latest.offsets))


def _of_source(source: Mapping[str, Any]) -> Progress | None:
    end = _positions(source.get("endOffset"))
    if end is None:
        return None
    start = _positions(source.get("startOffset")) or Positions({})
    latest = _positions(source.get("latestOffset"))
    return Progress(
        scanned=end.scanned - start.scanned,
        delivered=int(source.get("numInputRows", 0)),
        lag=_lag(end, latest),
        scanned_in_all=end.scanned,
    )


def _positions(value: Any) -> Positions | None:
    """Of Spark's JSON, which is there as text, as a value, or not at all."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError:
            return None
    if not isinstance(value, dict) or "" not in value:
        return None
    try:
        return Positions.from_json(value)
    except ValueError:
        return None


def reason(error: BaseException) -> str | None:
    """Our own line in an exception of Spark's: it wraps what Python code raised in the text of a
    traceback. None if there is none."""
    found = None
    for line in str(error).splitlines():
        name, colon, text = line.strip().partition(": ")
        if colon and name.startswith("tamis.errors."):
            found = text
    return found
