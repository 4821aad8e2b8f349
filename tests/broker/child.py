"""A broker in a process of its own, to be killed and started again."""

import contextlib
import re
import signal
import subprocess
import sys
from pathlib import Path

from broker.asking import PATIENCE, until


class Child:
    """`tamis up`, killed and started again on the same directory and ports."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.directory = directory
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._ports = ("0", "0", "0")  # broker, name server, metrics
        self.broker = self.nameserver = self.metrics = ""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        return (self.directory / "err").read_text()

    async def start(self, patience: float = 6 * PATIENCE) -> None:
        """Patience for the compiler: the first time on a machine takes a while."""
        said = self.directory / "out"
        line = [str(Path(sys.executable).with_name("tamis")), "up"]
        line += ["--data", str(self.directory / "data"), "--port", self._ports[0]]
        line += ["--nameserver-port", self._ports[1], "--metrics-port", self._ports[2]]
        line += ["--filter-servers", "0"]
        with said.open("wb") as out, (self.directory / "err").open("ab") as err:
            self._process = subprocess.Popen(
                [*line, *self._options], stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )
        child = self._process
        await until(
            lambda: b"\n" in said.read_bytes() or child.poll() is not None,
            lambda: self.log[-2000:],
            patience,
        )
        found = re.search(r"server (\S+), broker (\S+) .*metrics (http://\S+)", said.read_text())
        assert found, f"{said.read_text()}\n{self.log[-2000:]}"
        self.nameserver, self.broker, self.metrics = found.groups()
        addresses = (self.broker, self.nameserver, self.metrics.removesuffix("/metrics"))
        self._ports = tuple(one.rpartition(":")[2] for one in addresses)  # type: ignore[assignment]

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    async def stop(self) -> int:
        """In good order; its exit code."""
        assert self._process is not None
        process = self._process
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(AssertionError):
            await until(lambda: process.poll() is not None, lambda: "it runs")
        if process.poll() is None:
            process.kill()
        return process.wait()

    def end(self) -> None:
        """Whatever it is doing."""
        if self._process is not None and self._process.poll() is None:
            self.kill()
