"""What an account may do with a topic or a group, as RocketMQ's `Permission` has it (4.9.4)."""

from enum import IntFlag
from typing import Final

from ..errors import ConfigError
from ..java import trim

__all__ = ["DLQ", "RETRY", "TRACE_TOPIC", "Perm", "parse_permission", "parse_resource"]

RETRY: Final = "%RETRY%"  # before a group's name: its retry topic, and what stands for the group
DLQ: Final = "%DLQ%"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"


class Perm(IntFlag):
    DENY = 1
    PUB = 4
    SUB = 8


_PERMISSIONS: Final = {
    "PUB": Perm.PUB,
    "SUB": Perm.SUB,
    "PUB|SUB": Perm.PUB | Perm.SUB,
    "SUB|PUB": Perm.PUB | Perm.SUB,
    "DENY": Perm.DENY,
}


def parse_permission(text: str | None) -> Perm | None:
    """None for a word that is none: RocketMQ takes it for DENY."""
    return Perm.DENY if text is None else _PERMISSIONS.get(trim(text))


def parse_resource(text: str, what: str) -> tuple[str, Perm | None]:
    """`topicA=PUB|SUB`. Raises ConfigError."""
    parts = [part for part in text.split("=") if part]
    if len(parts) != 2:
        raise ConfigError(
            f"{what} {text!r:.100}: it is written like name=PUB|SUB, with PUB, SUB, PUB|SUB or DENY"
        )
    return trim(parts[0]), parse_permission(parts[1])
