"""A batch that a filter fails on as a whole is judged again in parts."""

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from tamis.code import CodeFilter, Context, Loaded, Verdicts, judge_batch, load
from tamis.filter import Outcome

ODD = """
class Odd:
    columns = ("body",)
    calls = 0

    def match_batch(self, batch):
        self.calls += 1
        return [int(body) % 2 == 1 for body in batch["body"].to_pylist()]
"""


@pytest.fixture
def odd() -> Loaded:
    return load(CodeFilter("odd.py:Odd", ODD), Context("group", "topic"))


def judged(odd: Loaded, *bodies: bytes | None) -> Verdicts:
    return judge_batch(odd, pa.record_batch({"body": pa.array(bodies, pa.binary())}))


def test_messages_that_it_fails_on_fail_alone(odd: Loaded) -> None:
    bodies = [b"%d" % number for number in range(1000)]
    bodies[77] = bodies[600] = b"x"
    verdicts = judged(odd, *bodies)
    for row, body in enumerate(bodies):
        wanted = Outcome.ERROR if body == b"x" else Outcome(int(body) % 2)
        assert verdicts.outcomes[row] == wanted
    assert "invalid literal" in verdicts.reason(600)


def test_one_that_fails_on_all_is_not_asked_for_ever(odd: Loaded) -> None:
    verdicts = judged(odd, *[b"x"] * 5000)
    assert verdicts.failed.all()
    assert "invalid literal" in verdicts.reason(4999)
    assert odd._user.calls < 200


def test_a_message_whose_body_cannot_be_read_has_failed(odd: Loaded) -> None:
    verdicts = judged(odd, b"1", None, b"2")
    assert verdicts.outcomes.tolist() == [Outcome.TRUE, Outcome.ERROR, Outcome.FALSE]
    assert verdicts.reason(1) == "its body can't be read"


def test_a_mask_of_another_length_fails_all_even_if_it_would_fit_one() -> None:
    one = "class One:\n    columns = ('body',)\n    def match_batch(self, b): return [True]\n"
    loaded = load(CodeFilter("one.py:One", one), Context("group", "topic"))
    verdicts = judged(loaded, b"1", b"2", b"3")
    assert verdicts.failed.all()
    assert "match_batch gave 1 answers for 3 rows" in verdicts.reason(2)
