"""Examples and the README's programs run, and print what is said they print."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tamis.testing import LocalCluster

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

_FENCED = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


ONE_PROGRAM = ("spark.md",)  # its blocks go on from one another: a session takes its time
NAMESERVER = "127.0.0.1:9876"  # what documents and examples say; here it is another port


@pytest.fixture
def nameserver() -> Iterator[str]:
    """Of a cluster that no other document has written to."""
    with LocalCluster(log_file_size=2**24) as cluster:
        yield cluster.nameserver


def run(program: str, nameserver: str) -> str:
    program = program.replace(NAMESERVER, nameserver)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs(path: Path, nameserver: str) -> None:
    assert run(path.read_text(), nameserver)


@pytest.mark.parametrize("policy", ["rocketmq", "reject", "isolate"])
def test_the_story_of_lost_messages(policy: str) -> None:
    """`examples/lost`, which docs/lost-messages.md tells; Spark only where something is lost."""
    program = [sys.executable, str(ROOT / "examples" / "lost" / "run.py"), "--policy", policy]
    more = [] if policy == "rocketmq" else ["--without-spark"]
    done = subprocess.run([*program, *more], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    if policy == "isolate":
        assert "ann, who wants CARD, got 8\nbob, who wants CASH, got 8\n" in done.stdout
        assert "nobody got 0" in done.stdout
    elif policy == "reject":
        assert "- FILTERED  billing" in done.stdout  # bob is refused, so nobody wants CASH
        assert "LOST_TO_INCONSISTENCY" not in done.stdout
    else:
        assert "nobody got 12; lag of the group: 0" in done.stdout
        assert "✗ LOST_TO_INCONSISTENCY  billing" in done.stdout
        assert re.search(r"billing +4 +12$", done.stdout, re.MULTILINE)
        assert "got the 12 lost payments, each once" in done.stdout


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_a_document_shows_what_its_programs_print(path: Path, nameserver: str) -> None:
    """A `python` block followed by a `text` block: the program and its output."""
    blocks = _FENCED.findall(path.read_text())
    if path.name in ONE_PROGRAM:
        programs = [block for kind, block in blocks if kind == "python"]
        outputs = [block for kind, block in blocks if kind == "text"]
        assert run("\n".join(programs), nameserver) == "".join(outputs)
        return
    for (kind, program), (next_kind, output) in zip(blocks, [*blocks[1:], ("", "")], strict=False):
        if kind == "python":
            printed = run(program, nameserver)
            if next_kind == "text":
                assert printed == output


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_a_document_shows_what_its_commands_print(path: Path, nameserver: str) -> None:
    """A `console` block: lines that begin with `$ tamis`, each followed by what it prints."""
    for kind, block in _FENCED.findall(path.read_text()):
        if kind != "console":
            continue
        for command, output in re.findall(
            r"^\$ (tamis .*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE
        ):
            done = subprocess.run(
                command,
                shell=True,
                capture_output=True,
                text=True,
                env={
                    **os.environ,
                    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                    "NAMESRV_ADDR": nameserver,
                },
            )
            assert (done.stdout + done.stderr).rstrip() == output.rstrip(), command
