"""The compiled loop that counts units of a consume queue by their tags codes, for many filters."""

import numpy as np

from ..filter.engines.memory import Address, Int, compiled, load8
from ._sieve import extension_file, size_of
from ._walk import Rows, int2, int8
from .format import EXT_BASE, UNIT_BLANK_SIZE

__all__ = ["CODE_FACTOR", "tally_codes"]

CODE_FACTOR = 0x9E3779B1  # spreads codes over the table
_FACTOR, _EXT_BASE, _UNIT_BLANK = CODE_FACTOR, EXT_BASE, UNIT_BLANK_SIZE


@compiled
def tally_codes(
    units: Address,
    count: Int,
    table: Rows,
    bits: Int,
    bases: Rows,
    first: Int,
    size: Int,
    tallies: Rows,
) -> tuple[Int, Int]:
    """Add to `tallies` how many units have each of the codes in `table`; return how many units
    there are that are not blank, and of how many the code can't be known.

    `table` is a hash table of 2 ** `bits` rows: a code's low four bytes as they lie there, and its
    number in `tallies`, -1 in a free row. The extension's files are as for `find_tagged`.
    """
    messages = unknown = 0
    start = end = base = 0  # of the extension's file last looked at
    shift, last = 32 - bits, (1 << bits) - 1
    for number in range(count):
        unit = units + 20 * number
        if size_of(unit) == _UNIT_BLANK:
            continue
        messages += 1
        code = np.int64(load8(unit + 12))
        if len(bases) and code & 0xFF == 0x80:
            at = int8(unit + 12) - _EXT_BASE
            if at < start or at >= end:
                start, end, base = extension_file(at, bases, first, size)
            if at + 20 > end or int2(base + at) < 1:
                unknown += 1
                continue
            code = np.int64(load8(base + at + 2))
        half = code >> 32 & 0xFFFFFFFF
        row = (half * _FACTOR & 0xFFFFFFFF) >> shift
        while table[row, 1] >= 0:
            if table[row, 0] == half:
                tallies[table[row, 1]] += 1
                break
            row = (row + 1) & last
    return messages, unknown
