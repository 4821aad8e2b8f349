"""Reading the file that a broker keeps its history in, beside the tables of a store's directory.
What the lines mean is known to `fate.loading`; `broker/historyfile.py` writes them.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import orjson

__all__ = ["NAME", "read_lines"]

NAME: Final = "tamis-history.log"
_LONGEST_LINE: Final = 64 * 2**20  # bytes


def read_lines(path: Path) -> Iterator[Mapping[str, Any] | None]:
    """Return what is in a file, line by line; nothing if it is not there. None for a line that is
    no JSON object. Raises OSError."""
    try:
        with path.open("rb") as file:
            while line := file.readline(_LONGEST_LINE):
                if line == b"\n":
                    continue  # after what was cut short
                try:
                    value = orjson.loads(line)
                except orjson.JSONDecodeError:
                    value = None
                yield value if isinstance(value, dict) else None
    except FileNotFoundError:
        return
