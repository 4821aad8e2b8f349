"""Fates, each with its reason and its evidence, and which question is asked before which."""

from dataclasses import replace
from typing import Any

import orjson
import pytest

from tamis.fate import (
    Fate,
    Filter,
    FilterChange,
    GroupFacts,
    Judgement,
    LaneFacts,
    MessageFacts,
    Move,
    Reading,
    RetryFacts,
    View,
    judge,
    track_type,
)
from tamis.fate.facts import EXPIRED
from tamis.filter.logic import Outcome

NOON = 1_700_000_000_000  # 2023-11-14 22:13:20 UTC
TAG_A, TAG_B, ALL = Filter("TAG", "A"), Filter("TAG", "B"), Filter("TAG", "*")
CHEAP = Filter("SQL92", "price < 10")


def message(tag: str | None = "A", offset: int = 7, **others: Any) -> MessageFacts:
    properties = {"TAGS": tag} if tag is not None else {}
    properties |= others.pop("properties", {})
    facts: dict[str, Any] = {
        "topic": "T",
        "queue_id": 2,
        "offset": offset,
        "properties": properties,
        "stored": NOON,
        "message_id": "7F000001",
        "broker": "b",
        "tags_code": 65,
    }
    return MessageFacts(**(facts | others))


def reading(
    by: Filter = TAG_A,
    own: Filter | None = None,
    *,
    member: str = "c1",
    view: dict[Filter, tuple[str, ...]] | None = None,
    acknowledged: bool = True,
    **others: Any,
) -> Reading:
    own = by if own is None else own
    return Reading(
        member=member,
        filter=by,
        own=own,
        view=View(NOON, {own: (member,)} if view is None else view),
        began=NOON,
        start=others.pop("start", 0),
        end=others.pop("end", 10),
        acknowledged=acknowledged,
        **others,
    )


def group(*readings: Reading, committed: int | None = 10, **others: Any) -> GroupFacts:
    facts: dict[str, Any] = {
        "group": "G",
        "online": True,
        "committed": committed,
        "end_offset": 20,
        "readings": readings,
        "first_read": 0 if readings else None,
        "complete_since": NOON - 1000,
    }
    return GroupFacts(**(facts | others))


def move(before: int | None, after: int, **others: Any) -> Move:
    facts: dict[str, Any] = {"time": NOON, "queue_id": 2, "by": "10.0.0.1:5", "why": "reset"}
    return Move(before=before, after=after, **(facts | others))


def fate(*facts: Any) -> Fate:
    return judge(*facts).fate


# Messages that wait.


@pytest.mark.parametrize("committed", [None, 0, 6, 7])
def test_a_message_at_or_behind_the_committed_offset_waits(committed: int | None) -> None:
    judged = judge(message(offset=7), group(committed=committed))
    assert judged.fate is Fate.NOT_CONSUMED_YET
    assert str(committed) in judged.reason or "committed no offset" in judged.reason


def test_a_message_before_the_committed_offset_does_not_wait() -> None:
    assert fate(message(offset=6), group(reading(), committed=7)) is Fate.CONSUMED


def test_a_waiting_message_of_a_group_without_members_is_not_online() -> None:
    judged = judge(message(), group(committed=3, online=False))
    assert judged.fate is Fate.NOT_ONLINE
    assert "No member of the group is connected" in judged.reason


def test_a_message_that_was_given_out_and_not_acknowledged_waits_and_says_who_has_it() -> None:
    judged = judge(message(), group(reading(acknowledged=False), committed=5))
    assert judged.fate is Fate.NOT_CONSUMED_YET
    assert judged.reason.startswith("It was given to c1, which has not acknowledged it")


def test_a_consumed_message_behind_a_group_that_was_set_back_waits_again() -> None:
    judged = judge(message(), group(reading(), committed=3, moves=(move(10, 3),)))
    assert judged.fate is Fate.NOT_CONSUMED_YET
    assert "set back to 3 since" in judged.reason


def test_a_group_that_was_set_back_and_has_no_member_is_not_online() -> None:
    assert fate(message(), group(reading(), committed=3, online=False)) is Fate.NOT_ONLINE


