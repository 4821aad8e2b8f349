"""What users ask of a write, and the columns it takes: checked before a job starts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
)

from ..client.config import ProducerConfig, check_group, check_topic
from ..errors import ConfigError
from ..security import INSECURE, Security
from ..security.settings import fields_of
from . import values
from .connection import OPTIONS, resolve_connection
from .options import read_option
from .schema import COLUMNS

__all__ = ["RowKey", "WriteOptions", "check_columns"]

_NO_NAMESERVER: Final = 'option nameserver is missing: "host:port", several with ; between'
_NO_OPTIONS: Final = (
    "option nameserver is missing: Spark does not hand over the options of a table when rows are"
    " written to it, so name them: INSERT INTO name WITH (nameserver 'host:port', topic '…') …"
)
RowKey = Literal["auto", "position", "none"]


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    nameserver: str
    security: Security = INSECURE
    topic: str = ""  # of all rows, whatever their column topic says; without it that column is used
    group: str = "tamis-spark"  # brokers know the producers by it

    # The key each message is given beside those of its row, by which consumers drop repeats.
    # auto: column row_key; else where the row was read, if it says so; else its position.
    row_key: RowKey = "auto"
    job_id: str = ""  # what positions begin with; one of the job's or the query's own if not given

    timeout: float = 10.0  # seconds for an answer, all attempts of a batch included
    retries: int = 5  # of a batch; then the task fails, and Spark begins it again
    max_message_size: int = 4 * 1024 * 1024  # bytes; the broker has its own limit
    batch_rows: int = 1000  # messages that travel together, at most
    batch_bytes: int = 256 * 1024  # of their bodies
    max_in_flight: int = 32  # batches without an answer, for each task

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "WriteOptions":
        """Raises ConfigError."""
        spelled = {name.lower(): name for name in (*_READERS, *OPTIONS)}
        values.refuse_unknown(options, spelled)
        made: dict[str, Any] = {}
        connection: dict[str, Any] = {}
        for name, text in options.items():
            known = spelled[name.lower()]
            if known in OPTIONS:
                connection[known] = read_option(known, OPTIONS[known], str(text))
                continue
            attribute, read = _READERS[known]
            if attribute is None:
                continue
            if attribute in made:
                raise ConfigError(f"option {known}: another option says that already")
            try:
                made[attribute] = read(str(text))
            except ValueError as error:
                raise ConfigError(f"option {known}: {error}") from None
        nameserver, made["security"] = resolve_connection(connection)
        if not nameserver:
            raise ConfigError(_NO_NAMESERVER if options else _NO_OPTIONS)
        made["nameserver"] = nameserver
        parsed = cls(**made)
        parsed.producer()  # checks the ranges of what is its
        return parsed

    def producer(self) -> ProducerConfig:
        """Tags are sent as they are: rows may have been read from a topic, and one message with an
        odd tag is not to end a job."""
        return ProducerConfig(
            **fields_of(self.security),
            timeout=self.timeout,
            retries=self.retries,
            max_message_size=self.max_message_size,
            check_tags=False,
        )


def _topic(text: str) -> str:
    return check_topic(values.text(text), to_send=True)


def _group(text: str) -> str:
    return check_group(values.text(text))


def _job(text: str) -> str:
    if len(text.split()) != 1:
        raise ValueError(f"{text!r} is empty or has blanks, which separate keys")
    return text.strip()


_READERS: Final[dict[str, tuple[str | None, Callable[[str], Any]]]] = {
    "topic": ("topic", _topic),
    "path": ("topic", _topic),  # save("orders")
    "producerGroup": ("group", _group),
    "rowKey": ("row_key", values.choice("auto", "position", "none")),
    "jobId": ("job_id", _job),
    "requestTimeout": ("timeout", values.seconds),
    "retries": ("retries", values.number(0)),
    "maxMessageSize": ("max_message_size", values.number(1)),
    "batchRows": ("batch_rows", values.number(1)),
    "batchBytes": ("batch_bytes", values.number(1)),
    "maxInFlight": ("max_in_flight", values.number(1)),
    "checkpointLocation": (None, str),  # Spark's own, as is the next
    "queryName": (None, str),
}

_WHOLE: Final = (ByteType, ShortType, IntegerType, LongType)


def _is_text(kind: DataType) -> bool:
    return isinstance(kind, StringType)


def _is_whole(kind: DataType) -> bool:
    return isinstance(kind, _WHOLE)


def _is_body(kind: DataType) -> bool:
    return isinstance(kind, BinaryType) or _is_text(kind)


def _is_keys(kind: DataType) -> bool:
    return _is_text(kind) or (isinstance(kind, ArrayType) and _is_text(kind.elementType))


def _is_properties(kind: DataType) -> bool:
    return isinstance(kind, MapType) and _is_text(kind.keyType) and _is_text(kind.valueType)


_TAKEN: Final[dict[str, tuple[str, Callable[[DataType], bool]]]] = {
    "body": ("BINARY or STRING", _is_body),
    "topic": ("STRING", _is_text),
    "tags": ("STRING", _is_text),
    "keys": ("STRING or ARRAY<STRING>", _is_keys),
    "properties": ("MAP<STRING,STRING>", _is_properties),
    "property_string": ("STRING", _is_text),
    "sharding_key": ("STRING", _is_text),
    "queue_id": ("INT", _is_whole),
    "broker": ("STRING", _is_text),
    "delay_level": ("INT", _is_whole),
    "flag": ("INT", _is_whole),
    "row_key": ("STRING", _is_text),
    "offset": ("BIGINT", _is_whole),
}
_OF_READING: Final = COLUMNS.keys() - _TAKEN.keys()  # left alone, so that what is read can be sent


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """Raises ConfigError for columns that are missing, not known or of a wrong type."""
    names = [one.name for one in schema]
    for one in schema:
        if names.count(one.name) > 1:
            raise ConfigError(f"there are two columns {one.name}: rename or drop one")
        if one.name in _OF_READING:
            continue
        if one.name not in _TAKEN:
            taken = ", ".join(name for name in _TAKEN if name != "offset")
            raise ConfigError(
                f"column {one.name} can't be written to a topic: drop it, or put it into body or"
                f" properties; the columns are {taken}, and those a read gives"
            )
        wanted, fits = _TAKEN[one.name]
        if not fits(one.dataType):
            kind = one.dataType.simpleString()
            raise ConfigError(f"column {one.name} is {kind}: it takes {wanted}")
    if "body" not in names:
        raise ConfigError("there is no column body: BINARY or STRING, what messages consist of")
    if "topic" not in names and not options.topic:
        raise ConfigError("where to write to is not said: give option topic, or a column topic")
    if "sharding_key" in names and "queue_id" in names and "offset" not in names:
        raise ConfigError("columns sharding_key and queue_id both name a queue: drop one")
    if "broker" in names and "queue_id" not in names and "offset" not in names:
        raise ConfigError("a column broker needs a column queue_id beside it")
