"""Judging a batch, alike wherever a filter runs: at a filter server, in a client, on Spark."""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]

from ..errors import SandboxError
from ..filter.logic import Outcome
from .contract import Judge
from .verdicts import Verdicts

__all__ = ["judge_batch"]

_ERROR: Final = int(Outcome.ERROR)
_BAD_MASK: Final = "match_batch gave "
_MOST_SPLITS: Final = 128  # parts of a batch judged again, to find the messages it failed on


def judge_batch(judge: Judge, batch: pa.RecordBatch) -> Verdicts:
    """Judge a batch. One for which `match_batch` raises is judged again in parts, so that a message
    that it can't deal with does not fail the others. Raises what the judge does.

    A batch that broke a limit is not judged again: a sandbox has looked for the message already.
    """
    restarts = _restarts(judge)
    said = judge.judge(batch)
    outcomes = np.array(said.outcomes, np.uint8)
    errors = {row: said.reason(row) for row in np.flatnonzero(said.failed).tolist()}
    waiting = _halves(judge, 0, said)
    splits = 0
    while waiting and splits < _MOST_SPLITS and _restarts(judge) == restarts:
        splits += 1
        start, stop = waiting.pop()
        try:
            said = judge.judge(batch.slice(start, stop - start))
        except SandboxError:  # it failed on them before, that stands
            break
        outcomes[start:stop] = said.outcomes
        for row in range(start, stop):
            errors.pop(row, None)
        for row in np.flatnonzero(said.failed).tolist():
            errors[start + row] = said.reason(row)
        waiting += _halves(judge, start, said)
    _mark_unreadable(batch, outcomes, errors)
    return Verdicts(outcomes, errors)


def _halves(judge: Judge, start: int, said: Verdicts) -> list[tuple[int, int]]:
    """The parts of a batch to judge again, the first one last; none unless it failed as a whole."""
    count = len(said.outcomes)
    if not judge.needs.is_batch or count < 2 or not said.failed.all():
        return []
    if _BAD_MASK in said.reason(0):  # with fewer messages its length may be right by chance
        return []
    middle = start + count // 2
    return [(middle, start + count), (start, middle)]


def _restarts(judge: Judge) -> int:
    """How often a sandbox has replaced its process."""
    usage = getattr(judge, "usage", None)
    return usage.restarts if usage is not None else 0


def _mark_unreadable(
    batch: pa.RecordBatch, outcomes: npt.NDArray[np.uint8], errors: dict[int, str]
) -> None:
    """A body that can't be read is null: nobody can say whether its message matches."""
    if "body" in batch.schema.names and batch.column("body").null_count:
        nulls = batch.column("body").is_null().to_numpy(zero_copy_only=False)
        for row in np.flatnonzero(nulls).tolist():
            outcomes[row] = _ERROR
            errors[row] = "its body can't be read"
