"""What a Python worker of Spark's does once."""

import subprocess
import sys

PROGRAM = """
import gc
import tamis.spark.fetching
from tamis.spark.reader import Partition, fetch_of, rows_of
from tamis.spark.options import Options

before = len(gc.get_objects())
fetch = fetch_of(Options.parse({"path": "/nowhere"}, of_log=True))
assert list(rows_of(Partition(()), fetch)) == []
print(before, len(gc.get_objects()))
"""


def test_a_worker_that_has_read_has_little_to_look_through_after_each_task() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    before, after = map(int, done.stdout.split())
    assert after < before / 10
