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
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Observation, Row, SparkSession
from pyspark.sql import functions as F

from ..errors import ConfigError
from ..filter import Outcome, parse
from ..filter.explain import explain
from ..spark.code import CodeFilter
from . import sources, steps
from .checkpoint import Checkpoint
from .config import Config, Sink, Subscription
from .runner import JobFailed, Report, Stop, Stopped, drive, one_line
from .sinks import TO, Sinks, promise
from .steps import PLACE
from .summary import GroupCounts, RouteSummary, Sample

__all__ = ["Epoch", "check", "run"]

_MESSAGES: Final = 2_000_000  # of a batch, if the file does not say
_MOST_SAMPLES: Final = 4  # of a kind
_ALWAYS_SAID: Final = "; one failure decides the whole."
_TARGETS: Final = "_targets"


def check(config: Config) -> None:
    """What can be known before Spark starts. Raises Error."""
    if config.source.end != "latest":
        raise ConfigError(f"{config.file}: [source] end is not for route, which has none")
    checkpoint = Checkpoint.open(config)
    for one in config.subscriptions:
        if one.filter.kind == "code":
            try:
                CodeFilter(one.filter.text, one.filter.source).check()
            except ConfigError as error:
                raise ConfigError(f"{config.file}: subscription {one.group}: {error}") from None
    Sinks(None, checkpoint.run_id).check(_sinks(config.subscriptions, config.unmatched))
    sources.check(config.source, checkpoint.offsets(checkpoint.planned))


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
    with checkpoint.locked():
        route = Route(spark, config, checkpoint, stop, out)
        route.plan()
        if dry_run:
            route.summary.status = "not run"
            return route.summary
        return route.run(continuous, report)


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

    @property
    def place(self) -> str:
        """Where it begins, for a person."""
        queues = [
            f"{topic}/{broker}/{number} at {offset}"
            for topic, brokers in (self.offsets or {}).items()
            if topic and isinstance(brokers, dict)
            for broker, numbers in brokers.items()
            for number, offset in numbers.items()
        ]
        if not queues:
            return f"batch {self.from_batch}"
        return ", ".join(queues[:8]) + (f" and {len(queues) - 8} more" if queues[8:] else "")


def epochs_of(checkpoint: Checkpoint, config: Config) -> list[Epoch]:
    """Those of the checkpoint, and a new one if the file has changed. One that no batch was planned
    in yet never was."""
    try:
        known = [Epoch.from_dict(one) for one in checkpoint.data.get("epochs", ())]
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
    return epochs


def _definitions(epoch: Epoch) -> str:
    fields = epoch.to_dict()
    return json.dumps([fields["subscriptions"], fields["unmatched"]], sort_keys=True)


def _sinks(subscriptions: Sequence[Subscription], unmatched: Sink | None) -> list[Sink]:
    return [*(one.sink for one in subscriptions), *([unmatched] if unmatched else [])]


