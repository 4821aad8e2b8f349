"""The exact lag of groups that filter in code, as filter servers count and report it.

The broker can't run their classes; a filter server does, and says every few seconds what it
counted. A report holds for as long as it says, and while its filter server is connected.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import orjson

from ..errors import ResponseError
from ..net.aio import Peer
from ..wire.codes import ResponseCode

__all__ = ["CodeLag", "CodeLags"]

_MOST: Final = 10_000  # groups and topics
_LONGEST: Final = 3 * 3600.0  # seconds that a report may hold


@dataclass(frozen=True, slots=True)
class CodeLag:
    class_name: str
    matching: int
    oldest: int | None  # when the first message that matches was stored, in milliseconds
    until: float
    reporter: Peer


class CodeLags:
    """Belongs to the event loop; `get` is for any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lags: dict[tuple[str, str], CodeLag] = {}

    def get(self, group: str, topic: str, class_name: str) -> CodeLag | None:
        """`class_name`: as the group subscribes, perhaps with a package before it."""
        lag = self._lags.get((group, topic))
        if lag is None or lag.until < self._clock():
            return None
        return lag if lag.class_name == class_name.rpartition(".")[2] else None

    def report(self, reporter: Peer, body: bytes) -> None:
        """Raises ResponseError if that is not a report."""
        try:
            told = orjson.loads(body)
            until = self._clock() + min(float(told["seconds"]), _LONGEST)
            lags = dict(_read(row, until, reporter) for row in told["lags"])
        except (ValueError, KeyError, TypeError) as error:
            why = f"this is not a report of lags: {type(error).__name__}: {error}"
            raise ResponseError(ResponseCode.SYSTEM_ERROR, why) from None
        if len(self._lags.keys() | lags.keys()) > _MOST:
            self._forget_old()
        if len(self._lags.keys() | lags.keys()) > _MOST:
            why = f"the broker keeps the lags of {_MOST} groups, and takes no more"
            raise ResponseError(ResponseCode.SYSTEM_BUSY, why)
        self._lags |= lags

    def drop(self, reporter: Peer) -> None:
        """Its connection is gone."""
        gone = [key for key, lag in self._lags.items() if lag.reporter is reporter]
        for key in gone:
            del self._lags[key]

    def _forget_old(self) -> None:
        now = self._clock()
        self._lags = {key: lag for key, lag in self._lags.items() if lag.until >= now}


def _read(row: dict[str, Any], until: float, reporter: Peer) -> tuple[tuple[str, str], CodeLag]:
    oldest = row["oldest"]
    lag = CodeLag(
        str(row["class"]),
        int(row["matching"]),
        None if oldest is None else int(oldest),
        until,
        reporter,
    )
    return (str(row["group"]), str(row["topic"])), lag
