"""Tables that a job writes anew each time: a directory that takes the place of the one before.

A new one is written beside the old one and renamed. `_tamis.json` in it says what the table is; a
directory without that, and with anything else in it, is somebody else's and is refused.
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


def check(output: Output, what: str, spark: SparkSession | None = None) -> None:
    """Raises ConfigError if the table can't be written there, as far as can be seen now."""
    if not is_local(output.path) and spark is None:
        return
    files.check_writable(output.path, output.path)
    place = files.of(output.path, spark)
    try:
        names = [name for name in place.names(output.path) if not name.startswith(".")]
        owner = None
        if _MARK in names:
            owner = json.loads(place.read(f"{output.path}/{_MARK}")).get("table")
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(f"{output.path} can't be used: {_why(error)}") from None
    if names and owner != what:
        raise ConfigError(
            f"{output.path}: it has files that are not {what}: choose another path, or remove them"
        )


def write(rows: DataFrame, output: Output, what: str, spark: SparkSession) -> None:
    """Replace the table. Killed in the middle, the old one is there, or none; never a part."""
    check(output, what, spark)
    place = files.of(output.path, spark)
    parent, _, name = output.path.rpartition("/")
    new = f"{parent}/.{name}.{uuid.uuid4().hex[:12]}"
    try:
        rows.write.format(output.format).save(files.for_spark(new))
        place.write(f"{new}/{_MARK}", json.dumps({"table": what, "format": output.format}) + "\n")
        place.remove(output.path)
        place.rename(new, output.path)
    finally:
        place.remove(new)


def read(path: str, what: str, schema: str, spark: SparkSession) -> DataFrame:
    """Return a table that `write` wrote. Raises ConfigError."""
    place = files.of(path, spark)
    try:
        mark = json.loads(place.read(f"{path}/{_MARK}"))
        found, format = mark["table"], mark["format"]
    except FileNotFoundError:
        raise ConfigError(f"{path} is not {what}: there is no {_MARK} in it") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} can't be used: {_why(error)}") from None
    if found != what:
        raise ConfigError(f"{path} is {found}, not {what}")
    return spark.read.format(format).schema(schema).load(files.for_spark(path))


def _why(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)
