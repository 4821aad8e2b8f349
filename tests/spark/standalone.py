"""Spark's own servers on loopback, from the installed PySpark: a standalone cluster of a master and
two workers with a core each, and a Spark Connect server."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

from tamis.spark.java import java_home

WORKERS = 2
PATIENCE = 180.0  # seconds; three JVMs start

HOME = Path(_find_spark_home())
ENVIRONMENT = {
    "PYSPARK_PYTHON": sys.executable,
    "SPARK_LOCAL_IP": "127.0.0.1",
    "SPARK_DAEMON_MEMORY": "1g",
    "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
}


@contextmanager
def cluster(directory: Path) -> Iterator[str]:
    """Gives the master's address when its workers have registered. Logs are in `directory`."""
    service = (HOME / "bin" / "spark-class",)
    at = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with ExitStack() as stack:
        log = directory / "master.log"
        command = (*service, "org.apache.spark.deploy.master.Master", *at)
        master = stack.enter_context(process(log, *command))
        url = wait_for(master, log, r"Starting Spark master at (\S+)")
        for number in range(WORKERS):
            name = f"worker-{number}"
            size = ("-c", "1", "-m", "1g", "-d", str(directory / name))
            worker = (*service, "org.apache.spark.deploy.worker.Worker", *at, *size, url)
            stack.enter_context(process(directory / f"{name}.log", *worker))
        wait_for(master, log, r"Registering worker(?s:.*)" * WORKERS)
        yield url


@contextmanager
def connect_server(directory: Path) -> Iterator[str]:
    """Gives its address."""
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.memory": "1g",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.ui.enabled": "false",
    }
    log = directory / "connect.log"
    server = ("--class", "org.apache.spark.sql.connect.service.SparkConnectServer")
    options = [f"--conf={name}={value}" for name, value in settings.items()]
    submit = (HOME / "bin" / "spark-submit", "--master", "local[2]", *server, *options)
    with process(log, *submit, "spark-internal") as served:
        address = wait_for(served, log, r"Spark Connect server started at: (\S+)")
        yield f"sc://{address}"


@contextmanager
def process(log: Path, *command: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, **ENVIRONMENT, "JAVA_HOME": str(java_home())}
    with log.open("wb") as output:
        started = subprocess.Popen(
            command, stdout=output, stderr=output, env=environment, cwd=log.parent
        )
    try:
        yield started
    finally:
        started.terminate()  # a worker ends its executors
        try:
            started.wait(30)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()


def wait_for(started: subprocess.Popen[bytes], log: Path, pattern: str) -> str:
    """What the last group of the pattern is, when it is in what the process logs."""
    deadline = time.monotonic() + PATIENCE
    while (seen := re.search(pattern, log.read_text())) is None:
        if time.monotonic() > deadline or started.poll() is not None:
            raise TimeoutError(f"no {pattern!r} in {log}:\n{log.read_text()}")
        time.sleep(0.1)
    return seen[seen.re.groups]
