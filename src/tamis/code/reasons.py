"""Why a filter in code failed, in one line that is not too long."""

from typing import Final

__all__ = ["line_of", "shown"]

_LONGEST: Final = 200  # characters


def line_of(error: BaseException) -> str:
    """Return the class of an error and the first line of what it says."""
    try:
        said = str(error).strip().splitlines()
    except Exception:  # the error's class is the filter's own
        said = []
    return _cut(f"{type(error).__name__}: {said[0]}" if said else type(error).__name__)


def shown(value: object) -> str:
    """Return the first line of a value's `repr`, which may raise anything."""
    return (_cut(repr(value)).splitlines() or [""])[0]


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