# Messages that were given out.


def test_a_message_that_was_given_out_and_acknowledged_is_consumed() -> None:
    judged = judge(message(), group(reading(member="c9")))
    assert judged.fate is Fate.CONSUMED
    assert judged.reason == "It was given to c9, which acknowledged it."


def test_an_earlier_delivery_counts_though_a_later_reading_filtered_it() -> None:
    assert fate(message(), group(reading(TAG_A), reading(TAG_B))) is Fate.CONSUMED


def test_whether_an_unacknowledged_delivery_was_processed_is_not_known() -> None:
    facts = group(reading(member="c1", acknowledged=False), reading(TAG_B, member="c2"))
    judged = judge(message(), facts)
    assert judged.fate is Fate.UNKNOWN
    assert "given to c1" in judged.reason
    assert "before c2 read it by tags" in judged.reason


# Retries.


@pytest.mark.parametrize(
    ("times", "due", "said"),
    [
        (1, None, "A member sent it back once; it waits in %RETRY%G."),
        (3, NOON, "A member sent it back 3 times; it comes again at 2023-11-14 22:13:20.000 UTC."),
    ],
)
def test_a_message_that_was_sent_back_is_retrying(times: int, due: int | None, said: str) -> None:
    retry = RetryFacts(topic="%RETRY%G", times=times, is_dead=False, due=due)
    judged = judge(message(), group(reading(), retry=retry))
    assert (judged.fate, judged.reason) == (Fate.RETRYING, said)
    assert judged.evidence["retry"]["times"] == times


def test_a_message_that_was_sent_back_too_often_is_dead_lettered() -> None:
    retry = RetryFacts(topic="%DLQ%G", times=16, is_dead=True)
    judged = judge(message(), group(reading(), retry=retry))
    assert judged.fate is Fate.DEAD_LETTERED
    assert "%DLQ%G" in judged.reason


def test_a_retry_that_was_consumed_makes_the_message_consumed() -> None:
    retry = RetryFacts(topic="%RETRY%G", times=2, is_dead=False, is_consumed=True)
    judged = judge(message(), group(reading(), retry=retry))
    assert judged.fate is Fate.CONSUMED
    assert "sent back 2 times and then consumed" in judged.reason


# Messages that nobody wanted, or that could not be judged.


def test_a_message_that_no_member_wanted_is_filtered_and_the_tag_is_named() -> None:
    judged = judge(message("C"), group(reading(TAG_A)))
    assert judged.fate is Fate.FILTERED
    assert "'C'" in judged.reason
    assert "tags 'A'" in judged.reason


def test_a_message_without_a_tag_is_filtered_by_tags() -> None:
    judged = judge(message(None), group(reading(TAG_A)))
    assert judged.fate is Fate.FILTERED
    assert "no tag" in judged.reason


@pytest.mark.parametrize(
    ("price", "expected"),
    [
        ("9", Fate.CONSUMED),
        ("10", Fate.FILTERED),
        (None, Fate.FILTERED),  # NULL is not TRUE
        ("cheap", Fate.FILTER_FAILED),  # text is not a number
    ],
)
def test_sql_decides_by_its_outcome(price: str | None, expected: Fate) -> None:
    properties = {} if price is None else {"price": price}
    judged = judge(message(properties=properties), group(reading(CHEAP)))
    assert judged.fate is expected
    assert judged.evidence["sql"]["expression"] == "price < 10"
    assert judged.evidence["sql"]["part"]


def test_a_failed_filter_names_its_fault() -> None:
    judged = judge(message(properties={"price": "cheap"}), group(reading(CHEAP)))
    assert "failed on it" in judged.reason
    assert "cheap" in judged.reason


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ({"F": Outcome.TRUE}, Fate.CONSUMED),
        ({"F": Outcome.FALSE}, Fate.FILTERED),
        ({"F": Outcome.ERROR}, Fate.FILTER_FAILED),
        ({}, Fate.UNKNOWN),  # it was not run on this message
    ],
)
def test_code_decides_by_what_it_said(outcomes: dict[str, Outcome], expected: Fate) -> None:
    judged = judge(message(code_outcomes=outcomes), group(reading(Filter("CODE", "F"))))
    assert judged.fate is expected


