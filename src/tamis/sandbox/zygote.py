"""The process that makes children: everything is imported and it has no secrets.

    server ── zygote ── keeper ── child

The zygote is started with an empty environment and one descriptor, leaves the server's namespaces,
and forks a keeper for each child that it is asked for. The keeper gives its child a namespace of
processes, sends the server a descriptor of it (a pidfd), waits for its end, and says how it ended.
None of the three is left behind when one of those before it ends.
"""

import array
import contextlib
import gc
import importlib
import itertools
import json
import os
import pkgutil
import random
import select
import signal
import socket
import struct
import sys
from collections.abc import Iterator
from typing import Any, Final

from . import child, jail, linux
from .lock import close_descriptors
from .plan import Plan

__all__ = ["ENDED", "MADE", "NOT_MADE", "main"]

MADE: Final = b"M"  # with the pidfd
NOT_MADE: Final = b"N"  # and why
ENDED: Final = struct.Struct("<cidQ")  # b"E", the status of wait(2), CPU seconds, peak KiB
_LONGEST_ORDER: Final = 65536
_DESCRIPTORS: Final = 4  # of an order: socket, arena, progress; and who hears of its end
_LOOK_FOR_SERVER: Final = 2000  # milliseconds

# Imported before, because a child can't load C extensions, and because it is faster. Those of the
# standard library that have C in them are found by themselves.
_PRELOADED: Final = (
    *("abc", "array", "ast", "base64", "bisect", "calendar", "codecs", "collections.abc"),
    *("concurrent.futures", "contextlib", "copy", "csv", "ctypes", "dataclasses", "datetime"),
    *("decimal", "difflib", "email.utils", "encodings.idna", "encodings.latin_1", "enum"),
    *("fnmatch", "fractions", "functools", "gzip", "hashlib", "heapq", "hmac", "html", "inspect"),
    *("io", "ipaddress", "itertools", "json", "logging", "lzma", "math", "numbers", "operator"),
    *("os", "pathlib", "pickle", "pprint", "queue", "random", "re", "secrets", "shlex", "socket"),
    *("sqlite3", "statistics", "string", "struct", "subprocess", "tempfile", "textwrap"),
    *("threading", "time", "traceback", "types", "typing", "unicodedata", "urllib.parse", "uuid"),
    *("weakref", "xml.etree.ElementTree", "zlib", "zoneinfo", "numpy.random", "pyarrow.compute"),
    *("pyarrow.acero", "pyarrow.dataset"),
)
_NOT_PRELOADED: Final = ("_tkinter", "_curses", "_curses_panel", "readline", "_gdbm", "_dbm", "nis")


def main(text: str) -> None:
    """Descriptor 0 is the socket to the server; 2 is read by it if there is no answer."""
    plan = Plan.from_json(text)
    server = os.getppid()
    control = socket.socket(fileno=os.dup(0))
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    linux.set_process_name("tamis-zygote")
    _preload(plan)
    memory = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")  # short of memory, the kernel ends these first
    try:
        if plan.has_namespaces:
            jail.enter(plan)
    except OSError as error:
        control.send(json.dumps({"error": f"namespaces: {error.strerror or error}"}).encode())
        return
    os.environ.clear()
    sys.argv, sys.orig_argv = [], []
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers need not be waited for,
    linux.adopt_orphans()  # nor the child of a keeper that was killed
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    os.dup2(0, 2)
    control.send(json.dumps({"error": None}).encode())
    _serve(plan, control, memory, server)


class _WithoutPandas:
    """Arrow would load it if it is there: half a second, and 50 MB."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _preload(plan: Plan) -> None:
    sys.meta_path.insert(0, _WithoutPandas)
    for name in (*_PRELOADED, *_extensions(plan)):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    import pyarrow as pa  # type: ignore[import-untyped]

    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    sys.meta_path.remove(_WithoutPandas)


def _extensions(plan: Plan) -> Iterator[str]:
    """The C extensions of the standard library; and all encodings where files can't be opened."""
    directory = f"{plan.standard_library}/lib-dynload"
    for module in pkgutil.iter_modules([directory]):
        if module.name not in _NOT_PRELOADED and not module.name.startswith(("_test", "_xx", "xx")):
            yield module.name
    if not plan.is_opening:
        import encodings

        for module in pkgutil.iter_modules(encodings.__path__, "encodings."):
            if not module.name.endswith(("mbcs", "oem")):
                yield module.name


def _serve(plan: Plan, control: socket.socket, memory: int, server: int) -> None:
    poll = select.poll()
    poll.register(control, select.POLLIN)
    numbers = itertools.count(random.randrange(10**8))
    page_size = os.sysconf("SC_PAGE_SIZE")
    while True:
        if not poll.poll(_LOOK_FOR_SERVER):
            if os.getppid() != server:
                return
            continue
        text, descriptors, _, _ = socket.recv_fds(control, _LONGEST_ORDER, _DESCRIPTORS)
        if not text:
            return
        order = json.loads(text)
        pages = [int(one) for one in os.pread(memory, 200, 0).split()]  # /proc/pid/statm
        order["address_space"] += pages[0] * page_size
        order["data"] += pages[5] * page_size
        number = next(numbers)
        try:
            if not os.fork():
                with _no_return():
                    _keep(plan, number, descriptors, order)
        except OSError as error:  # too many processes
            with contextlib.suppress(OSError):  # nobody waits for it any more
                os.write(descriptors[-1], NOT_MADE + f"{error}".encode()[:200])
        for one in descriptors:
            os.close(one)


@contextlib.contextmanager
def _no_return() -> Iterator[None]:
    """A forked process ends here, whatever happens."""
    try:
        yield
    finally:
        os._exit(1)


def _keep(plan: Plan, number: int, descriptors: list[int], order: dict[str, Any]) -> None:
    zygote = os.getppid()
    linux.die_with_parent()
    if os.getppid() != zygote:
        return
    linux.set_process_name("tamis-keeper")
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    listener = socket.socket(fileno=descriptors.pop())
    try:
        if plan.has_namespaces:
            linux.unshare(linux.CLONE_NEWPID)
        pid = os.fork()
    except OSError as error:
        listener.send(NOT_MADE + f"{error}".encode()[:200])
        return
    if not pid:
        with _no_return():
            linux.set_process_name("tamis-filter")
            child.run(plan, number, descriptors, order)
    # The socket of the child must be the child's alone: its end tells the server of its death.
    for one in descriptors:
        os.close(one)
    pidfd = os.pidfd_open(pid)
    rights = array.array("i", [pidfd])
    listener.sendmsg([MADE], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    os.dup2(listener.fileno(), child.SOCKET)
    os.dup2(pidfd, child.SOCKET + 1)
    close_descriptors(child.SOCKET + 2)
    # Not wait(2), which wakes whenever the server stops the child and lets it go on.
    poll = select.poll()
    poll.register(child.SOCKET + 1, select.POLLIN)
    poll.poll()
    _, status, usage = os.wait4(pid, 0)
    said = ENDED.pack(b"E", status, usage.ru_utime + usage.ru_stime, usage.ru_maxrss)
    os.write(child.SOCKET, said)
    os._exit(0)
