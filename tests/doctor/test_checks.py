"""Each check, on facts that are made up."""

import shlex
from dataclasses import replace
from typing import Any

import pytest
from doctor.cluster_facts import (
    BROKER,
    NAMESERVER,
    NOW,
    facts,
    group,
    messages,
    queue,
    sql,
    tags,
    topic,
)

from tamis.doctor import CHECKS, ClusterFacts, Finding, Severity, examine
from tamis.doctor.facts import Broker, Group, HistoryOfBroker, VerdictRow
from tamis.doctor.policies import BrokerRules
from tamis.fate import Filter, GroupHistory, Span, View
from tamis.wire.bodies import MessageQueue

HOUR = 3_600_000  # milliseconds
A, B = Filter("TAG", "a"), Filter("TAG", "b")


def found(known: ClusterFacts, check: str) -> list[Finding]:
    """By the name of the check."""
    return [one for one in examine(known) if one.check == check]


def only(known: ClusterFacts, check: str) -> Finding:
    [finding] = found(known, check)
    return finding


def test_a_healthy_group_has_no_findings() -> None:
    healthy = group({"x": tags("a"), "y": tags("a")}, queues={"x": [0], "y": [1]}, committed={0: 5})
    known = facts(
        healthy,
        topics=(topic((0, 5), (0, 0)),),
        all_topics={"orders"},
        samples={"orders": messages({"TAGS": "a"})},
    )
    assert examine(known) == []


def test_findings_come_with_the_worst_first() -> None:
    known = facts(
        group({}, committed={0: 3}),
        replace_name(group({"x": tags("a"), "y": tags("b")}), "h"),
        topics=(topic((0, 5)),),
    )
    severities = [one.severity for one in examine(known)]
    assert severities == sorted(severities, key=list(Severity).index)
    assert len(set(severities)) > 1


def replace_name(one: Group, name: str) -> Group:
    return replace(one, name=name)


def test_every_finding_is_json_with_the_same_fields() -> None:
    [first, *_] = examine(facts(group({"x": tags("a"), "y": tags("b")})))
    assert list(first.to_json()) == [
        *("check", "severity", "group", "topic", "broker", "queue"),
        *("message", "evidence", "command", "mends", "advice"),
    ]


def test_checks_on_nothing_find_nothing() -> None:
    empty = ClusterFacts(nameserver=NAMESERVER, now=NOW)
    assert [list(check(empty)) for check in CHECKS] == [[] for _ in CHECKS]


# Subscriptions.


def test_members_with_different_tags_are_serious() -> None:
    known = facts(group({"x": tags("a"), "y": tags("b"), "z": tags("b")}, in_force=tags("b")))
    finding = only(known, "inconsistent-subscriptions")
    assert finding.severity is Severity.SERIOUS
    assert (finding.group, finding.topic) == ("g", "orders")
    assert "x has tags 'a'; y, z have tags 'b'" in finding.message
    assert finding.evidence == {
        "members": {"tags 'a'": ["x"], "tags 'b'": ["y", "z"]},
        "brokers_filter_by": {BROKER: "tags 'b'"},
    }
    assert finding.command == f"tamis groups show g --nameserver {NAMESERVER}"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (tags("a || b"), tags("b||a")),
        (tags("*"), tags("")),
        (sql("n > 1"), sql(" n > 1 ")),
    ],
)
def test_members_that_say_the_same_in_other_words_agree(one: Any, other: Any) -> None:
    known = facts(group({"x": one, "y": other}))
    assert found(known, "inconsistent-subscriptions") == found(known, "broker-filters") == []


@pytest.mark.parametrize(
    ("one", "other"), [(tags("a"), None), (tags("a"), sql("a = 1")), (sql("n > 1"), sql("n > 2"))]
)
def test_members_that_differ_in_kind_or_topic_are_serious(one: Any, other: Any) -> None:
    known = facts(group({"x": one, "y": other}))
    assert only(known, "inconsistent-subscriptions").severity is Severity.SERIOUS


def test_code_of_one_name_and_two_sources_differs_where_members_tell() -> None:
    code = replace(tags("F"), class_filter_mode=True)
    one, other = replace(code, code_crc=1), replace(code, code_crc=2)
    assert found(facts(group({"x": one, "y": other})), "inconsistent-subscriptions")
    assert not found(facts(group({"x": one, "y": code})), "inconsistent-subscriptions")


