"""Positions in queues: Spark's JSON for them, how much a trigger takes, how ranges are cut.

Pure functions. A position that names no queue knows nothing of it, which is not the same as 0.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, NamedTuple

from ..errors import ConfigError
from ..wire.bodies import MessageQueue

__all__ = ["Bounds", "Positions", "Range", "cut", "cut_at", "pack", "share"]


class Bounds(NamedTuple):
    """Of the messages a queue has: the first one's offset, and that of the one to come."""

    first: int
    end: int


class Range(NamedTuple):
    queue: MessageQueue
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


_BESIDE: Final = ""  # no topic is called so
_SCANNED: Final = "scanned"
_BEGUN: Final = "begun"
_LEFT: Final = "left"
_SOURCE: Final = "source"


@dataclass(frozen=True, slots=True)
class Positions:
    """Where a stream is: the offset of the next message of each queue, and how many it has passed,
    since it began, to come there. That is more than it delivered if it filters.

    Where the first batch ends, `begun` is where it began. Spark records ends only: done again after
    a crash, that batch would begin where a stream begins by then. `left` is how many messages lay
    beyond, where Spark has no other place for it (PySpark 4.1). `source` says where the queues are
    read and by which filter, as the options do; it is told with the latest position only, which
    Spark shows in a query's progress and does not keep.
    """

    offsets: Mapping[MessageQueue, int]
    scanned: int = 0
    begun: Mapping[MessageQueue, int] | None = None
    left: int | None = None
    source: Mapping[str, str] | None = None

    def to_json(self) -> dict[str, Any]:
        beside: dict[str, Any] = {_SCANNED: self.scanned}
        if self.begun is not None:
            beside[_BEGUN] = _to_json(self.begun)
        if self.left is not None:
            beside[_LEFT] = self.left
        if self.source is not None:
            beside[_SOURCE] = dict(self.source)
        return {**_to_json(self.offsets), _BESIDE: beside}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Positions":
        """Raises ConfigError for what `to_json` does not make."""
        try:
            beside = value.get(_BESIDE, {})
            begun, left, source = (beside.get(name) for name in (_BEGUN, _LEFT, _SOURCE))
            return cls(
                _from_json(value),
                int(beside.get(_SCANNED, 0)),
                None if begun is None else _from_json(begun),
                None if left is None else int(left),
                None if source is None else {str(k): str(v) for k, v in source.items()},
            )
        except (AttributeError, TypeError, ValueError):
            raise ConfigError(
                f"the checkpoint is damaged, or of another source: {str(value)[:80]} are no offsets"
                " of queues"
            ) from None

    def moved(self, offsets: Mapping[MessageQueue, int]) -> "Positions":
        """There, from here."""
        passed = sum(one.size for one in self.ranges(offsets))
        begun = self.offsets if self.scanned == 0 and passed else None
        return Positions(offsets, self.scanned + passed, begun)

    def with_left(self, left: int) -> "Positions":
        return replace(self, left=left)

    def ranges(self, ends: Mapping[MessageQueue, int]) -> list[Range]:
        """What lies between here and there. A queue that is not known here has nothing yet."""
        found = [
            Range(queue, self.offsets[queue], ends[queue])
            for queue in sorted(ends)
            if queue in self.offsets
        ]
        return [one for one in found if one.size > 0]


def _to_json(offsets: Mapping[MessageQueue, int]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for queue in sorted(offsets):
        brokers = made.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = offsets[queue]
    return made


def _from_json(value: Mapping[str, Any]) -> dict[MessageQueue, int]:
    return {
        MessageQueue(topic, broker, int(number)): int(offset)
        for topic, brokers in value.items()
        if topic != _BESIDE
        for broker, numbers in brokers.items()
        for number, offset in numbers.items()
    }


def share(ranges: Iterable[Range], most: int | None) -> dict[MessageQueue, int]:
    """The end of each range when all together may have `most` messages: each has one at least and
    its part of the rest. If there are not enough for one each, those whose turn it is have one."""
    ranges = list(ranges)
    if most is None or sum(one.size for one in ranges) <= most:
        return {one.queue: one.end for one in ranges}
    count = len(ranges)
    if most < count:
        turn = sum(one.start for one in ranges) % count
        parts = [int((number - turn) % count < most) for number in range(count)]
    else:
        rest = _divided(most - count, [one.size - 1 for one in ranges])
        parts = [1 + part for part in rest]
    return {one.queue: one.start + part for one, part in zip(ranges, parts, strict=True)}


def _divided(amount: int, weights: list[int]) -> list[int]:
    """In proportion to the weights; those that lose most by rounding down get one more."""
    total = max(sum(weights), 1)
    parts = [weight * amount // total for weight in weights]
    by_loss = sorted(range(len(weights)), key=lambda n: -(weights[n] * amount % total))
    for number in by_loss[: amount - sum(parts)]:
        parts[number] += 1
    return parts


def cut(ranges: Iterable[Range], at_least: int | None, largest: int | None) -> list[Range]:
    """Ranges cut so that there are `at_least` so many, if there are messages enough, in proportion
    to their sizes, and none has more than `largest`."""
    ranges = list(ranges)
    pieces = [1] * len(ranges)
    if at_least is not None and at_least > len(ranges) > 0:
        pieces = _divided(at_least, [one.size for one in ranges])
    cut_up = []
    for one, count in zip(ranges, pieces, strict=True):
        if largest is not None:
            count = max(count, -(-one.size // largest))
        count = min(max(count, 1), one.size)
        edges = [one.start + one.size * number // count for number in range(count + 1)]
        cut_up += [Range(one.queue, *edge) for edge in pairwise(edges)]
    return cut_up


def cut_at(one: Range, step: int) -> list[Range]:
    """At multiples of `step`."""
    inner = range((one.start // step + 1) * step, one.end, step)
    return [Range(one.queue, *edge) for edge in pairwise([one.start, *inner, one.end])]


def pack(ranges: Iterable[Range], size: int) -> list[list[Range]]:
    """Small ranges together, up to `size` messages: a task costs more than reading a few."""
    packs: list[list[Range]] = []
    room = 0
    for one in ranges:
        if one.size <= room:
            packs[-1].append(one)
            room -= one.size
        else:
            packs.append([one])
            room = max(size - one.size, 0)
    return packs
