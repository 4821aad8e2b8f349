"""Records of the commit log: Apache's bytes, both ways, and what is not a record."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.errors import CorruptRecord
from tamis.message import Host, SysFlag
from tamis.wire import record
from tamis.wire.record import Draft

DRAFT = Draft(
    topic="T",
    queue_id=3,
    body=b"hello",
    properties=b"TAGS\x01TagA\x02k\x011",
    flag=7,
    born_timestamp=1_700_000_000_000,
    born_host=Host(bytes([10, 0, 0, 1]), 40000),
)
STORE_HOST = Host(bytes([10, 0, 0, 2]), 10911)
# Checked with Apache's own decoder: v4 hosts, and v6 ones.
GOLDEN_V4 = bytes.fromhex(
    "0000006edaa320a73610a6860000000300000007000000000000002a000000000000100000000000"
    "0000018bcfe568000a00000100009c400000018bcfe5687b0a00000200002a9f0000000000000000"
    "000000000000000568656c6c6f0154000d544147530154616741026b0131"
)
GOLDEN_V6 = bytes.fromhex(
    "00000086daa320a73610a6860000000300000007000000000000002a000000000000100000000030"
    "0000018bcfe568000000000000000000000000000000000100009c400000018bcfe5687b20010db8"
    "00000000000000000000000200002a9f0000000000000000000000000000000568656c6c6f015400"
    "0d544147530154616741026b0131"
)
V6 = Host(bytes.fromhex("20010db8000000000000000000000002"), 10911)
BORN_V6 = Host(bytes(15) + b"\1", 40000)


def encoded(draft: Draft, host: Host) -> bytes:
    return draft.encode(42, 4096, 1_700_000_000_123, record.pack_host(host))


def test_we_encode_to_apaches_bytes() -> None:
    from dataclasses import replace

    assert encoded(DRAFT, STORE_HOST) == GOLDEN_V4
    assert encoded(replace(DRAFT, born_host=BORN_V6), V6) == GOLDEN_V6


@pytest.mark.parametrize(
    ("data", "message_id"),
    [
        (GOLDEN_V4, "0A00000200002A9F0000000000001000"),
        (GOLDEN_V6, "20010DB800000000000000000000000200002A9F0000000000001000"),
    ],
)
def test_we_decode_apaches_bytes_wherever_they_lie(data: bytes, message_id: str) -> None:
    for before, after in ((b"", b""), (b"??", b""), (b"", b"??")):
        message = record.decode(before + data + after, len(before), check_crc=True)
        assert message.message_id == message_id
        assert (message.topic, message.queue_id, message.queue_offset) == ("T", 3, 42)
        assert (message.body, message.tag, message.flag) == (b"hello", "TagA", 7)
        assert message.store_timestamp == 1_700_000_000_123
        assert message.size == len(data)


@pytest.mark.parametrize("data", [GOLDEN_V4, GOLDEN_V6])
def test_a_record_cut_anywhere_is_refused(data: bytes) -> None:
    for size in range(len(data)):
        with pytest.raises(CorruptRecord):
            record.decode(data[:size])


def test_a_wrong_body_is_refused_when_asked_to_look() -> None:
    data = GOLDEN_V4.replace(b"hello", b"hallo")
    assert record.decode(data).body == b"hallo"
    with pytest.raises(CorruptRecord, match="CRC"):
        record.decode(data, check_crc=True)


@given(st.binary(max_size=200), st.integers(0, 50))
def test_any_bytes_are_a_record_or_refused(data: bytes, at: int) -> None:
    with contextlib.suppress(CorruptRecord):
        record.decode(data, at)


@given(
    draft=st.builds(
        Draft,
        topic=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30).filter(
            lambda t: 0 < len(_utf8(t)) < 128
        ),
        queue_id=st.integers(0, 2**31 - 1),
        body=st.binary(max_size=300),
        flag=st.integers(-(2**31), 2**31 - 1),
        sys_flag=st.sampled_from([0, SysFlag.COMPRESSED, SysFlag.PREPARED, SysFlag.COMMIT]),
        born_timestamp=st.integers(0, 2**62),
        born_host=st.sampled_from([BORN_V6, STORE_HOST]),
        reconsume_times=st.integers(0, 100),
    ),
    host=st.sampled_from([V6, STORE_HOST]),
)
def test_what_is_encoded_decodes_to_itself(draft: Draft, host: Host) -> None:
    message = record.decode(encoded(draft, host), check_crc=True)
    assert (message.topic, message.body, message.flag) == (draft.topic, draft.body, draft.flag)
    assert (message.born_host, message.store_host) == (draft.born_host, host)
    assert message.sys_flag & 0xF == draft.sys_flag


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")
