"""What the servers log, one line an event on standard error: `key=value`, or JSON.

Only here are handlers configured; the packages log and leave the rest to whoever runs them.
"""

import json
import logging
import traceback
from datetime import UTC, datetime

__all__ = ["FORMATS", "LEVELS", "configure"]

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")


def configure(level: str, form: str) -> None:
    """Ours from `level` up, those of libraries from warnings up."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Json() if form == "json" else _Text())
    logging.basicConfig(level=max(logging.WARNING, _number(level)), handlers=[handler], force=True)
    logging.getLogger("tamis").setLevel(_number(level))


def _number(level: str) -> int:
    return logging.getLevelNamesMapping()[level.upper()]


def _facts(record: logging.LogRecord) -> dict[str, str]:
    time = datetime.fromtimestamp(record.created, UTC)
    facts = {
        "time": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": record.getMessage(),
    }
    if record.exc_info and record.exc_info[1] is not None:
        error = record.exc_info[1]
        facts["error"] = f"{type(error).__name__}: {error}"
        facts["traceback"] = "".join(traceback.format_exception(error))
    return facts


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(_facts(record), ensure_ascii=False)


class _Text(logging.Formatter):
    """A value that is not one plain word is in quotes, with JSON's escapes."""

    def format(self, record: logging.LogRecord) -> str:
        return " ".join(f"{name}={_shown(value)}" for name, value in _facts(record).items())


def _shown(value: str) -> str:
    is_word = value.isprintable() and value and not set(value) & set(' "=\\')
    return value if is_word else json.dumps(value, ensure_ascii=False)
