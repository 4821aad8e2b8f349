"""The judge of batches, held to `fate.judge`, which judges one message at a time."""

import pickle
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.fate import (
    Fate,
    Filter,
    FilterChange,
    GroupFacts,
    LaneFacts,
    MessageFacts,
    Move,
    RetryFacts,
    Span,
    View,
    judge,
)
from tamis.fate.facts import EXPIRED, RESET, UNSAVED
from tamis.filter import Outcome
from tamis.filter.tags import tags_code
from tamis.pipeline.judging import FATES, GroupOfQueue, GroupRecord, Judge, Retries, queue_parts
from tamis.wire import properties as property_block

TOPIC, BROKER = "orders", "broker-a"
SIZE = 12  # messages of a queue

TAGS = (None, "Aa", "BB", "C", "D")  # the first two have one hash
FILTERS = (
    *(
        Filter("TAG", text)
        for text in ("*", "", "Aa", "BB", "C", "Aa || C", "||", " || ", "nobody")
    ),
    *(Filter("SQL92", text) for text in ("n > 3", "region = 'eu'", "TAGS = 'Aa' OR n < 2")),
    Filter("SQL92", "n >"),
    Filter("CODE", "Suspicious"),
    Filter("CODE", "Late#77"),
)
WITHOUT_CODE = tuple(by for by in FILTERS if by.kind != "CODE")
MEMBERS = ("one", "two", "three")

filters = st.sampled_from(FILTERS)
codes = st.dictionaries(
    st.sampled_from([by.text for by in FILTERS if by.kind == "CODE"]),
    st.sampled_from((Outcome.FALSE, Outcome.TRUE, Outcome.ERROR)),
)
offsets = st.integers(0, SIZE)
numbers = st.none() | offsets


@st.composite
def messages(draw: st.DrawFn, queue_id: int) -> list[MessageFacts]:
    """Some of a queue, in any order."""
    made = []
    for offset in draw(st.lists(st.integers(0, SIZE - 1), unique=True, min_size=1)):
        properties = {
            "TAGS": draw(st.sampled_from(TAGS)),
            "n": draw(st.sampled_from((None, "1", "5", "many"))),
            "region": draw(st.sampled_from((None, "eu", "us"))),
        }
        known = {name: value for name, value in properties.items() if value is not None}
        made.append(
            MessageFacts(
                topic=TOPIC,
                queue_id=queue_id,
                offset=offset,
                properties=known,
                stored=1000 + offset,
                message_id=f"{queue_id}-{offset}",
                broker=BROKER,
                tags_code=tags_code(known.get("TAGS")),
                code_outcomes=draw(codes),
            )
        )
    return made


changes = st.builds(
    FilterChange,
    cut=st.integers(0, SIZE),
    old=st.sampled_from(WITHOUT_CODE),
    new=st.sampled_from(WITHOUT_CODE),
    is_handed=st.booleans(),
)


@st.composite
def spans(draw: st.DrawFn) -> Span:
    start = draw(offsets)
    return Span(
        start=start,
        end=draw(st.integers(start, SIZE)),
        member=draw(st.sampled_from(MEMBERS)),
        filter=draw(filters),
        own=draw(st.none() | filters),
        view=draw(st.integers(0, 3)),
        began=draw(st.integers(0, 3)),
        acked=draw(offsets),
        is_open=draw(st.booleans()),
        # code never comes before other lanes, for it is not known what it wants
        unless=draw(st.just(()) | st.tuples(st.sampled_from(WITHOUT_CODE))),
        change=draw(st.none() | changes),
    )


