"""Filters in code: a Python class that says which messages a group gets."""

from .contract import Context, Judge, Needs
from .source import MAX_SOURCE, CodeFilter, code_filter
from .verdicts import Verdicts

__all__ = ["MAX_SOURCE", "CodeFilter", "Context", "Judge", "Needs", "Verdicts", "code_filter"]
