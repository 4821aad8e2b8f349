"""How many messages of some ranges a filter matches, counted by the brokers that have them.

The filter need not be that of a group. Apache's brokers can't count, nor those of Tamis before
this request: then the count is not known.
"""

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Literal

from ..wire import headers
from ..wire.bodies import MessageQueue
from ..wire.codes import ResponseCode
from .session import Session

__all__ = ["count_matches"]

_STEP: Final = 1.0  # seconds of counting that are asked for at once
_MARGIN: Final = 5.0  # seconds that an answer may take beyond that
_AT_ONCE: Final = 512  # queues in one request
_UNSUPPORTED: Final = int(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)

Ranges = Mapping[MessageQueue, tuple[int, int]]


async def count_matches(
    session: Session,
    ranges: Ranges,
    expression: str,
    kind: Literal["TAG", "SQL92"],
    deadline: float,
) -> int | None:
    """Return the count over all ranges of offsets, the second of which is not included; None if a
    broker can't count, or has not by a time of the monotonic clock. Raises what asking does."""
    parts: dict[tuple[str, str], list[list[int]]] = {}
    for queue, (begin, end) in ranges.items():
        place = parts.setdefault((queue.broker_name, queue.topic), [])
        place.append([queue.queue_id, begin, end])

    async def count(broker: str, topic: str, some: list[list[int]]) -> int | None:
        address = await session.routes.master(broker)
        header = headers.CountMatches(topic=topic, expression=expression, expression_type=kind)
        return await _counted(session, address, header, some, deadline)

    asked = [
        count(broker, topic, some[at : at + _AT_ONCE])
        for (broker, topic), some in parts.items()
        for at in range(0, len(some), _AT_ONCE)
    ]
    counts = await asyncio.gather(*asked)
    known = [one for one in counts if one is not None]
    return sum(known) if len(known) == len(counts) else None


async def _counted(
    session: Session,
    address: str,
    header: headers.CountMatches,
    ranges: list[list[int]],
    deadline: float,
) -> int | None:
    """The broker is asked again while there is time and it has not counted to the end: what it has
    counted it remembers."""
    body = json.dumps(ranges).encode()
    while (left := deadline - time.monotonic()) > 0:
        seconds = min(_STEP, left)
        answer = await session.ask(
            address,
            replace(header, timeout_millis=int(seconds * 1000)),
            body,
            timeout=seconds + _MARGIN,
            accept=(ResponseCode.SUCCESS, _UNSUPPORTED),
        )
        if answer.code == _UNSUPPORTED:
            return None
        counts: list[int | None] = [count for _, count in json.loads(answer.body)]
        known = [count for count in counts if count is not None]
        if len(known) == len(counts):
            return sum(known)
    return None
