"""The driver all tests share, and which ones a plain `make test` leaves to `.ci/run`."""

import os

from sparkling import local_cluster, spark

__all__ = ["local_cluster", "spark"]

LONGEST = ("test_connect", "test_declarative", "test_standalone")
collect_ignore = (
    [] if os.environ.get("TAMIS_INTEROP") == "required" else [f"{name}.py" for name in LONGEST]
)
