"""From the log to everything made from it: consume queues, extensions with bitmaps, key index.

A chunk of records at a time, in order, from the log alone: the same code serves a running broker,
recovery and a rebuild from nothing. RocketMQ's `ReputMessageService` and its three dispatchers.
"""

import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import ConfigError
from ..filter.bloom import BloomFilter
from ..filter.engines.columnar import PropertyFinder
from ..filter.engines.memory import Address, Int, compiled
from ..filter.logic import Outcome
from ..java import decode_utf8, string_hash
from ..message import DELAY_TOPIC, PropertyName, SysFlag
from ._batch import put4, put8
from ._walk import Column, Rows, group_rows, java_hashes, split_keys
from .commitlog import Chunk, Queue, is_topic
from .consumequeue import ConsumeQueue
from .files import Bytes
from .format import UNIT, UNIT_SIZE
from .groupfilters import GroupFilter
from .index import KeyIndex

__all__ = ["DELAY_LEVELS", "Dispatcher", "parse_delay_levels"]

_FOUND = (PropertyName.TAGS, PropertyName.UNIQUE_KEY, PropertyName.KEYS, PropertyName.DELAY)
_TAGS, _UNIQUE, _KEYS, _DELAY = range(4)
_AT, _SIZE, _QUEUE_OFFSET = int(Column.AT), int(Column.SIZE), int(Column.QUEUE_OFFSET)
_SYS_FLAG, _STORED = int(Column.SYS_FLAG), int(Column.STORED)
_HALF_WAY, _COMMITTED = int(SysFlag.ROLLBACK), int(SysFlag.COMMIT)

Ints = npt.NDArray[np.int32]

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
        self._topics: dict[bytes, _Topic] = {}  # those met, by the bytes in their records
        self.grown: set[Queue] = set()  # queues that got units; whoever looks clears it

    def dispatch(self, chunk: Chunk) -> None:
        rows, data = chunk.rows, chunk.data
        size, base = len(rows), data.ctypes.data
        if not size:
            return
        starts = np.ascontiguousarray(rows[:, Column.PROPERTIES_AT])
        ends = starts + rows[:, Column.PROPERTIES_SIZE]
        at, sizes = self._finder.find(data, starts, ends)
        codes, groups, order, edges, heads = np.empty((5, size + 1), dtype=np.int64)
        firsts, largest, runs = np.empty((3, size), dtype=np.int64)
        units = np.empty(size * UNIT_SIZE, dtype=np.uint8)
        found = (codes, groups, firsts, order, edges, heads, largest, runs)
        count = sort_rows(base, chunk.file_start, rows, at[_TAGS], sizes[_TAGS], *found, units)
        bounds, unit_bytes = edges[: count + 1].tolist(), units.data
        seeds = list[int]()
        for group, first in enumerate(rows[firsts[:count]].tolist()):
            topic_at, queue_id = first[Column.TOPIC_AT], first[Column.QUEUE]
            known = self._known(data[topic_at : topic_at + first[Column.TOPIC_SIZE]].tobytes())
            topic = known.topic
            seeds.append(known.seed)
            begin, end = bounds[group], bounds[group + 1]
            if not known.is_legal or queue_id < 0:
                log.error("a message of topic %r, queue %d is in no queue", topic, queue_id)
                continue
            if topic == DELAY_TOPIC:
                members = np.flatnonzero(groups[:size] == group)
                self._set_delivery_times(data, rows, members, at[_DELAY], sizes[_DELAY], codes)
            if begin == end:  # all half-way through their transactions
                continue
            queue = self._queue_of(topic, queue_id)
            if (
                runs[group]
                and topic != DELAY_TOPIC
                and queue.extension is None
                and queue.sequence
                and queue.max_offset == heads[group]
            ):
                # what nearly all are: the next of their queue, without a gap
                queue.largest = max(queue.largest, int(largest[group]))
                queue.sequence.append(unit_bytes[begin * UNIT_SIZE : end * UNIT_SIZE])
            else:
                self._append_units(queue, topic, chunk, order[begin:end], codes, starts, ends)
            self.grown.add((topic, queue_id))
        if self._index is not None:
            self._append_keys(self._index, chunk, at, sizes, groups, seeds)

    def _known(self, name: bytes) -> "_Topic":
        found = self._topics.get(name)
        if found is None:
            if len(self._topics) >= _MOST_KNOWN:
                self._topics.clear()
            topic = decode_utf8(name)
            found = _Topic(topic, is_topic(topic), string_hash(f"{topic}#"))
            self._topics[name] = found
        return found

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
        self, index: KeyIndex, chunk: Chunk, at: Rows, sizes: Rows, groups: Rows, seeds: list[int]
    ) -> None:
        by_group = np.array(seeds, dtype=np.int64)
        room = 4 * len(chunk.rows)
        while True:
            hashes = np.empty(room, dtype=np.int32)
            offsets, times = np.empty((2, room), dtype=np.int64)
            count = make_entries(
                *(chunk.data.ctypes.data, chunk.file_start, chunk.rows),
                *(at[_UNIQUE], sizes[_UNIQUE], at[_KEYS], sizes[_KEYS], groups, by_group),
                *(hashes, offsets, times),
            )
            if count <= room:
                break
            room = count
        index.put(hashes[:count], offsets[:count], times[:count])


