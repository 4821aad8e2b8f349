"""A filter's process and the zygote that makes it, as the server sees them.

Everything here blocks, with a deadline. `Child.ask` is the only place where words of a filter enter
the server.
"""

import contextlib
import json
import mmap
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, Any, Final

from ..errors import SandboxError
from . import exchange, zygote
from .exchange import Kind
from .limits import Limits
from .plan import Plan, address_space

__all__ = ["Breach", "Child", "End", "Zygote", "ZygoteGone"]

_START: Final = 60.0  # seconds for a zygote to import everything, on a busy machine
_MAKE: Final = 20.0  # seconds for a child to be made; nothing of the filter runs before
_END: Final = 10.0  # seconds for a killed child to be buried
_HANG_UP: Final = 1.0  # seconds for a process that closed its socket to end by itself
_LOOK: Final = 0.02  # seconds between looks at what a batch uses
_BOOT: Final = (
    "import sys; plan = sys.argv[1]; sys.path += sys.argv[2:];"
    "from tamis.sandbox import zygote; zygote.main(plan)"
)
# The zygote's environment while it imports. Arrow's other allocators start threads or reserve
# address space, which the limit would count; so do arenas of the C library.
_ENVIRONMENT: Final = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "2",
    "LC_ALL": "C.UTF-8",
}

_ROW_0: Final = bytes(8)


