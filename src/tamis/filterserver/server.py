"""A filter server: its parts, what runs beside the requests, and its start and stop.

One event loop owns everything here. Filters are called in threads (`pulls`), and loaded in one.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

from ..acl import AclKeeper
from ..errors import SandboxError
from ..net import descriptors
from ..net.aio import Peer
from ..net.server import Route, Server, needless_header
from ..net.tasks import Tasks
from ..security import ServerTls
from ..wire.codes import RequestCode
from ..wire.headers import JudgeRange, PullMessage, RegisterFilterClass
from . import status
from .classes import Classes, FilterClass
from .config import FilterServerConfig
from .copies import MOST_COPIES, Copies
from .lag import CodeLags
from .link import BrokerLink
from .pulls import Puller
from .rangejudge import RangeJudge
from .ranges import Ranges
from .reading import Streams
from .registration import Registration
from .uploads import Uploads

if TYPE_CHECKING:
    from ..code import CodeFilter, Context, Judge
    from ..sandbox import Sandbox

__all__ = ["FilterServer"]

log = logging.getLogger(__name__)

T = TypeVar("T")

_SWEEP: Final = 5.0  # seconds
_FILES: Final = 6  # descriptors of a class in a sandbox
_OTHER_FILES: Final = 60  # descriptors besides connections and classes
_EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class FilterServer:
    """From `start` to `close`, once."""

    def __init__(
        self,
        config: FilterServerConfig,
        *,
        make_judge: "Callable[[CodeFilter, Context], Judge] | None" = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`make_judge`: how a source becomes a filter; by default in a sandbox. Called in a
        thread; raises CodeError or SandboxError."""
        self.config = config
        self._make_judge = make_judge
        self._clock = clock
        self._sandbox: Sandbox | None = None
        self._loading = ThreadPoolExecutor(6, "tamis-load")
        self._warming = threading.Lock()
        self._is_warm = False
        self._is_closed = False
        self.background = Tasks()
        self.link = BrokerLink(config.broker, config.security)
        self.registration = Registration(self.link, lambda: self.address, config.register_seconds)
        self.most_classes = config.most_classes
        if make_judge is None:
            room = max((descriptors.spare() - _OTHER_FILES) // _FILES - MOST_COPIES, 1)
            self.most_classes = min(config.most_classes, room)
        self.classes = Classes(self.most_classes, config.conflict_seconds, self._dispose, clock)
        self.uploads = Uploads(config, self.classes, self._load, clock)
        self.streams = Streams(self.link, config.read_ahead, clock)
        self.puller = Puller(config, self.classes, self.streams, self.link, self.background, clock)
        self.copies = Copies(self._load_copy, self._close_judge, clock)
        judge = RangeJudge(config.batch, self.link, self.puller, self.copies, clock)
        self.ranges = Ranges(config, self.classes, self.link, judge, clock)
        self.lags = CodeLags(config, self.classes, self.link, judge, clock)
        self.acl: AclKeeper | None = None
        self.isolation: list[str] = []  # what the sandbox can do here, a line each
        self.started = time.time()
        self.port = 0

    @property
    def address(self) -> str:
        """Where clients reach it, and what it is known by."""
        host = self.config.advertise or self.config.host
        if host in _EVERYWHERE:
            peer = self.link.connected_peer
            host = peer.local_host if peer is not None else _EVERYWHERE[host]
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    async def start(self) -> None:
        """Ready for requests when this returns; registered as soon as the broker is there. Raises
        OSError (the port) and ConfigError (its accounts, the certificate)."""
        if self.config.acl_file:
            self.acl = await self._in_thread(lambda: AclKeeper(self.config.acl_file))
        self.server = Server(
            {},
            on_close=self._peer_closed,
            tasks=self.background,
            gate=self.acl.access.check if self.acl is not None else None,
            tls=ServerTls.of(self.config),
        )
        try:
            self.port = await self.server.bind(self.config.host, self.config.port)
            await self.server.serve(
                {
                    RequestCode.PULL_MESSAGE: Route(PullMessage, self.puller.pull_message),
                    RequestCode.REGISTER_MESSAGE_FILTER_CLASS: Route(
                        RegisterFilterClass, self.uploads.upload
                    ),
                    RequestCode.JUDGE_RANGE: Route(JudgeRange, self.ranges.judge_range),
                    RequestCode.GET_FILTER_SERVER_STATUS: Route(
                        None, needless_header(lambda request: status.answer(self))
                    ),
                }
            )
        except BaseException:
            await self.close()
            raise
        self.background.keep("registration", self.registration.run)
        self.background.keep("unused classes", self._sweep)
        if self.acl is not None:
            self.background.keep("accounts", self.acl.run)
        if self.config.lag_seconds:
            self.puller.on_judged = self.lags.note
            self.background.keep("lags", self.lags.run)
        log.info("filter server at port %d for the broker at %s", self.port, self.config.broker)
        if self.config.uploads and self.most_classes < self.config.most_classes:
            log.warning(
                "the limit of open files leaves room for %d classes (ulimit -n)", self.most_classes
            )

    async def close(self) -> None:
        with self._warming:
            self._is_closed = True
            sandbox = self._sandbox
        self.server.stop_reading()
        if sandbox is not None:  # first: whoever waits for a filter need not wait any longer
            await self._in_thread(sandbox.close)
        await self.server.close()
        await self.background.close()
        self.streams.close()
        await self.copies.close()
        await asyncio.gather(*(self._in_thread(one.judge.close) for one in self.classes))
        await self.link.close()
        self.puller.close()
        self._loading.shutdown(wait=False, cancel_futures=True)

    async def probe(self) -> str:
        """Find out what isolation can be had here, which starts the sandbox. Returns it in one
        line; if it is required and can't be had, uploads are refused from now on."""
        try:
            await self._in_thread(self._find_sandbox)
        except SandboxError as error:
            self.uploads.isolation_failure = error.reason
            log.warning("uploads are refused: filters can't be isolated here: %s", error.reason)
        return self.isolation[0]

    # Loading and unloading.

    async def _load(self, class_name: str, text: str, group: str, topic: str) -> "Judge":
        return await self._in_thread(lambda: self._load_now(class_name, text, group, topic))

    def _load_now(self, class_name: str, text: str, group: str, topic: str) -> "Judge":
        from . import judging

        with self._warming:
            if not self._is_warm:
                self._is_warm = True
                # not waited for: on a new machine it takes longer than a client waits
                self._loading.submit(judging.warm_up)
        make = self._make_judge
        if make is None:
            make = self._find_sandbox().cell
        return make(judging.filter_of(class_name, text), judging.context_of(group, topic))

    def _find_sandbox(self) -> "Sandbox":
        """In a thread. Starts it if it does not run. Raises SandboxError if the isolation that is
        required can't be had."""
        from ..sandbox import Limits, Sandbox

        with self._warming:
            if self._is_closed:  # it would outlive us
                raise SandboxError("the filter server is stopping")
            if self._sandbox is None:
                limits = self.config.limits or Limits()
                self._sandbox = Sandbox(limits, self.config.isolation, modules=self.config.modules)
        try:
            report = self._sandbox.report
        except SandboxError as error:
            self.isolation = [error.reason]
            raise
        self.isolation = [str(report), *report.missing]
        return self._sandbox

    def _dispose(self, one: FilterClass) -> None:
        self.streams.forget(one)
        self.background.spawn(f"end of class {one.identity.class_name}", self._end(one))

    async def _load_copy(self, one: FilterClass) -> "Judge":
        return await self._load(one.identity.class_name, one.source, one.group, one.topic)

    async def _close_judge(self, judge: "Judge") -> None:
        await self._in_thread(judge.close)

    async def _end(self, one: FilterClass) -> None:
        async with one.lock:
            await self._in_thread(one.judge.close)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._loading, work)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(_SWEEP, self.config.unused_seconds))
            self.streams.sweep()
            self.puller.sweep()
            await self.copies.sweep()
            for one in self.classes.drop_unused(self.config.unused_seconds):
                log.info(
                    "class %s of group %s, topic %s: dropped, unused for %g s",
                    *(one.identity.class_name, one.group, one.topic, self.config.unused_seconds),
                )

    def _peer_closed(self, peer: Peer) -> None:
        if self.acl is not None:
            self.acl.access.forget(peer)
        self.puller.forget(peer)
