"""The job replay, from a broker of ours and from an archive, into files and into a topic."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from sparkling import create_topic, send_all

from tamis.errors import ConfigError
from tamis.message import Message
from tamis.pipeline import archive, load, replay
from tamis.pipeline.config import Config
from tamis.pipeline.runner import Report, Stop
from tamis.testing import LocalCluster

TOPIC = "replayed"
MATCHING = [f"body {n}" for n in range(60) if n > 20 and n % 30 != 7]
FILE = """
[source]
{source}
topic = "replayed"
[run]
job = "replay"
max_offsets_per_batch = 25
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
    def make(what: str, sink: str, source: str = f'nameserver = "{sent.nameserver}"') -> Config:
        file = tmp_path / "replay.toml"
        file.write_text(FILE.format(source=source, what=what, sink=sink))
        config = load(file)
        replay.check(config)
        return config

    return make


def bodies(spark: SparkSession, path: Path) -> list[str]:
    rows = spark.read.json(str(path)).selectExpr("decode(unbase64(body), 'utf-8') body")
    return sorted(row.body for row in rows.collect())


def test_stopped_and_run_again_a_file_has_every_match_once(
    spark: SparkSession, sent: LocalCluster, pipeline: Callable[..., Config], tmp_path: Path
) -> None:
    sink, source = '{ format = "json", path = "out" }', f'store = "{sent.store}"'
    config = pipeline('sql = "n > 20"', sink, source)

    counted = replay.run(spark, config, dry_run=True)
    assert counted.status == "not run"
    assert (counted.matched, counted.not_matched, counted.failed) == (len(MATCHING), 20, 2)
    assert sum(day["matched"] for day in counted.days) == len(MATCHING)
    assert not (tmp_path / "out").exists()

    stop = Stop()
    first = replay.run(spark, config, stop=stop, report=Stopping(stop, 0))
    assert (first.status, first.slices, first.slices_done) == ("stopped", 3, 1)
    again = replay.run(spark, config)
    assert (again.status, again.slices_done) == ("done", 3)
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
    again = replay.run(spark, config)
    assert again.status == "done"
    assert 0 < first.sent < first.sent + again.sent == len(MATCHING)
    reader = spark.read.format("rocketmq").option("nameserver", sent.nameserver)
    found = [bytes(row.body).decode() for row in reader.load("again").collect()]
    assert Counter(found) == Counter(MATCHING)


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

    sink = '{ format = "json", path = "out" }'
    config = pipeline(f"tags = \"A\"\noffsets = '{offsets}'", sink, 'archive = "kept"')
    done = replay.run(spark, config)
    assert (done.messages, done.matched) == (8, len(wanted))
    assert bodies(spark, tmp_path / "out") == sorted(wanted)


def test_offsets_that_are_not_there_are_refused_before_anything_is_read(
    pipeline: Callable[..., Config], sent: LocalCluster
) -> None:
    sink = '{ format = "json", path = "out" }'
    for offsets, why in (
        ("12", "offsets: it takes"),
        ('{"replayed": {"x": {"0": [5, 1]}}}', "offsets: it takes"),
        ('{"other": {"x": {"0": [0, 1]}}}', "other is no topic of"),
        ('{"replayed": {"x": {"0": [0, 1]}}}', "there is no queue 0 of replayed on broker 'x'"),
    ):
        with pytest.raises(ConfigError, match=why):
            pipeline(f"offsets = '{offsets}'", sink)


def test_slices_take_of_each_queue_its_share_and_leave_nothing_out() -> None:
    positions = {"t": {"b": {"0": (10, 110), "1": (0, 3)}}}
    slices = list(replay._slices(positions, 25))
    assert len(slices) == 5
    for queue, (start, end) in positions["t"]["b"].items():
        edges = [one["t"]["b"][queue] for one in slices]
        assert [edge[0] for edge in edges[1:]] == [edge[1] for edge in edges[:-1]]
        assert (edges[0][0], edges[-1][1]) == (start, end)
