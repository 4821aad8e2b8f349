"""Spark's own filters on columns, in batch reads: what they spare the reader, and how the rest of
them is tested on a batch before it goes into the JVM.

What is taken here is exact: Spark does not look again. Floating point is left to Spark, whose NaN
is equal to itself.
"""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import Any, Final

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark.sql import datasource as ds
from pyspark.sql.types import (
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from ..filter.tags import SEPARATOR
from ..java import trim
from .offsets import Range

__all__ = ["Pushed", "mask", "push"]

_EXACT: Final = (StringType, IntegerType, LongType, TimestampType, BooleanType)
_COMPARED: Final[dict[type, Callable[[Any, Any], pa.Array]]] = {
    ds.EqualTo: pc.equal,
    ds.GreaterThan: pc.greater,
    ds.GreaterThanOrEqual: pc.greater_equal,
    ds.LessThan: pc.less,
    ds.LessThanOrEqual: pc.less_equal,
}
_SEARCHED: Final[dict[type, Callable[..., pa.Array]]] = {
    ds.StringStartsWith: pc.starts_with,
    ds.StringEndsWith: pc.ends_with,
    ds.StringContains: pc.match_substring,
}
_RETRIES: Final = "%RETRY%"
_CLOCK_MARGIN: Final = 600_000  # milliseconds a broker's clock may have been put back


@dataclass(frozen=True)
class Pushed:
    """Filters that hold for all rows, and what follows from them for what is read at all."""

    filters: tuple[ds.Filter, ...] = ()
    tags: str | None = None  # a tag expression: the broker can be asked for it
    after: int | None = None  # milliseconds: nothing stored before is wanted
    before: int | None = None  # nor what was stored then or later

    def narrowed(self, ranges: Iterable[Range]) -> list[Range]:
        """Without queues and offsets that no row of which can be wanted."""
        found = []
        for one in ranges:
            start, end = one.start, one.end
            for filter in self.filters:
                start, end = _narrow(filter, one, start, end)
            if start < end:
                found.append(Range(one.queue, start, end))
        return found


def push(filters: Sequence[ds.Filter], rows: StructType) -> tuple[Pushed, list[ds.Filter]]:
    """What is taken, and what is given back to Spark."""
    types = {field.name: field.dataType for field in rows.fields}
    taken = [one for one in filters if _is_exact(one, types)]
    left = [one for one in filters if one not in taken]
    tags = [expression for one in taken if (expression := _tags(one)) is not None]
    after = [millis for one in taken if (millis := _after(one)) is not None]
    before = [millis for one in taken if (millis := _before(one)) is not None]
    pushed = Pushed(
        filters=tuple(taken),
        tags=tags[0] if tags else None,
        after=max(after) - _CLOCK_MARGIN if after else None,
        before=min(before) + _CLOCK_MARGIN if before else None,
    )
    return pushed, left


def _is_exact(filter: ds.Filter, types: Mapping[str, DataType]) -> bool:
    if isinstance(filter, ds.Not):
        return _is_exact(filter.child, types)
    path: tuple[str, ...] = getattr(filter, "attribute", ())
    if len(path) != 1 or not isinstance(types.get(path[0]), _EXACT):
        return False
    if isinstance(filter, ds.IsNull | ds.IsNotNull):
        return True
    if isinstance(filter, ds.In):
        return all(_is_plain(value) for value in filter.value)
    known = (*_COMPARED, *_SEARCHED, ds.EqualNullSafe)
    return isinstance(filter, known) and _is_plain(getattr(filter, "value", None))


def _is_plain(value: object) -> bool:
    return isinstance(value, str | int | datetime) and getattr(value, "tzinfo", True) is not None


def mask(batch: pa.RecordBatch, filters: Sequence[ds.Filter]) -> pa.Array:
    """True for rows that all filters are true of."""
    return reduce(pc.and_, [pc.fill_null(_test(one, batch), False) for one in filters])


def _test(filter: ds.Filter, batch: pa.RecordBatch) -> pa.Array:
    if isinstance(filter, ds.Not):
        return pc.invert(_test(filter.child, batch))
    column = batch.column(filter.attribute[0])  # type: ignore[attr-defined]
    if isinstance(filter, ds.IsNull):
        return column.is_null()
    if isinstance(filter, ds.IsNotNull):
        return column.is_valid()
    if isinstance(filter, ds.In):
        among = pc.is_in(column, pa.array(list(filter.value), column.type))
        return pc.if_else(column.is_valid(), among, pa.scalar(None, pa.bool_()))
    value = filter.value  # type: ignore[attr-defined]
    if isinstance(filter, ds.EqualNullSafe):
        return pc.fill_null(pc.equal(column, pa.scalar(value, column.type)), False)
    if type(filter) in _SEARCHED:
        return _SEARCHED[type(filter)](column, pattern=value)
    return _COMPARED[type(filter)](column, pa.scalar(value, column.type))


def _narrow(filter: ds.Filter, one: Range, start: int, end: int) -> tuple[int, int]:
    """Bounds of offsets, or nothing, by what the filter says of the queue and its offsets."""
    name = getattr(filter, "attribute", ("",))[0]
    queue = one.queue
    constants: dict[str, object] = {"queue_id": queue.queue_id}
    if not queue.topic.startswith(_RETRIES):  # those show the topic they were first sent to
        constants["topic"] = queue.topic
    if queue.broker_name:
        constants["broker"] = queue.broker_name
    if name in constants:
        value: Any = constants[name]
        told = _says(filter, value)
        return (start, end) if told is not False else (start, start)
    if name != "offset":
        return start, end
    wanted: Any = getattr(filter, "value", None)
    match filter:
        case ds.EqualTo() | ds.EqualNullSafe():
            return max(start, wanted), min(end, wanted + 1)
        case ds.GreaterThan():
            return max(start, wanted + 1), end
        case ds.GreaterThanOrEqual():
            return max(start, wanted), end
        case ds.LessThan():
            return start, min(end, wanted)
        case ds.LessThanOrEqual():
            return start, min(end, wanted + 1)
        case ds.In(value=values) if values:
            return max(start, min(values)), min(end, max(values) + 1)
    return start, end


_OPERATORS: Final[dict[type, Callable[[Any, Any], bool]]] = {
    ds.EqualTo: operator.eq,
    ds.EqualNullSafe: operator.eq,
    ds.GreaterThan: operator.gt,
    ds.GreaterThanOrEqual: operator.ge,
    ds.LessThan: operator.lt,
    ds.LessThanOrEqual: operator.le,
}


def _says(filter: ds.Filter, value: Any) -> bool | None:
    """What it says of one value; None where it is not looked at so closely."""
    if isinstance(filter, ds.In):
        return value in filter.value
    test = _OPERATORS.get(type(filter))
    if test is None or (isinstance(value, str) and test is not operator.eq):
        return None  # texts are ordered by bytes there, by letters here
    return test(value, filter.value)  # type: ignore[attr-defined]


def _tags(filter: ds.Filter) -> str | None:
    """An expression of tags that asks for no fewer messages, if they are tags RocketMQ can have."""
    if getattr(filter, "attribute", None) != ("tags",):
        return None
    if isinstance(filter, ds.EqualTo | ds.EqualNullSafe):
        wanted = [filter.value]
    elif isinstance(filter, ds.In):
        wanted = list(filter.value)
    else:
        return None
    can_be = all(tag and tag == trim(tag) and "|" not in tag and tag != "*" for tag in wanted)
    return f" {SEPARATOR} ".join(wanted) if wanted and can_be else None


def _after(filter: ds.Filter) -> int | None:
    if getattr(filter, "attribute", None) != ("store_timestamp",):
        return None
    if isinstance(filter, ds.EqualTo | ds.EqualNullSafe | ds.GreaterThan | ds.GreaterThanOrEqual):
        return _millis(filter.value)
    return None


def _before(filter: ds.Filter) -> int | None:
    if getattr(filter, "attribute", None) != ("store_timestamp",):
        return None
    if isinstance(filter, ds.EqualTo | ds.EqualNullSafe | ds.LessThan | ds.LessThanOrEqual):
        return _millis(filter.value) + 1
    return None


def _millis(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
