"""From the log to everything made from it: consume queues, extensions with bitmaps, key index.

A chunk of records at a time, in order, from the log alone: the same code serves a running broker,
recovery and a rebuild from nothing. RocketMQ's `ReputMessageService` and its three dispatchers.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from ..errors import ConfigError
from ..filter.bloom import BloomFilter
from ..filter.engines.columnar import BatchFilter, PropertyFinder
from ..filter.logic import Outcome
from ..java import decode_utf8, string_hash
from ..message import DELAY_TOPIC, PropertyName, SysFlag
from ._walk import Column, Rows, group_rows, java_hashes, split_keys
from .commitlog import Chunk, Queue, is_topic
from .consumequeue import ConsumeQueue
from .files import Bytes
from .format import UNIT
from .index import KeyIndex

__all__ = ["DELAY_LEVELS", "Dispatcher", "GroupFilter", "parse_delay_levels"]

_FOUND = (PropertyName.TAGS, PropertyName.UNIQUE_KEY, PropertyName.KEYS, PropertyName.DELAY)
_TAGS, _UNIQUE, _KEYS, _DELAY = range(4)

log = logging.getLogger(__name__)

DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


def parse_delay_levels(text: str) -> list[int]:
    """Milliseconds by level, level 1 first."""
    units = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
    try:
        levels = [int(word[:-1]) * units[word[-1]] for word in text.split()]
    except (ValueError, KeyError):
        levels = []
    if not levels:
        raise ConfigError(f"delay levels {text!r}: they are written like 1s 5m 2h")
    return levels


@dataclass(frozen=True, slots=True)
class GroupFilter:
    """A group's SQL on a topic, and the bits that stand for it."""

    batch_filter: BatchFilter
    positions: tuple[int, ...]


