"""A request on its way to a broker, and what all requests of a producer have in common: how many
are under way, which brokers to avoid, who waits behind whom.

No task is made for a message unless it has to wait for a route or a connection.
"""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from ..errors import (
    ClientClosed,
    Error,
    InvalidMessage,
    LocalProtocolError,
    NoPermission,
    RemoteProtocolError,
    ResponseError,
    SendFailed,
)
from ..java import string_hash
from ..message import Message
from ..net.aio import Peer
from ..wire.bodies import MessageQueue
from ..wire.codes import Language, ResponseCode
from ..wire.command import Command
from .backoff import pause_before
from .config import ProducerConfig
from .faults import Faults
from .outgoing import STATUSES, Outgoing, SendStatus, results_of
from .session import Session

__all__ = ["Place", "Selector", "Sender", "hash_of", "place_of"]

log = logging.getLogger(__name__)

Selector = Callable[[Sequence[MessageQueue], Message], MessageQueue]
_PAUSE: Final = 0.1  # seconds before the same broker is tried again; doubled each time, up to
_LONGEST_PAUSE: Final = 5.0


Place = Callable[[Sequence[MessageQueue]], MessageQueue]


def place_of(
    message: Message,
    queue: MessageQueue | None,
    key: str | int | None,
    selector: "Selector | None",
) -> Place | None:
    """Which queue it has to be; None for any."""
    if sum(one is not None for one in (queue, key, selector)) > 1:
        raise InvalidMessage("a queue, a key or a selector: one of them says where to send to")
    if queue is not None:
        if queue.topic != message.topic:
            raise InvalidMessage(f"a message to {message.topic} for a queue of {queue.topic}")
        return lambda queues: queue
    if key is not None:
        code = hash_of(key)
        return lambda queues: queues[code % len(queues)]
    if selector is not None:
        return lambda queues: selector(queues, message)
    return None


def hash_of(key: str | int) -> int:
    """As `SelectMessageQueueByHash` has it, so that producers in Java choose the same queue."""
    if isinstance(key, int):
        wide = key & 0xFFFFFFFFFFFFFFFF
        fits = -(2**31) <= key < 2**31
        code = key if fits else _signed((wide >> 32) ^ (wide & 0xFFFFFFFF))
    else:
        code = string_hash(key)
    return abs(code)


def _signed(value: int) -> int:
    value &= 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value


class Sender:
    """Of one producer."""

    def __init__(self, session: Session, group: str, config: ProducerConfig) -> None:
        self.session = session
        self.config = config
        self.faults = Faults()
        # In order, those that wait for a route or a connection: by topic, by broker.
        self.lines: dict[tuple[str, str], deque[_Sending]] = {}
        # Queues that something is sent to which has to be in order, and what waits for its answer:
        # Apache's brokers store what comes together in any order.
        self.turns: dict[MessageQueue, deque[_Sending]] = {}
        self.is_closing = False
        self._group = group
        self._turn = random.randrange(2**31)
        self._in_flight = 0
        self._backlog: deque[_Sending] = deque()
        self._idle = asyncio.Event()

    async def drain(self) -> None:
        """Nothing is under way any more; what is sent from now on is refused."""
        self.is_closing = True
        while self._in_flight and self.session.is_running:
            self._idle.clear()
            await self._idle.wait()

    def submit(
        self,
        outgoing: Outgoing,
        place: Place | None,
        timeout: float | None,
        *,
        is_oneway: bool = False,
    ) -> "asyncio.Future[Any]":
        """The result; of a one-way request None, once it is written to the connection."""
        self.check()
        sending = _Sending(self, outgoing, place, timeout or self.config.timeout, is_oneway)
        if self._in_flight >= self.config.max_in_flight:
            self._backlog.append(sending)
        else:
            self._in_flight += 1
            sending.begin()
        return sending.future

    def check(self) -> None:
        self.session.check()
        if self.is_closing:
            raise ClientClosed("producer", started=True)

    def done(self) -> None:
        if self._backlog:
            asyncio.get_running_loop().call_soon(self._backlog.popleft().begin)
            return
        self._in_flight -= 1
        if not self._in_flight:
            self._idle.set()

    def line_up(self, name: tuple[str, str], sending: "_Sending") -> None:
        """Those that have to be in order wait one behind the other."""
        line = self.lines.setdefault(name, deque())
        line.append(sending)
        if len(line) == 1:
            self.session.spawn(self._work_off(name, line))

    async def _work_off(self, name: tuple[str, str], line: "deque[_Sending]") -> None:
        kind, _ = name
        try:
            while line:
                if kind == "topic" and await line[0].knows_route():
                    break  # each goes its broker's way: none waits for another's broker
                await line[0].attempt_slowly()
                line.popleft()
        except asyncio.CancelledError:
            for sending in list(line)[1:]:
                sending.abandon()
            raise
        finally:
            del self.lines[name]
        for sending in line:
            sending.attempt()

    def pass_turn(self, queue: MessageQueue) -> None:
        """To the next that is to go to the queue."""
        if waiting := self.turns[queue]:
            waiting.popleft().take_turn(queue)
        else:
            del self.turns[queue]

    async def queues_to_send(self, topic: str) -> list[MessageQueue]:
        """Those of a topic, or those it will be given when the first message comes."""
        config = self.config
        found = await self.session.routes.for_sending(
            topic, config.default_topic, config.default_queues
        )
        if not found:
            raise NoPermission(
                ResponseCode.NO_PERMISSION,
                f"topic {topic} has no queue that can be written to: its permission forbids it, or"
                " no master of its brokers is running",
            )
        return found

    def choose(self, queues: list[MessageQueue], last: str | None) -> MessageQueue:
        self._turn += 1
        if self.config.avoid_slow_brokers or last is not None:
            return self.faults.choose(queues, self._turn, last)
        return queues[self._turn % len(queues)]

    async def refresh(self, topic: str) -> None:
        await self.session.routes.refresh([topic])

    def request(self, outgoing: Outgoing, queue: MessageQueue) -> Command:
        command = Command(code=0, language=Language.PYTHON)
        born = int(time.time() * 1000)
        return outgoing.request(self._group, self.config, queue.queue_id, born, command)


