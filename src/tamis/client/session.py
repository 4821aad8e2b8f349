"""What producers, consumers and admin have in common: a name, connections, routes, heartbeats, and
an ear for what brokers ask.

A session belongs to one event loop and one process. Tasks it starts end with `close`.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Container, Coroutine
from typing import Any, Final, TypeVar

from ..errors import (
    AccessDenied,
    ClientClosed,
    ConfigError,
    Error,
    ResponseError,
    Unreachable,
)
from ..net import aio
from ..net.aio import Peer
from ..net.tls import TlsFailure
from ..wire import beans, command, headers
from ..wire.bodies import ConsumerData, Heartbeat, ProducerData
from ..wire.codes import CommandFlag, Language, RequestCode, ResponseCode
from ..wire.command import Command
from ..wire.headers import Header
from . import identity
from .config import ClientConfig
from .routes import Routes

__all__ = ["Listener", "Session", "every", "request_of"]

log = logging.getLogger(__name__)

T = TypeVar("T")
Listener = Callable[[Peer, Command], Awaitable[Command | None] | None]
_OK: Final = (int(ResponseCode.SUCCESS),)


class Session:
    """`what` is what users call it: producer, consumer, admin."""

    def __init__(
        self, what: str, nameserver: str, config: ClientConfig, *, suffix: str = ""
    ) -> None:
        self.what = what
        self.config = config
        self.nameserver = nameserver
        self._nameservers = _addresses(nameserver)
        self.security = config.security
        self.access_key = config.access_key or None
        self.client_id = identity.client_id(
            config.client_ip, config.instance_name, config.unit_name, suffix
        )
        self.routes = Routes(self)
        self.versions: dict[str, int] = {}  # of brokers, by address, as they said with a heartbeat
        self._refusals: dict[str, str | None] = {}  # why brokers refused the last one, by address
        self.denied: dict[str, AccessDenied] = {}  # those whose access control did, by address
        self.producer_groups: set[str] = set()
        self.consumer: Callable[[], ConsumerData | None] = lambda: None
        self.topics: Callable[[], set[str]] = set  # those to keep the routes of fresh
        self.listeners: dict[int, Listener] = {}
        self.on_disconnect: Callable[[str], None] = lambda address: None
        self.after_heartbeat: Callable[[], None] = lambda: None
        self._brokers: set[str] = set()  # addresses that were connected to as brokers
        self._peers: dict[str, Peer] = {}
        self._heard: set[str] = set()  # addresses that have answered since they were connected to
        self._connecting: dict[str, asyncio.Task[Peer]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._beat: asyncio.Task[None] | None = None
        self._beat_again = False
        self._unreached: set[str] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process: int | None = None  # that it was started in
        self._is_closed = False

    # Its life

    async def start(self) -> None:
        """Does not talk to anyone yet."""
        if self._is_closed:
            raise ClientClosed(self.what, started=True)
        if self._process is None:
            self._process = identity.process()
            self._loop = asyncio.get_running_loop()
            config = self.config
            self.spawn(every(config.route_interval, self._refresh))
            self.spawn(every(config.heartbeat_interval, self.heartbeat))

    @property
    def is_running(self) -> bool:
        return self._process is not None and not self._is_closed

    def check(self) -> None:
        """Raises ClientClosed, and Error in a process that was forked off."""
        if self._process is None or self._is_closed:
            raise ClientClosed(self.what, started=self._is_closed)
        if self._loop is not asyncio.get_running_loop():
            raise Error(f"this {self.what} was started in another event loop: it stays there")
        if self._process != identity.process():
            raise Error(
                f"this {self.what} was started in another process: make a new one after a fork"
            )

    def spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """A task that ends with the session."""
        task = asyncio.get_running_loop().create_task(work)
        if self._is_closed:
            task.cancel()
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Tells brokers that it goes. Can be called twice."""
        if self._is_closed:
            return
        is_started, self._is_closed = self._process == identity.process(), True
        me = asyncio.current_task()
        tasks = [one for one in (*self._tasks, *self._connecting.values()) if one is not me]
        try:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if is_started:
                brokers = [peer for at, peer in self._peers.items() if at in self._brokers]
                await asyncio.gather(*map(self._unregister, brokers))
        finally:
            for peer in list(self._peers.values()):
                if peer.is_full:
                    peer.abort()  # it would wait for what is not read
                peer.close()
            self._peers.clear()

    async def shared(self, task: "asyncio.Task[T]") -> T:
        """What a task gives that several wait for. Raises ClientClosed if it ended with the
        session: whoever waits was not cancelled."""
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            waiting = asyncio.current_task()
            if task.cancelled() and waiting is not None and not waiting.cancelling():
                raise ClientClosed(self.what, started=True) from None
            raise

    async def _unregister(self, peer: Peer) -> None:
        consumer = self.consumer()
        names = [{"producer_group": name} for name in sorted(self.producer_groups)]
        names += [{"consumer_group": consumer.group}] if consumer is not None else []
        for name in names:
            header = headers.UnregisterClient(client_id=self.client_id, **name)
            try:
                await peer.ask(request_of(header), min(self.config.timeout, 1.0))
            except (ConnectionError, TimeoutError) as error:
                log.debug("%s: not told that %s leaves: %s", peer, self.client_id, error)
                return

    # Asking

    async def ask(
        self,
        address: str,
        request: Header | RequestCode,
        body: bytes = b"",
        *,
        code: int | None = None,
        timeout: float | None = None,
        accept: Container[int] = _OK,
    ) -> Command:
        """The answer, if its code is accepted. Raises ResponseError, Unreachable, TimeoutError."""
        made = request_of(request, body, code)
        return await self._ask("broker", address, made, timeout, accept)

    async def ask_command(
        self,
        address: str,
        request: Command,
        *,
        timeout: float | None = None,
        accept: Container[int] = _OK,
    ) -> Command:
        """As `ask`, of a command that is made already."""
        return await self._ask("broker", address, request, timeout, accept)

    async def tell(self, address: str, request: Header | RequestCode, body: bytes = b"") -> None:
        """One-way. Raises Unreachable."""
        (await self.peer(address)).tell(request_of(request, body))

    async def ask_nameserver(
        self,
        request: Header | RequestCode,
        body: bytes = b"",
        *,
        code: int | None = None,
        timeout: float | None = None,
        accept: Container[int] = _OK,
    ) -> Command:
        """Of the first one that answers; the one that did is asked first the next time."""
        self.check()
        made = request_of(request, body, code)
        last: Exception | None = None
        for address in list(self._nameservers):
            try:
                return await self._ask("name server", address, made, timeout, accept)
            except (ConnectionError, TimeoutError) as error:
                last = error
                if self._nameservers[0] == address:  # others ask at the same time
                    self._nameservers.append(self._nameservers.pop(0))
        if len(self._nameservers) == 1 and isinstance(last, Unreachable):
            raise last
        raise Unreachable("name server", self.nameserver, str(last)) from last

    async def ask_nameservers(self, request: Header, body: bytes = b"") -> None:
        """All of them: what is told to one is not known to the others."""
        for address in list(self._nameservers):
            await self._ask("name server", address, request_of(request, body), None, _OK)

    async def _ask(
        self,
        what: str,
        address: str,
        request: Command,
        timeout: float | None,
        accept: Container[int],
    ) -> Command:
        timeout = self.config.timeout if timeout is None else timeout
        peer = self._peers.get(address) or await self.peer(address, what)
        try:
            answer = await peer.ask(request, timeout)
        except TimeoutError:
            raise TimeoutError(
                f"the {what} at {address} did not answer within {timeout:g} s"
            ) from None
        except ConnectionError as error:
            reason = str(error)
            if self.security.tls is None and address not in self._heard:
                reason += " before it answered anything; if it takes TLS only, set tls"
            raise Unreachable(what, address, reason) from error
        self._heard.add(address)
        if answer.code not in accept:
            remark = answer.remark
            if what == "name server" and answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                remark = (
                    f"{address} is not a name server, it does not answer request {request.code}: is"
                    " it the address of a broker? Give the name server's, whose port is 9876 unless"
                    " another was chosen"
                )
            raise ResponseError.of(answer.code, remark, self.access_key)
        return answer

    async def peer(self, address: str, what: str = "broker") -> Peer:
        """Connected. Raises Unreachable."""
        self.check()
        found = self._peers.get(address)
        if found is not None and not found.is_closed:
            return found
        connecting = self._connecting.get(address)
        if connecting is None:
            connecting = self._connecting[address] = asyncio.create_task(
                self._connect(address, what)
            )
            connecting.add_done_callback(lambda task: self._connected(address, task))
        return await self.shared(connecting)

    def known_peer(self, address: str) -> Peer | None:
        """If it is connected."""
        found = self._peers.get(address)
        return found if found is not None and not found.is_closed else None

    async def _connect(self, address: str, what: str) -> Peer:
        try:
            peer = await aio.connect(
                address,
                self.config.connect_timeout,
                on_requests=self._listen,
                on_close=lambda peer: self._disconnected(address, peer),
                security=self.security,
            )
        except (ConnectionError, TimeoutError) as error:
            reason = str(error).removeprefix(f"{address}: ")
            if isinstance(error, TlsFailure):  # it is there: what is wrong is said
                raise Unreachable(what, address, reason) from error
            if what == "broker":
                reason += "; the name server gave this address, which the broker advertises"
            raise Unreachable(
                what, address, f"{reason}; is it running, and the address right?"
            ) from error
        self._peers[address] = peer
        if what == "broker":
            self._brokers.add(address)
            await self._greet(address, peer)  # before anything else: it is to know who asks
        return peer

    def _connected(self, address: str, task: "asyncio.Task[Peer]") -> None:
        self._connecting.pop(address, None)
        if not task.cancelled():
            task.exception()  # whoever waits has it

    def _disconnected(self, address: str, peer: Peer) -> None:
        if self._peers.get(address) is peer:
            del self._peers[address]
        self.versions.pop(address, None)
        self._refusals.pop(address, None)
        self.denied.pop(address, None)
        self._brokers.discard(address)
        self._heard.discard(address)
        if not self._is_closed:
            log.info("%s: the connection to %s is gone", self.client_id, address)
            self.on_disconnect(address)

    # Listening

    def _listen(self, peer: Peer, requests: list[Command]) -> None:
        for request in requests:
            if not request.is_response and not self._is_closed:
                self.spawn(self._serve(peer, request))

    async def _serve(self, peer: Peer, request: Command) -> None:
        listener = self.listeners.get(request.code)
        if listener is None:
            answer: Command | None = Command(
                code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                remark=f"a {self.what} does not answer request {request.code}",
            )
        else:
            try:
                made = listener(peer, request)
                answer = await made if made is not None else None
            except ResponseError as error:
                answer = Command(code=int(error.code), remark=error.remark)
            except Exception as error:  # the edge: a broker's request is not to end the client
                log.exception("request %d of %s", request.code, peer)
                answer = Command(
                    code=ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}"
                )
        if answer is not None and not request.is_oneway:
            answer.opaque = request.opaque
            answer.flag |= CommandFlag.RESPONSE
            answer.language = Language.PYTHON
            answer.encoding = request.encoding
            peer.write(command.encode(answer))

    # Heartbeats

    async def heartbeat(self) -> None:
        """To all brokers of topics in use; one at a time, and once more if asked for meanwhile."""
        if self._beat is not None:
            self._beat_again = True
        else:
            self._beat = self.spawn(self._beat_until_done())
        await self.shared(self._beat)

    async def _beat_until_done(self) -> None:
        try:
            self._beat_again = True
            while self._beat_again:
                self._beat_again = False
                consumer = self.consumer()
                if consumer is not None or self.producer_groups:
                    found = self.routes.addresses(masters_only=consumer is None)
                    await asyncio.gather(*(self.beat(address) for _, address in found))
                    self.after_heartbeat()
        finally:
            self._beat = None

    async def beat(self, address: str) -> None:
        """To one broker; a connection that has to be made begins with it."""
        found = self.known_peer(address)
        if found is not None:
            await self._greet(address, found)
            return
        try:
            await self.peer(address)
            self._unreached.discard(address)
        except ConnectionError as error:
            level = logging.DEBUG if address in self._unreached else logging.WARNING
            self._unreached.add(address)  # once is enough
            log.log(level, "%s: no heartbeat: %s", self.client_id, error)

    async def greet_new(self, timeout: float) -> None:
        """Brokers that have not heard of us yet, or those that can be told within that time."""
        found = self.routes.addresses(masters_only=True)
        new = [self.spawn(self.beat(at)) for _, at in found if at not in self.versions]
        if new:
            await asyncio.wait(new, timeout=timeout)

    async def _greet(self, address: str, peer: Peer) -> None:
        consumer = self.consumer()
        if consumer is None and not self.producer_groups:
            return
        data = Heartbeat(
            client_id=self.client_id,
            producers=[ProducerData(group=name) for name in sorted(self.producer_groups)],
            consumers=[consumer] if consumer is not None else [],
        )
        request = request_of(RequestCode.HEART_BEAT, beans.encode(data))
        try:
            answer = await peer.ask(request, self.config.timeout)
        except (ConnectionError, TimeoutError) as error:
            said = str(error) or "no answer"
            log.warning("%s: no heartbeat to %s: %s", self.client_id, address, said)
            return
        why = None
        self.denied.pop(address, None)
        if answer.code != ResponseCode.SUCCESS:
            refusal = ResponseError.of(answer.code, answer.remark, self.access_key)
            why = refusal.remark
            if isinstance(refusal, AccessDenied):
                self.denied[address] = refusal
        if why != self._refusals.get(address):  # once, not with each heartbeat
            if why is not None:
                log.warning("%s: %s refused a heartbeat: %s", self.client_id, address, why)
            self._refusals[address] = why
        self.versions[address] = answer.version

    async def _refresh(self) -> None:
        await self.routes.refresh(self.topics() | set(self.routes.topics))


def request_of(
    request: Header | RequestCode, body: bytes = b"", code: int | None = None
) -> Command:
    if isinstance(request, Header):
        return Command(
            code=request.CODE if code is None else code,
            fields=request.to_fields(),
            body=body,
            language=Language.PYTHON,
        )
    return Command(code=request, body=body, language=Language.PYTHON)


async def every(seconds: float, work: Callable[[], Awaitable[None]]) -> None:
    """Again and again, until it is cancelled."""
    while True:
        await asyncio.sleep(seconds)
        try:
            await work()
        except Exception:  # the edge of a task: it has to be there the next time
            log.exception("what is done every %g s", seconds)


def _addresses(text: str) -> list[str]:
    """Of name servers, in an order of its own: not all clients are to ask the same one."""
    found = [part.strip().removeprefix("http://") for part in text.split(";") if part.strip()]
    if not found:
        raise ConfigError("no name server is given: it is written like 127.0.0.1:9876")
    for one in found:
        try:
            aio.parse_address(one)
        except ValueError as error:
            raise ConfigError(f"the name server {error}") from None
    random.shuffle(found)
    return found
