"""The file system of the zygote and its children: a read-only root with Python and nothing else.

There is no /proc, /dev, /etc or /tmp in it. C extensions and what they are linked with are loaded
before, so that no directory of libraries is needed.
"""

import os
from pathlib import Path
from typing import Final

from . import linux
from .plan import Plan

__all__ = ["enter"]

_COVERED: Final = ("/tmp", "/mnt", "/opt", "/dev", "/srv")  # the new root is made on one of these
_EMPTY: Final = "size=1m,nr_inodes=1k,mode=755"
_FLAGS: Final = linux.MS_NOSUID | linux.MS_NODEV


def enter(plan: Plan) -> None:
    """Leave the namespaces of the server and its file system. Raises OSError."""
    uid, gid = os.getuid(), os.getgid()
    apart = linux.CLONE_NEWNS | linux.CLONE_NEWNET | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS
    try:
        linux.unshare(apart)
    except PermissionError:  # not root, or a root without capabilities
        linux.become_nobody_in_a_namespace(uid, gid)
        linux.unshare(apart)
    linux.make_mounts_private()
    # Opened first, because the new root may cover them.
    sources = {path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in plan.readable}
    root = next(one for one in _COVERED if os.path.isdir(one))
    linux.mount("tmpfs", root, "tmpfs", _FLAGS, _EMPTY)
    _show(sources, root, plan.standard_library)
    hidden = _installed_beside(plan.standard_library)
    for directory in hidden:
        linux.mount("tmpfs", root + directory, "tmpfs", _FLAGS, _EMPTY)
    for path in plan.packages:
        _show(sources, root, path)
    for directory in (*hidden, ""):
        flags = linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | _FLAGS
        linux.mount(None, root + directory, None, flags)
    for descriptor in sources.values():
        os.close(descriptor)
    linux.change_root(root)


def _show(sources: dict[str, int], root: str, path: str) -> None:
    Path(root + path).mkdir(0o755, parents=True, exist_ok=True)
    linux.bind_read_only(f"/proc/self/fd/{sources[path]}", root + path)


def _installed_beside(standard_library: str) -> list[str]:
    """Directories of the standard library that hold what was installed by hand."""
    names = ("site-packages", "dist-packages")
    return [one for name in names if os.path.isdir(one := f"{standard_library}/{name}")]