CODE = Filter("CODE", "F")


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ({"F": Outcome.TRUE}, Fate.LOST_TO_INCONSISTENCY),
        ({"F": Outcome.FALSE}, Fate.FILTERED),
        ({"F": Outcome.ERROR}, Fate.FILTERED),
        ({}, Fate.UNKNOWN),
    ],
)
def test_what_code_of_another_member_wanted_is_not_guessed(
    outcomes: dict[str, Outcome], expected: Fate
) -> None:
    view = {TAG_A: ("c1",), CODE: ("c2",)}
    judged = judge(message("B", code_outcomes=outcomes), group(reading(TAG_A, view=view)))
    assert judged.fate is expected
    assert "code F" in judged.reason


def test_a_message_another_member_is_known_to_have_wanted_is_lost_whatever_code_says() -> None:
    view = {TAG_A: ("c1",), TAG_B: ("c2",), CODE: ("c3",)}
    assert fate(message("B"), group(reading(TAG_A, view=view))) is Fate.LOST_TO_INCONSISTENCY


def test_an_earlier_reading_by_code_may_have_delivered_it() -> None:
    facts = group(reading(CODE), reading(TAG_A))
    assert fate(message("B"), facts) is Fate.UNKNOWN
    assert fate(message("B", code_outcomes={"F": Outcome.TRUE}), facts) is Fate.CONSUMED
    assert fate(message("B", code_outcomes={"F": Outcome.FALSE}), facts) is Fate.FILTERED


@pytest.mark.parametrize(("tag", "expected"), [("A", Fate.CONSUMED),
                                               ("B", Fate.LOST_TO_INCONSISTENCY)])  # fmt: skip
def test_a_broker_with_code_in_force_sends_everything_to_members_without(
    tag: str, expected: Fate
) -> None:
    """It does not run code itself: what the class says did not stop the message."""
    view = {CODE: ("c1",), TAG_A: ("c2",), TAG_B: ("c3",)}
    facts = group(reading(CODE, TAG_A, member="c2", view=view))
    judged = judge(message(tag, code_outcomes={"F": Outcome.FALSE}), facts)
    assert judged.fate is expected
    assert fate(message(tag), facts) is expected


def test_reasons_say_that_code_was_judged_as_it_is_now() -> None:
    for outcome in (Outcome.FALSE, Outcome.ERROR):
        judged = judge(message(code_outcomes={"F": outcome}), group(reading(CODE)))
        assert "code F, as it is now," in judged.reason
    view = {TAG_A: ("c1",), CODE: ("c2",)}
    lost = judge(message("B", code_outcomes={"F": Outcome.TRUE}), group(reading(TAG_A, view=view)))
    assert "c2 by code F" in lost.reason
    assert lost.reason.endswith("subscribe differently (code was judged as it is now).")


def test_a_blank_tag_expression_matches_nothing() -> None:
    assert fate(message("A"), group(reading(Filter("TAG", " ")))) is Fate.FILTERED
    assert fate(message(None), group(reading(Filter("TAG", " ")))) is Fate.FILTERED


def test_bars_alone_match_nothing() -> None:
    assert fate(message("A"), group(reading(Filter("TAG", "||")))) is Fate.FILTERED


# Hashes that collide: Java's hashes of "Aa" and "BB" are equal.


def test_a_tag_with_an_equal_hash_is_sent_and_dropped() -> None:
    judged = judge(message("BB"), group(reading(Filter("TAG", "Aa"))))
    assert judged.fate is Fate.HASH_COLLISION
    assert "'BB' has the same hash as one of tags 'Aa'" in judged.reason
    [read] = judged.evidence["readings"]
    assert (read["broker_said"], read["client_keeps"]) == ("true", False)


