"""What a replay reads: slices, each of them JSON, which its checkpoint keeps. A slice is a share of
every queue, or of an archive some files.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from ..errors import ConfigError
from ..spark.options import Options
from ..spark.origins import open_origin, placed
from . import archive, sources
from .config import FILE_FORMATS, Config, Replay, names_topics
from .steps import Needs

__all__ = [
    "Ranges",
    "asked",
    "count",
    "cut",
    "options_of",
    "places_of",
    "positions",
    "read",
    "slices_of",
]

_SLICE: Final = 500_000  # messages read at a time, if the file does not say
_FILES: Final = 16  # of an archive at a time

# {"orders": {"broker-a": {"0": [12, 40]}}}: from, up to
Ranges = dict[str, dict[str, dict[str, tuple[int, int]]]]


def slices_of(spark: SparkSession, config: Config) -> list[Any]:
    """All there is to replay, as things are now. Raises Error, TimeoutError."""
    if config.source.archive is not None:
        return _files(spark, config, config.source.archive)
    return list(cut(positions(config), config.max_offsets_per_batch or _SLICE))


def _files(spark: SparkSession, config: Config, path: str) -> list[list[str]]:
    """Some each, in the order they were archived; all there is of a table format."""
    if archive.describe(path, spark).format not in FILE_FORMATS:
        return [[]]
    start, end = _times(config)
    archive.check_topics(path, config.source.topics, spark)
    every = archive.list_files(path, spark, config.source.topics, start, end)
    return [every[at : at + _FILES] for at in range(0, len(every), _FILES)]


def _times(config: Config) -> tuple[str, str]:
    source, replay = config.source, _of(config)
    return replay.since or source.start, replay.until or source.end


def _of(config: Config) -> Replay:
    assert config.replay is not None
    return config.replay


def count(slices: Sequence[Any]) -> int | None:
    """Messages at the most; None if some are files of an archive."""
    if any(isinstance(one, list) for one in slices):
        return None
    parts: Sequence[Ranges] = slices
    return sum(
        end - start
        for one in parts
        for brokers in one.values()
        for queues in brokers.values()
        for start, end in queues.values()
    )


def read(spark: SparkSession, config: Config, part: Any, needs: Needs) -> DataFrame:
    """The messages of a slice."""
    if config.source.archive is not None:
        return _read_files(spark, config, config.source.archive, part, needs)
    source, replay = config.source, _of(config)
    reader = spark.read.format("rocketmq" if source.nameserver else "rocketmq-log")
    reader = reader.options(columns=",".join(needs.columns), **sources.place_of(source))
    reader = reader.options(**{k: v for k, v in source.options.items() if not names_topics(k)})
    if needs.properties:
        reader = reader.option("properties", ",".join(needs.properties))
    rows = reader.options(**places_of(part)).load()
    if replay.since is not None:  # queues are searched by time, which clocks set back
        rows = rows.where(F.col("store_timestamp") >= archive.moment(replay.since))
    if replay.until is not None:
        rows = rows.where(F.col("store_timestamp") < archive.moment(replay.until))
    return rows


def _read_files(
    spark: SparkSession, config: Config, path: str, paths: Sequence[str], needs: Needs
) -> DataFrame:
    start, end = _times(config)
    rows = archive.read(spark, path, topics=config.source.topics, start=start, end=end, paths=paths)
    text_of = archive.text_of(rows)
    rows = rows.select(*needs.columns, *(text_of(name).alias(name) for name in needs.properties))
    wanted = asked(config)
    return rows if wanted is None else rows.where(_inside(wanted))


def asked(config: Config) -> Ranges | None:
    """Those the file names. Raises ConfigError."""
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


def _inside(ranges: Ranges) -> Column:
    condition = F.lit(False)
    for topic, brokers in ranges.items():
        for broker, queues in brokers.items():
            for queue, (start, end) in queues.items():
                condition |= (
                    (F.col("topic") == topic)
                    & (F.coalesce("broker", F.lit("")) == broker)
                    & (F.col("queue_id") == int(queue))
                    & F.col("offset").between(start, end - 1)
                )
    return condition


def options_of(config: Config) -> Options:
    """Of all that is to be replayed."""
    source, (start, end) = config.source, _times(config)
    sources.check_options(source)
    said = {**sources.place_of(source), **source.options}
    if source.topics:
        said["topic"] = ",".join(source.topics)
    said["startingOffsets" if start == "earliest" else "startingTimestamp"] = start
    said["endingOffsets" if end == "latest" else "endingTimestamp"] = end
    return Options.parse(said, of_log=source.nameserver is None).for_batch()


def positions(config: Config) -> Ranges:
    """From where to where, of each queue, as things are now. Raises Error, TimeoutError."""
    wanted, options = asked(config), options_of(config)
    with closing(open_origin(options)) as origin:
        bounds = origin.bounds()
        starts = placed(origin, options.start or -2, bounds, "startingOffsets")
        ends = placed(origin, options.end or -1, bounds, "endingOffsets")
    found: Ranges = {}
    for queue, (low, high) in sorted(bounds.items()):
        first, last = max(starts[queue], low), min(ends[queue], high)
        if wanted is not None:
            queues = wanted.get(queue.topic, {}).get(queue.broker_name, {})
            first, last = queues.pop(str(queue.queue_id), (0, 0))
            if first < last and (first < low or last > high):
                raise ConfigError(
                    f"{config.file}: [replay] offsets: {queue} has {low} up to {high},"
                    f" not {first} up to {last}"
                )
        if first < last:
            brokers = found.setdefault(queue.topic, {})
            brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = (first, last)
    for topic, brokers in (wanted or {}).items():
        for broker, queues in brokers.items():
            for number in queues:
                raise ConfigError(
                    f"{config.file}: [replay] offsets: there is no queue {number} of {topic} on"
                    f" broker {broker!r}"
                )
    return found


def cut(ranges: Ranges, size: int) -> Iterator[Ranges]:
    """Each with a part of every queue, all in step: what was stored together goes together."""
    pairs = [
        pair for brokers in ranges.values() for queues in brokers.values()
        for pair in queues.values()
    ]  # fmt: skip
    most = -(-sum(end - start for start, end in pairs) // size)
    for number in range(most):
        yield {
            topic: {
                broker: {
                    queue: (
                        start + (end - start) * number // most,
                        start + (end - start) * (number + 1) // most,
                    )
                    for queue, (start, end) in queues.items()
                }
                for broker, queues in brokers.items()
            }
            for topic, brokers in ranges.items()
        }


def places_of(part: Ranges) -> dict[str, str]:
    """Return options of a source that reads just these."""

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
