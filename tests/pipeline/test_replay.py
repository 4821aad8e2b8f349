"""The job replay, from a broker of ours and from an archive, into files and into a topic."""

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceWriter, WriterCommitMessage
from sparkling import create_topic, send_all

from tamis.cli.main import tamis
from tamis.errors import ConfigError
from tamis.message import Message
from tamis.pipeline import archive, load, replay, slices
from tamis.pipeline.config import Config
from tamis.pipeline.runner import Report, Stop
from tamis.testing import LocalCluster

PATIENCE = 60.0  # seconds
TOPIC = "replayed"
MATCHING = [f"body {n}" for n in range(60) if n > 20 and n % 30 != 7]
JSON = '{ format = "json", path = "out" }'
FILE = """
[source]
{source}
[run]
job = "replay"
{run}
[replay]
{what}
sink = {sink}
"""


class Stopping(Report):
    """Asks for a stop when so many messages went out."""

    def __init__(self, stop: Stop, after: int) -> None:
        super().__init__(None)
        self._stop = stop
        self._after = after

    def update(self, messages: int, lag: int | None = None, *, force: bool = False) -> None:
        if messages >= self._after:
            self._stop.ask()


class Telling(Report):
    """Keeps what it is told: messages sent, messages left."""

    def __init__(self) -> None:
        super().__init__(None)
        self.told: list[tuple[int, int | None]] = []

    def update(self, messages: int, lag: int | None = None, *, force: bool = False) -> None:
        self.told.append((messages, lag))


@pytest.fixture(scope="module")
def sent(local_cluster: LocalCluster) -> LocalCluster:
    create_topic(local_cluster, TOPIC, queues=2)
    send_all(
        local_cluster,
        (
            Message(
                TOPIC,
                f"body {n}".encode(),
                tags="A" if n % 2 else "B",
                properties={"n": "many" if n % 30 == 7 else str(n)},
            )
            for n in range(60)
        ),
    )
    return local_cluster


@pytest.fixture
def pipeline(sent: LocalCluster, tmp_path: Path) -> Callable[..., Config]:
    here = f'nameserver = "{sent.nameserver}"\ntopic = "{TOPIC}"'
    slices = "max_offsets_per_batch = 25"

    def make(what: str, sink: str, source: str = here, run: str = slices) -> Config:
        file = tmp_path / "replay.toml"
        file.write_text(FILE.format(source=source, what=what, sink=sink, run=run))
        config = load(file)
        replay.check(config)
        return config

    return make


def bodies(spark: SparkSession, path: Path) -> list[str]:
    rows = spark.read.json(str(path)).selectExpr("decode(unbase64(body), 'utf-8') body")
    return sorted(row.body for row in rows.collect())


def plan_of(config: Config) -> list:
    state = json.loads((Path(config.checkpoint) / "state.json").read_text())
    return state["data"]["plan"]["slices"]


def test_stopped_and_run_again_a_file_has_every_match_once(
    spark: SparkSession, sent: LocalCluster, pipeline: Callable[..., Config], tmp_path: Path
) -> None:
    sink, source = JSON, f'store = "{sent.store}"\ntopic = "{TOPIC}"'
    config = pipeline('sql = "n > 20"', sink, source)

    counted = replay.run(spark, config, dry_run=True)
    assert counted.status == "not run"
    assert (counted.matched, counted.not_matched, counted.failed) == (len(MATCHING), 20, 2)
    assert sum(day["matched"] for day in counted.days) == len(MATCHING)
    assert not (tmp_path / "out").exists()

    stop = Stop()
    first = replay.run(spark, config, stop=stop, report=Stopping(stop, 0))
    assert (first.status, first.slices, first.slices_done) == ("stopped", 3, 1)
    telling = Telling()
    again = replay.run(spark, config, report=telling)
    assert (again.status, again.slices_done) == ("done", 3)
    [(_, left), (_, none)] = telling.told
    assert (left, none) == (slices.count(plan_of(config)[2:]), 0)
    assert first.sent + again.sent == len(MATCHING)
    assert bodies(spark, tmp_path / "out") == sorted(MATCHING)

    for name, what in (("filter", 'sql = "n > 21"'), ("since", 'sql = "n > 20"\nsince = 1')):
        with pytest.raises(ConfigError, match=rf"\[replay\] {name} was changed since"):
            pipeline(what, sink, source)


