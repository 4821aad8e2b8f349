"""The client for scripts: the same classes without `await`.

    with blocking.Producer("127.0.0.1:9876") as producer:
        producer.send(Message("Orders", b"..."))

Each object here hands its calls to one of the asyncio client's, which lives in an event loop in a
thread of its own: one for the process, started when it is first needed. Any thread may call.
Ctrl-C ends the call that waits, and the work it waited for. What was made before a fork is of no
use in the child, and says so. What is not closed when the program ends is closed then.

It is one long module because it has no logic to split: a line or two for each method of the other.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, Self, TypeVar

from ..errors import Error, UnreadableMessage
from ..fate import Judgement
from ..message import Message
from ..wire.bodies import MessageQueue, Subscription
from ._background import Facade, pass_on, result
from .admin import Admin as AsyncAdmin
from .cluster import BrokerInfo
from .codefilters import CodeStatus
from .codesource import Code
from .config import ClientConfig, ConsumerConfig, Moment, ProducerConfig
from .consumer import Consumer as AsyncConsumer
from .handling import Handler
from .outgoing import SendResult
from .producer import Producer as AsyncProducer
from .producer import Selector
from .push import PushConsumer as AsyncPushConsumer
from .received import ReceivedMessage
from .reports import GroupInfo, MatchingLag, QueueProgress, TopicInfo
from .transactions import Check, Execute, TransactionState
from .transactions import Transaction as AsyncTransaction

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

__all__ = ["Admin", "Consumer", "Producer", "PushConsumer", "Transaction"]

P = ParamSpec("P")
T = TypeVar("T")

_PRODUCER: Final = ProducerConfig()
_CONSUMER: Final = ConsumerConfig()
_CLIENT: Final = ClientConfig()


class Producer(Facade):
    """See `tamis.client.Producer`."""

    what = "producer"

    def __init__(
        self,
        nameserver: str,
        group: str = "tamis-producer",
        *,
        check: Check | None = None,
        config: ProducerConfig = _PRODUCER,
    ) -> None:
        super().__init__()
        self._inner = self._call(AsyncProducer, nameserver, group, check=check, config=config)
        self.group = group
        self.config = config
        self._outbox: deque[tuple[Future[SendResult], Callable[[], asyncio.Future[SendResult]]]] = (
            deque()
        )
        self._is_woken = False

    @property
    def _client(self) -> AsyncProducer:
        return self._inner

    @property
    def client_id(self) -> str:
        return self._inner.client_id

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | int | None = None,
        selector: Selector | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Raises SendFailed, InvalidMessage, InvalidName. One that was interrupted may have been
        sent. A selector is called in the loop's thread."""
        if self._background.is_here:
            raise Error("send waits for the thread it is called in: use submit there")
        sent = self.submit(message, queue=queue, key=key, selector=selector, timeout=timeout)
        try:
            return result(sent)
        finally:
            sent.cancel()  # if it is not on its way yet

    def submit(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | int | None = None,
        selector: Selector | None = None,
        timeout: float | None = None,
    ) -> "Future[SendResult]":
        """As `send`, without waiting: all that `send` would raise is in the future. What is added
        to it as a callback is called in the loop's thread, and must not wait there.

        There is no limit to how many are on their way: wait for some.
        """
        self._check()
        future: Future[SendResult] = Future()
        submit = partial(
            self._inner.submit, message, queue=queue, key=key, selector=selector, timeout=timeout
        )
        self._outbox.append((future, submit))
        if not self._is_woken:  # waking the loop is dear: once for many
            self._is_woken = True
            self._background.loop.call_soon_threadsafe(self._send_off)
        return future

    def _send_off(self) -> None:
        self._is_woken = False  # first: whoever adds one from here on wakes the loop again
        for _ in range(len(self._outbox)):
            future, submit = self._outbox.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    sent = submit()
                except Exception as error:  # whoever waits has it
                    future.set_exception(error)
                else:
                    sent.add_done_callback(partial(pass_on, future))

    def send_oneway(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        key: str | int | None = None,
        selector: Selector | None = None,
    ) -> None:
        self._run(self._inner.send_oneway, message, queue=queue, key=key, selector=selector)

    def send_batch(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | None = None,
        key: str | int | None = None,
        timeout: float | None = None,
    ) -> list[SendResult]:
        batch = list(messages)  # here: whatever gives them may wait
        return self._run(self._inner.send_batch, batch, queue=queue, key=key, timeout=timeout)

    def request(self, message: Message, *, timeout: float | None = None) -> ReceivedMessage:
        return self._run(self._inner.request, message, timeout=timeout)

    def reply(
        self, request: ReceivedMessage, body: bytes | str, *, tags: str | None = None
    ) -> SendResult:
        return self._run(self._inner.reply, request, body, tags=tags)

    def transaction(self, message: Message) -> "Transaction":
        """`with producer.transaction(message) as transaction:`"""
        return Transaction(self, self._call(self._inner.transaction, message))

    def send_in_transaction(
        self, message: Message, execute: Execute
    ) -> tuple[SendResult, TransactionState]:
        """`execute` is called in another thread; it may use this producer."""
        return self._run(self._inner.send_in_transaction, message, execute)

    def queues(self, topic: str) -> list[MessageQueue]:
        return self._run(self._inner.queues, topic)


