"""How much a trigger may take, as Spark says it. PySpark 4.1 has no words for it: ours, then.

Since 4.2 Spark asks a Python source how far to go with a start and a limit (admission control), and
knows AvailableNow. 4.1 asks for the latest offset only: `single.py` does what can be done there.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

__all__ = [
    "HAS_ADMISSION_CONTROL",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "ReadMinRows",
    "SupportsTriggerAvailableNow",
]

HAS_ADMISSION_CONTROL: Final = find_spec("pyspark.sql.streaming.datasource") is not None

if TYPE_CHECKING or HAS_ADMISSION_CONTROL:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
else:

    class ReadLimit: ...

    @dataclass
    class ReadAllAvailable(ReadLimit): ...

    @dataclass
    class ReadMaxRows(ReadLimit):
        max_rows: int

    @dataclass
    class ReadMinRows(ReadLimit):
        min_rows: int

    class SupportsTriggerAvailableNow: ...
