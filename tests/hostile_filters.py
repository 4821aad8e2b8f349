"""Filters that mean harm, and what becomes of each.

They are given 8 messages whose property `n` is 0 to 7; one that does not fail matches even ones.
"""

from dataclasses import dataclass

__all__ = ["BATCHES", "LOADING", "MESSAGES", "Attack"]


@dataclass(frozen=True)
class Attack:
    """`body` is what it does; `expected` is a regular expression for the reason."""

    name: str
    body: str
    expected: str

    @property
    def takes_time(self) -> bool:
        """Whether only a limit on time ends it. The others get time enough on any machine."""
        return "took longer" in self.expected

    @property
    def match(self) -> str:
        """A `match` that attacks with the message 3 only."""
        lines = "\n".join(f"            {line}" for line in self.body.strip().splitlines())
        return (
            f"{_IMPORTS}\n"
            "class Hostile:\n"
            "    properties = ('n:int',)\n"
            "    def match(self, m):\n"
            "        n = m.properties['n']\n"
            "        if n == 3:\n"
            f"{lines}\n"
            "        return n % 2 == 0\n"
        )

    @property
    def match_batch(self) -> str:
        """A `match_batch` that attacks with every batch."""
        lines = "\n".join(f"        {line}" for line in self.body.strip().splitlines())
        return (
            f"{_IMPORTS}\n"
            "class Hostile:\n"
            "    properties = ('n:int',)\n"
            "    def match_batch(self, batch):\n"
            f"{lines}\n"
        )

    @property
    def loading(self) -> str:
        """An `__init__` that attacks."""
        lines = "\n".join(f"        {line}" for line in self.body.strip().splitlines())
        return (
            f"{_IMPORTS}\n"
            "class Hostile:\n"
            "    properties = ('n:int',)\n"
            "    def __init__(self):\n"
            f"{lines}\n"
            "    def match(self, m):\n"
            "        return True\n"
        )


_IMPORTS = """
import asyncio, ctypes, hashlib, mmap, os, re, shutil, signal, socket, struct, subprocess
import sys, threading, time
import numpy as np
import pyarrow as pa
libc = ctypes.CDLL(None, use_errno=True)

def nonce():
    frame = sys._getframe()
    while 'nonce' not in frame.f_locals or not isinstance(frame.f_locals['nonce'], bytes):
        frame = frame.f_back
    return frame.f_locals['nonce']

def say(payload, size=None, kind=13, key=None, pause=1000):
    header = struct.pack('<16sBI', key or nonce(), kind, len(payload) if size is None else size)
    os.write(3, header + payload)
    time.sleep(pause)
"""

