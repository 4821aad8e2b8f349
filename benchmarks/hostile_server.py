"""The server that `hostile.py` attacks: `tamis up` in a process of its own, under the limits that
an attack calls for, with its memory watched; and a small disk to put its data on.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Disk", "Memory", "NotMounted", "NotStarted", "Server", "mounted"]

START_SECONDS = 120.0  # the first start on a machine compiles some code
STOP_SECONDS = 30.0
SAMPLE_SECONDS = 0.05
_READY = re.compile(r"name server (127\.0\.0\.1:\d+).*?broker (127\.0\.0\.1:\d+)")


class NotStarted(Exception):
    """Raised when the server ends, or says nothing, instead of becoming ready."""


@dataclass
class Memory:
    """The most that a process was seen to use, in bytes.

    `anonymous` is what it allocated. `resident` also counts pages of the files it maps, which the
    kernel takes back when it needs them. Neither counts what the kernel holds for its sockets.
    """

    anonymous: int = 0
    resident: int = 0

    def sample(self, pid: int) -> None:
        with contextlib.suppress(OSError):  # the process is gone
            found = dict(re.findall(r"(\w+):\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text()))
            self.anonymous = max(self.anonymous, int(found.get("RssAnon", 0)) * 1024)
            self.resident = max(self.resident, int(found.get("VmHWM", 0)) * 1024)


class Server:
    """`tamis up`, stopped or killed and started again on the same data and the same ports.

    `descriptors` and `file_size` are limits set on the process (RLIMIT_NOFILE, RLIMIT_FSIZE).
    """

    def __init__(
        self,
        directory: Path,
        *,
        data: Path | None = None,
        flush: str = "sync",
        settings: Mapping[str, object] | None = None,
        descriptors: int | None = None,
        file_size: int | None = None,
    ) -> None:
        self.directory = directory
        self.data = data or directory / "data"
        self.broker = self.nameserver = ""
        self.memory = Memory()
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: threading.Thread | None = None
        limits = [] if descriptors is None else [f"ulimit -n {descriptors}"]
        limits += [] if file_size is None else [f"ulimit -f {file_size // 512}"]
        self._limited = ["sh", "-c", "; ".join([*limits, 'exec "$@"']), "sh"] if limits else []
        self._options = ["--flush", flush, "--log-level", "warning", "--metrics-port", "-1"]
        for name, value in (settings or {}).items():
            self._options += ["--set", f"{name}={value}"]

    @property
    def log(self) -> str:
        """What it wrote on standard error, in all its lives."""
        path = self.directory / "err"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        assert self._process is not None
        return self._process.poll()

    def start(self, patience: float = START_SECONDS) -> None:
        """Raises NotStarted."""
        said = self.directory / "out"
        ports = [address.rpartition(":")[2] or "0" for address in (self.broker, self.nameserver)]
        line = [str(Path(sys.executable).with_name("tamis")), "up", "--data", str(self.data)]
        line += ["--port", ports[0], "--nameserver-port", ports[1]]
        line += ["--filter-servers", "0", *self._options]
        with said.open("wb") as out, (self.directory / "err").open("ab") as err:
            self._process = subprocess.Popen(
                [*self._limited, *line], stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )
        process = self._process
        deadline = time.monotonic() + patience
        while b"\n" not in said.read_bytes():
            if process.poll() is not None:
                raise NotStarted(f"exit {process.returncode}: {_last_line(self.log)}")
            if time.monotonic() > deadline:
                self.kill()
                raise NotStarted(f"not ready after {patience:g} s: {_last_line(self.log)}")
            time.sleep(0.02)
        found = _READY.search(said.read_text())
        if found is None:
            self.kill()
            raise NotStarted(f"not a line that says where it listens: {said.read_text()!r}")
        self.nameserver, self.broker = found.groups()
        self._watch = threading.Thread(target=self._sample, args=(process,), daemon=True)
        self._watch.start()

    def _sample(self, process: "subprocess.Popen[bytes]") -> None:
        while process.poll() is None:
            self.memory.sample(process.pid)
            time.sleep(SAMPLE_SECONDS)

    def stop(self, patience: float = STOP_SECONDS) -> int | None:
        """Stop it in good order; returns its exit code, or None if it had to be killed."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self.kill()
            return None

    def kill(self) -> None:
        """Kill it with SIGKILL, if it still runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it said nothing"


# Small disks.


class NotMounted(Exception):
    """Raised where a file system cannot be made: it takes root and a loop device."""


@dataclass(frozen=True)
class Disk:
    """An ext4 file system in a file, with so much room and so many inodes."""

    mebibytes: int
    inodes: int


@contextlib.contextmanager
def mounted(disk: Disk, directory: Path) -> Iterator[Path]:
    """Mount a new disk below the directory. Raises NotMounted."""
    if os.geteuid() != 0:
        raise NotMounted("mounting a small file system takes root")
    image, place = directory / "disk.img", directory / "disk"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(disk.mebibytes * 2**20)
    make = ["mkfs.ext4", "-q", "-F", "-m", "0", "-N", str(disk.inodes), str(image)]
    try:
        for line in (make, ["mount", "-o", "loop", str(image), str(place)]):
            subprocess.run(line, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", "") or str(error)
        raise NotMounted(f"{line[0]}: {said.strip().splitlines()[-1]}") from None
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)
