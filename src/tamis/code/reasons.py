"""Why a filter in code failed, in one line that is not too long."""

from typing import Final

__all__ = ["line_of", "one_line", "shown"]

_LONGEST: Final = 300  # characters
_LONGEST_OF_AN_ERROR: Final = 200


def line_of(error: BaseException) -> str:
    """Return the class of an error and the first line of what it says."""
    try:
        said = str(error).strip().splitlines()
    except Exception:  # the error's class is the filter's own
        said = []
    name = type(error).__name__
    return one_line(f"{name}: {said[0]}" if said else name, _LONGEST_OF_AN_ERROR)


def shown(value: object) -> str:
    """Return the first line of a value's `repr`, which may raise anything."""
    return one_line(repr(value), _LONGEST_OF_AN_ERROR)


def one_line(text: str, longest: int = _LONGEST) -> str:
    """Return the first line of a text, cut if it is long."""
    line = (text[: longest + 1].splitlines() or [""])[0]
    return line if len(line) <= longest else line[: longest - 1] + "…"
