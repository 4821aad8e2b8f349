"""RocketMQ's JSON tables under a store's `config` folder: topics, groups, offsets and filters.

What is written is fastjson's text as RocketMQ 4.9.4 has it (`ConfigManager`, `MixAll.string2File`):
tabs, fields in alphabetical order, integer map keys unquoted. What the values mean, such as that
filters loaded are taken for dead until their group is heard of, is left to the broker.

In three parts: the tables and their fields; reading and replacing a file; fastjson's text.
"""

import json
import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from enum import IntFlag, StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, get_args, get_type_hints

from ..errors import StoreError
from ..message import QueueOffset

__all__ = [
    "DataVersion",
    "FilterData",
    "GroupConfig",
    "Perm",
    "TopicConfig",
    "TopicFilterType",
    "load_consumer_offsets",
    "load_delay_offsets",
    "load_filters",
    "load_groups",
    "load_topics",
    "parse",
    "read_table",
    "render",
    "save_consumer_offsets",
    "save_delay_offsets",
    "save_filters",
    "save_groups",
    "save_topics",
    "write_table",
]

logger = logging.getLogger(__name__)

T = TypeVar("T")
Fields = dict[str, Any]

MAX_DEPTH: Final = 32  # of objects and arrays in each other; RocketMQ's tables need 6
_SPACE = re.compile(r"[ \t\r\n]*")
_INTEGER = re.compile(r"-?[0-9]{1,19}")


class Perm(IntFlag):
    """What a topic allows. RocketMQ's source names bit positions; these are the masks."""

    INHERIT = 1 << 0
    WRITE = 1 << 1
    READ = 1 << 2
    PRIORITY = 1 << 3


class TopicFilterType(StrEnum):
    SINGLE_TAG = "SINGLE_TAG"
    MULTI_TAG = "MULTI_TAG"


# A field of a table is declared once, with its name in the file; a dot leads into an object within.
# One missing from the file has its default here, or else Java's zero or empty.


