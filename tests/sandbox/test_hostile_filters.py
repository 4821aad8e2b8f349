"""Filters that mean harm are contained, each is explained in one line, and others notice nothing.

All of it runs as whoever runs the tests; `test_ordinary_user.py` runs it once more if that is root.
"""

import os
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hostile_filters import BATCHES, LOADING, MESSAGES, Attack

from tamis.code import CodeFilter, Context
from tamis.errors import CodeError, SandboxError
from tamis.filter import Outcome
from tamis.sandbox import Cell, Limits, Sandbox

CONTEXT = Context("group", "orders")
LIMITS = Limits(wall=1.0, load_wall=30.0, memory=64 * 2**20, longest_rest=0.001)
BATCH = pa.record_batch({"n": pa.array(range(8), pa.int32())})
EVEN = [int(n % 2 == 0) for n in range(8)]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    made = Sandbox(LIMITS)
    yield made
    made.close()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture(autouse=True)
def neighbour(sandbox: Sandbox) -> Iterator[None]:
    """A filter of another group, in the same sandbox, that judges all the while."""
    source = "class Even:\n properties = ('n:int',)\n def match(self, m):\n"
    source += "  return m.properties['n'] % 2 == 0\n"
    calm = Limits(wall=60.0, cpu=60.0, load_wall=60.0)
    cell = sandbox.cell(CodeFilter("even.py:Even", source), Context("other", "orders"), calm)
    wrong: list[object] = []
    is_over = threading.Event()

    def judge() -> None:
        while not is_over.wait(0.02):
            try:
                outcomes = cell.judge(BATCH).outcomes.tolist()
            except Exception as error:
                wrong.append(error)
                return
            if outcomes != EVEN:
                wrong.append(outcomes)

    thread = threading.Thread(target=judge)
    thread.start()
    pid = cell._child.pid  # type: ignore[union-attr]
    yield
    is_over.set()
    thread.join()
    assert not wrong
    assert cell.usage.restarts == 0
    assert cell._child is not None
    assert cell._child.pid == pid
    cell.judge(BATCH)
    cell.close()


def _cell(sandbox: Sandbox, source: str, port: int = 1, limits: Limits = LIMITS) -> Cell:
    text = source.replace("{server}", str(os.getpid())).replace("{port}", str(port))
    return sandbox.cell(CodeFilter("hostile.py:Hostile", text), CONTEXT, limits)


def _assert_one_line(reason: str, expected: str) -> None:
    assert re.search(expected, reason), reason
    assert reason.isprintable()
    assert len(reason) <= 300


@pytest.mark.parametrize("attack", MESSAGES, ids=lambda attack: attack.name)
def test_one_message_fails_and_the_others_are_judged(
    sandbox: Sandbox, port: int, attack: Attack
) -> None:
    cell = _cell(sandbox, attack.match, port)
    try:
        verdicts = cell.judge(BATCH)
        _assert_one_line(verdicts.reason(3), attack.expected)
        assert verdicts.outcomes.tolist() == [*EVEN[:3], Outcome.ERROR, *EVEN[4:]]
        assert list(verdicts.errors) == [3]
        assert not Path("/tmp/tamis-hostile").exists()
    finally:
        cell.close()


@pytest.mark.parametrize("attack", BATCHES, ids=lambda attack: attack.name)
def test_a_batch_fails_after_a_limited_number_of_restarts(sandbox: Sandbox, attack: Attack) -> None:
    cell = _cell(sandbox, attack.match_batch)
    try:
        verdicts = cell.judge(BATCH)
        _assert_one_line(verdicts.reason(0), attack.expected)
        assert verdicts.outcomes.tolist() == [Outcome.ERROR] * 8
        assert cell.usage.restarts <= LIMITS.restarts
    finally:
        cell.close()


