"""The pipeline on YARN, with files on HDFS: both real, of one process."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from interop.yarn.hadoop import Hadoop, hadoop
from pyspark.sql import SparkSession
from spark import shipping, standalone
from spark.test_standalone import PIPELINE, TAMIS, orders
from sparkling import create_topic, send_all

from tamis.errors import ConfigError
from tamis.pipeline import archive, files, load, replay, route
from tamis.testing import LocalCluster

pytestmark = pytest.mark.skipif(
    os.environ.get("TAMIS_INTEROP") != "required" or os.environ.get("TAMIS_THOROUGH") != "1",
    reason="Hadoop, and an environment of 600 MB that is packed for it: make spark",
)

# A filter that matches in executors that have the shipped environment, and fails in others.
SHIPPED = """
import os
import sys

import tamis


class Shipped:
    def match(self, message):
        here = os.path.realpath("environment")
        for found in (sys.prefix, os.path.dirname(tamis.__file__)):
            if os.path.commonpath([os.path.realpath(found), here]) != here:
                raise ValueError(f"{found} is not in {here}")
        return True
"""
GROUP = """
[[subscription]]
group = "shipped"
code = "filters/shipped.py:Shipped"
sink = { format = "json", path = "out/shipped", columns = ["keys"] }
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hadoop]:
    with hadoop(tmp_path_factory.mktemp("hadoop")) as started:
        yield started


def keys(spark: SparkSession, path: str, format: str = "parquet") -> list[str]:
    rows = spark.read.format(format).load(path).select("keys").collect()
    return sorted(row["keys"] for row in rows)


def test_the_example_pipeline_on_yarn_has_the_environment_that_is_shipped_and_writes_to_hdfs(
    cluster: Hadoop, local_cluster: LocalCluster, spark: SparkSession, tmp_path: Path
) -> None:
    create_topic(local_cluster, "Orders")
    send_all(local_cluster, orders(600))
    job = tmp_path / "job"
    shutil.copytree(PIPELINE, job)
    (job / "filters" / "shipped.py").write_text(SHIPPED)
    file = job / "pipeline.toml"
    text = (file.read_text() + GROUP).replace("127.0.0.1:9876", local_cluster.nameserver)
    text = text.replace('path = "', f'path = "{cluster.files}/job/')
    file.write_text(f'{text}\n[run]\ncheckpoint = "{cluster.files}/job/checkpoint"\n')
    settings = {
        "spark.archives": f"{shipping.archive(tmp_path)}#environment",
        "spark.pyspark.python": "./environment/bin/python",
        "spark.yarn.jars": f"local:{standalone.HOME}/jars/*",  # half a gigabyte need not be sent
        "spark.yarn.am.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executor.instances": "2",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
    }
    options = [f"--conf={name}={value}" for name, value in settings.items()]
    try:
        said = shipping.run(
            *(TAMIS, "pipeline", "run", file, "--master", "yarn", *options),
            HADOOP_CONF_DIR=str(cluster.conf),
            SPARK_LOCAL_IP="127.0.0.1",
        )
    except AssertionError as error:
        error.add_note(cluster.logs())
        raise
    assert "shipped failed" not in said
    out = f"{cluster.files}/job/out"
    paid = [f"order-{n}" for n in range(600) if n % 4 in (1, 2)]
    assert keys(spark, f"{out}/payments") == sorted(paid)
    dear = [f"order-{n}" for n in range(101, 600) if n % 3 == 0 and n % 7]
    assert keys(spark, f"{out}/eu-big") == sorted(dear)
    assert len(keys(spark, f"{out}/shipped", "json")) == 600


def routed(folder: Path, source: str, out: str, checkpoint: str) -> Path:
    """A file for a route of paid orders into a directory."""
    file = folder / "route.toml"
    file.write_text(
        f'[source]\n{source}\ntopic = "{folder.name}"\n'
        f'[run]\ncheckpoint = "{checkpoint}"\n'
        f'[[subscription]]\ngroup = "payments"\ntags = "PAID"\n'
        f'sink = {{ format = "parquet", path = "{out}" }}\n'
    )
    return file


