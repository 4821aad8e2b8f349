"""Filters that mean harm are contained, each is explained in one line, and others notice nothing.

All of it runs as whoever runs the tests; `test_ordinary_user.py` runs it once more if that is root.
Attacks run side by side, because many of them are ended by nothing but a limit on time.
"""

import logging
import os
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hostile_filters import BATCHES, LOADING, MESSAGES, Attack

from tamis.code import CodeFilter, Context, Verdicts
from tamis.errors import CodeError, SandboxError
from tamis.filter import Outcome
from tamis.sandbox import Cell, Limits, Sandbox, Usage

CONTEXT = Context("group", "orders")
CALM = Limits(wall=60.0, cpu=60.0, load_wall=60.0, memory=64 * 2**20, longest_rest=0.001)
SHORT = replace(CALM, wall=1.0, cpu=2.0)
SHORT_LOADING = replace(CALM, load_wall=2.0)
BATCH = pa.record_batch({"n": pa.array(range(8), pa.int32())})
EVEN = [int(n % 2 == 0) for n in range(8)]
SLOW = (
    "import time\nclass Hostile:\n properties = ('n:int',)\n def match(self, m):\n"
    "  time.sleep(0.01)\n  return m.properties['n'] % 2 == 0\n"
)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    made = Sandbox(CALM)
    yield made
    made.close()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture(scope="module")
def logged() -> Iterator[list[str]]:
    """What the sandbox logs, from the first attack on."""
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("tamis.sandbox")
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


class Neighbour:
    """A filter of another group, in the same sandbox, that judges all the while."""

    def __init__(self, sandbox: Sandbox) -> None:
        source = "class Even:\n properties = ('n:int',)\n def match(self, m):\n"
        source += "  return m.properties['n'] % 2 == 0\n"
        self.cell = sandbox.cell(CodeFilter("even.py:Even", source), Context("other", "orders"))
        self.pid = self._pid()
        self._wrong: list[object] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._judge)
        self._thread.start()

    def _judge(self) -> None:
        while not self._is_over.wait(0.02):
            try:
                outcomes = self.cell.judge(BATCH).outcomes.tolist()
            except Exception as error:
                self._wrong.append(error)
                return
            if outcomes != EVEN:
                self._wrong.append(outcomes)

    def _pid(self) -> int:
        assert self.cell._child is not None
        return self.cell._child.pid

    def check(self) -> None:
        """It judges, as ever, in the process that it has had from the beginning."""
        assert self.cell.judge(BATCH).outcomes.tolist() == EVEN
        assert not self._wrong
        assert self.cell.usage.restarts == 0
        assert self._pid() == self.pid

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()
        self.cell.close()


@pytest.fixture(scope="module")
def neighbour(sandbox: Sandbox) -> Iterator[Neighbour]:
    made = Neighbour(sandbox)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def undisturbed(neighbour: Neighbour) -> Iterator[None]:
    neighbour.check()
    yield
    neighbour.check()


@dataclass(frozen=True)
class Outcomes:
    """What became of an attack."""

    verdicts: Verdicts
    usage: Usage


class Attacks:
    """Carries attacks out, several at once; those that take long come first."""

    def __init__(self, sandbox: Sandbox, port: int) -> None:
        self._sandbox = sandbox
        self._port = port
        self._pool = ThreadPoolExecutor(10)
        self._begun: dict[tuple[str, str], Future[Outcomes]] = {}

    def begin(self, kind: str, attack: Attack) -> None:
        self._begun[kind, attack.name] = self._pool.submit(self._run, kind, attack)

    def result(self, kind: str, attack: Attack) -> Outcomes:
        """Raises SandboxError or CodeError if it can't be loaded."""
        return self._begun[kind, attack.name].result()

    def _run(self, kind: str, attack: Attack) -> Outcomes:
        source: str = getattr(attack, kind)
        short = SHORT_LOADING if kind == "loading" else SHORT
        limits = short if attack.takes_time else CALM
        cell = _cell(self._sandbox, source, self._port, limits, _group(kind, attack))
        try:
            return Outcomes(cell.judge(BATCH), cell.usage)
        finally:
            cell.close()

    def close(self) -> None:
        self._pool.shutdown()


