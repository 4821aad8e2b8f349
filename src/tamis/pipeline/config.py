"""A pipeline file: TOML, checked as far as it can be without Spark.

    [source]            one of nameserver, store, archive; profile; topic, start, end, dialect,
                        options
    job                 route, archive, replay or audit; may stand in [run]
    [run]               checkpoint, summary, metrics, max_offsets_per_batch, interval
    [[subscription]]    group, one of tags, sql, code; isolation of code; sink (`sink_config`)
    [unmatched]         sink
    [archive]           path, format, properties, options
    [replay]            one of tags, sql, code, or none; isolation; since, until or offsets; rate;
                        sink; or, of [source] lost, groups, rate, force
    [audit]             groups, table, lost, report

Paths are relative to the file. What is wrong raises ConfigError with one line that begins with the
file and the table; a filter that does not compile adds a picture of it.
"""

import json
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

from ..errors import ConfigError, InvalidFilter
from ..filter import Dialect, parse
from ..filter.tags import parse_tags
from .audit_config import Audit, Output, ReplayOfLost, audit_of, replay_of_lost
from .sink_config import (
    DEFAULT_COLUMNS,
    FILE_FORMATS,
    OTHER_COLUMNS,
    Sink,
    format_of,
    nameserver_of,
    refuse_secrets,
    sink_of,
)
from .table import Table, is_local

__all__ = [
    "ALL",
    "DEFAULT_COLUMNS",
    "FILE_FORMATS",
    "ISOLATION",
    "OTHER_COLUMNS",
    "Archive",
    "Audit",
    "Config",
    "Filter",
    "Output",
    "Replay",
    "ReplayOfLost",
    "Sink",
    "Source",
    "Subscription",
    "is_local",
    "load",
    "millis_of",
    "names_topics",
]

T = TypeVar("T")

FILTERS: Final = ("tags", "sql", "code")
_PLACES: Final = ("nameserver", "store", "archive")
JOBS: Final = ("route", "archive", "replay", "audit")
# Of code: it is the job's own, or a stranger's, which must be locked in (`tamis.sandbox`).
ISOLATION: Final = ("off", "required")
_GROUP: Final = re.compile(r"[%|a-zA-Z0-9_-]{1,255}")  # RocketMQ's rule


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where messages come from: exactly one of the first three."""

    nameserver: str | None = None
    store: str | None = None
    archive: str | None = None
    connection: Mapping[str, str] = field(default_factory=dict)  # options of keys, TLS, the profile
    topics: tuple[str, ...] = ()  # none: all of a store or an archive
    start: str = "earliest"  # or latest, ISO 8601, milliseconds
    end: str = "latest"
    dialect: str = Dialect.V4_9.value  # of SQL filters on it
    options: Mapping[str, str] = field(default_factory=dict)  # of the Spark source, as they are
    lost: str | None = None  # the list of an audit: these messages only

    @property
    def kind(self) -> str:
        return "nameserver" if self.nameserver else "store" if self.store else "archive"

    @property
    def place(self) -> str:
        return self.nameserver or self.store or self.archive or ""

    @property
    def topic(self) -> str:
        """The only one, for the context of code; empty if there are several."""
        return self.topics[0] if len(self.topics) == 1 else ""

    @property
    def what(self) -> str:
        if self.topics:
            return "topic " + ", ".join(self.topics)
        if self.lost is not None:
            return f"those listed in {self.lost}"
        named = [f"{name} {value}" for name, value in self.options.items() if names_topics(name)]
        return ", ".join(named) or "all topics"

    @property
    def name(self) -> str:
        """For a person."""
        return f"{self.kind} {self.place}, {self.what}"


@dataclass(frozen=True, slots=True)
class Filter:
    """What chooses messages. `kind`: tags, sql or code. Of code `source` is the file's text, and
    `isolation` one of `ISOLATION`."""

    kind: str
    text: str
    dialect: str = Dialect.V4_9.value
    source: str = ""
    isolation: str = "off"

    @property
    def name(self) -> str:
        return f"{self.kind} {self.text}"

    def to_dict(self) -> dict[str, str]:
        fields = {
            "kind": self.kind,
            "text": self.text,
            "dialect": self.dialect,
            "source": self.source,
        }
        if self.isolation != "off":  # checkpoints from before there was any have none
            fields["isolation"] = self.isolation
        return fields


ALL: Final = Filter("tags", "*")


@dataclass(frozen=True, slots=True)
class Subscription:
    group: str
    filter: Filter
    sink: Sink

    def to_dict(self) -> dict[str, Any]:
        """What decides which messages go where, and in which form."""
        return {"group": self.group, "filter": self.filter.to_dict(), "sink": self.sink.to_dict()}

    @staticmethod
    def from_dict(fields: Mapping[str, Any]) -> "Subscription":
        return Subscription(
            fields["group"], Filter(**fields["filter"]), Sink.from_dict(fields["sink"])
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    path: str
    format: str = "parquet"
    properties: tuple[str, ...] = ()  # "region", "price:double": a column each
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    sink: Sink
    filter: Filter = ALL
    since: str | None = None  # ISO 8601 or milliseconds, of the time stored; until is not included
    until: str | None = None
    offsets: str | None = None  # JSON {"orders": {"broker-a": {"0": [12, 40]}}}: from, up to
    rate: float | None = None  # messages a second


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    file: Path
    source: Source
    job: str
    checkpoint: str
    summary: str
    metrics: str | None = None  # a file of this machine: a line of JSON for each batch
    max_offsets_per_batch: int | None = None  # more: fewer, longer batches
    interval: float = 1.0  # seconds between batches of a continuous run; more: fewer, larger files
    subscriptions: tuple[Subscription, ...] = ()
    unmatched: Sink | None = None
    archive: Archive | None = None
    replay: Replay | None = None
    replay_of_lost: ReplayOfLost | None = None
    audit: Audit | None = None


def millis_of(text: str) -> int:
    """Of a time as a file has it; UTC if it names no zone."""
    if text.isdigit():
        return int(text)
    moment = datetime.fromisoformat(text)
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def load(file: str | Path, profile: str | None = None) -> Config:
    """`profile`: of a source over the wire that names none. Raises ConfigError, and OSError if the
    file can't be read."""
    file = Path(file)
    try:
        tables = tomllib.loads(file.read_text("utf-8"))
    except ValueError as error:  # no TOML, or no UTF-8
        raise ConfigError(f"{file}: {error}") from None
    top = Table(tables, f"{file}: ", file, "table")
    run = top.table("run", {})
    if top.has("job") and run.has("job"):
        raise top.error("job is said twice: leave out that of [run]")
    job = top.choice("job", JOBS, "") if top.has("job") else run.choice("job", JOBS, "route")
    stem = file.absolute().parent / ".tamis" / file.stem
    checkpoint = run.path("checkpoint", str(stem))
    source = _source(top.table("source"), profile)
    if source.lost is not None and job != "replay":
        raise top.error(f"[source] lost is for job replay, not {job}")
    config = Config(
        file=file,
        source=source,
        job=job,
        checkpoint=checkpoint,
        summary=run.path("summary", f"{checkpoint.rstrip('/')}/summary.json"),
        metrics=_metrics(run, job),
        max_offsets_per_batch=run.positive("max_offsets_per_batch"),
        interval=run.number("interval") or 1.0,
        **_OF_JOB[job](top, source),
    )
    run.end()
    top.end()
    return config


