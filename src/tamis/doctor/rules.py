"""Checks of what brokers of ours do with members that disagree: lanes that are held, members that
are refused, changes of a filter that don't come to an end."""

from collections.abc import Iterator
from typing import Final

from .facts import ClusterFacts
from .findings import Finding, Severity, command_line

__all__ = ["are_served_apart", "filter_changes", "held_lanes", "policy_of", "refused_members"]

_LONG: Final = 3_600_000  # milliseconds: a change of a filter that takes longer is stuck
_POLICIES: Final = ("rocketmq", "reject", "isolate")  # what promises least comes first
_SHOWN: Final = 10  # queues in the evidence


def policy_of(facts: ClusterFacts, group: str) -> str | None:
    """Return what applies to members of the group that disagree, at the broker that promises least;
    None if a broker does not tell."""
    policies = []
    for broker in facts.brokers:
        rules = facts.rules.get(broker)
        own = rules.groups.get(group) if rules is not None else None
        policies.append(own.policy if own is not None else rules.policy if rules else "")
    if not policies or any(policy not in _POLICIES for policy in policies):
        return None
    return min(policies, key=_POLICIES.index)


def are_served_apart(facts: ClusterFacts, group: str, topic: str) -> str | None:
    """Return why members of the group that disagree on the topic lose nothing, or None."""
    if policy_of(facts, group) == "isolate":
        return "its policy is isolate, so each is served by its own"
    known = [facts.rules.get(broker) for broker in facts.brokers]
    groups = [rules.groups.get(group) if rules is not None else None for rules in known]
    if groups and all(
        one is not None and any(change.topic == topic for change in one.changes) for one in groups
    ):
        return "its filter is being changed, and each is served by its own until that is over"
    return None


def held_lanes(facts: ClusterFacts) -> Iterator[Finding]:
    """Lanes without members, which hold the group's progress back until one comes or the time to
    hold them is over. What only they want is given up then."""
    for broker, rules in facts.rules.items():
        for name, group in rules.groups.items():
            for lane in group.lanes:
                if lane.members:
                    continue
                wanted = ", ".join(f"{by} of {topic}" for topic, by in sorted(lane.filters.items()))
                left = max(rules.hold_seconds - lane.held_seconds, 0)
                yield Finding(
                    check="held-lanes",
                    severity=Severity.WARNING,
                    group=name,
                    broker=broker,
                    message=f"group {name}: the last member that wants {wanted} has left; its "
                    f"messages are held for {left:,.0f} s more, then given up",
                    evidence={
                        "lane": lane.id,
                        "filters": lane.filters,
                        "held_seconds": lane.held_seconds,
                        "hold_seconds": rules.hold_seconds,
                        "progress": lane.progress[:_SHOWN],
                    },
                    command=command_line(facts.nameserver, "groups", "rules", name),
                    advice="start a member with that subscription again, or let it be given up",
                )


def refused_members(facts: ClusterFacts) -> Iterator[Finding]:
    """Members that a broker refuses, for they disagree with those it has."""
    for broker, rules in facts.rules.items():
        for name, group in rules.groups.items():
            if group.refused:
                yield Finding(
                    check="refused-members",
                    severity=Severity.SERIOUS,
                    group=name,
                    broker=broker,
                    message=f"group {name}: broker {broker} refuses members: {group.refused[0]}",
                    evidence={"policy": group.policy, "refused": group.refused[:_SHOWN]},
                    command=command_line(facts.nameserver, "groups", "show", name),
                    advice="give all members the same subscription; to change it while they run, "
                    "use tamis groups filter",
                )


def filter_changes(facts: ClusterFacts) -> Iterator[Finding]:
    """Changes of a filter that are not over: the group has not read up to where the new filter
    begins, or no member has the new one."""
    for broker, rules in facts.rules.items():
        for name, group in rules.groups.items():
            for one in group.changes:
                is_stuck = facts.now - one.made > _LONG
                minutes = (facts.now - one.made) // 60_000
                words = ["filter", name, one.topic, "--cancel"] if is_stuck else ["rules", name]
                yield Finding(
                    check="filter-changes",
                    severity=Severity.WARNING if is_stuck else Severity.INFO,
                    group=name,
                    topic=one.topic,
                    broker=broker,
                    message=f"group {name} on {one.topic}: the change from {one.old} to {one.new} "
                    + (f"is not over after {minutes:,} minutes" if is_stuck else "is under way"),
                    evidence={"cuts": one.cuts, "since": one.made},
                    command=command_line(facts.nameserver, "groups", *words),
                    mends=is_stuck,
                    advice="it is over when the group has read all before the cut, for which "
                    "members with the old filter are needed"
                    + ("; the command takes the change back" if is_stuck else ""),
                )
