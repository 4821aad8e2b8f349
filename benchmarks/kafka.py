"""A Kafka broker of one node on loopback, and what Spark needs to read from it.

Both are built by Maven from kafka/pom.xml; the broker keeps its log in the directory given.
"""

import base64
import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["VERSION", "Unavailable", "broker", "free_ports", "source_jars"]

VERSION = "3.9.2"
HERE = Path(__file__).parent / "kafka"
TARGET = HERE / "target"
PATIENCE = 60.0  # seconds for a start and a stop
JVM = (
    "java",
    "-server",
    "-Xms1g",  # what bin/kafka-server-start.sh gives it
    "-Xmx1g",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-Djava.net.preferIPv4Stack=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": 1,
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "offsets.topic.replication.factor": 1,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "group.initial.rebalance.delay.ms": 0,
    "auto.create.topics.enable": "true",
    "log.retention.ms": -1,
    "log.cleaner.enable": "false",
}


class Unavailable(Exception):
    """A tool is missing on this machine."""


@contextlib.contextmanager
def broker(directory: Path, partitions: int) -> Iterator[str]:
    """Its address, while it runs; a topic is made by the first message to it."""
    classpath = f"{_built() / 'broker'}/*"
    port, controller = free_ports(2)
    listeners = f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}"
    settings = {
        **SETTINGS,
        "listeners": listeners,
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "log.dirs": directory / "log",
        "num.partitions": partitions,
    }
    directory.mkdir(parents=True)
    config, log = directory / "server.properties", directory / "kafka.out"
    config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    java = [*JVM, "-cp", classpath]
    cluster = base64.urlsafe_b64encode(b"tamis-benchmark!").decode().rstrip("=")
    with log.open("wb") as said:
        format_log = [*java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(config)]
        if subprocess.run(format_log, stdout=said, stderr=subprocess.STDOUT).returncode:
            raise RuntimeError(f"Kafka's StorageTool failed:\n{_tail(log)}")
        process = subprocess.Popen(
            [*java, "kafka.Kafka", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
        )
    try:
        _wait_for(process, port, log)
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()  # nothing to keep, and a stop takes seconds
        process.wait(PATIENCE)


def source_jars() -> list[Path]:
    """For `spark.jars`."""
    return sorted((_built() / "source").glob("*.jar"))


def _built() -> Path:
    """Where the jars are; fetches what is missing or older than the pom."""
    missing = [tool for tool in ("java", "mvn") if shutil.which(tool) is None]
    if missing:
        raise Unavailable(f"Kafka needs {' and '.join(missing)} on the PATH")
    pom, built = HERE / "pom.xml", TARGET / "built"
    if not built.exists() or built.stat().st_mtime < pom.stat().st_mtime:
        shutil.rmtree(TARGET, ignore_errors=True)  # an older pom's jars
        command = ["mvn", "-q", "-B", "-f", str(pom), "package"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            said = (done.stdout + done.stderr)[-3000:]
            raise RuntimeError(f"{' '.join(command)} failed:\n{said}")
        built.touch()
    return TARGET


def _wait_for(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"Kafka is not ready (exit {process.poll()}):\n{_tail(log)}")
        time.sleep(0.05)


def _tail(log: Path) -> str:
    return log.read_bytes()[-3000:].decode(errors="replace")


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in held]
