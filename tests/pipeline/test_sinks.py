"""Sinks, as far as they need no Spark: what is told before it starts, what is confirmed after."""

from pathlib import Path

import pytest

from tamis.client import blocking
from tamis.errors import ConfigError, Error
from tamis.pipeline.config import Sink
from tamis.pipeline.files import for_spark
from tamis.pipeline.sinks import Sinks
from tamis.testing import LocalCluster


def files_at(path: Path | str, format: str = "parquet") -> Sink:
    return Sink(format=format, path=str(path), columns=("keys",))


def test_sinks_of_a_kind_are_written_together_wherever_they_are() -> None:
    paths = ("/tmp/a", "/tmp/b", "file:///tmp/c", "file:///tmp/d", "hdfs://n/e", "hdfs://m/f")
    sinks = [files_at(path) for path in paths] + [files_at("/tmp/g", "json")]
    assert Sinks(None, "x").jobs(sinks) == [[0, 1], [2, 3], [4], [5], [6]]


def test_spark_is_told_whole_paths_as_they_are() -> None:
    assert for_spark("/a b/%20/") == "file:///a b/%20"
    assert for_spark("hdfs://n/a b") == "hdfs://n/a b"


def claimed(sink: Sink, *batches: int) -> None:
    Sinks(None, "mine").claim([sink])
    for batch in batches:
        (Path(sink.path or "") / f"batch={batch}").mkdir()


def test_batches_that_the_checkpoint_does_not_know_are_refused(tmp_path: Path) -> None:
    sink = files_at(tmp_path / "out")
    claimed(sink, 0, 9, 10)
    sinks = Sinks(None, "mine")
    sinks.check([sink])
    sinks.check([sink], planned=10)
    with pytest.raises(ConfigError, match="out has batch 10, its checkpoint comes to 9"):
        sinks.check([sink], planned=9)


def test_whose_a_sink_is_can_be_left_open_its_format_not(tmp_path: Path) -> None:
    sink = files_at(tmp_path / "out")
    claimed(sink, 3)
    with pytest.raises(ConfigError, match="written by another run"):
        Sinks(None, "theirs").check([sink], planned=-1)
    unknown = Sinks(None, "")  # before Spark can read the checkpoint
    unknown.check([sink], planned=-1)
    with pytest.raises(ConfigError, match="it has files of format parquet"):
        unknown.check([files_at(tmp_path / "out", "json")])
    (tmp_path / "out" / "_tamis.json").unlink()
    with pytest.raises(ConfigError, match="files that this pipeline did not write"):
        unknown.check([sink])


def test_rows_that_went_elsewhere_are_missed(tmp_path: Path) -> None:
    sinks = [files_at(tmp_path / "a"), files_at(tmp_path / "b"), Sink(format="console")]
    claimed(sinks[0], 0)
    Sinks(None, "mine").confirm(sinks, 0, {0: 5, 1: 0, 2: 5})
    with pytest.raises(Error, match=r"b/batch=0 is not there, though 7 rows were written to it"):
        Sinks(None, "mine").confirm(sinks, 0, {1: 7})


def test_a_topic_that_nobody_makes_and_a_dead_name_server_are_told(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, auto_create_topics=False) as strict:
        for nameserver, options, said in (
            (strict.nameserver, {}, "sink rocketmq big-ones: .*big-ones"),
            (strict.nameserver, {"nope": "1"}, "sink rocketmq big-ones: there is no option nope"),
            ("127.0.0.1:1", {}, r"sink rocketmq big-ones: .*127.0.0.1:1 can't be reached"),
        ):
            sink = Sink(format="rocketmq", topic="big-ones", nameserver=nameserver, options=options)
            with pytest.raises(Error, match=said):
                Sinks(None, "mine").check([sink])


def test_a_topic_that_is_made_when_sent_to_is_not_made_by_the_check(
    local_cluster: LocalCluster,
) -> None:
    sink = Sink(format="rocketmq", topic="big-ones", nameserver=local_cluster.nameserver)
    Sinks(None, "mine").check([sink])
    with blocking.Admin(local_cluster.nameserver) as admin:
        assert "big-ones" not in admin.topics()