def test_a_member_that_does_not_tell_is_not_taken_for_one_that_differs() -> None:
    one = group({"x": tags("a"), "y": tags("b")})
    one.members[1].subscriptions = None
    assert found(facts(one), "inconsistent-subscriptions") == []


def test_of_a_member_that_does_not_tell_the_broker_knows_what_it_heard() -> None:
    one = group({"x": tags("a"), "y": tags("b")})
    one.members[1].subscriptions = None
    known = facts(one)
    known.histories = [history(DIFFERED)]
    finding = only(known, "inconsistent-subscriptions")
    assert finding.evidence["members"] == {"tags 'a'": ["x"], "tags 'b'": ["y"]}


def test_a_broker_that_filters_by_something_else_is_serious() -> None:
    known = facts(group({"x": tags("a")}, in_force=tags("b")))
    finding = only(known, "broker-filters")
    assert (finding.severity, finding.broker) == (Severity.SERIOUS, BROKER)
    assert finding.evidence == {"members": "tags 'a'", "brokers_filter_by": {BROKER: "tags 'b'"}}


def history(*views: View, spans: dict[int, list[Span]] | None = None) -> HistoryOfBroker:
    made = GroupHistory("g", "orders", 0)
    made.views.update(enumerate(views))
    made.queues.update(spans or {})
    return HistoryOfBroker(broker=BROKER, history=made)


def span(start: int, end: int, view: int, *, acked: int, lane: str = "") -> Span:
    return Span(start, end, "x", A, A, view, NOW - HOUR, acked=acked, lane=lane)


AGREED = View(NOW - 3 * HOUR, {A: ("x",)})
DIFFERED = View(NOW - 2 * HOUR, {A: ("x",), B: ("y",)})
AGREED_AGAIN = View(NOW - HOUR, {A: ("x",)})


def test_what_was_passed_while_members_differed_is_counted_once() -> None:
    spans = [
        span(0, 10, 0, acked=10),  # before they differed
        span(10, 30, 1, acked=20),  # half of it was acknowledged
        span(15, 25, 1, acked=25),  # again
        span(30, 40, 2, acked=40),  # afterwards
        span(40, 50, 1, acked=50, lane="its own"),
    ]
    known = facts(topics=(topic((12, 60)),))
    known.histories = [history(AGREED, DIFFERED, AGREED_AGAIN, spans={0: spans})]
    finding = only(known, "past-inconsistencies")
    assert finding.severity is Severity.SERIOUS
    assert finding.evidence["passed"] == [{"queue": 0, "from": 12, "to": 25}]  # 10, 11 are gone
    assert finding.evidence["messages_passed"] == 13
    assert finding.evidence["since"] == DIFFERED.since
    assert finding.evidence["until"] == AGREED_AGAIN.since
    assert finding.command is not None
    assert "explain --topic orders --queue 0 --offset 12 --group g" in finding.command


def test_a_difference_that_nothing_was_passed_in_is_only_told_of() -> None:
    known = facts()
    known.histories = [history(AGREED, DIFFERED, AGREED_AGAIN)]
    assert only(known, "past-inconsistencies").severity is Severity.INFO


def test_a_difference_of_last_week_is_a_warning() -> None:
    week = 7 * 24 * HOUR
    differed = replace(DIFFERED, since=NOW - week)
    known = facts()
    spans = {0: [span(0, 5, 0, acked=5)]}
    known.histories = [history(differed, replace(AGREED, since=NOW - week + 1), spans=spans)]
    assert only(known, "past-inconsistencies").severity is Severity.WARNING


def differed(end: int, *sampled: str) -> ClusterFacts:
    """Members that differed while they passed a queue of so many messages. Those that were sampled
    have these tags."""
    known = facts(group({"x": tags("a")}, committed={0: end}), topics=(topic((0, end)),))
    known.histories = [history(AGREED, DIFFERED, spans={0: [span(0, end, 1, acked=end)]})]
    known.samples["orders"] = messages(*({"TAGS": tag} for tag in sampled))
    return known


def test_lost_messages_are_serious_until_they_were_sent_again() -> None:
    known = differed(3, "a", "b", "c")
    finding = only(known, "past-inconsistencies")
    assert finding.severity is Severity.SERIOUS
    assert "of the newest 3 of them 1 are lost" in finding.message
    known.fates["g", queue(0), 1] = "LOST_TO_INCONSISTENCY"
    assert only(known, "past-inconsistencies").severity is Severity.SERIOUS
    known.fates["g", queue(0), 1] = "CONSUMED"
    finding = only(known, "past-inconsistencies")
    assert finding.severity is Severity.INFO
    assert finding.evidence["sent_again"] == 1
    assert "none is lost (1 that were lost were sent to the group again)" in finding.message


