"""Spark looks for modules called `pyspark_...` on the Python path of its driver and takes their
`DefaultSource`: the format `rocketmq` need not be registered."""

from tamis.spark.source import RocketMQ as DefaultSource

__all__ = ["DefaultSource"]
