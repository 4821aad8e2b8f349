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
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from ..errors import InvalidFilter
from ..fate import Fate, Filter, GroupFacts, GroupHistory, MessageFacts, RetryFacts, Span, View
from ..fate.facts import EXPIRED, UNSAVED, Demand
from ..filter import Outcome, parse
from ..filter.engines.columnar import BatchFilter, compile_batch
from ..filter.tags import TagFilter, parse_tags

__all__ = [
    "FATES",
    "Batches",
    "Fates",
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
Numbers = npt.NDArray[np.int64]
QueueName = tuple[str, str, int]  # topic, broker, queue
Batches = Iterator[pa.RecordBatch]

_NUMBER: Final = {fate: np.uint8(number) for number, fate in enumerate(FATES)}
_UNKNOWN_OUTCOME: Final = np.uint8(255)  # of code that was not run
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


# The messages.


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """Messages of one queue, in the order of their offsets; columns of Arrow and NumPy."""

    queue: QueueName
    offsets: Numbers
    stored: Numbers  # milliseconds since 1970
    tags: pa.Array  # null for none
    tags_codes: Numbers
    property_strings: pa.Array
    message_ids: pa.Array
    log_offsets: Numbers | None = None

    def __len__(self) -> int:
        return len(self.offsets)


class Outcomes:
    """What filters say of the messages, each evaluated once."""

    def __init__(self, messages: Messages) -> None:
        self._messages = messages
        self._server: dict[Filter, Fates] = {}
        self._client: dict[Filter, Mask] = {}
        self._wants: dict[Filter, Mask] = {}

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


class Judge:
    """Judges batches for some groups. Can be pickled."""

    def __init__(self, groups: Sequence[GroupRecord]) -> None:
        self.groups = tuple(groups)

    def judge(self, messages: Messages, outcomes: "Outcomes | None" = None) -> list[Fates]:
        """Return the fates for each group, by number. `outcomes`: of these messages, to be used
        again afterwards."""
        outcomes = outcomes or Outcomes(messages)
        fates = []
        for group in self.groups:
            made = _judge(messages, outcomes, group.of_queue(messages.queue))
            if group.retries:
                _mark_retried(made, messages, group)
            fates.append(made)
        return fates


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
        self.began = np.full(size, -1, np.int64)  # the latest that was acknowledged
        # Of the last reading that was acknowledged:
        self.server = np.zeros(size, np.uint8)
        self.matches_text = np.zeros(size, np.bool_)
        starts = np.searchsorted(offsets, [span.start for span in group.spans])
        ends = np.searchsorted(offsets, [span.end for span in group.spans])
        for number in np.flatnonzero(starts < ends):
            span, start, end = group.spans[number], int(starts[number]), int(ends[number])
            ack = min(max(int(np.searchsorted(offsets, span.acked)), start), end)
            server = outcomes.at_server(span.filter)
            given = server[start:end] == _TRUE
            given &= outcomes.at_client(span.own or span.filter)[start:end]
            if span.unless:
                given &= ~outcomes.wanted_by_any(span.unless, start, end)
            self.looked_at[start:end] = True
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
        if change is None:
            self.wanted[start:end] |= outcomes.wanted_by_any(view.filters, start, end)
            return
        cut = min(max(int(np.searchsorted(offsets, change.cut)), start), end)
        for low, high, offset in ((start, cut, change.cut - 1), (cut, end, change.cut)):
            by_side = [by for by in view.filters if change.counts(by, offset)]
            self.wanted[low:high] |= outcomes.wanted_by_any(by_side, low, high)

    def by_filters(self) -> Fates:
        """Return what the last acknowledged reading says, UNKNOWN where there is none."""
        fates = np.full(len(self.server), _NUMBER[Fate.FILTERED])
        is_true = self.server == _TRUE
        fates[is_true & ~self.matches_text] = _NUMBER[Fate.HASH_COLLISION]
        fates[self.server == int(Outcome.ERROR)] = _NUMBER[Fate.FILTER_FAILED]
        fates[self.wanted] = _NUMBER[Fate.LOST_TO_INCONSISTENCY]
        unknown = (self.server == _UNKNOWN_OUTCOME) | self.delivered | ~self.acknowledged
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
        here = free[start:end]
        fates[start:end][here] = decided[here]
    for move in facts.moves:
        if move.why == EXPIRED:
            start, end = np.searchsorted(offsets, [move.before or 0, move.after])
            fates[start:end][free[start:end]] = _NUMBER[Fate.EXPIRED]
    if any(move.why == UNSAVED for move in facts.moves):
        _decide_unsaved(fates, offsets, group, looks)
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


def queue_parts(batch: pa.RecordBatch) -> "list[tuple[npt.NDArray[np.int64], Messages]]":
    """Return the messages of each queue in a batch of a source's rows, with their rows' numbers."""
    topics = pc.dictionary_encode(batch.column("topic"))
    brokers = pc.dictionary_encode(pc.fill_null(batch.column("broker"), ""))
    queue_ids = batch.column("queue_id").to_numpy()
    offsets = batch.column("offset").to_numpy()
    width = int(queue_ids.max()) + 1  # queues are numbered from 0, and few
    numbers = topics.indices.to_numpy().astype(np.int64) * len(brokers.dictionary)
    numbers = (numbers + brokers.indices.to_numpy()) * width + queue_ids
    parts = []
    for number in np.flatnonzero(np.bincount(numbers)):
        place, queue_id = divmod(int(number), width)
        topic, broker = divmod(place, len(brokers.dictionary))
        rows = np.flatnonzero(numbers == number)
        if np.any(np.diff(offsets[rows]) < 0):
            rows = rows[np.argsort(offsets[rows], kind="stable")]
        is_whole = len(rows) == len(offsets) and (len(rows) < 2 or np.all(np.diff(rows) > 0))
        own = batch if is_whole else batch.take(pa.array(rows))
        name = topics.dictionary[topic].as_py(), brokers.dictionary[broker].as_py(), int(queue_id)
        parts.append((rows, _messages(name, own)))
    return parts


def _messages(name: QueueName, batch: pa.RecordBatch) -> Messages:
    def column(wanted: str) -> Any:
        return batch.column(wanted)

    stored = column("store_timestamp").cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
    has_log_offset = "log_offset" in batch.schema.names
    return Messages(
        queue=name,
        offsets=column("offset").to_numpy(),
        stored=stored.to_numpy(zero_copy_only=False),
        tags=column("tags"),
        tags_codes=column("tags_code").to_numpy(zero_copy_only=False),
        property_strings=column("property_string"),
        message_ids=column("message_id"),
        log_offsets=column("log_offset").to_numpy() if has_log_offset else None,
    )