def test_into_a_topic_it_goes_on_with_the_chunk_it_was_at(
    spark: SparkSession, sent: LocalCluster, pipeline: Callable[..., Config]
) -> None:
    create_topic(sent, "again", queues=1)
    config = pipeline('sql = "n > 20"\nrate = 16', '{ format = "rocketmq", topic = "again" }')
    dry = replay.run(spark, config, dry_run=True)
    assert any(f"{len(MATCHING)} messages, 2 s at 16 a second" in line for line in dry.lines())

    stop = Stop()
    first = replay.run(spark, config, stop=stop, report=Stopping(stop, 16))
    assert first.status == "stopped"
    telling = Telling()
    again = replay.run(spark, config, report=telling)
    assert again.status == "done"
    assert 0 < first.sent < first.sent + again.sent == len(MATCHING)
    left = [lag for _, lag in telling.told if lag is not None]
    assert left == sorted(left, reverse=True)
    assert (left[0] > 0, telling.told[-1]) == (True, (again.sent, 0))
    reader = spark.read.format("rocketmq").option("nameserver", sent.nameserver)
    found = [bytes(row.body).decode() for row in reader.load("again").collect()]
    assert Counter(found) == Counter(MATCHING)


def delta() -> type[DataSource]:
    """A table that knows the last transaction of whoever writes to it, as Delta Lake's do. It is
    made here since workers can't import this module."""

    class Bodies(WriterCommitMessage):
        def __init__(self, lines: list[str]) -> None:
            self.lines = lines

    class Writer(DataSourceWriter):
        def __init__(self, path: str, version: int) -> None:
            self.path = path.removeprefix("file://")
            self.version = version

        def write(self, iterator: Iterator) -> WriterCommitMessage:
            if os.path.exists(f"{self.path}/broken"):
                raise OSError("the disk is gone")
            return Bodies([bytes(row["body"]).decode() + "\n" for row in iterator])

        def commit(self, messages: list) -> None:
            with (
                open(f"{self.path}/version", "a+") as known,
                open(f"{self.path}/rows", "a") as rows,
            ):
                known.seek(0)
                if self.version > max((int(line) for line in known), default=-1):
                    rows.writelines(line for one in messages for line in one.lines)
                    known.write(f"{self.version}\n")

    class Table(DataSource):
        @classmethod
        def name(cls) -> str:
            return "delta"

        def writer(self, schema: object, overwrite: bool) -> DataSourceWriter:
            return Writer(self.options["path"], int(self.options["txnVersion"]))

    return Table