@dataclass(frozen=True, slots=True, kw_only=True)
class DataVersion:
    """Goes up with every change of a table; the name server compares it."""

    timestamp: Annotated[int, "timestamp"] = 0  # milliseconds
    counter: Annotated[int, "counter"] = 0

    def next(self, now: int) -> "DataVersion":
        return DataVersion(timestamp=now, counter=self.counter + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    name: Annotated[str, "topicName"]
    read_queues: Annotated[int, "readQueueNums"] = 16
    write_queues: Annotated[int, "writeQueueNums"] = 16
    perm: Annotated[Perm, "perm"] = Perm.READ | Perm.WRITE
    filter_type: Annotated[TopicFilterType, "topicFilterType"] = TopicFilterType.SINGLE_TAG
    sys_flag: Annotated[int, "topicSysFlag"] = 0
    order: Annotated[bool, "order"] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    name: Annotated[str, "groupName"]
    consume_enabled: Annotated[bool, "consumeEnable"] = True
    consume_from_min_enabled: Annotated[bool, "consumeFromMinEnable"] = True
    consume_broadcast_enabled: Annotated[bool, "consumeBroadcastEnable"] = True
    retry_queues: Annotated[int, "retryQueueNums"] = 1
    retry_max_times: Annotated[int, "retryMaxTimes"] = 16
    broker_id: Annotated[int, "brokerId"] = 0  # the master
    which_broker_when_consume_slowly: Annotated[int, "whichBrokerWhenConsumeSlowly"] = 1
    notify_consumer_ids_changed: Annotated[bool, "notifyConsumerIdsChangedEnable"] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterData:
    """The SQL filter of a group on a topic. Times are milliseconds."""

    group: Annotated[str, "consumerGroup"]
    topic: Annotated[str, "topic"]
    expression: Annotated[str, "expression"]
    expression_type: Annotated[str, "expressionType"]
    born_time: Annotated[int, "bornTime"]
    dead_time: Annotated[int, "deadTime"] = 0
    client_version: Annotated[int, "clientVersion"]
    bloom_positions: Annotated[tuple[int, ...], "bloomFilterData.bitPos"]
    bloom_bits: Annotated[int, "bloomFilterData.bitNum"]

    @property
    def is_dead(self) -> bool:
        return self.dead_time >= self.born_time


def load_topics(config: Path) -> tuple[dict[str, TopicConfig], DataVersion]:
    return _read(config / "topics.json", _topics) or ({}, DataVersion())


def save_topics(config: Path, topics: Mapping[str, TopicConfig], version: DataVersion) -> None:
    table = {name: _to_fields(topic) for name, topic in topics.items()}
    value = {"dataVersion": _to_fields(version), "topicConfigTable": table}
    _write(config / "topics.json", value, _topics)


def _topics(table: Fields) -> tuple[dict[str, TopicConfig], DataVersion]:
    topics = _entries(table, "topicConfigTable")
    loaded = {name: _from_fields(TopicConfig, topic, name=name) for name, topic in topics.items()}
    return loaded, _from_fields(DataVersion, _entries(table, "dataVersion"))


def load_groups(config: Path) -> tuple[dict[str, GroupConfig], DataVersion]:
    return _read(config / "subscriptionGroup.json", _groups) or ({}, DataVersion())


def save_groups(config: Path, groups: Mapping[str, GroupConfig], version: DataVersion) -> None:
    table = {name: _to_fields(group) for name, group in groups.items()}
    value = {"dataVersion": _to_fields(version), "subscriptionGroupTable": table}
    _write(config / "subscriptionGroup.json", value, _groups)


def _groups(table: Fields) -> tuple[dict[str, GroupConfig], DataVersion]:
    groups = _entries(table, "subscriptionGroupTable")
    loaded = {name: _from_fields(GroupConfig, group, name=name) for name, group in groups.items()}
    return loaded, _from_fields(DataVersion, _entries(table, "dataVersion"))


ConsumerOffsets = Mapping[tuple[str, str], Mapping[int, QueueOffset]]


def load_consumer_offsets(config: Path) -> dict[tuple[str, str], dict[int, QueueOffset]]:
    """(topic, group) to queue to offset."""
    return _read(config / "consumerOffset.json", _consumer_offsets) or {}


def save_consumer_offsets(config: Path, offsets: ConsumerOffsets) -> None:
    table = {f"{topic}@{group}": dict(queues) for (topic, group), queues in offsets.items()}
    _write(config / "consumerOffset.json", {"offsetTable": table}, _consumer_offsets)


def _consumer_offsets(table: Fields) -> dict[tuple[str, str], dict[int, QueueOffset]]:
    loaded = {}
    for key in (offsets := _entries(table, "offsetTable")):
        topic, at, group = key.partition("@")  # RocketMQ lets no @ into a topic's name
        if not at:
            raise ValueError(f"offsetTable.{key}: expecting topic@group")
        loaded[topic, group] = _offsets(_entries(offsets, key))
    return loaded


def load_delay_offsets(config: Path) -> dict[int, QueueOffset]:
    """Delay level to how far its queue has been delivered."""
    return _read(config / "delayOffset.json", _delay_offsets) or {}


def save_delay_offsets(config: Path, offsets: Mapping[int, QueueOffset]) -> None:
    _write(config / "delayOffset.json", {"offsetTable": dict(offsets)}, _delay_offsets)


def _delay_offsets(table: Fields) -> dict[int, QueueOffset]:
    return _offsets(_entries(table, "offsetTable"))


Filters = Mapping[tuple[str, str], FilterData]


def load_filters(config: Path) -> dict[tuple[str, str], FilterData]:
    """By (topic, group)."""
    return _read(config / "consumerFilter.json", _filters) or {}


def save_filters(config: Path, filters: Filters) -> None:
    table: Fields = {}
    for (topic, group), data in filters.items():
        of_topic = table.setdefault(topic, {"groupFilterData": {}, "topic": topic})
        of_topic["groupFilterData"][group] = _to_fields(data, dead=data.is_dead)
    _write(config / "consumerFilter.json", {"filterDataByTopic": table}, _filters)


def _filters(table: Fields) -> dict[tuple[str, str], FilterData]:
    loaded = {}
    for topic in (by_topic := _entries(table, "filterDataByTopic")):
        for group, data in _entries(_entries(by_topic, topic), "groupFilterData").items():
            loaded[topic, group] = _from_fields(FilterData, data, topic=topic, group=group)
    return loaded


def _columns(row: type[Any]) -> list[tuple[str, Any, list[str], bool]]:
    """Of each field: its name, its type, its path in the file, whether it has a default."""
    hints = get_type_hints(row, include_extras=True)
    return [
        (field.name, kind, path.split("."), field.default is not MISSING)
        for field in fields(row)
        for kind, path in [get_args(hints[field.name])]
    ]


_COLUMNS: Final[dict[type[Any], list[tuple[str, Any, list[str], bool]]]] = {
    row: _columns(row) for row in (DataVersion, TopicConfig, GroupConfig, FilterData)
}


def _to_fields(row: Any, **derived: bool) -> Fields:
    made: Fields = dict(derived)
    for name, _, (*outer, last), _ in _COLUMNS[type(row)]:
        inner = made
        for part in outer:
            inner = inner.setdefault(part, {})
        inner[last] = getattr(row, name)
    return _sorted(made)


def _sorted(made: Fields) -> Fields:
    return {key: _sorted(v) if isinstance(v, dict) else v for key, v in sorted(made.items())}


def _from_fields(row: type[T], source: Any, **keys: str) -> T:
    """`keys` are what the entry is filed under; they stand in for fields it lacks."""
    values: Fields = dict(keys)
    source = _object(source, " ".join(keys.values()) or row.__name__)
    for name, kind, (*outer, last), has_default in _COLUMNS[row]:
        inner = source
        for part in outer:
            inner = _entries(inner, part)
        if (value := inner.get(last)) is not None:
            values[name] = _typed(value, kind, last)
        elif not has_default:
            values.setdefault(name, kind())
    return row(**values)


def _typed(value: Any, kind: Any, name: str) -> Any:
    if kind == tuple[int, ...] and isinstance(value, list):
        return tuple(_typed(item, int, name) for item in value)
    if isinstance(kind, type) and isinstance(value, bool) is (kind is bool):
        for plain in (bool, int, str):
            if issubclass(kind, plain) and isinstance(value, plain):
                return kind(value)
    raise ValueError(f"{name}: {value!r:.60} is not of type {getattr(kind, '__name__', kind)}")


def _offsets(table: Fields) -> dict[int, QueueOffset]:
    for key in table:
        if not _INTEGER.fullmatch(key):
            raise ValueError(f"{key!r:.60} is not the number of a queue or a level")
    return {int(key): QueueOffset(_typed(value, int, key)) for key, value in table.items()}


def _entries(table: Fields, name: str) -> Fields:
    """The object under a name; an absent one is empty."""
    value = table.get(name)
    return {} if value is None else _object(value, name)


def _object(value: Any, name: str) -> Fields:
    if not isinstance(value, dict):
        raise ValueError(f"{name}: {value!r:.60} is not an object")
    return {str(key): entry for key, entry in value.items()}


def read_table(path: Path) -> Fields | None:
    """The table at `path`; if that is missing, empty or broken, its backup; None without either."""
    return _read(path, lambda table: table)


def write_table(path: Path, value: Mapping[str, Any]) -> None:
    """Replace a table. After a crash at any step, the old one or the new one is read.

    1. Make the text: a value that can't be written touches no file.
    2. Write x.json.tmp and sync it.
    3. Write the current text to x.json.bak.tmp and sync it, then rename that to x.json.bak. Unless
       the current text is missing or broken: then the backup is all there is, and stays.
    4. Rename x.json.tmp to x.json.
    5. Sync the directory, for both renames. It does not matter which of them outlives a crash.

    RocketMQ syncs nothing, writes over the backup, and for a moment has no x.json.
    """
    _write(path, value, lambda table: table)


def _read(path: Path, decode: Callable[[Fields], T]) -> T | None:
    faults = []
    is_broken = False
    for file in (path, _beside(path, ".bak")):
        try:
            value = decode(parse(_text(file.read_bytes())))
        except FileNotFoundError:
            faults.append(f"{file.name} is missing")
        except ValueError as error:
            faults.append(f"{file.name}: {error}")
            is_broken = True
        else:
            if faults:
                logger.warning("%s: %s; read %s in its place", path, faults[0], file.name)
            return value
    if not is_broken:
        return None
    raise StoreError(
        f"{path} can't be read: {'; '.join(faults)}. Mend it or put back a copy; "
        "to begin with an empty table, move both files away"
    )


def _write(path: Path, value: Mapping[str, Any], decode: Callable[[Fields], object]) -> None:
    data = render(value).encode()  # 1
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_synced(_beside(path, ".tmp"), data)  # 2
    try:
        current = path.read_bytes()
        decode(parse(_text(current)))
    except (FileNotFoundError, ValueError):
        pass
    else:
        _write_synced(_beside(path, ".bak.tmp"), current)  # 3
        os.replace(_beside(path, ".bak.tmp"), _beside(path, ".bak"))
    os.replace(_beside(path, ".tmp"), path)  # 4
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)  # 5
    finally:
        os.close(directory)


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _text(data: bytes) -> str:
    if not data.strip(b"\0 \t\r\n"):  # zeros: what some file systems leave of an unsynced file
        raise ValueError(f"nothing in its {len(data)} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        before = data[: error.start].decode()
        reason = "Not UTF-8 (a JVM writes in its file.encoding; convert it)"
        raise json.JSONDecodeError(reason, before, len(before)) from None


def parse(text: str) -> Fields:
    """The object in a JSON text. ValueError if it is none.

    As in fastjson, a key may be an integer without quotes; it comes back as an int.
    """
    value, end = _value(text, _skip(text, 0), 0)
    if (end := _skip(text, end)) != len(text):
        raise json.JSONDecodeError("Extra data", text, end)
    if not isinstance(value, dict):
        raise json.JSONDecodeError("Expecting an object", text, _skip(text, 0))
    return value


def _value(text: str, at: int, depth: int) -> tuple[Any, int]:
    """A value that begins at `at`, and where it ends."""
    opening = text[at : at + 1]
    if opening not in ("{", "["):
        return _scalar(text, at)
    if depth == MAX_DEPTH:
        raise json.JSONDecodeError(f"More than {MAX_DEPTH} levels deep", text, at)
    entries: Fields = {}
    items: list[Any] = []
    closing, result = ("}", entries) if opening == "{" else ("]", items)
    at = _skip(text, at + 1)
    if text.startswith(closing, at):
        return result, at + 1
    while True:
        if result is entries:
            key, at = _key(text, at)
            entries[key], at = _value(text, at, depth + 1)
        else:
            item, at = _value(text, at, depth + 1)
            items.append(item)
        at = _skip(text, at)
        if text.startswith(closing, at):
            return result, at + 1
        if not text.startswith(",", at):
            raise json.JSONDecodeError(f"Expecting ',' or '{closing}'", text, at)
        at = _skip(text, at + 1)


def _key(text: str, at: int) -> tuple[Any, int]:
    """A key that begins at `at`, and where its value begins."""
    key: str | int
    if number := _INTEGER.match(text, at):
        key, at = int(number[0]), number.end()
    elif text.startswith('"', at):
        key, at = _scalar(text, at)
    else:
        raise json.JSONDecodeError("Expecting a key: a string or an integer", text, at)
    at = _skip(text, at)
    if not text.startswith(":", at):
        raise json.JSONDecodeError("Expecting ':'", text, at)
    return key, _skip(text, at + 1)


def _scalar(text: str, at: int) -> tuple[Any, int]:
    try:
        return _SCALARS.raw_decode(text, at)
    except json.JSONDecodeError:
        raise
    except ValueError as error:  # NaN, or more digits than Python takes
        raise json.JSONDecodeError(str(error), text, at) from None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


_SCALARS = json.JSONDecoder(parse_constant=_refuse)
_ENCODE = json.JSONEncoder(allow_nan=False).encode


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space else at


def render(value: Any, depth: int = 0) -> str:
    """JSON as fastjson's pretty format has it; a key that is an int has no quotes and no line.

    What is not ASCII is escaped, so that it is read alike whatever the JVM's file.encoding.
    """
    if isinstance(value, Mapping):
        line = "\n" + "\t" * (depth + 1)
        entries = (
            f"{line}{_ENCODE(key)}:{render(entry, depth + 1)}"
            if isinstance(key, str)
            else f"{key:d}:{render(entry, depth + 1)}"
            for key, entry in value.items()
        )
        return f"{{{','.join(entries)}{line[:-1]}}}" if value else "{}"
    if isinstance(value, list | tuple):
        return f"[{','.join(render(item, depth + 1) for item in value)}]"
    return _ENCODE(value)
