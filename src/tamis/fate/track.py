"""RocketMQ's own track types, derived from a fate: what `mqadmin` and the dashboard would say.

RocketMQ (`DefaultMQAdminExtImpl.messageTrackDetail`, 4.9.4) knows only whether a group is online,
whether its committed offset passed the message, and the tags it has now. A message that was lost,
retried or skipped is CONSUMED to it.
"""

from .facts import Fate

__all__ = ["track_type"]

_TRACKS = {
    Fate.NOT_ONLINE: "NOT_ONLINE",
    Fate.NOT_CONSUMED_YET: "NOT_CONSUME_YET",
    Fate.CONSUMED: "CONSUMED",
    Fate.FILTERED: "CONSUMED_BUT_FILTERED",
    Fate.LOST_TO_INCONSISTENCY: "CONSUMED",
    Fate.HASH_COLLISION: "CONSUMED_BUT_FILTERED",
    Fate.FILTER_FAILED: "CONSUMED_BUT_FILTERED",
    Fate.RETRYING: "CONSUMED",
    Fate.DEAD_LETTERED: "CONSUMED",
    Fate.SKIPPED_BY_RESET: "CONSUMED",
    Fate.EXPIRED: "CONSUMED",
    Fate.PULL: "PULL",
    Fate.BROADCASTING: "CONSUME_BROADCASTING",  # since 5.0; 4.9 says NOT_ONLINE
    Fate.UNKNOWN: "UNKNOWN",
}


def track_type(fate: Fate) -> str:
    """Return the track type that says most nearly the same."""
    return _TRACKS[fate]
