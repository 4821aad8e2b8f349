"""The name server's key-value table: what operators put there, above all the order of topics.

With a directory it is kept in `kvConfig.json`, as RocketMQ writes it. After a crash at any step the
table is as it was before or after a change; what was answered for is on the disk.
"""

import asyncio
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

from ..errors import ConfigError, ResponseError
from ..wire import beans
from ..wire.codes import ResponseCode

__all__ = ["FILE_NAME", "ORDER_TOPICS", "KvConfig"]

log = logging.getLogger(__name__)

FILE_NAME: Final = "kvConfig.json"
_MOST_TEXT: Final = 65_536  # characters
ORDER_TOPICS: Final = "ORDER_TOPIC_CONFIG"  # the namespace of orders: `broker:queues;...` by topic

Table = dict[str, dict[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    table: Annotated[Table, "configTable"] = field(default_factory=dict)


class KvConfig:
    """Belongs to one event loop. Changes follow each other; each is on the disk, then seen."""

    def __init__(self, directory: Path | None, most: int = 10_000) -> None:
        """`most`: keys of all namespaces. Raises ConfigError if there is a table that can't be
        read."""
        self._path = directory / FILE_NAME if directory is not None else None
        self._table = _load(self._path) if self._path is not None else {}
        self._changing = asyncio.Lock()
        self._most = most

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        return self._table.get(namespace)

    async def put(self, namespace: str, key: str, value: str) -> None:
        """Raises OSError, and ResponseError if there are too many."""
        if max(map(len, (namespace, key, value))) > _MOST_TEXT:
            why = f"a namespace, key or value of more than {_MOST_TEXT} characters"
            raise ResponseError(ResponseCode.SYSTEM_ERROR, why)
        async with self._changing:
            count = len(self._table) + sum(map(len, self._table.values()))
            if self.get(namespace, key) is None and count >= self._most:
                why = f"there are {count} namespaces and keys, which is all (most_keys)"
                raise ResponseError(ResponseCode.SYSTEM_ERROR, why)
            if self.get(namespace, key) != value:
                entries = {**self._table.get(namespace, {}), key: value}
                await self._replace({**self._table, namespace: entries})
                log.info("%s: %s set to %r", namespace, key, value)

    async def delete(self, namespace: str, key: str) -> None:
        """The namespace stays, if empty. Raises OSError."""
        async with self._changing:
            if self.get(namespace, key) is not None:
                entries = {k: v for k, v in self._table[namespace].items() if k != key}
                await self._replace({**self._table, namespace: entries})
                log.info("%s: %s deleted", namespace, key)

    async def _replace(self, table: Table) -> None:
        if self._path is not None:
            await asyncio.to_thread(_save, self._path, table)
        self._table = table


def _load(path: Path) -> Table:
    try:
        return beans.decode(_File, path.read_bytes()).table
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path} can't be read: {error}. Mend it, or move it away to begin with an empty table"
        ) from None


def _save(path: Path, table: Table) -> None:
    """1. Write a file beside it and sync that. 2. Rename it. 3. Sync the directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".tmp")
    with beside.open("wb") as file:  # 1
        file.write(beans.encode(_File(table=table)))
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)  # 2
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)  # 3
    finally:
        os.close(directory)