@pytest.fixture(scope="module")
def attacks(
    request: pytest.FixtureRequest,
    sandbox: Sandbox,
    port: int,
    logged: list[str],
    neighbour: Neighbour,
) -> Iterator[Attacks]:
    made = Attacks(sandbox, port)
    here = [item for item in request.session.items if item.path == request.path]
    asked = [item.callspec.params for item in here if hasattr(item, "callspec")]
    wanted = [one for one in asked if "attack" in one]
    for one in sorted(wanted, key=lambda one: not one["attack"].takes_time):
        made.begin(one["kind"], one["attack"])
    yield made
    made.close()


def _group(kind: str, attack: Attack) -> str:
    return f"{kind}: {attack.name}"


def _cell(
    sandbox: Sandbox, source: str, port: int = 1, limits: Limits = CALM, group: str = "group"
) -> Cell:
    text = source.replace("{server}", str(os.getpid())).replace("{port}", str(port))
    return sandbox.cell(CodeFilter("hostile.py:Hostile", text), Context(group, "orders"), limits)


def _assert_one_line(reason: str, expected: str) -> None:
    assert re.search(expected, reason), reason
    assert reason.isprintable()
    assert len(reason) <= 300


def _assert_logged(logged: list[str], group: str, usage: Usage) -> None:
    """A process that had to be ended is explained in one line of the log."""
    lines = [line for line in logged if f" of group {group}, topic orders: " in line]
    assert len(lines) == bool(usage.restarts)
    for line in lines:
        assert line.isprintable()
        assert str(usage.last_breach) in line


def _each(kind: str, table: list[Attack]) -> pytest.MarkDecorator:
    ids = [attack.name for attack in table]
    return pytest.mark.parametrize(("kind", "attack"), [(kind, one) for one in table], ids=ids)


@_each("match", MESSAGES)
def test_one_message_fails_and_the_others_are_judged(
    attacks: Attacks, logged: list[str], kind: str, attack: Attack
) -> None:
    done = attacks.result(kind, attack)
    _assert_one_line(done.verdicts.reason(3), attack.expected)
    assert done.verdicts.outcomes.tolist() == [*EVEN[:3], Outcome.ERROR, *EVEN[4:]]
    assert list(done.verdicts.errors) == [3]
    _assert_logged(logged, _group(kind, attack), done.usage)
    assert not Path("/tmp/tamis-hostile").exists()


@_each("match_batch", BATCHES)
def test_a_batch_fails_after_a_limited_number_of_restarts(
    attacks: Attacks, logged: list[str], kind: str, attack: Attack
) -> None:
    done = attacks.result(kind, attack)
    _assert_one_line(done.verdicts.reason(0), attack.expected)
    assert done.verdicts.outcomes.tolist() == [Outcome.ERROR] * 8
    assert done.usage.restarts <= CALM.restarts
    _assert_logged(logged, _group(kind, attack), done.usage)


@_each("loading", LOADING)
def test_a_filter_that_attacks_while_it_is_loaded_is_refused(
    attacks: Attacks, kind: str, attack: Attack
) -> None:
    with pytest.raises((SandboxError, CodeError)) as error:
        attacks.result(kind, attack)
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
    cell = _cell(sandbox, source)
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
    cell = _cell(sandbox, Attack("", body, "").match)
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
    cell = _cell(sandbox, SLOW, limits=replace(SHORT, wall=0.5))
    try:
        batch = pa.record_batch({"n": np.arange(100, dtype=np.int32)})
        for _ in range(2):
            assert cell.judge(batch).outcomes.tolist() == [1, 0] * 50
        assert 0 < cell.usage.restarts <= SHORT.restarts
    finally:
        cell.close()
