"""SET_GROUP_POLICY, SET_GROUP_FILTER and GET_GROUP_RULES: what was decided about a group.

Requests of ours; an Apache broker does not know them. Answers are JSON.
"""

import logging
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import orjson

from ...errors import InvalidFilter, ResponseError
from ...filter.tags import parse_tags
from ...net.longwork import Steps, stepwise
from ...net.server import Answer, Request
from ...store.store import Store
from ...wire.codes import ResponseCode
from ...wire.frame import MAX_FRAME
from ...wire.headers import GetGroupRules, SetGroupFilter, SetGroupPolicy
from ..conflicts import Conflicts
from ..filters import Filters, checked_length, compile_sql
from ..lanes import CutOver, Division, LaneFilter
from ..members import Consumers
from ..quotas import MOST_NAME
from ..rules import MOST_CUTOVERS, MOST_RULES, POLICIES, cutover_to_json
from ..topics import RETRY_PREFIX, Topics
from .queries import store_time

__all__ = ["Deciding", "get_rules", "set_filter", "set_policy"]

log = logging.getLogger(__name__)

_MOST_OFFSET: Final = 2**62
_MOST_BODY: Final = MAX_FRAME - 65_536  # bytes of an answer; its header comes before it


@dataclass(frozen=True, slots=True)
class Deciding:
    """What it takes to decide about a group."""

    broker: str  # its name
    conflicts: Conflicts
    consumers: Consumers
    filters: Filters
    topics: Topics
    store: Store
    now: Callable[[], float]


def _refused(why: str) -> ResponseError:
    return ResponseError(ResponseCode.SYSTEM_ERROR, why)


def set_policy(parts: Deciding, header: SetGroupPolicy, request: Request) -> Answer:
    """`default` has the group follow the broker's setting again."""
    _check_group(parts, header.group)
    if header.policy not in (*POLICIES, "default"):
        raise _refused(f"policy {header.policy!r:.100}: it is {', '.join(POLICIES)} or default")
    policy = None if header.policy == "default" else header.policy
    parts.conflicts.rules.set_policy(header.group, policy)
    parts.conflicts.policy_changed()
    log.info("group %s: policy %s, set by %s", header.group, header.policy, request.peer)
    return _told({"broker": parts.broker, **_rules_of(parts, header.group)})


@stepwise
def get_rules(parts: Deciding, header: GetGroupRules, request: Request) -> Steps[Answer]:
    """Answer with the rules of one group, or of all groups that have some."""
    rules = parts.conflicts.rules
    known = rules.policies.keys() | rules.divisions.keys() | parts.conflicts.refused.keys()
    names = [header.group] if header.group else sorted(known)
    default = parts.conflicts.default_policy
    made = {"broker": parts.broker, "policy": default, "hold_seconds": parts.conflicts.hold}
    groups, size = list[bytes](), 0
    for name in names:
        groups.append(orjson.dumps(_rules_of(parts, name)))
        size += len(groups[-1]) + 1
        if size > _MOST_BODY:
            why = f"the rules of {len(names)} groups take more than an answer holds: name a group"
            raise _refused(f"{why} ({_MOST_BODY} bytes)")
        yield None
    head = orjson.dumps(made)[:-1]
    return Answer(body=b'%b,"groups":[%b]}' % (head, b",".join(groups)))


def set_filter(parts: Deciding, header: SetGroupFilter, request: Request) -> Answer:
    """Begins a cut-over, or cancels one."""
    group, topic = header.group, header.topic
    _check_group(parts, group)
    if header.cancel:
        return _cancel(parts, group, topic, request)
    known = parts.topics.get(topic)
    if known is None or topic.startswith(RETRY_PREFIX):
        raise _refused(f"topic {topic:.200} is not here")
    new = _filter(header.kind, header.expression)
    division = parts.conflicts.divisions.get(group)
    if division is not None and topic in division.cutovers:
        change = division.cutovers[topic]
        raise _refused(
            f"group {group} on {topic}: a cut-over from {change.old} to {change.new} is in force "
            "already; wait until it is done, or cancel it first"
        )
    if division is not None and len(division.cutovers) >= MOST_CUTOVERS:
        raise _refused(f"group {group} has {MOST_CUTOVERS} cut-overs, the broker takes no more")
    old = _old_filter(parts, division, header)
    if old == new:
        raise _refused(f"group {group} on {topic}: it filters by {new} already")
    queues = max(known.read_queues, known.write_queues)
    cuts = {one: _cut(parts, header.start, topic, one) for one in range(queues)}
    change = CutOver(topic, old, new, cuts, int(parts.now() * 1000))
    parts.conflicts.cut_over(group, change)
    log.warning(
        "group %s on %s: from %s on %s is in force in place of %s; asked for by %s",
        *(group, topic, cuts, new, old, request.peer),
    )
    return _told({"broker": parts.broker, "group": group} | cutover_to_json(change))


