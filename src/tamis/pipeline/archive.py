"""The job archive: topics as a table that is cheap to ask, and how that table is read.

    <path>/topic=orders/date=2026-11-15/<run>-<batch>-<n>.zstd.parquet     the day stored, UTC
    <path>/_archive.json    format and property columns: what a reader must know
    <path>/_tamis.json      the run it belongs to, as of any sink
    <path>/_last.json       the last batch: its number, its files
    <path>/_staging-*/      a batch being written

A batch is in the archive or is not, whenever we are killed:

1. it is written to `_staging-…`, which readers pass over;
2. `_last.json` is replaced: from here on the batch is in;
3. each file is renamed to its place. Whoever comes next finishes that, ours first of all.

`read` leaves out a batch that is between 2 and 3. Spark's own readers may see some of its files
before the others, each of them whole.

Order: a task has one queue, or a range of one, so a file's minima and maxima tell which offsets and
which times it has. Within it rows lie by tag, then by offset, which is also by time: a tag is one
run of pages, and in each run the pages of a time or of some offsets lie together.
"""

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import unquote

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, StringType, StructField, StructType

from ..errors import ConfigError
from ..spark.schema import COLUMNS, DEFAULT, TYPES, row_type
from . import files, sources
from .batches import Batches
from .checkpoint import Checkpoint
from .config import FILE_FORMATS, Archive, Config, Sink, is_local, millis_of
from .runner import JobFailed, Report, Stop
from .sinks import Sinks
from .summary import Summary

__all__ = [
    "ArchiveSummary",
    "check",
    "check_topics",
    "describe",
    "list_files",
    "read",
    "read_archive",
    "run",
    "text_of",
]

# All a source has but the property string, which the map holds.
ARCHIVED: Final = (
    *DEFAULT,
    *(name for name in COLUMNS if name not in (*DEFAULT, "property_string")),
)
_DESCRIPTION: Final = "_archive.json"
_LAST: Final = "_last.json"
_STAGING: Final = "_staging-"  # as of `sinks`, which clears what was left
_PARTITIONS: Final = ("topic", "date")
_OPTIONS: Final = {
    "parquet": {
        "compression": "zstd",
        "parquet.block.size": str(32 << 20),  # a row group; smaller ones are skipped more often
    },
    "orc": {"compression": "zstd"},
}
_BY_BATCH: Final = str(2**30)  # bytes: a stream takes so much of the archive at a time
_RETRIES: Final = "%RETRY%"  # a topic's name begins so; its messages have the one they came from
_FEW_TOPICS: Final = 10  # that are told


@dataclass(frozen=True, slots=True)
class Description:
    """Of an archive, as its directory has it."""

    format: str
    properties: tuple[tuple[str, str], ...]  # names and types

    def rows(self) -> StructType:
        found = row_type(ARCHIVED, self.properties)
        return StructType([*found.fields, StructField("date", DateType())])

    def to_dict(self) -> dict[str, Any]:
        return {"version": 1, "format": self.format, "properties": list(self.properties)}


def describe(path: str, spark: SparkSession | None = None) -> Description:
    """Raises ConfigError if there is no archive."""
    place, path = files.of(path, spark), path.rstrip("/")
    file = f"{path}/{_DESCRIPTION}"
    try:
        if not place.exists(file):
            raise ConfigError(f"{path} is no archive: it has no {_DESCRIPTION}")
        said = json.loads(place.read(file))
        properties = tuple((str(name), str(kind)) for name, kind in said["properties"])
        if said["version"] != 1 or any(kind not in TYPES for _, kind in properties):
            raise ConfigError(f"{file}: this Tamis does not know what it says")
        return Description(said["format"], properties)
    except OSError as error:
        raise ConfigError(f"{file} can't be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file} is damaged: {error}") from None


