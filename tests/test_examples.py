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
