"""Running a stranger's filter apart from us, under limits."""

from .cell import Cell, Usage
from .limits import Limits
from .plan import Isolation
from .probe import Report
from .sandbox import Sandbox

__all__ = ["Cell", "Isolation", "Limits", "Report", "Sandbox", "Usage"]
