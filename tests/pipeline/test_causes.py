"""What is said of a failure: its cause in a line, and where it was."""

import re
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tamis.errors import Error
from tamis.pipeline.causes import last_line, one_line

Batches = Iterator[pa.RecordBatch]


def raises(batches: Batches) -> Batches:
    try:
        {}["price"]
    except KeyError:
        raise ValueError("no price\nin two lines") from None
    yield from batches


def raises_ours(batches: Batches) -> Batches:
    raise Error("the disk is full")
    yield from batches


def dies(batches: Batches) -> Batches:
    import os

    os._exit(3)
    yield from batches


SAID = {
    raises: r"^ValueError: no price \(in a Python worker on \S+\)$",
    raises_ours: "^the disk is full$",
    dies: r"^a Python worker on \S+ ended unexpectedly: it was killed",
}


@pytest.mark.parametrize("work", SAID, ids=lambda work: work.__name__)
def test_a_worker_s_failure_is_told_by_its_last_line_and_its_host(
    spark: SparkSession, work: Callable[[Batches], Batches]
) -> None:
    rows = spark.range(2).coalesce(1).mapInArrow(work, "id long")
    with pytest.raises(Exception) as caught:
        rows.write.format("noop").mode("overwrite").save()
    assert re.search(SAID[work], one_line(caught.value))


def test_a_python_that_did_not_start_in_time_is_told_as_a_busy_machine() -> None:
    said = one_line(Exception("Query [id = 1] terminated: Python worker failed to connect back."))
    assert re.fullmatch(
        r"[^\n]*did not start within 10 seconds[^\n]*too busy; run it again[^\n]*", said
    )


def test_of_chained_tracebacks_the_last_counts() -> None:
    text = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "a.py", line 1, in a
KeyError: 'a'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 2, in a
    raise ValueError(
    ^^^^^^^^^^^^^^^^^
ValueError: b

\tat org.apache.spark.Some.method(Some.scala:1)
"""
    assert last_line(text) == "ValueError: b"
    assert last_line("java.io.EOFException") is None
