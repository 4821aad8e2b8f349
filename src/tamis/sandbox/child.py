"""What runs in a filter's process: it shuts itself in, loads the class, and judges batches.

Nothing that it says is believed by the server; see `exchange`. The filter's code can change all of
this module, in its own process, and then lies only about its own messages.
"""

import builtins
import json
import mmap
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from ..code import CodeFilter, Context, Verdicts
from ..code.loading import Loaded, load
from ..errors import CodeError
from ..filter.logic import Outcome
from . import exchange, probe
from .exchange import Kind
from .lock import close_descriptors, lock
from .plan import Plan

__all__ = ["SOCKET", "run"]

SOCKET: Final = 3  # the only descriptor beyond 0 to 2, which are /dev/null
_USER_MODULES: Final = "_tamis_code_"


def run(
    plan: Plan, child_number: int, descriptors: Sequence[int], order: Mapping[str, Any]
) -> None:
    """Serve until the server closes the socket.

    `descriptors`: the socket, the memory that batches come in, the memory for the progress.
    """
    try:
        socket, arena_file, progress_file = descriptors
        arena = mmap.mmap(arena_file, order["batch_bytes"], mmap.MAP_SHARED, mmap.PROT_READ)
        progress = mmap.mmap(progress_file, mmap.PAGESIZE)
        os.dup2(socket, SOCKET, inheritable=False)
        close_descriptors(SOCKET + 1)
        np.random.seed()
        space, data = order["address_space"], order["data"]
        lock(plan, child_number, space, data, order["processes"])
    except Exception as error:
        _answer(b"", Kind.FAILED, f"{error}".encode()[:200])
        os._exit(1)
    _answer(b"", Kind.READY, b"")
    if order["is_probe"]:
        os.write(SOCKET, json.dumps(probe.attempt(plan, order)).encode())
        os._exit(0)
    _guard_imports(plan.modules)
    _Child(arena, progress, order["output"]).serve()


class _Child:
    def __init__(self, arena: mmap.mmap, progress: mmap.mmap, output: int) -> None:
        self._arena = memoryview(arena)
        self._row = memoryview(progress).cast("Q")  # the first: the row that is being judged
        self._output = output
        self._loaded: Loaded | None = None
        self._schema: pa.Schema | None = None
        self._schema_bytes = b""

    def serve(self) -> None:
        while True:
            nonce, kind, size, rows, schema, batch = exchange.REQUEST.unpack(
                _read(exchange.REQUEST.size)
            )
            if kind == Kind.LOAD:
                _answer(nonce, *self._load(json.loads(_read(size))))
            else:
                _answer(nonce, Kind.JUDGED, self._judge(rows, schema, batch))

    def _load(self, wanted: Mapping[str, str]) -> tuple[Kind, bytes]:
        code = CodeFilter(wanted["name"], wanted["text"])
        try:
            self._loaded = load(code, Context(wanted["group"], wanted["topic"]))
            return Kind.LOADED, exchange.encode_needs(self._loaded.needs)
        except CodeError as error:
            return Kind.REFUSED, exchange.encode_reason(error.reason)

    def _judge(self, rows: int, schema: int, size: int) -> bytes:
        """`schema` and `size` are bytes of the shared memory, one behind the other."""
        assert self._loaded is not None
        try:
            if self._arena[:schema] != self._schema_bytes:
                self._schema_bytes = bytes(self._arena[:schema])
                self._schema = pa.ipc.read_schema(pa.py_buffer(self._schema_bytes))
            # Copied, because a filter may keep a message or a batch while the next one is written.
            own = pa.allocate_buffer(size)
            memoryview(own).cast("B")[:] = self._arena[schema : schema + size]
            batch = pa.ipc.read_record_batch(own, self._schema)
            verdicts = self._loaded.judge(batch, progress=self._row)
        except MemoryError:
            verdicts = Verdicts(np.full(rows, Outcome.ERROR, np.uint8), {0: "MemoryError"})
        return exchange.encode_verdicts(verdicts, self._output)


def _answer(nonce: bytes, kind: Kind, payload: bytes) -> None:
    left = memoryview(exchange.ANSWER.pack(nonce, kind, len(payload)) + payload)
    while left:
        left = left[os.write(SOCKET, left) :]


def _read(size: int) -> bytes:
    data = os.read(SOCKET, size)
    while len(data) < size:
        more = os.read(SOCKET, size - len(data))
        if not more:
            os._exit(0)  # the server is gone, or done with us
        data += more
    return data


def _guard_imports(modules: Sequence[str]) -> None:
    """Tell a filter what it may not import. This is a message for its author, not a barrier."""
    allowed = {*sys.stdlib_module_names, *modules}
    original = builtins.__import__

    def refuse(name: str) -> None:
        top = name.partition(".")[0]
        if top not in allowed and not top.startswith(_USER_MODULES):
            raise ImportError(f"import of {top} is not allowed here", name=name)

    def guarded(
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        importer = (globals or {}).get("__name__")
        if level == 0 and isinstance(importer, str) and importer.startswith(_USER_MODULES):
            refuse(name)
        return original(name, globals, locals, fromlist or (), level)

    class Guard:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
            if path is None:
                refuse(name)
            return None

    builtins.__import__ = guarded
    sys.meta_path.insert(0, Guard)
