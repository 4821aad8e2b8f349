"""Compiled loops that write: records of a batch, from the bytes it travelled in, and of a block,
from rows that say where the parts of each message lie.
"""

from ctypes import memmove
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from ..filter.engines.memory import Address, Int, compiled, in_python, inlined, load1
from ._crc import crc_of
from ._walk import Rows, int2, int4

__all__ = ["Part", "Share", "encode_batch", "encode_block", "measure_batch", "put4", "put8"]


class Part(IntEnum):
    """Columns of a block: a row is a message. Places are relative to the buffer they lie in."""

    SHARE = 0  # which row of the shares is its queue's
    SYS_FLAG = 1
    FLAG = 2
    BORN = 3
    RECONSUMES = 4
    PROPERTIES_AT = 5
    PROPERTIES_SIZE = 6
    BODY_AT = 7
    BODY_SIZE = 8
    QUEUE_OFFSET = 9  # filled in when it is stored
    OPAQUE = 10  # of its request: the store has no use for it
    IS_ONEWAY = 11


class Share(IntEnum):
    """Columns of what a block has for each queue."""

    TOPIC_AT = 0
    TOPIC_SIZE = 1
    QUEUE = 2
    COUNT = 3
    BYTES = 4  # of its records
    NEXT_OFFSET = 5


_SHARE, _SYS_FLAG, _FLAG, _BORN, _RECONSUMES = range(5)
_PROPERTIES_AT, _PROPERTIES_SIZE, _BODY_AT, _BODY_SIZE, _QUEUE_OFFSET = range(5, 10)
_TOPIC_AT, _TOPIC_SIZE, _QUEUE = range(3)
_NEXT_OFFSET = int(Share.NEXT_OFFSET)


@inlined
def put4(out: npt.NDArray[np.uint8], at: Int, value: Int) -> None:
    out[at] = (value >> 24) & 0xFF
    out[at + 1] = (value >> 16) & 0xFF
    out[at + 2] = (value >> 8) & 0xFF
    out[at + 3] = value & 0xFF


@inlined
def put8(out: npt.NDArray[np.uint8], at: Int, value: Int) -> None:
    put4(out, at, value >> 32)
    put4(out, at + 4, value)


@inlined
def _copy(out: npt.NDArray[np.uint8], at: Int, source: Address, size: Int) -> None:
    for i in range(size):
        out[at + i] = load1(source + i)


@in_python(_copy)
def _copy_in_python(out: npt.NDArray[np.uint8], at: Int, source: Address, size: Int) -> None:
    memmove(out.ctypes.data + at, source, size)


@compiled
def measure_batch(base: Address, size: Int, fixed: Int, extra: Int) -> tuple[Int, Int]:
    """(messages, bytes of their records) of a batch as it travels; (-1, where) if it is none.

    `fixed` is a record's size without body and properties, `extra` that of the envelope's
    properties, which every message gets.
    """
    at = count = total = 0
    while at < size:
        if size - at < 22:
            return -1, at
        item, body = int4(base + at), int4(base + at + 16)
        if item < 22 or item > size - at or body < 0 or body > item - 22:
            return -1, at
        block = int2(base + at + 20 + body)
        if block < 0 or 22 + body + block != item:
            return -1, at
        parted = extra > 0 and block > 0 and load1(base + at + item - 1) != 2
        if block + parted + extra > 32767:
            return -1, at
        total += fixed + body + block + parted + extra
        count += 1
        at += item
    return count, total


@compiled
def encode_batch(
    base: Address,
    head: npt.NDArray[np.uint8],
    tail: npt.NDArray[np.uint8],
    extra: npt.NDArray[np.uint8],
    begin: Int,
    queue_offset: Int,
    out: npt.NDArray[np.uint8],
    edges: Rows,
) -> None:
    """Records of a batch, measured before: `head` is a record up to its body length, to fill in;
    `tail` the topic with its length, `extra` the envelope's properties."""
    at = 0
    for i in range(len(edges) - 1):
        item, flag, body = int4(base), int4(base + 12), int4(base + 16)
        block = item - 22 - body
        parted = len(extra) > 0 and block > 0 and load1(base + item - 1) != 2
        edges[i] = begin + at
        for k in range(len(head)):
            out[at + k] = head[k]
        size = len(head) + body + len(tail) + 2 + block + parted + len(extra)
        put4(out, at, size)
        put4(out, at + 8, crc_of(base + 20, body) & 0x7FFFFFFF if body else 0)
        put4(out, at + 16, flag)
        put8(out, at + 20, queue_offset + i)
        put8(out, at + 28, begin + at)
        put4(out, at + len(head) - 4, body)
        to = at + len(head)
        _copy(out, to, base + 20, body)
        to += body
        for k in range(len(tail)):
            out[to + k] = tail[k]
        to += len(tail)
        length = block + parted + len(extra)
        out[to], out[to + 1] = length >> 8, length & 0xFF
        _copy(out, to + 2, base + 22 + body, block)
        to += 2 + block
        if parted:
            out[to] = 2
            to += 1
        for k in range(len(extra)):
            out[to + k] = extra[k]
        at += size
        base += item
    edges[len(edges) - 1] = begin + at


@compiled
def encode_block(
    source: npt.NDArray[np.uint8],
    properties: npt.NDArray[np.uint8],
    rows: Rows,
    shares: Rows,
    head: npt.NDArray[np.uint8],
    now: Int,
    begin: Int,
    out: npt.NDArray[np.uint8],
    edges: Rows,
) -> None:
    """Records of a block: topics and bodies lie in `source`; `head` is a record up to its body
    length, to fill in. Gives each message the next offset of its queue. `out` has room for all."""
    base, block_base = source.ctypes.data, properties.ctypes.data
    v6_flags = np.int64(head[39]) & 0x30
    stored_at = 68 if v6_flags & 0x10 else 56
    at = 0
    for i in range(len(edges) - 1):
        share = rows[i, _SHARE]
        body, block = rows[i, _BODY_SIZE], rows[i, _PROPERTIES_SIZE]
        topic, topic_at = shares[share, _TOPIC_SIZE], base + shares[share, _TOPIC_AT]
        body_at = base + rows[i, _BODY_AT]
        offset = shares[share, _NEXT_OFFSET]
        shares[share, _NEXT_OFFSET] = offset + 1
        rows[i, _QUEUE_OFFSET] = offset
        edges[i] = begin + at
        for k in range(len(head)):
            out[at + k] = head[k]
        size = len(head) + body + 1 + topic + 2 + block
        put4(out, at, size)
        put4(out, at + 8, crc_of(body_at, body) & 0x7FFFFFFF if body else 0)
        put4(out, at + 12, shares[share, _QUEUE])
        put4(out, at + 16, rows[i, _FLAG])
        put8(out, at + 20, offset)
        put8(out, at + 28, begin + at)
        put4(out, at + 36, rows[i, _SYS_FLAG] & ~0x30 | v6_flags)
        put8(out, at + 40, rows[i, _BORN])
        put8(out, at + stored_at, now)
        put4(out, at + len(head) - 16, rows[i, _RECONSUMES])
        put4(out, at + len(head) - 4, body)
        to = at + len(head)
        _copy(out, to, body_at, body)
        to += body
        out[to] = topic
        _copy(out, to + 1, topic_at, topic)
        to += 1 + topic
        out[to], out[to + 1] = block >> 8, block & 0xFF
        _copy(out, to + 2, block_base + rows[i, _PROPERTIES_AT], block)
        at += size
    edges[len(edges) - 1] = begin + at
