"""The columns of a sink made of those of a message: names, and expressions of Spark SQL.

An expression makes one value of one message. What Spark would refuse, or a format would, when the
first batch is written, `check` finds before there is one.
"""

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from ..spark import _needed  # noqa: F401  # isort: skip
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from ..errors import ConfigError
from ..spark.schema import ADDED, DEFAULT, row_type
from .sink_config import Sink, is_flattened

__all__ = ["check", "chosen"]

_STRUCT: Final = "_struct_{}"  # a struct on its way to be flattened
_SQLSTATE: Final = re.compile(r"\.?\s*SQLSTATE: \w+.*", re.DOTALL)
_CLASS: Final = re.compile(r"^\[[\w.]+\] ")
_NOT_OF_ONE_MESSAGE: Final = ("INVALID_WHERE", "UNSUPPORTED_GENERATOR", "WINDOW_FUNCTION")


def chosen(rows: DataFrame, sink: Sink, *kept: str) -> DataFrame:
    """`kept`, then the columns of the sink. Rows have all that it needs."""
    if not sink.expressions:
        return rows.select(*kept, *sink.columns)
    columns, flat = [], []
    for number, name in enumerate(sink.columns):
        if name not in sink.expressions:
            columns.append(F.col(name))
            flat.append(_quoted(name))
        elif is_flattened(name):
            struct = _STRUCT.format(number)
            columns.append(F.expr(sink.expressions[name]).alias(struct))
            flat.append(f"{struct}.*")
        else:
            columns.append(F.expr(sink.expressions[name]).alias(name))
            flat.append(_quoted(name))
    made = rows.select(*kept, *columns)
    return made.select(*kept, *flat) if any(map(is_flattened, sink.columns)) else made


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def check(spark: SparkSession, sink: Sink) -> None:
    """That all expressions are ones of a message, and that the format has room for what they give.
    Raises ConfigError with the place in the file."""
    if not sink.expressions:
        return
    messages = spark.createDataFrame([], row_type((*DEFAULT, *ADDED)))
    for name, text in sink.expressions.items():
        with _quiet():
            try:
                # In a condition Spark refuses what is not of one row: aggregates, windows, explode.
                given = messages.where(F.expr(text).isNotNull()).select(F.expr(text)).schema
            except PySparkException as error:
                raise _error(sink, name, _said(error)) from None
        [kind] = [one.dataType for one in given]
        if is_flattened(name) and not isinstance(kind, T.StructType):
            raise _error(sink, name, f"it gives {kind.simpleString()}, which has no fields")
        if isinstance(kind, T.NullType):
            raise _error(sink, name, "it has no type: write CAST(… AS …)")
    rows = chosen(messages, sink).schema
    seen: set[str] = set()
    for one in rows:
        if one.name.lower() in seen:
            raise ConfigError(
                f"{_where(sink)}columns: there are two called {one.name}, one of which is a field"
                f" of {', '.join(filter(is_flattened, sink.columns))}"
            )
        seen.add(one.name.lower())
        if why := _why_no_room(sink.format, one):
            raise ConfigError(f"{_where(sink)}columns: {one.name}: {why}")
    if sink.format == "kafka" and "value" not in seen:
        raise ConfigError(f"{_where(sink)}columns: kafka needs a column value")
    if sink.format == "text" and len(rows) > 1:
        raise ConfigError(
            f"{_where(sink)}columns: text takes one, here are {', '.join(rows.names)}"
        )


def _where(sink: Sink) -> str:
    return sink.where or f"sink {sink.name}: "


def _error(sink: Sink, name: str, why: str) -> ConfigError:
    return ConfigError(f"{_where(sink)}columns: {name} = {sink.expressions[name]!r}: {why}")


def _said(error: PySparkException) -> str:
    """Spark's sentence, without its plan of the query and names of errors."""
    is_of_many = (error.getCondition() or "").startswith(_NOT_OF_ONE_MESSAGE)
    if is_of_many or "WHERE clause" in str(error):  # Spark 4.1 has no name for windows there
        return "a column is made of one message: no aggregates, windows, explode"
    text = _SQLSTATE.sub("", str(error).strip())
    if "`isnotnull`" in text:  # the only function that is ours
        return "it gives several values: one for each column"
    lines = [line.strip() for line in text.split("\n== SQL ==")[0].splitlines()]
    return _CLASS.sub("", " ".join(line for line in lines if line)).rstrip(".;")


def _is_text(kind: T.DataType) -> bool:
    return isinstance(kind, T.StringType)


def _is_bytes(kind: T.DataType) -> bool:
    return isinstance(kind, (T.StringType, T.BinaryType))


def _is_headers(kind: T.DataType) -> bool:
    return kind.simpleString() == "array<struct<key:string,value:binary>>"


# What Kafka takes: the names of columns, and what each may be.
_OF_KAFKA: Final[dict[str, tuple[Callable[[T.DataType], bool], str]]] = {
    "value": (_is_bytes, "string or binary"),
    "key": (_is_bytes, "string or binary"),
    "topic": (_is_text, "string"),
    "partition": (lambda kind: isinstance(kind, T.IntegerType), "int"),
    "headers": (_is_headers, "array<struct<key:string,value:binary>>"),
}
_NESTED: Final = (T.MapType, T.ArrayType, T.StructType, T.VariantType)
_NO_ROOM: Final[dict[str, tuple[type[T.DataType], ...]]] = {
    "csv": (*_NESTED, T.BinaryType),
    "jdbc": (T.MapType, T.StructType, T.VariantType),
}


def _why_no_room(format: str, column: T.StructField) -> str | None:
    kind = column.dataType
    if format == "kafka":
        if column.name not in _OF_KAFKA:
            return f"kafka has no room for it: it takes {', '.join(_OF_KAFKA)}"
        fits, takes = _OF_KAFKA[column.name]
        return None if fits(kind) else f"it is {kind.simpleString()}, kafka takes {takes}"
    if format == "text" and not _is_text(kind):
        return f"it is {kind.simpleString()}, text takes a string"
    if isinstance(kind, _NO_ROOM.get(format, ())):
        return f"it is {kind.simpleString()}, for which {format} has no room"
    return None


@contextmanager
def _quiet() -> Iterator[None]:
    """PySpark logs what it raises of SQL as well."""
    loggers: list[logging.Logger] = [
        PySparkLogger.getLogger(name)
        for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
    ]
    before = [one.disabled for one in loggers]
    for one in loggers:
        one.disabled = True
    try:
        yield
    finally:
        for one, was in zip(loggers, before, strict=True):
            one.disabled = was
