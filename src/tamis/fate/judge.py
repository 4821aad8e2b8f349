"""The fate of one message for one group.

A message that a member was given and acknowledged is consumed, whenever that was. Otherwise the
last time the group's progress passed it decides: who was reading the queue then, by which filter
the broker answered, what that member's own client keeps, and what the other members wanted.
Questions are asked in the order of `judge`; the first that applies gives the fate. What the facts
do not tell is UNKNOWN, and the reason says what is missing.

It is one module though long: the questions belong together, and their order is the rule.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ..errors import InvalidFilter
from ..filter.explain import explain
from ..filter.logic import Outcome
from ..filter.parser import parse
from .facts import EXPIRED, UNSAVED, Fate, GroupFacts, Judgement, MessageFacts, Move, Reading
from .filters import Filter, filter_of_reading
from .track import apache_track

__all__ = ["judge"]

Decision = tuple[Fate, str]


def judge(message: MessageFacts, group: GroupFacts) -> Judgement:
    looks = [_Look.of(message, reading) for reading in group.readings]
    fate, reason = (
        _by_retries(message, group)
        or _by_kind_of_group(message, group, looks)
        or _by_delivery(message, group, looks)
        or _by_waiting(message, group, looks)
        or _by_expiry(message, group)
        or _by_moves(message, group, looks)
        or _by_filters(message, group, looks)
        or _by_ignorance(message, group)
    )
    evidence = _evidence(message, group, looks) | {"track": apache_track(message, group)}
    return Judgement(group=group.group, fate=fate, reason=reason, evidence=evidence)


@dataclass(frozen=True, slots=True)
class _Look:
    """A reading, and what its filters said of the message; None where that is not known."""

    reading: Reading
    server: Outcome | None
    keeps: bool  # whether the member's client keeps what it is sent
    is_left_to_others: bool  # to another lane, though this one wants it too
    wanted_by: Mapping[Filter, tuple[str, ...]]  # of the group's members then
    maybe_wanted_by: tuple[Filter, ...] = ()  # code of members then, that was not run on it

    @classmethod
    def of(cls, message: MessageFacts, reading: Reading) -> "_Look":
        properties, codes = message.properties, message.code_outcomes
        if properties is None:
            return cls(reading, None, False, False, {})
        own = reading.own or reading.filter
        counted = {
            by: by.wants(properties, codes)
            for by in reading.view.filters
            if reading.change is None or reading.change.counts(by, message.offset)
        }
        wanted = {
            by: reading.view.filters[by]
            for by, outcome in counted.items()
            if outcome is Outcome.TRUE
        }
        maybe = tuple(by for by, outcome in counted.items() if outcome is None)
        server = filter_of_reading(reading.filter, reading.own).at_server(properties, codes)
        is_left = any(by.wants(properties, codes) is Outcome.TRUE for by in reading.unless)
        return cls(reading, server, own.at_client(properties), is_left, wanted, maybe)

    @property
    def is_delivered(self) -> bool:
        return self.server is Outcome.TRUE and self.keeps and not self.is_left_to_others


# The questions, in their order.


def _by_retries(message: MessageFacts, group: GroupFacts) -> Decision | None:
    retry = group.retry
    if retry is None or retry.is_consumed:
        return None
    times = _times(retry.times)
    if retry.is_dead:
        sent_back = f"was sent back {times} and " if retry.times else ""
        return Fate.DEAD_LETTERED, f"It {sent_back}is in {retry.topic} now."
    if retry.due is not None:
        when = f"it comes again at {_time(retry.due)}"
    else:
        when = f"it waits in {retry.topic}"
    if not retry.times:
        return Fate.RETRYING, f"It was sent to the group once more by a replay; {when}."
    return Fate.RETRYING, f"A member sent it back {times}; {when}."


def _by_kind_of_group(
    message: MessageFacts, group: GroupFacts, looks: list[_Look]
) -> Decision | None:
    if group.message_model == "BROADCASTING":
        given = sorted({look.reading.member for look in looks if look.is_delivered})
        missed = _missed(message, looks, given)
        who = f"it was sent to {_names(given)}" if given else ""
        if not who and not missed:
            who = "no member wanted it" if looks else "it was sent to no member yet"
        who = "; ".join(filter(None, [who, missed]))
        return (
            Fate.BROADCASTING,
            f"The group broadcasts and each member keeps its own progress: {who}.",
        )
    if group.consume_type == "CONSUME_ACTIVELY" and group.committed is None:
        return Fate.PULL, "The group pulls and keeps its progress itself; the broker has no offset."
    return None


def _missed(message: MessageFacts, looks: list[_Look], given: list[str]) -> str:
    """Members that wanted it and read past it without being sent it."""
    properties, codes = message.properties, message.code_outcomes
    if properties is None:
        return ""
    missed = {
        reading.member: reading.filter
        for reading in (look.reading for look in looks)
        if reading.member not in given
        and reading.own is not None
        and reading.own.wants(properties, codes) is Outcome.TRUE
    }
    if not missed:
        return ""
    by = list(missed.values())[-1]
    return f"{_names(sorted(missed))} wanted it, but the broker filtered the group by {by} then"


def _by_delivery(message: MessageFacts, group: GroupFacts, looks: list[_Look]) -> Decision | None:
    done = [look for look in looks if look.is_delivered and look.reading.acknowledged]
    is_passed = _is_passed(message, group)
    if group.retry is not None and group.retry.is_consumed and is_passed:
        if not group.retry.times:
            return Fate.CONSUMED, "It was sent to the group once more by a replay, and consumed."
        return Fate.CONSUMED, f"It was sent back {_times(group.retry.times)} and then consumed."
    if not done:
        return None
    reading = done[-1].reading
    member, change = reading.member, reading.change
    is_handed = change is not None and change.is_handed and message.offset < change.cut
    if change is not None and is_handed and (is_passed or group.lanes):
        return (
            Fate.CONSUMED,
            f"It was given to {member}, which acknowledged it, for no member had {change.old} any "
            f"more, which holds before offset {change.cut}.",
        )
    if is_passed:
        return Fate.CONSUMED, f"It was given to {member}, which acknowledged it."
    if group.lanes:
        return Fate.CONSUMED, f"It was given to {member}, which acknowledged it for its lane."
    how = (
        "the broker has no offset of the group in this queue any more"
        if group.committed is None
        else f"the group's progress was set back to {group.committed} since"
    )
    again = f"It was given to {member} and acknowledged, but {how}"
    if not group.online:
        return Fate.NOT_ONLINE, f"{again}; no member of the group is connected."
    return Fate.NOT_CONSUMED_YET, f"{again}: it will be read again."


def _by_waiting(message: MessageFacts, group: GroupFacts, looks: list[_Look]) -> Decision | None:
    if _is_passed(message, group) or message.offset < group.first_offset:
        return None
    progress = (
        "the group has committed no offset of this queue yet"
        if group.committed is None
        else f"the group's progress is {group.committed}, the message is at {message.offset}"
    )
    waiting = _waiting_lane(message, group)
    if waiting is not None:
        return waiting
    given = [look.reading.member for look in looks if look.is_delivered]
    if not group.online:
        return Fate.NOT_ONLINE, f"No member of the group is connected; {progress}."
    if given:
        return (
            Fate.NOT_CONSUMED_YET,
            f"It was given to {given[-1]}, which has not acknowledged it; {progress}.",
        )
    unread = _unread(group)
    return Fate.NOT_CONSUMED_YET, f"{progress[0].upper()}{progress[1:]}{unread}."


def _unread(group: GroupFacts) -> str:
    """Why nobody may read the queue: members share the queues of a topic whether they subscribe to
    it or not, and a broker keeps the topics of the last heartbeat only."""
    others = sorted(name for name, own in group.members.items() if own is None)
    if not others or len(others) == len(group.members) or group.lanes:
        return ""
    verb = "does" if len(others) == 1 else "do"
    told = f"; {_names(others)} {verb} not subscribe to the topic, so queues that fall to "
    told += "it are read by nobody" if len(others) == 1 else "them are read by nobody"
    if group.effective is None:
        told += ", and the broker, for which the last heartbeat decides, refuses the others' pulls"
    return told


def _waiting_lane(message: MessageFacts, group: GroupFacts) -> Decision | None:
    """The lane that the message waits for, if the group is split into lanes."""
    if message.properties is None:
        return None
    for lane in group.lanes:
        if lane.filter is None or (lane.committed or 0) > message.offset:
            continue
        demand = lane.demand(message.offset)
        if demand is None or not demand.includes(message.properties, message.code_outcomes):
            continue
        if lane.members and demand.keep is not None:
            return (
                Fate.NOT_CONSUMED_YET,
                f"No member has {demand.by} any more, which holds before the change of the group's "
                f"filter: it waits for {_names(list(lane.members))}, who are at "
                f"{lane.committed or 0}.",
            )
        if lane.members:
            who = f"members with {lane.filter} ({_names(list(lane.members))})"
            return Fate.NOT_CONSUMED_YET, f"It waits for {who}, who are at {lane.committed or 0}."
        return (
            Fate.NOT_ONLINE,
            f"It is held for members with {lane.filter}, none of which is connected.",
        )
    return None


def _by_expiry(message: MessageFacts, group: GroupFacts) -> Decision | None:
    if message.properties is not None or _is_passed(message, group):
        return None
    if any(reading.acknowledged for reading in group.readings):
        return (
            Fate.EXPIRED,
            f"It was read once; then the group was set back to {group.committed or 0}, and it left "
            "the log before it was read again.",
        )
    return (
        Fate.EXPIRED,
        f"It left the log before the group got to it: the queue begins at {group.first_offset} "
        f"now, and the group's progress is {group.committed or 0}.",
    )


def _by_moves(message: MessageFacts, group: GroupFacts, looks: list[_Look]) -> Decision | None:
    """Progress was moved past it, and no reading was acknowledged since."""
    over = [move for move in group.moves if (move.before or 0) <= message.offset < move.after]
    acked = [look.reading.began for look in looks if look.reading.acknowledged]
    said = [
        (move, move.filter.wants(message.properties, message.code_outcomes))
        for move in over
        if move.filter is not None and message.properties is not None
    ]
    given_up = [move for move, outcome in said if outcome is Outcome.TRUE]
    not_run = [move for move, outcome in said if outcome is None]
    if given_up and all(began < given_up[-1].time for began in acked):
        return _by_move(message, given_up[-1], looks)
    if not_run and all(began < not_run[-1].time for began in acked):
        return (
            Fate.UNKNOWN,
            f"Progress passed it when waiting for members with {not_run[-1].filter} was given up, "
            "and what that says of this message is not known.",
        )
    if over and over[-1].why == UNSAVED and all(began < over[-1].time for began in acked):
        return Fate.UNKNOWN, f"Progress passed it; unknown: {UNSAVED}."
    if acked:
        return None
    over = [move for move in group.moves if (move.before or 0) <= message.offset < move.after]
    if any(move.why == EXPIRED for move in over):
        return (
            Fate.EXPIRED,
            f"It had left the log when the group got there: it went on at {over[-1].after}.",
        )
    if over:
        return _by_move(message, over[-1], looks)
    if looks or group.unsaved_from is not None or not _is_known(message, group):
        return None
    if group.first_read is not None and message.offset < group.first_read:
        return (
            Fate.SKIPPED_BY_RESET,
            f"The group began to read this queue at offset {group.first_read}, after it.",
        )
    if group.first_read is not None:
        return (
            Fate.SKIPPED_BY_RESET,
            "A member went on behind it without reading it, as a seek does.",
        )
    return None


def _by_move(message: MessageFacts, move: Move, looks: list[_Look]) -> Decision:
    if move.filter is not None:
        wanted = None
        if message.properties is not None:
            wanted = move.filter.wants(message.properties, message.code_outcomes)
        if wanted is Outcome.TRUE:
            return (
                Fate.LOST_TO_INCONSISTENCY,
                f"It was held for members with {move.filter} until {_time(move.time)}, when "
                "waiting for them was given up.",
            )
        return Fate.FILTERED, "No member of the group wanted it."
    if move.before is None:
        reason = (
            f"The group began at offset {move.after} of this queue, after it, as {move.by} said "
            f"at {_time(move.time)}"
        )
    else:
        reason = (
            f"The group's progress was moved from {move.before} to {move.after} at "
            f"{_time(move.time)} by {move.by} ({move.why})"
        )
    given = [look.reading.member for look in looks if look.is_delivered]
    if given:
        reason += f"; {given[-1]} had been given it and had not acknowledged it"
    return Fate.SKIPPED_BY_RESET, f"{reason}."


def _by_filters(message: MessageFacts, group: GroupFacts, looks: list[_Look]) -> Decision | None:
    """The last reading under which progress passed it did not deliver it."""
    passed = [look for look in looks if look.reading.acknowledged]
    if not passed or message.properties is None:
        return None
    look, reading = passed[-1], passed[-1].reading
    wanted = {by: who for each in passed for by, who in each.wanted_by.items()}
    unacknowledged = [one for one in looks if one.is_delivered]
    if unacknowledged:
        given = unacknowledged[-1].reading.member
        again = "it read on" if given == reading.member else f"{reading.member} read it"
        return (
            Fate.UNKNOWN,
            f"It was given to {given}, which did not acknowledge it before {again} by "
            f"{reading.filter}, which does not give it out: whether {given} had processed it by "
            "then is not known.",
        )
    not_run = [one.reading.filter for one in looks if one.server is None]
    if not_run:
        return (
            Fate.UNKNOWN,
            f"Progress passed it while the group was filtered by {not_run[-1]}, and what that "
            "says of this message is not known.",
        )
    if wanted:
        return Fate.LOST_TO_INCONSISTENCY, _lost(message, look, wanted)
    maybe = [by for each in passed for by in each.maybe_wanted_by]
    if maybe:
        return (
            Fate.UNKNOWN,
            f"It was given to nobody; members of the group subscribed by {maybe[-1]}, and what "
            "that says of this message is not known.",
        )
    if look.server is Outcome.ERROR:
        why = _sql_reason(message, reading.filter)
        return Fate.FILTER_FAILED, f"The group's filter failed on it: {why}"
    if reading.change is not None and look.is_left_to_others:
        return Fate.FILTERED, _not_wanted(message, reading)
    if look.server is Outcome.TRUE:
        own = reading.own or reading.filter
        if reading.filter.at_client(message.properties):
            return (
                Fate.FILTERED,
                f"No member wanted it: the broker filtered by {reading.filter} of a member that "
                f"had left, and the client of {reading.member} dropped it for {own}.",
            )
        return (
            Fate.HASH_COLLISION,
            f"Its tag {message.tag!r} has the same hash as one of {reading.filter}: the broker "
            f"sent it to {reading.member}, whose client dropped it.",
        )
    return Fate.FILTERED, _not_wanted(message, reading)


def _not_wanted(message: MessageFacts, reading: Reading) -> str:
    change = reading.change
    if change is None:
        why = _why_not(message, reading.filter, _whose(reading))
        others = [by for by in reading.view.filters if not by.is_same(reading.filter)]
        if others:
            is_code = any(by.kind == "CODE" for by in others)
            now = ", judged as it is now" if is_code else ""
            had = _names(list(map(str, others)))
            why = f"{why.removesuffix('.')}; other members had {had}{now}."
        return f"No member wanted it: {why}"
    is_before = message.offset < change.cut
    by = change.old if is_before else change.new
    why = _why_not(message, by) if by.kind != "TAG" else f"it has {_tag_of(message)}."
    return (
        f"At offset {change.cut} of this queue the group's filter was changed from {change.old} to "
        f"{change.new}; {'before' if is_before else 'after'} that "
        f"{'the old' if is_before else 'the new'} one holds, which does not match: {why}"
    )


def _lost(message: MessageFacts, look: _Look, wanted: Mapping[Filter, tuple[str, ...]]) -> str:
    reading = look.reading
    who = "; ".join(f"{_names(list(members))} by {by}" for by, members in wanted.items())
    if look.server is Outcome.TRUE:
        own = reading.own or reading.filter
        how = f"the broker sent it to {reading.member}, whose client dropped it for {own}"
    elif look.server is Outcome.ERROR:
        how = f"the broker's filter for the group, {reading.filter}, failed on it"
    else:
        how = f"the broker filtered the group by {reading.filter} then"
    owner = f", but {reading.member} had the queue and"
    if any(reading.own is not None and by.is_same(reading.own) for by in wanted):
        owner = f", and {reading.member} had the queue, but"
    is_code = any(by.kind == "CODE" for by in (*wanted, reading.filter))
    now = " (code was judged as it is now)" if is_code else ""
    return f"It was wanted ({who}){owner} {how}: members of the group subscribe differently{now}."


def _by_ignorance(message: MessageFacts, group: GroupFacts) -> Decision:
    if group.readings and message.properties is None:
        return (
            Fate.UNKNOWN,
            "Progress passed it, but it has left the log: whether it matched can't be told.",
        )
    if group.complete_since is None:
        why = "this broker keeps no history"
    elif group.unsaved_from is not None:
        why = (
            f"the broker stopped without saving who read this queue from offset "
            f"{group.unsaved_from} on"
        )
    else:
        why = f"this broker keeps no history before {_time(group.complete_since)}"
    now = _as_of_now(message, group)
    return Fate.UNKNOWN, f"Progress passed it; unknown: {why}{now}."


def _as_of_now(message: MessageFacts, group: GroupFacts) -> str:
    """What today's subscriptions say, said as what it is."""
    if message.properties is None or group.effective is None:
        return ""
    outcome = group.effective.wants(message.properties, message.code_outcomes)
    if outcome is None:
        return ""
    verb = "match" if outcome is Outcome.TRUE else "not match"
    return f" (by the filter of today, {group.effective}, it would {verb})"