def check_topics(path: str, topics: Sequence[str], spark: SparkSession | None = None) -> None:
    """Raises ConfigError if there is no archive, or not all of these in it."""
    if describe(path, spark).format not in FILE_FORMATS:
        return
    place, path = files.of(path, spark), path.rstrip("/")
    there = [_topic(name) for name in _directories(place, path)]
    for topic in topics:
        if topic not in there:
            few = ", ".join(there[:_FEW_TOPICS]) + (", …" if there[_FEW_TOPICS:] else "")
            raise ConfigError(f"archive {path} has no topic {topic}: it has {few or 'none yet'}")


def read(
    spark: SparkSession,
    path: str,
    *,
    streaming: bool = False,
    topics: Sequence[str] = (),
    start: str = "earliest",
    end: str = "latest",
    paths: Sequence[str] = (),
) -> DataFrame:
    """Messages as a source gives them: its columns but the property string, then those of the
    properties that were archived so. `start` and `end` are as in a pipeline file; a stream has no
    end. Of `paths`, files of the archive, if they are given."""
    about, path = describe(path, spark), path.rstrip("/")
    schema = about.rows()
    if start == "latest":
        raise ConfigError(f"archive {path}: start = latest would read nothing")
    if not paths:
        check_topics(path, topics, spark)
    if streaming:
        rows = (
            spark.readStream.format(about.format)
            .schema(schema)
            .options(maxFileAge="36500d", maxBytesPerTrigger=_BY_BATCH)
            .load(files.for_spark(path))
        )
    else:
        rows = _load(spark, about, schema, path, paths)
        is_file = about.format in FILE_FORMATS
        if is_file and not paths and _pending(files.of(path, spark), path):
            whole = list_files(path, spark)
            rows = _load(spark, about, schema, path, whole) if whole else rows.limit(0)
    if topics:
        rows = rows.where(F.col("topic").isin(*topics))
    rows = rows.where(within(start, end))
    return rows.select(*ARCHIVED, *(f"`{name}`" for name, _ in about.properties))


read_archive = read


def _load(
    spark: SparkSession, about: Description, schema: StructType, path: str, paths: Sequence[str]
) -> DataFrame:
    reader = spark.read.format(about.format)
    if about.format not in FILE_FORMATS:
        return reader.load(files.for_spark(path))
    reader = reader.schema(schema).option("basePath", files.for_spark(path))
    return reader.load([files.for_spark(one) for one in paths or [path]])


def list_files(
    path: str,
    spark: SparkSession | None,
    topics: Sequence[str] = (),
    start: str = "earliest",
    end: str = "latest",
) -> list[str]:
    """Those that may have messages of then, in the order they were archived; none of a batch of
    which some are not in their places."""
    place, path = files.of(path, spark), path.rstrip("/")
    first, last = _day(start) or "", _day(end) or "9999"
    pending = _pending(place, path)
    found = []
    for topic in _directories(place, path):
        if topics and _topic(topic) not in topics:
            continue
        for day in _directories(place, f"{path}/{topic}"):
            if first <= day.removeprefix("date=") <= last:
                inside = f"{path}/{topic}/{day}"
                names = [name for name in place.names(inside) if not name.startswith(("_", "."))]
                found += [f"{inside}/{name}" for name in names if name not in pending]
    return sorted(found, key=lambda file: (file.rpartition("/")[2], file))


def _topic(directory: str) -> str:
    return unquote(directory.removeprefix("topic="))


def _day(text: str) -> str | None:
    if text in ("earliest", "latest"):
        return None
    return datetime.fromtimestamp(millis_of(text) / 1000, UTC).date().isoformat()


def _pending(place: files.Files, path: str) -> list[str]:
    """Names of files of a batch of which not all are in their places. If nothing is staged they
    were: what is missing then was deleted."""
    last = _last(place, path)
    if last is None or not place.exists(f"{path}/{last['staging']}"):
        return []
    if all(place.exists(f"{path}/{to}") for _, to in last["files"]):
        return []
    return [to.rpartition("/")[2] for _, to in last["files"]]


