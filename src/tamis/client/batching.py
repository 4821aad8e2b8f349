"""Pieces that a pull consumer has taken, decoded to Arrow record batches; and damage among them.

No row is passed over unless its error is raised: rows before damage are given first, and what lies
behind it is pulled again.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..errors import CorruptRecord, UnreadableMessage
from ..wire.bodies import MessageQueue
from .config import ConsumerConfig
from .inboxes import Inbox, Inboxes, Piece
from .received import decode_one

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

__all__ = ["decode_pieces"]


def decode_pieces(
    inboxes: Inboxes,
    taken: list[tuple[Inbox, Piece]],
    config: ConsumerConfig,
    *,
    columns: Sequence[str] | None,
    properties: Sequence[str] | None,
    tags: frozenset[str],
) -> "Iterator[tuple[pa.RecordBatch, bool]]":
    """Yields batches of what was taken, and whether each is the last. What lies behind damage is
    removed from `taken`, and so is what was passed over when UnreadableMessage is raised."""
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
                max_body_size=config.max_body_size,
            )
            return
        except UnreadableMessage:
            inboxes.mark_processed()
            _pass_over(inboxes, taken, tags, config.max_body_size)
            raise
        except CorruptRecord:  # nothing was given yet
            if not _cut_damaged(inboxes, taken):
                raise


def _cut_damaged(inboxes: Inboxes, taken: list[tuple[Inbox, Piece]]) -> bool:
    """Cuts pieces off where a damaged record begins, and has the rest pulled again, one message at
    a time. Returns whether there was such a record."""
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
                good, offset = good + message.size, piece.offset_after(message)
        except CorruptRecord:
            cut.add(inbox.queue)
            inboxes.isolate(inbox, offset, piece.next_offset)
            if good == piece.at:
                taken.remove((inbox, piece))
                inbox.lent -= 1
            else:
                piece.body, piece.next_offset = piece.body[:good], offset
    return bool(cut)


def _pass_over(
    inboxes: Inboxes, taken: list[tuple[Inbox, Piece]], tags: frozenset[str], limit: int
) -> None:
    """Hands out everything up to the first message whose body can't be read, and that too: what is
    before it was given, and its error is raised."""
    is_found = False
    while taken and not is_found:
        inbox, piece = taken[0]
        while piece.at < len(piece.body) and not is_found:
            message = decode_one(piece.body, inbox.queue, piece.at, limit)
            piece.at += message.size
            piece.offset = piece.offset_after(message)
            is_found = (not tags or message.tags in tags) and not message.is_readable
        if piece.at < len(piece.body):
            inboxes.hand_out(inbox, piece.offset)
        else:
            taken.pop(0)
            inbox.lent -= 1
            inboxes.hand_out(inbox, piece.next_offset)
