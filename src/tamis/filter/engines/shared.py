"""Several filters over one batch: how many messages each of them matches.

The properties that any of the filters names are located once a message, then every filter's program
runs on them. Counting by fifty filters takes a small part of the time of fifty passes, most of
which is spent on finding properties (`benchmarks/fate_lag.py`).
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..logic import Outcome
from ._kernel import count_strings, find_damaged
from ._program import Field
from .columnar import BatchFilter, NameTable

__all__ = ["SharedFilters"]

Ints = npt.NDArray[np.int64]


class SharedFilters:
    """Compiled filters that are asked together. Immutable; for several threads (no GIL held)."""

    def __init__(self, filters: Sequence[BatchFilter]) -> None:
        self.filters = tuple(filters)
        names = dict.fromkeys(name for one in filters for name in one.names)
        slots = {name: slot for slot, name in enumerate(names)}
        self._names = NameTable(tuple(names))
        self._codes: list[Ints] = []
        self._programs = np.zeros((len(self.filters), 4), dtype=np.int64)
        self._depth = max((one.program.depth for one in self.filters), default=0)
        self._compares_text = any(one.program.compares_text for one in self.filters)
        for number, one in enumerate(self.filters):
            program, code = one.program, one.program.code.copy()
            if program.names:
                of_slot = np.array([slots[name] for name in program.names], dtype=np.int64)
                for column in (Field.SLOT, Field.OTHER):
                    code[:, column] = of_slot[code[:, column]]
            code = np.ascontiguousarray(code)
            self._codes.append(code)  # addresses are good as long as this is
            self._programs[number] = (
                code.ctypes.data,
                len(code),
                program.texts.ctypes.data,
                program.choices.ctypes.data,
            )

    def count_spans(self, data: npt.NDArray[np.uint8], starts: Ints, ends: Ints) -> Ints:
        """Return how many of the property strings each filter says true of; they lie in `data` at
        `starts[i]` up to `ends[i]`, which must be within it."""
        counts = np.zeros(len(self.filters), dtype=np.int64)
        if self._compares_text:
            damaged = np.empty(len(starts), dtype=np.bool_)
            find_damaged(data.ctypes.data, starts, ends, damaged)
            rows = np.flatnonzero(damaged)
            if len(rows):  # what is no UTF-8 takes a longer way, filter by filter
                for number, one in enumerate(self.filters):
                    outcomes = one.match_spans(data, starts[rows], ends[rows])
                    counts[number] = np.count_nonzero(outcomes == _TRUE)
                starts, ends = starts[~damaged], ends[~damaged]
        base, names = data.ctypes.data, self._names
        count_strings(
            base,
            base + len(data),
            starts,
            ends,
            names.heads,
            names.chains,
            names.rows,
            self._programs,
            self._depth,
            counts,
        )
        return counts


_TRUE = np.uint8(Outcome.TRUE)
