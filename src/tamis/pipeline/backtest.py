"""What a filter would have matched: counts over time, against another filter, with samples.

One pass over the rows. It counts by second, or by the bucket asked for, and keeps samples on its
way (Spark's `observe`); how wide a bucket is to be is known only then, so that the counts, which
are few, are added up afterwards.
"""

import inspect
import json
import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from ..spark import _needed  # noqa: F401  # isort: skip
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Observation, Row, SparkSession
from pyspark.sql import functions as F

from ..errors import ConfigError
from ..filter import Outcome, parse
from ..filter.explain import explain, explain_tags
from ..filter.nodes import properties_of
from ..filter.tags import parse_tags
from ..spark import session
from ..spark.schema import COLUMNS
from . import archive, sources, steps
from .config import Filter, Source
from .runner import JobFailed, Report, one_line, watched
from .summary import columns_of

__all__ = [
    "KINDS",
    "Backtest",
    "Bucket",
    "Counts",
    "Message",
    "check_file",
    "parse_duration",
    "properties_read",
    "run",
    "run_on",
]

# Before Spark 4.2 `min_by` gives one: it is asked for one of each of as many parts of the messages.
_HAS_FEW: Final = len(inspect.signature(F.min_by).parameters) > 2
KINDS: Final = ("matched", "not_matched", "failed", "gained", "lost")  # samples are of each
_AUTO: Final = "auto"
_MOST_AUTO: Final = 40  # buckets, if we choose
_MOST: Final = 10_000
_WIDTHS: Final = (
    *(1, 2, 5, 10, 30, 60, 120, 300, 600, 1800),
    *(3600, 7200, 10_800, 21_600, 43_200, 86_400, 7 * 86_400, 28 * 86_400, 364 * 86_400),
)
# What does not match is most of it: one in so many is enough to take samples from. A sample
# costs a third of the pass where every row is a candidate.
_ONE_IN: Final = 64
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_KEPT_IN: Final = 8
_BAR: Final = 30
_PLACE: Final = ("topic", "broker", "queue_id", "offset", "message_id")
_NONE: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Counts:
    """Messages. What is null, neither true nor false, is not matched. The last six: `against`."""

    matched: int = 0
    not_matched: int = 0
    failed: int = 0
    matched_before: int = 0
    failed_before: int = 0
    gained: int = 0
    gained_failed_before: int = 0  # of those gained, the old filter failed on
    lost: int = 0
    lost_failing: int = 0  # of those lost, the new filter fails on

    @property
    def messages(self) -> int:
        return self.matched + self.not_matched + self.failed

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True, slots=True)
class Bucket:
    start: datetime  # UTC
    counts: Counts


@dataclass(frozen=True, slots=True)
class Message:
    """A sample: where it lies, and what the filters read of it. `reason`: the new one's."""

    topic: str
    broker: str | None
    queue_id: int
    offset: int
    message_id: str
    stored: datetime
    properties: Mapping[str, str | None]
    reason: str

    @property
    def place(self) -> str:
        return f"{self.topic}/{self.broker or '-'}/{self.queue_id} at {self.offset}"

    def __str__(self) -> str:
        read = "  ".join(
            f"{name} {'missing' if value is None else repr(value)}"
            for name, value in self.properties.items()
        )
        return f"{self.place}  {self.message_id}  {_iso(self.stored, 'milliseconds')}  {read}"


@dataclass(frozen=True, kw_only=True)
class Backtest:
    """`width`: of a bucket, in seconds. Buckets are in order, those of no message between them."""

    expression: str
    against: str | None
    source: str = ""
    seconds: float = 0.0
    width: int = 1
    buckets: tuple[Bucket, ...] = ()
    totals: Counts = Counts()
    samples: Mapping[str, tuple[Message, ...]] = field(default_factory=dict)  # by KINDS

    @property
    def kinds(self) -> tuple[str, ...]:
        return KINDS[: 5 if self.against is not None else 3]

    def to_dict(self) -> dict[str, Any]:
        names = [f.name for f in fields(Counts)][: 9 if self.against is not None else 3]

        def shown(counts: Counts) -> dict[str, int]:
            return {name: getattr(counts, name) for name in names}

        return {
            "expression": self.expression,
            "against": self.against,
            "source": self.source,
            "seconds": round(self.seconds, 3),
            "messages": self.totals.messages,
            "totals": shown(self.totals),
            "bucket_seconds": self.width,
            "buckets": [{"start": _iso(b.start), **shown(b.counts)} for b in self.buckets],
            "samples": {
                kind: [
                    {**asdict(one), "stored": _iso(one.stored, "milliseconds")}
                    for one in self.samples.get(kind, ())
                ]
                for kind in self.kinds
            },
        }

    def write(self, path: str | Path) -> None:
        """As JSON."""
        text = json.dumps(self.to_dict(), allow_nan=False, ensure_ascii=False, indent=1)
        Path(path).write_text(text + "\n", "utf-8")

    def lines(self) -> list[str]:
        """For a person."""
        total = self.totals.messages
        of = f" of {self.source}" if self.source else ""
        if not total:
            return [f"no messages{of}"]
        rate = f" in {self.seconds:.1f} s" if self.seconds else ""
        lines = [f"{total:,} messages{of}{rate}", "", *_totals(self), ""]
        lines += _table(self)
        for kind in self.kinds:
            if chosen := self.samples.get(kind):
                lines += ["", f"{kind.replace('_', ' ')}, such as"]
                for one in chosen:
                    lines += [f"  {one}", f"    {one.reason}"]
        return lines


