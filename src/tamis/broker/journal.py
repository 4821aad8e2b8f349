"""Changes of the topics since their table was last saved, a line each.

A table of many topics takes long to save, so it is not saved for each change. A line here costs
little: it is with the operating system before the first message of a new topic is acknowledged, so
that a kill of the process loses no topic, and on the disk after `sync`, so that a power cut loses
none either.

There is a file for each save: what changes while the table is being saved goes to the next one, and
the earlier ones are removed when the save has succeeded.
"""

import contextlib
import logging
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..wire import beans, fastjson
from ..wire.bodies import TopicConfig

__all__ = ["Change", "Journal"]

log = logging.getLogger(__name__)

_NAME: Final = re.compile(r"tamis\.topics\.(?:(\d{1,18})\.)?log")  # RocketMQ leaves them alone


@dataclass(frozen=True, slots=True)
class Change:
    """`topic` is None if it was deleted. `version` is the table's counter after it; None in the
    file of an earlier release."""

    name: str
    topic: TopicConfig | None
    version: int | None


class Journal:
    """Changes are noted in the event loop, files are synced and removed where tables are saved."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._number = max(self._files(), default=0) + 1
        self._noted = 0  # lines in the file of this number
        self._is_torn = False  # its last line may lack its end
        self._unsynced: set[int] = set()  # files by number
        self._is_lost = False  # a sync failed; a later one that succeeds proves nothing

    @property
    def path(self) -> Path:
        """The file that the next change is noted in."""
        return self._path(self._number)

    def read(self) -> Iterator[Change]:
        for _, path in sorted(self._files().items()):
            for line in filter(None, path.read_bytes().splitlines()):
                try:
                    found = fastjson.loads(line)
                    topic = found.get("topic")
                    made = topic and beans.from_json(TopicConfig, topic)
                    version = found.get("version")
                    change = Change(found["name"], made, version and int(version))
                except (ValueError, KeyError, AttributeError, TypeError):
                    log.warning("%s: passed over: %r", path, line[:80])
                else:
                    yield change

    def note(self, change: Change) -> None:
        """Raises OSError, and then nothing is noted."""
        topic = change.topic and beans.to_json(change.topic)
        fields = {"name": change.name, "topic": topic, "version": change.version}
        line = fastjson.render(fields).encode() + b"\n"
        with self._lock:
            self._folder.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab", buffering=0) as file:
                size = file.tell()
                data = b"\n" + line if self._is_torn else line
                self._is_torn = True
                try:
                    while data:
                        data = data[file.write(data) or 0 :]
                except OSError:
                    with contextlib.suppress(OSError):  # else the line is passed over later
                        file.truncate(size)
                    raise
            self._is_torn = False
            self._noted += 1
            self._unsynced.add(self._number)

    def turn(self) -> int:
        """What is noted from now on goes to another file. Returns its number."""
        with self._lock:
            if self._noted:
                self._number, self._noted, self._is_torn = self._number + 1, 0, False
            return self._number

    def sync(self) -> None:
        """Returns when all that was noted is on the disk. Raises OSError; all later calls do too,
        until the table is saved."""
        with self._lock:
            numbers = sorted(self._unsynced)
            self._unsynced.clear()
            is_lost = self._is_lost
            self._is_lost = True  # unless all goes well
        if is_lost:
            raise OSError(f"{self._folder}: changes noted there could not be synced")
        for path in (*map(self._path, numbers), self._folder):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        self._is_lost = False

    def forget(self, before: int) -> None:
        """The files before that number: the table has all their changes. Raises OSError."""
        for number, path in self._files().items():
            if number < before:
                path.unlink(missing_ok=True)
        with self._lock:
            self._unsynced = {number for number in self._unsynced if number >= before}
            self._is_lost = False

    def _files(self) -> dict[int, Path]:
        """By number. The one that has none is of an earlier release."""
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return {}
        found = {name: _NAME.fullmatch(name) for name in names}
        return {int(match[1] or 0): self._folder / name for name, match in found.items() if match}

    def _path(self, number: int) -> Path:
        return self._folder / f"tamis.topics.{number:06}.log"
