"""A small pipeline, run so that Java can keep the classes it needed (`spark.starting`).

`tamis warm --spark` does so, and so does a process of its own that the first pipeline on a machine
leaves behind. One process at a time makes an archive. One that was made unasked and failed leaves a
file beside its place that says why, and is not tried again; `tamis warm --spark` removes that file.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import IO, Final

from ..errors import ConfigError, Error

__all__ = ["keep_classes", "keep_classes_later"]

_TOPIC: Final = "Orders"
_PIPELINE: Final = """
[source]
nameserver = "{nameserver}"
topic = "Orders"
start = "earliest"

[[subscription]]
group = "tagged"
tags = "A || B"
sink = {{ format = "parquet", path = "out/tagged" }}

[[subscription]]
group = "dear"
sql = "region = 'eu' AND price > 100.0"
sink = {{ format = "parquet", path = "out/dear" }}

[[subscription]]
group = "coded"
code = "even.py:Even"
sink = {{ format = "json", path = "out/coded", columns = ["tags", "keys", "properties"] }}
"""
_CODE: Final = """
class Even:
    def match(self, message):
        return float(message.properties["price"]) % 2 == 0
"""
_ENDING: Final = 300.0  # seconds that Java may take to write its classes
_SWITCH: Final = "TAMIS_SPARK_KEEP"  # "off": nothing is kept unasked
_PACKAGE: Final = Path(__file__).parents[1]
_LONGEST: Final = 900  # seconds in all that it may take unasked, on the slowest machine
_NICE: Final = 10  # it is in nobody's way
_ROOM: Final = 1 << 30  # bytes of the disk that are free, else nothing is kept unasked
_MOST_KEPT: Final = 4  # archives, of as many versions of Java and Spark


def keep_classes(*, is_asked: bool = True) -> int:
    """Write the archive of classes anew; return its size. If nobody asked, an archive that is there
    or is being written is left, and the time it may take is limited. Raises Error if Java could
    not."""
    from ..spark.starting import class_archive

    archive = class_archive()
    failure = _failure(archive)
    try:
        archive.parent.mkdir(parents=True, exist_ok=True)
        with (archive.parent / "spark.lock").open("wb") as lock:
            if not is_asked:
                if archive.is_file() or not _is_free(lock):
                    return 0
                failure.write_text("it was stopped\n")
            fcntl.flock(lock, fcntl.LOCK_EX)
            with contextlib.nullcontext() if is_asked else _limited():
                _make(archive)
            failure.unlink(missing_ok=True)
        return archive.stat().st_size
    except (OSError, subprocess.SubprocessError, Error) as error:
        if not is_asked:
            with contextlib.suppress(OSError):
                failure.write_text(f"{error}\n")
        raise Error(f"Java kept no classes: {error}") from None


def keep_classes_later() -> None:
    """Start a process that does it when nobody has, and that goes on when this one has ended."""
    from ..spark.starting import class_archive

    if os.environ.get(_SWITCH) == "off":
        return
    with contextlib.suppress(OSError, ConfigError):  # the next one takes as long as this, no more
        archive = class_archive()
        if archive.is_file() or _failure(archive).is_file():
            return
        archive.parent.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(archive.parent).free < _ROOM:
            return
        paths = [str(_PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        process = subprocess.Popen(
            [sys.executable, "-m", "tamis", "warm", "--spark", "--unasked", "--quiet"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,  # Ctrl-C is not for it
        )
        process.returncode = 0  # nobody waits for it, and Python need not say so
        os.setpriority(os.PRIO_PROCESS, process.pid, os.getpriority(os.PRIO_PROCESS, 0) + _NICE)


def _failure(archive: Path) -> Path:
    return archive.with_suffix(".failed")


def _is_free(lock: IO[bytes]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    def ring(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"not done in {_LONGEST} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(_LONGEST)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _make(archive: Path) -> None:
    archive.unlink(missing_ok=True)  # Java writes none on top of another
    unfinished = archive.with_suffix(f".{os.getpid()}.jsa")
    try:
        with tempfile.TemporaryDirectory(prefix="tamis-") as name:
            _run(Path(name), unfinished)
        with unfinished.open("rb") as written:
            os.fsync(written.fileno())  # Java takes one that looks whole for whole
        os.replace(unfinished, archive)
    finally:
        unfinished.unlink(missing_ok=True)
    kept = sorted(archive.parent.glob("spark-*.jsa"), key=lambda path: path.stat().st_mtime)
    for old in kept[:-_MOST_KEPT]:
        old.unlink(missing_ok=True)


def _run(home: Path, archive: Path) -> None:
    from ..client import Message, blocking
    from ..pipeline import load, route
    from ..spark.session import session
    from ..spark.starting import archiving_options
    from ..testing import LocalCluster

    with LocalCluster() as cluster:
        with blocking.Admin(cluster.nameserver) as admin:
            admin.create_topic(_TOPIC, queues=4)
        with blocking.Producer(cluster.nameserver, "warm") as producer:
            for i in range(40):
                properties = {"region": "eu" if i % 3 else "us", "price": f"{7 * i}.0"}
                producer.send(Message(_TOPIC, b"1", tags="ABC"[i % 3], properties=properties))
        (home / "even.py").write_text(_CODE)
        file = home / "pipeline.toml"
        file.write_text(_PIPELINE.format(nameserver=cluster.nameserver))
        options = {"spark.driver.extraJavaOptions": archiving_options(archive)}
        spark = session("tamis warm", master="local[2]", config=options)
        try:
            route.run(spark, load(str(file)))
        finally:
            java = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
            spark.stop()
            java.stdin.close()  # then it ends, and writes
            java.wait(_ENDING)
