"""GET_MATCHING_LAG: how many messages that its filter matches a group has before it. Ours, as are
COUNT_MATCHES, for readers that are no group of the broker's, and REPORT_CODE_LAG, by which filter
servers tell what they counted."""

import time
from functools import partial
from typing import Final

import orjson

from ...errors import InvalidFilter, ResponseError
from ...filter.tags import parse_tags
from ...net.longwork import Steps, stepwise
from ...net.server import Answer, Request
from ...store.select import SqlFilter
from ...wire.codes import ResponseCode
from ...wire.headers import CountMatches, GetMatchingLag, ReportCodeLag
from ..codelag import CodeLags
from ..config import Settings
from ..filters import checked_length, is_quick, try_compile
from ..lag import Lags, QueueLag, range_counts, range_readers
from ..readers import Reader, ReaderFilter, Readers
from ..topics import Topics
from .monitor import FilterServers

__all__ = ["count_matches", "matching_lag", "report_code_lag"]

_SECONDS: Final = 1.0  # of counting, unless the request says otherwise
_MOST_SECONDS: Final = 10.0
_TURN: Final = 0.02  # seconds of counting, then others have the thread
_MOST_ROWS: Final = 40_000  # an answer of some 12 MB
_MOST_RANGES: Final = 1024  # of one request
_MOST_BYTES: Final = 64 * _MOST_RANGES


@stepwise
def matching_lag(
    readers: Readers, lags: Lags, header: GetMatchingLag, request: Request
) -> Steps[Answer]:
    """Answers after `timeout_millis` with what is known by then: whoever asks again has the rest
    counted. Counting is done in the thread, in turns with others."""
    found = yield from readers.steps(header.consumer_group or None, header.topic or None)
    count = sum(len(reader.queues) for reader in found)
    if count > _MOST_ROWS:
        why = f"the lag of {count} queues of groups: name a group or a topic (up to {_MOST_ROWS})"
        raise ResponseError(ResponseCode.SYSTEM_ERROR, why)
    rows = yield from _counted(lags, found, header.timeout_millis)
    body = yield partial(_encode, rows)
    return Answer(body=body)


def _counted(lags: Lags, readers: list[Reader], millis: int | None) -> Steps[list[QueueLag]]:
    seconds = _SECONDS if millis is None else millis / 1000
    deadline = time.monotonic() + min(max(seconds, 0.0), _MOST_SECONDS)
    counting = lags.steps(readers, deadline)
    rows: list[QueueLag] | None = None
    while rows is None:
        rows = yield partial(lags.run, counting, _TURN)
    return rows


def _encode(rows: list[QueueLag]) -> bytes:
    return orjson.dumps([row.to_json() for row in rows])


@stepwise
def count_matches(
    settings: Settings, topics: Topics, lags: Lags, header: CountMatches, request: Request
) -> Steps[Answer]:
    """Answers with a count for each range, null for one that was not counted to the end in time:
    whoever asks again has the rest counted."""
    ranges = _ranges(request.body)
    if topics.get(header.topic) is None:
        raise ResponseError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist")
    by = yield from _filter(settings, header.expression, header.expression_type or "TAG")
    readers = range_readers(header.topic, by, ranges)
    rows = yield from _counted(lags, readers, header.timeout_millis)
    counts = range_counts(rows)
    return Answer(body=orjson.dumps([[queue, counts[queue]] for queue in ranges]))


def _filter(settings: Settings, text: str, kind: str) -> Steps[ReaderFilter]:
    """Raises ResponseError."""
    try:
        if kind == "TAG":
            return ReaderFilter(kind, text, parse_tags(checked_length(text)))
        if not settings.config.sql_filters:
            why = f"filters by {kind} are switched off here (enablePropertyFilter)"
            raise ResponseError(ResponseCode.SYSTEM_ERROR, why)
        compiling = partial(try_compile, text, kind)
        found = compiling() if is_quick(text, kind) else (yield compiling)
        if isinstance(found, InvalidFilter):
            raise found.with_traceback(None)
        return ReaderFilter(kind, text, SqlFilter(found))
    except InvalidFilter as error:
        why = f"{text[:80]!r}, {error}"
        raise ResponseError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, why) from None


def _ranges(body: bytes) -> dict[int, tuple[int, int]]:
    """The ranges a request names, by queue. Raises ResponseError."""
    try:
        if len(body) > _MOST_BYTES:
            raise ValueError(f"{len(body)} bytes, it takes up to {_MOST_BYTES}")
        made = {
            _whole(queue): (_whole(begin), _whole(end)) for queue, begin, end in orjson.loads(body)
        }
        if len(made) > _MOST_RANGES:
            raise ValueError(f"{len(made)} queues, it takes up to {_MOST_RANGES}")
    except (ValueError, TypeError) as error:
        why = f"the body is no list of [queue, begin, end]: {error}"
        raise ResponseError(ResponseCode.SYSTEM_ERROR, why) from None
    return made


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ValueError(f"{value!r} is no offset")
    return value


def report_code_lag(
    servers: FilterServers, lags: CodeLags, header: ReportCodeLag, request: Request
) -> Answer:
    """Take what a filter server counted. Others may not say it: it would be shown as a fact."""
    if not servers.knows(request.peer):
        why = "lags are reported by filter servers that have registered on the same connection"
        raise ResponseError(ResponseCode.NO_PERMISSION, why)
    lags.report(request.peer, request.body)
    return Answer()
