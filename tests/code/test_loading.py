"""Filters in code: what can be loaded, what they are given, and what becomes of those that fail."""

import sys

import numpy as np
import pyarrow as pa
import pytest

from tamis.client.columns import EXTRA, KINDS, SCHEMA
from tamis.code import COLUMNS, TYPES, CodeFilter, Context, Loaded, Verdicts, load
from tamis.errors import CodeError

F, T, N, E = range(4)

CONTEXT = Context("group", "orders")
BATCH = pa.RecordBatch.from_arrays(
    [
        pa.array(["orders"] * 3),
        pa.array(["broker-a"] * 3),
        pa.array([0, 1, 2], pa.int32()),
        pa.array([7, 8, 9], pa.int64()),
        pa.array([1_000_000, 2_000_000, None], pa.timestamp("us", "UTC")),
        pa.array([3_000, 4_000, 5_000], pa.timestamp("ms", "UTC")),
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
        *("topic", "broker", "queue_id", "offset", "born_timestamp", "store_timestamp", "tags"),
        *("keys", "properties", "body", "message_id"),
    ],
)

ANSWERS = {
    "def match(self, m): return m.tags == 'PAID' and m.keys == ('k1', 'k2')": [T, F, F],
    "def match(self, m): return (m.topic, m.queue.queue_id, m.offset) == ('orders', 1, 8)": [
        F,
        T,
        F,
    ],
    "def match(self, m): return (m.broker, m.queue_id) == ('broker-a', 1)": [F, T, F],
    "def match(self, m): return m.message_id == 'ID3' and m.body == b''": [F, F, T],
    "def match(self, m): return m.text == 'one'": [T, F, F],
    "def match(self, m): return m.born_timestamp == 1000": [T, F, F],
    "def match(self, m): return m.born_timestamp == 0": [F, F, T],
    "def match(self, m): return m.store_timestamp == 4000": [F, T, F],
    "def match(self, m): return m.reconsume_times > 0": [F, F, F],
    "def match(self, m): return m.properties == {'price': 'free'}": [F, F, T],
    "def match(self, m): return float(m.properties.get('price', 0)) > 5": [
        T,
        F,
        "ValueError: could not convert string to float: 'free'",
    ],
    "def match(self, m): m.topic = 'mine'": [
        "AttributeError: property 'topic' of 'MessageView' object has no setter"
    ]
    * 3,
    "def match(self, m): return m.offset": ["match gave 7, not a boolean"]
    + [f"match gave {number}, not a boolean" for number in (8, 9)],
    "def match(self, m): return None": ["match gave None, not a boolean"] * 3,
    "def match(self, m): return numpy.bool_(m.offset > 7)": [F, T, T],
    "def match(self, m): raise SystemExit('no')": ["SystemExit: no"] * 3,
    "def match(self, m): raise GeneratorExit": ["GeneratorExit"] * 3,
    "def match(self, m): raise ValueError('a\\nb')": ["ValueError: a"] * 3,
    "def match(self, m): raise ValueError('x' * 300)": [f"ValueError: {'x' * 187}…"] * 3,
    "def match(self, m, c): return (c.group, c.topic) == ('group', 'orders')": [T, T, T],
    "def match(self, m, context=None): return context.group == 'group'": [T, T, T],
    "def match(self, m, least=8): return m.offset >= least": [F, T, T],
    "def match(self, *given): return len(given) == 1": [T, T, T],
    "def match_batch(self, b): return [True, False, None]": [T, F, N],
    "def match_batch(self, b): return (x > 7 for x in b['offset'].to_pylist())": [F, T, T],
    "def match_batch(self, b): return pc.greater(b['offset'], 7)": [F, T, T],
    "def match_batch(self, b): return b['queue_id'].to_numpy() > 1": [F, F, T],
    "def match_batch(self, b): return pa.chunked_array([[True], [False, True]])": [T, F, T],
    "def match_batch(self, b, c): return [c.topic == 'orders'] * 3": [T, T, T],
    "def match_batch(self, b): return [True]": ["ValueError: match_batch gave 1 answers for 3 rows"]
    * 3,
    "def match_batch(self, b): return b['offset']": [
        "TypeError: match_batch gave int64, not booleans"
    ]
    * 3,
    "def match_batch(self, b): return None": ["TypeError: match_batch gave None, not a mask"] * 3,
    "def match_batch(self, b): 1 / 0": ["ZeroDivisionError: division by zero"] * 3,
    "match = 1\n    def match_batch(self, b): return [True] * 3": [T, T, T],
}


def code(body: str) -> CodeFilter:
    text = f"import numpy, pyarrow as pa, pyarrow.compute as pc\nclass Mine:\n    {body}\n"
    return CodeFilter("mine.py:Mine", text)


def loaded(body: str) -> Loaded:
    return load(code(body), CONTEXT)


def told(verdicts: Verdicts) -> list[int | str]:
    """The outcomes, for rows that failed the reason."""
    assert verdicts.outcomes.dtype == np.uint8
    assert all(verdicts.outcomes[row] == E for row in verdicts.errors)
    outcomes = verdicts.outcomes.tolist()
    return [verdicts.reason(row) if one == E else one for row, one in enumerate(outcomes)]


