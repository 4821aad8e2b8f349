"""RocketMQ's C++ client, as Python's package of it, in a process of its own; and what the tests of
any foreign client need: a cluster to talk to and a process to drive."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, Protocol, Self

import pytest
from interop.build import Unavailable, alone

HERE = Path(__file__).parent
PACKAGE = "rocketmq==0.4.4"  # its wheel brings librocketmq.so 1.x, for Linux on x86-64
PATIENCE = 40.0  # seconds, for an answer and for messages to arrive

Row = dict[str, Any]


class Target(Protocol):
    """Where a foreign client goes; it finds the broker there."""

    nameserver: str


@contextmanager
def target(store: Path) -> Iterator[Target]:
    """Ours; or what TAMIS_TARGET says: `apache`, or the address of a name server that runs."""
    chosen = os.environ.get("TAMIS_TARGET", "tamis")
    if ":" in chosen:
        yield SimpleNamespace(nameserver=chosen)
    elif chosen == "apache":
        from interop.cluster import ApacheCluster

        with ApacheCluster(store) as apache:
            yield apache
    else:
        assert chosen == "tamis", f"TAMIS_TARGET={chosen}: neither tamis, apache nor host:port"
        from tamis.testing import LocalCluster

        with LocalCluster(store=store) as tamis:
            yield tamis


class ForeignClient:
    """A child process driven by JSON lines: `[verb, {arguments}]`, answered in turn by `["ok",
    value]` or `["error", text]`; and `["message", {...}]` whenever it is given one to consume. A
    context manager that ends the process."""

    def __init__(self, command: list[str], home: Path, environment: Mapping[str, str]) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.received: list[Row] = []
        self._answers: list[list[Any]] = []
        self._gone = False
        self._change = threading.Condition()
        self._log = home / "client.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=home,
                env={**os.environ, "HOME": str(home), **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def ask(self, verb: str, **arguments: object) -> Any:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps([verb, arguments]) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._complain(f"asked to {verb}, it had gone")
        with self._change:
            self._change.wait_for(lambda: self._answers or self._gone, PATIENCE)
            if not self._answers:
                self._complain(f"no answer to {verb}")
            kind, value = self._answers.pop()
        if kind == "error":
            self._complain(f"{verb}: {value}")
        return value

    def wait_for(self, ready: Callable[[list[Row]], bool], within: float = PATIENCE) -> list[Row]:
        """The messages received when `ready` says of them that they suffice."""
        with self._change:
            self._change.wait_for(lambda: ready(self.received) or self._gone, within)
            if not ready(self.received):
                self._complain(f"not within {within} s")
            return list(self.received)

    def close(self) -> None:
        """As a user would: consumers commit their offsets and say goodbye."""
        self.ask("close")
        self.kill()

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in self._process.stdin, self._process.stdout:
            assert pipe is not None
            pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            kind, value = json.loads(line)
            with self._change:
                if kind == "message":
                    self.received.append(value)
                else:
                    self._answers.append([kind, value])
                self._change.notify_all()
        with self._change:
            self._gone = True
            self._change.notify_all()

    def _complain(self, what: str) -> NoReturn:
        seen = "".join(f"\n  {row}" for row in self.received)
        log = self._log.read_text(errors="replace")[-3000:]
        raise AssertionError(
            f"{what}; exit {self._process.poll()}; received:{seen}\n--- log\n{log}"
        )


class CppClient(ForeignClient):
    """One producer or one push consumer, and any number of pulls."""

    def __init__(self, home: Path) -> None:
        command = [str(available(_python)), str(HERE / "cpp_driver.py")]
        super().__init__(command, home, {})  # it logs to $HOME/logs


def available(prepare: Callable[[], Path]) -> Path:
    """What `prepare` makes. Skips the test where it can't, unless CI says it must run."""
    try:
        return prepare()
    except Unavailable as reason:
        if os.environ.get("TAMIS_INTEROP") == "required":
            pytest.fail(f"{reason}, and TAMIS_INTEROP=required")
        pytest.skip(str(reason))


def install(place: Path, what: str, *commands: list[str], files: Iterable[Path] = ()) -> None:
    """Runs the commands in `place`, emptied but for copies of the files, unless they have been run
    for the same `what`."""
    mark = place / "installed"
    with alone():
        if mark.exists() and mark.read_text() == what:
            return
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        for file in files:
            shutil.copy(file, place)
        for command in commands:
            done = subprocess.run(command, cwd=place, capture_output=True, text=True)
            if done.returncode:
                said = (done.stdout + done.stderr)[-1000:]
                raise Unavailable(f"{' '.join(command)} failed:\n{said}")
        mark.write_text(what)


def _python() -> Path:
    """An interpreter that has the package, and nothing of ours."""
    place = HERE / "target" / "cpp"
    python = place / "venv" / "bin" / "python"
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    install(
        place,
        f"{PACKAGE} {sys.version}",
        [sys.executable, "-m", "venv", str(place / "venv")],
        [*pip, "--only-binary=:all:", PACKAGE],
        [str(python), "-c", "import rocketmq.client"],  # loads the library
    )
    return python
