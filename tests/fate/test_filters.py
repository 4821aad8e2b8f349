"""The two looks at a message give the verdicts that RocketMQ's own filters gave."""

import corpora
import pytest

from tamis.fate import Filter
from tamis.filter.logic import Outcome

TAGS = [row for row in corpora.load("tags") if row["kind"] == "sub"]
HASHES = {row["tag"]: row["hash"] for row in corpora.load("tags") if row["kind"] == "hash"}
SQL = corpora.load("sql92")[::23]


@pytest.mark.parametrize("row", TAGS, ids=lambda row: row["id"])
def test_tags_are_looked_at_by_hash_and_then_by_text(row: dict) -> None:
    by = Filter("TAG", row["expr"] or "")
    for tag, code in HASHES.items():
        if not tag:
            continue
        said = by.at_server({"TAGS": tag}, {})
        if "error" in row:  # no client subscribes so, no broker serves it
            assert said is Outcome.FALSE
            assert not by.at_client({"TAGS": tag})
        elif row["sub_string"] == "*":
            assert said is Outcome.TRUE
            assert by.at_client({"TAGS": tag})
            assert by.matches_all
        else:
            assert (said is Outcome.TRUE) == (code in row["codes"])
            assert by.at_client({"TAGS": tag}) == (not row["tags"] or tag in row["tags"])


def test_some_recorded_tags_collide() -> None:
    collisions = [
        (row["expr"], tag)
        for row in TAGS
        if row.get("tags")
        for tag, code in HASHES.items()
        if code in row["codes"] and tag not in row["tags"]
    ]
    assert collisions
    for expression, tag in collisions:
        assert Filter("TAG", expression).at_server({"TAGS": tag}, {}) is Outcome.TRUE
        assert Filter("TAG", expression).wants({"TAGS": tag}, {}) is Outcome.FALSE


def test_sql_gives_the_recorded_outcome_and_has_no_second_look() -> None:
    for row in SQL:
        by, properties = Filter("SQL92", row["expr"]), row["props"] or {}
        if row["compile"] != "ok":
            assert by.at_server(properties, {}) is Outcome.ERROR, row
        elif row["props"] is not None:  # a stored message has properties
            recorded = row["result"]
            if isinstance(recorded, str):
                expected = Outcome.ERROR
            else:
                expected = Outcome.NULL if recorded is None else Outcome(recorded)
            assert by.at_server(properties, {}) is expected, row
            assert (by.wants(properties, {}) is Outcome.TRUE) == row["matched"], row
        assert by.at_client(properties)


def test_code_says_what_it_said_when_it_was_run_and_nothing_else() -> None:
    by = Filter("CODE", "org.Example")
    assert by.at_server({}, {"org.Example": Outcome.FALSE}) is Outcome.FALSE
    assert by.at_server({}, {"org.Other": Outcome.TRUE}) is None
    assert by.wants({}, {}) is None


@pytest.mark.parametrize(
    ("by", "shown"),
    [
        (Filter("TAG", "*"), "all messages"),
        (Filter("TAG", "A || B"), "tags 'A || B'"),
        (Filter("SQL92", "a = 'x'"), "SQL \"a = 'x'\""),
        (Filter("CODE", "org.Example"), "code org.Example"),
    ],
)
def test_a_filter_is_shown_by_its_kind(by: Filter, shown: str) -> None:
    assert str(by) == shown
