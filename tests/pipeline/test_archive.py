"""The job archive, over the wire from a broker of ours, and what reads it."""

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from sparkling import create_topic, send_all

from tamis.errors import ConfigError
from tamis.message import Message
from tamis.pipeline import archive, load, route
from tamis.testing import LocalCluster

TOPICS = ("archived", "late")
PLACE = ("topic", "broker", "queue_id", "offset")
FILE = """
[source]
nameserver = "{nameserver}"
topic = {topics}
[run]
job = "archive"
max_offsets_per_batch = 40
[archive]
path = "out"
properties = {properties}
"""


def messages(topic: str, first: int, count: int) -> Iterator[Message]:
    for number in range(first, first + count):
        yield Message(
            topic,
            b"body %d" % number,
            tags=f"T{number % 3}" if number % 7 else None,
            keys=[f"k{number}"],
            properties={"region": "eu" if number % 2 else "us", "price": f"{number}"},
        )


def pipeline(
    folder: Path,
    cluster: LocalCluster,
    topics: Sequence[str] = TOPICS,
    properties: Sequence[str] = ("region", "price:double"),
) -> archive.Config:
    file = folder / "archive.toml"
    lists = {"topics": json.dumps(topics), "properties": json.dumps(properties)}
    file.write_text(FILE.format(nameserver=cluster.nameserver, **lists))
    config = load(file)
    archive.check(config)
    return config


def places(rows: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in rows.select(*PLACE).collect())


@pytest.fixture(scope="module")
def config(
    spark: SparkSession,
    local_cluster: LocalCluster,
    tmp_path_factory: pytest.TempPathFactory,
) -> archive.Config:
    """Archived in two batches, then a message more of each topic in a third."""
    for topic in TOPICS:
        create_topic(local_cluster, topic, queues=2)
    send_all(local_cluster, messages(TOPICS[0], 0, 60))
    folder = tmp_path_factory.mktemp("archive")
    config = pipeline(folder, local_cluster)
    first = archive.run(spark, config)
    assert (first.status, first.messages, first.batches) == ("done", 60, 2)
    for topic in TOPICS:
        send_all(local_cluster, messages(topic, 60, 1))
    again = archive.run(spark, config)
    assert (again.messages, again.batches) == (2, 1)
    return config


def path_of(config: archive.Config) -> Path:
    assert config.archive is not None
    return Path(config.archive.path)


def test_an_archive_has_the_rows_of_the_source_each_once(
    spark: SparkSession, local_cluster: LocalCluster, config: archive.Config
) -> None:
    source = (
        spark.read.format("rocketmq")
        .option("nameserver", local_cluster.nameserver)
        .option("columns", ",".join(archive.ARCHIVED))
        .option("properties", "region,price:double")
        .load(",".join(TOPICS))
    )
    archived = archive.read(spark, str(path_of(config)))
    assert archived.dtypes == source.dtypes

    def comparable(rows: DataFrame) -> list[str]:
        return sorted(str(row.asDict()) for row in rows.collect())

    assert comparable(archived) == comparable(source)


def test_an_archive_is_routed(spark: SparkSession, config: archive.Config, tmp_path: Path) -> None:
    file = tmp_path / "route.toml"
    file.write_text(
        f'[source]\narchive = "{path_of(config)}"\n[[subscription]]\ngroup = "ones"\n'
        'tags = "T1"\nsink = { format = "parquet", path = "ones" }\n'
    )
    matched = route.run(spark, load(file)).groups[0].matched
    assert matched == archive.read(spark, str(path_of(config))).where("tags = 'T1'").count() > 0


def test_files_lie_by_topic_and_day_sorted_by_tag(config: archive.Config) -> None:
    folder = path_of(config)
    files = list(folder.rglob("*.parquet"))
    assert {file.parent.parent.name for file in files} == {f"topic={topic}" for topic in TOPICS}
    assert all(file.parent.name.startswith("date=20") for file in files)
    assert not list(folder.glob("_staging-*"))
    for file in files:
        table = pq.ParquetFile(file).read(["tags", "queue_id", "offset"]).to_pylist()
        order = [(row["tags"] or "", row["queue_id"], row["offset"]) for row in table]
        assert order == sorted(order)


def test_a_time_reads_what_was_stored_then(spark: SparkSession, config: archive.Config) -> None:
    every = archive.read(spark, str(path_of(config))).select("store_timestamp").collect()
    times = sorted(int(row[0].timestamp() * 1000) for row in every)
    middle = times[len(times) // 2]
    for start, end, wanted in (
        (str(middle), "latest", [t for t in times if t >= middle]),
        ("earliest", str(middle), [t for t in times if t < middle]),
    ):
        rows = archive.read(spark, str(path_of(config)), start=start, end=end)
        assert rows.count() == len(wanted)


def test_text_comes_from_a_column_of_its_own_but_not_from_a_typed_one(
    spark: SparkSession, config: archive.Config
) -> None:
    rows = archive.read(spark, str(path_of(config)))
    text_of = archive.text_of(rows)
    for name, wanted in (
        ("region", "region"),
        ("price", "properties['price']"),
        ("TAGS", "tags"),
        ("other", "properties['other']"),
    ):
        assert str(text_of(name)) == f"Column<'{wanted}'>"


@pytest.mark.parametrize("moved", [0, 1], ids=["no file", "some files"])
def test_killed_before_all_files_are_in_place_it_finishes_that(
    spark: SparkSession, local_cluster: LocalCluster, config: archive.Config, moved: int
) -> None:
    folder = path_of(config)
    whole = places(archive.read(spark, str(folder)))
    last = json.loads((folder / "_last.json").read_text())
    for staged, place in last["files"][moved:]:
        (folder / staged).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).rename(folder / staged)
    uncommit(config, last["batch"])

    if moved < len(last["files"]):
        assert len(places(archive.read(spark, str(folder)))) == len(whole) - last["messages"]
    done = archive.run(spark, config)
    assert done.notes == [f"batch {last['batch']} was begun by an earlier run and is done again"]
    assert places(archive.read(spark, str(folder))) == whole


