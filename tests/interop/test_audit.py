"""An audit and the replay of what it found lost, with the real Java client as consumer, on Apache's
broker, which keeps no history, and on ours."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from interop import disagreement
from interop.cluster import INSTEAD, Target, apache_cluster, our_cluster
from interop.disagreement import PATIENCE, SETTINGS, Group, Outcome
from interop.javaclient import JavaClient
from pyspark.sql import SparkSession
from sparkling import spark

from tamis.pipeline import audit, load, replay

__all__ = ["spark"]

AUDIT = """
job = "audit"
[source]
nameserver = "{nameserver}"
topic = "{topic}"
[audit]
groups = ["{group}"]
table = {{ path = "fates" }}
lost = {{ path = "lost" }}
report = "audit.html"
"""
REPLAY = """
job = "replay"
[source]
nameserver = "{nameserver}"
lost = "lost"
[replay]
force = true
"""


@pytest.fixture(scope="module")
def java() -> Iterator[JavaClient]:
    with JavaClient("4.9") as client:
        yield client


@pytest.fixture(scope="module", params=["apache", "tamis"])
def losing_cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Target]:
    store = tmp_path_factory.mktemp(request.param) / "store"
    if request.param == "apache":
        with apache_cluster(store, line="4.9", **SETTINGS) as theirs:
            yield theirs
    else:
        with our_cluster(store, **SETTINGS) as ours:
            yield ours


@pytest.mark.skipif(INSTEAD is not None, reason="it is about our commands, not about our broker")
@pytest.mark.parametrize("winner", ["a", "b"])
def test_the_audit_names_exactly_the_lost_ones_and_the_replay_brings_them(
    losing_cluster: Target, java: JavaClient, tmp_path: Path, spark: SparkSession, winner: str
) -> None:
    def check(group: Group, outcome: Outcome) -> None:
        named = {
            "nameserver": losing_cluster.nameserver,
            "topic": group.topic,
            "group": group.name,
        }
        for name, text in ("audit", AUDIT), ("replay", REPLAY):
            (tmp_path / f"{name}.toml").write_text(text.format(**named))
        config = load(tmp_path / "audit.toml")
        audit.check(config)

        def fates() -> dict[tuple[int, int], str]:
            audit.run(spark, config)
            rows = spark.read.parquet(str(tmp_path / "fates")).collect()
            positions = {(row.queue_id, row.offset): row.fate for row in rows}
            return {message.position: positions[message.position] for message in outcome.sent}

        found = fates()
        lost = [position for position, fate in found.items() if fate == "LOST_TO_INCONSISTENCY"]
        assert sorted(lost) == sorted(message.position for message in outcome.lost)
        assert set(found.values()) <= {"CONSUMED", "LOST_TO_INCONSISTENCY"}

        summary = replay.run(spark, load(tmp_path / "replay.toml"))
        assert [one.sent for one in summary.groups] == [len(lost)]
        deadline = time.monotonic() + PATIENCE
        while set((found := fates()).values()) != {"CONSUMED"}:
            assert time.monotonic() < deadline, found
            time.sleep(0.5)
        again = replay.run(spark, load(tmp_path / "replay.toml"))
        assert [one.sent for one in again.groups] == []  # the list is of the last audit

    disagreement.race(losing_cluster, java, tmp_path, winner=winner, pause=1.0, check=check)