@pytest.mark.parametrize("attack", LOADING, ids=lambda attack: attack.name)
def test_a_filter_that_attacks_while_it_is_loaded_is_refused(
    sandbox: Sandbox, attack: Attack
) -> None:
    limits = Limits(wall=1.5, load_wall=2.0, memory=LIMITS.memory)
    with pytest.raises((SandboxError, CodeError)) as error:
        _cell(sandbox, attack.loading, limits=limits)
    assert isinstance(error.value, SandboxError | CodeError)
    _assert_one_line(error.value.reason, attack.expected)


def test_threads_left_behind_do_not_run_between_batches(sandbox: Sandbox) -> None:
    source = (
        "import threading\n"
        "class Hostile:\n"
        "    properties = ('n:int',)\n"
        "    def match_batch(self, batch):\n"
        "        def burn():\n"
        "            while True: pass\n"
        "        threading.Thread(target=burn, daemon=True).start()\n"
        "        return [True] * batch.num_rows\n"
    )
    cell = _cell(sandbox, source, limits=Limits(wall=60.0, cpu=60.0))
    try:
        assert cell.judge(BATCH).outcomes.tolist() == [1] * 8
        before = cell.usage.cpu_seconds
        threading.Event().wait(0.5)
        assert cell.usage.cpu_seconds - before < 0.1  # a signal's delay; 0.5 if they ran
        assert cell.judge(BATCH).outcomes.tolist() == [1] * 8
    finally:
        cell.close()


def test_an_answer_given_in_advance_is_not_taken_for_the_next_batch(sandbox: Sandbox) -> None:
    body = "rows = batch.num_rows\nsay(b'\\1' * rows + b'\\0\\0', pause=0)\nreturn [False] * rows"
    cell = _cell(sandbox, Attack("", body, "").match_batch)
    try:
        for _ in range(2):
            # It may lie about its own messages; the other answer is one too many.
            assert {*cell.judge(BATCH).outcomes.tolist()} <= {Outcome.TRUE, Outcome.ERROR}
        assert cell.usage.last_breach in (
            "answered with more than one answer",
            "answered before it was asked",
            "answered a question that was not asked",
        )
    finally:
        cell.close()


def test_flooding_standard_output_harms_nobody(sandbox: Sandbox, capfd: object) -> None:
    body = "for _ in range(1000): print('x' * 100000)\nsys.stderr.write('y' * 10**6)"
    cell = _cell(sandbox, Attack("", body, "").match, limits=Limits(wall=60.0, cpu=60.0))
    try:
        assert cell.judge(BATCH).outcomes.tolist() == EVEN
        assert capfd.readouterr() == ("", "")  # type: ignore[attr-defined]
    finally:
        cell.close()


def test_it_sees_no_environment_descriptors_or_arguments_of_the_server(sandbox: Sandbox) -> None:
    body = """
open_files = []
for number in range(256):
    try:
        os.fstat(number)
        open_files.append(number)
    except OSError: pass
raise ValueError(f"{dict(os.environ)} {open_files} {sys.argv}")
"""
    cell = _cell(sandbox, Attack("", body, "").match)
    try:
        assert cell.judge(BATCH).reason(3) == "ValueError: {} [0, 1, 2, 3] []"
    finally:
        cell.close()


def test_a_slow_filter_is_given_fewer_messages_at_once(sandbox: Sandbox) -> None:
    source = (
        "import time\nclass Hostile:\n properties = ('n:int',)\n def match(self, m):\n"
        "  time.sleep(0.01)\n  return m.properties['n'] % 2 == 0\n"
    )
    limits = Limits(wall=1.5, load_wall=30.0, longest_rest=0.001)
    cell = _cell(sandbox, source, limits=limits)
    try:
        batch = pa.record_batch({"n": np.arange(400, dtype=np.int32)})
        verdicts = cell.judge(batch)
        assert verdicts.outcomes.tolist() == [1, 0] * 200
        assert 0 < cell.usage.restarts < 6
        before = cell.usage.restarts
        assert cell.judge(batch).outcomes.tolist() == [1, 0] * 200
        assert cell.usage.restarts - before < before + 1
    finally:
        cell.close()
