"""Progress while a job runs: a bar on a terminal and in a notebook, else lines. And summaries."""

import io
import itertools
import os
from pathlib import Path

import pytest

from tamis.pipeline.metrics_file import append_line
from tamis.pipeline.report import Report
from tamis.pipeline.summary import GroupCounts, RouteSummary


class Terminal(io.StringIO):
    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


class Plain(Terminal):
    encoding = "ascii"


@pytest.fixture
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def seconds(*values: float) -> "itertools.chain[float]":
    return itertools.chain(values, itertools.repeat(values[-1]))


@pytest.mark.usefixtures("_wide")
@pytest.mark.parametrize(("stream", "bar"), [(Terminal(), "█" * 6 + "░" * 18), (Plain(), "#" * 6)])
def test_a_terminal_has_a_bar_of_what_is_done(stream: Terminal, bar: str) -> None:
    report = Report(stream, now=seconds(0.0, 10.0).__next__)
    report.update(2500, 7500)
    shown = stream.getvalue().rpartition("\x1b[K")[2]
    assert shown.startswith(bar)
    assert shown.endswith("25 %  2,500 messages in 10 s, 250 a second, 7,500 to go")
    report.close()
    assert stream.getvalue().endswith("\r\x1b[K")  # nothing is left of it


@pytest.mark.usefixtures("_wide")
def test_without_an_end_there_is_no_bar() -> None:
    stream = Terminal()
    Report(stream, now=seconds(0.0, 10.0).__next__).update(50)
    assert stream.getvalue() == "\r\x1b[K50 messages in 10 s, 5 a second"


def test_a_bar_is_no_longer_than_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    stream = Terminal()
    Report(stream, now=seconds(0.0, 10.0).__next__).update(2500, 7500)
    assert len(stream.getvalue()) == len("\r\x1b[K") + 19


def test_a_file_has_a_line_every_few_seconds_and_no_bar() -> None:
    stream = io.StringIO()
    report = Report(stream, now=iter([0.0, 3.0, 6.0]).__next__)
    report.update(10, 90)  # too soon
    report.update(20, 80)
    assert stream.getvalue() == "20 messages in 6 s, 3 a second, 80 to go\n"


class Cell:
    """The output of a notebook's cell."""

    shown: dict[str, str] = {}

    def update(self, shown: dict[str, str], *, raw: bool) -> None:
        self.shown = shown


def test_a_notebook_has_a_bar_in_its_cell() -> None:
    cell = Cell()
    report = Report(None, now=seconds(0.0, 10.0).__next__, display=cell)
    assert report.is_due
    report.update(2500, 7500)
    assert cell.shown["text/html"].startswith(
        '<progress value="2500" max="10000"></progress> 2,500'
    )
    assert cell.shown["text/plain"] == "2,500 messages in 10 s, 250 a second, 7,500 to go"


def test_nobody_is_told_where_nobody_looks() -> None:
    assert not Report(None, now=seconds(0.0, 100.0).__next__).is_due


def summary_of(*counts: tuple[int, int]) -> RouteSummary:
    groups = [
        GroupCounts(f"g{at}", "sql x", "noop", "at least once", messages=messages, failed=failed)
        for at, (messages, failed) in enumerate(counts)
    ]
    return RouteSummary(job="route", file="a.toml", source="s", messages=9, groups=groups)


def test_a_filter_that_failed_on_every_message_is_told_in_the_first_line() -> None:
    summary = summary_of((9, 8), (9, 9), (0, 0))
    first = summary.lines()[0]
    assert first.startswith("a.toml: WARNING: the filter of g1 failed on every message; route done")
    assert summary.to_dict()["warnings"] == ["the filter of g1 failed on every message"]
    assert summary.filter_errors == 17


def test_some_failures_are_no_warning() -> None:
    assert summary_of((9, 8), (0, 0)).lines()[0].startswith("a.toml: route done: 9 messages of s")


def test_a_long_file_of_metrics_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "new" / "metrics.jsonl"
    for number in range(4):
        append_line(str(path), {"batch": number}, largest=30)
    assert path.read_text() == '{"batch": 2}\n{"batch": 3}\n'
    assert (tmp_path / "new" / "metrics.jsonl.1").read_text() == '{"batch": 0}\n{"batch": 1}\n'


def test_metrics_that_can_t_be_written_are_logged_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkdir(tmp_path / "metrics.jsonl")
    append_line(str(tmp_path / "metrics.jsonl"), {"batch": 0})
    assert "metrics can't be written to" in caplog.text