def within(start: str, end: str) -> Column:
    """Whether a message was stored then; also says so of the day, which is a directory."""
    condition = F.lit(True)
    if start not in ("earliest", "latest"):
        condition &= moment(start) <= F.col("store_timestamp")
        condition &= day_of(moment(start)) <= F.col("date")
    if end != "latest":
        condition &= F.col("store_timestamp") < moment(end)
        condition &= F.col("date") <= day_of(moment(end))
    return condition


def moment(text: str) -> Column:
    return F.timestamp_millis(F.lit(millis_of(text)))


def day_of(at: Column) -> Column:
    """UTC, whatever the session's zone is."""
    return F.date_from_unix_date(F.floor(F.unix_seconds(at) / 86_400).cast("int"))


def text_of(rows: DataFrame) -> Callable[[str], Column]:
    """The text of a property, from the cheapest column that has it: one of its own is read alone,
    the map with all that is in it.

    A typed column is passed over: what Java can't read as a number is null there, and a filter
    that fails on it would not.
    """
    names = [name.lower() for name in rows.columns]
    texts = {
        one.name
        for one in rows.schema
        if one.dataType == StringType()
        and one.name not in COLUMNS
        and names.count(one.name.lower()) == 1
    }

    def text(name: str) -> Column:
        if name in ("TAGS", "KEYS") and name.lower() in rows.columns:
            return F.col(name.lower())
        return F.col(f"`{name}`") if name in texts else F.col("properties")[name]

    return text


@dataclass(kw_only=True)
class ArchiveSummary(Summary):
    path: str
    files: int = 0
    partitions: list[str] = field(default_factory=list)  # that got something: topic=…/date=…

    def body(self) -> list[str]:
        places = self.partitions[:3] + (["…"] if len(self.partitions) > 3 else [])
        return [f"  {self.files} files in {self.path}: {', '.join(places) or 'nothing new'}"]


def check(config: Config) -> int | None:
    """What can be known before Spark starts. Return how many messages lie ahead. Raises Error."""
    archive = _of(config)
    if config.source.archive is not None:
        raise ConfigError(f"{config.file}: an archive of an archive: copy its directory instead")
    if config.source.end != "latest":
        raise ConfigError(f"{config.file}: [source] end is not for archive, which has none")
    if archive.format == "csv":
        raise ConfigError(f"{config.file}: [archive] format: csv has no room for properties, body")
    retries = [topic for topic in config.source.topics if topic.startswith(_RETRIES)]
    if retries and len(config.source.topics) > 1:
        raise ConfigError(
            f"{config.file}: [source] topic: {retries[0]} beside others: its messages have the"
            " topic they came from and would lie among those; archive it by itself"
        )
    checkpoint = Checkpoint.open(config)
    Sinks(None, checkpoint.run_id).check([_sink(archive)])
    if is_local(archive.path):
        _check_same(config, files.of(archive.path), None)
        if is_local(config.checkpoint):
            _check_last(files.of(archive.path), archive.path, checkpoint.planned)
    return sources.check(config.source, checkpoint.offsets(checkpoint.planned))


def run(
    spark: SparkSession,
    config: Config,
    *,
    continuous: bool = False,
    dry_run: bool = False,
    stop: Stop | None = None,
    report: Report | None = None,
    out: Callable[[str], None] = print,
) -> ArchiveSummary:
    """Until all that is there now is archived, or with `continuous` until stopped. Raises
    ConfigError before anything is written, JobFailed later."""
    stop, report = stop or Stop(), report or Report(None)
    checkpoint = Checkpoint.open(config, spark)
    with checkpoint.locked(dry_run):
        job = _Job(spark, config, checkpoint, stop)
        job.plan()
        if dry_run:
            job.summary.status = "not run"
            return job.summary
        return job.run(continuous, report)


