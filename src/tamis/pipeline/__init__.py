"""Jobs on the data sources: route, archive, replay, backtest; each a function of DataFrames.

`config` is read without Spark, so that what is wrong in a file is told before anything starts.
"""

from .config import Config, load

__all__ = ["Config", "load"]
