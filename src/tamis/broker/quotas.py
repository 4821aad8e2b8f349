"""How many topics and groups there may be, and who may create them by merely using them.

A message to a topic that is not there creates it, and so does a heartbeat with its group and the
group's retry topic: anyone who can reach the broker could fill its tables. What is created that way
is limited in all, and for each client address by the minute; what tools create, in all.
"""

import time
from collections.abc import Callable
from typing import Final

from ..errors import ResponseError
from ..wire.codes import ResponseCode
from .config import Settings

__all__ = ["MOST_NAME", "Quotas"]

_MOST_CLIENTS: Final = 10_000  # addresses that are remembered
_MINUTE: Final = 60.0
MOST_NAME: Final = 255  # characters of a group's name; clients take no more either


class Quotas:
    """Belongs to one event loop. `refused` counts what was not created."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}  # by address: how many, at what time
        self.refused = 0

    def check_topic(self, name: str, count: int, client: str | None) -> None:
        """Whether a client, or a tool if there is none, may create one more topic than `count`.
        Raises ResponseError."""
        config = self._settings.config
        code = ResponseCode.SYSTEM_ERROR if client is None else ResponseCode.TOPIC_NOT_EXIST
        what, limits = f"topic[{name}]", (config.most_topics, config.most_auto_topics)
        self._check(what, count, limits, ("most_topics", "most_auto_topics"), code, client)

    def check_group(self, name: str, count: int, client: str | None) -> None:
        """The same for a group."""
        if len(name) > MOST_NAME:
            why = f"a group's name of {len(name)} characters: the broker takes {MOST_NAME}"
            raise ResponseError(ResponseCode.SYSTEM_ERROR, why)
        config = self._settings.config
        code = ResponseCode.SYSTEM_ERROR
        if client is not None:
            code = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        what, limits = f"subscription group [{name}]", (config.most_groups, config.most_auto_groups)
        self._check(what, count, limits, ("most_groups", "most_auto_groups"), code, client)

    def _check(
        self,
        what: str,
        count: int,
        limits: tuple[int, int],
        names: tuple[str, str],
        code: ResponseCode,
        client: str | None,
    ) -> None:
        why = None
        if count >= limits[0]:
            why = f"there are {count} already, the broker takes {limits[0]} ({names[0]})"
        elif client is None:
            return
        elif count >= limits[1]:
            why = (
                f"there are {count} already, beyond {limits[1]} none is created by using it "
                f"({names[1]}); create it by a tool"
            )
        elif not self._take(client):
            most = self._settings.config.auto_create_per_minute
            why = (
                f"{client} has created {most} topics and groups by using them in a minute "
                "(auto_create_per_minute); wait, or create it by a tool"
            )
        if why is not None:
            self.refused += 1
            raise ResponseError(code, f"{what} is not created: {why}")

    def _take(self, client: str) -> bool:
        """One of what the address may create, which fills up again in a minute."""
        most, now = self._settings.config.auto_create_per_minute, self._clock()
        left, seen = self._left.pop(client, (float(most), now))
        left = min(left + (now - seen) * most / _MINUTE, most)
        while len(self._left) >= _MOST_CLIENTS:
            del self._left[next(iter(self._left))]  # the one that was heard of longest ago
        self._left[client] = (left - 1 if left >= 1 else left, now)
        return left >= 1
