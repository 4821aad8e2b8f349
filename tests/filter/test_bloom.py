"""Bloom filter and bits. Parameters, positions and bytes are in the recorded corpus."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.errors import ConfigError
from tamis.filter.bloom import BitArray, BloomFilter, group_key


def test_the_broker_s_default_has_112_bits_and_3_positions() -> None:
    bloom = BloomFilter()
    assert (bloom.bits, bloom.hashes) == (112, 3)
    assert bloom.positions(group_key("CID_abc", "TopicTest")) == (103, 61, 29)


@given(groups=st.sets(st.text()), other=st.text())
def test_what_was_added_hits(groups: set[str], other: str) -> None:
    bloom = BloomFilter()
    bits = bloom.new_bits()
    for group in groups:
        bloom.add(bloom.positions(group), bits)
    assert all(bloom.hits(bloom.positions(group), bits) for group in groups)
    again = BitArray(bloom.bits, bytes(bits))
    assert again == bits
    assert bloom.hits(bloom.positions(other), again) == bloom.hits(bloom.positions(other), bits)


def test_bit_p_is_the_lowest_first_of_its_byte() -> None:
    bits = BitArray(16)
    bits.set(0)
    bits.set(11)
    assert bytes(bits).hex() == "0108"
    assert [p for p in range(16) if bits[p]] == [0, 11]


def test_a_bit_outside_is_an_error() -> None:
    for position in (-1, 16):
        with pytest.raises(IndexError):
            BitArray(16)[position]
        with pytest.raises(IndexError):
            BitArray(16).set(position)


def test_bits_of_another_size_are_refused() -> None:
    bloom = BloomFilter()
    with pytest.raises(ConfigError, match="104 bits given to a filter of 112"):
        bloom.hits((1, 2, 3), BitArray(104))
    with pytest.raises(ConfigError, match="16 bits are 2 bytes, not 3"):
        BitArray(16, b"abc")


def test_stored_positions_are_accepted_only_by_a_filter_of_their_shape() -> None:
    bloom = BloomFilter()
    assert bloom.accepts(bloom.positions("g#t"), 112)
    assert not bloom.accepts(bloom.positions("g#t"), 104)
    assert not bloom.accepts((1, 2), 112)
