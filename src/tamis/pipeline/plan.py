"""What a batch of route is made of: expressions for all subscriptions at once, and counts."""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Observation, Row
from pyspark.sql import functions as F

from ..filter import Outcome, parse
from ..filter.explain import explain
from . import steps
from .config import Sink, Subscription
from .sinks import TO
from .steps import PLACE
from .summary import Sample

__all__ = ["Counts", "Plan"]

_ALWAYS_SAID: Final = "; one failure decides the whole."
_BUCKETS: Final = 16  # of subscriptions: each has samples of messages one of them failed on
_MATCHED: Final = "_matched"
_FAILED: Final = "_failed"


class Plan:
    """What becomes of rows. Made once for many batches: with many subscriptions it is
    many expressions, each of which costs calls into the JVM.

    `most` is how many rows a batch can have. Several counters share a sum if they fit: a sum costs
    as much as ten comparisons.
    """

    def __init__(
        self,
        subscriptions: Sequence[Subscription],
        unmatched: Sink | None,
        needs: steps.Needs,
        most: int | None,
    ) -> None:
        self._columns = [*needs.columns]
        self._outcomes: list[Column] = []
        outcomes, errors = [], []
        compiled = steps.outcomes([one.filter for one in subscriptions], needs.property_of)
        for number, one in enumerate(subscriptions):
            name = f"_outcome_{number}"
            self._outcomes.append(compiled[number].alias(name))
            if one.filter.kind == "code":
                outcomes.append(F.col(name)["outcome"])
                errors.append(F.col(name)["error"].alias(f"error_{number}"))
            else:
                outcomes.append(F.col(name))
        self._properties = steps.all_read(one.filter for one in subscriptions)
        self._outcomes += [
            needs.property_of(name).alias(f"_property_{at}")
            for at, name in enumerate(self._properties)
        ]
        matched = [one == int(Outcome.TRUE) for one in outcomes]
        failed = {
            number: outcomes[number] == int(Outcome.ERROR)
            for number, one in enumerate(subscriptions)
            if one.filter.kind != "tags"
        }
        self._chosen = {_MATCHED: _numbers(dict(enumerate(matched))), _FAILED: _numbers(failed)}
        place = [F.col(name) for name in PLACE]
        is_unmatched = F.size(_MATCHED) == 0
        self._counters = [
            *(("matched", number) for number in range(len(matched))),
            *(("failed", number) for number in failed),
        ]
        self._packed = 63 // (most.bit_length() if most else 31)
        self._bits = 63 // self._packed
        conditions = [*matched, *failed.values()]
        self._counted = [
            F.count(F.lit(1)).alias("read"),
            F.count_if(is_unmatched).alias("unmatched"),
            *_ends("unmatched", is_unmatched, F.struct(*place)),
        ]
        for at in range(0, len(conditions), self._packed):
            parts = [
                F.when(condition, F.lit(1 << (self._bits * shift))).otherwise(F.lit(0))
                for shift, condition in enumerate(conditions[at : at + self._packed])
            ]
            self._counted.append(F.sum(_sum(parts).cast("bigint")).alias(f"sum_{at}"))
        properties = [F.col(f"_property_{at}") for at in range(len(self._properties))]
        sample = F.struct(*place, F.col(_FAILED).alias("groups"), *properties, *errors)
        for bucket in range(min(_BUCKETS, len(failed))):
            here = [condition for at, condition in enumerate(failed.values())
                    if at % _BUCKETS == bucket]  # fmt: skip
            has_failed = (F.size(_FAILED) > 0) & _any(here)
            self._counted += _ends(f"bucket_{bucket}", has_failed, sample)
        numbers = F.col(_MATCHED)
        if unmatched is not None:
            numbers = F.when(is_unmatched, F.array(F.lit(len(matched)))).otherwise(numbers)
        sinks = [*(one.sink for one in subscriptions), *([unmatched] if unmatched else [])]
        columns = dict.fromkeys(name for sink in sinks for name in sink.needs)
        self._wanted = [F.explode(numbers).alias(TO), *map(F.col, columns)]

    def routed(self, rows: DataFrame, observation: Observation) -> DataFrame:
        """A row for each message and each sink that gets it, by its number in `TO`. What is counted
        on the way comes with `observation` when an action has gone through all of them."""
        evaluated = rows.select(*self._columns, *self._outcomes).withColumns(self._chosen)
        return evaluated.observe(observation, *self._counted).select(*self._wanted)

    def counts(self, observed: Mapping[str, Any]) -> "Counts":
        counts = Counts(observed["read"], observed["unmatched"])
        counts.unmatched_samples = [_sample(row, "") for row in _both(observed, "unmatched")]
        for number, (kind, group) in enumerate(self._counters):
            at, shift = number // self._packed * self._packed, number % self._packed
            packed = observed[f"sum_{at}"] or 0
            value = packed >> (self._bits * shift) & ((1 << self._bits) - 1)
            (counts.matched if kind == "matched" else counts.failed)[group] = value
        for bucket in range(_BUCKETS):
            for row in _both(observed, f"bucket_{bucket}"):
                for group in row.groups:
                    counts.samples.setdefault(group, []).append(row)
        return counts

    def sample(self, subscription: Subscription, number: int, row: Row) -> Sample:
        """Why that subscription, of that number, failed on it."""
        filter = subscription.filter
        if filter.kind == "code":
            return _sample(row, str(row[f"error_{number}"]))
        values = {name: row[f"_property_{at}"] for at, name in enumerate(self._properties)}
        properties = {name: value for name, value in values.items() if value is not None}
        whole = explain(parse(filter.text, filter.dialect), properties).reason
        return _sample(row, whole.removeprefix("It does not match: ").removesuffix(_ALWAYS_SAID))


@dataclass(slots=True)
class Counts:
    """Of a batch; by the numbers of subscriptions."""

    read: int
    unmatched: int
    matched: dict[int, int] = field(default_factory=dict)
    failed: dict[int, int] = field(default_factory=dict)
    unmatched_samples: list[Sample] = field(default_factory=list)
    samples: dict[int, list[Row]] = field(default_factory=dict)  # messages some failed on


def _numbers(conditions: Mapping[int, Column]) -> Column:
    """An array of those whose condition holds."""
    if not conditions:
        return F.array().cast("array<int>")
    return F.array_compact(
        F.array(*(F.when(condition, F.lit(number)) for number, condition in conditions.items()))
    )


def _ends(name: str, condition: Column, sample: Column) -> list[Column]:
    """The first and the last message of which it holds."""
    chosen = F.when(condition, sample)
    return [F.min(chosen).alias(f"{name}_first"), F.max(chosen).alias(f"{name}_last")]


def _both(observed: Mapping[str, Any], name: str) -> list[Row]:
    rows = [observed.get(f"{name}_first"), observed.get(f"{name}_last")]
    return [row for at, row in enumerate(rows) if row is not None and row not in rows[:at]]


def _sum(parts: Sequence[Column]) -> Column:
    return reduce(operator.add, parts)


def _any(conditions: Sequence[Column]) -> Column:
    return reduce(operator.or_, conditions)


def _sample(row: Row, reason: str) -> Sample:
    queue = f"{row.topic}/{row.broker or ''}/{row.queue_id}"
    return Sample(f"{queue} at {row.offset}", row.message_id, reason)
