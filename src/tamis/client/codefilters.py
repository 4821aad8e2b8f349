"""Filters in code, the consumer's side: uploads to filter servers, pulls through them, and what is
done while there is none.

The class goes to every filter server of the topic's route, after each heartbeat and whenever a
server appears or comes back, but only to those that do not have it from us over this connection. A
queue is pulled through a random one of its broker's that has taken the class; one that fails is
avoided for a while. Offsets are the consumer's as always: an answer counts when it is here.
"""

import asyncio
import logging
import random
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Literal

from ..errors import CodeError, Error, ResponseError
from ..net.aio import Peer
from ..wire.bodies import MessageQueue, Subscription
from ..wire.codes import ResponseCode
from ..wire.headers import RegisterFilterClass
from .backoff import pause_before
from .codesource import CodeSource
from .config import ConsumerConfig
from .faults import Faults
from .fetching import Pulled, Puller
from .localpulls import LocalPulls
from .routes import MASTER
from .session import Session, request_of

__all__ = ["CodeFilters", "CodeServer", "CodeStatus"]

log = logging.getLogger(__name__)

_WHAT: Final = "filter server"
_UPLOAD_TIMEOUT: Final = 10.0  # seconds; a server may have to start its sandbox first
_LOOK_AGAIN: Final = 5.0  # seconds between looks for filter servers while some are missing
_REFUSED: Final = 30.0  # seconds until a class that was refused is sent again; then twice as many
_LONGEST_REFUSED: Final = 600.0
_SAID_AGAIN: Final = 60.0  # seconds between lines in the log about messages that failed
_BUSY: Final = (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE)
# In the remark to a pull of a group that has no class there: Apache's words, and ours.
_NOT_REGISTERED: Final = re.compile("not registered|has no class")
_CONFLICT: Final = "not taken"  # in the remark to an upload: another member's class is in force


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeServer:
    """A filter server, as a subscription sees it. `said` is its last remark, or why it failed."""

    address: str
    has_class: bool
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeStatus:
    """How a subscription with a filter in code is served."""

    topic: str
    code: str
    crc: int
    servers: tuple[CodeServer, ...]
    is_here: bool  # messages are filtered in this process, of some brokers at least
    pulls: int  # answered by filter servers
    failovers: int  # pulls that failed at one filter server
    seen: int  # messages filtered in this process, as the next two
    matched: int
    failed: int
    last_failure: str  # of the filter, here or at a server: where, and why


@dataclass(slots=True, eq=False)
class _Upload:
    """What a filter server knows of a subscription."""

    crc: int | None = None  # of the class that was sent last, and
    peer: Peer | None = None  # over which connection it was taken; None if it was not
    said: str = ""
    is_conflict: bool = False  # it was taken, but another member's class is in force
    refusals: int = 0
    rests_until: float = 0.0
    told: str = ""  # the trouble with it that is in the log
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(slots=True, eq=False)
class _Wanted:
    """A subscription with a filter in code."""

    topic: str
    source: CodeSource
    when_unavailable: Literal["filter-here", "wait", "fail"]
    is_always_here: bool
    here: LocalPulls
    uploads: dict[str, _Upload] = field(default_factory=dict)  # by address
    missing: dict[str, float] = field(default_factory=dict)  # broker names, and since when
    pulls: int = 0
    failovers: int = 0
    last_failure: str = ""
    failures_said: float = 0.0

    @property
    def name(self) -> str:
        return self.source.code.name