def _text(data: Bytes, at: int, size: int) -> str:
    return decode_utf8(data[at : at + size].tobytes())


class _Topic(NamedTuple):
    topic: str
    is_legal: bool
    seed: int  # of its keys' hashes


_MOST_KNOWN = 10_000  # topics


@compiled
def sort_rows(
    base: Address,
    file_start: Int,
    rows: Rows,
    tags: Rows,
    tag_sizes: Rows,
    codes: Rows,
    groups: Rows,
    firsts: Rows,
    order: Rows,
    edges: Rows,
    heads: Rows,
    largest: Rows,
    runs: Rows,
    units: Bytes,
) -> Int:
    """Rows by queue, numbered as they are first met; gives how many queues there are.

    Of each row its tags code and the number of its queue. Of each queue: its first row; the rows
    that get a unit, from one edge to the next in `order`, as they lie in the log, and those units;
    the queue offset of the first; the size of the largest message; whether there is no gap between
    their offsets. A row that is half-way through a transaction gets none.
    """
    size = len(rows)
    java_hashes(base, tags, tag_sizes, np.zeros(size, dtype=np.int64), codes)
    count = group_rows(base, rows, groups, firsts)
    for group in range(count + 1):
        edges[group] = 0
    for row in range(size):
        if rows[row, _SYS_FLAG] & _HALF_WAY in (0, _COMMITTED):
            edges[groups[row] + 1] += 1
    for group in range(count):
        edges[group + 1] += edges[group]
        largest[group], runs[group] = 0, 1
    ends = edges[: count + 1].copy()
    for row in range(size):
        if rows[row, _SYS_FLAG] & _HALF_WAY not in (0, _COMMITTED):
            continue
        group = groups[row]
        place, offset = ends[group], rows[row, _QUEUE_OFFSET]
        ends[group] = place + 1
        order[place] = row
        if place == edges[group]:
            heads[group] = offset
        elif offset != heads[group] + place - edges[group]:
            runs[group] = 0
        largest[group] = max(largest[group], rows[row, _SIZE])
        put8(units, place * 20, file_start + rows[row, _AT])
        put4(units, place * 20 + 8, rows[row, _SIZE])
        put8(units, place * 20 + 12, codes[row])
    return count


@compiled
def make_entries(
    base: Address,
    file_start: Int,
    rows: Rows,
    unique: Rows,
    unique_sizes: Rows,
    keys: Rows,
    key_sizes: Rows,
    groups: Rows,
    seeds: Rows,
    hashes: Ints,
    offsets: Rows,
    times: Rows,
) -> Int:
    """What the index gets of each row's keys; gives how much. Without room for all, nothing.

    `seeds` are by group. A message that was rolled back has no keys.
    """
    size = len(rows)
    spans = np.empty((2, size, 2), dtype=np.int64)
    for row in range(size):
        is_indexed = rows[row, _SYS_FLAG] & _HALF_WAY != _HALF_WAY
        spans[0, row, 0], spans[1, row, 0] = unique[row], keys[row]
        spans[0, row, 1] = unique_sizes[row] if is_indexed else -1
        spans[1, row, 1] = key_sizes[row] if is_indexed else -1
    found = np.empty((len(hashes), 3), dtype=np.int64)
    count = split_keys(base, spans[0], spans[1], found)
    if count > len(hashes):
        return count
    texts = np.empty((4, count), dtype=np.int64)  # places, sizes, seeds, hashes
    for i in range(count):
        row = found[i, 0]
        texts[0, i], texts[1, i], texts[2, i] = found[i, 1], found[i, 2], seeds[groups[row]]
        offsets[i], times[i] = file_start + rows[row, _AT], rows[row, _STORED]
    java_hashes(base, texts[0], texts[1], texts[2], texts[3])
    for i in range(count):
        hash_ = texts[3, i]
        hashes[i] = 0 if hash_ == -(2**31) else abs(hash_)
    return count
