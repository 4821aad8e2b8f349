"""What a filter would have matched: counts, samples, the table, the plot, the command."""

import json
import re
import tarfile
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from tamis.cli.main import tamis
from tamis.errors import ConfigError, FilterSyntaxError
from tamis.filter import Outcome, parse
from tamis.filter.engines.closures import compile_closure, evaluate
from tamis.pipeline import backtest, plot, runner
from tamis.pipeline.backtest import Backtest, Bucket, Counts, Message
from tamis.pipeline.config import Filter
from tamis.pipeline.runner import Report
from tamis.spark.schema import row_type

STORES = Path(__file__).parent.parent / "golden" / "stores"
BEGIN = datetime(2026, 11, 15, 12, tzinfo=UTC)
COLUMNS = ("topic", "broker", "queue_id", "offset", "store_timestamp", "tags", "message_id")
NEW, OLD = "price > 50 AND region = 'eu'", "price > 70"


def properties_of(number: int) -> dict[str, str]:
    made = {"price": str(number % 100), "region": "eu" if number % 3 else "us"}
    if number % 50 == 7:
        made["price"] = "dear"
    if number % 50 == 8:
        del made["price"]
    return made


ROWS = [
    ("orders", "a", n % 4, n // 4, BEGIN + timedelta(seconds=10 * n), "T", f"id{n}")
    for n in range(600)
]


def test_counts_and_samples_are_those_of_every_message(spark: SparkSession) -> None:
    rows = spark.createDataFrame(
        [(*row, properties_of(n)) for n, row in enumerate(ROWS)],
        row_type([*COLUMNS, "properties"]),
    )
    found = backtest.run(rows, NEW, OLD, samples=3)

    new, old = compile_closure(parse(NEW)), compile_closure(parse(OLD))
    pairs = [(evaluate(new, properties_of(n)), evaluate(old, properties_of(n))) for n in range(600)]
    counts = Counter(one for one, _ in pairs)
    gained = [a.matched and not b.matched for a, b in pairs]
    lost = [b.matched and not a.matched for a, b in pairs]
    assert found.totals == Counts(
        matched=counts[Outcome.TRUE],
        not_matched=counts[Outcome.FALSE] + counts[Outcome.NULL],
        failed=counts[Outcome.ERROR],
        matched_before=sum(b.matched for _, b in pairs),
        failed_before=sum(b is Outcome.ERROR for _, b in pairs),
        gained=sum(gained),
        gained_failed_before=0,
        lost=sum(lost),
        lost_failing=0,
    )
    assert (found.width, len(found.buckets)) == (300, 20)
    assert found.buckets[0].start <= BEGIN
    starts = [one.start for one in found.buckets]
    assert starts == [starts[0] + timedelta(seconds=found.width * n) for n in range(len(starts))]
    assert sum((one.counts for one in found.buckets), Counts()) == found.totals

    verdicts = {f"id{n}": pair for n, pair in enumerate(pairs)}
    for kind, holds in (
        ("matched", lambda a, b: a.matched),
        ("not_matched", lambda a, b: a in (Outcome.FALSE, Outcome.NULL)),
        ("failed", lambda a, b: a is Outcome.ERROR),
        ("gained", lambda a, b: a.matched and not b.matched),
        ("lost", lambda a, b: b.matched and not a.matched),
    ):
        chosen = found.samples[kind]
        assert len({one.message_id for one in chosen}) == 3, kind
        for one in chosen:
            assert holds(*verdicts[one.message_id])
            number = int(one.message_id.removeprefix("id"))
            assert one.stored == ROWS[number][4]
            known = {name: value for name, value in one.properties.items() if value is not None}
            assert known == properties_of(number)
            assert one.reason.startswith("It matches" if kind in ("matched", "gained") else "It ")
    assert "'dear' can't be read as" in found.samples["failed"][0].reason

    told = json.loads(json.dumps(found.to_dict()))
    assert told["messages"] == 600
    assert told["totals"]["gained"] == sum(gained)


def test_tags_are_counted_and_buckets_are_as_wide_as_asked_for(spark: SparkSession) -> None:
    rows = spark.createDataFrame(
        [(*row[:5], f"T{n % 3}", row[6]) for n, row in enumerate(ROWS)], row_type(COLUMNS)
    )
    found = backtest.run(rows, Filter("tags", "T1 || T2"), bucket="30m", samples=0)
    assert found.totals == Counts(matched=400, not_matched=200)
    starts = [one.start.strftime("%H:%M") for one in found.buckets]
    assert starts == ["12:00", "12:30", "13:00", "13:30"]
    assert found.lines()[-4].split()[:5] == ["2026-11-15", "12:00", "120", "60", "0"]
    with pytest.raises(ConfigError, match="at most 10,000 can be"):
        backtest._check_few(0, 10**6, 1)


def test_nothing_to_look_at_is_said(spark: SparkSession) -> None:
    rows = spark.createDataFrame([], row_type([*COLUMNS, "properties"]))
    found = backtest.run(rows, NEW, source="topic orders")
    assert (found.totals, found.buckets) == (Counts(), ())
    assert found.lines() == ["no messages of topic orders"]


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("5m", 300), ("1d12h", 129_600), ("2w", 1_209_600)]
)
def test_durations(text: str, seconds: int) -> None:
    assert backtest.parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0s", "5", "m", "1h 30m", "-1h", "1y"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no duration: write 30s"):
        backtest.parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "width"), [(0, 1), (39, 1), (40, 2), (7200, 300), (7 * 86_400, 21_600)]
)
def test_buckets_are_chosen_so_that_there_are_at_most_40(seconds: int, width: int) -> None:
    assert backtest._chosen_width(0, seconds) == width