def test_a_difference_that_nothing_was_lost_to_is_only_told_of() -> None:
    known = differed(2, "a", "c")
    finding = only(known, "past-inconsistencies")
    assert finding.severity is Severity.INFO
    assert "2 messages were passed meanwhile, and of the newest 2 of them none is lost" in (
        finding.message
    )


def test_messages_that_are_too_old_to_be_judged_leave_a_warning() -> None:
    known = differed(500, "a", "c")
    assert only(known, "past-inconsistencies").severity is Severity.WARNING


def test_what_each_read_by_its_own_subscription_is_not_called_nothing() -> None:
    known = facts()
    spans = {0: [span(0, 5, 1, acked=5, lane="its own")]}
    known.histories = [history(AGREED, DIFFERED, spans=spans)]
    finding = only(known, "past-inconsistencies")
    assert finding.severity is Severity.INFO
    assert finding.message.endswith("each was served by its own subscription")


def test_members_that_always_agreed_are_no_finding_in_history() -> None:
    same = View(NOW, {Filter("TAG", "a||b"): ("x",), Filter("TAG", "b || a"): ("y",)})
    known = facts()
    known.histories = [history(AGREED, same, spans={0: [span(0, 5, 1, acked=5)]})]
    assert found(known, "past-inconsistencies") == []


# Filters.


def row(**given: Any) -> VerdictRow:
    return VerdictRow(broker=BROKER, group="g", topic="orders", **given)


def test_a_filter_that_matched_nothing_lately_is_a_warning() -> None:
    known = facts(group({"x": tags("paid")}), samples={"orders": messages({"TAGS": "payed"})})
    known.verdicts = [row(recent_evaluated=500, recent_since=NOW - HOUR)]
    finding = only(known, "idle-filters")
    assert finding.severity is Severity.WARNING
    assert finding.evidence["evaluated"] == 500
    assert finding.evidence["tags_sampled"] == ["payed"]
    known.verdicts = [row(recent_evaluated=500, recent_matched=1, recent_since=NOW - HOUR)]
    assert found(known, "idle-filters") == []


def test_without_counts_a_filter_is_tried_on_the_newest_messages() -> None:
    sent = messages(*({"TAGS": "a", "n": "1"} for _ in range(20)))
    known = facts(group({"x": sql("n > 5")}), samples={"orders": sent})
    assert only(known, "idle-filters").severity is Severity.INFO
    known.samples["orders"] += messages({"n": "6"})
    assert found(known, "idle-filters") == []


def test_counts_of_an_older_filter_are_not_held_against_the_new_one() -> None:
    known = facts(group({"x": sql("n > 5")}))
    known.verdicts = [row(recent_evaluated=500, recent_since=NOW - HOUR, born=NOW - 1)]
    assert found(known, "idle-filters") == []


def test_failures_are_serious_lately_and_a_warning_before() -> None:
    known = facts(group({"x": sql("n > 5")}))
    samples = ((0, 7), (2, 9))
    known.verdicts = [row(failed=9, recent_failed=2, samples=samples, expression="n > 5")]
    finding = only(known, "failing-filters")
    assert (finding.severity, finding.queue) == (Severity.SERIOUS, 2)
    assert finding.command is not None
    assert "--queue 2 --offset 9 --group g" in finding.command
    known.verdicts = [row(failed=9, samples=samples)]
    assert only(known, "failing-filters").severity is Severity.WARNING


def test_a_filter_that_does_not_compile_at_the_broker_is_serious() -> None:
    known = facts(group({"x": sql("n > 5")}))
    known.verdicts = [row(fault="'n >': it ends too soon")]
    assert "it ends too soon" in only(known, "failing-filters").message


def test_without_counts_failures_are_found_on_the_newest_messages() -> None:
    sent = messages({"n": "7"}, {"n": "many"}, {"n": "more"})
    known = facts(group({"x": sql("n > 5")}), samples={"orders": sent})
    finding = only(known, "failing-filters")
    assert finding.severity is Severity.SERIOUS
    assert finding.evidence["latest"] == [
        {"broker": BROKER, "queue": 0, "offset": offset} for offset in (1, 2)
    ]


