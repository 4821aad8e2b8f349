"""What a batch of route is made of: expressions for all subscriptions at once, and counts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Observation, Row
from pyspark.sql import functions as F

from ..code import Context
from ..filter import Outcome, parse
from ..filter.explain import explain
from . import steps
from .config import Sink, Subscription
from .sinks import TO
from .steps import PLACE
from .summary import Sample

__all__ = ["Counts", "Plan"]

_ALWAYS_SAID: Final = "; one failure decides the whole."
_BUCKETS: Final = 8  # of subscriptions: each has samples of messages one of them failed on
_PACKED: Final = 31  # outcomes in a BIGINT, two bits each
_ODD: Final = 0x5555_5555_5555_5555  # the lower bit of each
_MATCHED: Final = "_matched"
_FAILED: Final = "_failed"


class Plan:
    """What becomes of rows. Made once for many batches: with many subscriptions it is many
    expressions, each of which costs calls into the JVM.

    A row costs an outcome for each subscription and little else unless it matches or fails. So
    outcomes are packed into integers, from which the few that count are taken only if there are
    any; and groups are counted after the row was repeated for each, not before.
    """

    def __init__(
        self,
        subscriptions: Sequence[Subscription],
        unmatched: Sink | None,
        needs: steps.Needs,
        topic: str,
    ) -> None:
        """`topic` is the one that filters in code are told."""
        self._size = size = len(subscriptions)
        self._columns = [*map(F.col, needs.columns)]
        self._parts: list[Column] = []  # numbers read from text, each once for all filters
        compiled = steps.outcomes(
            [one.filter for one in subscriptions],
            needs.property_of,
            self._kept,
            [Context(one.group, topic) for one in subscriptions],
        )
        coded = {n: one for n, one in enumerate(subscriptions) if one.filter.kind == "code"}
        self._answers = [compiled[number].alias(f"_code_{number}") for number in coded]
        outcomes = [
            F.col(f"_code_{number}")["outcome"] if number in coded else one
            for number, one in enumerate(compiled)
        ]
        self._properties = steps.all_read(one.filter for one in subscriptions)
        facts = [
            *(F.col(f"_code_{number}")["error"].alias(f"error_{number}") for number in coded),
            *(needs.property_of(name).alias(f"value_{at}")
              for at, name in enumerate(self._properties)),
        ]  # fmt: skip
        self._facts = (F.struct(*facts) if facts else F.lit(0)).alias("_facts")
        chunks = range(0, size, _PACKED)
        self._packed = [
            _packed(outcomes[at : at + _PACKED]).alias(f"_outcomes_{at}") for at in chunks
        ]
        may_fail = any(one.filter.kind != "tags" for one in subscriptions)
        self._chosen = {
            _MATCHED: F.concat(*(_chosen(at, size, Outcome.TRUE, at) for at in chunks)),
            _FAILED: F.concat(*(_chosen(at, size, Outcome.ERROR, at + size + 1) for at in chunks))
            if may_fail
            else F.array().cast("array<int>"),
        }  # fmt: skip
        is_unmatched = F.size(_MATCHED) == 0
        place = [F.col(name) for name in PLACE]
        self._counted = [
            F.count(F.lit(1)).alias("read"),
            F.count_if(is_unmatched).alias("unmatched"),
            *_ends("unmatched", is_unmatched, F.struct(*place)),
        ]
        sample = F.struct(*place, F.col(_FAILED).alias("failed"), F.col("_facts").alias("facts"))
        for bucket in range(min(_BUCKETS, size) if may_fail else 0):
            numbers = [*range(size + 1 + bucket, 2 * size + 1, _BUCKETS)]
            here = F.arrays_overlap(_FAILED, F.array(*map(F.lit, numbers)))
            has_failed = F.when(F.size(_FAILED) > 0, here).otherwise(F.lit(False))
            self._counted += _ends(f"bucket_{bucket}", has_failed, sample)
        to = F.col(_MATCHED)
        if unmatched is not None:
            to = F.when(is_unmatched, F.array(F.lit(size))).otherwise(to)
        if may_fail:
            to = F.when(F.size(_FAILED) > 0, F.concat(to, F.col(_FAILED))).otherwise(to)
        sinks = [*(one.sink for one in subscriptions), *([unmatched] if unmatched else [])]
        columns = dict.fromkeys(name for sink in sinks for name in sink.needs)
        self._wanted = [F.explode(to).alias(TO), *map(F.col, columns)]
        # Exact as long as there is a bin for each value; of partitions the bins of a value come
        # apart, or together. (approx_top_k would do too, but prints a warning.)
        self._by_group = F.histogram_numeric(F.col(TO).cast("double"), F.lit(2 * size + 2))

    def _kept(self, part: Column) -> Column:
        name = f"_part_{len(self._parts)}"
        self._parts.append(part.alias(name))
        return F.col(name)

    def routed(
        self, rows: DataFrame, of_messages: Observation, of_groups: Observation
    ) -> DataFrame:
        """A row for each message and each sink that gets it, by its number in `TO`. What is counted
        on the way comes with the observations when an action has gone through all of them."""
        if self._answers or self._parts:
            rows = rows.select("*", *self._answers, *self._parts)
        packed = rows.select(*self._columns, *self._packed, self._facts)
        watched = packed.withColumns(self._chosen).observe(of_messages, *self._counted)
        repeated = watched.select(*self._wanted)
        counted = repeated.observe(of_groups, self._by_group.alias("by_group"))
        return counted.where(F.col(TO) <= self._size)

    def counts(self, of_messages: Mapping[str, Any], of_groups: Mapping[str, Any]) -> "Counts":
        counts = Counts(of_messages["read"], of_messages["unmatched"])
        counts.unmatched_samples = [_sample(row, "") for row in _both(of_messages, "unmatched")]
        for x, y in of_groups["by_group"] or ():
            number = round(x)  # that of the unmatched is `_size`, those that failed are above
            kind = counts.matched if number < self._size else counts.failed
            group = number if number < self._size else number - self._size - 1
            kind[group] = kind.get(group, 0) + round(y)
        for bucket in range(_BUCKETS):
            for row in _both(of_messages, f"bucket_{bucket}"):
                for number in row["failed"]:
                    counts.samples.setdefault(number - self._size - 1, []).append(row)
        return counts

    def sample(self, subscription: Subscription, number: int, row: Row) -> Sample:
        """Why that subscription, of that number, failed on it."""
        filter, facts = subscription.filter, row["facts"]
        if filter.kind == "code":
            return _sample(row, str(facts[f"error_{number}"]))
        values = {name: facts[f"value_{at}"] for at, name in enumerate(self._properties)}
        properties = {name: value for name, value in values.items() if value is not None}
        whole = explain(parse(filter.text, filter.dialect), properties).reason
        return _sample(row, whole.removeprefix("It does not match: ").removesuffix(_ALWAYS_SAID))


@dataclass(slots=True)
class Counts:
    """Of a batch; by the numbers of subscriptions. Those with none are left out."""

    read: int
    unmatched: int
    matched: dict[int, int] = field(default_factory=dict)
    failed: dict[int, int] = field(default_factory=dict)
    unmatched_samples: list[Sample] = field(default_factory=list)
    samples: dict[int, list[Row]] = field(default_factory=dict)  # messages some failed on


def _packed(outcomes: Sequence[Column]) -> Column:
    shifted = [F.shiftleft(one.cast("bigint"), 2 * at) for at, one in enumerate(outcomes)]
    return reduce(Column.bitwiseOR, shifted)


def _chosen(at: int, size: int, wanted: Outcome, number: int) -> Column:
    """Of the outcomes packed from `at` on: an array of those wanted, counted from `number`."""
    packed = F.col(f"_outcomes_{at}")
    upper = F.shiftrightunsigned(packed, 1)
    if wanted is not Outcome.ERROR:  # TRUE is 1, ERROR 3
        upper = F.bitwise_not(upper)
    found = packed.bitwiseAND(upper).bitwiseAND(F.lit(_ODD))
    each = [
        F.when(found.bitwiseAND(F.lit(1 << (2 * offset))) != 0, number + offset).otherwise(-1)
        for offset in range(min(_PACKED, size - at))
    ]
    none = F.array().cast("array<int>")
    # Not array_compact: Spark interprets that, and all that is in it, instead of compiling it.
    return F.when(found != 0, F.array_remove(F.array(*each), -1)).otherwise(none)


def _ends(name: str, condition: Column, sample: Column) -> list[Column]:
    """The first and the last message of which it holds."""
    chosen = F.when(condition, sample)
    return [F.min(chosen).alias(f"{name}_first"), F.max(chosen).alias(f"{name}_last")]


def _both(observed: Mapping[str, Any], name: str) -> list[Row]:
    rows = [observed.get(f"{name}_first"), observed.get(f"{name}_last")]
    return [row for at, row in enumerate(rows) if row is not None and row not in rows[:at]]


def _sample(row: Row, reason: str) -> Sample:
    queue = f"{row['topic']}/{row['broker'] or ''}/{row['queue_id']}"
    return Sample(f"{queue} at {row['offset']}", row["message_id"], reason)
