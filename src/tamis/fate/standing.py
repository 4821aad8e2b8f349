"""Who read a message, concluded from what stands today, where no history was kept.

A Java client gives its subscription a new version, the time of its clock in milliseconds, when it
subscribes and whenever its queues have changed (`RebalancePushImpl.messageQueueChanged`, since
4.1.0); so does a reset of offsets, which makes it give its queues up and take them again. A broker
keeps the filter with the highest version. If all of these versions are older than a message, then
the member that has the queue now had it when the message was stored, and all filters were those of
today. What became of it since is then known as from history. What this can't see is a member that
came and went without ever having had a queue.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from .facts import MessageFacts, Reading, View
from .filters import Filter

__all__ = ["STANDING_MARGIN", "MemberNow", "standing_reading"]

STANDING_MARGIN = 500  # milliseconds, for heartbeats under way and clocks that differ
_NAMED = 3  # members named for each filter


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberNow:
    """A connected member, by its own account. `since` is None if that can't tell how long it has
    subscribed so and had these queues, which it can of Java clients only."""

    client_id: str
    filter: Filter | None  # on the message's topic
    since: int | None
    has_queue: bool  # of the message
    topics: frozenset[str] = frozenset()
    sends_filter: bool = False  # with every pull: the broker then uses no other


def standing_reading(
    message: MessageFacts,
    committed: int,
    members: Sequence[MemberNow],
    effective: Filter | None,
    effective_since: int,
) -> Reading | str:
    """Return how progress passed the message, or a sentence on why that can't be concluded."""
    if message.stored is None:
        return "The message has left the log."
    if not members or effective is None:
        return "No member is connected that subscribes to the topic."
    for member in members:
        if member.since is None:
            return f"Since when {member.client_id} has had its queues and its filter is not known."
    owners = [member for member in members if member.has_queue]
    if len(owners) != 1:
        return "No member says that it has the queue." if not owners else "Two have the queue."
    if len({member.topics for member in members}) > 1:
        return "Members of the group subscribe to different topics."
    since = max(effective_since, *(member.since or 0 for member in members))
    if message.stored < since + STANDING_MARGIN:
        moment = datetime.fromtimestamp(since / 1000, UTC)
        return (
            "Members, their queues or their filters changed after it was stored, or just before: "
            f"at {moment:%Y-%m-%d %H:%M:%S} UTC."
        )
    owner = owners[0]
    filters: dict[Filter, tuple[str, ...]] = {}
    for member in members:
        if member.filter is not None:
            names = filters.get(member.filter, ())
            filters[member.filter] = (*names, member.client_id)[:_NAMED]
    used = owner.filter if owner.sends_filter and owner.filter is not None else effective
    return Reading(
        member=owner.client_id,
        filter=used,
        own=owner.filter,
        view=View(since, filters),
        began=since,
        start=message.offset,
        end=committed,
        acknowledged=True,
    )
