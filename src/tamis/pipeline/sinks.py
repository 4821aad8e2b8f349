"""Rows of a batch to their sinks; files exactly once.

A row says by its column `TO` which of the sinks it is for. Sinks of a kind share one write:

    files     one write, partitioned by `TO`, into a directory readers pass over; then a rename
              each to `<path>/batch=<number>`. One that is there is whole: a batch that is done
              again gives the same rows, so it is left. Where a rename is not one step (object
              stores) a file `_whole` in it says so, and what lacks it is written anew.
    rocketmq  one write with a topic each; at least once, with a key a row
    console   some rows of each, printed
    others    an append each: Delta and Iceberg exactly once by `marks`, others at least once

`_tamis.json` in a sink's directory names the run it belongs to. Rows of another run, or of whoever,
are neither added to nor taken for ours.
"""

import json
import os
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from ..spark import _needed  # noqa: F401  # isort: skip
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from ..errors import ConfigError, Error, TopicNotFound
from ..spark.connection import is_connection
from ..spark.options import Options
from ..spark.origins import open_origin
from ..spark.write_options import WriteOptions
from . import files, marks, projection
from .causes import one_line
from .config import FILE_FORMATS, Sink, is_local

__all__ = ["TO", "Sinks", "promise"]

TO: Final = "_to"
MARK: Final = "_tamis.json"
_STAGING: Final = "_staging-"  # and what no other process has: one that was killed may linger
_SYSTEM: Final = ("TAGS", "KEYS", "UNIQ_KEY", "CLUSTER", "WAIT")  # properties not for a person
_GATHERED: Final = 8  # sinks from which on each has its rows of a batch from one task, in one file:
# every task of Spark's would make a file for each, and files cost more than moving some rows
_SHOWN: Final = 10  # rows of a console sink a batch, unless its option numRows says otherwise
_MAKES_TOPICS: Final = "TBW102"  # a topic of brokers that make one when it is sent to
_WHOLE: Final = "_whole"  # in a batch's directory, where renames take several steps
_BATCH: Final = re.compile(r"batch=(\d+)")


def promise(sink: Sink) -> str:
    """How often a row comes to be there if the job is killed and run again."""
    if sink.format in (*FILE_FORMATS, *marks.KNOWING):
        return "exactly once"
    return "at least once"


