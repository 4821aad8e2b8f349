"""GET_FILTER_VERDICTS: what brokers' filters said lately, and which filters are kept for groups
that are gone. A request of ours; `tamis doctor` asks it."""

import json
from collections.abc import Callable
from typing import Any, Final

import orjson

from ...net.longwork import Steps, stepwise
from ...net.server import Answer, Request
from ...wire.headers import OfAnyGroup
from ..filters import Filters
from ..verdicts import Tally, Verdicts

__all__ = ["filter_verdicts"]

_AT_ONCE: Final = 200  # rows that are made without a pause


@stepwise
def filter_verdicts(
    verdicts: Verdicts,
    filters: Filters,
    now: Callable[[], float],
    header: OfAnyGroup,
    request: Request,
) -> Steps[Answer]:
    """A row for each group and topic that has counts or a filter in SQL. Times are milliseconds;
    counts are since the broker started, those under `recent` of the last day."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for number, (key, tally) in enumerate(list(verdicts.tallies.items())):
        if header.group in (None, key[0]):
            rows[key] = _counts(tally, now())
        if number % _AT_ONCE == 0:
            yield None
    for number, data in enumerate(filters.all()):
        if header.group in (None, data.group):
            key = data.group, data.topic
            rows.setdefault(key, _counts(Tally(), now())).update(
                expression=data.expression,
                born=data.born_time,
                dead_since=data.dead_time if data.is_dead else None,
            )
        if number % _AT_ONCE == 0:
            yield None
    for key, fault in filters.faults():
        if header.group in (None, key[0]):
            rows.setdefault(key, _counts(Tally(), now()))["fault"] = fault
    answer = [{"group": group, "topic": topic, **row} for (group, topic), row in rows.items()]
    return Answer(body=(yield lambda: _json(answer)))


def _json(rows: list[dict[str, Any]]) -> bytes:
    """Expressions may hold half a surrogate pair, which UTF-8 can't."""
    try:
        return orjson.dumps(rows)
    except TypeError:
        return json.dumps(rows, ensure_ascii=False).encode("utf-8", "replace")


def _counts(tally: Tally, now: float) -> dict[str, Any]:
    recent = tally.recent(now)
    return {
        "since": int(tally.began * 1000) or None,
        "evaluated": tally.evaluated,
        "matched": tally.matched,
        "failed": tally.failed,
        "samples": list(tally.samples),
        "recent": {
            "since": int(recent.since * 1000),
            "evaluated": recent.evaluated,
            "matched": recent.matched,
            "failed": recent.failed,
        },
        "expression": None,
        "born": None,
        "dead_since": None,
        "fault": None,
    }