# What the questions share.


def _is_passed(message: MessageFacts, group: GroupFacts) -> bool:
    return group.committed is not None and group.committed > message.offset


def _is_known(message: MessageFacts, group: GroupFacts) -> bool:
    """Whether all that was read since the message was stored is in the history."""
    since = group.complete_since
    return since is not None and message.stored is not None and message.stored >= since


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _names(members: list[str]) -> str:
    if len(members) <= 3:
        return ", ".join(members)
    return f"{', '.join(members[:3])} and {len(members) - 3} more"


def _time(milliseconds: int) -> str:
    moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{milliseconds % 1000:03d} UTC"


def _whose(reading: Reading) -> str:
    return f"the filter of {reading.member}" if reading.lane else "the group's filter"


def _why_not(message: MessageFacts, by: Filter, whose: str = "the group's filter") -> str:
    if by.kind == "SQL92":
        return _sql_reason(message, by).removeprefix("It does not match: ")
    if by.kind == "CODE":
        return f"{by}, as it is now, says no."
    return f"it has {_tag_of(message)}, {whose} is {by}."


def _tag_of(message: MessageFacts) -> str:
    return f"the tag {message.tag!r}" if message.tag else "no tag"


def _sql_reason(message: MessageFacts, by: Filter) -> str:
    assert message.properties is not None
    if by.kind != "SQL92":
        return f"{by}, as it is now, fails on it."
    try:
        return explain(parse(by.text), message.properties).reason
    except InvalidFilter as error:
        return f"{by} does not compile: {error}"


