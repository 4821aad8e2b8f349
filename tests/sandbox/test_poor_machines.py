"""Where the machine does not allow everything, what is left is found, said and used."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tamis.sandbox import Sandbox

NO_NAMESPACES = "namespaces: unshare: Operation not permitted"
NO_LANDLOCK = "landlock: this kernel has none, or it is switched off"
BARE = "unshare,landlock_create_ruleset,seccomp"
# A process that has threads, of Arrow's or NumPy's, can't enter a namespace of users.
NO_THREADS = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "OPENBLAS_NUM_THREADS": "1",
}


@dataclass(frozen=True)
class Machine:
    """`said` is among what is missing. `reads`: the filter can read /etc/passwd."""

    missing: str
    level: int
    said: str | None = None
    isolation: str = "required"
    reads: bool = False


MACHINES = [
    Machine("unshare", 2, NO_NAMESPACES),
    Machine("unshare,landlock_create_ruleset", 3, NO_LANDLOCK),
    Machine(BARE, 4, "processes: it can start processes", "best-effort", reads=True),
    Machine("users", 1),
    # A root without capabilities can't even be shown itself in a namespace of users.
    Machine("capabilities", 2, "namespaces: Operation not permitted")
    if os.getuid() == 0
    else Machine("capabilities", 1),
]
REFUSED = Machine(BARE, 0)
Running = dict[Machine, subprocess.Popen[str]]


@pytest.fixture(scope="module", autouse=True)
def has_everything() -> None:
    sandbox = Sandbox()
    level = sandbox.report.level
    sandbox.close()
    if level > 1:
        pytest.skip("this machine is a poor one itself")


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    """All of them at once, because each tries one barrier after the other."""
    script = Path(__file__).with_name("poor_machine.py")
    begun = {
        machine: subprocess.Popen(
            [sys.executable, script, machine.missing, machine.isolation],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **NO_THREADS},
            text=True,
        )
        for machine in (*MACHINES, REFUSED)
    }
    yield begun
    for process in begun.values():
        process.kill()
        process.communicate()


def _answer(process: subprocess.Popen[str]) -> tuple[int, list[str], list[int]]:
    out, errors = process.communicate()
    assert out, errors
    level, missing, outcomes = json.loads(out)
    return level, missing, outcomes


@pytest.mark.parametrize("machine", MACHINES, ids=lambda one: f"{one.missing} {one.isolation}")
def test_the_best_level_is_taken_and_what_is_missing_is_said(
    running: Running, machine: Machine
) -> None:
    level, missing, outcomes = _answer(running[machine])
    assert level == machine.level, missing
    assert outcomes == [1, 1 if machine.reads else 3]
    assert machine.said is None or machine.said in missing
    assert all(line.isprintable() for line in missing)


def test_without_any_barrier_filters_are_refused_in_one_line(running: Running) -> None:
    level, (reason,), _ = _answer(running[REFUSED])
    assert level == 0
    assert reason.startswith(f"filters can't be isolated here: {NO_LANDLOCK}; {NO_NAMESPACES}; ")
    assert "seccomp: Operation not permitted" in reason
    assert reason.isprintable()