views = st.dictionaries(
    st.integers(0, 2),
    st.dictionaries(filters, st.just(("one",)), max_size=3).map(lambda by: View(0, by)),
)
moves = st.builds(
    Move,
    time=st.integers(0, 3),
    queue_id=st.just(0),
    before=numbers,
    after=offsets,
    by=st.just("an admin"),
    why=st.sampled_from((RESET, RESET, EXPIRED, UNSAVED)),
    filter=st.none() | filters,
)
lanes = st.builds(
    LaneFacts,
    key=st.just("lane"),
    filter=st.none() | filters,
    committed=numbers,
    members=st.sampled_from(((), ("one",))),
    change=st.none() | changes,
)
retries = st.builds(
    RetryFacts,
    topic=st.just("%RETRY%group"),
    times=st.integers(1, 3),
    is_dead=st.booleans(),
    is_consumed=st.booleans(),
)
facts = st.builds(
    GroupFacts,
    group=st.just("group"),
    online=st.booleans(),
    committed=numbers,
    first_offset=st.sampled_from((0, 0, 3)),
    consume_type=st.sampled_from(("CONSUME_PASSIVELY", "CONSUME_PASSIVELY", "CONSUME_ACTIVELY")),
    message_model=st.sampled_from(("CLUSTERING",) * 5 + ("BROADCASTING",)),
    effective=st.none() | filters,
    moves=st.lists(moves, max_size=2).map(tuple),
    complete_since=st.sampled_from((None, 0, 1000, 1004)),
    lanes=st.lists(lanes, max_size=2).map(tuple),
)


@st.composite
def groups_of_queue(draw: st.DrawFn) -> GroupOfQueue:
    of_queue = tuple(draw(st.lists(spans(), max_size=4)))
    first_read = min((span.start for span in of_queue), default=None)
    own = replace(draw(facts), first_read=first_read)
    return GroupOfQueue(
        facts=own,
        spans=of_queue,
        views=draw(views),
        known_from=draw(st.sampled_from((0, 0, 4))),
        since_before=draw(st.sampled_from((None, 0, 1002))),
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[MessageFacts], GroupRecord, Mapping[str, RetryFacts]]:
    chosen = [one for queue_id in range(2) for one in draw(messages(queue_id))]
    chosen = draw(st.permutations(chosen))
    ids = st.sampled_from([one.message_id for one in chosen])
    copies: dict[str, RetryFacts] = draw(st.dictionaries(ids, retries, max_size=3))
    by_offset = draw(st.booleans())
    known = Retries(
        by_log_offset={log_offset(one): ((one.message_id, copies[one.message_id]),)
                       for one in chosen if by_offset and one.message_id in copies},
        by_id={} if by_offset else copies,
    )  # fmt: skip
    elsewhere = draw(facts)
    queues = {(TOPIC, BROKER, 0): draw(groups_of_queue())}
    return (
        chosen,
        GroupRecord(group="group", elsewhere=elsewhere, queues=queues, retries=known),
        copies,
    )


def log_offset(message: MessageFacts) -> int:
    return 100 * message.queue_id + 7 * message.offset


def batch_of(chosen: list[MessageFacts]) -> pa.RecordBatch:
    def column(values: Any, kind: pa.DataType) -> pa.Array:
        return pa.array(list(values), kind)

    columns = {
        "topic": column((one.topic for one in chosen), pa.string()),
        "broker": column((one.broker for one in chosen), pa.string()),
        "queue_id": column((one.queue_id for one in chosen), pa.int32()),
        "offset": column((one.offset for one in chosen), pa.int64()),
        "store_timestamp": column(
            (1000 * (one.stored or 0) for one in chosen), pa.timestamp("us", "UTC")
        ),
        "tags": column((one.tag for one in chosen), pa.string()),
        "tags_code": column((one.tags_code for one in chosen), pa.int64()),
        "message_id": column((one.message_id for one in chosen), pa.string()),
        "log_offset": column(map(log_offset, chosen), pa.int64()),
        "property_string": column(
            (property_block.encode(one.properties or {}) for one in chosen), pa.string()
        ),
    }
    return pa.RecordBatch.from_pydict(columns)


