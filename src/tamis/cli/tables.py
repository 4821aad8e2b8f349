"""Tables on the terminal, and the times and ages in them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import click

__all__ = ["age_text", "print_table", "time_text"]

_UNITS: Final = (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, err: bool = False
) -> None:
    """Numbers to the right."""
    texts = [list(columns), *([str(value) for value in row] for row in rows)]
    widths = [max(len(row[n]) for row in texts) for n in range(len(columns))]
    numbers = [all(isinstance(row[n], int) for row in rows) for n in range(len(columns))]
    for at, row in enumerate(texts):
        cells = (
            text.rjust(width) if is_number else text.ljust(width)
            for text, width, is_number in zip(row, widths, numbers, strict=True)
        )
        line = "  ".join(cells).rstrip()
        click.echo(click.style(line, dim=True) if at == 0 else line, err=err)


def time_text(milliseconds: int | None) -> str:
    if milliseconds is None:
        return "-"
    return datetime.fromtimestamp(milliseconds / 1000).isoformat(" ", "milliseconds")


def age_text(seconds: float) -> str:
    """Return an age in its two largest units: 3m 20s, 2d 3h; below a second, 0s."""
    left, parts = max(int(seconds), 0), list[str]()
    for unit, size in _UNITS:
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count}{unit}")
    return " ".join(part for part in parts[:2] if part[0] != "0") or "0s"
