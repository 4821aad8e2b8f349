"""An audit as one HTML file: totals, fates over time, who changed what and when, what was lost.

Nothing in it is loaded from elsewhere, and nothing runs. matplotlib is loaded when it is drawn.
"""

import html
import io
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..errors import ConfigError
from ..fate import Fate, Filter
from ..spark.groups import BrokerGroups
from . import files
from .fates import width_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .audit import AuditSummary, OverTime

__all__ = ["Page", "check", "draw", "to_html", "write"]

_DRAWN: Final = 24  # groups that have a plot; those with losses first
_EVENTS: Final = 60  # changes and moves of a group that are listed
_MARKS: Final = 200  # of them that are drawn, on a plot
_NEAR: Final = 60_000  # milliseconds from the messages that events are still drawn
_GAP: Final = 0.08  # of a stretch of time, between bars

# What went well is quiet, what did not is loud; told apart by the colour-blind too.
COLOURS: Final = {
    Fate.CONSUMED: "#4c8fbd",
    Fate.FILTERED: "#d3d7dc",
    Fate.NOT_CONSUMED_YET: "#a9cfe6",
    Fate.NOT_ONLINE: "#8a9099",
    Fate.RETRYING: "#f0c94d",
    Fate.DEAD_LETTERED: "#7a5195",
    Fate.LOST_TO_INCONSISTENCY: "#d62728",
    Fate.HASH_COLLISION: "#b07aa1",
    Fate.FILTER_FAILED: "#e8833a",
    Fate.SKIPPED_BY_RESET: "#59a89c",
    Fate.EXPIRED: "#5c4033",
    Fate.PULL: "#bcd5b4",
    Fate.BROADCASTING: "#93b88a",
    Fate.UNKNOWN: "#f3e3c3",
}
_MEANINGS: Final = {
    Fate.CONSUMED: "given to a member, which acknowledged it",
    Fate.FILTERED: "no member wanted it",
    Fate.NOT_CONSUMED_YET: "it waits",
    Fate.NOT_ONLINE: "it waits, and no member is connected",
    Fate.RETRYING: "sent back by a member, will come again",
    Fate.DEAD_LETTERED: "failed too often",
    Fate.LOST_TO_INCONSISTENCY: "a member wanted it, progress passed it, nobody got it",
    Fate.HASH_COLLISION: "sent by the broker for a tag's hash, dropped by the client",
    Fate.FILTER_FAILED: "the filter could not tell, so it was not delivered",
    Fate.SKIPPED_BY_RESET: "progress was moved past it",
    Fate.EXPIRED: "it left the log before the group got there",
    Fate.PULL: "the group keeps its progress itself",
    Fate.BROADCASTING: "each member keeps its own progress",
    Fate.UNKNOWN: "not known",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What a report is made of. `lost` are the first messages that were lost."""

    summary: "AuditSummary"
    brokers: Sequence[BrokerGroups]
    over_time: "OverTime"
    lost: Sequence[Mapping[str, Any]]
    topics: Sequence[str]


@dataclass(frozen=True, slots=True)
class _Event:
    time: int
    what: str  # change or move
    text: str


def check(path: str) -> None:
    """Raises ConfigError if a file can't be put there. Its directory is made when it is written."""
    if Path(path).is_dir():
        raise ConfigError(f"{path} is a directory: name a file")
    files.check_writable(str(Path(path).parent), f"report {path}")


def write(page: Page, path: str) -> None:
    """Replace the report when the new one is whole."""
    new = Path(path).with_name(f".{Path(path).name}.new")
    new.parent.mkdir(parents=True, exist_ok=True)
    try:
        new.write_text(to_html(page), "utf-8")
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


# The plots.


def draw(page: Page, group: int, window: tuple[int, int]) -> "Figure":
    """Return a group's fates over time, with its changes and moves marked."""
    from matplotlib.figure import Figure  # not pyplot, which keeps figures and chooses a backend

    figure = Figure(figsize=(10, 2.6), layout="constrained")
    axes = figure.subplots()
    _bars(axes, page, group, window)
    _marks(axes, _events(page, page.summary.groups[group].group), window)
    _time_axis(axes, window)
    return figure


def _bars(axes: "Axes", page: Page, group: int, window: tuple[int, int]) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    width = max(width_of(*window), page.over_time.width)
    counts: Counter[tuple[Fate, int]] = Counter()
    for (own, fate, at), count in page.over_time.counts.items():
        if own == group:
            counts[fate, at - at % width] += count
    starts = sorted({at for _, at in counts})
    below = [0] * len(starts)
    for fate in COLOURS:
        heights = [counts[fate, at] for at in starts]
        if not any(heights):
            continue
        axes.bar(
            [_days(at + width * _GAP / 2) for at in starts],
            heights,
            width=_days(width * (1 - _GAP)),
            bottom=below,
            align="edge",
            color=COLOURS[fate],
        )
        below = [low + height for low, height in zip(below, heights, strict=True)]
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_ylim(bottom=0, top=max(below, default=0) * 1.08 or 1)
    axes.set_ylabel(f"messages per {_duration(width)}")
    axes.grid(axis="y", color="#e4e6e9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _marks(axes: "Axes", events: Sequence[_Event], window: tuple[int, int]) -> None:
    """A line at each change of a subscription, a dotted one at each move of progress."""
    inside = [event for event in events if window[0] <= event.time <= window[1]]
    for event in inside[:_MARKS]:
        is_move = event.what == "move"
        axes.axvline(
            _days(event.time),
            color="#59a89c" if is_move else "#333a41",
            linestyle=":" if is_move else "-",
            linewidth=1.2 if is_move else 0.8,
            alpha=0.9,
        )


def _time_axis(axes: "Axes", window: tuple[int, int]) -> None:
    from matplotlib.dates import AutoDateLocator, DateFormatter

    first, end = window
    axes.set_xlim(_days(first), _days(end))
    hours = (end - first) / 3_600_000
    if hours > 96:
        form = "%Y-%m-%d"
    elif hours > 24:
        form = "%H:%M\n%Y-%m-%d"
    else:
        form = "%H:%M" if hours > 1 / 6 else "%H:%M:%S" if hours > 1 / 600 else "%H:%M:%S.%f"
    locator: Any = AutoDateLocator
    formatter: Any = DateFormatter
    few = 5 if form.endswith("%f") else 9
    axes.xaxis.set_major_locator(locator(tz=UTC, minticks=3, maxticks=few))
    axes.xaxis.set_major_formatter(formatter(form, tz=UTC))
    axes.set_xlabel(f"time stored (UTC), from {_moment(first)[:10]}")


def _days(millis: float) -> float:
    """A time or a duration as matplotlib counts it."""
    return millis / 86_400_000


def _svg(figure: "Figure") -> str:
    from matplotlib import rc_context

    out = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "tamis"}):  # text stays text
        figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    return re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)