def test_a_filter_of_a_group_that_left_is_dead() -> None:
    known = facts(group({}))
    known.verdicts = [row(expression="n = 1", dead_since=NOW - HOUR)]
    finding = only(known, "dead-filters")
    assert finding.severity is Severity.INFO
    assert finding.command == f"tamis groups delete g --nameserver {NAMESERVER}"


def test_a_filter_of_a_topic_that_a_group_left_is_dead_but_the_group_is_not_deleted() -> None:
    known = facts(group({"x": tags("a", topic="other")}))
    known.verdicts = [row(expression="n = 1", dead_since=NOW - HOUR)]
    assert only(known, "dead-filters").command is None


@pytest.mark.parametrize(
    ("subscribed", "severity", "command"),
    [
        (tags("a,b"), Severity.SERIOUS, "tamis filter lint --tags a,b"),
        (tags("a*"), Severity.WARNING, "tamis filter lint --tags 'a*'"),
        (sql("a = 1 AND a = 2"), Severity.SERIOUS, "tamis filter lint 'a = 1 AND a = 2'"),
        (sql("a >"), Severity.SERIOUS, "tamis filter lint 'a >'"),
    ],
)
def test_live_expressions_are_linted(subscribed: Any, severity: Severity, command: str) -> None:
    finding = only(facts(group({"x": subscribed})), "lint")
    assert (finding.severity, finding.command) == (severity, command)


def test_what_only_newer_brokers_know_is_no_finding() -> None:
    assert found(facts(group({"x": sql("(a CONTAINS 'b')")})), "lint") == []


def test_tags_of_one_hash_are_a_warning_if_the_other_is_sent() -> None:
    known = facts(group({"x": tags("Aa")}))
    known.samples = {"orders": messages({"TAGS": "Aa"}, {"TAGS": "BB"}, {"TAGS": "BB"})}
    finding = only(known, "tag-collisions")
    assert finding.severity is Severity.WARNING
    assert finding.evidence["messages_sampled"] == {"Aa": 1, "BB": 2}


def test_tags_of_one_hash_in_subscriptions_of_two_groups_are_told_of_to_both() -> None:
    one, other = group({"x": tags("Aa")}), replace_name(group({"y": tags("BB")}), "h")
    findings = found(facts(one, other), "tag-collisions")
    assert [(one.group, one.severity) for one in findings] == [
        ("g", Severity.INFO),
        ("h", Severity.INFO),
    ]


def test_a_group_that_wants_both_tags_of_one_hash_is_no_finding() -> None:
    known = facts(group({"x": tags("Aa || BB")}))
    known.samples = {"orders": messages({"TAGS": "Aa"}, {"TAGS": "BB"})}
    assert found(known, "tag-collisions") == []


# Progress.


def test_lag_without_a_member_is_a_warning() -> None:
    known = facts(group({}, committed={0: 3, 1: 5}), topics=(topic((0, 10), (0, 5)),))
    finding = only(known, "lag-without-members")
    assert (finding.severity, finding.evidence["lag"]) == (Severity.WARNING, 7)
    assert [one["queue"] for one in finding.evidence["queues"]] == [0]
    known.matching_lag["g", queue(0)] = 2
    assert "2 of which its filter matches" in only(known, "lag-without-members").message


def test_lag_of_a_group_with_members_is_none_of_the_doctors_business() -> None:
    online = group({"x": tags("a")}, queues={"x": [0]}, committed={0: 3})
    assert examine(facts(online, topics=(topic((0, 10)),))) == []


def test_messages_that_were_deleted_unread_are_serious_if_the_group_has_members() -> None:
    known = facts(group({"x": tags("a")}, committed={0: 3}), topics=(topic((8, 10)),))
    finding = only(known, "expired-messages")
    assert (finding.severity, finding.evidence["expired"]) == (Severity.SERIOUS, 5)
    gone = facts(group({}, committed={0: 3}), topics=(topic((8, 10)),))
    assert found(gone, "expired-messages") == []
    assert "5 more were deleted unread" in only(gone, "lag-without-members").message


def test_offsets_beyond_the_log_are_serious() -> None:
    known = facts(group({}, committed={0: 11, 1: 5}), topics=(topic((0, 10), (0, 5)),))
    finding = only(known, "offsets-beyond-the-log")
    assert finding.severity is Severity.SERIOUS
    assert finding.evidence["queues"] == [
        {"broker": BROKER, "queue": 0, "committed": 11, "first": 0, "end": 10}
    ]
    assert finding.command is not None
    assert shlex.split(finding.command)[1:4] == ["offsets", "reset", "g"]


