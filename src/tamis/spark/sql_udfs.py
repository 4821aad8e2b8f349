"""The SQL functions over Spark Connect, where a client can't give Spark's registry an expression.

They are Python functions there: each row goes through a Python worker of the server, as the columns
of `columns` do not. What they answer is the same.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from pyspark.sql import SparkSession
from pyspark.sql.pandas.functions import arrow_udf

from ..errors import ConfigError
from ..filter import Dialect, parse
from ..filter.engines.closures import compile_closure, evaluate
from ..filter.logic import Outcome
from ..filter.tags import parse_tags
from ..wire import properties as property_strings

__all__ = ["register_udfs"]

_COMPILED = 64  # filters that a worker keeps


def register_udfs(spark: SparkSession) -> None:
    kinds: dict[Callable[..., Any], str] = {
        sql92: "boolean",
        sql92_outcome: "tinyint",
        tags: "boolean",
    }
    as_udf: Any = arrow_udf  # its overloads have no place for several columns
    for function, kind in kinds.items():
        if not spark.catalog.functionExists(function.__name__):
            spark.udf.register(function.__name__, as_udf(function, kind))


def sql92(*arguments: pa.Array) -> pa.Array:
    outcomes = _outcomes("sql92", *arguments)
    return pa.array([outcome is Outcome.TRUE for outcome in outcomes], pa.bool_())


def sql92_outcome(*arguments: pa.Array) -> pa.Array:
    return pa.array([int(one) for one in _outcomes("sql92_outcome", *arguments)], pa.int8())


def tags(column: pa.Array, filters: pa.Array) -> pa.Array:
    parsed = parse_tags(_constant("tags", filters)) if len(filters) else None
    return pa.array(
        [parsed.matches(tag) for tag in column.to_pylist()] if parsed else [], pa.bool_()
    )


def _outcomes(
    name: str, column: pa.Array, filters: pa.Array, dialects: pa.Array | None = None
) -> Iterator[Outcome]:
    if not len(column):
        return
    dialect = Dialect.V4_9 if dialects is None else Dialect(_constant(name, dialects))
    matches = _compiled(_constant(name, filters), dialect)
    read = _reader(name, column.type)
    for value in column.to_pylist():
        yield evaluate(matches, None if value is None else read(value))


@functools.lru_cache(_COMPILED)
def _compiled(text: str, dialect: Dialect) -> Any:
    return compile_closure(parse(text, dialect))


def _reader(name: str, kind: pa.DataType) -> Callable[[Any], Mapping[str, str]]:
    if pa.types.is_map(kind):
        return lambda pairs: {key: value for key, value in pairs if value is not None}
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return property_strings.decode
    raise ConfigError(
        f"{name}: its first argument is {kind}: over Spark Connect it takes properties (a map of"
        " strings) or property_string (a string)"
    )


def _constant(name: str, values: pa.Array) -> str:
    """Of a batch; that it is a constant can't be seen, but that it is none."""
    found = pc.unique(values).to_pylist()
    if len(found) != 1 or found[0] is None:
        raise ConfigError(f"{name}: its filter is not a constant: write it as a text in quotes")
    return str(found[0])
