"""How far a group has come: at the broker for members that share the work, in a file for those that
each do all of it.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from ..errors import CorruptRecord, Error, NotFound, ResponseError
from ..wire import beans, fastjson, headers
from ..wire.bodies import MessageQueue, ResetOffsets
from ..wire.codes import PullFlag, RequestCode
from .config import ConsumerConfig
from .received import RETRY_PREFIX, decode_all

if TYPE_CHECKING:
    from .session import Session

__all__ = [
    "BrokerOffsets",
    "LocalOffsets",
    "Offsets",
    "first_offset",
    "last_offset",
    "offset_at",
    "start_of",
    "starts",
]

log = logging.getLogger(__name__)


class Offsets(Protocol):
    async def load(self, queue: MessageQueue) -> int | None:
        """None if the group has none yet. Raises Error, TimeoutError if that is not known."""

    async def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Raises Error, TimeoutError; then some may be saved."""


class BrokerOffsets:
    """Answered by the broker, so that a commit that failed is known to have failed."""

    def __init__(self, session: "Session", group: str) -> None:
        self._session = session
        self._group = group
        self._saving: dict[str, asyncio.Lock] = {}  # by broker

    async def load(self, queue: MessageQueue) -> int | None:
        header = headers.QueryConsumerOffset(
            consumer_group=self._group, topic=queue.topic, queue_id=queue.queue_id
        )
        address = await self._session.routes.master(queue.broker_name)
        try:
            answer = await self._session.ask(address, header, timeout=5.0)
        except NotFound:
            return None
        return headers.OffsetResponse.from_fields(answer.fields).offset

    async def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Those of a broker one after the other: of a group's first ones that come at the same time
        Apache's may lose some (`ConsumerOffsetManager.commitOffset`)."""
        await _by_broker(offsets, lambda queue: self._save(queue, offsets[queue]))

    async def _save(self, queue: MessageQueue, offset: int) -> None:
        header = headers.UpdateConsumerOffset(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=offset,
        )
        async with self._saving.setdefault(queue.broker_name, asyncio.Lock()):
            address = await self._session.routes.master(queue.broker_name)
            await self._session.ask(address, header)


async def _by_broker(
    queues: Iterable[MessageQueue], work: Callable[[MessageQueue], Awaitable[None]]
) -> None:
    """Brokers at the same time, the queues of each one after the other; one that can't be talked to
    is not asked again. Raises what went wrong first, when all else is done."""
    of_broker: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        of_broker.setdefault(queue.broker_name, []).append(queue)

    async def work_off(some: list[MessageQueue]) -> Exception | None:
        failed: Exception | None = None
        for queue in some:
            try:
                await work(queue)
            except ResponseError as error:
                failed = failed or error
            except (Error, TimeoutError) as error:
                return error
        return failed

    failures = await asyncio.gather(*map(work_off, of_broker.values()))
    for failure in failures:
        if failure is not None:
            raise failure


async def starts(
    session: "Session", offsets: Offsets, queues: list[MessageQueue], config: ConsumerConfig
) -> dict[MessageQueue, int]:
    """Where to begin, of those queues of which it can be found out now."""
    found: dict[MessageQueue, int] = {}

    async def find(queue: MessageQueue) -> None:
        offset = await offsets.load(queue)
        found[queue] = await start_of(session, queue, config) if offset is None else offset

    try:
        await _by_broker(queues, find)
    except (Error, TimeoutError) as error:
        log.warning("%d queues are not taken up yet: %s", len(queues) - len(found), error)
    return found


_FILE: Final = "offsets.json"
_READER: Final = "TOOLS_CONSUMER"  # a group that every broker knows


