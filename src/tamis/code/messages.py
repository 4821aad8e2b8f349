"""The messages of a record batch, as `match` is given them.

A column is taken out of Arrow when a message of the batch is first asked for it, all rows at once;
properties are parsed when a message is asked for its own. So a filter pays for what it looks at.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from ..message import PropertyName
from ..wire.bodies import MessageQueue
from ..wire.properties import decode
from .contract import Needs

__all__ = ["MessageView", "messages_of"]

Properties = dict[str, Any]  # of text, unless a type was declared


def messages_of(batch: pa.RecordBatch, needs: Needs) -> "Iterator[MessageView]":
    columns = _Columns(batch, needs)
    return (MessageView(columns, row) for row in range(batch.num_rows))


class MessageView:
    """A message that a filter looks at; read-only.

    Attributes are the columns of a message, plus `queue`, `text` and, of all columns but a declared
    few, `properties`. One that was not declared raises AttributeError.
    """

    __slots__ = ("_columns", "_properties", "_row")

    def __init__(self, columns: "_Columns", row: int) -> None:
        self._columns = columns
        self._row = row
        self._properties: Properties | None = None

    @property
    def topic(self) -> str:
        """The topic it was sent to."""
        topic: str = self._columns.topic[self._row]
        return topic

    @property
    def broker(self) -> str:
        broker: str = self._columns.broker[self._row]
        return broker

    @property
    def queue_id(self) -> int:
        queue_id: int = self._columns.queue_id[self._row]
        return queue_id

    @property
    def queue(self) -> MessageQueue:
        """The queue it lies in; of the columns topic, broker and queue_id."""
        return MessageQueue(self.topic, self.broker, self.queue_id)

    @property
    def offset(self) -> int:
        """Its place in its queue."""
        offset: int = self._columns.offset[self._row]
        return offset

    @property
    def store_timestamp(self) -> int:
        """When the broker stored it, in milliseconds since 1970."""
        timestamp: int = self._columns.store_timestamp[self._row]
        return timestamp

    @property
    def born_timestamp(self) -> int:
        """When its producer made it, in milliseconds since 1970."""
        timestamp: int = self._columns.born_timestamp[self._row]
        return timestamp

    @property
    def tags(self) -> str | None:
        tags: str | None = self._columns.tags[self._row]
        return tags

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple((self._columns.keys[self._row] or "").split())

    @property
    def properties(self) -> Properties:
        """By name; text, unless a type was declared. One it has not, or that can't be read as its
        type, is not in it."""
        found = self._properties
        if found is None:
            found = self._properties = self._columns.parse_properties(self._row)
        return found

    @property
    def body(self) -> bytes:
        """Decompressed."""
        body: bytes = self._columns.body[self._row]
        return body

    @property
    def text(self) -> str:
        """The body as UTF-8."""
        return self.body.decode(errors="replace")

    @property
    def message_id(self) -> str:
        message_id: str = self._columns.message_id[self._row]
        return message_id

    @property
    def reconsume_times(self) -> int:
        times: int = self._columns.reconsume_times[self._row]
        return times

    @property
    def flag(self) -> int:
        flag: int = self._columns.flag[self._row]
        return flag

    @property
    def sys_flag(self) -> int:
        flag: int = self._columns.sys_flag[self._row]
        return flag

    @property
    def log_offset(self) -> int:
        offset: int = self._columns.log_offset[self._row]
        return offset

    @property
    def born_host(self) -> str:
        host: str = self._columns.born_host[self._row]
        return host

    @property
    def store_host(self) -> str:
        host: str = self._columns.store_host[self._row]
        return host

    @property
    def property_string(self) -> str:
        """All properties as they travel: name \\x01 value \\x02 …"""
        text: str = self._columns.property_string[self._row]
        return text

    @property
    def tags_code(self) -> int:
        """The hash of the tag that brokers filter by."""
        code: int = self._columns.tags_code[self._row]
        return code

    def __repr__(self) -> str:
        there = [name for name in self._columns.names if name != "property_string"]
        return f"MessageView({', '.join(f'{name}={getattr(self, name)!r}' for name in there)})"


# What a null reads as, and a column that a class without declarations was not given. Where there is
# none of a kind that is None.
_DEFAULTS: Final[dict[str, Any]] = {
    **dict.fromkeys(("topic", "broker", "message_id", "property_string"), ""),
    **dict.fromkeys(("queue_id", "offset", "store_timestamp", "born_timestamp"), 0),
    **dict.fromkeys(("reconsume_times", "flag", "sys_flag", "log_offset", "tags_code"), 0),
    **dict.fromkeys(("born_host", "store_host"), ""),
    "body": b"",
}
_PROPERTY_OF: Final = {"tags": PropertyName.TAGS, "keys": PropertyName.KEYS}


class _Columns:
    """The columns of a batch as lists. Each is an attribute, made when it is first asked for."""

    def __init__(self, batch: pa.RecordBatch, needs: Needs) -> None:
        self._batch = batch
        self._needs = needs
        self.names = [name for name in batch.schema.names if name in _VISIBLE]
        if needs.properties:
            self.names.append("properties")

    def __getattr__(self, name: str) -> Any:
        """Only called for what is not made yet."""
        if name == "parse_properties":
            made: Any = self._parser()
        elif name in self.names and name != "properties":
            made = _list_of(self._batch.column(name), _DEFAULTS.get(name))
        elif self._needs.is_declared:
            raise AttributeError(f"{name} was not declared: add it to columns")
        elif name in _PROPERTY_OF:
            wanted = _PROPERTY_OF[name]
            rows = range(self._batch.num_rows)
            made = [self.parse_properties(row).get(wanted) for row in rows]
        else:
            made = [_DEFAULTS[name]] * self._batch.num_rows
        setattr(self, name, made)
        return made

    def _parser(self) -> Callable[[int], Properties]:
        """What makes the properties of a row."""
        if self._needs.properties:
            return _declared(self._batch, [name for name, _ in self._needs.properties])
        if "property_string" in self.names:
            texts = self.property_string
            return lambda row: decode(texts[row])
        if "properties" in self.names:
            return _mapped(self._batch.column("properties"))
        if self._needs.is_declared:
            raise AttributeError(
                "properties were not declared: name some in properties, or add the column"
                " properties to columns"
            )
        return lambda row: {}


def _declared(batch: pa.RecordBatch, names: list[str]) -> Callable[[int], Properties]:
    columns = [(name, _list_of(batch.column(name), None)) for name in names]
    return lambda row: {
        name: value for name, values in columns if (value := values[row]) is not None
    }


def _mapped(maps: pa.MapArray) -> Callable[[int], Properties]:
    offsets = maps.offsets.to_numpy().tolist()
    names, values = _list_of(maps.keys, ""), _list_of(maps.items, None)

    def parse(row: int) -> Properties:
        start, stop = offsets[row], offsets[row + 1]
        return dict(zip(names[start:stop], values[start:stop], strict=True))

    if maps.null_count:
        is_there = maps.is_valid().to_pylist()
        return lambda row: parse(row) if is_there[row] else {}
    return parse


def _list_of(array: pa.Array, default: Any) -> list[Any]:
    """A column's values; `to_pylist` is 5 times slower."""
    if pa.types.is_timestamp(array.type):
        array = _millis(array)
    if array.null_count and not (pa.types.is_string(array.type) or pa.types.is_binary(array.type)):
        values: list[Any] = array.to_pylist()
    else:
        values = array.to_numpy(zero_copy_only=False).tolist()
    if array.null_count and default is not None:
        for row in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)):
            values[row] = default
    return values


def _millis(times: pa.Array) -> pa.Array:
    numbers = times.view(pa.int64())
    if times.type.unit == "ms":
        return numbers
    return pc.divide(numbers, 1000)  # microseconds: Spark's


_VISIBLE: Final = frozenset(
    name for name, value in vars(MessageView).items() if isinstance(value, property)
)
