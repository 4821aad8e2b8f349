"""What the text of one option says. Readers raise ValueError with what is wrong; whoever asks knows
the option's name."""

import difflib
import re
from collections.abc import Callable, Mapping
from typing import Final

from ..errors import ConfigError

__all__ = [
    "choice",
    "flag",
    "kafka_seconds",
    "names",
    "number",
    "refuse_unknown",
    "seconds",
    "text",
]


def refuse_unknown(options: Mapping[str, str], spelled: Mapping[str, str]) -> None:
    """`spelled`: names by their lower case."""
    for name in options:
        if name.lower() not in spelled:
            near = difflib.get_close_matches(name.lower(), spelled, 1)
            hint = f"did you mean {spelled[near[0]]}?" if near else f"there are {_list(spelled)}"
            raise ConfigError(f"there is no option {name}: {hint}")


def _list(spelled: Mapping[str, str]) -> str:
    return ", ".join(sorted(spelled.values()))


def text(said: str) -> str:
    if not said.strip():
        raise ValueError("it is empty")
    return said.strip()


def number(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError(f"{text!r} is no whole number") from None
        if value < least:
            raise ValueError(f"{value} is too small: it takes {least} or more")
        return value

    return read


def flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)?\Z")
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


def seconds(text: str, unit: str = "s") -> float:
    found = _DURATION.match(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no duration: say 500ms, 10s, 5m, 1h")
    return float(found[1]) * _UNITS[found[2] or unit]


def kafka_seconds(text: str) -> float:
    """As Spark's Kafka source reads it: a bare number is of milliseconds."""
    return seconds(text, "ms")


def choice(*choices: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(f"{text!r} is none of {', '.join(choices)}")
        return text.lower()

    return read


def names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
