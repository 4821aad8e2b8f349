"""The job route: one pass over a source, each message to the sinks of all groups that want it.

A micro-batch is one streaming batch of Spark's. In it

1. every subscription's outcome is a column, next to those the sinks want;
2. counts and samples of each group are observed as the rows go by: no job of their own;
3. a row is repeated for each group that gets it, and the sinks are written;
4. counts are added to the checkpoint's, then Spark records the batch as done.

A batch that was planned before a crash is done again with the subscriptions it was planned with:
the checkpoint has them, as epochs. A file that was changed makes a new epoch from the next batch
on.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, Observation, SparkSession

from ..errors import ConfigError
from . import sources, steps
from .batches import Batches
from .checkpoint import Checkpoint
from .config import FILE_FORMATS, Config, Sink, Subscription
from .marks import KNOWING
from .plan import Counts, Plan
from .runner import Report, Stop
from .sinks import Sinks, promise
from .steps import PLACE
from .summary import GroupCounts, RouteSummary, Sample

__all__ = ["Epoch", "check", "run"]

_MOST_SAMPLES: Final = 4  # of a kind
_LARGE: Final = 2000  # characters of SQL in all

_COUNTED: Final = (*FILE_FORMATS, "delta", "jdbc", "noop", "rocketmq")  # formats


def check(config: Config) -> int | None:
    """What can be known before Spark starts. Return how many messages lie ahead, None if that is
    not known. Raises Error."""
    if config.source.end != "latest":
        raise ConfigError(f"{config.file}: [source] end is not for route, which has none")
    checkpoint = Checkpoint.open(config)
    for one in config.subscriptions:
        try:
            steps.check_code(one.filter, config.source)
        except ConfigError as error:
            raise ConfigError(f"{config.file}: subscription {one.group}: {error}") from None
    sinks = _sinks(config.subscriptions, config.unmatched)
    Sinks(None, checkpoint.run_id).check(sinks, checkpoint.planned)
    planned = checkpoint.offsets(checkpoint.planned)
    return sources.check(config.source, planned, limit=config.max_offsets_per_batch)


def run(
    spark: SparkSession,
    config: Config,
    *,
    continuous: bool = False,
    dry_run: bool = False,
    stop: Stop | None = None,
    report: Report | None = None,
    out: Callable[[str], None] = print,
) -> RouteSummary:
    """Until all that is there now is routed, or with `continuous` until stopped. `out` prints what
    goes to the console. Raises ConfigError before anything is written, JobFailed later."""
    stop, report = stop or Stop(), report or Report(None)
    checkpoint = Checkpoint.open(config, spark)
    with checkpoint.locked(dry_run):
        route = Route(spark, config, checkpoint, stop, out)
        route.plan()
        if dry_run:
            route.summary.status = "not run"
            route.summary.notes.append(f"would begin at {route.place}")
            return route.summary
        with _settings(spark, config.subscriptions):
            return route.run(continuous, report)


@contextmanager
def _settings(spark: SparkSession, subscriptions: Sequence[Subscription]) -> Iterator[None]:
    """Those a route needs, until it has ended."""
    wanted = {
        # A method of more than 8000 bytes of code is never compiled by Java's just-in-time
        # compiler: a hundred filters in one loop are 10 times slower than in several methods.
        "spark.sql.codegen.hugeMethodLimit": "8000",
        # What is observed of rows that turn out to be none after a shuffle would be forgotten.
        "spark.sql.adaptive.enabled": "false",
    }
    if sum(len(one.filter.text) for one in subscriptions if one.filter.kind == "sql") > _LARGE:
        # one loop for them would not go into a method of Java's, of which Spark tells at length
        wanted["spark.sql.codegen.wholeStage"] = "false"
    before = {name: spark.conf.get(name, None) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)


@dataclass(frozen=True, slots=True)
class Epoch:
    """The subscriptions from a batch on; `offsets` are where that batch begins."""

    from_batch: int
    offsets: Mapping[str, Any] | None
    subscriptions: tuple[Subscription, ...]
    unmatched: Sink | None

    def to_dict(self) -> dict[str, Any]:
        return {
            "from_batch": self.from_batch,
            "offsets": self.offsets,
            "subscriptions": [one.to_dict() for one in self.subscriptions],
            "unmatched": self.unmatched.to_dict() if self.unmatched else None,
        }

    @staticmethod
    def from_dict(fields: Mapping[str, Any]) -> "Epoch":
        kept = fields["unmatched"]
        return Epoch(
            fields["from_batch"],
            fields["offsets"],
            tuple(Subscription.from_dict(one) for one in fields["subscriptions"]),
            Sink.from_dict(kept) if kept else None,
        )

    @property
    def sinks(self) -> list[Sink]:
        """By the number of the subscription; behind them that of what nobody wanted."""
        return _sinks(self.subscriptions, self.unmatched)

    def changes(self, before: "Epoch") -> Iterator[str]:
        """What is different, for a person."""
        old = {one.group: one for one in before.subscriptions}
        new = {one.group: one for one in self.subscriptions}
        for group in new:
            if group not in old:
                yield f"subscription {group} is new"
            elif new[group].filter != old[group].filter:
                yield f"subscription {group} changed"
            elif new[group].sink != old[group].sink:
                yield f"subscription {group} has another sink"
        yield from (f"subscription {group} is gone" for group in old if group not in new)
        if self.unmatched != before.unmatched:
            yield "the sink of unmatched messages changed"


def place_of(offsets: Mapping[str, Any] | None, batch: int) -> str:
    """Where that batch begins, for a person; of an archive its number has to do."""
    queues = [
        f"{topic}/{broker}/{number} at {offset}"
        for topic, brokers in (offsets or {}).items()
        if topic and isinstance(brokers, dict)
        for broker, numbers in brokers.items()
        for number, offset in numbers.items()
    ]
    if not queues:
        return f"batch {batch}"
    return ", ".join(queues[:8]) + (f" and {len(queues) - 8} more" if queues[8:] else "")


def epochs_of(checkpoint: Checkpoint, config: Config) -> list[Epoch]:
    """Those of the checkpoint, and a new one if the file has changed. One that no batch was planned
    in yet never was."""
    try:
        known = [Epoch.from_dict(one) for one in checkpoint.data.get("epochs", ())]
        if checkpoint.planned >= 0 and not (known and known[0].from_batch == 0):
            raise KeyError("epochs")
    except (KeyError, TypeError) as error:
        raise ConfigError(
            f"checkpoint {checkpoint.path}: its epochs can't be read ({error!r}): set [run]"
            " checkpoint to a new directory, and the sinks to new paths, to begin again"
        ) from None
    epochs = [one for one in known if one.from_batch <= checkpoint.planned]
    begins = checkpoint.planned + 1
    offsets = checkpoint.offsets(checkpoint.planned)
    new = Epoch(begins, offsets, config.subscriptions, config.unmatched)
    if not epochs or _definitions(new) != _definitions(epochs[-1]):
        epochs.append(new)
    else:  # the same, but the file's know where in it they are
        last = epochs[-1]
        epochs[-1] = Epoch(last.from_batch, last.offsets, new.subscriptions, new.unmatched)
    return epochs


def _definitions(epoch: Epoch) -> str:
    fields = epoch.to_dict()
    return json.dumps([fields["subscriptions"], fields["unmatched"]], sort_keys=True)


def _sinks(subscriptions: Sequence[Subscription], unmatched: Sink | None) -> list[Sink]:
    return [*(one.sink for one in subscriptions), *([unmatched] if unmatched else [])]


class Route(Batches[RouteSummary]):
    """One run of the job."""

    def __init__(
        self,
        spark: SparkSession,
        config: Config,
        checkpoint: Checkpoint,
        stop: Stop,
        out: Callable[[str], None],
    ) -> None:
        summary = RouteSummary(
            job="route",
            file=str(config.file),
            source=config.source.name,
            unmatched_sink=config.unmatched.name if config.unmatched else None,
        )
        super().__init__(spark, config, checkpoint, stop, summary)
        self._sinks = Sinks(spark, checkpoint.run_id, out)
        self.epochs: list[Epoch] = []
        self._plan: tuple[Epoch, Plan] | None = None  # of the last batch
        self._counts: dict[str, GroupCounts] = {}

    def plan(self) -> None:
        """Which subscriptions are for which batches. Nothing is written."""
        checkpoint = self._checkpoint
        self.epochs = epochs_of(checkpoint, self._config)
        for before, epoch in zip(self.epochs, self.epochs[1:], strict=False):
            if epoch.from_batch > checkpoint.planned:
                place = place_of(epoch.offsets, epoch.from_batch)
                for change in epoch.changes(before):
                    self.summary.notes.append(f"{change}: applies from {place}")
        totals = checkpoint.data.get("totals", {})
        for epoch in self._live():
            for one in epoch.subscriptions:
                counts = GroupCounts(one.group, one.filter.name, one.sink.name, promise(one.sink))
                counts.total, counts.total_failed = totals.get(one.group, (0, 0))
                self._counts[one.group] = counts
        self.summary.groups = list(self._counts.values())
        self._sinks.check(self._all_sinks(), checkpoint.planned)

    @property
    def place(self) -> str:
        """Where it would begin, for a person."""
        batch = self._checkpoint.planned + (0 if self._is_again else 1)
        if batch == 0:
            return self._config.source.start
        return place_of(self._checkpoint.offsets(batch - 1), batch)

    def _epoch(self, batch: int) -> Epoch:
        return next(one for one in reversed(self.epochs) if one.from_batch <= batch)

    def _live(self) -> list[Epoch]:
        """Those this run may need: of the batch to be done again, and the last."""
        begun = [self._epoch(self._checkpoint.planned)] if self._is_again else []
        return [one for one in begun if one is not self.epochs[-1]] + self.epochs[-1:]

    def _all_sinks(self) -> list[Sink]:
        found: list[Sink] = []
        for sink in (sink for one in self._live() for sink in one.sinks):
            if sink not in found:
                found.append(sink)
        return found

    def run(self, continuous: bool, report: Report) -> RouteSummary:
        self._checkpoint.data["epochs"] = [one.to_dict() for one in self.epochs]
        self._checkpoint.save()
        self._sinks.claim(self._all_sinks())
        live = self._live()
        wanted = {name for one in live for sink in one.sinks for name in sink.needs}
        self._needs = steps.needs(
            [sub.filter for one in live for sub in one.subscriptions], {*wanted, *PLACE}
        )
        return self._go(self._needs.columns, self._needs.properties, continuous, report)

    def take(self, rows: DataFrame, batch: int) -> None:
        epoch = self._epoch(batch)
        if self._plan is None or self._plan[0] is not epoch:
            topic = self._config.source.topic
            plan = Plan(epoch.subscriptions, epoch.unmatched, self._needs, topic)
            self._plan = (epoch, plan)
        plan, sinks = self._plan[1], epoch.sinks
        of_messages, of_groups = Observation(), Observation()
        routed = plan.routed(rows, of_messages, of_groups)
        jobs = self._sinks.jobs(sinks)
        if len(jobs) == 1 and self._is_counted(sinks[0].format, batch):
            self._sinks.write(routed, sinks, batch)
        else:
            names = [*(one.group for one in epoch.subscriptions), "unmatched"]
            kept = routed.persist()
            try:
                kept.write.format("noop").mode("overwrite").save()
                self._sinks.write(kept, sinks, batch, names)
            finally:
                kept.unpersist()
        counts = plan.counts(of_messages.get, of_groups.get)
        kept_rows = {len(epoch.subscriptions): counts.unmatched} if epoch.unmatched else {}
        self._sinks.confirm(sinks, batch, {**counts.matched, **kept_rows})
        self._add(plan, counts, epoch, batch)

    def _is_counted(self, format: str, batch: int) -> bool:
        """Whether a write of it goes through all rows, and Spark tells what it saw. Kafka's does
        not tell, a table that has the batch reads no row, and the console reads a few."""
        if self._is_again and batch == self._checkpoint.planned and format in KNOWING:
            return False
        return format in _COUNTED

    def _add(self, plan: Plan, of_batch: Counts, epoch: Epoch, batch: int) -> None:
        summary, data = self.summary, self._checkpoint.data
        summary.messages += of_batch.read
        summary.batches += 1
        summary.unmatched += of_batch.unmatched
        _keep(summary.unmatched_samples, of_batch.unmatched_samples)
        is_new = batch > data.get("counted", -1)
        totals = data.setdefault("totals", {})
        for number, one in enumerate(epoch.subscriptions):
            counts = self._counts[one.group]
            matched, failed = of_batch.matched.get(number, 0), of_batch.failed.get(number, 0)
            counts.messages += of_batch.read
            counts.matched += matched
            counts.failed += failed
            if is_new:
                counts.total += matched
                counts.total_failed += failed
                totals[one.group] = (counts.total, counts.total_failed)
            if len(counts.samples) < _MOST_SAMPLES:
                rows = of_batch.samples.get(number, ())
                _keep(counts.samples, (plan.sample(one, number, row) for row in rows))
        if is_new:
            data["counted"] = batch
        self._checkpoint.save()


def _keep(kept: list[Sample], more: Iterable[Sample]) -> None:
    for one in more:
        if len(kept) < _MOST_SAMPLES and one not in kept:
            kept.append(one)