def check_file(path: str | Path) -> None:
    """Before the work is done: whether there is a place for what is to be written. Raises
    ConfigError."""
    path = Path(path)
    if path.is_dir():
        raise ConfigError(f"{path} is a directory: name a file")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"{path}: there is no directory {path.absolute().parent}")


def parse_duration(text: str) -> int:
    """Seconds of `30s`, `5m`, `1h`, `1d12h`. Raises ConfigError."""
    parts = re.findall(r"(\d+)([smhdw])", text.strip().lower())
    seconds = sum(int(count) * _UNITS[unit] for count, unit in parts)
    if "".join(map("".join, parts)) != text.strip().lower() or not seconds:
        raise ConfigError(f"'{text}' is no duration: write 30s, 5m, 1h or 1d12h")
    return seconds


def properties_read(*filters: Filter | None) -> tuple[str, ...]:
    """Names of the properties the filters read, each once."""
    found: dict[str, None] = {}
    for one in filters:
        if one is not None:
            found |= dict.fromkeys(
                properties_of(parse(one.text, one.dialect)) if one.kind == "sql" else ["TAGS"]
            )
    return tuple(found)


def run_on(
    source: Source,
    expression: str | Filter,
    against: str | Filter | None = None,
    *,
    bucket: str | int = _AUTO,
    samples: int = 5,
    master: str | None = None,
    config: Mapping[str, str] = _NONE,
    report: Report | None = None,
) -> Backtest:
    """As `run`, on a source, in the Spark session there is or one of its own. What can be known is
    checked before Spark starts; `report` is told how far it is. Raises Error, TimeoutError."""
    new, old = _filter(expression), None if against is None else _filter(against)
    if bucket != _AUTO:
        _width(bucket)
    sources.check(source, None)
    is_ours = SparkSession.getActiveSession() is None
    spark = session("tamis backtest", master=master, config=config)
    try:
        rows = _open(spark, source, properties_read(new, old))
        with watched(spark, report):
            return run(rows, new, old, bucket=bucket, samples=samples, source=source.name)
    except PySparkException as error:
        raise JobFailed(one_line(error)) from error
    finally:
        if is_ours:
            spark.stop()


def _open(spark: SparkSession, source: Source, names: Sequence[str]) -> DataFrame:
    """No more columns than are needed: a source ships what it is asked for."""
    if source.archive is not None:  # Parquet itself reads no more
        return archive.read(
            spark, source.archive, topics=source.topics, start=source.start, end=source.end
        )
    others = [name for name in names if name not in ("TAGS", "KEYS")]
    taken = [name.lower() for name in (*COLUMNS, *others)]
    named = [name for name in others if taken.count(name.lower()) == 1]
    columns = [*_PLACE, "store_timestamp", "tags"]
    columns += ["keys"] if "KEYS" in names else []
    columns += ["properties"] if len(named) < len(others) else []
    return sources.open_source(spark, source, streaming=False, columns=columns, properties=named)


