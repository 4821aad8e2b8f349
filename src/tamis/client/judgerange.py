"""Asks a filter server what a group's code says of single messages."""

import logging
from typing import Final

import orjson

from ..errors import Error
from ..filter.logic import Outcome
from ..wire.bodies import MessageQueue
from ..wire.headers import JudgeRange
from .session import Session

__all__ = ["code_outcome"]

log = logging.getLogger(__name__)

_SECONDS: Final = 2.0  # for a filter server to judge one message


async def code_outcome(
    session: Session, group: str, class_name: str, queue: MessageQueue, offset: int
) -> Outcome | None:
    """Return what the group's class, as it is now, says of the message; None if no filter server of
    the message's broker can tell."""
    address = await session.routes.master(queue.broker_name)
    route = await session.routes.get(queue.topic)
    header = JudgeRange(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        begin=offset,
        end=offset + 1,
        class_name=class_name,
        timeout_millis=int(_SECONDS * 1000),
        outcomes=True,
    )
    for server in route.filter_servers.get(address) or ():
        try:
            answer = await session.ask(server, header, timeout=2 * _SECONDS)
            return _outcome(orjson.loads(answer.body), offset)
        except (Error, TimeoutError, ValueError, KeyError, TypeError) as error:
            log.debug("filter server %s does not judge %s: %s", server, queue, error)
    return None


def _outcome(told: dict[str, object], offset: int) -> Outcome | None:
    """A message that is not listed does not match, if the server came so far."""
    rows = told["outcomes"]
    assert isinstance(rows, list)
    for row in rows:
        if row["offset"] == offset:
            is_delivered = row["outcome"] == "matched" or told["on_error"] == "pass"
            return Outcome.TRUE if is_delivered else Outcome.ERROR
    judged_to = told["judged_to"]
    return Outcome.FALSE if isinstance(judged_to, int) and judged_to > offset else None