# What happened to groups, besides messages.


def _events(page: Page, group: str) -> list[_Event]:
    found = []
    for broker in page.brokers:
        for topic in page.topics if broker.history is not None else ():
            assert broker.history is not None
            history = broker.history.groups.get((group, topic))
            if history is None:
                continue
            of_topic = f" on {topic}" if len(page.topics) > 1 else ""
            at = f" at {broker.broker}" if len(page.brokers) > 1 else ""
            found += [
                _Event(one.time, "change", _change(one.member, one.before, one.after) + of_topic)
                for one in history.changes
            ]
            found += [
                _Event(
                    one.time,
                    "move",
                    f"progress of queue {one.queue_id}{at}{of_topic} moved from "
                    f"{'nothing' if one.before is None else one.before} to {one.after} "
                    f"by {one.by} ({one.why})",
                )
                for one in history.moves
            ]
    return sorted(dict.fromkeys(found), key=lambda event: event.time)


def _change(member: str, before: Filter | None, after: Filter | None) -> str:
    if before is None:
        return f"{member} joined with {after}"
    if after is None:
        return f"{member} left; it had {before}"
    return f"{member} changed from {before} to {after}"


# The page.


def to_html(page: Page) -> str:
    summary = page.summary
    topics = ", ".join(page.topics)
    losing = [one.group for one in summary.groups
              if one.fates.get(Fate.LOST_TO_INCONSISTENCY)]  # fmt: skip
    verdict = (
        f"{summary.lost:,} messages were lost to {_listed(losing)}: members of one group "
        "subscribe differently."
        if summary.lost
        else "No message was lost to members that subscribe differently, as far as is known."
    )
    started = summary.started.replace("T", " ").replace("+00:00", " UTC")
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">',
        f"<title>Audit of {_text(topics)}</title>",
        f"<style>{_STYLE}</style></head><body>",
        f"<h1>Audit of {_text(topics)}</h1>",
        f'<p class="verdict {"bad" if summary.lost else "good"}">{_text(verdict)}</p>',
        f"<p>{summary.messages:,} messages of {_text(summary.source)}, judged for "
        f"{len(summary.groups):,} group{'s' * (len(summary.groups) != 1)}; {_text(started)}</p>",
        *_told("What is not known", summary.unknown),
        *_told("Notes", summary.notes),
    ]
    if summary.groups and summary.messages:
        parts += ["<h2>Totals</h2>", _totals(page), _legend(page), *_plots(page)]
    parts += _lost(page)
    return "\n".join([*parts, "</body></html>", ""])