def test_a_colliding_tag_that_another_member_wanted_is_lost() -> None:
    aa, bb = Filter("TAG", "Aa"), Filter("TAG", "BB")
    view = {aa: ("c1",), bb: ("c2",)}
    assert fate(message("BB"), group(reading(aa, view=view))) is Fate.LOST_TO_INCONSISTENCY


def test_a_collision_with_the_filter_of_a_member_that_left_names_that_filter() -> None:
    """The broker filters by 'Aa' still; the client drops the message for its own tag, 'C'."""
    judged = judge(message("BB"), group(reading(Filter("TAG", "Aa"), Filter("TAG", "C"))))
    assert judged.fate is Fate.HASH_COLLISION
    assert "'BB' has the same hash as one of tags 'Aa'" in judged.reason


def test_what_is_sent_by_the_filter_of_a_member_that_left_is_filtered() -> None:
    judged = judge(message("A"), group(reading(TAG_A, TAG_B)))
    assert judged.fate is Fate.FILTERED
    assert "of a member that had left" in judged.reason


# Members that disagree.


def test_a_message_that_a_member_wanted_and_the_brokers_filter_stopped_is_lost() -> None:
    view = {TAG_A: ("c1",), TAG_B: ("c2", "c3")}
    judged = judge(message("B"), group(reading(TAG_A, view=view)))
    assert judged.fate is Fate.LOST_TO_INCONSISTENCY
    assert "c2, c3 by tags 'B'" in judged.reason
    assert "c1 had the queue" in judged.reason
    [read] = judged.evidence["readings"]
    assert read["wanted_by"] == [{"kind": "TAG", "expression": "B", "members": ["c2", "c3"]}]
    assert read["broker_said"] == "false"


def test_a_message_that_the_owners_client_dropped_is_lost() -> None:
    view = {TAG_A: ("c1",), TAG_B: ("c2",)}
    judged = judge(message("A"), group(reading(TAG_A, TAG_B, member="c2", view=view)))
    assert judged.fate is Fate.LOST_TO_INCONSISTENCY
    assert "the broker sent it to c2, whose client dropped it for tags 'B'" in judged.reason


def test_a_message_on_which_the_brokers_filter_failed_but_another_wanted_is_lost() -> None:
    view = {CHEAP: ("c1",), TAG_A: ("c2",)}
    judged = judge(message(properties={"price": "x"}), group(reading(CHEAP, view=view)))
    assert judged.fate is Fate.LOST_TO_INCONSISTENCY


def test_a_member_with_sql_keeps_what_the_tags_of_another_let_through() -> None:
    view = {TAG_A: ("c2",), CHEAP: ("c1",)}
    facts = group(reading(TAG_A, CHEAP, view=view))
    assert fate(message(properties={"price": "99"}), facts) is Fate.CONSUMED


def test_who_wanted_it_is_asked_only_of_readings_under_which_progress_passed() -> None:
    both = {TAG_A: ("c1",), TAG_B: ("c2",)}
    facts = group(reading(TAG_A, view=both, acknowledged=False), reading(TAG_A))
    assert fate(message("B"), facts) is Fate.FILTERED


def test_the_members_of_today_do_not_matter() -> None:
    facts = group(reading(TAG_A), effective=TAG_B, members={"c2": TAG_B})
    assert fate(message("B"), facts) is Fate.FILTERED


# Progress that was moved.


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (0, 8, Fate.SKIPPED_BY_RESET),
        (7, 8, Fate.SKIPPED_BY_RESET),
        (None, 8, Fate.SKIPPED_BY_RESET),
        (8, 12, Fate.UNKNOWN),  # not over this one
        (0, 7, Fate.UNKNOWN),
    ],
)
def test_a_move_skips_what_lies_from_before_up_to_after(
    before: int | None, after: int, expected: Fate
) -> None:
    assert fate(message(), group(moves=(move(before, after),))) is expected


