"""The filter servers that a broker starts beside itself, watches, and stops with itself.

Each is a process of its own (`python -m tamis filterserver`). It holds one end of a pipe and stops
when the other one is closed, so that none outlives a broker that was killed. RocketMQ's broker
(`filterServerNums`) starts scripts, counts those that registered and leaves them to themselves.
"""

import asyncio
import contextlib
import logging
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from ..acl import Account
from ..errors import ConfigError
from ..net.tasks import Tasks
from .config import BrokerConfig

__all__ = [
    "KEY_PASSWORD_VARIABLE",
    "FilterServerProcesses",
    "arguments",
    "environment",
    "own_account",
    "with_key",
]

log = logging.getLogger(__name__)

ACCESS_VARIABLE: Final = "TAMIS_ACCESS_KEY"  # as clients and tools take them
SECRET_VARIABLE: Final = "TAMIS_SECRET_KEY"
_OTHER_KEYS: Final = (
    *("TAMIS_PROFILE", "TAMIS_SECRET_KEY_FILE"),
    *("TAMIS_SECURITY_TOKEN", "TAMIS_SECURITY_TOKEN_FILE"),
)
_FIRST: Final = 0.5  # seconds after the broker's start: clients are served first
_PAUSES: Final = (1.0, 2.0, 5.0, 10.0, 30.0)  # after the first, second, ... end
_HEALTHY: Final = 60.0  # one that ran this long begins with the first pause again
_PATIENCE: Final = 5.0  # seconds to stop in; then it is killed
KEY_PASSWORD_VARIABLE: Final = "TAMIS_TLS_KEY_PASSWORD"
_EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}


def arguments(config: BrokerConfig, port: int) -> list[str]:
    """Of a filter server for this broker. Raises ConfigError."""
    try:
        given = shlex.split(config.filter_server_options)
    except ValueError as error:
        raise ConfigError(f"filter_server_options: {error}") from None
    bind = f"[{config.bind}]" if ":" in config.bind else config.bind
    made = ["--broker", f"{_EVERYWHERE.get(config.bind, bind)}:{port}", "--host", config.bind]
    if config.advertise:
        made += ["--advertise", config.advertise]
    if config.nameservers:
        made += ["--nameserver", config.nameservers]
    if config.tls != "disabled":
        made += _tls_arguments(config)
    return [*made, *given]


def _tls_arguments(config: BrokerConfig) -> list[str]:
    """As ours. A password that is in no file is told by the environment: see `environment`."""
    options = {
        "--tls": config.tls,
        "--tls-cert": config.tls_cert,
        "--tls-key": config.tls_key,
        "--tls-key-password-file": config.tls_key_password_file,
        "--tls-ca": config.tls_ca,
        "--tls-client-auth": config.tls_client_auth,
    }
    return [part for name, value in options.items() if value for part in (name, value)]


def environment(config: BrokerConfig) -> dict[str, str] | None:
    """Return the environment of a filter server's process; None if it is to have ours."""
    if config.tls == "disabled" or not config.tls_key_password:
        return None
    return {**os.environ, KEY_PASSWORD_VARIABLE: config.tls_key_password}


def own_account(key: str, secret: str) -> Account:
    """Return the account of filter servers that the broker starts: it reads all topics, and sends
    back for all groups. It is in no file, and holds until the broker ends."""
    return Account(access_key=key, secret_key=secret, default_topic="SUB", default_group="SUB")


def with_key(environment: Mapping[str, str], key: str, secret: str) -> dict[str, str]:
    """The environment of a filter server that signs what it asks, by this key alone."""
    made = {name: value for name, value in environment.items() if name not in _OTHER_KEYS}
    return {**made, ACCESS_VARIABLE: key, SECRET_VARIABLE: secret}


class FilterServerProcesses:
    """From `start` to `close`."""

    def __init__(
        self,
        count: int,
        given: Sequence[str],
        tasks: Tasks,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`environment`: of the processes; None: ours. It has what others must not see in a list
        of processes."""
        self._count = count
        self._environment = environment
        self._command = [*_python(), "-m", "tamis", "filterserver", "--with-stdin", *given]
        self._tasks = tasks
        self._watching: list[asyncio.Task[None]] = []
        self.running: dict[int, asyncio.subprocess.Process] = {}  # by number, from 1
        self.restarts = 0

    def start(self) -> None:
        for number in range(1, self._count + 1):
            name = f"filter server {number}"
            self._watching.append(self._tasks.keep(name, partial(self._keep, number)))

    async def close(self) -> None:
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        self._watching.clear()

    async def _keep(self, number: int) -> None:
        """Run one, and again when it ends."""
        await asyncio.sleep(_FIRST)
        ends = 0
        while True:
            began = time.monotonic()
            why = await self._run(number)
            ends = 0 if time.monotonic() - began >= _HEALTHY else ends
            pause = _PAUSES[min(ends, len(_PAUSES) - 1)]
            log.warning("filter server %d %s; started again in %g s", number, why, pause)
            ends += 1
            self.restarts += 1
            await asyncio.sleep(pause)

    async def _run(self, number: int) -> str:
        """Until it ends; returns how."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,  # its log goes where ours does
                start_new_session=True,  # Ctrl-C is for us: we stop it
                env=self._environment,
            )
        except OSError as error:
            return f"can't be started: {error}"
        self.running[number] = process
        log.info("filter server %d: started as process %d", number, process.pid)
        try:
            code = await process.wait()
            return f"ended with code {code}"
        finally:
            del self.running[number]
            await _stop(process)


def _python() -> list[str]:
    """How to run Python. `-m` would look for modules in the directory that the broker is in: only
    if the broker does so itself."""
    looks_here = not {"", os.getcwd()}.isdisjoint(sys.path)
    return [sys.executable] if looks_here else [sys.executable, "-P"]


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.stdin is not None:
        process.stdin.close()
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(_PATIENCE):
            await process.wait()
    except TimeoutError:
        log.warning("filter server process %d does not stop: killed", process.pid)
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
