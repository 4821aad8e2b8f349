"""Checkpoints: which can be relied on, and whose they are. What Spark writes is put there."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tamis.errors import ConfigError
from tamis.pipeline.checkpoint import Checkpoint
from tamis.pipeline.config import Config, Filter, Sink, Source, Subscription
from tamis.pipeline.route import Epoch, epochs_of

SOURCE = Source(nameserver="127.0.0.1:9876", topics=("orders",))
OFFSETS = 'v1\n{"batchWatermarkMs":0}\n{"orders": {"b": {"0": 1}}, "": {"scanned": 1}}'
DONE = 'v1\n{"nextBatchWatermarkMs":0}'


def config_of(folder: Path, source: Source = SOURCE, checkpoint: str = "") -> Config:
    path = checkpoint or str(folder / "checkpoint")
    return Config(
        file=folder / "orders.toml", source=source, job="route", checkpoint=path, summary=""
    )


def saved(config: Config, **data: Any) -> Checkpoint:
    checkpoint = Checkpoint.open(config)
    checkpoint.data = data
    checkpoint.save()
    return checkpoint


def put(config: Config, *names: str) -> None:
    for name in names:
        file = Path(config.checkpoint, "spark", name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(
            '{"id":"1"}' if name == "metadata" else DONE if "commits" in name else OFFSETS
        )


@pytest.mark.parametrize(
    ("counted", "there", "places"),
    [
        (-1, (), (-1, -1)),
        (-1, ("metadata",), (-1, -1)),
        (-1, ("metadata", "offsets/0"), (0, -1)),
        (0, ("metadata", "offsets/0"), (0, -1)),
        (1, ("metadata", "offsets/0", "offsets/1", "commits/0", "commits/1"), (1, 1)),
        (0, (), "spark can't be used: batches that were done are missing"),
        (1, ("metadata", "offsets/0", "commits/0"), "batches that were done are missing"),
        (-1, ("metadata", "commits/3"), "batches that were done are missing"),
        (-1, ("metadata", "offsets/3", "commits/2"), "offsets/2 can't be used: it is missing"),
        (0, ("offsets/0",), "metadata can't be used: it is missing"),
    ],
)
def test_a_checkpoint_that_lost_a_part_of_spark_s_is_refused(
    tmp_path: Path, counted: int, there: tuple[str, ...], places: tuple[int, int] | str
) -> None:
    config = config_of(tmp_path)
    before = saved(config, counted=counted)
    put(config, *there)
    if isinstance(places, str):
        with pytest.raises(ConfigError, match=places):
            Checkpoint.open(config)
        return
    found = Checkpoint.open(config)
    assert (found.planned, found.done) == places
    assert found.run_id == before.run_id


def test_a_state_that_was_being_replaced_is_the_new_one(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    before = saved(config, slice=3)
    state, new = (tmp_path / "checkpoint" / name for name in ("state.json", ".state.json.new"))
    state.rename(new)
    found = Checkpoint.open(config)
    assert (found.run_id, found.data) == (before.run_id, {"slice": 3})
    new.write_text('{"version": 1, "ru')  # of a first run that was killed: nothing is of it yet
    assert Checkpoint.open(config).data == {}
    put(config, "metadata")
    with pytest.raises(ConfigError, match="can't be used"):
        Checkpoint.open(config)


def test_one_run_at_a_time_has_it_and_sees_what_the_last_left(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    first, second = Checkpoint.open(config), Checkpoint.open(config)
    with first.locked(dry_run=True):
        assert not Path(config.checkpoint).exists()
    with first.locked():
        first.data["slice"] = 7
        first.save()
        for dry_run in (False, True):
            with (
                pytest.raises(ConfigError, match="another run is using it"),
                second.locked(dry_run),
            ):
                pass
    assert second.data == {}
    with second.locked():
        assert (second.data, second.run_id) == ({"slice": 7}, first.run_id)


STORE = Source(store="/data/store", topics=("orders",))


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (SOURCE, Source(nameserver="[::1]:9876;b:9876", topics=("orders",)), "note"),
        (SOURCE, Source(nameserver="127.0.0.1:9876", topics=("orders", "b")), "is of nameserver"),
        (SOURCE, STORE, "is of nameserver 127.0.0.1:9876, topic orders, not of store /data/store"),
        (STORE, Source(store="/other/store", topics=("orders",)), "is of store /data/store"),
        (STORE, Source(store="/data/store"), "topic orders, not of store /data/store, all topics"),
    ],
)
def test_a_checkpoint_is_of_a_kind_of_source_and_its_topics_not_of_an_address(
    tmp_path: Path, before: Source, now: Source, said: str
) -> None:
    saved(config_of(tmp_path, before))
    if said != "note":
        with pytest.raises(ConfigError, match=said):
            Checkpoint.open(config_of(tmp_path, now))
        return
    found = Checkpoint.open(config_of(tmp_path, now))
    [note] = found.notes
    assert note.startswith("the source was nameserver 127.0.0.1:9876, topic orders: if [::1]:9876")
    found.save()
    assert Checkpoint.open(config_of(tmp_path, now)).notes == []


def test_a_folder_that_was_moved_keeps_its_checkpoint(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    before = saved(config_of(old, Source(archive=str(old / "archive"))))
    old.rename(new)
    found = Checkpoint.open(config_of(new, Source(archive=str(new / "archive"))))
    assert found.run_id == before.run_id
    assert len(found.notes) == 1


def test_one_elsewhere_is_left_to_spark_and_one_that_cannot_be_written_is_told(
    tmp_path: Path,
) -> None:
    unseen = Checkpoint.open(config_of(tmp_path, checkpoint="hdfs://nowhere/checkpoint"))
    assert (unseen.run_id, unseen.planned, unseen.offsets(unseen.planned)) == ("", -1, None)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"checkpoint .*/file/x/y: .*/file is no directory"):
        Checkpoint.open(config_of(tmp_path, checkpoint=str(tmp_path / "file" / "x" / "y")))


def test_a_state_of_another_job_or_version_is_refused(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    saved(config)
    file = tmp_path / "checkpoint" / "state.json"
    state = json.loads(file.read_text())
    for change, said in (
        ({"job": "archive"}, "is of job archive, not route"),
        ({"version": 2}, "it is of version 2, this Tamis knows 1"),
        ({"source": "store a"}, "it is damaged"),
        ({"source": {"kind": "store"}}, "it has no 'place'"),
    ):
        file.write_text(json.dumps({**state, **change}))
        with pytest.raises(ConfigError, match=said):
            Checkpoint.open(config)


def test_a_checkpoint_from_before_there_was_isolation_is_the_same_job_without_it(
    tmp_path: Path,
) -> None:
    sink = Sink(format="parquet", path="/out")
    filter = Filter("code", "f.py:F", source="class F: ...")
    config = replace(config_of(tmp_path), subscriptions=(Subscription("paid", filter, sink),))
    first = Epoch(0, None, config.subscriptions, None).to_dict()
    assert first["subscriptions"][0]["filter"].keys() == {"kind", "text", "dialect", "source"}
    saved(config, epochs=[first])
    put(config, "metadata", "offsets/0", "commits/0")
    checkpoint = Checkpoint.open(config)
    assert len(epochs_of(checkpoint, config)) == 1
    isolated = Subscription("paid", replace(filter, isolation="required"), sink)
    epochs = epochs_of(checkpoint, replace(config, subscriptions=(isolated,)))
    assert [one.from_batch for one in epochs] == [0, 1]
    assert Epoch.from_dict(json.loads(json.dumps(epochs[1].to_dict()))) == epochs[1]