def test_a_skip_says_who_when_and_what_was_in_flight() -> None:
    facts = group(reading(acknowledged=False), moves=(move(2, 9),))
    judged = judge(message(), facts)
    assert judged.fate is Fate.SKIPPED_BY_RESET
    said = "moved from 2 to 9 at 2023-11-14 22:13:20.000 UTC by 10.0.0.1:5 (reset)"
    assert said in judged.reason
    assert "c1 had been given it and had not acknowledged it" in judged.reason
    [moved] = judged.evidence["moves"]
    assert (moved["before"], moved["after"], moved["by"]) == (2, 9, "10.0.0.1:5")


def test_of_several_moves_the_last_over_the_message_is_named() -> None:
    moves = (move(0, 9, by="one"), move(9, 0, by="two"), move(0, 20, by="three"))
    assert "by three" in judge(message(), group(committed=20, moves=moves)).reason


def test_a_reading_that_was_acknowledged_counts_more_than_a_move() -> None:
    facts = group(reading(TAG_A), moves=(move(0, 20),), committed=20)
    assert fate(message("A"), facts) is Fate.CONSUMED
    assert fate(message("B"), facts) is Fate.FILTERED


def test_a_message_before_the_first_that_was_read_is_skipped() -> None:
    judged = judge(message(offset=7), group(first_read=8))
    assert judged.fate is Fate.SKIPPED_BY_RESET
    assert "began to read this queue at offset 8" in judged.reason


def test_a_message_between_readings_is_skipped() -> None:
    judged = judge(message(offset=7), group(first_read=0))
    assert judged.fate is Fate.SKIPPED_BY_RESET
    assert "seek" in judged.reason


@pytest.mark.parametrize(("tag", "expected"), [("B", Fate.LOST_TO_INCONSISTENCY),
                                               ("A", Fate.FILTERED)])  # fmt: skip
def test_a_lane_that_was_given_up_loses_what_it_wanted(tag: str, expected: Fate) -> None:
    given_up = move(0, 9, lane="l", filter=TAG_B, by="the broker", why="given up")
    assert fate(message(tag), group(moves=(given_up,))) is expected


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ({"F#7": Outcome.TRUE}, Fate.LOST_TO_INCONSISTENCY),
        ({"F#7": Outcome.FALSE}, Fate.FILTERED),
        ({"F": Outcome.TRUE}, Fate.UNKNOWN),  # perhaps another version
    ],
)
def test_a_lane_with_code_that_was_given_up_loses_what_its_version_wanted(
    outcomes: dict[str, Outcome], expected: Fate
) -> None:
    given_up = move(0, 9, lane="l", filter=Filter("CODE", "F#7"), by="the broker", why="given up")
    judged = judge(message("B", code_outcomes=outcomes), group(moves=(given_up,)))
    assert judged.fate is expected
    [moved] = judged.evidence["moves"]
    assert moved["filter"] == {"kind": "CODE", "expression": "F#7"}


# A change of the group's filter, from tags A to tags B at an offset.

CHANGE = FilterChange(8, TAG_A, TAG_B)
HANDED = FilterChange(8, TAG_A, Filter("TAG", "A || B"), is_handed=True)


def test_what_was_left_of_the_old_filter_is_lost_if_waiting_for_it_was_given_up() -> None:
    """Members with the new filter had passed it before; the old one held at that offset."""
    given_up = move(0, 9, lane="l", filter=TAG_A, by="the broker", why="given up", time=NOON + 1)
    new = reading(TAG_B, view={TAG_B: ("c2",)}, member="c2", change=CHANGE)
    judged = judge(message("A", offset=7), group(new, moves=(given_up,)))
    assert judged.fate is Fate.LOST_TO_INCONSISTENCY
    assert "held for members with tags 'A' until 2023-11-14 22:13:20.001 UTC" in judged.reason
    assert "given up" in judged.reason
    other = judge(message("B", offset=7), group(moves=(given_up,)))
    assert (other.fate, other.reason) == (Fate.FILTERED, "No member of the group wanted it.")


