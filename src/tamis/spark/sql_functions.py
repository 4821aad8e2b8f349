"""`sql92`, `sql92_outcome` and `tags` as functions of Spark's SQL.

    SELECT * FROM orders WHERE sql92(properties, 'price > 100')

Spark asks the registry for a function when it analyses a query, and takes what it is given in its
place. Here that is the expression the catalyst engine makes of the filter's text: no Python runs
when the query does. The registry calls Python over the connection through which PySpark runs a
`foreachBatch`. Over Spark Connect there is no such way: see `sql_udfs`.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

from pyspark import SparkContext
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import Column, SparkSession
from pyspark.sql.types import DataType, MapType, StringType, StructType, _parse_datatype_json_value

from ..errors import ConfigError, Error, InvalidFilter
from ..filter import Dialect
from . import columns

__all__ = ["FUNCTIONS", "register_functions", "told"]


def register_functions(spark: SparkSession) -> None:
    """A function that is there by the name is left alone: it is ours, or the user wants it."""
    if getattr(spark, "_jsparkSession", None) is None:
        from .sql_udfs import register_udfs

        register_udfs(spark)
        return
    state = spark._jsparkSession.sessionState()
    missing = [
        name for name in FUNCTIONS if state.catalog().lookupBuiltinOrTempFunction(name).isEmpty()
    ]
    if not missing:
        return
    gateway = SparkContext._gateway
    assert gateway is not None
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    for name in missing:
        builder = _value_of(gateway).compose(_Builder(name, spark))
        state.functionRegistry().createOrReplaceTempFunction(name, builder, "scala_udf")


def _sql92(properties: Column, kind: DataType, text: str, dialect: str) -> Column:
    return columns.sql92(text, dialect=dialect, properties=_properties(properties, kind))


def _sql92_outcome(properties: Column, kind: DataType, text: str, dialect: str) -> Column:
    return columns.sql92_outcome(text, dialect=dialect, properties=_properties(properties, kind))


def _tags(tags: Column, kind: DataType, text: str) -> Column:
    if not isinstance(kind, StringType):
        raise ConfigError(f"its first argument is {kind.simpleString()}: it takes the column tags")
    return columns.tags(text, column=tags)


# With their arguments, of which the first is a column and the others constants.
FUNCTIONS: Final[Mapping[str, tuple[str, Callable[..., Column]]]] = {
    "sql92": ("properties, 'filter'[, 'dialect']", _sql92),
    "sql92_outcome": ("properties, 'filter'[, 'dialect']", _sql92_outcome),
    "tags": ("tags, 'A || B'", _tags),
}


def _properties(column: Column, kind: DataType) -> columns.Properties:
    """By the type of the argument: the map, the string as it travels, or fields of a struct."""
    match kind:
        case MapType(keyType=StringType(), valueType=StringType()):
            return column
        case StringType():
            return columns.raw(column)
        case StructType():
            return columns.Struct(column, kind)
        case _:
            raise ConfigError(
                f"its first argument is {kind.simpleString()}: it takes properties (a map of"
                " strings), property_string (a string), or a struct of columns named as properties"
            )


def told(name: str, error: Error) -> str:
    """The sentence for a user of SQL; a bad filter is shown, with a mark at the place."""
    picture = f"\n{error.picture()}" if isinstance(error, InvalidFilter) else ""
    return f"{name}: {error}{picture}"


class _Builder:
    """A `scala.Function1` from the arguments, expressions, to a `scala.util.Try` of one.

    What is raised here reaches Java as an exception of the connection, with a traceback in it: so
    nothing is, and `Try` carries what went wrong."""

    class Java:
        implements: ClassVar = ["scala.Function1"]

    def __init__(self, name: str, spark: SparkSession) -> None:
        self._name = name
        self._session = spark._jsparkSession

    def apply(self, arguments: Any) -> Any:
        jvm: Any = SparkContext._jvm
        try:
            given = [arguments.apply(n) for n in range(arguments.size())]
            return jvm.scala.util.Success(self._session.expression(self._made(given, jvm)._jc))
        except (Error, ValueError) as error:  # ValueError: the name of a dialect
            sentence = (
                told(self._name, error) if isinstance(error, Error) else f"{self._name}: {error}"
            )
        except Exception as error:
            sentence = f"{self._name}: {type(error).__name__}: {error}"
        return jvm.scala.util.Failure(jvm.java.lang.IllegalArgumentException(sentence))

    def _made(self, given: Sequence[Any], jvm: Any) -> Any:
        usage, make = FUNCTIONS[self._name]
        if not 2 <= len(given) <= 2 + usage.count("["):
            raise ConfigError(
                f"wrong number of arguments, {len(given)}: write {self._name}({usage})"
            )
        constants = [self._constant(one, jvm) for one in given[1:]]
        if len(constants) < 1 + usage.count("["):
            constants.append(Dialect.V4_9)
        kind = _parse_datatype_json_value(json.loads(given[0].dataType().json()))
        return make(
            Column(jvm.org.apache.spark.sql.classic.ExpressionUtils.column(given[0])),
            kind,
            *constants,
        )

    def _constant(self, expression: Any, jvm: Any) -> str:
        if expression.foldable() and expression.dataType().typeName().startswith("string"):
            value = expression.eval(jvm.org.apache.spark.sql.catalyst.InternalRow.empty())
            if value is not None:
                return str(value if isinstance(value, str) else value.toString())
        raise ConfigError(
            f"a filter can't be {expression.sql()}: write it as a constant text, in quotes"
        )

    def toString(self) -> str:
        return f"tamis.spark {self._name}"

    def hashCode(self) -> int:
        return id(self) & 0x7FFFFFFF

    def equals(self, other: object) -> bool:
        return self is other


def _value_of(gateway: Any) -> Any:
    """`Try.get` as a `scala.Function1`: it throws in the JVM what a failure holds."""
    java = gateway.jvm.java.lang
    method = java.Class.forName("scala.util.Try").getMethod("get", gateway.new_array(java.Class, 0))
    handle = java.invoke.MethodHandles.publicLookup().unreflect(method)
    function = java.Class.forName("scala.Function1")
    return java.invoke.MethodHandleProxies.asInterfaceInstance(function, handle)