def test_offsets_of_a_queue_whose_broker_did_not_answer_are_not_judged() -> None:
    assert examine(facts(group({}, committed={0: 11}))) == []


def test_offsets_of_topics_that_are_gone_or_were_left_are_told_of() -> None:
    gone = facts(group({}, committed={0: 3}), all_topics=set())
    assert "orders is no more" in only(gone, "stale-offsets").message
    left = facts(group({"x": tags("a", topic="other")}, committed={0: 3}), all_topics={"orders"})
    assert "does not subscribe to orders" in only(left, "stale-offsets").message


@pytest.mark.parametrize(("waiting", "severity"), [(1, Severity.INFO), (100, Severity.WARNING)])
def test_retries_are_bad_when_they_pile_up(waiting: int, severity: Severity) -> None:
    one = group({"x": tags("a")})
    one.committed[MessageQueue("%RETRY%g", BROKER, 0)] = 4
    known = facts(one, topics=(topic((0, 4 + waiting), name="%RETRY%g"),))
    finding = only(known, "retries")
    assert (finding.severity, finding.evidence["waiting"]) == (severity, waiting)


def test_dead_letters_are_a_warning() -> None:
    letters = topic((2, 5), name="%DLQ%g", last_stored=NOW)
    finding = only(facts(group({}), topics=(letters,)), "dead-letters")
    assert (finding.severity, finding.evidence["messages"]) == (Severity.WARNING, 3)
    assert finding.evidence["newest"] == NOW


# Members.


def test_a_queue_without_owner_is_serious_if_messages_wait_there() -> None:
    one = group({"x": tags("a"), "y": tags("a")}, queues={"x": [0]}, committed={0: 5, 1: 5})
    finding = only(facts(one, topics=(topic((0, 5), (0, 9)),)), "queues-without-owner")
    assert (finding.severity, finding.queue) == (Severity.SERIOUS, 1)
    assert finding.evidence["waiting"] == 4
    assert finding.evidence["queues_of_members"] == {"x": 1, "y": 0}
    finding = only(facts(one, topics=(topic((0, 5), (0, 5)),)), "queues-without-owner")
    assert finding.severity is Severity.WARNING


def test_a_queue_with_two_owners_is_a_warning() -> None:
    one = group({"x": tags("a"), "y": tags("a")}, queues={"x": [0], "y": [0]})
    finding = only(facts(one, topics=(topic((0, 5)),)), "queues-with-several-owners")
    assert finding.evidence["owners"] == [{"broker": BROKER, "queue": 0, "members": ["x", "y"]}]


def test_members_that_each_read_everything_have_no_owners() -> None:
    one = group(
        {"x": tags("a"), "y": tags("a")},
        queues={"x": [0], "y": [0]},
        message_model="BROADCASTING",
    )
    assert examine(facts(one, topics=(topic((0, 5), (0, 5)),))) == []


def test_owners_are_not_judged_if_a_member_does_not_tell() -> None:
    one = group({"x": tags("a"), "y": tags("a")}, queues={"x": [0]})
    one.members[1].queues = None
    assert examine(facts(one, topics=(topic((0, 5), (0, 5)),))) == []


def test_owners_of_consumers_that_name_no_queues_are_not_judged() -> None:
    one = group({"x": tags("a")}, consume_type="CONSUME_ACTIVELY")
    assert examine(facts(one, topics=(topic((0, 5)),))) == []


def test_members_with_one_client_id_are_serious() -> None:
    one = group({"x": tags("a")})
    one.members[0].addresses = {BROKER: ["10.0.0.1:5", "10.0.0.2:6"], "broker-b": ["10.0.0.1:7"]}
    finding = only(facts(one), "duplicate-client-ids")
    assert finding.severity is Severity.SERIOUS
    assert finding.evidence["addresses"] == {BROKER: ["10.0.0.1:5", "10.0.0.2:6"]}


def test_a_broker_that_can_not_be_asked_is_serious() -> None:
    known = facts()
    known.brokers["b"] = Broker(name="b", address="10.0.0.2:10911", error="no route to host")
    finding = only(known, "silent-brokers")
    assert (finding.severity, finding.broker) == (Severity.SERIOUS, "b")
    assert "no route to host" in finding.message