@dataclass(frozen=True, slots=True)
class Sinks:
    """All sinks of a run. `run_id` is the checkpoint's; `out` prints what the console gets.

    Without Spark it can only check, and of files only those of this machine; without a `run_id`,
    which a checkpoint elsewhere has, not whose they are.
    """

    spark: SparkSession | None
    run_id: str
    out: Callable[[str], None] = print

    def check(self, sinks: Iterable[Sink], planned: int | None = None) -> None:
        """Each can be written to, and files are ours or nobody's, and of no batch after `planned`.
        Nothing is written. Raises Error, TimeoutError."""
        sinks = list(sinks)
        self._nobodys(sinks, planned)
        topics = [sink for sink in sinks if sink.format == "rocketmq"]
        for number, sink in enumerate(topics):
            if sink not in topics[:number]:
                _check_topic(sink)
        for format in {one.format for one in sinks} - {"rocketmq", "console"}:
            self._check_format(format)
        if self.spark is not None:
            for sink in sinks:
                projection.check(self.spark, sink)
                self._check_driver(sink)

    def _nobodys(self, sinks: Iterable[Sink], planned: int | None = None) -> list[Sink]:
        found = [sink for sink in self._files(sinks) if not self._is_ours(sink, planned)]
        for sink in found:
            files.check_writable(_path(sink), f"sink {_path(sink)}")
        return found

    def _files(self, sinks: Iterable[Sink]) -> list[Sink]:
        found = [sink for sink in sinks if sink.format in FILE_FORMATS]
        return [sink for sink in found if self.spark is not None or is_local(_path(sink))]

    def _check_format(self, format: str) -> None:
        jvm: Any = getattr(self.spark, "_jvm", None)  # Spark Connect has none
        if jvm is None:
            return
        source = jvm.org.apache.spark.sql.execution.datasources.DataSource
        try:
            conf = self.spark._jsparkSession.sessionState().conf()  # type: ignore[union-attr]
            source.lookupDataSource(format, conf)
        except (PySparkException, Py4JJavaError):
            raise ConfigError(
                f"sink of format {format}: this Spark has none of that name: is it a typing"
                " mistake, or a package that is missing (--conf spark.jars.packages=...)?"
            ) from None

    def _check_driver(self, sink: Sink) -> None:
        """Spark finds the driver of a database's URL. It is not connected to."""
        jvm: Any = getattr(self.spark, "_jvm", None)
        if jvm is None or sink.format != "jdbc":
            return
        options = jvm.java.util.HashMap()
        for name, value in sink.options.items():
            options.put(name, value)
        jdbc = jvm.org.apache.spark.sql.execution.datasources.jdbc
        try:
            scala = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(options)
            jdbc.JdbcOptionsInWrite(sink.option("url"), sink.table or sink.option("dbtable"), scala)
        except (PySparkException, Py4JJavaError) as error:
            raise ConfigError(
                f"{sink.where or 'sink '}options: {one_line(error)}: is the driver's package"
                " missing (--conf spark.jars.packages=...), or the option driver?"
            ) from None

    def claim(self, sinks: Iterable[Sink]) -> None:
        """Before the job: files that were nobody's are ours then. The checkpoint is to be saved
        before, else they would be those of a run that never was."""
        wanted = self._files(sinks)
        for sink in self._nobodys(wanted):
            path = _path(sink)
            mark = json.dumps({"run": self.run_id, "format": sink.format})
            try:
                place = files.of(path, self.spark)
                place.make(path)
                place.write(f"{path}/{MARK}", mark + "\n")
            except OSError as error:
                raise _not_writable(sink, error) from None
        for sink in wanted:
            place, path = files.of(_path(sink), self.spark), _path(sink)
            for name in place.names(path):
                if name.startswith(_STAGING):
                    place.remove(f"{path}/{name}")

    def _is_ours(self, sink: Sink, planned: int | None) -> bool:
        path = _path(sink)
        try:
            place = files.of(path, self.spark)
            names = [name for name in place.names(path) if not name.startswith(".")]
            if MARK not in names:
                if names:
                    raise ConfigError(
                        f"sink {path}: it has files that this pipeline did not write:"
                        " choose another path, or remove them"
                    )
                return False
            mark = json.loads(place.read(f"{path}/{MARK}"))
            owner, form = mark["run"], mark["format"]
        except OSError as error:
            raise _not_writable(sink, error) from None
        except (ValueError, KeyError, TypeError):
            raise ConfigError(
                f"{path}/{MARK} is damaged: remove {path} or choose another"
            ) from None
        if self.run_id and owner != self.run_id:
            raise ConfigError(
                f"sink {path}: it was written by another run, whose checkpoint is not this one:"
                " choose another path, or remove it"
            )
        if form != sink.format:
            raise ConfigError(f"sink {path}: it has files of format {form}: choose another path")
        batches = [int(found[1]) for name in names if (found := _BATCH.fullmatch(name))]
        if self.run_id and planned is not None and max(batches, default=-1) > planned:
            raise ConfigError(
                f"sink {path} has batch {max(batches)}, its checkpoint comes to {planned}: that is"
                " an old copy, or lacks its directory spark; restore it, or begin again with a new"
                " checkpoint and new paths"
            )
        return True

    def jobs(self, sinks: Sequence[Sink]) -> list[list[int]]:
        """Which sinks are written together: if more than one job, keep the rows for them."""
        kinds: dict[object, list[int]] = {}
        for number, sink in enumerate(sinks):
            kinds.setdefault(_kind(sink, number), []).append(number)
        return list(kinds.values())

    def write(
        self, rows: DataFrame, sinks: Sequence[Sink], batch: int, names: Sequence[str] = ()
    ) -> None:
        """One batch. `rows` have all columns that the sinks need, and TO, an index of `sinks`.

        An action is run for each of `jobs`; it goes through all rows unless it is the console's.
        `names` are what the console calls the sinks.
        """
        jobs = self.jobs(sinks)
        for job in jobs:
            wanted = {number: sinks[number] for number in job}
            first = sinks[job[0]]
            if first.format in FILE_FORMATS:
                self._write_files(rows, wanted, batch, is_all=len(jobs) == 1)
            elif first.format == "rocketmq":
                self._send(rows, wanted)
            elif first.format == "console":
                self._print(rows, wanted, names)
            else:
                self._append(rows.where(F.col(TO) == job[0]), first, job[0], batch)

    def confirm(self, sinks: Sequence[Sink], batch: int, rows: Mapping[int, int]) -> None:
        """After `write`, when it is known how many rows of each number there were: they are there.
        Executors that have another disk, or another default file system, lose them without a word.
        """
        for number, count in rows.items():
            sink = sinks[number]
            if count and sink.format in FILE_FORMATS:
                path = _batch_path(sink, batch)
                if not files.of(path, self.spark).exists(path):
                    raise Error(
                        f"{path} is not there, though {count} rows were written to it: the sink"
                        " must be a path that all machines share"
                    )

    def _write_files(
        self, rows: DataFrame, sinks: Mapping[int, Sink], batch: int, *, is_all: bool
    ) -> None:
        """`is_all`: rows are for these sinks only."""
        first = next(iter(sinks.values()))
        place = files.of(_path(first), self.spark)
        todo = {
            number: sink
            for number, sink in sinks.items()
            if not _is_whole(place, _batch_path(sink, batch))
        }
        if not todo:  # what is counted must go by all the same
            rows.write.format("noop").mode("overwrite").save()
            return
        staging = f"{_path(first)}/{_STAGING}{uuid.uuid4().hex[:12]}"
        if not is_all or len(todo) < len(sinks):
            rows = rows.where(F.col(TO).isin([*todo]))
        if len(todo) == 1:  # no sorting by TO
            [number] = todo
            one = projection.chosen(rows.where(F.col(TO) == number), first).write
            written = files.for_spark(f"{staging}/{TO}={number}")
            one.format(first.format).options(**first.options).save(written)
        else:
            chosen = projection.chosen(rows, first, TO)
            if len(todo) >= _GATHERED and self.spark is not None:
                tasks = min(len(todo), self.spark.sparkContext.defaultParallelism)
                chosen = chosen.repartition(tasks, TO)
            writer = chosen.write.format(first.format).options(**first.options)
            writer.partitionBy(TO).save(files.for_spark(staging))
        for number, sink in todo.items():
            written = f"{staging}/{TO}={number}"
            if any(not name.startswith(("_", ".")) for name in place.names(written)):
                place.make(_path(sink))
                if not place.is_atomic:  # what a rename left that was cut off
                    place.remove(_batch_path(sink, batch))
                place.rename(written, _batch_path(sink, batch))
                if not place.is_atomic:
                    place.write(f"{_batch_path(sink, batch)}/{_WHOLE}", "")
        place.remove(staging)

    def _send(self, rows: DataFrame, sinks: Mapping[int, Sink]) -> None:
        first = next(iter(sinks.values()))
        topics = F.create_map(
            *(F.lit(part) for number, sink in sinks.items() for part in (number, sink.topic))
        )
        chosen = rows.where(F.col(TO).isin([*sinks])).select(
            topics[F.col(TO)].alias("topic"),
            F.concat_ws("/", "topic", "broker", "queue_id", "offset").alias("row_key"),
            *("tags", "keys", "properties", "body"),
        )
        options = _write_options(first)
        chosen.write.format("rocketmq").options(**options).mode("append").save()

    def _print(self, rows: DataFrame, sinks: Mapping[int, Sink], names: Sequence[str]) -> None:
        for number, sink in sinks.items():
            few = int(next(iter(sink.options.values()), _SHOWN))  # numRows, its only one
            begin = f"{names[number]}: " if names else ""
            for row in projection.chosen(rows.where(F.col(TO) == number), sink).take(few):
                self.out(begin + _line(row))

    def _append(self, rows: DataFrame, sink: Sink, number: int, batch: int) -> None:
        run = f"{self.run_id}-{number}"
        if marks.has_batch(rows.sparkSession, sink, run, batch):
            return
        options = _append_options(sink) | marks.options(sink.format, run, batch)
        chosen = projection.chosen(rows, sink)
        writer = chosen.write.format(sink.format).options(**options)
        if sink.format == "delta" and sink.table:
            marks.append_to_delta(chosen, sink.table, options)
        elif sink.format == "noop":
            writer.mode("overwrite").save()
        elif sink.table and sink.format != "jdbc":
            writer.mode("append").saveAsTable(sink.table)
        else:
            writer.mode("append").save(sink.path and files.for_spark(sink.path))


