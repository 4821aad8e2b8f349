"""RocketMQ's filters as Columns: for `where`, `filter`, `withColumn`, over Spark Connect too.

    df.where(sql92("region = 'eu' AND price > 100"))
    df.where(sql92("price > 100", properties=raw("property_string")))
    df.where(sql92("price > 100", properties={"price": typed("price", "double")}))

Bad text raises InvalidFilter at once, before Spark sees anything.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
)

from ..errors import ConfigError
from ..filter import Dialect, Expr, parse
from ..filter.engines.catalyst import (
    Compiler,
    PropertyOf,
    Typed,
    compile_matched,
    compile_outcome,
)
from ..filter.nodes import Kind
from ..filter.tags import parse_tags
from .session import session

__all__ = [
    "Evaluator",
    "Properties",
    "Raw",
    "Struct",
    "properties_of",
    "raw",
    "sql92",
    "sql92_outcome",
    "tags",
    "typed",
]


@dataclass(frozen=True, slots=True)
class Raw:
    """A column of property strings as they travel: name \\x01 value \\x02 …"""

    column: Column


@dataclass(frozen=True, slots=True)
class Struct:
    """A column of structs whose fields are named as the properties."""

    column: Column
    schema: StructType


# Where the properties are: a map column, a column of property strings, columns by property name,
# or a struct or a DataFrame whose columns are named as the properties.
Properties = Column | str | Raw | Struct | Mapping[str, Column | str | Typed] | DataFrame


def sql92(
    expression: str,
    *,
    dialect: Dialect | str = Dialect.V4_9,
    properties: Properties = "properties",
) -> Column:
    """BOOLEAN, never null: whether RocketMQ would deliver the message.

    A column of text is a property as the message has it. One of another type (`typed`, or that of
    a DataFrame) stands for text that was parsed so: it is compared by value whatever the constant
    is (5.5 > 5, where RocketMQ fails to read 5.5 as an int), so no number fails; against TRUE and
    FALSE a number reads false; where RocketMQ looks at the text, that is Spark's cast to string.
    Null is a missing property, and so is a name that `properties` has not.
    """
    return compile_matched(parse(expression, dialect), properties_of(properties))


def sql92_outcome(
    expression: str,
    *,
    dialect: Dialect | str = Dialect.V4_9,
    properties: Properties = "properties",
) -> Column:
    """TINYINT, never null: 0 false, 1 true, 2 null, 3 error (`tamis.filter.Outcome`)."""
    return compile_outcome(parse(expression, dialect), properties_of(properties))


def tags(expression: str, *, column: Column | str = "tags") -> Column:
    """BOOLEAN, never null: `*`, or `A || B`. On the tag's text, so that no hash collides."""
    parsed = parse_tags(expression)
    if parsed.matches_all:
        return F.lit(True)
    if not parsed.tags:
        return F.lit(False)
    return F.coalesce(_column(column).isin(sorted(parsed.tags)), F.lit(False))


def raw(column: Column | str) -> Raw:
    """Property strings as they travel, such as the source's column `property_string`."""
    return Raw(_column(column))


_KINDS: Final = {
    "int": Kind.INT,
    "long": Kind.LONG,
    "bigint": Kind.LONG,
    "double": Kind.DOUBLE,
    "boolean": Kind.BOOLEAN,
}


def typed(column: Column | str, kind: str) -> Typed:
    """A column of type int, long, double or boolean."""
    if kind not in _KINDS:
        raise ConfigError(f"{kind!r} is no type of a property: int, long, double or boolean is")
    return Typed(_column(column), _KINDS[kind])


def properties_of(properties: Properties) -> PropertyOf:
    """What the catalyst engine asks for a property."""
    match properties:
        case Raw(column):
            return lambda name: _from_string(column, name)
        case DataFrame():
            return _from_typed(properties.schema, lambda name: properties[f"`{name}`"])
        case Struct(column, schema):
            return _from_typed(schema, column.getField)
        case Mapping():
            return _from_mapping(properties)
        case _:
            return _column(properties).getItem


def _column(column: Column | str) -> Column:
    return F.col(column) if isinstance(column, str) else column


def _from_mapping(columns: Mapping[str, Column | str | Typed]) -> PropertyOf:
    def property_of(name: str) -> Column | Typed:
        column = columns.get(name)
        if column is None:
            return F.lit(None).cast("string")
        return F.col(column) if isinstance(column, str) else column

    return property_of


def _from_typed(schema: StructType, column_of: Callable[[str], Column]) -> PropertyOf:
    kinds = {one.name: one.dataType for one in schema}

    def property_of(name: str) -> Column | Typed:
        if name not in kinds:
            return F.lit(None).cast("string")
        found = _from_field(column_of(name), kinds[name])
        if found is None:
            raise ConfigError(
                f"column {name} is {kinds[name].simpleString()}: no property has such a type; cast"
                " it, or say by a dict which columns are properties"
            )
        return found

    return property_of


def _from_field(column: Column, kind: DataType) -> Column | Typed | None:
    match kind:
        case StringType():
            return column
        case ByteType() | ShortType() | IntegerType():
            return Typed(column, Kind.INT)
        case LongType():
            return Typed(column, Kind.LONG)
        case FloatType() | DoubleType():
            return Typed(column, Kind.DOUBLE)
        case DecimalType():
            return Typed(column.cast("double"), Kind.DOUBLE)
        case BooleanType():
            return Typed(column, Kind.BOOLEAN)
        case _:
            return None


def _from_string(column: Column, name: str) -> Column:
    """The last value that is not empty, as RocketMQ's decoder takes it; null if there is none.

    The pattern begins with a text and so is searched for by skipping: with an alternative for the
    begin of the string in it, it takes longer than the string in front of which a \\x02 is put.
    """
    pattern = f"\\x02{re.escape(name)}\\x01([^\\x02]+)"
    found = F.regexp_extract_all(F.concat(F.lit("\x02"), column), F.lit(pattern), F.lit(1))
    return F.try_element_at(found, F.lit(-1))


# Each call that makes a column would ask the JVM for its place in the program: 4 times the time.
_UNTRACED: Final = {"spark.python.sql.dataFrameDebugging.enabled": "false"}


class Evaluator:
    """Many filters on a few messages at hand, for tests and tools.

    The rows are local to the driver, so that Catalyst evaluates while it plans: there are no jobs
    and no generated code.
    """

    def __init__(self) -> None:
        self._spark = session("tamis filter", config=_UNTRACED)
        self._compiler = Compiler(properties_of("properties"))

    def outcomes(
        self, exprs: Sequence[Expr], messages: Sequence[Mapping[str, str] | None]
    ) -> Sequence[tuple[int, ...]]:
        """A row a message, in it the outcome of each filter."""
        maps = [None if message is None else list(message.items()) for message in messages]
        array = pa.array(maps, pa.map_(pa.string(), pa.string()))
        rows = self._spark.createDataFrame(pa.table({"properties": array}))
        columns = [self._compiler.compile_outcome(expr) for expr in exprs]
        return rows.select(*(column.alias(str(n)) for n, column in enumerate(columns))).collect()
