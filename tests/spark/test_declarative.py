"""The example of a Spark Declarative Pipeline runs, and goes on where it was."""

import os
import shutil
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
from spark import standalone
from sparkling import ROOT, create_topic, dear_by_tag, sample_orders, send_all

from tamis.spark.java import java_home
from tamis.testing import LocalCluster

EXAMPLE = ROOT / "examples" / "spark" / "declarative"


def run(project: Path, server: str, *options: str) -> None:
    done = subprocess.run(
        [standalone.HOME / "bin" / "spark-pipelines", "run", "--remote", server, *options],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=project,
        env={**os.environ, **standalone.ENVIRONMENT, "JAVA_HOME": str(java_home())},
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_run_adds_what_came_and_filters_it(
    tmp_path: Path, local_cluster: LocalCluster
) -> None:
    create_topic(local_cluster, "orders")
    project = tmp_path / "project"
    shutil.copytree(EXAMPLE, project)
    spec = project / "spark-pipeline.yml"
    text = spec.read_text().replace("127.0.0.1:9876", local_cluster.nameserver)
    spec.write_text(text.replace("/tmp/orders-pipeline", str(tmp_path / "storage")))

    def rows(table: str) -> list[dict[str, object]]:
        return pq.read_table(tmp_path / "warehouse" / table).to_pylist()

    messages = sample_orders("orders", 300)
    with standalone.connect_server(tmp_path) as server:
        for start, end in ((0, 200), (200, 300)):
            send_all(local_cluster, messages[start:end])
            run(project, server)
            assert len(rows("orders")) == end
    counts = {(row["tags"], row["orders"]) for row in rows("by_tag")}
    assert counts == {(tags, number) for tags, number, _ in dear_by_tag(messages)}
