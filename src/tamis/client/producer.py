"""The producer: what users send by; `sending` has the way of each request."""

import asyncio
import logging
from collections.abc import Iterable
from types import TracebackType
from typing import Final, Self

from ..errors import Error, ResponseError, SendFailed, Unreachable
from ..message import Message
from ..wire.bodies import MessageQueue
from ..wire.command import Fields
from .config import ProducerConfig, check_group
from .identity import UniqueKeys
from .outgoing import SendResult, prepare, split
from .received import ReceivedMessage
from .replies import Replies
from .sending import Selector, Sender, place_of
from .session import Session
from .transactions import Check, Execute, Transaction, Transactions, TransactionState

__all__ = ["Producer", "Selector"]

log = logging.getLogger(__name__)

_DEFAULTS: Final = ProducerConfig()


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
        self._sender = Sender(self._session, group, config)
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
        await self._sender.drain()
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
        return self._sender.submit(outgoing, place_of(message, queue, key, selector), timeout)

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | int | None = None,
        selector: Selector | None = None,
    ) -> None:
        """Written to the connection, and no more is known of it. With a key it comes after what was
        sent before to the same queue, but what is sent next may overtake it. Raises Unreachable,
        and SendFailed if the broker does not take it within `timeout`."""
        outgoing = prepare(message, self.config, self._keys)
        place = place_of(message, queue, key, selector)
        try:
            await self._sender.submit(outgoing, place, None, is_oneway=True)
        except SendFailed as error:
            if isinstance(error.cause, Unreachable):
                raise error.cause from None
            raise

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
            place = place_of(batch[numbers[0]], queue, key, None)
            future: asyncio.Future[list[SendResult]] = self._sender.submit(outgoing, place, timeout)
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
        result: SendResult = await self._sender.submit(outgoing, None, None)
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
        result: SendResult = await self._sender.submit(outgoing, None, None)
        return result

    async def _send_request(self, message: Message, more: Fields, timeout: float) -> None:
        await self._sender.queues_to_send(message.topic)
        await self._session.greet_new(timeout / 3)  # a broker must know us to give us the reply
        await self._sender.submit(prepare(message, self.config, self._keys, more), None, timeout)
