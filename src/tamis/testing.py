"""What tests need that is hard to come by: a cluster of their own, files that fail and forget."""

import asyncio
import errno
import os
import random
import shutil
import tempfile
import threading
from collections.abc import Coroutine
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from .store.files import Bytes, Data, DiskFull, Files, failure

if TYPE_CHECKING:
    from .broker.broker import Broker
    from .broker.metrics import Exporter

__all__ = ["Crash", "LocalBroker", "LocalCluster", "LocalNameServer", "LossyFiles"]

T = TypeVar("T")


_DEFAULTS = {"port": "0", "flush": "async", "filter_server_options": "--uploads=loopback"}


class _Local:
    """Servers in a thread of this process, from `with` (or `async with`) to its end."""

    _loop: "_LoopThread"

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._loop = _LoopThread()
            stack.callback(self._loop.close)
            self._start(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.__enter__)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._stack.close)

    def _start(self, stack: ExitStack) -> None:
        raise NotImplementedError

    def _start_nameserver(self, stack: ExitStack, **settings: Any) -> str:
        """Gives its address."""
        from .nameserver.config import NameServerConfig
        from .nameserver.server import NameServer

        async def start() -> NameServer:  # what it consists of belongs to the loop it is made in
            server = NameServer(NameServerConfig(port=0, **settings))
            await server.start()
            return server

        server = self._loop.run(start())
        stack.callback(lambda: self._loop.run(server.close()))
        return server.address


class LocalNameServer(_Local):
    """A name server on a free port; `nameserver` is its address."""

    nameserver = ""

    def _start(self, stack: ExitStack) -> None:
        self.nameserver = self._start_nameserver(stack)


class LocalBroker(_Local):
    """A broker on a free port, with its data in `store` or in a directory that goes with it.

    Settings are those of `BrokerConfig`, under its names or RocketMQ's (`flush="sync"`,
    `enablePropertyFilter=True`), and with their units; but `flush` is async unless it is given, for
    a test's messages need not outlive a power cut. `broker` is its address, `metrics` where its
    metrics are if `metrics_port` is given; with `filter_servers` it starts as many, which take
    uploads from this machine. It can be stopped and started again within the `with`; it keeps its
    port and its data.
    """

    def __init__(
        self, store: Path | str | None = None, *, nameserver: str = "", **settings: object
    ) -> None:
        from .broker.config import BrokerConfig

        self.nameserver = nameserver
        self.broker = ""
        self.metrics = ""
        self.store = Path(store) if store is not None else None
        self._given = store
        # any text is read as the broker's own tools would
        texts = {n: str(v).lower() if isinstance(v, bool) else str(v) for n, v in settings.items()}
        self._settings = BrokerConfig.from_text({**_DEFAULTS, **texts})
        self._running: tuple[Broker, Exporter | None] | None = None

    def _start(self, stack: ExitStack) -> None:
        self._config = replace(self._settings, nameservers=self._nameservers())
        if self._given is None:
            self.store = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tamis-")))
        stack.callback(self.stop_broker)
        self.start_broker()

    def _nameservers(self) -> str:
        return self.nameserver or self._settings.nameservers

    def start_broker(self) -> None:
        """Does nothing if it runs."""
        if self._running is None:
            self._loop.run(self._run_broker())

    async def _run_broker(self) -> None:
        from .broker.broker import Broker

        assert self.store is not None
        broker = Broker(self._config, self.store)
        await broker.start()
        self._running = (broker, None)
        self.broker = broker.address
        self._config = replace(self._config, port=broker.port)
        if self._config.metrics_port >= 0:
            from .broker.metrics import Exporter

            exporter = Exporter(broker)
            self._running = (broker, exporter)
            self._config = replace(self._config, metrics_port=exporter.port)
            self.metrics = f"{exporter.scheme}://{self._config.bind}:{exporter.port}/metrics"

    def stop_broker(self) -> None:
        """In good order: everything is saved. Does nothing if it does not run."""
        if self._running is not None:
            (broker, exporter), self._running = self._running, None
            if exporter is not None:
                exporter.close()
            self._loop.run(broker.close())

    def restart_broker(self) -> None:
        """In good order, on the same port and data."""
        self.stop_broker()
        self.start_broker()


class LocalCluster(LocalBroker):
    """A name server and a broker, as `LocalBroker`, with the same TLS if any:

    with LocalCluster() as cluster:
        ...  # clients of cluster.nameserver
    """

    def __init__(self, store: Path | str | None = None, **settings: object) -> None:
        super().__init__(store, **settings)  # type: ignore[arg-type]

    def _start(self, stack: ExitStack) -> None:
        from .security import Security, ServerTls
        from .security.tls import TLS_SETTINGS

        ours = self._settings
        tls = {name: getattr(ours, name) for name in TLS_SETTINGS}
        self.nameserver = self._start_nameserver(stack, **tls)
        self._settings = replace(ours, security=Security(tls=ServerTls.of(ours).peers()))
        super()._start(stack)


