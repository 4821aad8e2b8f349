"""The formats Spark knows us by: `rocketmq`, over the wire, and `rocketmq-log`, a store's files."""

import sys
from collections.abc import Iterator
from types import FrameType

from pyspark.sql import SparkSession
from pyspark.sql import datasource as ds
from pyspark.sql.types import StructType

from ..errors import ConfigError
from . import tables, writer
from ._quiet import be_quiet
from .limits import HAS_ADMISSION_CONTROL
from .options import Options
from .reader import BatchReader, PushingReader
from .single import SingleBatchReader
from .stream import StreamReader

__all__ = ["RocketMQ", "RocketMQLog", "register"]

be_quiet()


def register(spark: SparkSession) -> None:
    """Makes both formats known to the session, and `sql92`, `sql92_outcome` and `tags` as functions
    of SQL. For the formats alone it is not needed where Spark finds them by itself, as it does
    where Tamis is installed for its driver's Python. Can be called twice."""
    from .sql_functions import register_functions  # loads the engines: not in Spark's workers

    for source in (RocketMQ, RocketMQLog):
        if not _is_known(spark, source.name()):
            spark.dataSource.register(source)
    register_functions(spark)


def _is_known(spark: SparkSession, name: str) -> bool:
    """Spark warns of what is registered twice. Of a Connect server that can't be asked."""
    session = getattr(spark, "_jsparkSession", None)
    if session is None:
        return False
    return bool(session.sessionState().dataSourceManager().dataSourceExists(name))


class _Source(ds.DataSource):
    OF_LOG = False

    @tables.plainly
    def schema(self) -> StructType:
        return tables.row_type_of(self.options, of_log=self.OF_LOG)

    @tables.plainly
    def reader(self, schema: StructType) -> ds.DataSourceReader:
        made = PushingReader if _is_pushing(sys._getframe(1)) else BatchReader
        return made(*self._read(schema, is_stream=False))

    @tables.plainly
    def streamReader(self, schema: StructType) -> ds.DataSourceStreamReader:
        made = StreamReader if HAS_ADMISSION_CONTROL else SingleBatchReader
        return made(*self._read(schema, is_stream=True))

    def _read(self, schema: StructType, *, is_stream: bool) -> tuple[Options, StructType]:
        return tables.table_read(self.options, schema, of_log=self.OF_LOG, is_stream=is_stream)


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

    @tables.plainly
    def writer(self, schema: StructType, overwrite: bool) -> ds.DataSourceWriter:
        return writer.batch_writer(schema, self.options, overwrite)

    @tables.plainly
    def streamWriter(self, schema: StructType, overwrite: bool) -> ds.DataSourceStreamWriter:
        return writer.stream_writer(schema, self.options, overwrite)


class RocketMQLog(_Source):
    OF_LOG = True

    @classmethod
    def name(cls) -> str:
        return "rocketmq-log"

    @tables.plainly
    def writer(self, schema: StructType, overwrite: bool) -> ds.DataSourceWriter:
        raise ConfigError('a store\'s files are only read: write to its broker, format("rocketmq")')

    @tables.plainly
    def streamWriter(self, schema: StructType, overwrite: bool) -> ds.DataSourceStreamWriter:
        raise ConfigError('a store\'s files are only read: write to its broker, format("rocketmq")')