class _Job(Batches[ArchiveSummary]):
    def __init__(
        self, spark: SparkSession, config: Config, checkpoint: Checkpoint, stop: Stop
    ) -> None:
        self._archive = _of(config)
        self._path = self._archive.path.rstrip("/")
        self._place = files.of(self._path, spark)
        self._sinks = Sinks(spark, checkpoint.run_id)
        summary = ArchiveSummary(
            job="archive", file=str(config.file), source=config.source.name, path=self._path
        )
        super().__init__(spark, config, checkpoint, stop, summary)

    def plan(self) -> None:
        """Nothing is written."""
        self._about = _check_same(self._config, self._place, self._spark)
        self._sinks.check([_sink(self._archive)])
        _check_last(self._place, self._path, self._checkpoint.planned)

    def run(self, continuous: bool, report: Report) -> ArchiveSummary:
        last = _last(self._place, self._path)
        if last is not None:
            self._move(last)  # before `claim`, which clears what is staged
        self._checkpoint.save()  # before `claim`, whose mark has the run's id
        self._sinks.claim([_sink(self._archive)])
        self._place.make(self._path)
        description = json.dumps(self._about.to_dict())
        self._place.write(f"{self._path}/{_DESCRIPTION}", description + "\n")
        properties = [f"{name}:{kind}" for name, kind in self._about.properties]
        return self._go(ARCHIVED, properties, continuous, report)

    def take(self, rows: DataFrame, batch: int) -> None:
        if self._archive.format not in FILE_FORMATS:
            count, moves = self._append(rows, batch), []
        else:
            last = _last(self._place, self._path)
            if last is None or last["batch"] < batch:
                last = self._stage(rows, batch)
                self._move(last)
            elif last["batch"] > batch:
                raise _old(self._path, last["batch"], batch)
            count, moves = last["messages"], last["files"]
        summary = self.summary
        summary.messages += count
        summary.batches += 1
        summary.files += len(moves)
        found = {*summary.partitions, *(to.rpartition("/")[0] for _, to in moves)}
        summary.partitions = sorted(found)

    def _stage(self, rows: DataFrame, batch: int) -> dict[str, Any]:
        """Steps 1 and 2."""
        staging = f"{_STAGING}{uuid.uuid4().hex[:12]}"
        observation = Observation()
        format = self._archive.format
        options = {**_OPTIONS.get(format, {}), **self._archive.options}
        writer = _sorted(rows, observation).write.format(format).options(**options)
        writer.partitionBy(*_PARTITIONS).save(files.for_spark(f"{self._path}/{staging}"))
        last = {
            "batch": batch,
            "messages": observation.get["messages"],
            "staging": staging,
            "files": self._moves(staging, batch),
        }
        if last["messages"] and not last["files"]:
            raise JobFailed(
                f"archive {self._path}: {last['messages']:,} messages were written, and none of"
                " their files are here: it must be the same directory on all machines"
            )
        self._place.write(f"{self._path}/{_LAST}", json.dumps(last) + "\n")
        return last

    def _moves(self, staging: str, batch: int) -> list[tuple[str, str]]:
        """From where to where, below the archive's path."""
        moves = []
        place, root = self._place, f"{self._path}/{staging}"
        for topic in _directories(place, root):
            for date in _directories(place, f"{root}/{topic}"):
                names = place.names(f"{root}/{topic}/{date}")
                parts = [name for name in names if not name.startswith(("_", "."))]
                for number, name in enumerate(parts):
                    new = f"{self._checkpoint.run_id[:8]}-{batch:06}-{number:04}{_suffix(name)}"
                    inside = f"{topic}/{date}"
                    moves.append((f"{staging}/{inside}/{name}", f"{inside}/{new}"))
        return moves

    def _move(self, last: Mapping[str, Any]) -> None:
        """Step 3, or what is left of it: the directory goes last."""
        if not self._place.exists(f"{self._path}/{last['staging']}"):
            return
        for name, to in last["files"]:
            source, target = f"{self._path}/{name}", f"{self._path}/{to}"
            if self._place.exists(target):
                continue
            if not self._place.exists(source):
                raise ConfigError(
                    f"{target} is missing: batch {last['batch']} of the archive is not whole;"
                    " archive to another path"
                )
            self._place.make(target.rpartition("/")[0])
            self._place.rename(source, target)
        self._place.remove(f"{self._path}/{last['staging']}")

    def _append(self, rows: DataFrame, batch: int) -> int:
        """A table format does what files need us for, if it knows the batch it has."""
        observation = Observation()
        options = dict(self._archive.options)
        if self._archive.format == "delta":
            options |= {"txnAppId": self._checkpoint.run_id, "txnVersion": str(batch)}
        writer = _sorted(rows, observation).write.format(self._archive.format).options(**options)
        writer.partitionBy(*_PARTITIONS).mode("append").save(files.for_spark(self._path))
        return int(observation.get["messages"])


