"""Tables that a job writes anew each time: a directory that takes the place of the one before.

A new one is written beside the old one and renamed. `_tamis.json` in it names the job; a directory
without that, and with anything else in it, is somebody else's and is refused.
"""

import json
import uuid
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from ..errors import ConfigError
from . import files
from .audit_config import Output
from .config import is_local

__all__ = ["check", "read", "write"]

_MARK: Final = "_tamis.json"


def check(output: Output, job: str, spark: SparkSession | None = None) -> None:
    """Raises ConfigError if the table can't be written there, as far as can be seen now."""
    if not is_local(output.path) and spark is None:
        return
    files.check_writable(output.path, output.path)
    place = files.of(output.path, spark)
    try:
        names = [name for name in place.names(output.path) if not name.startswith(".")]
        owner = None
        if _MARK in names:
            owner = json.loads(place.read(f"{output.path}/{_MARK}")).get("job")
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"{output.path} can't be used: {error}") from None
    if names and owner != job:
        raise ConfigError(
            f"{output.path}: it has files that no {job} wrote: choose another path, or remove them"
        )


def write(rows: DataFrame, output: Output, job: str, spark: SparkSession) -> None:
    """Replace the table. Killed in the middle, the old one is there, or none; never a part."""
    check(output, job, spark)
    place = files.of(output.path, spark)
    parent, _, name = output.path.rpartition("/")
    new = f"{parent}/.{name}.{uuid.uuid4().hex[:12]}"
    try:
        rows.write.format(output.format).save(files.for_spark(new))
        place.write(f"{new}/{_MARK}", json.dumps({"job": job, "format": output.format}) + "\n")
        place.remove(output.path)
        place.rename(new, output.path)
    finally:
        place.remove(new)


def read(path: str, job: str, spark: SparkSession) -> DataFrame:
    """Return a table that a job wrote. Raises ConfigError."""
    place = files.of(path, spark)
    try:
        mark = json.loads(place.read(f"{path}/{_MARK}"))
        owner, format = mark["job"], mark["format"]
    except FileNotFoundError:
        raise ConfigError(f"{path}: no {job} wrote it: there is no {_MARK} in it") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} can't be used: {error}") from None
    if owner != job:
        raise ConfigError(f"{path}: it was written by {owner}, not by {job}")
    return spark.read.format(format).load(files.for_spark(path))