def made(against: str | None = OLD) -> Backtest:
    counts = Counts(matched=3, not_matched=90, failed=1, gained=2, lost=1)
    sample = Message("orders", None, 0, 7, "<id>", BEGIN, {"price": "<b>", "region": None}, "It <>")
    return Backtest(
        expression="price > $1 AND a < '<script>'",
        against=against,
        width=3600,
        buckets=tuple(Bucket(BEGIN + timedelta(hours=n), counts) for n in range(3)),
        totals=counts + counts + counts,
        samples={"matched": (sample,)},
    )


def test_the_table_has_a_row_and_a_bar_for_each_bucket() -> None:
    lines = made().lines()
    at = next(n for n, line in enumerate(lines) if line.startswith("time (UTC)"))
    assert lines[at + 1] == (
        "2026-11-15 12:00        3           90       1       2     1  █▓" + "░" * 29
    )
    assert any("orders/-/0 at 7  <id>  2026-11-15T12:00:00.000Z" in line for line in lines)


@pytest.mark.parametrize("against", [None, OLD])
def test_a_picture_is_written(against: str | None, tmp_path: Path) -> None:
    plot.write(made(against), tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    panels = [ax.get_ylabel() for ax in plot.draw(made(against)).axes]
    assert panels[0] == "messages per hour"
    assert ("gained and lost" in panels) == (against is not None)
    for ax in plot.draw(made(against)).axes:
        low, high = ax.get_ylim()
        lowest = -1 if ax.get_ylabel() == "gained and lost" else 0  # one is lost
        assert low <= lowest <= 0 < high


def test_a_page_is_whole_by_itself_and_takes_no_text_for_markup(tmp_path: Path) -> None:
    plot.write(made(), tmp_path / "a.html")
    page = (tmp_path / "a.html").read_text()
    assert "<svg" in page
    assert "&lt;script&gt;" in page
    assert not re.search(r"<script|<link|<img|@import|src=|href=\"http", page)
    assert "<td>&lt;id&gt;</td>" in page
    assert page.count("<tr><td>2026-11-15 1") == 3


@pytest.mark.parametrize("name", ["a.gif", "a", "none/a.png"])
def test_a_picture_that_can_not_be_written_is_refused_at_once(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a plot ends in \.png or \.html|there is no directory"):
        plot.check(tmp_path / name)


def test_the_command_reads_a_store_and_says_what_it_found(
    spark: SparkSession, tmp_path: Path
) -> None:
    with tarfile.open(STORES / "clean.tar.gz") as stored:
        stored.extractall(tmp_path, filter="data")
    store = next(tmp_path.rglob("commitlog")).parent
    picture, summary = tmp_path / "a.html", tmp_path / "a.json"
    asked = ["a IS NOT NULL", "--against", "a IS NULL", "--store", str(store)]
    asked += ["--plot", str(picture), "--summary", str(summary)]
    asked += ["--conf", "spark.sql.shuffle.partitions=2"]
    done = CliRunner().invoke(tamis, ["filter", "backtest", *asked])
    assert done.exit_code == 0, done.output
    told = json.loads(summary.read_text())
    assert told["messages"] == told["totals"]["gained"] + told["totals"]["lost"] > 0
    assert f"{told['messages']:,} messages of store {store}" in done.stdout
    assert done.stdout.endswith(f"summary: {summary}\nplot: {picture}\n")
    assert picture.is_file()


def test_while_it_runs_it_tells_how_much_was_read(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    seen, deadline = tmp_path / "seen", time.time() + 60

    class Telling(Report):
        def update(self, messages: int, lag: int | None = None, *, force: bool = False) -> None:
            told.append(messages)
            if messages:
                seen.touch()

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The second half, until the first was told of."""
        for batch in batches:
            while batch["id"][0].as_py() >= 50 and not seen.exists() and time.time() < deadline:
                time.sleep(0.05)
            yield batch

    monkeypatch.setattr(runner, "_LOOK_AT_TASKS", 0.05)
    rows = spark.range(0, 100, numPartitions=2)
    with runner.watched(spark, Telling(None)):
        assert rows.mapInArrow(wait, rows.schema).count() == 100
    assert told == sorted(told)
    assert 50 in told


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--topic", "t", "--store", "a", "--archive", "b"], "--store and --archive: give one"),
        ([], "name the topic"),
        (["--topic", "t", "--since", "yesterday"], "is no time"),
        (["--topic", "t", "--since", "1h", "--until", "2h"], "nothing is since 1h and before 2h"),
        (["--store", "a", "--buckets", "5"], "'5' is no duration"),
        (["--store", "a", "--plot", "a.pdf"], "a plot ends in .png or .html"),
        (["--archive", "nowhere"], "nowhere is no archive"),
        (["--archive", "kept", "--topic", "Typo"], "archive kept has no topic Typo: it has A, B"),
        (["--store", "a", "--summary", "none/a.json"], "there is no directory"),
        (["--store", "a", "--summary", "kept"], "kept is a directory: name a file"),
        (["--store", "a", "--conf", "spark"], "'spark' is not NAME=VALUE"),
    ],
)
def test_what_the_command_can_not_do_it_says_before_spark_starts(
    arguments: list[str], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for topic in ("A", "B"):
        (tmp_path / "kept" / f"topic={topic}").mkdir(parents=True)
    described = {"version": 1, "format": "parquet", "properties": []}
    (tmp_path / "kept" / "_archive.json").write_text(json.dumps(described))
    done = CliRunner().invoke(tamis, ["filter", "backtest", "a = 1", *arguments])
    assert done.exit_code == 2
    assert why in done.output


def test_a_filter_that_does_not_compile_is_refused_first() -> None:
    done = CliRunner().invoke(tamis, ["filter", "backtest", "a =", "--topic", "t"])
    assert isinstance(done.exception, FilterSyntaxError)  # `main` shows it and exits with 2
