"""What a pipeline's file says of an audit, and of a replay of what one found lost."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from .table import Table, is_local

if TYPE_CHECKING:
    from .config import Source

__all__ = ["OUTPUT_FORMATS", "Audit", "Output", "ReplayOfLost", "audit_of", "replay_of_lost"]

OUTPUT_FORMATS: Final = ("parquet", "json", "orc")  # that an audit's list can be read back from


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOfLost:
    """A replay of the messages that an audit lists as lost, to the groups that missed them."""

    groups: tuple[str, ...] = ()  # none: all that are listed
    rate: float | None = None  # messages a second
    force: bool = False  # also to a group whose members subscribe differently


@dataclass(frozen=True, slots=True)
class Output:
    """A table that an audit writes, in place of that of the run before."""

    format: str
    path: str

    @property
    def name(self) -> str:
        return f"{self.format} {self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    groups: tuple[str, ...] = ()  # none: all that are known
    table: Output | None = None  # the fate of every message for every group
    lost: Output | None = None  # those lost, as a replay takes them
    report: str | None = None  # an HTML file


def replay_of_lost(top: Table, source: "Source") -> dict[str, Any]:
    """Read [replay] of a file whose source is a list of lost messages. Raises ConfigError."""
    table = top.table("replay", {})
    for name in ("sink", "tags", "sql", "code", "since", "until", "offsets"):
        if table.has(name):
            raise table.error(
                f"{name} is not for [source] lost: its messages go to the groups that missed them"
            )
    if source.nameserver is None:
        raise top.error("[source] lost needs a nameserver: the messages are sent to its brokers")
    if source.topics or source.start != "earliest" or source.end != "latest":
        raise top.error("[source] lost says which messages: leave out topic, start and end")
    replay = ReplayOfLost(
        groups=table.texts("groups", ()),
        rate=table.number("rate"),
        force=table.take("force", bool, False, "true or false"),
    )
    if replay.rate == math.inf:
        raise table.error("rate = inf: it takes a number; leave it out to have no bound")
    table.end()
    return {"replay_of_lost": replay}


def audit_of(top: Table, source: "Source") -> dict[str, Any]:
    """Read [audit]. Raises ConfigError."""
    if source.archive is not None:
        raise top.error("[source] archive: it has no progress of groups: audit a broker or a store")
    if not source.topics:
        raise top.error("[source] has no topic")
    for topic in source.topics:
        if topic.startswith(("%RETRY%", "%DLQ%")):
            raise top.error(f"[source] topic {topic}: audit the topic whose messages are retried")
    if source.start == "latest":
        raise top.error("[source] start = latest would audit nothing: an audit has an end")
    for option in source.options:
        if option.lower() in ("tags", "sql"):
            raise top.error(f"[source] options: {option} would hide messages from the audit")
    table = top.table("audit", {})
    audit = Audit(
        groups=table.texts("groups", ()),
        table=_output(table, "table"),
        lost=_output(table, "lost"),
        report=table.path("report", None),
    )
    if audit.report is not None and not audit.report.endswith((".html", ".htm")):
        raise table.error(f"report = {audit.report!r}: it is an HTML file, name it so")
    if audit.report is not None and not is_local(audit.report):
        raise table.error(f"report = {audit.report!r}: it is a file of this machine")
    if audit.table is not None and audit.lost is not None and _in_each_other(
        audit.table.path, audit.lost.path
    ):  # fmt: skip
        raise table.error("table and lost lie in each other: give them two directories")
    table.end()
    return {"audit": audit}


def _output(table: Table, name: str) -> Output | None:
    if not table.has(name):
        return None
    inner = table.table(name)
    format = inner.choice("format", OUTPUT_FORMATS, "parquet")
    output = Output(format, inner.path("path").rstrip("/"))
    inner.end()
    return output


def _in_each_other(one: str, other: str) -> bool:
    return (one + "/").startswith(other + "/") or (other + "/").startswith(one + "/")
