"""The driver all tests share."""

from sparkling import local_cluster, spark

__all__ = ["local_cluster", "spark"]
