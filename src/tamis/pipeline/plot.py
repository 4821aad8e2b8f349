"""A backtest as a picture (PNG), or as one HTML file: the picture, the numbers, the samples.

matplotlib is loaded when something is drawn, and its global state is left alone.
"""

import html
import io
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..errors import ConfigError
from .backtest import Backtest, Message, check_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["check", "draw", "to_html", "write"]

_SUFFIXES: Final = (".png", ".html")
# Told apart by the colour-blind too (Okabe and Ito's set).
_COLOURS: Final = {
    "matched": "#0072b2",
    "failed": "#d55e00",
    "not_matched": "#c9ccd1",
    "gained": "#009e73",
    "lost": "#cc79a7",
}
_FEW: Final = 0.1  # of the highest bar: what matches is drawn on a scale of its own below that
_FEW_BUCKETS: Final = 6  # that each has its time below it
_TITLE: Final = 90  # characters
_GAP: Final = 0.08  # of a bucket, between bars


def check(path: str | Path) -> None:
    """Before the work is done: whether `write` will know what to do. Raises ConfigError."""
    path = Path(path)
    if path.suffix.lower() not in _SUFFIXES:
        raise ConfigError(f"{path}: a plot ends in {' or '.join(_SUFFIXES)}")
    check_file(path)


def write(backtest: Backtest, path: str | Path) -> None:
    """PNG or HTML, by how the name ends."""
    check(path)
    if Path(path).suffix.lower() == ".png":
        draw(backtest).savefig(path, format="png", dpi=150)
    else:
        Path(path).write_text(to_html(backtest), "utf-8")


def draw(backtest: Backtest) -> "Figure":
    from matplotlib.figure import Figure  # not pyplot, which keeps figures and chooses a backend

    panels = ["all"]
    most = max((b.counts.messages for b in backtest.buckets), default=0)
    chosen = max((b.counts.matched + b.counts.failed for b in backtest.buckets), default=0)
    if 0 < chosen < _FEW * most:
        panels.append("few")
    if backtest.against is not None:
        panels.append("against")
    heights = [1.6, *(1.0 for _ in panels[1:])]
    figure = Figure(figsize=(10, 1.2 + 1.9 * sum(heights)), layout="constrained")
    axes = figure.subplots(
        len(panels), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights}
    )[:, 0]
    figure.suptitle(
        _title(backtest), fontsize=12, x=0.01, ha="left", parse_math=False, linespacing=1.4
    )
    for panel, ax in zip(panels, axes, strict=True):
        _PANELS[panel](ax, backtest)
    _date(axes[-1], backtest)
    return figure


def _title(backtest: Backtest) -> str:
    title = _shortened(backtest.expression)
    if backtest.against is not None:
        title += f"\nagainst {_shortened(backtest.against)}"
    return title


def _shortened(text: str) -> str:
    text = "".join(c if c.isprintable() else " " for c in " ".join(text.split()))
    return text if len(text) <= _TITLE else text[: _TITLE - 1] + "…"


def _all(ax: "Axes", backtest: Backtest) -> None:
    _stack(ax, backtest, ("matched", "failed", "not_matched"))
    ax.set_ylim(bottom=0)
    ax.set_ylabel(f"messages per {_duration(backtest.width)}")


def _few(ax: "Axes", backtest: Backtest) -> None:
    _stack(ax, backtest, ("matched", "failed"), with_legend=False)  # it is said above
    ax.set_ylim(bottom=0)
    ax.set_ylabel("of these, matched\nand failed")


def _against(ax: "Axes", backtest: Backtest) -> None:
    _stack(ax, backtest, ("gained",))
    _stack(ax, backtest, ("lost",), sign=-1)
    ax.axhline(0, color="#333333", linewidth=0.8)
    most = max((one.counts.gained for one in backtest.buckets), default=0)
    least = -max((one.counts.lost for one in backtest.buckets), default=0)
    room = 0.05 * (most - least) or 1.0
    ax.set_ylim(least - room * (least < 0 or most == 0), most + room * (most > 0 or least == 0))
    ax.set_ylabel("gained and lost")


_PANELS: Final = {"all": _all, "few": _few, "against": _against}


def _stack(
    ax: "Axes",
    backtest: Backtest,
    kinds: Sequence[str],
    sign: int = 1,
    with_legend: bool = True,
) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    width = timedelta(seconds=backtest.width)
    starts: Any = [bucket.start + width * (_GAP / 2) for bucket in backtest.buckets]
    below = [0] * len(starts)
    for kind in kinds:
        counts = [sign * getattr(bucket.counts, kind) for bucket in backtest.buckets]
        total = getattr(backtest.totals, kind)
        label = f"{kind.replace('_', ' ')} {total:,}"
        if kind in ("matched", "failed", "not_matched") and backtest.totals.messages:
            label += f" ({total / backtest.totals.messages:.1%})"
        ax.bar(
            starts,
            counts,
            width=width * (1 - _GAP),  # type: ignore[arg-type]  # dates have widths in time
            bottom=below,
            align="edge",
            color=_COLOURS[kind],
            label=label,
        )
        below = [low + count for low, count in zip(below, counts, strict=True)]
    ax.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{abs(value):,.0f}"))
    ax.grid(axis="y", color="#e4e6e9", linewidth=0.8)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    if with_legend:  # beside the bars, never on them
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9)