class Dispatcher:
    """Not for several threads at once. What it wrote before a crash may be there or not: it is all
    made again, and what is there already is passed over."""

    def __init__(
        self,
        queue_of: Callable[[str, int], ConsumeQueue],
        index: KeyIndex | None,
        *,
        delays: list[int],
        filters: Callable[[str], Iterable[GroupFilter]] | None = None,
        bloom: BloomFilter | None = None,
    ) -> None:
        self._queue_of = queue_of
        self._index = index
        self._delays = delays
        self._filters = filters
        self._bloom = bloom or BloomFilter()
        self._finder = PropertyFinder(_FOUND)
        self.grown: set[Queue] = set()  # queues that got units; whoever looks clears it

    def dispatch(self, chunk: Chunk) -> None:
        rows, data = chunk.rows, chunk.data
        if not len(rows):
            return
        starts = np.ascontiguousarray(rows[:, Column.PROPERTIES_AT])
        ends = starts + rows[:, Column.PROPERTIES_SIZE]
        at, sizes = self._finder.find(data, starts, ends)
        codes = _hashes(data, at[_TAGS], sizes[_TAGS])
        groups = np.empty(len(rows), dtype=np.int64)
        firsts = np.empty(len(rows), dtype=np.int64)
        count = group_rows(data.ctypes.data, rows, groups, firsts)
        # stable: the order within a queue is that of the log
        order = np.argsort(groups, kind="stable")
        edges = np.searchsorted(groups[order], np.arange(count + 1))
        topics = {}
        for group in range(count):
            members = order[edges[group] : edges[group + 1]]
            first = rows[firsts[group]]
            topic = _text(data, first[Column.TOPIC_AT], first[Column.TOPIC_SIZE])
            topics[group] = topic
            if not is_topic(topic) or first[Column.QUEUE] < 0:
                log.error(
                    "a message of topic %r, queue %d is in no queue", topic, first[Column.QUEUE]
                )
                continue
            if topic == DELAY_TOPIC:
                self._set_delivery_times(data, rows, members, at[_DELAY], sizes[_DELAY], codes)
            transaction = rows[members, Column.SYS_FLAG] & SysFlag.ROLLBACK
            members = members[(transaction == 0) | (transaction == SysFlag.COMMIT)]
            if len(members):
                queue = self._queue_of(topic, int(first[Column.QUEUE]))
                self._append_units(queue, topic, chunk, members, codes, starts, ends)
                self.grown.add((topic, int(first[Column.QUEUE])))
        if self._index is not None:
            seeds = {group: string_hash(f"{topic}#") for group, topic in topics.items()}
            by_row = np.array([seeds[group] for group in range(count)], dtype=np.int64)[groups]
            self._append_keys(self._index, chunk, at, sizes, by_row)

    def _append_units(
        self,
        queue: ConsumeQueue,
        topic: str,
        chunk: Chunk,
        members: Rows,
        codes: Rows,
        starts: Rows,
        ends: Rows,
    ) -> None:
        rows = chunk.rows[members]
        offsets = rows[:, Column.QUEUE_OFFSET]
        known = int(np.searchsorted(offsets, queue.max_offset)) if queue.sequence else 0
        rows, members, offsets = rows[known:], members[known:], offsets[known:]
        if not len(rows):
            return
        units = np.empty(len(rows), dtype=UNIT)
        units["offset"] = rows[:, Column.AT] + chunk.file_start
        units["size"] = rows[:, Column.SIZE]
        units["code"] = codes[members]
        if queue.extension is not None:
            bitmaps = self._bitmaps(topic, chunk.data, starts[members], ends[members])
            stored = rows[:, Column.STORED]
            units["code"] = queue.extension.append(codes[members], stored, bitmaps)
        # mostly one run; a queue whose records skip an offset is filled up
        breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
        for run in np.split(np.arange(len(units)), breaks):
            queue.append(int(offsets[run[0]]), units[run])

    def _bitmaps(self, topic: str, data: Bytes, starts: Rows, ends: Rows) -> Bytes | None:
        """A bit array for each message, of the groups whose filter says true; None without any."""
        filters = list(self._filters(topic)) if self._filters is not None else []
        if not filters:
            return None
        bits = np.zeros((len(starts), self._bloom.bits), dtype=np.bool_)
        for group in filters:
            matched = group.batch_filter.match_spans(data, starts, ends) == Outcome.TRUE
            bits[np.ix_(matched, list(set(group.positions)))] = True
        packed: Bytes = np.packbits(bits, axis=1, bitorder="little")
        return packed

    def _set_delivery_times(
        self, data: Bytes, rows: Rows, members: Rows, at: Rows, sizes: Rows, codes: Rows
    ) -> None:
        """A delayed message's unit says when to deliver it, instead of its tag."""
        for row in members:
            if sizes[row] < 0:
                continue
            try:
                level = min(int(_text(data, at[row], sizes[row])), len(self._delays))
            except ValueError:
                continue
            if level > 0:
                codes[row] = rows[row, Column.STORED] + self._delays[level - 1]

    def _append_keys(
        self, index: KeyIndex, chunk: Chunk, at: Rows, sizes: Rows, seeds: Rows
    ) -> None:
        rows = chunk.rows
        indexed = np.flatnonzero(rows[:, Column.SYS_FLAG] & SysFlag.ROLLBACK != SysFlag.ROLLBACK)
        unique = np.stack((at[_UNIQUE], sizes[_UNIQUE]), axis=1)[indexed]
        keys = np.stack((at[_KEYS], sizes[_KEYS]), axis=1)[indexed]
        base = chunk.data.ctypes.data
        found = np.empty((4 * len(indexed), 3), dtype=np.int64)
        count = split_keys(base, unique, keys, found)
        if count > len(found):
            found = np.empty((count, 3), dtype=np.int64)
            split_keys(base, unique, keys, found)
        found = found[:count]
        members = indexed[found[:, 0]]
        starts, lengths = np.ascontiguousarray(found[:, 1]), np.ascontiguousarray(found[:, 2])
        hashes = _hashes(chunk.data, starts, lengths, seeds[members])
        positive = np.where(hashes == -(2**31), 0, np.abs(hashes)).astype(np.int32)
        index.put(positive, chunk.offsets[members], rows[members, Column.STORED])


def _hashes(data: Bytes, starts: Rows, lengths: Rows, seeds: Rows | None = None) -> Rows:
    """Java's hash of each text, going on from its seed; of nothing, the seed or 0."""
    out = np.empty(len(starts), dtype=np.int64)
    seeds = np.zeros(len(starts), dtype=np.int64) if seeds is None else seeds
    java_hashes(data.ctypes.data, np.ascontiguousarray(starts), lengths, seeds, out)
    return out


def _text(data: Bytes, at: int, size: int) -> str:
    return decode_utf8(data[at : at + size].tobytes())