class Oracle:
    """Knows what code says of messages that a test made, and remembers who asked."""

    def __init__(self, chosen: list[MessageFacts]) -> None:
        self._known = {(one.queue_id, one.offset): one.code_outcomes for one in chosen}
        self.asked: set[tuple[str, int, int]] = set()

    def __call__(
        self, group: str, class_text: str, queue: tuple[str, str, int], offsets: Any
    ) -> tuple[Any, str]:
        assert len(offsets), "a question about nothing"
        places = [(queue[2], int(offset)) for offset in offsets]
        self.asked |= {(class_text, *place) for place in places}
        said = [self._known[place].get(class_text, 255) for place in places]
        return np.array(said, np.uint8), "nobody knows" if 255 in said else ""


@settings(max_examples=1000, deadline=None)
@given(cases())
def test_a_batch_is_judged_as_each_of_its_messages(
    case: tuple[list[MessageFacts], GroupRecord, Mapping[str, RetryFacts]],
) -> None:
    """Code is asked about as little as possible, and fates are as if all were known at once."""
    chosen, group, copies = case
    judges = pickle.loads(pickle.dumps(Judge([group])))
    oracle = Oracle(chosen)
    fates = np.full(len(chosen), 255, np.uint8)
    without = np.full(len(chosen), 255, np.uint8)
    for rows, own in queue_parts(batch_of(chosen)):
        fates[rows] = judges.judge(own, oracle)[0].fates
        without[rows] = judges.judge(own)[0].fates
    for message, fate, guess in zip(chosen, fates, without, strict=True):
        of_queue = group.of_queue((TOPIC, BROKER, message.queue_id))
        facts = of_queue.facts_of(message, copies.get(message.message_id or ""))
        expected = judge(message, facts)
        assert FATES[fate] == expected.fate, (message, expected)
        expected = judge(replace(message, code_outcomes={}), facts)
        assert FATES[guess] == expected.fate, (message, expected)
    has_code = "CODE" in repr(group)
    assert has_code or not oracle.asked


def test_groups_with_equal_filters_have_equal_fates() -> None:
    [(_, own)] = queue_parts(batch_of([
        MessageFacts(topic=TOPIC, queue_id=0, offset=n, properties={"TAGS": "C", "n": str(n)},
                     stored=n, message_id=str(n), broker=BROKER, tags_code=tags_code("C"))
        for n in range(6)
    ]))  # fmt: skip
    span = Span(0, 6, "one", Filter("SQL92", "n > 3"), None, 0, 0, acked=6)
    made = [
        GroupRecord(
            group=name,
            elsewhere=GroupFacts(group=name, online=True, committed=None),
            queues={
                (TOPIC, BROKER, 0): GroupOfQueue(
                    facts=GroupFacts(group=name, online=True, committed=6), spans=(span,)
                )
            },
        )
        for name in ("a", "b")
    ]
    first, second = (one.fates for one in Judge(made).judge(own))
    assert [FATES[fate].name for fate in first] == ["FILTERED"] * 4 + ["CONSUMED"] * 2
    assert np.array_equal(first, second)


def test_what_is_left_to_another_lane_during_a_change_is_filtered_not_a_collision() -> None:
    """The tag BB has the hash of Aa, by which it was read; the other lane had come first."""
    message = MessageFacts(topic=TOPIC, queue_id=0, offset=0, properties={"TAGS": "BB"},
                           stored=0, message_id="0", broker=BROKER,
                           tags_code=tags_code("BB"))  # fmt: skip
    aa, bb = Filter("TAG", "Aa"), Filter("TAG", "BB")
    span = Span(0, 1, "one", aa, aa, 0, 0, acked=1, unless=(bb,), change=FilterChange(0, aa, bb))
    of_queue = GroupOfQueue(
        facts=GroupFacts(group="group", online=True, committed=1), spans=(span,)
    )
    record = GroupRecord(
        group="group",
        elsewhere=GroupFacts(group="group", online=True, committed=None),
        queues={(TOPIC, BROKER, 0): of_queue},
    )
    [(_, own)] = queue_parts(batch_of([message]))
    [judged] = Judge([record]).judge(own)
    expected = judge(message, of_queue.facts_of(message, None))
    assert FATES[judged.fates[0]] == expected.fate == Fate.FILTERED