def _kind(sink: Sink, number: int) -> object:
    """Equal for sinks that one write can serve."""
    options = tuple(sorted(sink.options.items()))
    if sink.format in FILE_FORMATS:
        made = tuple(sorted(sink.expressions.items()))
        return sink.format, options, sink.columns, made, _file_system(_path(sink))
    if sink.format == "rocketmq":
        return sink.format, sink.nameserver, sink.profile, options
    if sink.format == "console":
        return sink.format
    return number


def _file_system(path: str) -> object:
    """Renames are within one."""
    if is_local(path):
        return os.stat(files.existing(path)).st_dev
    return tuple(path.split("/", 3)[:3])


def _path(sink: Sink) -> str:
    assert sink.path is not None
    return sink.path.rstrip("/")


def _batch_path(sink: Sink, batch: int) -> str:
    return f"{_path(sink)}/batch={batch}"


def _is_whole(place: files.Files, path: str) -> bool:
    return place.exists(path if place.is_atomic else f"{path}/{_WHOLE}")


def _append_options(sink: Sink) -> dict[str, str]:
    """Of a format that is not ours: what the file says apart from them is an option too."""
    options = dict(sink.options)
    if sink.format == "jdbc" and sink.table is not None:
        options["dbtable"] = sink.table
    if sink.format == "kafka" and sink.topic is not None:
        options["topic"] = sink.topic
    return options


