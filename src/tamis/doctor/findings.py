"""What a check finds, and how commands that mend it are written."""

import shlex
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

__all__ = ["Finding", "Severity", "command_line"]


class Severity(StrEnum):
    """How bad it is, the worst first."""

    SERIOUS = "serious"  # messages are lost, or not delivered to whom they were meant for
    WARNING = "warning"  # it may come to that, or somebody should look
    INFO = "info"  # good to know, harmless as it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`evidence` is plain JSON. `command` mends it, or only shows more of it if `mends` is false:
    then `advice` says what there is to do."""

    check: str
    severity: Severity
    message: str
    group: str | None = None
    topic: str | None = None
    broker: str | None = None
    queue: int | None = None
    evidence: dict[str, Any] = field(default_factory=dict)
    command: str | None = None
    mends: bool = False
    advice: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "check": self.check,
            "severity": self.severity.value,
            "group": self.group,
            "topic": self.topic,
            "broker": self.broker,
            "queue": self.queue,
            "message": self.message,
            "evidence": self.evidence,
            "command": self.command,
            "mends": self.mends,
            "advice": self.advice,
        }


def command_line(nameserver: str | None, *words: object) -> str:
    """Return a command of ours, for a cluster if one is given, quoted for a shell."""
    where = [] if nameserver is None else ["--nameserver", nameserver]
    return shlex.join(["tamis", *map(str, words), *where])
