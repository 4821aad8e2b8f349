"""The program for the kernel, run here by a small interpreter, for both machines."""

import struct

import pytest

from tamis.sandbox import seccomp
from tamis.sandbox.syscalls import ALLOWED, CHECKED, FATAL, MACHINES

ALLOW = 0x7FFF0000
KILL = 0x80000000
EPERM, EACCES, ENOTTY, ENOSYS = (0x00050000 | one for one in (1, 13, 25, 38))
PID = 77

# name, arguments, verdict
CALLS = [
    ("mmap", (0, 4096, 3, 0x22), ALLOW),
    ("mmap", (0, 4096, 7, 0x22), EPERM),
    ("mmap", (0, 4096, 5, 0x02), EPERM),
    ("mmap", (0, 4096, 1, 0x01), EPERM),
    ("mmap", (0, 4096, 1, 0x03), EPERM),
    ("mmap", (0, 4096, 3, 0x40022), EPERM),  # MAP_HUGETLB
    ("mprotect", (0, 4096, 3), ALLOW),
    ("mprotect", (0, 4096, 5), EPERM),
    ("openat", (2**32 - 100, 1, 0o2000000), ALLOW),
    ("openat", (2**32 - 100, 1, 0o1), EPERM),
    ("openat", (2**32 - 100, 1, 0o2), EPERM),
    ("openat", (2**32 - 100, 1, 0o100), EPERM),
    ("openat", (2**32 - 100, 1, 0o1000), EPERM),
    ("openat", (2**32 - 100, 1, 0o20200000), EPERM),
    ("clone", (0x3D0F00,), ALLOW),
    ("clone", (0x7D0F00,), ALLOW),
    ("clone", (0x11,), EPERM),  # fork
    ("clone", (0x4111,), EPERM),  # vfork
    ("clone", (0x3D0F00 | 0x10000000,), EPERM),
    ("clone3", (0,), ENOSYS),
    ("fcntl", (3, 1030), ALLOW),
    ("fcntl", (3, 8), EPERM),  # F_SETOWN
    ("fcntl", (3, 4), EPERM),
    ("ioctl", (1, 0x5413), ENOTTY),
    ("prctl", (15,), ALLOW),
    ("prctl", (4, 1), EPERM),  # PR_SET_DUMPABLE
    ("prlimit64", (0, 9, 0), ALLOW),
    ("prlimit64", (0, 9, 0x7F0000000000), EPERM),
    ("prlimit64", (0, 9, 0x7F00), EPERM),
    ("kill", (PID, 6), ALLOW),
    ("kill", (1, 9), EPERM),
    ("kill", (2**32 - 1, 9), EPERM),
    ("tgkill", (PID, 78, 6), ALLOW),
    ("tgkill", (1, 1, 9), EPERM),
    ("read", (3,), ALLOW),
    ("ptrace", (16,), KILL),
    ("mount", (), KILL),
]
OTHERS = {
    "socket": (41, 198),
    "execve": (59, 221),
    "memfd_create": (319, 279),
    "unlinkat": (263, 35),
}


def _run(program: bytes, machine: int, number: int, arguments: tuple[int, ...] = ()) -> int:
    """Classic BPF, as far as the program uses it."""
    data = struct.pack("=IIQ6Q", number, machine, 0, *(*arguments, *[0] * 6)[:6])
    at, register = 0, 0
    while True:
        code, if_true, if_false, constant = struct.unpack_from("=HBBI", program, 8 * at)
        at += 1
        match code:
            case 0x20:
                (register,) = struct.unpack_from("=I", data, constant)
            case 0x54:
                register &= constant
            case 0x06:
                return int(constant)
            case 0x15:
                at += if_true if register == constant else if_false
            case 0x35:
                at += if_true if register >= constant else if_false
            case 0x45:
                at += if_true if register & constant else if_false
            case _:
                raise AssertionError(f"instruction {code:#x}")


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("name", "arguments", "verdict"), CALLS)
def test_a_call_gets_its_verdict(
    machine: str, name: str, arguments: tuple[int, ...], verdict: int
) -> None:
    architecture, column = MACHINES[machine]
    number = {**ALLOWED, **CHECKED, **FATAL}[name][column]
    assert number is not None
    program = seccomp.program(machine, PID, is_opening=True)
    assert _run(program, architecture, number, arguments) == verdict


@pytest.mark.parametrize("machine", MACHINES)
def test_what_is_in_no_table_is_refused(machine: str) -> None:
    architecture, column = MACHINES[machine]
    program = seccomp.program(machine, PID, is_opening=True)
    tables = (ALLOWED, CHECKED, FATAL)
    known = {numbers[column] for table in tables for numbers in table.values()}
    assert {_run(program, architecture, one) for one in {*range(500)} - known} == {EPERM}
    for name, numbers in OTHERS.items():
        assert numbers[column] not in known, name
    for numbers in ALLOWED.values():
        if numbers[column] is not None:
            assert _run(program, architecture, numbers[column]) == ALLOW
    for numbers in FATAL.values():
        assert _run(program, architecture, numbers[column]) == KILL


@pytest.mark.parametrize("machine", MACHINES)
def test_no_file_can_be_opened_where_nothing_else_guards_them(machine: str) -> None:
    architecture, column = MACHINES[machine]
    program = seccomp.program(machine, PID, is_opening=False)
    assert _run(program, architecture, CHECKED["openat"][column], (0, 1, 0)) == EACCES


def test_calls_of_another_architecture_end_the_process() -> None:
    program = seccomp.program("x86_64", PID, is_opening=True)
    assert _run(program, 0x40000003, 1) == KILL  # i386
    assert _run(program, MACHINES["x86_64"][0], 0x40000000) == KILL  # x32
    assert _run(program, MACHINES["x86_64"][0], 2**32 - 1) == KILL


def test_a_machine_without_a_table_is_refused() -> None:
    with pytest.raises(OSError, match="no table of system calls for riscv64"):
        seccomp.program("riscv64", PID, is_opening=True)
