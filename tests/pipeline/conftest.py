from sparkling import local_cluster, spark

__all__ = ["local_cluster", "spark"]
