"""Numbers of Linux' system calls, and what a filter's process may do with each.

A call that is in none of the tables is refused with EPERM: an error that a user can read.
"""

import platform
from typing import Final

__all__ = ["ALLOWED", "CHECKED", "FATAL", "MACHINES", "OWN", "number"]

# By `platform.machine()`: the kernel's AUDIT_ARCH, and the column in the tables below.
MACHINES: Final = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}

# Allowed, whatever the arguments. The most frequent ones are first.
ALLOWED: Final = {
    "read": (0, 63),
    "write": (1, 64),
    "futex": (202, 98),
    "munmap": (11, 215),
    "madvise": (28, 233),
    "brk": (12, 214),
    "mremap": (25, 216),
    "clock_gettime": (228, 113),
    "gettimeofday": (96, 169),
    "time": (201, None),
    "times": (100, 153),
    "getrandom": (318, 278),
    "readv": (19, 65),
    "writev": (20, 66),
    "pread64": (17, 67),
    "lseek": (8, 62),
    "close": (3, 57),
    "fstat": (5, 80),
    "stat": (4, None),
    "lstat": (6, None),
    "newfstatat": (262, 79),
    "statx": (332, 291),
    "access": (21, None),
    "faccessat": (269, 48),
    "faccessat2": (439, 439),
    "getdents64": (217, 61),
    "getcwd": (79, 17),
    "poll": (7, None),
    "ppoll": (271, 73),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "sigaltstack": (131, 132),
    "restart_syscall": (219, 128),
    "nanosleep": (35, 101),
    "clock_nanosleep": (230, 115),
    "clock_getres": (229, 114),
    "getpid": (39, 172),
    "gettid": (186, 178),
    "getppid": (110, 173),
    "getuid": (102, 174),
    "geteuid": (107, 175),
    "getgid": (104, 176),
    "getegid": (108, 177),
    "getresuid": (118, 148),
    "getresgid": (120, 150),
    "getgroups": (115, 158),
    "getrusage": (98, 165),
    "uname": (63, 160),
    "sched_yield": (24, 124),
    "sched_getaffinity": (204, 123),
    "getcpu": (309, 168),
    "rseq": (334, 293),
    "set_robust_list": (273, 99),
    "membarrier": (324, 283),
    "exit": (60, 93),
    "exit_group": (231, 94),
}
# Decided by their arguments: `seccomp` has a rule for each.
CHECKED: Final = {
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "openat": (257, 56),
    "clone": (56, 220),
    "clone3": (435, 435),
    "fcntl": (72, 25),
    "ioctl": (16, 29),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
    "kill": (62, 129),
    "tgkill": (234, 131),
}
# Nobody calls these by mistake: the process ends with SIGSYS.
FATAL: Final = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "bpf": (321, 280),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "pidfd_getfd": (438, 438),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
}
# Those that we call ourselves and the C library has no function for.
OWN: Final = {
    "pivot_root": (155, 41),
    "seccomp": (317, 277),
    "landlock_create_ruleset": (444, 444),
    "landlock_add_rule": (445, 445),
    "landlock_restrict_self": (446, 446),
}


def number(name: str) -> int:
    """Return the number of a call of ours on this machine. Raises OSError where it is unknown."""
    machine = platform.machine()
    if machine not in MACHINES:
        raise OSError(f"system calls of {machine} are not known here")
    found: int = OWN[name][MACHINES[machine][1]]
    return found
