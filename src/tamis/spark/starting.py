"""What makes a session on this machine start sooner, where nobody has said otherwise.

Spark's settings are made for clusters and long jobs. Here driver and executor are one process, and
often it has one small job; a session's first batch waited for Python start-ups and for Java's
compilers, hardly for its rows (`benchmarks/bench_start.py`). Each of these is for `local` masters,
gives way to a setting of the user's, and is off if `TAMIS_SPARK_START` is `off`:

- `worker_python`: workers import PySpark from where it is installed, with compiled bytecode, not
  from Spark's `pyspark.zip`, which has none: 0.3 s instead of 0.9 s for each process.
- `fork_variables`: they are forked from a process that has everything loaded (`_fork_server`): 2
  CPU seconds for all of them instead of 7.
- `spark.python.daemon.module`: see `_daemon`. It matters where a process can't be forked.
- Java: methods are compiled by C1 first as ever, but by C2 only when they are called ten times as
  often as usual, so that it works on a job's loops and not on its start: 37 CPU seconds become 27.
  A job that is known to be short does without C2: 7 CPU seconds less.
- Java's classes, read and checked, from an archive of 180 MB in the user's cache directory, if one
  was made (`cli/_warm_spark.py`): 6 CPU seconds less. Java itself sees whether the archive is of
  these jars, and does without if not. Classes that Scala makes of its functions at run time, 5,000
  in a first batch, and those of signed jars (Janino's) are not in it: Java 17 does not keep them.

Tried with PySpark 4.1, 4.2 and 4.3.
"""

import atexit
import contextlib
import hashlib
import logging
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pyspark
from pyspark.find_spark_home import _find_spark_home

from ..errors import ConfigError
from .java import cache_directory, java_home, make_executable

__all__ = [
    "FORCED",
    "archiving_options",
    "class_archive",
    "fork_variables",
    "is_quick",
    "java_options",
    "local_settings",
    "worker_python",
]

log = logging.getLogger(__name__)

_SWITCH: Final = "TAMIS_SPARK_START"

_SHIM: Final = """\
#!/bin/sh
set -f
IFS=:
kept=
for path in $PYTHONPATH; do
  case $path in
    */pyspark.zip|*/py4j-*-src.zip|*/spark-core_*.jar) ;;
    *) kept=$kept${{kept:+:}}$path ;;
  esac
done
unset IFS
export PYTHONPATH="$kept"
if [ "$1" = -m ] && [ -S "$TAMIS_SPARK_FORKS" ]; then
  exec {python} -I -S {client} "$@"
fi
exec {python} "$@"
"""

_NO_WORD: Final = "-Xlog:cds*=off"  # of classes that can't be in it, or of an archive of other jars

# Java's defaults are 5000, 600, 15000 and 40000.
_LATE_C2: Final = (
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)
_NO_C2: Final = ("-XX:TieredStopAtLevel=1",)


# Of the environment of the server of forks: Spark sets them for its Python processes, and they are
# read when Python starts or modules are loaded.
FORCED: Final = {"PYTHONHASHSEED": "0", "PYTHONUNBUFFERED": "YES", "OMP_NUM_THREADS": "1"}
_WAITING: Final = 64  # clients, that are not yet served
_ENDING: Final = 1.0  # seconds for the server of forks to end
_starting_forks = threading.Lock()
_forks: tuple[subprocess.Popen[bytes], str] | None = None


def is_quick(master: str) -> bool:
    """Whether any of this is to be done."""
    return master.startswith("local") and os.environ.get(_SWITCH) != "off"


def local_settings() -> dict[str, str]:
    return {"spark.python.daemon.module": "tamis.spark._daemon"}


def java_options(*, is_short: bool = False) -> list[str]:
    """For a driver that starts a JVM; `is_short` if it has a small job to do."""
    compilers = _NO_C2 if is_short else _LATE_C2
    archive = class_archive()
    if archive.is_file() and not _is_awkward(archive):
        return [*compilers, f"-XX:SharedArchiveFile={archive}", _NO_WORD]
    return list(compilers)


def class_archive() -> Path:
    """Where the classes of this Java and this Spark are kept, if they are."""
    home = _find_spark_home()
    jars = sorted(path.name for path in Path(home, "jars").glob("spark-core*.jar"))
    name = hashlib.sha256(repr((str(java_home()), home, jars)).encode()).hexdigest()[:16]
    return cache_directory() / "java" / f"spark-{name}.jsa"


def archiving_options(archive: Path) -> str:
    """For the session whose classes are kept, in a file that is not there yet, when it ends.
    Raises ConfigError if the directory has a name that Java's options can't have."""
    if _is_awkward(archive):
        raise ConfigError(f"{archive}: a blank in its name; set XDG_CACHE_HOME to another place")
    return f"-XX:ArchiveClassesAtExit={archive} {_NO_WORD}"


def _is_awkward(path: Path) -> bool:
    return any(blank in str(path) for blank in " \t\"'")


def worker_python() -> str:
    """What workers are started with: this Python, by way of a script that leaves `pyspark.zip` out
    of its path if the same PySpark is installed."""
    if Path(_find_spark_home()).resolve() != Path(pyspark.__file__).resolve().parent:
        return sys.executable
    client = Path(__file__).with_name("_fork_client.py")
    text = _SHIM.format(python=shlex.quote(sys.executable), client=shlex.quote(str(client)))
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    return str(make_executable(Path("python", name, "python"), text))


def fork_variables(pythons: Iterable[str]) -> dict[str, str]:
    """For the environment of a JVM that starts its processes with these: where they are forked, by
    a server that ends with this process. Empty if they can't be."""
    global _forks
    ours = worker_python()
    if sys.platform != "linux" or ours == sys.executable or ours not in pythons:
        return {}
    with _starting_forks:
        if _forks is None or _forks[0].poll() is not None:
            try:
                _forks = _start_forks()
            except OSError as error:
                log.info("Python processes are not forked but started: %s", error)
                return {}
        return {"TAMIS_SPARK_FORKS": _forks[1]}


def _start_forks() -> tuple[subprocess.Popen[bytes], str]:
    directory = tempfile.mkdtemp(prefix="tamis-forks-")
    path = os.path.join(directory, "socket")
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(path)
            listener.listen(_WAITING)  # from now on, while it loads
            server = subprocess.Popen(
                [sys.executable, "-m", "tamis.spark._fork_server", path, str(listener.fileno())],
                env=os.environ | FORCED,
                stdin=subprocess.PIPE,  # it ends when this does
                stdout=subprocess.DEVNULL,
                pass_fds=[listener.fileno()],
                process_group=0,  # Ctrl-C is not for it
            )
    except OSError:  # the directory of temporary files has too long a name, too many processes
        shutil.rmtree(directory, ignore_errors=True)
        raise
    atexit.register(_end_forks, server, directory, os.getpid())
    return server, path


def _end_forks(server: subprocess.Popen[bytes], directory: str, driver: int) -> None:
    if os.getpid() != driver:  # but a fork of it
        return
    assert server.stdin is not None
    with contextlib.suppress(OSError):
        server.stdin.close()
    try:
        server.wait(_ENDING)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
    shutil.rmtree(directory, ignore_errors=True)
