"""Who has to give memory back."""

import pytest

from tamis.sandbox.budget import Budget, half_of_memory


class Holder:
    def __init__(self, *, is_idle: bool) -> None:
        self.is_idle = is_idle
        self.reasons: list[str] = []

    def release_memory(self, reason: str) -> bool:
        self.reasons.append(reason)
        return self.is_idle


# what is held by those that are idle, by those that run, and by the one that asks; who has to go
CASES = [
    ([], [], 100, [], False),
    ([60], [], 40, [], False),
    ([60], [], 41, [0], False),
    ([10, 60, 30], [], 50, [1], False),
    ([10, 60, 30], [], 80, [1, 2], False),
    ([40], [50], 51, [], True),
    ([40], [60], 50, [], False),  # the larger one asks itself
    ([90], [50], 50, [0], False),
    ([5, 5], [], 101, [], True),
]


@pytest.mark.parametrize(("idle", "running", "asks", "gone", "is_asker_gone"), CASES)
def test_idle_ones_go_first_and_the_largest_of_them(
    idle: list[int], running: list[int], asks: int, gone: list[int], is_asker_gone: bool
) -> None:
    budget = Budget(100 << 20)
    idle_ones = [Holder(is_idle=True) for _ in idle]
    asker = Holder(is_idle=False)
    for holder, size in zip(idle_ones, idle, strict=True):
        budget._held[holder] = size << 20
    for size in running:
        budget._held[Holder(is_idle=False)] = size << 20
    reason = budget.exceeded(asker, asks << 20)
    expected = "ended: all filters together need more than 100 MiB"
    assert reason == (expected if is_asker_gone else None)
    assert [n for n, one in enumerate(idle_ones) if one.reasons == [expected]] == gone


def test_what_is_forgotten_counts_no_more() -> None:
    budget = Budget(100)
    holder, other = Holder(is_idle=False), Holder(is_idle=False)
    assert budget.exceeded(holder, 90) is None
    budget.forget(holder)
    assert budget.exceeded(other, 90) is None


def test_half_of_the_memory_is_some() -> None:
    assert 2**20 < half_of_memory() < 2**60
