"""The copies of messages that groups sent back: in their retry and dead-letter topics, and among
the delayed messages on their way there.

A copy keeps the producer's id of the message, and names the message it was made of: by its place in
the log if the broker made the copy, by the producer's id if a client did.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import reduce
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ..errors import ConfigError, TopicNotFound
from ..fate import RetryFacts
from ..spark.groups import BrokerGroups
from ..spark.options import Options
from ..spark.origins import open_origin
from . import sources
from .config import Source
from .judging import Retries

__all__ = ["MOST_COPIES", "has_messages", "read_retries"]

MOST_COPIES: Final = 1_000_000  # that are remembered, of all groups together
_DELAY_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
_DELAYED, _RETRIED, _DEAD = range(3)  # of as many failures the later stage is newer
_PROPERTIES: Final = ("ORIGIN_MESSAGE_ID", "RETRY_TOPIC", "REAL_TOPIC")
_COLUMNS: Final = ("broker", "queue_id", "offset", "reconsume_times", "message_id")
_PLACE: Final = re.compile(r"[0-9A-F]{32}|[0-9A-F]{56}")  # host, port and offset in the log


def read_retries(
    spark: SparkSession,
    source: Source,
    groups: Sequence[str],
    brokers: Sequence[BrokerGroups],
) -> tuple[dict[str, Retries], list[str]]:
    """Return the newest copy of each message for each group, and what a person should know."""
    frames = [
        _copies(spark, source, topic).select(
            *(F.lit(number).alias("group"), F.lit(stage).alias("stage")), "*"
        )
        for number, group in enumerate(groups)
        for stage, topic in ((_RETRIED, f"%RETRY%{group}"), (_DEAD, f"%DLQ%{group}"))
        if has_messages(source, topic)
    ]
    if has_messages(source, _DELAY_TOPIC):
        delayed = _copies(spark, source, _DELAY_TOPIC).withColumn("stage", F.lit(_DELAYED))
        numbers = spark.createDataFrame(
            [(number, f"%RETRY%{group}") for number, group in enumerate(groups)],
            "group INT, REAL_TOPIC STRING",
        )
        frames.append(delayed.join(F.broadcast(numbers), "REAL_TOPIC"))
    if not frames:
        return {}, []
    rows = reduce(DataFrame.unionByName, frames).limit(MOST_COPIES + 1).collect()
    notes = []
    if len(rows) > MOST_COPIES:
        notes.append(
            f"more than {MOST_COPIES:,} messages were sent back: of the rest it is not known"
            " whether they are being retried"
        )
    newest: dict[tuple[int, str], Any] = {}
    for row in rows[:MOST_COPIES]:
        key = row["group"], row["ORIGIN_MESSAGE_ID"] or row["message_id"]
        known = newest.get(key)
        if known is None or _age(row) > _age(known):
            newest[key] = row
    offsets = {broker.broker: broker.offsets for broker in brokers}
    made: dict[str, tuple[dict[int, Any], dict[str, RetryFacts]]] = {}
    for (number, origin), row in newest.items():
        group = groups[number]
        by_log_offset, by_id = made.setdefault(group, ({}, {}))
        copy = _facts(row, group, offsets)
        if _PLACE.fullmatch(origin) and origin != row["message_id"]:
            place = int(origin[-16:], 16)
            by_log_offset[place] = (*by_log_offset.get(place, ()), (row["message_id"], copy))
        else:
            by_id[origin] = copy
    return {group: Retries(*tables) for group, tables in made.items()}, notes


def _age(row: Any) -> tuple[int, int, int]:
    return row["reconsume_times"], row["stage"], row["offset"]


def _facts(row: Any, group: str, offsets: Mapping[str, Any]) -> RetryFacts:
    topic = f"%DLQ%{group}" if row["stage"] == _DEAD else f"%RETRY%{group}"
    progress = offsets.get(row["broker"] or "", {}).get((topic, group), {})
    is_consumed = row["stage"] == _RETRIED and progress.get(row["queue_id"], 0) > row["offset"]
    return RetryFacts(
        topic=topic,
        times=row["reconsume_times"],
        is_dead=row["stage"] == _DEAD,
        is_consumed=is_consumed,
    )


def _copies(spark: SparkSession, source: Source, topic: str) -> DataFrame:
    own = replace(source, topics=(topic,), start="earliest", end="latest")
    rows = sources.open_source(
        spark, own, streaming=False, columns=_COLUMNS, properties=_PROPERTIES
    )
    return rows.where(F.col("RETRY_TOPIC").isin([*source.topics]))


def has_messages(source: Source, topic: str) -> bool:
    """Return whether a topic is there and not empty. Raises Error, TimeoutError."""
    said = {**sources.place_of(source), "topic": topic}
    options = Options.parse(said, of_log=source.nameserver is None)
    with suppress(TopicNotFound, ConfigError), closing(open_origin(options)) as origin:
        return any(end > first for first, end in origin.bounds().values())
    return False