class CodeFilters:
    """Looks after one consumer's filters in code. `on_error` is told what the consumer can't go on
    with."""

    def __init__(
        self,
        session: Session,
        group: str,
        config: ConsumerConfig,
        on_error: Callable[[Exception], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._group = group
        self._config = config
        self._on_error = on_error
        self._now = now
        self._wanted: dict[str, _Wanted] = {}
        self._faults = Faults(now)  # servers that answered with errors
        self._down = Faults(now)  # servers that did not answer
        self._changed = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    def add(self, topic: str, source: CodeSource, *, always_here: bool = False) -> None:
        """`always_here`: nothing is uploaded. Raises ConfigError."""
        policy = self._config.code_when_unavailable
        if policy is None:
            policy = "filter-here" if source.is_own and source.is_python else "wait"
        if not source.is_python and (policy == "filter-here" or always_here):
            raise CodeError(
                source.code.name, "it is not Python, so it can't be run in this process"
            )
        known = self._wanted.get(topic)
        if known is not None and known.source == source and known.is_always_here == always_here:
            return
        self.remove(topic)

        def tell(what: str) -> None:
            self._tell_failure(one, what)

        here = LocalPulls(self._session, self._group, self._config, topic, source.code, tell)
        one = self._wanted[topic] = _Wanted(topic, source, policy, always_here, here)
        self._keep()

    def assign(self, topics: Iterable[str], source: CodeSource | None) -> None:
        """Filter these topics here, and no others."""
        for topic in [*self._wanted.keys() - set(topics if source is not None else ())]:
            self.remove(topic)
        if source is not None:
            for topic in topics:
                self.add(topic, source, always_here=True)

    def remove(self, topic: str) -> None:
        known = self._wanted.pop(topic, None)
        if known is not None:
            known.here.close()

    async def start(self) -> None:
        """Upload, and find out whether it can be done as is wanted. Raises CodeError."""
        self._keep()
        for one in list(self._wanted.values()):
            if not one.is_always_here:
                await self._upload(one)
                self._check_conflicts(one)
                if not self._is_missing(one) or self._session.routes.known(one.topic) is None:
                    continue  # all is well, or the topic is waited for
            if one.is_always_here or one.when_unavailable == "filter-here":
                await one.here.load()
            elif one.when_unavailable == "fail":
                raise self._unavailable(one)

    def close(self) -> None:
        """Unload what was loaded into this process."""
        for one in self._wanted.values():
            one.here.close()

    def kick(self) -> None:
        """There was a heartbeat, or something has changed: look whether a server lacks a class."""
        self._changed.set()

    def status(self) -> dict[str, CodeStatus]:
        """By topic."""
        return {one.topic: self._status(one) for one in self._wanted.values()}

    def _status(self, one: _Wanted) -> CodeStatus:
        servers = tuple(
            CodeServer(
                address=address,
                has_class=self._has_class(one, address),
                said=one.uploads[address].said if address in one.uploads else "",
            )
            for address in self._servers(one.topic)
        )
        return CodeStatus(
            topic=one.topic,
            code=one.name,
            crc=one.source.crc,
            servers=servers,
            is_here=one.is_always_here or (bool(one.missing) and one.here.is_loaded),
            pulls=one.pulls,
            failovers=one.failovers,
            seen=one.here.seen,
            matched=one.here.matched,
            failed=one.here.failed,
            last_failure=one.last_failure,
        )

    # Uploading

    def _keep(self) -> None:
        if self._wanted and self._keeper is None and self._session.is_running:
            self._keeper = self._session.spawn(self._run())
        self.kick()

    async def _run(self) -> None:
        pause = _LOOK_AGAIN
        try:
            while True:
                missing = [one.topic for one in self._wanted.values() if self._is_missing(one)]
                try:
                    async with asyncio.timeout(pause if missing else None):
                        await self._changed.wait()
                    is_due = False
                except TimeoutError:
                    is_due = True
                self._changed.clear()
                try:
                    if is_due:  # the route is not asked for this often otherwise
                        await self._session.routes.refresh(missing)
                    wanted = [one for one in self._wanted.values() if not one.is_always_here]
                    await asyncio.gather(*map(self._upload, wanted))
                    for one in wanted:
                        self._check_conflicts(one)
                except CodeError as error:
                    self._on_error(error)
                except Exception:  # the edge of the task
                    log.exception("group %s: filter servers", self._group)
                pause = min(2 * pause, self._config.route_interval) if is_due else _LOOK_AGAIN
        finally:
            self.close()

    def _servers(self, topic: str) -> list[str]:
        """The filter servers of a topic, whatever their broker."""
        lists = self._session.routes.filter_servers(topic).values()
        return sorted({address for some in lists for address in some or ()})

    def _is_missing(self, one: _Wanted) -> bool:
        """Whether a broker of the topic has no filter server with the class."""
        if one.is_always_here:
            return False
        route = self._session.routes.known(one.topic)
        masters = (
            [broker.addresses.get(MASTER) for broker in route.brokers] if route is not None else []
        )
        listed = self._session.routes.filter_servers(one.topic)
        return not masters or any(not self._ready(one, listed.get(at or "", ())) for at in masters)

    def _has_class(self, one: _Wanted, address: str) -> bool:
        upload = one.uploads.get(address)
        if upload is None or upload.peer is None or upload.crc != one.source.crc:
            return False
        return upload.peer is self._session.known_peer(address)  # another may be a new process

    def _ready(self, one: _Wanted, servers: Iterable[str]) -> list[str]:
        """Returns the servers that have the class, in random order, those that failed lately at the
        end. A server that did not answer is left out for a while if there is a better way."""
        found = [address for address in servers if self._has_class(one, address)]
        if one.when_unavailable == "filter-here":
            found = [address for address in found if not self._down.is_avoided(address)]
        random.shuffle(found)
        found.sort(key=self._faults.is_avoided)
        return sorted(found, key=self._down.is_avoided)

    async def _upload(self, one: _Wanted) -> None:
        """To all servers of the topic that do not have it."""
        servers = self._servers(one.topic)
        for address in one.uploads.keys() - set(servers):
            del one.uploads[address]
            self._faults.note(address, 0.0)
            self._down.note(address, 0.0)
        await asyncio.gather(*(self._upload_to(address, one) for address in servers))

    async def _upload_to(self, address: str, one: _Wanted) -> None:
        """Unless it has it, or is left alone for a while because it failed."""
        upload = one.uploads.setdefault(address, _Upload())
        async with upload.lock:
            source = one.source
            if upload.crc != source.crc:
                upload.refusals, upload.rests_until = 0, 0.0
            is_done = self._has_class(one, address) and not upload.is_conflict
            if is_done or self._now() < upload.rests_until:
                return
            upload.crc, upload.peer, upload.is_conflict = source.crc, None, False
            header = RegisterFilterClass(
                consumer_group=self._group,
                topic=one.topic,
                class_name=source.class_name,
                class_crc=source.crc,
                tamis_secret=self._config.code_secret or None,
            )
            try:
                peer = await self._session.peer(address, _WHAT)
                request = request_of(header, source.code.text.encode())
                answer = await peer.ask(request, _UPLOAD_TIMEOUT)
            except (ConnectionError, TimeoutError) as error:
                upload.said = str(error) or f"no answer within {_UPLOAD_TIMEOUT:g} s"
                upload.rests_until = self._now() + _LOOK_AGAIN
                self._tell(one, address, upload, f"can't be used: {upload.said}")
                return
            upload.said = answer.remark or ""
            if answer.code == ResponseCode.SUCCESS:
                upload.peer, upload.refusals = peer, 0
                upload.is_conflict = _CONFLICT in upload.said
                if upload.is_conflict:
                    upload.rests_until = self._now() + _REFUSED
                    self._tell(one, address, upload, f"filters by another: {upload.said}")
                else:
                    log.info(
                        "group %s, topic %s, code %s: uploaded to filter server %s",
                        *(self._group, one.topic, one.name, address),
                    )
                return
            pause = pause_before(upload.refusals, _REFUSED, _LONGEST_REFUSED)
            upload.refusals += 1
            upload.rests_until = self._now() + pause
            upload.said = upload.said or f"refused with code {answer.code}"
            self._tell(one, address, upload, f"refused it: {upload.said}")

    def _check_conflicts(self, one: _Wanted) -> None:
        """Raise CodeError if a server filters by the class of another member, and subscriptions are
        strict."""
        for address, upload in one.uploads.items():
            if upload.is_conflict and self._config.strict_subscriptions:
                raise CodeError(one.name, f"the filter server at {address} says: {upload.said}")

    def _tell(self, one: _Wanted, address: str, upload: _Upload, what: str) -> None:
        """In the log, once until it changes or the server has answered a pull."""
        if upload.told != what:
            upload.told = what
            log.warning(
                "group %s, topic %s, code %s: filter server %s %s",
                *(self._group, one.topic, one.name, address, what),
            )

    # Pulling

    async def pull(
        self,
        puller: Puller,
        queue: MessageQueue,
        offset: int,
        subscription: Subscription,
        most: int | None,
    ) -> Pulled:
        """Raises ResponseError, Unreachable, TimeoutError; CodeError if there is no filter server
        and it is not to filter here."""
        one = self._wanted.get(queue.topic)
        if one is None:  # unsubscribed just now
            raise Error(f"topic {queue.topic} has no filter in code any more")
        if one.is_always_here:
            return await one.here.pull(queue, offset, most)
        servers = await self._servers_of(puller, queue)
        ready = self._ready(one, servers)
        if not ready and (new := [at for at in servers if self._is_new(one, at)]):
            await asyncio.gather(*(self._upload_to(at, one) for at in new))
            ready = self._ready(one, servers)

        def ask(peer: Peer) -> asyncio.Future[Pulled]:
            return puller.ask(peer, queue, offset, subscription, most, _WHAT)

        refusal: ResponseError | None = None
        for address in ready:
            try:
                pulled = await self._pull_at(one, address, ask)
            except ResponseError as error:
                if error.code not in _BUSY:
                    refusal = error
                self._note_failure(one, address, error)
                self._faults.note_failure(address)
            except (ConnectionError, TimeoutError) as error:
                self._note_failure(one, address, error)
                self._down.note_failure(address)
            else:
                one.pulls += 1
                self._note_served(one, queue.broker_name, address)
                if " " in pulled.remark:  # not just the name of a status
                    self._tell_failure(one, f"filter server {address}: {pulled.remark}")
                return pulled
        if refusal is not None:  # they are there, and can't: that is not to be got round
            raise refusal
        return await self._pull_without(one, queue, offset, most)

    @staticmethod
    def _is_new(one: _Wanted, address: str) -> bool:
        """Whether a pull may wait for an upload to it: it was not tried since it last was well.
        Others are tried in the background."""
        upload = one.uploads.get(address)
        return upload is None or upload.crc != one.source.crc or upload.peer is not None

    async def _servers_of(self, puller: Puller, queue: MessageQueue) -> list[str]:
        """Returns the filter servers of the broker to be asked; if that is a slave without any,
        those of its master."""
        listed = self._session.routes.filter_servers(queue.topic)
        found = listed.get(await puller.address(queue))
        if not found:
            found = listed.get(self._session.routes.known_address(queue.broker_name) or "")
        return found or []

    async def _pull_at(
        self, one: _Wanted, address: str, ask: Callable[[Peer], "asyncio.Future[Pulled]"]
    ) -> Pulled:
        try:
            return await ask(await self._session.peer(address, _WHAT))
        except ResponseError as error:
            if not _NOT_REGISTERED.search(error.remark):
                raise
            # it forgot the class, because nobody used it for long: it is told again, once
            upload = one.uploads.setdefault(address, _Upload())
            upload.peer, upload.rests_until = None, 0.0
            await self._upload_to(address, one)
            if not self._has_class(one, address):
                raise
        return await ask(await self._session.peer(address, _WHAT))

    def _note_failure(self, one: _Wanted, address: str, error: Exception) -> None:
        one.failovers += 1
        upload = one.uploads.get(address)
        if upload is not None:
            upload.said = str(error) or "no answer"
            if isinstance(error, TimeoutError):  # is it there at all? An upload finds out
                upload.peer, upload.rests_until = None, self._now() + _LOOK_AGAIN
            self._tell(one, address, upload, f"failed: {upload.said}")
        self.kick()

    def _note_served(self, one: _Wanted, broker: str, address: str) -> None:
        self._faults.note(address, 0.0)
        self._down.note(address, 0.0)
        upload = one.uploads.get(address)
        if upload is not None and upload.told and not upload.is_conflict:
            upload.told = upload.said = ""
            log.info(
                "group %s, topic %s, code %s: filter server %s answers again",
                *(self._group, one.topic, one.name, address),
            )
        if one.missing.pop(broker, None) is not None:
            log.warning(
                "group %s, topic %s, code %s: filtered by filter servers of %s again",
                *(self._group, one.topic, one.name, broker),
            )

    # Without filter servers

    def _unavailable(self, one: _Wanted, broker: str = "") -> CodeError:
        said = [
            f"{address}: {one.uploads[address].said or 'no answer'}"
            for address in self._servers(one.topic)
            if address in one.uploads and not self._has_class(one, address)
        ]
        why = "; ".join(said) or "its route names none (tamis filterserver starts one)"
        where = f" at broker {broker}" if broker else ""
        return CodeError(one.name, f"topic {one.topic}{where} has no filter server to use: {why}")

    async def _pull_without(
        self, one: _Wanted, queue: MessageQueue, offset: int, most: int | None
    ) -> Pulled:
        broker, policy = queue.broker_name, one.when_unavailable
        is_here = policy == "filter-here"
        if broker not in one.missing:
            one.missing[broker] = self._now()
            then = "messages are filtered in this process" if is_here else "waiting for one"
            log.warning("group %s: %s; %s", self._group, self._unavailable(one, broker), then)
            self.kick()
        if is_here:
            return await one.here.pull(queue, offset, most)
        error = self._unavailable(one, broker)
        if policy == "fail" and self._now() - one.missing[broker] >= self._config.route_interval:
            self._on_error(error)  # the route has had the time to name others
        raise error

    def _tell_failure(self, one: _Wanted, what: str) -> None:
        """In the log, once a minute."""
        one.last_failure = what
        if not one.failures_said or self._now() - one.failures_said >= _SAID_AGAIN:
            one.failures_said = self._now()
            log.warning("group %s, code %s: %s", self._group, one.name, what)
