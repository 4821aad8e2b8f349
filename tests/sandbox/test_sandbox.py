"""A sandbox: what it finds out about its machine, its processes, and what it says of a filter."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hostile_filters import MESSAGES, Attack

from tamis.code import CodeFilter, Context, Verdicts, load
from tamis.errors import CodeError, ConfigError, SandboxError
from tamis.filter import Outcome
from tamis.sandbox import Cell, Limits, Sandbox

CONTEXT = Context("group", "orders")
CALM = Limits(wall=60.0, cpu=60.0, load_wall=60.0)
BATCH = pa.record_batch({"n": pa.array(range(8), pa.int32())})
EVEN = [int(n % 2 == 0) for n in range(8)]
EVEN_SOURCE = (
    "class F:\n properties = ('n:int',)\n def match(self, m): return m.properties['n'] % 2 == 0\n"
)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    made = Sandbox(CALM)
    yield made
    made.close()


def _cell(sandbox: Sandbox, text: str, limits: Limits | None = None) -> Cell:
    return sandbox.cell(CodeFilter("f.py:F", text), CONTEXT, limits)


def _wait(until: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 60
    while not until():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def _exists(pid: int) -> bool:
    """Whether a process is there that has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _children(pid: int) -> list[int]:
    found = [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [*found, *(each for one in found for each in _children(one))]


def test_here_everything_can_be_had(sandbox: Sandbox) -> None:
    report = sandbox.report
    assert report.is_contained
    assert str(report).startswith(f"isolation level {report.level} of 4: ")
    assert {"no_new_privs", "seccomp", "memory", "reading", "network"} <= {*report.holds}


@pytest.mark.parametrize(
    ("without", "level"), [(["namespaces"], 2), (["namespaces", "landlock"], 3)]
)
def test_with_fewer_barriers_it_is_contained_nevertheless(without: list[str], level: int) -> None:
    wanted = {
        *("fork", "running a program", "writing a file", "reading /etc/passwd"),
        *("reading the server's memory", "TCP", "Unix sockets", "a signal to the server"),
        *("process_vm_readv", "memory bomb", "thread bomb", "a crash through ctypes"),
        *("reading processes", "a signal to the parent", "writing into the library"),
    }
    limits = Limits(wall=30.0, cpu=30.0, memory=64 * 2**20, longest_rest=0.001)
    sandbox = Sandbox(limits, without=without)  # type: ignore[arg-type]
    try:
        assert sandbox.report.level == level
        assert f"{without[-1]}: left out by request" in sandbox.report.missing
        attacks = [one for one in MESSAGES if one.name in wanted]
        assert len(attacks) == len(wanted)
        for attack in attacks:
            text = attack.match.replace("{server}", str(os.getpid())).replace("{port}", "1")
            cell = sandbox.cell(CodeFilter("h.py:Hostile", text), CONTEXT)
            verdicts = cell.judge(BATCH)
            assert verdicts.outcomes.tolist() == [*EVEN[:3], 3, *EVEN[4:]], attack.name
            cell.close()
    finally:
        sandbox.close()


def test_isolation_that_is_required_and_can_not_be_had_is_refused_in_one_line() -> None:
    sandbox = Sandbox(CALM, without=["seccomp"])
    with pytest.raises(SandboxError) as error:
        _cell(sandbox, EVEN_SOURCE)
    assert error.value.reason == ("filters can't be isolated here: seccomp: left out by request")
    with pytest.raises(SandboxError):
        _ = sandbox.report
    sandbox.close()


def test_the_best_that_can_be_had_is_taken_if_one_asks_for_that() -> None:
    sandbox = Sandbox(CALM, "best-effort", without=["seccomp"])
    try:
        assert sandbox.report.level == 4
        assert not sandbox.report.is_contained
        assert "memory" in sandbox.report.holds
        assert "reading: it can read files that are not Python's" in sandbox.report.missing
        assert _cell(sandbox, EVEN_SOURCE).judge(BATCH).outcomes.tolist() == EVEN
    finally:
        sandbox.close()


def test_without_isolation_there_are_a_process_and_limits() -> None:
    limits = replace(CALM, memory=64 * 2**20)
    sandbox = Sandbox(limits, "off")
    try:
        assert sandbox.report.level == 4
        assert sandbox.report.missing[0].startswith("isolation is off")
        reads = Attack("", "raise ValueError(open('/etc/passwd').read(4))", "").match
        bomb = Attack("", "bytearray(2**34)", "").match
        for source, reason in ((reads, "ValueError: root"), (bomb, "needs more than 64 MiB")):
            cell = sandbox.cell(CodeFilter("h.py:Hostile", source), CONTEXT)
            assert cell.judge(BATCH).reason(3).startswith(reason)
    finally:
        sandbox.close()


def test_verdicts_are_those_of_the_same_class_in_this_process(sandbox: Sandbox) -> None:
    text = (
        "class F:\n"
        "    columns = ('tags', 'body')\n"
        "    properties = ('region', 'price:double')\n"
        "    def match(self, m, context):\n"
        "        if m.tags is None: raise ValueError(f'no tag for {context.group}')\n"
        "        if m.body == b'': return None\n"
        "        return m.properties.get('price', 0) > 1 and m.properties['region'] == 'eu'\n"
    )
    batch = pa.record_batch(
        {
            "tags": pa.array(["a", None, "b", "c", "d"]),
            "body": pa.array([b"x", b"y", b"", b"z", b"w"]),
            "region": pa.array(["eu", "eu", "us", "eu", None]),
            "price": pa.array([2.0, 2.0, 2.0, None, 3.0]),
        }
    )
    here = load(CodeFilter("f.py:F", text), CONTEXT)
    cell = _cell(sandbox, text)
    assert cell.needs == here.needs
    for part in (batch, batch.slice(1, 3), batch.slice(0, 0), batch):
        expected, found = here.judge(part), cell.judge(part)
        assert found.outcomes.tolist() == expected.outcomes.tolist()
        assert dict(found.errors) == dict(expected.errors)
    cell.close()


def test_arrow_and_numpy_and_the_standard_library_work_inside(sandbox: Sandbox) -> None:
    text = """
import datetime, decimal, hashlib, json, re, sqlite3, statistics, uuid, zoneinfo
import numpy as np, pyarrow as pa, pyarrow.compute as pc
class F:
    properties = ('n:int',)
    def match_batch(self, batch):
        import colorsys, graphlib  # not loaded before
        zone = zoneinfo.ZoneInfo('Europe/Paris')
        assert datetime.datetime(2024, 7, 1, tzinfo=zone).utcoffset().seconds == 7200
        assert sqlite3.connect(':memory:').execute('select 1 + 1').fetchone() == (2,)
        table = pa.Table.from_batches([batch])
        assert table.filter(pc.field('n') > 5).num_rows == 2
        assert table.group_by('n').aggregate([('n', 'count')]).num_rows == 8
        assert np.random.default_rng(1).random() < 1
        assert hashlib.sha256(b'').hexdigest().startswith('e3b0')
        return pc.equal(pc.bit_wise_and(batch['n'], 1), 0)
"""
    cell = _cell(sandbox, text)
    verdicts = cell.judge(BATCH)
    assert verdicts.outcomes.tolist() == EVEN, dict(verdicts.errors)
    cell.close()


def test_a_filter_may_keep_what_it_was_given(sandbox: Sandbox) -> None:
    text = """
class F:
    properties = ('n:int',)
    def __init__(self): self.kept = []
    def match_batch(self, batch):
        self.kept.append(batch)
        return [one['n'][0].as_py() == 10 * place for place, one in enumerate(self.kept)]
"""
    cell = _cell(sandbox, text)
    for size in range(1, 5):
        numbers = np.full(size, 10 * (size - 1), np.int32)
        assert cell.judge(pa.record_batch({"n": numbers})).outcomes.tolist() == [1] * size
    cell.close()


def test_a_message_that_a_filter_keeps_stays_what_it_was(sandbox: Sandbox) -> None:
    text = """
class F:
    columns = ('tags', 'body')
    properties = ('n:int',)
    kept = []
    def match(self, m):
        self.kept.append((m, m.properties['n']))
        for one, n in self.kept[::7]:
            assert one.body == b'%d' % n * 1000 and one.tags == f'tag {n}', (n, one.body[:9])
        return True
"""
    cell = _cell(sandbox, text)
    for first, rows in ((0, 1), (1, 40), (41, 10), (51, 3000), (3051, 2), (3053, 1)):
        numbers = range(first, first + rows)  # the larger one takes memory that is given back
        batch = pa.record_batch(
            {
                "tags": [f"tag {n}" for n in numbers],
                "body": pa.array([b"%d" % n * 1000 for n in numbers], pa.binary()),
                "n": pa.array(numbers, pa.int32()),
            }
        )
        verdicts = cell.judge(batch.slice(0, 60))
        assert verdicts.outcomes.tolist() == [1] * min(rows, 60), dict(verdicts.errors)
        cell._arena.write(batch)  # whatever else comes there
    cell.close()


HOARDING = """
import time
class F:
    properties = ('n:int',)
    x = []
    def match(self, m):
        self.x.append(b'x' * (m.properties['n'] << 20))
        time.sleep(0.05)  # it is looked at meanwhile
        while m.properties['n'] > 100: pass
        return True
"""


def _hoard(cell: Cell, *megabytes: int) -> Verdicts:
    return cell.judge(pa.record_batch({"n": pa.array(megabytes, pa.int32())}))


def test_the_largest_that_is_idle_goes_when_filters_need_too_much_together() -> None:
    sandbox = Sandbox(CALM, memory=200 * 2**20)
    try:
        cells = small, large, last = [_cell(sandbox, HOARDING) for _ in range(3)]
        for cell, size in ((small, 20), (large, 80), (small, 0), (last, 60), (last, 60)):
            assert _hoard(cell, size).outcomes.tolist() == [1]
        assert [cell.usage.restarts for cell in cells] == [0, 1, 0]
        assert large.usage.last_breach == "ended: all filters together need more than 200 MiB"
        assert _hoard(large, 1).outcomes.tolist() == [1]
        assert [cell.usage.restarts for cell in cells] == [0, 1, 0]
    finally:
        sandbox.close()


def test_what_runs_and_needs_too_much_alone_is_ended_and_nobody_else() -> None:
    sandbox = Sandbox(replace(CALM, longest_rest=0.001), memory=150 * 2**20)
    try:
        idle, busy = (_cell(sandbox, HOARDING) for _ in range(2))
        assert _hoard(idle, 20).outcomes.tolist() == [1]
        verdicts = _hoard(busy, 1, 190, 2)
        assert verdicts.outcomes.tolist() == [1, 3, 1]
        assert verdicts.reason(1) == "ended: all filters together need more than 150 MiB"
        assert busy.usage.restarts > 0
    finally:
        sandbox.close()


def test_needs_that_change_when_a_filter_is_loaded_again_are_a_breach(sandbox: Sandbox) -> None:
    text = "import os\nclass F:\n properties = (os.urandom(8).hex(),)\n"
    text += " def match(self, m): return True\n"
    cell = _cell(sandbox, text)
    batch = pa.record_batch({cell.needs.names[0]: ["a"]})
    assert cell.judge(batch).outcomes.tolist() == [1]
    child = cell._child.pid  # type: ignore[union-attr]
    os.kill(sandbox._zygote.pid, signal.SIGKILL)  # type: ignore[union-attr]
    _wait(lambda: not _exists(child), "the child outlived the zygote")
    assert cell.judge(batch).reason(0) == "declared something else than before"
    cell.close()


def test_a_class_that_can_not_be_used_is_refused_as_in_this_process(sandbox: Sandbox) -> None:
    long = "class F:\n columns = ('x' * 10**6,)\n def match(self, m): return True"
    many = "raise SyntaxError('one\\ntwo\\n' * 10**5)"
    short = ("class F:", "x = 1", "class F: pass", "raise OSError('no')")
    for text in (*short, long, many, "import click"):
        with pytest.raises(CodeError) as error:
            _cell(sandbox, text)
        if "click" not in text:
            with pytest.raises(CodeError) as here:
                load(CodeFilter("f.py:F", text), CONTEXT)
            assert str(error.value) == str(here.value)
    assert str(error.value) == "code f.py:F: ImportError: import of click is not allowed here"


def test_modules_that_the_server_does_not_allow_are_refused() -> None:
    sandbox = Sandbox(CALM, modules=())
    try:
        for name in ("numpy", "pyarrow.compute"):
            with pytest.raises(CodeError, match=r"import of (numpy|pyarrow) is not allowed here"):
                _cell(sandbox, f"import {name}\n{EVEN_SOURCE}")
        assert _cell(sandbox, EVEN_SOURCE).judge(BATCH).outcomes.tolist() == EVEN
    finally:
        sandbox.close()


def test_a_batch_larger_than_the_shared_memory_is_judged_in_parts(sandbox: Sandbox) -> None:
    limits = replace(CALM, batch_bytes=2**16)
    text = "class F:\n columns = ('body',)\n def match(self, m): return m.body[0] == 120\n"
    cell = _cell(sandbox, text, limits)
    bodies = [b"x" * 20_000, b"y" * 20_000] * 8 + [b"x" * 100_000, b"x"]
    verdicts = cell.judge(pa.record_batch({"body": pa.array(bodies)}))
    assert verdicts.outcomes.tolist() == [1, 0] * 8 + [3, 1]
    assert verdicts.reason(16) == "larger than 0.0625 MiB"
    assert cell.usage.restarts == 0
    cell.close()


def test_a_message_is_found_among_a_thousand_by_halving(sandbox: Sandbox) -> None:
    limits = replace(CALM, longest_rest=0.001)
    text = """
import os
class F:
    properties = ('n:int',)
    def match_batch(self, batch):
        if 700 in batch['n'].to_pylist(): os._exit(9)
        return [True] * batch.num_rows
"""
    cell = _cell(sandbox, text, limits)
    verdicts = cell.judge(pa.record_batch({"n": np.arange(1024, dtype=np.int32)}))
    assert np.flatnonzero(verdicts.outcomes != Outcome.TRUE).tolist() == [700]
    assert verdicts.errors == {700: "ended itself with status 9"}
    assert cell.usage.restarts <= limits.restarts
    cell.close()


def test_a_filter_that_goes_on_breaking_limits_rests_longer_each_time() -> None:
    clock = [1000.0]
    sandbox = Sandbox(replace(CALM, longest_rest=3.0), now=lambda: clock[0])
    try:
        cell = _cell(
            sandbox,
            "import os\nclass F:\n properties = ('n:int',)\n def match(self, m): os._exit(4)\n",
        )
        rests = []
        for _ in range(7):
            verdicts = cell.judge(BATCH)
            assert verdicts.outcomes.tolist() == [3] * 8
            assert verdicts.reason(7) == "ended itself with status 4"
            if not rests:
                rests.append(0.0)  # once is no pattern
                continue
            with pytest.raises(SandboxError, match=r"^f.py:F: rests for .* s: ended") as error:
                cell.judge(BATCH)
            rests.append(error.value.retry_after)
            clock[0] += error.value.retry_after
        assert rests == [0.0, 0.25, 0.5, 1.0, 2.0, 3.0, 3.0]
        assert cell.usage.last_breach == "ended itself with status 4"
    finally:
        sandbox.close()


def test_usage_is_counted(sandbox: Sandbox) -> None:
    text = """
class F:
    properties = ('n:int',)
    def __init__(self): self.held = b'x' * 50_000_000
    def match(self, m): return sum(range(10000)) > 0
"""
    cell = _cell(sandbox, text)
    for _ in range(3):
        cell.judge(BATCH)
    usage = cell.usage
    assert (usage.batches, usage.messages, usage.restarts, usage.last_breach) == (3, 24, 0, None)
    assert usage.cpu_seconds > 0
    assert 50_000_000 < usage.peak_memory < 100_000_000
    cell.close()
    assert cell.usage.cpu_seconds >= usage.cpu_seconds


def test_several_cells_judge_at_once_in_threads(sandbox: Sandbox) -> None:
    cells = [_cell(sandbox, EVEN_SOURCE) for _ in range(4)]
    found: list[bool] = []

    def judge(cell: Cell) -> None:
        found.extend(cell.judge(BATCH).outcomes.tolist() == EVEN for _ in range(50))

    threads = [threading.Thread(target=judge, args=(one,)) for one in [*cells, *cells]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 400
    for cell in cells:
        cell.close()


def test_closing_a_cell_ends_a_judgement_that_is_under_way(sandbox: Sandbox) -> None:
    cell = _cell(sandbox, Attack("", "while True: pass", "").match.replace("Hostile", "F"))
    raised: list[SandboxError] = []

    def judge() -> None:
        with pytest.raises(SandboxError) as error:
            cell.judge(BATCH)
        raised.append(error.value)

    thread = threading.Thread(target=judge)
    thread.start()
    before = cell.usage.cpu_seconds
    _wait(lambda: cell.usage.cpu_seconds > before + 0.05, "it never ran")
    pid = cell._child.pid  # type: ignore[union-attr]
    cell.close()
    thread.join()
    assert [one.reason for one in raised] == ["f.py:F: closed"]
    assert not _exists(pid)
    with pytest.raises(SandboxError, match="closed"):
        cell.judge(BATCH)


def test_closing_a_sandbox_leaves_no_process_and_no_descriptor() -> None:
    before = len(descriptors())
    sandbox = Sandbox(CALM)
    for _ in range(3):
        _cell(sandbox, EVEN_SOURCE).judge(BATCH)
    zygote = sandbox._zygote.pid  # type: ignore[union-attr]
    pids = [zygote, *_children(zygote)]
    assert len(pids) == 7  # a keeper and a child each
    sandbox.close()
    _wait(lambda: not any(map(_exists, pids)), "processes are left")
    assert len(descriptors()) == before
    with pytest.raises(SandboxError, match="closed"):
        _cell(sandbox, EVEN_SOURCE)


def _keeper_of(cell: Cell) -> int:
    stat = Path(f"/proc/{cell._child.pid}/stat").read_text()  # type: ignore[union-attr]
    return int(stat.rpartition(")")[2].split()[1])


@pytest.mark.parametrize("when", ["idle", "judging"])
@pytest.mark.parametrize("victim", ["zygote", "keeper", "child"])
def test_a_process_that_is_killed_is_replaced(sandbox: Sandbox, victim: str, when: str) -> None:
    limits = replace(CALM, longest_rest=0.001)
    slow = EVEN_SOURCE.replace("return", "__import__('time').sleep(0.02); return")
    cell = _cell(sandbox, slow if when == "judging" else EVEN_SOURCE, limits)
    other = _cell(sandbox, EVEN_SOURCE)
    assert cell.judge(BATCH).outcomes.tolist() == EVEN
    child = cell._child.pid  # type: ignore[union-attr]
    keeper = _keeper_of(cell)
    zygote = sandbox._zygote.pid  # type: ignore[union-attr]
    assert keeper in _children(zygote)
    pid = {"zygote": zygote, "keeper": keeper, "child": child}[victim]
    with ThreadPoolExecutor(1) as pool:
        if when == "judging":
            judged = pool.submit(cell.judge, BATCH)
            _wait(lambda: cell._child and cell._child._progress[0] == 1, "it never began")
            os.kill(pid, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGKILL)
            _wait(lambda: not _exists(child), "the child outlived what it depends on")
            judged = pool.submit(cell.judge, BATCH)
        assert judged.result().outcomes.tolist() == EVEN
    assert not _exists(child)
    assert other.judge(BATCH).outcomes.tolist() == EVEN
    assert (cell.usage.last_breach is not None) == (victim == "child")
    cell.close()
    other.close()


def test_the_child_of_a_keeper_that_was_killed_is_no_zombie(sandbox: Sandbox) -> None:
    cell = _cell(sandbox, EVEN_SOURCE)
    child = cell._child.pid  # type: ignore[union-attr]
    os.kill(_keeper_of(cell), signal.SIGKILL)
    _wait(lambda: not _exists(child), "the child outlived its keeper")
    assert not Path(f"/proc/{child}").exists()
    assert cell.judge(BATCH).outcomes.tolist() == EVEN
    cell.close()


def test_cells_that_are_closed_leave_nothing_behind(sandbox: Sandbox) -> None:
    def count() -> tuple[int, int, int]:
        zygote = sandbox._zygote.pid  # type: ignore[union-attr]
        _wait(lambda: not _children(zygote), "processes are left")
        return (*(len(os.listdir(f"/proc/{pid}/fd")) for pid in ("self", zygote)), zygote)

    _cell(sandbox, EVEN_SOURCE).close()
    before = count()
    for number in range(60):
        cell = _cell(sandbox, EVEN_SOURCE)
        if number % 2:
            cell.judge(BATCH)
        cell.close()
        for text in ("x", "import os; os._exit(1)") if number < 10 else ():
            with pytest.raises((CodeError, SandboxError)):
                _cell(sandbox, text)
    assert count() == before


def descriptors() -> list[str]:
    """What this process has open, but for files of brokers that other tests share, which open and
    close some whenever they save."""
    found = list[str]()
    for one in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            found.append(os.readlink(f"/proc/self/fd/{one}"))
    return [target for target in found if not target.startswith(tempfile.gettempdir())]


def test_a_server_without_descriptors_is_told_so_and_loses_none(sandbox: Sandbox) -> None:
    _cell(sandbox, EVEN_SOURCE).close()
    there = {int(one) for one in os.listdir("/proc/self/fd")}
    before = len(descriptors())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    refused = list[SandboxError]()
    for more in range(30):
        # Descriptors are the lowest that are free; those above the limit stay usable.
        limit = sorted({*range(max(there) + 40)} - there)[more]
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        try:
            _cell(sandbox, EVEN_SOURCE).close()
        except SandboxError as error:
            refused.append(error)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert len(descriptors()) == before
    assert 5 < len(refused) < 20
    assert {error.retry_after for error in refused} == {1.0}
    assert sum("Too many open files" in error.reason for error in refused) > len(refused) // 2
    _cell(sandbox, EVEN_SOURCE).close()


def test_a_python_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(descriptors())
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    sandbox = Sandbox(CALM)
    with pytest.raises(SandboxError, match=r"could not be started: .*/nonexistent/python") as error:
        _cell(sandbox, EVEN_SOURCE)
    assert error.value.reason.isprintable()
    assert len(descriptors()) == before


def test_nothing_is_left_of_a_server_that_is_killed() -> None:
    program = """
import os, sys, threading, time
from tamis.code import CodeFilter, Context
from tamis.sandbox import Limits, Sandbox
import pyarrow as pa
sandbox = Sandbox(Limits(wall=1000.0, cpu=1000.0, load_wall=60.0))
source = "class F:\\n properties = ('n:int',)\\n def match(self, m):\\n  while True: pass\\n"
cells = [sandbox.cell(CodeFilter("f.py:F", source), Context("g", "t")) for _ in range(2)]
batch = pa.record_batch({"n": pa.array([1], pa.int32())})
threading.Thread(target=cells[0].judge, args=(batch,), daemon=True).start()
while cells[0].usage.cpu_seconds < 0.1: time.sleep(0.01)
print(sandbox._zygote.pid, flush=True)
time.sleep(1000)
"""
    server = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    zygote = int(server.stdout.readline())
    pids = [zygote, *_children(zygote)]
    assert len(pids) == 5
    server.kill()
    server.wait()
    server.stdout.close()
    _wait(lambda: not any(map(_exists, pids)), "processes are left")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("wall", 0),
        ("memory", 1000),
        ("processes", 0),
        ("output", 1.5),
        ("cpu", "1"),
        ("wall", True),
    ],
)
def test_limits_out_of_their_range_are_refused(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{name} = "):
        Limits(**{name: value})  # type: ignore[arg-type]


def test_a_wrong_isolation_is_refused() -> None:
    with pytest.raises(ConfigError, match="isolation = 'yes'"):
        Sandbox(isolation="yes")  # type: ignore[arg-type]