def run(
    rows: DataFrame,
    expression: str | Filter,
    against: str | Filter | None = None,
    *,
    bucket: str | int = _AUTO,
    samples: int = 5,
    source: str = "",
) -> Backtest:
    """Of messages as the sources and `archive.read` give them; a text is SQL92.

    `bucket`: seconds, `1h` and the like, or `auto`: at most 40 of them. Raises InvalidFilter before
    anything is read, ConfigError for a bucket that can't be.
    """
    started = time.monotonic()
    new, old = _filter(expression), None if against is None else _filter(against)
    width = None if bucket == _AUTO else _width(bucket)
    names = properties_read(new, old)
    judged = _judged(rows, new, old, names)
    kinds = KINDS[: 3 if old is None else 5]
    observed = Observation()
    counted = judged
    if samples:
        counted = judged.observe(observed, *(_few(kind, samples) for kind in kinds))
    # What is kept has as many partitions as a shuffle has, 200 if nobody says: far too many.
    counted = _counted(counted, width or 1).coalesce(_KEPT_IN).persist()
    try:
        found = counted.agg(F.min("_at"), F.max("_at")).first()
        assert found is not None
        first, last = found
        if first is not None:
            width = width or _chosen_width(first, last)
            _check_few(first, last, width)
            table = [tuple(row) for row in _counted(counted, width, F.sum("count")).collect()]
    finally:
        counted.unpersist()
    if first is None:
        return Backtest(
            expression=new.text, against=None if old is None else old.text, source=source
        )
    buckets = _buckets(table, width or 1, is_compared=old is not None)
    totals = sum((one.counts for one in buckets), Counts())
    taken = {kind: _deduplicated(observed.get[kind] or ()) for kind in kinds} if samples else {}
    for kind, some in taken.items():
        if len(some) < min(samples, getattr(totals, kind)):  # too few were looked at
            left = judged.where(_is(kind)).select("_message").limit(samples)
            taken[kind] = [row[0] for row in left.collect()]
    return Backtest(
        expression=new.text,
        against=None if old is None else old.text,
        source=source,
        seconds=time.monotonic() - started,
        width=width or 1,
        buckets=tuple(buckets),
        totals=totals,
        samples={kind: tuple(_messages(some, names, new)) for kind, some in taken.items()},
    )


def _filter(given: str | Filter) -> Filter:
    made = Filter("sql", given) if isinstance(given, str) else given
    if made.kind == "tags":
        parse_tags(made.text)
    elif made.kind == "sql":
        parse(made.text, made.dialect)
    else:
        raise ConfigError(f"a filter in {made.kind} can't be backtested: tags and SQL92 can")
    return made


def _width(bucket: str | int) -> int:
    width = parse_duration(bucket) if isinstance(bucket, str) else bucket
    if width < 1:
        raise ConfigError(f"a bucket of {width} s: it takes a second or more")
    return width


def _judged(rows: DataFrame, new: Filter, old: Filter | None, names: Sequence[str]) -> DataFrame:
    """Of each row: outcomes, the second it was stored in, and what a sample would tell of it."""
    text_of = archive.text_of(rows)
    values = [text_of(name) for name in names]
    message = F.struct(
        *_PLACE,
        F.unix_millis("store_timestamp").alias("stored"),
        (F.array(*values) if values else F.array().cast("array<string>")).alias("values"),
    )
    return rows.select(
        steps.outcome(new, text_of).alias("_new"),
        (F.lit(0).cast("tinyint") if old is None else steps.outcome(old, text_of)).alias("_old"),
        F.unix_seconds("store_timestamp").alias("_at"),
        message.alias("_message"),
        F.xxhash64("queue_id", "offset").alias("_order"),  # samples are spread, and the same again
    )


def _is(kind: str) -> Column:
    new, old, true, error = F.col("_new"), F.col("_old"), int(Outcome.TRUE), int(Outcome.ERROR)
    return {
        "matched": new == true,
        "not_matched": ~new.isin(true, error),
        "failed": new == error,
        "gained": (new == true) & (old != true),
        "lost": (new != true) & (old == true),
    }[kind]


def _few(kind: str, samples: int) -> Column:
    candidate = _is(kind)
    if kind == "not_matched":
        candidate &= F.pmod("_order", F.lit(_ONE_IN)) == 0
    if _HAS_FEW:
        return F.min_by("_message", F.when(candidate, F.col("_order")), samples).alias(kind)
    of_each = [candidate & (F.pmod("_order", F.lit(samples)) == n) for n in range(samples)]
    few = [F.min_by("_message", F.when(one, F.col("_order"))) for one in of_each]
    return F.array_compact(F.array(*few)).alias(kind)


def _counted(rows: DataFrame, width: int, count: Column | None = None) -> DataFrame:
    at = F.col("_at") - F.pmod("_at", F.lit(width))
    counts = F.count(F.lit(1)) if count is None else count
    return rows.groupBy(at.alias("_at"), "_new", "_old").agg(counts.alias("count"))


def _chosen_width(first: int, last: int) -> int:
    for width in _WIDTHS:
        if last // width - first // width < _MOST_AUTO:
            return width
    return _WIDTHS[-1] * math.ceil((last - first) / _WIDTHS[-1] / _MOST_AUTO)


