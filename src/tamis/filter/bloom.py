"""The bloom filter by which a broker notes, per message, which groups' SQL matched.

RocketMQ's `BloomFilter`, `BloomFilterData` and `BitsArray` (4.9.4): a group sets the same
positions, those of `group#topic`, whatever its expression says.
"""

import math
from collections.abc import Iterable

import mmh3

from ..errors import ConfigError
from .nodes import INT_MAX

__all__ = ["BitArray", "BloomFilter", "group_key"]


def group_key(group: str, topic: str) -> str:
    """The string that stands for a consumer group of a topic."""
    return f"{group}#{topic}"


class BitArray:
    """A fixed number of bits; bit p is bit p % 8 (lowest first) of byte p // 8."""

    __slots__ = ("_data", "size")

    def __init__(self, size: int, data: bytes | None = None) -> None:
        """All clear, or as `data` says, which then has to hold `size` bits exactly."""
        if size < 0:
            raise ConfigError(f"a bit array of {size} bits: it takes 0 or more")
        length = (size + 7) // 8
        if data is not None and len(data) != length:
            raise ConfigError(f"{size} bits are {length} bytes, not {len(data)}")
        self.size = size
        self._data = bytearray(data if data is not None else length)

    def __bytes__(self) -> bytes:
        return bytes(self._data)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BitArray) and self.size == other.size and self._data == other._data

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"BitArray({self.size}, bytes.fromhex({self._data.hex()!r}))"

    def __getitem__(self, position: int) -> bool:
        self._check(position)
        return bool(self._data[position >> 3] >> (position & 7) & 1)

    def set(self, position: int) -> None:
        self._check(position)
        self._data[position >> 3] |= 1 << (position & 7)

    def _check(self, position: int) -> None:
        if not 0 <= position < self.size:
            raise IndexError(f"bit {position} of {self.size}")


class BloomFilter:
    """`bits` and `hashes` follow from the wanted error rate and the number of groups expected."""

    __slots__ = ("bits", "error_percent", "expected", "hashes")

    def __init__(self, error_percent: int = 20, expected: int = 32) -> None:
        if not 1 <= error_percent <= 99:
            raise ConfigError(f"error rate of {error_percent} %: it takes 1 to 99")
        if expected < 1:
            raise ConfigError(f"{expected} groups expected: it takes 1 or more")
        self.error_percent = error_percent
        self.expected = expected
        # In this order of operations: the last digit decides some of them. Java's cast to int
        # stops at its largest.
        self.hashes = math.ceil(math.log(error_percent / 100) / math.log(0.5))
        bits = math.ceil(
            expected
            * (math.log(1 / (error_percent / 100)) / math.log(2))
            * (math.log(math.e) / math.log(2))
        )
        self.bits = min((min(bits, INT_MAX) + 7) // 8 * 8, INT_MAX)

    def __repr__(self) -> str:
        return f"BloomFilter(error_percent={self.error_percent}, expected={self.expected})"

    def positions(self, key: str) -> tuple[int, ...]:
        """The bits of a key, in order; they may repeat. MurmurHash3 x64, 128 bits, seed 0."""
        word, _ = mmh3.hash64(key.encode("utf-8", "replace"), 0, True, True)
        low, high = _signed_32(word), _signed_32(word >> 32)
        combined = (_signed_32(low + i * high) for i in range(1, self.hashes + 1))
        return tuple((~c if c < 0 else c) % self.bits for c in combined)

    def new_bits(self) -> BitArray:
        return BitArray(self.bits)

    def add(self, positions: Iterable[int], bits: BitArray) -> None:
        self._check(bits)
        for position in positions:
            bits.set(position)

    def hits(self, positions: Iterable[int], bits: BitArray) -> bool:
        """False: certainly not among those added. True: probably."""
        self._check(bits)
        return all(bits[position] for position in positions)

    def accepts(self, positions: tuple[int, ...], bit_count: int) -> bool:
        """Whether positions stored earlier, for `bit_count` bits, still mean the same here."""
        return bit_count == self.bits and len(positions) == self.hashes

    def _check(self, bits: BitArray) -> None:
        if bits.size != self.bits:
            raise ConfigError(f"{bits.size} bits given to a filter of {self.bits}")


def _signed_32(number: int) -> int:
    number &= 0xFFFFFFFF
    return number - 2**32 if number >= 2**31 else number
