"""Files of checkpoints and sinks: of this machine, or of any file system Hadoop knows.

`of` chooses by the path: without a scheme it is local and needs no Spark.
"""

import errno
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from ..errors import ConfigError
from .config import is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Files", "check_writable", "existing", "for_spark", "of"]


# File systems that rename a directory in one step. Others are taken for object stores, where it is
# a copy and a deletion of each file, and may be cut off between any two.
_ATOMIC: Final = ("file", "hdfs", "webhdfs", "viewfs", "abfs", "abfss", "maprfs", "ofs")


class Files(Protocol):
    """Of one directory tree; paths are whole. Errors of the system are OSError."""

    @property
    def is_atomic(self) -> bool:
        """Whether a directory is renamed in one step."""

    def exists(self, path: str) -> bool: ...

    def names(self, path: str) -> list[str]:
        """What is in a directory, sorted; nothing if there is no such directory."""

    def make(self, path: str) -> None:
        """The directory and those above it."""

    def read(self, path: str) -> str: ...

    def write(self, path: str, text: str) -> None:
        """The whole file or, after a crash, what was there before."""

    def rename(self, path: str, to: str) -> None:
        """Fails if `to` is there. In one step if `is_atomic`."""

    def remove(self, path: str) -> None:
        """With all that is in it, if it is there."""


def of(path: str, spark: "SparkSession | None" = None) -> Files:
    if is_local(path):
        return _Local()
    if spark is None:
        raise ConfigError(f"{path}: Spark must run to reach it")
    return _Hadoop(path, spark)


def for_spark(path: str) -> str:
    """As it is given to Spark, which takes a path without a scheme for one of its default file
    system. It is not quoted: Hadoop's paths aren't."""
    return f"file://{os.path.abspath(path)}" if is_local(path) else path


def existing(path: str) -> str:
    """It, or what is there of the directories above it."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path


def check_writable(path: str, what: str) -> None:
    """That files can be put into a directory which may not be there yet, as far as that can be told
    without doing so, and of this machine's. Raises ConfigError that begins with `what`."""
    if not is_local(path):
        return
    above = existing(path)
    if not os.path.isdir(above):
        raise ConfigError(f"{what}: {above} is no directory")
    if not os.access(above, os.W_OK | os.X_OK):
        raise ConfigError(f"{what}: {above} is not writable")


class _Local:
    is_atomic = True

    def exists(self, path: str) -> bool:
        return Path(path).exists()

    def names(self, path: str) -> list[str]:
        return sorted(os.listdir(path)) if Path(path).exists() else []

    def make(self, path: str) -> None:
        Path(path).mkdir(parents=True, exist_ok=True)

    def read(self, path: str) -> str:
        return Path(path).read_text("utf-8")

    def write(self, path: str, text: str) -> None:
        # Spark's readers pass over names that begin with a dot.
        new = Path(path).with_name(f".{Path(path).name}.new")
        with open(new, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)

    def rename(self, path: str, to: str) -> None:
        Path(path).rename(to)

    def remove(self, path: str) -> None:
        if Path(path).is_dir():
            shutil.rmtree(path)
        else:
            Path(path).unlink(missing_ok=True)


class _Hadoop:
    """Renames go through Hadoop's FileContext, which refuses or replaces what is there in one step;
    FileSystem's would move a directory into one of that name."""

    def __init__(self, path: str, spark: "SparkSession") -> None:
        jvm: Any = spark._jvm  # None under Spark Connect, where jobs do not run
        assert jvm is not None
        hadoop = jvm.org.apache.hadoop.fs
        self._path = hadoop.Path
        conf = spark._jsc.hadoopConfiguration()
        self._system = self._call(lambda: self._path(path).getFileSystem(conf))
        self.is_atomic = path.partition(":")[0].lower() in _ATOMIC
        self._context: Any = None
        try:
            if self.is_atomic:
                uri = self._system.getUri()
                self._context = self._call(lambda: hadoop.FileContext.getFileContext(uri, conf))
        except OSError:  # a connector without an AbstractFileSystem, as some are
            pass
        new_array = spark.sparkContext._gateway.new_array  # type: ignore[union-attr]
        self._keeping, self._replacing = (new_array(hadoop.Options.Rename, n) for n in (0, 1))
        self._replacing[0] = hadoop.Options.Rename.OVERWRITE

    def exists(self, path: str) -> bool:
        return bool(self._call(lambda: self._system.exists(self._path(path))))

    def names(self, path: str) -> list[str]:
        if not self.exists(path):
            return []
        found = self._call(lambda: self._system.listStatus(self._path(path)))
        return sorted(status.getPath().getName() for status in found)

    def make(self, path: str) -> None:
        self._call(lambda: self._system.mkdirs(self._path(path)))

    def read(self, path: str) -> str:
        stream = self._call(lambda: self._system.open(self._path(path)))
        try:
            return bytes(self._call(stream.readAllBytes)).decode("utf-8")
        finally:
            stream.close()

    def write(self, path: str, text: str) -> None:
        if not self.is_atomic:  # an object is there whole when it is closed, or as it was
            self._put(path, text)
            return
        parent, _, name = path.rpartition("/")
        new = f"{parent}/.{name}.new"
        self._put(new, text)
        if self._context is not None:
            self._move(new, path, self._replacing)
            return
        # Between the two calls the file is missing, `.new` is whole.
        self.remove(path)
        self.rename(new, path)

    def _put(self, path: str, text: str) -> None:
        stream = self._call(lambda: self._system.create(self._path(path), True))
        self._call(lambda: stream.write(bytearray(text.encode())))
        self._call(stream.close)

    def rename(self, path: str, to: str) -> None:
        if self._context is not None:
            self._move(path, to, self._keeping)
        elif self.exists(to) or not self._call(
            lambda: self._system.rename(self._path(path), self._path(to))
        ):
            raise OSError(0, "can't be renamed to " + to, path)

    def _move(self, path: str, to: str, how: Any) -> None:
        self._call(lambda: self._context.rename(self._path(path), self._path(to), how))

    def remove(self, path: str) -> None:
        self._call(lambda: self._system.delete(self._path(path), True))

    def _call(self, work: Any) -> Any:
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        try:
            return work()
        except Py4JJavaError as error:
            java = error.java_exception
            why = str(java.getMessage() or java).splitlines()[0]
            if java.getClass().getName() == "java.io.FileNotFoundException":
                raise FileNotFoundError(errno.ENOENT, why) from None
            raise OSError(0, why) from None
        except PySparkException as error:  # what Spark makes of IllegalArgumentException: bad names
            raise OSError(0, str(error).splitlines()[0]) from None
