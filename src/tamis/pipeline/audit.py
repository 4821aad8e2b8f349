"""The job audit: the fate of every message of a topic for every group.

1. What brokers, or a store's files, know of the groups is asked for once, before anything is read:
   progress first, then history, so that no message counts as passed that history does not know of.
2. One pass over the messages, judged on Spark's workers (`judging`, `fates`).
3. Totals, the list of lost messages, the table of fates and the report are made of what that gave.
   Each takes the place of the one before when it is whole; a run that is killed leaves the old one.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ..errors import ConfigError
from ..fate import Fate
from ..spark.groups import BrokerGroups, ask_brokers, read_store
from ..spark.options import Options
from ..spark.origins import open_origin
from . import audit_report, fates, outputs, records, retries, sources
from .audit_config import Audit
from .checkpoint import Checkpoint
from .config import Config, Source, millis_of
from .judging import FATES, GroupRecord
from .runner import JobFailed, Report, Stop, one_line, watched
from .summary import Summary, columns_of

__all__ = ["AuditSummary", "check", "gather", "run"]

JOB: Final = "audit"
TABLE: Final = (
    *("topic", "broker", "queue_id", "offset", "message_id", "tags", "store_timestamp"),
    *("group", "fate"),
)
LISTED: Final = (*TABLE[:-1], "reason")
LISTED_SCHEMA: Final = (
    "topic STRING, broker STRING, queue_id INT, offset BIGINT, message_id STRING, tags STRING,"
    " store_timestamp TIMESTAMP, group STRING, reason STRING"
)
THE_TABLE: Final = "the table of an audit"  # as `outputs` knows them
THE_LIST: Final = "the list of lost messages of an audit"
_SHOWN: Final = 100  # lost messages in the report
_TOLD: Final = 50  # sentences on filters in code
_TIMEOUT: Final = 10.0  # seconds for an answer, unless [source] options has requestTimeout


@dataclass(slots=True)
class GroupFates:
    """How many messages had which fate, of those that had any."""

    group: str
    fates: dict[str, int] = field(default_factory=dict)


@dataclass(kw_only=True)
class AuditSummary(Summary):
    """`unknown` are sentences on what could not be known."""

    groups: list[GroupFates] = field(default_factory=list)
    lost: int = 0
    table: str | None = None
    lost_list: str | None = None
    report: str | None = None
    unknown: list[str] = field(default_factory=list)

    def body(self) -> list[str]:
        if self.status == "not run":
            named = ", ".join(one.group for one in self.groups) or "none"
            return [f"  groups: {named}", *(f"  unknown: {text}" for text in self.unknown)]
        used = [fate for fate in FATES if any(fate in one.fates for one in self.groups)]
        head = ("group", *used)
        rows = [(one.group, *(f"{one.fates.get(fate, 0):,}" for fate in used))
                for one in self.groups]  # fmt: skip
        right = tuple(range(1, len(head)))
        lines = ["  " + line for line in columns_of([head, *rows], right=right)]
        lines += [f"  unknown: {text}" for text in self.unknown]
        for what, where in (
            ("fates", self.table),
            (f"{self.lost:,} lost", self.lost_list),
            ("report", self.report),
        ):
            if where is not None:
                lines.append(f"  {what}: {where}")
        if self.lost and self.lost_list is None:
            lines.append(f"  {self.lost:,} lost; name a place for their list: [audit] lost")
        return lines


def check(config: Config) -> None:
    """What can be known before Spark starts. Raises Error."""
    audit = _of(config)
    for output, what in (audit.table, THE_TABLE), (audit.lost, THE_LIST):
        if output is not None:
            outputs.check(output, what)
    if audit.report is not None:
        audit_report.check(audit.report)
    sources.check(config.source, None)
    brokers = gather(config.source)
    known = records.groups_known(brokers, config.source.topics)
    records.choose(known, audit.groups, f"{config.file}: [audit] ")


def gather(source: Source) -> list[BrokerGroups]:
    """Ask for what is known of the groups now. Raises Error, TimeoutError."""
    if source.store is not None:
        return [read_store(source.store, _option(source, "broker") or "")]
    options = Options.parse(
        {**sources.place_of(source), **source.options, "topic": source.topics[0]}, of_log=False
    )
    return ask_brokers(source.nameserver or "", source.topics, options.timeout, options.security)


def _option(source: Source, name: str) -> str | None:
    return next((value for key, value in source.options.items() if key.lower() == name), None)


def run(
    spark: SparkSession,
    config: Config,
    *,
    continuous: bool = False,
    dry_run: bool = False,
    stop: Stop | None = None,
    report: Report | None = None,
    out: Callable[[str], None] = print,
    brokers: Sequence[BrokerGroups] | None = None,
) -> AuditSummary:
    """Judge all messages. A dry run reads none. `brokers`: what `gather` gives, if it is known
    already. Raises ConfigError before anything is written, JobFailed later."""
    if continuous:
        raise ConfigError(f"{config.file}: an audit has an end: it can't be continuous")
    stop, report = stop or Stop(), report or Report(None)
    checkpoint = Checkpoint.open(config, spark)
    with checkpoint.locked(dry_run):
        job = _Job(spark, config, brokers)
        context, tag = spark.sparkContext, f"tamis-{checkpoint.run_id}"
        context.addJobTag(tag)
        stop.on_give_up = lambda: context.cancelJobsWithTag(tag)
        try:
            return job.describe() if dry_run else job.run(report)
        except (ConfigError, OSError):
            raise
        except Exception as error:
            if stop.count > 1:  # Spark raises something of the job that was cancelled
                job.summary.status = "stopped"
                job.summary.notes.append("nothing was written")
                return job.summary
            failed = JobFailed(one_line(error))
            job.summary.status, failed.summary = "failed", job.summary
            raise failed from error
        finally:
            stop.on_give_up = None
            context.removeJobTag(tag)
            report.close()


class _Job:
    def __init__(
        self, spark: SparkSession, config: Config, brokers: Sequence[BrokerGroups] | None
    ) -> None:
        self._spark = spark
        self._config = config
        self._audit = _of(config)
        source = config.source
        self._bounds = _bounds(source)
        self._brokers = list(gather(source) if brokers is None else brokers)
        known = records.groups_known(self._brokers, source.topics)
        self._groups = records.choose(known, self._audit.groups, f"{config.file}: [audit] ")
        self.summary = AuditSummary(
            job=JOB,
            file=str(config.file),
            source=source.name,
            groups=[GroupFates(group) for group in self._groups],
            unknown=[text for broker in self._brokers for text in broker.unknown],
        )
        if not self._groups:
            self.summary.notes.append(
                "no group is known to have read the topic: nothing was judged or written"
            )

    def describe(self) -> AuditSummary:
        self.summary.status = "not run"
        return self.summary

    def run(self, report: Report) -> AuditSummary:
        summary, audit = self.summary, self._audit
        summary.started = datetime.now(UTC).isoformat(timespec="seconds")
        began = time.perf_counter()
        if not self._groups:
            return summary
        groups = self._records()
        judged, messages = self._judged(groups)
        judged.persist()
        try:
            with watched(self._spark, report, messages):
                over_time = _over_time(judged)
            self._add_totals(over_time)
            self._tell_of_code(judged)
            lost = _lost(judged, self._groups)
            if audit.lost is not None:
                outputs.write(lost, audit.lost, THE_LIST, self._spark)
                summary.lost_list = audit.lost.name
            if audit.table is not None:
                table = _table(judged, self._groups)
                outputs.write(table, audit.table, THE_TABLE, self._spark)
                summary.table = audit.table.name
            if audit.report is not None:
                few = lost.orderBy("store_timestamp", "group", "queue_id", "offset").limit(_SHOWN)
                shown = [row.asDict() for row in few.collect()]
                page = audit_report.Page(
                    summary=summary, brokers=self._brokers, over_time=over_time, lost=shown,
                    topics=self._config.source.topics,
                )  # fmt: skip
                audit_report.write(page, audit.report)
                summary.report = audit.report
        finally:
            judged.unpersist()
            summary.seconds = round(time.perf_counter() - began, 3)
        summary.batches = 1
        return summary

    def _records(self) -> list[GroupRecord]:
        found, notes = retries.read_retries(
            self._spark, self._config.source, self._groups, self._brokers
        )
        self.summary.notes += notes
        return records.records_of(self._brokers, self._bounds, self._groups, found)

    def _judged(self, groups: Sequence[GroupRecord]) -> tuple[DataFrame, int]:
        """Return rows of `fates.SCHEMA`, and how many messages are read for them."""
        source = self._config.source
        # Queues are searched by time, which clocks set back: workers look again.
        after = None if source.start == "earliest" else millis_of(source.start)
        before = None if source.end == "latest" else millis_of(source.end)
        is_table = self._audit.table is not None
        servers = {broker.broker: broker.filter_servers for broker in self._brokers}
        work = fates.judged_by(
            groups,
            is_table=is_table,
            after=after,
            before=before,
            servers=servers,
            security=sources.security_of(source),
        )
        return sources.map_source(self._spark, source, fates.READ, work, fates.SCHEMA)

    def _add_totals(self, over_time: "OverTime") -> None:
        summary = self.summary
        for (group, fate, _), count in over_time.counts.items():
            own = summary.groups[group].fates
            own[fate] = own.get(fate, 0) + count
        for one in summary.groups:
            one.fates = {fate: one.fates[fate] for fate in FATES if fate in one.fates}
            summary.lost += one.fates.get(Fate.LOST_TO_INCONSISTENCY, 0)
        summary.messages = sum(summary.groups[0].fates.values()) if summary.groups else 0
        summary.unknown += _unknown(self._brokers, over_time)
        summary.notes += _expired(self._brokers, self._bounds, self._groups)

    def _tell_of_code(self, judged: DataFrame) -> None:
        """Say which classes judged, and why others did not."""
        rows = judged.where(F.col("kind") == fates.CODE).groupBy("group", "reason")
        told = rows.agg(F.sum("count").alias("count")).orderBy("group", "reason")
        for row in told.limit(_TOLD).collect():
            group = self._groups[row["group"]]
            if row["count"] is None:
                name = row["reason"].partition("#")[0]
                self.summary.notes.append(
                    f"{group}: code {name} was run by filter servers as it is now; if it was"
                    " changed since, it may have said otherwise then"
                )
            else:
                self.summary.unknown.append(f"{group}, {row['count']:,} messages: {row['reason']}")


@dataclass(frozen=True, slots=True)
class OverTime:
    """Counts by group, fate and the start of a stretch of time, which is `width` long; all in
    milliseconds."""

    width: int
    counts: Mapping[tuple[int, Fate, int], int]


def _over_time(judged: DataFrame) -> OverTime:
    # In one partition, for there are few: else they would be spread over as many as a shuffle has.
    counts = judged.where(F.col("kind") == fates.COUNT)
    [ends] = counts.agg(F.min("at"), F.max(F.col("at") + F.col("width") - 1)).collect()
    first, last = ends
    if first is None:
        return OverTime(1000, {})
    width = fates.width_of(first, last)
    stretch = (F.floor(F.col("at") / F.lit(width)) * F.lit(width)).alias("stretch")
    grouped = counts.coalesce(1).groupBy("group", "fate", stretch)
    rows = grouped.agg(F.sum("count").alias("count")).collect()
    return OverTime(
        width, {(row["group"], FATES[row["fate"]], row["stretch"]): row["count"] for row in rows}
    )


def _names(values: Sequence[str]) -> Any:
    return F.array(*(F.lit(value) for value in values))


def _lost(judged: DataFrame, groups: Sequence[str]) -> DataFrame:
    rows = judged.where(F.col("kind") == fates.LOST)
    return rows.withColumn("group", F.element_at(_names(groups), F.col("group") + 1)).select(
        *LISTED
    )


def _table(judged: DataFrame, groups: Sequence[str]) -> DataFrame:
    rows = judged.where(F.col("kind") == fates.MESSAGE)
    each = rows.select(*TABLE[:-2], F.posexplode("fates").alias("_group", "_fate"))
    return each.select(
        *TABLE[:-2],
        F.element_at(_names(groups), F.col("_group") + 1).alias("group"),
        F.element_at(_names([str(fate) for fate in FATES]), F.col("_fate") + 1).alias("fate"),
    )


def _bounds(source: Source) -> dict[tuple[str, str, int], tuple[int, int]]:
    said = sources.options_of(source, (), (), streaming=False)
    del said["columns"]
    options = Options.parse(said, of_log=source.nameserver is None)
    with closing(open_origin(options)) as origin:
        return {
            (queue.topic, queue.broker_name, queue.queue_id): (first, end)
            for queue, (first, end) in origin.bounds().items()
        }


def _unknown(brokers: Sequence[BrokerGroups], over_time: OverTime) -> list[str]:
    """Say what is missing, if anything was judged that would have needed it."""
    stretches = [at for _, fate, at in over_time.counts if fate is Fate.UNKNOWN]
    if not stretches:
        return []
    return [
        f"{broker.broker or 'the broker'} keeps no history before {_moment(broker.history.since)}"
        for broker in brokers
        if broker.history is not None and min(stretches) < broker.history.since
    ]


def _moment(millis: int) -> str:
    moment = datetime.fromtimestamp(millis / 1000, UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def _expired(
    brokers: Sequence[BrokerGroups], bounds: records.Bounds, groups: Sequence[str]
) -> list[str]:
    """Say how many messages left the log before a group got to them: they are in no table."""
    offsets = {broker.broker: broker.offsets for broker in brokers}
    notes = []
    for group in groups:
        gone = 0
        for (topic, broker, queue_id), (first, _) in bounds.items():
            committed = offsets.get(broker, {}).get((topic, group), {}).get(queue_id)
            if committed is not None:
                gone += max(first - committed, 0)
        if gone:
            notes.append(f"{gone:,} messages left the log before {group} got to them")
    return notes


def _of(config: Config) -> Audit:
    assert config.audit is not None
    return config.audit