def _told(title: str, texts: Sequence[str]) -> list[str]:
    if not texts:
        return []
    items = [f"<li>{_text(text)}</li>" for text in dict.fromkeys(texts)]
    return [f"<h2>{title}</h2>", "<ul>", *items, "</ul>"]


def _used(page: Page) -> list[Fate]:
    return [fate for fate in COLOURS if any(fate in one.fates for one in page.summary.groups)]


def _totals(page: Page) -> str:
    used = _used(page)
    head = "".join(f'<th class="n">{_words(fate)}</th>' for fate in used)
    lines = [f"<table><thead><tr><th>group</th><th></th>{head}</tr></thead><tbody>"]
    for one in page.summary.groups:
        cells = "".join(_cell(fate, one.fates.get(fate, 0)) for fate in used)
        lines.append(f"<tr><td>{_text(one.group)}</td><td>{_bar(one.fates)}</td>{cells}</tr>")
    return "\n".join(['<div class="wide">', *lines, "</tbody></table></div>"])


def _cell(fate: Fate, count: int) -> str:
    is_bad = count and fate is Fate.LOST_TO_INCONSISTENCY
    return f'<td class="n{" bad" if is_bad else ""}">{f"{count:,}" if count else "·"}</td>'


def _bar(fates: Mapping[str, int]) -> str:
    """A line of 100 %; what is there at all is seen."""
    total = sum(fates.values()) or 1
    shares = [(fate, max(100 * fates[fate] / total, 1.5)) for fate in COLOURS if fates.get(fate)]
    whole = sum(share for _, share in shares) or 1
    pieces = "".join(
        f'<i style="width:{100 * share / whole:.2f}%;background:{COLOURS[fate]}" '
        f'title="{_words(fate)} {fates[fate]:,}"></i>'
        for fate, share in shares
    )
    return f'<span class="bar">{pieces}</span>'


def _legend(page: Page) -> str:
    items = [
        f'<li><i style="background:{COLOURS[fate]}"></i><b>{_words(fate)}</b> '
        f"{_MEANINGS[fate]}</li>"
        for fate in _used(page)
    ]
    return '<ul class="legend">' + "".join(items) + "</ul>"


def _plots(page: Page) -> list[str]:
    groups = page.summary.groups
    order = sorted(
        range(len(groups)),
        key=lambda number: -groups[number].fates.get(Fate.LOST_TO_INCONSISTENCY, 0),
    )
    window = _window(page)
    parts = ["<h2>Over time</h2>"]
    parts.append(
        "<p>By the time messages were stored. Lines: a member came, left or changed its "
        "subscription. Dotted: progress was moved.</p>"
    )
    for number in order[:_DRAWN]:
        events = _events(page, groups[number].group)
        parts += [
            f"<h3>{_text(groups[number].group)}</h3>",
            _svg(draw(page, number, window)),
            *_timeline(events),
        ]
    if len(order) > _DRAWN:
        parts.append(f"<p>{len(order) - _DRAWN} groups more have no plot.</p>")
    return parts


