"""Replay of what an audit found lost: each message to the group that missed it, once.

A copy goes to the group's retry topic, which its members read whatever they subscribe to, and no
other group does. It names the message it was made of (`REPLAYED_FROM`), and that is the record of
what was sent: before anything is sent the retry topics are read, and what has a copy there is left
out. So a replay that failed, or was killed, or is run with another checkpoint, sends what is
missing. As copies are stored after the messages they were made of, in the same logs, they are there
as long as the messages can be read.

What is not answered is not sent again within a run. A message can come twice in one case only: a
request was on its way when the run was killed, and the broker stored it after the next run looked.
"""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ..errors import ConfigError
from ..spark.groups import disagreements
from ..spark.options import Options
from ..spark.resending import REPLAYED_FROM, Copy, Resender, offset_message_id
from . import files, outputs, slices, sources
from .audit import LISTED_SCHEMA, THE_LIST
from .checkpoint import Checkpoint
from .config import Config, ReplayOfLost, is_local
from .retries import has_messages
from .runner import JobFailed, Report, Stop, one_line
from .summary import Summary, columns_of
from .table import near

__all__ = ["LostSummary", "check", "run"]

MOST: Final = 1_000_000  # messages of a list: they are kept in memory
_CHUNK: Final = 1000  # read and sent at a time
_LOOK: Final = 0.1  # seconds between looks at Ctrl-C while waiting
_PLACE: Final = ("topic", "broker", "queue_id", "offset")
_LISTED: Final = (*_PLACE, "group", "message_id")
_READ: Final = (
    *(*_PLACE, "message_id", "property_string", "body", "flag"),
    *("born_timestamp", "store_host", "log_offset"),
)
_RETRY: Final = "%RETRY%"


@dataclass(frozen=True, slots=True)
class _Lost:
    """A message that is listed, and the group that missed it."""

    topic: str
    broker: str
    queue_id: int
    offset: int
    group: str
    message_id: str

    @property
    def origin(self) -> str:
        return f"{self.topic}/{self.broker}/{self.queue_id}/{self.offset}"

    @property
    def place(self) -> tuple[str, str, int, int]:
        return self.topic, self.broker, self.queue_id, self.offset


@dataclass(slots=True)
class GroupCounts:
    """What was replayed to a group. `before`: by an earlier run. `gone`: no longer in the log."""

    group: str
    listed: int = 0
    before: int = 0
    sent: int = 0
    gone: int = 0


@dataclass(kw_only=True)
class LostSummary(Summary):
    """`messages` are those listed."""

    groups: list[GroupCounts] = field(default_factory=list)
    rate: float | None = None

    def body(self) -> list[str]:
        head = ("group", "lost", "sent before", "sent now", "no longer in the log")
        if self.status == "not run":
            head = (*head[:3], "to be sent", "")
        rows = [
            (
                one.group,
                f"{one.listed:,}",
                f"{one.before:,}",
                f"{one.listed - one.before if self.status == 'not run' else one.sent:,}",
                "" if self.status == "not run" else f"{one.gone:,}",
            )
            for one in self.groups
        ]
        return ["  " + line for line in columns_of([head, *rows], right=(1, 2, 3, 4))]


def check(config: Config) -> None:
    """What can be known before Spark starts. Raises Error."""
    path = config.source.lost or ""
    if is_local(path) and not files.of(path).exists(path):
        raise ConfigError(f"{config.file}: [source] lost: there is no {path}: run the audit first")
    Checkpoint.open(config)
    for name in config.source.options:
        if name.lower() in ("tags", "sql", "topicpattern", "assign"):
            raise ConfigError(
                f"{config.file}: [source] options: {name}: the list says which messages to send"
            )