# With one message. The others must be judged as if nothing were.
MESSAGES = [
    Attack("endless loop", "while True: pass", "took longer than"),
    Attack("endless loop in C", "re.match('(a*)*b', 'a' * 40)", "took longer than"),
    Attack("sleeping", "time.sleep(1000)", "took longer than"),
    Attack("catching everything", "signal.signal(15, signal.SIG_IGN)\nwhile True:\n    try:\n"
           "        while True: pass\n    except BaseException: pass", "took longer than"),
    Attack("busy threads", "def burn():\n    while True: hashlib.sha256(data)\n"
           "data = bytes(10**6)\n"
           "for _ in range(2): threading.Thread(target=burn, daemon=True).start()\n"
           "burn()", "used more than 2 s of CPU|took longer than"),
    Attack("memory bomb", "x = []\nwhile True: x.append(bytes(100000))", "needs more than 64 MiB"),
    Attack("one large allocation", "bytearray(2**34)", "needs more than 64 MiB of memory"),
    Attack("memory by NumPy", "np.ones(2**28)", "needs more than 64 MiB of memory"),
    Attack("memory by Arrow", "pa.nulls(2**28, pa.int64())", "needs more than 64 MiB of memory"),
    Attack("memory by C", "p = libc.malloc\np.restype = ctypes.c_void_p\nx = 1\n"
           "while x:\n    x = p(2**20)\n    ctypes.memset(x or 0, 1, 2**20)", "ended by SIGSEGV"),
    Attack("keeping what is left after a memory bomb", "self.x = []\ntry:\n"
           "    while True: self.x.append(bytes(100000))\n"
           "except MemoryError: pass\nraise MemoryError", "needs more than 64 MiB of memory"),
    Attack("shared memory", "mmap.mmap(-1, 2**30)", "PermissionError"),
    Attack("fork", "os.fork()", "PermissionError"),
    Attack("fork bomb", "while True:\n    try: os.fork()\n    except OSError: pass", "took longer"),
    Attack("vfork", "raise OSError(libc.vfork() < 0 and ctypes.get_errno())", "OSError: 1"),
    Attack("thread bomb", "while True: threading.Thread(target=time.sleep, args=(99,)).start()",
           "can't start new thread"),
    Attack("running a program", "subprocess.run(['/bin/sh', '-c', 'true'])", "PermissionError"),
    Attack("becoming a program", "os.execv('/bin/sh', ['sh'])", "PermissionError"),
    Attack("os.system", "raise OSError(os.system('true'))", "OSError"),
    Attack("writing a file", "open('/tmp/tamis-hostile', 'w')", "PermissionError|FileNotFound"),
    Attack("writing into the library", "open(os.__file__, 'a')", "PermissionError"),
    Attack("making a directory", "os.mkdir('/tmp/tamis-hostile')", "PermissionError"),
    Attack("deleting", "os.unlink(os.__file__)", "PermissionError"),
    Attack("deleting a tree", "shutil.rmtree('/')", "PermissionError|FileNotFound|Error"),
    Attack("changing modes", "os.chmod(os.__file__, 0o777)", "PermissionError"),
    Attack("making links", "os.symlink('/etc/passwd', '/tmp/tamis-hostile')", "PermissionError"),
    Attack("reading /etc/passwd", "open('/etc/passwd').read()", "NotFound|PermissionError"),
    Attack("reading a home", "os.listdir(os.path.expanduser('~root'))", "NotFound|PermissionError"),
    Attack("reading processes", "open('/proc/self/maps').read()", "NotFound|PermissionError"),
    Attack("reading the server's memory", "open('/proc/{server}/mem', 'rb').read(1)",
           "NotFound|PermissionError"),
    Attack("reading the server's environment", "open('/proc/{server}/environ').read()",
           "NotFound|PermissionError"),
    Attack("process_vm_readv", "libc.process_vm_readv({server}, 0, 0, 0, 0, 0)", "SIGSYS"),
    Attack("ptrace", "libc.ptrace(16, {server}, 0, 0)", "ended by SIGSYS"),
    Attack("mounting", "libc.mount(b'proc', b'/', b'proc', 0, 0)", "ended by SIGSYS"),
    Attack("new namespaces", "libc.unshare(0x10000000)", "ended by SIGSYS"),
    Attack("io_uring", "libc.syscall(425, 8, 0)", "ended by SIGSYS"),
    Attack("TCP", "socket.create_connection(('127.0.0.1', {port}), 1)", "PermissionError"),
    Attack("UDP", "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)", "PermissionError"),
    Attack("Unix sockets", "socket.socketpair()", "PermissionError"),
    Attack("listening", "asyncio.run(asyncio.start_server(print, '127.0.0.1', 0))",
           "PermissionError"),
    Attack("names", "socket.gethostbyname('localhost.example')", "gaierror"),
    Attack("a signal to the parent", "os.kill(os.getppid(), 9)", "PermissionError"),
    Attack("a signal to the server", "os.kill({server}, 9)", "PermissionError"),
    Attack("signals to all", "os.kill(-1, 9)", "PermissionError"),
    Attack("a signal by a pidfd", "signal.pidfd_send_signal(os.pidfd_open({server}), 9)",
           "PermissionError"),
    Attack("flooding the socket", "while True: os.write(3, b'x' * 65536)", "was not asked"),
    Attack("a huge answer", "say(b'', 2**31)", "answered with 2147483648 bytes, more than"),
    Attack("a short answer", "say(b'\\1')", r"answered with 1 bytes for \d messages"),
    Attack("a long answer", "say(b'\\1' * 8 + b'\\0\\0' + b'x' * 100)",
           "answered with|gave a reason"),
    Attack("outcomes that do not exist", "say(b'\\7' * 8 + b'\\0\\0')", "answered with"),
    Attack("a reason that is not UTF-8",
           "say(b'\\3' + struct.pack('<HIH', 1, 0, 2) + b'\\xff\\xff')", "not UTF-8|answered with"),
    Attack("another kind of answer", "say(b'[' * 1000, kind=11)", "answered another question"),
    Attack("an answer with a guessed nonce", "say(b'\\1' * 8 + b'\\0\\0', key=bytes(16))",
           "answered a question that was not asked"),
    Attack("half an answer", "say(b'x', 100)", "took longer than"),
    Attack("closing the socket", "os.close(3)\ntime.sleep(1000)", "closed its connection"),
    Attack("closing everything", "os.closerange(0, 32)", "closed its|ended itself with status 1"),
    Attack("a huge reason", "raise ValueError('x' * 10**7)", "^ValueError: x+…$"),
    Attack("a reason of many lines", "raise ValueError('a\\nb\\x1b[31m\\0')", "^ValueError: a$"),
    Attack("a reason that is no text", "raise ValueError('\\ud800')", r"^ValueError: \?$"),
    Attack("not a boolean", "return 10**1000", "not a boolean"),
    Attack("os._exit", "os._exit(3)", "^ended itself with status 3$"),
    Attack("sys.exit", "sys.exit(0)", "^SystemExit: 0$"),
    Attack("interrupting", "raise KeyboardInterrupt", "^ended itself with status 1$"),
    Attack("abort", "os.abort()", "ended by SIG(ABRT|SEGV)"),
    Attack("deep recursion", "f = lambda: f()\nf()", "RecursionError"),
    Attack("recursion without a limit", "sys.setrecursionlimit(10**9)\nx = []\n"
           "for _ in range(10**6): x = [x]\nrepr(x)", "ended by SIGSEGV|needs more"),
    Attack("a crash through ctypes", "ctypes.string_at(0)", "^ended by SIGSEGV$"),
    Attack("code of its own", "x = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE, prot=7)",
           "PermissionError"),
    Attack("making memory executable", "b = ctypes.create_string_buffer(8192)\n"
           "a = (ctypes.addressof(b) + 4095) & ~4095\n"
           "raise OSError(libc.mprotect(ctypes.c_void_p(a), 4096, 7) and ctypes.get_errno())",
           "OSError: 1"),
    Attack("raising limits", "import resource\n"
           "resource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40))", "Error"),
    Attack("importing what is not allowed", "import click", "import of click is not allowed here"),
    Attack("importing it otherwise", "__import__('importlib').import_module('pandas')",
           "import of pandas is not allowed here"),
    Attack("loading a library", "ctypes.CDLL('libncurses.so.6')", "OSError"),
]  # fmt: skip

