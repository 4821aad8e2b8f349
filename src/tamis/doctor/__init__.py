"""What is wrong in a cluster: facts are gathered from its servers (`gather.py`), and checks, each a
pure function of the facts, make findings of them (`checks.py` lists them)."""

from .checks import CHECKS, examine
from .facts import ClusterFacts, Unchecked
from .findings import Finding, Severity
from .gather import gather

__all__ = ["CHECKS", "ClusterFacts", "Finding", "Severity", "Unchecked", "examine", "gather"]
