"""Compiled loops that write: records of a batch, from the bytes it travelled in."""

import numpy as np
import numpy.typing as npt

from ..filter.engines.memory import Address, Int, compiled, inlined, load1
from ._walk import Rows, crc_of, int2, int4

__all__ = ["encode_batch", "measure_batch"]


@inlined
def _put4(out: npt.NDArray[np.uint8], at: Int, value: Int) -> None:
    out[at] = (value >> 24) & 0xFF
    out[at + 1] = (value >> 16) & 0xFF
    out[at + 2] = (value >> 8) & 0xFF
    out[at + 3] = value & 0xFF


@inlined
def _put8(out: npt.NDArray[np.uint8], at: Int, value: Int) -> None:
    _put4(out, at, value >> 32)
    _put4(out, at + 4, value)


@inlined
def _copy(out: npt.NDArray[np.uint8], at: Int, source: Address, size: Int) -> None:
    for i in range(size):
        out[at + i] = load1(source + i)


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
        _put4(out, at, size)
        _put4(out, at + 8, crc_of(base + 20, body) & 0x7FFFFFFF if body else 0)
        _put4(out, at + 16, flag)
        _put8(out, at + 20, queue_offset + i)
        _put8(out, at + 28, begin + at)
        _put4(out, at + len(head) - 4, body)
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
