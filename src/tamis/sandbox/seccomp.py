"""Which system calls a filter's process may make: a BPF program for the kernel.

The tables are in `syscalls`; here are the rules for the calls whose arguments decide, and the
assembling. The program is a list of blocks, one for each call, each of which ends with a verdict or
falls through to the next.
"""

import ctypes
import errno
import os
import platform
import struct
from typing import Final

from . import linux
from .syscalls import ALLOWED, CHECKED, FATAL, MACHINES

__all__ = ["install", "program"]

_LOAD: Final = 0x20  # a word of `struct seccomp_data`
_AND: Final = 0x54
_RETURN: Final = 0x06
_JUMP_EQUAL: Final = 0x15
_JUMP_AT_LEAST: Final = 0x35
_JUMP_ANY_BIT: Final = 0x45

_ALLOW: Final = 0x7FFF0000
_KILL: Final = 0x80000000  # the whole process
_ERROR: Final = 0x00050000  # with an errno
_X32: Final = 0x40000000

_NUMBER_AT: Final = 0
_ARCHITECTURE_AT: Final = 4
_SECCOMP_SET_MODE_FILTER: Final = 1

_PROT_EXEC: Final = 4
_MAP_REFUSED: Final = 1 | 0x40000  # shared; huge pages, which are few and others' too
# Writing, creating, truncating, appending, temporary files.
_OPEN_WRITES: Final = 0o3 | 0o100 | 0o1000 | 0o2000 | 0o20000000
# What pthread_create asks for; musl adds a flag that means nothing any more.
_CLONE_OF_A_THREAD: Final = 0x3D0F00
_CLONE_DETACHED: Final = 0x400000
_FCNTL: Final = (0, 1, 2, 3, 1030)  # DUPFD, GETFD, SETFD, GETFL, DUPFD_CLOEXEC: no owner, no lock
_PRCTL: Final = (3, 15, 16, 21, 39)  # dumpable?, the thread's name, seccomp?, no_new_privs?

_Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, constant


def install(*, is_opening: bool) -> None:
    """Bind this thread, and those it starts. There is no way back. Raises OSError.

    `is_opening`: files may be opened for reading, where something else says which.
    """
    code = program(platform.machine(), os.getpid(), is_opening=is_opening)
    instructions = ctypes.create_string_buffer(code, len(code))

    class Program(ctypes.Structure):
        _fields_ = [("count", ctypes.c_ushort), ("code", ctypes.c_void_p)]

    given = Program(len(code) // 8, ctypes.addressof(instructions))
    linux.syscall("seccomp", _SECCOMP_SET_MODE_FILTER, 0, ctypes.byref(given))


def program(machine: str, own_pid: int, *, is_opening: bool) -> bytes:
    """Assemble the program. Raises OSError for a machine whose calls are not in the tables."""
    if machine not in MACHINES:
        raise OSError(errno.ENOSYS, f"seccomp: no table of system calls for {machine}")
    architecture, column = MACHINES[machine]
    code: list[_Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_JUMP_EQUAL, 1, 0, architecture),
        _verdict(_KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
        (_JUMP_AT_LEAST, 0, 1, _X32),  # the other calls of x86_64; negative ones too
        _verdict(_KILL),
    ]
    checked = _checks(own_pid, is_opening)
    assert checked.keys() == CHECKED.keys()
    blocks: list[tuple[int | None, list[_Instruction]]] = [
        *((numbers[column], [_verdict(_ALLOW)]) for numbers in ALLOWED.values()),
        *((numbers[column], checked[name]) for name, numbers in CHECKED.items()),
        *((numbers[column], [_verdict(_KILL)]) for numbers in FATAL.values()),
    ]
    for number, block in blocks:
        if number is not None:
            code += [(_JUMP_EQUAL, 0, len(block), number), *block]
    code.append(_error(errno.EPERM))
    return b"".join(struct.pack("=HBBI", *one) for one in code)


def _checks(own_pid: int, is_opening: bool) -> dict[str, list[_Instruction]]:
    own_process = _only_if_equal(0, (own_pid,), errno.EPERM)
    return {
        # no code that is not ours, no memory that others see
        "mmap": [
            *(_argument(2), (_JUMP_ANY_BIT, 2, 0, _PROT_EXEC)),
            *(_argument(3), (_JUMP_ANY_BIT, 0, 1, _MAP_REFUSED)),
            *(_error(errno.EPERM), _verdict(_ALLOW)),
        ],
        "mprotect": _unless_any(2, _PROT_EXEC, errno.EPERM),
        "openat": _unless_any(2, _OPEN_WRITES, errno.EPERM)
        if is_opening
        else [_error(errno.EACCES)],
        "clone": [
            *(_argument(0), (_AND, 0, 0, 0xFFFFFFFF & ~_CLONE_DETACHED)),
            *((_JUMP_EQUAL, 1, 0, _CLONE_OF_A_THREAD), _error(errno.EPERM), _verdict(_ALLOW)),
        ],
        "clone3": [_error(errno.ENOSYS)],  # its flags can't be seen; clone is tried then
        "fcntl": _only_if_equal(1, _FCNTL, errno.EPERM),
        "ioctl": [_error(errno.ENOTTY)],
        "prctl": _only_if_equal(0, _PRCTL, errno.EPERM),
        # to ask only: no address of a new limit
        "prlimit64": [
            *(_argument(2), (_JUMP_EQUAL, 0, 2, 0), _argument(2, high=True)),
            *((_JUMP_EQUAL, 1, 0, 0), _error(errno.EPERM), _verdict(_ALLOW)),
        ],
        "kill": own_process,
        "tgkill": own_process,
    }


def _verdict(value: int) -> _Instruction:
    return (_RETURN, 0, 0, value)


def _error(number: int) -> _Instruction:
    return _verdict(_ERROR | number)


def _argument(position: int, *, high: bool = False) -> _Instruction:
    """Load an argument's low word, or its high one; both machines are little-endian."""
    return (_LOAD, 0, 0, 16 + 8 * position + (4 if high else 0))


def _unless_any(position: int, bits: int, refusal: int) -> list[_Instruction]:
    return [
        _argument(position),
        (_JUMP_ANY_BIT, 0, 1, bits),
        _error(refusal),
        _verdict(_ALLOW),
    ]


def _only_if_equal(position: int, values: tuple[int, ...], refusal: int) -> list[_Instruction]:
    compared = [(_JUMP_EQUAL, len(values) - place, 0, value) for place, value in enumerate(values)]
    return [_argument(position), *compared, _error(refusal), _verdict(_ALLOW)]
