"""The checks there are, in the order they are made. Each is a function from facts to findings."""

from collections.abc import Callable, Iterable
from typing import Final

from .expressions import collisions, lint
from .facts import ClusterFacts
from .filters import dead_filters, failing_filters, idle_filters
from .findings import Finding, Severity
from .members import duplicate_client_ids, queue_owners, silent_brokers
from .past import past_inconsistencies
from .progress import (
    dead_letters,
    expired_messages,
    lag_without_members,
    offsets_beyond_the_log,
    retries,
    stale_offsets,
)
from .rules import filter_changes, held_lanes, refused_members
from .subscriptions import broker_filters, inconsistent_subscriptions

__all__ = ["CHECKS", "examine"]

CHECKS: Final[tuple[Callable[[ClusterFacts], Iterable[Finding]], ...]] = (
    silent_brokers,
    inconsistent_subscriptions,
    broker_filters,
    past_inconsistencies,
    refused_members,
    held_lanes,
    filter_changes,
    duplicate_client_ids,
    queue_owners,
    offsets_beyond_the_log,
    expired_messages,
    failing_filters,
    idle_filters,
    lint,
    collisions,
    lag_without_members,
    retries,
    dead_letters,
    dead_filters,
    stale_offsets,
)


def examine(facts: ClusterFacts) -> list[Finding]:
    """Return what all checks find, the worst first."""
    order = list(Severity)
    found = [finding for check in CHECKS for finding in check(facts)]
    return sorted(found, key=lambda one: order.index(one.severity))
