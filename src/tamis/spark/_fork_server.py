"""Forks the Python processes of a local session from one that has everything loaded.

Spark starts seven of them for a stream, one after the other: each imported PySpark, Arrow and Tamis
for half a second to two. This process imports them once, while Java starts, and forks. `starting`
starts it beside the driver, and it ends with the driver. Each fork is asked for by a client
(`_fork_client`) over a Unix socket:

    server   r                            it has loaded
    client   the size of its request, with its standard streams; the request, JSON
    child    its process id               or the server: 0, the client does it itself
    server   the exit status              when the child has ended

A client that goes away takes its child along. Requests that a fork could not serve as a new Python
would, with other paths or other settings of the interpreter, are not taken.
"""

import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from . import _daemon, _quiet
from .starting import FORCED

__all__ = ["main"]

_DAEMONS: Final = ("pyspark.daemon", "tamis.spark._daemon")
_RUNNERS: Final = (
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.worker.python_streaming_sink_runner",
)
_PLANNERS: Final = (
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.write_into_data_source",
)
# Variables that a fork can't obey any more.
_READ_EARLY: Final = ("LD_", "LC_", "NUMBA_", "OPENBLAS_", "MKL_", "ARROW_", "MALLOC_", "OMP_")
_READ_EARLY_NAMES: Final = ("LANG", "TZ", "SPARK_TESTING", "PYSPARK_ENABLE_NAMEDTUPLE_PATCH")
_SPARKS_PATHS: Final = ("/pyspark.zip", "-src.zip")
_MOST: Final = 200  # processes at a time
_LARGEST: Final = 16 << 20  # bytes of a request
_PATIENCE: Final = 10.0  # seconds for a request to be sent


@dataclass
class Request:
    arguments: list[str]
    environment: dict[str, str]
    directory: str
    streams: list[int]

    @property
    def module(self) -> str:
        return self.arguments[1] if self.arguments[:1] == ["-m"] else ""


def main(path: Path, listener: socket.socket) -> None:
    """Serve at `path`, where it listens, until standard input ends; then remove its directory."""
    driver = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    _load()
    with _Server(listener, driver) as server:
        request = server.serve()
    if request is not None:
        _become(request)
        return
    with contextlib.suppress(OSError):
        path.unlink()
        path.parent.rmdir()
    os._exit(0)  # nothing of ours is left to be done, and Python would take its modules apart


def _load() -> None:
    from tamis.filter.engines import warming

    _daemon.load()
    if warming.is_warm():  # else it would take long
        _daemon.load_loops()
    for name in (*_PLANNERS, *_RUNNERS):
        with contextlib.suppress(ImportError):  # of another PySpark
            importlib.import_module(name)
    gc.collect()
    gc.freeze()


class _Server:
    """The loop. Its only state is who stands for which child."""

    def __init__(self, listener: socket.socket, driver: int) -> None:
        self._listener = listener
        self._driver = driver
        self._children: dict[int, socket.socket] = {}
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._environment = dict(os.environ)

    def __enter__(self) -> "_Server":
        for one in (self._wake, self._woken):
            one.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._woken, selectors.EVENT_READ, self._reap)
        self._selector.register(self._driver, selectors.EVENT_READ, None)
        return self

    def __exit__(self, *_: object) -> None:
        """In the server and, before it becomes another, in a child."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        os.close(self._driver)
        for one in (self._listener, self._wake, self._woken, *self._children.values()):
            one.close()

    def serve(self) -> Request | None:
        """Return None when the driver has ended, and in a child what it is to be."""
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    return None
                request: Request | None = key.data(key.fileobj)
                if request is not None:
                    return request

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            client, _ = listener.accept()
            client.settimeout(_PATIENCE)
            client.sendall(b"r")
            self._selector.register(client, selectors.EVENT_READ, self._asked)

    def _asked(self, client: socket.socket) -> Request | None:
        """Either a request, or the end of one that stands for a child."""
        for pid, one in self._children.items():
            if one is client:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGTERM)
                self._selector.unregister(client)
                return None
        try:
            request = _read(client)
        except (OSError, ValueError, KeyError, TypeError):
            request = None
        if request is None or len(self._children) >= _MOST or not self._can_be(request):
            self._let_go(client, 0, request)
            return None
        try:
            pid = os.fork()
        except OSError:
            self._let_go(client, 0, request)
            return None
        if pid == 0:
            with contextlib.suppress(OSError):
                client.sendall(struct.pack("!i", os.getpid()))
            client.close()
            return request
        _close(request)
        self._children[pid] = client
        return None

    def _let_go(self, client: socket.socket, number: int, request: Request | None = None) -> None:
        with contextlib.suppress(OSError):
            client.sendall(struct.pack("!i", number))
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(client)
        client.close()
        if request is not None:
            _close(request)

    def _can_be(self, request: Request) -> bool:
        environment, wanted = self._environment, request.environment
        if len(request.streams) != 3 or request.module not in (*_DAEMONS, *_RUNNERS):
            return False
        if _paths(wanted) != _paths(environment) or not os.path.isdir(request.directory):
            return False
        for name in {*wanted, *environment}:
            is_other = wanted.get(name) != environment.get(name)
            is_set_by_us = name in FORCED and name not in wanted
            if is_other and _is_read_early(name) and not is_set_by_us:
                return False
        return True

    def _reap(self, woken: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            woken.recv(4096)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            client = self._children.pop(pid, None)
            if client is not None:
                self._let_go(client, os.waitstatus_to_exitcode(status))


def _read(client: socket.socket) -> Request:
    header, streams, _, _ = socket.recv_fds(client, 4, 3)
    try:
        while 0 < len(header) < 4:
            header += _some(client, 4 - len(header))
        (size,) = struct.unpack("!I", header)
        if size > _LARGEST:
            raise ValueError("too large")
        body = b""
        while len(body) < size:
            body += _some(client, size - len(body))
        told: dict[str, Any] = json.loads(body)
        return Request(told["arguments"], told["environment"], told["directory"], [*streams])
    except BaseException:
        for stream in streams:
            os.close(stream)
        raise


def _some(client: socket.socket, size: int) -> bytes:
    data = client.recv(min(size, 1 << 16))
    if not data:
        raise ConnectionError("the client is gone")
    return data


def _close(request: Request) -> None:
    for stream in request.streams:
        os.close(stream)


def _is_read_early(name: str) -> bool:
    is_pythons = name.startswith("PYTHON") and "_" not in name and name != "PYTHONPATH"
    return is_pythons or name in _READ_EARLY_NAMES or name.startswith(_READ_EARLY)


def _paths(environment: dict[str, str]) -> list[str]:
    paths = environment.get("PYTHONPATH", "").split(os.pathsep)
    return [*dict.fromkeys(one for one in paths if one and not one.endswith(_SPARKS_PATHS))]


def _become(request: Request) -> None:
    """The process that was asked for, as `python -m` would run it."""
    for number, stream in enumerate(request.streams):
        os.dup2(stream, number)
    _close(request)
    os.chdir(request.directory)
    os.environ.clear()
    os.environ.update(request.environment)
    sys.argv[:] = request.arguments[1:]
    sys.path[0] = request.directory
    if request.module in _DAEMONS:
        if request.arguments[2:3] == [_daemon.WORKER]:
            _daemon.load_loops()
        _daemon.manage()
        return
    sys.modules.pop(request.module, None)
    _quiet.be_quiet_as(request.module)
    runpy.run_module(request.module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), socket.socket(fileno=int(sys.argv[2])))