class _LoopThread:
    """An event loop that runs in a thread of its own."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tamis-local", daemon=True)
        self._thread.start()
        self._ready.wait()

    def _run(self) -> None:
        from .net.aio import loop_factory

        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            self._loop = runner.get_loop()
            self._loop.call_soon(self._ready.set)
            self._loop.run_forever()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What it gives or raises, in the caller's thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


_SECTOR = 512  # what a disk writes whole or not at all


class Crash(BaseException):
    """The process or the machine ends here. Not an Exception: nobody may handle it."""


class LossyFiles(Files):
    """Real files that fail, die and forget.

    System calls are counted. At the `die_at`-th the process ends; at the `fail_at`-th there is an
    error (`fault`, of errno), and if it is `lasting` at all that follow, until `mend`. From the
    `full_at`-th write on the disk is full, until `make_room`. A write that fails is half done.

    `power_cut` takes away what was not synced: of a file's bytes any part, sector by sector; of
    the names made, removed and changed in a directory all from some point on, as file systems with
    a journal do.
    """

    def __init__(
        self,
        rng: random.Random,
        *,
        die_at: int | None = None,
        full_at: int | None = None,
        fail_at: int | None = None,
        fault: int = errno.EIO,
        lasting: bool = False,
        most_open: int | None = None,
    ) -> None:
        super().__init__(most_open)
        self._rng = rng
        self._die_at = die_at
        self._full_at = full_at
        self._fail_at = fail_at
        self._fault = fault
        self._lasting = lasting
        self._writes = 0
        self._counting = threading.Lock()
        self._durable: dict[Path, bytes] = {}  # what a file had when it was last synced
        self._names: dict[Path, list[_NameChange]] = {}  # of a directory, since it was synced
        self.calls = 0
        self.failed: list[str] = []  # the calls that did, with their files

    def mend(self) -> None:
        """From now on nothing fails."""
        self._fail_at = self._full_at = self._die_at = None

    make_room = mend

    def _step(self, call: str, path: Path) -> None:
        with self._counting:
            self.calls += 1
            if self._die_at is not None and self.calls >= self._die_at:
                raise Crash
            if self._fail_at is None or self.calls < self._fail_at:
                return
            if self.calls == self._fail_at or self._lasting:
                self.failed.append(f"{call} {path}")
                raise failure(path, OSError(self._fault, os.strerror(self._fault)))

    def _fill(self, path: Path) -> None:
        self._writes += 1
        if self._full_at is not None and self._writes >= self._full_at:
            raise DiskFull(f"{path}: no space left on the disk")

    def open(self, path: Path, flags: int) -> int:
        is_new = flags & os.O_CREAT and not path.exists()
        if not is_new and path not in self._durable and path.is_file():
            self._durable[path] = path.read_bytes()
        self._step("open", path)
        descriptor = super().open(path, flags)
        if is_new:
            self._durable.setdefault(path, b"")
            self._change(path, None)
        return descriptor

    def write(self, path: Path, descriptor: int, offset: int, data: Data) -> None:
        try:
            self._step("write", path)
            self._fill(path)
        except BaseException:
            part = memoryview(data)[: self._rng.randrange(len(data) + 1)]
            super().write(path, descriptor, offset, part)
            raise
        super().write(path, descriptor, offset, data)

    def resize(self, path: Path, descriptor: int, size: int) -> None:
        self._step("resize", path)
        super().resize(path, descriptor, size)

    def allocate(self, path: Path, descriptor: int, offset: int, size: int) -> None:
        self._step("allocate", path)
        self._fill(path)
        super().allocate(path, descriptor, offset, size)

    def sync(self, path: Path, descriptor: int) -> None:
        self._step("sync", path)
        if path.exists():
            self._durable[path] = path.read_bytes()

    def sync_all(self, path: Path) -> None:
        self._step("sync", path)
        for file in list(self._durable):
            if file.exists():
                self._durable[file] = file.read_bytes()
        self._names.clear()

    def map(self, path: Path, descriptor: int, size: int, *, writable: bool = False) -> Bytes:
        self._step("map", path)
        return super().map(path, descriptor, size, writable=writable)

    def read(self, path: Path) -> bytes:
        self._step("read", path)
        return super().read(path)

    def names(self, directory: Path) -> list[str]:
        self._step("names", directory)
        return super().names(directory)

    def remove(self, path: Path) -> None:
        self._step("remove", path)
        if path.exists():
            self._change(path, self._durable.pop(path, path.read_bytes()))
        super().remove(path)

    def replace(self, source: Path, target: Path) -> None:
        self._step("replace", target)
        if target.exists():
            self._change(target, self._durable.get(target, target.read_bytes()))
        else:
            self._change(target, None)
        super().replace(source, target)
        self._durable[target] = self._durable.pop(source, target.read_bytes())

    def make_one_directory(self, path: Path) -> None:
        self._step("mkdir", path)
        if not path.exists():
            self._change(path, None)
        super().make_one_directory(path)

    def sync_directory(self, path: Path) -> None:
        self._step("sync", path)
        self._names.pop(path, None)

    def _change(self, path: Path, before: bytes | None) -> None:
        self._names.setdefault(path.parent, []).append(_NameChange(path, before))

    def power_cut(self) -> None:
        for path, durable in self._durable.items():
            if path.exists():
                self._forget_bytes(path, durable)
        for changes in self._names.values():
            kept = self._rng.randrange(len(changes) + 1)
            for path, before in reversed(changes[kept:]):
                if not path.parent.is_dir():
                    continue  # gone with its directory
                if before is not None:
                    path.write_bytes(before)
                elif path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)

    def _forget_bytes(self, path: Path, durable: bytes) -> None:
        now = path.read_bytes()
        if now == durable:
            return
        size = self._rng.choice((len(now), len(durable)))
        mixed = bytearray(now[:size].ljust(size, b"\0"))
        old = durable[:size].ljust(size, b"\0")
        for at in range(0, size, _SECTOR):
            part = slice(at, at + _SECTOR)
            if mixed[part] != old[part] and self._rng.random() < 0.5:
                mixed[part] = old[part]
        path.write_bytes(mixed)


class _NameChange(NamedTuple):
    path: Path
    before: bytes | None  # what it was the name of, if of anything


def flip_bit(path: Path, rng: random.Random, end: int) -> int:
    """One bit somewhere before `end`; gives the byte's offset."""
    at = rng.randrange(end)
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes((byte ^ 1 << rng.randrange(8),)))
        os.fsync(file.fileno())
    return at