class Breach(Exception):
    """A filter broke a limit or the rules, and its process has ended. `reason` is one line.

    `row` is the one that it said it was judging, if it did. `is_idle`: it happened while it was
    asked nothing, so that no message is to blame. `is_slow`: fewer messages at once may do.
    """

    def __init__(
        self,
        reason: str,
        *,
        row: int | None = None,
        is_idle: bool = False,
        is_slow: bool = False,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.row = row
        self.is_idle = is_idle
        self.is_slow = is_slow


class ZygoteGone(Exception):
    """The zygote or a keeper ended; it is not the filter's doing."""


@dataclass(frozen=True, slots=True)
class End:
    """How a process ended."""

    status: int  # of wait(2)
    cpu_seconds: float
    peak_memory: int  # bytes

    def __str__(self) -> str:
        if not os.WIFSIGNALED(self.status):
            return f"ended itself with status {os.waitstatus_to_exitcode(self.status)}"
        number = os.WTERMSIG(self.status)
        with contextlib.suppress(ValueError):
            name = signal.Signals(number).name
            if name == "SIGSYS":
                return "ended by SIGSYS: a system call that no filter needs"
            if name == "SIGKILL":
                return "ended by SIGKILL: not by us; the machine may be short of memory"
            return f"ended by {name}"
        return f"ended by signal {number}"


class Zygote:
    """Starts in the constructor. Thread-safe."""

    def __init__(self, plan: Plan) -> None:
        """Raises SandboxError."""
        self.plan = plan
        self._lock = threading.Lock()
        try:
            error = self._start()
        except OSError as failure:  # no descriptors or processes are left, or no Python is there
            reason = f"the process that makes filters could not be started: {failure}"
            raise SandboxError(reason, 1.0) from None
        if error is not None:
            self.close()
            raise SandboxError(error)

    def _start(self) -> str | None:
        """Return why it does not run. Raises OSError."""
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.ExitStack() as undo, theirs, tempfile.TemporaryFile() as said:
            undo.callback(self._control.close)
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    "-S",
                    "-B",
                    "-c",
                    _BOOT,
                    self.plan.to_json(),
                    *self.plan.path,
                ],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=said,
                env=_ENVIRONMENT,
                cwd="/",
                start_new_session=True,  # Ctrl-C at a terminal is the server's
            )
            undo.pop_all()
            theirs.close()  # or its end would not be noticed
            self._control.settimeout(_START)
            try:
                answer = self._control.recv(65536)
                error: str | None = json.loads(answer)["error"] if answer else _last_line(said)
            except TimeoutError:
                error = f"the process that makes filters did not start within {_START:g} s"
        return error

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def order(self, order: Mapping[str, Any], descriptors: list[int]) -> None:
        """Raises ZygoteGone."""
        try:
            with self._lock:
                socket.send_fds(self._control, [json.dumps(order).encode()], descriptors)
        except OSError as error:
            raise ZygoteGone(str(error)) from None

    def close(self) -> None:
        """End it, and with it all of its children."""
        self._control.close()
        try:
            self._process.wait(_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _last_line(said: IO[bytes]) -> str:
    said.seek(0)
    lines = said.read(65536).decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "the process that makes filters ended without a word"


class Child:
    """A filter's process. It runs while it is asked, and is stopped otherwise. One caller at a
    time, but for `kill`."""

    def __init__(
        self,
        zygote: Zygote,
        limits: Limits,
        arena: int,
        probe: Mapping[str, Any] | None = None,
        on_look: Callable[[], None] = lambda: None,
    ) -> None:
        """`arena`: a descriptor of the memory that batches are written to, open for reading.
        `on_look` is called now and then while it runs; what it raises, `ask` does.

        Raises ZygoteGone, or SandboxError if it can't be shut in.
        """
        self._limits = limits
        self._on_look = on_look
        self._end: End | None = None
        self._pidfd = -1
        self._signalling = threading.Lock()  # the number of a closed descriptor may be another's
        order = {
            "batch_bytes": limits.batch_bytes,
            "address_space": address_space(limits),
            "data": limits.memory,
            "processes": limits.processes,
            "output": limits.output,
            "is_probe": probe is not None,
            **(probe or {}),
        }
        with contextlib.ExitStack() as undo:
            try:
                self._open(zygote, order, arena, undo)
            except OSError as error:
                reason = f"no process could be made: {error.strerror or error}"
                raise SandboxError(reason, 1.0) from None
            undo.pop_all()
        try:
            self._pidfd = self._made()
            self.pid = _pid_of(self._pidfd)
            self._greet()
        except OSError as error:
            self.close()
            raise SandboxError(f"no process could be made: {error}", 1.0) from None
        except BaseException:
            self.close()
            raise

    def _open(
        self, zygote: Zygote, order: Mapping[str, Any], arena: int, undo: contextlib.ExitStack
    ) -> None:
        """Make what it is connected by, and order it. Raises OSError, ZygoteGone."""
        self._socket, theirs = socket.socketpair()
        undo.callback(self._socket.close)
        with theirs:
            self._socket.setblocking(False)
            self._readable = select.poll()
            self._readable.register(self._socket, select.POLLIN)
            self._listener, keepers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            undo.callback(self._listener.close)
            with keepers:
                progress = os.memfd_create("tamis-progress")
                try:
                    os.ftruncate(progress, mmap.PAGESIZE)
                    self._progress = mmap.mmap(progress, mmap.PAGESIZE)
                    undo.callback(self._progress.close)
                    zygote.order(order, [theirs.fileno(), arena, progress, keepers.fileno()])
                finally:
                    os.close(progress)

    def _made(self) -> int:
        self._listener.settimeout(_MAKE)
        try:
            said, descriptors, _, _ = socket.recv_fds(self._listener, 512, 1)
        except (TimeoutError, OSError) as error:
            raise ZygoteGone(str(error)) from None
        if said == zygote.MADE and len(descriptors) == 1:
            return descriptors[0]
        if said[:1] == zygote.NOT_MADE:
            raise SandboxError(f"no process could be made: {said[1:].decode(errors='replace')}")
        raise ZygoteGone("no process was made")

    def _greet(self) -> None:
        """Wait until it is shut in. What it says until then are our own words."""
        try:
            header = self._receive(exchange.ANSWER.size)
            _, kind, size = exchange.ANSWER.unpack(header)
            if kind == Kind.READY:
                return
            said = self._receive(size).decode(errors="replace")
        except Breach as breach:
            said = breach.reason
        raise SandboxError(f"a filter's process could not be shut in: {said}")

    def ask(
        self,
        kind: Kind,
        payload: bytes = b"",
        *,
        rows: int = 0,
        schema: int = 0,
        batch: int = 0,
        wall: float,
    ) -> tuple[int, bytes]:
        """Return the kind of the answer and its bytes, which nobody has looked at.

        Raises Breach, with the process ended; or ZygoteGone.
        """
        self._expect_silence()
        nonce = os.urandom(exchange.NONCE_SIZE)
        self._progress[:8] = _ROW_0
        deadline = time.monotonic() + wall
        self._signal(signal.SIGCONT)
        self._send(
            exchange.REQUEST.pack(nonce, kind, len(payload), rows, schema, batch) + payload, wall
        )
        try:
            answer = self._receive_answer(
                nonce, exchange.longest_answer(kind, rows, self._limits.output), deadline, wall
            )
        except Breach as breach:
            if kind is Kind.JUDGE and rows > 1:
                row = int.from_bytes(self._progress[:8], sys.byteorder)
                breach.row = row if row < rows else None
            raise
        self._signal(signal.SIGSTOP)
        return answer

    def receive_all(self, most: int) -> bytes:
        """Return what it says until it ends; for a probe."""
        data = b""
        with contextlib.suppress(Breach):
            while len(data) < most:
                data += self._receive(1)
        return data

    @property
    def cpu_seconds(self) -> float:
        if self._end is not None:
            return self._end.cpu_seconds
        try:
            # The clock of another process: clock_getcpuclockid(3).
            return time.clock_gettime((~self.pid << 3) | 2)
        except OSError:
            return 0.0

    @property
    def peak_memory(self) -> int:
        """Bytes of memory it had at most, with what it shares with other children."""
        return self._end.peak_memory if self._end is not None else self._status("VmHWM:")

    @property
    def memory(self) -> int:
        """Bytes that it has, without files and batches but with the kernel's tables for them."""
        return 0 if self._end is not None else self._status("RssAnon:", "VmSwap:", "VmPTE:")

    def _status(self, *names: str) -> int:
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{self.pid}/status") as status:
            return sum(int(line.split()[1]) for line in status if line.startswith(names)) * 1024
        return 0

    def broken(self, reason: str, row: int | None = None) -> Breach:
        """End it for something that it said. Returns the error to raise."""
        return self._broken(reason, row=row)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def close(self) -> None:
        """End it, and wait until it has ended."""
        if self._pidfd >= 0:
            self.kill()
            with contextlib.suppress(ZygoteGone):
                self._bury()
            with self._signalling:
                os.close(self._pidfd)
                self._pidfd = -1
        self._socket.close()
        self._listener.close()
        self._progress.close()

    def _signal(self, number: signal.Signals) -> None:
        with self._signalling, contextlib.suppress(ProcessLookupError):
            if self._pidfd >= 0:
                signal.pidfd_send_signal(self._pidfd, number)

    def _expect_silence(self) -> None:
        try:
            said = self._socket.recv(1)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if said:
            raise self._broken("answered before it was asked", is_idle=True)
        raise Breach(self._hung_up(), is_idle=True)

    def _send(self, data: bytes, wall: float) -> None:
        left = memoryview(data)
        deadline = time.monotonic() + wall
        poll = select.poll()
        poll.register(self._socket, select.POLLOUT)
        while left:
            try:
                left = left[self._socket.send(left) :]
            except BlockingIOError:
                if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                    raise self._broken(f"took longer than {wall:g} s", is_slow=True) from None
            except OSError:
                raise Breach(self._hung_up()) from None

    def _receive_answer(
        self, nonce: bytes, most: int, deadline: float, wall: float
    ) -> tuple[int, bytes]:
        header = exchange.ANSWER.size
        data = memoryview(bytearray(header + most))
        cpu = self.cpu_seconds
        got, size, kind = 0, 0, 0
        while got < header + size:
            is_new = got < header
            got += self._receive_some(data[got:], deadline, cpu, wall)
            if is_new and got >= header:
                said, kind, size = exchange.ANSWER.unpack_from(data)
                if said != nonce:
                    raise self._broken("answered a question that was not asked")
                if size > most:
                    raise self._broken(f"answered with {size} bytes, more than {most}")
        if got > header + size:
            raise self._broken("answered with more than one answer")
        return kind, bytes(data[header : header + size])

    def _receive(self, size: int) -> bytes:
        """Return just so many bytes of what is said before any code of a filter runs."""
        data = memoryview(bytearray(size))
        deadline = time.monotonic() + _MAKE
        got = 0
        while got < size:
            got += self._receive_some(data[got:], deadline, None, _MAKE)
        return bytes(data)

    def _receive_some(
        self, room: memoryview, deadline: float, cpu: float | None, wall: float
    ) -> int:
        """Return how many bytes came, which are some. `cpu`: what it had used when asked."""
        while True:
            left = deadline - time.monotonic()
            step = left if cpu is None else min(left, _LOOK)
            # An answer that is there counts, even if we were late to look.
            if not self._readable.poll(max(0, step * 1000)):
                if left <= 0:
                    raise self._broken(f"took longer than {wall:g} s", is_slow=True)
                if cpu is not None and self.cpu_seconds - cpu > self._limits.cpu:
                    reason = f"used more than {self._limits.cpu:g} s of CPU"
                    raise self._broken(reason, is_slow=True)
                if cpu is not None:
                    self._on_look()
                continue
            try:
                got = self._socket.recv_into(room)
            except BlockingIOError:
                continue
            except OSError:
                got = 0
            if not got:
                raise Breach(self._hung_up())
            return got

    def _broken(
        self,
        reason: str,
        *,
        row: int | None = None,
        is_idle: bool = False,
        is_slow: bool = False,
    ) -> Breach:
        self.kill()
        self._bury()
        return Breach(reason, row=row, is_idle=is_idle, is_slow=is_slow)

    def _hung_up(self) -> str:
        """The socket is closed. Return why, with the process ended."""
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        if poll.poll(_HANG_UP * 1000):
            return str(self._bury())
        self.kill()
        self._bury()
        return "closed its connection"

    def _bury(self) -> End:
        """Wait for its end. Raises ZygoteGone if nobody can tell."""
        if self._end is None:
            self._listener.settimeout(_END)
            try:
                said = self._listener.recv(512)
            except (TimeoutError, OSError) as error:
                raise ZygoteGone(str(error)) from None
            if len(said) != zygote.ENDED.size:
                raise ZygoteGone("the keeper of a filter's process ended")
            _, status, cpu, peak = zygote.ENDED.unpack(said)
            self._end = End(status, cpu, peak * 1024)
        return self._end


def _pid_of(pidfd: int) -> int:
    with open(f"/proc/self/fdinfo/{pidfd}") as info:
        for line in info:
            if line.startswith("Pid:"):
                return int(line.split()[1])
    raise ZygoteGone("a process without a number")
