"""Servers that sinks write to, on loopback: PostgreSQL, Kafka, and one that speaks S3."""

import contextlib
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sinks.jars import jars, java_tools, missing

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import kafka

__all__ = ["Database", "kafka_broker", "object_store", "postgres"]

PATIENCE = 90.0  # seconds for a start


class Database:
    def __init__(self, port: int, programs: Path, user: str) -> None:
        self.url = f"jdbc:postgresql://127.0.0.1:{port}/postgres?user=tamis"
        self._ask = [
            *(str(programs / "psql"), "-h", "127.0.0.1", "-p", str(port), "-U", "tamis"),
            *("-d", "postgres", "-At", "-v", "ON_ERROR_STOP=1", "-c"),
        ]

    def sql(self, text: str) -> list[str]:
        """The lines of an answer, fields with | between them."""
        done = subprocess.run([*self._ask, text], capture_output=True, text=True, check=True)
        return done.stdout.splitlines()


@contextlib.contextmanager
def postgres() -> Iterator[Database]:
    """PostgreSQL refuses to run as root: another user is found for it then."""
    programs = _programs()
    if programs is None:
        missing("PostgreSQL's server is not installed (Debian: postgresql)")
    assert programs is not None
    user = _ordinary_user()
    with tempfile.TemporaryDirectory() as home:  # pytest's directories are closed to other users
        data = Path(home, "data")
        data.mkdir()
        if user is not None:
            known = pwd.getpwnam(user)
            for path in (home, data):
                os.chown(path, known.pw_uid, known.pw_gid)
        rights: dict[str, Any] = {} if user is None else {"user": user, "cwd": home}
        make = [str(programs / "initdb"), "-D", str(data), "-U", "tamis", "-A", "trust", "-N"]
        made = subprocess.run(make, capture_output=True, text=True, **rights)
        if made.returncode:
            raise RuntimeError(f"initdb failed:\n{made.stderr}")
        [port] = kafka.free_ports(1)
        serve = [
            *(str(programs / "postgres"), "-D", str(data), "-p", str(port), "-h", "127.0.0.1"),
            *("-k", home, "-c", "fsync=off", "-c", "max_connections=20"),
        ]
        log = Path(home, "log")
        with log.open("w") as said:
            process = subprocess.Popen(serve, stdout=said, stderr=said, **rights)
        ready = [str(programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
        try:
            _wait(process, log, lambda: subprocess.run(ready).returncode == 0)
            yield Database(port, programs, "tamis")
        finally:
            process.kill()
            process.wait(PATIENCE)


def _programs() -> Path | None:
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    versions = Path("/usr/lib/postgresql")  # where Debian keeps them, not on the PATH
    every = [one / "bin" for one in versions.glob("*") if (one / "bin" / "initdb").exists()]
    return max(every, default=None, key=lambda path: float(path.parent.name))


def _ordinary_user() -> str | None:
    """None: this one is."""
    if os.getuid() != 0:
        return None
    known = {one.pw_name for one in pwd.getpwall()}
    for name in ("postgres", "nobody"):
        if name in known:
            return name
    missing("PostgreSQL does not run as root, and there is no user postgres or nobody")
    return None


@contextlib.contextmanager
def kafka_broker(home: Path) -> Iterator[str]:
    java_tools()
    with kafka.broker(home / "kafka", partitions=2) as address:
        yield address


@contextlib.contextmanager
def object_store(home: Path) -> Iterator[str]:
    """Its address. It has a bucket called tamis."""
    [jar] = jars("s3mock")
    port, other = kafka.free_ports(2)
    command = [
        *("java", "-XX:TieredStopAtLevel=1", "-Xmx512m", "-jar", str(jar)),
        *(f"--http.port={port}", f"--server.port={other}", "--server.address=127.0.0.1"),
        f"--com.adobe.testing.s3mock.store.root={home / 'objects'}",
        "--com.adobe.testing.s3mock.store.initial-buckets=tamis",
    ]
    (home / "objects").mkdir()
    log = home / "s3.log"
    with log.open("w") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, cwd=home)
    try:
        _wait(process, log, lambda: "Started S3Mock" in log.read_text())
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait(PATIENCE)


def _wait(process: "subprocess.Popen[bytes]", log: Path, is_ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not is_ready():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(
                f"it is not ready (exit {process.poll()}):\n{log.read_text()[-3000:]}"
            )
        time.sleep(0.1)
