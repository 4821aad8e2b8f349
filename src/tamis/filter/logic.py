"""The four outcomes of a filter and the truth tables every engine is held to.

An error is an outcome like the others, which closes the tables: an engine may short-circuit or
evaluate everything and must come to the same answer.
"""

from enum import IntEnum
from typing import Final

__all__ = ["AND", "NOT", "OR", "Outcome", "outcome_of"]


class Outcome(IntEnum):
    """The numbers are what the columnar engine writes, a byte a message."""

    FALSE = 0
    TRUE = 1
    NULL = 2
    ERROR = 3

    @property
    def matched(self) -> bool:
        """RocketMQ delivers a message only on exactly true."""
        return self is Outcome.TRUE


F, T, N, E = Outcome

# AND[left][right]. The left is evaluated first: FALSE ends it, an error ends everything, and NULL
# ends nothing, so that an error on the right still surfaces.
AND: Final = (
    # F  T  N  E   <- right
    (F, F, F, F),  # left FALSE
    (F, T, N, E),  # left TRUE
    (F, N, N, E),  # left NULL
    (E, E, E, E),  # left ERROR
)
OR: Final = (
    (F, T, N, E),
    (T, T, T, T),
    (N, T, N, E),
    (E, E, E, E),
)
NOT: Final = (T, F, N, E)


def outcome_of(answer: bool | None) -> Outcome:
    """The outcome of an evaluation that did not fail."""
    if answer is None:
        return N
    return T if answer else F
