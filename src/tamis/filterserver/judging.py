"""Answers of the broker to verdicts of a filter: what is called in a thread.

The only module here that loads numpy, Arrow and the compiled loops; it is imported with the first
upload, so that a filter server nobody uses stays small.
"""

import time
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from ..client import columns
from ..client.judging import judge_batch
from ..code import CodeFilter, Context, Judge
from ..filter.logic import Outcome

__all__ = ["Judged", "Row", "context_of", "filter_of", "judge_answers", "warm_up"]

MAX_BODY_SIZE: Final = 16 * 2**20  # bytes of a body when it is decompressed
_TRUE: Final = int(Outcome.TRUE)
_ERROR: Final = int(Outcome.ERROR)


class Row(NamedTuple):
    """A message that matched, or that the filter failed on: then there is a reason."""

    offset: int
    log_offset: int
    record: bytes
    reason: str | None


class Judged(NamedTuple):
    messages: int
    first_offset: int
    rows: list[Row]
    seconds: float


def judge_answers(judge: Judge, broker_name: str, topic: str, answers: Sequence[bytes]) -> Judged:
    """Raises CorruptRecord for what is no whole record, and whatever the judge does."""
    began = time.monotonic()
    chunks = [columns.Chunk(broker_name, topic, body) for body in answers]
    located = columns.locate(chunks)
    needs = judge.needs
    parts = columns.decode_parts(
        chunks,
        columns=needs.columns,
        properties=needs.properties,
        max_body_size=MAX_BODY_SIZE,
        null_unreadable=True,
    )
    rows = list[Row]()
    first = 0
    for batch, _ in parts:
        verdicts = judge_batch(judge, batch)
        outcomes = verdicts.outcomes
        if len(outcomes) != batch.num_rows:
            raise ValueError(f"{len(outcomes)} verdicts on {batch.num_rows} messages")
        wanted = np.flatnonzero((outcomes == _TRUE) | (outcomes == _ERROR))
        at = wanted + first
        starts = located.starts[at]
        for row, answer, start, stop, offset, log_offset in zip(
            wanted.tolist(),
            located.chunks[at].tolist(),
            starts.tolist(),
            (starts + located.sizes[at]).tolist(),
            located.offsets[at].tolist(),
            located.log_offsets[at].tolist(),
            strict=True,
        ):
            reason = verdicts.reason(row) if outcomes[row] == _ERROR else None
            rows.append(Row(offset, log_offset, answers[answer][start:stop], reason))
        first += batch.num_rows
    offset = int(located.offsets[0]) if len(located.offsets) else 0
    return Judged(len(located.offsets), offset, rows, time.monotonic() - began)


def filter_of(class_name: str, text: str) -> CodeFilter:
    return CodeFilter(f"<upload>:{class_name}", text)


def context_of(group: str, topic: str) -> Context:
    return Context(group=group, topic=topic)


def warm_up() -> None:
    """Compile the loops, or load what was compiled: the first batch is not to wait for it."""
    columns.decode([])
    columns.locate([])
