"""The pull consumer: messages are taken, one by one, many at a time, or as Arrow record batches.

What was pulled lies here as it came until it is asked for. A message, or a batch, counts as worked
off when the next one is asked for, when `commit` is called, or when the `async with` ends without
an exception: offsets never pass one that was not.

A damaged record is told of by UnreadableMessage when its turn comes, after what was taken before it
was given, and counts as taken then: the next call goes on with the message after it.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from ..errors import ClientClosed, ConfigError, CorruptRecord, Error, UnreadableMessage
from ..wire.bodies import ConsumeType, MessageQueue, QueueReport, Subscription
from . import offsets as offset_queries
from .codefilters import CodeStatus
from .codesource import Code, code_source
from .config import ConsumerConfig, Moment, check_group, millis
from .fetching import Pulled, Puller, Stream
from .membership import Member
from .offsets import BrokerOffsets, LocalOffsets, Offsets, starts
from .received import ReceivedMessage, decode_one, examine
from .remote import Remote
from .session import Session, every
from .subscriptions import subscription

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

__all__ = ["Consumer"]

log = logging.getLogger(__name__)

_DEFAULTS: Final = ConsumerConfig()
_MOST_BYTES: Final = 256 * 2**20  # of the bodies of a record batch


@dataclass(slots=True)
class _Piece:
    """An answer to a pull, or what is left of it."""

    body: bytes
    offset: int  # of the next message in it, or less
    next_offset: int
    count: int  # at most so many messages
    at: int = 0  # bytes of it that were taken
    error: UnreadableMessage | None = None  # the one message it held is damaged: there is no body


class Inbox(Stream):
    """A queue that is read, and what came of it and was not taken yet."""

    def __init__(self, queue: MessageQueue, offset: int) -> None:
        super().__init__(queue, offset)
        self.pieces: deque[_Piece] = deque()
        self.count = 0
        self.bytes = 0
        self.position = offset  # of the next message to be taken
        self.done = offset  # all before it is worked off
        self.lent = 0  # pieces that are on their way to somebody
        self.committed: int | None = None


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
        self._inboxes: dict[MessageQueue, Inbox] = {}
        self._turns: deque[Inbox] = deque()  # those with something in them, each once
        self._arrived = asyncio.Event()
        self._taken: dict[MessageQueue, tuple[Inbox, int]] = {}  # and not known to be worked off
        self._error: Exception | None = None
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
        """Shared with the other members of the group. Raises InvalidFilter, with the column, and
        CodeError."""
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
        """These queues, whoever else reads them: it does not take part in the sharing. Before the
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
        """A pull that waits at the broker has the old filter, and would pass over what it does not
        match."""
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
        self._arrived.set()
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
            self._settle()
        await self.close()

    def _fail(self, error: Exception) -> None:
        if self._error is None:
            log.error("group %s: %s", self.group, error)
            self._error = error
            self._arrived.set()

    # Taking messages

    def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        return self

    async def __anext__(self) -> ReceivedMessage:
        """Ends when the consumer is closed."""
        self._check_started()
        self._settle()
        while True:
            message = self._take_one(before_errors=False)
            if message is not None:
                return message
            if not await self._wait(None):
                raise StopAsyncIteration

    async def getmany(self, limit: int = 500, timeout: float = 5.0) -> list[ReceivedMessage]:
        """As many as there are, up to `limit`; none if none come within `timeout` seconds. Fewer
        if their bodies are compressed, and have `max_body_size` bytes together by then.

        Raises UnreadableMessage for a damaged record, if no message was taken before it.
        """
        self._check_started()
        self._session.check()
        self._settle()
        deadline = time.monotonic() + timeout
        found: list[ReceivedMessage] = []
        room = self.config.max_body_size
        while True:
            while len(found) < limit and room > 0:
                message = self._take_one(before_errors=bool(found))
                if message is None:
                    break
                found.append(message)
                if message.stored_body and message.is_readable:
                    room -= len(message.body)
            if found or not await self._wait(deadline):
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
        """Arrow record batches of about `rows` messages, or of what came within `linger` seconds
        of the first. `columns` are those wanted, all if not given; `properties` are given columns
        of their own. Ends when the consumer is closed, or nothing came for `idle` seconds.

        Raises UnreadableMessage for a damaged record, or a body that can't be decompressed, after
        the rows before it; another call goes on with what follows.
        """
        from .columns import decode

        self._check_started()
        # wrong columns are told of now; the first time on a machine it compiles, for some seconds
        await asyncio.to_thread(decode, [], columns=columns, properties=properties)
        while True:
            self._settle()
            taken = await self._take_pieces(rows, linger, idle)
            if not taken:
                return
            by_tags: dict[frozenset[str], list[tuple[Inbox, _Piece]]] = {}
            for inbox, piece in taken:
                by_tags.setdefault(self._tags(inbox.queue.topic), []).append((inbox, piece))
            try:
                for tags in list(by_tags):
                    for batch, is_last in self._decoded(by_tags[tags], columns, properties, tags):
                        self._settle()
                        if is_last:
                            for inbox, piece in by_tags.pop(tags):
                                inbox.lent -= 1
                                self._hand_out(inbox, piece.next_offset)
                        if batch.num_rows:
                            yield batch
            finally:  # who asked has gone, or decoding failed: nobody saw the rest
                for inbox, piece in reversed([one for some in by_tags.values() for one in some]):
                    self._put_back(inbox, piece)

    def _decoded(
        self,
        taken: list[tuple[Inbox, _Piece]],
        columns: Sequence[str] | None,
        properties: Sequence[str] | None,
        tags: frozenset[str],
    ) -> "Iterator[tuple[pa.RecordBatch, bool]]":
        """Batches of what was taken, and whether each is the last. What lies behind damage is taken
        out of `taken`, and so is what was passed over when UnreadableMessage is raised."""
        from .columns import Chunk, decode_parts

        while True:
            chunks = [
                Chunk(one.queue.broker_name, one.queue.topic, piece.body[piece.at :])
                for one, piece in taken
            ]
            try:
                yield from decode_parts(
                    chunks,
                    columns=columns,
                    properties=properties,
                    tags=tags,
                    max_body_size=self.config.max_body_size,
                )
                return
            except UnreadableMessage:
                self._settle()
                self._pass_over(taken, tags)
                raise
            except CorruptRecord:  # nothing was given yet
                if not self._cut_damaged(taken):
                    raise

    def _cut_damaged(self, taken: list[tuple[Inbox, _Piece]]) -> bool:
        """Leave out of pieces what a damaged record begins, and have it pulled again by itself.
        Whether there was such a record."""
        cut: set[MessageQueue] = set()
        for inbox, piece in list(taken):
            if inbox.queue in cut:
                taken.remove((inbox, piece))
                inbox.lent -= 1
                continue
            good, offset = piece.at, piece.offset
            try:
                while good < len(piece.body):
                    message = decode_one(piece.body, inbox.queue, good)
                    good, offset = good + message.size, _between(message.offset + 1, piece)
            except CorruptRecord:
                cut.add(inbox.queue)
                self._isolate(inbox, offset, piece.next_offset)
                if good == piece.at:
                    taken.remove((inbox, piece))
                    inbox.lent -= 1
                else:
                    piece.body, piece.next_offset = piece.body[:good], offset
        return bool(cut)

    def _pass_over(self, taken: list[tuple[Inbox, _Piece]], tags: frozenset[str]) -> None:
        """The first message whose body can't be read: what is before it was given, and its error is
        raised."""
        limit, is_found = self.config.max_body_size, False
        while taken and not is_found:
            inbox, piece = taken[0]
            while piece.at < len(piece.body) and not is_found:
                message = decode_one(piece.body, inbox.queue, piece.at, limit)
                piece.at += message.size
                piece.offset = _between(message.offset + 1, piece)
                is_found = (not tags or message.tags in tags) and not message.is_readable
            if piece.at < len(piece.body):
                self._hand_out(inbox, piece.offset)
            else:
                taken.pop(0)
                inbox.lent -= 1
                self._hand_out(inbox, piece.next_offset)

    def _check_started(self) -> None:
        if not self.started:
            raise ClientClosed("consumer", started=False)

    def _tags(self, topic: str) -> frozenset[str]:
        """For the second, exact look: the broker compares hashes."""
        one = self._filter(topic)
        return frozenset(one.tags) if one is not None else frozenset()

    def _filter(self, topic: str) -> Subscription | None:
        return self._member.subscriptions.get(topic) or self._assigned_filters.get(topic)

    def _take_one(self, *, before_errors: bool) -> ReceivedMessage | None:
        """The next message; None if there is none, or none before an error. Raises
        UnreadableMessage."""
        limit = self.config.max_body_size
        while self._turns:
            inbox = self._turns[0]
            if inbox.is_dropped or not inbox.pieces:
                self._turns.popleft()
                continue
            piece = inbox.pieces[0]
            if piece.error is not None:
                if before_errors:
                    return None
                raise self._take_error(inbox)
            try:
                message = decode_one(piece.body, inbox.queue, piece.at, limit)
            except CorruptRecord:
                self._isolate(inbox, piece.offset, piece.next_offset)
                continue
            piece.at += message.size
            reached = piece.offset = _between(message.offset + 1, piece)
            if piece.at >= len(piece.body):
                reached = piece.next_offset
                self._finish_piece(inbox)
                self._turns.popleft()  # a queue's turn is as long as one answer of a pull
                if inbox.pieces:
                    self._turns.append(inbox)
            self._hand_out(inbox, reached)
            tags = self._tags(inbox.queue.topic)
            if not tags or message.tags in tags:
                return message
        return None

    def _take_error(self, inbox: Inbox) -> UnreadableMessage:
        """Takes the error the inbox begins with. It counts as handed out: the next message is the
        one after it."""
        piece = self._finish_piece(inbox)
        self._turns.remove(inbox)
        if inbox.pieces:
            self._turns.append(inbox)
        self._hand_out(inbox, piece.next_offset)
        assert piece.error is not None
        return piece.error

    def _isolate(self, inbox: Inbox, offset: int, before: int) -> None:
        """Pull what comes from an offset on anew, one message at a time: there is a damaged record
        before another offset."""
        log.warning("%s: a record from offset %d on is damaged: pulled again", inbox.queue, offset)
        inbox.pieces.clear()
        inbox.count = inbox.bytes = 0
        if inbox in self._turns:
            self._turns.remove(inbox)
        inbox.next_offset = offset
        inbox.isolate(before)
        self._limit(inbox)
        inbox.begin_anew()

    async def _take_pieces(
        self, rows: int, linger: float, idle: float | None
    ) -> list[tuple[Inbox, _Piece]]:
        """What is left of answers of pulls, lent: it is to be handed out or put back. None if there
        will be no more."""
        found: list[tuple[Inbox, _Piece]] = []
        count = size = 0
        deadline = None if idle is None else time.monotonic() + idle
        try:
            while True:
                while self._turns and count < rows and size < _MOST_BYTES:
                    inbox = self._turns.popleft()
                    if inbox.is_dropped or not inbox.pieces:
                        continue
                    if inbox.pieces[0].error is not None:
                        self._turns.appendleft(inbox)
                        if found:
                            return found
                        raise self._take_error(inbox)
                    if not found:
                        deadline = time.monotonic() + linger
                    piece = self._finish_piece(inbox)
                    inbox.lent += 1
                    found.append((inbox, piece))
                    if inbox.pieces:
                        self._turns.append(inbox)
                    count += piece.count
                    size += len(piece.body)
                if count >= rows or size >= _MOST_BYTES or not await self._wait(deadline):
                    return found
        except BaseException:  # cancelled, for one
            for inbox, piece in reversed(found):
                self._put_back(inbox, piece)
            raise

    def _finish_piece(self, inbox: Inbox) -> _Piece:
        piece = inbox.pieces.popleft()
        inbox.count -= piece.count
        inbox.bytes -= len(piece.body)
        self._limit(inbox)
        return piece

    def _put_back(self, inbox: Inbox, piece: _Piece) -> None:
        if not inbox.pieces:
            self._turns.append(inbox)
        inbox.pieces.appendleft(piece)
        inbox.lent -= 1
        inbox.count += piece.count
        inbox.bytes += len(piece.body)

    def _hand_out(self, inbox: Inbox, reached: int) -> None:
        inbox.position = reached
        self._taken[inbox.queue] = (inbox, reached)

    def _settle(self) -> None:
        """What was handed out is worked off."""
        for inbox, reached in self._taken.values():
            inbox.done = reached
        self._taken.clear()

    async def _wait(self, deadline: float | None) -> bool:
        """For something to come; False if nothing will, or not in time. Raises what went wrong."""
        while not self._turns:
            if self._error is not None:
                raise self._error
            if not self._session.is_running:
                return False
            self._arrived.clear()
            if deadline is None:
                await self._arrived.wait()
                continue
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            try:
                async with asyncio.timeout(left):
                    await self._arrived.wait()
            except TimeoutError:
                return False
        return True

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
        inbox.begin(self._session, self._puller, self._filter, self._came, self._fail)

    async def lose(self, queues: list[MessageQueue]) -> None:
        lost = [one for queue in queues if (one := self._inboxes.pop(queue, None)) is not None]
        for inbox in lost:
            inbox.drop()
            self._taken.pop(inbox.queue, None)
        if self.config.auto_commit:
            await self._save_some(lost)

    async def restart(self, offsets: dict[MessageQueue, int]) -> None:
        """From other offsets, forwards or back, as an operator has it."""
        async with self._member.balancing:
            for queue, offset in offsets.items():
                if queue in self._inboxes:
                    log.warning("%s: reset to %d", queue, offset)
                    self._move(queue, offset)
            await self._save()

    def _move(self, queue: MessageQueue, offset: int) -> None:
        inbox = self._inboxes[queue]
        inbox.drop()
        self._taken.pop(queue, None)
        self._take_up(queue, offset, paused=inbox.is_paused)

    def _came(self, stream: Stream, pulled: Pulled) -> None:
        inbox = self._inboxes.get(stream.queue)
        if inbox is not stream or inbox is None:
            return
        if pulled.is_moved:
            log.warning(
                "%s: there is nothing at offset %d (first %d, end %d): on from %d",
                *(inbox.queue, pulled.offset, pulled.min_offset, pulled.max_offset),
                pulled.next_offset,
            )
        count = pulled.count
        if count is None:
            count = min(max(pulled.next_offset - pulled.offset, 0), self.config.pull_size)
        if not pulled.body:
            if not inbox.pieces and not inbox.lent:  # what did not match is passed
                inbox.position = pulled.next_offset
                if inbox.queue not in self._taken:
                    inbox.done = pulled.next_offset
            return
        if not inbox.pieces:
            self._turns.append(inbox)
        piece = _Piece(pulled.body, pulled.offset, pulled.next_offset, count)
        if inbox.is_isolating:
            piece.error = examine(pulled.body, inbox.queue, pulled.next_offset - 1)
            if piece.error is not None:
                piece.body = b""
                inbox.isolate(0)
        inbox.pieces.append(piece)
        inbox.count += count
        inbox.bytes += len(piece.body)
        self._limit(inbox)
        self._arrived.set()

    def _limit(self, inbox: Inbox) -> None:
        config = self.config
        was = inbox.is_full
        each = inbox.bytes // inbox.count + 1 if inbox.count else 1
        inbox.room = min(
            config.max_queue_messages - inbox.count,
            (config.max_queue_bytes - inbox.bytes) // each,
        )
        inbox.is_full = (
            inbox.count >= config.max_queue_messages or inbox.bytes >= config.max_queue_bytes
        )
        if was and not inbox.is_full:
            inbox.changed()

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
        """Of all queues if none is given; and so with the others."""
        for queue in queues or self.assignment:
            self._check_held(queue)
            self._move(queue, await self.first_offset(queue))

    async def seek_to_last(self, *queues: MessageQueue) -> None:
        for queue in queues or self.assignment:
            self._check_held(queue)
            self._move(queue, await self.last_offset(queue))

    async def seek_to_time(self, moment: Moment, *queues: MessageQueue) -> None:
        """To the first message stored then or later."""
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
        """All that was handed out is worked off, and saved. Raises Error, TimeoutError."""
        self._session.check()
        self._settle()
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
        """Those that can be read. Raises TopicNotFound, Unreachable."""
        await self._session.start()
        return await self._session.routes.read_queues(topic)

    async def first_offset(self, queue: MessageQueue) -> int:
        await self._session.start()
        return await offset_queries.first_offset(self._session, queue)

    async def last_offset(self, queue: MessageQueue) -> int:
        """Of the message to come."""
        await self._session.start()
        return await offset_queries.last_offset(self._session, queue)

    async def offset_at(self, queue: MessageQueue, moment: Moment) -> int:
        """Of the first message stored then or later."""
        await self._session.start()
        return await offset_queries.offset_at(self._session, queue, millis(moment))


def _between(offset: int, piece: _Piece) -> int:
    """An offset a record says, if it can be: a damaged one is not to move the group's."""
    return min(max(offset, piece.offset), piece.next_offset)