def test_what_was_handed_to_members_with_the_new_filter_is_said_so() -> None:
    new = Filter("TAG", "A || B")
    taken = reading(TAG_A, new, member="c2", view={new: ("c2",)}, change=HANDED)
    judged = judge(message("A", offset=7), group(taken))
    assert judged.fate is Fate.CONSUMED
    assert judged.reason == (
        "It was given to c2, which acknowledged it, for no member had tags 'A' any more, which "
        "holds before offset 8."
    )
    after = judge(message("A", offset=8), group(taken))
    assert after.reason == "It was given to c2, which acknowledged it."
    set_back = judge(message("A", offset=7), group(taken, committed=3))
    assert set_back.fate is Fate.NOT_CONSUMED_YET
    assert "set back to 3 since: it will be read again" in set_back.reason


def test_what_waits_for_members_with_the_new_filter_is_said_so() -> None:
    new = Filter("TAG", "A || B")
    behind = LaneFacts(key="l", filter=new, committed=3, members=("c2",), change=HANDED)
    judged = judge(message("A", offset=7), group(committed=3, lanes=(behind,)))
    assert judged.fate is Fate.NOT_CONSUMED_YET
    assert judged.reason == (
        "No member has tags 'A' any more, which holds before the change of the group's filter: it "
        "waits for c2, who are at 3."
    )
    # what only the new filter wants is not waited for before the cut
    other = judge(message("B", offset=7), group(committed=3, lanes=(behind,)))
    assert "waits for" not in other.reason
    after = judge(message("B", offset=8), group(committed=3, lanes=(behind,)))
    assert "It waits for members with tags 'A || B' (c2)" in after.reason


# Messages that have left the log.


def test_a_message_that_left_the_log_before_the_group_came_is_expired() -> None:
    judged = judge(replace(message(), properties=None), group(committed=3, first_offset=8))
    assert judged.fate is Fate.EXPIRED
    assert "begins at 8" in judged.reason


def test_a_message_that_a_reader_was_sent_past_since_it_had_left_the_log_is_expired() -> None:
    gone = replace(message(), properties=None, stored=None)
    facts = group(moves=(move(3, 8, why=EXPIRED),), first_offset=8, first_read=8)
    assert fate(gone, facts) is Fate.EXPIRED


def test_of_a_message_that_progress_passed_and_the_log_lost_nothing_is_known() -> None:
    gone = replace(message(), properties=None)
    judged = judge(gone, group(reading(), first_offset=8))
    assert judged.fate is Fate.UNKNOWN
    assert "left the log" in judged.reason


def test_a_message_that_left_the_log_and_was_skipped_is_skipped() -> None:
    gone = replace(message(), properties=None)
    facts = group(moves=(move(0, 9),), first_offset=8)
    assert fate(gone, facts) is Fate.SKIPPED_BY_RESET


# Groups of other kinds.


def test_a_group_that_broadcasts_has_no_progress_of_its_own() -> None:
    facts = group(reading(member="c2"), committed=None, message_model="BROADCASTING")
    judged = judge(message(), facts)
    assert judged.fate is Fate.BROADCASTING
    assert "sent to c2" in judged.reason


def test_a_broadcasting_member_that_missed_it_to_anothers_filter_is_named() -> None:
    members = {TAG_A: ("c1",), TAG_B: ("c2",)}
    readings = [
        reading(TAG_B, own, member=member, view=members, acknowledged=False)
        for member, own in (("c1", TAG_A), ("c2", TAG_B))
    ]
    facts = group(*readings, committed=None, message_model="BROADCASTING")
    judged = judge(message("A"), facts)
    assert judged.fate is Fate.BROADCASTING
    assert "c1 wanted it, but the broker filtered the group by tags 'B' then" in judged.reason
    assert judge(message("B"), facts).reason.endswith("it was sent to c2.")
    assert judge(message("C"), facts).reason.endswith("no member wanted it.")


def test_members_that_do_not_subscribe_to_the_topic_are_why_a_queue_is_not_read() -> None:
    facts = group(committed=3, members={"c1": ALL, "c2": None})
    judged = judge(message(), facts)
    assert judged.fate is Fate.NOT_CONSUMED_YET
    assert "c2 does not subscribe to the topic" in judged.reason
    assert "refuses" in judged.reason
    assert "refuses" not in judge(message(), replace(facts, effective=ALL)).reason
    same = replace(facts, members={"c1": ALL, "c2": ALL})
    assert "subscribe" not in judge(message(), same).reason


