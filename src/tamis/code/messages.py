"""The messages of a record batch, as `match` is given them.

A column is taken out of Arrow when a message of the batch is first asked for it, all rows at once;
properties are parsed when a message is asked for its own. So a filter pays for what it looks at.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from ..message import PropertyName
from ..wire.bodies import MessageQueue
from ..wire.properties import NAME_END, VALUE_END
from .contract import Needs

__all__ = ["Columns", "MessageView"]

_LARGE: Final = 256  # bytes of a body, on average: a list of larger ones costs more than slices

Properties = dict[str, Any]  # of text, unless a type was declared


class MessageView:
    """A message that a filter looks at; read-only.

    Attributes are the columns of a message, and `queue` and `text`, which are made of them. One
    that was not declared raises AttributeError.
    """

    __slots__ = ("_columns", "_properties", "_row")

    def __init__(self, columns: "Columns", row: int) -> None:
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


class Columns:
    """The columns of a batch as sequences, each an attribute that is made when first asked for."""

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
            made = _values(self._batch.column(name), _DEFAULTS.get(name))
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
            return _parsed(self.property_string)
        if "properties" in self.names:
            return _mapped(self._batch.column("properties"))
        if self._needs.is_declared:
            raise AttributeError(
                "properties were not declared: name some in properties, or add the column"
                " properties to columns"
            )
        return lambda row: {}


def _declared(batch: pa.RecordBatch, names: list[str]) -> Callable[[int], Properties]:
    columns = [_list_of(batch.column(name)) for name in names]
    if any(batch.column(name).null_count for name in names):
        rows = [
            {name: value for name, value in zip(names, values, strict=True) if value is not None}
            for values in zip(*columns, strict=True)
        ]
    elif len(names) == 1:
        rows = [{names[0]: value} for value in columns[0]]
    else:
        rows = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
    return rows.__getitem__


def _parsed(texts: Sequence[str]) -> Callable[[int], Properties]:
    def parse(row: int) -> Properties:
        """As `wire.properties.decode`, in two thirds of its time."""
        found = {}
        for part in texts[row].split(VALUE_END):
            name, _, value = part.partition(NAME_END)
            if name and value:
                found[name] = value
        return found

    return parse


def _mapped(maps: pa.MapArray) -> Callable[[int], Properties]:
    offsets = maps.offsets.to_numpy().tolist()
    names, values = _list_of(maps.keys), _list_of(maps.items)
    is_there = maps.is_valid().to_pylist()

    def parse(row: int) -> Properties:
        start, stop = offsets[row], offsets[row + 1] if is_there[row] else offsets[row]
        return dict(zip(names[start:stop], values[start:stop], strict=True))

    return parse


def _values(array: pa.Array, default: Any) -> Sequence[Any]:
    """A column's values, for null the default."""
    if pa.types.is_timestamp(array.type):
        array = _millis(array)
    if array.type == pa.binary() and not array.null_count and array.nbytes > _LARGE * len(array):
        return _Slices(array)
    values = _list_of(array)
    if array.null_count and default is not None:
        for row in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)):
            values[row] = default
    return values


class _Slices(Sequence[bytes]):
    """Values that are copied when they are asked for: memory of the last one is used again."""

    def __init__(self, array: pa.Array) -> None:
        _, offsets, data = array.buffers()
        self._data = memoryview(data)
        ends = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
        self._ends: list[int] = ends.tolist()

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, row: Any) -> Any:
        ends = self._ends
        return self._data[ends[row] : ends[row + 1]].tobytes()


def _list_of(array: pa.Array) -> list[Any]:
    """As `to_pylist`, in a fifth of its time."""
    kind = array.type
    if array.null_count and not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
        values: list[Any] = array.to_pylist()  # NumPy has no null for numbers
    else:
        values = array.to_numpy(zero_copy_only=False).tolist()
    return values


def _millis(times: pa.Array) -> pa.Array:
    numbers = times.view(pa.int64())
    if times.type.unit == "ms":
        return numbers
    return pc.divide(numbers, 1000)  # microseconds: Spark's


_VISIBLE: Final = frozenset(
    name for name, value in vars(MessageView).items() if isinstance(value, property)
)