# Policies.


def rules(policy: str = "rocketmq", **given: Any) -> dict[str, BrokerRules]:
    """As a broker tells them of the group."""
    one = {"group": "g", "policy": policy, "lanes": [], "cutovers": [], "refused": [], **given}
    answer = {"broker": BROKER, "policy": "rocketmq", "hold_seconds": 3600, "groups": [one]}
    return {BROKER: BrokerRules.from_json(answer)}


def test_members_that_disagree_are_served_by_their_own_under_isolate() -> None:
    apart = group({"x": tags("a"), "y": tags("b")}, queues={"x": [0], "y": [0]})
    known = facts(apart, topics=(topic((0, 5)),), rules=rules("isolate"))
    finding = only(known, "inconsistent-subscriptions")
    assert finding.severity is Severity.INFO
    assert {one.check for one in examine(known)} == {"inconsistent-subscriptions"}


def test_the_command_makes_the_broker_isolate_members_where_it_can() -> None:
    known = facts(group({"x": tags("a"), "y": tags("b")}), rules=rules())
    finding = only(known, "inconsistent-subscriptions")
    assert finding.severity is Severity.SERIOUS
    assert finding.command == f"tamis groups policy g isolate --nameserver {NAMESERVER}"


def test_a_policy_counts_only_if_all_brokers_have_it() -> None:
    known = facts(group({"x": tags("a"), "y": tags("b")}), rules=rules("isolate"))
    known.brokers["broker-b"] = Broker(name="broker-b", address="10.0.0.2:10911")
    assert only(known, "inconsistent-subscriptions").severity is Severity.SERIOUS


LANE = {
    "id": "lane",
    "filters": {"orders": {"kind": "TAG", "text": "b"}},
    "members": ["y"],
    "held_seconds": None,
    "progress": [{"topic": "orders", "queue": 0, "offset": 5}],
}


def test_a_lane_that_is_held_is_a_warning() -> None:
    assert examine(facts(rules=rules("isolate", lanes=[LANE]))) == []
    held = LANE | {"members": [], "held_seconds": 600.0}
    finding = only(facts(rules=rules("isolate", lanes=[held])), "held-lanes")
    assert finding.severity is Severity.WARNING
    assert "wants TAG 'b' of orders" in finding.message
    assert "3,000 s more" in finding.message


def test_members_that_are_refused_are_serious() -> None:
    finding = only(facts(rules=rules("reject", refused=["y disagrees with x"])), "refused-members")
    assert finding.severity is Severity.SERIOUS
    assert "y disagrees with x" in finding.message


def change(age: int) -> dict[str, Any]:
    return {
        "topic": "orders",
        "old": {"kind": "TAG", "text": "a"},
        "new": {"kind": "SQL92", "text": "n > 1"},
        "cuts": {"0": 7},
        "made": NOW - age * 1000,
    }


def test_members_may_differ_while_their_filter_is_being_changed() -> None:
    known = facts(group({"x": tags("a"), "y": sql("n > 1")}), rules=rules(cutovers=[change(60)]))
    assert only(known, "inconsistent-subscriptions").severity is Severity.INFO
    known.rules = rules(cutovers=[change(60) | {"topic": "other"}])
    assert only(known, "inconsistent-subscriptions").severity is Severity.SERIOUS


@pytest.mark.parametrize(
    "answer",
    [None, [], {}, {"policy": "isolate", "hold_seconds": "long", "groups": []},
     {"policy": "isolate", "hold_seconds": 1, "groups": [{"group": "g"}]},
     {"policy": "isolate", "hold_seconds": 1, "groups": [1]}],
)  # fmt: skip
def test_rules_that_can_not_be_read_are_refused(answer: Any) -> None:
    with pytest.raises((LookupError, TypeError, ValueError, AttributeError)):
        BrokerRules.from_json(answer)


@pytest.mark.parametrize(("age", "severity"), [(60, Severity.INFO), (7200, Severity.WARNING)])
def test_a_change_of_a_filter_that_takes_long_is_a_warning(age: int, severity: Severity) -> None:
    finding = only(facts(rules=rules(cutovers=[change(age)])), "filter-changes")
    assert (finding.severity, finding.evidence["cuts"]) == (severity, {"0": 7})
    assert finding.mends is (severity is Severity.WARNING)
    assert finding.command is not None
    assert ("groups filter g orders --cancel" in finding.command) is finding.mends