# With every batch, whatever is in it: all messages fail, and it ends.
BATCHES = [
    Attack("endless loop", "while True: pass", "took longer than"),
    Attack("memory bomb", "bytearray(2**34)", "needs more than 64 MiB of memory"),
    Attack("a short mask", "return [True]", "match_batch gave 1 answers for 8 rows"),
    Attack("a long mask", "return np.ones(10**6, bool)", "gave 1000000 answers for 8 rows"),
    Attack("an endless mask", "import itertools\nreturn itertools.repeat(True)",
           "needs more than|took longer than|Error"),
    Attack("a mask that lies about its length", "class Mask(list):\n"
           "    def __len__(self): return 8\nreturn Mask()", "answers for 8 rows|Error"),
    Attack("not a mask", "return 'yes'", "match_batch gave"),
    Attack("os._exit", "os._exit(0)", "ended itself with status 0"),
    Attack("a native crash", "ctypes.string_at(1)", "ended by SIGSEGV"),
    Attack("changing the harness", "module = sys.modules['tamis.sandbox.exchange']\n"
           "module.encode_verdicts = lambda verdicts, output: b'nonsense' * 9\n"
           "return [True] * batch.num_rows", "answered with"),
    Attack("changing what writes", "os.write = lambda *given: 10**9\n"
           "return [True] * batch.num_rows", "took longer than"),
    Attack("reasons for messages that are not there", "rows = batch.num_rows\n"
           "say(b'\\3' * rows + struct.pack('<HIH', 1, 2**32 - 1, 1) + b'x')",
           "gave a reason for a message that did not fail"),
    Attack("more reasons than there are", "say(b'\\3' * batch.num_rows + b'\\xff\\xff')",
           "fewer reasons than it announced"),
    Attack("two answers at once", "rows = batch.num_rows\n"
           "answer = struct.pack('<16sBI', nonce(), 13, rows + 2) + b'\\1' * rows + b'\\0\\0'\n"
           "os.write(3, answer * 2)\ntime.sleep(1000)", "answered with more than one answer"),
    Attack("an answer byte by byte", "key = nonce()\n"
           "for one in struct.pack('<16sBI', key, 13, 60000) + bytes(60000):\n"
           "    os.write(3, bytes([one]))\n    time.sleep(0.01)", "took longer than"),
    Attack("writing into the batch", "import gc\n"
           "child = next(one for one in gc.get_objects() if type(one).__name__ == '_Child')\n"
           "view = np.frombuffer(child._arena, np.uint8)\n"
           "ctypes.memset(view.ctypes.data, 0, 8)", "ended by SIGSEGV"),
    Attack("making the batch writable", "import gc\n"
           "child = next(one for one in gc.get_objects() if type(one).__name__ == '_Child')\n"
           "at = np.frombuffer(child._arena, np.uint8).ctypes.data\n"
           "done = libc.mprotect(ctypes.c_void_p(at), 4096, 3)\n"
           "raise OSError(done and ctypes.get_errno())", "OSError: 13"),
    Attack("having the room of what it unmaps", "import gc\n"
           "child = next(one for one in gc.get_objects() if type(one).__name__ == '_Child')\n"
           "arena = np.frombuffer(child._arena, np.uint8)\n"
           "libc.munmap(ctypes.c_void_p(arena.ctypes.data), ctypes.c_size_t(arena.size))\n"
           "x = []\ntry:\n    while True: x.append(bytes(2**20))\n"
           "except MemoryError: size = len(x)\ndel x\n"
           "raise MemoryError if size <= 64 else ValueError(f'{size} MiB')",
           "needs more than 64 MiB of memory"),
]  # fmt: skip

