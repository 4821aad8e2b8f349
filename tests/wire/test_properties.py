"""Property strings: the reader's rules of RocketMQ's MessageDecoder."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.wire import properties


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("a=1", {"a": "1"}),
        ("a=1;", {"a": "1"}),
        ("a=;b=1", {"b": "1"}),
        ("a=1;a=2", {"a": "2"}),
        ("=x;b=1", {"b": "1"}),
        ("a=b=c", {"a": "b=c"}),
        ("ab", {}),
        (";;a=1", {"a": "1"}),
        ("a;b=1", {"b": "1"}),
        ("a=1;a=", {"a": "1"}),
    ],
)
def test_parts_are_read_as_rocketmq_reads_them(text: str, expected: dict[str, str]) -> None:
    raw = text.replace("=", "\x01").replace(";", "\x02")
    expected = {name: value.replace("=", "\x01") for name, value in expected.items()}
    assert properties.decode(raw) == expected
    assert properties.decode_bytes(raw.encode()) == expected


_texts = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1
)


@given(st.dictionaries(_texts, _texts))
def test_what_is_encoded_decodes_to_itself(values: dict[str, str]) -> None:
    assert properties.decode(properties.encode(values)) == values
    assert properties.decode_bytes(properties.encode(values).encode()) == values


@given(st.binary())
def test_any_bytes_decode(data: bytes) -> None:
    assert all(name and value for name, value in properties.decode_bytes(data).items())