def _date(ax: "Axes", backtest: Backtest) -> None:
    from matplotlib.dates import AutoDateLocator, DateFormatter

    ax.set_xlabel("time stored (UTC)")
    if not backtest.buckets:
        return
    first = backtest.buckets[0].start
    end = backtest.buckets[-1].start + timedelta(seconds=backtest.width)
    ends: Any = (first, end)
    ax.set_xlim(*ends)
    days = (end - first) / timedelta(days=1)
    if days > 4:
        form = "%Y-%m-%d"
    elif days > 1:
        form = "%H:%M\n%Y-%m-%d"
    else:
        form = "%H:%M:%S" if days < 10 / 1440 else "%H:%M"
        ax.set_xlabel(f"time stored (UTC), from {first:%Y-%m-%d}")
    locator: Any = AutoDateLocator
    formatter: Any = DateFormatter
    if len(backtest.buckets) <= _FEW_BUCKETS:
        ticks: Any = [*(bucket.start for bucket in backtest.buckets), end]
        ax.set_xticks(ticks)
    else:
        ax.xaxis.set_major_locator(locator(tz=UTC, minticks=4, maxticks=9))
    ax.xaxis.set_major_formatter(formatter(form, tz=UTC))


def to_html(backtest: Backtest) -> str:
    """Nothing in it is loaded from elsewhere, and nothing runs."""
    said = html.escape(_shortened(backtest.expression))
    parts = [
        "<!doctype html>",
        f'<html lang="en"><head><meta charset="utf-8"><title>{said}</title>',
        f"<style>{_STYLE}</style></head><body>",
        f"<h1><code>{html.escape(backtest.expression)}</code></h1>",
    ]
    if backtest.against is not None:
        parts.append(f"<p>against <code>{html.escape(backtest.against)}</code></p>")
    of = f" of {html.escape(backtest.source)}" if backtest.source else ""
    parts.append(f"<p>{backtest.totals.messages:,} messages{of}</p>")
    if backtest.buckets:
        parts += [_svg(backtest), _numbers(backtest)]
    for kind in backtest.kinds:
        if chosen := backtest.samples.get(kind):
            parts += [f"<h2>{kind.replace('_', ' ')}, such as</h2>", _samples(chosen)]
    return "\n".join([*parts, "</body></html>", ""])


_STYLE: Final = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em;
  color: #1d2126 }
h1 { font-size: 1.25em } h2 { font-size: 1.05em; margin-top: 2em }
code { font-family: ui-monospace, monospace; overflow-wrap: anywhere }
svg { width: 100%; height: auto }
table { border-collapse: collapse; font-size: 0.9em }
th, td { padding: 0.2em 0.8em; text-align: left; border-bottom: 1px solid #e4e6e9;
  vertical-align: top }
.n { text-align: right; font-variant-numeric: tabular-nums }
"""


def _svg(backtest: Backtest) -> str:
    from matplotlib import rc_context

    out = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "tamis"}):  # text stays text
        figure = draw(backtest)
        figure.suptitle("")  # the page says it
        figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    return re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)


def _numbers(backtest: Backtest) -> str:
    names = backtest.kinds
    head = "".join(f'<th class="n">{name.replace("_", " ")}</th>' for name in names)
    rows = [
        *((_when(bucket.start, backtest.width), bucket.counts) for bucket in backtest.buckets),
        ("all", backtest.totals),
    ]
    lines = [f"<table><thead><tr><th>from (UTC)</th>{head}</tr></thead><tbody>"]
    for name, counts in rows:
        cells = "".join(f'<td class="n">{getattr(counts, kind):,}</td>' for kind in names)
        lines.append(f"<tr><td>{name}</td>{cells}</tr>")
    return "\n".join([*lines, "</tbody></table>"])


def _samples(messages: Sequence[Message]) -> str:
    read = list(messages[0].properties)
    head = "".join(f"<th>{html.escape(name)}</th>" for name in read)
    lines = [
        "<table><thead><tr><th>message</th><th>id</th><th>stored (UTC)</th>"
        f"{head}<th>why</th></tr></thead><tbody>"
    ]
    for one in messages:
        cells = [one.place, one.message_id, one.stored.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]]
        row = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
        for value in one.properties.values():
            shown = "<i>missing</i>" if value is None else f"<code>{html.escape(value)}</code>"
            row += f"<td>{shown}</td>"
        lines.append(f"<tr>{row}<td>{html.escape(one.reason)}</td></tr>")
    return "\n".join([*lines, "</tbody></table>"])


def _when(at: datetime, width: int) -> str:
    return at.strftime("%Y-%m-%d %H:%M:%S" if width % 60 else "%Y-%m-%d %H:%M")


def _duration(seconds: int) -> str:
    """The widest unit that fits: `hour`, `30 minutes`."""
    for unit, size in ("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1):
        if seconds % size == 0:
            count = seconds // size
            return unit if count == 1 else f"{count} {unit}s"
    raise AssertionError(seconds)
