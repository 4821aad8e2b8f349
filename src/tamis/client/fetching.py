"""Pulling: what is asked of a broker, and the loop that reads one queue from an offset on."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ..errors import (
    AccessDenied,
    Error,
    GroupNotFound,
    NoPermission,
    ResponseError,
    Unreachable,
)
from ..filter.tags import ALL
from ..net.aio import Peer
from ..wire import headers
from ..wire.bodies import MessageQueue, Subscription
from ..wire.codes import Language, PullFlag, RequestCode, ResponseCode
from ..wire.command import Command
from .config import ConsumerConfig
from .routes import MASTER

if TYPE_CHECKING:
    from .codefilters import CodeFilters
    from .session import Session

__all__ = ["Pulled", "Puller", "Stream"]

log = logging.getLogger(__name__)

_FOUND: Final = int(ResponseCode.SUCCESS)
_NOTHING: Final = (int(ResponseCode.PULL_NOT_FOUND), int(ResponseCode.PULL_RETRY_IMMEDIATELY))
_MOVED: Final = int(ResponseCode.PULL_OFFSET_MOVED)
# The broker does not know (yet) what this member subscribes to: a heartbeat tells it.
_UNKNOWN_TO_BROKER: Final = frozenset(
    (
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.FILTER_DATA_NOT_EXIST,
        ResponseCode.FILTER_DATA_NOT_LATEST,
    )
)
# Not mended by trying again, if it is the first thing a broker says.
_FATAL: Final = (NoPermission, GroupNotFound)
_PAUSE: Final = 1.0  # seconds before a pull that failed is tried again
_SHORT_PAUSE: Final = 0.1
_AHEAD: Final = 4  # pulls of a queue at once
_MARGIN: Final = 15.0  # seconds a broker may take beyond the time it was asked to wait


@dataclass(slots=True)
class Pulled:
    """An answer: records as they lie in the log, or none, and where to go on."""

    body: bytes
    offset: int  # asked for
    next_offset: int
    min_offset: int
    max_offset: int
    is_moved: bool = False  # there is nothing at the offset that was asked for
    count: int | None = None  # messages in the body, if they were counted
    remark: str = ""


class Puller:
    """For one consumer. `posts`: each pull carries its own filter; if not, the broker has it from
    the heartbeat. Topics with a filter in code are pulled by `code`, through filter servers."""

    def __init__(
        self,
        session: "Session",
        group: str,
        config: ConsumerConfig,
        *,
        posts: bool,
        code: "CodeFilters | None" = None,
    ) -> None:
        self._session = session
        self._group = group
        self._config = config
        self._posts = posts
        self._code: CodeFilters | None = code
        suspend = int(PullFlag.SUSPEND) if config.hold else 0
        self._class_flag = suspend | int(PullFlag.CLASS_FILTER)
        self._flag = suspend
        if posts:
            self._flag |= int(PullFlag.SUBSCRIPTION | PullFlag.LITE_PULL)
        self.has_answers = False  # of any queue: the group may read
        self._brokers: dict[MessageQueue, int] = {}  # which broker id is to be asked, if said so

    async def pull(
        self, queue: MessageQueue, offset: int, subscription: Subscription, most: int | None = None
    ) -> Pulled:
        """At most `most` messages. Raises ResponseError, Unreachable, TimeoutError, and CodeError
        if there is no filter server and it is not to filter here."""
        if subscription.class_filter_mode and self._code is not None:
            return await self._code.pull(self, queue, offset, subscription, most)
        address = await self.address(queue)
        peer = self._session.known_peer(address) or await self._session.peer(address)
        return await self.ask(peer, queue, offset, subscription, most)

    def pull_ahead(
        self, queue: MessageQueue, offset: int, subscription: Subscription, count: int
    ) -> "list[asyncio.Future[Pulled]]":
        """As many pulls at once, each from where the one before will end if it is answered in full:
        they travel together, and the broker has the next to do while one is on its way. None if
        the broker is not connected.

        (consume of 1 KiB messages: a third more, bench_client.)
        """
        address = self._address(queue)
        peer = self._session.known_peer(address) if address is not None else None
        if peer is None:
            return []
        size = self._config.pull_size
        return [self.ask(peer, queue, offset + n * size, subscription) for n in range(count)]

    @property
    def pull_size(self) -> int:
        return self._config.pull_size

    async def address(self, queue: MessageQueue) -> str:
        """Which broker is to be asked. Raises Error."""
        return self._address(queue) or await self._session.routes.master(queue.broker_name)

    def _address(self, queue: MessageQueue) -> str | None:
        broker_id = self._brokers.get(queue, MASTER)
        return self._session.routes.any_address(queue.broker_name, broker_id)

    def ask(
        self,
        peer: Peer,
        queue: MessageQueue,
        offset: int,
        subscription: Subscription,
        most: int | None = None,
        what: str = "broker",
    ) -> "asyncio.Future[Pulled]":
        """No task, and no future but the one that is waited for: it is done for every pull."""
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[Pulled] = loop.create_future()

        def settle(answer: Command | Exception) -> None:
            timer.cancel()
            if waiting.done():  # nobody waits any more
                return
            try:
                if isinstance(answer, Exception):
                    raise Unreachable(what, str(peer), str(answer)) from answer
                waiting.set_result(self._read(queue, offset, answer))
            except Exception as error:
                waiting.set_exception(error)

        began = time.monotonic()

        def expire() -> None:
            peer.forget(opaque)
            peer.doubt(began)
            if not waiting.done():
                waiting.set_exception(TimeoutError(f"the {what} at {peer} did not answer a pull"))

        timer = loop.call_later(self._config.hold + _MARGIN, expire)
        try:
            opaque = peer.post(self._request(queue, offset, subscription, most), settle)
        except ConnectionError as error:
            timer.cancel()
            raise Unreachable(what, str(peer), str(error)) from error
        return waiting

    def _request(
        self, queue: MessageQueue, offset: int, subscription: Subscription, most: int | None
    ) -> Command:
        config = self._config
        fields = {  # of `headers.PullMessage`; written out, since it is done for every pull
            "consumerGroup": self._group,
            "topic": queue.topic,
            "queueId": str(queue.queue_id),
            "queueOffset": str(offset),
            "maxMsgNums": str(config.pull_size if most is None else most),
            "sysFlag": str(self._flag),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(int(config.hold * 1000)),
            "subVersion": str(subscription.version),
            "expressionType": subscription.expression_type or "TAG",
        }
        if subscription.class_filter_mode:
            fields["sysFlag"] = str(self._class_flag)
        elif self._posts:
            fields["subscription"] = subscription.expression
        return Command(code=RequestCode.PULL_MESSAGE, fields=fields, language=Language.PYTHON)

    def _read(self, queue: MessageQueue, offset: int, answer: Command) -> Pulled:
        code, found = answer.code, answer.fields or {}
        if code != _FOUND and code not in _NOTHING and code != _MOVED:
            raise ResponseError.of(code, answer.remark, self._session.access_key)
        header = headers.PullMessageResponse.from_fields(found)
        self._brokers[queue] = header.suggest_which_broker_id
        return Pulled(
            answer.body if code == _FOUND else b"",
            offset,
            header.next_begin_offset,
            header.min_offset,
            header.max_offset,
            code == _MOVED,
            remark=answer.remark or "",
        )


class Stream:
    """A queue that is read, from `next_offset` on, while there is room for what comes.

    Whoever has it sets `is_full`, `room` and `is_paused`, and says so by `changed`. After `drop`
    nothing of it counts any more.

    Where an answer holds a damaged record, `isolate` has the messages from there on pulled one at
    a time: the queue's index knows where the next record begins, whatever the damaged one says of
    its own size, and the answer that holds nothing else tells the offset of the damaged one.
    """

    def __init__(self, queue: MessageQueue, offset: int) -> None:
        self.queue = queue
        self.next_offset = offset
        self.is_dropped = False
        self.is_paused = False
        self.is_full = False
        self.room = 0  # messages that can come before it is full
        self.min_offset = self.max_offset = 0
        self.last_pull = time.time()
        self._last_count = 0  # messages of the last answer, if nothing is filtered
        self._singly_before = offset  # up to there, messages are pulled one at a time
        self._changed = asyncio.Event()
        self._task: asyncio.Task[Any] | None = None
        self._begin: Callable[[], None] = lambda: None

    def changed(self) -> None:
        self._changed.set()

    def begin(
        self,
        session: "Session",
        puller: Puller,
        subscription: Callable[[str], Subscription | None],
        take: Callable[["Stream", Pulled], None],
        give_up: Callable[[Exception], None],
    ) -> None:
        def follow() -> None:
            self._task = session.spawn(self._follow(session, puller, subscription, take, give_up))

        self._begin = follow
        follow()

    def begin_anew(self) -> None:
        """From where it is; what is asked for at present is not waited for."""
        if self._task is not None and not self.is_dropped:
            self._task.cancel()
            self._begin()

    @property
    def is_isolating(self) -> bool:
        """Whether messages are pulled one at a time, and the next answer is of one alone."""
        return self.next_offset < self._singly_before

    def isolate(self, before: int) -> None:
        """Pull singly up to that offset, before which a record is damaged; 0 ends it."""
        self._singly_before = before

    def drop(self) -> None:
        self.is_dropped = True
        if self._task is not None:
            self._task.cancel()

    def _take(
        self, puller: Puller, pulled: Pulled, take: Callable[["Stream", Pulled], None]
    ) -> None:
        puller.has_answers = True
        self.min_offset, self.max_offset = pulled.min_offset, pulled.max_offset
        take(self, pulled)  # if that fails it is asked for again: nothing is passed over
        self.next_offset = pulled.next_offset
        self._last_count = pulled.next_offset - pulled.offset

    async def _pull_ahead(
        self, puller: Puller, wanted: Subscription, take: Callable[["Stream", Pulled], None]
    ) -> bool:
        """Several pulls at once, where it is certain that each finds all it asks for: nothing is
        filtered, the last one was answered in full, and the queue goes on for so long."""
        size = puller.pull_size
        if wanted.expression != ALL or self._last_count != size or self.is_isolating:
            return False
        there = self.max_offset - self.next_offset
        count = min(there // size, self.room // size, _AHEAD)
        pulls = puller.pull_ahead(self.queue, self.next_offset, wanted, count) if count > 1 else []
        try:
            for pull in pulls:
                pulled = await pull
                if pulled.offset != self.next_offset:
                    break  # the one before was not answered in full after all
                self._take(puller, pulled, take)
        finally:
            for pull in pulls:
                if not pull.cancel() and not pull.cancelled():
                    pull.exception()  # what one met, the others did too
        return bool(pulls)

    async def _follow(
        self,
        session: "Session",
        puller: Puller,
        subscription: Callable[[str], Subscription | None],
        take: Callable[["Stream", Pulled], None],
        give_up: Callable[[Exception], None],
    ) -> None:
        failures = unknown = 0
        while not self.is_dropped:
            if self.is_full or self.is_paused:
                self._changed.clear()
                await self._changed.wait()
                continue
            wanted = subscription(self.queue.topic)
            if wanted is None:
                await asyncio.sleep(_PAUSE)
                continue
            self.last_pull = time.time()
            try:
                if not await self._pull_ahead(puller, wanted, take):
                    began = time.monotonic()
                    most = 1 if self.is_isolating else None
                    pulled = await puller.pull(self.queue, self.next_offset, wanted, most)
                    self._take(puller, pulled, take)
                    if not self._last_count and time.monotonic() - began < _SHORT_PAUSE:
                        await asyncio.sleep(_SHORT_PAUSE)  # a broker that does not wait for more
                failures = unknown = 0
                continue
            except ResponseError as error:
                if isinstance(error, AccessDenied) and not puller.has_answers:
                    give_up(error)
                    return
                if isinstance(error, _FATAL) and not puller.has_answers:
                    why = f"topic {self.queue.topic} can't be read: {error.remark}"
                    if isinstance(error, NoPermission):
                        why += "; who runs the broker can allow it, to the topic or to the group"
                    give_up(ResponseError.of(error.code, why))
                    return
                if error.code in _UNKNOWN_TO_BROKER and unknown < 10:
                    unknown += 1
                    await session.heartbeat()
                    await asyncio.sleep(_SHORT_PAUSE * unknown)
                    continue
                last: Exception = error
            except (Error, TimeoutError) as error:
                last = error
            except Exception as error:  # the edge: a queue is not to be left because of one answer
                log.exception("%s", self.queue)
                last = error
            if failures % 60 == 0:  # once a minute
                log.warning("%s: not read, tried again: %s", self.queue, last)
            failures += 1
            await asyncio.sleep(_PAUSE)
