"""What a Python worker of Spark's does once."""

import gc

__all__ = ["settle"]

_is_settled = False


def settle() -> None:
    """To be called when a task has loaded what it needs. After every task Spark has the worker look
    through all its objects for garbage, which takes longer than a small task does: those that are
    there now are not looked at again."""
    global _is_settled
    if not _is_settled:
        gc.collect()
        gc.freeze()
        _is_settled = True