def test_that_nobody_wanted_it_says_what_each_member_had() -> None:
    members = {TAG_A: ("c1",), TAG_B: ("c2",)}
    judged = judge(message("C"), group(reading(TAG_A, view=members)))
    assert judged.fate is Fate.FILTERED
    assert "the group's filter is tags 'A'; other members had tags 'B'." in judged.reason


def test_evidence_says_that_a_lane_left_a_message_to_another() -> None:
    first = reading(ALL, member="c1", lane="x")
    second = reading(TAG_A, member="c2", lane="y", unless=(ALL,))
    judged = judge(message("A"), group(first, second))
    assert judged.fate is Fate.CONSUMED
    assert [one["left_to_others"] for one in judged.evidence["readings"]] == [False, True]


def test_what_a_member_gave_up_at_once_was_not_sent_back_often() -> None:
    copy = RetryFacts(topic="%DLQ%G", times=0, is_dead=True)
    assert judge(message(), group(reading(), retry=copy)).reason == "It is in %DLQ%G now."


def test_an_offset_that_is_gone_is_not_said_to_be_deleted() -> None:
    judged = judge(message(), group(reading(), committed=None))
    assert judged.fate is Fate.NOT_CONSUMED_YET
    assert "the broker has no offset of the group in this queue any more" in judged.reason


def test_a_group_that_pulls_and_commits_nothing_keeps_its_progress_itself() -> None:
    facts = group(committed=None, consume_type="CONSUME_ACTIVELY")
    assert fate(message(), facts) is Fate.PULL
    assert fate(message(), replace(facts, committed=3)) is Fate.NOT_CONSUMED_YET


# Lanes.


def lane(by: Filter | None, committed: int | None, *members: str) -> LaneFacts:
    return LaneFacts(key=str(by), filter=by, committed=committed, members=members)


def test_a_message_waits_for_the_lane_that_wants_it() -> None:
    lanes = (lane(TAG_A, 10, "c1"), lane(TAG_B, 3, "c2"))
    judged = judge(message("B"), group(committed=3, lanes=lanes))
    assert judged.fate is Fate.NOT_CONSUMED_YET
    assert "tags 'B' (c2)" in judged.reason
    assert judged.evidence["lanes"][1]["members"] == ["c2"]


def test_a_message_is_held_for_a_lane_whose_members_are_gone() -> None:
    lanes = (lane(TAG_A, 10, "c1"), lane(TAG_B, 3))
    judged = judge(message("B"), group(committed=3, lanes=lanes))
    assert judged.fate is Fate.NOT_ONLINE
    assert "held for members with tags 'B'" in judged.reason


def test_what_one_lane_consumed_is_consumed_though_another_is_behind() -> None:
    lanes = (lane(TAG_A, 10, "c1"), lane(TAG_B, 3, "c2"))
    judged = judge(message("A"), group(reading(TAG_A, lane="a"), committed=3, lanes=lanes))
    assert judged.fate is Fate.CONSUMED
    assert "for its lane" in judged.reason


# What is not known.


def test_without_history_passed_messages_are_unknown_and_today_is_said_as_today() -> None:
    facts = group(complete_since=None, effective=TAG_A)
    judged = judge(message("A"), facts)
    assert judged.fate is Fate.UNKNOWN
    assert "keeps no history" in judged.reason
    assert "by the filter of today, tags 'A', it would match" in judged.reason


def test_messages_older_than_the_history_are_unknown_and_its_beginning_is_named() -> None:
    judged = judge(message(stored=NOON - 1), group(complete_since=NOON, first_read=8))
    assert judged.fate is Fate.UNKNOWN
    assert "no history before 2023-11-14 22:13:20.000 UTC" in judged.reason


def test_what_a_crash_may_have_swallowed_is_unknown() -> None:
    judged = judge(message(), group(unsaved_from=5, first_read=0))
    assert judged.fate is Fate.UNKNOWN
    assert "from offset 5 on" in judged.reason