def _metrics(run: Table, job: str) -> str | None:
    path: str | None = run.path("metrics", None)
    if path is not None and job not in ("route", "archive"):
        raise run.error(f"metrics is for route and archive, which have batches, not for {job}")
    if path is not None and not is_local(path):
        raise run.error(f"metrics = {path!r}: it is a file of this machine")
    return path


def _route(top: Table, source: Source) -> dict[str, Any]:
    subscriptions: dict[str, Subscription] = {}
    places: dict[tuple[str, str], str] = {}
    tables = top.tables("subscription")
    if not tables:
        raise top.missing("has no [[subscription]]: nothing would be routed", "subscription")
    for number, table in enumerate(tables, 1):
        group = table.text("group", "")
        if not group:
            raise table.missing(f"the {_ordinal(number)} has no group", "group")
        table.where = f"{top.where}subscription {group}: "
        if not _GROUP.fullmatch(group):
            raise table.error("a group is named by letters, digits, _, -, % and |, at most 255")
        if group in subscriptions:
            raise table.error("there are two of that group")
        filter = _filter(table, source.dialect)
        if filter is None:
            text = "has no filter: give it one of tags, sql and code"
            raise table.missing(text, *FILTERS)
        sink = _sink(table.table("sink"), source)
        _check_place(places, sink, f"subscription {group}", table)
        table.end()
        subscriptions[group] = Subscription(group, filter, sink)
    kept = None
    if top.has("unmatched"):
        table = top.table("unmatched")
        kept = _sink(table.table("sink"), source)
        _check_place(places, kept, "[unmatched]", table)
        table.end()
    return {"subscriptions": tuple(subscriptions.values()), "unmatched": kept}


def _archive(top: Table, source: Source) -> dict[str, Any]:
    table = top.table("archive")
    archive = Archive(
        path=table.path("path"),
        format=format_of(table.text("format", "parquet")),
        properties=table.texts("properties", ()),
        options=table.options(),
    )
    if archive.format == "text":
        raise table.error("format text has room for one column only")
    table.end()
    return {"archive": archive}


