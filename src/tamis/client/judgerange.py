"""Asks a filter server what a group's code says of messages, and reads what it answers.

A class is named as histories and lanes name it: `Name`, or `Name#checksum` where the version is
known that was in force. Asking is `code_outcome`'s for a single message; workers of Spark ask about
long ranges by themselves (`spark/codejudges.py`).
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final

import orjson

from ..errors import Error, ResponseError, SystemBusy
from ..filter.logic import Outcome
from ..wire.bodies import MessageQueue
from ..wire.headers import JudgeRange
from .backoff import pause_before
from .session import Session

__all__ = ["NO_SERVER", "check_class", "class_name_of", "code_outcome", "refusal", "why_not_judged"]

log = logging.getLogger(__name__)

NO_SERVER: Final = "it has no filter server"
_SECONDS: Final = 2.0  # for a filter server to judge one message
_BUSY_ATTEMPTS: Final = 4


async def code_outcome(
    session: Session, group: str, class_text: str, queue: MessageQueue, offset: int
) -> Outcome | str:
    """Return what the group's class, as it is now, says of the message; or a clause on why no
    filter server of the message's broker can tell, and what to do."""
    address = await session.routes.master(queue.broker_name)
    route = await session.routes.get(queue.topic)
    header = JudgeRange(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        begin=offset,
        end=offset + 1,
        class_name=class_name_of(class_text),
        timeout_millis=int(_SECONDS * 1000),
        outcomes=True,
    )
    why = NO_SERVER
    for server in route.filter_servers.get(address) or ():
        try:
            told = await _ask(session, server, header)
            check_class(told, class_text)
            outcome = _outcome(told, offset)
            if outcome is not None:
                return outcome
            why = f"{server} did not come to the message"
        except (Error, TimeoutError, ValueError, KeyError, TypeError) as error:
            why = f"{server} says: {refusal(error, header)}"
            log.debug("filter server %s does not judge %s: %s", server, queue, error)
    return why_not_judged(group, class_text, queue.broker_name, why)


async def _ask(session: Session, server: str, header: JudgeRange) -> dict[str, Any]:
    """Raises what asking does, and ValueError."""
    for attempt in range(_BUSY_ATTEMPTS):
        try:
            answer = await session.ask(server, header, timeout=2 * _SECONDS)
            told: dict[str, Any] = orjson.loads(answer.body)
            return told
        except SystemBusy:
            if attempt == _BUSY_ATTEMPTS - 1:
                raise
            await asyncio.sleep(pause_before(attempt, 0.1, 1.0))
    raise AssertionError


def _outcome(told: Mapping[str, Any], offset: int) -> Outcome | None:
    """A message that is not listed does not match, if the server came so far."""
    for row in told["outcomes"]:
        if row["offset"] == offset:
            is_delivered = row["outcome"] == "matched" or told["on_error"] == "pass"
            return Outcome.TRUE if is_delivered else Outcome.ERROR
    return Outcome.FALSE if told["judged_to"] > offset else None


def class_name_of(class_text: str) -> str:
    return class_text.partition("#")[0]


def check_class(told: Mapping[str, Any], class_text: str) -> None:
    """Raises Error if another version of the class judged than the one that was in force, where
    that is known."""
    name, _, crc = class_text.partition("#")
    if crc not in ("", "0") and str(told["crc"]) != crc:
        raise Error(
            f"class {name} is another version now (checksum {told['crc']}) than it was then ({crc})"
        )


def refusal(error: Exception, header: JudgeRange) -> str:
    """Return what a filter server said, without the queue, so that all queues have the same."""
    if not isinstance(error, ResponseError):
        return str(error) or type(error).__name__
    remark = error.remark or str(error)
    return remark.partition(f"queue {header.queue_id}: ")[2] or remark


def why_not_judged(group: str, class_text: str, broker: str, why: str) -> str:
    """Return a clause that says which class it is about, and what to do."""
    name = class_name_of(class_text)
    first = "start a filter server beside it and " if why == NO_SERVER else ""
    return (
        f"{broker} can't be asked what class {name} of {group} says, for {why}; {first}connect a "
        f"member of {group} that subscribes by {name}, and ask again"
    )