def test_a_table_that_knows_its_transactions_gets_every_chunk_once(
    spark: SparkSession,
    pipeline: Callable[..., Config],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spark.dataSource.register(delta())
    monkeypatch.setattr(replay, "_MESSAGES", 15)
    table = tmp_path / "table"
    table.mkdir()
    config = pipeline('sql = "n > 20"', '{ format = "delta", path = "table" }', run="")

    (table / "broken").touch()
    done = CliRunner().invoke(tamis, ["pipeline", "run", str(config.file)])
    assert done.exit_code == 1
    told = json.loads(Path(config.summary).read_text())
    assert (told["status"], told["matched"], told["sent"]) == ("failed", len(MATCHING), 0)

    (table / "broken").unlink()
    stop = Stop()
    first = replay.run(spark, config, stop=stop, report=Stopping(stop, 15))
    assert (first.status, first.sent) == ("stopped", 15)  # not the whole slice
    state = Path(config.checkpoint) / "state.json"
    killed = json.loads(state.read_text())
    killed["data"]["sent"] = 0  # before the chunk was recorded
    state.write_text(json.dumps(killed))
    again = replay.run(spark, config)
    assert (again.status, again.sent) == ("done", len(MATCHING))
    assert Counter((table / "rows").read_text().split("\n")[:-1]) == Counter(MATCHING)


SLOW = """
import pathlib, time
class Slow:
    def match(self, message):
        pathlib.Path({began!r}).touch()
        deadline = time.monotonic() + {patience}
        while not pathlib.Path({go!r}).exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        return True
"""


def test_a_second_interrupt_gives_up_the_slice_and_the_next_run_does_it_again(
    spark: SparkSession, pipeline: Callable[..., Config], tmp_path: Path
) -> None:
    began, go = tmp_path / "began", tmp_path / "go"
    text = SLOW.format(began=str(began), go=str(go), patience=PATIENCE)
    (tmp_path / "slow.py").write_text(text)
    config = pipeline('code = "slow.py:Slow"', JSON, run="")
    is_over = threading.Event()

    def interrupt() -> None:
        deadline = time.monotonic() + PATIENCE
        for wanted in (began.exists, lambda: stop.asked):
            while not wanted() and time.monotonic() < deadline:
                time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGINT)
        if not is_over.wait(PATIENCE / 2):
            go.touch()  # it is not given up: let it end

    with Stop() as stop:
        interrupting = threading.Thread(target=interrupt)
        interrupting.start()
        first = replay.run(spark, config, stop=stop)
        is_over.set()
        interrupting.join()
    assert (stop.count, first.status, first.slices_done) == (2, "stopped", 0)
    assert not go.exists()

    go.touch()
    assert replay.run(spark, config).status == "done"
    assert bodies(spark, tmp_path / "out") == sorted(f"body {n}" for n in range(60))


def test_topics_are_named_by_a_pattern_or_by_queues(
    spark: SparkSession, sent: LocalCluster, pipeline: Callable[..., Config]
) -> None:
    store, server = f'store = "{sent.store}"', f'nameserver = "{sent.nameserver}"'
    pattern = 'options = { topicPattern = "repl.*" }'
    config = pipeline("", JSON, f"{store}\n{pattern}", run="")
    assert config.source.name == f"store {sent.store}, topicPattern repl.*"
    assert replay.run(spark, config, dry_run=True).matched == 60

    found = slices.positions(pipeline("", JSON, f"{server}\n{pattern}", run=""))
    [(broker, queues)] = found[TOPIC].items()
    assigned = json.dumps({TOPIC: {broker: [1]}})
    config = pipeline("", JSON, f"{server}\noptions = {{ assign = '{assigned}' }}", run="")
    assert replay.run(spark, config, dry_run=True).matched == queues["1"][1]


