"""The formats Spark knows us by: `rocketmq`, over the wire, and `rocketmq-log`, a store's files."""

import sys
from collections.abc import Iterator
from types import FrameType

from pyspark.sql import SparkSession
from pyspark.sql import datasource as ds
from pyspark.sql.types import StructType

from ..errors import ConfigError
from . import writer
from ._quiet import be_quiet
from .options import Options
from .reader import BatchReader, PushingReader
from .schema import row_type
from .stream import StreamReader

__all__ = ["RocketMQ", "RocketMQLog", "register"]

be_quiet()


def register(spark: SparkSession) -> None:
    """Makes both formats known to the session. Not needed where Spark finds them by itself, as it
    does where Tamis is installed for its driver's Python; can be called twice."""
    for source in (RocketMQ, RocketMQLog):
        if not _is_known(spark, source.name()):
            spark.dataSource.register(source)


def _is_known(spark: SparkSession, name: str) -> bool:
    """Spark warns of what is registered twice. Of a Connect server that can't be asked."""
    session = getattr(spark, "_jsparkSession", None)
    if session is None:
        return False
    return bool(session.sessionState().dataSourceManager().dataSourceExists(name))


class _Source(ds.DataSource):
    OF_LOG = False

    def _parsed(self) -> Options:
        return Options.parse(self.options, of_log=self.OF_LOG)

    def schema(self) -> StructType:
        options = self._parsed()
        return row_type(options.columns, options.properties)

    def reader(self, schema: StructType) -> ds.DataSourceReader:
        made = PushingReader if _is_pushing(sys._getframe(1)) else BatchReader
        return made(self._parsed(), schema)

    def streamReader(self, schema: StructType) -> ds.DataSourceStreamReader:
        return StreamReader(self._parsed(), schema)


def _is_pushing(frame: FrameType | None) -> bool:
    """Whether it is Spark's worker for pushing filters that asks. A reader that takes them is
    refused by the other one where the setting is off, and the setting is not told to us."""
    for caller in _callers(frame):
        spec = caller.f_globals.get("__spec__")
        name = spec.name if spec is not None else caller.f_globals.get("__name__", "")
        if name == "pyspark.sql.worker.data_source_pushdown_filters":
            return True
    return False


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


class RocketMQ(_Source):
    @classmethod
    def name(cls) -> str:
        return "rocketmq"

    def writer(self, schema: StructType, overwrite: bool) -> ds.DataSourceWriter:
        return writer.batch_writer(schema, self.options, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> ds.DataSourceStreamWriter:
        return writer.stream_writer(schema, self.options, overwrite)


class RocketMQLog(_Source):
    OF_LOG = True

    @classmethod
    def name(cls) -> str:
        return "rocketmq-log"

    def writer(self, schema: StructType, overwrite: bool) -> ds.DataSourceWriter:
        raise ConfigError('a store\'s files are only read: write to its broker, format("rocketmq")')

    def streamWriter(self, schema: StructType, overwrite: bool) -> ds.DataSourceStreamWriter:
        raise ConfigError('a store\'s files are only read: write to its broker, format("rocketmq")')
