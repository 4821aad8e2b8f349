"""Marks by which a table knows a batch that it has, so that done again it adds nothing.

Delta keeps them itself: a transaction's application and version. In Iceberg they are properties of
the snapshot that an append makes, and are looked for before the next one; only the run that a mark
names writes under it, so nothing can come between. A snapshot that is expired takes its mark along.
"""

from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from .config import Sink

__all__ = ["KNOWING", "append_to_delta", "has_batch", "options"]

KNOWING: Final = ("delta", "iceberg")  # formats
_RUN: Final = "tamis-run"
_BATCH: Final = "tamis-batch"


def options(format: str, run: str, batch: int) -> dict[str, str]:
    """For the writer of a batch. `run` is this sink's of a run; batches are numbered upwards."""
    if format == "delta":
        return {"txnAppId": run, "txnVersion": str(batch)}
    if format == "iceberg":
        prefix = "snapshot-property."
        return {f"{prefix}{_RUN}": run, f"{prefix}{_BATCH}": str(batch)}
    return {}


def append_to_delta(rows: DataFrame, table: str, options: Mapping[str, str]) -> None:
    """To a table of the catalog, which is made if it is not there, empty: only an append leaves its
    mark. `saveAsTable` would replace the table's entry in the catalog at every batch, which the
    catalog that Spark has without Hive refuses."""
    spark = rows.sparkSession
    if not spark.catalog.tableExists(table):
        empty = spark.createDataFrame([], rows.schema)
        empty.write.format("delta").mode("ignore").saveAsTable(table)
    rows.writeTo(table).options(**options).append()


def has_batch(spark: SparkSession, sink: Sink, run: str, batch: int) -> bool:
    """Whether an Iceberg table has it, or one after it."""
    if sink.format != "iceberg":
        return False
    if sink.table is not None:
        if not spark.catalog.tableExists(sink.table):
            return False
        spark.catalog.refreshTable(sink.table)  # Iceberg's catalog remembers tables for a while
        snapshots = spark.table(f"{sink.table}.snapshots")
    else:
        snapshots = spark.read.format("iceberg").load(f"{sink.path}#snapshots")
    ours = snapshots.where(F.col("summary")[_RUN] == run)
    last = ours.agg(F.max(F.col("summary")[_BATCH].cast("bigint"))).first()
    return last is not None and last[0] is not None and last[0] >= batch
