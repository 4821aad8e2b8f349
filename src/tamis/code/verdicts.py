"""What a filter in code said of a batch of messages."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ..filter.logic import Outcome

__all__ = ["Verdicts"]


@dataclass(frozen=True, slots=True, eq=False)
class Verdicts:
    """An outcome for each row, and for rows whose outcome is ERROR the reason, in one line.

    There may be more failed rows than reasons; `reason` then repeats the last one.
    """

    outcomes: npt.NDArray[np.uint8]  # `tamis.filter.Outcome`s
    errors: Mapping[int, str] = field(default_factory=dict)  # by row

    @property
    def matched(self) -> npt.NDArray[np.bool_]:
        matched: npt.NDArray[np.bool_] = self.outcomes == Outcome.TRUE
        return matched

    @property
    def failed(self) -> npt.NDArray[np.bool_]:
        failed: npt.NDArray[np.bool_] = self.outcomes == Outcome.ERROR
        return failed

    def reason(self, row: int) -> str:
        """Return why a row failed."""
        if row in self.errors:
            return self.errors[row]
        return list(self.errors.values())[-1] if self.errors else "failed"
