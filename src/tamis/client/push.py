"""The push consumer: each message to a handler, and what happens when that fails.

This module starts and stops it, takes queues up and gives them back. Unordered: any of
`concurrency` workers takes the next message (`unordered`); a failed one goes back to the broker,
which gives it to the group's retry topic after a while, in the end to its dead letter topic.
Ordered: see `ordered`. Either way the group's offset is that of the first message not done yet, so
none is passed over (`workqueue`).

A message whose body can't be read (`UnreadableMessage`) fails its handler when that asks for the
body, and goes to the dead letter topic at once: another attempt would meet the same. A damaged
record can't be handled or sent anywhere: it is logged with its offset, `on_unreadable` is told of
it, and the queue goes on behind it.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import replace
from types import TracebackType
from typing import Final, Self

from ..errors import ConfigError, CorruptRecord, Error, UnreadableMessage
from ..wire.bodies import ConsumeType, MessageQueue, QueueReport, Subscription
from .codefilters import CodeStatus
from .codesource import Code, code_source
from .config import ConsumerConfig, check_group
from .fetching import Pulled, Puller, Stream
from .handling import Handler, Handlers, Verdict
from .membership import Member
from .offsets import BrokerOffsets, LocalOffsets, Offsets, starts
from .ordered import Locks, consume_in_order
from .received import ReceivedMessage, decode_all, examine, retry_topic
from .remote import Remote
from .sendback import SendBack
from .session import Session, every
from .subscriptions import subscription
from .unordered import ReadyMessages
from .workqueue import WorkQueue

__all__ = ["PushConsumer"]

log = logging.getLogger(__name__)

_DEFAULTS: Final = ConsumerConfig()
_DEFAULT_RECONSUMES: Final = 16


# The consumer whose handler this task is, or was started by.
_within: ContextVar[object] = ContextVar("_within", default=None)


class PushConsumer:
    """Gives each message of its subscriptions to a handler.

    `ordered`: the messages of a queue one after the other. A subscription may have a handler of its
    own. `on_unreadable` is called in the loop with the error of each record that is damaged and
    therefore passed over. Made and used in one event loop; `async with` starts and closes it, `run`
    waits.
    """

    def __init__(
        self,
        nameserver: str,
        group: str,
        handler: Handler | None = None,
        *,
        ordered: bool = False,
        on_unreadable: Callable[[UnreadableMessage], object] | None = None,
        config: ConsumerConfig = _DEFAULTS,
    ) -> None:
        self.group = check_group(group)
        self.config = config
        self.ordered = ordered
        if config.is_broadcasting and not config.instance_name:
            config = replace(config, instance_name="DEFAULT")  # it must find its offsets again
        self._session = Session("consumer", nameserver, config)
        self._member = Member(
            self._session,
            group,
            config,
            self,
            consume_type=ConsumeType.CONSUME_PASSIVELY,
            on_error=self._fail,
        )
        self._handler = handler
        self._on_unreadable = on_unreadable
        self._handlers: dict[str, Handler] = {}
        self._calls = Handlers(config.handler_timeout)
        self._puller = Puller(self._session, group, config, posts=False, code=self._member.code)
        self._offsets: Offsets
        if config.is_broadcasting:
            self._offsets = LocalOffsets(config.offsets_directory, self.client_id, group)
        else:
            self._offsets = BrokerOffsets(self._session, group)
        self._send_back = SendBack(self._session, group, self.max_reconsume_times)
        self._locks = Locks(self._session, group)
        self._queues: dict[MessageQueue, WorkQueue] = {}
        self._ready = ReadyMessages(self, self._send_back)
        self._slots = asyncio.Semaphore(config.concurrency)  # of an ordered consumer
        self._busy_slots = 0
        self._is_paused = False
        self._is_draining = False
        self._ended: asyncio.Future[None] | None = None
        self._workers: list[asyncio.Task[None]] = []
        self._closing: asyncio.Task[None] | None = None
        self.started = 0.0
        self._remote = Remote(self, ordered=ordered, handle=self.call)

    @property
    def client_id(self) -> str:
        return self._session.client_id

    @property
    def session(self) -> Session:
        return self._session

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues it reads now."""
        return sorted(self._queues)

    @property
    def max_reconsume_times(self) -> int:
        most = self.config.max_reconsume_times
        if most == -1:
            return 2**31 - 1 if self.ordered else _DEFAULT_RECONSUMES
        return most

    # Subscribing

    def subscribe(
        self,
        topic: str,
        handler: Handler | None = None,
        *,
        tags: str | None = None,
        sql: str | None = None,
        code: Code | None = None,
    ) -> None:
        """Reads all messages of the topic, those with one of the tags (`"A || B"`), or those that
        SQL92 or a filter in code matches. Called before or after the start. Raises InvalidFilter,
        with the column, and CodeError."""
        source = code_source(code) if code is not None else None
        one = subscription(topic, tags, sql, source)
        if handler is None and self._handler is None:
            raise ConfigError(f"topic {topic}: there is no handler for it")
        if handler is not None:
            self._handlers[topic] = handler
        self._member.subscribe(one, source)
        if source is not None:
            for work in self._queues.values():
                if work.queue.topic == topic:
                    work.begin_anew()  # a pull that waits at a filter server has the old class

    def unsubscribe(self, topic: str) -> None:
        """What is here of it and not begun is left to other members, or to later."""
        self._handlers.pop(topic, None)
        self._member.unsubscribe(topic)
        if queues := [queue for queue in self._queues if queue.topic == topic]:
            self._session.spawn(self.lose(queues))

    @property
    def subscriptions(self) -> dict[str, Subscription]:
        return dict(self._member.subscriptions)

    @property
    def code_status(self) -> dict[str, CodeStatus]:
        """How subscriptions with filters in code are served, by topic."""
        return self._member.code.status()

    # Its life

    async def start(self) -> None:
        """Raises Unreachable, TopicNotFound, SubscriptionMismatch, CodeError, ResponseError."""
        if self._ended is not None:
            self._session.check()
            raise Error("the consumer is started already")
        if not self._member.subscriptions:
            raise ConfigError(f"group {self.group}: it subscribes to nothing; call subscribe first")
        if self.ordered and self.config.is_broadcasting:
            raise ConfigError("an ordered consumer locks its queues: it can't be broadcasting")
        await self._session.start()
        self._ended = asyncio.get_running_loop().create_future()
        self.started = time.time()
        if not self.config.is_broadcasting:
            retry = retry_topic(self.group)
            self._member.subscriptions[retry] = subscription(retry)
        try:
            await self._member.join()
            self._session.check()  # it may be closed by now
        except BaseException:
            await self.close()
            raise
        self._session.spawn(every(self.config.commit_interval, self._save))
        if self.ordered:
            self._session.spawn(every(Locks.RENEWAL, self._renew_locks))
        else:
            self._workers = [
                self._session.spawn(self._consume()) for _ in range(self.config.concurrency)
            ]

    async def run(self) -> None:
        """Waits until it is closed. Raises what it can't live with: no permission, a group that the
        broker does not know, a subscription that differs from the others' if it is strict."""
        if self._ended is None:
            await self.start()
        assert self._ended is not None
        try:
            await asyncio.shield(self._ended)
        finally:
            await self.close()

    async def close(self) -> None:
        """Waits `drain` seconds for handlers to end, then saves how far it came. Called by a
        handler it returns at once, and the rest follows when that has ended."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        if _within.get() is not self:
            await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            await self._drain_and_leave()
        finally:
            if self._ended is not None and not self._ended.done():
                self._ended.set_result(None)

    async def _drain_and_leave(self) -> None:
        if not self._session.is_running:
            await self._session.close()
            return
        self._is_draining = True
        for one in self._queues.values():
            one.is_paused = True
        try:
            async with asyncio.timeout(self.config.drain):
                while self._busy_slots or self._ready.busy:
                    await asyncio.sleep(0.01)
        except TimeoutError:
            busy = self._busy_slots + self._ready.busy
            log.warning("group %s: %d handlers did not end in time", self.group, busy)
        for worker in self._workers:
            worker.cancel()
        for one in self._queues.values():
            if one.worker is not None:
                one.worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        try:
            async with asyncio.timeout(2 * self.config.timeout):  # a broker may hang
                await self._save()
                if self.ordered:
                    await self._locks.release(list(self._queues))
        except TimeoutError:
            log.warning("group %s: not all offsets could be saved in time", self.group)
        for one in self._queues.values():
            one.drop()
        self._calls.close()
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

    def _fail(self, error: Exception) -> None:
        if self._ended is not None and not self._ended.done():
            log.error("group %s: %s", self.group, error)
            self._ended.set_exception(error)
            self._ended.exception()  # `run` may never be called

    def pause(self) -> None:
        """No more messages are asked for; those that are there are handled."""
        self._is_paused = True
        for one in self._queues.values():
            one.is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        for one in self._queues.values():
            one.is_paused = False
            one.changed()

    # Queues come and go: called by the member

    @property
    def held(self) -> Collection[MessageQueue]:
        return self._queues.keys()

    async def gain(self, queues: list[MessageQueue]) -> None:
        if self.ordered:
            queues = await self._locks.acquire(queues)
        until = self._locks.until()
        found = await starts(self._session, self._offsets, queues, self.config)
        for queue, offset in found.items():
            if not self._is_draining:
                self._take_up(queue, offset).locked_until = until

    def _take_up(self, queue: MessageQueue, offset: int) -> WorkQueue:
        if (old := self._queues.get(queue)) is not None:
            old.drop()
        work = self._queues[queue] = WorkQueue(queue, offset)
        work.is_paused = self._is_paused
        work.begin(
            self._session,
            self._puller,
            self._member.subscriptions.get,
            self._arrived,
            self._fail,
        )
        if self.ordered:
            work.locked_until = self._locks.until()
            work.worker = asyncio.create_task(self._consume_in_order(work))
        return work

    async def lose(self, queues: list[MessageQueue]) -> None:
        """What is being handled is not waited for: it comes again, to the new owner."""
        lost = [work for queue in queues if (work := self._queues.pop(queue, None)) is not None]
        for work in lost:
            work.drop()
        if self.ordered:
            await asyncio.gather(*map(self._hand_over, lost))
        else:
            await self._save_some(lost)

    async def _hand_over(self, work: WorkQueue) -> None:
        """A locked queue is not given away while a message of it is handled."""
        await work.wait_for_worker(self.config.drain)
        await self._save_some([work])
        await self._locks.release([work.queue])

    async def restart(self, offsets: dict[MessageQueue, int]) -> None:
        """Begins again from other offsets, forwards or back, as an operator has it."""
        async with self._member.balancing:
            for queue, offset in offsets.items():
                work = self._queues.get(queue)
                if work is not None:
                    work.drop()
                    await work.wait_for_worker(self.config.drain)
                    log.warning("%s: reset from %d to %d", queue, work.done_to, offset)
                    self._take_up(queue, offset)
            await self._save()

    def reports(self) -> dict[MessageQueue, QueueReport]:
        """What it tells brokers of its queues."""
        return {work.queue: work.report() for work in self._queues.values()}

    def work_queues(self) -> list[WorkQueue]:
        return list(self._queues.values())

    # Messages come

    def _arrived(self, stream: Stream, pulled: Pulled) -> None:
        work = self._queues.get(stream.queue)
        if work is not stream or work is None:
            return
        if pulled.is_moved:
            log.warning(
                "%s: there is nothing at offset %d (first %d, end %d): on from %d",
                *(work.queue, pulled.offset, pulled.min_offset, pulled.max_offset),
                pulled.next_offset,
            )
        messages = self._wanted(work, pulled)
        work.put(messages, pulled.next_offset)
        for message in messages:
            message.properties["MIN_OFFSET"] = str(pulled.min_offset)
            message.properties["MAX_OFFSET"] = str(pulled.max_offset)
        if self.ordered:
            work.waiting.extend(messages)
            work.arrived.set()
        else:
            self._ready.put(work, messages)
        work.update_room(self.config, ordered=self.ordered)

    def _wanted(self, work: WorkQueue, pulled: Pulled) -> list[ReceivedMessage]:
        """Returns the messages that match. Tags are compared here once more, exactly: the broker
        compares hashes, and may hold the filter of another member."""
        one = self._member.subscriptions.get(work.queue.topic)
        found = self._decoded(work, pulled) if pulled.body else []
        if one is not None and one.tags:
            tags = frozenset(one.tags)
            return [message for message in found if message.tags in tags]
        return found

    def _decoded(self, work: WorkQueue, pulled: Pulled) -> list[ReceivedMessage]:
        """Returns the messages of an answer. Those from a damaged record on are pulled again, one
        at a time; then that one is passed over."""
        found: list[ReceivedMessage] = []
        try:
            for message in decode_all(pulled.body, work.queue, self.config.max_body_size):
                found.append(message)
        except CorruptRecord:
            error = None
            if work.is_isolating and not found:
                error = examine(pulled.body, work.queue, pulled.next_offset - 1)
            if error is not None:
                work.isolate(0)
                self._tell_unreadable(error)
            else:
                work.isolate(pulled.next_offset)
                after = found[-1].offset + 1 if found else pulled.offset
                pulled.next_offset = min(max(after, pulled.offset), pulled.next_offset)
        return found

    def _tell_unreadable(self, error: UnreadableMessage) -> None:
        log.error("group %s: passed over: %s", self.group, error)
        if self._on_unreadable is not None:
            try:
                self._on_unreadable(error)
            except Exception:  # the edge: a queue is not to be left because of it
                log.exception("group %s: on_unreadable failed", self.group)

    # Messages are handled

    async def call(self, messages: list[ReceivedMessage]) -> Verdict:
        handler = self._handlers.get(messages[0].topic, self._handler)
        if handler is None:
            log.error("topic %s: there is no handler for it any more", messages[0].topic)
            return False, 0
        return await self._calls.call(handler, messages, as_list=self.config.handler_batch > 1)

    async def _consume(self) -> None:
        _within.set(self)
        await self._ready.consume()

    async def _consume_in_order(self, work: WorkQueue) -> None:
        _within.set(self)
        await consume_in_order(self, work)

    # Called by `consume_in_order`

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """One of as many as may be busy at a time."""
        async with self._slots:
            self._busy_slots += 1
            try:
                yield
            finally:
                self._busy_slots -= 1

    @property
    def is_draining(self) -> bool:
        """It is being closed: what is not begun is left to others."""
        return self._is_draining

    def done(self, work: WorkQueue, messages: list[ReceivedMessage]) -> None:
        if not work.is_dropped or work.worker is asyncio.current_task():
            for message in messages:
                work.waiting.popleft()
                work.finish(message)
            work.update_room(self.config, ordered=self.ordered)

    async def dead_letter(self, message: ReceivedMessage) -> bool:
        return await self._send_back(message, -1)

    async def renew(self, work: WorkQueue) -> None:
        if work.queue in await self._locks.acquire([work.queue]):
            work.locked_until = self._locks.until()

    # How far it came

    async def _save(self) -> None:
        await self._save_some(list(self._queues.values()))

    async def _save_some(self, works: list[WorkQueue]) -> None:
        changed = {work.queue: work.done_to for work in works if work.done_to != work.committed}
        if not changed:
            return
        try:
            await self._offsets.save(changed)
        except (Error, TimeoutError) as error:
            log.warning("group %s: offsets are not saved, tried again: %s", self.group, error)
            return
        for work in works:
            if work.queue in changed:
                work.committed = changed[work.queue]

    async def _renew_locks(self) -> None:
        held = set(await self._locks.acquire(list(self._queues)))
        for work in self.work_queues():
            # one that another member got hold of is not handled any further
            work.locked_until = self._locks.until() if work.queue in held else 0.0
