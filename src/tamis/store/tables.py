"""RocketMQ's JSON tables under a store's `config` folder: topics, groups, offsets and filters.

What is written is fastjson's text as RocketMQ 4.9.4 has it (`ConfigManager`, `MixAll.string2File`):
tabs, fields in alphabetical order, integer map keys unquoted. What the values mean, such as that
filters loaded are taken for dead until their group is heard of, is left to the broker.

In two parts: the tables and their fields; reading and replacing a file.
"""

import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from ..errors import StoreError
from ..message import QueueOffset
from ..wire import beans, fastjson
from ..wire.bodies import DataVersion, GroupConfig, Perm, TopicConfig, TopicFilterType
from .files import Files

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
    "read_table",
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

_INTEGER = re.compile(r"-?[0-9]{1,19}")


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


def save_topics(
    config: Path,
    topics: Mapping[str, TopicConfig],
    version: DataVersion,
    files: Files | None = None,
) -> None:
    table = {name: _to_fields(topic) for name, topic in topics.items()}
    value = {"dataVersion": _to_fields(version), "topicConfigTable": table}
    _write(config / "topics.json", value, _topics, files)


def _topics(table: Fields) -> tuple[dict[str, TopicConfig], DataVersion]:
    topics = _entries(table, "topicConfigTable")
    loaded = {name: _from_fields(TopicConfig, topic, name=name) for name, topic in topics.items()}
    return loaded, _from_fields(DataVersion, _entries(table, "dataVersion"))


def load_groups(config: Path) -> tuple[dict[str, GroupConfig], DataVersion]:
    return _read(config / "subscriptionGroup.json", _groups) or ({}, DataVersion())


def save_groups(
    config: Path,
    groups: Mapping[str, GroupConfig],
    version: DataVersion,
    files: Files | None = None,
) -> None:
    table = {name: _to_fields(group) for name, group in groups.items()}
    value = {"dataVersion": _to_fields(version), "subscriptionGroupTable": table}
    _write(config / "subscriptionGroup.json", value, _groups, files)


def _groups(table: Fields) -> tuple[dict[str, GroupConfig], DataVersion]:
    groups = _entries(table, "subscriptionGroupTable")
    loaded = {name: _from_fields(GroupConfig, group, name=name) for name, group in groups.items()}
    return loaded, _from_fields(DataVersion, _entries(table, "dataVersion"))


ConsumerOffsets = Mapping[tuple[str, str], Mapping[int, QueueOffset]]


def load_consumer_offsets(config: Path) -> dict[tuple[str, str], dict[int, QueueOffset]]:
    """(topic, group) to queue to offset."""
    return _read(config / "consumerOffset.json", _consumer_offsets) or {}


def save_consumer_offsets(
    config: Path, offsets: ConsumerOffsets, files: Files | None = None
) -> None:
    table = {f"{topic}@{group}": dict(queues) for (topic, group), queues in offsets.items()}
    _write(config / "consumerOffset.json", {"offsetTable": table}, _consumer_offsets, files)


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


def save_delay_offsets(
    config: Path, offsets: Mapping[int, QueueOffset], files: Files | None = None
) -> None:
    _write(config / "delayOffset.json", {"offsetTable": dict(offsets)}, _delay_offsets, files)


def _delay_offsets(table: Fields) -> dict[int, QueueOffset]:
    return _offsets(_entries(table, "offsetTable"))


Filters = Mapping[tuple[str, str], FilterData]


def load_filters(config: Path) -> dict[tuple[str, str], FilterData]:
    """By (topic, group)."""
    return _read(config / "consumerFilter.json", _filters) or {}


def save_filters(config: Path, filters: Filters, files: Files | None = None) -> None:
    table: Fields = {}
    for (topic, group), data in filters.items():
        of_topic = table.setdefault(topic, {"groupFilterData": {}, "topic": topic})
        of_topic["groupFilterData"][group] = dict(
            sorted((_to_fields(data) | {"dead": data.is_dead}).items())
        )
    _write(config / "consumerFilter.json", {"filterDataByTopic": table}, _filters, files)


def _filters(table: Fields) -> dict[tuple[str, str], FilterData]:
    loaded = {}
    for topic in (by_topic := _entries(table, "filterDataByTopic")):
        for group, data in _entries(_entries(by_topic, topic), "groupFilterData").items():
            loaded[topic, group] = _from_fields(FilterData, data, topic=topic, group=group)
    return loaded


_from_fields = beans.from_json
_to_fields = beans.to_json


def _typed_int(value: Any, name: str) -> int:
    if type(value) is not int:
        raise ValueError(f"{name}: {value!r:.60} is not of type int")
    return value


def _offsets(table: Fields) -> dict[int, QueueOffset]:
    for key in table:
        if not _INTEGER.fullmatch(key):
            raise ValueError(f"{key!r:.60} is not the number of a queue or a level")
    return {int(key): QueueOffset(_typed_int(value, key)) for key, value in table.items()}


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


def write_table(path: Path, value: Mapping[str, Any], files: Files | None = None) -> None:
    """Replace a table. After a crash at any step, the old one or the new one is read.

    1. Make the text: a value that can't be written touches no file.
    2. Write x.json.tmp and sync it.
    3. Write the current text to x.json.bak.tmp and sync it, then rename that to x.json.bak. Unless
       the current text is missing or broken: then the backup is all there is, and stays.
    4. Rename x.json.tmp to x.json.
    5. Sync the directory, for both renames. It does not matter which of them outlives a crash.

    Raises StoreError: then the old one is read, or the new one if only the last step failed.
    RocketMQ syncs nothing, writes over the backup, and for a moment has no x.json.
    """
    _write(path, value, lambda table: table, files)


def _read(path: Path, decode: Callable[[Fields], T]) -> T | None:
    faults = []
    is_broken = False
    for file in (path, _beside(path, ".bak")):
        try:
            value = decode(_parsed(_text(file.read_bytes())))
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


def _write(
    path: Path,
    value: Mapping[str, Any],
    decode: Callable[[Fields], object],
    files: Files | None = None,
) -> None:
    files = files or Files()
    # ASCII: read alike whatever the JVM's file.encoding
    data = fastjson.render(value, pretty=True, ascii_only=True).encode()  # 1
    new = files.make_directory(path.parent)
    files.write_whole(_beside(path, ".tmp"), data)  # 2
    try:
        current = files.read(path)
        decode(_parsed(_text(current)))
    except (FileNotFoundError, ValueError):
        pass
    else:
        files.write_whole(_beside(path, ".bak.tmp"), current)  # 3
        files.replace(_beside(path, ".bak.tmp"), _beside(path, ".bak"))
    files.replace(_beside(path, ".tmp"), path)  # 4
    for directory in (path.parent, *new):
        files.sync_directory(directory)  # 5


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _text(data: bytes) -> str:
    if not data.strip(b"\0 \t\r\n"):  # zeros: what some file systems leave of an unsynced file
        raise ValueError(f"nothing in its {len(data)} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        before = data[: error.start].decode()
        reason = "Not UTF-8 (a JVM writes in its file.encoding; convert it)"
        raise json.JSONDecodeError(reason, before, len(before)) from None


def _parsed(text: str) -> Fields:
    value = fastjson.parse(text)
    if not isinstance(value, dict):
        raise json.JSONDecodeError("Expecting an object", text, 0)
    return value
