"""How long to wait before something is tried again."""

__all__ = ["pause_before"]


def pause_before(attempt: int, first: float, longest: float) -> float:
    """Seconds before a further attempt, of which `attempt` were made already, counted from 0: twice
    as long each time, up to `longest`."""
    return min(first * 2.0 ** min(attempt, 32), longest)
