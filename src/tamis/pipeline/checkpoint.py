"""What a run keeps between its starts, in one directory:

    state.json   ours: the run's id, what it reads, what the job adds
    spark/       Spark's own: offsets of batches planned and done
    lock         held while a run is on, on a local file system

A directory that can't be relied on is refused, before anything is written.
"""

import contextlib
import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ..errors import ConfigError
from . import files
from .config import Config, Source, is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Checkpoint"]

_STATE: Final = "state.json"
_NEW: Final = f".{_STATE}.new"  # what it was to be replaced by
_VERSION: Final = 1


@dataclass(slots=True)
class Checkpoint:
    """`data` is the job's; `save` writes it. Batches are counted from 0, -1 is none."""

    path: str
    source: Source
    job: str
    spark: "SparkSession | None" = None
    run_id: str = ""  # not known, if Spark must run to see
    data: dict[str, Any] = field(default_factory=dict)
    planned: int = -1  # the last batch whose offsets are recorded
    done: int = -1  # the last batch finished
    notes: list[str] = field(default_factory=list)  # what a person should know
    _place: files.Files | None = None

    @staticmethod
    def open(config: Config, spark: "SparkSession | None" = None) -> "Checkpoint":
        """That of the file; a new one is not written yet. Raises ConfigError.

        Before Spark runs one that is not of this machine can't be seen: what is given then knows
        nothing.
        """
        path = config.checkpoint.rstrip("/")
        files.check_writable(path, f"checkpoint {path}")
        found = Checkpoint(path, config.source, config.job, spark)
        if is_local(path) or spark is not None:
            found._read()
        return found

    @property
    def place(self) -> files.Files:
        if self._place is None:
            self._place = files.of(self.path, self.spark)
        return self._place

    def _read(self) -> None:
        self.run_id = self.run_id or uuid.uuid4().hex
        try:
            names = self.place.names(self.path)
            if _STATE in names:
                self._load(_STATE)
            elif _NEW in names:  # HDFS has neither for a moment; or the first was never finished
                try:
                    self._load(_NEW)
                except ConfigError:
                    if "spark" in names:
                        raise
            elif "spark" in names:
                raise _damaged(f"{self.path}/{_STATE}", "it is missing")
        except OSError as error:
            raise ConfigError(f"checkpoint {self.path} can't be read: {error.strerror}") from None

    @property
    def location(self) -> str:
        """Spark's checkpointLocation."""
        return f"{self.path}/spark"

    def save(self) -> None:
        state = {
            "version": _VERSION,
            "run": self.run_id,
            "source": self._of_source(),
            "job": self.job,
            "data": self.data,
        }
        try:
            self.place.make(self.path)
            self.place.write(f"{self.path}/{_STATE}", json.dumps(state, indent=1) + "\n")
        except OSError as error:
            raise _not_writable(self.path, error) from None

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
    def locked(self, dry_run: bool = False) -> Iterator[None]:
        """It is read again once it is held: a run that has just ended has changed it. Raises
        ConfigError if another run holds it; ends with the process, however it ends. A dry run makes
        no file for it."""
        file = f"{self.path}/lock"
        if not is_local(self.path) or (dry_run and not os.path.exists(file)):
            yield
            return
        import fcntl

        with contextlib.ExitStack() as stack:
            try:
                self.place.make(self.path)
                held = stack.enter_context(open(file, "r" if dry_run else "a"))
            except OSError as error:
                raise _not_writable(self.path, error) from None
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ConfigError(f"checkpoint {self.path}: another run is using it") from None
            self._read()
            yield

    def _load(self, name: str) -> None:
        file = f"{self.path}/{name}"
        try:
            state = json.loads(self.place.read(file))
            version = state["version"]
            if version != _VERSION:
                raise _damaged(file, f"it is of version {version}, this Tamis knows {_VERSION}")
            self.run_id, self.data = str(state["run"]), dict(state["data"])
            job, source = str(state["job"]), {**state["source"]}
            was = f"{source['kind']} {source['place']}, {source['what']}"
        except (ValueError, KeyError, TypeError) as error:
            raise _damaged(file, _why(error)) from None
        if job != self.job:
            raise _of_another(self.path, f"job {job}", self.job)
        self._compare(source, was)
        self._look()

    def _of_source(self) -> dict[str, str]:
        """`near`: from here, which stays when both are moved."""
        known = {name: getattr(self.source, name) for name in ("kind", "place", "what")}
        if self.source.kind != "nameserver" and is_local(known["place"]) and is_local(self.path):
            known["near"] = os.path.relpath(known["place"], self.path)
        return known

    def _compare(self, source: dict[str, str], was: str) -> None:
        """A cluster may have another address by now; messages are told by their offsets."""
        now = self._of_source()
        is_same = all(source[name] == now[name] for name in ("kind", "what"))
        if source["place"] == now["place"] and is_same:
            return
        is_moved = "near" in now and source.get("near") == now["near"]
        if not is_same or not (now["kind"] == "nameserver" or is_moved):
            raise _of_another(self.path, was, f"of {self.source.name}")
        note = (
            f"the source was {was}: if {self.source.place} has other messages, set [run] checkpoint"
            " to another directory"
        )
        if note not in self.notes:
            self.notes.append(note)

    def _look(self) -> None:
        """What Spark has recorded, and whether it can be read: it would fail later and longer."""
        self.planned = self._last("offsets")
        self.done = self._last("commits")
        if max(self.done, self.data.get("counted", -1)) > self.planned:
            raise _damaged(self.location, "batches that were done are missing in it")
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


def _of_another(path: str, was: str, now: str) -> ConfigError:
    return ConfigError(
        f"checkpoint {path} is of {was}, not {now}: set [run] checkpoint to another directory"
    )


def _not_writable(path: str, error: OSError) -> ConfigError:
    return ConfigError(f"checkpoint {path} can't be written to: {error.strerror}")


def _damaged(file: str, why: str) -> ConfigError:
    return ConfigError(
        f"{file} can't be used: {why}; restore it, or set [run] checkpoint to a new directory"
        " and the sinks to new paths to begin again"
    )


def _why(error: Exception) -> str:
    return f"it has no {error}" if isinstance(error, KeyError) else f"it is damaged ({error})"
