"""A file of metrics: a line of JSON for each batch. It is bounded: a long one is set aside."""

import json
import logging
import os
from collections.abc import Mapping
from typing import Any, Final

from ..errors import ConfigError
from . import files

__all__ = ["append_line", "check_place"]

log = logging.getLogger(__name__)

_LARGEST: Final = 64 * 2**20  # bytes; then it becomes `<name>.1`, in place of the one before


def check_place(path: str) -> None:
    """Check that one can be written there. Raises ConfigError."""
    if os.path.isdir(path):
        raise ConfigError(f"[run] metrics {path}: that is a directory")
    files.check_writable(os.path.dirname(path) or "/", f"[run] metrics {path}")


def append_line(path: str, fields: Mapping[str, Any], largest: int = _LARGEST) -> None:
    """Add a line. A batch that is done does not fail for want of it: what goes wrong is logged."""
    line = json.dumps(fields, ensure_ascii=False) + "\n"
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        if os.path.exists(path) and os.path.getsize(path) + len(line) > largest:
            os.replace(path, f"{path}.1")
        with open(path, "a", encoding="utf-8") as file:
            file.write(line)
    except OSError as error:
        log.warning("metrics can't be written to %s: %s", path, error.strerror or error)
