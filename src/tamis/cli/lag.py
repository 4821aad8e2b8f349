"""`tamis groups lag`, and the exact lag in other commands' tables."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import click

from .connecting import Cluster, cluster_options, with_admin
from .options import echo_json, json_option
from .tables import age_text, print_table

if TYPE_CHECKING:
    from ..client import MessageQueue
    from ..client.reports import MatchingLag

__all__ = [
    "TopicLag",
    "by_topic",
    "lag",
    "lag_fields",
    "matching_text",
    "next_match_text",
    "print_totals",
]

_SECONDS: Final = 10.0


@click.command("lag")
@click.argument("group", required=False)
@click.option("--topic", metavar="NAME", help="Of this topic only.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0),
    default=_SECONDS,
    show_default=True,
    help="Stop counting after so long.",
)
@cluster_options
@json_option
def lag(
    group: str | None, topic: str | None, seconds: float, target: Cluster, as_json: bool
) -> None:
    """How many messages that match its filter a group has before it, in each queue.

    Without GROUP, of all groups. The lag is RocketMQ's own number, all messages after the committed
    offset; `matching` counts those that the group's filter lets through, exactly. The age is the
    time since the next matching message was stored.
    """
    rows = with_admin(target, lambda admin: admin.matching_lag(group, topic, seconds=seconds))
    now = time.time()
    if as_json:
        for row in rows:
            echo_json(_row(row, now))
        return
    if not rows:
        who = f"group {group} has" if group is not None else "groups have"
        where = f" of {topic}" if topic is not None else ""
        click.echo(f"{who} consumed nothing{where} yet", err=True)
        return
    columns = ["topic", "broker", "queue", "committed", "end", "lag", "matching", "next matching"]
    cells: list[list[object]] = [
        [
            *(row.queue.topic, row.queue.broker_name, row.queue.queue_id),
            *(_number(row.committed), row.end, _number(row.lag)),
            *(matching_text(row), next_match_text(row, now)),
        ]
        for row in rows
    ]
    if any(row.lane for row in rows):
        columns.append("lane")
        cells = [[*cell, row.lane or "-"] for row, cell in zip(rows, cells, strict=True)]
    if group is None:
        columns.insert(0, "group")
        cells = [[row.group, *cell] for row, cell in zip(rows, cells, strict=True)]
    print_table(columns, cells)
    totals = by_topic(rows).values()
    print_totals(totals, sum(one.lag or 0 for one in totals))
    print_reasons(rows)


def _row(row: "MatchingLag", now: float) -> dict[str, Any]:
    return {
        "group": row.group,
        "topic": row.queue.topic,
        "broker": row.queue.broker_name,
        "queue": row.queue.queue_id,
        "lane": row.lane,
        "committed": row.committed,
        "end": row.end,
        "lag": row.lag,
        **lag_fields(row, now),
        "filter": None
        if row.filter_type is None
        else {"type": row.filter_type, "expression": row.expression},
    }


def lag_fields(row: "MatchingLag | None", now: float) -> dict[str, Any]:
    """What JSON has of the exact lag; all null if the broker does not tell any."""
    stored = row.next_match_stored if row is not None else None
    return {
        "matching_lag": row.matching_lag if row is not None else None,
        "is_complete": row.is_complete if row is not None else False,
        "next_match_offset": row.next_match_offset if row is not None else None,
        "next_match_stored": stored,
        "next_match_age": None if stored is None else round(max(now - stored / 1000, 0.0), 3),
        "reason": (row.reason or None) if row is not None else None,
    }


def matching_text(row: "MatchingLag | None") -> int | str:
    if row is None or row.matching_lag is None:
        return "-"
    return row.matching_lag if row.is_complete else f"{row.matching_lag} or more"


def next_match_text(row: "MatchingLag | None", now: float) -> str:
    if row is None or row.next_match_stored is None:
        return "-"
    return age_text(now - row.next_match_stored / 1000)


def _number(value: int | None) -> int | str:
    return "-" if value is None else value


@dataclass(slots=True)
class TopicLag:
    """A group's lag in all queues of a topic. What is not known of a queue is not known of all. Of
    a group in lanes the lag is the last one's, and how many messages match is not known."""

    group: str
    topic: str
    lag: int | None = 0
    matching: int | None = 0
    is_complete: bool = True
    oldest: int | None = None  # when the first match of any queue was stored, in milliseconds
    reason: str = ""
    queues: "dict[MessageQueue, int]" = field(default_factory=dict)  # the lag of each

    def add(self, row: "MatchingLag") -> None:
        if row.lag is None or self.lag is None:
            self.lag = None
        else:
            self.queues[row.queue] = max(row.lag, self.queues.get(row.queue, 0))
            self.lag = sum(self.queues.values())
        if self.matching is None or row.matching_lag is None or row.lane:
            self.matching = None
        else:
            self.matching += row.matching_lag
        self.is_complete = self.is_complete and row.is_complete
        if row.next_match_stored is not None:
            self.oldest = min(row.next_match_stored, self.oldest or row.next_match_stored)
        self.reason = self.reason or row.reason

    @property
    def matching_text(self) -> int | str:
        if self.matching is None:
            return "-"
        return self.matching if self.is_complete else f"{self.matching} or more"

    def age_text(self, now: float) -> str:
        return "-" if self.oldest is None else age_text(now - self.oldest / 1000)


def by_topic(rows: "Iterable[MatchingLag]") -> dict[tuple[str, str], TopicLag]:
    """Return the rows by group and topic."""
    made: dict[tuple[str, str], TopicLag] = {}
    for row in rows:
        key = (row.group, row.queue.topic)
        made.setdefault(key, TopicLag(*key)).add(row)
    return made


def print_totals(found: Iterable[TopicLag], behind: int) -> None:
    """Return a summary in one line; `behind` is the lag of all."""
    known = [one for one in found if one.matching is not None]
    matching = sum(one.matching or 0 for one in known)
    more = "" if all(one.is_complete for one in known) else " or more"
    click.echo(f"\nlag in all: {behind:,}" + (f", matching {matching:,}{more}" if known else ""))


def print_reasons(rows: "Iterable[MatchingLag]") -> None:
    """Why something is not known, once for each group and topic."""
    told = {(row.group, row.queue.topic, row.reason): None for row in rows if row.reason}
    for group, topic, reason in told:
        click.echo(f"group {group} on {topic}: {reason}")
