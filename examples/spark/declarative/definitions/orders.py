"""A topic as a streaming table, and a view of those that a filter matches."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from tamis.spark import sql92

spark = SparkSession.active()


@dp.table
def orders() -> DataFrame:
    """Each run adds what came since the last."""
    return (
        spark.readStream.format("rocketmq")
        .option("nameserver", spark.conf.get("tamis.nameserver"))
        .option("startingOffsets", "earliest")
        .load("orders")
    )


@dp.materialized_view
def dear_orders() -> DataFrame:
    return spark.read.table("orders").where(sql92("region = 'EU' AND price > 100"))
