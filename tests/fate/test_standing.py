"""What can be concluded about a message without history, and what can't."""

from dataclasses import replace

import pytest

from tamis.fate import (
    Fate,
    Filter,
    GroupFacts,
    MemberNow,
    MessageFacts,
    Reading,
    judge,
    standing_reading,
)
from tamis.fate.standing import STANDING_MARGIN

A, B = Filter("TAG", "a"), Filter("TAG", "b")
SINCE = 1_000_000
STORED = SINCE + STANDING_MARGIN
OWNER = MemberNow(client_id="owner", filter=A, since=SINCE, has_queue=True)
OTHER = MemberNow(client_id="other", filter=B, since=SINCE - 1, has_queue=False)


def message(tag: str, stored: int | None = STORED) -> MessageFacts:
    return MessageFacts(topic="T", queue_id=0, offset=5, properties={"TAGS": tag}, stored=stored)


@pytest.mark.parametrize(
    ("tag", "effective", "fate"),
    [
        ("a", A, Fate.CONSUMED),
        ("b", A, Fate.LOST_TO_INCONSISTENCY),  # the broker kept it back
        ("a", B, Fate.LOST_TO_INCONSISTENCY),
        ("b", B, Fate.LOST_TO_INCONSISTENCY),  # the owner's client dropped it
        ("c", A, Fate.FILTERED),
    ],
)
def test_a_message_newer_than_all_changes_was_read_as_things_stand(
    tag: str, effective: Filter, fate: Fate
) -> None:
    reading = standing_reading(message(tag), 6, [OWNER, OTHER], effective, SINCE)
    assert isinstance(reading, Reading)
    assert (reading.member, reading.filter, reading.began) == ("owner", effective, SINCE)
    group = GroupFacts(group="G", online=True, committed=6, readings=(reading,))
    assert judge(message(tag), group).fate is fate


def test_a_member_that_sends_its_filter_with_every_pull_is_served_by_it() -> None:
    owner = replace(OWNER, sends_filter=True)
    reading = standing_reading(message("a"), 6, [owner, OTHER], B, SINCE)
    assert isinstance(reading, Reading)
    assert reading.filter == A


@pytest.mark.parametrize(
    ("members", "effective_since", "why"),
    [
        ([replace(OWNER, since=SINCE + 1)], 0, "changed after it was stored, or just before"),
        ([OWNER, replace(OTHER, since=SINCE + 1)], 0, "changed after it was stored"),
        ([OWNER], SINCE + 1, "changed after it was stored"),
        ([OWNER, replace(OTHER, since=None)], 0, "other has had its queues"),
        ([replace(OWNER, has_queue=False)], 0, "No member says that it has the queue"),
        ([OWNER, replace(OTHER, has_queue=True)], 0, "Two have the queue"),
        ([OWNER, replace(OTHER, topics=frozenset("U"))], 0, "different topics"),
        ([], 0, "No member is connected"),
    ],
)
def test_nothing_is_concluded_if_something_may_have_been_different(
    members: list[MemberNow], effective_since: int, why: str
) -> None:
    reading = standing_reading(message("a"), 6, members, A, effective_since)
    assert isinstance(reading, str)
    assert why in reading


def test_nothing_is_concluded_about_a_message_that_has_left_the_log() -> None:
    gone = message("a", stored=None)
    assert standing_reading(gone, 6, [OWNER], A, SINCE) == "The message has left the log."