# Evidence.


def _evidence(message: MessageFacts, group: GroupFacts, looks: list[_Look]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "topic": message.topic,
        "broker": message.broker,
        "queue": message.queue_id,
        "offset": message.offset,
        "message_id": message.message_id,
        "stored": message.stored,
        "tag": message.tag,
        "tags_code": message.tags_code,
        "committed": group.committed,
        "queue_begins_at": group.first_offset,
        "queue_ends_at": group.end_offset,
        "online": group.online,
        "message_model": group.message_model or None,
        "consume_type": group.consume_type or None,
        "policy": group.policy or None,
        "filter_now": _filter(group.effective),
        "members_now": {name: _filter(by) for name, by in group.members.items()},
        "history_since": group.complete_since,
        "readings": [_reading(look) for look in looks],
        "moves": [_move(move) for move in group.moves],
        "unknown": list(group.unknown),
    }
    if message.bitmap is not None:
        made["bitmap"] = {"bits": message.bitmap, "group_matched": group.bitmap_bit}
    if group.retry is not None:
        made["retry"] = {
            "topic": group.retry.topic,
            "times": group.retry.times,
            "dead": group.retry.is_dead,
            "consumed": group.retry.is_consumed,
            "due": group.retry.due,
            "message_id": group.retry.message_id,
        }
    if group.lanes:
        made["lanes"] = [
            {
                "filter": _filter(lane.filter),
                "committed": lane.committed,
                "members": list(lane.members),
            }
            for lane in group.lanes
        ]
    sql = _sql_parts(message, group, looks)
    if sql is not None:
        made["sql"] = sql
    return made


