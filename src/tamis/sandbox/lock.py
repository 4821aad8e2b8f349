"""How a child shuts itself in, before any code of a filter runs. There is no way back out."""

import os
import resource
from collections.abc import Mapping
from typing import Final

from . import linux, seccomp
from .plan import Plan

__all__ = ["close_descriptors", "lock"]

# Users that nobody has, one for each child: systemd's list of what is in use leaves these ranges
# free. The second one is for containers, which know but 65,536 users.
_USERS: Final = ((1_900_000_000, 100_000_000), (60_578, 606))
_MOST_DESCRIPTORS: Final = 32
_MOST_SIGNALS: Final = 64


def close_descriptors(kept: int) -> None:
    """Close all descriptors but those below a number."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    os.closerange(kept, most if 0 < most < 2**20 else 2**20)


def lock(plan: Plan, child_number: int, address_space: int, data: int, processes: int) -> None:
    """The order matters: each step needs what the later ones take away. Raises OSError.

    `child_number` is different for each child that lives. `address_space` and the part of it that
    is `data`, private and writable, are in bytes.
    """
    has_own_count = False
    if plan.is_locking:
        # 1. a user of its own: limits on processes count by user, and so do signals
        has_own_count = _change_user(plan, child_number)
        # 2. no capabilities, now or later
        linux.drop_capabilities()
        linux.forbid_new_privileges()
        linux.hide_memory()
    # 3. goes when the keeper goes; a change of user would take it back
    linux.die_with_parent()
    # 4. limits
    _limit(_limits(address_space, data))
    if has_own_count:
        _limit({resource.RLIMIT_NPROC: processes})
    # 5. files, and 6. system calls, without which the steps before could not be done
    if plan.has_landlock:
        linux.restrict_files(plan.readable)
    if plan.has_seccomp:
        seccomp.install(is_opening=plan.is_opening)


def _change_user(plan: Plan, child_number: int) -> bool:
    """Become a user that no other process has. Returns False if that can't be."""
    if _is_changed(child_number):
        return True
    if plan.has_namespaces:
        linux.unshare(linux.CLONE_NEWUSER)  # counts processes anew
    return plan.has_namespaces


def _is_changed(child_number: int) -> bool:
    """Change the user and its groups. Not even root may in some containers."""
    try:
        os.setgroups([])
    except PermissionError:
        return False
    for first, count in _USERS:
        uid = first + child_number % count
        try:
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            return True
        except OSError:  # this namespace of users does not have it
            continue
    return False


def _limits(address_space: int, data: int) -> Mapping[int, int]:
    return {
        resource.RLIMIT_AS: address_space,
        # Without this a filter could unmap batches or libraries, and have their room as well.
        resource.RLIMIT_DATA: data,
        resource.RLIMIT_NOFILE: _MOST_DESCRIPTORS,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: _MOST_SIGNALS,
    }


def _limit(limits: Mapping[int, int]) -> None:
    for what, most in limits.items():
        hard = resource.getrlimit(what)[1]
        allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (allowed, allowed))
