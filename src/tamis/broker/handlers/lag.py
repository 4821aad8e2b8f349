"""GET_MATCHING_LAG: how many messages that its filter matches a group has before it. Ours."""

import time
from functools import partial
from typing import Final

import orjson

from ...errors import ResponseError
from ...net.longwork import Steps, stepwise
from ...net.server import Answer, Request
from ...wire.codes import ResponseCode
from ...wire.headers import GetMatchingLag
from ..lag import Lags, QueueLag
from ..readers import Readers

__all__ = ["matching_lag"]

_SECONDS: Final = 1.0  # of counting, unless the request says otherwise
_MOST_SECONDS: Final = 10.0
_TURN: Final = 0.02  # seconds of counting, then others have the thread
_MOST_ROWS: Final = 40_000  # an answer of some 12 MB


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
    seconds = _SECONDS if header.timeout_millis is None else header.timeout_millis / 1000
    deadline = time.monotonic() + min(max(seconds, 0.0), _MOST_SECONDS)
    counting, rows = lags.steps(found, deadline), None
    while rows is None:
        rows = yield partial(lags.run, counting, _TURN)
    body = yield partial(_encode, rows)
    return Answer(body=body)


def _encode(rows: list[QueueLag]) -> bytes:
    return orjson.dumps([row.to_json() for row in rows])
