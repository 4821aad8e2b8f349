"""The CRC of compiled loops is zlib's."""

from zlib import crc32

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tamis.store._crc import crc_of


def crc(data: bytes, at: int = 0) -> int:
    source = np.frombuffer(bytes(at) + data + b"\xff" * 16, dtype=np.uint8)
    return int(crc_of(source.ctypes.data + at, len(data)))


def test_every_length_up_to_some_blocks_has_zlibs() -> None:
    data = np.random.default_rng(7).integers(0, 256, 700, dtype=np.uint8).tobytes()
    assert [crc(data[:n]) for n in range(700)] == [crc32(data[:n]) for n in range(700)]


@given(st.binary(max_size=5000), st.integers(0, 15))
def test_any_bytes_anywhere_have_zlibs(data: bytes, at: int) -> None:
    assert crc(data, at) == crc32(data)


def test_a_large_body_has_zlibs() -> None:
    data = bytes(range(256)) * 16_385
    assert crc(data) == crc32(data)
