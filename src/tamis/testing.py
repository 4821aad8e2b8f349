"""What tests need that is hard to come by: a cluster of their own, files that fail and forget."""

import asyncio
import os
import random
import tempfile
import threading
from collections.abc import Coroutine
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np

from .store.files import Bytes, DiskFull, File, Files

if TYPE_CHECKING:
    from .broker.broker import Broker
    from .broker.metrics import Exporter

__all__ = ["Crash", "LocalBroker", "LocalCluster", "LocalNameServer", "LossyFiles"]

T = TypeVar("T")


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

    def _start_nameserver(self, stack: ExitStack) -> str:
        """Gives its address."""
        from .nameserver.config import NameServerConfig
        from .nameserver.server import NameServer

        async def start() -> NameServer:  # what it consists of belongs to the loop it is made in
            server = NameServer(NameServerConfig(port=0))
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
    metrics are if `metrics_port` is given. It can be stopped and started again within the `with`;
    it keeps its port and its data.
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
        self._settings = BrokerConfig.from_text({"port": "0", "flush": "async", **texts})
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
            self.metrics = f"http://{self._config.bind}:{exporter.port}/metrics"

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
    """A name server and a broker, as `LocalBroker`:

    with LocalCluster() as cluster:
        ...  # clients of cluster.nameserver
    """

    def __init__(self, store: Path | str | None = None, **settings: object) -> None:
        super().__init__(store, **settings)  # type: ignore[arg-type]

    def _start(self, stack: ExitStack) -> None:
        self.nameserver = self._start_nameserver(stack)
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
    """Real files that die at the `die_at`-th write or sync, fill up at the `full_at`-th write, and
    lose, at `power_cut`, any part of what was written since it was last synced.
    """

    def __init__(
        self, rng: random.Random, *, die_at: int | None = None, full_at: int | None = None
    ) -> None:
        self._rng = rng
        self._die_at = die_at
        self._full_at = full_at
        self._operations = self._writes = 0
        self._durable: dict[Path, Bytes] = {}

    def open(self, path: Path, size: int, writable: bool = True) -> File:
        file = super().open(path, size, writable)
        file.close()
        lossy = _LossyFile(path, size, writable)
        lossy.owner = self
        self._durable.setdefault(path, lossy.data.copy())
        return lossy

    def remove(self, path: Path) -> None:
        super().remove(path)
        self._durable.pop(path, None)

    def before_write(self, file: "_LossyFile", offset: int, data: memoryview) -> None:
        self._operations += 1
        self._writes += 1
        part = data[: self._rng.randrange(len(data) + 1)]
        if self._operations == self._die_at:
            file.write_through(offset, part)
            raise Crash
        if self._full_at is not None and self._writes >= self._full_at:
            file.write_through(offset, part)
            raise DiskFull(f"{file.path}: no space left on the disk")

    def before_sync(self, file: "_LossyFile") -> None:
        self._operations += 1
        if self._operations == self._die_at:
            raise Crash
        self._durable[file.path] = file.data.copy()

    def make_room(self) -> None:
        self._full_at = None

    def power_cut(self) -> None:
        """What was not synced may be there or not, sector by sector."""
        for path, durable in self._durable.items():
            if not path.exists():
                continue
            now = np.fromfile(path, dtype=np.uint8)
            if len(now) != len(durable):
                continue
            for at in range(0, len(now), _SECTOR):
                part = slice(at, at + _SECTOR)
                if (now[part] != durable[part]).any() and self._rng.random() < 0.5:
                    now[part] = durable[part]
            path.write_bytes(now.tobytes())


class _LossyFile(File):
    owner: LossyFiles

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        self.owner.before_write(self, offset, memoryview(data))
        self.write_through(offset, data)

    def write_through(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        super().write(offset, data)

    def sync(self) -> None:
        self.owner.before_sync(self)


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