class Transaction:
    """From `with` to its end: see `tamis.client.Producer.transaction`."""

    def __init__(self, producer: Producer, inner: AsyncTransaction) -> None:
        self._producer = producer
        self._inner = inner

    @property
    def message(self) -> Message:
        return self._inner.message

    @property
    def result(self) -> SendResult:
        return self._inner.result

    def commit(self) -> None:
        self._inner.commit()

    def rollback(self) -> None:
        self._inner.rollback()

    def leave_open(self) -> None:
        self._inner.leave_open()

    def __enter__(self) -> Self:
        self._producer._run(self._inner.__aenter__)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._producer._run(self._inner.__aexit__, kind, error, traceback)


class PushConsumer(Facade):
    """See `tamis.client.PushConsumer`. A handler that is a plain function is called in a thread
    and may use producers of this module."""

    what = "consumer"

    def __init__(
        self,
        nameserver: str,
        group: str,
        handler: Handler | None = None,
        *,
        ordered: bool = False,
        on_unreadable: Callable[[UnreadableMessage], object] | None = None,
        config: ConsumerConfig = _CONSUMER,
    ) -> None:
        super().__init__()
        self._inner = self._call(
            AsyncPushConsumer,
            nameserver,
            group,
            handler,
            ordered=ordered,
            on_unreadable=on_unreadable,
            config=config,
        )
        self.group = group
        self.ordered = ordered
        self.config = config

    @property
    def _client(self) -> AsyncPushConsumer:
        return self._inner

    @property
    def client_id(self) -> str:
        return self._inner.client_id

    @property
    def assignment(self) -> list[MessageQueue]:
        return self._call(lambda: self._inner.assignment)

    @property
    def subscriptions(self) -> dict[str, Subscription]:
        return self._call(lambda: self._inner.subscriptions)

    @property
    def code_status(self) -> dict[str, CodeStatus]:
        return self._call(lambda: self._inner.code_status)

    def subscribe(
        self,
        topic: str,
        handler: Handler | None = None,
        *,
        tags: str | None = None,
        sql: str | None = None,
        code: Code | None = None,
    ) -> None:
        self._call(self._inner.subscribe, topic, handler, tags=tags, sql=sql, code=code)

    def unsubscribe(self, topic: str) -> None:
        self._call(self._inner.unsubscribe, topic)

    def run(self) -> None:
        """Until another thread closes it, or it is interrupted: then handlers are waited for.
        Raises what it can't live with."""
        try:
            self._run(self._inner.run)
        finally:
            self._background.open.discard(self)

    def pause(self) -> None:
        self._call(self._inner.pause)

    def resume(self) -> None:
        self._call(self._inner.resume)