def test_killed_while_a_batch_was_written_it_is_written_again(
    spark: SparkSession, config: archive.Config
) -> None:
    folder = path_of(config)
    whole = places(archive.read(spark, str(folder)))
    last = json.loads((folder / "_last.json").read_text())
    for _, place in last["files"]:
        left = folder / "_staging-killed" / place
        left.parent.mkdir(parents=True, exist_ok=True)
        (folder / place).rename(left)
        left.write_bytes(left.read_bytes()[:100])  # torn
    before = {**last, "batch": last["batch"] - 1, "messages": 0, "files": []}
    (folder / "_last.json").write_text(json.dumps(before))
    uncommit(config, last["batch"])

    archive.run(spark, config)
    assert places(archive.read(spark, str(folder))) == whole


def test_what_was_deleted_of_an_archive_is_missing_and_nothing_else_is(
    spark: SparkSession, config: archive.Config, tmp_path: Path
) -> None:
    """Also of the last batch."""
    folder = path_of(config)
    whole = places(archive.read(spark, str(folder)))
    last = json.loads((folder / "_last.json").read_text())
    assert {place.split("/")[0] for _, place in last["files"]} == {"topic=archived", "topic=late"}
    (folder / "topic=late").rename(tmp_path / "deleted")
    try:
        left = [place for place in whole if place[0] != "late"]
        assert places(archive.read(spark, str(folder))) == left
        assert archive.run(spark, config).status == "done"
        assert places(archive.read(spark, str(folder))) == left
    finally:
        (tmp_path / "deleted").rename(folder / "topic=late")


def test_files_are_listed_only_of_batches_that_are_in_place(tmp_path: Path) -> None:
    """A replay has its files from there."""
    kept, day = tmp_path / "kept", "date=2026-11-15"
    names = [
        f"topic={topic}/{day}/run-{batch}-0000.parquet"
        for topic in ("%25RETRY%25g", "A")
        for batch in (0, 1)
    ]
    staged = [f"_staging-1/{name}" for name in names]
    for name in names:
        (kept / name).parent.mkdir(parents=True, exist_ok=True)
        (kept / name).touch()
    last = {"batch": 1, "messages": 2, "staging": "_staging-1"}
    moves = [(staged[1], names[1]), (staged[3], names[3])]
    (kept / "_last.json").write_text(json.dumps({**last, "files": moves}))

    def listed(*topics: str) -> list[str]:
        found = archive.list_files(str(kept), None, topics)
        return [str(Path(file).relative_to(kept)) for file in found]

    assert listed() == [names[0], names[2], names[1], names[3]]
    assert listed("%RETRY%g") == names[:2]
    (kept / staged[3]).parent.mkdir(parents=True)
    (kept / names[3]).rename(kept / staged[3])
    assert listed() == [names[0], names[2]]
    shutil.rmtree(kept / "_staging-1")  # the file was deleted, after it had been in its place
    assert listed() == [names[0], names[2], names[1]]


def uncommit(config: archive.Config, batch: int) -> None:
    """As Spark's checkpoint is while a batch is in progress."""
    commits = Path(config.checkpoint) / "spark/commits"
    (commits / str(batch)).unlink()
    (commits / f".{batch}.crc").unlink(missing_ok=True)


def test_what_can_not_be_archived_is_said_before_it_begins(
    local_cluster: LocalCluster, config: archive.Config, tmp_path: Path
) -> None:
    folder = path_of(config).parent
    for properties, why in (
        ("region", "was begun as parquet with properties region:string, price:double, not"),
        ("Offset", "'Offset': there is a column of that name already"),
        ("price:number", "the types are string, int, long, double, boolean"),
    ):
        with pytest.raises(ConfigError, match=why):
            pipeline(folder, local_cluster, properties=[properties])
    with pytest.raises(ConfigError, match="%RETRY%g beside others: its messages have the topic"):
        pipeline(tmp_path, local_cluster, ["archived", "%RETRY%g"])
    last = json.loads((folder / "out" / "_last.json").read_text())
    (folder / "out" / "_last.json").write_text(json.dumps({**last, "batch": last["batch"] + 1}))
    try:
        with pytest.raises(ConfigError, match=r"its checkpoint comes to \d+: it is an old copy"):
            pipeline(folder, local_cluster)
    finally:
        (folder / "out" / "_last.json").write_text(json.dumps(last))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="files that this pipeline did not write"):
        pipeline(tmp_path, local_cluster)
    with pytest.raises(ConfigError, match=r"is no archive: it has no _archive\.json"):
        archive.describe(str(tmp_path))
