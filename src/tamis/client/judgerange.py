"""Asks a filter server what a group's code says of single messages."""

from ..filter.logic import Outcome
from ..wire.bodies import MessageQueue
from .session import Session

__all__ = ["code_outcome"]


async def code_outcome(
    session: Session, group: str, class_name: str, queue: MessageQueue, offset: int
) -> Outcome | None:
    """Return what the group's class says of the message; None if no filter server can tell."""
    return None