# When it is loaded: there is no cell then, and one line why.
LOADING = [
    Attack("sleeping for ever", "time.sleep(10**6)", "took longer than 2 s while it was loaded"),
    Attack("endless loop", "while True: pass", "took longer than 2 s while it was loaded"),
    Attack("memory bomb", "self.x = bytearray(2**34)", "needs more than 64 MiB|MemoryError"),
    Attack("os._exit", "os._exit(7)", "ended itself with status 7 while it was loaded"),
    Attack("a native crash", "ctypes.string_at(0)", "ended by SIGSEGV while it was loaded"),
    Attack("answering before it is asked", "say(b'\\1' * 8, key=bytes(16))", "was not asked"),
    Attack("answering for the loader", "say(b'{}', kind=11)", "in an unknown form"),
    Attack("needs that are not JSON", "say(b'[' * 60000, kind=11)", "not JSON"),
    Attack("needing what does not exist", "say(b'{\"is_batch\": true, \"columns\": [\"x\"],"
           " \"properties\": [], \"is_declared\": true}', kind=11)", "column that does not exist"),
    Attack("flooding", "while True: os.write(3, b'y' * 65536)", "was not asked"),
    Attack("importing what is not allowed", "import pyspark", "import of pyspark is not allowed"),
    Attack("reading /etc/passwd", "open('/etc/passwd')", "NotFound|PermissionError"),
    Attack("signal handlers", "signal.raise_signal(signal.SIGTERM)\ntime.sleep(10**6)",
           "took longer than 2 s while it was loaded|ended by SIGTERM"),
]  # fmt: skip