def _write_options(sink: Sink) -> dict[str, str]:
    profile = {"profile": sink.profile} if sink.profile is not None else {}
    return {"nameserver": sink.nameserver or "", **profile, **sink.options}


def _check_topic(sink: Sink) -> None:
    """It is there, or brokers make it when it is sent to. It is not made here."""
    try:
        said = WriteOptions.parse({**_write_options(sink), "topic": sink.topic or ""})
        try:
            _ask(sink, said, said.topic)
        except TopicNotFound as unknown:
            try:
                _ask(sink, said, _MAKES_TOPICS)
            except TopicNotFound:
                raise unknown from None
    except ConfigError as error:
        raise ConfigError(f"sink {sink.name}: {error}") from None
    except Error as error:
        raise Error(f"sink {sink.name}: {error}") from None


def _ask(sink: Sink, said: WriteOptions, topic: str) -> None:
    asked = {name: text for name, text in _write_options(sink).items() if is_connection(name)}
    asked |= {"topic": topic, "requestTimeout": f"{said.timeout}s"}
    with closing(open_origin(Options.parse({**asked, "retries": "0"}, of_log=False))) as origin:
        origin.bounds()


def _not_writable(sink: Sink, error: OSError) -> ConfigError:
    return ConfigError(f"sink {_path(sink)}: it can't be written to: {error.strerror or error}")


def _line(row: Row) -> str:
    """A row in a line: texts as they are, the rest named."""
    return "  ".join(
        _shown(name, value) for name, value in row.asDict().items() if value is not None
    )


def _shown(name: str, value: Any) -> str:
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return " ".join(f"{key}={own}" for key, own in value.items() if key not in _SYSTEM)
    return str(value) if isinstance(value, str) else f"{name} {value}"
