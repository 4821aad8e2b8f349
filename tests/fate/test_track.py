"""The track type that RocketMQ's tools print, by the rules of `messageTrackDetail` (4.9.4). That
they do print these is tested in `interop/test_explain.py`."""

from typing import Any

import pytest

from tamis.fate import Fate, Filter, GroupFacts, MessageFacts, apache_track, track_type

MESSAGE = MessageFacts(topic="T", queue_id=0, offset=5, properties={"TAGS": "a"})
PUSH = {"online": True, "consume_type": "CONSUME_PASSIVELY", "has_offsets": True}
PASSED = {**PUSH, "committed": 6}


@pytest.mark.parametrize(
    ("facts", "track"),
    [
        ({"online": False, "committed": 6}, "NOT_ONLINE"),
        ({"online": False, "has_retry_topic": False}, "UNKNOWN"),
        ({**PASSED, "consume_type": "CONSUME_ACTIVELY"}, "PULL"),
        ({**PUSH, "has_offsets": False}, "NOT_ONLINE"),  # as a broadcasting group
        ({**PUSH, "effective": Filter("TAG", "*")}, "NOT_CONSUME_YET"),
        ({**PUSH, "committed": 5, "effective": Filter("TAG", "*")}, "NOT_CONSUME_YET"),
        ({**PASSED, "effective": None}, "NOT_CONSUME_YET"),
        ({**PASSED, "effective": Filter("TAG", "*")}, "CONSUMED"),
        ({**PASSED, "effective": Filter("TAG", "b || a")}, "CONSUMED"),
        ({**PASSED, "effective": Filter("TAG", "b")}, "CONSUMED_BUT_FILTERED"),
        ({**PASSED, "effective": Filter("SQL92", "1 = 2")}, "CONSUMED"),
        ({**PASSED, "effective": Filter("CODE", "a.B")}, "CONSUMED"),
    ],
)
def test_a_track_follows_from_members_progress_and_todays_tags(
    facts: dict[str, Any], track: str
) -> None:
    group = GroupFacts(**({"group": "G", "committed": None} | facts))
    assert apache_track(MESSAGE, group) == track


def test_a_message_without_a_tag_is_filtered_by_any_tag() -> None:
    message = MessageFacts(topic="T", queue_id=0, offset=5, properties={})
    group = GroupFacts(group="G", effective=Filter("TAG", "b"), **PASSED)  # type: ignore[arg-type]
    assert apache_track(message, group) == "CONSUMED_BUT_FILTERED"


@pytest.mark.parametrize("fate", Fate)
def test_every_fate_has_a_track_type(fate: Fate) -> None:
    assert track_type(fate)
