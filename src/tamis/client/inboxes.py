"""What a pull consumer has pulled and not yet given to anybody, queue by queue.

Answers to pulls lie in inboxes as they came until they are taken: a message at a time, or as whole
pieces that are lent to be decoded together. Queues take turns, each for one answer.

What was handed out counts as processed only when `mark_processed` is called. `Inbox.done`, which is
what the group's offset is saved as, never passes a message that does not. A piece that was lent is
handed out or put back.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ..errors import CorruptRecord, UnreadableMessage
from ..wire.bodies import MessageQueue, Subscription
from .config import ConsumerConfig
from .fetching import Pulled, Stream
from .received import ReceivedMessage, decode_one, examine
from .session import Session

__all__ = ["Inbox", "Inboxes", "Piece"]

log = logging.getLogger(__name__)

_MOST_BYTES: Final = 256 * 2**20  # of the bodies of a record batch


@dataclass(slots=True)
class Piece:
    """An answer to a pull, or what is left of it."""

    body: bytes
    offset: int  # of the next message in it, or less
    next_offset: int
    count: int  # at most so many messages
    at: int = 0  # bytes of it that were taken
    error: UnreadableMessage | None = None  # the one message it held is damaged: there is no body

    def offset_after(self, message: ReceivedMessage) -> int:
        """Returns the offset after a message's, as its record says, if that can be: a damaged
        record is not to move the group's offset."""
        return min(max(message.offset + 1, self.offset), self.next_offset)


class Inbox(Stream):
    """A queue that is read, and what came of it and was not taken yet."""

    def __init__(self, queue: MessageQueue, offset: int) -> None:
        super().__init__(queue, offset)
        self.pieces: deque[Piece] = deque()
        self.count = 0
        self.bytes = 0
        self.position = offset  # of the next message to be taken
        self.done = offset  # all before it is processed
        self.lent = 0  # pieces that are on their way to somebody
        self.committed: int | None = None

    def update_room(self, config: ConsumerConfig) -> None:
        """Sets `room` and `is_full` by what is here; pulling goes on if there is room again."""
        was = self.is_full
        each = self.bytes // self.count + 1 if self.count else 1
        self.room = min(
            config.max_queue_messages - self.count,
            (config.max_queue_bytes - self.bytes) // each,
        )
        self.is_full = (
            self.count >= config.max_queue_messages or self.bytes >= config.max_queue_bytes
        )
        if was and not self.is_full:
            self.changed()