def _reading(look: _Look) -> dict[str, Any]:
    reading = look.reading
    return {
        "member": reading.member,
        "member_filter": _filter(reading.own),
        "broker_filter": _filter(reading.filter),
        "group_filters": [
            {**_named(by), "members": list(members)} for by, members in reading.view.filters.items()
        ],
        "group_filters_since": reading.view.since,
        "began": reading.began,
        "from": reading.start,
        "to": reading.end,
        "acknowledged": reading.acknowledged,
        "broker_said": None if look.server is None else look.server.name.lower(),
        "client_keeps": look.keeps if look.server is Outcome.TRUE else None,
        "left_to_others": look.is_left_to_others,
        "wanted_by": [
            {**_named(by), "members": list(members)} for by, members in look.wanted_by.items()
        ],
    }


def _move(move: Move) -> dict[str, Any]:
    return {
        "time": move.time,
        "before": move.before,
        "after": move.after,
        "by": move.by,
        "why": move.why,
        "filter": _filter(move.filter),
    }


def _named(by: Filter) -> dict[str, Any]:
    return {"kind": by.kind, "expression": by.text}


def _filter(by: Filter | None) -> dict[str, Any] | None:
    return None if by is None else _named(by)


def _sql_parts(
    message: MessageFacts, group: GroupFacts, looks: list[_Look]
) -> dict[str, Any] | None:
    """Return what the SQL that decided says of the message, part by part."""
    passed = [look for look in looks if look.reading.acknowledged] or looks
    by = passed[-1].reading.filter if passed else group.effective
    if by is None or by.kind != "SQL92" or message.properties is None:
        return None
    try:
        explanation = explain(parse(by.text), message.properties)
    except InvalidFilter:
        return None
    return {
        "expression": by.text,
        "outcome": explanation.outcome.name.lower(),
        "reason": explanation.reason,
        "part": explanation.part.to_dict(),
    }
