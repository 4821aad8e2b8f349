"""Keeps the accounts in force as the files say: looks for changes, and makes those that are asked
for. A file that can't be used is refused with its line, and what held before goes on to hold.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ..errors import ConfigError
from .access import Access
from .accounts import Account
from .files import AclFiles, Loaded, digest_of

__all__ = ["AclKeeper"]

log = logging.getLogger(__name__)

WATCH_SECONDS: Final = 1.0
_YOUNG: Final = 3.0  # seconds in which a file may change twice with one time of change


class AclKeeper:
    """Made with its files read: raises ConfigError. `run` is for a background task."""

    def __init__(
        self,
        file: Path | str,
        inner: tuple[Account, ...] = (),
        *,
        watch_seconds: float = WATCH_SECONDS,
    ) -> None:
        self.files = AclFiles(file)
        self._watch_seconds = watch_seconds
        self._stamp: tuple[object, ...] = ()
        self._changed = time.monotonic()  # when a stamp was found to be another
        self._has_default = self.files.file.exists()
        self.loaded = self.files.load()
        self._refused = b""  # digest of what was refused last
        self._complaint = ""
        self._lock = asyncio.Lock()
        self.access = Access(self.loaded.accounts, inner)
        self.on_change: Callable[[], None] = lambda: None
        self._tell(self.loaded)

    def _tell(self, loaded: Loaded) -> None:
        for warning in loaded.warnings[:20]:
            log.warning("%s", warning)
        accounts, files = len(loaded.accounts.by_key), len(loaded.files)
        log.info("access control: %d accounts in %d files (%s)", accounts, files, self.files.file)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._watch_seconds)
            await self.review()

    async def review(self) -> None:
        """Looks once whether the files have changed."""
        async with self._lock:
            loaded = await asyncio.to_thread(self._look)
            if loaded is not None:
                self._use(loaded)
                self._tell(loaded)

    def _look(self) -> Loaded | None:
        """In a thread: what the files say, if it is another thing and can be used."""
        try:
            stamp = self.files.stamp()
            if stamp != self._stamp:
                self._stamp, self._changed = stamp, time.monotonic()
            elif time.monotonic() - self._changed > _YOUNG:
                return None
            contents = self.files.read()
            if self._has_default and str(self.files.file) not in dict(contents):
                raise ConfigError(f"{self.files.file}: it is gone")
            digest = digest_of(contents)
            if digest == self.loaded.digest or digest == self._refused:
                if digest == self.loaded.digest:
                    self._complaint = ""
                return None
            self._refused = digest  # unless it is used
            return self.files.load(contents)
        except (ConfigError, OSError) as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                log.error("%s; the accounts that were read before stay in force", error)
            return None

    def _use(self, loaded: Loaded) -> None:
        self.loaded, self._refused, self._complaint = loaded, b"", ""
        self._has_default = str(self.files.file) in [file.path for file in loaded.files]
        self.access.change(loaded.accounts)
        self.on_change()

    async def change(self, work: Callable[[AclFiles], Loaded | None]) -> bool:
        """Runs a change of `AclFiles` in a thread; what it makes holds at once. Returns whether
        there was something to change. Raises ConfigError or OSError, and nothing is changed."""
        async with self._lock:
            loaded = await asyncio.to_thread(work, self.files)
            if loaded is not None:
                self._use(loaded)
            return loaded is not None