class Inboxes(dict[MessageQueue, Inbox]):
    """The queues that a consumer reads, with the inbox of each."""

    def __init__(
        self,
        session: Session,
        config: ConsumerConfig,
        filter_of: Callable[[str], Subscription | None],
    ) -> None:
        super().__init__()
        self._session = session
        self._config = config
        self._filter_of = filter_of
        self._turns: deque[Inbox] = deque()  # those with something in them, each once
        self._arrived = asyncio.Event()
        self._handed_out: dict[MessageQueue, tuple[Inbox, int]] = {}  # not known to be processed
        self.error: Exception | None = None  # raised when there is nothing left to take

    # Coming in

    def put(self, stream: Stream, pulled: Pulled) -> None:
        inbox = self.get(stream.queue)
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
            count = min(max(pulled.next_offset - pulled.offset, 0), self._config.pull_size)
        if not pulled.body:
            if not inbox.pieces and not inbox.lent:  # what did not match is passed
                inbox.position = pulled.next_offset
                if inbox.queue not in self._handed_out:
                    inbox.done = pulled.next_offset
            return
        if not inbox.pieces:
            self._turns.append(inbox)
        piece = Piece(pulled.body, pulled.offset, pulled.next_offset, count)
        if inbox.is_isolating:
            piece.error = examine(pulled.body, inbox.queue, pulled.next_offset - 1)
            if piece.error is not None:
                piece.body = b""
                inbox.isolate(0)
        inbox.pieces.append(piece)
        inbox.count += count
        inbox.bytes += len(piece.body)
        inbox.update_room(self._config)
        self._arrived.set()

    async def wait(self, deadline: float | None) -> bool:
        """Waits until there is something to take. Returns False if nothing will come, or nothing
        came in time. Raises `error`."""
        while not self._turns:
            if self.error is not None:
                raise self.error
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

    def wake(self) -> None:
        """Lets who waits look again: there is an error, or the consumer is closed."""
        self._arrived.set()

    # Going out

    def take_one(self, *, before_errors: bool) -> ReceivedMessage | None:
        """Takes the next message; None if there is none, or none before an error. Raises
        UnreadableMessage."""
        limit = self._config.max_body_size
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
                self.isolate(inbox, piece.offset, piece.next_offset)
                continue
            piece.at += message.size
            reached = piece.offset = piece.offset_after(message)
            if piece.at >= len(piece.body):
                reached = piece.next_offset
                self._finish_piece(inbox)
                self._turns.popleft()  # a queue's turn is as long as one answer of a pull
                if inbox.pieces:
                    self._turns.append(inbox)
            self.hand_out(inbox, reached)
            tags = self.tags(inbox.queue.topic)
            if not tags or message.tags in tags:
                return message
        return None

    async def take_pieces(
        self, rows: int, linger: float, idle: float | None
    ) -> list[tuple[Inbox, Piece]]:
        """Takes what is left of answers, about `rows` messages. The pieces are lent: each is to be
        handed out or put back. None are returned if there will be no more."""
        found: list[tuple[Inbox, Piece]] = []
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
                if count >= rows or size >= _MOST_BYTES or not await self.wait(deadline):
                    return found
        except BaseException:  # cancelled, for one
            for inbox, piece in reversed(found):
                self.put_back(inbox, piece)
            raise

    def _take_error(self, inbox: Inbox) -> UnreadableMessage:
        """Takes the error the inbox begins with. It counts as handed out: the next message is the
        one after it."""
        piece = self._finish_piece(inbox)
        self._turns.remove(inbox)
        if inbox.pieces:
            self._turns.append(inbox)
        self.hand_out(inbox, piece.next_offset)
        assert piece.error is not None
        return piece.error

    def _finish_piece(self, inbox: Inbox) -> Piece:
        piece = inbox.pieces.popleft()
        inbox.count -= piece.count
        inbox.bytes -= len(piece.body)
        inbox.update_room(self._config)
        return piece

    def put_back(self, inbox: Inbox, piece: Piece) -> None:
        if not inbox.pieces:
            self._turns.append(inbox)
        inbox.pieces.appendleft(piece)
        inbox.lent -= 1
        inbox.count += piece.count
        inbox.bytes += len(piece.body)

    def hand_out(self, inbox: Inbox, reached: int) -> None:
        """Notes that all messages before an offset were given to whoever asked."""
        inbox.position = reached
        self._handed_out[inbox.queue] = (inbox, reached)

    def mark_processed(self) -> None:
        """Counts what was handed out as processed."""
        for inbox, reached in self._handed_out.values():
            inbox.done = reached
        self._handed_out.clear()

    def drop(self, inbox: Inbox) -> None:
        """Reads the queue no further; what was handed out of it will not count as processed."""
        inbox.drop()
        self._handed_out.pop(inbox.queue, None)

    def isolate(self, inbox: Inbox, offset: int, before: int) -> None:
        """Pulls what comes from `offset` on anew, one message at a time: there is a damaged record
        before the offset `before`."""
        log.warning("%s: a record from offset %d on is damaged: pulled again", inbox.queue, offset)
        inbox.pieces.clear()
        inbox.count = inbox.bytes = 0
        if inbox in self._turns:
            self._turns.remove(inbox)
        inbox.next_offset = offset
        inbox.isolate(before)
        inbox.update_room(self._config)
        inbox.begin_anew()

    def tags(self, topic: str) -> frozenset[str]:
        """Returns the tags that messages are compared with once more, exactly: the broker compares
        hashes."""
        one = self._filter_of(topic)
        return frozenset(one.tags) if one is not None else frozenset()
