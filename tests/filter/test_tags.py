"""Tag filters: the two looks. Parsing and hashes are in the recorded corpus."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.filter.tags import parse_tags, tags_code


def test_the_broker_compares_the_low_half_of_the_code() -> None:
    tags = parse_tags("polygenelubricants")
    assert tags.matches_code(-2147483648)
    assert tags.matches_code(0x1_8000_0000)  # truncated to 32 bits, as RocketMQ does
    assert not tags.matches_code(5)


def test_star_matches_any_code_and_any_tag() -> None:
    for expression in ("*", "", None):
        tags = parse_tags(expression)
        assert tags.matches_all
        assert tags.matches(None)
        assert tags.matches("anything")


def test_a_colliding_tag_passes_the_broker_and_not_the_client() -> None:
    tags = parse_tags("Aa")
    assert tags.matches_code(tags_code("BB"))
    assert not tags.matches("BB")


def test_a_blank_list_matches_nothing_at_the_broker() -> None:
    assert not parse_tags(" ").matches("a")
    assert not parse_tags(" ").matches(None)


@pytest.mark.parametrize("expression", [" *", "* ", "*||a"])
def test_a_star_among_others_is_a_tag(expression: str) -> None:
    tags = parse_tags(expression)
    assert not tags.matches_all
    assert tags.matches("*")
    assert not tags.matches("b")


def test_a_message_without_a_tag_has_the_code_0() -> None:
    assert tags_code(None) == 0
    assert tags_code("") == 0
    assert parse_tags("f5a5a608").matches_code(0)


@given(tags=st.sets(st.text(min_size=1).filter(lambda t: "|" not in t and t.strip(" \x00") == t)))
def test_a_list_of_tags_matches_exactly_those(tags: set[str]) -> None:
    tags = {tag for tag in tags if tag[0] > " " and tag[-1] > " " and tag != "*"}
    if tags:
        parsed = parse_tags(" || ".join(tags))
        assert parsed.tags == tags
        assert all(parsed.matches(tag) for tag in tags)
        assert not parsed.matches("something else entirely")
