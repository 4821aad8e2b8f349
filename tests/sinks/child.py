"""A driver that has the sinks' jars, in a process of its own: a JVM takes jars when it starts.

A request a line, as JSON: the name of a function below and its arguments. An answer a line.
"""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tamis.pipeline import archive, load, route
from tamis.pipeline.runner import JobFailed, one_line
from tamis.spark.session import session

spark: SparkSession


def run(file: str) -> str:
    """A pipeline's file, to its end. Returns its status."""
    config = load(Path(file))
    if config.job == "archive":
        archive.check(config)
        return archive.run(spark, config).status
    route.check(config)
    return route.run(spark, config).status


def configure(settings: Mapping[str, str]) -> None:
    """Hadoop's settings, which Spark's file systems have."""
    context: Any = spark._jsc
    for name, value in settings.items():
        context.hadoopConfiguration().set(name, value)


def sql(text: str) -> list[list[Any]]:
    return [[*row] for row in spark.sql(text).collect()]


def read(format: str, path: str | None, options: Mapping[str, str], columns: str) -> list[Any]:
    rows = spark.read.format(format).options(**options)
    found = rows.load(path) if path is not None else rows.load()
    return [[*row] for row in found.selectExpr(*columns.split(";")).collect()]


def exists(path: str) -> bool:
    return _system(path).exists(_path(path))


def rename(path: str, to: str) -> bool:
    return _system(path).rename(_path(path), _path(to))


def remove(path: str) -> bool:
    return _system(path).delete(_path(path), True)


def names(path: str) -> list[str]:
    """Of all files below it."""
    files, found = _system(path).listFiles(_path(path), True), []
    while files.hasNext():
        found.append(files.next().getPath().toString())
    return sorted(found)


def _path(path: str) -> Any:
    jvm: Any = spark._jvm
    return jvm.org.apache.hadoop.fs.Path(path)


def _system(path: str) -> Any:
    context: Any = spark._jsc
    return _path(path).getFileSystem(context.hadoopConfiguration())


def main() -> None:
    global spark
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what anything prints is not an answer
    spark = session("sinks", master="local[2]", config=json.loads(sys.argv[1]))
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            answer = {"value": globals()[name](**arguments)}
        except JobFailed as error:
            answer = {"error": str(error)}
        except Exception as error:
            answer = {"error": one_line(error)}
        print(json.dumps(answer, default=str), file=answers, flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
