"""What lint finds."""

from dataclasses import dataclass
from enum import StrEnum

from .nodes import Expr
from .render import render

__all__ = ["Finding", "Severity", "finding_at"]


class Severity(StrEnum):
    ERROR = "error"  # never what was meant: strict mode refuses it
    WARNING = "warning"  # often not what was meant
    NOTE = "note"  # depends on the messages


@dataclass(frozen=True, slots=True)
class Finding:
    """`replacement`, if there is one, goes in place of `text[start:end]`."""

    rule: str
    severity: Severity
    message: str
    start: int
    end: int
    replacement: str | None = None

    def rewritten(self, text: str) -> str | None:
        if self.replacement is None:
            return None
        return text[: self.start] + self.replacement + text[self.end :]


def finding_at(
    expr: Expr, rule: str, severity: Severity, message: str, better: Expr | None
) -> Finding:
    text = None if better is None else render(better)
    return Finding(rule, severity, message, expr.span.start, expr.span.end, text)
