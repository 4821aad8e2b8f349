"""What is remembered of a filter in a queue: its matches, counted in blocks, and those of some
blocks one by one."""

from array import array
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from ..store.consumequeue import ConsumeQueue

__all__ = ["UNKNOWN", "BlockCounts", "Matches"]

UNKNOWN: Final = -1  # the count of a block that was not counted
_SIZE: Final = 600  # bytes that all of this takes, without what is in the arrays
_MATCHES_SIZE: Final = 200  # likewise


@dataclass(slots=True)
class Matches:
    """The matches of a part of a block."""

    low: int
    high: int
    offsets: "array[int]" = field(default_factory=lambda: array("H"))  # from the block's first


@dataclass(slots=True)
class BlockCounts:
    """What is known of a filter in a queue: the matches of each block from number `first` on, and
    of the last one, which is not full, up to `tail_end`."""

    queue: ConsumeQueue
    first: int = 0
    counts: "array[int]" = field(default_factory=lambda: array("i"))
    tail_end: int = 0
    tail: int = 0
    heads: OrderedDict[int, Matches] = field(default_factory=OrderedDict)  # by block

    @property
    def size(self) -> int:
        """About how many bytes this takes in memory."""
        heads = sum(_MATCHES_SIZE + 2 * len(one.offsets) for one in self.heads.values())
        return _SIZE + 4 * len(self.counts) + heads

    def slice(self, first: int, last: int) -> "array[int]":
        """The counts of blocks from `first` up to `last`."""
        before = min(max(self.first - first, 0), last - first)
        known = self.counts[max(first - self.first, 0) : max(last - self.first, 0)]
        after = last - first - before - len(known)
        unknown = array("i", [UNKNOWN])
        return unknown * before + known + unknown * after

    def make_room(self, oldest: int, first: int, last: int) -> None:
        """For the counts of blocks from `first` up to `last`. Those before `oldest` are forgotten:
        their messages are gone."""
        if not self.counts:
            self.first = first
        elif first < self.first:
            self.counts = array("i", [UNKNOWN]) * (self.first - first) + self.counts
            self.first = first
        elif oldest > self.first:
            del self.counts[: oldest - self.first]
            self.first = oldest if self.counts else first
        missing = last - self.first - len(self.counts)
        if missing > 0:
            self.counts.extend(array("i", [UNKNOWN]) * missing)