def _check_few(first: int, last: int, width: int) -> None:
    count = last // width - first // width + 1
    if count > _MOST:
        raise ConfigError(
            f"buckets of {width} s would be {count:,} from {_iso(_utc(first))} to"
            f" {_iso(_utc(last))}, at most {_MOST:,} can be: choose wider ones or auto"
        )


def _buckets(
    table: Iterable[tuple[int, int, int, int]], width: int, *, is_compared: bool
) -> list[Bucket]:
    found: dict[int, Counts] = {}
    for at, new, old, count in table:
        more = _counts(Outcome(new), Outcome(old) if is_compared else None, count)
        found[at] = found.get(at, Counts()) + more
    return [
        Bucket(_utc(at), found.get(at, Counts())) for at in range(min(found), max(found) + 1, width)
    ]


def _counts(new: Outcome, old: Outcome | None, count: int) -> Counts:
    failed = new is Outcome.ERROR
    counts = Counts(
        matched=count * new.matched,
        not_matched=count * (not new.matched and not failed),
        failed=count * failed,
    )
    if old is None:
        return counts
    gained, lost = new.matched and not old.matched, old.matched and not new.matched
    failed_before = old is Outcome.ERROR
    return replace(
        counts,
        matched_before=count * old.matched,
        failed_before=count * failed_before,
        gained=count * gained,
        gained_failed_before=count * (gained and failed_before),
        lost=count * lost,
        lost_failing=count * (lost and failed),
    )


def _deduplicated(rows: Iterable[Row]) -> list[Row]:
    """A task that ran twice has told twice."""
    return list({(r["topic"], r["broker"], r["queue_id"], r["offset"]): r for r in rows}.values())


def _messages(rows: Iterable[Row], names: Sequence[str], new: Filter) -> Iterator[Message]:
    for row in sorted(rows, key=lambda row: (row["stored"], row["queue_id"], row["offset"])):
        values = dict(zip(names, row["values"], strict=True))
        yield Message(
            topic=row["topic"],
            broker=row["broker"],
            queue_id=row["queue_id"],
            offset=row["offset"],
            message_id=row["message_id"],
            stored=_utc(0) + timedelta(milliseconds=row["stored"]),
            properties=values,
            reason=_reason(new, values),
        )


def _reason(filter: Filter, values: Mapping[str, str | None]) -> str:
    if filter.kind == "tags":
        return explain_tags(parse_tags(filter.text), values["TAGS"]).reason
    there = {name: value for name, value in values.items() if value is not None}
    return explain(parse(filter.text, filter.dialect), there).reason


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _iso(at: datetime, precision: str = "seconds") -> str:
    return at.isoformat("T", precision).replace("+00:00", "Z")


def _totals(backtest: Backtest) -> list[str]:
    totals = backtest.totals
    rows = [
        (name, f"{count:,}", f"{count / totals.messages:.1%}")
        for name, count in (
            ("matched", totals.matched),
            ("not matched", totals.not_matched),
            ("failed", totals.failed),
        )
    ]
    lines = [backtest.expression, *("  " + line for line in columns_of(rows, right=(1, 2)))]
    if backtest.against is None:
        return lines
    rows = [
        ("matched", f"{totals.matched_before:,}", ""),
        ("failed", f"{totals.failed_before:,}", ""),
        ("gained", f"{totals.gained:,}", _of_them(totals.gained_failed_before, "failed before")),
        ("lost", f"{totals.lost:,}", _of_them(totals.lost_failing, "fail now")),
    ]
    lines += [f"against {backtest.against}"]
    return lines + ["  " + line for line in columns_of(rows, right=(1,))]


def _of_them(count: int, what: str) -> str:
    return f"({count:,} of them {what})" if count else ""


def _table(backtest: Backtest) -> list[str]:
    head = [kind.replace("_", " ") for kind in backtest.kinds]
    most = max(bucket.counts.messages for bucket in backtest.buckets)
    form = "%Y-%m-%d %H:%M:%S" if backtest.width % 60 else "%Y-%m-%d %H:%M"
    rows = [("time (UTC)", *head, "█ matched ▓ failed ░ not matched")]
    for bucket in backtest.buckets:
        counts = [f"{getattr(bucket.counts, kind):,}" for kind in backtest.kinds]
        rows.append((bucket.start.strftime(form), *counts, _bar(bucket.counts, most)))
    return columns_of(rows, right=tuple(range(1, len(head) + 1)))


def _bar(counts: Counts, most: int) -> str:
    """Something shows of whatever is there."""
    wide = {
        sign: max(round(count / most * _BAR), 1) if count else 0
        for sign, count in (("█", counts.matched), ("▓", counts.failed), ("░", counts.not_matched))
    }
    return "".join(sign * width for sign, width in wide.items())
