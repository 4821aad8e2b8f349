"""What a job reads, as a DataFrame: a topic over the wire, a store's directory, an archive."""

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from ..errors import ConfigError
from ..spark.options import Options
from ..spark.schema import row_type
from ..spark.stream import StreamReader
from .config import DEFAULT_COLUMNS, Source, is_local

__all__ = ["check", "open_source", "options_of", "place_of"]


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


def check(source: Source, offsets: Mapping[str, Any] | None) -> None:
    """Before Spark starts: it can be reached and has what is to be read, from `offsets` on if the
    job has begun before. Raises Error, TimeoutError."""
    if source.archive is not None:
        from . import archive

        if is_local(source.archive):
            archive.describe(source.archive)
        return
    said = options_of(source, DEFAULT_COLUMNS, (), streaming=True)
    options = Options.parse(said, of_log=source.nameserver is None)
    reader = StreamReader(options, row_type(options.columns, options.properties))
    try:
        if offsets is None:
            reader.initialOffset()
        else:
            reader.latestOffset(dict(offsets), ReadAllAvailable())
    finally:
        reader.stop()


def place_of(source: Source) -> dict[str, str]:
    """The option that says where it is, if it is no archive."""
    if source.nameserver is not None:
        return {"nameserver": source.nameserver}
    return {"path": source.store or ""}


def options_of(
    source: Source,
    columns: Sequence[str],
    properties: Sequence[str],
    *,
    streaming: bool,
    limit: int | None = None,
) -> dict[str, str]:
    """Of the Spark source that it is, if it is no archive."""
    options = {"columns": ",".join(columns), **place_of(source)}
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
    said = {name.lower() for name in options}
    for name in source.options:
        if name.lower() in said:
            raise ConfigError(f"[source] options: {name} is what the pipeline sets itself")
    return {**options, **source.options}
