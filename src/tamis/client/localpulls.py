"""Pulls of a topic whose filter in code runs in this process: everything comes from the broker and
is judged here, in batches.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ..errors import CodeError
from ..filter.tags import ALL
from ..wire.bodies import MessageQueue, Subscription
from .backoff import pause_before
from .config import ConsumerConfig
from .fetching import Pulled, Puller
from .received import decode_one
from .sendback import SendBack
from .session import Session

if TYPE_CHECKING:
    from ..code import CodeFilter
    from .judging import Failure, Judged, LocalFilter

__all__ = ["LocalPulls"]

_AHEAD: Final = 16  # pulls of a queue at once: larger batches are judged faster
_HELD: Final = 30.0  # seconds at most between attempts at a message that is held back


class LocalPulls:
    """Filters one topic's messages in this process. The filter is loaded when it is first needed;
    `tell` is told of messages that it failed on."""

    def __init__(
        self,
        session: Session,
        group: str,
        config: ConsumerConfig,
        topic: str,
        code: "CodeFilter",
        tell: Callable[[str], None],
    ) -> None:
        self._group = group
        self._config = config
        self._topic = topic
        self._code = code
        self._tell = tell
        self._puller = Puller(session, group, config, posts=True)
        self._send_back = SendBack(session, group, max(config.max_reconsume_times, 0))
        self._local: LocalFilter | None = None
        self._error: CodeError | None = None  # why it can't be loaded
        self._ends: dict[MessageQueue, int] = {}
        self._holds: dict[MessageQueue, tuple[int, int]] = {}  # offset, attempts
        self._is_closed = False
        self.seen = 0  # messages
        self.matched = 0
        self.failed = 0

    @property
    def is_loaded(self) -> bool:
        return self._local is not None

    def close(self) -> None:
        self._is_closed = True
        if self._local is not None:
            self._local.close()

    async def load(self) -> "LocalFilter":
        """Execute the source, if that was not done. Raises CodeError, the same each time."""
        from ..code import Context
        from .judging import LocalFilter

        if self._error is not None:
            raise self._error
        if self._local is None:
            context = Context(self._group, self._topic)
            local = self._local = LocalFilter(self._code, context, self._config.max_body_size)
            try:
                await local.load()
            except CodeError as error:
                local.close()
                self._local, self._error = None, error
                raise
        return self._local

    async def pull(self, queue: MessageQueue, offset: int, most: int | None) -> Pulled:
        """Return what matches. Raises what a pull does, and CodeError if the filter can't be loaded
        or the queue is held back."""
        local = await self.load()
        pulled = await self._pull_all(queue, offset, most)
        self._ends[queue] = pulled.max_offset
        if not pulled.body:
            return pulled
        if self._is_closed:
            raise CodeError(self._code.name, "it is not in use any more")
        judged = await local.judge(queue, pulled.body)
        self._count_failures(queue, judged)
        await self._resolve_failures(queue, pulled, judged)
        self.seen += judged.seen
        self.matched += len(judged.records)
        records = [record for _, record in judged.records]
        pulled.body = b"".join((*records, judged.rest))
        pulled.count = len(records) + bool(judged.rest)
        return pulled

    async def _pull_all(self, queue: MessageQueue, offset: int, most: int | None) -> Pulled:
        """From the broker: several pulls at once where it is known that there is as much."""
        everything = Subscription(topic=queue.topic, expression=ALL, expression_type="TAG")
        size = self._config.pull_size
        count = min((self._ends.get(queue, 0) - offset) // size, _AHEAD) if most is None else 0
        pulls = self._puller.pull_ahead(queue, offset, everything, count) if count > 1 else []
        if not pulls:
            return await self._puller.pull(queue, offset, everything, most)
        try:
            first = await pulls[0]
            parts = [first.body]
            for pull in pulls[1:]:
                following = await pull
                if following.offset != first.next_offset or not following.body:
                    break  # the one before was not answered in full
                parts.append(following.body)
                first.next_offset, first.max_offset = following.next_offset, following.max_offset
            first.body = b"".join(parts)
            return first
        finally:
            for pull in pulls:
                if not pull.cancel() and not pull.cancelled():
                    pull.exception()  # what one met, the others did too

    def _count_failures(self, queue: MessageQueue, judged: "Judged") -> None:
        """Once each, also if a message is held back and tried again."""
        held, _ = self._holds.get(queue, (-1, 0))
        failed = judged.failures[:1] if self._config.code_on_error == "hold" else judged.failures
        self.failed += sum(failure.offset != held for failure in failed)

    async def _resolve_failures(
        self, queue: MessageQueue, pulled: Pulled, judged: "Judged"
    ) -> None:
        """By `code_on_error`. Raises CodeError if the queue is held back at its first message."""
        policy = self._config.code_on_error
        if judged.failures:
            first, count = judged.failures[0], len(judged.failures)
            failed = "1 message" if count == 1 else f"{count} messages"
            where = f"{queue}, offset {first.offset}"
            self._tell(f"failed on {failed} here (on_error = {policy}), {where}: {first.reason}")
        if policy == "pass":
            passed = [(failure.offset, failure.record) for failure in judged.failures]
            judged.records = sorted(judged.records + passed)
        elif policy in ("hold", "dead-letter"):
            for failure in judged.failures:
                if policy == "hold" or not await self._bury(queue, failure):
                    await self._hold(queue, pulled, judged, failure)
                    return
        self._holds.pop(queue, None)

    async def _bury(self, queue: MessageQueue, failure: "Failure") -> bool:
        """Send a message to the dead letter topic. Returns whether a broker has it there."""
        message = decode_one(failure.record, queue, 0, self._config.max_body_size)
        return await self._send_back(message, -1)

    async def _hold(
        self, queue: MessageQueue, pulled: Pulled, judged: "Judged", failure: "Failure"
    ) -> None:
        """Give what comes before the message; it and what follows is pulled again."""
        offset = failure.offset
        before, attempts = self._holds.get(queue, (offset, 0))
        attempts = attempts + 1 if before == offset else 1
        self._holds[queue] = (offset, attempts)
        if offset <= pulled.offset:
            # a failed pull is tried again after a second anyway
            await asyncio.sleep(pause_before(attempts - 1, 1.0, _HELD) - 1.0)
            why = f"{queue}, offset {offset} is held back: {failure.reason}"
            raise CodeError(self._code.name, why)
        judged.records = [kept for kept in judged.records if kept[0] < offset]
        judged.seen = min(judged.seen, offset - pulled.offset)
        judged.rest = b""
        pulled.next_offset = offset
