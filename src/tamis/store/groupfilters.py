"""The groups whose SQL is evaluated when messages are dispatched, for the bitmaps in extensions.

A group counts only if its bits were chosen for a bloom filter of the size of ours: in bitmaps of
another size they would stand for other groups.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..errors import InvalidFilter
from ..filter import parse
from ..filter.bloom import BloomFilter
from ..filter.engines.columnar import BatchFilter
from .tables import FilterData

__all__ = ["GroupFilter", "GroupFilters"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GroupFilter:
    """A group's SQL on a topic, and the bits that stand for it."""

    batch_filter: BatchFilter
    positions: tuple[int, ...]


class GroupFilters:
    """By topic. Replaced as a whole, by one thread, while another may read."""

    def __init__(self, bloom: BloomFilter) -> None:
        self._bloom = bloom
        self._by_topic: dict[str, list[GroupFilter]] = {}
        self._compiled: dict[str, BatchFilter] = {}  # theirs, by text

    def of(self, topic: str) -> Sequence[GroupFilter]:
        return self._by_topic.get(topic, ())

    def replace(
        self,
        filters: Iterable[FilterData],
        compiled: Mapping[str, BatchFilter] | None = None,
    ) -> None:
        """Takes these filters instead of those before; `compiled`, by their expressions, need not
        be compiled again."""
        found: dict[str, list[GroupFilter]] = {}
        known, self._compiled = {**self._compiled, **(compiled or {})}, {}
        for data in filters:
            try:
                batch_filter = known.get(data.expression) or BatchFilter(parse(data.expression))
            except InvalidFilter as error:
                log.warning("filter of %s on %s: %s", data.group, data.topic, error)
                continue
            self._compiled[data.expression] = batch_filter
            positions = data.bloom_positions
            if self._bloom.accepts(positions, data.bloom_bits):
                found.setdefault(data.topic, []).append(GroupFilter(batch_filter, positions))
        self._by_topic = found