class Route:
    """One run of the job. Spark calls `_take` with each batch, from a thread of its own."""

    def __init__(
        self,
        spark: SparkSession,
        config: Config,
        checkpoint: Checkpoint,
        stop: Stop,
        out: Callable[[str], None],
    ) -> None:
        self._spark = spark
        self._config = config
        self._checkpoint = checkpoint
        self._stop = stop
        self._sinks = Sinks(spark, checkpoint.run_id, out)
        self._epochs: list[Epoch] = []
        self._plan: tuple[Epoch, Plan] | None = None  # of the last batch
        self._batch: int | None = None  # begun last
        self._failure: BaseException | None = None
        self.summary = RouteSummary(
            job="route",
            file=str(config.file),
            source=config.source.name,
            unmatched_sink=config.unmatched.name if config.unmatched else None,
        )
        self._counts: dict[str, GroupCounts] = {}

    def plan(self) -> None:
        """Which subscriptions are for which batches. Nothing is written."""
        checkpoint = self._checkpoint
        self._epochs = epochs_of(checkpoint, self._config)
        for before, epoch in zip(self._epochs, self._epochs[1:], strict=False):
            if epoch.from_batch > checkpoint.planned:
                for change in epoch.changes(before):
                    self.summary.notes.append(f"{change}: applies from {epoch.place}")
        if checkpoint.planned > checkpoint.done:
            self.summary.notes.append(
                f"batch {checkpoint.planned} was begun by an earlier run and is done again"
            )
        totals = checkpoint.data.get("totals", {})
        for epoch in self._live():
            for one in epoch.subscriptions:
                counts = GroupCounts(one.group, one.filter.name, one.sink.name, promise(one.sink))
                counts.total, counts.total_failed = totals.get(one.group, (0, 0))
                self._counts[one.group] = counts
        self.summary.groups = list(self._counts.values())
        self._sinks.check(self._all_sinks())

    def _live(self) -> list[Epoch]:
        """Those this run may need: of the batch to be done again, and the last."""
        return [one for one in self._epochs[-2:] if one is self._epochs[-1] or self._is_again]

    @property
    def _is_again(self) -> bool:
        return self._checkpoint.planned > self._checkpoint.done

    def _all_sinks(self) -> list[Sink]:
        return list({sink.name: sink for one in self._live() for sink in one.sinks}.values())

    def run(self, continuous: bool, report: Report) -> RouteSummary:
        checkpoint, summary = self._checkpoint, self.summary
        checkpoint.data["epochs"] = [one.to_dict() for one in self._epochs]
        self._sinks.claim(self._all_sinks())
        checkpoint.save()
        summary.started = datetime.now(UTC).isoformat(timespec="seconds")
        began = time.perf_counter()
        query = self._start(continuous)
        try:
            drive(
                query,
                self._stop,
                report,
                is_busy=self._is_busy,
                messages=lambda: summary.messages,
            )
        except JobFailed:
            if self._failure is not None:
                raise JobFailed(one_line(self._failure)) from self._failure
            raise
        finally:
            summary.seconds = round(time.perf_counter() - began, 3)
            done = checkpoint.last_done()
            summary.offsets = checkpoint.offsets(done)
        if self._stop.asked:
            summary.status = "stopped"
            summary.notes.append("run it again to go on from there")
        return summary

    def _start(self, continuous: bool) -> Any:
        live = self._live()
        wanted = {name for one in live for sink in one.sinks for name in sink.needs}
        self._needs = steps.needs(
            [sub.filter for one in live for sub in one.subscriptions], {*wanted, *PLACE}
        )
        rows = sources.open_source(
            self._spark,
            self._config.source,
            streaming=True,
            columns=self._needs.columns,
            properties=self._needs.properties,
            limit=self._config.max_offsets_per_batch or _MESSAGES,
        )
        writer = rows.writeStream.foreachBatch(self._take).queryName(self._config.file.stem)
        writer = writer.option("checkpointLocation", self._checkpoint.location)
        if continuous:
            return writer.trigger(processingTime=f"{self._config.interval} seconds").start()
        return writer.trigger(availableNow=True).start()

    def _is_busy(self) -> bool:
        return self._batch is not None and self._checkpoint.last_done() < self._batch

    def _take(self, rows: DataFrame, batch: int) -> None:
        if self._stop.asked:
            raise Stopped
        self._batch = batch
        epoch = next(one for one in reversed(self._epochs) if one.from_batch <= batch)
        try:
            counted = self._route(rows, epoch, batch)
            self._add(counted, epoch, batch)
        except BaseException as error:
            self._failure = error
            raise

    def _route(self, rows: DataFrame, epoch: Epoch, batch: int) -> dict[str, Any]:
        sinks = epoch.sinks
        observation = Observation()
        if self._plan is None or self._plan[0] is not epoch:
            self._plan = (epoch, Plan(epoch, self._needs))
        routed = self._plan[1].routed(rows, observation)
        jobs = self._sinks.jobs(sinks)
        if len(jobs) == 1 and sinks[0].format != "console":
            self._sinks.write(routed, sinks, batch)
            return observation.get
        kept = routed.persist()
        try:
            kept.write.format("noop").mode("overwrite").save()
            names = [*(one.group for one in epoch.subscriptions), "unmatched"]
            self._sinks.write(kept, sinks, batch, names)
        finally:
            kept.unpersist()
        return observation.get

    def _add(self, counted: Mapping[str, Any], epoch: Epoch, batch: int) -> None:
        summary, data = self.summary, self._checkpoint.data
        summary.messages += counted["read"]
        summary.batches += 1
        summary.unmatched += counted["unmatched"]
        _keep(summary.unmatched_samples, _samples(counted, "unmatched", lambda row: ""))
        is_new = batch > data.get("counted", -1)
        totals = data.setdefault("totals", {})
        for number, one in enumerate(epoch.subscriptions):
            counts = self._counts[one.group]
            matched, failed = counted[f"matched_{number}"], counted.get(f"failed_{number}", 0)
            counts.matched += matched
            counts.failed += failed
            if is_new:
                counts.total += matched
                counts.total_failed += failed
                totals[one.group] = (counts.total, counts.total_failed)
            _keep(counts.samples, _samples(counted, f"failed_{number}", _reason_of(one)))
        if is_new:
            data["counted"] = batch
        self._checkpoint.save()