def test_what_no_message_can_be_of_is_refused_before_spark_starts(
    sent: LocalCluster, tmp_path: Path
) -> None:
    file = tmp_path / "replay.toml"
    here = f'nameserver = "{sent.nameserver}"\ntopic = "{TOPIC}"'
    (tmp_path / "kept" / f"topic={TOPIC}").mkdir(parents=True)
    described = {"version": 1, "format": "parquet", "properties": []}
    (tmp_path / "kept" / "_archive.json").write_text(json.dumps(described))
    kept = f'archive = "kept"\ntopic = "{TOPIC}"'
    for source, run, what, why in (
        (here, "", "since = 2026-11-02\nuntil = 2026-11-01", "nothing is since 2026-11-02 and"),
        (f"{here}\nstart = 2000", "", "until = 2000", "nothing is since 2000 and before 2000"),
        (f'{here}\nstart = "latest"', "", "", "[source] start = latest would replay nothing"),
        (f'{kept}\nstart = "latest"', "", "", "[source] start = latest would replay nothing"),
        (here, "", "rate = inf", "rate = inf: it takes a number"),
        (f'nameserver = "{sent.nameserver}"', "", "", "[source] has no topic"),
        (
            f'{here}\noptions = {{ startingOffsets = "latest" }}',
            *("", "", "options: startingOffsets is what the pipeline sets itself"),
        ),
        (
            f"{here}\noptions = {{ minOffsetsPerTrigger = 9 }}",
            *("", "", "option minOffsetsPerTrigger is for streams"),
        ),
        (kept.replace(TOPIC, "Typo"), "", "", f"has no topic Typo: it has {TOPIC}"),
        (f"{kept}\noptions = {{ retries = 3 }}", "", "", "options: retries is not for an archive"),
        (kept, "max_offsets_per_batch = 9", "", "max_offsets_per_batch is not for an archive"),
    ):
        file.write_text(FILE.format(source=source, run=run, what=what, sink=JSON))
        done = CliRunner().invoke(tamis, ["pipeline", "run", str(file)])
        assert (done.exit_code, why in done.output) == (2, True), (why, done.output)
        assert not (tmp_path / "out").exists()
    columns = JSON.replace(" }", ', columns = ["property_string"] }')
    file.write_text(FILE.format(source=kept, run="", what="", sink=columns))
    with pytest.raises(ConfigError, match="an archive has no property_string"):
        load(file)


def test_what_is_sent_in_order_has_one_order_only() -> None:
    assert {"topic", "broker", "queue_id", "offset"} < {*replay._ORDER}


def test_some_offsets_of_an_archive(
    spark: SparkSession, sent: LocalCluster, pipeline: Callable[..., Config], tmp_path: Path
) -> None:
    archiving = tmp_path / "archive.toml"
    archiving.write_text(
        f'[source]\nnameserver = "{sent.nameserver}"\ntopic = "{TOPIC}"\n'
        '[run]\njob = "archive"\n[archive]\npath = "kept"\nproperties = ["n"]\n'
    )
    archive.run(spark, load(archiving))
    rows = archive.read(spark, str(tmp_path / "kept"))
    broker = rows.select("broker").first()
    assert broker is not None
    offsets = json.dumps({TOPIC: {broker[0]: {"0": [3, 9], "1": [0, 2]}}})
    chosen = "(queue_id = 0 AND offset BETWEEN 3 AND 8) OR (queue_id = 1 AND offset < 2)"
    wanted = [bytes(row.body).decode() for row in rows.where(chosen).where("tags = 'A'").collect()]

    source = f'archive = "kept"\ntopic = "{TOPIC}"'
    config = pipeline(f"tags = \"A\"\noffsets = '{offsets}'", JSON, source, run="")
    done = replay.run(spark, config)
    assert (done.messages, done.matched) == (8, len(wanted))
    assert bodies(spark, tmp_path / "out") == sorted(wanted)


def test_offsets_that_are_not_there_are_refused_before_anything_is_read(
    pipeline: Callable[..., Config], sent: LocalCluster
) -> None:
    for offsets, why in (
        ("12", "offsets: it takes"),
        ('{"replayed": {"x": {"0": [5, 1]}}}', "offsets: it takes"),
        ('{"other": {"x": {"0": [0, 1]}}}', "other is no topic of"),
        ('{"replayed": {"x": {"0": [0, 1]}}}', "there is no queue 0 of replayed on broker 'x'"),
    ):
        with pytest.raises(ConfigError, match=why):
            pipeline(f"offsets = '{offsets}'", JSON)


def test_slices_take_of_each_queue_its_share_and_leave_nothing_out() -> None:
    positions = {"t": {"b": {"0": (10, 110), "1": (0, 3)}}}
    parts = list(slices.cut(positions, 25))
    assert len(parts) == 5
    assert slices.count(parts) == 103
    for queue, (start, end) in positions["t"]["b"].items():
        edges = [one["t"]["b"][queue] for one in parts]
        assert [edge[0] for edge in edges[1:]] == [edge[1] for edge in edges[:-1]]
        assert (edges[0][0], edges[-1][1]) == (start, end)
