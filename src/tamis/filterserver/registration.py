"""How a filter server makes itself known to its broker, and keeps doing so.

The broker names those it hears of in its own registrations, so that clients find them in routes.
RocketMQ's filter server ended itself after the first failure; this one tries again.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from ..errors import Error, ResponseError
from ..wire.codes import ResponseCode
from ..wire.headers import RegisterFilterServer, RegisterFilterServerResponse
from .link import BrokerLink

__all__ = ["Registration"]

log = logging.getLogger(__name__)

_TIMEOUT: Final = 3.0
_RETRY: Final = (0.5, 1.0, 2.0, 5.0, 10.0)  # seconds, after the first, second, ... failure


class Registration:
    """Registers every so many seconds, at once when the connection is another, and after a
    failure with growing pauses. Logs changes only."""

    def __init__(self, link: BrokerLink, address: Callable[[], str], seconds: float) -> None:
        """`address`: where clients reach this server; asked when there is a connection."""
        self._link = link
        self._address = address
        self._seconds = seconds
        self._wake = asyncio.Event()
        self._failures = 0
        self._last_failure = ""
        self.is_registered = False
        self.failure = ""  # why not
        link.on_change = self._wake.set

    async def run(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self._register()
            except (Error, OSError) as error:  # a TimeoutError is an OSError
                self._failed(_reason(error))
            pause = self._seconds
            if not self.is_registered:
                pause = min(_RETRY[min(self._failures, len(_RETRY)) - 1], pause)
                await asyncio.sleep(min(_RETRY[0], pause))  # whatever it is woken by
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()

    async def _register(self) -> None:
        await self._link.peer()
        self._wake.clear()  # of this connection
        header = RegisterFilterServer(filter_server_addr=self._address())
        answer = await self._link.ask(header, _TIMEOUT)
        found = RegisterFilterServerResponse.from_fields(answer.fields)
        is_new = not self.is_registered or found.broker_name != self._link.broker_name
        self._link.broker_name, self._link.broker_id = found.broker_name, found.broker_id
        self._failures, self.is_registered = 0, True
        self.failure = self._last_failure = ""
        if is_new:
            log.info(
                "registered as %s with broker %s (id %d) at %s",
                *(header.filter_server_addr, found.broker_name, found.broker_id),
                self._link.address,
            )

    def _failed(self, why: str) -> None:
        if self.is_registered or why != self._last_failure:
            log.warning("not registered with the broker, trying again: %s", why)
        self._failures += 1
        self.is_registered = False
        self.failure = self._last_failure = why


def _reason(error: Exception) -> str:
    if isinstance(error, ResponseError) and error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return "this broker takes no filter servers (RocketMQ 5 dropped them)"
    return str(error) or type(error).__name__