def _sorted(rows: DataFrame, observation: Observation) -> DataFrame:
    counted = rows.observe(observation, F.count(F.lit(1)).alias("messages"))
    dated = counted.withColumn("date", day_of(F.col("store_timestamp")))
    # The first two are what writing to partitions sorts by anyway.
    return dated.sortWithinPartitions(*_PARTITIONS, "tags", "broker", "queue_id", "offset")


def _of(config: Config) -> Archive:
    assert config.archive is not None
    return config.archive


def _sink(archive: Archive) -> Sink:
    return Sink(format=archive.format, path=archive.path)


def _check_same(config: Config, place: files.Files, spark: SparkSession | None) -> Description:
    """Rows of one archive have the same columns: a property that has none in older files would be
    missing in them."""
    archive = _of(config)
    about = Description(archive.format, _properties(config))
    if place.exists(f"{archive.path.rstrip('/')}/{_DESCRIPTION}"):
        before = describe(archive.path, spark)
        if before != about:
            raise ConfigError(
                f"{config.file}: [archive] {archive.path} was begun as {_shown(before)}, not as"
                f" {_shown(about)}: leave that, or archive to another path"
            )
    return about


def _properties(config: Config) -> tuple[tuple[str, str], ...]:
    found: dict[str, str] = {}
    taken = {name.lower() for name in (*COLUMNS, "date")}
    for item in _of(config).properties:
        name, _, kind = (part.strip() for part in item.partition(":"))
        why = None
        if (kind or "string") not in TYPES:
            why = f"the types are {', '.join(TYPES)}"
        elif name.lower() in taken:
            why = "there is a column of that name already"
        elif not name or any(c in name for c in "`,;{}()\n\t= "):
            why = "no column can have that name"
        if why:
            raise ConfigError(f"{config.file}: [archive] properties: {item!r}: {why}")
        taken.add(name.lower())
        found[name] = kind or "string"
    return tuple(found.items())


def _shown(about: Description) -> str:
    columns = ", ".join(f"{name}:{kind}" for name, kind in about.properties)
    return f"{about.format} with {f'properties {columns}' if columns else 'no property columns'}"


def _last(place: files.Files, path: str) -> dict[str, Any] | None:
    file = f"{path}/{_LAST}"
    if not place.exists(file):
        return None
    try:
        last = json.loads(place.read(file))
        return {
            "batch": int(last["batch"]),
            **{name: last[name] for name in ("messages", "staging", "files")},
        }
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{file} is damaged ({error}): restore it, or archive anew") from None


def _check_last(place: files.Files, path: str, planned: int) -> None:
    last = _last(place, path.rstrip("/"))
    if last is not None and last["batch"] > planned:
        raise _old(path, last["batch"], planned)


def _old(path: str, there: int, known: int) -> ConfigError:
    return ConfigError(
        f"archive {path} has batch {there}, its checkpoint comes to {known}: it is an old copy;"
        " restore the newest, or archive to another path"
    )


def _directories(place: files.Files, path: str) -> list[str]:
    return [name for name in place.names(path) if "=" in name]


def _suffix(name: str) -> str:
    """Of `part-00000-….c000.zstd.parquet`: `.zstd.parquet`."""
    dots = name.split(".")[1:]
    return "".join(f".{part}" for part in dots if not part.startswith("c0"))
