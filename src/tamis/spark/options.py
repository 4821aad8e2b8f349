"""What users ask of a source: Spark's options, all text, made into one typed value on the driver.

Names are those of Spark's Kafka source where it has the thing. Case does not matter in them. What
can't be is said before a job starts, with the option's name.
"""

import difflib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

from ..client.compression import MAX_BODY_SIZE
from ..client.config import check_group, check_topic
from ..errors import ConfigError
from ..filter import Dialect, parse
from ..filter.tags import parse_tags
from ..security import INSECURE, Security
from ..wire.bodies import MessageQueue
from . import values
from .connection import OPTIONS, resolve_connection
from .schema import ADDED, DEFAULT, TYPES

__all__ = ["EARLIEST", "LATEST", "STREAM_ONLY", "Options", "Place", "Time"]

EARLIEST: Final = -2  # as in Kafka's JSON of offsets
LATEST: Final = -1


@dataclass(frozen=True, slots=True)
class Time:
    """The first message stored at this time (milliseconds) or later."""

    millis: int


# Where to begin or end: for all queues, or for each by itself.
Place = Literal[-2, -1] | Time | Mapping[MessageQueue, "int | Time"]
FilterAt = Literal["auto", "broker", "reader"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """One of `topics`, `pattern` and `assigned` says what is read; of a directory also none."""

    nameserver: str = ""
    security: Security = INSECURE
    root: str = ""  # of a store; then there is no name server
    broker: str | None = None  # what a store's broker is called in the rows
    topics: tuple[str, ...] = ()
    pattern: str = ""
    assigned: tuple[MessageQueue, ...] = ()

    start: Place | None = (
        None  # what is usual: batches begin at the earliest, streams at the latest
    )
    end: Place | None = None
    max_per_trigger: int | None = None
    min_per_trigger: int | None = None
    max_delay: float = 900.0  # seconds the fewer than that wait
    trigger: Literal["any", "interval"] = "any"  # what the query has: PySpark 4.1 does not tell
    min_partitions: int | None = None
    max_per_partition: int | None = None
    fail_on_data_loss: bool = True
    fail_on_unreadable: bool = True  # or give null for a body that can't be decompressed
    max_body_size: int = MAX_BODY_SIZE  # bytes of a compressed body when it is decompressed
    # Seconds that a task waits for messages that are planned to be read and not there yet: a log
    # seen through a network's file system, a broker that has just started again.
    data_timeout: float = 30.0
    group: str = ""  # progress is committed for it, if it is given

    columns: tuple[str, ...] = DEFAULT
    properties: tuple[tuple[str, str], ...] = ()  # names and types
    tags: str | None = None
    sql: str | None = None
    dialect: Dialect = Dialect.V4_9
    filter_at: FilterAt = "auto"

    timeout: float = 10.0  # seconds for an answer
    retries: int = 5  # of a request that was not answered, or with "later"
    pull_size: int = 1000  # messages a pull asks for: brokers give 32 at the most if not told more
    batch_rows: int = 10_000  # in one piece on its way into the JVM

    given: frozenset[str] = field(default=frozenset(), compare=False)

    @classmethod
    def parse(cls, options: Mapping[str, str], *, of_log: bool) -> "Options":
        """Raises ConfigError, InvalidFilter."""
        spelled = {name.lower(): name for name in (_LOG if of_log else _WIRE)}
        values.refuse_unknown(options, spelled)
        made: dict[str, Any] = {}
        connection: dict[str, Any] = {}
        for name, text in options.items():
            if (known := spelled[name.lower()]) in OPTIONS:
                connection[known] = read_option(known, OPTIONS[known], str(text))
                continue
            attribute, read = _READERS[spelled[name.lower()]]
            try:
                value = read(str(text))
            except ValueError as error:
                raise ConfigError(f"option {spelled[name.lower()]}: {error}") from None
            if attribute in made:
                raise ConfigError(
                    f"option {spelled[name.lower()]}: another option says that already"
                )
            made[attribute] = value
        if not of_log:
            made["nameserver"], made["security"] = resolve_connection(connection)
        path = made.pop("path", "")
        if of_log:
            made["root"] = _absolute(path)
        elif path:
            if "topics" in made:
                raise ConfigError(f"load({path!r}) and option topic both name the topic: give one")
            try:
                made["topics"] = _topics(path)
            except ValueError as error:
                raise ConfigError(f"load({path!r}): {error}") from None
        parsed = cls(**made, given=frozenset({*made, *connection}))
        parsed._check(of_log)
        return parsed

    def _check(self, of_log: bool) -> None:
        if of_log and not self.root:
            raise ConfigError('name the store\'s directory: load("path"), or option path')
        if not of_log and not self.nameserver:
            raise ConfigError('option nameserver is missing: "host:port", several with ; between')
        said = [bool(self.topics), bool(self.pattern), bool(self.assigned)]
        if sum(said) > 1:
            raise ConfigError("topic, topicPattern and assign exclude each other: give one")
        if not of_log and not any(said):
            raise ConfigError("nothing is named to be read: give topic, topicPattern or assign")
        if self.tags is not None and self.sql is not None:
            raise ConfigError("options tags and sql exclude each other: SQL can ask for TAGS too")
        if self.tags is not None:
            parse_tags(self.tags)
        if self.sql is not None:
            parse(self.sql, self.dialect)
        low, high = self.min_per_trigger, self.max_per_trigger
        if low is not None and high is not None and low > high:
            raise ConfigError(f"minOffsetsPerTrigger {low} is above maxOffsetsPerTrigger {high}")

    def filter_facts(self) -> dict[str, str]:
        """What somebody needs to count what will be read: the name server if there is one, and the
        filter if there is one."""
        tags = "" if parse_tags(self.tags).matches_all else self.tags or ""
        facts = {"nameserver": self.nameserver, "tags": tags, "sql": self.sql or ""}
        if self.sql and self.dialect is not Dialect.V4_9:
            facts["dialect"] = str(self.dialect)
        return {name: value for name, value in facts.items() if value}

    def for_batch(self) -> "Options":
        for attribute, name in STREAM_ONLY.items():
            if attribute in self.given:
                raise ConfigError(f"option {name} is for streams: a batch has no triggers")
        if self.start == LATEST:
            raise ConfigError(
                "option startingOffsets: a batch that starts at the latest has nothing to read"
            )
        return self

    def for_stream(self) -> "Options":
        if self.end is not None:
            raise ConfigError(
                "a stream has no end: leave out endingOffsets and endingTimestamp, or use"
                " trigger(availableNow=True)"
            )
        return self


STREAM_ONLY: Final = {
    "max_per_trigger": "maxOffsetsPerTrigger",
    "min_per_trigger": "minOffsetsPerTrigger",
    "max_delay": "maxTriggerDelay",
    "trigger": "trigger",
}


def read_option(name: str, read: Callable[[str], Any], text: str) -> Any:
    """Raises ConfigError that does not show a secret."""
    try:
        return read(text)
    except ValueError as error:
        raise ConfigError(f"option {name}: {error}") from None


def _absolute(path: str) -> str:
    """Executors have other working directories than the driver, which parses this."""
    path = path.removeprefix("file://").removeprefix("file:")
    return os.path.abspath(os.path.expanduser(path)) if path else ""


# Readers of one option each. They raise ValueError with what is wrong.


def _topics(text: str) -> tuple[str, ...]:
    names = values.names(text)
    if not names:
        raise ValueError("it names no topic")
    for name in names:
        check_topic(name)
    return tuple(dict.fromkeys(names))


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is no regular expression: {error}") from None
    return values.text(text)


def _group(text: str) -> str:
    check_group(text)
    return text


def _json(text: str) -> dict[str, dict[str, Any]]:
    """By topic, then by broker."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from None
    if not isinstance(value, dict):
        raise ValueError('not an object: {"topic": {"broker": …}}')
    value.pop("", None)  # what a query's progress has beside the topics
    for topic, brokers in value.items():
        if not isinstance(brokers, dict):
            raise ValueError(f'{topic}: not an object: {{"broker": …}}')
    return value


def _assigned(text: str) -> tuple[MessageQueue, ...]:
    queues = []
    for topic, brokers in _json(text).items():
        for broker, numbers in brokers.items():
            if not isinstance(numbers, list) or not all(_is_whole(one) for one in numbers):
                raise ValueError(f"{topic}, {broker}: not a list of queue numbers")
            queues += [MessageQueue(topic, broker, number) for number in numbers]
    if not queues:
        raise ValueError("it names no queue")
    return tuple(dict.fromkeys(queues))


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _by_queue(text: str) -> dict[MessageQueue, int]:
    found = {}
    for topic, brokers in _json(text).items():
        for broker, offsets in brokers.items():
            if not isinstance(offsets, dict):
                raise ValueError(f'{topic}, {broker}: not an object: {{"0": 12, "1": -2}}')
            for number, offset in offsets.items():
                if not number.isdecimal() or not _is_whole(offset):
                    raise ValueError(f"{topic}, {broker}, {number}: a queue's number and an offset")
                found[MessageQueue(topic, broker, int(number))] = offset
    if not found:
        raise ValueError("it names no queue")
    return found


def _offsets(*words: str) -> Callable[[str], Place]:
    def read(text: str) -> Place:
        if text.strip().lower() in words:
            return EARLIEST if text.strip().lower() == "earliest" else LATEST
        if not text.lstrip().startswith("{"):
            shown = ", ".join(words)
            raise ValueError(f'{text!r} is none of {shown}, nor JSON {{"topic": {{"broker": …}}}}')
        found = _by_queue(text)
        for queue, offset in found.items():
            if offset < EARLIEST or (offset == EARLIEST and "earliest" not in words):
                raise ValueError(f"{queue}: {offset} is no offset")
        return found

    return read


def _time(text: str) -> Place:
    if text.lstrip().startswith("{"):
        return {queue: Time(millis) for queue, millis in _by_queue(text).items()}
    if text.strip().removeprefix("-").isdecimal():
        return Time(int(text))
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(
            f"{text!r} is no time: milliseconds since 1970, or 2026-11-15T09:30:00+00:00"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return Time(int(moment.timestamp() * 1000))


def _columns(text: str) -> tuple[str, ...]:
    names = values.names(text)
    every = [*DEFAULT, *ADDED]
    for name in names:
        if name not in every:
            near = difflib.get_close_matches(name, every, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(every)}"
            raise ValueError(f"there is no column {name!r}: {hint}")
        if names.count(name) > 1:
            raise ValueError(f"column {name} is named twice")
    if not names:
        raise ValueError(f"it names no column: there are {', '.join(every)}")
    return names


def _properties(text: str) -> tuple[tuple[str, str], ...]:
    found: dict[str, str] = {}
    taken = {*DEFAULT, *ADDED}  # case does not matter to Spark
    for item in values.names(text):
        name, _, kind = item.partition(":")
        name, kind = name.strip(), kind.strip().lower() or "string"
        if kind not in TYPES:
            raise ValueError(f"{item!r}: the types are {', '.join(TYPES)}")
        if name.lower() in taken:
            raise ValueError(f"property {name!r} would have the name of a column")
        if not name or name.lower() in (one.lower() for one in found):
            raise ValueError(
                f"{item!r}: a name and a type each, no name twice: region,price:double"
            )
        found[name] = kind
    return tuple(found.items())


_READERS: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "path": ("path", values.text),
    "broker": ("broker", values.text),
    "topic": ("topics", _topics),
    "topicPattern": ("pattern", _pattern),
    "assign": ("assigned", _assigned),
    "startingOffsets": ("start", _offsets("earliest", "latest")),
    "startingTimestamp": ("start", _time),
    "endingOffsets": ("end", _offsets("latest")),
    "endingTimestamp": ("end", _time),
    "maxOffsetsPerTrigger": ("max_per_trigger", values.number(1)),
    "minOffsetsPerTrigger": ("min_per_trigger", values.number(1)),
    "maxTriggerDelay": ("max_delay", values.kafka_seconds),
    "trigger": ("trigger", values.choice("any", "interval")),
    "minPartitions": ("min_partitions", values.number(1)),
    "maxRecordsPerPartition": ("max_per_partition", values.number(1)),
    "failOnDataLoss": ("fail_on_data_loss", values.flag),
    "failOnUnreadable": ("fail_on_unreadable", values.flag),
    "maxBodySize": ("max_body_size", values.number(1)),
    "dataTimeout": ("data_timeout", values.seconds),
    "groupId": ("group", _group),
    "columns": ("columns", _columns),
    "properties": ("properties", _properties),
    "tags": ("tags", str),
    "sql": ("sql", values.text),
    "dialect": ("dialect", Dialect),
    "filterAt": ("filter_at", values.choice("auto", "broker", "reader")),
    "requestTimeout": ("timeout", values.seconds),
    "retries": ("retries", values.number(0)),
    "pullSize": ("pull_size", values.number(1)),
    "batchRows": ("batch_rows", values.number(1)),
}
_OF_LOG_ONLY: Final = {"broker"}
_OF_WIRE_ONLY: Final = {
    *("groupId", "filterAt", "requestTimeout", "retries", "pullSize"),
}
_WIRE: Final = (_READERS.keys() | OPTIONS.keys()) - _OF_LOG_ONLY
_LOG: Final = _READERS.keys() - _OF_WIRE_ONLY
