"""What GET_GROUP_RULES tells of a group: its policy for members that disagree, lanes that are held
for members to come back, changes of filters that are under way."""

from collections.abc import Iterator

from .facts import ClusterFacts
from .findings import Finding

__all__ = ["policy_of", "stuck_lanes"]


def policy_of(facts: ClusterFacts, group: str) -> str | None:
    """Return what applies to members of the group that disagree; None if no broker tells."""
    return None


def stuck_lanes(facts: ClusterFacts) -> Iterator[Finding]:
    return iter(())
