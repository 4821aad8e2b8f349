"""Which broker a message goes to when some fail or are slow: RocketMQ's table of avoidance."""

import pytest

from tamis.client.faults import Faults
from tamis.wire.bodies import MessageQueue

QUEUES = [MessageQueue("T", name, number) for name in "ab" for number in range(2)]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def brokers(faults: Faults, last: str | None = None) -> str:
    """Those of the next four messages."""
    return "".join(faults.choose(QUEUES, turn, last).broker_name for turn in range(4))


def test_brokers_that_are_well_take_turns() -> None:
    faults = Faults(Clock())
    faults.note("a", 0.5)  # not slow yet
    assert brokers(faults) == "aabb"


@pytest.mark.parametrize(
    ("took", "avoided"),
    [(0.55, 30), (0.99, 30), (1, 60), (2, 120), (3, 180), (14.9, 180), (15, 600)],
)
def test_a_slow_broker_is_avoided_for_as_long_as_rocketmq_does(took: float, avoided: int) -> None:
    clock = Clock()
    faults = Faults(clock)
    faults.note("a", took)
    assert brokers(faults) == "bbbb"
    clock.now = avoided - 0.1
    assert brokers(faults) == "bbbb"
    clock.now = avoided
    assert brokers(faults) == "aabb"


def test_one_that_answers_quickly_again_is_forgiven_at_once() -> None:
    faults = Faults(Clock())
    faults.note_failure("a")
    assert brokers(faults) == "bbbb"
    faults.note("a", 0.01)
    assert brokers(faults) == "aabb"


def test_another_attempt_goes_to_another_broker() -> None:
    assert brokers(Faults(Clock()), last="a") == "bbbb"


def test_if_all_are_slow_the_least_slow_is_taken_but_not_the_last_one() -> None:
    faults = Faults(Clock())
    faults.note("a", 1.0)
    faults.note("b", 20.0)
    assert brokers(faults) == "aaaa"
    assert brokers(faults, last="a") == "bbbb"
