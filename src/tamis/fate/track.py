"""RocketMQ's own track types: what `mqadmin` and the dashboard say of a message and a group.

RocketMQ (`DefaultMQAdminExtImpl.messageTrackDetail`, 4.9.4) knows only whether a group is online,
whether its committed offset passed the message, and the tags it has now. A message that was lost,
retried or skipped is CONSUMED to it. `apache_track` says what RocketMQ says; `track_type` says
which of its words comes nearest to a fate.
"""

from .facts import Fate, GroupFacts, MessageFacts
from .filters import tags_of

__all__ = ["apache_track", "track_type"]

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


def apache_track(message: MessageFacts, group: GroupFacts) -> str:
    """Return the track type that RocketMQ 4.9's tools print for the message and the group.

    They look for the group's members where its retry topic is, and take a group that has no offset
    of any topic for one that is not online: so does a broadcasting group look to them.
    """
    if not group.has_retry_topic:
        return "UNKNOWN"
    if not group.online:
        return "NOT_ONLINE"
    if group.consume_type == "CONSUME_ACTIVELY":
        return "PULL"
    has_offsets = group.committed is not None if group.has_offsets is None else group.has_offsets
    if not has_offsets:
        return "NOT_ONLINE"
    if group.effective is None:  # statistics leave out topics that the group has given up
        return "NOT_CONSUME_YET"
    if group.committed is None or group.committed <= message.offset:
        return "NOT_CONSUME_YET"
    tags = tags_of(group.effective)
    if tags and message.tag not in tags:
        return "CONSUMED_BUT_FILTERED"
    return "CONSUMED"
