"""Filters in code: what they are given, and what becomes of those that fail."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tamis.errors import ConfigError
from tamis.spark.code import CodeFilter, _evaluate, code_filter

F, T, N, E = range(4)

ROWS = pa.StructArray.from_arrays(
    [
        pa.array(["orders"] * 3),
        pa.array(["broker-a"] * 3),
        pa.array([0, 1, 2], pa.int32()),
        pa.array([7, 8, 9], pa.int64()),
        pa.array([1_000_000, 2_000_000, None], pa.timestamp("us", "UTC")),
        pa.array(["PAID", None, "NEW"]),
        pa.array(["k1 k2", None, "k3"]),
        pa.array(
            [[("TAGS", "PAID"), ("KEYS", "k1 k2"), ("price", "12")], [], [("price", "free")]],
            pa.map_(pa.string(), pa.string()),
        ),
        pa.array([b"one", b"", None], pa.binary()),
        pa.array(["ID1", "ID2", "ID3"]),
    ],
    names=[
        *("topic", "broker", "queue_id", "offset", "born_timestamp", "tags", "keys"),
        *("properties", "body", "message_id"),
    ],
)

ANSWERS = {
    "def match(self, m): return m.tags == 'PAID' and m.keys == ('k1', 'k2')": [T, F, F],
    "def match(self, m): return (m.topic, m.queue.queue_id, m.offset) == ('orders', 1, 8)": [
        F,
        T,
        F,
    ],
    "def match(self, m): return m.message_id == 'ID3' and m.body == b''": [F, F, T],
    "def match(self, m): return m.born_timestamp == 1000": [T, F, F],
    "def match(self, m): return float(m.properties.get('price', 0)) > 5": [
        T,
        F,
        "ValueError: could not convert string to float: 'free'",
    ],
    "def match(self, m): return m.offset": ["match gave 7, not a boolean"]
    + [f"match gave {number}, not a boolean" for number in (8, 9)],
    "def match(self, m): return numpy.bool_(m.offset > 7)": [F, T, T],
    "def match(self, m): raise SystemExit('no')": ["SystemExit: no"] * 3,
    "def match(self, m): raise ValueError('a\\nb')": ["ValueError: a"] * 3,
    "def match_batch(self, b): return [True, False, None]": [T, F, N],
    "def match_batch(self, b): return pc.greater(b['offset'], 7)": [F, T, T],
    "def match_batch(self, b): return b['queue_id'].to_numpy() > 1": [F, F, T],
    "def match_batch(self, b): return pa.chunked_array([[True], [False, True]])": [T, F, T],
    "def match_batch(self, b): return [True]": ["ValueError: match_batch gave 1 answers for 3 rows"]
    * 3,
    "def match_batch(self, b): return b['offset']": [
        "TypeError: match_batch gave int64, not booleans"
    ]
    * 3,
    "def match_batch(self, b): return None": ["TypeError: match_batch gave None, not a mask"] * 3,
    "def match_batch(self, b): 1 / 0": ["ZeroDivisionError: division by zero"] * 3,
}


def code(body: str) -> CodeFilter:
    text = f"import numpy, pyarrow as pa, pyarrow.compute as pc\nclass Mine:\n    {body}\n"
    return CodeFilter("mine.py:Mine", text)


@pytest.mark.parametrize("body", ANSWERS)
def test_each_row_has_an_outcome_and_a_failure_its_line(body: str) -> None:
    answers = _evaluate(code(body), ROWS).to_pylist()
    assert [row["error"] or row["outcome"] for row in answers] == ANSWERS[body]
    assert all((row["outcome"] == E) == (row["error"] is not None) for row in answers)


def test_one_object_sees_all_batches_of_a_process() -> None:
    counting = code("seen = 0\n    def match(self, m): self.seen += 1; return self.seen % 2 == 0")
    outcomes = [row["outcome"] for _ in range(2) for row in _evaluate(counting, ROWS).to_pylist()]
    assert outcomes == [F, T, F, T, F, T]


UNUSABLE = {
    "class Other: ...": "mine.py has no class Mine",
    "Mine = 1": "mine.py has no class Mine",
    "class Mine: ...": "class Mine has neither match nor match_batch",
    "class Mine:\n  def match(self, m) return 1": "line 2: expected ':'",
    "import nowhere_to_be_found": "ModuleNotFoundError: No module named 'nowhere_to_be_found'",
    "class Mine:\n  def __init__(self): 1 / 0\n  def match(self, m): ...": "ZeroDivisionError: ",
    "raise SystemExit": "SystemExit",
}


@pytest.mark.parametrize("text", UNUSABLE)
def test_what_can_t_be_used_is_known_before_a_job_starts(tmp_path: Path, text: str) -> None:
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(ConfigError) as caught:
        code_filter("mine.py:Mine", tmp_path)
    assert str(caught.value).startswith("code mine.py:Mine: " + UNUSABLE[text])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["mine.py", ":Mine", "mine.py:", "mine.py:a-b", "none.py:Mine"])
def test_a_filter_that_is_not_there_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"write file\.py:Class|there is no file"):
        code_filter(name, tmp_path)


def test_workers_need_not_have_the_file(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "odd.py"
    file.write_text(
        "class Odd:\n    def match(self, message):\n        return int(message.tags) % 2 == 1\n"
    )
    odd = code_filter("odd.py:Odd", tmp_path)
    file.unlink()
    rows = spark.createDataFrame([("1", 0), ("x", 1), ("2", 2)], "tags string, offset long")
    rows = rows.selectExpr("*", "map('TAGS', tags) AS properties").coalesce(1)
    outcome = odd.outcome("tags", "offset", "properties")
    found = [tuple(row[0]) for row in rows.select(outcome).collect()]
    why = "ValueError: invalid literal for int() with base 10: 'x'"
    assert found == [(T, None), (E, why), (F, None)]
