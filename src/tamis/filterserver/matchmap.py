"""Which messages of a queue a class matches: a bit for each."""

from collections.abc import Iterable
from typing import Final

__all__ = ["MatchMap"]

_SIZE: Final = 300  # bytes that one takes without its bits


class MatchMap:
    """What is known of the messages from `low` up to `high`, which is all there is from one to the
    other."""

    __slots__ = ("_base", "_bits", "checked", "high", "low", "stored")

    def __init__(self, offset: int) -> None:
        self.low = self.high = offset
        self._base = offset  # of the first bit
        self._bits = bytearray()
        self.checked = 0  # where the queue ended when that was last looked at
        self.stored: tuple[int, int] | None = None  # an offset, and when that was stored

    @property
    def size(self) -> int:
        """About how many bytes this takes in memory."""
        return _SIZE + len(self._bits)

    def note(self, begin: int, end: int, matching: Iterable[int]) -> None:
        """Note that those from `begin` up to `end` were judged, unless that would leave a gap."""
        if not begin <= self.high < end:
            return
        self._bits.extend(bytes((end - self._base + 7) // 8 - len(self._bits)))
        bits, base, first = self._bits, self._base, self.high
        for offset in matching:
            if first <= offset < end:
                at = offset - base
                bits[at >> 3] |= 1 << (at & 7)
        self.high = end

    def forget_before(self, offset: int) -> None:
        """The group has consumed them. Begin anew if it is somewhere else."""
        if not self.low <= offset <= self.high:
            self.__init__(offset)  # type: ignore[misc]
            return
        self.low = offset
        whole = (offset - self._base) // 8
        del self._bits[:whole]
        self._base += 8 * whole

    def count(self, begin: int, end: int) -> int:
        """How many match from `begin` up to `end`, which are known."""
        return self._slice(begin, end).bit_count()

    def first(self, begin: int, end: int) -> int | None:
        """The offset of the first of them."""
        bits = self._slice(begin, end)
        return begin + (bits & -bits).bit_length() - 1 if bits else None

    def _slice(self, begin: int, end: int) -> int:
        if begin >= end:
            return 0
        first = (begin - self._base) // 8
        last = (end - self._base + 7) // 8
        bits = int.from_bytes(self._bits[first:last], "little")
        return bits >> ((begin - self._base) % 8) & ((1 << (end - begin)) - 1)
