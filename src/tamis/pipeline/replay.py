"""The job replay: messages of a time or of some offsets once more, filtered, at a bounded rate.

What is replayed is fixed when the job begins, also if it is replayed into the topic it comes from,
and is cut into slices: of each queue a share, or of an archive some files. A slice is

1. read and filtered;
2. written: to files at once, under its number; elsewhere in the order its messages were stored, in
   chunks, of what may go in a second if there is a rate, each at its time;
3. recorded in the checkpoint, and so is each chunk.

Killed, it goes on with the slice, or the chunk, it was at: files have each message once, others may
have one chunk twice. The first Ctrl-C ends it with the slice or the chunk, a second gives that up.
The messages that an audit lists as lost are replayed by `lost`.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any, Final

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from ..code import Context
from ..errors import ConfigError
from ..filter import Outcome
from . import archive, lost, slices, sources, steps
from .checkpoint import Checkpoint
from .config import FILE_FORMATS, Config, Replay
from .runner import JobFailed, Report, Stop, one_line
from .sinks import TO, Sinks, promise
from .summary import Summary, columns_of

__all__ = ["ReplaySummary", "check", "run"]

_CHUNK: Final = 1.0  # seconds' worth of messages
_MESSAGES: Final = 50_000  # of a chunk without a rate
_OF_SLICE: Final = 10**9  # more than a slice has messages
_LOOK: Final = 0.1  # seconds between looks at Ctrl-C while waiting
_AT: Final = "_at"
_ORDER: Final = ("store_timestamp", "topic", "broker", "queue_id", "offset")  # no two are equal


@dataclass(kw_only=True)
class ReplaySummary(Summary):
    """`messages` are those read. Counts are of this run; `days` of a dry run only."""

    filter: str = ""
    sink: str = ""
    promise: str = ""
    rate: float | None = None
    matched: int = 0
    not_matched: int = 0
    failed: int = 0
    sent: int = 0
    slices: int = 0  # in all
    slices_done: int = 0
    days: list[dict[str, Any]] = field(default_factory=list)

    @property
    def warnings(self) -> list[str]:
        return ["the filter failed on every message"] if 0 < self.messages == self.failed else []

    @property
    def filter_errors(self) -> int:
        return self.failed

    def body(self) -> list[str]:
        lines = [
            f"  {self.filter}: {self.matched:,} matched, {self.not_matched:,} did not,"
            f" failed on {self.failed:,}"
        ]
        if self.days:
            head = ("day (UTC)", "matched", "not matched", "failed")
            rows = [
                (one["day"], *(f"{one[name]:,}" for name in ("matched", "not_matched", "failed")))
                for one in self.days
            ]
            lines += ["  " + line for line in columns_of([head, *rows], right=(1, 2, 3))]
        if self.status == "not run":
            at = f", {_duration(self.matched / self.rate)} at {self.rate:,.0f} a second" \
                if self.rate else ""  # fmt: skip
            return [*lines, f"  {self.sink} would get {self.matched:,} messages{at}"]
        rate = f", at most {self.rate:,.0f} a second" if self.rate else ""
        return [
            *lines,
            f"  {self.sent:,} to {self.sink} ({self.promise}{rate}),"
            f" {self.slices_done} of {self.slices} slices done",
        ]


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 7200 else f"{seconds / 3600:.1f} hours"


def check(config: Config) -> None:
    """What can be known before Spark starts. Raises Error."""
    if config.replay_of_lost is not None:
        lost.check(config)
        return
    replay = _of(config)
    checkpoint = Checkpoint.open(config)
    _check_same(config, checkpoint)
    steps.check_code(replay.filter, config.source)
    Sinks(None, checkpoint.run_id).check([replay.sink], _slice(checkpoint))
    slices.asked(config)
    if config.source.archive is not None:
        sources.check(config.source, None, limit=config.max_offsets_per_batch)
    elif "plan" in checkpoint.data:
        slices.options_of(config)
    else:
        slices.positions(config)


def run(
    spark: SparkSession,
    config: Config,
    *,
    continuous: bool = False,
    dry_run: bool = False,
    stop: Stop | None = None,
    report: Report | None = None,
    out: Callable[[str], None] = print,
) -> "ReplaySummary | lost.LostSummary":
    """Until all is replayed. A dry run counts and writes nothing. Raises ConfigError before
    anything is written, JobFailed later."""
    if continuous:
        raise ConfigError(f"{config.file}: a replay has an end: it can't be continuous")
    stop, report = stop or Stop(), report or Report(None)
    if config.replay_of_lost is not None:
        return lost.run(spark, config, dry_run=dry_run, stop=stop, report=report)
    checkpoint = Checkpoint.open(config, spark)
    with checkpoint.locked(dry_run):
        _check_same(config, checkpoint)
        job = _Job(spark, config, checkpoint, stop, report, out)
        context, tag = spark.sparkContext, f"tamis-{checkpoint.run_id}"
        context.addJobTag(tag)
        stop.on_give_up = lambda: context.cancelJobsWithTag(tag)
        try:
            return job.count() if dry_run else job.run()
        except (ConfigError, OSError):
            raise
        except Exception as error:
            failed = JobFailed(one_line(error))
            if not dry_run:
                job.summary.status, failed.summary = "failed", job.summary
            raise failed from error
        finally:
            stop.on_give_up = None
            context.removeJobTag(tag)
            report.close()


class _Job:
    def __init__(
        self,
        spark: SparkSession,
        config: Config,
        checkpoint: Checkpoint,
        stop: Stop,
        report: Report,
        out: Callable[[str], None],
    ) -> None:
        self._spark = spark
        self._config = config
        self._replay = _of(config)
        self._checkpoint = checkpoint
        self._stop = stop
        self._report = report
        self._sinks = Sinks(spark, checkpoint.run_id, out)
        self._needs = steps.needs([self._replay.filter], {*self._replay.sink.needs, *_ORDER})
        self._later: int | None = None  # messages of the slices to come, where that is known
        self.summary = ReplaySummary(
            job="replay",
            file=str(config.file),
            source=config.source.name,
            filter=self._replay.filter.name,
            sink=self._replay.sink.name,
            promise=promise(self._replay.sink),
            rate=self._replay.rate,
            notes=[*checkpoint.notes],
        )

    def count(self) -> ReplaySummary:
        self._sinks.check([self._replay.sink], _slice(self._checkpoint))
        summary, plan = self.summary, self._plan()
        summary.started = datetime.now(UTC).isoformat(timespec="seconds")
        summary.status, summary.slices = "not run", len(plan["slices"])
        summary.slices_done = _slice(self._checkpoint)
        began = time.perf_counter()
        day = archive.day_of(F.col("store_timestamp")).alias("day")
        try:
            for part in self._each(plan["slices"]):
                counted = self._judged(part).groupBy(day, "_outcome").count().collect()
                for at, outcome, count in counted:
                    self._count_day(at, Outcome(outcome), count)
                summary.batches += 1
                self._report.update(summary.messages, self._later)
        except Exception:
            if not self._is_given_up:
                raise
        if summary.slices_done + summary.batches < summary.slices:
            summary.status = "stopped"
        summary.days.sort(key=lambda one: str(one["day"]))
        summary.seconds = round(time.perf_counter() - began, 3)
        return summary

    @property
    def _is_given_up(self) -> bool:
        """Then Spark raises something of the job that was cancelled."""
        return self._stop.count > 1

    def _plan(self) -> dict[str, Any]:
        """It is made once."""
        found: dict[str, Any] | None = self._checkpoint.data.get("plan")
        if found is not None:
            return found
        return {
            "asked": _asked(self._config),
            "slices": slices.slices_of(self._spark, self._config),
        }

    def _each(self, parts: Sequence[Any]) -> Iterator[Any]:
        """Those that are not done, until we are asked to stop."""
        done = _slice(self._checkpoint)
        self._report.begin()
        for number in range(done, len(parts)):
            if self._stop.asked:
                return
            self._later = slices.count(parts[number + 1 :])
            if self._later is None:  # files do not say how many messages they have
                self._report.say(f"slice {number + 1} of {len(parts)}")
            yield parts[number]

    def _count_day(self, day: date, outcome: Outcome, count: int) -> None:
        summary, shown = self.summary, day.isoformat()
        found = [one for one in summary.days if one["day"] == shown]
        if not found:
            found = [{"day": shown, "matched": 0, "not_matched": 0, "failed": 0}]
            summary.days += found
        name = _name(outcome)
        found[0][name] += count
        setattr(summary, name, getattr(summary, name) + count)
        summary.messages += count

    def run(self) -> ReplaySummary:
        checkpoint, summary = self._checkpoint, self.summary
        plan = self._plan()
        parts, done = plan["slices"], _slice(checkpoint)
        self._sinks.check([self._replay.sink], done)
        checkpoint.data["plan"] = plan
        checkpoint.save()  # before `claim`, whose mark has the run's id
        self._sinks.claim([self._replay.sink])
        summary.slices, summary.slices_done = len(parts), done
        if done:
            summary.notes.append(f"{done} of {len(parts)} slices were done before")
        summary.started = datetime.now(UTC).isoformat(timespec="seconds")
        began = time.perf_counter()
        try:
            for number, part in enumerate(self._each(parts), done):
                if not self._do(part, number):
                    break
                checkpoint.data |= {"slice": number + 1, "sent": 0}
                checkpoint.save()
                summary.batches += 1
                summary.slices_done = number + 1
        except Exception:
            if not self._is_given_up:
                raise
        finally:
            summary.seconds = round(time.perf_counter() - began, 3)
        if summary.slices_done < len(parts):
            summary.status = "stopped"
            summary.notes.append("run it again to go on from there")
        return summary

    def _do(self, part: Any, number: int) -> bool:
        """A slice. False if it was given up in the middle."""
        began = time.monotonic()
        sink, rate = self._replay.sink, self._replay.rate
        observation = Observation()
        matched = _counting(self._judged(part), observation)
        matched = matched.where(F.col("_outcome") == int(Outcome.TRUE))
        matched = matched.select(*dict.fromkeys((*sink.needs, *_ORDER)), F.lit(0).alias(TO))
        if sink.format in FILE_FORMATS:
            self._sinks.write(matched, [sink], number)
            counted = observation.get
            self._sinks.confirm([sink], number, {0: counted["matched"]})
            self.summary.sent += counted["matched"]
            self._add(counted)
            self._tell(0)
            if rate is not None:
                self._wait(began + counted["matched"] / rate)
            return True
        # Counted before they are put in order: Spark forgets what it observed of rows that turn
        # out to be none after a shuffle.
        kept = matched.persist()
        try:
            count = kept.count()
            self._add(observation.get)
            self._tell(count - self._checkpoint.data.get("sent", 0))
            return self._send(kept, count, number)
        finally:
            kept.unpersist()

    def _send(self, kept: DataFrame, count: int, number: int) -> bool:
        data, summary, rate = self._checkpoint.data, self.summary, self._replay.rate
        ordered = kept.repartition(1).sortWithinPartitions(*_ORDER)
        # There is one partition, so these are places in that order, from 0.
        placed = ordered.withColumn(_AT, F.monotonically_increasing_id()).persist()
        size = _MESSAGES if rate is None else max(math.floor(rate * _CHUNK), 1)
        try:
            for start in range(data.get("sent", 0), count, size):
                if self._stop.asked:
                    return False
                began = time.monotonic()
                end = min(start + size, count)
                chunk = placed.where(F.col(_AT).between(start, end - 1)).drop(_AT)
                # A table that knows the number has all up to it, also if the rate was changed.
                self._sinks.write(chunk, [self._replay.sink], number * _OF_SLICE + end)
                data["sent"] = end
                self._checkpoint.save()
                summary.sent += end - start
                self._tell(count - end)
                if rate is not None:
                    self._wait(began + (end - start) / rate)
        finally:
            placed.unpersist()
        return True

    def _wait(self, until: float) -> None:
        while (left := until - time.monotonic()) > 0 and not self._stop.asked:
            time.sleep(min(left, _LOOK))

    def _add(self, counted: Mapping[str, int]) -> None:
        summary = self.summary
        summary.matched += counted["matched"]
        summary.failed += counted["failed"]
        summary.not_matched += counted["read"] - counted["matched"] - counted["failed"]
        summary.messages += counted["read"]

    def _tell(self, left: int) -> None:
        """`left` of this slice match; of those to come it is not known which do."""
        self._report.update(self.summary.sent, None if self._later is None else left + self._later)

    def _judged(self, part: Any) -> DataFrame:
        rows = slices.read(self._spark, self._config, part, self._needs)
        context = Context("", self._config.source.topic)
        outcome = steps.outcome(self._replay.filter, self._needs.property_of, context)
        return rows.withColumn("_outcome", outcome)


def _of(config: Config) -> Replay:
    assert config.replay is not None
    return config.replay


def _slice(checkpoint: Checkpoint) -> int:
    """The first that is not done."""
    done: int = checkpoint.data.get("slice", 0)
    return done


def _asked(config: Config) -> dict[str, Any]:
    """What must stay as it was when the job began."""
    replay = _of(config)
    return {
        "filter": replay.filter.to_dict(),
        "sink": replay.sink.name,
        "since": replay.since,
        "until": replay.until,
        "offsets": replay.offsets,
    }


def _check_same(config: Config, checkpoint: Checkpoint) -> None:
    before = checkpoint.data.get("plan", {}).get("asked")
    if before is None:
        return
    for name, value in _asked(config).items():
        if before.get(name) != value:
            raise ConfigError(
                f"{config.file}: [replay] {name} was changed since this replay began: put it back,"
                " or set [run] checkpoint to another directory to begin another"
            )


def _counting(judged: DataFrame, observation: Observation) -> DataFrame:
    outcome = F.col("_outcome")
    return judged.observe(
        observation,
        F.count(F.lit(1)).alias("read"),
        F.count_if(outcome == int(Outcome.TRUE)).alias("matched"),
        F.count_if(outcome == int(Outcome.ERROR)).alias("failed"),
    )


def _name(outcome: Outcome) -> str:
    if outcome is Outcome.ERROR:
        return "failed"
    return "matched" if outcome.matched else "not_matched"
