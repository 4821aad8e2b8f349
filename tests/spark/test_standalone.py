"""A real cluster gives what local mode gives."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from spark import standalone
from sparkling import ROOT, create_topic, dear_by_tag, sample_orders, send_all

from tamis.message import Message
from tamis.testing import LocalCluster

PROGRAM = ROOT / "examples" / "spark" / "dear_orders.py"
PIPELINE = ROOT / "examples" / "orders"
TAMIS = Path(sys.executable).with_name("tamis")


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with standalone.cluster(tmp_path_factory.mktemp("standalone")) as address:
        yield address


def run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(
    os.environ.get("TAMIS_THOROUGH") != "1", reason="the pipeline is shown on it: make spark"
)
def test_a_job_on_a_cluster_prints_what_it_prints_locally(
    master: str, local_cluster: LocalCluster
) -> None:
    create_topic(local_cluster, "orders")
    messages = sample_orders("orders", 1000)
    send_all(local_cluster, messages)
    command = (sys.executable, PROGRAM, "--nameserver", local_cluster.nameserver)
    on_cluster = run(*command, "--master", master)
    assert on_cluster == run(*command, "--master", "local[2]")
    assert on_cluster == "".join(f"{t} {n} {total}\n" for t, n, total in dear_by_tag(messages))


def orders(number: int) -> list[Message]:
    """Some for each group of the example pipeline, some for none, some its code fails on."""
    return [
        Message(
            "Orders",
            f"order {n}",
            tags=("NEW", "PAID", "REFUND", "SENT")[n % 4],
            keys=f"order-{n}",
            properties={
                "region": ("eu", "us", "asia")[n % 3],
                "price": str(n) if n % 7 else "free",
                "vip": str(n % 5 == 0).lower(),
            },
        )
        for n in range(number)
    ]


def test_the_example_pipeline_on_a_cluster_writes_what_it_writes_locally(
    master: str, local_cluster: LocalCluster, tmp_path: Path
) -> None:
    create_topic(local_cluster, "Orders")
    send_all(local_cluster, orders(600))
    outputs = []
    for name, url in (("cluster", master), ("local", "local[2]")):
        directory = tmp_path / name
        shutil.copytree(PIPELINE, directory)
        file = directory / "pipeline.toml"
        file.write_text(file.read_text().replace("127.0.0.1:9876", local_cluster.nameserver))
        run(TAMIS, "pipeline", "run", file, "--master", url)
        outputs.append({group.name: rows(group) for group in (directory / "out").iterdir()})
    assert outputs[0] == outputs[1]
    assert set(outputs[0]) == {"payments", "eu-big", "suspicious", "unmatched"}
    assert all(outputs[0].values())


def rows(directory: Path) -> list[str]:
    """Of a sink, in an order of their own."""
    found = []
    for file in directory.rglob("[!._]*.*"):
        if file.suffix == ".json":
            found += [json.loads(line) for line in file.read_text().splitlines()]
        elif file.suffix == ".parquet":
            found += pq.read_table(file).to_pylist()
    return sorted(repr(sorted(row.items())) for row in found)
