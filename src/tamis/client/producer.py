"""The producer: messages to queues, and the attempts it takes.

`submit` is the way of every message: choose a queue, write, and go on when the answer comes, or
when it does not. No task is made for a message unless it has to wait for a route or a connection.
"""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Final, Self

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
from ..wire.codes import CommandFlag, Language, ResponseCode
from ..wire.command import Command, Fields
from .config import ProducerConfig, check_group
from .faults import Faults
from .identity import UniqueKeys
from .outgoing import STATUSES, Outgoing, SendResult, SendStatus, prepare, results_of, split
from .received import ReceivedMessage
from .replies import Replies
from .session import Session
from .transactions import Check, Execute, Transaction, Transactions, TransactionState

__all__ = ["Producer", "Selector"]

log = logging.getLogger(__name__)

Selector = Callable[[Sequence[MessageQueue], Message], MessageQueue]
_DEFAULTS: Final = ProducerConfig()
_PAUSE: Final = 0.1  # seconds before the same broker is tried again; doubled each time


class Producer:
    """Sends messages. Made and used in one event loop; `async with` starts and closes it.

    `check` is asked by brokers about transactions that were left open: see `transaction`.
    """

    def __init__(
        self,
        nameserver: str,
        group: str = "tamis-producer",
        *,
        check: Check | None = None,
        config: ProducerConfig = _DEFAULTS,
    ) -> None:
        self.group = check_group(group)
        self.config = config
        self._session = Session("producer", nameserver, config)
        self._session.producer_groups.add(group)
        self._keys = UniqueKeys()
        self._faults = Faults()
        self._turn = random.randrange(2**31)
        self._in_flight = 0
        self._backlog: deque[_Sending] = deque()
        self._idle = asyncio.Event()
        # In order, those that wait for a route or a connection: by topic, by broker.
        self._lines: dict[tuple[str, str], deque[_Sending]] = {}
        self._is_closing = False
        self._transactions = Transactions(self._session, group, check)
        self._replies = Replies(self._session)

    @property
    def client_id(self) -> str:
        return self._session.client_id

    # Its life

    async def start(self) -> None:
        """Raises Unreachable if no name server can be talked to."""
        session = self._session
        if session.is_running:
            raise Error("the producer is started already")
        await session.start()
        try:
            await session.routes.get(self.config.default_topic)
        except ResponseError as error:  # brokers that make no topics by themselves do not have it
            log.debug("%s", error)
        except BaseException:
            await session.close()
            raise
        await session.heartbeat()

    async def close(self) -> None:
        """Waits for what is being sent; what is sent from now on is refused."""
        self._is_closing = True
        if self._session.is_running:
            while self._in_flight:
                self._idle.clear()
                await self._idle.wait()
        await self._session.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    # Sending

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | int | None = None,
        selector: Selector | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Where it was stored. Messages of one `key` go to one queue, in order; such a message,
        and one whose queue is given or selected, is tried once only: order is not to change.

        Raises SendFailed, and InvalidMessage, InvalidName for what RocketMQ would not take.
        """
        return await self.submit(message, queue=queue, key=key, selector=selector, timeout=timeout)

    def submit(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | int | None = None,
        selector: Selector | None = None,
        timeout: float | None = None,
    ) -> "asyncio.Future[SendResult]":
        """As `send`, without waiting: what the future gives is what `send` would.

        More than `max_in_flight` of them wait their turn, for which there is no limit: await some.
        """
        outgoing = prepare(message, self.config, self._keys)
        return self._submit(outgoing, _place(message, queue, key, selector), timeout)

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | int | None = None,
        selector: Selector | None = None,
    ) -> None:
        """Written to the connection, and no more is known of it."""
        outgoing = prepare(message, self.config, self._keys)
        place = _place(message, queue, key, selector)
        while place is not None and self._lines:
            await asyncio.sleep(0.001)  # not to overtake what was sent before
        chosen, peer = await self._find(outgoing.topic, place, None)
        request = self._request(outgoing, chosen)
        request.flag = CommandFlag.ONEWAY
        peer.tell(request)
        if peer.is_full:
            await peer.drained()

    async def send_batch(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | None = None,
        key: str | int | None = None,
        timeout: float | None = None,
    ) -> list[SendResult]:
        """One result a message, in their order. They travel together, by topic, as many as fit
        into `max_message_size`; with `queue` or `key` one such piece after the other.

        Raises SendFailed if a piece could not be sent; its `results` tell of the others.
        """
        batch = list(messages)
        results: list[SendResult | None] = [None] * len(batch)
        failed: BaseException | None = None
        started = []
        for outgoing, numbers in split(batch, self.config, self._keys):
            place = _place(batch[numbers[0]], queue, key, None)
            future: asyncio.Future[list[SendResult]] = self._submit(outgoing, place, timeout)
            started.append((future, numbers))
            if place is not None:
                await asyncio.wait([future])
                if future.exception() is not None:
                    break  # what follows is not to overtake it
        for future, numbers in started:
            try:
                for number, result in zip(numbers, await future, strict=True):
                    results[number] = result
            except ResponseError as error:
                failed = failed or SendFailed(batch[numbers[0]].topic, (), 0.0, error)
            except Exception as error:
                failed = failed or error
        if isinstance(failed, SendFailed):
            failed.results = list(results)
        if failed is not None:
            raise failed
        return [result for result in results if result is not None]

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Those that can be sent to. Raises TopicNotFound, Unreachable."""
        return await self._session.routes.publish_queues(topic)

    # Transactions

    def transaction(self, message: Message) -> Transaction:
        """`async with producer.transaction(message) as transaction:` sends a message nobody sees
        yet; the end of the block commits it, an exception in it takes it back.

        If neither is heard of by the broker, it asks the producer's `check`.
        """
        return self._transactions.begin(message, self._send_half)

    async def send_in_transaction(
        self, message: Message, execute: Execute
    ) -> tuple[SendResult, TransactionState]:
        """`execute` does the rest of the transaction and says how it ended."""
        return await self._transactions.run(message, execute, self._send_half)

    async def _send_half(self, message: Message, more: Fields, sys_flag: int) -> SendResult:
        outgoing = prepare(message, self.config, self._keys, more)
        outgoing.sys_flag |= sys_flag
        result: SendResult = await self._submit(outgoing, None, None)
        return result

    # Requests and replies

    async def request(self, message: Message, *, timeout: float | None = None) -> ReceivedMessage:
        """What whoever consumes it answers, by `reply`. Raises TimeoutError."""
        timeout = self.config.timeout if timeout is None else timeout
        return await self._replies.ask(message, timeout, self._send_request)

    async def reply(
        self, request: ReceivedMessage, body: bytes | str, *, tags: str | None = None
    ) -> SendResult:
        """To a message that came by `request`, of any client of RocketMQ's."""
        message, more, code = self._replies.to(request, body, tags)
        outgoing = prepare(message, self.config, self._keys, more)
        outgoing.code = code
        result: SendResult = await self._submit(outgoing, None, None)
        return result

    async def _send_request(self, message: Message, more: Fields, timeout: float) -> None:
        await self.queues_to_send(message.topic)
        await self._session.greet_new(timeout / 3)  # a broker must know us to give us the reply
        await self._submit(prepare(message, self.config, self._keys, more), None, timeout)

    # One request on its way

    def _submit(
        self, outgoing: Outgoing, place: "_Place | None", timeout: float | None
    ) -> "asyncio.Future[Any]":
        self._check()
        sending = _Sending(self, outgoing, place, timeout or self.config.timeout)
        if self._in_flight >= self.config.max_in_flight:
            self._backlog.append(sending)
        else:
            self._in_flight += 1
            sending.begin()
        return sending.future

    def _check(self) -> None:
        self._session.check()
        if self._is_closing:
            raise ClientClosed("producer", started=True)

    def _done(self) -> None:
        if self._backlog:
            asyncio.get_running_loop().call_soon(self._backlog.popleft().begin)
            return
        self._in_flight -= 1
        if not self._in_flight:
            self._idle.set()

    def _line_up(self, name: tuple[str, str], sending: "_Sending") -> None:
        """Those that have to be in order wait one behind the other."""
        line = self._lines.setdefault(name, deque())
        line.append(sending)
        if len(line) == 1:
            self._session.spawn(self._work_off(name, line))

    async def _work_off(self, name: tuple[str, str], line: "deque[_Sending]") -> None:
        try:
            while line:
                await line[0].attempt_slowly()
                line.popleft()
        except asyncio.CancelledError:
            for sending in list(line)[1:]:
                sending.abandon()
            raise
        finally:
            del self._lines[name]

    async def queues_to_send(self, topic: str) -> list[MessageQueue]:
        """Those of a topic, or those it will be given when the first message comes."""
        config = self.config
        found = await self._session.routes.for_sending(
            topic, config.default_topic, config.default_queues
        )
        if not found:
            raise NoPermission(
                ResponseCode.NO_PERMISSION,
                f"topic {topic} has no queue that can be written to: its permission forbids it, or"
                " no master of its brokers is running",
            )
        return found

    def _choose(self, queues: list[MessageQueue], last: str | None) -> MessageQueue:
        self._turn += 1
        if self.config.avoid_slow_brokers or last is not None:
            return self._faults.choose(queues, self._turn, last)
        return queues[self._turn % len(queues)]

    async def _find(
        self, topic: str, place: "_Place | None", last: str | None
    ) -> tuple[MessageQueue, Peer]:
        self._check()
        queues = await self.queues_to_send(topic)
        queue = self._choose(queues, last) if place is None else place(queues)
        address = await self._session.routes.master(queue.broker_name)
        return queue, await self._session.peer(address)

    async def _refresh(self, topic: str) -> None:
        await self._session.routes.refresh([topic])

    def _request(self, outgoing: Outgoing, queue: MessageQueue) -> Command:
        command = Command(code=0, language=Language.PYTHON)
        born = int(time.time() * 1000)
        return outgoing.request(self.group, self.config, queue.queue_id, born, command)


