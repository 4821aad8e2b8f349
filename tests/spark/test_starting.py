"""What makes local sessions start sooner, and that it is for those alone."""

import importlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from tamis.cli import _warm_spark
from tamis.errors import Error
from tamis.spark import starting

session = importlib.import_module("tamis.spark.session")  # the package has a function so named
ZIP = Path(pyspark.__file__).parent / "python" / "lib" / "pyspark.zip"
DAEMON = "spark.python.daemon.module"
JAVA = "spark.driver.defaultJavaOptions"


@pytest.fixture(autouse=True)
def not_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TAMIS_SPARK_START", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(name, raising=False)


def test_a_local_session_gets_all_of_it() -> None:
    settings = session._ours("local[2]")
    assert settings[DAEMON] == "tamis.spark._daemon"
    assert "Tier4" in settings[JAVA]
    variables = session._variables("local[2]", settings)
    assert variables["PYSPARK_PYTHON"] == starting.worker_python() != sys.executable


def test_a_short_job_does_without_javas_second_compiler() -> None:
    assert "TieredStopAtLevel=1" in session._ours("local[2]", is_short=True)[JAVA]
    assert "TieredStopAtLevel" not in session._ours("local[2]")[JAVA]
    assert "TieredStopAtLevel" not in session._ours("yarn", is_short=True).get(JAVA, "")


@pytest.mark.parametrize("master", ["spark://127.0.0.1:7077", "yarn", "k8s://https://host"])
def test_a_cluster_keeps_sparks_own_settings(master: str) -> None:
    settings = session._ours(master)
    assert DAEMON not in settings
    assert "Tier4" not in settings.get(JAVA, "")
    assert session._variables(master, settings)["PYSPARK_PYTHON"] == sys.executable


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAMIS_SPARK_START", "off")
    settings = session._ours("local[2]")
    assert DAEMON not in settings
    assert "Tier4" not in settings.get(JAVA, "")
    assert session._variables("local[2]", settings)["PYSPARK_PYTHON"] == sys.executable


def test_the_users_own_python_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"spark.pyspark.python": "/theirs/python"}
    assert session._variables("local[2]", given)["PYSPARK_PYTHON"] == "/theirs/python"
    monkeypatch.setenv("PYSPARK_PYTHON", "/other/python")
    assert session._variables("local[2]", given)["PYSPARK_PYTHON"] == "/other/python"


def test_workers_import_pyspark_from_where_it_is_installed_and_keep_other_paths(
    tmp_path: Path,
) -> None:
    paths = os.pathsep.join([str(ZIP), str(tmp_path / "a folder"), str(tmp_path)])
    program = "import os, sys, pyspark; print(pyspark.__file__, sys.executable, sys.path[1:3])"
    told = subprocess.run(
        [starting.worker_python(), "-c", program],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.strip() == (
        f"{pyspark.__file__} {sys.executable} {[str(tmp_path / 'a folder'), str(tmp_path)]}"
    )


def test_another_spark_brings_its_own_pyspark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert starting.worker_python() == sys.executable
    assert starting.fork_variables([sys.executable]) == {}  # and is started, not forked


def test_the_daemon_serves_with_what_workers_need_loaded() -> None:
    """As Spark starts it: it says where its socket is, and ends with its input."""
    command = [sys.executable, "-X", "importtime", "-m", "tamis.spark._daemon", "pyspark.worker"]
    with tempfile.TemporaryDirectory(prefix="tamis-") as sockets:  # paths of sockets are short
        daemon = subprocess.Popen(
            command,
            env={
                **os.environ,
                "PYTHON_UNIX_DOMAIN_ENABLED": "true",
                "PYTHON_WORKER_FACTORY_SOCK_DIR": sockets,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, log = daemon.communicate(timeout=120)
    assert out[4:].decode().startswith(sockets), log[-2000:]
    assert b"tamis.client._walk" in log  # what fetching imports


LETS_WORKERS_GO = """
import runpy
from pyspark import daemon

def manager():
    for error in BrokenPipeError("of an idle worker"), KeyError("of a fault"):
        try:
            raise error
        except Exception:
            daemon.traceback.print_exc()

daemon.manager = manager
runpy.run_module("tamis.spark._daemon", run_name="__main__")
"""


def test_the_daemon_says_nothing_of_a_worker_that_spark_has_let_go() -> None:
    done = subprocess.run([sys.executable, "-c", LETS_WORKERS_GO], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "of a fault" in done.stderr
    assert "of an idle worker" not in done.stderr


def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> Path:
    """Where classes would be kept, on a machine that has kept none."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
    archive = starting.class_archive()
    archive.parent.mkdir(parents=True, exist_ok=True)
    return archive


def test_classes_that_could_not_be_kept_unasked_are_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = kept(tmp_path, monkeypatch, "a folder")  # Java's options can't have that
    with pytest.raises(Error, match="a blank in its name"):
        _warm_spark.keep_classes(is_asked=False)
    why = archive.with_suffix(".failed")
    assert "a blank in its name" in why.read_text()
    monkeypatch.delenv("TAMIS_SPARK_KEEP")
    with watched_children() as begun:
        _warm_spark.keep_classes_later()
    assert not begun


def test_classes_are_kept_by_a_process_of_its_own_that_is_nicer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(tmp_path, monkeypatch, "cache")
    monkeypatch.delenv("TAMIS_SPARK_KEEP")
    with watched_children() as begun:
        _warm_spark.keep_classes_later()
    [pid] = begun
    try:
        assert os.getsid(pid) == pid
        assert os.getpriority(os.PRIO_PROCESS, pid) > os.getpriority(os.PRIO_PROCESS, 0)
    finally:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.mark.parametrize("reason", ["asked not to", "kept already"])
def test_classes_are_not_kept_without_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    archive = kept(tmp_path, monkeypatch, "cache")
    if reason == "kept already":
        monkeypatch.delenv("TAMIS_SPARK_KEEP")
        archive.write_bytes(b"classes")
        assert _warm_spark.keep_classes(is_asked=False) == 0
        assert archive.read_bytes() == b"classes"
    else:
        monkeypatch.setenv("TAMIS_SPARK_KEEP", "off")
    with watched_children() as begun:
        _warm_spark.keep_classes_later()
    assert not begun


@contextmanager
def watched_children() -> Iterator[list[int]]:
    """The processes that were begun in the block, when it has ended."""
    before, begun = children(), list[int]()
    yield begun
    begun += children() - before


def children() -> set[int]:
    found = set[int]()
    for task in Path("/proc/self/task").iterdir():
        found |= {*map(int, (task / "children").read_text().split())}
    return found
