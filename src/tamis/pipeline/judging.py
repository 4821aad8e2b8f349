"""The fates of a batch of messages for many groups, with NumPy: what `fate.judge` gives for each.

A group's record of a queue is a list of spans, which are ranges of offsets. So messages are put in
the order of their offsets, a span becomes a slice of the batch, and a filter is evaluated once for
the batch, whichever spans and groups use it. Nothing is done message by message, except for those
that were sent back, which are few.

`tests/pipeline/test_judging.py` holds this to `fate.judge`, question by question.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from ..errors import InvalidFilter
from ..fate import Fate, Filter, GroupFacts, GroupHistory, MessageFacts, RetryFacts, Span, View
from ..fate.facts import EXPIRED, UNSAVED, Demand
from ..fate.filters import filter_of_reading
from ..filter import Outcome, parse
from ..filter.engines.columnar import BatchFilter, compile_batch
from ..filter.tags import TagFilter, parse_tags
from ..spark.codejudges import UNKNOWN
from .judging_messages import Messages, Numbers, QueueName, queue_parts

__all__ = [
    "FATES",
    "AskCode",
    "Batches",
    "Fates",
    "GroupFates",
    "GroupOfQueue",
    "GroupRecord",
    "Judge",
    "Messages",
    "Outcomes",
    "Retries",
    "alike",
    "queue_parts",
]

FATES: Final = tuple(Fate)  # a fate's number is its place in this
Fates = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]
Batches = Iterator[pa.RecordBatch]

_NUMBER: Final = {fate: np.uint8(number) for number, fate in enumerate(FATES)}
_UNKNOWN_OUTCOME: Final = np.uint8(UNKNOWN)  # of code that was not run
_TRUE: Final = int(Outcome.TRUE)
# Of groups whose progress no broker has.
_NOT_OF_QUEUES: Final = (_NUMBER[Fate.BROADCASTING], _NUMBER[Fate.PULL])


# What is known of groups.


@dataclass(frozen=True, slots=True)
class Retries:
    """Copies that members of a group sent back. A copy names the place of the original in the log;
    one that does not is found by the producer's message id."""

    by_log_offset: Mapping[int, tuple[tuple[str | None, RetryFacts], ...]] = field(
        default_factory=dict
    )  # with the id of the message
    by_id: Mapping[str, RetryFacts] = field(default_factory=dict)

    def of(self, message_id: str | None, log_offset: int | None) -> RetryFacts | None:
        if log_offset is not None:
            for own_id, copy in self.by_log_offset.get(log_offset, ()):
                if own_id is None or message_id is None or own_id == message_id:
                    return copy
        return None if message_id is None else self.by_id.get(message_id)

    def __bool__(self) -> bool:
        return bool(self.by_log_offset or self.by_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOfQueue:
    """A group as far as one queue is concerned. `facts` hold for all messages of the queue: they
    are without readings, retry and `unsaved_from`, which are each message's own."""

    facts: GroupFacts
    spans: tuple[Span, ...] = ()
    views: Mapping[int, View] = field(default_factory=dict)
    known_from: int = 0  # an offset; of messages before it history knows less:
    since_before: int | None = None  # their `complete_since`

    def facts_of(self, message: MessageFacts, retry: RetryFacts | None) -> GroupFacts:
        """Return what `fate.judge` takes."""
        facts = self.facts
        history = GroupHistory(facts.group, message.topic, facts.complete_since or 0)
        history.views.update(self.views)
        history.queues[message.queue_id] = list(self.spans)
        return replace(
            facts,
            readings=history.readings(message.queue_id, message.offset),
            complete_since=facts.complete_since
            if message.offset >= self.known_from
            else self.since_before,
            unsaved_from=history.unsaved_from(message.queue_id, message.offset),
            retry=retry,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """A group, by its queues. `elsewhere` holds for queues that it has no record of."""

    group: str
    elsewhere: GroupFacts
    queues: Mapping[QueueName, GroupOfQueue] = field(default_factory=dict)
    retries: Retries = field(default_factory=Retries)

    def of_queue(self, name: QueueName) -> GroupOfQueue:
        known = self.queues.get(name)
        return GroupOfQueue(facts=self.elsewhere) if known is None else known


# What filters say.


class Outcomes:
    """What filters say of the messages, each evaluated once. `codes` are what classes say, as far
    as that is known."""

    def __init__(self, messages: Messages, codes: Mapping[Filter, Fates] | None = None) -> None:
        self._messages = messages
        self._server: dict[Filter, Fates] = dict(codes or {})
        self._client: dict[Filter, Mask] = {}
        self._wants: dict[Filter, Mask] = {}

    def with_codes(self, codes: Mapping[Filter, Fates]) -> "Outcomes":
        """Return these for one group: classes of one name may differ from group to group."""
        made = Outcomes(self._messages)
        made._server = {by: said for by, said in self._server.items() if by.kind != "CODE"}
        made._server |= codes
        made._client = self._client  # of code there is no second look
        made._wants = {by: said for by, said in self._wants.items() if by.kind != "CODE"}
        return made

    def at_server(self, by: Filter) -> Fates:
        if (known := self._server.get(by)) is None:
            known = self._server[by] = self._evaluate(by)
        return known

    def at_client(self, by: Filter) -> Mask:
        if (known := self._client.get(by)) is None:
            known = self._client[by] = self._look_again(by)
        return known

    def wants(self, by: Filter) -> Mask:
        if (known := self._wants.get(by)) is None:
            known = self._wants[by] = (self.at_server(by) == _TRUE) & self.at_client(by)
        return known

    def of_code(self, row: int) -> dict[str, Outcome]:
        """Return what classes say of a message, as far as that is known."""
        return {
            by.text: Outcome(int(said[row]))
            for by, said in self._server.items()
            if by.kind == "CODE" and said[row] != _UNKNOWN_OUTCOME
        }

    def included(self, demand: Demand) -> Mask:
        made = self.wants(demand.by)
        if demand.keep is not None:
            made = made & self.at_client(demand.keep)
        return made if demand.drop is None else made & ~self.at_client(demand.drop)

    def wanted_by_any(self, filters: Iterable[Filter], start: int, end: int) -> Mask:
        found = np.zeros(end - start, np.bool_)
        for by in filters:
            found |= self.wants(by)[start:end]
        return found

    def _evaluate(self, by: Filter) -> Fates:
        size = len(self._messages)
        if by.kind == "CODE":
            return np.full(size, _UNKNOWN_OUTCOME)
        if by.kind == "SQL92":
            compiled = _compiled(by.text)
            if compiled is None:
                return np.full(size, np.uint8(Outcome.ERROR))
            return compiled.match_strings(self._messages.property_strings)
        tags = _tags(by.text)
        if tags is None:
            return np.zeros(size, np.uint8)
        if tags.matches_all:
            return np.ones(size, np.uint8)
        low = self._messages.tags_codes.astype(np.int32)  # the broker, too, takes 32 bits of it
        return np.isin(low, np.array(sorted(tags.codes), np.int32)).astype(np.uint8)

    def _look_again(self, by: Filter) -> Mask:
        size = len(self._messages)
        tags = _tags(by.text) if by.kind == "TAG" else None
        if by.kind == "TAG" and tags is None:
            return np.zeros(size, np.bool_)
        if tags is None or not tags.tags:
            return np.ones(size, np.bool_)
        found = pc.is_in(self._messages.tags, value_set=pa.array(sorted(tags.tags), pa.string()))
        mask: Mask = found.to_numpy(zero_copy_only=False).astype(np.bool_)
        return mask


@lru_cache(1024)
def _tags(expression: str) -> TagFilter | None:
    try:
        return parse_tags(expression)
    except InvalidFilter:
        return None


@lru_cache(1024)
def _compiled(expression: str) -> BatchFilter | None:
    try:
        return compile_batch(parse(expression))
    except InvalidFilter:
        return None


# The judge.


class AskCode(Protocol):
    """Tells what a group's class says of messages of a queue, given by their offsets in order:
    outcomes, 255 where nobody knows, and then a clause on why."""

    def __call__(
        self, group: str, class_text: str, queue: QueueName, offsets: Numbers
    ) -> tuple[Fates, str]: ...


@dataclass(frozen=True, slots=True)
class GroupFates:
    """What became of messages for a group. `unknown`: clauses on code that could not be asked, with
    how many messages have no fate for that; `asked`: names of classes that judged."""

    fates: Fates
    outcomes: Outcomes
    asked: tuple[str, ...] = ()
    unknown: Mapping[str, int] = field(default_factory=dict)


class Judge:
    """Judges batches for some groups. Can be pickled."""

    def __init__(self, groups: Sequence[GroupRecord]) -> None:
        self.groups = tuple(groups)

    def judge(self, messages: Messages, ask_code: AskCode | None = None) -> list[GroupFates]:
        """Return the fates for each group, by number. `ask_code` is asked about messages whose fate
        depends on code, and no others."""
        outcomes = Outcomes(messages)
        made = []
        for group in self.groups:
            of_queue = group.of_queue(messages.queue)
            fates = _judge_with_retries(messages, outcomes, group)
            questions = code_questions(messages, of_queue, fates) if ask_code is not None else {}
            if ask_code is None or not questions:
                made.append(GroupFates(fates, outcomes))
                continue
            made.append(_ask_and_judge(messages, outcomes, group, questions, ask_code))
        return made


def _ask_and_judge(
    messages: Messages,
    outcomes: Outcomes,
    group: GroupRecord,
    questions: Mapping[Filter, Mask],
    ask_code: AskCode,
) -> GroupFates:
    codes: dict[Filter, Fates] = {}
    reasons: dict[Filter, str] = {}
    asked = []
    for by, mask in questions.items():
        said, why = ask_code(group.group, by.text, messages.queue, messages.offsets[mask])
        codes[by] = np.full(len(messages), _UNKNOWN_OUTCOME)
        codes[by][mask] = said
        if why:
            reasons[by] = why
        if np.any(said != _UNKNOWN_OUTCOME):
            asked.append(by.text)
    own = outcomes.with_codes(codes)
    fates = _judge_with_retries(messages, own, group)
    unknown: dict[str, int] = {}
    for by, why in reasons.items():
        is_open = questions[by] & (codes[by] == _UNKNOWN_OUTCOME)
        count = int(np.count_nonzero(is_open & (fates == _NUMBER[Fate.UNKNOWN])))
        if count:
            unknown[why] = unknown.get(why, 0) + count
    return GroupFates(fates, own, tuple(asked), unknown)


def code_questions(messages: Messages, group: GroupOfQueue, fates: Fates) -> dict[Filter, Mask]:
    """Return which messages each class has to be asked about: those that it may have decided, as
    far as their fate is open without. `fate.judge` gives no fate that code could change, except to
    messages that wait: with lanes these may wait for one, or be consumed by another."""
    is_open = fates == _NUMBER[Fate.UNKNOWN]
    if group.facts.lanes:
        is_open |= fates == _NUMBER[Fate.NOT_CONSUMED_YET]
        is_open |= fates == _NUMBER[Fate.NOT_ONLINE]
    if not is_open.any():
        return {}
    questions: dict[Filter, Mask] = {}
    for by, start, end in _code_stretches(group):
        low, high = np.searchsorted(messages.offsets, [start, end])
        if is_open[low:high].any():
            mask = questions.setdefault(by, np.zeros(len(messages), np.bool_))
            mask[low:high] |= is_open[low:high]
    return questions


def _code_stretches(group: GroupOfQueue) -> Iterator[tuple[Filter, int, int]]:
    """Yield each class with a range of offsets in which it may matter what it says."""
    for span in group.spans:
        view = group.views.get(span.view)
        filters = {filter_of_reading(span.filter, span.own), *span.unless}
        for by in filters | (set() if view is None else view.filters.keys()):
            if by.kind == "CODE":
                yield by, span.start, span.end
    for move in group.facts.moves:
        if move.filter is not None and move.filter.kind == "CODE":
            yield move.filter, move.before or 0, move.after
    for lane in group.facts.lanes:
        if lane.filter is not None and lane.filter.kind == "CODE":
            yield lane.filter, lane.committed or 0, np.iinfo(np.int64).max


def _judge_with_retries(messages: Messages, outcomes: Outcomes, group: GroupRecord) -> Fates:
    made = _judge(messages, outcomes, group.of_queue(messages.queue))
    if group.retries:
        _mark_retried(made, messages, group)
    return made


def _judge(messages: Messages, outcomes: Outcomes, group: GroupOfQueue) -> Fates:
    """All questions but the first. They are asked from the last to the first, so that what counts
    more is written over what counts less."""
    facts, offsets = group.facts, messages.offsets
    if facts.message_model == "BROADCASTING":
        return np.full(len(messages), _NUMBER[Fate.BROADCASTING])
    if facts.consume_type == "CONSUME_ACTIVELY" and facts.committed is None:
        return np.full(len(messages), _NUMBER[Fate.PULL])
    looks = _Looks(messages, outcomes, group)
    fates = looks.by_filters()
    _decide_moves(fates, messages, outcomes, group, looks)
    passed = int(np.searchsorted(offsets, facts.committed or 0))
    first = max(passed, int(np.searchsorted(offsets, facts.first_offset)))
    _decide_waiting(fates, offsets, outcomes, facts, first)
    delivered = _NUMBER[Fate.CONSUMED]
    fates[:passed][looks.consumed[:passed]] = delivered
    if not facts.lanes:  # progress was set back
        delivered = _NUMBER[Fate.NOT_CONSUMED_YET if facts.online else Fate.NOT_ONLINE]
    fates[passed:][looks.consumed[passed:]] = delivered
    return fates


class _Looks:
    """What the readings of a queue come to, message by message."""

    def __init__(self, messages: Messages, outcomes: Outcomes, group: GroupOfQueue) -> None:
        size, offsets = len(messages), messages.offsets
        self.looked_at = np.zeros(size, np.bool_)
        self.delivered = np.zeros(size, np.bool_)  # to a member that keeps it
        self.acknowledged = np.zeros(size, np.bool_)
        self.consumed = np.zeros(size, np.bool_)  # delivered and acknowledged by one reading
        self.wanted = np.zeros(size, np.bool_)  # by a member of the group then
        self.maybe_wanted = np.zeros(size, np.bool_)  # by code of a member, that was not run
        self.not_run = np.zeros(size, np.bool_)  # code that it was read by
        self.began = np.full(size, -1, np.int64)  # the latest that was acknowledged
        # Of the last reading that was acknowledged:
        self.server = np.zeros(size, np.uint8)
        self.matches_text = np.zeros(size, np.bool_)
        self.left_in_change = np.zeros(size, np.bool_)  # to others, while the filter was changed
        starts = np.searchsorted(offsets, [span.start for span in group.spans])
        ends = np.searchsorted(offsets, [span.end for span in group.spans])
        for number in np.flatnonzero(starts < ends):
            span, start, end = group.spans[number], int(starts[number]), int(ends[number])
            ack = min(max(int(np.searchsorted(offsets, span.acked)), start), end)
            server = outcomes.at_server(filter_of_reading(span.filter, span.own))
            given = server[start:end] == _TRUE
            given &= outcomes.at_client(span.own or span.filter)[start:end]
            self.left_in_change[start:ack] = False
            if span.unless:
                left = outcomes.wanted_by_any(span.unless, start, end)
                given &= ~left
                if span.change is not None:
                    self.left_in_change[start:ack] = left[: ack - start]
            self.looked_at[start:end] = True
            self.not_run[start:end] |= server[start:end] == _UNKNOWN_OUTCOME
            self.delivered[start:end] |= given
            self.acknowledged[start:ack] = True
            self.consumed[start:ack] |= given[: ack - start]
            self.began[start:ack] = np.maximum(self.began[start:ack], span.began)
            self.server[start:ack] = server[start:ack]
            self.matches_text[start:ack] = outcomes.at_client(span.filter)[start:ack]
            view = group.views.get(span.view)
            if view is not None and start < ack:
                self._note_wanted(outcomes, offsets, span, view, start, ack)

    def _note_wanted(
        self,
        outcomes: Outcomes,
        offsets: Numbers,
        span: Span,
        view: View,
        start: int,
        end: int,
    ) -> None:
        """What members want counts only on their side of a change of the group's filter."""
        change = span.change
        at = 0 if change is None else change.cut
        cut = min(max(int(np.searchsorted(offsets, at)), start), end)
        for low, high, offset in ((start, cut, at - 1), (cut, end, at)):
            counted = [by for by in view.filters if change is None or change.counts(by, offset)]
            self.wanted[low:high] |= outcomes.wanted_by_any(counted, low, high)
            for by in counted:
                if by.kind == "CODE":
                    said = outcomes.at_server(by)[low:high]
                    self.maybe_wanted[low:high] |= said == _UNKNOWN_OUTCOME

    def by_filters(self) -> Fates:
        """Return what the last acknowledged reading says, UNKNOWN where there is none."""
        fates = np.full(len(self.server), _NUMBER[Fate.FILTERED])
        is_true = self.server == _TRUE
        fates[is_true & ~self.matches_text] = _NUMBER[Fate.HASH_COLLISION]
        fates[self.left_in_change] = _NUMBER[Fate.FILTERED]
        fates[self.server == int(Outcome.ERROR)] = _NUMBER[Fate.FILTER_FAILED]
        fates[self.maybe_wanted] = _NUMBER[Fate.UNKNOWN]
        fates[self.wanted] = _NUMBER[Fate.LOST_TO_INCONSISTENCY]
        unknown = self.not_run | self.delivered | ~self.acknowledged
        fates[unknown] = _NUMBER[Fate.UNKNOWN]
        return fates


def _decide_moves(
    fates: Fates, messages: Messages, outcomes: Outcomes, group: GroupOfQueue, looks: _Looks
) -> None:
    """Where nothing was acknowledged: progress was moved past it, or began behind it."""
    facts, offsets = group.facts, messages.offsets
    free = ~looks.acknowledged
    if facts.first_read is not None:
        skipped = free & ~looks.looked_at & _is_known(messages, group)
        unsaved = [span.end for span in group.spans if span.is_open]
        if unsaved:
            skipped &= offsets < min(unsaved)
        fates[skipped] = _NUMBER[Fate.SKIPPED_BY_RESET]
    given_up = np.full(len(offsets), -1, np.int64)  # when its lane was, if one wanted it
    not_run = np.full(len(offsets), -1, np.int64)  # when its lane was, if that had code
    for move in facts.moves:
        start, end = np.searchsorted(offsets, [move.before or 0, move.after])
        if start >= end:
            continue
        decided = np.full(end - start, _NUMBER[Fate.SKIPPED_BY_RESET])
        if move.filter is not None:
            lost = outcomes.wants(move.filter)[start:end]
            decided[lost] = _NUMBER[Fate.LOST_TO_INCONSISTENCY]
            decided[~lost] = _NUMBER[Fate.FILTERED]
            given_up[start:end][lost] = move.time
            unknown = outcomes.at_server(move.filter)[start:end] == _UNKNOWN_OUTCOME
            not_run[start:end][unknown] = move.time
        here = free[start:end]
        fates[start:end][here] = decided[here]
    for move in facts.moves:
        if move.why == EXPIRED:
            start, end = np.searchsorted(offsets, [move.before or 0, move.after])
            fates[start:end][free[start:end]] = _NUMBER[Fate.EXPIRED]
    if any(move.why == UNSAVED for move in facts.moves):
        _decide_unsaved(fates, offsets, group, looks)
    fates[(not_run >= 0) & (looks.began < not_run)] = _NUMBER[Fate.UNKNOWN]
    fates[(given_up >= 0) & (looks.began < given_up)] = _NUMBER[Fate.LOST_TO_INCONSISTENCY]


def _decide_unsaved(fates: Fates, offsets: Numbers, group: GroupOfQueue, looks: _Looks) -> None:
    """Where progress was moved last because a broker was killed before it saved who had read."""
    unsaved_at = np.full(len(offsets), -1, np.int64)  # the time of that move
    for move in group.facts.moves:
        start, end = np.searchsorted(offsets, [move.before or 0, move.after])
        unsaved_at[start:end] = move.time if move.why == UNSAVED else -1
    unknown = (unsaved_at >= 0) & ((looks.began < unsaved_at) | ~looks.acknowledged)
    fates[unknown] = _NUMBER[Fate.UNKNOWN]


def _is_known(messages: Messages, group: GroupOfQueue) -> Mask:
    """Whether all that was read since the message was stored is in the history."""
    never = np.iinfo(np.int64).max
    since, before = group.facts.complete_since, group.since_before
    known: Mask = messages.stored >= np.where(
        messages.offsets < group.known_from,
        never if before is None else before,
        never if since is None else since,
    )
    return known


def _decide_waiting(
    fates: Fates, offsets: Numbers, outcomes: Outcomes, facts: GroupFacts, first: int
) -> None:
    """Messages from `first` on, which progress has not passed."""
    if first >= len(offsets):
        return
    fates[first:] = _NUMBER[Fate.NOT_CONSUMED_YET if facts.online else Fate.NOT_ONLINE]
    for lane in reversed(facts.lanes):
        start = max(first, int(np.searchsorted(offsets, lane.committed or 0)))
        fate = Fate.NOT_CONSUMED_YET if lane.members else Fate.NOT_ONLINE
        at = 0 if lane.change is None else lane.change.cut
        cut = max(start, int(np.searchsorted(offsets, at)))
        for low, high, offset in ((start, cut, at - 1), (cut, len(offsets), at)):
            demand = lane.demand(offset)
            if demand is not None and low < high:
                waiting = outcomes.included(demand)[low:high]
                fates[low:high][waiting] = _NUMBER[fate]


def _mark_retried(fates: Fates, messages: Messages, group: GroupRecord) -> None:
    """The first question, and what became of copies that were consumed."""
    retries, committed = group.retries, group.of_queue(messages.queue).facts.committed or 0
    candidates = np.zeros(len(messages), np.bool_)
    if retries.by_log_offset and messages.log_offsets is not None:
        known = np.fromiter(retries.by_log_offset, np.int64, len(retries.by_log_offset))
        candidates |= np.isin(messages.log_offsets, known)
    if retries.by_id:
        ids = pa.array(list(retries.by_id), messages.message_ids.type)
        candidates |= pc.is_in(messages.message_ids, value_set=ids).to_numpy(zero_copy_only=False)
    for row in np.flatnonzero(candidates):
        at = None if messages.log_offsets is None else int(messages.log_offsets[row])
        copy = retries.of(messages.message_ids[row].as_py(), at)
        if copy is None:
            continue
        if not copy.is_consumed:
            fates[row] = _NUMBER[Fate.DEAD_LETTERED if copy.is_dead else Fate.RETRYING]
        elif messages.offsets[row] < committed and fates[row] not in _NOT_OF_QUEUES:
            fates[row] = _NUMBER[Fate.CONSUMED]


def alike(
    messages: Messages, outcomes: Outcomes, group: GroupOfQueue, rows: Numbers
) -> tuple[Numbers, Numbers]:
    """Return one row of each kind among `rows`, and the kind of each of them. Two messages are of a
    kind if the same spans and moves cover them and each filter of the group says the same of them,
    which is all that the reason of a loss depends on."""
    spans, moves = group.spans, group.facts.moves
    edges = {edge for span in spans for edge in (span.start, span.end, span.acked)}
    edges |= {span.change.cut for span in spans if span.change is not None}
    edges |= {edge for move in moves for edge in (move.before or 0, move.after)}
    kinds = np.searchsorted(np.array(sorted(edges), np.int64), messages.offsets[rows], "right")
    filters = {by for span in spans for by in (span.filter, span.own) if by is not None}
    filters |= {by for span in spans for by in span.unless}
    filters |= {by for view in group.views.values() for by in view.filters}
    filters |= {move.filter for move in moves if move.filter is not None}
    for by in filters:
        said = outcomes.at_server(by)[rows].astype(np.int64) * 2 + outcomes.at_client(by)[rows]
        kinds = np.unique(kinds * 512 + said, return_inverse=True)[1]
    _, first, kinds = np.unique(kinds, return_index=True, return_inverse=True)
    return rows[first], kinds
