"""Frames: what is one, what can't be, and what is kept while one is not whole."""

import os
import struct
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire.golden_frames import golden_frames

from tamis.errors import LocalProtocolError, RemoteProtocolError
from tamis.wire.frame import MAX_FRAME, Encoding, Frame, FrameReader, frame

MAX_LENGTH = MAX_FRAME - 4  # what the length field may say


def head(length: int, header: int, encoding: int = 0) -> bytes:
    return struct.pack(">II", length & 0xFFFFFFFF, encoding << 24 | header)


def test_a_frame_is_its_length_a_mark_the_header_and_the_body() -> None:
    made = frame(Encoding.ROCKETMQ, b"head", b"body!")
    assert made == bytes.fromhex("0000000d 01000004") + b"headbody!"
    assert FrameReader().feed(made) == [Frame(Encoding.ROCKETMQ, b"head", b"body!")]


@given(
    st.lists(st.tuples(st.sampled_from(Encoding), st.binary(), st.binary()), max_size=5),
    st.lists(st.integers(0, 300), max_size=20),
    st.binary(max_size=7),
)
def test_frames_are_the_same_however_the_stream_is_cut(
    parts: list[tuple[Encoding, bytes, bytes]], cuts: list[int], trailing: bytes
) -> None:
    stream = b"".join(frame(*part) for part in parts) + trailing
    reader = FrameReader()
    found, at = [], 0
    for cut in [*sorted(cuts), len(stream)]:
        found += reader.feed(stream[at:cut])
        at = max(at, min(cut, len(stream)))
    assert found == [Frame(*part) for part in parts]
    assert reader.pending == len(trailing)


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (head(MAX_LENGTH + 1, 10), "a frame of 16777213 bytes: it takes 4 to 16777212"),
        (head(2**31 - 1, 10), "a frame of 2147483647 bytes"),
        (head(-1, 10), "a frame of -1 bytes"),
        (head(-(2**31), 0), "a frame of -2147483648 bytes"),
        (head(3, 0), "a frame of 3 bytes"),
        (head(0, 0), "a frame of 0 bytes"),
        (head(10, 7), "a header of 7 bytes in a frame of 10"),
        (head(100, 0xFFFFFF), "a header of 16777215 bytes"),
        (head(100, 10, encoding=2), "a header of encoding 2"),
        (head(100, 10, encoding=255), "a header of encoding 255"),
        (bytes.fromhex("16030100c8010000"), "a TLS handshake"),
        (bytes.fromhex("1603030200010001"), "a TLS handshake"),
        (b"GET / HT", "a frame of 1195725856 bytes"),
    ],
)
def test_what_cant_be_a_frame_is_refused_from_its_first_8_bytes(first: bytes, why: str) -> None:
    reader = FrameReader()
    for i in range(7):
        assert reader.feed(first[i : i + 1]) == []
    with pytest.raises(RemoteProtocolError, match=why):
        reader.feed(first[7:])
    assert reader.pending == 0


def test_the_largest_frame_is_taken_and_one_byte_more_is_not() -> None:
    body = bytes(MAX_LENGTH - 4)
    assert FrameReader().feed(frame(Encoding.JSON, b"", body)) == [Frame(Encoding.JSON, b"", body)]
    with pytest.raises(LocalProtocolError):
        frame(Encoding.JSON, b"", body + b"\0")
    with pytest.raises(LocalProtocolError):
        frame(Encoding.JSON, bytes(2**24 + 10))  # would spill over into the encoding


def test_a_reader_takes_a_limit_of_its_own() -> None:
    reader = FrameReader(max_frame=100)
    assert len(reader.feed(frame(Encoding.JSON, b"{}", bytes(90)))) == 1
    with pytest.raises(RemoteProtocolError, match="it takes 4 to 96"):
        reader.feed(frame(Encoding.JSON, b"{}", bytes(91)))


@given(st.lists(st.binary(max_size=40), max_size=10))
def test_any_bytes_are_frames_or_a_protocol_error(pieces: list[bytes]) -> None:
    reader = FrameReader(max_frame=64)
    sent = 0
    for piece in pieces:
        sent += len(piece)
        try:
            reader.feed(piece)
        except RemoteProtocolError:
            return
        assert reader.pending <= min(sent, 64)


@given(st.data())
def test_a_damaged_frame_is_frames_or_a_protocol_error(data: st.DataObject) -> None:
    raw = bytearray(data.draw(st.sampled_from(golden_frames())).raw)
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, min(len(raw) - 1, 12)))] = data.draw(st.integers(0, 255))
    reader = FrameReader()
    try:
        found = reader.feed(bytes(raw))
    except RemoteProtocolError:
        return
    taken = sum(8 + len(one.header) + len(one.body) for one in found)
    assert taken + reader.pending == len(raw)


def test_small_pieces_take_no_more_memory_than_they_hold() -> None:
    whole = frame(Encoding.JSON, b"{}", os.urandom(512 * 1024))
    pieces = [whole[i : i + 2] for i in range(0, len(whole), 2)]
    reader = FrameReader()
    tracemalloc.start()
    try:
        for i in range(len(pieces) - 1):
            reader.feed(pieces[i])
            pieces[i] = b""
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert reader.pending == len(whole) - 2
    assert kept < 2 * len(whole)


def test_a_frame_in_single_bytes_costs_by_its_length_not_by_its_square() -> None:
    small, large = (cost_of_single_bytes(size) for size in (128 * 1024, 1024 * 1024))
    assert large / small < 24  # 8 is linear, 64 the square


def cost_of_single_bytes(size: int) -> float:
    """Seconds of this process, the best of three."""
    whole = frame(Encoding.JSON, b"{}", bytes(size))
    pieces = [whole[i : i + 1] for i in range(len(whole))]
    costs = []
    for _ in range(3):
        reader = FrameReader()
        begun = time.process_time()
        found = [one for piece in pieces for one in reader.feed(piece)]
        costs.append(time.process_time() - begun)
        assert len(found) == 1
    return min(costs)