class Consumer(Facade):
    """See `tamis.client.Consumer`. Message by message, each costs a change of threads: `getmany`
    and `batches` are for many."""

    what = "consumer"

    def __init__(self, nameserver: str, group: str, *, config: ConsumerConfig = _CONSUMER) -> None:
        super().__init__()
        self._inner = self._call(AsyncConsumer, nameserver, group, config=config)
        self.group = group
        self.config = config
        self._is_torn = False  # something may have been taken that the caller was never given

    @property
    def _client(self) -> AsyncConsumer:
        return self._inner

    @property
    def client_id(self) -> str:
        return self._inner.client_id

    @property
    def assignment(self) -> list[MessageQueue]:
        return self._call(lambda: self._inner.assignment)

    @property
    def subscriptions(self) -> dict[str, Subscription]:
        return self._call(lambda: self._inner.subscriptions)

    @property
    def code_status(self) -> dict[str, CodeStatus]:
        return self._call(lambda: self._inner.code_status)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Without an exception, what was taken counts as worked off."""
        if error is None and self._is_torn:
            error = KeyboardInterrupt()
        super().__exit__(kind, error, traceback)

    # What to read

    def subscribe(
        self,
        topic: str,
        *,
        tags: str | None = None,
        sql: str | None = None,
        code: Code | None = None,
    ) -> None:
        self._call(self._inner.subscribe, topic, tags=tags, sql=sql, code=code)

    def unsubscribe(self, topic: str) -> None:
        self._call(self._inner.unsubscribe, topic)

    def assign(
        self,
        queues: Iterable[MessageQueue],
        *,
        tags: str | None = None,
        sql: str | None = None,
        code: Code | None = None,
    ) -> None:
        self._call(self._inner.assign, list(queues), tags=tags, sql=sql, code=code)

    # Taking messages

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ReceivedMessage:
        message = self._take(self._next)
        if message is None:
            raise StopIteration
        return message

    async def _next(self) -> ReceivedMessage | None:
        return await anext(self._inner, None)

    def getmany(self, limit: int = 500, timeout: float = 5.0) -> list[ReceivedMessage]:
        """As many as there are, up to `limit`; none if none come within `timeout` seconds."""
        return self._take(self._inner.getmany, limit, timeout)

    def batches(
        self,
        *,
        rows: int = 16_384,
        linger: float = 0.1,
        columns: Sequence[str] | None = None,
        properties: Sequence[str] | None = None,
        idle: float | None = None,
    ) -> "Iterator[pa.RecordBatch]":
        """Arrow record batches. Ends when the consumer is closed, or nothing came for `idle`
        seconds."""
        source = self._inner.batches(
            rows=rows, linger=linger, columns=columns, properties=properties, idle=idle
        )

        async def following() -> "pa.RecordBatch | None":
            return await anext(source, None)

        while (batch := self._take(following)) is not None:
            yield batch

    def _take(
        self, function: Callable[P, Coroutine[Any, Any, T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        try:
            if self._is_torn:
                self._run(self._mend)
            return self._run(function, *args, **kwargs)
        except Exception:
            raise
        except BaseException:  # Ctrl-C: just then something may have come
            self._is_torn = True
            raise

    async def _mend(self) -> None:
        """What was taken and not given to the caller is to be taken again."""
        for queue, report in self._inner.reports().items():
            position = self._inner.position(queue)
            if position is not None and position != report.commit_offset:
                await self._inner.seek(queue, report.commit_offset)
        self._is_torn = False

    # Where it is

    def position(self, queue: MessageQueue) -> int | None:
        return self._call(self._inner.position, queue)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        self._run(self._inner.seek, queue, offset)

    def seek_to_first(self, *queues: MessageQueue) -> None:
        self._run(self._inner.seek_to_first, *queues)

    def seek_to_last(self, *queues: MessageQueue) -> None:
        self._run(self._inner.seek_to_last, *queues)

    def seek_to_time(self, moment: Moment, *queues: MessageQueue) -> None:
        """Milliseconds: the first message stored then or later."""
        self._run(self._inner.seek_to_time, moment, *queues)

    def pause(self, *queues: MessageQueue) -> None:
        self._call(self._inner.pause, *queues)

    def resume(self, *queues: MessageQueue) -> None:
        self._call(self._inner.resume, *queues)

    def commit(self) -> None:
        """All that was handed out is worked off, and saved. Raises Error, TimeoutError."""
        if self._is_torn:
            self._run(self._mend)
        self._run(self._inner.commit)

    def committed(self, queue: MessageQueue) -> int | None:
        return self._run(self._inner.committed, queue)

    # What there is

    def queues(self, topic: str) -> list[MessageQueue]:
        return self._run(self._inner.queues, topic)

    def first_offset(self, queue: MessageQueue) -> int:
        return self._run(self._inner.first_offset, queue)

    def last_offset(self, queue: MessageQueue) -> int:
        return self._run(self._inner.last_offset, queue)

    def offset_at(self, queue: MessageQueue, moment: Moment) -> int:
        return self._run(self._inner.offset_at, queue, moment)


class Admin(Facade):
    """See `tamis.client.Admin`."""

    what = "admin"

    def __init__(self, nameserver: str, *, config: ClientConfig = _CLIENT) -> None:
        super().__init__()
        self._inner = self._call(AsyncAdmin, nameserver, config=config)

    @property
    def _client(self) -> AsyncAdmin:
        return self._inner

    def brokers(self) -> list[BrokerInfo]:
        return self._run(self._inner.brokers)

    def cluster(self) -> dict[str, list[BrokerInfo]]:
        return self._run(self._inner.cluster)

    def filter_servers(self) -> list[str]:
        return self._run(self._inner.filter_servers)

    def broker_stats(self, broker: str) -> dict[str, str]:
        return self._run(self._inner.broker_stats, broker)

    def topics(self, *, all: bool = False) -> list[str]:
        return self._run(self._inner.topics, all=all)

    def create_topic(
        self,
        name: str,
        *,
        queues: int = 4,
        permission: str = "rw",
        cluster: str | None = None,
        broker: str | None = None,
        order: bool = False,
    ) -> list[str]:
        return self._run(
            self._inner.create_topic,
            name,
            queues=queues,
            permission=permission,
            cluster=cluster,
            broker=broker,
            order=order,
        )

    def delete_topic(self, name: str) -> None:
        self._run(self._inner.delete_topic, name)

    def topic(self, name: str) -> TopicInfo:
        return self._run(self._inner.topic, name)

    def groups(self, *, all: bool = False) -> list[str]:
        return self._run(self._inner.groups, all=all)

    def create_group(
        self,
        name: str,
        *,
        retries: int = 16,
        enabled: bool = True,
        broadcast: bool = True,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        return self._run(
            self._inner.create_group,
            name,
            retries=retries,
            enabled=enabled,
            broadcast=broadcast,
            cluster=cluster,
            broker=broker,
        )

    def set_group_policy(self, group: str, policy: str) -> list[dict[str, Any]]:
        return self._run(self._inner.set_group_policy, group, policy)

    def set_group_filter(
        self,
        group: str,
        topic: str,
        *,
        tags: str | None = None,
        sql: str | None = None,
        start: Literal["now"] | int | Mapping[int, int] | None = None,
        time: Moment | None = None,
        old_tags: str | None = None,
        old_sql: str | None = None,
    ) -> list[dict[str, Any]]:
        return self._run(
            self._inner.set_group_filter,
            group,
            topic,
            tags=tags,
            sql=sql,
            start=start,
            time=time,
            old_tags=old_tags,
            old_sql=old_sql,
        )

    def cancel_group_filter(self, group: str, topic: str) -> list[dict[str, Any]]:
        return self._run(self._inner.cancel_group_filter, group, topic)

    def group_rules(self, group: str | None = None) -> list[dict[str, Any]]:
        return self._run(self._inner.group_rules, group)

    def delete_group(self, name: str) -> None:
        self._run(self._inner.delete_group, name)

    def group(self, name: str) -> GroupInfo:
        return self._run(self._inner.group, name)

    def offsets(self, group: str, topic: str | None = None) -> list[QueueProgress]:
        return self._run(self._inner.offsets, group, topic)

    def matching_lag(
        self, group: str | None = None, topic: str | None = None, *, seconds: float = 10.0
    ) -> list[MatchingLag]:
        return self._run(self._inner.matching_lag, group, topic, seconds=seconds)

    def planned_offsets(
        self,
        group: str,
        topic: str,
        to: Literal["first", "last"] | None = None,
        *,
        time: Moment | None = None,
        offset: int | None = None,
        queue: MessageQueue | None = None,
        force: bool = True,
    ) -> dict[MessageQueue, int]:
        return self._run(
            self._inner.planned_offsets,
            group,
            topic,
            to,
            time=time,
            offset=offset,
            queue=queue,
            force=force,
        )

    def reset_offsets(
        self,
        group: str,
        topic: str,
        to: Literal["first", "last"] | None = None,
        *,
        time: Moment | None = None,
        offset: int | None = None,
        queue: MessageQueue | None = None,
        force: bool = True,
    ) -> dict[MessageQueue, int]:
        return self._run(
            self._inner.reset_offsets,
            group,
            topic,
            to,
            time=time,
            offset=offset,
            queue=queue,
            force=force,
        )

    def message(self, message_id: str, topic: str | None = None) -> ReceivedMessage:
        return self._run(self._inner.message, message_id, topic)

    def messages_by_key(
        self,
        topic: str,
        key: str,
        *,
        limit: int = 64,
        begin: Moment | None = None,
        end: Moment | None = None,
    ) -> list[ReceivedMessage]:
        return self._run(self._inner.messages_by_key, topic, key, limit=limit, begin=begin, end=end)

    def explain(
        self,
        message_id: str | None = None,
        *,
        topic: str | None = None,
        key: str | None = None,
        queue_id: int | None = None,
        offset: int | None = None,
        broker: str | None = None,
        group: str | None = None,
    ) -> list[Judgement]:
        return self._run(
            self._inner.explain,
            message_id,
            topic=topic,
            key=key,
            queue_id=queue_id,
            offset=offset,
            broker=broker,
            group=group,
        )