def _cancel(parts: Deciding, group: str, topic: str, request: Request) -> Answer:
    division = parts.conflicts.divisions.get(group)
    change = division.cutovers.pop(topic, None) if division is not None else None
    if division is None or change is None:
        raise _refused(f"group {group} on {topic:.200}: there is no cut-over to cancel")
    log.warning("group %s on %s: its cut-over is cancelled by %s", group, topic, request.peer)
    parts.conflicts.changed(division)
    parts.conflicts.policy_changed()
    return _told({"broker": parts.broker, "group": group} | cutover_to_json(change))


def _check_group(parts: Deciding, group: str) -> None:
    if not group.strip() or len(group) > MOST_NAME or "@" in group:
        raise _refused(f"{group!r:.100} can't be the name of a group")
    if not parts.conflicts.rules.has_room(group):
        raise _refused(f"{MOST_RULES} groups have rules of their own, the broker takes no more")


def _filter(kind: str | None, expression: str | None) -> LaneFilter:
    """Raises ResponseError if it is none."""
    try:
        text = checked_length(expression or "")
        if kind == "SQL92":
            compile_sql(text, kind)
            return LaneFilter("SQL92", text)
        if kind != "TAG":
            raise _refused(f"a filter of kind {kind!r:.100}: it is TAG or SQL92")
        tags = parse_tags(text)
    except InvalidFilter as error:
        raise ResponseError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from None
    if tags.matches_all:
        return LaneFilter("TAG", "*")
    if not tags.tags:
        raise _refused("a filter of blanks alone matches nothing")
    return LaneFilter("TAG", " || ".join(sorted(tags.tags)), tags.tags)


def _old_filter(parts: Deciding, division: Division | None, header: SetGroupFilter) -> LaneFilter:
    """What is given, or what is in force now."""
    if header.old_kind is not None:
        return _filter(header.old_kind, header.old_expression)
    group, topic = parts.consumers.groups.get(header.group), header.topic
    found: set[LaneFilter] = set()
    if group is not None:
        for member in group.members.values():
            if topic in member.subscriptions:
                found.add(LaneFilter.of(member.subscriptions[topic]))
    if not found and division is not None:
        found = {lane.filters[topic] for lane in division.lanes if topic in lane.filters}
    data = parts.filters.get(topic, header.group)
    if not found and data is not None:
        found = {LaneFilter("SQL92", data.expression)}
    if len(found) == 1:
        return found.pop()
    why = "no member of it is connected" if not found else "its members disagree"
    raise _refused(
        f"group {header.group} on {topic}: {why}, so the filter it has now is not known; say which "
        "it is (--old-tags or --old-sql)"
    )


def _cut(parts: Deciding, start: str, topic: str, queue_id: int) -> int:
    """`now`, `offset:N`, `time:MILLISECONDS` or `queues:` and a JSON object."""
    queue = parts.store.find_queue(topic, queue_id)
    low, high = (int(queue.min_offset), int(queue.max_offset)) if queue is not None else (0, 0)
    kind, _, text = start.partition(":")
    try:
        if start == "now":
            return high
        if kind == "offset" and 0 <= (offset := int(text)) <= _MOST_OFFSET:
            return offset
        if kind == "time":
            millis = int(text)
            if millis > parts.now() * 1000:
                raise _refused("the time of a cut-over can't be in the future")
            key = lambda offset: store_time(parts.store, queue, offset)  # noqa: E731
            return low + bisect_left(range(low, high), millis, key=key)
        if kind == "queues":
            offset = int(orjson.loads(text).get(str(queue_id), high))
            if 0 <= offset <= _MOST_OFFSET:
                return offset
    except (ValueError, TypeError, AttributeError):
        pass
    raise _refused(f"a cut-over from {start!r:.100}: it is now, an offset, a time or offsets")


def _rules_of(parts: Deciding, name: str) -> dict[str, Any]:
    conflicts = parts.conflicts
    group, division = parts.consumers.groups.get(name), conflicts.divisions.get(name)
    made: dict[str, Any] = {
        "group": name,
        "policy": conflicts.policy(name),
        "own_policy": conflicts.rules.policies.get(name),
        "cutovers": [],
        "lanes": [],
        "refused": sorted(set(conflicts.refused.get(name, {}).values())),
    }
    if division is None:
        return made
    made["cutovers"] = [cutover_to_json(one) for one in division.cutovers.values()]
    for lane in division.lanes:
        members = [group.members.get(peer) for peer in lane.members] if group is not None else []
        made["lanes"].append(
            {
                "id": lane.id,
                "filters": {topic: one.to_json() for topic, one in lane.filters.items()},
                "members": sorted(member.client_id for member in members if member is not None),
                "held_seconds": conflicts.held_seconds(lane),
                "progress": [
                    {"topic": topic, "queue": queue_id, "offset": offset}
                    for (topic, queue_id), offset in sorted(lane.progress.items())
                ],
            }
        )
    return made


def _told(body: dict[str, Any]) -> Answer:
    return Answer(body=orjson.dumps(body))
