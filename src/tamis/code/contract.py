"""What a filter in code is: a class with `match` or `match_batch`, and what it declares it needs.

    class Big:
        columns = ("tags",)                       # optional, as the next line
        properties = ("region", "price:double")

        def match(self, message) -> bool: ...
        def match(self, message, context) -> bool: ...            # or
        def match_batch(self, batch) -> mask: ...                 # or; a boolean a row, null is no
        def match_batch(self, batch, context) -> mask: ...        # or

A class that declares columns or properties is given exactly those. `loading` turns a source into
something that judges.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pyarrow as pa  # type: ignore[import-untyped]

from .verdicts import Verdicts

__all__ = ["COLUMNS", "MOST_PROPERTIES", "TYPES", "Context", "Judge", "Needs", "needs_of"]

# The columns of a message (`client.columns`, which code may not import; a test compares them).
COLUMNS: Final = (
    *("topic", "broker", "queue_id", "offset", "store_timestamp", "born_timestamp", "tags"),
    *("keys", "properties", "body", "message_id", "reconsume_times", "flag", "sys_flag"),
    *("log_offset", "born_host", "store_host", "property_string", "tags_code"),
)
# What a property can be read as. Text that Java's `valueOf` refuses gives a null.
TYPES: Final = ("string", "int", "long", "double", "boolean")
# That can be declared: who serves a filter makes a column of each, outside of any sandbox.
MOST_PROPERTIES: Final = 100

# What a class that declares nothing is given.
_FOR_BATCHES: Final = COLUMNS[: COLUMNS.index("reconsume_times")]
_FOR_MESSAGES: Final = (
    *(name for name in _FOR_BATCHES if name != "properties"),
    *("property_string", "reconsume_times"),  # cheaper than a map; parsed if it is looked at
)


@dataclass(frozen=True, slots=True)
class Context:
    """Who asks: passed to a method that takes a second argument."""

    group: str
    topic: str


@dataclass(frozen=True, slots=True)
class Needs:
    """What a class declares that it needs: the columns of the batches it is given."""

    is_batch: bool  # it has `match_batch`
    columns: tuple[str, ...]
    properties: tuple[tuple[str, str], ...] = ()  # name and type; columns after the others
    is_declared: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all columns of a batch, in their order."""
        return (*self.columns, *(name for name, _ in self.properties))


class Judge(Protocol):
    """A filter that is ready to judge batches. One caller at a time."""

    @property
    def needs(self) -> Needs: ...

    def judge(self, batch: pa.RecordBatch) -> Verdicts:
        """Judge a batch that has the columns needed, in their order."""

    def close(self) -> None: ...


def needs_of(filter_class: type) -> Needs:
    """Return what a class needs. Raises ValueError, of one line, if it is not a filter."""
    name = filter_class.__name__
    is_batch = callable(getattr(filter_class, "match_batch", None))
    if not is_batch and not callable(getattr(filter_class, "match", None)):
        raise ValueError(f"class {name} has neither match nor match_batch")
    declared = [one for one in ("columns", "properties") if hasattr(filter_class, one)]
    if not declared:
        return Needs(is_batch, _FOR_BATCHES if is_batch else _FOR_MESSAGES)
    columns = _texts(filter_class, "columns")
    for column in columns:
        if column not in COLUMNS:
            raise ValueError(f"columns: no column {column!r}: there are {', '.join(COLUMNS)}")
    properties = tuple(_properties(_texts(filter_class, "properties")))
    if len(properties) > MOST_PROPERTIES:
        raise ValueError(
            f"properties: {len(properties)} are declared, and {MOST_PROPERTIES} can be: declare"
            " the column properties, which has all of them"
        )
    needs = Needs(is_batch, columns, properties, is_declared=True)
    for one in needs.names:
        if needs.names.count(one) > 1:
            what = "columns" if one in columns else "properties"
            raise ValueError(f"{what}: {one!r} is declared twice")
    if not needs.names:
        raise ValueError(f"{' and '.join(declared)}: declare at least one, or leave it out")
    if not is_batch and properties and {"properties", "property_string"} & {*columns}:
        # which of the two would be `message.properties`?
        raise ValueError("columns has all properties already: leave one of the two out")
    return needs


def _texts(filter_class: type, name: str) -> tuple[str, ...]:
    value: Any = getattr(filter_class, name, ())
    if isinstance(value, str):
        raise ValueError(f"{name} = {value!r}: write ({value!r},)")
    if not isinstance(value, (tuple, list)) or not all(isinstance(one, str) for one in value):
        shown = repr(value)
        shown = shown if len(shown) <= 60 else shown[:59] + "…"
        raise ValueError(f"{name} = {shown}: it takes a tuple of strings")
    return tuple(value)


def _properties(items: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for item in items:
        name, colon, kind = item.partition(":")
        if not name or "\x01" in name or "\x02" in name:
            raise ValueError(f"properties: {item!r}: no property can have such a name")
        if colon and kind not in TYPES:
            raise ValueError(f"properties: {item!r}: the types are {', '.join(TYPES)}")
        if name in COLUMNS:
            raise ValueError(
                f"properties: {name!r} is the name of a column: declare the column properties,"
                " which has all of them"
            )
        yield name, kind or "string"
