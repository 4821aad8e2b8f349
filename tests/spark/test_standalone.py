"""A real cluster gives what local mode gives."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from spark import standalone
from sparkling import ROOT, create_topic, dear_by_tag, sample_orders, send_all

from tamis.testing import LocalCluster

PROGRAM = ROOT / "examples" / "spark" / "dear_orders.py"


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with standalone.cluster(tmp_path_factory.mktemp("standalone")) as address:
        yield address


def run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


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
