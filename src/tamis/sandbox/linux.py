"""The system calls of Linux that Python's library does not have, by ctypes. Each raises OSError.

Also runs where there is no Linux, as far as importing it.
"""

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from .syscalls import number

__all__ = [
    "adopt_orphans",
    "become_nobody_in_a_namespace",
    "change_root",
    "die_with_parent",
    "drop_capabilities",
    "forbid_new_privileges",
    "hide_memory",
    "landlock_version",
    "make_mounts_private",
    "mount",
    "restrict_files",
    "set_process_name",
    "unmount",
    "unshare",
]

CLONE_NEWNS: Final = 0x00020000
CLONE_NEWUTS: Final = 0x04000000
CLONE_NEWIPC: Final = 0x08000000
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWPID: Final = 0x20000000
CLONE_NEWNET: Final = 0x40000000

MS_RDONLY: Final = 0x1
MS_NOSUID: Final = 0x2
MS_NODEV: Final = 0x4
MS_NOEXEC: Final = 0x8
MS_REMOUNT: Final = 0x20
MS_NOATIME: Final = 0x400
MS_NODIRATIME: Final = 0x800
MS_BIND: Final = 0x1000
MS_REC: Final = 0x4000
MS_PRIVATE: Final = 0x40000
MS_RELATIME: Final = 0x200000
_MNT_DETACH: Final = 2
# What `statvfs` says of a mount, as flags of mount(2): a namespace may not take them away.
_KEPT_FLAGS: Final = {
    0x2: MS_NOSUID,
    0x4: MS_NODEV,
    0x8: MS_NOEXEC,
    0x400: MS_NOATIME,
    0x800: MS_NODIRATIME,
    0x1000: MS_RELATIME,
}

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_SET_NAME: Final = 15
_PR_CAPBSET_DROP: Final = 24
_PR_SET_CHILD_SUBREAPER: Final = 36
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_CLEAR_ALL: Final = 4
_SIGKILL: Final = 9
_CAPABILITY_VERSION_3: Final = 0x20080522

_LANDLOCK_CREATE_RULESET_VERSION: Final = 1
_LANDLOCK_RULE_PATH_BENEATH: Final = 1
_LANDLOCK_READ: Final = 1 << 2 | 1 << 3  # of files, of directories
# By version: how many rights for files there are; then also for TCP; then scopes.
_LANDLOCK_FILE_RIGHTS: Final = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
_LANDLOCK_TCP: Final = 0b11  # to bind and to connect, from version 4
_LANDLOCK_SCOPES: Final = 0b11  # abstract sockets and signals, from version 6

_libc: Any = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class _Ruleset(ctypes.Structure):
    _fields_ = [
        ("files", ctypes.c_uint64),
        ("tcp", ctypes.c_uint64),
        ("scopes", ctypes.c_uint64),
    ]


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("directory", ctypes.c_int32)]


def _checked(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def syscall(name: str, *arguments: Any) -> int:
    # Numbers go as long: ctypes would pass an int of 32 bits, and the call reads 64.
    given = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    return _checked(_libc.syscall(ctypes.c_long(number(name)), *given), name)


def prctl(option: int, *arguments: int) -> int:
    padded = [*arguments, 0, 0, 0, 0][:4]
    result: int = _libc.prctl(option, *(ctypes.c_ulong(one) for one in padded))
    return _checked(result, f"prctl {option}")


def unshare(flags: int) -> None:
    _checked(_libc.unshare(ctypes.c_int(flags)), "unshare")


def become_nobody_in_a_namespace(uid: int, gid: int) -> None:
    """Enter a user namespace in which we have every capability and there is no other user."""
    unshare(CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def mount(
    source: str | None, target: str, kind: str | None, flags: int, data: str | None = None
) -> None:
    given = [None if one is None else one.encode() for one in (source, target, kind, data)]
    result = _libc.mount(given[0], given[1], given[2], ctypes.c_ulong(flags), given[3])
    _checked(result, f"mount {target}")


def bind_read_only(source: str, target: str) -> None:
    """Show what lies at a path at another, read-only and without what is mounted below it."""
    try:
        mount(source, target, None, MS_BIND)
    except OSError:  # mounts below it must not be uncovered in a less privileged namespace
        mount(source, target, None, MS_BIND | MS_REC)
    kept = os.statvfs(target).f_flag
    flags = MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV
    for seen, flag in _KEPT_FLAGS.items():
        flags |= flag if kept & seen else 0
    mount(None, target, None, flags)


def make_mounts_private() -> None:
    mount(None, "/", None, MS_REC | MS_PRIVATE)


def unmount(target: str) -> None:
    _checked(_libc.umount2(target.encode(), _MNT_DETACH), f"umount {target}")


def change_root(directory: str) -> None:
    """Make a mounted directory the root, and let go of the old one."""
    os.chdir(directory)
    syscall("pivot_root", ctypes.c_char_p(b"."), ctypes.c_char_p(b"."))
    unmount(".")  # the old root lies on the new one
    os.chdir("/")


def drop_capabilities() -> None:
    """Give up all capabilities, also those that a program or a change of user would bring."""
    for capability in range(64):
        try:
            prctl(_PR_CAPBSET_DROP, capability)
        except OSError:  # no such one, or we may not: then `forbid_new_privileges` has to do
            break
    with contextlib.suppress(OSError):  # before Linux 4.3
        prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    none = (ctypes.c_uint32 * 6)()
    _checked(_libc.capset(header, none), "capset")


def forbid_new_privileges() -> None:
    prctl(_PR_SET_NO_NEW_PRIVS, 1)


def hide_memory() -> None:
    """Other processes of the user can neither trace us nor read our memory."""
    prctl(_PR_SET_DUMPABLE, 0)


def die_with_parent() -> None:
    """A change of user or of capabilities takes this back: call it after those."""
    prctl(_PR_SET_PDEATHSIG, _SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of those below us that lose theirs, instead of process 1."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_process_name(name: str) -> None:
    text = ctypes.create_string_buffer(name.encode()[:15])
    _checked(_libc.prctl(_PR_SET_NAME, text, 0, 0, 0), "prctl")


def landlock_version() -> int:
    """Return the version of Landlock here; 0 if there is none."""
    try:
        return syscall("landlock_create_ruleset", None, 0, _LANDLOCK_CREATE_RULESET_VERSION)
    except OSError:
        return 0


def restrict_files(readable: Iterable[str]) -> None:
    """Allow nothing but reading below these directories, by Landlock; no TCP either."""
    version = landlock_version()
    rights = (1 << _LANDLOCK_FILE_RIGHTS.get(version, 16)) - 1
    wanted = _Ruleset(
        rights,
        _LANDLOCK_TCP if version >= 4 else 0,
        _LANDLOCK_SCOPES if version >= 6 else 0,
    )
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = syscall("landlock_create_ruleset", ctypes.byref(wanted), size, 0)
    try:
        for path in readable:
            try:
                directory = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except OSError:  # closed to the user that we are by now: not to be read then
                continue
            try:
                rule = _PathBeneath(_LANDLOCK_READ, directory)
                kind = _LANDLOCK_RULE_PATH_BENEATH
                syscall("landlock_add_rule", ruleset, kind, ctypes.byref(rule), 0)
            finally:
                os.close(directory)
        syscall("landlock_restrict_self", ruleset, 0)
    finally:
        os.close(ruleset)