def _replay(top: Table, source: Source) -> dict[str, Any]:
    if source.lost is not None:
        return replay_of_lost(top, source)
    table = top.table("replay")
    offsets = table.take("offsets", (dict, str), None, "a table or JSON text")
    replay = Replay(
        sink=_sink(table.table("sink"), source),
        filter=_filter(table, source.dialect) or ALL,
        since=table.time("since", None),
        until=table.time("until", None),
        offsets=json.dumps(offsets) if isinstance(offsets, dict) else offsets,
        rate=table.number("rate"),
    )
    if replay.offsets and (replay.since or replay.until):
        raise table.error("has both offsets and a time: give it one of them")
    if replay.rate == math.inf:
        raise table.error("rate = inf: it takes a number; leave it out to have no bound")
    start, end = replay.since or source.start, replay.until or source.end
    if start == "latest":
        raise top.error("[source] start = latest would replay nothing: a replay has an end")
    if start != "earliest" and end != "latest" and millis_of(start) >= millis_of(end):
        raise table.error(f"nothing is since {start} and before {end}")
    table.end()
    return {"replay": replay}


_OF_JOB: Final = {"route": _route, "archive": _archive, "replay": _replay, "audit": audit_of}


def _source(table: Table, profile: str | None) -> Source:
    given = [name for name in _PLACES if table.has(name)]
    named = table.text_or_none("profile")
    if named is not None and given not in ([], ["nameserver"]):
        raise table.error(f"profile is for a nameserver, not for {given[0]}: leave it out")
    found = None
    if given in ([], ["nameserver"]):
        profile = named if named is not None else profile
        found = nameserver_of(table, table.text_or_none("nameserver"), profile)
    if len(given) != 1 and found is None:
        said = f"has {' and '.join(given)}" if given else "does not say where messages are"
        text = f"{said}: give it one of nameserver, store and archive"
        raise table.error(text) if given else table.missing(text, *_PLACES)
    topics = table.texts("topic", ())
    lost = table.path("lost", None)
    source = Source(
        nameserver=found,
        connection={"profile": profile} if found is not None and profile is not None else {},
        store=table.path("store", None),
        archive=table.path("archive", None),
        topics=topics,
        start=table.time("start", "earliest", ("earliest", "latest")),
        end=table.time("end", "latest", ("latest",)),
        dialect=table.choice("dialect", [d.value for d in Dialect], Dialect.V4_9.value),
        options=table.options(),
        lost=lost,
    )
    refuse_secrets(table, source.options)
    if source.store is not None and not is_local(source.store):
        raise table.error(
            f"store = {source.store!r}: a store's files are read by their path on all machines,"
            " not through Hadoop: mount it, archive it or give a nameserver"
        )
    table.end()
    is_named = topics or lost is not None or any(map(names_topics, source.options))
    if source.nameserver is not None and not is_named:
        raise table.error("has no topic")
    return source


def names_topics(option: str) -> bool:
    return option.lower() in ("topicpattern", "assign")


def _filter(table: Table, dialect: str) -> Filter | None:
    given = [kind for kind in FILTERS if table.has(kind)]
    if len(given) > 1:
        raise table.error(f"has both {' and '.join(given)}: give it one of them")
    if not given:
        return None
    kind, text = given[0], table.text(given[0])
    if kind != "code" and table.has("isolation"):
        raise table.error(f"isolation is for code, not for {kind}: leave it out")
    try:
        if kind == "sql":
            parse(text, dialect)
        elif kind == "tags":
            parse_tags(text)
    except InvalidFilter as error:
        picture = "\n".join("  " + line for line in error.picture().split("\n"))
        raise ConfigError(f"{table.where}{kind}: {error}\n{picture}") from None
    if kind == "code":
        isolation = table.choice("isolation", ISOLATION, "off")
        return Filter(kind, text, dialect, _code(table, text), isolation)
    return Filter(kind, text, dialect)


def _code(table: Table, text: str) -> str:
    name, colon, of_class = text.rpartition(":")
    if not colon or not name or not of_class.isidentifier():
        raise table.error(f"code = {text!r}: write file.py:Class")
    path = table.file.absolute().parent / name
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        raise table.error(f"code: there is no file {path}") from None
    except (OSError, ValueError) as error:
        raise table.error(f"code: {path} can't be read: {error}") from None


def _sink(table: Table, source: Source) -> Sink:
    return sink_of(
        table,
        nameserver=source.nameserver,
        profile=source.connection.get("profile"),
        is_archive=source.archive is not None,
    )


def _check_place(places: dict[tuple[str, str], str], sink: Sink, who: str, table: Table) -> None:
    if sink.path is None:
        return
    place = ("path", sink.path.rstrip("/"))
    if place in places:
        raise table.error(f"sink: {sink.path} is the sink of {places[place]} too")
    inside = [p for p in places if (place[1] + "/").startswith(p[1] + "/")
              or (p[1] + "/").startswith(place[1] + "/")]  # fmt: skip
    if inside:
        raise table.error(f"sink: {sink.path} and {inside[0][1]}, the sink of"
                          f" {places[inside[0]]}, lie in each other")  # fmt: skip
    places[place] = who


def _ordinal(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")
