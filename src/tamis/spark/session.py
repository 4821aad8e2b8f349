"""A Spark session with what Tamis needs: a Java, this Python for the workers, the data sources
registered, a log without noise.

The caller's settings go before those of `spark-defaults.conf` or `spark-submit`, and these before
ours.
"""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.find_spark_home import _find_spark_home
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from ..errors import ConfigError
from . import source, starting
from ._quiet import tell_errors_once
from .java import java_home

__all__ = ["session"]

_NONE: Final[Mapping[str, str]] = MappingProxyType({})
_LOG: Final = Path(__file__).with_name("log4j2.properties")
_LOOPBACK: Final = "127.0.0.1"

# Not `spark.sql.python.filterPushdown.enabled`: Spark 4.2 and 4.3 keep what one query pushed with
# the DataFrame, and filter by it in the next query that pushes nothing.
_SETTINGS: Final = {
    "spark.sql.execution.arrow.pyspark.enabled": "true",  # toPandas by columns
    "spark.ui.showConsoleProgress": "false",
}

# Where the driver is reached by processes of this machine only.
_LOOPBACK_SETTINGS: Final = {
    "spark.driver.host": _LOOPBACK,
    "spark.driver.bindAddress": _LOOPBACK,
}

# Where driver and executor are one process.
_LOCAL_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    # Takes 45 to 50 ms off a micro-batch of a Python source.
    "spark.python.unix.domain.socket.enabled": "true",
}

# Takes 60 ms off a micro-batch. As Spark's default it writes a temporary file and renames it, and
# does not sync it; the default runs `readlink` in a process of its own for each rename. On HDFS
# the default replaces a file that is there and this one keeps it, hence for local files only.
_LOCAL_FILES: Final = {
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming"
    ".checkpointing.FileSystemBasedCheckpointFileManager",
}


def session(
    app_name: str = "tamis",
    *,
    master: str | None = None,
    config: Mapping[str, str] = _NONE,
    is_short: bool = False,
) -> SparkSession:
    """The session there is, with what can still be set of `config`; else a new one.

    Without `master` it is that of `config`, `spark-defaults.conf` or `spark-submit`, else
    `local[*]`; `sc://host:port` is a Spark Connect server. With `is_short` a new one on this
    machine is made for a job of seconds: it starts sooner, and is slower over millions of rows.
    Raises ConfigError if there is no Java for Spark, or a session of another master.
    """
    spark = _active(master, config)
    if spark is None and master is not None and master.startswith("sc://"):
        served = {name: value for name, value in _SETTINGS.items() if name.startswith("spark.sql.")}
        spark = _built(SparkSession.builder.remote(master), {**served, **config})
    elif spark is None:
        spark = _started(app_name, master, config, is_short)
    tell_errors_once()
    source.register(spark)
    return spark


def _active(master: str | None, config: Mapping[str, str]) -> SparkSession | None:
    context = SparkContext._active_spark_context
    if context is not None and not is_remote():
        if master not in (None, context.master):
            raise ConfigError(
                f"there is a Spark session with master {context.master}: "
                f"stop it to have one with master {master}"
            )
        return _built(SparkSession.builder, config)
    try:
        spark = SparkSession.active()
    except PySparkRuntimeError:
        return None
    for name, value in config.items():
        spark.conf.set(name, value)
    return spark


def _started(
    app_name: str, master: str | None, config: Mapping[str, str], is_short: bool
) -> SparkSession:
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # there is a JVM, and it has settings
    if is_submitted:
        SparkContext._ensure_initialized()
    theirs = {**(dict(SparkConf().getAll()) if is_submitted else _defaults()), **config}
    master = master or theirs.get("spark.master") or os.environ.get("MASTER") or "local[*]"
    settings = {**_ours(master, is_short=is_short), **theirs, "spark.master": master}
    builder = SparkSession.builder.appName(settings.get("spark.app.name", app_name))
    variables = _variables(master, settings)
    if "JAVA_HOME" in variables and starting.is_quick(master):  # a new one
        variables |= starting.fork_variables(variables.values())
    with _environment(variables):
        return _built(builder, settings)


def _built(builder: SparkSession.Builder, config: Mapping[str, str]) -> SparkSession:
    for name, value in config.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _ours(master: str, *, is_short: bool = False) -> dict[str, str]:
    settings = dict(_SETTINGS)
    if is_loopback(master):
        settings |= _LOOPBACK_SETTINGS
    if master.startswith("local"):
        settings |= _LOCAL_SETTINGS
    if starting.is_quick(master):
        settings |= starting.local_settings()
        if "HADOOP_CONF_DIR" not in os.environ:
            settings |= _LOCAL_FILES
    java = starting.java_options(is_short=is_short) if starting.is_quick(master) else []
    if _LOG.is_file() and not any(_conf_directory().glob("log4j2*")):
        java.append(f"-Dlog4j2.configurationFile={_LOG.as_uri()}")
    if java:
        settings["spark.driver.defaultJavaOptions"] = " ".join(java)
    return settings


def _variables(master: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Of the environment that the JVM is started in."""
    ours = starting.worker_python() if starting.is_quick(master) else sys.executable
    python = settings.get("spark.pyspark.python", ours)
    variables = {
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", python),
        # what Spark's JVM looks for data sources with
        "PYSPARK_DRIVER_PYTHON": os.environ.get("PYSPARK_DRIVER_PYTHON", ours),
    }
    if is_loopback(master):
        variables["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP", _LOOPBACK)
    if SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        variables["JAVA_HOME"] = str(java_home())
    return variables


def is_loopback(master: str) -> bool:
    """Of all masters, if there are several."""
    if master.startswith("local"):
        return True
    hosts = re.findall(r"(?:spark://|,)(\[[^]]*\]|[^:,]*)", master)
    return bool(hosts) and all(
        host in ("localhost", "[::1]") or host.startswith("127.") for host in hosts
    )


def _conf_directory() -> Path:
    return Path(os.environ.get("SPARK_CONF_DIR") or Path(_find_spark_home(), "conf"))


def _defaults() -> dict[str, str]:
    """Of `spark-defaults.conf`, which Spark reads itself; to know what not to set."""
    try:
        lines = (_conf_directory() / "spark-defaults.conf").read_text().splitlines()
    except OSError:
        return {}
    pairs = (re.split(r"\s*[\s=:]\s*", line.strip(), maxsplit=1) for line in lines)
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2 and pair[0].startswith("spark.")}


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