class _Sending:
    """One request, from its first attempt to its result."""

    __slots__ = (
        "_attempts",
        "_began",
        "_broker",
        "_deadline",
        "_is_oneway",
        "_last",
        "_loop",
        "_opaque",
        "_outgoing",
        "_peer",
        "_place",
        "_queue",
        "_sender",
        "_sent",
        "_timeout",
        "_timer",
        "_tried",
        "_turn",
        "future",
    )

    def __init__(
        self,
        sender: Sender,
        outgoing: Outgoing,
        place: Place | None,
        timeout: float,
        is_oneway: bool,
    ) -> None:
        self._is_oneway = is_oneway
        self._sender = sender
        self._outgoing = outgoing
        self._place = place
        self._timeout = timeout
        self._attempts = 1 if place is not None else 1 + sender.config.retries
        self._tried: list[str] = []
        self._last: str | None = None
        self._broker = ""
        self._turn: MessageQueue | None = None  # that it has
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.future: asyncio.Future[Any] = self._loop.create_future()

    def begin(self) -> None:
        self._began = self._loop.time()
        self._deadline = self._began + self._timeout
        self.attempt()

    def attempt(self) -> None:
        """At once if the route is known and the broker connected; else in a task, or in line."""
        sender, session = self._sender, self._sender.session
        if self.future.cancelled():  # whoever sent it has given up
            self._settle(None)
            return
        topic = self._outgoing.topic
        queues = session.routes.known_for_sending(topic)
        line = ("topic", topic)
        if queues and line not in sender.lines:
            try:
                queue = self._choose(queues)
            except Exception as error:  # a selector's own
                self._settle(error)
                return
            line = ("broker", queue.broker_name)
            address = session.routes.known_address(queue.broker_name)
            peer = session.known_peer(address) if address is not None else None
            is_free = self._place is None or line not in sender.lines
            if peer is not None and not peer.is_full and is_free:
                self._write(queue, peer)
                return
        if self._place is None:
            session.spawn(self.attempt_slowly())
        else:  # what has to be in order is not to overtake what waits
            sender.line_up(line, self)

    async def knows_route(self) -> bool:
        """Looks it up. False also if that fails: the attempt will say why."""
        topic = self._outgoing.topic
        try:
            async with asyncio.timeout_at(self._deadline):
                await self._sender.queues_to_send(topic)
        except (Error, TimeoutError):
            return False
        except asyncio.CancelledError:
            self.abandon()
            raise
        return bool(self._sender.session.routes.known_for_sending(topic))

    async def attempt_slowly(self) -> None:
        broker = ""
        try:
            sender, session = self._sender, self._sender.session
            async with asyncio.timeout_at(self._deadline):
                queues = await sender.queues_to_send(self._outgoing.topic)
                queue = self._choose(queues)
                broker = queue.broker_name
            async with asyncio.timeout(self._share()):
                peer = await session.peer(await session.routes.master(broker))
                await peer.drained()  # one that hangs is given no more
        except (ConnectionError, TimeoutError) as error:
            if broker:
                self._sender.faults.note_failure(broker)
            self._failed(broker, _said(error, self._timeout))
        except Exception as error:
            self._settle(error)
        except asyncio.CancelledError:
            self.abandon()
            raise
        else:
            self._write(queue, peer)

    def _share(self) -> float:
        """Of the time that is left: so that another broker can be tried if this one hangs."""
        left = max(self._deadline - self._loop.time(), 0.0)
        if len(self._tried) + 1 < self._attempts and self._has_others_than(self._broker):
            return left / 2
        return left

    def _choose(self, queues: list[MessageQueue]) -> MessageQueue:
        if self._place is None:
            queue = self._sender.choose(queues, self._last)
            self._broker = queue.broker_name
            return queue
        queue = self._place(queues)
        if not isinstance(queue, MessageQueue):
            raise InvalidMessage(f"the selector gave {queue!r}: it is to give one of the queues")
        self._broker = queue.broker_name
        return queue

    def abandon(self) -> None:
        """The producer is closed."""
        self._settle(ClientClosed("producer", started=True))

    def take_turn(self, queue: MessageQueue) -> None:
        """It waited for the answer to what is before it; its time begins now."""
        self._turn = queue
        self._loop.call_soon(self.begin)

    def _has_turn(self, queue: MessageQueue) -> bool:
        if self._turn != queue:
            if self._turn is not None:  # the route is another by now
                self._sender.pass_turn(self._turn)
                self._turn = None
            waiting = self._sender.turns.get(queue)
            if waiting is not None:
                waiting.append(self)
                return False
            self._sender.turns[queue] = deque()
            self._turn = queue
        return True

    def _write(self, queue: MessageQueue, peer: Peer) -> None:
        if self._place is not None and not self._has_turn(queue):
            return
        self._queue, self._peer = queue, peer
        self._sent = self._loop.time()
        left = self._share()
        if left <= 0.0:
            self._failed(queue.broker_name, _said(TimeoutError(), self._timeout))
            return
        try:
            request = self._sender.request(self._outgoing, queue)
            if self._is_oneway:
                peer.tell(request)
                self._settle(None)
                return
            self._opaque = peer.post(request, self._answered)
        except LocalProtocolError as error:  # it would be so anywhere
            self._settle(InvalidMessage(f"a message to {self._outgoing.topic}: {error}"))
            return
        except ConnectionError as error:
            self._failed(queue.broker_name, error)
            return
        self._timer = self._loop.call_later(left, self._late)

    def _late(self) -> None:
        self._timer = None
        self._peer.forget(self._opaque)
        seconds = self._loop.time() - self._sent
        self._peer.doubt(time.monotonic() - seconds)
        broker = self._queue.broker_name
        self._sender.faults.note(broker, max(seconds, self._timeout))
        self._failed(
            broker,
            TimeoutError(f"the broker at {self._peer} did not answer within {seconds:.1f} s"),
        )

    def _answered(self, answer: Command | Exception) -> None:
        if self._timer is None:
            return  # it was too late
        self._timer.cancel()
        self._timer = None
        broker = self._queue.broker_name
        if isinstance(answer, Exception):
            self._sender.faults.note_failure(broker)
            self._failed(broker, answer)
            return
        self._sender.faults.note(broker, self._loop.time() - self._sent)
        status = STATUSES.get(answer.code)
        if status is None:
            refusal = ResponseError.of(answer.code, answer.remark, self._sender.session.access_key)
            if refusal.retriable:
                self._failed(broker, refusal)
            else:
                self._settle(refusal)
        elif (
            status is not SendStatus.OK
            and self._sender.config.retry_when_not_durable
            and len(self._tried) + 1 < self._attempts
        ):
            self._failed(broker, Error(f"{broker} stored it, but not durably: {status}"))
        else:
            try:
                results = results_of(self._outgoing, self._queue, answer)
            except RemoteProtocolError as wrong:
                self._settle(wrong)
            else:
                self._settle(None, results if self._outgoing.is_batch else results[0])

    def _failed(self, broker: str, error: BaseException) -> None:
        """Again, at another broker if there is one; else after a pause."""
        self._tried.append(broker or "no broker")
        now = self._loop.time()
        pause = 0.0
        if self._last == broker or not broker or not self._has_others_than(broker):
            pause = pause_before(len(self._tried) - 1, _PAUSE, _LONGEST_PAUSE)
        self._last = broker or None
        if len(self._tried) >= self._attempts or now + pause >= self._deadline:
            cause = error if isinstance(error, Exception) else Error(str(error))
            if isinstance(error, ResponseError) and len(self._tried) == 1:
                self._settle(error)
                return
            self._settle(SendFailed(self._outgoing.topic, self._tried, now - self._began, cause))
            return
        log.debug("%s: sent again: %s", self._outgoing.ids[0], error)
        self._sender.session.spawn(self._sender.refresh(self._outgoing.topic))
        if pause:
            self._loop.call_later(pause, self.attempt)
        else:
            self.attempt()

    def _has_others_than(self, broker: str) -> bool:
        queues = self._sender.session.routes.known_for_sending(self._outgoing.topic) or []
        return any(one.broker_name != broker for one in queues)

    def _settle(self, error: BaseException | None, result: Any = None) -> None:
        if not self.future.done():  # whoever asked may have gone
            if error is not None:
                self.future.set_exception(error)
            else:
                self.future.set_result(result)
        if self._turn is not None:
            self._sender.pass_turn(self._turn)
            self._turn = None
        self._sender.done()


def _said(error: Exception, timeout: float) -> Exception:
    return error if str(error) else TimeoutError(f"not within {timeout:g} s")
