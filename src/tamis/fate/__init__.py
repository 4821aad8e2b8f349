"""Why a message was, or was not, consumed by a group: a pure function of facts, and the history it
judges by. Nothing here asks anybody, reads a clock or touches a file."""

from .facts import (
    Fate,
    FilterChange,
    GroupFacts,
    Judgement,
    LaneFacts,
    MessageFacts,
    Move,
    Reading,
    RetryFacts,
    View,
)
from .filters import Filter, FilterKind
from .history import GroupHistory, History, Span
from .judge import judge
from .loading import history_of
from .standing import MemberNow, standing_reading
from .track import apache_track, track_type

__all__ = [
    "Fate",
    "Filter",
    "FilterChange",
    "FilterKind",
    "GroupFacts",
    "GroupHistory",
    "History",
    "Judgement",
    "LaneFacts",
    "MemberNow",
    "MessageFacts",
    "Move",
    "Reading",
    "RetryFacts",
    "Span",
    "View",
    "apache_track",
    "history_of",
    "judge",
    "standing_reading",
    "track_type",
]
