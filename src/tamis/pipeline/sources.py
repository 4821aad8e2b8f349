"""What a job reads, as a DataFrame: a topic over the wire, a store's directory, an archive."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame, SparkSession

from ..errors import ConfigError
from ..security import INSECURE, Security
from ..spark.connection import is_connection
from ..spark.offsets import Positions
from ..spark.options import Options
from ..spark.reader import BatchReader, Partition
from ..spark.schema import row_type
from ..spark.stream import StreamReader
from .config import DEFAULT_COLUMNS, Source, is_local

if TYPE_CHECKING:
    from .judging import Batches

__all__ = [
    *("check", "check_options", "ends", "map_source", "open_source", "options_of", "place_of"),
    "security_of",
]

# Options that a file has settings for, or that a job chooses.
_OURS: Final = frozenset(
    name.lower()
    for name in (
        *(
            "nameserver",
            "profile",
            "path",
            "topic",
            "columns",
            "properties",
            "maxOffsetsPerTrigger",
        ),
        *("startingOffsets", "startingTimestamp", "endingOffsets", "endingTimestamp", "trigger"),
    )
)


def open_source(
    spark: SparkSession,
    source: Source,
    *,
    streaming: bool,
    columns: Sequence[str] = DEFAULT_COLUMNS,
    properties: Sequence[str] = (),
    limit: int | None = None,
) -> DataFrame:
    """Rows with exactly these columns, then one of strings for each property. `limit`: messages of
    a micro-batch of a stream."""
    if source.archive is not None:
        from . import archive

        rows = archive.read(
            spark,
            source.archive,
            streaming=streaming,
            topics=source.topics,
            start=source.start,
            end=source.end,
        )
        text_of = archive.text_of(rows)
        return rows.select(*columns, *(text_of(name).alias(name) for name in properties))
    options = options_of(source, columns, properties, streaming=streaming, limit=limit)
    name = "rocketmq" if source.nameserver else "rocketmq-log"
    if streaming:
        return spark.readStream.format(name).options(**options).load()
    return spark.read.format(name).options(**options).load()


def map_source(
    spark: SparkSession,
    source: Source,
    columns: Sequence[str],
    work: Callable[["Batches"], "Batches"],
    schema: str,
) -> tuple[DataFrame, int]:
    """Return what `work` makes of the messages, as rows of `schema`, and how many messages there
    are. It is done by the workers that read them: they do not go through the JVM, which takes
    longer than to read them. For a source that is no archive."""
    said = options_of(source, columns, (), streaming=False)
    options = Options.parse(said, of_log=source.nameserver is None)
    reader = BatchReader(options, row_type(options.columns, options.properties))
    partitions = [one for one in reader.partitions() if isinstance(one, Partition)]

    def read(numbers: "Batches") -> "Batches":
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from work(reader.read(partitions[number]))

    numbers = spark.range(0, len(partitions), 1, max(len(partitions), 1))
    count = sum(part.end - part.start for one in partitions for part in one.parts)
    return numbers.mapInArrow(read, schema), count


def ends(source: Source) -> Positions | None:
    """Where the source ends now, None of an archive. Raises Error, TimeoutError."""
    if source.archive is not None:
        return None
    with _reader(source) as reader:
        return Positions.from_json(reader.reportLatestOffset() or {})


def check(
    source: Source, offsets: Mapping[str, Any] | None, *, limit: int | None = None
) -> int | None:
    """Before Spark starts: it can be reached and has what is to be read, from `offsets` on if the
    job has begun before. `limit`: that of the file. Gives how many messages lie ahead, None of an
    archive. Raises Error, TimeoutError."""
    if source.archive is not None:
        _check_archive(source, source.archive, limit)
        return None
    with _reader(source) as reader:
        return reader.ahead(None if offsets is None else dict(offsets))


@contextmanager
def _reader(source: Source) -> Iterator[StreamReader]:
    said = options_of(source, DEFAULT_COLUMNS, (), streaming=True)
    options = Options.parse(said, of_log=source.nameserver is None)
    reader = StreamReader(options, row_type(options.columns, options.properties))
    try:
        yield reader
    finally:
        reader.stop()


def _check_archive(source: Source, path: str, limit: int | None) -> None:
    from . import archive

    for name in source.options:
        raise ConfigError(f"[source] options: {name} is not for an archive, which takes none")
    if limit is not None:
        raise ConfigError(
            "[run] max_offsets_per_batch is not for an archive, which is taken by files:"
            " leave it out"
        )
    if source.start == "latest":
        raise ConfigError(f"archive {path}: start = latest would read nothing")
    if is_local(path):
        archive.check_topics(path, source.topics)


def check_options(source: Source) -> None:
    """Raises ConfigError if the file has one that is ours."""
    for name in source.options:
        if name.lower() in _OURS:
            raise ConfigError(
                f"[source] options: {name} is what the pipeline sets itself: leave it out"
            )


def place_of(source: Source) -> dict[str, str]:
    """The options that say where it is and how to connect, if it is no archive."""
    if source.nameserver is not None:
        return {"nameserver": source.nameserver, **source.connection}
    return {"path": source.store or ""}


def security_of(source: Source) -> Security:
    """With which keys and TLS brokers and filter servers are asked. Raises ConfigError."""
    if source.nameserver is None:
        return INSECURE
    said = {name: value for name, value in source.options.items() if is_connection(name)}
    return Options.parse({**place_of(source), **said, "topic": "any"}, of_log=False).security


def options_of(
    source: Source,
    columns: Sequence[str],
    properties: Sequence[str],
    *,
    streaming: bool,
    limit: int | None = None,
) -> dict[str, str]:
    """Of the Spark source that it is, if it is no archive."""
    check_options(source)
    options = {"columns": ",".join(columns), **place_of(source), **source.options}
    if source.topics:
        options["topic"] = ",".join(source.topics)
    if properties:
        options["properties"] = ",".join(properties)
    if source.start in ("earliest", "latest"):
        options["startingOffsets"] = source.start
    else:
        options["startingTimestamp"] = source.start
    if not streaming and source.end != "latest":
        options["endingTimestamp"] = source.end
    if streaming and limit is not None:
        options["maxOffsetsPerTrigger"] = str(limit)
        options["trigger"] = "interval"  # under PySpark 4.1 `Batches` has no other
    return options
