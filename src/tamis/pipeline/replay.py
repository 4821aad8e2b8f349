"""The job replay: messages of a time or of some offsets once more, filtered, at a bounded rate.

What is replayed is fixed when the job begins, also if it is replayed into the topic it comes from,
and is cut into slices: of each queue a share, or of an archive some files. A slice is

1. read and filtered;
2. written: to files at once, under its number; elsewhere in the order its messages were stored, in
   chunks of what may go in a second, each at its time;
3. recorded in the checkpoint, and so is each chunk.

Killed, it goes on with the slice, or the chunk, it was at: files have each message once, others may
have one chunk twice.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from ..errors import ConfigError
from ..filter import Outcome
from ..spark.code import CodeFilter
from ..spark.options import Options
from ..spark.origins import open_origin, placed
from . import archive, steps
from .checkpoint import Checkpoint
from .config import FILE_FORMATS, Config, Replay
from .runner import JobFailed, Report, Stop, one_line
from .sinks import TO, Sinks, promise
from .sources import place_of
from .summary import Summary, columns_of

__all__ = ["ReplaySummary", "check", "run"]

_SLICE: Final = 500_000  # messages read at a time, if the file does not say

_FILES: Final = 16  # of an archive at a time
_CHUNK: Final = 1.0  # seconds' worth of messages
_LOOK: Final = 0.1  # seconds between looks at Ctrl-C while waiting
_AT: Final = "_at"
_ORDER: Final = ("store_timestamp", "broker", "queue_id", "offset")


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
    replay = _of(config)
    checkpoint = Checkpoint.open(config)
    _check_same(config, checkpoint)
    if replay.filter.kind == "code":
        CodeFilter(replay.filter.text, replay.filter.source).check()
    Sinks(None, checkpoint.run_id).check([replay.sink])
    _ranges_asked(config)
    if config.source.archive is None and "plan" not in checkpoint.data:
        _positions(config)


def run(
    spark: SparkSession,
    config: Config,
    *,
    continuous: bool = False,
    dry_run: bool = False,
    stop: Stop | None = None,
    report: Report | None = None,
    out: Callable[[str], None] = print,
) -> ReplaySummary:
    """Until all is replayed. A dry run counts and writes nothing. Raises ConfigError before
    anything is written, JobFailed later."""
    if continuous:
        raise ConfigError(f"{config.file}: a replay has an end: it can't be continuous")
    stop, report = stop or Stop(), report or Report(None)
    checkpoint = Checkpoint.open(config, spark)
    with checkpoint.locked():
        _check_same(config, checkpoint)
        job = _Job(spark, config, checkpoint, stop, report, out)
        try:
            return job.count() if dry_run else job.run()
        except (ConfigError, OSError):
            raise
        except Exception as error:
            raise JobFailed(one_line(error)) from error
        finally:
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
        self._needs = steps.needs(
            [self._replay.filter], {*self._replay.sink.needs, *_ORDER, "topic"}
        )
        self.summary = ReplaySummary(
            job="replay",
            file=str(config.file),
            source=config.source.name,
            filter=self._replay.filter.name,
            sink=self._replay.sink.name,
            promise=promise(self._replay.sink),
            rate=self._replay.rate,
        )

    def count(self) -> ReplaySummary:
        summary, plan = self.summary, self._plan()
        summary.started = datetime.now(UTC).isoformat(timespec="seconds")
        summary.status, summary.slices = "not run", len(plan["slices"])
        summary.slices_done = self._checkpoint.data.get("slice", 0)
        began = time.perf_counter()
        day = archive.day_of(F.col("store_timestamp")).alias("day")
        for part in plan["slices"][summary.slices_done :]:
            if self._stop.asked:
                summary.status = "stopped"
                break
            judged = self._judged(self._rows(part))
            counted = judged.groupBy(day, "_outcome").count().collect()
            for at, outcome, count in counted:
                self._count_day(at, Outcome(outcome), count)
            summary.batches += 1
            self._report.update(summary.messages)
        summary.days.sort(key=lambda one: str(one["day"]))
        summary.seconds = round(time.perf_counter() - began, 3)
        return summary

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
        self._sinks.claim([self._replay.sink])
        checkpoint.data["plan"] = plan
        checkpoint.save()
        slices = plan["slices"]
        done: int = checkpoint.data.get("slice", 0)
        summary.slices, summary.slices_done = len(slices), done
        if done:
            summary.notes.append(f"{done} of {len(slices)} slices were done before")
        summary.started = datetime.now(UTC).isoformat(timespec="seconds")
        began = time.perf_counter()
        try:
            for number in range(done, len(slices)):
                if self._stop.asked or not self._do(slices[number], number):
                    break
                checkpoint.data |= {"slice": number + 1, "sent": 0}
                checkpoint.save()
                summary.batches += 1
                summary.slices_done = number + 1
        finally:
            summary.seconds = round(time.perf_counter() - began, 3)
        if summary.slices_done < len(slices):
            summary.status = "stopped"
            summary.notes.append("run it again to go on from there")
        return summary

    def _do(self, part: Any, number: int) -> bool:
        """A slice. False if it was given up in the middle."""
        began = time.monotonic()
        sink, rate = self._replay.sink, self._replay.rate
        observation = Observation()
        matched = _counting(self._judged(self._rows(part)), observation)
        matched = matched.where(F.col("_outcome") == int(Outcome.TRUE))
        matched = matched.select(*dict.fromkeys((*sink.needs, *_ORDER)), F.lit(0).alias(TO))
        if sink.format in FILE_FORMATS:
            self._sinks.write(matched, [sink], number)
            counted = observation.get
            self.summary.sent += counted["matched"]
            self._add(counted)
            if rate is not None:
                self._wait(began + counted["matched"] / rate)
            return True
        # Counted before they are put in order: Spark forgets what it observed of rows that turn
        # out to be none after a shuffle.
        kept = matched.persist()
        try:
            count = kept.count()
            self._add(observation.get)
            return self._send(kept, count, number)
        finally:
            kept.unpersist()

    def _send(self, kept: DataFrame, count: int, number: int) -> bool:
        data, summary, rate = self._checkpoint.data, self.summary, self._replay.rate
        ordered = kept.repartition(1).sortWithinPartitions(*_ORDER)
        # There is one partition, so these are places in that order, from 0.
        placed = ordered.withColumn(_AT, F.monotonically_increasing_id()).persist()
        size = count if rate is None else max(math.floor(rate * _CHUNK), 1)
        try:
            for start in range(data.get("sent", 0), count, max(size, 1)):
                if self._stop.asked:
                    return False
                began = time.monotonic()
                end = min(start + size, count)
                chunk = placed.where(F.col(_AT).between(start, end - 1)).drop(_AT)
                self._sinks.write(chunk, [self._replay.sink], number)
                data["sent"] = end
                self._checkpoint.save()
                summary.sent += end - start
                self._report.update(summary.sent)
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
        self._report.update(summary.sent)

    def _judged(self, rows: DataFrame) -> DataFrame:
        outcome = steps.outcome(self._replay.filter, self._needs.property_of)
        return rows.withColumn("_outcome", outcome)

    # What is read: slices, each JSON, kept by the checkpoint.

    def _plan(self) -> dict[str, Any]:
        found: dict[str, Any] | None = self._checkpoint.data.get("plan")
        if found is not None:
            return found
        size = self._config.max_offsets_per_batch or _SLICE
        if self._config.source.archive is not None:
            slices: list[Any] = self._slices_of_files()
        else:
            slices = list(_slices(_positions(self._config), size))
        return {"asked": _asked(self._config), "slices": slices}

    def _slices_of_files(self) -> list[list[str]]:
        """Some files each, in the order they were archived; all there is of a table format."""
        path = self._config.source.archive
        assert path is not None
        if archive.describe(path, self._spark).format not in FILE_FORMATS:
            return [[]]
        start, end = self._times()
        every = archive.list_files(path, self._spark, self._config.source.topics, start, end)
        return [every[at : at + _FILES] for at in range(0, len(every), _FILES)]

    def _times(self) -> tuple[str, str]:
        source, replay = self._config.source, self._replay
        return replay.since or source.start, replay.until or source.end

    def _archive_rows(self, paths: Sequence[str]) -> DataFrame:
        source, (start, end) = self._config.source, self._times()
        assert source.archive is not None
        return archive.read(
            self._spark, source.archive, topics=source.topics, start=start, end=end, paths=paths
        )

    def _rows(self, part: Any) -> DataFrame:
        needs, asked = self._needs, _ranges_asked(self._config)
        if self._config.source.archive is not None:
            rows = self._archive_rows(part)
            text_of = archive.text_of(rows)
            named = [text_of(name).alias(name) for name in needs.properties]
            rows = rows.select(*needs.columns, *named)
            return rows if asked is None else rows.where(_inside(asked))
        source = self._config.source
        reader = self._spark.read.format("rocketmq" if source.nameserver else "rocketmq-log")
        reader = reader.options(columns=",".join(needs.columns))
        reader = reader.options(**{**place_of(source), **source.options})
        if needs.properties:
            reader = reader.option("properties", ",".join(needs.properties))
        rows = reader.options(**_places(part)).load()
        since, until = self._replay.since, self._replay.until
        if since is not None:  # queues are searched by time, which clocks set back
            rows = rows.where(F.col("store_timestamp") >= archive.moment(since))
        if until is not None:
            rows = rows.where(F.col("store_timestamp") < archive.moment(until))
        return rows


def _of(config: Config) -> Replay:
    assert config.replay is not None
    return config.replay


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


# {"orders": {"broker-a": {"0": [12, 40]}}}: from, up to
Ranges = dict[str, dict[str, dict[str, tuple[int, int]]]]


def _ranges_asked(config: Config) -> Ranges | None:
    text = _of(config).offsets
    if text is None:
        return None
    where = f"{config.file}: [replay] offsets"
    try:
        found = {
            topic: {
                broker: {str(int(queue)): _pair(pair) for queue, pair in queues.items()}
                for broker, queues in brokers.items()
            }
            for topic, brokers in json.loads(text).items()
        }
    except (ValueError, TypeError, AttributeError):
        raise ConfigError(
            f'{where}: it takes {{"topic": {{"broker": {{"0": [from, up to]}}}}}}'
        ) from None
    source = config.source
    strange = [topic for topic in found if source.topics and topic not in source.topics]
    if strange:
        raise ConfigError(f"{where}: {strange[0]} is no topic of [source]")
    return found


def _pair(value: Any) -> tuple[int, int]:
    start, end = value
    if not (isinstance(start, int) and isinstance(end, int) and 0 <= start <= end):
        raise ValueError(value)
    return start, end


def _inside(asked: Ranges) -> Column:
    condition = F.lit(False)
    for topic, brokers in asked.items():
        for broker, queues in brokers.items():
            for queue, (start, end) in queues.items():
                condition |= (
                    (F.col("topic") == topic)
                    & (F.coalesce("broker", F.lit("")) == broker)
                    & (F.col("queue_id") == int(queue))
                    & F.col("offset").between(start, end - 1)
                )
    return condition


def _positions(config: Config) -> Ranges:
    """From where to where, of each queue, as things are now. Raises Error, TimeoutError."""
    source, replay = config.source, _of(config)
    asked = _ranges_asked(config)
    start, end = replay.since or source.start, replay.until or source.end
    said = {**place_of(source), **source.options}
    if source.topics:
        said["topic"] = ",".join(source.topics)
    said["startingOffsets" if start in ("earliest", "latest") else "startingTimestamp"] = start
    said["endingOffsets" if end == "latest" else "endingTimestamp"] = end
    options = Options.parse(said, of_log=source.nameserver is None)
    with closing(open_origin(options)) as origin:
        bounds = origin.bounds()
        starts = placed(origin, options.start or -2, bounds, "startingOffsets")
        ends = placed(origin, options.end or -1, bounds, "endingOffsets")
    found: Ranges = {}
    for queue, (low, high) in sorted(bounds.items()):
        first, last = max(starts[queue], low), min(ends[queue], high)
        if asked is not None:
            queues = asked.get(queue.topic, {}).get(queue.broker_name, {})
            first, last = queues.pop(str(queue.queue_id), (0, 0))
            if first < last and (first < low or last > high):
                raise ConfigError(
                    f"{config.file}: [replay] offsets: {queue} has {low} up to {high},"
                    f" not {first} up to {last}"
                )
        if first < last:
            brokers = found.setdefault(queue.topic, {})
            brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = (first, last)
    for topic, brokers in (asked or {}).items():
        for broker, queues in brokers.items():
            for number in queues:
                raise ConfigError(
                    f"{config.file}: [replay] offsets: there is no queue {number} of {topic} on"
                    f" broker {broker!r}"
                )
    return found


def _slices(positions: Ranges, size: int) -> Iterator[Ranges]:
    """Each with a part of every queue, all in step: what was stored together goes together."""
    pairs = [
        pair for brokers in positions.values() for queues in brokers.values()
        for pair in queues.values()
    ]  # fmt: skip
    count = -(-sum(end - start for start, end in pairs) // size)
    for number in range(count):
        yield {
            topic: {
                broker: {
                    queue: (
                        start + (end - start) * number // count,
                        start + (end - start) * (number + 1) // count,
                    )
                    for queue, (start, end) in queues.items()
                }
                for broker, queues in brokers.items()
            }
            for topic, brokers in positions.items()
        }


def _places(part: Ranges) -> dict[str, str]:
    """Options of a source that reads just these."""

    def each(value: Callable[[tuple[int, int]], int]) -> str:
        return json.dumps(
            {
                topic: {
                    broker: {queue: value(pair) for queue, pair in queues.items()}
                    for broker, queues in brokers.items()
                }
                for topic, brokers in part.items()
            }
        )

    assigned = {
        topic: {broker: [int(queue) for queue in queues] for broker, queues in brokers.items()}
        for topic, brokers in part.items()
    }
    return {
        "assign": json.dumps(assigned),
        "startingOffsets": each(lambda pair: pair[0]),
        "endingOffsets": each(lambda pair: pair[1]),
    }


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
