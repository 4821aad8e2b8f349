"""What a run keeps between its starts, in one directory:

    state.json   ours: the run's id, what it reads, what the job adds
    spark/       Spark's own: offsets of batches planned and done
    lock         held while a run is on, on a local file system

A directory that can't be relied on is refused, before anything is written.
"""

import contextlib
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ..errors import ConfigError
from . import files
from .config import Config, is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Checkpoint"]

_STATE: Final = "state.json"
_VERSION: Final = 1


@dataclass(slots=True)
class Checkpoint:
    """`data` is the job's; `save` writes it. Batches are counted from 0, -1 is none."""

    path: str
    run_id: str
    source: str
    job: str
    place: files.Files
    data: dict[str, Any] = field(default_factory=dict)
    planned: int = -1  # the last batch whose offsets are recorded
    done: int = -1  # the last batch finished
    is_new: bool = True

    @staticmethod
    def open(config: Config, spark: "SparkSession | None" = None) -> "Checkpoint":
        """That of the file; a new one is not written yet. Raises ConfigError."""
        path = config.checkpoint.rstrip("/")
        place = files.of(path, spark)
        found = Checkpoint(path, uuid.uuid4().hex, config.source.name, config.job, place)
        try:
            names = place.names(path)
            if _STATE in names:
                found._load(place.read(f"{path}/{_STATE}"))
                found._look()
            elif "spark" in names:
                raise _damaged(f"{path}/{_STATE}", "it is missing")
        except OSError as error:
            raise ConfigError(f"checkpoint {path} can't be read: {error.strerror}") from None
        if found.source != config.source.name:
            raise ConfigError(
                f"checkpoint {path} is of {found.source}, not of {config.source.name}:"
                " set [run] checkpoint to another directory"
            )
        if found.job != config.job:
            raise ConfigError(
                f"checkpoint {path} is of job {found.job}, not {config.job}:"
                " set [run] checkpoint to another directory"
            )
        return found

    @property
    def location(self) -> str:
        """Spark's checkpointLocation."""
        return f"{self.path}/spark"

    def save(self) -> None:
        state = {
            "version": _VERSION,
            "run": self.run_id,
            "source": self.source,
            "job": self.job,
            "data": self.data,
        }
        try:
            self.place.make(self.path)
            self.place.write(f"{self.path}/{_STATE}", json.dumps(state, indent=1) + "\n")
        except OSError as error:
            raise ConfigError(
                f"checkpoint {self.path} can't be written to: {error.strerror}"
            ) from None

    def last_done(self) -> int:
        """The last batch finished by now; `done` is as it was when opened."""
        return self._last("commits")

    def offsets(self, batch: int) -> dict[str, Any] | None:
        """Where the batch ended, as the source has it."""
        if batch < 0:
            return None
        file = f"{self.location}/offsets/{batch}"
        if not self.place.exists(file):
            return None
        lines = self._lines(file)
        if len(lines) < 3 or lines[2] == "-":
            return None
        found = self._json(file, lines[2])
        return found if isinstance(found, dict) else None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Raises ConfigError if another run holds it; ends with the process, however it ends."""
        if not is_local(self.path):
            yield
            return
        import fcntl

        self.place.make(self.path)
        with open(f"{self.path}/lock", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ConfigError(f"checkpoint {self.path}: another run is using it") from None
            yield

    def _load(self, text: str) -> None:
        file = f"{self.path}/{_STATE}"
        try:
            state = json.loads(text)
            version = state["version"]
            if version != _VERSION:
                raise _damaged(file, f"it is of version {version}, this Tamis knows {_VERSION}")
            self.run_id, self.source = str(state["run"]), str(state["source"])
            self.job, self.data = str(state["job"]), dict(state["data"])
        except (ValueError, KeyError, TypeError) as error:
            raise _damaged(file, _why(error)) from None
        self.is_new = False

    def _look(self) -> None:
        """What Spark has recorded, and whether it can be read: it would fail later and longer."""
        names = self.place.names(self.location)
        if not names:
            return
        self.planned = self._last("offsets")
        self.done = self._last("commits")
        for name, needed in ("metadata", True), *_records(self.planned, self.done):
            file = f"{self.location}/{name}"
            if not self.place.exists(file):
                if needed and self.planned >= 0:
                    raise _damaged(file, "it is missing")
                continue
            for line in self._lines(file)[0 if name == "metadata" else 1 :]:
                if line.startswith(("{", "[")) or name == "metadata":
                    self._json(file, line)

    def _last(self, folder: str) -> int:
        names = self.place.names(f"{self.location}/{folder}")
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def _lines(self, file: str) -> list[str]:
        try:
            lines = self.place.read(file).splitlines()
        except ValueError as error:
            raise _damaged(file, _why(error)) from None
        if not lines or (not file.endswith("/metadata") and not lines[0].startswith("v")):
            raise _damaged(file, "it is empty" if not lines else "it has no version")
        return lines

    def _json(self, file: str, line: str) -> Any:
        try:
            return json.loads(line)
        except ValueError as error:
            raise _damaged(file, _why(error)) from None


def _records(planned: int, done: int) -> list[tuple[str, bool]]:
    found = [(f"offsets/{number}", True) for number in (planned - 1, planned) if number >= 0]
    return found + ([(f"commits/{done}", True)] if done >= 0 else [])


def _damaged(file: str, why: str) -> ConfigError:
    return ConfigError(
        f"{file} can't be used: {why}; restore it, or set [run] checkpoint to a new directory"
        " and the sinks to new paths to begin again"
    )


def _why(error: Exception) -> str:
    return f"it has no {error}" if isinstance(error, KeyError) else f"it is damaged ({error})"
