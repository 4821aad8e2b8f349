"""The pull consumer: messages are taken, one by one, many at a time, or as Arrow record batches.

What was pulled lies in `inboxes` as it came until it is asked for. A message, or a batch, counts as
processed when the next one is asked for, when `commit` is called, or when the `async with` ends
without an exception: offsets never pass one that was not.

A damaged record raises UnreadableMessage when its turn comes, after what was taken before it was
given, and counts as taken then: the next call goes on with the message after it.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from ..errors import ClientClosed, ConfigError, Error
from ..wire.bodies import ConsumeType, MessageQueue, QueueReport, Subscription
from . import offsets as offset_queries
from .batching import decode_pieces
from .codefilters import CodeStatus
from .codesource import Code, code_source
from .config import ConsumerConfig, Moment, check_group, millis
from .fetching import Puller
from .inboxes import Inbox, Inboxes, Piece
from .membership import Member
from .offsets import BrokerOffsets, LocalOffsets, Offsets, starts
from .received import ReceivedMessage
from .remote import Remote
from .session import Session, every
from .subscriptions import subscription

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

__all__ = ["Consumer"]

log = logging.getLogger(__name__)

_DEFAULTS: Final = ConsumerConfig()


class Consumer:
    """Takes the messages of its subscriptions, or of the queues it is assigned.

    Made and used in one event loop; `async with` starts and closes it.
    """

    def __init__(self, nameserver: str, group: str, *, config: ConsumerConfig = _DEFAULTS) -> None:
        self.group = check_group(group)
        self.config = config
        self.started = 0.0
        self._session = Session("consumer", nameserver, config, suffix="STREAM")
        self._member = Member(
            self._session,
            group,
            config,
            self,
            consume_type=ConsumeType.CONSUME_ACTIVELY,
            on_error=self._fail,
        )
        self._assigned: list[MessageQueue] | None = None
        self._assigned_filters: dict[str, Subscription] = {}
        self._assigning = asyncio.Lock()
        self._puller = Puller(self._session, group, config, posts=True, code=self._member.code)
        self._offsets: Offsets
        if config.is_broadcasting:
            self._offsets = LocalOffsets(config.offsets_directory, self.client_id, group)
        else:
            self._offsets = BrokerOffsets(self._session, group)
        self._inboxes = Inboxes(self._session, config, self._filter)
        self._remote = Remote(self)

    @property
    def client_id(self) -> str:
        return self._session.client_id

    @property
    def session(self) -> Session:
        return self._session

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues it reads now."""
        return sorted(self._inboxes)

    # What to read

    def subscribe(
        self,
        topic: str,
        *,
        tags: str | None = None,
        sql: str | None = None,
        code: Code | None = None,
    ) -> None:
        """Reads a topic, shared with the other members of the group. Raises InvalidFilter, with the
        column, and CodeError."""
        if self._assigned is not None:
            raise ConfigError("a consumer is assigned queues or subscribes to topics, not both")
        source = code_source(code) if code is not None else None
        self._member.subscribe(subscription(topic, tags, sql, source), source)
        self._pull_anew({topic})

    def unsubscribe(self, topic: str) -> None:
        self._member.unsubscribe(topic)

    def assign(
        self,
        queues: Iterable[MessageQueue],
        *,
        tags: str | None = None,
        sql: str | None = None,
        code: Code | None = None,
    ) -> None:
        """Reads these queues, whoever else does: it takes no part in the sharing. Called before the
        start, or again while it runs. `code` filters in this process: nothing is uploaded in the
        name of a group that it is not a member of."""
        if self._member.subscriptions:
            raise ConfigError("a consumer is assigned queues or subscribes to topics, not both")
        source = code_source(code) if code is not None else None
        self._assigned = sorted(set(queues))
        topics = {queue.topic for queue in self._assigned}
        self._assigned_filters = {topic: subscription(topic, tags, sql, source) for topic in topics}
        self._member.code.assign(topics, source)
        if self.started and self._session.is_running:
            self._session.spawn(self._take_up_assigned())
            self._pull_anew(topics)

    def _pull_anew(self, topics: set[str]) -> None:
        """Pulls once more what is being pulled: a pull that waits at the broker has the old filter,
        and would pass over what it does not match."""
        for inbox in self._inboxes.values():
            if inbox.queue.topic in topics:
                inbox.begin_anew()

    @property
    def subscriptions(self) -> dict[str, Subscription]:
        return dict(self._member.subscriptions or self._assigned_filters)

    @property
    def code_status(self) -> dict[str, CodeStatus]:
        """How subscriptions with filters in code are served, by topic."""
        return self._member.code.status()

    # Its life

    async def start(self) -> None:
        """Raises Unreachable, TopicNotFound, SubscriptionMismatch, CodeError, ResponseError."""
        if self.started:
            self._session.check()
            raise Error("the consumer is started already")
        if self._assigned is None and not self._member.subscriptions:
            raise ConfigError(
                f"group {self.group}: it reads nothing; call subscribe or assign first"
            )
        await self._session.start()
        self.started = time.time()
        try:
            if self._assigned is None:
                await self._member.join()
                self._session.check()  # it may be closed by now
            else:
                for topic in self._assigned_filters:
                    await self._session.routes.get(topic)
                await self._member.code.start()
                await self._take_up_assigned()
                for queue in self._assigned[:1]:
                    if not self._inboxes:  # none could be taken up: say why
                        await self._session.peer(
                            await self._session.routes.master(queue.broker_name)
                        )
        except BaseException:
            await self._session.close()
            raise
        if self.config.auto_commit:
            self._session.spawn(every(self.config.commit_interval, self._save))

    async def close(self) -> None:
        """Saves how far it came, if it commits by itself."""
        if self._session.is_running and self.config.auto_commit:
            await self._save()
        for inbox in self._inboxes.values():
            inbox.drop()
        self._inboxes.wake()
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
        if error is None:
            self._inboxes.mark_processed()
        await self.close()

    def _fail(self, error: Exception) -> None:
        if self._inboxes.error is None:
            log.error("group %s: %s", self.group, error)
            self._inboxes.error = error
            self._inboxes.wake()

    # Taking messages

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        return self

    async def __anext__(self) -> ReceivedMessage:
        """Returns the next message. Ends when the consumer is closed."""
        self._check_started()
        inboxes = self._inboxes
        inboxes.mark_processed()
        while True:
            message = inboxes.take_one(before_errors=False)
            if message is not None:
                return message
            if not await inboxes.wait(None):
                raise StopAsyncIteration

    async def getmany(self, limit: int = 500, timeout: float = 5.0) -> list[ReceivedMessage]:
        """Returns as many as there are, up to `limit`; none if none come within `timeout` seconds.
        Fewer if their bodies are compressed, and have `max_body_size` bytes together by then.

        Raises UnreadableMessage for a damaged record, if no message was taken before it.
        """
        self._check_started()
        self._session.check()
        inboxes = self._inboxes
        inboxes.mark_processed()
        deadline = time.monotonic() + timeout
        found: list[ReceivedMessage] = []
        room = self.config.max_body_size
        while True:
            while len(found) < limit and room > 0:
                message = inboxes.take_one(before_errors=bool(found))
                if message is None:
                    break
                found.append(message)
                if message.stored_body and message.is_readable:
                    room -= len(message.body)
            if found or not await inboxes.wait(deadline):
                return found

    async def batches(
        self,
        *,
        rows: int = 16_384,
        linger: float = 0.1,
        columns: Sequence[str] | None = None,
        properties: Sequence[str] | None = None,
        idle: float | None = None,
    ) -> "AsyncIterator[pa.RecordBatch]":
        """Yields Arrow record batches of about `rows` messages, or of what came within `linger`
        seconds of the first. `columns` are those wanted, all if not given; `properties` are given
        columns of their own. Ends when the consumer is closed, or nothing came for `idle` seconds.

        Raises UnreadableMessage for a damaged record, or a body that can't be decompressed, after
        the rows before it; another call goes on with what follows.
        """
        from .columns import decode

        self._check_started()
        # wrong columns are told of now; the first time on a machine it compiles, for some seconds
        await asyncio.to_thread(decode, [], columns=columns, properties=properties)
        inboxes = self._inboxes
        while True:
            inboxes.mark_processed()
            taken = await inboxes.take_pieces(rows, linger, idle)
            if not taken:
                return
            by_tags: dict[frozenset[str], list[tuple[Inbox, Piece]]] = {}
            for inbox, piece in taken:
                by_tags.setdefault(inboxes.tags(inbox.queue.topic), []).append((inbox, piece))
            try:
                for tags in list(by_tags):
                    for batch, is_last in decode_pieces(
                        inboxes,
                        by_tags[tags],
                        self.config,
                        columns=columns,
                        properties=properties,
                        tags=tags,
                    ):
                        inboxes.mark_processed()
                        if is_last:
                            for inbox, piece in by_tags.pop(tags):
                                inbox.lent -= 1
                                inboxes.hand_out(inbox, piece.next_offset)
                        if batch.num_rows:
                            yield batch
            finally:  # who asked has gone, or decoding failed: nobody saw the rest
                for inbox, piece in reversed([one for some in by_tags.values() for one in some]):
                    inboxes.put_back(inbox, piece)

    def _check_started(self) -> None:
        if not self.started:
            raise ClientClosed("consumer", started=False)

    def _filter(self, topic: str) -> Subscription | None:
        return self._member.subscriptions.get(topic) or self._assigned_filters.get(topic)

    # Queues come and go: called by the member

    @property
    def held(self) -> Collection[MessageQueue]:
        return self._inboxes.keys()

    async def gain(self, queues: list[MessageQueue]) -> None:
        found = await starts(self._session, self._offsets, queues, self.config)
        for queue, offset in found.items():
            self._take_up(queue, offset)

    async def _take_up_assigned(self) -> None:
        async with self._assigning:
            wanted, held = set(self._assigned or ()), set(self._inboxes)
            await self.lose(sorted(held - wanted))
            await self.gain(sorted(wanted - held))

    def _take_up(self, queue: MessageQueue, offset: int, *, paused: bool = False) -> None:
        if (old := self._inboxes.get(queue)) is not None:
            old.drop()
        inbox = self._inboxes[queue] = Inbox(queue, offset)
        inbox.is_paused = paused
        inbox.begin(self._session, self._puller, self._filter, self._inboxes.put, self._fail)

    async def lose(self, queues: list[MessageQueue]) -> None:
        lost = [one for queue in queues if (one := self._inboxes.pop(queue, None)) is not None]
        for inbox in lost:
            self._inboxes.drop(inbox)
        if self.config.auto_commit:
            await self._save_some(lost)

    async def restart(self, offsets: dict[MessageQueue, int]) -> None:
        """Begins again from other offsets, forwards or back, as an operator has it."""
        async with self._member.balancing:
            for queue, offset in offsets.items():
                if queue in self._inboxes:
                    log.warning("%s: reset to %d", queue, offset)
                    self._move(queue, offset)
            await self._save()

    def _move(self, queue: MessageQueue, offset: int) -> None:
        inbox = self._inboxes[queue]
        self._inboxes.drop(inbox)
        self._take_up(queue, offset, paused=inbox.is_paused)

    # Where it is

    def position(self, queue: MessageQueue) -> int | None:
        """The offset of the next message it will give; None if it does not read the queue."""
        inbox = self._inboxes.get(queue)
        return None if inbox is None else inbox.position

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Raises ConfigError if it does not read the queue, or the offset is not there."""
        self._check_held(queue)
        first, last = await self.first_offset(queue), await self.last_offset(queue)
        if not first <= offset <= last:
            raise ConfigError(f"{queue} has offsets {first} to {last}: {offset} is none of them")
        if queue in self._inboxes:
            self._move(queue, offset)

    async def seek_to_first(self, *queues: MessageQueue) -> None:
        """Moves to the first message of these queues, of all it reads if none is given; and so with
        the others."""
        for queue in queues or self.assignment:
            self._check_held(queue)
            self._move(queue, await self.first_offset(queue))

    async def seek_to_last(self, *queues: MessageQueue) -> None:
        for queue in queues or self.assignment:
            self._check_held(queue)
            self._move(queue, await self.last_offset(queue))

    async def seek_to_time(self, moment: Moment, *queues: MessageQueue) -> None:
        """Moves to the first message stored then or later."""
        for queue in queues or self.assignment:
            self._check_held(queue)
            self._move(queue, await self.offset_at(queue, moment))

    def _check_held(self, queue: MessageQueue) -> None:
        self._session.check()
        if queue not in self._inboxes:
            raise ConfigError(f"{queue} is not read by this consumer: see its assignment")

    def pause(self, *queues: MessageQueue) -> None:
        """No more is asked for; what is here already is kept, and given."""
        for queue in queues or self.assignment:
            self._check_held(queue)
            self._inboxes[queue].is_paused = True

    def resume(self, *queues: MessageQueue) -> None:
        for queue in queues or self.assignment:
            self._check_held(queue)
            self._inboxes[queue].is_paused = False
            self._inboxes[queue].changed()

    async def commit(self) -> None:
        """Counts all that was handed out as processed, and saves that. Raises Error,
        TimeoutError."""
        self._session.check()
        self._inboxes.mark_processed()
        await self._save_all(list(self._inboxes.values()))

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's offset as it is saved."""
        return await self._offsets.load(queue)

    async def _save(self) -> None:
        await self._save_some(list(self._inboxes.values()))

    async def _save_some(self, inboxes: list[Inbox]) -> None:
        try:
            await self._save_all(inboxes)
        except (Error, TimeoutError) as error:
            log.warning("group %s: offsets are not saved, tried again: %s", self.group, error)

    async def _save_all(self, inboxes: list[Inbox]) -> None:
        changed = {one.queue: one.done for one in inboxes if one.done != one.committed}
        if changed:
            await self._offsets.save(changed)
            for inbox in inboxes:
                if inbox.queue in changed:
                    inbox.committed = changed[inbox.queue]

    def reports(self) -> dict[MessageQueue, QueueReport]:
        """What it tells brokers of its queues."""
        return {
            inbox.queue: QueueReport(
                commit_offset=inbox.done,
                first_cached=inbox.position,
                last_cached=max(inbox.next_offset - 1, 0),
                cached=inbox.count,
                cached_mib=inbox.bytes >> 20,
                last_pull_timestamp=int(inbox.last_pull * 1000),
                last_consume_timestamp=int(time.time() * 1000),
            )
            for inbox in self._inboxes.values()
        }

    # What there is

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Returns the queues of a topic that can be read. Raises TopicNotFound, Unreachable."""
        await self._session.start()
        return await self._session.routes.read_queues(topic)

    async def first_offset(self, queue: MessageQueue) -> int:
        await self._session.start()
        return await offset_queries.first_offset(self._session, queue)

    async def last_offset(self, queue: MessageQueue) -> int:
        """Returns the offset that the next message of the queue will have."""
        await self._session.start()
        return await offset_queries.last_offset(self._session, queue)

    async def offset_at(self, queue: MessageQueue, moment: Moment) -> int:
        """Returns the offset of the first message stored then or later."""
        await self._session.start()
        return await offset_queries.offset_at(self._session, queue, millis(moment))
