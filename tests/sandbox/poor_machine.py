"""Judges with a sandbox where something is missing: `poor_machine.py WHAT,WHAT… ISOLATION`.

`WHAT` is the name of a system call, which then fails with EPERM as in containers; `capabilities`,
of which root then has none; or `users`, of which there is but one, in a namespace. Prints the level
of isolation, what is missing and the outcomes of two messages, the second of which wants to read
/etc/passwd. Level 0: it was refused, and why.
"""

import ctypes
import json
import os
import platform
import struct
import sys

import pyarrow as pa

from tamis.code import CodeFilter, Context
from tamis.errors import SandboxError
from tamis.sandbox import Limits, Sandbox, linux, syscalls

ERROR, ALLOW, LOAD, JUMP_EQUAL, RETURN = 0x50000 | 1, 0x7FFF0000, 0x20, 0x15, 0x06
SOURCE = """
class F:
    properties = ("n:int",)
    def match(self, m):
        if m.properties["n"] == 1: open("/etc/passwd").read()
        return True
"""


def main(missing: set[str], isolation: str) -> None:
    if "users" in missing:
        linux.become_nobody_in_a_namespace(os.getuid(), os.getgid())
    linux.forbid_new_privileges()
    if "capabilities" in missing:
        linux.drop_capabilities()
    _deny(sorted(missing - {"users", "capabilities"}))
    limits = Limits(wall=60.0, cpu=60.0, load_wall=60.0)
    sandbox = Sandbox(limits, isolation)  # type: ignore[arg-type]
    try:
        cell = sandbox.cell(CodeFilter("f.py:F", SOURCE), Context("g", "t"))
        verdicts = cell.judge(pa.record_batch({"n": pa.array([0, 1], pa.int32())}))
        report = sandbox.report
        print(json.dumps([report.level, report.missing, verdicts.outcomes.tolist()]))
    except SandboxError as error:
        print(json.dumps([0, [error.reason], []]))
    sandbox.close()


def _deny(names: list[str]) -> None:
    numbers = {**syscalls.FATAL, **syscalls.OWN}
    column = syscalls.MACHINES[platform.machine()][1]
    code = [(LOAD, 0, 0, 0)]
    for name in names:
        code += [(JUMP_EQUAL, 0, 1, numbers[name][column]), (RETURN, 0, 0, ERROR)]
    code.append((RETURN, 0, 0, ALLOW))
    text = b"".join(struct.pack("=HBBI", *one) for one in code)
    instructions = ctypes.create_string_buffer(text, len(text))

    class Program(ctypes.Structure):
        _fields_ = [("count", ctypes.c_ushort), ("code", ctypes.c_void_p)]

    given = Program(len(code), ctypes.addressof(instructions))
    linux.syscall("seccomp", 1, 0, ctypes.byref(given))


main({*sys.argv[1].split(",")}, sys.argv[2])
