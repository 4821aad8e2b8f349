"""How many messages a stream has before it that its filter matches, asked of the brokers.

Spark tells a listener where a micro-batch ended and where the queues did; brokers of Tamis count
the matches between. What nobody can count is not known, and never estimated.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Final, Literal

from ..client.config import ClientConfig
from ..client.matches import count_matches
from ..client.session import Session
from ..errors import Error
from ..security import Security
from ..security.settings import fields_of
from .progress import Backlog

__all__ = ["matching_lag"]

log = logging.getLogger(__name__)

_GOODBYE: Final = 1.0  # seconds to close connections


def matching_lag(
    backlogs: Sequence[Backlog], seconds: float, security: Security | None = None
) -> int | None:
    """Return the matches in all of them, in about so many seconds at most; None if that is not
    known of one of them. Brokers are asked only with a `security`, from a thread without an event
    loop."""
    total, deadline = 0, time.monotonic() + seconds
    for backlog in backlogs:
        count = backlog.matching
        if count is None and security is not None and backlog.is_askable:
            try:
                count = asyncio.run(_asked(backlog, deadline, security))
            except (Error, TimeoutError, OSError, ValueError) as error:
                log.info("the matching lag is not known: %s", error)
        if count is None:
            return None
        total += count
    return total


async def _asked(backlog: Backlog, deadline: float, security: Security) -> int | None:
    source = backlog.source or {}
    left = max(deadline - time.monotonic(), 0.001)
    config = ClientConfig(
        timeout=left, connect_timeout=left, heartbeat_interval=3600.0, **fields_of(security)
    )
    session = Session("listener", source["nameserver"], config)
    kind: Literal["TAG", "SQL92"] = "SQL92" if "sql" in source else "TAG"
    ranges = {one.queue: (one.start, one.end) for one in backlog.ranges}
    try:
        async with asyncio.timeout(left):
            await session.start()
            text = source["sql"] if kind == "SQL92" else source["tags"]
            return await count_matches(session, ranges, text, kind, deadline)
    finally:
        async with asyncio.timeout(_GOODBYE):
            await session.close()