def run(
    spark: SparkSession,
    config: Config,
    *,
    dry_run: bool = False,
    stop: Stop | None = None,
    report: Report | None = None,
) -> LostSummary:
    """Send what is listed and was not sent yet. A dry run counts. Raises ConfigError before
    anything is sent, JobFailed later."""
    stop, report = stop or Stop(), report or Report(None)
    checkpoint = Checkpoint.open(config, spark)
    with checkpoint.locked(dry_run):
        job = _Job(spark, config, checkpoint, stop, report)
        try:
            return job.run(dry_run)
        except (ConfigError, OSError):
            raise
        except Exception as error:
            inner = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
            failed = JobFailed(f"{one_line(inner)}; run it again to send what is missing")
            job.summary.status, failed.summary = "failed", job.summary
            raise failed from error
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
    ) -> None:
        self._spark = spark
        self._config = config
        self._replay = _of(config)
        self._checkpoint = checkpoint
        self._stop = stop
        self._report = report
        self._counts: dict[str, GroupCounts] = {}
        said = {**sources.place_of(config.source), **config.source.options, "topic": "any"}
        options = Options.parse(said, of_log=False)
        self._timeout, self._security = options.timeout, options.security
        self.summary = LostSummary(
            job="replay",
            file=str(config.file),
            source=config.source.name,
            rate=self._replay.rate,
            notes=[*checkpoint.notes],
        )

    def run(self, dry_run: bool) -> LostSummary:
        summary = self.summary
        summary.started = datetime.now(UTC).isoformat(timespec="seconds")
        began = time.perf_counter()
        listed = self._listed()
        done = self._sent_before(list(self._counts))
        todo = [one for one in listed if (one.group, one.origin) not in done]
        for one in listed:
            self._counts[one.group].before += (one.group, one.origin) in done
        summary.groups = list(self._counts.values())
        summary.messages = len(listed)
        if dry_run:
            summary.status = "not run"
            return summary
        self._check_agreement(todo)
        self._checkpoint.save()
        self._report.begin()
        try:
            place = self._config.source.nameserver or ""
            with Resender(place, self._timeout, self._security) as resender:
                for chunk in _chunks(todo, self._size()):
                    if self._stop.asked:
                        summary.status = "stopped"
                        summary.notes.append("run it again to go on from there")
                        break
                    self._send(chunk, resender)
                    summary.batches += 1
        finally:
            summary.seconds = round(time.perf_counter() - began, 3)
        return summary

    def _size(self) -> int:
        rate = self._replay.rate
        return _CHUNK if rate is None else max(min(int(rate), _CHUNK), 1)

    def _listed(self) -> list[_Lost]:
        """Read the list, in the order of queues, so that each is read once. Raises ConfigError."""
        path = self._config.source.lost or ""
        rows = outputs.read(path, THE_LIST, LISTED_SCHEMA, self._spark)
        if self._replay.groups:
            known = [row[0] for row in rows.select("group").distinct().collect()]
            for group in self._replay.groups:
                if group not in known:
                    raise ConfigError(
                        f"{self._config.file}: [replay] groups: nothing was lost to {group}, as"
                        f" {path} says{near(group, known)}"
                    )
            rows = rows.where(F.col("group").isin([*self._replay.groups]))
        chosen = rows.select(*_LISTED).distinct().limit(MOST + 1).collect()
        if len(chosen) > MOST:
            raise ConfigError(
                f"{path} has more than {MOST:,} messages: choose some [replay] groups"
            )
        listed = [_Lost(row[0], row[1] or "", *row[2:]) for row in chosen]
        for one in listed:
            self._counts.setdefault(one.group, GroupCounts(one.group)).listed += 1
        return sorted(listed, key=lambda one: (one.place, one.group))

    def _sent_before(self, groups: Sequence[str]) -> set[tuple[str, str]]:
        """Return what has a copy in a retry topic: group, and the place of the message."""
        source = self._config.source
        done: set[tuple[str, str]] = set()
        for group in groups:
            topic = _RETRY + group
            if not has_messages(source, topic):
                continue
            options = {**sources.place_of(source), **source.options, "topic": topic}
            reader = self._spark.read.format("rocketmq").options(**options)
            rows = reader.options(columns="offset", properties=REPLAYED_FROM).load()
            copies = rows.where(F.col(REPLAYED_FROM).isNotNull()).select(REPLAYED_FROM)
            done |= {(group, row[0]) for row in copies.distinct().collect()}
        return done

    def _check_agreement(self, todo: Sequence[_Lost]) -> None:
        """Raises ConfigError if members of a group would not agree on who wants the copies."""
        wanted = sorted({(one.group, one.topic) for one in todo})
        if not wanted or self._replay.force:
            return
        place = self._config.source.nameserver or ""
        found = disagreements(place, wanted, self._timeout, self._security)
        for (group, topic), said in found.items():
            raise ConfigError(
                f"{self._config.file}: members of {group} subscribe differently to {topic} now"
                f" ({said}), and whichever has the retry queue would get the messages: give all"
                " the same subscription first, or set [replay] force = true"
            )

    def _send(self, chunk: Sequence[_Lost], resender: Resender) -> None:
        began = time.monotonic()
        messages = {_place(row): row for row in self._read(chunk).toLocalIterator()}
        copies = []
        for one in chunk:
            row = messages.get(one.place)
            if row is None or row["message_id"] != one.message_id:
                self._counts[one.group].gone += 1
            else:
                copies.append(_copy(one, row))
        resender.send(copies)
        for group, count in Counter(copy.group for copy in copies).items():
            self._counts[group].sent += count
        sent = sum(one.sent for one in self._counts.values())
        left = sum(one.listed - one.before - one.sent - one.gone for one in self._counts.values())
        self._report.update(sent, left)
        if self._replay.rate is not None:
            self._wait(began + len(copies) / self._replay.rate)

    def _wait(self, until: float) -> None:
        while (left := until - time.monotonic()) > 0 and not self._stop.asked:
            time.sleep(min(left, _LOOK))

    def _read(self, chunk: Sequence[_Lost]) -> DataFrame:
        """Return the messages of a chunk, without those that have left the log."""
        source = self._config.source
        ranges: slices.Ranges = {}
        for one in chunk:
            queues = ranges.setdefault(one.topic, {}).setdefault(one.broker, {})
            first, end = queues.get(str(one.queue_id), (one.offset, one.offset))
            queues[str(one.queue_id)] = min(first, one.offset), max(end, one.offset + 1)
        options = {**sources.place_of(source), **source.options, **slices.places_of(ranges)}
        reader = self._spark.read.format("rocketmq").options(**options)
        rows = reader.options(columns=",".join(_READ), failOnDataLoss="false").load()
        places = self._spark.createDataFrame(
            sorted({one.place for one in chunk}),
            "topic STRING, broker STRING, queue_id INT, offset BIGINT",
        )
        return rows.join(F.broadcast(places), list(_PLACE))


def _chunks(todo: Sequence[_Lost], size: int) -> Iterator[Sequence[_Lost]]:
    for at in range(0, len(todo), size):
        yield todo[at : at + size]


def _place(row: Any) -> tuple[str, str, int, int]:
    return row["topic"], row["broker"], row["queue_id"], row["offset"]


def _copy(one: _Lost, row: Any) -> Copy:
    return Copy(
        group=one.group,
        topic=one.topic,
        broker=one.broker,
        queue_id=one.queue_id,
        offset=one.offset,
        offset_message_id=offset_message_id(row["store_host"], row["log_offset"]),
        property_string=row["property_string"] or "",
        body=bytes(row["body"]),
        flag=row["flag"],
        born_timestamp=int(row["born_timestamp"].timestamp() * 1000),
    )


def _of(config: Config) -> ReplayOfLost:
    assert config.replay_of_lost is not None
    return config.replay_of_lost
