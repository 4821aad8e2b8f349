"""Filters in code: a Python class that says which messages a group gets."""

from .contract import COLUMNS, TYPES, Context, Judge, Needs
from .judging import judge_batch
from .loading import Loaded, load
from .messages import MessageView
from .source import MAX_SOURCE, CodeFilter, code_filter
from .verdicts import Verdicts

__all__ = [
    "COLUMNS",
    "MAX_SOURCE",
    "TYPES",
    "CodeFilter",
    "Context",
    "Judge",
    "Loaded",
    "MessageView",
    "Needs",
    "Verdicts",
    "code_filter",
    "judge_batch",
    "load",
]