@pytest.mark.parametrize("body", ANSWERS)
def test_each_row_has_an_outcome_and_a_failure_its_line(body: str) -> None:
    assert told(loaded(body).judge(BATCH)) == ANSWERS[body]


def test_one_object_sees_all_batches() -> None:
    counting = loaded("seen = 0\n    def match(self, m): self.seen += 1; return self.seen % 2 == 0")
    assert [*told(counting.judge(BATCH)), *told(counting.judge(BATCH))] == [F, T, F, T, F, T]


def test_ctrl_c_is_not_taken_for_an_answer() -> None:
    for method in ("match", "match_batch"):
        with pytest.raises(KeyboardInterrupt):
            loaded(f"def {method}(self, m): raise KeyboardInterrupt").judge(BATCH)


def test_an_error_that_can_t_be_shown_is_named() -> None:
    hiding = loaded(
        "class Hidden(Exception):\n        def __str__(self): raise ValueError\n"
        "    def match(self, m): raise self.Hidden"
    )
    assert told(hiding.judge(BATCH)) == ["Hidden"] * 3


def test_of_many_failed_rows_the_first_and_the_last_say_why() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(range(1000))], names=["offset"])
    verdicts = loaded("def match(self, m): 1 / 0 if m.offset == 5 else int(m)").judge(batch)
    failing = loaded("def match(self, m): raise ValueError(m.offset)").judge(batch)
    assert verdicts.failed.all()
    assert failing.failed.all()
    assert len(failing.errors) == 64
    assert [failing.reason(row) for row in (0, 62, 999)] == [
        *("ValueError: 0", "ValueError: 62", "ValueError: 999")
    ]
    assert verdicts.reason(5) == "ZeroDivisionError: division by zero"


def test_no_rows_have_no_outcomes() -> None:
    for body in ("def match(self, m): 1 / 0", "def match_batch(self, b): return []"):
        verdicts = loaded(body).judge(BATCH.slice(0, 0))
        assert told(verdicts) == []
        assert not verdicts.errors


UNUSABLE = {
    "class Other: ...": "mine.py has no class Mine",
    "Mine = 1": "mine.py has no class Mine",
    "class Mine: ...": "class Mine has neither match nor match_batch",
    "class Mine:\n  match = 1": "class Mine has neither match nor match_batch",
    "class Mine:\n  def match(self, m) return 1": "line 2: expected ':'",
    "import nowhere_to_be_found": "ModuleNotFoundError: No module named 'nowhere_to_be_found'",
    "class Mine:\n  def __init__(self): 1 / 0\n  def match(self, m): ...": "ZeroDivisionError: ",
    "raise SystemExit": "SystemExit",
    "raise GeneratorExit('a\\nb')": "GeneratorExit: a",
    "a\0b": "source code string cannot contain null bytes",
    "package a.b;\npublic class Mine implements MessageFilter {}": "this is Java",
    "class Mine:\n  async def match(self, m): ...": "match is a coroutine: write def",
    "class Mine:\n  def match(self): ...": "match takes (); it is given (message) or (message, con",
    "class Mine:\n  def match_batch(self, a, b, c): ...": "match_batch takes (a, b, c); it is",
    "class Mine:\n  def match(self, m, *, more): ...": "match takes (m, more); it is given (",
}


@pytest.mark.parametrize("text", UNUSABLE)
def test_why_a_source_can_t_be_used_is_said_in_one_line(text: str) -> None:
    before = {*sys.modules}
    with pytest.raises(CodeError) as caught:
        load(CodeFilter("mine.py:Mine", text), CONTEXT)
    assert UNUSABLE[text] in str(caught.value)
    assert str(caught.value).startswith("code mine.py:Mine: ")
    assert "\n" not in str(caught.value)
    assert not [name for name in {*sys.modules} - before if name.startswith("_tamis")]


def test_a_module_goes_with_its_filter() -> None:
    before = {*sys.modules}
    one, two = (loaded("def match(self, m): ...") for _ in range(2))
    assert len({*sys.modules} - before) == 2
    one.close()
    del two
    assert {*sys.modules} == before


def test_a_class_may_be_a_dataclass_with_postponed_annotations() -> None:
    text = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Mine:\n    least: int = 8\n"
        "    def match(self, m) -> bool: return m.offset >= self.least\n"
    )
    assert told(load(CodeFilter("mine.py:Mine", text), CONTEXT).judge(BATCH)) == [F, T, T]


def test_the_columns_and_types_are_those_of_the_client() -> None:
    assert [*COLUMNS] == [*SCHEMA.names, *EXTRA.names]
    assert [*TYPES] == [*KINDS]


def test_who_watches_from_outside_sees_which_row_is_judged() -> None:
    progress = [9]
    seeing = loaded("seen = []\n    def match(self, m): self.seen.append(self.progress[0]); 1 / 0")
    seeing._user.progress = progress
    seeing.judge(BATCH, progress=progress)
    assert seeing._user.seen == [0, 1, 2]
