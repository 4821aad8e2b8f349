"""As `pyspark_rocketmq`, for `rocketmq-log`."""

from tamis.spark.source import RocketMQLog as DefaultSource

__all__ = ["DefaultSource"]