def _window(page: Page) -> tuple[int, int]:
    """Return the time that the plots show: that of the messages, and events near them."""
    starts = [at for _, _, at in page.over_time.counts]
    first, end = min(starts), max(starts) + page.over_time.width
    near = max(_NEAR, 2 * (end - first))
    times = [event.time for one in page.summary.groups for event in _events(page, one.group)]
    shown = [time for time in times if first - near <= time <= end + near]
    first, end = min([first, *shown]), max([end, *shown])
    edge = (end - first) // 50
    width = max(width_of(first, end), page.over_time.width)
    return min(first - edge, first - first % width), max(end + edge, -(-end // width) * width)


def _timeline(events: Sequence[_Event]) -> list[str]:
    if not events:
        return ["<p>No change of subscriptions and no move of progress is recorded.</p>"]
    count = "one event" if len(events) == 1 else f"{len(events):,} events"
    rows = [f"<tr><td>{_moment(one.time)}</td><td>{_text(one.text)}</td></tr>"
            for one in events[-_EVENTS:]]  # fmt: skip
    left = len(events) - len(rows)
    if left > 0:
        rows.insert(0, f"<tr><td></td><td>… {left:,} earlier ones</td></tr>")
    return [
        f"<details{' open' if len(events) <= 8 else ''}><summary>Subscriptions and progress: "
        f"{count}</summary><table><tbody>",
        *rows,
        "</tbody></table></details>",
    ]


def _lost(page: Page) -> list[str]:
    if not page.lost:
        return []
    total, shown = page.summary.lost, len(page.lost)
    title = f"The first {shown:,} of {total:,} lost" if shown < total else "Lost messages"
    parts = [f"<h2>{title}</h2>"]
    if page.summary.lost_list is not None:
        parts.append(f"<p>All of them: {_text(page.summary.lost_list)}</p>")
    parts.append(
        '<div class="wide"><table><thead><tr><th>stored (UTC)</th><th>group</th><th>message</th>'
        "<th>tag</th><th>why</th></tr></thead><tbody>"
    )
    for row in page.lost:
        where = f"{row['topic']}/{row['broker'] or '-'}/{row['queue_id']} at {row['offset']}"
        stored = row["store_timestamp"].astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        parts.append(
            f"<tr><td>{stored}</td><td>{_text(row['group'])}</td>"
            f'<td class="place">{_text(where)}<br><code>{_text(row["message_id"])}</code></td>'
            f"<td>{_text(row['tags'] or '')}</td><td>{_text(row['reason'] or '')}</td></tr>"
        )
    return [*parts, "</tbody></table></div>"]


def _text(value: object) -> str:
    return html.escape(str(value))


def _words(fate: Fate) -> str:
    return fate.value.replace("_", " ").lower()


def _listed(names: Iterable[str]) -> str:
    named = list(names)
    if len(named) > 4:
        return f"{', '.join(named[:3])} and {len(named) - 3} groups more"
    return " and ".join([", ".join(named[:-1]), named[-1]] if len(named) > 1 else named)


def _moment(millis: int) -> str:
    moment = datetime.fromtimestamp(millis / 1000, UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{millis % 1000:03d}"


def _duration(millis: int) -> str:
    """The widest unit that fits: `hour`, `10 minutes`."""
    units = ("week", 604_800_000), ("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000)
    for unit, size in (*units, ("second", 1000)):
        if millis % size == 0:
            count = millis // size
            return unit if count == 1 else f"{count} {unit}s"
    return f"{millis} ms"


_STYLE: Final = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em;
  color: #1d2126 }
h1 { font-size: 1.5em; margin-bottom: 0.4em } h2 { font-size: 1.15em; margin-top: 2em }
h3 { font-size: 1em; margin: 1.6em 0 0.2em }
code { font-family: ui-monospace, monospace; font-size: 0.9em; overflow-wrap: anywhere }
svg { width: 100%; height: auto }
table { border-collapse: collapse; font-size: 0.9em }
th, td { padding: 0.25em 0.8em 0.25em 0; text-align: left; border-bottom: 1px solid #e4e6e9;
  vertical-align: top }
th { font-weight: 600 }
.n { text-align: right; font-variant-numeric: tabular-nums; padding-left: 0.8em; padding-right: 0 }
.wide { overflow-x: auto }
.verdict { font-size: 1.1em; padding: 0.5em 0.8em; border-left: 4px solid #4c8fbd;
  background: #f2f6f9 }
.verdict.bad { border-color: #d62728; background: #fbeeee }
.place, .place code { white-space: nowrap }
td.bad { color: #b01c1d; font-weight: 600 }
.bar { display: inline-flex; width: 10em; height: 0.8em; border-radius: 2px; overflow: hidden;
  vertical-align: middle }
.bar i { display: block }
.legend { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: 0.2em 1.4em;
  font-size: 0.85em; color: #4a525b }
.legend i { display: inline-block; width: 0.8em; height: 0.8em; border-radius: 2px;
  margin-right: 0.4em }
.legend b { color: #1d2126; font-weight: 600 }
details { font-size: 0.95em; margin: 0.3em 0 1em } summary { cursor: pointer; color: #4a525b }
"""
