"""Which held pulls belong to a member that no longer has the queue.

When the queues of a group are shared out anew, the pull of a queue's former owner may still be held
here while the new owner pulls it too. RocketMQ answers both: the former owner's client throws the
messages away, for the queue is not its own any more. Here such a pull is left to its timeout, so
that no message is given to somebody who does not want it, nor recorded as given.

A member that asks where to begin in a queue (QUERY_CONSUMER_OFFSET) has been assigned it: clients
ask during a rebalance, before their first pull. That pull may come late on a busy machine, so the
question counts as much as the pull.

Only push consumers that share queues are meant. Others may well read one queue together.
"""

from typing import Protocol

from ..net.aio import Peer
from .members import Consumers

__all__ = ["Takeovers"]


class HeldPull(Protocol):
    """`successor`: the member that claimed the queue later, if any did."""

    successor: Peer | None

    @property
    def peer(self) -> Peer: ...


class Takeovers:
    """The pull of each queue that was held last, by group. Belongs to the broker's loop."""

    def __init__(self, consumers: Consumers) -> None:
        self._consumers = consumers
        self._held: dict[str, dict[tuple[str, int, str], HeldPull]] = {}

    def held(self, group: str, queue: tuple[str, int], lane: str, pull: HeldPull) -> None:
        if group in self._consumers.groups:
            self._held.setdefault(group, {})[*queue, lane] = pull

    def claimed(self, group: str, queue: tuple[str, int], lane: str, peer: Peer) -> None:
        """Note that a client pulls a queue, or asks where to begin in it."""
        known = self._held.get(group)
        if known is None:
            return
        pull = known.get((*queue, lane))
        if pull is None or pull.peer is peer:
            return
        members = self._consumers.groups.get(group)
        if (
            members is not None
            and members.message_model == "CLUSTERING"
            and members.consume_type == "CONSUME_PASSIVELY"
            and peer in members.members
            and pull.peer in members.members
        ):
            pull.successor = peer
        del known[*queue, lane]

    def is_taken_over(self, group: str, pull: HeldPull) -> bool:
        """Whether the pull's queue is another member's now."""
        if pull.successor is None:
            return False
        members = self._consumers.groups.get(group)
        if pull.successor.is_closed or members is None or pull.successor not in members.members:
            pull.successor = None  # it is gone: perhaps the queue was never its own
        return pull.successor is not None

    def forget(self, group: str) -> None:
        """Its last member is gone."""
        self._held.pop(group, None)