def test_what_could_not_be_found_out_is_in_the_evidence() -> None:
    judged = judge(message(), group(unknown=("no answer from b",)))
    assert judged.evidence["unknown"] == ["no answer from b"]


# The order of the questions: the first of these that applies is the fate.

QUESTIONS: list[tuple[Fate, dict[str, Any]]] = [
    (Fate.RETRYING, {"retry": RetryFacts(topic="%RETRY%G", times=1, is_dead=False)}),
    (Fate.BROADCASTING, {"message_model": "BROADCASTING"}),
    (Fate.CONSUMED, {"readings": (reading(),)}),
    (Fate.NOT_CONSUMED_YET, {"committed": 3}),
    (Fate.SKIPPED_BY_RESET, {"moves": (move(0, 9),)}),
    (Fate.UNKNOWN, {}),
]


@pytest.mark.parametrize("first", range(len(QUESTIONS)), ids=[str(q[0]) for q in QUESTIONS])
def test_questions_are_asked_in_their_order(first: int) -> None:
    facts: dict[str, Any] = {}
    for _, more in reversed(QUESTIONS[first:]):
        facts |= more
    if QUESTIONS[first][0] is Fate.CONSUMED:
        facts["committed"] = 10
    judged = judge(message(), group(**({"committed": 10} | facts)))
    assert judged.fate is QUESTIONS[first][0]


# The evidence.


def test_evidence_has_the_facts_and_is_made_for_json() -> None:
    facts = group(
        reading(TAG_A, TAG_B),
        effective=CHEAP,
        members={"c1": TAG_B, "c2": None},
        bitmap_bit=True,
        policy="isolate",
    )
    judged = judge(message(bitmap="0f"), facts)
    evidence = orjson.loads(orjson.dumps(judged.to_json()))["evidence"]
    assert (evidence["topic"], evidence["queue"], evidence["offset"]) == ("T", 2, 7)
    assert (evidence["committed"], evidence["queue_ends_at"]) == (10, 20)
    assert (evidence["tag"], evidence["tags_code"]) == ("A", 65)
    assert evidence["bitmap"] == {"bits": "0f", "group_matched": True}
    assert evidence["filter_now"] == {"kind": "SQL92", "expression": "price < 10"}
    assert evidence["members_now"] == {"c1": {"kind": "TAG", "expression": "B"}, "c2": None}
    assert evidence["policy"] == "isolate"
    [read] = evidence["readings"]
    assert read["broker_filter"]["expression"] == "A"
    assert read["member_filter"]["expression"] == "B"
    assert (read["from"], read["to"], read["acknowledged"]) == (0, 10, True)


def test_the_sql_shown_is_that_of_the_reading_that_decided() -> None:
    facts = group(reading(CHEAP), reading(Filter("SQL92", "price > 50"), acknowledged=False))
    judged = judge(message(properties={"price": "20"}), facts)
    assert judged.fate is Fate.FILTERED
    assert judged.evidence["sql"]["expression"] == "price < 10"


@pytest.mark.parametrize("one", Fate)
def test_every_fate_has_a_track_type(one: Fate) -> None:
    assert track_type(one) in {
        "CONSUMED", "CONSUMED_BUT_FILTERED", "PULL", "NOT_CONSUME_YET", "NOT_ONLINE", "UNKNOWN",
        "CONSUME_BROADCASTING",
    }  # fmt: skip


def test_reasons_are_one_sentence() -> None:
    judged: list[Judgement] = [
        judge(message("A"), group(reading(TAG_A))),
        judge(message("B"), group(reading(TAG_A))),
        judge(message("A"), group(complete_since=None, effective=TAG_A)),
        judge(message("x"), group(reading(CHEAP))),
        judge(message("A", properties={"price": "x"}), group(reading(CHEAP))),
    ]
    for one in judged:
        assert one.reason.endswith("."), one.reason
        assert ".." not in one.reason, one.reason
        assert "\n" not in one.reason
