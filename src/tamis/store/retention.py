"""What is removed when it is old or the disk is full: first files of the log, then those of queues
whose messages are gone with them.

The last file of the log always stays. Whoever reads a queue meanwhile may find its first offset too
low, never too high.
"""

import shutil
import time
from pathlib import Path

from .commitlog import CommitLog
from .config import StoreConfig
from .consumequeue import ConsumeQueue

__all__ = ["correct_queues", "disk_used", "drop_expired"]

_MOST_REMOVED = 10  # log files at a time, as RocketMQ does: it is not to hold up others


def drop_expired(log: CommitLog, root: Path, config: StoreConfig, now: float) -> list[Path]:
    """Removes log files older than `keep_hours`, or the oldest while more of the disk is in use
    than `clean_ratio`. Returns those removed."""
    usage = shutil.disk_usage(root)
    used, most = usage.used, config.clean_ratio * (usage.used + usage.free)
    oldest = now - config.keep_hours * 3600
    removed = list[Path]()
    starts = log.files.starts
    for start in starts[: min(len(starts) - 1, _MOST_REMOVED)]:
        path = log.files.file_path(start)
        if path.stat().st_mtime > oldest and used <= most:
            break
        used -= path.stat().st_blocks * 512
        log.drop_first()
        removed.append(path)
    return removed


def correct_queues(queues: list[ConsumeQueue], log: CommitLog, seconds: float | None) -> None:
    """Removes files of queues whose messages are gone from the log, moves the queues' first offsets
    on, and takes those queues off the list; as far as it gets in that time."""
    deadline = time.monotonic() + seconds if seconds is not None else None
    while queues:
        queue = queues[-1]
        queue.drop_before(log.start)
        queue.correct_min_offset(log.start)
        queues.pop()
        if deadline is not None and time.monotonic() > deadline:
            break


def disk_used(path: Path) -> float:
    """Returns the part of the disk in use, of what we could have of it, as RocketMQ reckons and df
    shows: what is kept for others does not count."""
    usage = shutil.disk_usage(path)
    return usage.used / max(usage.used + usage.free, 1)
