"""Reading the file that a broker keeps its history in, beside the tables of a store's directory.
What the lines mean is known to `fate.loading`; `broker/historyfile.py` writes them.
"""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import orjson

__all__ = ["NAME", "read_lines"]

log = logging.getLogger(__name__)

NAME: Final = "tamis-history.log"
_LONGEST_LINE: Final = 64 * 2**20  # bytes


def read_lines(path: Path) -> Iterator[Mapping[str, Any]]:
    """Return what is in a file, line by line; nothing if it is not there. Lines that can't be read
    are passed over, and logged once."""
    unreadable = 0
    try:
        with path.open("rb") as file:
            while line := file.readline(_LONGEST_LINE):
                try:
                    value = orjson.loads(line)
                except orjson.JSONDecodeError:
                    value = None
                if isinstance(value, dict):
                    yield value
                else:
                    unreadable += 1
    except FileNotFoundError:
        return
    if unreadable:
        log.warning("%s: %d lines can't be read and are passed over", path, unreadable)
