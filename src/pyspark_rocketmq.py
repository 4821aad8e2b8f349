"""Spark looks for data sources in modules called so: it knows `rocketmq` without being told."""

from tamis.spark.source import RocketMQ as DefaultSource

__all__ = ["DefaultSource"]