def send(cluster: LocalCluster, topic: str, number: int) -> None:
    send_all(cluster, [replace(message, topic=topic) for message in orders(number)])


def test_a_route_goes_on_from_its_checkpoint_on_hdfs_and_no_other_run_writes_to_its_sink(
    cluster: Hadoop, local_cluster: LocalCluster, spark: SparkSession, tmp_path: Path
) -> None:
    base = f"{cluster.files}/{tmp_path.name}"
    create_topic(local_cluster, tmp_path.name)
    source = f'nameserver = "{local_cluster.nameserver}"'
    file = routed(tmp_path, source, f"{base}/out", f"{base}/checkpoint")
    for _ in range(2):
        send(local_cluster, tmp_path.name, 40)
        assert route.run(spark, load(file)).groups[0].matched == 10
    assert len(keys(spark, f"{base}/out")) == 20
    other = routed(tmp_path, source, f"{base}/out", f"{base}/another")
    with pytest.raises(ConfigError, match="it was written by another run"):
        route.run(spark, load(other))


def test_an_archive_on_hdfs_is_routed_and_replayed(
    cluster: Hadoop, local_cluster: LocalCluster, spark: SparkSession, tmp_path: Path
) -> None:
    base = f"{cluster.files}/{tmp_path.name}"
    create_topic(local_cluster, tmp_path.name)
    send(local_cluster, tmp_path.name, 40)
    file = tmp_path / "archive.toml"
    file.write_text(
        f'job = "archive"\n[source]\nnameserver = "{local_cluster.nameserver}"\n'
        f'topic = "{tmp_path.name}"\n[run]\ncheckpoint = "{base}/archived"\n'
        f'[archive]\npath = "{base}/archive"\n'
    )
    assert archive.run(spark, load(file)).messages == 40
    kept = f'archive = "{base}/archive"'
    by_route = routed(tmp_path, kept, f"{base}/routed", f"{base}/checkpoint")
    assert route.run(spark, load(by_route)).groups[0].matched == 10
    file.write_text(
        f'job = "replay"\n[source]\n{kept}\ntopic = "{tmp_path.name}"\n'
        f'[run]\ncheckpoint = "{base}/replaying"\n[replay]\ntags = "PAID"\n'
        f'sink = {{ format = "parquet", path = "{base}/replayed" }}\n'
    )
    replay.run(spark, load(file))
    assert keys(spark, f"{base}/replayed") == keys(spark, f"{base}/routed")


def test_a_directory_on_hdfs_is_not_renamed_into_one_that_is_there(
    cluster: Hadoop, spark: SparkSession, tmp_path: Path
) -> None:
    """FileSystem.rename would, and two runs at once would have a batch twice."""
    base = f"{cluster.files}/{tmp_path.name}"
    hdfs = files.of(base, spark)
    for name in ("staged", "batch=0"):
        hdfs.make(f"{base}/{name}")
    with pytest.raises(OSError, match="already exists"):
        hdfs.rename(f"{base}/staged", f"{base}/batch=0")
    assert hdfs.names(f"{base}/batch=0") == []
    for text in ("one", "two"):
        hdfs.write(f"{base}/state.json", text)
    assert hdfs.read(f"{base}/state.json") == "two"
    assert hdfs.names(base) == ["batch=0", "staged", "state.json"]


def test_a_summary_may_lie_at_the_root_of_hdfs(
    cluster: Hadoop, local_cluster: LocalCluster, spark: SparkSession, tmp_path: Path
) -> None:
    base = f"{cluster.files}/{tmp_path.name}"
    create_topic(local_cluster, tmp_path.name)
    source = f'nameserver = "{local_cluster.nameserver}"'
    file = routed(tmp_path, source, f"{base}/out", f"{base}/checkpoint")
    summary = f"{cluster.files}/{tmp_path.name}.json"
    route.run(spark, load(file)).write(summary, spark)
    assert '"job": "route"' in files.of(summary, spark).read(summary)
    with pytest.raises(ConfigError, match=r"hdfs://nowhere\.invalid/a can't be read"):
        route.run(spark, load(routed(tmp_path, source, "out", "hdfs://nowhere.invalid/a")))
