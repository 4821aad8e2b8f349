"""Our note of what a store consists of: `tamis.json`, which RocketMQ does not look at.

A start trusts queues and index only if all that the note names is there; else it makes them again
from the log.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from . import tables
from .commitlog import Queue
from .files import Files

__all__ = ["load_index_shape", "load_note", "save_note"]

_UNUSABLE = (OSError, ValueError, KeyError, TypeError)


def load_note(path: Path) -> tuple[list[Queue], int] | None:
    """Returns the queues and the number of index files there were; None if we never kept this
    store."""
    try:
        table = json.loads(path.read_text())
        return [(topic, queue_id) for topic, queue_id in table["queues"]], table["index_files"]
    except _UNUSABLE:
        return None


def load_index_shape(path: Path) -> tuple[int, int] | None:
    """Returns how many slots and entries index files have; None if it is not noted."""
    try:
        table = json.loads(path.read_text())
        return table["index_slots"], table["index_entries"]
    except _UNUSABLE:
        return None


def save_note(
    path: Path,
    queues: Sequence[Queue],
    *,
    index_files: int,
    index_shape: tuple[int, int],
    files: Files,
) -> None:
    slots, entries = index_shape
    table = {
        "queues": [list(queue) for queue in queues],
        "index_files": index_files,
        "index_slots": slots,
        "index_entries": entries,
    }
    tables.write_table(path, table, files)