class Plan:
    """What becomes of an epoch's rows. Made once for all its batches: with many subscriptions it is
    many expressions, each of which costs calls into the JVM."""

    def __init__(self, epoch: Epoch, needs: steps.Needs) -> None:
        compiled = steps.outcomes([one.filter for one in epoch.subscriptions], needs.property_of)
        place = [F.col(name) for name in PLACE]
        self._outcomes: list[Column] = []
        self._counted = [F.count(F.lit(1)).alias("read")]
        targets: list[Column] = []
        for number, one in enumerate(epoch.subscriptions):
            name = f"_outcome_{number}"
            self._outcomes.append(compiled[number].alias(name))
            outcome, facts = F.col(name), []
            if one.filter.kind == "code":
                outcome, facts = F.col(name)["outcome"], [F.col(name)["error"].alias("error")]
            elif one.filter.kind == "sql":
                read = enumerate(steps.properties_read(one.filter))
                facts = [needs.property_of(name).alias(f"p{at}") for at, name in read]
            has_matched = outcome == int(Outcome.TRUE)
            targets.append(F.when(has_matched, F.lit(number)))
            self._counted.append(F.count_if(has_matched).alias(f"matched_{number}"))
            if one.filter.kind != "tags":
                has_failed = outcome == int(Outcome.ERROR)
                sample = F.struct(*place, *facts)
                self._counted += _counted(f"failed_{number}", has_failed, sample)
        is_unmatched = F.size(_TARGETS) == 0
        self._counted += _counted("unmatched", is_unmatched, F.struct(*place))
        self._targets = F.array_compact(F.array(*targets))
        numbers = F.col(_TARGETS)
        if epoch.unmatched is not None:
            numbers = F.when(is_unmatched, F.array(F.lit(len(targets)))).otherwise(numbers)
        columns = dict.fromkeys(name for sink in epoch.sinks for name in sink.needs)
        self._wanted = [F.explode(numbers).alias(TO), *map(F.col, columns)]

    def routed(self, rows: DataFrame, observation: Observation) -> DataFrame:
        """A row for each message and each sink that gets it, by its number in `TO`. What is counted
        on the way comes with `observation` when an action has gone through all of them."""
        evaluated = rows.select("*", *self._outcomes).withColumn(_TARGETS, self._targets)
        return evaluated.observe(observation, *self._counted).select(*self._wanted)


def _counted(name: str, condition: Column, sample: Column) -> list[Column]:
    return [
        F.count_if(condition).alias(name),
        F.min(F.when(condition, sample)).alias(f"{name}_first"),
        F.max(F.when(condition, sample)).alias(f"{name}_last"),
    ]


def _samples(
    counted: Mapping[str, Any], name: str, reason: Callable[[Row], str]
) -> Iterator[Sample]:
    found = (counted.get(f"{name}_first"), counted.get(f"{name}_last"))
    for row in dict.fromkeys(row for row in found if row is not None):
        queue = f"{row.topic}/{row.broker or ''}/{row.queue_id}"
        yield Sample(f"{queue} at {row.offset}", row.message_id, reason(row))


def _reason_of(subscription: Subscription) -> Callable[[Row], str]:
    filter = subscription.filter
    if filter.kind == "code":
        return lambda row: str(row.error)
    names = steps.properties_read(filter)

    def reason(row: Row) -> str:
        values = {name: row[f"p{at}"] for at, name in enumerate(names)}
        properties = {name: value for name, value in values.items() if value is not None}
        whole = explain(parse(filter.text, filter.dialect), properties).reason
        return whole.removeprefix("It does not match: ").removesuffix(_ALWAYS_SAID)

    return reason


def _keep(kept: list[Sample], more: Iterator[Sample]) -> None:
    kept += [one for one in more if one not in kept]
    del kept[_MOST_SAMPLES:]
