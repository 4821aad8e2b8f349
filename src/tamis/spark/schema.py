"""The rows of both sources: their columns, as Spark has them.

The names are those of `tamis.client.columns.SCHEMA`, so that a consumer's `batches()` and a
DataFrame tell the same of a message.
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

__all__ = ["ADDED", "COLUMNS", "DEFAULT", "TYPES", "row_type"]

_BY_DEFAULT: Final[dict[str, DataType]] = {
    "topic": StringType(),  # the original one of a retried message
    "broker": StringType(),  # its name; null in rows of a store that was not given one
    "queue_id": IntegerType(),
    "offset": LongType(),  # in its queue
    "store_timestamp": TimestampType(),
    "born_timestamp": TimestampType(),
    "tags": StringType(),  # null if there are none, and so are keys
    "keys": StringType(),  # as they travel: blanks between them
    "properties": MapType(StringType(), StringType()),
    "body": BinaryType(),  # decompressed
    "message_id": StringType(),  # the producer's; without one where the message lies
}
_ON_REQUEST: Final[dict[str, DataType]] = {
    "property_string": StringType(),  # as it travels: name \x01 value \x02 …; cheaper than the map
    "tags_code": LongType(),  # the hash the broker filters by, 0 for none
    "reconsume_times": IntegerType(),
    "flag": IntegerType(),
    "sys_flag": IntegerType(),
    "log_offset": LongType(),
    "born_host": StringType(),
    "store_host": StringType(),
}
COLUMNS: Final = {**_BY_DEFAULT, **_ON_REQUEST}
DEFAULT: Final = tuple(_BY_DEFAULT)
ADDED: Final = tuple(_ON_REQUEST)

# What a property can be had as. Text that Java's valueOf refuses is null.
TYPES: Final[dict[str, DataType]] = {
    "string": StringType(),
    "int": IntegerType(),
    "long": LongType(),
    "double": DoubleType(),
    "boolean": BooleanType(),
}


def row_type(columns: Sequence[str], properties: Sequence[tuple[str, str]] = ()) -> StructType:
    fields = [StructField(name, COLUMNS[name]) for name in columns]
    fields += [StructField(name, TYPES[kind]) for name, kind in properties]
    return StructType(fields)
