"""A driver with the sinks' jars, and pipelines that write to them."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from sinks.jars import jars
from sparkling import ROOT, SETTINGS, create_topic, send_all

from tamis.message import Message
from tamis.pipeline import load
from tamis.testing import LocalCluster

__all__ = ["Driver", "Failed", "Pipeline"]

CHILD = Path(__file__).with_name("child.py")
NUMBERS = itertools.count()


class Failed(Exception):
    """What the driver could not do, in a line."""


class Driver:
    """Asked one thing at a time; a context manager that ends the process."""

    def __init__(self, home: Path) -> None:
        self._home = home
        found = [jar for sink in SINKS for jar in jars(sink)]
        settings = {
            **SETTINGS,
            "spark.jars": ",".join(map(str, found)),
            "spark.sql.warehouse.dir": str(home / "warehouse"),
            "spark.ui.enabled": "false",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",  # it does not live long
            **{name: value for sink in SINKS if jars(sink) for name, value in _of(sink, home)},
        }
        extensions = [EXTENSIONS[sink] for sink in EXTENSIONS if jars(sink)]
        if extensions:
            settings["spark.sql.extensions"] = ",".join(extensions)
        path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        self._log = (home / "driver.log").open("w")
        self._process = subprocess.Popen(
            [sys.executable, str(CHILD), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=home,
            env={**os.environ, "PYTHONPATH": path.rstrip(os.pathsep)},
        )

    def __enter__(self) -> "Driver":
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        finally:
            self._process.kill()
            self._process.stdout.close()
            self._log.close()

    def ask(self, name: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([name, arguments]), file=self._process.stdin, flush=True)
        answer = json.loads(self._process.stdout.readline() or self._why())
        if "error" in answer:
            raise Failed(answer["error"])
        return answer["value"]

    def _why(self) -> str:
        said = (self._home / "driver.log").read_text()[-3000:]
        raise RuntimeError(f"the driver has ended:\n{said}")

    def run(self, file: Path) -> str:
        status: str = self.ask("run", file=str(file))
        return status

    def read(
        self, format: str, path: str | None = None, columns: str = "keys", **options: str
    ) -> list[list[Any]]:
        found: list[list[Any]] = self.ask(
            "read", format=format, path=path, options=options, columns=columns
        )
        return found


SINKS = ("avro", "delta", "iceberg", "kafka", "postgresql", "s3a")
EXTENSIONS = {
    "delta": "io.delta.sql.DeltaSparkSessionExtension",
    "iceberg": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
}


def _of(sink: str, home: Path) -> list[tuple[str, str]]:
    if sink == "delta":
        return [
            ("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        ]
    if sink == "iceberg":
        return [
            ("spark.sql.catalog.ice", "org.apache.iceberg.spark.SparkCatalog"),
            ("spark.sql.catalog.ice.type", "hadoop"),
            ("spark.sql.catalog.ice.warehouse", str(home / "ice")),
        ]
    return []


class Pipeline(NamedTuple):
    """A file with one subscription, to the messages tagged A, and one sink."""

    driver: Driver
    cluster: LocalCluster
    topic: str
    folder: Path

    @classmethod
    def made(cls, driver: Driver, cluster: LocalCluster, folder: Path) -> "Pipeline":
        topic = f"Sunk-{next(NUMBERS)}"
        create_topic(cluster, topic, queues=2)
        return cls(driver, cluster, topic, folder)

    @property
    def file(self) -> Path:
        return self.folder / "orders.toml"

    def describe(self, sink: str, checkpoint: str = "") -> None:
        run = f"[run]\nmax_offsets_per_batch = 20\n{checkpoint and f'checkpoint = {checkpoint!r}'}"
        self.file.write_text(
            f'[source]\nnameserver = "{self.cluster.nameserver}"\ntopic = "{self.topic}"\n{run}\n'
            f'[[subscription]]\ngroup = "a"\ntags = "A"\nsink = {{ {sink} }}\n'
        )

    def send(self, numbers: range) -> None:
        send_all(
            self.cluster,
            [
                Message(
                    self.topic,
                    f"order {n}",
                    tags="AB"[n % 2],
                    keys=str(n),
                    properties={"n": str(n)},
                )
                for n in numbers
            ],
        )

    def run(self) -> None:
        assert self.driver.run(self.file) == "done"

    def lose_a_commit(self) -> int:
        """As after a crash between the sink's commit and Spark's record of the batch, the last one.
        Returns its number."""
        commits = Path(load(self.file).checkpoint, "spark", "commits")
        last = max(int(one.name) for one in commits.iterdir() if one.name.isdigit())
        for name in (str(last), f".{last}.crc"):
            (commits / name).unlink(missing_ok=True)
        return last


def wanted(numbers: range) -> list[int]:
    """What the group is to get."""
    return [n for n in numbers if n % 2 == 0]


def keys(rows: list[list[Any]]) -> list[int]:
    return sorted(int(row[0]) for row in rows)