class LocalOffsets:
    """RocketMQ's own file, for its clients too: `<directory>/<client id>/<group>/offsets.json`,
    the one before it in `.bak`. A broadcasting client must keep its id to find it again."""

    def __init__(self, directory: str, client_id: str, group: str) -> None:
        root = Path(directory) if directory else Path.home() / ".rocketmq_offsets"
        self._path = root / client_id / group / _FILE
        self._offsets = self._read()
        self._saving = asyncio.Lock()

    def _read(self) -> dict[MessageQueue, int]:
        for path in (self._path, self._path.with_name(_FILE + ".bak")):
            try:
                return beans.decode(ResetOffsets, path.read_bytes()).offsets
            except FileNotFoundError:
                continue
            except (ValueError, OSError) as error:
                log.warning("%s can't be read, the one before it is tried: %s", path, error)
        return {}

    async def load(self, queue: MessageQueue) -> int | None:
        return self._offsets.get(queue)

    async def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Those of other queues stay as they are."""
        self._offsets.update(offsets)
        async with self._saving:
            try:
                await asyncio.to_thread(self._write, dict(self._offsets))
            except OSError as error:
                raise Error(f"{self._path}: {error.strerror}") from error

    def _write(self, offsets: dict[MessageQueue, int]) -> None:
        path = self._path
        path.parent.mkdir(parents=True, exist_ok=True)
        made = beans.to_json(ResetOffsets(offsets=offsets))
        new = path.with_name(_FILE + ".tmp")
        with new.open("w", encoding="utf-8") as file:
            file.write(fastjson.render(made))
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            os.replace(path, path.with_name(_FILE + ".bak"))
        os.replace(new, path)


async def start_of(session: "Session", queue: MessageQueue, config: ConsumerConfig) -> int:
    """Where a group begins that has no offset. Of a retry topic nothing is left out."""
    if queue.topic.startswith(RETRY_PREFIX) or config.start == "first":
        return await first_offset(session, queue)
    timestamp = config.start_timestamp
    if timestamp is None:
        return await last_offset(session, queue)
    return await offset_at(session, queue, timestamp)


async def first_offset(session: "Session", queue: MessageQueue) -> int:
    header = headers.OfQueue(topic=queue.topic, queue_id=queue.queue_id)
    return max(await _ask_offset(session, queue, header, RequestCode.GET_MIN_OFFSET), 0)


async def last_offset(session: "Session", queue: MessageQueue) -> int:
    """Of the message to come."""
    header = headers.OfQueue(topic=queue.topic, queue_id=queue.queue_id)
    return await _ask_offset(session, queue, header, RequestCode.GET_MAX_OFFSET)


async def offset_at(session: "Session", queue: MessageQueue, timestamp: int) -> int:
    """Of the first message stored at that time (milliseconds) or later; the end if there is none.

    A broker is asked first. One of 4.9 gives the nearest message, be it earlier, and of several of
    one millisecond any: so its answer is looked at, and the search ended here if need be.
    """
    header = headers.SearchOffset(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp)
    code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
    guess = await _ask_offset(session, queue, header, code)
    low, high = await first_offset(session, queue), await last_offset(session, queue)
    look = min(max(guess, low), high - 1)
    # what is before `low` was stored before, what is at `high` or after it was not
    while low < high:
        stored = await _store_time(session, queue, look)
        if stored is None:  # there is nothing to be seen there: the broker knows best
            return guess
        if stored < timestamp:
            low = look + 1
            look = low if look in (guess - 1, guess) else (low + high) // 2
        else:
            high = look
            look = high - 1 if look in (guess, guess + 1) else (low + high) // 2
    return low


async def _store_time(session: "Session", queue: MessageQueue, offset: int) -> int | None:
    header = headers.PullMessage(
        consumer_group=_READER,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=1,
        sys_flag=PullFlag.SUBSCRIPTION,
        subscription="*",
        expression_type="TAG",
    )
    address = await session.routes.master(queue.broker_name)
    try:
        answer = await session.ask(address, header)
        return next(decode_all(answer.body, queue)).store_timestamp
    except (ResponseError, CorruptRecord, StopIteration):
        return None


async def _ask_offset(
    session: "Session", queue: MessageQueue, header: headers.Header, code: RequestCode
) -> int:
    address = await session.routes.master(queue.broker_name)
    answer = await session.ask(address, header, code=code)
    return headers.OffsetResponse.from_fields(answer.fields).offset
