"""Runs Python as an ordinary user, 65534, with the arguments given. Started by root.

Where Python lies in a directory that is closed to others (as /root is), it is shown to that user in
a namespace of mounts of its own: nothing is changed for anybody else.
"""

import os
import sys
from pathlib import Path

from tamis.sandbox import linux

NOBODY = 65534


def main() -> None:
    wanted = (sys.base_prefix, sys.prefix, os.getcwd(), *sys.path)
    needed = {Path(os.path.realpath(one)) for one in wanted if one}
    closed = {one: wall for one in needed if one.exists() and (wall := _closed(one))}
    if closed:
        linux.unshare(linux.CLONE_NEWNS)
        linux.make_mounts_private()
    for wall in {*closed.values()}:
        inside = [one for one, its in closed.items() if its == wall]
        files = {one: os.open(one, os.O_PATH) for one in inside}
        linux.mount("tmpfs", str(wall), "tmpfs", 0, "mode=755")
        for one in sorted(inside):
            if not one.exists():
                one.mkdir(parents=True)
                linux.mount(f"/proc/self/fd/{files[one]}", str(one), None, linux.MS_BIND)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    os.environ |= {"HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"}
    os.environ["PYTHONPATH"] = os.pathsep.join(one for one in sys.path[1:] if one)
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])


def _closed(path: Path) -> Path | None:
    """The first directory on the way that others may not enter."""
    for one in [*reversed(path.parents), path]:
        if one.is_dir() and not one.stat().st_mode & 0o001:
            return one
    return None


main()