_Place = Callable[[Sequence[MessageQueue]], MessageQueue]


def _place(
    message: Message,
    queue: MessageQueue | None,
    key: str | int | None,
    selector: Selector | None,
) -> _Place | None:
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


class _Sending:
    """One request, from its first attempt to its result."""

    __slots__ = (
        "_attempts",
        "_began",
        "_broker",
        "_deadline",
        "_last",
        "_loop",
        "_opaque",
        "_outgoing",
        "_peer",
        "_place",
        "_producer",
        "_queue",
        "_sent",
        "_timeout",
        "_timer",
        "_tried",
        "future",
    )

    def __init__(
        self, producer: Producer, outgoing: Outgoing, place: _Place | None, timeout: float
    ) -> None:
        self._producer = producer
        self._outgoing = outgoing
        self._place = place
        self._timeout = timeout
        self._attempts = 1 if place is not None else 1 + producer.config.retries
        self._tried: list[str] = []
        self._last: str | None = None
        self._broker = ""
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.future: asyncio.Future[Any] = self._loop.create_future()

    def begin(self) -> None:
        self._began = self._loop.time()
        self._deadline = self._began + self._timeout
        self._attempt()

    def _attempt(self) -> None:
        """At once if the route is known and the broker connected; else in a task, or in line."""
        producer, session = self._producer, self._producer._session
        if self.future.cancelled():  # whoever sent it has given up
            self._producer._done()
            return
        topic = self._outgoing.topic
        queues = session.routes.known_for_sending(topic)
        line = ("topic", topic)
        if queues and line not in producer._lines:
            try:
                queue = self._choose(queues)
            except Exception as error:  # a selector's own
                self._settle(error)
                return
            line = ("broker", queue.broker_name)
            address = session.routes.known_address(queue.broker_name)
            peer = session.known_peer(address) if address is not None else None
            is_free = self._place is None or line not in producer._lines
            if peer is not None and not peer.is_full and is_free:
                self._write(queue, peer)
                return
        if self._place is None:
            session.spawn(self.attempt_slowly())
        else:  # what has to be in order is not to overtake what waits
            producer._line_up(line, self)

    async def attempt_slowly(self) -> None:
        broker = ""
        try:
            producer, session = self._producer, self._producer._session
            async with asyncio.timeout_at(self._deadline):
                queues = await producer.queues_to_send(self._outgoing.topic)
                queue = self._choose(queues)
                broker = queue.broker_name
            async with asyncio.timeout(self._share()):
                peer = await session.peer(await session.routes.master(broker))
                await peer.drained()  # one that hangs is given no more
        except (ConnectionError, TimeoutError) as error:
            if broker:
                self._producer._faults.note_failure(broker)
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
            queue = self._producer._choose(queues, self._last)
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

    def _write(self, queue: MessageQueue, peer: Peer) -> None:
        self._queue, self._peer = queue, peer
        self._sent = self._loop.time()
        left = self._share()
        if left <= 0.0:
            self._failed(queue.broker_name, _said(TimeoutError(), self._timeout))
            return
        try:
            request = self._producer._request(self._outgoing, queue)
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
        self._producer._faults.note(broker, max(seconds, self._timeout))
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
            self._producer._faults.note_failure(broker)
            self._failed(broker, answer)
            return
        self._producer._faults.note(broker, self._loop.time() - self._sent)
        status = STATUSES.get(answer.code)
        if status is None:
            refusal = ResponseError.of(answer.code, answer.remark)
            if refusal.retriable:
                self._failed(broker, refusal)
            else:
                self._settle(refusal)
        elif (
            status is not SendStatus.OK
            and self._producer.config.retry_when_not_durable
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
            pause = _PAUSE * 2 ** (len(self._tried) - 1)
        self._last = broker or None
        if len(self._tried) >= self._attempts or now + pause >= self._deadline:
            cause = error if isinstance(error, Exception) else Error(str(error))
            if isinstance(error, ResponseError) and len(self._tried) == 1:
                self._settle(error)
                return
            self._settle(SendFailed(self._outgoing.topic, self._tried, now - self._began, cause))
            return
        log.debug("%s: sent again: %s", self._outgoing.ids[0], error)
        self._producer._session.spawn(self._producer._refresh(self._outgoing.topic))
        if pause:
            self._loop.call_later(pause, self._attempt)
        else:
            self._attempt()

    def _has_others_than(self, broker: str) -> bool:
        queues = self._producer._session.routes.known_for_sending(self._outgoing.topic) or []
        return any(one.broker_name != broker for one in queues)

    def _settle(self, error: BaseException | None, result: Any = None) -> None:
        if not self.future.done():  # whoever asked may have gone
            if error is not None:
                self.future.set_exception(error)
            else:
                self.future.set_result(result)
        self._producer._done()


def _said(error: Exception, timeout: float) -> Exception:
    return error if str(error) else TimeoutError(f"not within {timeout:g} s")
